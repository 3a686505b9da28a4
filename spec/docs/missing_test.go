package docs_test

import (
	"strings"
	"testing"
)

// missing is what the README says of verbs that there are not yet. With the verb the words go.
var missing = []struct{ verb, words string }{
	{"system_sdwan_update_firewall_rule", "changing or deleting a firewall rule"},
	{"system_sdwan_delete_firewall_rule", "changing or deleting a firewall rule"},
	{"system_sdwan_simulate_firewall_rule", "trying it on traffic"},
	{"system_sdwan_update_peer", "changing a peer"},
	{"system_sdwan_set_peer_tags", "its tags"},
	{"system_sdwan_rotate_peer_key", "its key"},
	{"system_sdwan_update_peer_lan_subnets", "LAN subnets"},
	{"system_sdwan_list_virtual_ips", "listing, changing or deleting virtual IPs"},
	{"system_sdwan_update_virtual_ip", "listing, changing or deleting virtual IPs"},
	{"system_sdwan_delete_virtual_ip", "listing, changing or deleting virtual IPs"},
	{"system_sdwan_get_topology", "the topology"},
	{"system_sdwan_explain_path", "the way between two peers"},
	{"system_sdwan_get_bgp_sessions", "iBGP"},
	{"system_sdwan_create_route_policy", "route policies"},
	{"system_sdwan_create_port_mapping", "port mappings"},
	{"system_sdwan_propose_federation_peer", "federation"},
	{"system_sdwan_list_access_grants", "listing or ending an access grant or a device"},
	{"system_sdwan_revoke_access_grant", "listing or ending an access grant or a device"},
	{"system_sdwan_revoke_user_device", "listing or ending an access grant or a device"},
	{"kubernetes_start_upgrade", "upgrades"},
	{"kubernetes_create_snapshot", "snapshots and restores"},
	{"kubernetes_rotate_token", "token rotation"},
	{"kubernetes_update_cluster", "changing a cluster's fields"},
	{"kubernetes_verify_cluster", "verifying one"},
	{"kubernetes_issue_kubeconfig", "kubeconfigs for less than an administrator"},
	{"kubernetes_drain_node", "draining, removing or moving one node"},
	{"kubernetes_remove_node", "draining, removing or moving one node"},
	{"kubernetes_move_node", "draining, removing or moving one node"},
	{"system_create_instance_pool", "instance pools"},
}

func TestReadmeNamesWhatIsMissingAndNothingElse(t *testing.T) {
	t.Parallel()
	_, list, found := strings.Cut(everyPage(t)[0].text, "## Not available yet")
	list, _, ended := strings.Cut(list, "\n## ")
	if !found || !ended {
		t.Fatal("the README says nothing of what is missing")
	}
	list = strings.Join(strings.Fields(list), " ")
	verbs := contract(t)
	for _, m := range missing {
		switch named := strings.Contains(strings.ToLower(list), strings.ToLower(m.words)); {
		case verbs[m.verb] == nil && !named:
			t.Errorf("the README does not say %q, and there is no %s", m.words, m.verb)
		case verbs[m.verb] != nil:
			t.Errorf("there is %s: %q may go from the README, and goes from this list", m.verb, m.words)
		}
	}
}
