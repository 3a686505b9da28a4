package tools_test

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"powernode/platform/network"
	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
	"powernode/tools/toolstest"
)

// walls answers probes as machines behind walls do: inside a /64 everything, across nothing.
func walls(p sdwan.Probe) string {
	if netip.PrefixFrom(p.Source, 64).Contains(p.Target) {
		return "reachable"
	}
	return "unreachable"
}

// tenants is a lab with two networks of two machines, a VIP in the second, and agents.
type tenants struct {
	*lab
	t        *testing.T
	a, b     string
	a1, a2   store.InstanceID
	b1, b2   store.InstanceID
	pa1, pb1 toolstest.Object
	vip      toolstest.Object
}

func newTenants(t *testing.T) *tenants {
	t.Helper()
	l := &tenants{lab: newLab(t), t: t}
	l.a, l.b = l.network(t, "tenant-a"), l.network(t, "tenant-b")
	l.a1, l.pa1 = l.member(t, l.a, "a-1")
	l.a2, _ = l.member(t, l.a, "a-2")
	l.b1, l.pb1 = l.member(t, l.b, "b-1")
	l.b2, _ = l.member(t, l.b, "b-2")
	l.vip = l.Call(t, "system_sdwan_create_virtual_ip", toolstest.Object{"network_id": l.b, "name": "vip", "cidr": "auto", "holder_peer_ids": []any{l.pb1["id"]}})["virtual_ip"].(toolstest.Object)
	return l
}

func matrix(t *testing.T, got toolstest.Object, from, to string) toolstest.Object {
	t.Helper()
	for _, m := range objects(t, got["matrix"]) {
		if m["from_network_id"] == from && m["to_network_id"] == to {
			return m
		}
	}
	t.Fatalf("the matrix %v has no %s to %s", got["matrix"], from, to)
	return nil
}

func TestVerifyIsolationIsolated(t *testing.T) {
	t.Parallel()
	l := newTenants(t)
	l.play(t, walls, nil, l.a1, l.a2, l.b1, l.b2)
	got := l.Call(t, "system_sdwan_verify_isolation", nil)
	if got["verdict"] != "isolated" || len(got["leaks"].([]any)) != 0 || len(got["stale_agents"].([]any)) != 0 {
		t.Fatalf("judged %s", spelt(got))
	}
	toolstest.Has(t, toolstest.Object{"expected": "reachable", "computed": "reachable", "probed": "reachable"}, matrix(t, got, l.a, l.a))
	toolstest.Has(t, toolstest.Object{"expected": "unreachable", "computed": "unreachable", "probed": "unreachable"}, matrix(t, got, l.a, l.b))
	vip := 0
	for _, p := range objects(t, got["probes"]) {
		if p["target"].(string)+"/128" == l.vip["cidr"] {
			vip++
		}
	}
	if vip != 4 { // ICMP and TCP, of two machines
		t.Errorf("%d probes of the VIP, want 4: %s", vip, spelt(got["probes"]))
	}
	for _, id := range []store.InstanceID{l.a1, l.b2} {
		if d := l.document(t, id); len(d.Probes) != 0 {
			t.Errorf("probes are left in a document: %s", spelt(d.Probes))
		}
	}
}

func TestVerifyIsolationFindsTheLeak(t *testing.T) {
	t.Parallel()
	l := newTenants(t)
	open := func(p sdwan.Probe) string {
		if p.Target.String()+"/128" == l.vip["cidr"] {
			return "reachable"
		}
		return walls(p)
	}
	l.play(t, open, nil, l.a1, l.a2, l.b1, l.b2)
	got := l.Call(t, "system_sdwan_verify_isolation", nil)
	if got["verdict"] != "leak" || len(objects(t, got["leaks"])) != 4 {
		t.Fatalf("judged %s", spelt(got))
	}
	toolstest.Has(t, toolstest.Object{"probed": "reachable"}, matrix(t, got, l.a, l.b))
	signals := l.Signals(t, "system.sdwan_isolation_leak")
	if len(signals) != 1 || signals[0].Severity != "critical" || signals[0].Payload["from_network_id"] != l.a {
		t.Errorf("signals %v, want one critical of tenant-a", signals)
	}
}

// A route by hand is a leak with the route as evidence, also when the probe gets nothing; and it is told when it ends.
func TestVerifyIsolationFindsTheRogueRoute(t *testing.T) {
	t.Parallel()
	l := newTenants(t)
	rogue := netip.MustParsePrefix(l.vip["cidr"].(string))
	route := func(r *sdwan.Report) {
		r.HostRoutes = []sdwan.HostRoute{{Prefix: rogue, Device: "eth0", Source: "static"}, {Prefix: netip.MustParsePrefix("192.0.2.0/24"), Device: "eth0", Source: "kernel"}}
	}
	stop := l.playUntil(t, walls, route, l.a1)
	l.play(t, walls, nil, l.a2, l.b1, l.b2)
	got := l.Call(t, "system_sdwan_verify_isolation", nil)
	leaks := objects(t, got["leaks"])
	if got["verdict"] != "leak" || len(leaks) != 1 || leaks[0]["from_peer_id"] != l.pa1["id"] || leaks[0]["why"] != "host route: "+rogue.String()+" by eth0 (static)" {
		t.Fatalf("judged %s", spelt(got))
	}
	stop()
	l.play(t, walls, nil, l.a1)
	if got := l.Call(t, "system_sdwan_verify_isolation", nil); got["verdict"] != "isolated" {
		t.Fatalf("after the route is gone: %s", spelt(got))
	}
	if signals := l.Signals(t, "system.sdwan_isolation_restored"); len(signals) != 1 {
		t.Errorf("%d signals system.sdwan_isolation_restored, want 1", len(signals))
	}
}

// playUntil is play with an end of its own.
func (l *lab) playUntil(t *testing.T, answer func(sdwan.Probe) string, change func(*sdwan.Report), id store.InstanceID) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			changed := l.Platform.DB.Watch(store.TopicDocument(id))
			if err := l.answer(ctx, id, answer, change); err != nil && ctx.Err() == nil {
				t.Errorf("agent of %s: %v", id, err)
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// What was not measured is never isolated.
func TestVerifyIsolationNotMeasured(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		answer func(sdwan.Probe) string
		change func(*sdwan.Report)
		why    string
	}{
		{"a subsystem in error", walls, func(r *sdwan.Report) { r.Subsystems[1].State = "error" }, "firewall is error"},
		{"routes not read", walls, func(r *sdwan.Report) { r.HostRoutesRead, r.HostRoutes = false, nil }, "did not read the machine's routes"},
		{"silence inside", func(p sdwan.Probe) string { return "unreachable" }, nil, ""},
		{"a probe that failed", func(p sdwan.Probe) string { return "error" }, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := newTenants(t)
			l.play(t, tt.answer, tt.change, l.a1, l.a2, l.b1, l.b2)
			got := l.Call(t, "system_sdwan_verify_isolation", nil)
			if got["verdict"] != "not_measured" {
				t.Fatalf("judged %s", spelt(got))
			}
			if tt.why == "" {
				return
			}
			if stale := objects(t, got["stale_agents"]); len(stale) != 4 || !strings.HasPrefix(stale[0]["why"].(string), tt.why) {
				t.Errorf("stale agents %v, want four of %q", stale, tt.why)
			}
		})
	}
}

// What is not answered when the time is over is not measured, and the answer names who did not.
func TestVerifyIsolationNamesWhoDidNotAnswer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		play func(*tenants)
		why  string
	}{
		{"a stopped agent", func(*tenants) {}, "did not answer its probes"},
		{"an agent that has not applied its document", func(l *tenants) {
			l.play(l.t, walls, func(r *sdwan.Report) { r.Subsystems[0].AppliedRevision = 1 }, l.a1)
		}, "wireguard has applied revision 1 of"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newTenants(t)
			l.play(t, walls, nil, l.a2, l.b1, l.b2)
			tt.play(l)
			run := l.ask(t)
			l.awaitAnswers(t, run, l.a2, l.b1, l.b2)
			if strings.HasPrefix(tt.why, "wireguard") {
				l.awaitAnswers(t, run, l.a1)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // the call's time is over
			if err := l.Platform.Network.AwaitIsolation(ctx, l.Platform.DB, l.Account.ID, run); err != nil {
				t.Fatal(err)
			}
			l.Update(t, func(ctx context.Context, tx *store.Tx) error {
				j, err := l.Platform.Network.JudgeIsolation(ctx, tx, l.Account.ID, run)
				if j.Verdict != "not_measured" || len(j.StaleAgents) != 1 || j.StaleAgents[0].InstanceID != l.a1 || !strings.HasPrefix(j.StaleAgents[0].Why, tt.why) {
					t.Errorf("judged %s", spelt(j))
				}
				return err
			})
		})
	}
}

// awaitAnswers waits until the machines have answered all that a run asks of them.
func (l *lab) awaitAnswers(t *testing.T, run network.Isolation, ids ...store.InstanceID) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		answered := l.Platform.DB.Watch(store.TopicProbes(run.RunID))
		left := 0
		l.View(t, func(ctx context.Context, v *store.View) error {
			probes, err := store.ProbesByRun(ctx, v, l.Account.ID, run.RunID)
			for _, p := range probes {
				if p.Result == "" && slices.Contains(ids, p.InstanceID) {
					left++
				}
			}
			return err
		})
		if left == 0 {
			return
		}
		select {
		case <-answered:
		case <-ctx.Done():
			t.Fatalf("%d probes are not answered", left)
		}
	}
}

func (l *lab) ask(t *testing.T) (run network.Isolation) {
	t.Helper()
	l.Update(t, func(ctx context.Context, tx *store.Tx) (err error) {
		run, err = l.Platform.Network.AskIsolation(ctx, tx, l.Account.ID, nil)
		return err
	})
	return run
}

func TestVerifyIsolationOfOneNetwork(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := l.network(t, "tenant-a")
	one, _ := l.member(t, a, "a-1")
	l.play(t, walls, nil, one)
	got := l.Call(t, "system_sdwan_verify_isolation", toolstest.Object{"network_ids": []string{a}})
	if got["verdict"] != "isolated" || len(objects(t, got["networks"])) != 1 {
		t.Errorf("judged %s", spelt(got))
	}
	l.Refused(t, "system_sdwan_verify_isolation", toolstest.Object{"network_ids": []any{string(one)}}, schema.NotFound, "network not found")
}

// A person with grants in both networks is a declared way, and no leak.
func TestVerifyIsolationAllowsAPersonInBoth(t *testing.T) {
	t.Parallel()
	l := newTenants(t)
	for _, network := range []string{l.a, l.b} {
		l.device(t, network, "laptop")
	}
	l.play(t, walls, nil, l.a1, l.a2, l.b1, l.b2)
	got := l.Call(t, "system_sdwan_verify_isolation", nil)
	allowed := objects(t, got["allowed"])
	if got["verdict"] != "isolated" || len(allowed) != 2 || allowed[0]["by"] != "access_grant" {
		t.Errorf("judged %s", spelt(got))
	}
}
