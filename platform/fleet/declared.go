package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"powernode/schema"
	"powernode/store"
)

// declaration is what the rules of composition read of a version's manifest.
type declaration struct {
	Dependencies *store.Dependencies `json:"dependencies"`
	ConfigSchema json.RawMessage     `json:"config_schema"`
	Services     []struct {
		Name string `json:"name"`
	} `json:"services"`
	Files []struct {
		Path string `json:"path"`
	} `json:"files"`
}

func declarationOf(v store.ModuleVersion) (d declaration, err error) {
	if len(v.Manifest.V) == 0 {
		return d, nil
	}
	if err := json.Unmarshal(v.Manifest.V, &d); err != nil {
		return d, fmt.Errorf("read the manifest of version %s: %w", v.ID, err)
	}
	return d, nil
}

// declared is a module as its version has it: the dependencies of both, and the version's config_schema where it has one.
func declared(m store.Module, v store.ModuleVersion) (store.Module, error) {
	d, err := declarationOf(v)
	if err != nil {
		return m, err
	}
	if extra := d.Dependencies; extra != nil {
		own := m.Dependencies.V
		m.Dependencies.V = store.Dependencies{Requires: union(own.Requires, extra.Requires), Recommends: union(own.Recommends, extra.Recommends),
			Conflicts: union(own.Conflicts, extra.Conflicts), Provides: union(own.Provides, extra.Provides)}
	}
	if said := string(d.ConfigSchema); said != "" && said != "null" && said != "{}" {
		m.ConfigSchema.V = d.ConfigSchema
	}
	return m, nil
}

// union is two lists of names without doubles.
func union(a, b []string) []string {
	out := slices.Clone(a)
	for _, name := range b {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// declaredModule is a module as its current version has it.
func declaredModule(ctx context.Context, v *store.View, m store.Module) (store.Module, error) {
	version, err := store.CurrentVersion(ctx, v, m)
	if errors.Is(err, store.ErrNoRow) {
		return m, nil
	}
	if err != nil {
		return m, err
	}
	return declared(m, version)
}

// declaredModules are an account's modules as their current versions have them, by name.
func declaredModules(ctx context.Context, v *store.View, acct store.AccountID) ([]store.Module, error) {
	all, err := store.Modules(ctx, v, acct)
	if err != nil {
		return nil, err
	}
	current, err := currentByModule(ctx, v, acct)
	if err != nil {
		return nil, err
	}
	for i, m := range all {
		if all[i], err = declared(m, current[m.ID]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func currentByModule(ctx context.Context, v *store.View, acct store.AccountID) (map[store.ModuleID]store.ModuleVersion, error) {
	versions, err := store.CurrentVersions(ctx, v, acct)
	if err != nil {
		return nil, err
	}
	current := make(map[store.ModuleID]store.ModuleVersion, len(versions))
	for _, version := range versions {
		current[version.ModuleID] = version
	}
	return current, nil
}

// clashes lists what two of the modules would both put on a machine: a file's path, a service's name.
func clashes(modules []store.Module, current map[store.ModuleID]store.ModuleVersion) ([]string, error) {
	owners := map[string][]store.Module{}
	for _, m := range modules {
		d, err := declarationOf(current[m.ID])
		if err != nil {
			return nil, err
		}
		for _, f := range d.Files {
			owners["file "+f.Path] = append(owners["file "+f.Path], m)
		}
		for _, sv := range d.Services {
			owners["service "+sv.Name] = append(owners["service "+sv.Name], m)
		}
	}
	var out []string
	for what, of := range owners {
		for i, a := range of {
			for _, b := range of[i+1:] {
				if a.ID != b.ID {
					out = append(out, pair(a, b)+" (both have "+schema.Printable(what)+")")
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}
