package cluster

import (
	"context"
	"errors"

	"powernode/platform/signal"
	"powernode/schema"
	"powernode/store"
)

// AssignmentChanged follows a write to a node's k3s assignments: what can be declared now is declared, in the same
// transaction, and the documents that it concerns are compiled anew.
func (s *Service) AssignmentChanged(ctx context.Context, tx *store.Tx, acct store.AccountID, node store.NodeID) error {
	instances, err := store.InstancesByNode(ctx, &tx.View, acct, node)
	if err != nil {
		return err
	}
	for _, i := range instances {
		if !i.Live() || i.Leaving() {
			continue
		}
		if err := s.settle(ctx, tx, i); err != nil {
			return err
		}
	}
	return nil
}

// PeerAttached follows an attach: a k3s-server assignment that waited for a network declares its cluster now.
func (s *Service) PeerAttached(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.PeerID) error {
	peer, err := store.PeerByID(ctx, &tx.View, acct, id)
	if err != nil {
		return err
	}
	instance, err := store.InstanceByID(ctx, &tx.View, acct, peer.InstanceID)
	if err != nil {
		return err
	}
	return s.settle(ctx, tx, instance)
}

// settle brings an instance's desired membership and the clusters' rows together.
func (s *Service) settle(ctx context.Context, tx *store.Tx, instance store.Instance) error {
	tx.TouchInstance(instance.ID)
	peers, err := store.PeersByInstance(ctx, &tx.View, instance.AccountID, instance.ID)
	if err != nil {
		return err
	}
	for _, p := range peers {
		tx.TouchNetwork(p.NetworkID) // the built-in rules follow desired membership
	}
	_, member, err := membership(ctx, &tx.View, instance)
	if err != nil || member {
		return err
	}
	a, err := k3sAssignment(ctx, &tx.View, instance.AccountID, instance.NodeID, RoleServer)
	if err != nil {
		return err
	}
	if err := s.unblock(ctx, tx, instance, a != nil); err != nil {
		return err
	}
	if a == nil {
		return s.unclaim(ctx, tx, instance)
	}
	if target := store.ClusterID(text(a.Config.V, "target_cluster_id")); target != "" {
		return s.claim(ctx, tx, instance, target)
	}
	return s.declareFor(ctx, tx, instance, *a, peers)
}

// unblock closes what was told of an assignment that the instance has no more.
func (s *Service) unblock(ctx context.Context, tx *store.Tx, instance store.Instance, server bool) error {
	about := signal.Subject{InstanceID: instance.ID, NodeID: instance.NodeID}
	if !server {
		if err := signal.Close(ctx, tx, instance.AccountID, string(instance.ID), "system.k3s_bootstrap_blocked", about, nil); err != nil {
			return err
		}
	}
	agent, err := k3sAssignment(ctx, &tx.View, instance.AccountID, instance.NodeID, RoleAgent)
	if err != nil || agent != nil || server {
		return err
	}
	return s.joinUnblocked(ctx, tx, instance)
}

// declareFor declares the cluster of a server without a target, once it is a peer of one network.
func (s *Service) declareFor(ctx context.Context, tx *store.Tx, instance store.Instance, a store.Assignment, peers []store.Peer) error {
	own := resolution{}
	if err := own.ownCluster(ctx, &tx.View, instance); err != nil {
		return err
	}
	if own.cluster != nil {
		return s.holdAPI(ctx, tx, instance, *own.cluster)
	}
	about := signal.Subject{InstanceID: instance.ID, NodeID: instance.NodeID}
	networkID := store.NetworkID(text(a.Config.V, "network_id"))
	var chosen *store.Peer
	for i := range peers {
		if len(peers) == 1 && networkID == "" || peers[i].NetworkID == networkID {
			chosen = &peers[i]
		}
	}
	if chosen == nil {
		return signal.Open(ctx, tx, instance.AccountID, string(instance.ID), signal.Event{Kind: "system.k3s_bootstrap_blocked", Subject: about,
			Payload: store.Object{"reason": own.reason, "candidates": networksOf(peers)}})
	}
	err := signal.Close(ctx, tx, instance.AccountID, string(instance.ID), "system.k3s_bootstrap_blocked", about, nil)
	if err != nil {
		return err
	}
	name, err := freeName(ctx, &tx.View, instance.AccountID, chosen.NetworkID, instance.Name)
	if err != nil {
		return err
	}
	_, err = s.declare(ctx, tx, instance.AccountID, CreateInput{Name: name, NetworkID: chosen.NetworkID, CNIPlugin: text(a.Config.V, "cni_plugin")},
		&instance, "assignment")
	return err
}

func networksOf(peers []store.Peer) []string {
	ids := []string{}
	for _, p := range peers {
		ids = append(ids, string(p.NetworkID))
	}
	return ids
}

// claim makes an instance the first server of a declared cluster that has none, once it is on the cluster's network.
func (s *Service) claim(ctx context.Context, tx *store.Tx, instance store.Instance, target store.ClusterID) error {
	c, reason, err := usable(ctx, &tx.View, instance.AccountID, target)
	if err != nil || reason != "" {
		return err
	}
	if c.BootstrapInstanceID != "" {
		if c.BootstrapInstanceID == instance.ID {
			return s.holdAPI(ctx, tx, instance, c)
		}
		return nil
	}
	peer, err := store.PeerOf(ctx, &tx.View, instance.AccountID, c.NetworkID, instance.ID)
	if errors.Is(err, store.ErrNoRow) {
		return nil
	}
	if err != nil {
		return err
	}
	c.BootstrapInstanceID = instance.ID
	if err := store.UpdateCluster(ctx, tx, c); err != nil {
		return err
	}
	if err := s.audit(ctx, tx, c, store.Object{"bootstrap_node_instance_id": nil}, store.Object{"bootstrap_node_instance_id": instance.ID}); err != nil {
		return err
	}
	return s.Network.SetVIPHolders(ctx, tx, c.AccountID, c.APIVIPID, []store.PeerID{peer.ID}, []store.PeerID{}, "initial")
}

// holdAPI gives a cluster's API address to its first server, which may have left the network and come back.
func (s *Service) holdAPI(ctx context.Context, tx *store.Tx, first store.Instance, c store.Cluster) error {
	peer, err := store.PeerOf(ctx, &tx.View, c.AccountID, c.NetworkID, first.ID)
	if errors.Is(err, store.ErrNoRow) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.Network.SetVIPHolders(ctx, tx, c.AccountID, c.APIVIPID, []store.PeerID{peer.ID}, []store.PeerID{}, "initial")
}

// unclaim frees a pending cluster from a first server that is no server any more.
func (s *Service) unclaim(ctx context.Context, tx *store.Tx, instance store.Instance) error {
	own := resolution{}
	if err := own.ownCluster(ctx, &tx.View, instance); err != nil || own.cluster == nil || own.cluster.Status != StatusPending {
		return err
	}
	c := *own.cluster
	c.BootstrapInstanceID = ""
	if err := store.UpdateCluster(ctx, tx, c); err != nil {
		return err
	}
	if err := s.audit(ctx, tx, c, store.Object{"bootstrap_node_instance_id": instance.ID}, store.Object{"bootstrap_node_instance_id": nil}); err != nil {
		return err
	}
	return s.Network.SetVIPHolders(ctx, tx, c.AccountID, c.APIVIPID, []store.PeerID{}, []store.PeerID{}, "holder_changed")
}

// DisableForbidden refuses to take a k3s module away from a member by its assignment.
func (s *Service) DisableForbidden(ctx context.Context, v *store.View, acct store.AccountID, node store.NodeID, module store.Module) error {
	role := RoleAgent
	switch module.Name {
	case ModuleServer:
		role = RoleServer
	case ModuleAgent:
	default:
		return nil
	}
	instances, err := store.InstancesByNode(ctx, v, acct, node)
	if err != nil {
		return err
	}
	for _, i := range instances {
		n, err := store.ClusterNodeByInstance(ctx, v, acct, i.ID)
		if errors.Is(err, store.ErrNoRow) || (err == nil && n.Role != role) {
			continue
		}
		if err != nil {
			return err
		}
		return schema.Errorf(schema.PreconditionFailed, "instance %s is a member of a cluster through module %s", i.Name, module.Name).
			WithDetail("cluster_id", n.ClusterID).WithHint("system_terminate_instance", "Ends the membership with its machine; kubernetes_decommission_cluster ends the whole cluster.")
	}
	return nil
}

// touchJoiners compiles anew for whoever could join: the set of candidates has changed. A member stays where it is, so its
// document does not follow.
func touchJoiners(ctx context.Context, tx *store.Tx, acct store.AccountID) error {
	for _, role := range []string{RoleServer, RoleAgent} {
		m, err := moduleOf(ctx, &tx.View, acct, role)
		if err != nil {
			return err
		}
		all, err := store.AssignmentsByModule(ctx, &tx.View, acct, m.ID)
		if err != nil {
			return err
		}
		for _, a := range all {
			instances, err := store.InstancesByNode(ctx, &tx.View, acct, a.NodeID)
			if err != nil {
				return err
			}
			for _, i := range instances {
				if !i.Live() {
					continue
				}
				_, member, err := membership(ctx, &tx.View, i)
				if err != nil {
					return err
				}
				if !member {
					tx.TouchInstance(i.ID)
				}
			}
		}
	}
	return nil
}

func (s *Service) audit(ctx context.Context, tx *store.Tx, c store.Cluster, old, changed store.Object) error {
	_, err := tx.Audit(ctx, store.AuditEntry{AccountID: c.AccountID, Action: "updated", ResourceType: "Devops::KubernetesCluster",
		ResourceID: string(c.ID), Old: old, New: changed})
	return err
}
