package store

import (
	"context"
	"fmt"
)

// Token is a credential of an account; the secret itself is nowhere, only its hash.
type Token struct {
	ID        TokenID
	AccountID AccountID
	UserID    UserID // whose it is; empty: the account's agent
	Hash      string
	Role      string
	ReadOnly  bool
	CreatedAt Time
	ExpiresAt *Time
	RevokedAt *Time
	Revision  int64
}

const tokenColumns = `id, account_id, coalesce(user_id, ''), hash, role, read_only, created_at, expires_at, revoked_at, revision`

func scanToken(v *View, s scanner) (Token, error) {
	var t Token
	err := s.Scan(&t.ID, &t.AccountID, &t.UserID, &t.Hash, &t.Role, &t.ReadOnly, &t.CreatedAt, &t.ExpiresAt, &t.RevokedAt, &t.Revision)
	if err != nil {
		return t, fmt.Errorf("read token: %w", err)
	}
	v.noteRow("tokens", string(t.ID), t.Revision)
	return t, nil
}

// TokenByID finds a credential.
func TokenByID(ctx context.Context, v *View, acct AccountID, id TokenID) (Token, error) {
	return scanToken(v, v.queryRow(ctx, `SELECT `+tokenColumns+` FROM tokens WHERE account_id = ? AND id = ?`, acct, id))
}

// PutToken makes a credential, or changes its role and its end.
func PutToken(ctx context.Context, tx *Tx, t Token) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `INSERT INTO tokens (`+tokenColumnsPlain+`) VALUES (?,?,?,?,?,?,?,?,?,?)
		ON CONFLICT (id) DO UPDATE SET role = excluded.role, read_only = excluded.read_only, expires_at = excluded.expires_at,
		revoked_at = excluded.revoked_at, revision = excluded.revision`,
		t.ID, t.AccountID, nullable(t.UserID), t.Hash, t.Role, t.ReadOnly, At(tx.now), t.ExpiresAt, t.RevokedAt, revision)
}

const tokenColumnsPlain = `id, account_id, user_id, hash, role, read_only, created_at, expires_at, revoked_at, revision`
