package fleet

import (
	"context"
	"errors"
	"fmt"

	"powernode/platform/signal"
	"powernode/schema"
	"powernode/store"
)

// networkKey is the key of a template's config that names the network its machines are attached to at provisioning.
const networkKey = "sdwan_network_id"

// initScriptKey is the key of a template's config that providers run at first boot, where they take one.
const initScriptKey = "init_script"

// TemplateByID finds a template, or refuses.
func TemplateByID(ctx context.Context, v *store.View, acct store.AccountID, id store.TemplateID) (store.Template, error) {
	t, err := store.TemplateByID(ctx, v, acct, id)
	return t, orNotFound(err, "template not found")
}

// TemplateInput makes a template.
type TemplateInput struct {
	Name        string
	PlatformID  store.PlatformID
	Description string
	Enabled     bool
	Public      bool
	AdminUser   string
	Config      store.Object
}

// CheckCreateTemplate refuses what CreateTemplate could not do.
func (s *Service) CheckCreateTemplate(ctx context.Context, v *store.View, acct store.AccountID, in TemplateInput) error {
	if _, err := store.PlatformByID(ctx, v, acct, in.PlatformID); err != nil {
		return orNotFound(err, "platform not found")
	}
	if err := checkTemplateConfig(ctx, v, acct, in.Config); err != nil {
		return err
	}
	other, err := store.TemplateByName(ctx, v, acct, in.Name)
	return free(err, false, holder{"template_id", string(other.ID)}, "template name %q is already in use", in.Name)
}

func checkTemplateConfig(ctx context.Context, v *store.View, acct store.AccountID, config store.Object) error {
	for _, key := range []string{networkKey, initScriptKey} {
		if value, given := config[key]; given && value != nil {
			if _, ok := value.(string); !ok {
				return schema.InvalidArgument("/config/"+key, nil, "config.%s must be a string", key)
			}
		}
	}
	id, _ := config[networkKey].(string)
	if id == "" {
		return nil
	}
	_, err := store.NetworkByID(ctx, v, acct, store.NetworkID(id))
	return orNotFound(err, "network not found")
}

// CreateTemplate makes an empty template.
func (s *Service) CreateTemplate(ctx context.Context, tx *store.Tx, acct store.AccountID, in TemplateInput) (store.Template, error) {
	t := store.Template{ID: store.TemplateID(tx.NewID()), AccountID: acct, Name: in.Name, PlatformID: in.PlatformID, Description: in.Description,
		Enabled: in.Enabled, Public: in.Public, AdminUser: in.AdminUser}
	t.Config.V = object(in.Config)
	t, err := store.InsertTemplate(ctx, tx, t)
	if err != nil {
		return t, err
	}
	return t, audit(ctx, tx, acct, "created", resourceTemplate, string(t.ID), nil, templateValues(t))
}

func templateValues(t store.Template) store.Object {
	return store.Object{"name": t.Name, "platform_id": t.PlatformID, "description": t.Description, "enabled": t.Enabled, "public": t.Public,
		"admin_user": t.AdminUser, "config": t.Config.V}
}

// TemplateChange is what an update of a template gives; nil is not given.
type TemplateChange struct {
	Name        *string
	Description *string
	Enabled     *bool
	Public      *bool
	AdminUser   *string
	Config      store.Object
}

func (c TemplateChange) apply(t store.Template) store.Template {
	set(&t.Name, c.Name)
	set(&t.Description, c.Description)
	set(&t.Enabled, c.Enabled)
	set(&t.Public, c.Public)
	set(&t.AdminUser, c.AdminUser)
	if c.Config != nil {
		t.Config.V = c.Config
	}
	return t
}

// CheckUpdateTemplate refuses what UpdateTemplate could not do.
func (s *Service) CheckUpdateTemplate(ctx context.Context, v *store.View, acct store.AccountID, id store.TemplateID, c TemplateChange) error {
	t, err := TemplateByID(ctx, v, acct, id)
	if err != nil {
		return err
	}
	if err := checkTemplateConfig(ctx, v, acct, c.Config); err != nil || c.Name == nil {
		return err
	}
	other, err := store.TemplateByName(ctx, v, acct, *c.Name)
	return free(err, other.ID == t.ID, holder{"template_id", string(other.ID)}, "template name %q is already in use", *c.Name)
}

// UpdateTemplate changes a template. Its nodes follow where the fields are read: at provisioning and at the next apply.
func (s *Service) UpdateTemplate(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.TemplateID, c TemplateChange) (store.Template, error) {
	before, err := TemplateByID(ctx, &tx.View, acct, id)
	if err != nil {
		return before, err
	}
	t := c.apply(before)
	old, now := changed(templateValues(before), templateValues(t))
	if len(now) == 0 {
		return before, nil
	}
	if t, err = store.UpdateTemplate(ctx, tx, t); err != nil {
		return t, err
	}
	return t, audit(ctx, tx, acct, "updated", resourceTemplate, string(t.ID), old, now)
}

// maxName is how long the names of templates, modules and platforms are at most.
const maxName = 128

// cloneName is the name that a clone gets where none is given.
func cloneName(source store.Template, name string) string {
	const suffix = "-copy"
	if name != "" {
		return name
	}
	r := []rune(source.Name)
	return string(r[:min(len(r), maxName-len(suffix))]) + suffix
}

// CheckCloneTemplate refuses what CloneTemplate could not do.
func (s *Service) CheckCloneTemplate(ctx context.Context, v *store.View, acct store.AccountID, id store.TemplateID, name string) error {
	source, err := TemplateByID(ctx, v, acct, id)
	if err != nil {
		return err
	}
	name = cloneName(source, name)
	other, err := store.TemplateByName(ctx, v, acct, name)
	return free(err, false, holder{"template_id", string(other.ID)}, "template name %q is already in use", name)
}

// CloneTemplate makes a template with the fields and joins of another one. A join whose config would be refused today is
// copied all the same, and named: an apply would refuse it.
func (s *Service) CloneTemplate(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.TemplateID,
	name string) (store.Template, []Warning, error) {
	source, err := TemplateByID(ctx, &tx.View, acct, id)
	if err != nil {
		return source, nil, err
	}
	joins, err := store.TemplateModules(ctx, &tx.View, acct, id)
	if err != nil {
		return source, nil, err
	}
	t, err := s.CreateTemplate(ctx, tx, acct, TemplateInput{Name: cloneName(source, name), PlatformID: source.PlatformID, Description: source.Description,
		Enabled: source.Enabled, Public: source.Public, AdminUser: source.AdminUser, Config: source.Config.V})
	if err != nil {
		return t, nil, err
	}
	var warnings []Warning
	for _, j := range joins {
		refused, err := s.refusedJoin(ctx, &tx.View, j)
		if err != nil {
			return t, nil, err
		}
		if refused != "" {
			warnings = append(warnings, Warning{"config_refused",
				fmt.Sprintf("the config of module %s was copied, and would be refused now: %s", j.ModuleName, refused)})
		}
		j.ID, j.TemplateID = store.TemplateModuleID(tx.NewID()), t.ID
		if j, err = store.InsertTemplateModule(ctx, tx, j); err != nil {
			return t, nil, err
		}
		if err := audit(ctx, tx, acct, "created", resourceTemplateModule, string(j.ID), nil, joinValues(j)); err != nil {
			return t, nil, err
		}
	}
	return t, warnings, nil
}

// refusedJoin says why a join's config would be refused if it were written now, or "".
func (s *Service) refusedJoin(ctx context.Context, v *store.View, j store.TemplateModule) (string, error) {
	m, err := ModuleByID(ctx, v, j.AccountID, j.ModuleID)
	if err != nil {
		return "", err
	}
	_, _, err = s.checkJoinConfig(ctx, v, j.AccountID, m, j.Config.V)
	var refusal *schema.Error
	if errors.As(err, &refusal) {
		return refusal.Message, nil
	}
	return "", err
}

// CheckDeleteTemplate refuses to remove a template that nodes use.
func (s *Service) CheckDeleteTemplate(ctx context.Context, v *store.View, acct store.AccountID, id store.TemplateID) error {
	t, err := TemplateByID(ctx, v, acct, id)
	if err != nil {
		return err
	}
	users, err := store.Nodes(ctx, v, acct, id)
	if err != nil || len(users) == 0 {
		return err
	}
	return schema.Errorf(schema.PreconditionFailed, "template '%s' is in use by %d node(s)", t.Name, len(users)).
		WithHint("system_update_node", "Give the nodes another template with node_template_id, or remove them with system_delete_node.")
}

// DeleteTemplate removes a template with its joins.
func (s *Service) DeleteTemplate(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.TemplateID) (store.Template, error) {
	t, err := TemplateByID(ctx, &tx.View, acct, id)
	if err != nil {
		return t, err
	}
	joins, err := store.TemplateModules(ctx, &tx.View, acct, id)
	if err != nil {
		return t, err
	}
	for _, j := range joins {
		if err := audit(ctx, tx, acct, "deleted", resourceTemplateModule, string(j.ID), joinValues(j), nil); err != nil {
			return t, err
		}
	}
	if err := store.DeleteTemplate(ctx, tx, acct, id); err != nil {
		return t, err
	}
	return t, audit(ctx, tx, acct, "deleted", resourceTemplate, string(id), templateValues(t), nil)
}

// JoinInput makes or edits the join of a template with a module; nil is not given.
type JoinInput struct {
	TemplateID store.TemplateID
	ModuleID   store.ModuleID
	Priority   *int64
	Enabled    *bool
	Config     store.Object // nil is not given
	// Override is given when OverrideSet; nil clears it.
	Override    *store.Override
	OverrideSet bool
}

// CheckAssign refuses what Assign could not do.
func (s *Service) CheckAssign(ctx context.Context, v *store.View, acct store.AccountID, in JoinInput) error {
	t, m, err := s.joined(ctx, v, acct, in)
	if err != nil {
		return err
	}
	existing, err := store.TemplateModuleOf(ctx, v, acct, t.ID, m.ID)
	if err == nil {
		return schema.Errorf(schema.Conflict, "template already has this module").WithDetail("template_module_id", existing.ID).
			WithHint("system_update_template_module", "Edits the join that exists.")
	}
	if !errors.Is(err, store.ErrNoRow) {
		return err
	}
	if !m.Enabled {
		return schema.Errorf(schema.PreconditionFailed, "module '%s' is disabled", m.Name)
	}
	if err := checkPlatform(ctx, v, m, t); err != nil {
		return err
	}
	if _, _, err := s.checkJoinConfig(ctx, v, acct, m, in.Config); err != nil {
		return err
	}
	return s.checkComposition(ctx, v, acct, in.apply(newJoin(in, m)))
}

// CheckUpdateJoin refuses what UpdateJoin could not do.
func (s *Service) CheckUpdateJoin(ctx context.Context, v *store.View, acct store.AccountID, in JoinInput) error {
	_, m, err := s.joined(ctx, v, acct, in)
	if err != nil {
		return err
	}
	before, err := joinOf(ctx, v, acct, in)
	if err != nil {
		return err
	}
	if in.Config != nil {
		if _, _, err := s.checkJoinConfig(ctx, v, acct, m, in.Config); err != nil {
			return err
		}
	}
	after := in.apply(before)
	if before.Enabled || !after.Enabled {
		return nil
	}
	if !m.Enabled {
		return schema.Errorf(schema.PreconditionFailed, "module '%s' is disabled", m.Name)
	}
	return s.checkComposition(ctx, v, acct, after)
}

func joinOf(ctx context.Context, v *store.View, acct store.AccountID, in JoinInput) (store.TemplateModule, error) {
	j, err := store.TemplateModuleOf(ctx, v, acct, in.TemplateID, in.ModuleID)
	if errors.Is(err, store.ErrNoRow) {
		return j, schema.Errorf(schema.NotFound, "template has no such module").
			WithHint("system_assign_module_to_template", "Makes the join.")
	}
	return j, err
}

// joined finds both ends of a join, and judges what needs no more rows.
func (s *Service) joined(ctx context.Context, v *store.View, acct store.AccountID, in JoinInput) (store.Template, store.Module, error) {
	if o := in.Override; o != nil && o.Replace != nil && (o.Included != nil || o.Excluded != nil) {
		return store.Template{}, store.Module{}, schema.InvalidCombination("/recommends_override",
			"recommends_override has either replace, or included and excluded")
	}
	t, err := TemplateByID(ctx, v, acct, in.TemplateID)
	if err != nil {
		return t, store.Module{}, err
	}
	m, err := ModuleByID(ctx, v, acct, in.ModuleID)
	if err != nil {
		return t, m, err
	}
	return t, m, checkOverride(ctx, v, acct, in.Override)
}

func checkOverride(ctx context.Context, v *store.View, acct store.AccountID, o *store.Override) error {
	if o == nil {
		return nil
	}
	for _, list := range [][]store.ModuleID{o.Replace, o.Included, o.Excluded} {
		for _, id := range list {
			if _, err := ModuleByID(ctx, v, acct, id); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkJoinConfig judges a config and answers it with its target as an id.
func (s *Service) checkJoinConfig(ctx context.Context, v *store.View, acct store.AccountID, m store.Module, config store.Object) (store.Object, []Warning, error) {
	return s.checkConfig(ctx, v, acct, "", m, config)
}

// checkConfig judges the config of a module that is written for a node, or for a template where node is "".
func (s *Service) checkConfig(ctx context.Context, v *store.View, acct store.AccountID, node store.NodeID, m store.Module, config store.Object) (store.Object, []Warning, error) {
	config = object(config)
	full, err := declaredModule(ctx, v, m)
	if err != nil {
		return nil, nil, err
	}
	if err := schema.ValidateConfig(full.ConfigSchema.V, config); err != nil {
		return nil, nil, err
	}
	normalised, warnings, err := s.Cluster.CheckTarget(ctx, v, acct, node, m, config)
	return normalised, clusterWarnings(warnings), err
}

func newJoin(in JoinInput, m store.Module) store.TemplateModule {
	j := store.TemplateModule{AccountID: m.AccountID, TemplateID: in.TemplateID, ModuleID: m.ID, ModuleName: m.Name, Enabled: true, Priority: m.Priority}
	j.Config.V = store.Object{}
	return j
}

func (in JoinInput) apply(j store.TemplateModule) store.TemplateModule {
	set(&j.Priority, in.Priority)
	set(&j.Enabled, in.Enabled)
	if in.Config != nil {
		j.Config.V = in.Config
	}
	if in.OverrideSet {
		j.Override.V = in.Override
	}
	return j
}

// Joined is a join that was written, and how many provisioned nodes follow it at their next apply.
type Joined struct {
	Join             store.TemplateModule
	ProvisionedNodes int64
	UsedByNodes      bool
	Warnings         []Warning
}

// Assign joins a module to a template. Nodes that exist don't change.
func (s *Service) Assign(ctx context.Context, tx *store.Tx, acct store.AccountID, in JoinInput) (Joined, error) {
	m, err := ModuleByID(ctx, &tx.View, acct, in.ModuleID)
	if err != nil {
		return Joined{}, err
	}
	config, warnings, err := s.checkJoinConfig(ctx, &tx.View, acct, m, in.Config)
	if err != nil {
		return Joined{}, err
	}
	in.Config = config
	j := in.apply(newJoin(in, m))
	j.ID = store.TemplateModuleID(tx.NewID())
	if j, err = store.InsertTemplateModule(ctx, tx, j); err != nil {
		return Joined{}, err
	}
	if err := audit(ctx, tx, acct, "created", resourceTemplateModule, string(j.ID), nil, joinValues(j)); err != nil {
		return Joined{}, err
	}
	idle, err := unservedNow(ctx, &tx.View, m, in.TemplateID)
	if err != nil {
		return Joined{}, err
	}
	return s.mutated(ctx, tx, j, "module_assigned", append(warnings, idle...))
}

// UpdateJoin edits a join. Assignments follow at the next apply.
func (s *Service) UpdateJoin(ctx context.Context, tx *store.Tx, acct store.AccountID, in JoinInput) (Joined, error) {
	before, err := joinOf(ctx, &tx.View, acct, in)
	if err != nil {
		return Joined{}, err
	}
	m, err := ModuleByID(ctx, &tx.View, acct, in.ModuleID)
	if err != nil {
		return Joined{}, err
	}
	var warnings []Warning
	if in.Config != nil {
		if in.Config, warnings, err = s.checkJoinConfig(ctx, &tx.View, acct, m, in.Config); err != nil {
			return Joined{}, err
		}
	}
	j := in.apply(before)
	old, now := changed(joinValues(before), joinValues(j))
	if len(now) == 0 {
		return s.followers(ctx, &tx.View, j, warnings)
	}
	if j, err = store.UpdateTemplateModule(ctx, tx, j); err != nil {
		return Joined{}, err
	}
	if err := audit(ctx, tx, acct, "updated", resourceTemplateModule, string(j.ID), old, now); err != nil {
		return Joined{}, err
	}
	change := "join_updated"
	if j.Enabled != before.Enabled {
		change = "module_disabled"
		if j.Enabled {
			change = "module_enabled"
		}
	}
	return s.mutated(ctx, tx, j, change, warnings)
}

// JoinExists says whether a template has a module; both must exist.
func (s *Service) JoinExists(ctx context.Context, v *store.View, acct store.AccountID, template store.TemplateID, module store.ModuleID) (bool, error) {
	if _, _, err := s.joined(ctx, v, acct, JoinInput{TemplateID: template, ModuleID: module}); err != nil {
		return false, err
	}
	_, err := store.TemplateModuleOf(ctx, v, acct, template, module)
	if errors.Is(err, store.ErrNoRow) {
		return false, nil
	}
	return err == nil, err
}

// Unassign takes a join away. Assignments that came from it keep their source, so that a purge finds them.
func (s *Service) Unassign(ctx context.Context, tx *store.Tx, acct store.AccountID, template store.TemplateID, module store.ModuleID) (Joined, error) {
	j, err := store.TemplateModuleOf(ctx, &tx.View, acct, template, module)
	if err != nil {
		return Joined{}, err
	}
	if err := store.DeleteTemplateModule(ctx, tx, acct, j.ID); err != nil {
		return Joined{}, err
	}
	if err := audit(ctx, tx, acct, "deleted", resourceTemplateModule, string(j.ID), joinValues(j), nil); err != nil {
		return Joined{}, err
	}
	return s.mutated(ctx, tx, j, "module_unassigned", nil)
}

func (s *Service) mutated(ctx context.Context, tx *store.Tx, j store.TemplateModule, change string, warnings []Warning) (Joined, error) {
	err := signal.Emit(ctx, tx, j.AccountID, signal.Event{Kind: "system.template_mutation", Subject: signal.Subject{ModuleID: j.ModuleID},
		CorrelationID: "template_mutation:" + string(j.TemplateID),
		Payload:       store.Object{"change": change, "template_id": j.TemplateID, "module_id": j.ModuleID}})
	if err != nil {
		return Joined{}, err
	}
	return s.followers(ctx, &tx.View, j, warnings)
}

func (s *Service) followers(ctx context.Context, v *store.View, j store.TemplateModule, warnings []Warning) (Joined, error) {
	provisioned, err := store.ProvisionedNodes(ctx, v, j.AccountID, j.TemplateID)
	if err != nil {
		return Joined{}, err
	}
	users, err := store.Nodes(ctx, v, j.AccountID, j.TemplateID)
	return Joined{Join: j, ProvisionedNodes: provisioned, UsedByNodes: len(users) > 0, Warnings: warnings}, err
}

func joinValues(j store.TemplateModule) store.Object {
	return store.Object{"node_template_id": j.TemplateID, "node_module_id": j.ModuleID, "enabled": j.Enabled, "priority": j.Priority,
		"config": j.Config.V, "recommends_override": j.Override.V}
}
