package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"powernode/platform/signal"
	"powernode/schema"
	"powernode/store"
)

// Reasons why an apply leaves an assignment as it is.
const (
	reasonUnchanged = "unchanged"
	reasonByHand    = "changed_by_hand"
	reasonHandMade  = "hand_made"
	reasonDisabled  = "disabled"
)

// Applied is what an apply did, or would do.
type Applied struct {
	NodeID     store.NodeID
	TemplateID store.TemplateID
	Created    []AppliedItem
	Updated    []AppliedItem
	Skipped    []AppliedItem
	Purged     []AppliedItem
	Warnings   []Warning
	Woken      []store.InstanceID
}

// AppliedItem is one assignment of it. Changes has a key for each field that changed.
type AppliedItem struct {
	AssignmentID store.AssignmentID // "" where it would be made
	ModuleID     store.ModuleID
	ModuleName   string
	Reason       string // "" where it changed
	Changes      map[string]Changed
}

// Changed is a field before and after.
type Changed struct {
	From any `json:"from"`
	To   any `json:"to"`
}

// step is what an apply does with one module.
type step struct {
	module store.Module
	before *store.Assignment // nil: there is none
	after  *store.Assignment // nil: it is taken away
	reason string            // "": it changes what machines carry
	write  bool              // its row changes: also when only the memory of the template does
	config bool              // its config is new, and is judged
}

// plan is an apply before it is judged and written.
type plan struct {
	node     store.Node
	template store.Template
	steps    []step
	warnings []Warning
	from     sources
}

// changes says whether the apply would create, update or purge.
func (p plan) changes() bool {
	for _, st := range p.steps {
		if st.reason == "" {
			return true
		}
	}
	return false
}

// applyOptions say how a plan is made: purge takes away what is outside the closure, lenient leaves out requirements that
// nothing meets instead of refusing.
type applyOptions struct{ purge, lenient bool }

// basis is what a template comes to, for any of its nodes.
type basis struct {
	template store.Template
	members  []member
}

// basisOf reads a template with its closure; strict as in closureOf.
func basisOf(ctx context.Context, v *store.View, acct store.AccountID, id store.TemplateID, strict bool) (b basis, err error) {
	if b.template, err = TemplateByID(ctx, v, acct, id); err != nil {
		return b, err
	}
	joins, err := store.TemplateModules(ctx, v, acct, id)
	if err != nil {
		return b, err
	}
	b.members, err = closureOf(ctx, v, acct, joins, strict)
	return b, err
}

// planApply compares three ways: what was applied last, what the template says, and what the assignment says.
func (s *Service) planApply(ctx context.Context, v *store.View, n store.Node, o applyOptions) (plan, error) {
	b, err := basisOf(ctx, v, n.AccountID, n.TemplateID, !o.lenient)
	if err != nil {
		return plan{node: n, template: b.template}, err
	}
	return b.plan(ctx, v, n, o, sources{})
}

// plan is planApply for a node of the template.
func (b basis) plan(ctx context.Context, v *store.View, n store.Node, o applyOptions, from sources) (plan, error) {
	p := plan{node: n, template: b.template, from: from}
	assigned, err := store.AssignmentsByNode(ctx, v, n.AccountID, n.ID)
	if err != nil {
		return p, err
	}
	byModule := map[store.ModuleID]store.Assignment{}
	for _, a := range assigned {
		byModule[a.ModuleID] = a
	}
	inClosure := map[store.ModuleID]bool{}
	for _, m := range b.members {
		inClosure[m.module.ID] = true
		if err := p.planMember(ctx, v, m, byModule, requirersOf(m.module, b.members)); err != nil {
			return p, err
		}
	}
	for _, a := range slices.Backward(assigned) { // agents detach in reverse
		if !inClosure[a.ModuleID] {
			if err := p.planStale(ctx, v, a, o.purge); err != nil {
				return p, err
			}
		}
	}
	return p, nil
}

// requirersOf names the members that a module meets a requirement of.
func requirersOf(m store.Module, members []member) []string {
	var out []string
	for _, other := range members {
		needs := slices.ContainsFunc(other.module.Dependencies.V.Requires, func(name string) bool { return provides(m, name) })
		if needs && other.module.ID != m.ID {
			out = append(out, other.module.Name)
		}
	}
	return out
}

func (p *plan) warn(code, format string, args ...any) {
	p.warnings = append(p.warnings, Warning{code, fmt.Sprintf(format, args...)})
}

// planMember decides for a module of the closure.
func (p *plan) planMember(ctx context.Context, v *store.View, m member, byModule map[store.ModuleID]store.Assignment, requirers []string) error {
	a, there := byModule[m.module.ID]
	switch {
	case !there && !m.module.Enabled:
		p.warn("module_disabled", "module %s is disabled: node %s does not get it", m.module.Name, p.node.Name)
		return nil
	case !there:
		fresh := store.Assignment{AccountID: p.node.AccountID, NodeID: p.node.ID, ModuleID: m.module.ID, ModuleName: m.module.Name, Enabled: true}
		p.take(&fresh, m)
		fresh.Priority, fresh.Config.V = m.priority, m.config
		fresh.AppliedPriority, fresh.AppliedConfig.V = &m.priority, &m.config
		p.steps = append(p.steps, step{module: m.module, after: &fresh, write: true, config: true})
		return nil
	}
	before := a
	skip := func(reason string) {
		p.steps = append(p.steps, step{module: m.module, before: &before, after: &before, reason: reason})
	}
	follows, err := p.from.follows(ctx, v, a)
	if err != nil {
		return err
	}
	switch {
	case !a.Enabled:
		p.warn("assignment_disabled", "module %s stays disabled on node %s: disabled by %s", a.ModuleName, p.node.Name, orUnknown(a.DisabledBy))
		if len(requirers) > 0 {
			p.warn("required_module_disabled", "module %s is required by %s and is disabled on node %s", a.ModuleName, strings.Join(requirers, ", "), p.node.Name)
		}
		skip(reasonDisabled)
	case !follows:
		skip(reasonHandMade)
	default:
		p.planFollower(m, before)
	}
	return nil
}

func orUnknown(by string) string {
	if by == "" {
		return "nobody known"
	}
	return by
}

// take gives an assignment its source.
func (p *plan) take(a *store.Assignment, m member) {
	a.SourceTemplateID, a.SourceTemplateModuleID, a.AutoResolved = p.template.ID, m.join.ID, m.auto
}

// planFollower lets an assignment take what the template changed; what a person changed on it stays.
func (p *plan) planFollower(m member, before store.Assignment) {
	after := before
	p.take(&after, m)
	byHand := false
	st := step{module: m.module, before: &before, reason: reasonUnchanged}

	applied := int64(-1) // never equal: what was applied is not known
	if before.AppliedPriority != nil {
		applied = *before.AppliedPriority
	}
	switch {
	case before.Priority == m.priority:
		after.AppliedPriority = &m.priority
	case before.Priority == applied:
		after.Priority, after.AppliedPriority, st.reason = m.priority, &m.priority, ""
	default:
		byHand = true
		p.warn(reasonByHand, "module %s keeps priority %d, which was set by hand; the template says %d", m.module.Name, before.Priority, m.priority)
	}
	switch {
	case same(before.Config.V, m.config):
		after.AppliedConfig.V = &m.config
	case before.AppliedConfig.V != nil && same(before.Config.V, *before.AppliedConfig.V):
		after.Config.V, after.AppliedConfig.V, st.reason, st.config = m.config, &m.config, "", true
	default:
		byHand = true
		p.warn(reasonByHand, "module %s keeps config %s, which was set by hand; the template says %s", m.module.Name,
			schema.Printable(string(mustJSON(before.Config.V))), schema.Printable(string(mustJSON(m.config))))
	}
	if st.reason != "" && byHand {
		st.reason = reasonByHand
	}
	st.after, st.write = &after, remembers(before, after)
	p.steps = append(p.steps, st)
}

// same compares two configs as JSON.
func same(a, b store.Object) bool { return string(mustJSON(object(a))) == string(mustJSON(object(b))) }

// remembers says whether an assignment's row differs.
func remembers(a, b store.Assignment) bool {
	return a.Priority != b.Priority || !same(a.Config.V, b.Config.V) || a.SourceTemplateID != b.SourceTemplateID ||
		a.SourceTemplateModuleID != b.SourceTemplateModuleID || a.AutoResolved != b.AutoResolved ||
		string(mustJSON(a.AppliedPriority)) != string(mustJSON(b.AppliedPriority)) ||
		string(mustJSON(a.AppliedConfig.V)) != string(mustJSON(b.AppliedConfig.V))
}

// planStale decides for an assignment that is outside the closure.
func (p *plan) planStale(ctx context.Context, v *store.View, a store.Assignment, purge bool) error {
	follows, err := p.from.follows(ctx, v, a)
	if err != nil || !follows {
		return err
	}
	if !purge {
		p.warn("stale_assignment", "module %s came from a template that does not have it any more; purge_stale removes it", a.ModuleName)
		return nil
	}
	m, err := ModuleByID(ctx, v, a.AccountID, a.ModuleID)
	if err != nil {
		return err
	}
	p.steps = append(p.steps, step{module: m, before: &a, write: true})
	return nil
}

// judge holds a plan to the rules of targets, members and composition, and gives configs their targets as ids.
func (s *Service) judge(ctx context.Context, v *store.View, p *plan) error {
	if !p.template.Enabled {
		return schema.Errorf(schema.PreconditionFailed, "template '%s' is disabled", p.template.Name)
	}
	if err := refuseMisfits(ctx, v, p.node, p.template); err != nil {
		return err
	}
	before, err := enabledModules(ctx, v, p.node.AccountID, p.node.ID)
	if err != nil {
		return err
	}
	left := map[store.ModuleID]store.Module{}
	for _, m := range before {
		left[m.ID] = m
	}
	for i := range p.steps {
		st := &p.steps[i]
		if st.after == nil {
			if err := s.Cluster.DisableForbidden(ctx, v, p.node.AccountID, p.node.ID, st.module); err != nil {
				return err
			}
			delete(left, st.module.ID)
			continue
		}
		if st.before == nil {
			if err := checkPlatform(ctx, v, st.module, p.template); err != nil {
				return err
			}
		}
		if st.after.Enabled {
			left[st.module.ID] = st.module
		}
		if !st.config {
			continue
		}
		config, warnings, err := s.checkConfig(ctx, v, p.node.AccountID, p.node.ID, st.module, st.after.Config.V)
		if err != nil {
			return err
		}
		st.after.Config.V, st.after.AppliedConfig.V = config, &config
		p.warnings = append(p.warnings, warnings...)
	}
	after := make([]store.Module, 0, len(left))
	for _, m := range left {
		after = append(after, m)
	}
	return refuseNewConflicts(ctx, v, p.node.AccountID, before, after)
}

// AssignmentsStale says whether an apply would change something: create, update, or purge with purge_stale.
func (s *Service) AssignmentsStale(ctx context.Context, v *store.View, n store.Node) (bool, error) {
	p, err := s.planApply(ctx, v, n, applyOptions{purge: true})
	var refusal *schema.Error
	if errors.As(err, &refusal) {
		return true, nil // the template says something that the node doesn't have, and can't get
	}
	return p.changes(), err
}

// PlanApply answers what Apply would do, and refuses what it would refuse. Nothing is written.
func (s *Service) PlanApply(ctx context.Context, v *store.View, acct store.AccountID, id store.NodeID, purge bool) (Applied, error) {
	n, err := NodeByID(ctx, v, acct, id)
	if err != nil {
		return Applied{}, err
	}
	p, err := s.planApply(ctx, v, n, applyOptions{purge: purge})
	if err != nil {
		return Applied{}, err
	}
	if err := s.judge(ctx, v, &p); err != nil {
		return Applied{}, err
	}
	return p.applied(), nil
}

// Apply makes a node's assignments what its template says, now, and tells the agents of its instances.
func (s *Service) Apply(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.NodeID, purge bool) (Applied, error) {
	out, wrote, err := s.apply(ctx, tx, acct, id, purge)
	if err != nil || !wrote {
		return out, err
	}
	return out, signal.Emit(ctx, tx, acct, signal.Event{Kind: "system.template_applied", Subject: signal.Subject{NodeID: id},
		Payload: store.Object{"created": len(out.Created), "updated": len(out.Updated), "skipped": len(out.Skipped), "purged": len(out.Purged)}})
}

// apply writes what a plan comes to, and says whether that was anything.
func (s *Service) apply(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.NodeID, purge bool) (out Applied, wrote bool, err error) {
	n, err := NodeByID(ctx, &tx.View, acct, id)
	if err != nil {
		return Applied{}, false, err
	}
	p, err := s.planApply(ctx, &tx.View, n, applyOptions{purge: purge})
	if err != nil {
		return Applied{}, false, err
	}
	if err := s.judge(ctx, &tx.View, &p); err != nil {
		return Applied{}, false, err
	}
	k3s := false
	for i := range p.steps {
		st := &p.steps[i]
		if !st.write {
			continue
		}
		wrote = true
		if err := st.run(ctx, tx); err != nil {
			return Applied{}, false, err
		}
		k3s = k3s || (st.reason == "" && IsK3s(st.module))
	}
	if n.AppliedTemplateID != p.template.ID {
		wrote = true
		before := n.AppliedTemplateID
		n.AppliedTemplateID = p.template.ID
		if _, err := store.UpdateNode(ctx, tx, n); err != nil {
			return Applied{}, false, err
		}
		err := audit(ctx, tx, acct, "updated", resourceNode, string(n.ID), store.Object{"applied_template_id": orNull(string(before))},
			store.Object{"applied_template_id": n.AppliedTemplateID})
		if err != nil {
			return Applied{}, false, err
		}
	}
	out = p.applied()
	if p.changes() {
		out.Woken, err = s.assignmentsWritten(ctx, tx, acct, n.ID, k3s)
	}
	return out, wrote, err
}

// run writes one step of an apply.
func (st *step) run(ctx context.Context, tx *store.Tx) error {
	switch {
	case st.after == nil:
		if err := store.DeleteAssignment(ctx, tx, st.before.AccountID, st.before.ID); err != nil {
			return err
		}
		return audit(ctx, tx, st.before.AccountID, "deleted", resourceAssignment, string(st.before.ID), assignmentValues(*st.before), nil)
	case st.before == nil:
		st.after.ID = store.AssignmentID(tx.NewID())
		a, err := store.InsertAssignment(ctx, tx, *st.after)
		if err != nil {
			return err
		}
		st.after = &a
		return audit(ctx, tx, a.AccountID, "created", resourceAssignment, string(a.ID), nil, assignmentValues(a))
	}
	if _, err := store.UpdateAssignment(ctx, tx, *st.after); err != nil {
		return err
	}
	old, now := changed(assignmentValues(*st.before), assignmentValues(*st.after))
	if len(now) == 0 {
		return nil // only the memory of what the template said
	}
	return audit(ctx, tx, st.after.AccountID, "updated", resourceAssignment, string(st.after.ID), old, now)
}

// applied tells what a plan does.
func (p plan) applied() Applied {
	out := Applied{NodeID: p.node.ID, TemplateID: p.template.ID, Created: []AppliedItem{}, Updated: []AppliedItem{}, Skipped: []AppliedItem{},
		Purged: []AppliedItem{}, Warnings: p.warnings, Woken: []store.InstanceID{}}
	for _, st := range p.steps {
		item := AppliedItem{ModuleID: st.module.ID, ModuleName: st.module.Name, Reason: st.reason, Changes: st.changes()}
		switch {
		case st.after == nil:
			item.AssignmentID = st.before.ID
			out.Purged = append(out.Purged, item)
		case st.before == nil:
			item.AssignmentID = st.after.ID
			out.Created = append(out.Created, item)
		case st.reason == "":
			item.AssignmentID = st.before.ID
			out.Updated = append(out.Updated, item)
		default:
			item.AssignmentID = st.before.ID
			out.Skipped = append(out.Skipped, item)
		}
	}
	return out
}

func (st step) changes() map[string]Changed {
	out := map[string]Changed{}
	if st.before == nil || st.after == nil {
		return out
	}
	if st.before.Priority != st.after.Priority {
		out["priority"] = Changed{st.before.Priority, st.after.Priority}
	}
	if !same(st.before.Config.V, st.after.Config.V) {
		out["config"] = Changed{st.before.Config.V, st.after.Config.V}
	}
	return out
}
