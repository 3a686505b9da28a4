package store

import (
	"context"
	"fmt"
)

// Token is a credential of an account; the secret itself is nowhere, only its hash. The row is a copy of what the audit
// chain records with an administrator's signature (platform/governance): by itself it opens nothing.
type Token struct {
	ID         TokenID
	AccountID  AccountID
	UserID     UserID // whose it is; empty: the account's agent
	Name       string
	Hash       string
	Role       string
	ReadOnly   bool
	Toolsets   []string // nil: all
	CreatedAt  Time
	ExpiresAt  *Time
	RevokedAt  *Time
	LastUsedAt *Time
	Revision   int64
}

const tokenColumns = `id, account_id, coalesce(user_id, ''), name, hash, role, read_only, toolsets, created_at, expires_at, revoked_at,
	last_used_at, revision`

func scanToken(v *View, s scanner) (Token, error) {
	var t Token
	var toolsets JSON[[]string]
	err := s.Scan(&t.ID, &t.AccountID, &t.UserID, &t.Name, &t.Hash, &t.Role, &t.ReadOnly, &toolsets, &t.CreatedAt, &t.ExpiresAt,
		&t.RevokedAt, &t.LastUsedAt, &t.Revision)
	if err != nil {
		return t, fmt.Errorf("read token: %w", err)
	}
	t.Toolsets = toolsets.V
	v.noteRow("tokens", string(t.ID), t.Revision)
	return t, nil
}

// TokenByID finds a credential.
func TokenByID(ctx context.Context, v *View, acct AccountID, id TokenID) (Token, error) {
	return scanToken(v, v.queryRow(ctx, `SELECT `+tokenColumns+` FROM tokens WHERE account_id = ? AND id = ?`, acct, id))
}

// TokenByHash finds the credential of a secret, in whatever account: the secret says which.
func TokenByHash(ctx context.Context, v *View, hash string) (Token, error) {
	return scanToken(v, v.queryRow(ctx, `SELECT `+tokenColumns+` FROM tokens WHERE hash = ?`, hash))
}

// Tokens lists an account's credentials, latest first.
func Tokens(ctx context.Context, v *View, acct AccountID) ([]Token, error) {
	return collect(v, ctx, scanToken, `SELECT `+tokenColumns+` FROM tokens WHERE account_id = ? ORDER BY created_at DESC, id DESC`, acct)
}

// PutToken makes a credential, or changes its role and its end.
func PutToken(ctx context.Context, tx *Tx, t Token) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	var toolsets any
	if t.Toolsets != nil {
		toolsets = JSON[[]string]{t.Toolsets}
	}
	return tx.exec(ctx, `INSERT INTO tokens (id, account_id, user_id, name, hash, role, read_only, toolsets, created_at, expires_at,
		revoked_at, revision) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)
		ON CONFLICT (id) DO UPDATE SET role = excluded.role, read_only = excluded.read_only, expires_at = excluded.expires_at,
		revoked_at = excluded.revoked_at, revision = excluded.revision`,
		t.ID, t.AccountID, nullable(t.UserID), t.Name, t.Hash, t.Role, t.ReadOnly, toolsets, At(tx.now), t.ExpiresAt, t.RevokedAt, revision)
}

// MarkTokenUsed notes that a credential was used; it changes nothing that anybody declared, so the revision stays.
func MarkTokenUsed(ctx context.Context, tx *Tx, id TokenID, at Time) error {
	return tx.exec(ctx, `UPDATE tokens SET last_used_at = ? WHERE id = ?`, at, id)
}
