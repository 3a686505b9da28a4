package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"powernode/schema"
	"powernode/store"
)

// checkDependencies refuses names that say nothing, a module that speaks of itself, and ids: modules and capabilities go by name.
func checkDependencies(ctx context.Context, v *store.View, acct store.AccountID, own string, d *store.Dependencies) error {
	if d == nil {
		return nil
	}
	for _, list := range []struct {
		key   string
		names []string
	}{{"requires", d.Requires}, {"recommends", d.Recommends}, {"conflicts", d.Conflicts}, {"provides", d.Provides}} {
		for i, name := range list.names {
			pointer, shown := fmt.Sprintf("/dependencies/%s/%d", list.key, i), schema.Printable(name)
			switch {
			case strings.TrimSpace(name) != name || name == "" || strings.ContainsFunc(name, unprintable):
				return schema.InvalidArgument(pointer, shown, "dependencies.%s must hold names (got %q)", list.key, shown)
			case list.key != "provides" && name == own:
				return schema.InvalidArgument(pointer, shown, "dependencies.%s names the module itself", list.key)
			case schema.IsID(name):
				return namedByID(ctx, v, acct, list.key, pointer, name)
			}
		}
	}
	return nil
}

// namedByID refuses an id where a name is wanted, and tells the name of the module whose id it is.
func namedByID(ctx context.Context, v *store.View, acct store.AccountID, key, pointer, id string) error {
	candidates := []string{}
	m, err := store.ModuleByID(ctx, v, acct, store.ModuleID(id))
	switch {
	case err == nil:
		candidates = append(candidates, m.Name)
	case !noRow(err):
		return err
	}
	refusal := schema.InvalidArgument(pointer, id, "dependencies.%s must hold names, not ids (got %q)", key, id)
	return refusal.WithDetail("candidates", candidates).
		WithDetail("violations", []schema.Violation{{Pointer: pointer, Problem: "value", Value: id, Candidates: candidates}}).
		WithHint("system_list_modules", "Gives the name of an id.")
}

// Unmet warns of what a version's manifest says of modules that are not there by now.
func Unmet(ctx context.Context, v *store.View, m store.Module, version store.ModuleVersion) ([]Warning, error) {
	d, err := declarationOf(version)
	if err != nil {
		return nil, err
	}
	m.Dependencies.V = whole(d.Dependencies)
	return unmet(ctx, v, m)
}

// unmet warns of what a module says of others that are not there by now: they may be made later, or the name is a slip. A
// requirement that stays so has an apply refused; a recommendation or a conflict does nothing.
func unmet(ctx context.Context, v *store.View, m store.Module) ([]Warning, error) {
	all, err := declaredModules(ctx, v, m.AccountID)
	if err != nil {
		return nil, err
	}
	var out []Warning
	warn := func(names []string, code, format string, meets func(other store.Module, name string) bool) {
		for _, name := range names {
			if !slices.ContainsFunc(all, func(other store.Module) bool { return meets(other, name) }) {
				out = append(out, Warning{code, fmt.Sprintf(format, m.Name, name)})
			}
		}
	}
	d := m.Dependencies.V
	warn(d.Requires, "requirement_unmet", "module %s requires %s, which no module provides by now",
		func(other store.Module, name string) bool { return other.Enabled && provides(other, name) })
	warn(d.Recommends, "recommendation_missing", "module %s recommends %s, which is no module's name by now",
		func(other store.Module, name string) bool { return other.Name == name })
	warn(d.Conflicts, "conflict_unknown", "module %s conflicts with %s, which no other module provides by now",
		func(other store.Module, name string) bool { return other.ID != m.ID && provides(other, name) })
	return out, nil
}
