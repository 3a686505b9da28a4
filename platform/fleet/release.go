package fleet

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"powernode/platform/cluster"
	"powernode/platform/signal"
	"powernode/schema"
	"powernode/store"
)

// Promotion states of a version, in their order.
const (
	stateBuilt   = "built"
	stateStaging = "staging"
	stateBlessed = "blessed"
	stateLive    = "live"
	stateRetired = "retired"
)

// promotions are the states that a version may go to from each.
var promotions = map[string][]string{
	stateBuilt:   {stateStaging, stateRetired},
	stateStaging: {stateBlessed, stateRetired},
	stateBlessed: {stateLive, stateRetired},
	stateLive:    {stateRetired},
	stateRetired: {},
}

// VersionByID finds a version, or refuses.
func VersionByID(ctx context.Context, v *store.View, acct store.AccountID, id store.ModuleVersionID) (store.ModuleVersion, error) {
	version, err := store.ModuleVersionByID(ctx, v, acct, id)
	return version, orNotFound(err, "module version not found")
}

// Moved is a pointer that was moved: the version that is current now, and the one before.
type Moved struct {
	Module   store.Module
	Version  store.ModuleVersion
	Previous store.ModuleVersionID // "" is none
	Affected int                   // instances that follow the pointer
}

// NotReleased refuses a version that no person stands behind.
func NotReleased(m store.Module, v store.ModuleVersion) *schema.Error {
	return schema.Errorf(schema.PreconditionFailed, "version %s of module %s is not released", v.Version, m.Name).
		WithHint("system_promote_module_version", "A person releases it: who calls it, or who approves the call.")
}

// CheckSetCurrent refuses what SetCurrent could not do.
func (s *Service) CheckSetCurrent(ctx context.Context, v *store.View, acct store.AccountID, module store.ModuleID, id store.ModuleVersionID) error {
	m, err := ModuleByID(ctx, v, acct, module)
	if err != nil {
		return err
	}
	version, err := VersionByID(ctx, v, acct, id)
	if err != nil {
		return err
	}
	if version.ModuleID != m.ID {
		return schema.InvalidArgument("/module_version_id", string(id), "module_version_id names a version of another module than %s", m.Name)
	}
	return s.checkPointer(ctx, v, m, version)
}

// checkPointer refuses a version that the machines which follow the pointer could not be served.
func (s *Service) checkPointer(ctx context.Context, v *store.View, m store.Module, version store.ModuleVersion) error {
	if version.PromotionState == stateRetired {
		return schema.Errorf(schema.PreconditionFailed, "version %s of module %s is retired", version.Version, m.Name)
	}
	if version.ID == m.CurrentVersionID {
		return nil
	}
	if err := s.checkCarried(ctx, v, m, version.Artifacts.V); err != nil {
		return err
	}
	return refuseUnfit(ctx, v, m, version)
}

// refuseUnfit refuses a version whose own config_schema the stored configs break.
func refuseUnfit(ctx context.Context, v *store.View, m store.Module, version store.ModuleVersion) error {
	full, err := declared(m, version)
	if err != nil || string(full.ConfigSchema.V) == string(m.ConfigSchema.V) {
		return err
	}
	return refuseBrokenConfigs(ctx, v, m, full.ConfigSchema.V)
}

// SetCurrent moves a module's pointer.
func (s *Service) SetCurrent(ctx context.Context, tx *store.Tx, acct store.AccountID, module store.ModuleID, id store.ModuleVersionID,
	by Release) (Moved, error) {
	m, err := ModuleByID(ctx, &tx.View, acct, module)
	if err != nil {
		return Moved{}, err
	}
	version, err := VersionByID(ctx, &tx.View, acct, id)
	if err != nil {
		return Moved{}, err
	}
	if version.ID == m.CurrentVersionID {
		affected, err := s.followersOf(ctx, &tx.View, m)
		return Moved{Module: m, Version: version, Previous: m.CurrentVersionID, Affected: len(affected)}, err
	}
	return s.makeCurrent(ctx, tx, m, version, by, nil)
}

// Release says whether a person stands behind a call that may release a version: who calls, or who approved.
type Release int

// Who stands behind a call.
const (
	ByNobody Release = iota
	ByPerson
)

// makeCurrent moves a module's pointer: the version becomes live, the one before blessed, and the line of current versions
// ends in it. By a person's word it may be served from now on. more is told in the audit row too.
func (s *Service) makeCurrent(ctx context.Context, tx *store.Tx, m store.Module, v store.ModuleVersion, by Release, more store.Object) (Moved, error) {
	before, err := store.CurrentVersion(ctx, &tx.View, m)
	if err != nil && !errors.Is(err, store.ErrNoRow) {
		return Moved{}, err
	}
	place := int64(1)
	if before.ID != "" {
		if before, err = s.leave(ctx, tx, before); err != nil {
			return Moved{}, err
		}
		place = *before.CurrentOrder + 1
	}
	// What was current after a version that was rolled back to is in the line no more.
	all, err := store.ModuleVersions(ctx, &tx.View, m.AccountID, m.ID)
	if err != nil {
		return Moved{}, err
	}
	for _, other := range all {
		if other.CurrentOrder != nil && *other.CurrentOrder >= place && other.ID != v.ID {
			other.CurrentOrder = nil
			if _, err := store.UpdateModuleVersion(ctx, tx, other); err != nil {
				return Moved{}, err
			}
		}
	}
	v.CurrentOrder = &place
	return s.point(ctx, tx, m, before, v, by, more)
}

// leave makes a current version one of the past, with a place in the line.
func (s *Service) leave(ctx context.Context, tx *store.Tx, v store.ModuleVersion) (store.ModuleVersion, error) {
	if v.CurrentOrder == nil {
		first := int64(1)
		v.CurrentOrder = &first
	}
	old := v.PromotionState
	if old == stateLive {
		v.PromotionState = stateBlessed
	}
	v, err := store.UpdateModuleVersion(ctx, tx, v)
	if err != nil || v.PromotionState == old {
		return v, err
	}
	return v, auditPromotion(ctx, tx, v, old)
}

func auditPromotion(ctx context.Context, tx *store.Tx, v store.ModuleVersion, old string) error {
	return audit(ctx, tx, v.AccountID, "updated", resourceVersion, string(v.ID), store.Object{"promotion_state": old},
		store.Object{"promotion_state": v.PromotionState})
}

// point writes the pointer and the version that it names now, and tells those who follow it.
func (s *Service) point(ctx context.Context, tx *store.Tx, m store.Module, before, v store.ModuleVersion, by Release, more store.Object) (Moved, error) {
	old := v.PromotionState
	v.PromotionState, v.EverLive = stateLive, v.EverLive || by == ByPerson
	v, err := store.UpdateModuleVersion(ctx, tx, v)
	if err != nil {
		return Moved{}, err
	}
	if old != stateLive {
		if err := auditPromotion(ctx, tx, v, old); err != nil {
			return Moved{}, err
		}
	}
	m.CurrentVersionID = v.ID
	if m, err = store.UpdateModule(ctx, tx, m); err != nil {
		return Moved{}, err
	}
	now := store.Object{"current_version_id": v.ID}
	for key, value := range more {
		now[key] = value
	}
	err = audit(ctx, tx, m.AccountID, "updated", resourceModule, string(m.ID), store.Object{"current_version_id": orNull(string(before.ID))}, now)
	if err != nil {
		return Moved{}, err
	}
	carriers, err := carriersOf(ctx, &tx.View, m)
	if err != nil {
		return Moved{}, err
	}
	for _, i := range carriers {
		tx.TouchInstance(i.ID)
	}
	affected, err := s.following(ctx, &tx.View, m, carriers)
	if err != nil {
		return Moved{}, err
	}
	return Moved{Module: m, Version: v, Previous: before.ID, Affected: len(affected)},
		signal.Emit(ctx, tx, m.AccountID, signal.Event{Kind: "system.module_version_changed", Subject: signal.Subject{ModuleID: m.ID},
			Payload: store.Object{"module_id": m.ID, "from": orNull(before.Version), "to": v.Version, "affected_instance_count": len(affected)}})
}

// carriersOf are the live instances whose nodes have an enabled assignment of a module. Which assignments there are is what
// a plan rests on too.
func carriersOf(ctx context.Context, v *store.View, m store.Module) ([]store.Instance, error) {
	if _, err := store.AssignmentsByModule(ctx, v, m.AccountID, m.ID); err != nil {
		return nil, err
	}
	return store.InstancesOfModule(ctx, v, m.AccountID, m.ID)
}

// followersOf are the carriers that follow the module's pointer: all but those whose K3s has the version of a cluster.
func (s *Service) followersOf(ctx context.Context, v *store.View, m store.Module) ([]store.Instance, error) {
	carriers, err := carriersOf(ctx, v, m)
	if err != nil {
		return nil, err
	}
	return s.following(ctx, v, m, carriers)
}

func (s *Service) following(ctx context.Context, v *store.View, m store.Module, carriers []store.Instance) ([]store.Instance, error) {
	if !IsK3s(m) {
		return carriers, nil
	}
	var out []store.Instance
	for _, i := range carriers {
		bound, err := s.clusterOf(ctx, v, i, m)
		if err != nil {
			return nil, err
		}
		if bound == "" {
			out = append(out, i)
		}
	}
	return out, nil
}

// clusterOf is the cluster whose version of a K3s module an instance is served, "" for none.
func (s *Service) clusterOf(ctx context.Context, v *store.View, i store.Instance, m store.Module) (store.ClusterID, error) {
	k3s, err := s.Cluster.Section(ctx, v, i)
	switch {
	case err != nil:
		return "", err
	case m.Name == cluster.ModuleServer && k3s.Server != nil && k3s.Server.Artifact != nil:
		return store.ClusterID(k3s.Server.ClusterID), nil
	case m.Name == cluster.ModuleAgent && k3s.Agent != nil && k3s.Agent.Artifact != nil:
		return store.ClusterID(k3s.Agent.TargetClusterID), nil
	}
	return "", nil
}

// CheckPromote refuses a step that the states don't know, and to retire what a pointer names.
func (s *Service) CheckPromote(ctx context.Context, v *store.View, acct store.AccountID, id store.ModuleVersionID, target string) error {
	version, err := VersionByID(ctx, v, acct, id)
	if err != nil {
		return err
	}
	m, err := ModuleByID(ctx, v, acct, version.ModuleID)
	if err != nil || version.PromotionState == target {
		return err
	}
	allowed := promotions[version.PromotionState]
	if !slices.Contains(allowed, target) {
		return schema.Errorf(schema.PreconditionFailed, "cannot promote from %s to %s", version.PromotionState, target).WithDetail("allowed", allowed)
	}
	if target == stateRetired && m.CurrentVersionID == version.ID {
		return schema.Errorf(schema.PreconditionFailed, "version %s is the current one of module %s: its machines would lose it", version.Version, m.Name).
			WithHint("system_set_current_module_version", "Makes another version current first.")
	}
	return nil
}

// Promote takes a version one step on, or retires it. What goes live by a person's word may be served from then on.
func (s *Service) Promote(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.ModuleVersionID, target string,
	by Release) (store.ModuleVersion, store.Module, error) {
	version, err := VersionByID(ctx, &tx.View, acct, id)
	if err != nil {
		return version, store.Module{}, err
	}
	m, err := ModuleByID(ctx, &tx.View, acct, version.ModuleID)
	if err != nil || version.PromotionState == target {
		return version, m, err
	}
	old := version.PromotionState
	version.PromotionState = target
	version.EverLive = version.EverLive || target == stateLive && by == ByPerson
	if version, err = store.UpdateModuleVersion(ctx, tx, version); err != nil {
		return version, m, err
	}
	return version, m, auditPromotion(ctx, tx, version, old)
}

// RollbackTarget finds the version that a rollback goes to: the one given, else the one that was current before.
func (s *Service) RollbackTarget(ctx context.Context, v *store.View, acct store.AccountID, module store.ModuleID,
	id store.ModuleVersionID) (store.Module, store.ModuleVersion, error) {
	m, err := ModuleByID(ctx, v, acct, module)
	if err != nil {
		return m, store.ModuleVersion{}, err
	}
	if id == "" {
		version, err := s.earlier(ctx, v, m)
		return m, version, err
	}
	version, err := VersionByID(ctx, v, acct, id)
	switch {
	case err != nil:
		return m, version, err
	case version.ModuleID != m.ID:
		return m, version, schema.InvalidArgument("/version_id", string(id), "version_id names a version of another module than %s", m.Name)
	case version.ID == m.CurrentVersionID:
		return m, version, schema.Errorf(schema.PreconditionFailed, "version %s of module %s is current already", version.Version, m.Name)
	}
	return m, version, nil
}

// earlier is the version that was current before the current one, retired ones left out.
func (s *Service) earlier(ctx context.Context, v *store.View, m store.Module) (store.ModuleVersion, error) {
	none := schema.Errorf(schema.PreconditionFailed, "no earlier version of module %s to go back to", m.Name).
		WithHint("system_set_current_module_version", "Makes any of the module's versions current.")
	now, err := store.CurrentVersion(ctx, v, m)
	if errors.Is(err, store.ErrNoRow) || err == nil && now.CurrentOrder == nil {
		return now, none
	}
	if err != nil {
		return now, err
	}
	all, err := store.ModuleVersions(ctx, v, m.AccountID, m.ID)
	if err != nil {
		return now, err
	}
	line := slices.DeleteFunc(all, func(o store.ModuleVersion) bool {
		return o.CurrentOrder == nil || *o.CurrentOrder >= *now.CurrentOrder || o.PromotionState == stateRetired
	})
	if len(line) == 0 {
		return now, none
	}
	return slices.MaxFunc(line, func(a, b store.ModuleVersion) int { return cmp.Compare(*a.CurrentOrder, *b.CurrentOrder) }), nil
}

// CheckRollback refuses what Rollback could not do.
func (s *Service) CheckRollback(ctx context.Context, v *store.View, acct store.AccountID, module store.ModuleID, id store.ModuleVersionID) error {
	m, version, err := s.RollbackTarget(ctx, v, acct, module, id)
	if err != nil {
		return err
	}
	return s.checkPointer(ctx, v, m, version)
}

// Rollback makes an earlier version current again. Rolled back once more, the pointer goes further back.
func (s *Service) Rollback(ctx context.Context, tx *store.Tx, acct store.AccountID, module store.ModuleID, id store.ModuleVersionID,
	reason string, by Release) (Moved, error) {
	m, version, err := s.RollbackTarget(ctx, &tx.View, acct, module, id)
	if err != nil {
		return Moved{}, err
	}
	before, err := store.CurrentVersion(ctx, &tx.View, m)
	if err != nil && !errors.Is(err, store.ErrNoRow) {
		return Moved{}, err
	}
	inLine := version.CurrentOrder != nil && before.CurrentOrder != nil && *version.CurrentOrder < *before.CurrentOrder
	why := store.Object{"reason": orNull(printed(reason))}
	if !inLine {
		return s.makeCurrent(ctx, tx, m, version, by, why)
	}
	if before, err = s.leave(ctx, tx, before); err != nil {
		return Moved{}, err
	}
	return s.point(ctx, tx, m, before, version, by, why)
}
