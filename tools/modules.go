package tools

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"powernode/platform/fleet"
	"powernode/schema"
	"powernode/store"
)

func moduleVerbs() []*Definition {
	return []*Definition{listModules(), getModule(), createModule(), updateModule(), deleteModule(), discoverModules(), planRollingModuleUpgrade(),
		listModuleVersions(), createModuleVersion(), setCurrentModuleVersion(), promoteModuleVersion(), rollbackModuleVersion(), moduleDiff(),
		validateModuleManifest()}
}

type moduleRow struct {
	ID               store.ModuleID         `json:"id"`
	Name             string                 `json:"name"`
	Variety          string                 `json:"variety"`
	Priority         int64                  `json:"priority"`
	Enabled          bool                   `json:"enabled"`
	Public           bool                   `json:"public"`
	Locked           bool                   `json:"locked"`
	NodePlatformID   *store.PlatformID      `json:"node_platform_id"`
	CurrentVersionID *store.ModuleVersionID `json:"current_version_id"`
	CurrentVersion   *string                `json:"current_version"`
}

func moduleRowOf(ctx context.Context, v *store.View, m store.Module) (moduleRow, error) {
	row := moduleRow{ID: m.ID, Name: m.Name, Variety: m.Variety, Priority: m.Priority, Enabled: m.Enabled, Public: m.Public, Locked: m.Locked,
		NodePlatformID: orNull(m.PlatformID), CurrentVersionID: orNull(m.CurrentVersionID)}
	current, err := store.CurrentVersion(ctx, v, m)
	if errors.Is(err, store.ErrNoRow) {
		return row, nil
	}
	row.CurrentVersion = &current.Version
	return row, err
}

type listModulesArgs struct {
	Options struct {
		Variety string `json:"variety"`
		Name    string `json:"name"`
	} `json:"options"`
	Limit  int    `json:"limit"`
	Cursor string `json:"cursor"`
}

type listModulesResult struct {
	Modules []moduleRow `json:"modules"`
	Page
}

func listModules() *Definition {
	return define("system_list_modules", handler[listModulesArgs, listModulesResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a listModulesArgs) (r listModulesResult, err error) {
			all, err := store.Modules(ctx, v, c.AccountID)
			if err != nil {
				return r, err
			}
			matching := []store.Module{}
			for _, m := range all {
				if (a.Options.Variety == "" || m.Variety == a.Options.Variety) && (a.Options.Name == "" || strings.EqualFold(m.Name, a.Options.Name)) {
					matching = append(matching, m)
				}
			}
			matching, r.Page, err = page("system_list_modules", a.Options, a.Limit, a.Cursor, matching, func(m store.Module) string { return string(m.ID) })
			if err != nil {
				return r, err
			}
			r.Modules = []moduleRow{}
			for _, m := range matching {
				row, err := moduleRowOf(ctx, v, m)
				if err != nil {
					return r, err
				}
				r.Modules = append(r.Modules, row)
			}
			return r, nil
		},
	})
}

type moduleArgs struct {
	ModuleID store.ModuleID `json:"module_id"`
}

type moduleFull struct {
	moduleRow
	Description     string             `json:"description"`
	ConfigSchema    json.RawMessage    `json:"config_schema"` // null: free-form
	Dependencies    store.Dependencies `json:"dependencies"`
	AssignmentCount int                `json:"assignment_count"`
	TemplateCount   int                `json:"template_count"`
}

func moduleFullOf(ctx context.Context, v *store.View, m store.Module) (moduleFull, error) {
	row, err := moduleRowOf(ctx, v, m)
	if err != nil {
		return moduleFull{}, err
	}
	assigned, err := store.AssignmentsByModule(ctx, v, m.AccountID, m.ID)
	if err != nil {
		return moduleFull{}, err
	}
	joins, err := store.TemplateModulesByModule(ctx, v, m.AccountID, m.ID)
	return moduleFull{moduleRow: row, Description: m.Description, ConfigSchema: m.ConfigSchema.V, Dependencies: m.Dependencies.V,
		AssignmentCount: len(assigned), TemplateCount: len(joins)}, err
}

type getModuleResult struct {
	Module moduleFull `json:"module"`
}

func getModule() *Definition {
	return define("system_get_module", handler[moduleArgs, getModuleResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a moduleArgs) (r getModuleResult, err error) {
			m, err := fleet.ModuleByID(ctx, v, c.AccountID, a.ModuleID)
			if err != nil {
				return r, err
			}
			r.Module, err = moduleFullOf(ctx, v, m)
			return r, err
		},
	})
}

// dependencyArgs are what a module says of others; lists that are not given are empty.
type dependencyArgs struct {
	Requires   []string `json:"requires"`
	Recommends []string `json:"recommends"`
	Conflicts  []string `json:"conflicts"`
	Provides   []string `json:"provides"`
}

func (d *dependencyArgs) dependencies() *store.Dependencies {
	if d == nil {
		return nil
	}
	out := store.Dependencies(*d)
	return &out
}

type createModuleArgs struct {
	Name           string           `json:"name"`
	Variety        string           `json:"variety"`
	NodePlatformID store.PlatformID `json:"node_platform_id"`
	Description    string           `json:"description"`
	Enabled        bool             `json:"enabled"`
	Public         bool             `json:"public"`
	Priority       int64            `json:"priority"`
	Dependencies   *dependencyArgs  `json:"dependencies"`
	Config         store.Object     `json:"config"`
	ConfigSchema   store.Object     `json:"config_schema"`
}

func (a createModuleArgs) input() fleet.ModuleInput {
	return fleet.ModuleInput{Name: a.Name, Variety: a.Variety, PlatformID: a.NodePlatformID, Description: a.Description, Enabled: a.Enabled,
		Public: a.Public, Priority: a.Priority, Dependencies: a.Dependencies.dependencies(), Config: a.Config, ConfigSchema: a.ConfigSchema}
}

type moduleResult struct {
	Module moduleFull `json:"module"`
	Written
}

func createModule() *Definition {
	return define("system_create_module", handler[createModuleArgs, moduleResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a createModuleArgs) error {
			return p.Fleet.CheckCreateModule(ctx, v, c.AccountID, a.input())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a createModuleArgs) (r moduleResult, err error) {
			m, warnings, err := p.Fleet.CreateModule(ctx, tx, c.AccountID, a.input())
			if err != nil {
				return r, err
			}
			r.warned(warnings)
			r.Hint = &schema.Hint{Verb: "system_create_module_version", Text: "Machines get nothing of a module before it has a current version."}
			r.Module, err = moduleFullOf(ctx, &tx.View, m)
			return r, err
		},
	})
}

type updateModuleArgs struct {
	ModuleID     store.ModuleID  `json:"module_id"`
	Description  *string         `json:"description"`
	Enabled      *bool           `json:"enabled"`
	Public       *bool           `json:"public"`
	Priority     *int64          `json:"priority"`
	Dependencies *dependencyArgs `json:"dependencies"`
	Config       store.Object    `json:"config"`
	ConfigSchema store.Object    `json:"config_schema"`
}

func (a updateModuleArgs) change() fleet.ModuleChange {
	return fleet.ModuleChange{Description: a.Description, Enabled: a.Enabled, Public: a.Public, Priority: a.Priority,
		Dependencies: a.Dependencies.dependencies(), Config: a.Config, ConfigSchema: a.ConfigSchema}
}

func updateModule() *Definition {
	return define("system_update_module", handler[updateModuleArgs, moduleResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a updateModuleArgs) error {
			given := a.Description != nil || a.Enabled != nil || a.Public != nil || a.Priority != nil || a.Dependencies != nil
			if !given && a.Config == nil && a.ConfigSchema == nil {
				return nothingToUpdate("description", "enabled", "public", "priority", "dependencies", "config", "config_schema")
			}
			return p.Fleet.CheckUpdateModule(ctx, v, c.AccountID, a.ModuleID, a.change())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a updateModuleArgs) (r moduleResult, err error) {
			m, warnings, err := p.Fleet.UpdateModule(ctx, tx, c.AccountID, a.ModuleID, a.change())
			if err != nil {
				return r, err
			}
			r.warned(warnings)
			r.Module, err = moduleFullOf(ctx, &tx.View, m)
			return r, err
		},
	})
}

type deleteModuleResult struct {
	Deleted          bool           `json:"deleted"`
	ModuleID         store.ModuleID `json:"module_id"`
	Name             string         `json:"name"`
	VersionsCascaded int            `json:"versions_cascaded"`
	Written
}

func deleteModule() *Definition {
	return define("system_delete_module", handler[moduleArgs, deleteModuleResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a moduleArgs) error {
			return p.Fleet.CheckDeleteModule(ctx, v, c.AccountID, a.ModuleID)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a moduleArgs) (deleteModuleResult, error) {
			m, versions, err := p.Fleet.DeleteModule(ctx, tx, c.AccountID, a.ModuleID)
			return deleteModuleResult{Deleted: true, ModuleID: m.ID, Name: m.Name, VersionsCascaded: versions}, err
		},
	})
}
