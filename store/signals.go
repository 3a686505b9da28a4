package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// TopicSignals is what watchers of an account's signals wait for.
func TopicSignals(acct AccountID) string { return "signals:" + string(acct) }

// TopicDocument is what an agent's long poll waits for.
func TopicDocument(id InstanceID) string { return "document:" + string(id) }

// Signal is a fleet event.
type Signal struct {
	Sequence       int64
	ID             SignalID
	AccountID      AccountID
	Kind           string
	Severity       string
	NodeID         NodeID
	NodeInstanceID InstanceID
	ModuleID       ModuleID
	ClusterID      ClusterID
	NetworkID      NetworkID
	Payload        Object
	Fingerprint    string
	CorrelationID  string
	Source         string
	Revision       int64
	EmittedAt      Time
}

const signalColumns = `sequence, id, account_id, kind, severity, coalesce(node_id, ''), coalesce(node_instance_id, ''),
	coalesce(module_id, ''), coalesce(cluster_id, ''), coalesce(network_id, ''), payload, fingerprint, correlation_id, source,
	revision, emitted_at`

func scanSignal(_ *View, s scanner) (Signal, error) {
	var e Signal
	var payload string
	err := s.Scan(&e.Sequence, &e.ID, &e.AccountID, &e.Kind, &e.Severity, &e.NodeID, &e.NodeInstanceID, &e.ModuleID, &e.ClusterID,
		&e.NetworkID, &payload, &e.Fingerprint, &e.CorrelationID, &e.Source, &e.Revision, &e.EmittedAt)
	if err != nil {
		return e, fmt.Errorf("read signal: %w", err)
	}
	return e, json.Unmarshal([]byte(payload), &e.Payload)
}

// InsertSignal writes a signal in the transaction of what it tells, and wakes those who watch.
func InsertSignal(ctx context.Context, tx *Tx, e Signal) (Signal, error) {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return e, err
	}
	e.ID, e.Revision, e.EmittedAt = SignalID(tx.NewID()), revision, At(tx.now)
	if e.Payload == nil {
		e.Payload = Object{}
	}
	payload, err := json.Marshal(e.Payload)
	if err != nil {
		return e, fmt.Errorf("encode the payload of %s: %w", e.Kind, err)
	}
	err = tx.exec(ctx, `INSERT INTO signals (id, account_id, kind, severity, node_id, node_instance_id, module_id, cluster_id,
		network_id, payload, fingerprint, correlation_id, source, revision, emitted_at) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`,
		e.ID, e.AccountID, e.Kind, e.Severity, nullable(e.NodeID), nullable(e.NodeInstanceID), nullable(e.ModuleID),
		nullable(e.ClusterID), nullable(e.NetworkID), string(payload), e.Fingerprint, e.CorrelationID, e.Source, e.Revision, e.EmittedAt)
	if err != nil {
		return e, fmt.Errorf("write signal %s: %w", e.Kind, err)
	}
	tx.Wake(TopicSignals(e.AccountID))
	return e, nil
}

// LatestSignals lists an account's signals, latest first; kind or correlation narrow it where not empty.
func LatestSignals(ctx context.Context, v *View, acct AccountID, kind, correlation string, limit int) ([]Signal, error) {
	return collect(v, ctx, scanSignal, `SELECT `+signalColumns+` FROM signals WHERE account_id = ?1 AND (?2 = '' OR kind = ?2)
		AND (?3 = '' OR correlation_id = ?3) ORDER BY sequence DESC LIMIT ?4`, acct, kind, correlation, limit)
}

// SignalsAfter lists an account's signals of the given kinds after a sequence number, oldest first.
func SignalsAfter(ctx context.Context, v *View, acct AccountID, after int64, kinds, severities []string, limit int) ([]Signal, error) {
	query := `SELECT ` + signalColumns + ` FROM signals WHERE account_id = ? AND sequence > ?`
	args := []any{acct, after}
	for _, narrow := range []struct {
		column string
		values []string
	}{{"kind", kinds}, {"severity", severities}} {
		if narrow.values == nil {
			continue
		}
		query += ` AND ` + narrow.column + ` IN (` + strings.TrimSuffix(strings.Repeat("?,", len(narrow.values)), ",") + `)`
		for _, value := range narrow.values {
			args = append(args, value)
		}
	}
	return collect(v, ctx, scanSignal, query+` ORDER BY sequence LIMIT ?`, append(args, limit)...)
}

// SignalsByCorrelation lists an account's signals of one correlation, oldest first.
func SignalsByCorrelation(ctx context.Context, v *View, acct AccountID, correlation string) ([]Signal, error) {
	return collect(v, ctx, scanSignal, `SELECT `+signalColumns+` FROM signals WHERE account_id = ? AND correlation_id = ?
		ORDER BY sequence`, acct, correlation)
}

// SignalsSince lists an account's signals of a severity from an instant on, latest first.
func SignalsSince(ctx context.Context, v *View, acct AccountID, severity string, since time.Time, limit int) ([]Signal, error) {
	return collect(v, ctx, scanSignal, `SELECT `+signalColumns+` FROM signals WHERE severity = ? AND emitted_at >= ? AND account_id = ?
		ORDER BY emitted_at DESC, sequence DESC LIMIT ?`, severity, At(since), acct, limit)
}

// LastSignalOf finds the latest signal with a fingerprint, or ErrNoRow.
func LastSignalOf(ctx context.Context, v *View, acct AccountID, fingerprint string) (Signal, error) {
	return scanSignal(v, v.queryRow(ctx, `SELECT `+signalColumns+` FROM signals WHERE account_id = ? AND fingerprint = ?
		AND fingerprint <> '' ORDER BY sequence DESC LIMIT 1`, acct, fingerprint))
}

// LastSignal is the highest sequence number that has been given, also where retention has removed its signal.
func LastSignal(ctx context.Context, v *View) (int64, error) {
	var n int64
	err := v.queryRow(ctx, `SELECT max(coalesce((SELECT max(sequence) FROM signals), 0),
		coalesce((SELECT max(sequence) FROM signal_horizons), 0))`).Scan(&n)
	return n, err
}

// SignalHorizon is the highest sequence number of an account's signals that retention has removed; 0: none yet.
func SignalHorizon(ctx context.Context, v *View, acct AccountID) (int64, error) {
	var n int64
	err := v.queryRow(ctx, `SELECT coalesce(max(sequence), 0) FROM signal_horizons WHERE account_id = ?`, acct).Scan(&n)
	return n, err
}

// SignalsAreDue says whether there are signals of a severity from before an instant that no open condition holds.
func SignalsAreDue(ctx context.Context, v *View, severity string, before time.Time) (bool, error) {
	var due bool
	err := v.queryRow(ctx, `SELECT EXISTS (SELECT 1 FROM signals s WHERE severity = ? AND emitted_at < ? AND `+held+`)`,
		severity, At(before)).Scan(&due)
	return due, err
}

// held leaves out the signals of a condition that is open still.
const held = `NOT EXISTS (SELECT 1 FROM conditions c WHERE c.account_id = s.account_id AND c.fingerprint = s.fingerprint
	AND s.emitted_at >= c.opened_at)`

// PruneSignals removes signals of a severity from before an instant, some at a time, and answers how many. What an open
// condition holds stays. Each account's horizon remembers how far that went.
func PruneSignals(ctx context.Context, tx *Tx, severity string, before time.Time, limit int) (int, error) {
	type gone struct {
		account  AccountID
		sequence int64
	}
	scan := func(_ *View, s scanner) (gone, error) {
		var g gone
		return g, s.Scan(&g.account, &g.sequence)
	}
	removed, err := collect(&tx.View, ctx, scan, `DELETE FROM signals WHERE sequence IN (SELECT s.sequence FROM signals s
		WHERE severity = ? AND emitted_at < ? AND `+held+` ORDER BY emitted_at LIMIT ?) RETURNING account_id, sequence`,
		severity, At(before), limit)
	if err != nil {
		return 0, fmt.Errorf("remove old signals: %w", err)
	}
	horizon := map[AccountID]int64{}
	for _, g := range removed {
		horizon[g.account] = max(horizon[g.account], g.sequence)
	}
	for account, sequence := range horizon {
		err := tx.exec(ctx, `INSERT INTO signal_horizons (account_id, sequence) VALUES (?,?)
			ON CONFLICT (account_id) DO UPDATE SET sequence = max(sequence, excluded.sequence)`, account, sequence)
		if err != nil {
			return 0, fmt.Errorf("remember the horizon of signals: %w", err)
		}
	}
	return len(removed), nil
}

// Condition is something that an opening signal told of and no closing one has ended.
type Condition struct {
	Fingerprint, Kind, Severity string
	OpenedAt                    Time
}

// ConditionByFingerprint finds an open condition, or ErrNoRow.
func ConditionByFingerprint(ctx context.Context, v *View, acct AccountID, fingerprint string) (Condition, error) {
	var c Condition
	err := v.queryRow(ctx, `SELECT fingerprint, kind, severity, opened_at FROM conditions WHERE account_id = ? AND fingerprint = ?`,
		acct, fingerprint).Scan(&c.Fingerprint, &c.Kind, &c.Severity, &c.OpenedAt)
	return c, err
}

// Conditions lists what is open in an account, by fingerprint.
func Conditions(ctx context.Context, v *View, acct AccountID) ([]Condition, error) {
	scan := func(_ *View, s scanner) (Condition, error) {
		var c Condition
		return c, s.Scan(&c.Fingerprint, &c.Kind, &c.Severity, &c.OpenedAt)
	}
	return collect(v, ctx, scan, `SELECT fingerprint, kind, severity, opened_at FROM conditions WHERE account_id = ? ORDER BY fingerprint`, acct)
}

// PutCondition opens a condition, or raises an open one.
func PutCondition(ctx context.Context, tx *Tx, acct AccountID, c Condition) error {
	return tx.exec(ctx, `INSERT INTO conditions (account_id, fingerprint, kind, severity, opened_at) VALUES (?,?,?,?,?)
		ON CONFLICT (account_id, fingerprint) DO UPDATE SET kind = excluded.kind, severity = excluded.severity`,
		acct, c.Fingerprint, c.Kind, c.Severity, c.OpenedAt)
}

// DeleteCondition closes a condition.
func DeleteCondition(ctx context.Context, tx *Tx, acct AccountID, fingerprint string) error {
	return tx.exec(ctx, `DELETE FROM conditions WHERE account_id = ? AND fingerprint = ?`, acct, fingerprint)
}
