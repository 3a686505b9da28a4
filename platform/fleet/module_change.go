package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"powernode/schema"
	"powernode/store"
)

// ModuleInput makes a module.
type ModuleInput struct {
	Name         string
	Variety      string
	PlatformID   store.PlatformID // "": every platform
	Description  string
	Enabled      bool
	Public       bool
	Priority     int64
	Dependencies *store.Dependencies
	Config       store.Object
	ConfigSchema store.Object // nil: free-form
}

// CheckCreateModule refuses what CreateModule could not do.
func (s *Service) CheckCreateModule(ctx context.Context, v *store.View, acct store.AccountID, in ModuleInput) error {
	// The name is a folder of the machine too: /etc/NAME is where the module's files may lie.
	if strings.Contains(in.Name, "/") || strings.HasPrefix(in.Name, ".") || strings.ContainsFunc(in.Name, unprintable) {
		return schema.InvalidArgument("/name", schema.Printable(in.Name), "name must be usable as a folder's name (got %q)", schema.Printable(in.Name))
	}
	if err := checkDependencies(ctx, v, acct, in.Name, in.Dependencies); err != nil {
		return err
	}
	if err := checkConfigSchema(in.ConfigSchema, in.Config); err != nil {
		return err
	}
	if in.PlatformID != "" {
		if _, err := store.PlatformByID(ctx, v, acct, in.PlatformID); err != nil {
			return orNotFound(err, "platform not found")
		}
	}
	other, err := store.ModuleByName(ctx, v, acct, in.Name)
	return free(err, false, holder{"module_id", string(other.ID)}, "module name %q is already in use", in.Name)
}

// checkConfigSchema refuses a config_schema that is no schema, and a config of the module that does not fit it.
func checkConfigSchema(declared, config store.Object) error {
	if declared == nil {
		return nil
	}
	raw := mustJSON(declared)
	if err := schema.CheckSchema(raw); err != nil {
		return schema.InvalidArgument("/config_schema", nil, "config_schema is no schema: %s", schema.Printable(err.Error()))
	}
	if len(config) == 0 {
		return nil // a config that says nothing is the default of one that must say something
	}
	return schema.ValidateConfig(raw, config)
}

// CreateModule makes a module without a version.
func (s *Service) CreateModule(ctx context.Context, tx *store.Tx, acct store.AccountID, in ModuleInput) (store.Module, []Warning, error) {
	m := store.Module{ID: store.ModuleID(tx.NewID()), AccountID: acct, Name: in.Name, Variety: in.Variety, PlatformID: in.PlatformID,
		Description: in.Description, Enabled: in.Enabled, Public: in.Public, Priority: in.Priority}
	m.Dependencies.V = whole(in.Dependencies)
	m.Config.V = object(in.Config)
	m.ConfigSchema.V = schemaOf(in.ConfigSchema)
	m, err := store.InsertModule(ctx, tx, m)
	if err != nil {
		return m, nil, err
	}
	if err := audit(ctx, tx, acct, "created", resourceModule, string(m.ID), nil, moduleValues(m)); err != nil {
		return m, nil, err
	}
	warnings, err := unmet(ctx, &tx.View, m)
	return m, warnings, err
}

// schemaOf is a config_schema as it is stored; one that says nothing is none.
func schemaOf(declared store.Object) json.RawMessage {
	if len(declared) == 0 {
		return nil
	}
	return mustJSON(declared)
}

// whole are dependencies without a list that is nil.
func whole(d *store.Dependencies) store.Dependencies {
	out := store.Dependencies{Requires: []string{}, Recommends: []string{}, Conflicts: []string{}, Provides: []string{}}
	if d == nil {
		return out
	}
	return store.Dependencies{Requires: union(out.Requires, d.Requires), Recommends: union(out.Recommends, d.Recommends),
		Conflicts: union(out.Conflicts, d.Conflicts), Provides: union(out.Provides, d.Provides)}
}

func moduleValues(m store.Module) store.Object {
	values := store.Object{"name": m.Name, "variety": m.Variety, "node_platform_id": orNull(string(m.PlatformID)), "description": m.Description,
		"enabled": m.Enabled, "public": m.Public, "priority": m.Priority, "dependencies": m.Dependencies.V, "config": m.Config.V, "config_schema": nil}
	if m.ConfigSchema.V != nil {
		values["config_schema"] = m.ConfigSchema.V
	}
	return values
}

// ModuleChange is what an update of a module gives; nil is not given.
type ModuleChange struct {
	Description  *string
	Enabled      *bool
	Public       *bool
	Priority     *int64
	Dependencies *store.Dependencies
	Config       store.Object
	ConfigSchema store.Object // empty makes the config free-form
}

func (c ModuleChange) apply(m store.Module) store.Module {
	set(&m.Description, c.Description)
	set(&m.Enabled, c.Enabled)
	set(&m.Public, c.Public)
	set(&m.Priority, c.Priority)
	if c.Dependencies != nil {
		m.Dependencies.V = whole(c.Dependencies)
	}
	if c.Config != nil {
		m.Config.V = c.Config
	}
	if c.ConfigSchema != nil {
		m.ConfigSchema.V = schemaOf(c.ConfigSchema)
	}
	return m
}

// unlocked finds a module that may be changed.
func unlocked(ctx context.Context, v *store.View, acct store.AccountID, id store.ModuleID) (store.Module, error) {
	m, err := ModuleByID(ctx, v, acct, id)
	if err == nil && m.Locked {
		err = schema.Errorf(schema.PreconditionFailed, "module '%s' is locked: it is built in", m.Name)
	}
	return m, err
}

// CheckUpdateModule refuses what UpdateModule could not do.
func (s *Service) CheckUpdateModule(ctx context.Context, v *store.View, acct store.AccountID, id store.ModuleID, c ModuleChange) error {
	m, err := unlocked(ctx, v, acct, id)
	if err != nil {
		return err
	}
	if err := checkDependencies(ctx, v, acct, m.Name, c.Dependencies); err != nil {
		return err
	}
	after := c.apply(m)
	if c.ConfigSchema != nil {
		if err := checkConfigSchema(c.ConfigSchema, after.Config.V); err != nil {
			return err
		}
		return refuseBrokenConfigs(ctx, v, m, after.ConfigSchema.V)
	}
	if len(c.Config) > 0 {
		return schema.ValidateConfig(m.ConfigSchema.V, c.Config)
	}
	return nil
}

// refuseBrokenConfigs refuses a schema that configs which are stored with joins and assignments don't fit, and lists them.
func refuseBrokenConfigs(ctx context.Context, v *store.View, m store.Module, declared json.RawMessage) error {
	joins, err := store.TemplateModulesByModule(ctx, v, m.AccountID, m.ID)
	if err != nil {
		return err
	}
	assigned, err := store.AssignmentsByModule(ctx, v, m.AccountID, m.ID)
	if err != nil {
		return err
	}
	var broken []store.Object
	judge := func(config store.Object, about store.Object) error {
		var refusal *schema.Error
		err := schema.ValidateConfig(declared, object(config))
		if errors.As(err, &refusal) {
			about["problem"] = refusal.Message
			broken, err = append(broken, about), nil
		}
		return err
	}
	for _, j := range joins {
		if err := judge(j.Config.V, store.Object{"template_id": j.TemplateID, "template_module_id": j.ID}); err != nil {
			return err
		}
	}
	for _, a := range assigned {
		if err := judge(a.Config.V, store.Object{"node_id": a.NodeID, "assignment_id": a.ID}); err != nil {
			return err
		}
	}
	if len(broken) == 0 {
		return nil
	}
	return schema.Errorf(schema.PreconditionFailed, "%d stored config(s) of module %s break the new config_schema: %s", len(broken), m.Name,
		schema.Printable(fmt.Sprint(broken[0]["problem"]))).WithDetail("configs", broken)
}

// UpdateModule changes a module. The instances that carry it are compiled anew: order and rules may be other ones.
func (s *Service) UpdateModule(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.ModuleID, c ModuleChange) (store.Module, []Warning, error) {
	before, err := unlocked(ctx, &tx.View, acct, id)
	if err != nil {
		return before, nil, err
	}
	m := c.apply(before)
	old, now := changed(moduleValues(before), moduleValues(m))
	if len(now) == 0 {
		return before, nil, nil
	}
	if m, err = store.UpdateModule(ctx, tx, m); err != nil {
		return m, nil, err
	}
	if err := audit(ctx, tx, acct, "updated", resourceModule, string(m.ID), old, now); err != nil {
		return m, nil, err
	}
	carriers, err := carriersOf(ctx, &tx.View, m)
	if err != nil {
		return m, nil, err
	}
	for _, i := range carriers {
		tx.TouchInstance(i.ID)
	}
	warnings, err := unmet(ctx, &tx.View, m)
	return m, warnings, err
}

// CheckDeleteModule refuses to remove what is built in or in use.
func (s *Service) CheckDeleteModule(ctx context.Context, v *store.View, acct store.AccountID, id store.ModuleID) error {
	m, err := unlocked(ctx, v, acct, id)
	if err != nil {
		return err
	}
	assigned, err := store.AssignmentsByModule(ctx, v, acct, id)
	if err != nil {
		return err
	}
	joins, err := store.TemplateModulesByModule(ctx, v, acct, id)
	if err != nil || len(assigned)+len(joins) == 0 {
		return err
	}
	refused := schema.Errorf(schema.PreconditionFailed, "module '%s' is in use: %d assignment(s), %d template(s)", m.Name, len(assigned), len(joins)).
		WithDetail("assignment_count", len(assigned)).WithDetail("template_count", len(joins))
	if len(joins) == 0 && !slices.ContainsFunc(assigned, func(a store.Assignment) bool { return a.SourceTemplateID != "" }) {
		return refused.WithHint("system_delete_node", "What was assigned by hand goes with its node; disabled by system_update_module_assignment it is on no machine.")
	}
	return refused.WithHint("system_unassign_module_from_template", "Then system_apply_template with purge_stale takes it off the nodes.")
}

// DeleteModule removes a module with its versions, and says how many those were.
func (s *Service) DeleteModule(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.ModuleID) (store.Module, int, error) {
	m, err := unlocked(ctx, &tx.View, acct, id)
	if err != nil {
		return m, 0, err
	}
	versions, err := store.ModuleVersions(ctx, &tx.View, acct, id)
	if err != nil {
		return m, 0, err
	}
	for _, version := range versions {
		if err := audit(ctx, tx, acct, "deleted", resourceVersion, string(version.ID), versionValues(version), nil); err != nil {
			return m, 0, err
		}
	}
	if err := store.DeleteModule(ctx, tx, acct, id); err != nil {
		return m, 0, err
	}
	return m, len(versions), audit(ctx, tx, acct, "deleted", resourceModule, string(m.ID), moduleValues(m), nil)
}
