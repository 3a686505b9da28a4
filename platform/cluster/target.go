package cluster

import (
	"context"
	"errors"

	"powernode/schema"
	"powernode/store"
)

// Reasons why a join has no cluster (contract 5.2, 12.6, 15.6).
const (
	ReasonNoneSet         = "none_set"
	ReasonAmbiguous       = "ambiguous"
	ReasonNoCluster       = "no_cluster"
	ReasonUnknown         = "unknown"
	ReasonError           = "error"
	ReasonDecommissioned  = "decommissioned"
	ReasonOffNetwork      = "not_on_cluster_network"
	ReasonNoReadyServer   = "no_ready_server"
	ReasonMissingPeer     = "missing_sdwan_peer"
	ReasonManyNetworks    = "ambiguous_network"
	ReasonNoAgentVersion  = "no_agent_version"
	ReasonTargetMismatch  = "target_mismatch"
	ReasonNotAvailableYet = "not_available_yet"
	ReasonApproval        = "approval_pending"
	ReasonCleaning        = "cleaning" // the machine has still to remove the K3s of a cluster that ended
)

// Target is what an assignment's target comes to, as lists show it.
type Target struct {
	ClusterID *store.ClusterID `json:"cluster_id"`
	Usable    bool             `json:"usable"`
	Reason    *string          `json:"reason"`
}

// resolution says which cluster a join of an instance means. Assigning, serving and joining all ask for it.
type resolution struct {
	cluster    *store.Cluster
	member     *store.ClusterNode // the instance is in the cluster already: whatever its assignment names
	target     store.ClusterID    // what the assignment or the field names; "" is none
	reason     string             // why cluster is nil
	candidates []store.Cluster    // without a usable target: what could be meant
}

// resolve asks membership first, then the assignment's target, then the field that an agent sent. A target that can't
// be used never falls back to the account's only cluster.
func resolve(ctx context.Context, v *store.View, instance store.Instance, a store.Assignment, role, field string) (resolution, error) {
	if r, found, err := membership(ctx, v, instance); err != nil || found {
		return r, err
	}
	r := resolution{target: store.ClusterID(text(a.Config.V, "target_cluster_id"))}
	if r.target == "" {
		r.target = store.ClusterID(field)
	}
	if r.target != "" {
		return r, r.byTarget(ctx, v, instance)
	}
	if role == RoleServer {
		return r, r.ownCluster(ctx, v, instance)
	}
	return r, r.onlyCluster(ctx, v, instance)
}

func membership(ctx context.Context, v *store.View, instance store.Instance) (resolution, bool, error) {
	n, err := store.ClusterNodeByInstance(ctx, v, instance.AccountID, instance.ID)
	if errors.Is(err, store.ErrNoRow) {
		return resolution{}, false, nil
	}
	if err != nil {
		return resolution{}, false, err
	}
	c, err := store.ClusterByID(ctx, v, instance.AccountID, n.ClusterID)
	return resolution{cluster: &c, member: &n, target: c.ID}, true, err
}

func (r *resolution) byTarget(ctx context.Context, v *store.View, instance store.Instance) error {
	c, reason, err := usable(ctx, v, instance.AccountID, r.target)
	if err != nil {
		return err
	}
	if reason == "" {
		on, err := onNetwork(ctx, v, c, instance)
		if err != nil {
			return err
		}
		if on {
			r.cluster = &c
			return nil
		}
		reason = ReasonOffNetwork
	}
	r.reason = reason
	r.candidates, err = candidates(ctx, v, instance.AccountID)
	return err
}

// ownCluster is the cluster that was declared for a server without a target.
func (r *resolution) ownCluster(ctx context.Context, v *store.View, instance store.Instance) error {
	all, err := store.Clusters(ctx, v, instance.AccountID)
	if err != nil {
		return err
	}
	for i := range all {
		if all[i].BootstrapInstanceID == instance.ID {
			r.cluster = &all[i]
			return nil
		}
	}
	peers, err := store.PeersByInstance(ctx, v, instance.AccountID, instance.ID)
	if err != nil {
		return err
	}
	r.reason = ReasonMissingPeer
	if len(peers) > 1 {
		r.reason = ReasonManyNetworks
	}
	return nil
}

func (r *resolution) onlyCluster(ctx context.Context, v *store.View, instance store.Instance) error {
	all, err := candidates(ctx, v, instance.AccountID)
	if err != nil {
		return err
	}
	switch len(all) {
	case 0:
		r.reason = ReasonNoCluster
	case 1:
		on, err := onNetwork(ctx, v, all[0], instance)
		if err != nil {
			return err
		}
		if !on {
			r.reason, r.candidates = ReasonOffNetwork, all
			return nil
		}
		r.cluster = &all[0]
	default:
		r.reason, r.candidates = ReasonAmbiguous, all
	}
	return nil
}

// usable finds a target, or says why it can't be used.
func usable(ctx context.Context, v *store.View, acct store.AccountID, id store.ClusterID) (store.Cluster, string, error) {
	c, err := store.ClusterByID(ctx, v, acct, id)
	switch {
	case err == nil && c.Status == StatusError:
		return c, ReasonError, nil
	case err == nil:
		return c, "", nil
	case !errors.Is(err, store.ErrNoRow):
		return c, "", err
	}
	_, err = store.TombstoneByID(ctx, v, acct, id)
	switch {
	case err == nil:
		return c, ReasonDecommissioned, nil
	case errors.Is(err, store.ErrNoRow):
		return c, ReasonUnknown, nil
	}
	return c, "", err
}

func onNetwork(ctx context.Context, v *store.View, c store.Cluster, instance store.Instance) (bool, error) {
	_, err := store.PeerOf(ctx, v, instance.AccountID, c.NetworkID, instance.ID)
	if errors.Is(err, store.ErrNoRow) {
		return false, nil
	}
	return err == nil, err
}

// CheckTarget judges the config of a k3s module when it is written, and returns it with the target as an id. node is
// the node that it is written for, or "" for a template.
func (s *Service) CheckTarget(ctx context.Context, v *store.View, acct store.AccountID, node store.NodeID, module store.Module, config store.Object) (store.Object, []Warning, error) {
	if module.Name != ModuleServer && module.Name != ModuleAgent {
		return config, nil, nil
	}
	if cni := text(config, "cni_plugin"); cni == "ovn_kubernetes" {
		return nil, nil, schema.Errorf(schema.PreconditionFailed, "not available yet: cni_plugin ovn_kubernetes")
	}
	ref := text(config, "target_cluster_id")
	if ref == "" {
		return s.checkNoTarget(ctx, v, acct, module, config)
	}
	c, err := s.findTarget(ctx, v, acct, ref)
	if err != nil {
		return nil, nil, err
	}
	if module.Name == ModuleServer {
		if err := refuseFurtherServer(ctx, v, c, node); err != nil {
			return nil, nil, err
		}
	} else if _, err := agentVersion(ctx, v, c); err != nil {
		return nil, nil, err
	}
	normalised := store.Object{}
	for k, value := range config {
		normalised[k] = value
	}
	normalised["target_cluster_id"] = string(c.ID)
	warnings, err := targetWarnings(ctx, v, acct, node, c)
	return normalised, warnings, err
}

func (s *Service) checkNoTarget(ctx context.Context, v *store.View, acct store.AccountID, module store.Module, config store.Object) (store.Object, []Warning, error) {
	if id := text(config, "network_id"); id != "" {
		if _, err := store.NetworkByID(ctx, v, acct, store.NetworkID(id)); errors.Is(err, store.ErrNoRow) {
			return nil, nil, schema.Errorf(schema.NotFound, "network not found")
		} else if err != nil {
			return nil, nil, err
		}
	}
	if module.Name == ModuleServer {
		return config, nil, nil
	}
	all, err := candidates(ctx, v, acct)
	if err != nil || len(all) < 2 {
		return config, nil, err
	}
	return config, []Warning{{"target_ambiguous", "several clusters could be meant: " + namesOf(all) +
		"; a join without target_cluster_id is refused"}}, nil
}

func (s *Service) findTarget(ctx context.Context, v *store.View, acct store.AccountID, ref string) (store.Cluster, error) {
	c, err := store.ClusterByRef(ctx, v, acct, ref)
	switch {
	case err == nil && c.Status == StatusError:
		return c, schema.Errorf(schema.PreconditionFailed, "cluster %s is in error", c.Name).WithDetail("cluster_id", c.ID)
	case err == nil:
		return c, nil
	case !errors.Is(err, store.ErrNoRow):
		return c, err
	}
	gone, err := store.Tombstones(ctx, v, acct)
	if err != nil {
		return c, err
	}
	for _, t := range gone {
		if string(t.ClusterID) == ref || t.Name == ref {
			return c, schema.Errorf(schema.NotFound, "cluster %s was decommissioned", t.Name)
		}
	}
	all, err := candidates(ctx, v, acct)
	if err != nil {
		return c, err
	}
	names := []string{}
	for _, other := range all {
		names = append(names, other.Name)
	}
	return c, schema.Errorf(schema.NotFound, "target_cluster_id names no cluster of this account").WithDetail("candidates", names).
		WithHint("kubernetes_list_clusters", "Lists the clusters of the account.")
}

// refuseFurtherServer holds a cluster to one server for now.
func refuseFurtherServer(ctx context.Context, v *store.View, c store.Cluster, node store.NodeID) error {
	if c.BootstrapInstanceID == "" {
		return nil
	}
	first, err := store.InstanceByID(ctx, v, c.AccountID, c.BootstrapInstanceID)
	if err != nil && !errors.Is(err, store.ErrNoRow) {
		return err
	}
	if err == nil && node != "" && first.NodeID == node {
		return nil
	}
	return schema.Errorf(schema.PreconditionFailed, "not available yet: a further k3s-server in cluster %s, which has a server", c.Name).
		WithDetail("cluster_id", c.ID)
}

func targetWarnings(ctx context.Context, v *store.View, acct store.AccountID, node store.NodeID, c store.Cluster) ([]Warning, error) {
	if node == "" {
		return nil, nil
	}
	instances, err := store.InstancesByNode(ctx, v, acct, node)
	if err != nil {
		return nil, err
	}
	var warnings []Warning
	for _, i := range instances {
		if !i.Live() {
			continue
		}
		member, err := store.ClusterNodeByInstance(ctx, v, acct, i.ID)
		if err == nil && member.ClusterID != c.ID {
			warnings = append(warnings, Warning{"target_not_consulted", "instance " + i.Name +
				" has joined a cluster and stays there: a target is read for a fresh join only"})
			continue
		}
		if err != nil && !errors.Is(err, store.ErrNoRow) {
			return nil, err
		}
		on, err := onNetwork(ctx, v, c, i)
		if err != nil {
			return nil, err
		}
		if !on {
			warnings = append(warnings, Warning{"not_on_cluster_network", "instance " + i.Name + " is no peer of the network of cluster " + c.Name})
		}
	}
	return warnings, nil
}

// roleByModule are the roles that the K3s modules give.
var roleByModule = map[string]string{ModuleServer: RoleServer, ModuleAgent: RoleAgent}

// AssignmentTarget is what an assignment's target comes to; nil for modules that have none.
func (s *Service) AssignmentTarget(ctx context.Context, v *store.View, acct store.AccountID, a store.Assignment) (*Target, error) {
	m, err := store.ModuleByID(ctx, v, acct, a.ModuleID)
	if err != nil {
		return nil, err
	}
	role, has := roleByModule[m.Name]
	if !has {
		return nil, nil
	}
	ref := store.ClusterID(text(a.Config.V, "target_cluster_id"))
	if ref == "" {
		return untargeted(ctx, v, acct, a, role)
	}
	_, reason, err := usable(ctx, v, acct, ref)
	if err != nil {
		return nil, err
	}
	if reason != "" {
		return &Target{ClusterID: &ref, Reason: &reason}, nil
	}
	return &Target{ClusterID: &ref, Usable: true}, nil
}

// untargeted is what an assignment without a target comes to: the cluster that a machine of the node has joined or means.
func untargeted(ctx context.Context, v *store.View, acct store.AccountID, a store.Assignment, role string) (*Target, error) {
	instances, err := store.InstancesByNode(ctx, v, acct, a.NodeID)
	if err != nil {
		return nil, err
	}
	for _, i := range instances {
		if !i.Live() {
			continue
		}
		r, err := resolve(ctx, v, i, a, role, "")
		if err != nil {
			return nil, err
		}
		if r.cluster != nil {
			return &Target{ClusterID: &r.cluster.ID, Usable: true}, nil
		}
	}
	reason := ReasonNoneSet
	return &Target{Reason: &reason}, nil
}

func namesOf(all []store.Cluster) string {
	names := ""
	for i, c := range all {
		if i > 0 {
			names += ", "
		}
		names += c.Name
	}
	return names
}
