package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"powernode/platform/signal"
	"powernode/schema"
	"powernode/store"
)

// Cleanup is how far the hosts of a decommissioned cluster are.
type Cleanup struct {
	State              string             `json:"state"` // cleaning, cleaned, stuck
	Total              int                `json:"total"`
	Cleaned            int                `json:"cleaned"`
	PendingInstanceIDs []store.InstanceID `json:"pending_instance_ids"`
}

// Decommission ends a cluster: record, members, API address and ranges go at once, hosts are cleaned by their agents,
// the k3s assignments of its members are disabled so that nothing bootstraps again. Instances stay.
func (s *Service) Decommission(ctx context.Context, tx *store.Tx, c store.Cluster) (store.Tombstone, []Warning, error) {
	warnings, err := targetedBy(ctx, &tx.View, c)
	if err != nil {
		return store.Tombstone{}, nil, err
	}
	t, err := s.decommission(ctx, tx, c)
	return t, warnings, err
}

func (s *Service) decommission(ctx context.Context, tx *store.Tx, c store.Cluster) (store.Tombstone, error) {
	members, err := store.ClusterNodes(ctx, &tx.View, c.AccountID, c.ID)
	if err != nil {
		return store.Tombstone{}, err
	}
	if err := s.disableBound(ctx, tx, c, members); err != nil {
		return store.Tombstone{}, err
	}
	for _, n := range members {
		if err := s.release(ctx, tx, c, n); err != nil {
			return store.Tombstone{}, err
		}
	}
	entry, err := tx.Audit(ctx, store.AuditEntry{AccountID: c.AccountID, Action: "deleted", ResourceType: "Devops::KubernetesCluster", ResourceID: string(c.ID),
		Old: store.Object{"name": c.Name, "slug": c.Slug, "status": c.Status, "environment": c.Environment, "node_count": len(members)}})
	if err != nil {
		return store.Tombstone{}, err
	}
	if err := store.DeleteCluster(ctx, tx, c.AccountID, c.ID); err != nil {
		return store.Tombstone{}, fmt.Errorf("end cluster %s: %w", c.Name, err)
	}
	if err := s.Network.ReleaseVIP(ctx, tx, c.AccountID, c.APIVIPID); err != nil {
		return store.Tombstone{}, err
	}
	if err := s.Network.ReleaseRanges(ctx, tx, c.AccountID, string(c.ID)); err != nil {
		return store.Tombstone{}, err
	}
	t := store.Tombstone{ClusterID: c.ID, AccountID: c.AccountID, Name: c.Name, Slug: c.Slug, Environment: c.Environment, K8sVersion: c.K8sVersion,
		NodeCount: int64(len(members)), DecommissionedBy: tx.Actor().ID, OperationID: store.OperationID(tx.Actor().OperationID), AuditEntryID: entry}
	if err := store.InsertTombstone(ctx, tx, t); err != nil {
		return t, err
	}
	tx.TouchNetwork(c.NetworkID)
	if err := touchJoiners(ctx, tx, c.AccountID); err != nil {
		return t, err
	}
	err = signal.Close(ctx, tx, c.AccountID, string(c.ID), "system.k3s_cluster_degraded", signal.Subject{ClusterID: c.ID, NetworkID: c.NetworkID},
		store.Object{"ended": true}) // whichever of its health conditions is open: they share a fingerprint
	if err != nil {
		return t, err
	}
	err = signal.Emit(ctx, tx, c.AccountID, signal.Event{Kind: "system.k3s_cluster_decommissioned",
		Subject: signal.Subject{ClusterID: c.ID, NetworkID: c.NetworkID}, Payload: store.Object{"name": c.Name, "freed_node_count": len(members)}})
	if err != nil {
		return t, err
	}
	if len(members) == 0 {
		if err := tellCleaned(ctx, tx, c.AccountID, c.ID); err != nil {
			return t, err
		}
	}
	return store.TombstoneByID(ctx, &tx.View, c.AccountID, c.ID)
}

// targetedBy warns of template modules that name a cluster which ends: what they are applied to will not join.
func targetedBy(ctx context.Context, v *store.View, c store.Cluster) ([]Warning, error) {
	var warnings []Warning
	for _, role := range []string{RoleServer, RoleAgent} {
		m, err := moduleOf(ctx, v, c.AccountID, role)
		if err != nil {
			return nil, err
		}
		joins, err := store.TemplateModulesByModule(ctx, v, c.AccountID, m.ID)
		if err != nil {
			return nil, err
		}
		for _, j := range joins {
			if text(j.Config.V, "target_cluster_id") != string(c.ID) {
				continue
			}
			t, err := store.TemplateByID(ctx, v, c.AccountID, j.TemplateID)
			if err != nil {
				return nil, err
			}
			warnings = append(warnings, Warning{"target_decommissioned", fmt.Sprintf("module %s of template %s names cluster %s, which is decommissioned", m.Name, schema.Printable(t.Name), c.Name)})
		}
	}
	return warnings, nil
}

// disableBound disables the k3s assignments of the cluster's members, and of the server that was to be its first.
func (s *Service) disableBound(ctx context.Context, tx *store.Tx, c store.Cluster, members []store.ClusterNode) error {
	nodes := map[store.NodeID]string{}
	for _, n := range members {
		nodes[n.NodeID] = n.Role
	}
	if c.BootstrapInstanceID != "" {
		first, err := store.InstanceByID(ctx, &tx.View, c.AccountID, c.BootstrapInstanceID)
		if err != nil && !errors.Is(err, store.ErrNoRow) {
			return err
		}
		if err == nil {
			nodes[first.NodeID] = RoleServer
		}
	}
	for _, node := range slices.Sorted(maps.Keys(nodes)) { // in order: the plan is the run, made twice
		role := nodes[node]
		a, err := k3sAssignment(ctx, &tx.View, c.AccountID, node, role)
		if err != nil {
			return err
		}
		if a == nil {
			continue
		}
		a.Enabled, a.DisabledBy = false, "decommission"
		if _, err := store.UpdateAssignment(ctx, tx, *a); err != nil {
			return err
		}
		_, err = tx.Audit(ctx, store.AuditEntry{AccountID: c.AccountID, Action: "updated", ResourceType: "System::NodeModuleAssignment",
			ResourceID: string(a.ID), Old: store.Object{"enabled": true}, New: store.Object{"enabled": false, "disabled_by": "decommission"}})
		if err != nil {
			return err
		}
	}
	return nil
}

// release ends a membership of a cluster that ends, and asks the host's agent to remove K3s.
func (s *Service) release(ctx context.Context, tx *store.Tx, c store.Cluster, n store.ClusterNode) error {
	if err := s.endMembership(ctx, tx, n); err != nil {
		return err
	}
	return store.PutCleanup(ctx, tx, store.Cleanup{InstanceID: n.InstanceID, AccountID: n.AccountID, ClusterID: c.ID, Role: n.Role,
		State: cleanupRequested, RequestedAt: store.At(tx.Now())})
}

// cleaned notes that an instance's agent has removed K3s.
func (s *Service) cleaned(ctx context.Context, tx *store.Tx, instance store.Instance) error {
	c, err := cleaning(ctx, &tx.View, instance)
	if err != nil || c == nil {
		return err
	}
	return s.endCleanup(ctx, tx, *c)
}

// endCleanup notes that a host carries no K3s of its cluster any more, and tells when it was the last of them.
func (s *Service) endCleanup(ctx context.Context, tx *store.Tx, c store.Cleanup) error {
	now := store.At(tx.Now())
	c.State, c.CleanedAt = cleanupDone, &now
	if err := store.PutCleanup(ctx, tx, c); err != nil {
		return err
	}
	tx.TouchInstance(c.InstanceID)
	_, err := tx.Audit(ctx, store.AuditEntry{AccountID: c.AccountID, Action: "cleaned", ResourceType: "System::NodeInstance", ResourceID: string(c.InstanceID),
		New: store.Object{"cluster_id": c.ClusterID}})
	if err != nil {
		return err
	}
	state, err := s.CleanupOf(ctx, &tx.View, c.AccountID, c.ClusterID)
	if err != nil || state.State != cleanupDone {
		return err
	}
	return tellCleaned(ctx, tx, c.AccountID, c.ClusterID)
}

const stuckKind = "system.k3s_cleanup_stuck"

// tellCleaned tells that all hosts of a cluster are clean, and closes that they were stuck where they were.
func tellCleaned(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.ClusterID) error {
	about, payload := signal.Subject{ClusterID: id}, store.Object{"cluster_id": id, "pending_instance_ids": []string{}}
	_, err := store.ConditionByFingerprint(ctx, &tx.View, acct, signal.Catalogue[stuckKind].Family+":"+string(id))
	switch {
	case err == nil:
		return signal.Close(ctx, tx, acct, string(id), stuckKind, about, payload)
	case !errors.Is(err, store.ErrNoRow):
		return err
	}
	return signal.Emit(ctx, tx, acct, signal.Event{Kind: "system.k3s_cluster_cleaned", Subject: about, Payload: payload})
}

// tickCleanups notes hosts that ended before their agents could clean them, and tells of agents that fell silent.
func (s *Service) tickCleanups(ctx context.Context, tx *store.Tx, acct store.AccountID) error {
	pending, err := store.PendingCleanups(ctx, &tx.View, acct)
	if err != nil {
		return err
	}
	for _, c := range pending {
		i, err := store.InstanceByID(ctx, &tx.View, acct, c.InstanceID)
		gone := errors.Is(err, store.ErrNoRow) // deleted with its node
		if err != nil && !gone {
			return err
		}
		if gone || !i.Live() {
			if err := s.endCleanup(ctx, tx, c); err != nil {
				return err
			}
			continue
		}
		state, err := s.CleanupOf(ctx, &tx.View, acct, c.ClusterID)
		if err != nil {
			return err
		}
		if state.State != cleanupStuck {
			continue
		}
		err = signal.Open(ctx, tx, acct, string(c.ClusterID), signal.Event{Kind: stuckKind, Subject: signal.Subject{ClusterID: c.ClusterID},
			Payload: store.Object{"cluster_id": c.ClusterID, "pending_instance_ids": state.PendingInstanceIDs}})
		if err != nil {
			return err
		}
	}
	return nil
}

// CleanupOf says how far the hosts of a decommissioned cluster are; a terminated instance counts as cleaned, and so does
// one that carries K3s for another cluster by now.
func (s *Service) CleanupOf(ctx context.Context, v *store.View, acct store.AccountID, id store.ClusterID) (Cleanup, error) {
	t, err := store.TombstoneByID(ctx, v, acct, id)
	if err != nil {
		return Cleanup{}, err
	}
	all, err := store.CleanupsByCluster(ctx, v, acct, id)
	if err != nil {
		return Cleanup{}, err
	}
	out := Cleanup{State: cleanupDone, Total: int(t.NodeCount), PendingInstanceIDs: []store.InstanceID{}}
	for _, c := range all {
		if c.State == cleanupDone {
			continue
		}
		i, err := store.InstanceByID(ctx, v, acct, c.InstanceID)
		if errors.Is(err, store.ErrNoRow) || (err == nil && !i.Live()) {
			continue
		}
		if err != nil {
			return out, err
		}
		out.PendingInstanceIDs = append(out.PendingInstanceIDs, c.InstanceID)
		silent, err := silentSince(ctx, v, c)
		if err != nil {
			return out, err
		}
		if out.State != cleanupStuck {
			out.State = "cleaning"
		}
		if v.Now().Sub(silent.Time) > stuckAfter {
			out.State = cleanupStuck
		}
	}
	out.Cleaned = out.Total - len(out.PendingInstanceIDs)
	return out, nil
}

// silentSince is when a host's agent reported last, or since when it is asked to clean up where it never did.
func silentSince(ctx context.Context, v *store.View, c store.Cleanup) (store.Time, error) {
	r, err := store.InstanceReportOf(ctx, v, c.InstanceID)
	if errors.Is(err, store.ErrNoRow) {
		return c.RequestedAt, nil
	}
	return r.ReceivedAt, err
}
