package store

import (
	"context"
	"fmt"
)

// Statuses of a provider connection.
const (
	ConnectionPending   = "pending" // not tested
	ConnectionConnected = "connected"
	ConnectionError     = "error"
)

// IntentUpdate is a connection's update whose test has no outcome yet; IntentCreate is its creation's.
const IntentUpdate = "update"

// Connection is how a provider's vendor is reached.
type Connection struct {
	ID          ConnectionID
	AccountID   AccountID
	ProviderID  ProviderID
	Name        string
	Description string
	EndpointURL string // "" is the vendor's own
	Enabled     bool
	Config      []byte       // sealed
	Masked      JSON[Object] // what may be shown of it
	Status      string
	Message     string // why Status is error
	TestedAt    *Time
	Intent      string // create, update; "" is none
	Proposed    []byte // sealed: what an update sets if its test passes
	CreatedAt   Time
	UpdatedAt   Time
	Revision    int64
}

const connectionColumns = `id, account_id, provider_id, name, description, endpoint_url, enabled, config, masked, status, message, tested_at,
	coalesce(intent, ''), proposed, created_at, updated_at, revision`

func scanConnection(v *View, s scanner) (Connection, error) {
	var c Connection
	err := s.Scan(&c.ID, &c.AccountID, &c.ProviderID, &c.Name, &c.Description, &c.EndpointURL, &c.Enabled, &c.Config, &c.Masked, &c.Status,
		&c.Message, &c.TestedAt, &c.Intent, &c.Proposed, &c.CreatedAt, &c.UpdatedAt, &c.Revision)
	if err != nil {
		return c, fmt.Errorf("read provider connection: %w", err)
	}
	v.noteRow("provider_connections", string(c.ID), c.Revision)
	return c, nil
}

// ConnectionByID finds a connection.
func ConnectionByID(ctx context.Context, v *View, acct AccountID, id ConnectionID) (Connection, error) {
	return scanConnection(v, v.queryRow(ctx, `SELECT `+connectionColumns+` FROM provider_connections WHERE account_id = ? AND id = ?`, acct, id))
}

// Connections lists an account's connections by name, of one provider where it is not empty.
func Connections(ctx context.Context, v *View, acct AccountID, provider ProviderID) ([]Connection, error) {
	return collect(v, ctx, scanConnection, `SELECT `+connectionColumns+` FROM provider_connections WHERE account_id = ?1
		AND (?2 = '' OR provider_id = ?2) ORDER BY name, id`, acct, provider)
}

// ConnectionsWithIntent lists the connections of all accounts whose test has no outcome.
func ConnectionsWithIntent(ctx context.Context, v *View) ([]Connection, error) {
	return collect(v, ctx, scanConnection, `SELECT `+connectionColumns+` FROM provider_connections WHERE intent IS NOT NULL ORDER BY id`)
}

// InsertConnection makes a connection.
func InsertConnection(ctx context.Context, tx *Tx, c Connection) (Connection, error) {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return c, err
	}
	c.CreatedAt, c.UpdatedAt, c.Revision = At(tx.now), At(tx.now), revision
	return c, tx.exec(ctx, `INSERT INTO provider_connections (id, account_id, provider_id, name, description, endpoint_url, enabled, config,
		masked, status, message, tested_at, intent, proposed, created_at, updated_at, revision) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`,
		c.ID, c.AccountID, c.ProviderID, c.Name, c.Description, c.EndpointURL, c.Enabled, c.Config, c.Masked, c.Status, c.Message, c.TestedAt,
		nullable(c.Intent), c.Proposed, c.CreatedAt, c.UpdatedAt, c.Revision)
}

// UpdateConnection writes a connection.
func UpdateConnection(ctx context.Context, tx *Tx, c Connection) (Connection, error) {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return c, err
	}
	c.UpdatedAt, c.Revision = At(tx.now), revision
	return c, tx.exec(ctx, `UPDATE provider_connections SET name = ?, description = ?, endpoint_url = ?, enabled = ?, config = ?, masked = ?,
		status = ?, message = ?, tested_at = ?, intent = ?, proposed = ?, updated_at = ?, revision = ? WHERE account_id = ? AND id = ?`,
		c.Name, c.Description, c.EndpointURL, c.Enabled, c.Config, c.Masked, c.Status, c.Message, c.TestedAt, nullable(c.Intent), c.Proposed,
		c.UpdatedAt, c.Revision, c.AccountID, c.ID)
}

// DeleteConnection removes a connection.
func DeleteConnection(ctx context.Context, tx *Tx, acct AccountID, id ConnectionID) error {
	return tx.exec(ctx, `DELETE FROM provider_connections WHERE account_id = ? AND id = ?`, acct, id)
}
