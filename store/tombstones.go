package store

import (
	"context"
	"fmt"
)

// Tombstone is what stays of a decommissioned cluster.
type Tombstone struct {
	ClusterID        ClusterID
	AccountID        AccountID
	Name             string
	Slug             string
	Environment      string
	K8sVersion       string
	NodeCount        int64
	DecommissionedAt Time
	DecommissionedBy string
	OperationID      OperationID // "" when no operation stood behind it
	AuditEntryID     AuditEntryID
	Revision         int64
}

const tombstoneColumns = `cluster_id, account_id, name, slug, environment, k8s_version, node_count, decommissioned_at, decommissioned_by,
	coalesce(operation_id, ''), audit_entry_id, revision`

func scanTombstone(v *View, s scanner) (Tombstone, error) {
	var t Tombstone
	err := s.Scan(&t.ClusterID, &t.AccountID, &t.Name, &t.Slug, &t.Environment, &t.K8sVersion, &t.NodeCount, &t.DecommissionedAt,
		&t.DecommissionedBy, &t.OperationID, &t.AuditEntryID, &t.Revision)
	if err != nil {
		return t, fmt.Errorf("read tombstone: %w", err)
	}
	v.noteRow("tombstones", string(t.ClusterID), t.Revision)
	return t, nil
}

// Tombstones lists an account's decommissioned clusters, latest first.
func Tombstones(ctx context.Context, v *View, acct AccountID) ([]Tombstone, error) {
	return collect(v, ctx, scanTombstone, `SELECT `+tombstoneColumns+` FROM tombstones WHERE account_id = ? ORDER BY decommissioned_at DESC, cluster_id DESC`, acct)
}

// TombstoneByID finds what stayed of a cluster, or ErrNoRow.
func TombstoneByID(ctx context.Context, v *View, acct AccountID, id ClusterID) (Tombstone, error) {
	return scanTombstone(v, v.queryRow(ctx, `SELECT `+tombstoneColumns+` FROM tombstones WHERE account_id = ? AND cluster_id = ?`, acct, id))
}

// InsertTombstone keeps the record of a cluster that ends.
func InsertTombstone(ctx context.Context, tx *Tx, t Tombstone) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `INSERT INTO tombstones (cluster_id, account_id, name, slug, environment, k8s_version, node_count, decommissioned_at,
		decommissioned_by, operation_id, audit_entry_id, revision) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)`,
		t.ClusterID, t.AccountID, t.Name, t.Slug, t.Environment, t.K8sVersion, t.NodeCount, At(tx.now), t.DecommissionedBy,
		nullable(t.OperationID), t.AuditEntryID, revision)
}

// Cleanup is a host whose agent is to remove K3s, because its membership ended.
type Cleanup struct {
	InstanceID  InstanceID
	AccountID   AccountID
	ClusterID   ClusterID
	Role        string // server, agent
	State       string // requested, cleaned
	RequestedAt Time
	CleanedAt   *Time
	Revision    int64
}

const cleanupColumns = `instance_id, account_id, cluster_id, role, state, requested_at, cleaned_at, revision`

func scanCleanup(v *View, s scanner) (Cleanup, error) {
	var c Cleanup
	err := s.Scan(&c.InstanceID, &c.AccountID, &c.ClusterID, &c.Role, &c.State, &c.RequestedAt, &c.CleanedAt, &c.Revision)
	if err != nil {
		return c, fmt.Errorf("read cleanup: %w", err)
	}
	v.noteRow("cleanups", string(c.InstanceID), c.Revision)
	return c, nil
}

// CleanupByInstance finds an instance's latest clean-up, or ErrNoRow.
func CleanupByInstance(ctx context.Context, v *View, acct AccountID, id InstanceID) (Cleanup, error) {
	return scanCleanup(v, v.queryRow(ctx, `SELECT `+cleanupColumns+` FROM cleanups WHERE account_id = ? AND instance_id = ?`, acct, id))
}

// CleanupsByCluster lists the clean-ups that the end of a cluster asked for.
func CleanupsByCluster(ctx context.Context, v *View, acct AccountID, id ClusterID) ([]Cleanup, error) {
	return collect(v, ctx, scanCleanup, `SELECT `+cleanupColumns+` FROM cleanups WHERE account_id = ? AND cluster_id = ? ORDER BY instance_id`, acct, id)
}

// PendingCleanups lists the clean-ups of an account that are not done.
func PendingCleanups(ctx context.Context, v *View, acct AccountID) ([]Cleanup, error) {
	return collect(v, ctx, scanCleanup, `SELECT `+cleanupColumns+` FROM cleanups WHERE account_id = ? AND state <> 'cleaned' ORDER BY instance_id`, acct)
}

// PutCleanup asks for a clean-up, or writes its outcome.
func PutCleanup(ctx context.Context, tx *Tx, c Cleanup) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `INSERT INTO cleanups (`+cleanupColumns+`) VALUES (?,?,?,?,?,?,?,?) ON CONFLICT (instance_id) DO UPDATE SET
		cluster_id = excluded.cluster_id, role = excluded.role, state = excluded.state, requested_at = excluded.requested_at,
		cleaned_at = excluded.cleaned_at, revision = excluded.revision`,
		c.InstanceID, c.AccountID, c.ClusterID, c.Role, c.State, c.RequestedAt, c.CleanedAt, revision)
}

// DeleteCleanup forgets a clean-up: the instance is to carry K3s again.
func DeleteCleanup(ctx context.Context, tx *Tx, acct AccountID, id InstanceID) error {
	return tx.exec(ctx, `DELETE FROM cleanups WHERE account_id = ? AND instance_id = ?`, acct, id)
}
