package tools_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/schema"
	"powernode/store"
	"powernode/tools"
	"powernode/tools/toolstest"
)

func TestCreateNetworkAllocatesTheSlash64(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := l.Call(t, "system_sdwan_create_network", `{"name": "tenant-a", "description": "A", "options": {"mtu": 1400, "firewall_default_policy": "drop"}}`)
	toolstest.Has(t, toolstest.Object{"network": toolstest.Object{"name": "tenant-a", "slug": "tenant-a", "status": "registered", "peer_count": 0.0,
		"routing_protocol": "static", "pod_subnet_prefix": nil, "gateway_peer_id": nil, "cluster_ids": []any{},
		"settings": toolstest.Object{"mtu": 1400.0, "topology_strategy": "auto", "firewall_default_policy": "drop"}}}, a)
	b := l.Call(t, "platform.system_sdwan_create_network", `{"name": "Tenant B!"}`)
	toolstest.Has(t, toolstest.Object{"network": toolstest.Object{"slug": "tenant-b", "settings": toolstest.Object{"mtu": 1420.0}}}, b)

	account := l.Account.Prefix.Prefix
	pa := netip.MustParsePrefix(a["network"].(toolstest.Object)["cidr_64"].(string))
	pb := netip.MustParsePrefix(b["network"].(toolstest.Object)["cidr_64"].(string))
	if pa == pb || pa.Bits() != 64 || pb.Bits() != 64 || !account.Contains(pa.Addr()) || !account.Contains(pb.Addr()) {
		t.Errorf("networks have %s and %s of account %s, want two /64s of it", pa, pb, account)
	}
}

func TestCreateNetworkRefuses(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.network(t, "taken")
	for _, tt := range []struct {
		name, args string
		code       schema.Code
		text       string
		hint       string
	}{
		{"a prefix of the caller", `{"name": "x", "prefix": "fd00::/64"}`, schema.InvalidArguments, "Undeclared parameters: prefix", "system_sdwan_create_network"},
		{"a routing mode", `{"name": "x", "routing_mode": "ibgp"}`, schema.InvalidArguments, "Undeclared parameters: routing_mode", "system_sdwan_update_network_routing_mode"},
		{"a pod prefix", `{"name": "x", "pod_subnet_prefix": "10.42.0.0/16"}`, schema.InvalidArguments, "Undeclared parameters: pod_subnet_prefix", "system_sdwan_update_network"},
		{"no name", `{"name": " "}`, schema.InvalidArguments, "Missing required parameters: name", ""},
		{"a line break", `{"name": "a\nb"}`, schema.InvalidArguments, "name must not have a line break", ""},
		{"a name in use", `{"name": "taken"}`, schema.Conflict, `network name "taken" is already in use`, ""},
		{"an MTU below IPv6's", `{"name": "x", "options": {"mtu": 1279}}`, schema.InvalidArguments, "options.mtu must be between 1280 and 8920", ""},
		{"hub and spoke", `{"name": "x", "options": {"topology_strategy": "hub_and_spoke"}}`, schema.PreconditionFailed, "not available yet: topology_strategy hub_and_spoke", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := l.Refused(t, "system_sdwan_create_network", tt.args, tt.code, tt.text)
			if tt.hint != "" && (err.Hint == nil || err.Hint.Verb != tt.hint) {
				t.Errorf("hint %v, want %s", err.Hint, tt.hint)
			}
		})
	}
}

func TestNetworksAreTheirAccounts(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	other := l.AddAccount(t, "other", "fd11:2233:4455::/48")
	id := l.network(t, "tenant-a")
	foreign := l.Caller
	foreign.AccountID = other.ID
	_, err := l.Platform.Call(t.Context(), foreign, tools.Request{Verb: "system_sdwan_get_network", Arguments: []byte(`{"network_id": "` + id + `"}`)})
	if schema.CodeOf(err) != schema.NotFound {
		t.Errorf("a foreign network: %v, want not_found", err)
	}
	got := l.CallAs(t, foreign, "system_sdwan_list_networks", nil)
	if diff := cmp.Diff(toolstest.Object{"networks": []any{}, "count": 0.0, "has_more": false, "next_cursor": nil}, got); diff != "" {
		t.Errorf("another account's list (-want +got):\n%s", diff)
	}
}

func TestListNetworksByNameInPages(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	for _, name := range []string{"c", "a", "b"} {
		l.network(t, name)
	}
	names := []string{}
	cursor := any(nil)
	for range 3 {
		page := l.Call(t, "system_sdwan_list_networks", toolstest.Object{"limit": 1, "cursor": cursor})
		names = append(names, objects(t, page["networks"])[0]["name"].(string))
		cursor = page["next_cursor"]
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, names); diff != "" || cursor != nil {
		t.Errorf("pages (-want +got):\n%s\nlast cursor %v", diff, cursor)
	}
	l.Refused(t, "system_sdwan_list_networks", `{"cursor": "nonsense"}`, schema.InvalidArguments, "cursor is not one that this verb issued")
	l.Refused(t, "system_sdwan_list_networks", `{"limit": 0}`, schema.InvalidArguments, "limit must be a positive integer")
}

func TestUpdateNetwork(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	id := l.network(t, "tenant-a")
	l.network(t, "tenant-b")
	machine, _ := l.member(t, id, "a-1")
	got := l.Call(t, "system_sdwan_update_network", toolstest.Object{"network_id": id, "options": toolstest.Object{"name": "renamed", "status": "suspended",
		"settings": toolstest.Object{"mtu": 1380}}})
	toolstest.Has(t, toolstest.Object{"network": toolstest.Object{"name": "renamed", "slug": "tenant-a", "status": "suspended", "settings": toolstest.Object{"mtu": 1380.0}}}, got)
	if s := l.section(t, machine, id); !s.Suspended || s.MTU != 1380 {
		t.Errorf("section has suspended %v and MTU %d, want true and 1380", s.Suspended, s.MTU)
	}
	for _, tt := range []struct {
		name, options string
		code          schema.Code
		text          string
	}{
		{"nothing", `"options": {}`, schema.InvalidArguments, "no recognized fields to update — permitted: "},
		{"a taken name", `"options": {"name": "tenant-b"}`, schema.Conflict, `network name "tenant-b" is already in use`},
		{"an archive of what is suspended", `"options": {"status": "archived"}`, schema.PreconditionFailed, "cannot archive from suspended"},
		{"a pod prefix", `"pod_subnet_prefix": "10.42.0.0/16"`, schema.PreconditionFailed, "not available yet: pod_subnet_prefix"},
		{"no pod prefix", `"pod_subnet_prefix": null`, schema.PreconditionFailed, "not available yet: pod_subnet_prefix"},
		{"hub and spoke", `"options": {"settings": {"topology_strategy": "hub_and_spoke"}}`, schema.PreconditionFailed, "not available yet: topology_strategy"},
		{"an undeclared setting", `"options": {"settings": {"mtus": 1400}}`, schema.InvalidArguments, "options.settings.mtus"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l.Refused(t, "system_sdwan_update_network", `{"network_id": "`+id+`", `+tt.options+`}`, tt.code, tt.text)
		})
	}
}

func TestArchivedNetworkLeavesTheMachines(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	id := l.network(t, "tenant-a")
	machine, _ := l.member(t, id, "a-1")
	l.Call(t, "system_sdwan_update_network", toolstest.Object{"network_id": id, "options": toolstest.Object{"status": "archived"}})
	if d := l.document(t, machine); len(d.Networks) != 0 || len(d.Firewall.Input) != 0 {
		t.Errorf("document has networks %s, want none", spelt(d.Networks))
	}
}

func TestRoutingModeStaysStatic(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	id := l.network(t, "tenant-a")
	got := l.Call(t, "system_sdwan_update_network_routing_mode", toolstest.Object{"network_id": id, "routing_protocol": "static"})
	toolstest.Has(t, toolstest.Object{"network_id": id, "routing_protocol": "static", "note": nil}, got)
	l.Refused(t, "system_sdwan_update_network_routing_mode", toolstest.Object{"network_id": id, "routing_protocol": "ibgp"},
		schema.PreconditionFailed, "not available yet: routing_protocol ibgp")
	err := l.Refused(t, "system_sdwan_update_network_routing_mode", toolstest.Object{"network_id": id, "routing_protocol": "ospf"}, schema.InvalidArguments, "")
	if err.Message != "routing_protocol must be one of: static, ibgp" {
		t.Errorf("message %q", err.Message)
	}
}

func TestDeleteNetworkNeedsApprovalAndTakesEverything(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	id := l.network(t, "tenant-a")
	cidr := l.Call(t, "system_sdwan_get_network", toolstest.Object{"network_id": id})["network"].(toolstest.Object)["cidr_64"]
	machine, peer := l.member(t, id, "a-1")
	l.Call(t, "system_sdwan_create_virtual_ip", toolstest.Object{"network_id": id, "name": "vip", "cidr": "auto", "holder_peer_ids": []any{peer["id"]}})
	l.Call(t, "system_sdwan_create_firewall_rule", toolstest.Object{"network_id": id, "name": "rule"})
	grant := l.Call(t, "system_sdwan_create_access_grant", toolstest.Object{"network_id": id, "user_id": "ada@example.org"})["grant"].(toolstest.Object)
	l.Call(t, "system_sdwan_issue_user_device", toolstest.Object{"access_grant_id": grant["id"], "label": "laptop"})

	operation := l.Parked(t, "system_sdwan_delete_network", toolstest.Object{"network_id": id})
	if s := l.section(t, machine, id); s.PeerID != peer["id"] {
		t.Errorf("a parked deletion changed the document: %s", spelt(s))
	}
	toolstest.Has(t, toolstest.Object{"deleted": true, "id": id, "removed": toolstest.Object{"peers": 1.0, "firewall_rules": 1.0, "access_grants": 1.0,
		"user_devices": 1.0, "virtual_ips": 1.0, "port_mappings": 0.0, "advertisements": 0.0}}, l.Approve(t, operation))
	if d := l.document(t, machine); len(d.Networks) != 0 {
		t.Errorf("document has networks %s, want none", spelt(d.Networks))
	}
	l.Refused(t, "system_sdwan_get_network", toolstest.Object{"network_id": id}, schema.NotFound, "network not found")
	again := l.Call(t, "system_sdwan_create_network", `{"name": "tenant-a"}`)["network"].(toolstest.Object)
	if again["cidr_64"] == cidr {
		t.Errorf("a new network got %s, which was released a moment ago", cidr)
	}
	if machine2, _ := l.member(t, again["id"].(string), "a-2"); len(l.document(t, machine2).Networks) != 1 {
		t.Error("a machine of the new network has no section")
	}
	if n := l.section(t, func() store.InstanceID { l.attach(t, again["id"].(string), machine); return machine }(), again["id"].(string)); n.DeviceName != "wg-sdwan-2" {
		t.Errorf("the machine's next interface is %s, want wg-sdwan-2: a number is not used again at once", n.DeviceName)
	}
}

func TestNetworkWithAClusterStays(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	id := l.network(t, "tenant-a")
	l.member(t, id, "a-1")
	cluster := l.Call(t, "kubernetes_create_cluster", toolstest.Object{"name": "alpha", "network_id": id})["cluster"].(toolstest.Object)
	toolstest.Has(t, toolstest.Object{"network": toolstest.Object{"cluster_ids": []any{cluster["id"]}}}, l.Call(t, "system_sdwan_get_network", toolstest.Object{"network_id": id}))
	err := l.Refused(t, "system_sdwan_delete_network", toolstest.Object{"network_id": id}, schema.PreconditionFailed, "network is used by cluster(s) alpha")
	if err.Hint == nil || err.Hint.Verb != "kubernetes_decommission_cluster" {
		t.Errorf("hint %v, want kubernetes_decommission_cluster", err.Hint)
	}
	l.Refused(t, "system_sdwan_update_network", toolstest.Object{"network_id": id, "options": toolstest.Object{"status": "suspended"}},
		schema.PreconditionFailed, "network is used by cluster(s) alpha")
	l.Refused(t, "system_sdwan_update_network", toolstest.Object{"network_id": id, "options": toolstest.Object{"settings": toolstest.Object{"mtu": 1290}}},
		schema.PreconditionFailed, "mtu 1290 is too small for vxlan")
	l.Refused(t, "system_sdwan_failover_virtual_ip", toolstest.Object{"virtual_ip_id": cluster["api_vip_id"]}, schema.PreconditionFailed, "no failover candidates configured")
	l.Refused(t, "kubernetes_create_cluster", toolstest.Object{"name": "beta", "network_id": id, "pod_cidr": cluster["pod_cidr"]},
		schema.Conflict, cluster["pod_cidr"].(string)+" overlaps pod_cidr of cluster alpha")
	l.Refused(t, "kubernetes_create_cluster", toolstest.Object{"name": "beta", "network_id": id, "service_cidr": cluster["service_cidr"]},
		schema.Conflict, cluster["service_cidr"].(string)+" overlaps service_cidr of cluster alpha")
}
