package fleet

import (
	"context"
	"slices"

	"powernode/schema"
	"powernode/store"
)

// Composition is what a set of modules would come to on a node, with everything that stands in its way.
type Composition struct {
	Modules   []ComposedModule // in the order in which agents attach them
	Conflicts []string
	Edges     []Edge
	Warnings  []Warning
	Errors    []Warning
}

// ComposedModule is a module of a composition; auto: it was not asked for, another one brings it.
type ComposedModule struct {
	Module       store.Module
	AutoResolved bool
	BroughtBy    string // name of the module that was asked for; "" for that itself
}

// Edge is what one module says of another one: requires, recommends or conflicts.
type Edge struct{ From, To, Kind string }

// Compose computes the closure of modules as a template with them would have it. Nothing is refused but an unknown id:
// what an apply would refuse is told.
func (s *Service) Compose(ctx context.Context, v *store.View, acct store.AccountID, ids []store.ModuleID) (Composition, error) {
	c := Composition{Modules: []ComposedModule{}, Conflicts: []string{}, Edges: []Edge{}, Warnings: []Warning{}, Errors: []Warning{}}
	var joins []store.TemplateModule
	for _, id := range ids {
		m, err := ModuleByID(ctx, v, acct, id)
		if err != nil {
			return c, err
		}
		if slices.ContainsFunc(joins, func(j store.TemplateModule) bool { return j.ModuleID == id }) {
			continue
		}
		if !m.Enabled {
			c.Errors = append(c.Errors, Warning{"module_disabled", "module " + m.Name + " is disabled"})
		}
		joins = append(joins, newJoin(JoinInput{ModuleID: id}, m))
	}
	members, err := closureOf(ctx, v, acct, joins, false)
	if err != nil {
		return c, err
	}
	for _, m := range members {
		composed := ComposedModule{Module: m.module, AutoResolved: m.auto}
		if m.auto {
			composed.BroughtBy = m.join.ModuleName
		}
		c.Modules = append(c.Modules, composed)
	}
	if err := c.judge(ctx, v, acct, joins, members); err != nil {
		return c, err
	}
	c.Conflicts, err = allConflicts(ctx, v, acct, modulesOf(members))
	return c, err
}

// judge tells what an apply would refuse and what would silently be left out, and how the modules hang together.
func (c *Composition) judge(ctx context.Context, v *store.View, acct store.AccountID, joins []store.TemplateModule, members []member) error {
	_, err := closureOf(ctx, v, acct, joins, true)
	switch {
	case schema.CodeOf(err) == schema.PreconditionFailed:
		c.Errors = append(c.Errors, Warning{"closure", err.Error()})
	case err != nil:
		return err
	}
	current, err := currentByModule(ctx, v, acct)
	if err != nil {
		return err
	}
	for _, m := range members {
		name, d := m.module.Name, m.module.Dependencies.V
		c.edges(name, d.Requires, "requires", members)
		c.edges(name, d.Recommends, "recommends", members)
		c.edges(name, d.Conflicts, "conflicts", members)
		version, has := current[m.module.ID]
		c.Warnings = append(c.Warnings, unserved(name, version, has)...)
		for _, wanted := range d.Recommends {
			if !slices.ContainsFunc(members, func(o member) bool { return o.module.Name == wanted }) {
				c.Warnings = append(c.Warnings, Warning{"recommendation_missing", "module " + name + " recommends " + wanted + ", which is not there"})
			}
		}
	}
	return nil
}

func (c *Composition) edges(from string, names []string, kind string, members []member) {
	for _, name := range names {
		for _, m := range members {
			if m.module.Name != from && provides(m.module, name) {
				c.Edges = append(c.Edges, Edge{from, m.module.Name, kind})
			}
		}
	}
}

// unserved warns of a module that machines get nothing of, whoever assigns it.
func unserved(module string, current store.ModuleVersion, has bool) []Warning {
	switch {
	case !has:
		return []Warning{{"no_current_version", "module " + module + " has no current version: machines get nothing of it"}}
	case !current.Servable():
		return []Warning{{"not_released", "version " + current.Version + " of module " + module + " is not released"}}
	}
	return nil
}

// unservedNow is unserved for a module as it stands, on machines of a template.
func unservedNow(ctx context.Context, v *store.View, m store.Module, on store.TemplateID) ([]Warning, error) {
	if m.CurrentVersionID == "" {
		return unserved(m.Name, store.ModuleVersion{}, false), nil
	}
	current, err := store.ModuleVersionByID(ctx, v, m.AccountID, m.CurrentVersionID)
	if err != nil {
		return nil, err
	}
	t, err := TemplateByID(ctx, v, m.AccountID, on)
	if err != nil {
		return nil, err
	}
	none, err := uncarried(ctx, v, current, m, t)
	return append(unserved(m.Name, current, true), none...), err
}
