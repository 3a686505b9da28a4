package store

import (
	"context"
	"fmt"
)

// AccessGrant lets a person into a network.
type AccessGrant struct {
	ID        AccessGrantID
	AccountID AccountID
	NetworkID NetworkID
	UserID    UserID
	Status    string // active, suspended, revoked
	Tags      []string
	GrantedAt Time
	RevokedAt *Time
	Revision  int64
}

const accessGrantColumns = `id, account_id, network_id, user_id, status, tags, granted_at, revoked_at, revision`

func scanAccessGrant(v *View, s scanner) (AccessGrant, error) {
	var g AccessGrant
	var tags JSON[[]string]
	err := s.Scan(&g.ID, &g.AccountID, &g.NetworkID, &g.UserID, &g.Status, &tags, &g.GrantedAt, &g.RevokedAt, &g.Revision)
	if err != nil {
		return g, fmt.Errorf("read access grant: %w", err)
	}
	g.Tags = tags.V
	v.noteRow("access_grants", string(g.ID), g.Revision)
	return g, nil
}

// AccessGrantByID finds a grant.
func AccessGrantByID(ctx context.Context, v *View, acct AccountID, id AccessGrantID) (AccessGrant, error) {
	return scanAccessGrant(v, v.queryRow(ctx, `SELECT `+accessGrantColumns+` FROM access_grants WHERE account_id = ? AND id = ?`, acct, id))
}

// AccessGrantOf finds the grant of a person in a network.
func AccessGrantOf(ctx context.Context, v *View, acct AccountID, network NetworkID, user UserID) (AccessGrant, error) {
	return scanAccessGrant(v, v.queryRow(ctx, `SELECT `+accessGrantColumns+` FROM access_grants
		WHERE account_id = ? AND network_id = ? AND user_id = ?`, acct, network, user))
}

// AccessGrantsByNetwork lists a network's grants, latest first.
func AccessGrantsByNetwork(ctx context.Context, v *View, acct AccountID, network NetworkID) ([]AccessGrant, error) {
	return collect(v, ctx, scanAccessGrant, `SELECT `+accessGrantColumns+` FROM access_grants WHERE account_id = ? AND network_id = ?
		ORDER BY granted_at DESC, id DESC`, acct, network)
}

// ActiveAccessGrants lists an account's active grants.
func ActiveAccessGrants(ctx context.Context, v *View, acct AccountID) ([]AccessGrant, error) {
	return collect(v, ctx, scanAccessGrant, `SELECT `+accessGrantColumns+` FROM access_grants WHERE account_id = ? AND status = 'active'
		ORDER BY id`, acct)
}

// InsertAccessGrant makes a grant.
func InsertAccessGrant(ctx context.Context, tx *Tx, g AccessGrant) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `INSERT INTO access_grants (`+accessGrantColumns+`) VALUES (?,?,?,?,?,?,?,?,?)`,
		g.ID, g.AccountID, g.NetworkID, g.UserID, g.Status, JSON[[]string]{notNil(g.Tags)}, g.GrantedAt, g.RevokedAt, revision)
}

// UpdateAccessGrant writes a grant's changeable columns.
func UpdateAccessGrant(ctx context.Context, tx *Tx, g AccessGrant) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `UPDATE access_grants SET status = ?, tags = ?, granted_at = ?, revoked_at = ?, revision = ?
		WHERE account_id = ? AND id = ?`, g.Status, JSON[[]string]{notNil(g.Tags)}, g.GrantedAt, g.RevokedAt, revision, g.AccountID, g.ID)
}

// DeleteAccessGrants removes all grants of a network and answers how many there were; their devices are gone before.
func DeleteAccessGrants(ctx context.Context, tx *Tx, acct AccountID, network NetworkID) (int64, error) {
	if _, err := tx.Revision(ctx); err != nil {
		return 0, err
	}
	return tx.execCount(ctx, `DELETE FROM access_grants WHERE account_id = ? AND network_id = ?`, acct, network)
}
