package store

import (
	"context"
	"fmt"

	"powernode/schema"
)

// ExecutionEvent is the record of one verb call.
type ExecutionEvent struct {
	ID              ExecutionEventID
	AccountID       AccountID
	SourceType      string // verb_call, approval_execution, controller
	SourceID        string // the caller, or the operation
	EventType       string // the verb
	Status          string // ok, failed, refused, pending
	DurationMS      int64
	ErrorClass      string // the error's code; "" is none
	ErrorMessage    string
	CorrelationID   string
	CallID          string // given by a bridge that may send a call again; "" is none
	CallHash        string // names the verb, the arguments and the credential of the call under it
	CallerID        string
	Result          []byte // sealed
	ResultExpiresAt *Time
	CreatedAt       Time
}

const eventColumns = `id, account_id, source_type, source_id, event_type, status, duration_ms, coalesce(error_class, ''),
	coalesce(error_message, ''), correlation_id, coalesce(call_id, ''), coalesce(call_hash, ''), caller_id, result,
	result_expires_at, created_at`

func scanEvent(_ *View, s scanner) (ExecutionEvent, error) {
	var e ExecutionEvent
	err := s.Scan(&e.ID, &e.AccountID, &e.SourceType, &e.SourceID, &e.EventType, &e.Status, &e.DurationMS, &e.ErrorClass,
		&e.ErrorMessage, &e.CorrelationID, &e.CallID, &e.CallHash, &e.CallerID, &e.Result, &e.ResultExpiresAt,
		&e.CreatedAt)
	if err != nil {
		return e, fmt.Errorf("read execution event: %w", err)
	}
	return e, nil
}

// PutExecutionEvent writes an event, or the outcome of one that was written as pending.
func PutExecutionEvent(ctx context.Context, tx *Tx, e ExecutionEvent) error {
	err := tx.exec(ctx, `INSERT INTO execution_events (id, account_id, source_type, source_id, event_type, status, duration_ms,
		error_class, error_message, correlation_id, call_id, call_hash, caller_id, result, result_expires_at, created_at)
		VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)
		ON CONFLICT (id) DO UPDATE SET status = excluded.status, duration_ms = excluded.duration_ms, error_class = excluded.error_class,
		error_message = excluded.error_message, result = excluded.result, result_expires_at = excluded.result_expires_at`,
		e.ID, e.AccountID, e.SourceType, e.SourceID, e.EventType, e.Status, e.DurationMS, nullable(e.ErrorClass),
		nullable(e.ErrorMessage), e.CorrelationID, nullable(e.CallID), nullable(e.CallHash), e.CallerID, e.Result, e.ResultExpiresAt, At(tx.now))
	if e.CallID != "" && repeats(err) {
		return ErrCallIDUsed
	}
	return err
}

// ErrCallIDUsed says that an event is there under the call id.
var ErrCallIDUsed = schema.Errorf(schema.Conflict, "the call id was used before")

// ExecutionEventByCall finds the event of a call that was sent before, or ErrNoRow.
func ExecutionEventByCall(ctx context.Context, v *View, acct AccountID, callID string) (ExecutionEvent, error) {
	return scanEvent(v, v.queryRow(ctx, `SELECT `+eventColumns+` FROM execution_events WHERE account_id = ? AND call_id = ?`, acct, callID))
}

// ExecutionEvents lists an account's events, latest first.
func ExecutionEvents(ctx context.Context, v *View, acct AccountID, sourceType, status string, limit int) ([]ExecutionEvent, error) {
	return collect(v, ctx, scanEvent, `SELECT `+eventColumns+` FROM execution_events WHERE account_id = ?1
		AND (?2 = '' OR source_type = ?2) AND (?3 = '' OR status = ?3) ORDER BY sequence DESC LIMIT ?4`, acct, sourceType, status, limit)
}

// ForgetResults drops the results of events that were kept for repetition and are past their time.
func ForgetResults(ctx context.Context, tx *Tx) error {
	return tx.exec(ctx, `UPDATE execution_events SET result = NULL, result_expires_at = NULL WHERE result_expires_at < ?`, At(tx.now))
}

// keysKept is how many days idempotency keys are kept.
const keysKept = 7

// IdempotencyKey makes a call repeatable for its caller: the key names what the first call made, or what it answered.
type IdempotencyKey struct {
	AccountID     AccountID
	Verb          string
	Key           string
	ArgumentsHash string
	SubjectID     string // what the call made, or its correlation
	Result        []byte // sealed; nil: it has not answered, or its subject is the answer
}

// IdempotencyKeyOf finds a key, or ErrNoRow. Keys are kept for 7 days.
func IdempotencyKeyOf(ctx context.Context, v *View, acct AccountID, verb, key string) (IdempotencyKey, error) {
	k := IdempotencyKey{AccountID: acct, Verb: verb, Key: key}
	err := v.queryRow(ctx, `SELECT arguments_hash, subject_id, result FROM idempotency_keys WHERE account_id = ? AND verb = ? AND key = ?
		AND created_at > ?`, acct, verb, key, At(v.now.AddDate(0, 0, -keysKept))).Scan(&k.ArgumentsHash, &k.SubjectID, &k.Result)
	return k, err
}

// PutIdempotencyKey binds a key to what its call made or answered.
func PutIdempotencyKey(ctx context.Context, tx *Tx, k IdempotencyKey) error {
	return tx.exec(ctx, `INSERT INTO idempotency_keys (account_id, verb, key, arguments_hash, subject_id, result, created_at)
		VALUES (?,?,?,?,?,?,?)
		ON CONFLICT (account_id, verb, key) DO UPDATE SET arguments_hash = excluded.arguments_hash,
		subject_id = excluded.subject_id, result = excluded.result, created_at = excluded.created_at`,
		k.AccountID, k.Verb, k.Key, k.ArgumentsHash, k.SubjectID, k.Result, At(tx.now))
}

// DeleteIdempotencyKey frees a key whose call came to nothing.
func DeleteIdempotencyKey(ctx context.Context, tx *Tx, acct AccountID, verb, key string) error {
	return tx.exec(ctx, `DELETE FROM idempotency_keys WHERE account_id = ? AND verb = ? AND key = ?`, acct, verb, key)
}

// ForgetKeys drops the keys that are past their time.
func ForgetKeys(ctx context.Context, tx *Tx) error {
	return tx.exec(ctx, `DELETE FROM idempotency_keys WHERE created_at <= ?`, At(tx.now.AddDate(0, 0, -keysKept)))
}
