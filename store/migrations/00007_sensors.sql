-- +goose Up
-- What an account says of a sensor, over what is compiled in.
CREATE TABLE sensor_configs (
  account_id TEXT NOT NULL REFERENCES accounts (id), sensor TEXT NOT NULL, config TEXT NOT NULL, updated_at TEXT NOT NULL,
  revision INTEGER NOT NULL, PRIMARY KEY (account_id, sensor)) STRICT;

-- What the platform did, or asked for, about an open condition.
CREATE TABLE remedy_attempts (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), fingerprint TEXT NOT NULL, verb TEXT NOT NULL,
  action_category TEXT NOT NULL, outcome TEXT NOT NULL, operation_id TEXT, attempted_at TEXT NOT NULL) STRICT;
CREATE INDEX remedy_attempts_by_fingerprint ON remedy_attempts (account_id, fingerprint, attempted_at);
CREATE INDEX remedy_attempts_by_category ON remedy_attempts (account_id, action_category, attempted_at);

-- The highest sequence number of an account's signals that retention has removed: a watcher below it may have missed one.
CREATE TABLE signal_horizons (account_id TEXT PRIMARY KEY REFERENCES accounts (id), sequence INTEGER NOT NULL) STRICT;

CREATE INDEX signals_by_fingerprint ON signals (account_id, fingerprint, sequence) WHERE fingerprint <> '';
CREATE INDEX signals_by_age ON signals (severity, emitted_at);
