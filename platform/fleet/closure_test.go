package fleet_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/fleet"
	"powernode/schema"
	"powernode/store"
)

// addModule makes a module as a later issue's verb will.
func (w *world) addModule(t testing.TB, name string, d store.Dependencies) (m store.Module) {
	t.Helper()
	w.update(t, func(ctx context.Context, tx *store.Tx) (err error) {
		m = store.Module{ID: store.ModuleID(tx.NewID()), AccountID: w.acct, Name: name, Variety: "instance", Enabled: true, Priority: int64(len(name))}
		m.Dependencies.V, m.Config.V = d, store.Object{}
		m, err = store.InsertModule(ctx, tx, m)
		return err
	})
	return m
}

func (w *world) assign(t testing.TB, n store.Node, m store.Module, override *store.Override) error {
	t.Helper()
	return w.try(t, func(ctx context.Context, tx *store.Tx) error {
		in := fleet.JoinInput{TemplateID: n.TemplateID, ModuleID: m.ID, Override: override, OverrideSet: override != nil}
		if err := w.CheckAssign(ctx, &tx.View, w.acct, in); err != nil {
			return err
		}
		_, err := w.Assign(ctx, tx, w.acct, in)
		return err
	})
}

func (w *world) apply(t testing.TB, n store.Node) (got fleet.Applied, err error) {
	t.Helper()
	err = w.try(t, func(ctx context.Context, tx *store.Tx) error {
		got, err = w.Apply(ctx, tx, w.acct, n.ID, false)
		return err
	})
	return got, err
}

func names(items []fleet.AppliedItem) string {
	var out []string
	for _, i := range items {
		out = append(out, i.ModuleName)
	}
	return strings.Join(out, " ")
}

func TestClosureFollowsRequirementsAndRecommendations(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	base := w.addModule(t, "base", store.Dependencies{Provides: []string{"libc"}})
	w.addModule(t, "runtime", store.Dependencies{Requires: []string{"libc"}})
	logs := w.addModule(t, "logs", store.Dependencies{})
	app := w.addModule(t, "app", store.Dependencies{Requires: []string{"runtime"}, Recommends: []string{"logs", "unknown"}})
	for _, tt := range []struct {
		name     string
		override *store.Override
		want     string
	}{
		{"all", nil, "base runtime logs app"},
		{"without", &store.Override{Excluded: []store.ModuleID{logs.ID}}, "base runtime app"},
		{"replaced", &store.Override{Replace: []store.ModuleID{}}, "base runtime app"},
		{"with", &store.Override{Excluded: []store.ModuleID{logs.ID}, Included: []store.ModuleID{base.ID}}, "base runtime app"},
	} {
		n := w.node(t, tt.name)
		if err := w.assign(t, n, app, tt.override); err != nil {
			t.Fatal(err)
		}
		got, err := w.apply(t, n)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if diff := cmp.Diff(tt.want, names(got.Created)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		w.view(t, func(ctx context.Context, v *store.View) error {
			all, err := store.AssignmentsByNode(ctx, v, w.acct, n.ID)
			for _, a := range all {
				if a.AutoResolved != (a.ModuleID != app.ID) || a.SourceTemplateModuleID == "" {
					t.Errorf("%s: %s auto_resolved %v, source %q", tt.name, a.ModuleName, a.AutoResolved, a.SourceTemplateModuleID)
				}
			}
			return err
		})
	}
}

func TestClosureThatCannotBeMetIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.addModule(t, "db-one", store.Dependencies{Provides: []string{"database"}})
	w.addModule(t, "db-two", store.Dependencies{Provides: []string{"database"}})
	chicken := w.addModule(t, "chicken", store.Dependencies{Requires: []string{"egg"}})
	w.addModule(t, "egg", store.Dependencies{Requires: []string{"chicken"}})
	for _, tt := range []struct {
		module store.Module
		text   string
	}{
		{w.addModule(t, "lonely", store.Dependencies{Requires: []string{"nothing"}}), "module lonely requires nothing, which no module provides"},
		{w.addModule(t, "torn", store.Dependencies{Requires: []string{"database"}}), "which several modules provide: db-one, db-two"},
		{chicken, "modules require each other in a circle: chicken, egg, chicken"},
	} {
		n := w.node(t, "n-"+tt.module.Name)
		if err := w.assign(t, n, tt.module, nil); err != nil {
			t.Fatal(err)
		}
		_, err := w.apply(t, n)
		if schema.CodeOf(err) != schema.PreconditionFailed || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: got %v, want %q", tt.module.Name, err, tt.text)
		}
	}
}

func TestOnlyNewConflictsCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t, "a")
	one := w.addModule(t, "one", store.Dependencies{Provides: []string{"web"}})
	two := w.addModule(t, "two", store.Dependencies{Conflicts: []string{"web"}})
	if err := w.assign(t, n, one, nil); err != nil {
		t.Fatal(err)
	}
	err := w.assign(t, n, two, nil)
	const text = "Module assignment refused: it would introduce 1 composition conflict(s)" // word for word: callers compare it
	if refusal, is := errors.AsType[*schema.Error](err); !is || refusal.Code != schema.PreconditionFailed || refusal.Message != text {
		t.Fatalf("got %v, want %s", err, text)
	} else if diff := cmp.Diff([]string{"one and two"}, refusal.Details["conflicts"]); diff != "" {
		t.Errorf("conflicts (-want +got):\n%s", diff)
	}
	// A conflict that is there already does not stop another module.
	w.update(t, func(ctx context.Context, tx *store.Tx) error {
		j := store.TemplateModule{ID: store.TemplateModuleID(tx.NewID()), AccountID: w.acct, TemplateID: n.TemplateID, ModuleID: two.ID, Enabled: true}
		j.Config.V = store.Object{}
		_, err := store.InsertTemplateModule(ctx, tx, j)
		return err
	})
	if err := w.assign(t, n, w.addModule(t, "three", store.Dependencies{}), nil); err != nil {
		t.Errorf("a third module is refused for a conflict that it has no part in: %v", err)
	}
}
