package tools_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/sdwan"
	"powernode/tools/toolstest"
)

func TestCreateVirtualIP(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a, b := l.network(t, "tenant-a"), l.network(t, "tenant-b")
	one, p1 := l.member(t, a, "m-1")
	two, p2 := l.member(t, a, "m-2")
	_, foreign := l.member(t, b, "m-3")
	prefix := strings.TrimSuffix(p1["assigned_address"].(string), "::1:0")
	first := l.Call(t, "system_sdwan_create_virtual_ip", toolstest.Object{"network_id": a, "name": strings.Repeat("v", 80), "cidr": prefix + "::100/128",
		"holder_peer_ids": []any{p1["id"]}, "failover_holder_peer_ids": []any{p2["id"]}, "tags": []string{"web ", "web"}})
	toolstest.Has(t, toolstest.Object{"virtual_ip": toolstest.Object{"cidr": prefix + "::100/128", "state": "active", "epoch": 1.0, "advertised_local_pref": 100.0,
		"primary_holder_peer_id": p1["id"], "primary_holder_address": p1["assigned_address"], "cluster_id": nil, "tags": []any{"web"}}}, first)
	if assignments := objects(t, first["virtual_ip"].(toolstest.Object)["assignments"]); len(assignments) != 1 || assignments[0]["reason"] != "initial" || assignments[0]["active"] != true {
		t.Errorf("assignments %v, want one open initial one", assignments)
	}
	auto := l.Call(t, "system_sdwan_create_virtual_ip", toolstest.Object{"network_id": a, "name": "auto", "cidr": "auto", "holder_peer_ids": []any{}, "advertised_local_pref": 0})
	toolstest.Has(t, toolstest.Object{"virtual_ip": toolstest.Object{"cidr": prefix + "::101/128", "state": "pending", "epoch": 0.0, "advertised_local_pref": 0.0, "assignments": []any{}}}, auto)

	// The /128 is on the holder alone, and behind it for everybody else.
	if s := l.section(t, one, a); len(s.VIPs) != 1 || s.VIPs[0].Address.Addr().String() != prefix+"::100" {
		t.Errorf("the holder has VIPs %s", spelt(s.VIPs))
	}
	if s := l.section(t, two, a); len(s.VIPs) != 0 || !strings.Contains(spelt(s.Peers[0].AllowedIPs), prefix+"::100/128") {
		t.Errorf("the other has VIPs %s and peers %s", spelt(s.VIPs), spelt(s.Peers))
	}
	for _, tt := range []struct {
		name string
		more toolstest.Object
		code schema.Code
		text string
	}{
		{"a cidr of peers", toolstest.Object{"cidr": prefix + "::1:0/128"}, schema.InvalidArguments, "cidr must be in the network's range of virtual IPs"},
		{"no /128", toolstest.Object{"cidr": prefix + "::/64"}, schema.InvalidArguments, "cidr must be a /128"},
		{"a cidr in use", toolstest.Object{"cidr": prefix + "::100/128"}, schema.Conflict, "::100 is already in use"},
		{"a name in use", toolstest.Object{"name": "auto"}, schema.Conflict, `virtual IP name "auto" is already in use`},
		{"81 characters", toolstest.Object{"name": strings.Repeat("v", 81)}, schema.InvalidArguments, "name must have 1 to 80 characters"},
		{"anycast", toolstest.Object{"anycast": true}, schema.PreconditionFailed, "not available yet: anycast"},
		{"a holder of another network", toolstest.Object{"holder_peer_ids": []any{foreign["id"]}}, schema.InvalidArguments, "no peer of this network: " + foreign["id"].(string)},
		{"two holders", toolstest.Object{"holder_peer_ids": []any{p1["id"], p2["id"]}}, schema.InvalidArguments, "at most one holder"},
		{"holder and candidate at once", toolstest.Object{"failover_holder_peer_ids": []any{p1["id"]}}, schema.InvalidArguments, "not holder and candidate at once"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := toolstest.Object{"network_id": a, "name": "x", "cidr": "auto", "holder_peer_ids": []any{p1["id"]}}
			for key, value := range tt.more {
				args[key] = value
			}
			l.Refused(t, "system_sdwan_create_virtual_ip", args, tt.code, tt.text)
		})
	}
}

func TestFailoverMovesTheAddress(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := l.network(t, "tenant-a")
	one, p1 := l.member(t, a, "m-1")
	two, p2 := l.member(t, a, "m-2")
	three, _ := l.member(t, a, "m-3")
	vip := l.Call(t, "system_sdwan_create_virtual_ip", toolstest.Object{"network_id": a, "name": "vip", "cidr": "auto", "holder_peer_ids": []any{p1["id"]},
		"failover_holder_peer_ids": []any{p2["id"]}})["virtual_ip"].(toolstest.Object)

	operation := l.Parked(t, "system_sdwan_failover_virtual_ip", toolstest.Object{"virtual_ip_id": vip["id"]})
	got := l.Approve(t, operation)
	toolstest.Has(t, toolstest.Object{"failed_over": true, "previous_holder_peer_id": p1["id"], "epoch": 2.0, "virtual_ip": toolstest.Object{
		"state": "failing_over", "holder_peer_ids": []any{p2["id"]}, "failover_holder_peer_ids": []any{p1["id"]}}}, got)
	if s := l.section(t, one, a); len(s.VIPs) != 0 {
		t.Errorf("the old holder keeps %s", spelt(s.VIPs))
	}
	if s := l.section(t, two, a); len(s.VIPs) != 1 || s.VIPs[0].Epoch != 2 {
		t.Errorf("the new holder has %s", spelt(s.VIPs))
	}
	for _, p := range l.section(t, three, a).Peers {
		if has := strings.Contains(spelt(p.AllowedIPs), vip["cidr"].(string)); has != (p.PeerID == p2["id"]) {
			t.Errorf("peer %s has AllowedIPs %s", p.PeerID, spelt(p.AllowedIPs))
		}
	}
	if signals := l.Signals(t, "system.sdwan_vip_failed_over"); len(signals) != 1 || signals[0].Payload["reason"] != "manual_failover" || signals[0].Payload["epoch"] != 2.0 {
		t.Errorf("signals %v", signals)
	}
	// The failover ends with the word of the new holder's agent.
	l.report(t, one, nil)
	toolstest.Has(t, toolstest.Object{"virtual_ip": toolstest.Object{"state": "failing_over"}}, l.Call(t, "system_sdwan_get_virtual_ip", toolstest.Object{"virtual_ip_id": vip["id"]}))
	l.report(t, two, nil)
	read := l.Call(t, "system_sdwan_get_virtual_ip", toolstest.Object{"virtual_ip_id": vip["id"]})["virtual_ip"].(toolstest.Object)
	if read["state"] != "active" {
		t.Errorf("state %v, want active", read["state"])
	}
	var reasons []string
	for _, each := range objects(t, read["assignments"]) {
		reasons = append(reasons, spelt([]any{each["peer_id"], each["reason"], each["active"]}))
	}
	want := []string{spelt([]any{p2["id"], "manual_failover", true}), spelt([]any{p1["id"], "initial", false})}
	if diff := cmp.Diff(want, reasons); diff != "" {
		t.Errorf("assignments (-want +got):\n%s", diff)
	}
}

func TestFailoverRefuses(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.SetPolicy(t, "system.sdwan_vip_failover", governance.AutoApprove, governance.Scope{})
	a := l.network(t, "tenant-a")
	_, p1 := l.member(t, a, "m-1")
	silent := l.attach(t, a, l.machine(t, "silent"))
	vip := func(name string, candidates ...any) any {
		return l.Call(t, "system_sdwan_create_virtual_ip", toolstest.Object{"network_id": a, "name": name, "cidr": "auto", "holder_peer_ids": []any{p1["id"]},
			"failover_holder_peer_ids": candidates})["virtual_ip"].(toolstest.Object)["id"]
	}
	l.Refused(t, "system_sdwan_failover_virtual_ip", toolstest.Object{"virtual_ip_id": vip("none", []any{}...)}, schema.PreconditionFailed, "no failover candidates configured")
	l.Refused(t, "system_sdwan_failover_virtual_ip", toolstest.Object{"virtual_ip_id": vip("silent", silent["id"])}, schema.PreconditionFailed,
		"the first candidate is not a live peer of the network")
	err := l.Refused(t, "system_sdwan_failover_virtual_ip", toolstest.Object{"virtual_ip_id": p1["id"], "dry_run": true}, schema.InvalidArguments, "Undeclared parameters: dry_run")
	if err.Hint == nil || err.Hint.Verb != "platform_preview" {
		t.Errorf("hint %v, want platform_preview", err.Hint)
	}
	l.Refused(t, "system_sdwan_failover_virtual_ip", toolstest.Object{"virtual_ip_id": p1["id"]}, schema.NotFound, "virtual IP not found")
}

func TestAgentThatCanNotHoldAVirtualIPSaysSo(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.SetPolicy(t, "system.sdwan_vip_failover", governance.AutoApprove, governance.Scope{})
	a := l.network(t, "tenant-a")
	_, p1 := l.member(t, a, "m-1")
	two, p2 := l.member(t, a, "m-2")
	id := l.Call(t, "system_sdwan_create_virtual_ip", toolstest.Object{"network_id": a, "name": "vip", "cidr": "auto", "holder_peer_ids": []any{p1["id"]},
		"failover_holder_peer_ids": []any{p2["id"]}})["virtual_ip"].(toolstest.Object)["id"]
	l.Call(t, "system_sdwan_failover_virtual_ip", toolstest.Object{"virtual_ip_id": id})
	for _, state := range []string{"error", "ok"} {
		l.report(t, two, func(r *sdwan.Report) { r.Subsystems[2].State = state })
		want := map[string]string{"error": "error", "ok": "active"}[state]
		toolstest.Has(t, toolstest.Object{"virtual_ip": toolstest.Object{"state": want}}, l.Call(t, "system_sdwan_get_virtual_ip", toolstest.Object{"virtual_ip_id": id}))
	}
}

func TestRoutingSummaryNamesNoOtherNetwork(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a, b := l.network(t, "tenant-a"), l.network(t, "tenant-b")
	_, p1 := l.member(t, a, "m-1")
	l.member(t, b, "m-2")
	vip := l.Call(t, "system_sdwan_create_virtual_ip", toolstest.Object{"network_id": a, "name": "vip", "cidr": "auto", "holder_peer_ids": []any{p1["id"]}})["virtual_ip"].(toolstest.Object)
	got := l.Call(t, "system_sdwan_get_routing_summary", toolstest.Object{"network_id": a})
	toolstest.Has(t, toolstest.Object{"network_id": a, "routing_protocol": "static", "bgp_routes": []any{}, "peer_count": 1.0, "vip_count": 1.0, "hub_count": 0.0}, got)
	cidr := l.Call(t, "system_sdwan_get_network", toolstest.Object{"network_id": a})["network"].(toolstest.Object)["cidr_64"]
	var routes []string
	for _, r := range objects(t, got["static_routes"]) {
		if r["origin_network_id"] != a {
			t.Errorf("route %v of another network", r)
		}
		routes = append(routes, spelt([]any{r["prefix"], r["kind"], r["via_peer_id"]}))
	}
	want := []string{spelt([]any{cidr, "overlay", nil}), spelt([]any{vip["cidr"], "virtual_ip", p1["id"]}), spelt([]any{p1["assigned_address"].(string) + "/128", "peer", p1["id"]})}
	if diff := cmp.Diff(want, routes); diff != "" {
		t.Errorf("routes (-want +got):\n%s", diff)
	}
}
