package network_test

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/network"
	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
)

// bench is a store with an account whose clock the test moves, and the service.
type bench struct {
	db      *store.DB
	s       *network.Service
	account store.AccountID
	now     time.Time
	node    store.Instance // what new instances are made after
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{s: &network.Service{}, account: "account", now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	db, err := store.Open(t.Context(), store.Options{Path: filepath.Join(t.TempDir(), "powernode.db"), Now: func() time.Time { return b.now },
		Rand: rand.NewChaCha8([32]byte{'n', 'e', 't'})})
	if err != nil {
		t.Fatal(err)
	}
	b.db = db
	t.Cleanup(func() {
		if err := errors.Join(db.Check(context.Background()), db.Close()); err != nil {
			t.Error(err)
		}
	})
	b.update(t, func(ctx context.Context, tx *store.Tx) error {
		empty := store.JSON[store.Object]{V: store.Object{}}
		arch := store.Architecture{ID: "arch", Name: "amd64"}
		platform := store.Platform{ID: "platform", AccountID: b.account, Name: "p", ArchitectureID: arch.ID, OS: "linux"}
		provider := store.Provider{ID: "provider", AccountID: b.account, Name: "local", ProviderType: "local", Config: empty}
		err := errors.Join(
			store.InsertAccount(ctx, tx, store.Account{ID: b.account, Name: "a", Prefix: store.Prefix{Prefix: netip.MustParsePrefix("fd5e:8a21:c0de::/48")}}),
			store.InsertArchitecture(ctx, tx, arch), store.InsertPlatform(ctx, tx, platform), store.InsertProvider(ctx, tx, provider))
		b.node = store.Instance{AccountID: b.account, NodeID: "node", Variety: "local", Status: store.InstanceRunning, Architecture: "amd64",
			Config: empty, ProviderID: provider.ID, RegionID: "region", InstanceTypeID: "type"}
		return err
	})
	return b
}

func (b *bench) update(t *testing.T, fn func(ctx context.Context, tx *store.Tx) error) {
	t.Helper()
	if err := b.db.Update(t.Context(), func(tx *store.Tx) error { return fn(t.Context(), tx) }); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) network(t *testing.T, name string) (n store.Network) {
	t.Helper()
	b.update(t, func(ctx context.Context, tx *store.Tx) (err error) {
		n, err = b.s.Create(ctx, tx, b.account, network.CreateInput{Name: name})
		return err
	})
	return n
}

func (b *bench) delete(t *testing.T, id store.NetworkID) {
	t.Helper()
	b.update(t, func(ctx context.Context, tx *store.Tx) error {
		_, err := b.s.Delete(ctx, tx, b.account, id)
		return err
	})
}

func (b *bench) peer(t *testing.T, n store.NetworkID, name string) (p store.Peer, i store.Instance) {
	t.Helper()
	b.update(t, func(ctx context.Context, tx *store.Tx) (err error) {
		i = b.node
		i.ID, i.Name = store.InstanceID(tx.NewID()), name
		if i, err = store.InsertInstance(ctx, tx, i); err != nil {
			return err
		}
		p, _, err = b.s.Attach(ctx, tx, b.account, network.AttachInput{NetworkID: n, InstanceID: i.ID})
		return err
	})
	return p, i
}

func (b *bench) detach(t *testing.T, id store.PeerID) {
	t.Helper()
	b.update(t, func(ctx context.Context, tx *store.Tx) error {
		_, err := b.s.Detach(ctx, tx, b.account, id)
		return err
	})
}

func TestReleasedAddressRestsADay(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	n := b.network(t, "a")
	first, machine := b.peer(t, n.ID, "one")
	b.detach(t, first.ID)
	b.now = b.now.Add(store.AddressRest - time.Second)
	second, _ := b.peer(t, n.ID, "two")
	if second.Address == first.Address {
		t.Errorf("%s was given again before its rest ended", first.Address)
	}
	b.now = b.now.Add(2 * time.Second)
	third, _ := b.peer(t, n.ID, "three")
	if third.Address != first.Address {
		t.Errorf("after the rest %s was given, want %s", third.Address, first.Address)
	}
	var back store.Peer
	b.update(t, func(ctx context.Context, tx *store.Tx) (err error) {
		back, _, err = b.s.Attach(ctx, tx, b.account, network.AttachInput{NetworkID: n.ID, InstanceID: machine.ID})
		return err
	})
	if back.ShortID != 1 {
		t.Errorf("after the rest the machine's interface is number %d, want 1", back.ShortID)
	}
}

func TestReleasedNetworkRestsADay(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	first := b.network(t, "a")
	b.delete(t, first.ID)
	second := b.network(t, "a")
	if second.CIDR == first.CIDR {
		t.Errorf("%s was given again before its rest ended", first.CIDR)
	}
	b.delete(t, second.ID)
	b.now = b.now.Add(store.AddressRest + time.Second)
	if third := b.network(t, "a"); third.CIDR != first.CIDR {
		t.Errorf("after the rest %s was given, want %s", third.CIDR, first.CIDR)
	}
}

func TestTakeRangeNamesTheOtherParty(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	n := b.network(t, "tenant-a")
	var invalid netip.Prefix
	take := func(want netip.Prefix, kind, owner string) (got netip.Prefix, err error) {
		failed := b.db.Update(t.Context(), func(tx *store.Tx) error {
			got, err = b.s.TakeRange(t.Context(), tx, b.account, kind, want, owner, owner)
			return err
		})
		return got, failed
	}
	chosen := []string{}
	for _, ask := range []struct{ kind, owner string }{{"pod_cidr", "alpha"}, {"service_cidr", "alpha"}, {"pod_cidr", "beta"}} {
		got, err := take(invalid, ask.kind, ask.owner)
		if err != nil {
			t.Fatal(err)
		}
		chosen = append(chosen, got.String())
	}
	if diff := cmp.Diff([]string{"fd5e:8a21:c0de:8000::/56", "fd5e:8a21:c0de:ff01::/112", "fd5e:8a21:c0de:8100::/56"}, chosen); diff != "" {
		t.Errorf("chosen (-want +got):\n%s", diff)
	}
	for _, tt := range []struct{ want, text string }{
		{n.CIDR.String(), n.CIDR.String() + " overlaps cidr_64 of network tenant-a"},
		{"fd5e:8a21:c0de:8001::/64", "fd5e:8a21:c0de:8001::/64 overlaps pod_cidr of cluster alpha"},
		{"fd5e:8a21:c0de:ff01::/100", "fd5e:8a21:c0de:ff01::/100 overlaps service_cidr of cluster alpha"},
	} {
		_, err := take(netip.MustParsePrefix(tt.want), "pod_cidr", "gamma")
		if schema.CodeOf(err) != schema.Conflict || err.Error() != tt.text {
			t.Errorf("take %s: %v, want conflict %q", tt.want, err, tt.text)
		}
	}
	if got, err := take(netip.MustParsePrefix("10.42.0.0/16"), "pod_cidr", "gamma"); err != nil || got.String() != "10.42.0.0/16" {
		t.Errorf("a free range: %s, %v", got, err)
	}
}

func TestTakeRangeRefusesARouteOfAMachine(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, i := b.peer(t, b.network(t, "a").ID, "one")
	b.update(t, func(ctx context.Context, tx *store.Tx) error {
		routes, err := json.Marshal([]sdwan.HostRoute{{Prefix: netip.MustParsePrefix("10.42.7.0/24"), Device: "eth0", Source: "kernel"}})
		if err != nil {
			return err
		}
		return store.PutInstanceReport(ctx, tx, store.InstanceReport{InstanceID: i.ID, ReceivedAt: store.At(tx.Now()), HostRoutes: store.JSON[json.RawMessage]{V: routes},
			Findings: store.JSON[json.RawMessage]{V: json.RawMessage("[]")}})
	})
	err := b.db.Update(t.Context(), func(tx *store.Tx) error {
		_, err := b.s.TakeRange(t.Context(), tx, b.account, "pod_cidr", netip.MustParsePrefix("10.42.0.0/16"), "c", "c")
		return err
	})
	if schema.CodeOf(err) != schema.Conflict {
		t.Errorf("take a machine's LAN: %v, want conflict", err)
	}
}

// A compiler that reads each network once says the same as one that reads it for every instance.
func TestCompilerSaysTheSameAsSections(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	n := b.network(t, "a")
	var machines []store.Instance
	for _, name := range []string{"one", "two", "three", "four"} {
		_, i := b.peer(t, n.ID, name)
		machines = append(machines, i)
	}
	err := b.db.View(t.Context(), func(v *store.View) error {
		c := b.s.Compiler()
		for _, i := range machines {
			wantNetworks, wantFirewall, _, err := b.s.Sections(t.Context(), v, i)
			if err != nil {
				return err
			}
			networks, firewall, _, err := c.Sections(t.Context(), v, i)
			if err != nil {
				return err
			}
			want, got := mustJSON(t, []any{wantNetworks, wantFirewall}), mustJSON(t, []any{networks, firewall})
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("sections of %s (-alone +shared):\n%s", i.Name, diff)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestPeerStatusByTheLastHandshake(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ago := func(d time.Duration) *store.Time { at := store.At(now.Add(-d)); return &at }
	for want, last := range map[string]*store.Time{
		network.PeerPending: nil, network.PeerActive: ago(3*time.Minute - time.Second),
		network.PeerDegraded: ago(3 * time.Minute), network.PeerDisconnected: ago(5 * time.Minute),
	} {
		if got := network.PeerStatus(last, now); got != want {
			t.Errorf("a handshake at %v is %s, want %s", last, got, want)
		}
	}
}
