package tools_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/sdwan"
	"powernode/tools/toolstest"
)

func TestCreateFirewallRuleReachesTheMachines(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := l.network(t, "tenant-a")
	one, p1 := l.member(t, a, "m-1")
	two, _ := l.member(t, a, "m-2")
	vip := l.Call(t, "system_sdwan_create_virtual_ip", toolstest.Object{"network_id": a, "name": "vip", "cidr": "auto", "holder_peer_ids": []any{p1["id"]}})["virtual_ip"].(toolstest.Object)
	got := l.Call(t, "system_sdwan_create_firewall_rule", toolstest.Object{"network_id": a, "name": "deny-api", "direction": "ingress", "firewall_action": "drop",
		"dst_selector": toolstest.Object{"cidr": vip["cidr"]}, "protocol": "tcp", "port_from": 6443, "port_to": 6443, "priority": 100})
	toolstest.Has(t, toolstest.Object{"warnings": []any{}, "shadowed_by": []any{}, "firewall_rule": toolstest.Object{"name": "deny-api", "action": "drop", "priority": 100.0,
		"port_range": toolstest.Object{"from": 6443.0, "to": 6443.0}, "src_selector": nil, "dst_selector": toolstest.Object{"cidr": vip["cidr"]}, "built_in": false, "enabled": true},
		"resolved": toolstest.Object{"dst": []any{vip["cidr"]}, "dst_matches": 1.0, "src_matches": 3.0}}, got)
	id := got["firewall_rule"].(toolstest.Object)["id"].(string)
	of := func(chain []sdwan.FirewallRule) bool {
		return slices.ContainsFunc(chain, func(r sdwan.FirewallRule) bool { return r.RuleID == id && r.Verdict == "drop" && r.PortFrom == 6443 })
	}
	if fw := l.document(t, one).Firewall; !of(fw.Input) {
		t.Errorf("the holder's input has no such rule:\n%s", fw.Script())
	}
	if fw := l.document(t, two).Firewall; of(fw.Input) {
		t.Errorf("a machine without the address has the rule too:\n%s", fw.Script())
	}
	read := l.Call(t, "system_sdwan_get_firewall_rule", toolstest.Object{"firewall_rule_id": id})
	preview := read["compiled_preview"].(toolstest.Object)
	if preview["peer_id"] != p1["id"] || !strings.Contains(preview["ruleset"].(string), `tcp dport 6443 drop comment "deny-api"`) {
		t.Errorf("preview %v", preview)
	}
	if signals := l.Signals(t, "system.operation_notified"); len(signals) == 0 || signals[0].Payload["action_category"] != "sdwan.firewall_rule_create" {
		t.Errorf("signals %v, want a notice of the rule", signals)
	}
}

func TestCreateFirewallRuleRefuses(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a, b := l.network(t, "tenant-a"), l.network(t, "tenant-b")
	_, foreign := l.member(t, b, "m-1")
	l.Call(t, "system_sdwan_create_firewall_rule", toolstest.Object{"network_id": a, "name": "taken"})
	for _, tt := range []struct {
		name, more string
		code       schema.Code
		text       string
	}{
		{"the names of an older page", `"name": null, "action": "drop", "selector": {}, "port_range": "1-2"`, schema.InvalidArguments,
			"Missing required parameters: name; Undeclared parameters: action (did you mean firewall_action?), selector (did you mean dst_selector?), port_range (did you mean port_from and port_to?)"},
		{"a selector of a virtual IP", `"dst_selector": {"vip": "x"}`, schema.InvalidArguments, "Undeclared parameters: dst_selector.vip"},
		{"an empty selector", `"dst_selector": {}`, schema.InvalidArguments, "selector must have exactly one of: peer_id, tag, cidr, all"},
		{"two kinds", `"dst_selector": {"tag": "a", "all": true}`, schema.InvalidArguments, "selector must have exactly one of: peer_id, tag, cidr, all"},
		{"ports without a protocol", `"port_from": 1, "port_to": 2`, schema.InvalidArguments, "ports need protocol tcp or udp"},
		{"ports the wrong way round", `"protocol": "tcp", "port_from": 9, "port_to": 1`, schema.InvalidArguments, "port_from must not be above port_to"},
		{"one port", `"protocol": "tcp", "port_from": 9`, schema.InvalidArguments, "port_from and port_to go together"},
		{"no cidr", `"src_selector": {"cidr": "fd00::/129"}`, schema.InvalidArguments, "src_selector.cidr must be a CIDR without host bits"},
		{"a range with host bits", `"dst_selector": {"cidr": "fd00::1/8"}`, schema.InvalidArguments, `dst_selector.cidr must be a CIDR without host bits (got "fd00::1/8")`},
		{"two families", `"src_selector": {"cidr": "10.0.0.0/8"}, "dst_selector": {"cidr": "fd00::/8"}`, schema.InvalidArguments, "cidrs of two families"},
		{"a peer of another network", `"src_selector": {"peer_id": "` + foreign["id"].(string) + `"}`, schema.NotFound, "peer not found in this network"},
		{"a name in use", `"name": "taken"`, schema.Conflict, `firewall rule name "taken" is already in use`},
		{"a priority as text", `"priority": "10"`, schema.InvalidArguments, `priority must be an integer (got string "10")`},
		{"a direction", `"direction": "in"`, schema.InvalidArguments, `direction must be one of: ingress, egress, both (got "in")`},
		{"force", `"force": true`, schema.InvalidArguments, "Undeclared parameters: force"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := `{"network_id": "` + a + `", `
			if !strings.Contains(tt.more, `"name"`) {
				args += `"name": "x", `
			}
			l.Refused(t, "system_sdwan_create_firewall_rule", args+tt.more+`}`, tt.code, tt.text)
		})
	}
	for _, accepted := range []string{`"name": "icmp", "protocol": "icmp6"`, `"name": "tcp", "protocol": "tcp"`} {
		l.Call(t, "system_sdwan_create_firewall_rule", `{"network_id": "`+a+`", `+accepted+`}`)
	}
}

func TestSelectorThatMatchesNothingIsAWarning(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := l.network(t, "tenant-a")
	one, _ := l.member(t, a, "m-1")
	got := l.Call(t, "system_sdwan_create_firewall_rule", toolstest.Object{"network_id": a, "name": "nobody", "src_selector": toolstest.Object{"tag": "operator-ws"}})
	if warnings := objects(t, got["warnings"]); len(warnings) != 1 || warnings[0]["code"] != "selector_empty" {
		t.Errorf("warnings %v, want selector_empty", warnings)
	}
	rule := func() bool {
		return strings.Contains(l.document(t, one).Firewall.Script(), `comment "nobody"`)
	}
	if rule() {
		t.Error("a rule from nobody is in the table")
	}
	grant := l.Call(t, "system_sdwan_create_access_grant", toolstest.Object{"network_id": a, "user_id": "ada@example.org", "tags": []string{"operator-ws"}})["grant"].(toolstest.Object)
	l.Call(t, "system_sdwan_issue_user_device", toolstest.Object{"access_grant_id": grant["id"], "label": "laptop", "public_key": keyOf("laptop", a)})
	if !rule() {
		t.Errorf("the tagged device's rule is missing:\n%s", l.document(t, one).Firewall.Script())
	}
	l.Call(t, "system_sdwan_create_access_grant", toolstest.Object{"network_id": a, "user_id": "ada@example.org", "tags": []string{}})
	if rule() {
		t.Error("the tag is gone, and the rule stays")
	}
}

func TestRaisedFirewallPolicyParks(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := l.network(t, "tenant-a")
	l.SetPolicy(t, "sdwan.firewall_rule_create", governance.RequireApproval, governance.Scope{})
	operation := l.Parked(t, "system_sdwan_create_firewall_rule", toolstest.Object{"network_id": a, "name": "later"})
	names := func() []string {
		out := []string{}
		for _, r := range objects(t, l.Call(t, "system_sdwan_list_firewall_rules", toolstest.Object{"network_id": a})["firewall_rules"]) {
			out = append(out, r["name"].(string))
		}
		return out
	}
	if diff := cmp.Diff([]string{}, names()); diff != "" {
		t.Errorf("rules of a parked call (-want +got):\n%s", diff)
	}
	l.Approve(t, operation)
	if diff := cmp.Diff([]string{"later"}, names()); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
}

func TestListFirewallRulesInTheOrderThatCounts(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := l.network(t, "tenant-a")
	for name, priority := range map[string]int{"b": 10, "a": 10, "first": 0, "last": 999999} {
		l.Call(t, "system_sdwan_create_firewall_rule", toolstest.Object{"network_id": a, "name": name, "priority": priority})
	}
	got := l.Call(t, "system_sdwan_list_firewall_rules", toolstest.Object{"network_id": a})
	var names []string
	for _, r := range objects(t, got["firewall_rules"]) {
		names = append(names, r["name"].(string))
	}
	if diff := cmp.Diff([]string{"first", "a", "b", "last"}, names); diff != "" || got["default_policy"] != "accept" || got["count"] != 4.0 {
		t.Errorf("rules (-want +got):\n%s\nof %v", diff, got)
	}
}

// A drop on a cluster's API address is accepted: the cluster's own flows come first, and are named.
func TestRuleOnAClustersAddressIsShadowed(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := l.network(t, "tenant-a")
	l.member(t, a, "m-1")
	cluster := l.Call(t, "kubernetes_create_cluster", toolstest.Object{"name": "alpha", "network_id": a})["cluster"].(toolstest.Object)
	vip := l.Call(t, "system_sdwan_get_virtual_ip", toolstest.Object{"virtual_ip_id": cluster["api_vip_id"]})["virtual_ip"].(toolstest.Object)
	toolstest.Has(t, toolstest.Object{"name": "alpha-api", "cluster_id": cluster["id"], "state": "pending"}, vip)

	listed := objects(t, l.Call(t, "system_sdwan_list_firewall_rules", toolstest.Object{"network_id": a})["firewall_rules"])
	if len(listed) != 4 || listed[0]["built_in"] != true || listed[0]["priority"] != nil || listed[0]["cluster_id"] != cluster["id"] {
		t.Errorf("built-in rules %s, want four of the cluster", spelt(listed))
	}
	server := l.machine(t, "server")
	peer := l.attach(t, a, server)
	l.report(t, server, nil)
	l.assign(t, server, "k3s-server", cluster["id"])
	got := l.Call(t, "system_sdwan_create_firewall_rule", toolstest.Object{"network_id": a, "name": "deny-api", "firewall_action": "drop", "protocol": "tcp",
		"port_from": 6443, "port_to": 6443, "dst_selector": toolstest.Object{"cidr": vip["cidr"]}})
	shadows := objects(t, got["shadowed_by"])
	if len(shadows) != 1 || shadows[0]["name"] != "alpha api" || shadows[0]["built_in"] != true {
		t.Fatalf("shadowed by %s, want the cluster's API rule", spelt(shadows))
	}
	if ids := texts(t, shadows[0]["src_selector"].(toolstest.Object)["peer_ids"]); !slices.Contains(ids, peer["id"].(string)) {
		t.Errorf("the built-in rule is for %v, want the server %v", ids, peer["id"])
	}
}
