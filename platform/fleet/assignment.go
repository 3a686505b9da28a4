package fleet

import (
	"context"
	"errors"
	"slices"
	"strings"

	"powernode/platform/cluster"
	"powernode/schema"
	"powernode/store"
)

// AssignmentByID finds an assignment, or refuses.
func AssignmentByID(ctx context.Context, v *store.View, acct store.AccountID, id store.AssignmentID) (store.Assignment, error) {
	a, err := store.AssignmentByID(ctx, v, acct, id)
	return a, orNotFound(err, "assignment not found")
}

// AssignmentInput asks for a module on a node by hand; nil is the module's own value.
type AssignmentInput struct {
	NodeID   store.NodeID
	ModuleID store.ModuleID
	Enabled  bool
	Priority *int64
	Config   store.Object
}

// CheckAssignToNode refuses what AssignToNode could not do.
func (s *Service) CheckAssignToNode(ctx context.Context, v *store.View, acct store.AccountID, in AssignmentInput) error {
	n, err := NodeByID(ctx, v, acct, in.NodeID)
	if err != nil {
		return err
	}
	m, err := ModuleByID(ctx, v, acct, in.ModuleID)
	if err != nil {
		return err
	}
	existing, err := store.AssignmentOf(ctx, v, acct, n.ID, m.ID)
	if err == nil {
		return schema.Errorf(schema.Conflict, "node already has this module").WithDetail("assignment_id", existing.ID).
			WithHint("system_update_module_assignment", "Edits the assignment that exists.")
	}
	if !errors.Is(err, store.ErrNoRow) {
		return err
	}
	if !m.Enabled {
		return schema.Errorf(schema.PreconditionFailed, "module '%s' is disabled", m.Name)
	}
	t, err := TemplateByID(ctx, v, acct, n.TemplateID)
	if err != nil {
		return err
	}
	if err := checkPlatform(ctx, v, m, t); err != nil {
		return err
	}
	if _, _, err := s.checkConfig(ctx, v, acct, n.ID, m, in.Config); err != nil || !in.Enabled {
		return err
	}
	before, err := enabledModules(ctx, v, acct, n.ID)
	if err != nil {
		return err
	}
	if err := refuseUnmet(ctx, v, m, before); err != nil {
		return err
	}
	return refuseNewConflicts(ctx, v, acct, before, append(append([]store.Module{}, before...), m))
}

// refuseUnmet refuses a module whose requirements nothing on the node meets: by hand, nothing is added to it.
func refuseUnmet(ctx context.Context, v *store.View, m store.Module, on []store.Module) error {
	m, err := declaredModule(ctx, v, m)
	if err != nil {
		return err
	}
	missing := []string{}
	for _, needed := range m.Dependencies.V.Requires {
		met := func(other store.Module) bool { return provides(other, needed) }
		if needed != m.Name && !slices.ContainsFunc(on, met) {
			missing = append(missing, needed)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return schema.Errorf(schema.PreconditionFailed, "module %s requires modules that the node does not carry: %s", m.Name, strings.Join(missing, ", ")).
		WithDetail("missing", missing)
}

// AssignToNode puts a module on a node by hand: no template takes it away. Machines follow at once.
func (s *Service) AssignToNode(ctx context.Context, tx *store.Tx, acct store.AccountID, in AssignmentInput, by string) (store.Assignment, []Warning, error) {
	m, err := ModuleByID(ctx, &tx.View, acct, in.ModuleID)
	if err != nil {
		return store.Assignment{}, nil, err
	}
	config, warnings, err := s.checkConfig(ctx, &tx.View, acct, in.NodeID, m, in.Config)
	if err != nil {
		return store.Assignment{}, nil, err
	}
	a := store.Assignment{ID: store.AssignmentID(tx.NewID()), AccountID: acct, NodeID: in.NodeID, ModuleID: m.ID, ModuleName: m.Name,
		Enabled: in.Enabled, Priority: m.Priority}
	a.Config.V = config
	set(&a.Priority, in.Priority)
	if !in.Enabled {
		a.DisabledBy = ownerOperator + by
	}
	if a, err = store.InsertAssignment(ctx, tx, a); err != nil {
		return a, nil, err
	}
	if err := audit(ctx, tx, acct, "created", resourceAssignment, string(a.ID), nil, assignmentValues(a)); err != nil {
		return a, nil, err
	}
	n, err := NodeByID(ctx, &tx.View, acct, a.NodeID)
	if err != nil {
		return a, nil, err
	}
	idle, err := unservedNow(ctx, &tx.View, m, n.TemplateID)
	if err != nil {
		return a, nil, err
	}
	_, err = s.assignmentsWritten(ctx, tx, acct, a.NodeID, IsK3s(m))
	return a, append(warnings, idle...), err
}

// AssignmentChange is what an update of an assignment gives; nil is not given.
type AssignmentChange struct {
	Enabled  *bool
	Priority *int64
	Config   store.Object
}

// CheckUpdateAssignment refuses what UpdateAssignment could not do.
func (s *Service) CheckUpdateAssignment(ctx context.Context, v *store.View, acct store.AccountID, id store.AssignmentID, c AssignmentChange) error {
	a, err := AssignmentByID(ctx, v, acct, id)
	if err != nil {
		return err
	}
	m, err := ModuleByID(ctx, v, acct, a.ModuleID)
	if err != nil {
		return err
	}
	if c.Config != nil {
		if _, _, err := s.checkConfig(ctx, v, acct, a.NodeID, m, c.Config); err != nil {
			return err
		}
	}
	switch {
	case c.Enabled == nil || *c.Enabled == a.Enabled:
		return nil
	case !*c.Enabled:
		return s.Cluster.DisableForbidden(ctx, v, acct, a.NodeID, m)
	}
	return s.checkEnable(ctx, v, a, m, c)
}

// checkEnable refuses to enable what can't be together with the node's other modules, or has no usable target.
func (s *Service) checkEnable(ctx context.Context, v *store.View, a store.Assignment, m store.Module, c AssignmentChange) error {
	if !m.Enabled {
		return schema.Errorf(schema.PreconditionFailed, "module '%s' is disabled", m.Name)
	}
	if c.Config == nil {
		if _, _, err := s.checkConfig(ctx, v, a.AccountID, a.NodeID, m, a.Config.V); err != nil {
			return err
		}
	}
	before, err := enabledModules(ctx, v, a.AccountID, a.NodeID)
	if err != nil {
		return err
	}
	return refuseNewConflicts(ctx, v, a.AccountID, before, append(append([]store.Module{}, before...), m))
}

// enabledModules are the modules of a node's enabled assignments.
func enabledModules(ctx context.Context, v *store.View, acct store.AccountID, node store.NodeID) ([]store.Module, error) {
	assigned, err := store.AssignmentsByNode(ctx, v, acct, node)
	if err != nil {
		return nil, err
	}
	var modules []store.Module
	for _, a := range assigned {
		if !a.Enabled {
			continue
		}
		m, err := ModuleByID(ctx, v, acct, a.ModuleID)
		if err != nil {
			return nil, err
		}
		modules = append(modules, m)
	}
	return modules, nil
}

// UpdateAssignment changes what a node carries. by is told by later applies: whose word a disabled assignment is.
func (s *Service) UpdateAssignment(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.AssignmentID, c AssignmentChange, by string) (store.Assignment, []Warning, error) {
	before, err := AssignmentByID(ctx, &tx.View, acct, id)
	if err != nil {
		return before, nil, err
	}
	m, err := ModuleByID(ctx, &tx.View, acct, before.ModuleID)
	if err != nil {
		return before, nil, err
	}
	a := before
	var warnings []Warning
	if c.Config != nil {
		if a.Config.V, warnings, err = s.checkConfig(ctx, &tx.View, acct, a.NodeID, m, c.Config); err != nil {
			return a, nil, err
		}
	}
	set(&a.Priority, c.Priority)
	set(&a.Enabled, c.Enabled)
	if a.Enabled != before.Enabled {
		a.DisabledBy = ""
		if !a.Enabled {
			a.DisabledBy = ownerOperator + by
		}
	}
	old, now := changed(assignmentValues(before), assignmentValues(a))
	if len(now) == 0 {
		return a, warnings, nil
	}
	if a, err = store.UpdateAssignment(ctx, tx, a); err != nil {
		return a, nil, err
	}
	if err := audit(ctx, tx, acct, "updated", resourceAssignment, string(a.ID), old, now); err != nil {
		return a, nil, err
	}
	_, err = s.assignmentsWritten(ctx, tx, acct, a.NodeID, IsK3s(m))
	return a, warnings, err
}

// assignmentsWritten follows a write to a node's assignments: the agents of its instances are told, and of K3s' modules
// the clusters' rules. It answers the instances.
func (s *Service) assignmentsWritten(ctx context.Context, tx *store.Tx, acct store.AccountID, node store.NodeID, k3s bool) ([]store.InstanceID, error) {
	live, err := LiveInstances(ctx, &tx.View, acct, node)
	if err != nil {
		return nil, err
	}
	ids := []store.InstanceID{}
	for _, i := range live {
		tx.TouchInstance(i.ID)
		ids = append(ids, i.ID)
	}
	if !k3s {
		return ids, nil
	}
	return ids, s.Cluster.AssignmentChanged(ctx, tx, acct, node)
}

// IsK3s says whether a module is one of K3s' own.
func IsK3s(m store.Module) bool {
	return m.Name == cluster.ModuleServer || m.Name == cluster.ModuleAgent
}

func assignmentValues(a store.Assignment) store.Object {
	return store.Object{"node_id": a.NodeID, "node_module_id": a.ModuleID, "enabled": a.Enabled, "priority": a.Priority, "config": a.Config.V,
		"source_template_module_id": orNull(string(a.SourceTemplateModuleID)), "source_template_id": orNull(string(a.SourceTemplateID)),
		"auto_resolved": a.AutoResolved, "disabled_by": orNull(a.DisabledBy)}
}

// sources says of templates whether they still exist, each asked once.
type sources map[store.TemplateID]bool

// follows says whether an assignment came from a template that still exists: only those follow templates.
func (known sources) follows(ctx context.Context, v *store.View, a store.Assignment) (bool, error) {
	if a.SourceTemplateID == "" {
		return false, nil
	}
	if exists, asked := known[a.SourceTemplateID]; asked {
		return exists, nil
	}
	_, err := store.TemplateByID(ctx, v, a.AccountID, a.SourceTemplateID)
	if err != nil && !errors.Is(err, store.ErrNoRow) {
		return false, err
	}
	known[a.SourceTemplateID] = err == nil
	return err == nil, nil
}
