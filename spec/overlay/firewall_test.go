package overlay

import (
	"context"
	"strings"
	"testing"

	"powernode/spec/rig"
)

func TestRulesTakeEffectAndTouchNoOthersTables(t *testing.T) {
	l := shared
	server, stranger, friend := l.a.machines[0], l.a.machines[1], l.a.machines[2]
	const foreign = `add table inet foreign; add chain inet foreign watch { type filter hook input priority 10; policy accept; }; add rule inet foreign watch tcp dport 1 counter`
	l.exec(t, server.Name, "nft", foreign)
	t.Cleanup(func() {
		if _, err := l.Exec(context.WithoutCancel(t.Context()), server.Name, "nft", "delete", "table", "inet", "foreign"); err != nil {
			t.Error(err)
		}
	})
	before := l.exec(t, server.Name, "nft", "list", "table", "inet", "foreign")
	listener, err := l.Listen(t.Context(), server.Name, "tcp 7001", "tcp 7002")
	ok(t, err)
	defer func() { ok(t, listener.Close()) }()
	guarded, free := spell("tcp", server.address, "7001"), spell("tcp", server.address, "7002")
	laptop := l.workstation(t)
	l.reachable(t, stranger.Name, server.address)
	for _, from := range []string{stranger.Name, friend.Name, laptop} {
		if got := l.dial(t, from, guarded, free); got[guarded] != "reached" || got[free] != "reached" {
			t.Fatalf("before any rule %s gets %v", from, got)
		}
	}

	rule := func(name, action string, priority int, source rig.Object) {
		out := l.must(t, "system_sdwan_create_firewall_rule", rig.Object{"network_id": server.Network, "name": name, "direction": "ingress", "firewall_action": action,
			"protocol": "tcp", "port_from": 7001, "port_to": 7001, "priority": priority, "src_selector": source, "dst_selector": rig.Object{"peer_id": server.Peer}})
		if rig.At(out, "resolved", "src_matches") == 0.0 {
			t.Errorf("%s: its source matches nothing: %v", name, out)
		}
	}
	rule("guard-7001", "drop", 100, rig.Object{"all": true})
	rule("friend-7001", "accept", 10, rig.Object{"peer_id": friend.Peer})
	rule("operators-7001", "accept", 11, rig.Object{"tag": "overlay-operator"})
	l.converged(t, l.a.machines...)
	for from, want := range map[string]string{stranger.Name: "silence", friend.Name: "reached", laptop: "reached"} {
		if got := l.dial(t, from, guarded, free); got[guarded] != want || got[free] != "reached" {
			t.Errorf("%s gets %v, want %s at the guarded port", from, got, want)
		}
	}
	if tables := strings.Fields(strings.ReplaceAll(l.exec(t, server.Name, "nft", "list", "tables"), "table ", "")); strings.Join(tables, " ") != "inet powernode inet foreign" &&
		strings.Join(tables, " ") != "inet foreign inet powernode" {
		t.Errorf("tables %v, want one of ours beside the foreign one", tables)
	}
	if after := l.exec(t, server.Name, "nft", "list", "table", "inet", "foreign"); after != before {
		t.Errorf("the foreign table was\n%s\nand is\n%s", before, after)
	}
}

// workstation makes a person's machine in tenant A's network, whose grant has a tag.
func (l *lab) workstation(t *testing.T) string {
	t.Helper()
	const name = "overlay-laptop"
	who := l.must(t, "platform_whoami", rig.Object{})
	grant := l.must(t, "system_sdwan_create_access_grant", rig.Object{"network_id": l.a.network, "user_id": rig.Text(who, "users", 0, "id"), "tags": []string{"overlay-operator"}})
	device := l.must(t, "system_sdwan_issue_user_device", rig.Object{"access_grant_id": rig.Text(grant, "grant", "id"), "label": name})
	_, err := l.Run(t.Context(), "local", "workstation", name, rig.Text(device, "bootstrap_url"))
	ok(t, err)
	ok(t, l.InstallProbe(t.Context(), name))
	l.converged(t, l.a.machines...)
	l.reachable(t, name, l.a.machines[0].address)
	return name
}
