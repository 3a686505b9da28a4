package fleet

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"powernode/platform/cluster"
	"powernode/schema"
	"powernode/store"
)

// member is a module of a template's closure: what the template says of it, and the join that brought it.
type member struct {
	module   store.Module
	join     store.TemplateModule // the module's own, or the one whose module asked for it
	auto     bool                 // required or recommended, not joined itself
	priority int64
	config   store.Object
}

// closure finds what a template's enabled joins come to: the modules themselves, what they require, transitively, and
// what they recommend.
type closure struct {
	byName  map[string]store.Module
	byID    map[store.ModuleID]store.Module
	members []member
	index   map[store.ModuleID]int
}

// closureOf computes the closure of a set of joins. strict refuses a requirement that nothing or several things meet.
func closureOf(ctx context.Context, v *store.View, acct store.AccountID, joins []store.TemplateModule, strict bool) ([]member, error) {
	all, err := declaredModules(ctx, v, acct)
	if err != nil {
		return nil, err
	}
	c := closure{byName: map[string]store.Module{}, byID: map[store.ModuleID]store.Module{}, index: map[store.ModuleID]int{}}
	for _, m := range all {
		c.byName[m.Name], c.byID[m.ID] = m, m
	}
	for _, j := range joins {
		if m, known := c.byID[j.ModuleID]; j.Enabled && known {
			c.add(member{module: m, join: j, priority: j.Priority, config: object(j.Config.V)})
		}
	}
	for i := 0; i < len(c.members); i++ { // it grows while it is walked
		if err := c.follow(c.members[i], strict); err != nil {
			return nil, err
		}
	}
	if cycle := c.cycle(); strict && cycle != "" {
		return nil, schema.Errorf(schema.PreconditionFailed, "modules require each other in a circle: %s", cycle)
	}
	return inAttachOrder(c.members, func(m member) (store.Module, int64) { return m.module, m.priority }), nil
}

// inAttachOrder puts what has modules in the order in which agents attach them: what others require first, then higher
// priority, then name. of answers a thing's module with the priority that it has there.
func inAttachOrder[T any](in []T, of func(T) (store.Module, int64)) []T {
	sorted := slices.Clone(in)
	slices.SortStableFunc(sorted, func(a, b T) int {
		first, higher := of(a)
		second, lower := of(b)
		return cmp.Or(cmp.Compare(lower, higher), strings.Compare(first.Name, second.Name))
	})
	out := make([]T, 0, len(sorted))
	placed := map[store.ModuleID]bool{}
	var place func(one T)
	place = func(one T) {
		m, _ := of(one)
		if placed[m.ID] {
			return
		}
		placed[m.ID] = true // before what it requires, so that a circle ends
		for _, needed := range m.Dependencies.V.Requires {
			for _, other := range sorted {
				if candidate, _ := of(other); provides(candidate, needed) {
					place(other)
				}
			}
		}
		out = append(out, one)
	}
	for _, one := range sorted {
		place(one)
	}
	return out
}

func (c *closure) add(m member) {
	if _, there := c.index[m.module.ID]; there {
		return
	}
	c.index[m.module.ID] = len(c.members)
	c.members = append(c.members, m)
}

func (c *closure) follow(m member, strict bool) error {
	for _, needed := range m.module.Dependencies.V.Requires {
		found, err := c.meets(m.module, needed)
		if err != nil {
			if strict {
				return err
			}
			continue
		}
		c.add(member{module: found, join: m.join, auto: true, priority: found.Priority, config: object(found.Config.V)})
	}
	for _, found := range c.recommended(m) {
		c.add(member{module: found, join: m.join, auto: true, priority: found.Priority, config: object(found.Config.V)})
	}
	return nil
}

// meets finds the module that a requirement means: one in the closure already, else the one that provides it.
func (c *closure) meets(of store.Module, needed string) (store.Module, error) {
	var providers []store.Module
	for _, m := range c.members {
		if provides(m.module, needed) {
			return m.module, nil
		}
	}
	for _, m := range c.byID {
		if m.Enabled && provides(m, needed) {
			providers = append(providers, m)
		}
	}
	sort.Slice(providers, func(i, j int) bool { return providers[i].Name < providers[j].Name })
	switch len(providers) {
	case 1:
		return providers[0], nil
	case 0:
		return store.Module{}, schema.Errorf(schema.PreconditionFailed, "module %s requires %s, which no module provides", of.Name, needed)
	}
	names := make([]string, len(providers))
	for i := range providers {
		names[i] = providers[i].Name
	}
	return store.Module{}, schema.Errorf(schema.PreconditionFailed, "module %s requires %s, which several modules provide: %s", of.Name, needed,
		strings.Join(names, ", ")).WithDetail("candidates", names)
}

func provides(m store.Module, capability string) bool {
	return m.Name == capability || slices.Contains(m.Dependencies.V.Provides, capability)
}

// recommended are a module's recommendations as the join's override leaves them. What is missing is no error.
func (c *closure) recommended(m member) []store.Module {
	var out []store.Module
	override := m.join.Override.V
	if m.auto {
		override = nil // a join speaks of its own module
	}
	if override != nil && override.Replace != nil {
		return c.known(override.Replace)
	}
	for _, name := range m.module.Dependencies.V.Recommends {
		found, ok := c.byName[name]
		if ok && found.Enabled && (override == nil || !slices.Contains(override.Excluded, found.ID)) {
			out = append(out, found)
		}
	}
	if override != nil {
		out = append(out, c.known(override.Included)...)
	}
	return out
}

func (c *closure) known(ids []store.ModuleID) []store.Module {
	var out []store.Module
	for _, id := range ids {
		if m, ok := c.byID[id]; ok && m.Enabled {
			out = append(out, m)
		}
	}
	return out
}

// cycle names the modules of a circle of requirements, or "".
func (c *closure) cycle() string {
	const visiting, done = 1, 2
	state := map[store.ModuleID]int{}
	var path []string
	var visit func(m store.Module) string
	visit = func(m store.Module) string {
		switch state[m.ID] {
		case visiting:
			return strings.Join(append(path[slices.Index(path, m.Name):], m.Name), ", ")
		case done:
			return ""
		}
		state[m.ID] = visiting
		path = append(path, m.Name)
		for _, needed := range m.Dependencies.V.Requires {
			found, err := c.meets(m, needed)
			if err != nil {
				continue
			}
			if found.ID != m.ID {
				if cycle := visit(found); cycle != "" {
					return cycle
				}
			}
		}
		path = path[:len(path)-1]
		state[m.ID] = done
		return ""
	}
	for _, m := range c.members {
		if cycle := visit(m.module); cycle != "" {
			return cycle
		}
	}
	return ""
}

// conflictsIn lists what can't be together in a set of modules, sorted.
func conflictsIn(modules []store.Module) []string {
	found := map[string]bool{}
	for i, a := range modules {
		for _, b := range modules[i+1:] {
			for _, text := range conflictsOf(a, b) {
				found[text] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// conflictsOf says why two modules can't be together.
func conflictsOf(a, b store.Module) []string {
	k3s := [2]string{min(a.Name, b.Name), max(a.Name, b.Name)} == [2]string{cluster.ModuleAgent, cluster.ModuleServer}
	if k3s || excludes(a, b) || excludes(b, a) {
		return []string{pair(a, b)}
	}
	return nil
}

func excludes(a, b store.Module) bool {
	return slices.ContainsFunc(a.Dependencies.V.Conflicts, func(name string) bool { return provides(b, name) })
}

func pair(a, b store.Module) string {
	return fmt.Sprintf("%s and %s", min(a.Name, b.Name), max(a.Name, b.Name))
}

// allConflicts are the conflicts of a set of modules, by what they and their versions declare and by what their versions
// would both place.
func allConflicts(ctx context.Context, v *store.View, acct store.AccountID, modules []store.Module) ([]string, error) {
	current, err := currentByModule(ctx, v, acct)
	if err != nil {
		return nil, err
	}
	full := make([]store.Module, len(modules))
	for i, m := range modules {
		if full[i], err = declared(m, current[m.ID]); err != nil {
			return nil, err
		}
	}
	same, err := clashes(full, current)
	return append(append([]string{}, conflictsIn(full)...), same...), err
}

// refuseNewConflicts refuses conflicts that a change would bring; those that were there before don't count.
func refuseNewConflicts(ctx context.Context, v *store.View, acct store.AccountID, before, after []store.Module) error {
	known, err := allConflicts(ctx, v, acct, before)
	if err != nil {
		return err
	}
	all, err := allConflicts(ctx, v, acct, after)
	if err != nil {
		return err
	}
	fresh := slices.DeleteFunc(all, func(c string) bool { return slices.Contains(known, c) })
	if len(fresh) == 0 {
		return nil
	}
	return schema.Errorf(schema.PreconditionFailed, "Module assignment refused: it would introduce %d composition conflict(s)", len(fresh)).
		WithDetail("conflicts", fresh)
}

// checkComposition refuses a join that would make a template whose modules can't be together.
func (s *Service) checkComposition(ctx context.Context, v *store.View, acct store.AccountID, j store.TemplateModule) error {
	if !j.Enabled {
		return nil
	}
	joins, err := store.TemplateModules(ctx, v, acct, j.TemplateID)
	if err != nil {
		return err
	}
	before, err := closureOf(ctx, v, acct, joins, false)
	if err != nil {
		return err
	}
	joins = slices.DeleteFunc(joins, func(other store.TemplateModule) bool { return other.ModuleID == j.ModuleID })
	after, err := closureOf(ctx, v, acct, append(joins, j), false)
	if err != nil {
		return err
	}
	return refuseNewConflicts(ctx, v, acct, modulesOf(before), modulesOf(after))
}

func modulesOf(members []member) []store.Module {
	out := make([]store.Module, len(members))
	for i := range members {
		out[i] = members[i].module
	}
	return out
}
