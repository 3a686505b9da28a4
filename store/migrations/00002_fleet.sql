-- +goose Up
CREATE TABLE architectures (
  id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, family TEXT NOT NULL, apt_name TEXT NOT NULL, rpm_name TEXT NOT NULL,
  display_name TEXT NOT NULL, is_canonical INTEGER NOT NULL, enabled INTEGER NOT NULL) STRICT;

CREATE TABLE platforms (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), name TEXT NOT NULL,
  architecture_id TEXT NOT NULL REFERENCES architectures (id), os TEXT NOT NULL, enabled INTEGER NOT NULL,
  description TEXT NOT NULL, created_at TEXT NOT NULL, revision INTEGER NOT NULL, UNIQUE (account_id, name)) STRICT;

CREATE TABLE templates (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), name TEXT NOT NULL,
  platform_id TEXT NOT NULL REFERENCES platforms (id), description TEXT NOT NULL, enabled INTEGER NOT NULL,
  public INTEGER NOT NULL, admin_user TEXT NOT NULL, config TEXT NOT NULL, created_at TEXT NOT NULL,
  updated_at TEXT NOT NULL, revision INTEGER NOT NULL, UNIQUE (account_id, name)) STRICT;

CREATE TABLE modules (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), name TEXT NOT NULL, name_folded TEXT NOT NULL,
  variety TEXT NOT NULL, platform_id TEXT REFERENCES platforms (id), description TEXT NOT NULL, enabled INTEGER NOT NULL,
  public INTEGER NOT NULL, locked INTEGER NOT NULL, priority INTEGER NOT NULL, dependencies TEXT NOT NULL,
  config TEXT NOT NULL, config_schema TEXT, -- NULL: free-form
  current_version_id TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL, revision INTEGER NOT NULL,
  UNIQUE (account_id, name_folded)) STRICT;

CREATE TABLE module_versions (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), module_id TEXT NOT NULL REFERENCES modules (id),
  version TEXT NOT NULL, version_number INTEGER NOT NULL, promotion_state TEXT NOT NULL, made_by TEXT NOT NULL,
  ever_live INTEGER NOT NULL, artifacts TEXT NOT NULL, manifest TEXT NOT NULL, created_at TEXT NOT NULL,
  revision INTEGER NOT NULL, UNIQUE (module_id, version)) STRICT;

CREATE TABLE template_modules (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), template_id TEXT NOT NULL REFERENCES templates (id),
  module_id TEXT NOT NULL REFERENCES modules (id), enabled INTEGER NOT NULL, priority INTEGER NOT NULL, config TEXT NOT NULL,
  recommends_override TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL, revision INTEGER NOT NULL,
  UNIQUE (template_id, module_id)) STRICT;

CREATE TABLE nodes (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), name TEXT NOT NULL,
  template_id TEXT NOT NULL REFERENCES templates (id), description TEXT NOT NULL, enabled INTEGER NOT NULL, worker_id TEXT,
  public_address TEXT, allocate_public_ip INTEGER NOT NULL, config TEXT NOT NULL, applied_template_id TEXT,
  created_at TEXT NOT NULL, updated_at TEXT NOT NULL, revision INTEGER NOT NULL, UNIQUE (account_id, name)) STRICT;
CREATE INDEX nodes_by_template ON nodes (template_id);

-- applied_* is what the template said at the last apply: the third side of the comparison.
CREATE TABLE assignments (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), node_id TEXT NOT NULL REFERENCES nodes (id),
  module_id TEXT NOT NULL REFERENCES modules (id), enabled INTEGER NOT NULL, priority INTEGER NOT NULL, config TEXT NOT NULL,
  source_template_module_id TEXT, source_template_id TEXT, auto_resolved INTEGER NOT NULL, applied_priority INTEGER,
  applied_config TEXT, disabled_by TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL, revision INTEGER NOT NULL,
  UNIQUE (node_id, module_id)) STRICT;
CREATE INDEX assignments_by_module ON assignments (module_id);

CREATE TABLE providers (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), name TEXT NOT NULL, provider_type TEXT NOT NULL,
  description TEXT NOT NULL, enabled INTEGER NOT NULL, config TEXT NOT NULL, created_at TEXT NOT NULL,
  revision INTEGER NOT NULL, UNIQUE (account_id, name)) STRICT;

CREATE TABLE regions (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), provider_id TEXT NOT NULL REFERENCES providers (id),
  name TEXT NOT NULL, region_code TEXT NOT NULL, description TEXT NOT NULL, endpoint_url TEXT NOT NULL,
  enabled INTEGER NOT NULL, machine_image TEXT NOT NULL, created_at TEXT NOT NULL, revision INTEGER NOT NULL,
  UNIQUE (provider_id, name)) STRICT;

CREATE TABLE instance_types (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), provider_id TEXT NOT NULL REFERENCES providers (id),
  name TEXT NOT NULL, instance_type_code TEXT NOT NULL, description TEXT NOT NULL, vcpus INTEGER NOT NULL,
  memory_mb INTEGER NOT NULL, storage_gb INTEGER NOT NULL, hourly_price REAL, enabled INTEGER NOT NULL, specs TEXT NOT NULL,
  created_at TEXT NOT NULL, revision INTEGER NOT NULL, UNIQUE (provider_id, name)) STRICT;

CREATE TABLE instances (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), node_id TEXT NOT NULL, name TEXT NOT NULL,
  description TEXT NOT NULL, variety TEXT NOT NULL, status TEXT NOT NULL, architecture TEXT NOT NULL, config TEXT NOT NULL,
  private_ip TEXT, public_ip TEXT, vpn_ip_address TEXT, network_profile TEXT NOT NULL, network_profile_source TEXT NOT NULL,
  provider_id TEXT NOT NULL REFERENCES providers (id), region_id TEXT NOT NULL, instance_type_id TEXT NOT NULL,
  cloud_instance_id TEXT, intent TEXT, -- create, terminate, …: an act that has no outcome yet
  provisioning TEXT NOT NULL, -- what the provider is asked for, and what the first answer said of the apply
  enrollment_token BLOB, -- sealed, from the intent until its outcome: the act hands it to the machine
  error_message TEXT NOT NULL, pool_state TEXT, cordon TEXT, hold TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL,
  terminated_at TEXT, revision INTEGER NOT NULL) STRICT;
CREATE UNIQUE INDEX instances_live_name ON instances (account_id, name) WHERE status <> 'terminated';
CREATE INDEX instances_by_node ON instances (node_id);

-- Telemetry: overwritten by every report, carries no revision, compiles nothing.
CREATE TABLE instance_reports (
  instance_id TEXT PRIMARY KEY REFERENCES instances (id) ON DELETE CASCADE, boot_id TEXT NOT NULL, agent_version TEXT NOT NULL,
  received_at TEXT NOT NULL, facts TEXT NOT NULL, subsystems TEXT NOT NULL, modules TEXT NOT NULL, host_routes TEXT,
  findings TEXT NOT NULL) STRICT;

CREATE TABLE enrollment_tokens (
  hash TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), instance_id TEXT NOT NULL REFERENCES instances (id),
  expires_at TEXT NOT NULL, used_at TEXT, csr_hash TEXT, certificate_id TEXT, created_at TEXT NOT NULL) STRICT;

CREATE TABLE certificates (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), instance_id TEXT NOT NULL REFERENCES instances (id),
  serial TEXT NOT NULL UNIQUE, subject TEXT NOT NULL, cert_pem TEXT NOT NULL, not_before TEXT NOT NULL, not_after TEXT NOT NULL,
  ends_at TEXT, -- earlier than not_after: replaced or revoked
  created_at TEXT NOT NULL, revision INTEGER NOT NULL) STRICT;

CREATE TABLE tasks (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), command TEXT NOT NULL, status TEXT NOT NULL,
  progress INTEGER NOT NULL, step TEXT NOT NULL, operable_type TEXT NOT NULL, operable_id TEXT NOT NULL, parameters TEXT NOT NULL,
  error_message TEXT NOT NULL, resumable INTEGER NOT NULL, events TEXT NOT NULL, created_at TEXT NOT NULL, completed_at TEXT,
  revision INTEGER NOT NULL) STRICT;
CREATE INDEX tasks_by_operable ON tasks (operable_id, status);

CREATE TABLE artifacts (
  sha256 TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, size_bytes INTEGER NOT NULL, added_at TEXT NOT NULL) STRICT;

-- Hosts that artefact URLs may name although their addresses are not public.
CREATE TABLE artifact_hosts (host TEXT PRIMARY KEY, added_at TEXT NOT NULL) STRICT;
