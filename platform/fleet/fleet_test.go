package fleet_test

import (
	"bytes"
	"context"
	"net/netip"
	"testing"

	"github.com/rs/zerolog"

	"powernode/platform/cluster"
	"powernode/platform/fleet"
	"powernode/platform/network"
	"powernode/platform/provider"
	"powernode/store"
	"powernode/store/storetest"
)

// world is a fleet over a real store, with one seeded account.
type world struct {
	*fleet.Service
	acct store.AccountID
}

func newWorld(t testing.TB) *world {
	t.Helper()
	db := storetest.New(t)
	sealer, err := store.NewSealer(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	networks := &network.Service{Sealer: sealer}
	clusters := &cluster.Service{Network: networks, Sealer: sealer}
	networks.Clusters = clusters
	w := &world{Service: &fleet.Service{DB: db, Network: networks, Cluster: clusters, Providers: map[string]provider.Provider{}, Sealer: sealer,
		StateDir: t.TempDir(), Log: zerolog.Nop()}}
	if w.Authority, err = fleet.OpenAuthority(w.StateDir, sealer, nil, nil); err != nil {
		t.Fatal(err)
	}
	db.SetPublish(w.Publish)
	w.update(t, func(ctx context.Context, tx *store.Tx) error {
		a := store.Account{ID: store.AccountID(tx.NewID()), Name: "home", Prefix: store.Prefix{Prefix: netip.MustParsePrefix("fd5e:8a21:c0de::/48")}}
		w.acct = a.ID
		if err := store.InsertAccount(ctx, tx, a); err != nil {
			return err
		}
		return w.Seed(ctx, tx, a.ID)
	})
	return w
}

func (w *world) update(t testing.TB, fn func(ctx context.Context, tx *store.Tx) error) {
	t.Helper()
	if err := w.try(t, fn); err != nil {
		t.Fatal(err)
	}
}

func (w *world) try(t testing.TB, fn func(ctx context.Context, tx *store.Tx) error) error {
	t.Helper()
	return w.DB.Update(t.Context(), func(tx *store.Tx) error { return fn(t.Context(), tx) })
}

func (w *world) view(t testing.TB, fn func(ctx context.Context, v *store.View) error) {
	t.Helper()
	if err := w.DB.View(t.Context(), func(v *store.View) error { return fn(t.Context(), v) }); err != nil {
		t.Fatal(err)
	}
}

// module finds a module by its name.
func (w *world) module(t testing.TB, name string) (m store.Module) {
	t.Helper()
	w.view(t, func(ctx context.Context, v *store.View) (err error) {
		m, err = store.ModuleByName(ctx, v, w.acct, name)
		return err
	})
	return m
}

// node makes a template and a node of it.
func (w *world) node(t testing.TB, name string) (n store.Node) {
	t.Helper()
	w.update(t, func(ctx context.Context, tx *store.Tx) error {
		platforms, err := store.Platforms(ctx, &tx.View, w.acct)
		if err != nil {
			return err
		}
		template, err := w.CreateTemplate(ctx, tx, w.acct, fleet.TemplateInput{Name: name, PlatformID: platforms[0].ID, Enabled: true})
		if err != nil {
			return err
		}
		n, err = w.CreateNode(ctx, tx, w.acct, fleet.NodeInput{Name: name, TemplateID: template.ID, Enabled: true})
		return err
	})
	return n
}

// instance makes an instance of a node, as its intent does, without a provider.
func (w *world) instance(t testing.TB, n store.Node) (i store.Instance) {
	t.Helper()
	w.update(t, func(ctx context.Context, tx *store.Tx) error {
		regions, err := store.Regions(ctx, &tx.View, w.acct, "")
		if err != nil {
			return err
		}
		types, err := store.InstanceTypes(ctx, &tx.View, w.acct, "")
		if err != nil {
			return err
		}
		p, err := w.Provision(ctx, tx, w.acct, fleet.ProvisionInput{NodeID: n.ID, RegionID: regions[0].ID, TypeID: types[0].ID})
		i = p.Instance
		return err
	})
	return i
}
