package store

import (
	"context"
	"fmt"
	"time"
)

// TopicProbes is what waits for the answers of one run of probes.
func TopicProbes(run string) string { return "probes:" + run }

// TopicReports is what waits for agents of an account to have applied something.
func TopicReports(acct AccountID) string { return "reports:" + string(acct) }

// Probe is one measurement that an agent is asked for, and its answer. It is telemetry and has no revision.
type Probe struct {
	ID         ProbeID
	AccountID  AccountID
	RunID      string
	InstanceID InstanceID
	FromPeerID PeerID
	Source     Addr
	Target     Addr
	Protocol   string // icmp6, tcp
	Port       int    // 0: none
	DeadlineMS int
	Result     string // reachable, unreachable, error; empty: not answered
	RTTMS      *float64
	MeasuredAt *Time
	CreatedAt  Time
}

const probeColumns = `id, account_id, run_id, instance_id, from_peer_id, source, target, protocol, port, deadline_ms,
	coalesce(result, ''), rtt_ms, measured_at, created_at`

func scanProbe(_ *View, s scanner) (Probe, error) {
	var p Probe
	err := s.Scan(&p.ID, &p.AccountID, &p.RunID, &p.InstanceID, &p.FromPeerID, &p.Source, &p.Target, &p.Protocol, &p.Port, &p.DeadlineMS,
		&p.Result, &p.RTTMS, &p.MeasuredAt, &p.CreatedAt)
	if err != nil {
		return p, fmt.Errorf("read probe: %w", err)
	}
	return p, nil
}

// InsertProbe asks an agent for a measurement.
func InsertProbe(ctx context.Context, tx *Tx, p Probe) error {
	return tx.exec(ctx, `INSERT INTO probes (id, account_id, run_id, instance_id, from_peer_id, source, target, protocol, port, deadline_ms,
		created_at) VALUES (?,?,?,?,?,?,?,?,?,?,?)`,
		p.ID, p.AccountID, p.RunID, p.InstanceID, p.FromPeerID, p.Source, p.Target, p.Protocol, p.Port, p.DeadlineMS, At(tx.now))
}

// ProbesByRun lists the probes of one run.
func ProbesByRun(ctx context.Context, v *View, acct AccountID, run string) ([]Probe, error) {
	return collect(v, ctx, scanProbe, `SELECT `+probeColumns+` FROM probes WHERE account_id = ? AND run_id = ? ORDER BY id`, acct, run)
}

// ProbesByInstance lists what an agent is asked for, answered or not: a document doesn't change with every answer.
func ProbesByInstance(ctx context.Context, v *View, instance InstanceID) ([]Probe, error) {
	return collect(v, ctx, scanProbe, `SELECT `+probeColumns+` FROM probes WHERE instance_id = ? ORDER BY id`, instance)
}

// AnswerProbe records an agent's answer, once; it answers the run, or "" where nothing was asked.
func AnswerProbe(ctx context.Context, tx *Tx, instance InstanceID, p Probe) (run string, err error) {
	n, err := tx.execCount(ctx, `UPDATE probes SET result = ?, rtt_ms = ?, measured_at = ? WHERE id = ? AND instance_id = ? AND result IS NULL`,
		p.Result, p.RTTMS, p.MeasuredAt, p.ID, instance)
	if err != nil || n == 0 {
		return "", err
	}
	err = tx.queryRow(ctx, `SELECT run_id FROM probes WHERE id = ?`, p.ID).Scan(&run)
	return run, err
}

// EndProbes takes back what a run asks for, and what runs ask for that began before an instant and never ended. It
// touches the instances that were asked.
func EndProbes(ctx context.Context, tx *Tx, acct AccountID, run string, before time.Time) error {
	scan := func(_ *View, s scanner) (InstanceID, error) {
		var id InstanceID
		return id, s.Scan(&id)
	}
	instances, err := collect(&tx.View, ctx, scan, `SELECT DISTINCT instance_id FROM probes WHERE account_id = ?
		AND (run_id = ? OR created_at < ?)`, acct, run, At(before))
	if err != nil {
		return fmt.Errorf("read the instances that were asked: %w", err)
	}
	for _, id := range instances {
		tx.TouchInstance(id)
	}
	return tx.exec(ctx, `DELETE FROM probes WHERE account_id = ? AND (run_id = ? OR created_at < ?)`, acct, run, At(before))
}

// DeleteProbesOf forgets what an instance is asked for on behalf of a peer that goes away.
func DeleteProbesOf(ctx context.Context, tx *Tx, peer PeerID) error {
	return tx.exec(ctx, `DELETE FROM probes WHERE from_peer_id = ?`, peer)
}
