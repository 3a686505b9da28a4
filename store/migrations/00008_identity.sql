-- +goose Up
ALTER TABLE users ADD COLUMN grants TEXT NOT NULL DEFAULT '[]'; -- permissions held by name, beside those of the role
ALTER TABLE users ADD COLUMN removed_at TEXT;

ALTER TABLE tokens ADD COLUMN name TEXT NOT NULL DEFAULT '';
ALTER TABLE tokens ADD COLUMN toolsets TEXT; -- NULL: all
ALTER TABLE tokens ADD COLUMN last_used_at TEXT;

-- What was called under the call id, and with which credential: the same id with another call is refused.
ALTER TABLE execution_events ADD COLUMN call_hash TEXT;

-- What the first call under the key answered, sealed; NULL while it has not answered.
ALTER TABLE idempotency_keys ADD COLUMN result BLOB;
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_at);

CREATE INDEX audit_by_type ON audit (account_id, resource_type); -- in the order of the chain
