package tools_test

import (
	"context"
	"testing"
	"time"

	"powernode/platform/sensor"
	"powernode/platform/signal"
	"powernode/sdwan"
	"powernode/store"
	"powernode/tools/toolstest"
)

// restarted is the platform's sensors as another process has them.
func (w *watched) restarted(t *testing.T) (look func()) {
	t.Helper()
	s := sensor.New(w.Platform.DB, w.Platform.Fleet, w.Platform.Network)
	return func() {
		t.Helper()
		if err := s.Tick(t.Context(), w.Account.ID); err != nil {
			t.Fatalf("look with the sensors: %v", err)
		}
	}
}

func TestPlatformThatWasAwayTakesItsOwnSilenceForNobodysElse(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	id := w.machine(t, "m-1")
	w.attach(t, w.network(t, "tenant-a"), id) // its document is not applied yet
	w.report(t, id, nil)
	w.clock.Advance(time.Hour)
	look := w.restarted(t)
	look()
	w.clock.Advance(20 * time.Second)
	look()
	for _, kind := range []string{"system.instance_silent", "system.agent_behind", "system.sdwan_apply_not_measured"} {
		w.expect(t, kind)
	}
	w.clock.Advance(3 * time.Minute) // now it has listened, and heard nothing
	look()
	w.expect(t, "system.instance_silent", signal.Medium)

	w.clock.Advance(time.Hour)
	again := w.restarted(t)
	again()
	w.expect(t, "system.instance_recovered") // nobody was heard: a restart closes nothing
	w.report(t, id, nil)
	w.clock.Advance(5 * time.Second)
	again()
	w.expect(t, "system.instance_recovered", signal.Low)
}

func TestLeakEndsWithItsNetwork(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	a, b := w.network(t, "tenant-a"), w.network(t, "tenant-b")
	w.Update(t, func(ctx context.Context, tx *store.Tx) error {
		return signal.Open(ctx, tx, w.Account.ID, a+":"+b, signal.Event{Kind: "system.sdwan_isolation_leak",
			Payload: store.Object{"from_network_id": a, "to_network_id": b, "evidence": []string{"probe: icmp6 was answered"}}})
	})
	w.after(t, 10*time.Second)
	w.expect(t, "system.sdwan_isolation_restored")
	w.Update(t, func(ctx context.Context, tx *store.Tx) error {
		_, err := w.Platform.Network.Delete(ctx, tx, w.Account.ID, store.NetworkID(b))
		return err
	})
	w.after(t, 10*time.Second)
	w.expect(t, "system.sdwan_isolation_restored", signal.Low)
}

func TestOverlapEndsWithTheMembershipOfWhoReportedIt(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	network := w.network(t, "tenant-a")
	first := w.server(t, network, "s-1")
	w.Update(t, func(ctx context.Context, tx *store.Tx) error {
		return signal.Open(ctx, tx, w.Account.ID, "fd00:1::/64", signal.Event{Kind: "system.sdwan_address_overlap",
			Subject: signal.Subject{NetworkID: store.NetworkID(network), InstanceID: first}, Payload: store.Object{"prefix": "fd00:1::/64"}})
	})
	w.join(t, first, "server")
	w.after(t, 10*time.Second)
	w.expect(t, "system.sdwan_address_overlap_resolved")
	w.Update(t, func(ctx context.Context, tx *store.Tx) error {
		_, err := w.Platform.Cluster.RemoveInstance(ctx, tx, w.Account.ID, first, "terminated")
		return err
	})
	w.after(t, 10*time.Second)
	w.expect(t, "system.sdwan_address_overlap_resolved", signal.Low)
	toolstest.Has(t, toolstest.Object{"prefix": "fd00:1::/64"}, w.Signals(t, "system.sdwan_address_overlap_resolved")[0].Payload)
}

func TestAWrongClockMakesNoPeerLiveOrDead(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	network := w.network(t, "a")
	one, p1 := w.member(t, network, "m-1")
	two, p2 := w.member(t, network, "m-2")
	say := func(wrong, age time.Duration) {
		for id, remote := range map[store.InstanceID]any{one: p2["id"], two: p1["id"]} {
			w.report(t, id, func(r *sdwan.Report) {
				r.SentAt = w.clock.Now().Add(wrong)
				r.Tunnels = []sdwan.TunnelReport{{NetworkID: network, RemotePeerID: remote.(string), LastHandshakeAt: r.SentAt.Add(-age)}}
			})
		}
		w.after(t, 10*time.Second)
	}
	say(-time.Hour, time.Minute) // an hour behind: the tunnel is fresh all the same
	w.expect(t, "system.sdwan_peer_drift")
	say(24*time.Hour, 6*time.Minute) // a day ahead: it is old all the same
	w.expect(t, "system.sdwan_peer_drift", signal.Medium, signal.Medium)
	for _, e := range w.Signals(t, "system.sdwan_peer_drift") {
		if at := e.Payload["last_handshake_at"]; at != store.At(w.clock.Now().Add(-10*time.Second-6*time.Minute)).String() {
			t.Errorf("last handshake at %v by the machine's clock", at)
		}
	}
}
