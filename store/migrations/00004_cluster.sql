-- +goose Up
CREATE TABLE clusters (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), name TEXT NOT NULL, slug TEXT NOT NULL UNIQUE,
  network_id TEXT NOT NULL REFERENCES networks (id), description TEXT NOT NULL, flavor TEXT NOT NULL, environment TEXT NOT NULL,
  status TEXT NOT NULL, status_since TEXT NOT NULL, k8s_version TEXT NOT NULL, version_id TEXT NOT NULL REFERENCES module_versions (id),
  cni_plugin TEXT NOT NULL, flannel_backend TEXT NOT NULL, pod_cidr TEXT NOT NULL, service_cidr TEXT NOT NULL,
  datastore TEXT NOT NULL, api_vip_id TEXT NOT NULL REFERENCES virtual_ips (id), bootstrap_instance_id TEXT,
  kubeconfig BLOB, ca_pem TEXT NOT NULL, server_token BLOB NOT NULL, agent_token BLOB NOT NULL, -- sealed
  server_token_generation INTEGER NOT NULL, agent_token_generation INTEGER NOT NULL,
  created_at TEXT NOT NULL, updated_at TEXT NOT NULL, revision INTEGER NOT NULL, UNIQUE (account_id, name)) STRICT;

CREATE TABLE cluster_nodes (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), cluster_id TEXT NOT NULL REFERENCES clusters (id),
  instance_id TEXT NOT NULL UNIQUE REFERENCES instances (id), node_id TEXT NOT NULL, name TEXT NOT NULL, role TEXT NOT NULL,
  status TEXT NOT NULL, status_since TEXT NOT NULL, k8s_version TEXT NOT NULL, cordon TEXT, joined_at TEXT, created_at TEXT NOT NULL,
  updated_at TEXT NOT NULL, revision INTEGER NOT NULL, UNIQUE (cluster_id, name)) STRICT;

-- Telemetry: what servers' agents measured last.
CREATE TABLE cluster_health (
  cluster_id TEXT PRIMARY KEY REFERENCES clusters (id) ON DELETE CASCADE, measured_at TEXT NOT NULL, measured_by TEXT NOT NULL,
  vip_ready INTEGER, detail TEXT NOT NULL) STRICT;
CREATE TABLE cluster_node_health (
  cluster_node_id TEXT PRIMARY KEY REFERENCES cluster_nodes (id) ON DELETE CASCADE, reported_at TEXT NOT NULL,
  node_ready INTEGER, api_ready INTEGER, etcd_healthy INTEGER, not_ready_since TEXT, detail TEXT NOT NULL) STRICT;

CREATE TABLE tombstones (
  cluster_id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), name TEXT NOT NULL, slug TEXT NOT NULL,
  environment TEXT NOT NULL, k8s_version TEXT NOT NULL, node_count INTEGER NOT NULL, decommissioned_at TEXT NOT NULL,
  decommissioned_by TEXT NOT NULL, operation_id TEXT, audit_entry_id TEXT NOT NULL, revision INTEGER NOT NULL) STRICT;

-- Hosts whose agents are to remove K3s: of a decommissioned cluster, or of one membership that ended.
CREATE TABLE cleanups (
  instance_id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), cluster_id TEXT NOT NULL, role TEXT NOT NULL,
  state TEXT NOT NULL, requested_at TEXT NOT NULL, cleaned_at TEXT, revision INTEGER NOT NULL) STRICT;
