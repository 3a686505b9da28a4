-- +goose Up
-- The end of the audit chain when a call was parked: whoever decides the call signs it too. 0: parked before there was this.
ALTER TABLE operations ADD COLUMN chain_rows INTEGER NOT NULL DEFAULT 0;
ALTER TABLE operations ADD COLUMN chain_hash TEXT NOT NULL DEFAULT '';
