package fleet_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"powernode/platform/fleet"
	"powernode/store"
)

// told is what an apply said it does, without the ids that only a run makes.
func told(a fleet.Applied) fleet.Applied {
	for i := range a.Created {
		a.Created[i].AssignmentID = ""
	}
	a.Woken = nil
	return a
}

// drawn is a node of an account of its own, with modules that a check has drawn.
type drawn struct {
	*world
	acct    store.AccountID
	node    store.Node
	modules []store.Module
}

var drawnConfigs = []store.Object{{}, {"size": 1.0}, {"size": 2.0}, {"name": "x"}}

// draw makes the account, its modules and a template with some of them, and a machine that has them applied.
func (w *world) draw(rt *rapid.T, n int) (d *drawn, err error) {
	d = &drawn{world: w}
	err = w.DB.Update(context.Background(), func(tx *store.Tx) error {
		ctx := context.Background()
		prefix := netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 1, byte(n >> 8), byte(n)}), 48)
		account := store.Account{ID: store.AccountID(tx.NewID()), Name: fmt.Sprintf("drawn-%d", n), Prefix: store.Prefix{Prefix: prefix}}
		d.acct = account.ID
		if err := store.InsertAccount(ctx, tx, account); err != nil {
			return err
		}
		if err := w.Seed(ctx, tx, d.acct); err != nil {
			return err
		}
		for i := range rapid.IntRange(2, 5).Draw(rt, "modules") {
			if err := d.module(ctx, tx, rt, i); err != nil {
				return err
			}
		}
		platforms, err := store.Platforms(ctx, &tx.View, d.acct)
		if err != nil {
			return err
		}
		t, err := w.CreateTemplate(ctx, tx, d.acct, fleet.TemplateInput{Name: "drawn", PlatformID: platforms[0].ID, Enabled: true})
		if err != nil {
			return err
		}
		d.node, err = w.CreateNode(ctx, tx, d.acct, fleet.NodeInput{Name: "drawn", TemplateID: t.ID, Enabled: true})
		return err
	})
	return d, err
}

func (d *drawn) module(ctx context.Context, tx *store.Tx, rt *rapid.T, i int) error {
	names := []string{"m0", "m1", "m2", "m3", "m4", "cap"}
	some := func(what string) []string {
		return rapid.SliceOfN(rapid.SampledFrom(names[:max(1, i)]), 0, 2).Draw(rt, what)
	}
	in := fleet.ModuleInput{Name: names[i], Variety: "instance", Enabled: true, Priority: int64(rapid.IntRange(0, 3).Draw(rt, "priority")),
		Config: rapid.SampledFrom(drawnConfigs).Draw(rt, "config"), Dependencies: &store.Dependencies{}}
	if i > 0 {
		in.Dependencies.Requires, in.Dependencies.Recommends = some("requires"), some("recommends")
		if rapid.IntRange(0, 9).Draw(rt, "odd") == 0 {
			in.Dependencies.Conflicts = some("conflicts")
		}
	}
	m, _, err := d.CreateModule(ctx, tx, d.acct, in)
	d.modules = append(d.modules, m)
	return err
}

// change does one thing that people and templates do between two applies.
func (d *drawn) change(ctx context.Context, tx *store.Tx, rt *rapid.T) error {
	m := rapid.SampledFrom(d.modules).Draw(rt, "module")
	priority := int64(rapid.IntRange(0, 3).Draw(rt, "priority"))
	enabled := rapid.Bool().Draw(rt, "enabled")
	config := rapid.SampledFrom(drawnConfigs).Draw(rt, "config")
	join := fleet.JoinInput{TemplateID: d.node.TemplateID, ModuleID: m.ID, Priority: &priority, Enabled: &enabled, Config: config}
	there, err := d.JoinExists(ctx, &tx.View, d.acct, join.TemplateID, m.ID)
	if err != nil {
		return err
	}
	a, err := store.AssignmentOf(ctx, &tx.View, d.acct, d.node.ID, m.ID)
	assigned := err == nil
	switch what := rapid.IntRange(0, 6).Draw(rt, "change"); {
	case what <= 2 && !there:
		_, err = d.Assign(ctx, tx, d.acct, join)
	case what <= 1:
		_, err = d.UpdateJoin(ctx, tx, d.acct, join)
	case what == 2:
		_, err = d.Unassign(ctx, tx, d.acct, join.TemplateID, m.ID)
	case what == 3:
		_, _, err = d.UpdateModule(ctx, tx, d.acct, m.ID, fleet.ModuleChange{Enabled: &enabled, Priority: &priority})
	case !assigned:
		return nil
	case what == 4:
		_, _, err = d.UpdateAssignment(ctx, tx, d.acct, a.ID, fleet.AssignmentChange{Priority: &priority}, "hand")
	case what == 5:
		_, _, err = d.UpdateAssignment(ctx, tx, d.acct, a.ID, fleet.AssignmentChange{Config: config, Enabled: &enabled}, "hand")
	default: // as if a person had made it
		a.SourceTemplateID, a.SourceTemplateModuleID = "", ""
		_, err = store.UpdateAssignment(ctx, tx, a)
	}
	return err
}

func TestDryRunTellsWhatTheApplyThenDoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, accounts := t.Context(), 0
	rapid.Check(t, func(rt *rapid.T) {
		accounts++
		d, err := w.draw(rt, accounts)
		if err != nil {
			rt.Fatalf("draw: %v", err)
		}
		for range rapid.IntRange(1, 4).Draw(rt, "rounds") {
			err := w.DB.Update(ctx, func(tx *store.Tx) error {
				for range rapid.IntRange(1, 5).Draw(rt, "changes") {
					if err := d.change(ctx, tx, rt); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				rt.Fatalf("change: %v", err)
			}
			d.hold(ctx, rt, rapid.Bool().Draw(rt, "purge"))
		}
	})
}

// hold plans and applies, and holds one against the other.
func (d *drawn) hold(ctx context.Context, rt *rapid.T, purge bool) {
	var dry, done fleet.Applied
	planErr := d.DB.View(ctx, func(v *store.View) (err error) {
		dry, err = d.PlanApply(ctx, v, d.acct, d.node.ID, purge)
		return err
	})
	applyErr := d.DB.Update(ctx, func(tx *store.Tx) (err error) {
		done, err = d.Apply(ctx, tx, d.acct, d.node.ID, purge)
		return err
	})
	if fmt.Sprint(planErr) != fmt.Sprint(applyErr) {
		rt.Fatalf("the dry run says %v, the apply %v", planErr, applyErr)
	}
	if applyErr != nil {
		return
	}
	if diff := cmp.Diff(told(dry), told(done), cmpopts.EquateEmpty()); diff != "" {
		rt.Fatalf("dry run and apply differ (-dry +done):\n%s", diff)
	}
	d.settled(ctx, rt, done, purge)
}

// settled holds an apply to its end: assignments are what it said, and another one would change nothing.
func (d *drawn) settled(ctx context.Context, rt *rapid.T, done fleet.Applied, purge bool) {
	var again fleet.Applied
	carried := map[string]bool{}
	err := d.DB.View(ctx, func(v *store.View) (err error) {
		if again, err = d.PlanApply(ctx, v, d.acct, d.node.ID, purge); err != nil {
			return err
		}
		all, err := store.AssignmentsByNode(ctx, v, d.acct, d.node.ID)
		for _, a := range all {
			carried[a.ModuleName] = true
		}
		return err
	})
	if err != nil {
		rt.Fatalf("plan again: %v", err)
	}
	if n := len(again.Created) + len(again.Updated) + len(again.Purged); n != 0 {
		rt.Fatalf("another apply would change %d assignments: %+v", n, again)
	}
	for _, i := range slices.Concat(done.Created, done.Updated, done.Skipped) {
		if !carried[i.ModuleName] {
			rt.Fatalf("%s was told as carried, and is not", i.ModuleName)
		}
	}
	for _, i := range done.Purged {
		if carried[i.ModuleName] {
			rt.Fatalf("%s was told as purged, and is carried", i.ModuleName)
		}
	}
}
