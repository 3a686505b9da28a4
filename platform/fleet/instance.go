package fleet

import (
	"context"
	"net/netip"

	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
)

// InstanceByID finds an instance, or refuses.
func InstanceByID(ctx context.Context, v *store.View, acct store.AccountID, id store.InstanceID) (store.Instance, error) {
	i, err := store.InstanceByID(ctx, v, acct, id)
	return i, orNotFound(err, "instance not found")
}

// InstanceChange is what an update of an instance gives; nil is not given.
type InstanceChange struct {
	Name           *string
	Description    *string
	Config         store.Object // merged; a null deletes its key
	PrivateIP      *netip.Addr
	PublicIP       *netip.Addr
	VPNAddress     *netip.Addr
	NetworkProfile *string
}

// reservedKey is a key of an instance's config that the platform keeps for itself.
const reservedKey = "operation_id"

// CheckUpdateInstance refuses what UpdateInstance could not do.
func (s *Service) CheckUpdateInstance(ctx context.Context, v *store.View, acct store.AccountID, id store.InstanceID, c InstanceChange) error {
	if _, given := c.Config[reservedKey]; given {
		return schema.InvalidArgument("/config/"+reservedKey, nil, "config.%s is reserved", reservedKey)
	}
	i, err := InstanceByID(ctx, v, acct, id)
	if err != nil {
		return err
	}
	if err := refuseEnded(i); err != nil {
		return err
	}
	if c.Name == nil || *c.Name == i.Name {
		return nil
	}
	other, err := store.InstanceByName(ctx, v, acct, *c.Name)
	if err := free(err, false, holder{"instance_id", string(other.ID)}, "instance name %q is already in use", *c.Name); err != nil {
		return err
	}
	member, err := store.ClusterNodeByInstance(ctx, v, acct, i.ID)
	if err == nil {
		return schema.Errorf(schema.PreconditionFailed, "instance %s is a member of a cluster under its name, and keeps it", i.Name).
			WithDetail("cluster_id", member.ClusterID)
	}
	if err = orNotFound(err, ""); schema.CodeOf(err) == schema.NotFound {
		return nil
	}
	return err
}

// UpdateInstance changes descriptive fields of an instance.
func (s *Service) UpdateInstance(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.InstanceID, c InstanceChange) (store.Instance, error) {
	before, err := InstanceByID(ctx, &tx.View, acct, id)
	if err != nil {
		return before, err
	}
	i := c.apply(before)
	old, now := changed(instanceValues(before), instanceValues(i))
	if len(now) == 0 && i.NetworkProfileSource == before.NetworkProfileSource {
		return i, nil
	}
	if i, err = store.UpdateInstance(ctx, tx, i); err != nil {
		return i, err
	}
	if err := audit(ctx, tx, acct, "updated", resourceInstance, string(i.ID), old, now); err != nil {
		return i, err
	}
	tx.TouchInstance(i.ID)
	if i.PrivateIP != before.PrivateIP || i.PublicIP != before.PublicIP {
		return i, touchPeers(ctx, tx, i)
	}
	return i, nil
}

func (c InstanceChange) apply(i store.Instance) store.Instance {
	set(&i.Name, c.Name)
	set(&i.Description, c.Description)
	for field, given := range map[*store.Addr]*netip.Addr{&i.PrivateIP: c.PrivateIP, &i.PublicIP: c.PublicIP, &i.VPNAddress: c.VPNAddress} {
		if given != nil {
			field.Addr = *given
		}
	}
	if c.NetworkProfile != nil {
		i.NetworkProfile, i.NetworkProfileSource = *c.NetworkProfile, "operator"
	}
	if c.Config != nil {
		merged := store.Object{}
		for k, v := range i.Config.V {
			merged[k] = v
		}
		for k, v := range c.Config {
			merged[k] = v
			if v == nil {
				delete(merged, k)
			}
		}
		i.Config.V = merged
	}
	return i
}

func instanceValues(i store.Instance) store.Object {
	return store.Object{"name": i.Name, "description": i.Description, "config": i.Config.V, "private_ip": addressValue(i.PrivateIP),
		"public_ip": addressValue(i.PublicIP), "vpn_ip_address": addressValue(i.VPNAddress), "network_profile": orNull(i.NetworkProfile)}
}

func addressValue(a store.Addr) any {
	if !a.IsValid() {
		return nil
	}
	return a.String()
}

// Convergence is how far an instance's agent has come.
type Convergence struct {
	DesiredRevision int64
	AppliedRevision *int64 // the lowest of the subsystems; nil: not measured
	Converged       bool
	Subsystems      []store.SubsystemState
}

// subsystems are those that an agent runs: each must say ok before an instance has converged.
var subsystems = []string{"wireguard", "firewall", "vip", "k3s", "modules"}

// ConvergenceOf compares an instance's last report with its document. Without a report nothing is measured.
func ConvergenceOf(ctx context.Context, v *store.View, instance store.Instance, report *store.InstanceReport) (Convergence, error) {
	desired, _, err := store.DocumentHead(ctx, v, instance.ID)
	if err != nil {
		return Convergence{}, err
	}
	c := Convergence{DesiredRevision: desired, Subsystems: []store.SubsystemState{}}
	if report == nil {
		return c, nil
	}
	c.Subsystems = report.Subsystems.V
	byName := map[string]store.SubsystemState{}
	for _, sub := range c.Subsystems {
		byName[sub.Name] = sub
		if c.AppliedRevision == nil || sub.AppliedRevision < *c.AppliedRevision {
			lowest := sub.AppliedRevision
			c.AppliedRevision = &lowest
		}
	}
	c.Converged = instance.Live()
	for _, name := range subsystems {
		sub, measured := byName[name]
		if !measured || sub.State != "ok" || sub.AppliedRevision < desired {
			c.Converged = false
		}
	}
	return c, nil
}

// CheckRefresh refuses a module reconcile that no agent could do.
func (s *Service) CheckRefresh(ctx context.Context, v *store.View, acct store.AccountID, id store.InstanceID, module store.ModuleID) error {
	i, err := InstanceByID(ctx, v, acct, id)
	if err != nil {
		return err
	}
	if i.Status == store.InstanceTerminated || i.Status == store.InstanceError {
		word := map[string]string{store.InstanceTerminated: "terminated", store.InstanceError: "in error"}[i.Status]
		return schema.Errorf(schema.PreconditionFailed, "cannot queue a module reconcile: instance is %s", word)
	}
	if module == "" {
		return nil
	}
	m, err := ModuleByID(ctx, v, acct, module)
	if err != nil {
		return err
	}
	if _, err := store.AssignmentOf(ctx, v, acct, i.NodeID, module); schema.CodeOf(orNotFound(err, "")) == schema.NotFound {
		return schema.Errorf(schema.PreconditionFailed, "cannot queue a module reconcile: module %s is not assigned to the instance's node", m.Name)
	} else if err != nil {
		return err
	}
	return nil
}

// commandSyncModules asks an agent to reconcile its modules now.
const commandSyncModules = "sync_modules"

// RefreshModules asks an instance's agent to reconcile its modules now. An equal request that is still open is the answer.
func (s *Service) RefreshModules(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.InstanceID,
	asked sdwan.SyncModules) (store.Task, error) {
	i, err := InstanceByID(ctx, &tx.View, acct, id)
	if err != nil {
		return store.Task{}, err
	}
	open, err := store.OpenTasksOf(ctx, &tx.View, acct, string(id))
	if err != nil {
		return store.Task{}, err
	}
	parameters := objectOf(asked)
	for _, t := range open {
		if t.Command == commandSyncModules && same(t.Parameters.V, parameters) {
			return t, nil
		}
	}
	tx.TouchInstance(id)
	return insertTask(ctx, tx, newTask(tx, i, commandSyncModules, parameters))
}
