package store

import (
	"context"
	"fmt"
)

// Operation is a governed call that was parked, and what became of it.
type Operation struct {
	ID             OperationID
	AccountID      AccountID
	Verb           string
	Arguments      []byte // sealed
	ArgumentsShown JSON[any]
	ArgumentsHash  string
	Status         string // pending, approved, executing, completed, failed, rejected, expired, cancelled, stale
	ActionCategory string
	Description    string
	PlanDigest     string
	Effects        JSON[any]
	RequestedBy    JSON[Object]
	RequesterID    string
	DecidedBy      string // a user, or ""
	DecisionKey    []byte // public key that the decision was signed with
	Comment        string
	Signature      []byte
	Result         []byte // sealed
	Error          JSON[any]
	CreatedAt      Time
	ExpiresAt      Time
	DecidedAt      *Time
	ExecutedAt     *Time
	Head           Head // of the audit chain when the call was parked; the zero value: parked before heads were kept
	Revision       int64
}

const operationColumns = `id, account_id, verb, arguments, arguments_shown, arguments_hash, status, action_category, description,
	plan_digest, effects, requested_by, coalesce(decided_by, ''), decision_key, comment, signature, result, error, created_at,
	expires_at, decided_at, executed_at, chain_rows, chain_hash, revision`

func scanOperation(v *View, s scanner) (Operation, error) {
	var o Operation
	err := s.Scan(&o.ID, &o.AccountID, &o.Verb, &o.Arguments, &o.ArgumentsShown, &o.ArgumentsHash, &o.Status, &o.ActionCategory,
		&o.Description, &o.PlanDigest, &o.Effects, &o.RequestedBy, &o.DecidedBy, &o.DecisionKey, &o.Comment, &o.Signature,
		&o.Result, &o.Error, &o.CreatedAt, &o.ExpiresAt, &o.DecidedAt, &o.ExecutedAt, &o.Head.Rows, &o.Head.Hash, &o.Revision)
	if err != nil {
		return o, fmt.Errorf("read operation: %w", err)
	}
	if id, ok := o.RequestedBy.V["id"].(string); ok {
		o.RequesterID = id
	}
	return o, nil
}

// OperationByID finds an operation.
func OperationByID(ctx context.Context, v *View, acct AccountID, id OperationID) (Operation, error) {
	return scanOperation(v, v.queryRow(ctx, `SELECT `+operationColumns+` FROM operations WHERE account_id = ? AND id = ?`, acct, id))
}

// PendingOperation finds the pending operation of a caller for a verb with equal arguments, or ErrNoRow.
func PendingOperation(ctx context.Context, v *View, acct AccountID, verb, argumentsHash, callerID string) (Operation, error) {
	return scanOperation(v, v.queryRow(ctx, `SELECT `+operationColumns+` FROM operations WHERE account_id = ? AND verb = ?
		AND arguments_hash = ? AND status = 'pending' AND requested_by ->> 'id' = ? AND expires_at > ?`,
		acct, verb, argumentsHash, callerID, At(v.now)))
}

// Operations lists an account's operations, latest first; status and callerID narrow where not empty.
func Operations(ctx context.Context, v *View, acct AccountID, status, callerID string) ([]Operation, error) {
	return collect(v, ctx, scanOperation, `SELECT `+operationColumns+` FROM operations WHERE account_id = ?1
		AND (?2 = '' OR status = ?2) AND (?3 = '' OR requested_by ->> 'id' = ?3) ORDER BY created_at DESC, id DESC`, acct, status, callerID)
}

// InsertOperation parks a call.
func InsertOperation(ctx context.Context, tx *Tx, o Operation) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `INSERT INTO operations (id, account_id, verb, arguments, arguments_shown, arguments_hash, status, action_category,
		description, plan_digest, effects, requested_by, created_at, expires_at, chain_rows, chain_hash, revision)
		VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`,
		o.ID, o.AccountID, o.Verb, o.Arguments, o.ArgumentsShown, o.ArgumentsHash, o.Status, o.ActionCategory, o.Description,
		o.PlanDigest, o.Effects, o.RequestedBy, o.CreatedAt, o.ExpiresAt, o.Head.Rows, o.Head.Hash, revision)
}

// UpdateOperation writes what has become of an operation.
func UpdateOperation(ctx context.Context, tx *Tx, o Operation) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `UPDATE operations SET status = ?, decided_by = ?, decision_key = ?, comment = ?, signature = ?, result = ?,
		error = ?, decided_at = ?, executed_at = ?, revision = ? WHERE account_id = ? AND id = ?`,
		o.Status, nullable(o.DecidedBy), o.DecisionKey, o.Comment, o.Signature, o.Result, o.Error, o.DecidedAt, o.ExecutedAt,
		revision, o.AccountID, o.ID)
}

// Policy is an account's row over a category's compiled-in verdict.
type Policy struct {
	ID             PolicyID
	AccountID      AccountID
	ActionCategory string
	Verdict        string
	Scope          string // canonical JSON of the scope
	MadeBy         UserID
	Signature      []byte
	CreatedAt      Time
	Revision       int64
}

const policyColumns = `id, account_id, action_category, verdict, scope, made_by, signature, created_at, revision`

func scanPolicy(v *View, s scanner) (Policy, error) {
	var p Policy
	err := s.Scan(&p.ID, &p.AccountID, &p.ActionCategory, &p.Verdict, &p.Scope, &p.MadeBy, &p.Signature, &p.CreatedAt, &p.Revision)
	if err != nil {
		return p, fmt.Errorf("read policy: %w", err)
	}
	v.noteRow("policies", string(p.ID), p.Revision)
	return p, nil
}

// Policies lists an account's rows, of one category where it is not empty.
func Policies(ctx context.Context, v *View, acct AccountID, category string) ([]Policy, error) {
	return collect(v, ctx, scanPolicy, `SELECT `+policyColumns+` FROM policies WHERE account_id = ?1 AND (?2 = '' OR action_category = ?2)
		ORDER BY action_category, scope`, acct, category)
}

// PutPolicy writes an account's row for a category and scope.
func PutPolicy(ctx context.Context, tx *Tx, p Policy) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `INSERT INTO policies (`+policyColumns+`) VALUES (?,?,?,?,?,?,?,?,?)
		ON CONFLICT (account_id, action_category, scope) DO UPDATE SET id = excluded.id, verdict = excluded.verdict,
		made_by = excluded.made_by, signature = excluded.signature, created_at = excluded.created_at, revision = excluded.revision`,
		p.ID, p.AccountID, p.ActionCategory, p.Verdict, p.Scope, p.MadeBy, p.Signature, At(tx.now), revision)
}

// DeletePolicy removes an account's row.
func DeletePolicy(ctx context.Context, tx *Tx, acct AccountID, category, scope string) (bool, error) {
	n, err := tx.execCount(ctx, `DELETE FROM policies WHERE account_id = ? AND action_category = ? AND scope = ?`, acct, category, scope)
	return n > 0, err
}

// SetOperationExpiry moves the time until which an operation waits.
func SetOperationExpiry(ctx context.Context, tx *Tx, id OperationID, at Time) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `UPDATE operations SET expires_at = ?, revision = ? WHERE id = ?`, at, revision, id)
}

// DescribeOperation writes the assistant's words beside a call that waits.
func DescribeOperation(ctx context.Context, tx *Tx, acct AccountID, id OperationID, description string) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `UPDATE operations SET description = ?, revision = ? WHERE account_id = ? AND id = ?`, description, revision, acct, id)
}
