package tools

import (
	"context"
	"strings"

	"powernode/platform/fleet"
	"powernode/schema"
	"powernode/store"
)

func templateVerbs() []*Definition {
	return []*Definition{createTemplate(), updateTemplate(), cloneTemplate(), deleteTemplate(), assignModuleToTemplate(), updateTemplateModule(),
		unassignModuleFromTemplate(), listTemplates(), getTemplate(), discoverTemplates(), composePreviewTemplate()}
}

type templateObject struct {
	ID             store.TemplateID     `json:"id"`
	Name           string               `json:"name"`
	PlatformID     store.PlatformID     `json:"platform_id"`
	ArchitectureID store.ArchitectureID `json:"architecture_id"`
	Enabled        bool                 `json:"enabled"`
	Description    string               `json:"description"`
	Public         bool                 `json:"public"`
	AdminUser      *string              `json:"admin_user"`
	Config         store.Object         `json:"config"`
	CreatedAt      store.Time           `json:"created_at"`
}

func templateOf(t store.Template) templateObject {
	return templateObject{ID: t.ID, Name: t.Name, PlatformID: t.PlatformID, ArchitectureID: t.ArchitectureID, Enabled: t.Enabled,
		Description: t.Description, Public: t.Public, AdminUser: orNull(t.AdminUser), Config: t.Config.V, CreatedAt: t.CreatedAt}
}

type templateModuleObject struct {
	ID                 store.TemplateModuleID `json:"id"`
	NodeTemplateID     store.TemplateID       `json:"node_template_id"`
	NodeModuleID       store.ModuleID         `json:"node_module_id"`
	ModuleName         string                 `json:"module_name"`
	Enabled            bool                   `json:"enabled"`
	Priority           int64                  `json:"priority"`
	Config             store.Object           `json:"config"`
	RecommendsOverride *store.Override        `json:"recommends_override"`
	CreatedAt          store.Time             `json:"created_at"`
	UpdatedAt          store.Time             `json:"updated_at"`
}

func templateModuleOf(j store.TemplateModule) templateModuleObject {
	return templateModuleObject{ID: j.ID, NodeTemplateID: j.TemplateID, NodeModuleID: j.ModuleID, ModuleName: j.ModuleName, Enabled: j.Enabled,
		Priority: j.Priority, Config: j.Config.V, RecommendsOverride: j.Override.V, CreatedAt: j.CreatedAt, UpdatedAt: j.UpdatedAt}
}

type createTemplateArgs struct {
	Name           string           `json:"name"`
	NodePlatformID store.PlatformID `json:"node_platform_id"`
	Description    string           `json:"description"`
	Enabled        bool             `json:"enabled"`
	Public         bool             `json:"public"`
	AdminUser      string           `json:"admin_user"`
	Config         store.Object     `json:"config"`
}

func (a createTemplateArgs) input() fleet.TemplateInput {
	return fleet.TemplateInput{Name: a.Name, PlatformID: a.NodePlatformID, Description: a.Description, Enabled: a.Enabled, Public: a.Public,
		AdminUser: a.AdminUser, Config: a.Config}
}

type createTemplateResult struct {
	Template templateObject `json:"template"`
	Written
}

func createTemplate() *Definition {
	return define("system_create_template", handler[createTemplateArgs, createTemplateResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a createTemplateArgs) error {
			return p.Fleet.CheckCreateTemplate(ctx, v, c.AccountID, a.input())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a createTemplateArgs) (r createTemplateResult, err error) {
			t, err := p.Fleet.CreateTemplate(ctx, tx, c.AccountID, a.input())
			r.Template = templateOf(t)
			r.Hint = &schema.Hint{Verb: "system_assign_module_to_template", Text: "Joins modules to the template, one by one."}
			return r, err
		},
	})
}

type updateTemplateArgs struct {
	TemplateID  store.TemplateID `json:"template_id"`
	Name        *string          `json:"name"`
	Description *string          `json:"description"`
	Enabled     *bool            `json:"enabled"`
	Public      *bool            `json:"public"`
	AdminUser   *string          `json:"admin_user"`
	Config      store.Object     `json:"config"`
}

func (a updateTemplateArgs) change() fleet.TemplateChange {
	return fleet.TemplateChange{Name: a.Name, Description: a.Description, Enabled: a.Enabled, Public: a.Public, AdminUser: a.AdminUser, Config: a.Config}
}

func updateTemplate() *Definition {
	return define("system_update_template", handler[updateTemplateArgs, createTemplateResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a updateTemplateArgs) error {
			if a.Name == nil && a.Description == nil && a.Enabled == nil && a.Public == nil && a.AdminUser == nil && a.Config == nil {
				return nothingToUpdate("name", "description", "enabled", "public", "admin_user", "config")
			}
			return p.Fleet.CheckUpdateTemplate(ctx, v, c.AccountID, a.TemplateID, a.change())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a updateTemplateArgs) (r createTemplateResult, err error) {
			t, err := p.Fleet.UpdateTemplate(ctx, tx, c.AccountID, a.TemplateID, a.change())
			r.Template = templateOf(t)
			return r, err
		},
	})
}

type cloneTemplateArgs struct {
	TemplateID store.TemplateID `json:"template_id"`
	Name       string           `json:"name"`
}

type cloneTemplateResult struct {
	Template templateObject    `json:"template"`
	Modules  []templatedModule `json:"modules"`
	Written
}

func cloneTemplate() *Definition {
	return define("system_clone_template", handler[cloneTemplateArgs, cloneTemplateResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a cloneTemplateArgs) error {
			return p.Fleet.CheckCloneTemplate(ctx, v, c.AccountID, a.TemplateID, a.Name)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a cloneTemplateArgs) (r cloneTemplateResult, err error) {
			t, warnings, err := p.Fleet.CloneTemplate(ctx, tx, c.AccountID, a.TemplateID, a.Name)
			if err != nil {
				return r, err
			}
			r.Template = templateOf(t)
			r.warned(warnings)
			r.Modules, err = templatedModules(ctx, &tx.View, t)
			return r, err
		},
	})
}

type unassignModuleArgs struct {
	TemplateID store.TemplateID `json:"template_id"`
	ModuleID   store.ModuleID   `json:"module_id"`
}

type unassignModuleResult struct {
	Unassigned    bool `json:"unassigned"`
	AlreadyAbsent bool `json:"already_absent"`
	Written
}

func unassignModuleFromTemplate() *Definition {
	return define("system_unassign_module_from_template", handler[unassignModuleArgs, unassignModuleResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a unassignModuleArgs) error {
			_, err := p.Fleet.JoinExists(ctx, v, c.AccountID, a.TemplateID, a.ModuleID)
			return err
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a unassignModuleArgs) (r unassignModuleResult, err error) {
			there, err := p.Fleet.JoinExists(ctx, &tx.View, c.AccountID, a.TemplateID, a.ModuleID)
			if err != nil {
				return r, err
			}
			if !there {
				r.AlreadyAbsent = true
				return r, nil
			}
			j, err := p.Fleet.Unassign(ctx, tx, c.AccountID, a.TemplateID, a.ModuleID)
			if err != nil {
				return r, err
			}
			r.Unassigned = true
			if r.joined(j); r.Hint != nil {
				r.Hint.Text = "Nodes keep their assignments; with purge_stale it removes those that came from the template."
			}
			return r, nil
		},
		categoryIn: func(ctx context.Context, p *Platform, v *store.View, c Caller, a unassignModuleArgs) (string, error) {
			there, err := p.Fleet.JoinExists(ctx, v, c.AccountID, a.TemplateID, a.ModuleID)
			if err != nil || !there {
				return "", err // there is nothing to take away, and nobody is asked
			}
			return "system.template_module_unassign", nil
		},
	})
}

type templateArgs struct {
	TemplateID store.TemplateID `json:"template_id"`
}

type deleteTemplateResult struct {
	Deleted    bool             `json:"deleted"`
	TemplateID store.TemplateID `json:"template_id"`
	Name       string           `json:"name"`
	Written
}

func deleteTemplate() *Definition {
	return define("system_delete_template", handler[templateArgs, deleteTemplateResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a templateArgs) error {
			return p.Fleet.CheckDeleteTemplate(ctx, v, c.AccountID, a.TemplateID)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a templateArgs) (deleteTemplateResult, error) {
			t, err := p.Fleet.DeleteTemplate(ctx, tx, c.AccountID, a.TemplateID)
			return deleteTemplateResult{Deleted: true, TemplateID: t.ID, Name: t.Name}, err
		},
	})
}

// overrideArgs has either replace, or the other two; the domain refuses both.
type overrideArgs struct {
	Replace  []store.ModuleID `json:"replace"`
	Included []store.ModuleID `json:"included"`
	Excluded []store.ModuleID `json:"excluded"`
}

func (o *overrideArgs) override() *store.Override {
	if o == nil {
		return nil
	}
	return &store.Override{Replace: o.Replace, Included: o.Included, Excluded: o.Excluded}
}

type assignModuleArgs struct {
	TemplateID         store.TemplateID `json:"template_id"`
	ModuleID           store.ModuleID   `json:"module_id"`
	Priority           *int64           `json:"priority"`
	Enabled            bool             `json:"enabled"`
	Config             store.Object     `json:"config"`
	RecommendsOverride *overrideArgs    `json:"recommends_override"`
}

func (a assignModuleArgs) input() fleet.JoinInput {
	return fleet.JoinInput{TemplateID: a.TemplateID, ModuleID: a.ModuleID, Priority: a.Priority, Enabled: &a.Enabled, Config: a.Config,
		Override: a.RecommendsOverride.override(), OverrideSet: a.RecommendsOverride != nil}
}

type assignModuleResult struct {
	Assigned             bool                   `json:"assigned"`
	TemplateModuleID     store.TemplateModuleID `json:"template_module_id"`
	TemplateModule       templateModuleObject   `json:"template_module"`
	ProvisionedNodeCount int64                  `json:"provisioned_node_count"`
	Written
}

func assignModuleToTemplate() *Definition {
	return define("system_assign_module_to_template", handler[assignModuleArgs, assignModuleResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a assignModuleArgs) error {
			if err := moduleNamedByID(ctx, v, c, a.ModuleID); err != nil {
				return err
			}
			return p.Fleet.CheckAssign(ctx, v, c.AccountID, a.input())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a assignModuleArgs) (r assignModuleResult, err error) {
			j, err := p.Fleet.Assign(ctx, tx, c.AccountID, a.input())
			if err != nil {
				return r, err
			}
			r.Assigned, r.TemplateModuleID, r.TemplateModule = true, j.Join.ID, templateModuleOf(j.Join)
			r.ProvisionedNodeCount = j.ProvisionedNodes
			r.joined(j)
			return r, nil
		},
	})
}

// joined tells what follows from a join that was written.
func (w *Written) joined(j fleet.Joined) {
	w.warned(j.Warnings)
	if j.UsedByNodes {
		w.Hint = applyHint()
	}
}

// moduleNamedByID refuses a module's name where its id is wanted, and tells the id.
func moduleNamedByID(ctx context.Context, v *store.View, c Caller, given store.ModuleID) error {
	if schema.IsID(string(given)) {
		return nil
	}
	candidates := []string{}
	all, err := store.Modules(ctx, v, c.AccountID)
	if err != nil {
		return err
	}
	for _, m := range all {
		if strings.EqualFold(m.Name, string(given)) {
			candidates = append(candidates, string(m.ID))
		}
	}
	shown := schema.Printable(string(given))
	refusal := schema.InvalidArgument("/module_id", shown, "module_id must be a module's id, not its name (got %q)", shown)
	return refusal.WithDetail("candidates", candidates).WithDetail("violations", []schema.Violation{{Pointer: "/module_id", Problem: "value",
		Value: shown, Candidates: candidates}}).WithHint("system_list_modules", "Gives the id of a name.")
}

type updateTemplateModuleArgs struct {
	TemplateID         store.TemplateID              `json:"template_id"`
	ModuleID           store.ModuleID                `json:"module_id"`
	Priority           *int64                        `json:"priority"`
	Enabled            *bool                         `json:"enabled"`
	Config             store.Object                  `json:"config"`
	RecommendsOverride schema.Nullable[overrideArgs] `json:"recommends_override"`
}

func (a updateTemplateModuleArgs) input() fleet.JoinInput {
	return fleet.JoinInput{TemplateID: a.TemplateID, ModuleID: a.ModuleID, Priority: a.Priority, Enabled: a.Enabled, Config: a.Config,
		Override: a.RecommendsOverride.Value.override(), OverrideSet: a.RecommendsOverride.Set}
}

type updateTemplateModuleResult struct {
	Updated              bool                 `json:"updated"`
	TemplateModule       templateModuleObject `json:"template_module"`
	ProvisionedNodeCount int64                `json:"provisioned_node_count"`
	Written
}

func updateTemplateModule() *Definition {
	return define("system_update_template_module", handler[updateTemplateModuleArgs, updateTemplateModuleResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a updateTemplateModuleArgs) error {
			if a.Priority == nil && a.Enabled == nil && a.Config == nil && !a.RecommendsOverride.Set {
				return nothingToUpdate("priority", "enabled", "config", "recommends_override")
			}
			return p.Fleet.CheckUpdateJoin(ctx, v, c.AccountID, a.input())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a updateTemplateModuleArgs) (r updateTemplateModuleResult, err error) {
			j, err := p.Fleet.UpdateJoin(ctx, tx, c.AccountID, a.input())
			if err != nil {
				return r, err
			}
			r.Updated, r.TemplateModule, r.ProvisionedNodeCount = true, templateModuleOf(j.Join), j.ProvisionedNodes
			r.joined(j)
			return r, nil
		},
	})
}

type listTemplatesArgs struct {
	Q      string `json:"q"`
	Limit  int    `json:"limit"`
	Cursor string `json:"cursor"`
}

type listTemplatesResult struct {
	Templates []templateObject `json:"templates"`
	Page
}

func listTemplates() *Definition {
	return define("system_list_templates", handler[listTemplatesArgs, listTemplatesResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a listTemplatesArgs) (r listTemplatesResult, err error) {
			all, err := store.Templates(ctx, v, c.AccountID)
			if err != nil {
				return r, err
			}
			matching := []store.Template{}
			for _, t := range all {
				if strings.Contains(strings.ToLower(t.Name), strings.ToLower(a.Q)) {
					matching = append(matching, t)
				}
			}
			matching, r.Page, err = page("system_list_templates", a.Q, a.Limit, a.Cursor, matching, func(t store.Template) string { return string(t.ID) })
			r.Templates = mapped(matching, templateOf)
			return r, err
		},
	})
}

type templatedModule struct {
	ID               store.ModuleID         `json:"id"`
	Name             string                 `json:"name"`
	Variety          string                 `json:"variety"`
	TemplateModuleID store.TemplateModuleID `json:"template_module_id"`
	Enabled          bool                   `json:"enabled"`
	Priority         int64                  `json:"priority"`
	Config           store.Object           `json:"config"`
}

// templatedModules are a template's modules, as the template has them.
func templatedModules(ctx context.Context, v *store.View, t store.Template) ([]templatedModule, error) {
	joins, err := store.TemplateModules(ctx, v, t.AccountID, t.ID)
	if err != nil {
		return nil, err
	}
	out := []templatedModule{}
	for _, j := range joins {
		m, err := store.ModuleByID(ctx, v, t.AccountID, j.ModuleID)
		if err != nil {
			return nil, err
		}
		out = append(out, templatedModule{ID: m.ID, Name: m.Name, Variety: m.Variety, TemplateModuleID: j.ID, Enabled: j.Enabled,
			Priority: j.Priority, Config: j.Config.V})
	}
	return out, nil
}

type getTemplateResult struct {
	Template  templateObject    `json:"template"`
	Modules   []templatedModule `json:"modules"`
	NodeCount int               `json:"node_count"`
}

func getTemplate() *Definition {
	return define("system_get_template", handler[templateArgs, getTemplateResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a templateArgs) (r getTemplateResult, err error) {
			t, err := fleet.TemplateByID(ctx, v, c.AccountID, a.TemplateID)
			if err != nil {
				return r, err
			}
			r.Template = templateOf(t)
			if r.Modules, err = templatedModules(ctx, v, t); err != nil {
				return r, err
			}
			users, err := store.Nodes(ctx, v, c.AccountID, t.ID)
			r.NodeCount = len(users)
			return r, err
		},
	})
}
