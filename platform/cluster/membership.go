package cluster

import (
	"context"
	"errors"
	"time"

	"powernode/platform/signal"
	"powernode/schema"
	"powernode/store"
)

// States of a clean-up.
const (
	cleanupRequested = "requested"
	cleanupDone      = "cleaned"
	cleanupStuck     = "stuck"
)

// stuckAfter is how long an agent may be silent before its host counts as stuck.
const stuckAfter = 24 * time.Hour

// RemovalForbidden refuses what no policy lifts: the last healthy server of a cluster that has workers.
func (s *Service) RemovalForbidden(ctx context.Context, v *store.View, acct store.AccountID, id store.InstanceID) error {
	n, err := store.ClusterNodeByInstance(ctx, v, acct, id)
	if errors.Is(err, store.ErrNoRow) || (err == nil && n.Role != RoleServer) {
		return nil
	}
	if err != nil {
		return err
	}
	if n.Status == NodeDisconnected || n.Status == NodeError {
		return nil // the floors guard healthy servers; a lost one is none
	}
	c, err := store.ClusterByID(ctx, v, acct, n.ClusterID)
	if err != nil {
		return err
	}
	members, err := store.ClusterNodes(ctx, v, acct, c.ID)
	if err != nil {
		return err
	}
	workers := 0
	for _, m := range members {
		if m.Role == RoleAgent {
			workers++
		}
	}
	servers, others, err := serversBeside(ctx, v, n, members)
	if err != nil {
		return err
	}
	switch {
	case others == 0 && workers > 0:
		return schema.Errorf(schema.PreconditionFailed, "this is the last healthy server of cluster %s, which has %d workers", c.Name, workers).
			WithDetail("floor", "last_server").WithHint("kubernetes_decommission_cluster", "Removes the whole cluster.")
	case servers > 1 && others < (servers-1)/2+1:
		return schema.Errorf(schema.PreconditionFailed, "cluster %s would lose etcd quorum", c.Name).WithDetail("floor", "quorum")
	}
	return nil
}

// serversBeside counts a cluster's servers, and those beside one that are healthy. The status of one that nobody has heard of since
// the platform began to listen stands still, and proves nothing.
func serversBeside(ctx context.Context, v *store.View, one store.ClusterNode, members []store.ClusterNode) (servers, healthy int, err error) {
	for _, m := range members {
		if m.Role != RoleServer {
			continue
		}
		servers++
		if m.ID == one.ID || m.Status != NodeActive {
			continue
		}
		h, err := healthOf(ctx, v, m.ID)
		if err != nil {
			return 0, 0, err
		}
		if !h.silent(v.Now()) {
			healthy++
		}
	}
	return servers, healthy, nil
}

// DetachForbidden refuses to take a member off its cluster's network.
func (s *Service) DetachForbidden(ctx context.Context, v *store.View, acct store.AccountID, id store.PeerID) error {
	peer, err := store.PeerByID(ctx, v, acct, id)
	if err != nil {
		return err
	}
	n, err := store.ClusterNodeByInstance(ctx, v, acct, peer.InstanceID)
	if errors.Is(err, store.ErrNoRow) {
		return nil
	}
	if err != nil {
		return err
	}
	c, err := store.ClusterByID(ctx, v, acct, n.ClusterID)
	if err != nil || c.NetworkID != peer.NetworkID {
		return err
	}
	return schema.Errorf(schema.PreconditionFailed, "instance %s is a member of cluster %s over this network", n.Name, c.Name).
		WithDetail("cluster_id", c.ID).WithHint("kubernetes_decommission_cluster", "Ends the cluster; system_terminate_instance ends one member.")
}

// FailoverReady refuses to move a cluster's API address to a server whose API is not ready.
func (s *Service) FailoverReady(ctx context.Context, v *store.View, acct store.AccountID, id store.ClusterID, to store.PeerID) error {
	refusal := schema.Errorf(schema.PreconditionFailed, "the first candidate's API server is not ready")
	peer, err := store.PeerByID(ctx, v, acct, to)
	if err != nil {
		return err
	}
	n, err := store.ClusterNodeByInstance(ctx, v, acct, peer.InstanceID)
	if errors.Is(err, store.ErrNoRow) || (err == nil && n.ClusterID != id) {
		return refusal
	}
	if err != nil {
		return err
	}
	h, err := healthOf(ctx, v, n.ID)
	if err != nil {
		return err
	}
	if h.APIReady == nil || !*h.APIReady || v.Now().Sub(h.ReportedAt.Time) > silentAfter {
		return refusal
	}
	return nil
}

// RemoveInstance ends an instance's membership because the instance ends: the row goes, and its Kubernetes Node is
// deleted by a server's agent. It answers the member that was, or nil.
func (s *Service) RemoveInstance(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.InstanceID, why string) (*store.ClusterNode, error) {
	n, err := store.ClusterNodeByInstance(ctx, &tx.View, acct, id)
	if errors.Is(err, store.ErrNoRow) {
		return nil, s.forget(ctx, tx, acct, id)
	}
	if err != nil {
		return nil, err
	}
	if err := s.endMembership(ctx, tx, n); err != nil {
		return nil, err
	}
	task, err := s.deleteNode(ctx, tx, n)
	if err != nil {
		return nil, err
	}
	return &n, signal.Emit(ctx, tx, acct, signal.Event{Kind: "system.k3s_node_removed",
		Subject: signal.Subject{ClusterID: n.ClusterID, InstanceID: id, NodeID: n.NodeID},
		Payload: store.Object{"cluster_id": n.ClusterID, "node": n.Name, "task_id": task, "reason": why}})
}

// forget lets a pending cluster go on without a first server that ends.
func (s *Service) forget(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.InstanceID) error {
	instance, err := store.InstanceByID(ctx, &tx.View, acct, id)
	if err != nil {
		return err
	}
	return s.unclaim(ctx, tx, instance)
}

func (s *Service) endMembership(ctx context.Context, tx *store.Tx, n store.ClusterNode) error {
	if err := store.DeleteClusterNode(ctx, tx, n.AccountID, n.ID); err != nil {
		return err
	}
	_, err := tx.Audit(ctx, store.AuditEntry{AccountID: n.AccountID, Action: "deleted", ResourceType: "Devops::KubernetesNode", ResourceID: string(n.ID),
		Old: store.Object{"name": n.Name, "role": n.Role, "cluster_id": n.ClusterID, "node_instance_id": n.InstanceID}})
	if err != nil {
		return err
	}
	tx.TouchInstance(n.InstanceID)
	c, err := store.ClusterByID(ctx, &tx.View, n.AccountID, n.ClusterID)
	if err != nil {
		return err
	}
	tx.TouchNetwork(c.NetworkID)
	about := signal.Subject{ClusterID: c.ID, InstanceID: n.InstanceID, NodeID: n.NodeID, NetworkID: c.NetworkID}
	return signal.Close(ctx, tx, n.AccountID, string(n.ID), "system.k3s_node_not_ready", about,
		store.Object{"cluster_id": c.ID, "node": n.Name, "ended": true})
}

// deleteNode asks a server's agent to delete the Kubernetes Node and its node password of a member that ended. It
// answers the task, or nil where no server is left that could.
func (s *Service) deleteNode(ctx context.Context, tx *store.Tx, n store.ClusterNode) (*store.TaskID, error) {
	members, err := store.ClusterNodes(ctx, &tx.View, n.AccountID, n.ClusterID)
	if err != nil {
		return nil, err
	}
	for _, m := range members {
		if m.Role != RoleServer || m.Status != NodeActive {
			continue
		}
		tx.TouchInstance(m.InstanceID)
		t, err := store.InsertTask(ctx, tx, store.Task{ID: store.TaskID(tx.NewID()), AccountID: n.AccountID, Command: "k8s_remove_node",
			Status: store.TaskPending, OperableType: "System::NodeInstance", OperableID: string(m.InstanceID), Resumable: true,
			Parameters: store.JSON[store.Object]{V: store.Object{"node": n.Name}}})
		if err != nil {
			return nil, err
		}
		_, err = tx.Audit(ctx, store.AuditEntry{AccountID: n.AccountID, Action: "created", ResourceType: "System::Task", ResourceID: string(t.ID),
			New: store.Object{"command": t.Command, "node": n.Name, "node_instance_id": m.InstanceID}})
		return &t.ID, err
	}
	return nil, nil
}

// Waiting is an instance that has not joined and whose k3s assignment names a cluster, or none that can be used.
type Waiting struct {
	NodeInstanceID store.InstanceID `json:"node_instance_id"`
	Name           string           `json:"name"`
	Role           string           `json:"role"`
	Reason         string           `json:"reason"`
	Since          store.Time       `json:"since"`
}

// WaitingFor lists who waits to become a member of a cluster.
func (s *Service) WaitingFor(ctx context.Context, v *store.View, c store.Cluster) ([]Waiting, error) {
	out := []Waiting{}
	for _, role := range []string{RoleServer, RoleAgent} {
		m, err := moduleOf(ctx, v, c.AccountID, role)
		if err != nil {
			return nil, err
		}
		all, err := store.AssignmentsByModule(ctx, v, c.AccountID, m.ID)
		if err != nil {
			return nil, err
		}
		for _, a := range all {
			if !a.Enabled {
				continue
			}
			waiting, err := s.waitingByAssignment(ctx, v, c, a, role)
			if err != nil {
				return nil, err
			}
			out = append(out, waiting...)
		}
	}
	return out, nil
}

func (s *Service) waitingByAssignment(ctx context.Context, v *store.View, c store.Cluster, a store.Assignment, role string) ([]Waiting, error) {
	instances, err := store.InstancesByNode(ctx, v, c.AccountID, a.NodeID)
	if err != nil {
		return nil, err
	}
	var out []Waiting
	for _, i := range instances {
		if !i.Live() || i.Leaving() {
			continue
		}
		r, err := resolve(ctx, v, i, a, role, "")
		if err != nil {
			return nil, err
		}
		if r.member != nil || (r.cluster != nil && r.cluster.ID != c.ID) || (r.cluster == nil && r.target != "" && r.target != c.ID && r.reason == ReasonOffNetwork) {
			continue
		}
		if role == RoleServer && r.cluster == nil && r.target == "" {
			continue // it waits for a network, not for this cluster
		}
		reason := r.reason
		if r.cluster != nil {
			if reason, err = s.onItsWay(ctx, v, c, i, role); err != nil {
				return nil, err
			}
			if reason == "" {
				continue
			}
		}
		out = append(out, Waiting{NodeInstanceID: i.ID, Name: i.Name, Role: role, Reason: reason, Since: a.UpdatedAt})
	}
	return out, nil
}

// onItsWay says why an instance that has its cluster is no member yet; "" for the cluster's own first server, which is
// only on its way.
func (s *Service) onItsWay(ctx context.Context, v *store.View, c store.Cluster, i store.Instance, role string) (string, error) {
	if left, err := cleaning(ctx, v, i); err != nil || left != nil {
		return ReasonCleaning, err
	}
	category, first := categoryJoin, role == RoleServer && c.BootstrapInstanceID == i.ID
	if first {
		category = categoryBootstrap
	}
	refusal, err := s.held(ctx, v, c, resolution{cluster: &c}, category)
	switch {
	case err != nil:
		return "", err
	case refusal != nil:
		return refusal.Reason, nil
	case first:
		return "", nil
	case c.Status == StatusActive || c.Status == StatusDegraded:
		return "api_unreachable", nil
	}
	return ReasonNoReadyServer, nil
}
