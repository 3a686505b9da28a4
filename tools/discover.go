package tools

import (
	"context"

	"powernode/platform/fleet"
	"powernode/store"
)

type foundObject struct {
	ID    string  `json:"id"`
	Name  string  `json:"name"`
	Score float64 `json:"score"`
	Why   string  `json:"why"`
}

func foundOf(f fleet.Found) foundObject { return foundObject(f) }

type discoverResult struct {
	Intent  string        `json:"intent"`
	Results []foundObject `json:"results"`
}

type discoverTemplatesArgs struct {
	Intent          string           `json:"intent"`
	TopK            int              `json:"top_k"`
	PlatformID      store.PlatformID `json:"platform_id"`
	IncludeDisabled bool             `json:"include_disabled"`
}

func discoverTemplates() *Definition {
	return define("system_discover_templates", handler[discoverTemplatesArgs, discoverResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a discoverTemplatesArgs) (discoverResult, error) {
			found, err := p.Fleet.DiscoverTemplates(ctx, v, c.AccountID, fleet.TemplateSearch{Intent: a.Intent, Top: a.TopK,
				PlatformID: a.PlatformID, IncludeDisabled: a.IncludeDisabled})
			return discoverResult{a.Intent, mapped(found, foundOf)}, err
		},
	})
}

type discoverModulesArgs struct {
	Intent          string `json:"intent"`
	TopK            int    `json:"top_k"`
	Variety         string `json:"variety"`
	IncludeDisabled bool   `json:"include_disabled"`
}

func discoverModules() *Definition {
	return define("system_discover_modules", handler[discoverModulesArgs, discoverResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a discoverModulesArgs) (discoverResult, error) {
			found, err := p.Fleet.DiscoverModules(ctx, v, c.AccountID, fleet.ModuleSearch{Intent: a.Intent, Top: a.TopK,
				Variety: a.Variety, IncludeDisabled: a.IncludeDisabled})
			return discoverResult{a.Intent, mapped(found, foundOf)}, err
		},
	})
}
