package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// SensorConfig is what an account says of a sensor, over what is compiled in.
type SensorConfig struct {
	AccountID AccountID
	Sensor    string
	Config    JSON[map[string]json.RawMessage]
	UpdatedAt Time
	Revision  int64
}

// SensorConfigs lists an account's rows by sensor.
func SensorConfigs(ctx context.Context, v *View, acct AccountID) ([]SensorConfig, error) {
	scan := func(v *View, s scanner) (SensorConfig, error) {
		c := SensorConfig{AccountID: acct}
		if err := s.Scan(&c.Sensor, &c.Config, &c.UpdatedAt, &c.Revision); err != nil {
			return c, fmt.Errorf("read sensor config: %w", err)
		}
		v.noteRow("sensor_configs", c.Sensor, c.Revision)
		return c, nil
	}
	return collect(v, ctx, scan, `SELECT sensor, config, updated_at, revision FROM sensor_configs WHERE account_id = ? ORDER BY sensor`, acct)
}

// PutSensorConfig writes an account's row for a sensor.
func PutSensorConfig(ctx context.Context, tx *Tx, c SensorConfig) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	err = tx.exec(ctx, `INSERT INTO sensor_configs (account_id, sensor, config, updated_at, revision) VALUES (?,?,?,?,?)
		ON CONFLICT (account_id, sensor) DO UPDATE SET config = excluded.config, updated_at = excluded.updated_at,
		revision = excluded.revision`, c.AccountID, c.Sensor, c.Config, At(tx.now), revision)
	if err != nil {
		return fmt.Errorf("write sensor config: %w", err)
	}
	return nil
}

// AgentState is what sensors compare of one instance: its last report, and its document's head. It is telemetry; its
// sections are JSON as they were reported, and are decoded by whom they concern.
type AgentState struct {
	InstanceID InstanceID
	NodeID     NodeID
	Status     string
	CreatedAt  Time
	ReceivedAt *Time // nil: it has not reported
	Subsystems string
	Modules    string
	Findings   string
	Desired    int64 // 0: no document
	Hash       string
	CompiledAt *Time
}

// AgentStates lists an account's instances that have not ended.
func AgentStates(ctx context.Context, v *View, acct AccountID) ([]AgentState, error) {
	scan := func(_ *View, s scanner) (AgentState, error) {
		var a AgentState
		return a, s.Scan(&a.InstanceID, &a.NodeID, &a.Status, &a.CreatedAt, &a.ReceivedAt, &a.Subsystems, &a.Modules, &a.Findings,
			&a.Desired, &a.Hash, &a.CompiledAt)
	}
	rows, err := collect(v, ctx, scan, `SELECT i.id, i.node_id, i.status, i.created_at, r.received_at, coalesce(r.subsystems, 'null'),
		coalesce(r.modules, 'null'), coalesce(r.findings, 'null'), coalesce(d.revision, 0), coalesce(d.hash, ''), d.compiled_at
		FROM instances i LEFT JOIN instance_reports r ON r.instance_id = i.id LEFT JOIN documents d ON d.instance_id = i.id
		WHERE i.account_id = ? AND i.status <> 'terminated' ORDER BY i.id`, acct)
	if err != nil {
		return nil, fmt.Errorf("read the state of agents: %w", err)
	}
	return rows, nil
}

// CertificatesInUse lists the certificates that nothing has replaced, of instances that have not ended.
func CertificatesInUse(ctx context.Context, v *View, acct AccountID) ([]Certificate, error) {
	return collect(v, ctx, scanCertificate, `SELECT `+certificateColumns+` FROM certificates WHERE account_id = ?1 AND ends_at IS NULL
		AND instance_id IN (SELECT id FROM instances WHERE account_id = ?1 AND status <> 'terminated') ORDER BY instance_id, not_after`, acct)
}

// Heard is what other machines of a network say of a peer: the newest handshake of any of them.
type Heard struct {
	PeerID    string
	Observers int
	NewestAt  *Time // nil: none of them ever had one
}

// HeardPeers answers, by peer, what the machines say that have reported since an instant.
func HeardPeers(ctx context.Context, v *View, network NetworkID, since time.Time) (map[PeerID]Heard, error) {
	scan := func(_ *View, s scanner) (Heard, error) {
		var h Heard
		return h, s.Scan(&h.PeerID, &h.Observers, &h.NewestAt)
	}
	rows, err := collect(v, ctx, scan, `SELECT remote_peer_id, count(*), max(last_handshake_at) FROM tunnels
		WHERE network_id = ? AND sampled_at >= ? GROUP BY remote_peer_id`, network, At(since))
	if err != nil {
		return nil, fmt.Errorf("read who was heard of: %w", err)
	}
	out := make(map[PeerID]Heard, len(rows))
	for _, h := range rows {
		out[PeerID(h.PeerID)] = h
	}
	return out, nil
}

// StaleTunnels lists a network's tunnels that were sampled since an instant and had no handshake since another one.
func StaleTunnels(ctx context.Context, v *View, network NetworkID, sampled, shaken time.Time) ([]Tunnel, error) {
	return collect(v, ctx, scanTunnel, `SELECT `+tunnelColumns+` FROM tunnels WHERE network_id = ? AND sampled_at >= ?
		AND (last_handshake_at IS NULL OR last_handshake_at < ?) ORDER BY instance_id, remote_peer_id`, network, At(sampled), At(shaken))
}

// What came of a remedy at once.
const (
	RemedyRan     = "ran"
	RemedyParked  = "parked"
	RemedyRefused = "refused"
)

// RemedyAttempt is what the platform did, or asked for, about an open condition.
type RemedyAttempt struct {
	ID             string
	AccountID      AccountID
	Fingerprint    string
	Verb           string
	ActionCategory string
	Outcome        string
	OperationID    OperationID // of a parked one
	At             Time
}

// RemedyAttempts lists what was attempted about a fingerprint from an instant on, oldest first.
func RemedyAttempts(ctx context.Context, v *View, acct AccountID, fingerprint string, since time.Time) ([]RemedyAttempt, error) {
	scan := func(_ *View, s scanner) (RemedyAttempt, error) {
		a := RemedyAttempt{AccountID: acct, Fingerprint: fingerprint}
		return a, s.Scan(&a.ID, &a.Verb, &a.ActionCategory, &a.Outcome, &a.OperationID, &a.At)
	}
	return collect(v, ctx, scan, `SELECT id, verb, action_category, outcome, coalesce(operation_id, ''), attempted_at FROM remedy_attempts
		WHERE account_id = ? AND fingerprint = ? AND attempted_at >= ? ORDER BY attempted_at, id`, acct, fingerprint, At(since))
}

// AutomaticRemedies counts the remedies of a category that ran without a person from an instant on.
func AutomaticRemedies(ctx context.Context, v *View, acct AccountID, category string, since time.Time) (int, error) {
	var n int
	err := v.queryRow(ctx, `SELECT count(*) FROM remedy_attempts WHERE account_id = ? AND action_category = ? AND attempted_at >= ?
		AND outcome = ?`, acct, category, At(since), RemedyRan).Scan(&n)
	return n, err
}

// InsertRemedyAttempt records an attempt.
func InsertRemedyAttempt(ctx context.Context, tx *Tx, a RemedyAttempt) error {
	err := tx.exec(ctx, `INSERT INTO remedy_attempts (id, account_id, fingerprint, verb, action_category, outcome, operation_id, attempted_at)
		VALUES (?,?,?,?,?,?,?,?)`, tx.NewID(), a.AccountID, a.Fingerprint, a.Verb, a.ActionCategory, a.Outcome, nullable(a.OperationID), At(tx.now))
	if err != nil {
		return fmt.Errorf("record a remedy: %w", err)
	}
	return nil
}

// OldestExecutionEvent is when the oldest event was written, or ErrNoRow.
func OldestExecutionEvent(ctx context.Context, v *View) (Time, error) {
	var at Time
	err := v.queryRow(ctx, `SELECT created_at FROM execution_events ORDER BY sequence LIMIT 1`).Scan(&at)
	return at, err
}

// PruneExecutionEvents removes execution events from before an instant, of the oldest some at a time, and the attempts of
// remedies of that age with them. It answers how many events.
func PruneExecutionEvents(ctx context.Context, tx *Tx, before time.Time, limit int) (int64, error) {
	n, err := tx.execCount(ctx, `DELETE FROM execution_events WHERE sequence IN (SELECT sequence FROM (SELECT sequence, created_at
		FROM execution_events ORDER BY sequence LIMIT ?) WHERE created_at < ?)`, limit, At(before))
	if err != nil {
		return 0, fmt.Errorf("remove old execution events: %w", err)
	}
	err = tx.exec(ctx, `DELETE FROM remedy_attempts WHERE attempted_at < ? AND NOT EXISTS (SELECT 1 FROM conditions c
		WHERE c.account_id = remedy_attempts.account_id AND c.fingerprint = remedy_attempts.fingerprint)`, At(before))
	if err != nil {
		return 0, fmt.Errorf("remove old attempts of remedies: %w", err)
	}
	return n, nil
}

// PeersByAccount lists an account's peers, by instance.
func PeersByAccount(ctx context.Context, v *View, acct AccountID) (map[InstanceID][]Peer, error) {
	rows, err := collect(v, ctx, scanPeer, `SELECT `+peerColumns+` FROM peers WHERE account_id = ? ORDER BY instance_id, short_id`, acct)
	if err != nil {
		return nil, fmt.Errorf("read the account's peers: %w", err)
	}
	out := map[InstanceID][]Peer{}
	for _, p := range rows {
		out[p.InstanceID] = append(out[p.InstanceID], p)
	}
	return out, nil
}
