package tools

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"powernode/platform/fleet"
	"powernode/store"
)

func moduleVerbs() []*Definition {
	return []*Definition{listModules(), getModule(), listModuleVersions(), createModuleVersion()}
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
			row, err := moduleRowOf(ctx, v, m)
			if err != nil {
				return r, err
			}
			assigned, err := store.AssignmentsByModule(ctx, v, c.AccountID, m.ID)
			if err != nil {
				return r, err
			}
			joins, err := store.TemplateModulesByModule(ctx, v, c.AccountID, m.ID)
			r.Module = moduleFull{moduleRow: row, Description: m.Description, ConfigSchema: m.ConfigSchema.V, Dependencies: m.Dependencies.V,
				AssignmentCount: len(assigned), TemplateCount: len(joins)}
			return r, err
		},
	})
}
