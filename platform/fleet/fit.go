package fleet

import (
	"context"
	"slices"
	"strings"

	"powernode/platform/provider"
	"powernode/schema"
	"powernode/store"
)

// architectureFor is the architecture of the machines that a template is for.
func architectureFor(ctx context.Context, v *store.View, t store.Template) (string, error) {
	a, err := store.ArchitectureByID(ctx, v, t.ArchitectureID)
	return a.Name, err
}

// checkMade refuses a provider whose machines are of another architecture than the node's template is for.
func checkMade(ctx context.Context, v *store.View, n store.Node, p store.Provider, adapter provider.Provider) error {
	made := adapter.Architectures()
	if len(made) == 0 {
		return nil // the machines are there already: each says what it is when it enrols
	}
	t, err := TemplateByID(ctx, v, n.AccountID, n.TemplateID)
	if err != nil {
		return err
	}
	wanted, err := architectureFor(ctx, v, t)
	if err != nil || slices.Contains(made, wanted) {
		return err
	}
	return schema.Errorf(schema.PreconditionFailed, "provider %s makes %s machines, and template '%s' is for %s", p.Name, strings.Join(made, ", "), t.Name, wanted).
		WithDetail("architecture", wanted).WithDetail("candidates", made).
		WithHint("system_update_node", "Gives the node a template for a platform of that architecture.")
}

// misfits are a node's live machines of another architecture than a template is for.
func misfits(ctx context.Context, v *store.View, n store.Node, t store.Template) (wanted string, other []store.Instance, err error) {
	if wanted, err = architectureFor(ctx, v, t); err != nil {
		return "", nil, err
	}
	live, err := LiveInstances(ctx, v, n.AccountID, n.ID)
	return wanted, slices.DeleteFunc(live, func(i store.Instance) bool { return i.Architecture == wanted }), err
}

// refuseMisfits refuses to make a node's machines what a template for another architecture says.
func refuseMisfits(ctx context.Context, v *store.View, n store.Node, t store.Template) error {
	wanted, other, err := misfits(ctx, v, n, t)
	if err != nil || len(other) == 0 {
		return err
	}
	i := other[0]
	return schema.Errorf(schema.PreconditionFailed, "instance %s is %s, and template '%s' is for %s", i.Name, i.Architecture, t.Name, wanted).
		WithDetail("instance_id", i.ID).WithDetail("architecture", i.Architecture).
		WithHint("system_update_node", "Gives the node a template for its machines; system_terminate_instance ends those that don't fit.")
}

// Misfits warns of a node's machines that its template is not for: an apply would be refused.
func Misfits(ctx context.Context, v *store.View, n store.Node) ([]Warning, error) {
	t, err := TemplateByID(ctx, v, n.AccountID, n.TemplateID)
	if err != nil {
		return nil, err
	}
	wanted, other, err := misfits(ctx, v, n, t)
	var out []Warning
	for _, i := range other {
		out = append(out, Warning{"architecture_differs", "instance " + i.Name + " is " + i.Architecture + ", and template '" + t.Name + "' is for " +
			wanted + ": it is applied once no such instance is left"})
	}
	return out, err
}

// checkPlatform refuses a module that is for another platform than a template.
func checkPlatform(ctx context.Context, v *store.View, m store.Module, t store.Template) error {
	if m.PlatformID == "" || m.PlatformID == t.PlatformID {
		return nil
	}
	wanted, err := store.PlatformByID(ctx, v, m.AccountID, m.PlatformID)
	if err != nil {
		return err
	}
	has, err := store.PlatformByID(ctx, v, t.AccountID, t.PlatformID)
	if err != nil {
		return err
	}
	return schema.Errorf(schema.PreconditionFailed, "module '%s' is for platform %s, and template '%s' for %s", m.Name, wanted.Name, t.Name, has.Name).
		WithDetail("node_platform_id", m.PlatformID)
}

// uncarried warns of a current version that has artefacts, and none for the machines of a template.
func uncarried(ctx context.Context, v *store.View, current store.ModuleVersion, m store.Module, t store.Template) ([]Warning, error) {
	if len(current.Artifacts.V) == 0 {
		return nil, nil
	}
	arch, err := architectureFor(ctx, v, t)
	if _, has := current.Artifact(arch); has || err != nil {
		return nil, err
	}
	return []Warning{{"no_artifact", "version " + current.Version + " of module " + m.Name + " has no artefact for " + arch + ": machines of template '" +
		t.Name + "' get none"}}, nil
}
