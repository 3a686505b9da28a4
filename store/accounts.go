package store

import (
	"context"
	"fmt"
)

// Account is the owner of everything below it.
type Account struct {
	ID        AccountID
	Name      string
	Prefix    Prefix // the /48, a random ULA (RFC 4193)
	CreatedAt Time
	Revision  int64
}

const accountColumns = `id, name, prefix, created_at, revision`

func scanAccount(v *View, s scanner) (Account, error) {
	var a Account
	if err := s.Scan(&a.ID, &a.Name, &a.Prefix, &a.CreatedAt, &a.Revision); err != nil {
		return a, fmt.Errorf("read account: %w", err)
	}
	v.noteRow("accounts", string(a.ID), a.Revision)
	return a, nil
}

// Accounts lists all accounts of the installation, oldest first.
func Accounts(ctx context.Context, v *View) ([]Account, error) {
	return collect(v, ctx, scanAccount, `SELECT `+accountColumns+` FROM accounts ORDER BY created_at, id`)
}

// AccountByID finds an account.
func AccountByID(ctx context.Context, v *View, id AccountID) (Account, error) {
	return scanAccount(v, v.queryRow(ctx, `SELECT `+accountColumns+` FROM accounts WHERE id = ?`, id))
}

// InsertAccount makes an account.
func InsertAccount(ctx context.Context, tx *Tx, a Account) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `INSERT INTO accounts (id, name, prefix, created_at, revision) VALUES (?,?,?,?,?)`,
		a.ID, a.Name, a.Prefix, At(tx.now), revision)
}

// User is a person of an account. One who was removed keeps their row, which nobody finds but UserEverByRef.
type User struct {
	ID        UserID
	AccountID AccountID
	Email     string
	Name      string
	Role      string   // viewer, operator, admin
	Grants    []string // permissions held by name
	PublicKey []byte   // the human key's public half; nil: none yet
	CreatedAt Time
	RemovedAt *Time
	Revision  int64
}

const userColumns = `id, account_id, email, name, role, grants, public_key, created_at, removed_at, revision`

func scanUser(v *View, s scanner) (User, error) {
	var u User
	var grants JSON[[]string]
	err := s.Scan(&u.ID, &u.AccountID, &u.Email, &u.Name, &u.Role, &grants, &u.PublicKey, &u.CreatedAt, &u.RemovedAt, &u.Revision)
	if err != nil {
		return u, fmt.Errorf("read user: %w", err)
	}
	u.Grants = grants.V
	v.noteRow("users", string(u.ID), u.Revision)
	return u, nil
}

// Users lists an account's people, oldest first.
func Users(ctx context.Context, v *View, acct AccountID) ([]User, error) {
	return collect(v, ctx, scanUser, `SELECT `+userColumns+` FROM users WHERE account_id = ? AND removed_at IS NULL
		ORDER BY created_at, rowid`, acct)
}

// UserByRef finds a person by id or e-mail address.
func UserByRef(ctx context.Context, v *View, acct AccountID, ref string) (User, error) {
	return scanUser(v, v.queryRow(ctx, `SELECT `+userColumns+` FROM users WHERE account_id = ?1 AND (id = ?2 OR email = ?2)
		AND removed_at IS NULL`, acct, ref))
}

// UserEverByRef finds a person by id or e-mail address, also one who was removed.
func UserEverByRef(ctx context.Context, v *View, acct AccountID, ref string) (User, error) {
	return scanUser(v, v.queryRow(ctx, `SELECT `+userColumns+` FROM users WHERE account_id = ?1 AND (id = ?2 OR email = ?2)`, acct, ref))
}

// InsertUser makes a person.
func InsertUser(ctx context.Context, tx *Tx, u User) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `INSERT INTO users (`+userColumns+`) VALUES (?,?,?,?,?,?,?,?,?,?)`,
		u.ID, u.AccountID, u.Email, u.Name, u.Role, JSON[[]string]{notNil(u.Grants)}, u.PublicKey, At(tx.now), u.RemovedAt, revision)
}

// UpdateUser writes what can change of a person.
func UpdateUser(ctx context.Context, tx *Tx, u User) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `UPDATE users SET name = ?, role = ?, grants = ?, public_key = ?, removed_at = ?, revision = ?
		WHERE account_id = ? AND id = ?`, u.Name, u.Role, JSON[[]string]{notNil(u.Grants)}, u.PublicKey, u.RemovedAt, revision,
		u.AccountID, u.ID)
}

// SetUserKey records the public half of a person's human key.
func SetUserKey(ctx context.Context, tx *Tx, acct AccountID, id UserID, publicKey []byte) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `UPDATE users SET public_key = ?, revision = ? WHERE account_id = ? AND id = ?`, publicKey, revision, acct, id)
}
