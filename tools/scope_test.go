package tools_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
	"powernode/tools/toolstest"
)

// accountWide are the categories whose calls lie in no cluster and no network; outside are those whose calls lie in a network
// alone.
const (
	accountWide = ` platform.emergency_stop platform.resume release.promote release.rollback sdwan.network_create system.module_create
		system.module_delete system.module_update system.module_version_create system.module_version_set_current system.platform_create
		system.provider_connection_create system.provider_connection_update system.provider_create system.provider_delete
		system.provider_instance_type_create system.provider_region_create system.provider_update system.sensor_config_update `
	outside = ` sdwan.access_grant_create sdwan.access_grant_reactivate sdwan.firewall_rule_create sdwan.network_delete sdwan.network_update
		sdwan.user_device_create system.runtime_k8s_cluster_create `
)

// byAgents are the categories that gate the agent API.
const byAgents = ` system.runtime_k8s_cluster_bootstrap system.runtime_k8s_node_join `

// aimed puts everything of a world that can lie in a cluster or network into one, with calls that name it, and answers the
// scopes that speak of the account's clusters, and of its networks.
func (w *world) aimed(t *testing.T) (clusters, networks []governance.Scope) {
	t.Helper()
	network := w.args["system_sdwan_update_network"][0]["network_id"].(string)
	cluster := at(t, w.Call(t, "kubernetes_create_cluster", toolstest.Object{"name": "green", "network_id": network}), "cluster", "id").(string)
	third := w.args["system_drain_instance"][0]["instance_id"]
	side := w.Call(t, "system_sdwan_attach_peer", toolstest.Object{"network_id": w.network(t, "side"), "node_instance_id": third})
	w.Update(t, func(ctx context.Context, tx *store.Tx) error {
		instances, err := store.Instances(ctx, &tx.View, w.Account.ID, "", "", "")
		for _, i := range instances {
			n := store.ClusterNode{ID: store.ClusterNodeID(tx.NewID()), AccountID: w.Account.ID, ClusterID: store.ClusterID(cluster), InstanceID: i.ID,
				NodeID: i.NodeID, Name: i.Name, Role: "agent", Status: "active", StatusSince: store.At(tx.Now()), CreatedAt: store.At(tx.Now()),
				UpdatedAt: store.At(tx.Now())}
			if string(i.ID) == fmt.Sprint(w.args["system_start_instance"][0]["instance_id"]) {
				n.Role = "server"
			}
			if err == nil {
				err = store.InsertClusterNode(ctx, tx, n)
			}
		}
		return err
	})
	holder := w.args["system_sdwan_get_peer"][0]["peer_id"]
	module := w.args["system_assign_module_to_template"][0]["module_id"]
	own := w.args["system_delete_module"][0]["module_id"]
	target := toolstest.Object{"target_cluster_id": cluster}
	platform := w.args["system_create_template"][0]["node_platform_id"]
	template := at(t, w.Call(t, "system_create_template", toolstest.Object{"name": "aimed", "node_platform_id": platform,
		"config": toolstest.Object{"sdwan_network_id": network}}), "template", "id")
	w.Call(t, "system_assign_module_to_template", toolstest.Object{"template_id": template, "module_id": module, "config": target})
	node := at(t, w.Call(t, "system_create_node", toolstest.Object{"name": "aimed", "template_id": template}), "node", "id")
	w.Call(t, "system_apply_template", toolstest.Object{"node_id": node})
	assignment := objects(t, w.Call(t, "system_list_node_module_assignments", toolstest.Object{"node_id": node})["assignments"])[0]["id"]
	free := at(t, w.Call(t, "system_clone_template", toolstest.Object{"template_id": template}), "template", "id")
	for verb, args := range map[string]toolstest.Object{
		"system_create_node":                   {"name": "fresh", "template_id": template},
		"system_update_node":                   {"node_id": node, "description": "x"},
		"system_delete_node":                   {"node_id": node},
		"system_apply_template":                {"node_id": node},
		"system_sdwan_detach_peer":             {"peer_id": at(t, side, "peer", "id")},
		"system_provision_instance":            {"node_id": node, "provider_region_id": w.region, "provider_instance_type_id": w.kind},
		"system_assign_module_to_node":         {"node_id": node, "module_id": own},
		"system_update_module_assignment":      {"assignment_id": assignment, "priority": 7},
		"system_create_template":               {"name": "fresh", "node_platform_id": platform, "config": toolstest.Object{"sdwan_network_id": network}},
		"system_sdwan_create_virtual_ip":       {"network_id": network, "name": "fresh", "cidr": "auto", "holder_peer_ids": []any{holder}},
		"system_clone_template":                {"template_id": template, "name": "fresh"},
		"system_update_template":               {"template_id": template, "description": "x"},
		"system_delete_template":               {"template_id": free},
		"system_assign_module_to_template":     {"template_id": free, "module_id": own},
		"system_update_template_module":        {"template_id": template, "module_id": module, "priority": 7},
		"system_unassign_module_from_template": {"template_id": template, "module_id": module},
		"kubernetes_decommission_cluster":      {"cluster_id": "green"},
		"system_sdwan_create_access_grant":     {"network_id": network, "user_id": w.AddPerson(t, "new@example.org", governance.RoleViewer).UserID},
	} {
		w.args[verb] = append(w.args[verb], args)
	}
	w.args["system_apply_template"] = append(w.args["system_apply_template"], toolstest.Object{"node_id": node, "purge_stale": true})
	w.View(t, func(ctx context.Context, v *store.View) error {
		all, err := store.Clusters(ctx, v, w.Account.ID)
		for _, c := range all {
			clusters = append(clusters, governance.Scope{ClusterID: c.ID})
		}
		lie, more := store.Networks(ctx, v, w.Account.ID)
		for _, n := range lie {
			networks = append(networks, governance.Scope{NetworkID: n.ID})
		}
		return errors.Join(err, more)
	})
	return clusters, networks
}

// TestPolicyOfOneClusterOrNetworkBindsOrIsRefused holds for every action category: a call that touches the cluster or network is
// stopped, or nobody can set such a policy.
func TestPolicyOfOneClusterOrNetworkBindsOrIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	clusters, networks := w.aimed(t)
	for _, category := range slices.Sorted(maps.Keys(governance.Defaults)) {
		listed := func(table string) bool { return slices.Contains(strings.Fields(table), category) }
		nowhere := listed(accountWide) || len(w.Platform.Governance.Gated(category)) == 0 && !listed(byAgents)
		t.Run(category+" of clusters", func(t *testing.T) { w.bindsOrIsRefused(t, category, clusters, nowhere || listed(outside)) })
		t.Run(category+" of networks", func(t *testing.T) { w.bindsOrIsRefused(t, category, networks, nowhere) })
	}
}

func (w *world) bindsOrIsRefused(t *testing.T, category string, scopes []governance.Scope, refused bool) {
	t.Helper()
	for _, scope := range scopes {
		err := setPolicy(t, w.Env, category, governance.Block, scope)
		if refused {
			if schema.CodeOf(err) != schema.InvalidArguments || !strings.Contains(err.Error(), "can't speak of one") {
				t.Errorf("set: %v, want it refused: its calls lie in none", err)
			}
			return
		}
		if err != nil {
			t.Fatalf("set: %v", err)
		}
		if w.blocks(t, category, scope) {
			return
		}
	}
	t.Error("no call is stopped by it")
}

// blocks says whether any of the world's calls is stopped by policies of a category; of the agent API's, whether a request from
// where the scope speaks of is.
func (w *world) blocks(t *testing.T, category string, scope governance.Scope) bool {
	t.Helper()
	platform := governance.PlatformCaller(w.Account.ID)
	if slices.Contains(strings.Fields(byAgents), category) {
		var verdict governance.Verdict
		w.View(t, func(ctx context.Context, v *store.View) (err error) {
			verdict, err = w.Platform.Governance.Decide(ctx, v, platform, category, func(context.Context, *store.View) (governance.Reach, error) {
				return governance.ReachOf(scope.ClusterID, scope.NetworkID), nil
			})
			return err
		})
		return verdict == governance.Block
	}
	for _, verb := range w.Platform.Governance.Gated(category) {
		d, _ := w.Platform.Lookup(verb.Name)
		for _, args := range w.args[verb.Name] {
			caller := w.callerOf(d)
			if category == "system.template_apply_drift" { // the platform's own remedy
				caller = platform
			}
			got := w.CallAs(t, caller, "platform_preview", toolstest.Object{"verb": verb.Name, "arguments": args})
			if strings.Contains(spelt(got["refusals"]), "Action "+category+" is blocked by policy") {
				return true
			}
			t.Logf("%s %s: %s", verb.Name, spelt(args), spelt(got["refusals"]))
		}
	}
	return false
}

// TestPolicyOfOneNetworkSaysNothingOfAnother: a machine in two networks needs what either asks for.
func TestPolicyOfOneNetworkSaysNothingOfAnother(t *testing.T) {
	t.Parallel()
	const category = "system.task.terminate"
	w := newLab(t)
	one, two := w.network(t, "one"), w.network(t, "two")
	instance, _ := w.member(t, one, "m-1")
	w.Call(t, "system_sdwan_attach_peer", toolstest.Object{"network_id": two, "node_instance_id": instance})
	other, _ := w.member(t, one, "m-2")
	of := func(network string) governance.Scope { return governance.Scope{NetworkID: store.NetworkID(network)} }
	verdict := func(id store.InstanceID) any {
		return at(t, w.Call(t, "platform_preview", toolstest.Object{"verb": "system_terminate_instance", "arguments": toolstest.Object{"instance_id": id}}),
			"policy", "verdict")
	}
	w.SetPolicy(t, category, governance.AutoApprove, of(one))
	if got, alone := verdict(instance), verdict(other); got != "require_approval" || alone != "auto_approve" {
		t.Errorf("with one of its networks loosened: %v; a machine in that one alone: %v", got, alone)
	}
	w.SetPolicy(t, category, governance.NotifyAndProceed, of(two))
	if got := verdict(instance); got != "notify_and_proceed" {
		t.Errorf("with both loosened, %v, want the stricter", got)
	}
	w.SetPolicy(t, category, governance.Block, of(two))
	if got := verdict(instance); got != "block" {
		t.Errorf("with one blocked, %v", got)
	}
	w.SetPolicy(t, category, governance.RequireApproval, governance.Scope{UserID: w.Person.ID})
	person := governance.PersonCaller(w.Person)
	got := w.CallAs(t, person, "platform_preview", toolstest.Object{"verb": "system_terminate_instance", "arguments": toolstest.Object{"instance_id": instance}})
	if at(t, got, "policy", "verdict") != "require_approval" {
		t.Errorf("a person's own policy is more specific than a network's: %s", spelt(got["policy"]))
	}
}

// TestPolicyOfOneClusterSaysNothingOfOtherNetworks: what a person loosened for a cluster is loosened for what lies there alone, and
// for nothing that only names it.
func TestPolicyOfOneClusterSaysNothingOfOtherNetworks(t *testing.T) {
	t.Parallel()
	w := newLab(t)
	one, two := w.network(t, "one"), w.network(t, "two")
	cluster := at(t, w.Call(t, "kubernetes_create_cluster", toolstest.Object{"name": "green", "network_id": one}), "cluster", "id").(string)
	inside, _ := w.member(t, one, "m-1")
	both, _ := w.member(t, one, "m-2")
	w.Call(t, "system_sdwan_attach_peer", toolstest.Object{"network_id": two, "node_instance_id": both})
	first, peer := w.member(t, one, "m-3") // that K3s is installed on
	beside, _ := w.member(t, two, "m-4")
	w.Update(t, func(ctx context.Context, tx *store.Tx) error {
		for _, id := range []store.InstanceID{inside, both} {
			i, err := store.InstanceByID(ctx, &tx.View, w.Account.ID, id)
			if err != nil {
				return err
			}
			err = store.InsertClusterNode(ctx, tx, store.ClusterNode{ID: store.ClusterNodeID(tx.NewID()), AccountID: w.Account.ID,
				ClusterID: store.ClusterID(cluster), InstanceID: i.ID, NodeID: i.NodeID, Name: i.Name, Role: "agent", Status: "active"})
			if err != nil {
				return err
			}
		}
		c, err := store.ClusterByID(ctx, &tx.View, w.Account.ID, store.ClusterID(cluster))
		if err != nil {
			return err
		}
		c.BootstrapInstanceID = first
		return store.UpdateCluster(ctx, tx, c)
	})
	for _, category := range []string{"system.task.terminate", "system.instance_update", "sdwan.virtual_ip_create"} {
		w.SetPolicy(t, category, governance.RequireApproval, governance.Scope{})
		w.SetPolicy(t, category, governance.AutoApprove, governance.Scope{ClusterID: store.ClusterID(cluster)})
	}
	ip := toolstest.Object{"network_id": one, "name": "fresh", "cidr": "auto", "holder_peer_ids": []any{peer["id"]}}
	for _, tt := range []struct {
		name, verb string
		args       toolstest.Object
		want       governance.Verdict
	}{
		{"a member", "system_terminate_instance", on(string(inside)), governance.AutoApprove},
		{"the first server", "system_sdwan_create_virtual_ip", ip, governance.AutoApprove},
		{"a member that is in another network too", "system_terminate_instance", on(string(both)), governance.RequireApproval},
		{"a machine whose config names the cluster", "system_update_instance", toolstest.Object{"instance_id": beside,
			"config": toolstest.Object{"target_cluster_id": cluster, "cluster_id": cluster}}, governance.RequireApproval},
	} {
		got := at(t, w.Call(t, "platform_preview", toolstest.Object{"verb": tt.verb, "arguments": tt.args}), "policy", "verdict")
		if got != string(tt.want) {
			t.Errorf("%s, of a cluster whose policy is loose: %v, want %s", tt.name, got, tt.want)
		}
	}
}
