package tools

import (
	"context"

	"powernode/platform/fleet"
	"powernode/store"
)

type composeArgs struct {
	ModuleIDs []store.ModuleID `json:"module_ids"`
}

type composedModule struct {
	ID           store.ModuleID `json:"id"`
	Name         string         `json:"name"`
	Variety      string         `json:"variety"`
	Priority     int64          `json:"priority"`
	AutoResolved bool           `json:"auto_resolved"`
	BroughtBy    *string        `json:"brought_by"`
}

type edge struct {
	From string `json:"from"`
	To   string `json:"to"`
	Kind string `json:"kind"`
}

type dependencyGraph struct {
	Order []string `json:"order"`
	Edges []edge   `json:"edges"`
}

type composeResult struct {
	Modules         []composedModule `json:"modules"`
	Conflicts       []string         `json:"conflicts"`
	DependencyGraph dependencyGraph  `json:"dependency_graph"`
	Warnings        []Warning        `json:"warnings"`
	Errors          []Warning        `json:"errors"`
}

func composePreviewTemplate() *Definition {
	return define("system_compose_preview_template", handler[composeArgs, composeResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a composeArgs) (composeResult, error) {
			composed, err := p.Fleet.Compose(ctx, v, c.AccountID, a.ModuleIDs)
			tell := func(w fleet.Warning) Warning { return Warning{w.Code, w.Text} }
			r := composeResult{Conflicts: composed.Conflicts, Warnings: mapped(composed.Warnings, tell), Errors: mapped(composed.Errors, tell)}
			r.Modules = mapped(composed.Modules, func(m fleet.ComposedModule) composedModule {
				return composedModule{ID: m.Module.ID, Name: m.Module.Name, Variety: m.Module.Variety, Priority: m.Module.Priority,
					AutoResolved: m.AutoResolved, BroughtBy: orNull(m.BroughtBy)}
			})
			r.DependencyGraph.Order = mapped(composed.Modules, func(m fleet.ComposedModule) string { return m.Module.Name })
			r.DependencyGraph.Edges = mapped(composed.Edges, func(e fleet.Edge) edge { return edge(e) })
			return r, err
		},
	})
}
