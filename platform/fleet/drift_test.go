package fleet_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/fleet"
	"powernode/store"
)

func (w *world) drift(t testing.TB, n store.Node) (d fleet.Drift) {
	t.Helper()
	w.view(t, func(ctx context.Context, v *store.View) error {
		all, err := w.TemplateDrifts(ctx, v, w.acct, func(id store.NodeID) bool { return id == n.ID })
		d = all[n.ID]
		return err
	})
	return d
}

func TestTemplateDriftIsWhatAnApplyWouldMakeOrChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t, "a")
	base := w.addModule(t, "base", store.Dependencies{})
	app := w.addModule(t, "app", store.Dependencies{Requires: []string{"base"}})
	broken := w.addModule(t, "broken", store.Dependencies{Requires: []string{"nothing"}})
	if err := w.assign(t, n, app, nil); err != nil {
		t.Fatal(err)
	}
	if d := w.drift(t, n); d.Any() {
		t.Errorf("a node without a machine has the drift %+v", d)
	}
	w.instance(t, n) // brings what the template has
	if diff := cmp.Diff(fleet.Drift{TemplateID: n.TemplateID, Missing: []string{}, Changed: []string{}}, w.drift(t, n)); diff != "" {
		t.Errorf("after the provisioning (-want +got):\n%s", diff)
	}

	other := w.addModule(t, "other", store.Dependencies{})
	if err := w.assign(t, n, other, nil); err != nil {
		t.Fatal(err)
	}
	priority := int64(77)
	w.update(t, func(ctx context.Context, tx *store.Tx) error {
		_, err := w.UpdateJoin(ctx, tx, w.acct, fleet.JoinInput{TemplateID: n.TemplateID, ModuleID: app.ID, Priority: &priority})
		return err
	})
	want := fleet.Drift{TemplateID: n.TemplateID, Missing: []string{"other"}, Changed: []string{"app"}}
	if diff := cmp.Diff(want, w.drift(t, n)); diff != "" {
		t.Errorf("after edits of the template (-want +got):\n%s", diff)
	}
	if _, err := w.apply(t, n); err != nil {
		t.Fatal(err)
	}

	// What a person decided on the node is no drift, and a requirement that nothing meets hides no other difference.
	if err := w.assign(t, n, broken, nil); err != nil {
		t.Fatal(err)
	}
	off := false
	w.update(t, func(ctx context.Context, tx *store.Tx) error {
		a, err := store.AssignmentOf(ctx, &tx.View, w.acct, n.ID, base.ID)
		if err != nil {
			return err
		}
		_, _, err = w.UpdateAssignment(ctx, tx, w.acct, a.ID, fleet.AssignmentChange{Enabled: &off}, "somebody")
		return err
	})
	want = fleet.Drift{TemplateID: n.TemplateID, Missing: []string{"broken"}, Changed: []string{}}
	if diff := cmp.Diff(want, w.drift(t, n)); diff != "" {
		t.Errorf("with a module that can't be had (-want +got):\n%s", diff)
	}
	w.update(t, func(ctx context.Context, tx *store.Tx) error {
		_, err := w.UpdateTemplate(ctx, tx, w.acct, n.TemplateID, fleet.TemplateChange{Enabled: &off})
		return err
	})
	if d := w.drift(t, n); d.Any() {
		t.Errorf("a disabled template has the drift %+v", d)
	}
}
