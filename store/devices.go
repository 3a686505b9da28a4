package store

import (
	"context"
	"fmt"
)

// UserDevice is a person's device in one network.
type UserDevice struct {
	ID               UserDeviceID
	AccountID        AccountID
	GrantID          AccessGrantID
	NetworkID        NetworkID
	Label            string
	PublicKey        string // base64; empty: the device makes it when it redeems its token
	Address          Addr
	TokenHash        string // empty: none
	TokenExpiresAt   *Time
	Downloadable     bool
	LastDownloadedAt *Time
	ConfigHash       string // of the file as it was handed out last
	StaleSince       *Time
	RevokedAt        *Time
	CreatedAt        Time
	Revision         int64
}

const userDeviceColumns = `id, account_id, grant_id, network_id, label, public_key, address, coalesce(token_hash, ''), token_expires_at,
	downloadable, last_downloaded_at, config_hash, stale_since, revoked_at, created_at, revision`

func scanUserDevice(v *View, s scanner) (UserDevice, error) {
	var d UserDevice
	err := s.Scan(&d.ID, &d.AccountID, &d.GrantID, &d.NetworkID, &d.Label, &d.PublicKey, &d.Address, &d.TokenHash, &d.TokenExpiresAt,
		&d.Downloadable, &d.LastDownloadedAt, &d.ConfigHash, &d.StaleSince, &d.RevokedAt, &d.CreatedAt, &d.Revision)
	if err != nil {
		return d, fmt.Errorf("read user device: %w", err)
	}
	v.noteRow("user_devices", string(d.ID), d.Revision)
	return d, nil
}

// UserDevicesByGrant lists a grant's devices, latest first, revoked ones too.
func UserDevicesByGrant(ctx context.Context, v *View, acct AccountID, grant AccessGrantID) ([]UserDevice, error) {
	return collect(v, ctx, scanUserDevice, `SELECT `+userDeviceColumns+` FROM user_devices WHERE account_id = ? AND grant_id = ?
		ORDER BY created_at DESC, id DESC`, acct, grant)
}

// UserDevicesByNetwork lists a network's devices that are not revoked.
func UserDevicesByNetwork(ctx context.Context, v *View, acct AccountID, network NetworkID) ([]UserDevice, error) {
	return collect(v, ctx, scanUserDevice, `SELECT `+userDeviceColumns+` FROM user_devices WHERE account_id = ? AND network_id = ?
		AND revoked_at IS NULL ORDER BY id`, acct, network)
}

// UserDevicesByLabel lists a person's devices of one label that are not revoked, in all networks.
func UserDevicesByLabel(ctx context.Context, v *View, acct AccountID, user UserID, label string) ([]UserDevice, error) {
	return collect(v, ctx, scanUserDevice, `SELECT `+userDeviceColumns+` FROM user_devices WHERE account_id = ? AND label = ?
		AND revoked_at IS NULL AND grant_id IN (SELECT id FROM access_grants WHERE account_id = ? AND user_id = ?) ORDER BY id`,
		acct, label, acct, user)
}

// UserDeviceByTokenHash finds the device that a token was made for, of whatever account: the token is the credential.
func UserDeviceByTokenHash(ctx context.Context, v *View, hash string) (UserDevice, error) {
	return scanUserDevice(v, v.queryRow(ctx, `SELECT `+userDeviceColumns+` FROM user_devices WHERE token_hash = ?`, hash))
}

// InsertUserDevice makes a device.
func InsertUserDevice(ctx context.Context, tx *Tx, d UserDevice) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `INSERT INTO user_devices (id, account_id, grant_id, network_id, label, public_key, address, token_hash,
		token_expires_at, downloadable, last_downloaded_at, config_hash, stale_since, revoked_at, created_at, revision)
		VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`,
		d.ID, d.AccountID, d.GrantID, d.NetworkID, d.Label, d.PublicKey, d.Address, nullable(d.TokenHash), d.TokenExpiresAt, d.Downloadable,
		d.LastDownloadedAt, d.ConfigHash, d.StaleSince, d.RevokedAt, At(tx.now), revision)
}

// UpdateUserDevice writes a device's changeable columns.
func UpdateUserDevice(ctx context.Context, tx *Tx, d UserDevice) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `UPDATE user_devices SET public_key = ?, token_hash = ?, token_expires_at = ?, downloadable = ?,
		last_downloaded_at = ?, config_hash = ?, stale_since = ?, revoked_at = ?, revision = ? WHERE account_id = ? AND id = ?`,
		d.PublicKey, nullable(d.TokenHash), d.TokenExpiresAt, d.Downloadable, d.LastDownloadedAt, d.ConfigHash, d.StaleSince,
		d.RevokedAt, revision, d.AccountID, d.ID)
}

// DeleteUserDevices removes all devices of a network and answers how many there were.
func DeleteUserDevices(ctx context.Context, tx *Tx, acct AccountID, network NetworkID) (int64, error) {
	if _, err := tx.Revision(ctx); err != nil {
		return 0, err
	}
	return tx.execCount(ctx, `DELETE FROM user_devices WHERE account_id = ? AND network_id = ?`, acct, network)
}
