-- +goose Up
-- Machines that live on after their instance has ended, until their agents have cleaned up. What is here stands by itself: a
-- machine may come back when the rows of its instance, and its node, are long gone.
CREATE TABLE departures_alone (
  instance_id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), node_id TEXT NOT NULL, name TEXT NOT NULL,
  document_revision INTEGER NOT NULL, document BLOB NOT NULL, -- the last, by which the agent leaves
  since TEXT NOT NULL, cleaned_at TEXT) STRICT;
INSERT INTO departures_alone (instance_id, account_id, node_id, name, document_revision, document, since, cleaned_at)
  SELECT d.instance_id, i.account_id, i.node_id, i.name, d.document_revision, o.body, coalesce(i.terminated_at, i.updated_at), d.cleaned_at
  FROM departures d JOIN instances i ON i.id = d.instance_id JOIN documents o ON o.instance_id = d.instance_id;

-- By what such a machine proves who it is.
CREATE TABLE departure_certificates (
  serial TEXT PRIMARY KEY, instance_id TEXT NOT NULL REFERENCES departures_alone (instance_id) ON DELETE CASCADE,
  cert_pem TEXT NOT NULL) STRICT;
INSERT INTO departure_certificates (serial, instance_id, cert_pem)
  SELECT c.serial, c.instance_id, c.cert_pem FROM certificates c JOIN departures_alone d ON d.instance_id = c.instance_id;
DROP TABLE departures;
ALTER TABLE departures_alone RENAME TO departures;

-- Of the request that a renewal answered: its repetition gets the same certificate.
ALTER TABLE certificates ADD COLUMN csr_hash TEXT;
