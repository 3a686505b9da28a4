package fleet

import (
	"context"
	"slices"

	"powernode/store"
)

// Drift is how a node's assignments differ from its template: what system_apply_template would make and update. It is
// empty where they don't differ. What stays by a person's word (disabled, changed by hand, hand-made) is no drift, and
// neither is what came from a template and is outside its closure now: an apply alone does not remove it.
type Drift struct {
	TemplateID store.TemplateID
	Missing    []string // names of modules of the closure that the node does not carry, sorted
	Changed    []string // names of modules whose priority or config the template has changed since, sorted
}

// Any says whether there is a difference.
func (d Drift) Any() bool { return len(d.Missing)+len(d.Changed) > 0 }

// TemplateDrifts compares an account's nodes with their templates, those that wanted picks. What the nodes of a template
// share is read once: it looks at a whole fleet. A node without a machine has no drift, because its modules come with the
// provisioning; neither has one of a disabled template, which is applied to nothing. Requirements that nothing meets are
// left out: an apply refuses them by name.
func (s *Service) TemplateDrifts(ctx context.Context, v *store.View, acct store.AccountID,
	wanted func(store.NodeID) bool) (map[store.NodeID]Drift, error) {
	nodes, err := store.Nodes(ctx, v, acct, "")
	if err != nil {
		return nil, err
	}
	live, err := store.NodesWithMachine(ctx, v, acct)
	if err != nil {
		return nil, err
	}
	out, templates, from := map[store.NodeID]Drift{}, map[store.TemplateID]basis{}, sources{}
	for _, n := range nodes {
		if !wanted(n.ID) {
			continue
		}
		out[n.ID] = Drift{TemplateID: n.TemplateID, Missing: []string{}, Changed: []string{}}
		if !live[n.ID] {
			continue
		}
		b, read := templates[n.TemplateID]
		if !read {
			if b, err = basisOf(ctx, v, acct, n.TemplateID, false); err != nil {
				return nil, err
			}
			templates[n.TemplateID] = b
		}
		if !b.template.Enabled {
			continue
		}
		p, err := b.plan(ctx, v, n, applyOptions{lenient: true}, from)
		if err != nil {
			return nil, err
		}
		out[n.ID] = p.drift()
	}
	return out, nil
}

func (p plan) drift() Drift {
	d := Drift{TemplateID: p.template.ID, Missing: []string{}, Changed: []string{}}
	for _, st := range p.steps {
		switch {
		case st.reason != "" || st.after == nil:
		case st.before == nil:
			d.Missing = append(d.Missing, st.module.Name)
		default:
			d.Changed = append(d.Changed, st.module.Name)
		}
	}
	slices.Sort(d.Missing)
	slices.Sort(d.Changed)
	return d
}
