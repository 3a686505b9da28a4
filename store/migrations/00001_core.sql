-- +goose Up
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE revision (value INTEGER NOT NULL) STRICT;
INSERT INTO revision (value) VALUES (0);

CREATE TABLE accounts (
  id TEXT PRIMARY KEY, name TEXT NOT NULL, prefix TEXT NOT NULL, -- the account's /48
  created_at TEXT NOT NULL, revision INTEGER NOT NULL) STRICT;

CREATE TABLE users (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), email TEXT NOT NULL, name TEXT NOT NULL,
  role TEXT NOT NULL, public_key BLOB, -- Ed25519, the human key's public half
  created_at TEXT NOT NULL, revision INTEGER NOT NULL,
  UNIQUE (account_id, email)) STRICT;

CREATE TABLE tokens (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), user_id TEXT REFERENCES users (id),
  hash TEXT NOT NULL UNIQUE, role TEXT NOT NULL, read_only INTEGER NOT NULL DEFAULT 0,
  created_at TEXT NOT NULL, expires_at TEXT, revoked_at TEXT, revision INTEGER NOT NULL) STRICT;

-- Append-only; hash covers previous_hash and every other column.
CREATE TABLE audit (
  sequence INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, account_id TEXT, action TEXT NOT NULL,
  resource_type TEXT NOT NULL, resource_id TEXT NOT NULL, actor TEXT NOT NULL, verb TEXT NOT NULL,
  old_values TEXT NOT NULL, new_values TEXT NOT NULL, operation_id TEXT, correlation_id TEXT NOT NULL,
  created_at TEXT NOT NULL, previous_hash TEXT NOT NULL, hash TEXT NOT NULL) STRICT;
CREATE INDEX audit_by_resource ON audit (account_id, resource_type, resource_id);

CREATE TABLE signals (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, account_id TEXT NOT NULL REFERENCES accounts (id),
  kind TEXT NOT NULL, severity TEXT NOT NULL, node_id TEXT, node_instance_id TEXT, module_id TEXT, cluster_id TEXT,
  network_id TEXT, payload TEXT NOT NULL, fingerprint TEXT NOT NULL, correlation_id TEXT NOT NULL, source TEXT NOT NULL,
  revision INTEGER NOT NULL, emitted_at TEXT NOT NULL) STRICT;
CREATE INDEX signals_by_kind ON signals (account_id, kind, sequence);
CREATE INDEX signals_by_correlation ON signals (account_id, correlation_id, sequence);

-- What is open now: a pair's opening kind was emitted, its closing kind was not.
CREATE TABLE conditions (
  account_id TEXT NOT NULL REFERENCES accounts (id), fingerprint TEXT NOT NULL, kind TEXT NOT NULL, severity TEXT NOT NULL,
  opened_at TEXT NOT NULL, PRIMARY KEY (account_id, fingerprint)) STRICT;

CREATE TABLE execution_events (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, account_id TEXT NOT NULL REFERENCES accounts (id),
  source_type TEXT NOT NULL, source_id TEXT NOT NULL, event_type TEXT NOT NULL, status TEXT NOT NULL,
  duration_ms INTEGER NOT NULL, error_class TEXT, error_message TEXT, correlation_id TEXT NOT NULL,
  call_id TEXT, caller_id TEXT NOT NULL, result BLOB, result_expires_at TEXT, created_at TEXT NOT NULL) STRICT;
CREATE INDEX execution_events_by_expiry ON execution_events (result_expires_at) WHERE result_expires_at IS NOT NULL;
CREATE UNIQUE INDEX execution_events_by_call ON execution_events (account_id, call_id) WHERE call_id IS NOT NULL;

CREATE TABLE idempotency_keys (
  account_id TEXT NOT NULL REFERENCES accounts (id), verb TEXT NOT NULL, key TEXT NOT NULL, arguments_hash TEXT NOT NULL,
  subject_id TEXT NOT NULL, created_at TEXT NOT NULL, PRIMARY KEY (account_id, verb, key)) STRICT;

CREATE TABLE operations (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), verb TEXT NOT NULL, arguments BLOB NOT NULL, -- sealed
  arguments_shown TEXT NOT NULL, arguments_hash TEXT NOT NULL, status TEXT NOT NULL, action_category TEXT NOT NULL,
  description TEXT NOT NULL, plan_digest TEXT NOT NULL, effects TEXT NOT NULL, requested_by TEXT NOT NULL,
  decided_by TEXT, decision_key BLOB, comment TEXT NOT NULL DEFAULT '', signature BLOB, result BLOB, error TEXT,
  created_at TEXT NOT NULL, expires_at TEXT NOT NULL, decided_at TEXT, executed_at TEXT, revision INTEGER NOT NULL) STRICT;
CREATE INDEX operations_by_status ON operations (account_id, status);

CREATE TABLE policies (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), action_category TEXT NOT NULL, verdict TEXT NOT NULL,
  scope TEXT NOT NULL, made_by TEXT NOT NULL, signature BLOB, created_at TEXT NOT NULL, revision INTEGER NOT NULL,
  UNIQUE (account_id, action_category, scope)) STRICT;

-- The desired document of an instance as it was last compiled.
CREATE TABLE documents (
  instance_id TEXT PRIMARY KEY, revision INTEGER NOT NULL, hash TEXT NOT NULL, body BLOB NOT NULL, compiled_at TEXT NOT NULL) STRICT;
