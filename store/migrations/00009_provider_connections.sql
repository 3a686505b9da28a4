-- +goose Up
-- A provider that was deleted stays as a row, for instances that have ended still name it; nothing else finds it.
ALTER TABLE providers ADD COLUMN deleted_at TEXT;

-- How a vendor is reached. Config is sealed whole; masked is what may be shown of it.
CREATE TABLE provider_connections (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), provider_id TEXT NOT NULL REFERENCES providers (id),
  name TEXT NOT NULL, description TEXT NOT NULL, endpoint_url TEXT NOT NULL, enabled INTEGER NOT NULL, config BLOB NOT NULL,
  masked TEXT NOT NULL, status TEXT NOT NULL, message TEXT NOT NULL, tested_at TEXT,
  intent TEXT, -- create, update: a test that has no outcome yet
  proposed BLOB, -- sealed: the values that an update would set, until its test's outcome
  created_at TEXT NOT NULL, updated_at TEXT NOT NULL, revision INTEGER NOT NULL) STRICT;
CREATE INDEX provider_connections_by_provider ON provider_connections (provider_id);

-- Machines that live on after their instance has ended, until their agents have cleaned up.
CREATE TABLE departures (
  instance_id TEXT PRIMARY KEY REFERENCES instances (id) ON DELETE CASCADE, document_revision INTEGER NOT NULL,
  ends_at TEXT NOT NULL, cleaned_at TEXT) STRICT;
