package tools_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
	"powernode/tools"
	"powernode/tools/toolstest"
)

// world is an account that has one of everything, so that every verb has arguments it would run with.
type world struct {
	*lab
	host *host
	args map[string][]toolstest.Object // by verb; further ones are for its other categories
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{lab: newLab(t), host: newHost()}
	w.Platform.Fleet.Providers["local"] = w.host
	row := func(verb, list string) toolstest.Object { return objects(t, w.Call(t, verb, nil)[list])[0] }
	id := func(o any) string { return o.(toolstest.Object)["id"].(string) }

	platform, module := id(row("system_list_platforms", "platforms")), id(row("system_list_modules", "modules"))
	network := w.network(t, "tenant-a")
	instance, peer := w.member(t, network, "m-1")
	second, candidate := w.member(t, network, "m-2")
	third := w.machine(t, "m-3")
	node := string(w.nodeOf(t, instance))
	template := id(w.Call(t, "system_create_template", toolstest.Object{"name": "spare", "node_platform_id": platform})["template"])
	joined := id(w.Call(t, "system_create_template", toolstest.Object{"name": "joined", "node_platform_id": platform})["template"])
	w.Call(t, "system_assign_module_to_template", toolstest.Object{"template_id": joined, "module_id": module})
	own := id(w.Call(t, "system_create_module", toolstest.Object{"name": "own"})["module"])
	built := id(w.Call(t, "system_create_module_version", toolstest.Object{"module_id": own, "version": "1"})["version"])
	architecture := row("system_list_platforms", "platforms")["architecture_id"].(string)
	spare := id(w.Call(t, "system_create_node", toolstest.Object{"name": "spare", "template_id": joined})["node"])
	w.Call(t, "system_apply_template", toolstest.Object{"node_id": spare})
	assignment := id(w.Call(t, "system_list_node_module_assignments", toolstest.Object{"node_id": spare})["assignments"].([]any)[0])
	vip := id(w.Call(t, "system_sdwan_create_virtual_ip", toolstest.Object{"network_id": network, "name": "web", "cidr": "auto",
		"holder_peer_ids": []any{peer["id"]}, "failover_holder_peer_ids": []any{candidate["id"]}})["virtual_ip"])
	rule := id(w.Call(t, "system_sdwan_create_firewall_rule", toolstest.Object{"network_id": network, "name": "web"})["firewall_rule"])
	grant := w.revokedGrant(t, network)
	person := w.AddPerson(t, "eve@example.org", governance.RoleOperator)
	live := id(w.Call(t, "system_sdwan_create_access_grant", toolstest.Object{"network_id": network, "user_id": person.UserID})["grant"])
	w.Call(t, "system_sdwan_issue_user_device", toolstest.Object{"access_grant_id": live, "label": "laptop"})
	clusterNetwork, deletable := w.network(t, "tenant-b"), w.network(t, "empty")
	cluster := w.readyCluster(t, clusterNetwork)
	task := w.Call(t, "system_refresh_instance_modules", toolstest.Object{"instance_id": second})["task_id"]
	asleep, awake, held, aborted := w.resting(t)
	providers := id(row("system_list_providers", "providers"))
	admin := governance.PersonCaller(w.Person)
	unused := id(w.CallAs(t, admin, "system_create_provider", toolstest.Object{"name": "unused", "provider_type": "local"})["provider"])
	connection := id(w.CallAs(t, admin, "system_create_provider_connection", toolstest.Object{"provider_id": unused, "name": "main"})["connection"])

	with := func(args ...toolstest.Object) []toolstest.Object { return args }
	w.args = map[string][]toolstest.Object{
		"system_create_node":                       with(toolstest.Object{"name": "fresh", "template_id": template}),
		"system_update_node":                       with(toolstest.Object{"node_id": spare, "description": "x"}),
		"system_delete_node":                       with(toolstest.Object{"node_id": spare}),
		"system_provision_instance":                with(toolstest.Object{"node_id": spare, "provider_region_id": w.region, "provider_instance_type_id": w.kind}),
		"system_update_instance":                   with(toolstest.Object{"instance_id": instance, "description": "x"}),
		"system_terminate_instance":                with(toolstest.Object{"instance_id": instance}),
		"system_refresh_instance_modules":          with(toolstest.Object{"instance_id": instance}),
		"system_assign_module_to_node":             with(toolstest.Object{"node_id": node, "module_id": module}),
		"system_start_instance":                    with(toolstest.Object{"instance_id": asleep}),
		"system_stop_instance":                     with(toolstest.Object{"instance_id": awake}, toolstest.Object{"instance_id": awake, "force": true}),
		"system_reboot_instance":                   with(toolstest.Object{"instance_id": awake}, toolstest.Object{"instance_id": awake, "force": true}),
		"system_destroy_instance":                  with(toolstest.Object{"instance_id": third}),
		"system_drain_instance":                    with(toolstest.Object{"instance_id": third}),
		"system_cordon_instance":                   with(toolstest.Object{"instance_id": third, "reason": "x"}),
		"system_uncordon_instance":                 with(toolstest.Object{"instance_id": asleep}),
		"system_instance_hold":                     with(toolstest.Object{"instance_id": third, "reason": "x"}),
		"system_release_instance_hold":             with(toolstest.Object{"instance_id": held}),
		"system_replace_instance":                  with(toolstest.Object{"instance_id": third, "operation_id": "x"}),
		"system_reap_instance":                     with(toolstest.Object{"instance_id": third, "operation_id": "x"}),
		"system_cancel_task":                       with(toolstest.Object{"id": task}),
		"system_abort_task":                        with(toolstest.Object{"id": aborted}),
		"system_create_template":                   with(toolstest.Object{"name": "fresh", "node_platform_id": platform}),
		"system_delete_template":                   with(toolstest.Object{"template_id": template}),
		"system_assign_module_to_template":         with(toolstest.Object{"template_id": template, "module_id": module}),
		"system_update_template_module":            with(toolstest.Object{"template_id": joined, "module_id": module, "priority": 7}),
		"system_update_module_assignment":          with(toolstest.Object{"assignment_id": assignment, "priority": 7}),
		"system_apply_template":                    with(toolstest.Object{"node_id": spare}, toolstest.Object{"node_id": spare, "purge_stale": true}),
		"system_create_module_version":             with(toolstest.Object{"module_id": module, "version": "x"}, toolstest.Object{"module_id": module, "version": "x", "make_current": true}),
		"system_sdwan_create_network":              with(toolstest.Object{"name": "fresh"}),
		"system_sdwan_update_network":              with(toolstest.Object{"network_id": network, "options": toolstest.Object{"description": "x"}}),
		"system_sdwan_delete_network":              with(toolstest.Object{"network_id": deletable}),
		"system_sdwan_attach_peer":                 with(toolstest.Object{"network_id": network, "node_instance_id": third}),
		"system_sdwan_detach_peer":                 with(toolstest.Object{"peer_id": candidate["id"]}),
		"system_sdwan_create_access_grant":         with(toolstest.Object{"network_id": deletable, "user_id": w.Person.ID}, toolstest.Object{"network_id": network, "user_id": w.Person.ID}),
		"system_sdwan_create_firewall_rule":        with(toolstest.Object{"network_id": network, "name": "fresh"}),
		"system_sdwan_create_virtual_ip":           with(toolstest.Object{"network_id": network, "name": "fresh", "cidr": "auto", "holder_peer_ids": []any{}}),
		"system_sdwan_failover_virtual_ip":         with(toolstest.Object{"virtual_ip_id": vip}),
		"system_sdwan_issue_user_device":           with(toolstest.Object{"access_grant_id": live, "label": "phone"}),
		"system_sdwan_update_network_routing_mode": with(toolstest.Object{"network_id": network, "routing_protocol": "static"}),
		"kubernetes_create_cluster":                with(toolstest.Object{"name": "fresh", "network_id": clusterNetwork}),
		"kubernetes_decommission_cluster":          with(toolstest.Object{"cluster_id": cluster}),
		"kubernetes_get_kubeconfig":                with(toolstest.Object{"cluster_id": cluster}),
		"request_confirmation": with(toolstest.Object{"action_description": "x", "tool_name": "system_create_node",
			"tool_arguments": toolstest.Object{"name": "fresh", "template_id": template}}),

		"system_update_template":               with(toolstest.Object{"template_id": template, "description": "x"}),
		"system_clone_template":                with(toolstest.Object{"template_id": joined}),
		"system_unassign_module_from_template": with(toolstest.Object{"template_id": joined, "module_id": module}),
		"system_compose_preview_template":      with(toolstest.Object{"module_ids": []any{module}}),
		"system_discover_templates":            with(toolstest.Object{"intent": "a kubernetes worker"}),
		"system_discover_modules":              with(toolstest.Object{"intent": "a kubernetes worker"}),
		"system_create_module":                 with(toolstest.Object{"name": "fresh"}),
		"system_update_module":                 with(toolstest.Object{"module_id": own, "description": "x"}),
		"system_delete_module":                 with(toolstest.Object{"module_id": own}),
		"system_set_current_module_version":    with(toolstest.Object{"module_id": own, "module_version_id": built}),
		"system_promote_module_version":        with(toolstest.Object{"module_version_id": built, "target_state": "staging"}),
		"system_rollback_module_version":       with(toolstest.Object{"module_id": own, "version_id": built}),
		"system_module_diff":                   with(toolstest.Object{"version_a_id": built, "version_b_id": built}),
		"system_validate_module_manifest":      with(toolstest.Object{"module_id": own, "manifest_yaml": "packages: [jq]"}),
		"system_plan_rolling_module_upgrade":   with(toolstest.Object{"template_id": joined, "module_id": own, "target_version_id": built}),
		"system_create_platform":               with(toolstest.Object{"name": "fresh", "architecture_id": architecture}),
		"system_list_architectures":            with(toolstest.Object{}),
		"system_get_architecture":              with(toolstest.Object{"architecture_id": architecture}),

		"system_create_provider":               with(toolstest.Object{"name": "fresh", "provider_type": "local"}),
		"system_update_provider":               with(toolstest.Object{"id": unused, "description": "x"}),
		"system_delete_provider":               with(toolstest.Object{"id": unused}),
		"system_create_provider_connection":    with(toolstest.Object{"provider_id": unused, "name": "fresh"}),
		"system_update_provider_connection":    with(toolstest.Object{"id": connection, "description": "x"}),
		"system_get_provider_connection":       with(toolstest.Object{"id": connection}),
		"system_list_provider_connections":     with(toolstest.Object{}),
		"system_create_provider_region":        with(toolstest.Object{"provider_id": unused, "name": "fresh"}),
		"system_create_provider_instance_type": with(toolstest.Object{"provider_id": unused, "name": "fresh"}),

		"system_list_nodes":                       with(toolstest.Object{}),
		"system_get_node":                         with(toolstest.Object{"node_id": node}),
		"system_list_instances":                   with(toolstest.Object{}),
		"system_get_instance":                     with(toolstest.Object{"instance_id": instance}),
		"system_list_node_module_assignments":     with(toolstest.Object{"node_id": spare}),
		"system_list_tasks":                       with(toolstest.Object{}),
		"system_instance_hold_status":             with(toolstest.Object{"instance_id": instance}),
		"system_get_silent_instances":             with(toolstest.Object{}),
		"system_drift_report":                     with(toolstest.Object{"instance_id": instance}),
		"system_get_task":                         with(toolstest.Object{"id": task}),
		"system_list_templates":                   with(toolstest.Object{}),
		"system_get_template":                     with(toolstest.Object{"template_id": joined}),
		"system_list_modules":                     with(toolstest.Object{}),
		"system_get_module":                       with(toolstest.Object{"module_id": module}),
		"system_list_module_versions":             with(toolstest.Object{"module_id": module}),
		"system_list_platforms":                   with(toolstest.Object{}),
		"system_list_providers":                   with(toolstest.Object{}),
		"system_get_provider":                     with(toolstest.Object{"id": providers}),
		"system_list_regions":                     with(toolstest.Object{}),
		"system_list_instance_types":              with(toolstest.Object{}),
		"system_sdwan_list_networks":              with(toolstest.Object{}),
		"system_sdwan_get_network":                with(toolstest.Object{"network_id": network}),
		"system_sdwan_list_peers":                 with(toolstest.Object{"network_id": network}),
		"system_sdwan_get_peer":                   with(toolstest.Object{"peer_id": peer["id"]}),
		"system_sdwan_list_firewall_rules":        with(toolstest.Object{"network_id": network}),
		"system_sdwan_get_firewall_rule":          with(toolstest.Object{"firewall_rule_id": rule}),
		"system_sdwan_get_routing_summary":        with(toolstest.Object{"network_id": network}),
		"system_sdwan_get_virtual_ip":             with(toolstest.Object{"virtual_ip_id": vip}),
		"system_sdwan_get_device_config":          with(toolstest.Object{"user_id": person.UserID, "label": "laptop"}),
		"system_sdwan_verify_isolation":           with(toolstest.Object{"network_ids": []any{deletable}}),
		"kubernetes_list_clusters":                with(toolstest.Object{}),
		"kubernetes_get_cluster":                  with(toolstest.Object{"cluster_id": cluster}),
		"kubernetes_list_nodes":                   with(toolstest.Object{"cluster_id": cluster}),
		"kubernetes_list_decommissioned_clusters": with(toolstest.Object{}),
		"recent_events":                           with(toolstest.Object{}),
		"system_recent_signals":                   with(toolstest.Object{}),
		"system_watch_signals":                    with(toolstest.Object{}),
		"system_inspect_correlation":              with(toolstest.Object{"correlation_id": "x"}),
		"system_attribute_failure":                with(toolstest.Object{"instance_id": instance}),
		"system_get_sensor_config":                with(toolstest.Object{}),
		"system_update_sensor_config":             with(toolstest.Object{"sensor": "instance_liveness", "config": toolstest.Object{"threshold_seconds": 300}}),
		"platform_list_policies":                  with(toolstest.Object{}),
		"platform_audit_log":                      with(toolstest.Object{}),
		"platform_search_verbs":                   with(toolstest.Object{"query": "a network of its own"}),
		"platform_call_verb":                      with(toolstest.Object{"verb": "system_create_node", "arguments": toolstest.Object{"name": "fresh", "template_id": template}}),
		"platform_emergency_stop":                 with(toolstest.Object{"reason": "x"}),
		"platform_resume":                         with(toolstest.Object{"reason": "x"}),
		"platform_whoami":                         with(toolstest.Object{}),
		"platform_preview":                        with(toolstest.Object{"verb": "system_create_node", "arguments": toolstest.Object{"name": "fresh", "template_id": template}}),
		"platform_list_operations":                with(toolstest.Object{}),
		"platform_get_operation":                  with(toolstest.Object{"deferred_operation_id": grant}),
	}
	return w
}

func (l *lab) nodeOf(t *testing.T, id store.InstanceID) (node store.NodeID) {
	t.Helper()
	l.View(t, func(ctx context.Context, v *store.View) error {
		i, err := store.InstanceByID(ctx, v, l.Account.ID, id)
		node = i.NodeID
		return err
	})
	return node
}

// revokedGrant leaves the person a grant that was revoked, and parks the call that would bring it back; it answers the
// parked operation.
func (l *lab) revokedGrant(t *testing.T, network string) store.OperationID {
	t.Helper()
	args := toolstest.Object{"network_id": network, "user_id": l.Person.ID}
	grant := l.Call(t, "system_sdwan_create_access_grant", args)["grant"].(toolstest.Object)
	l.Update(t, func(ctx context.Context, tx *store.Tx) error {
		g, err := store.AccessGrantByID(ctx, &tx.View, l.Account.ID, store.AccessGrantID(grant["id"].(string)))
		if err != nil {
			return err
		}
		now := store.At(tx.Now())
		g.Status, g.RevokedAt = "revoked", &now
		return store.UpdateAccessGrant(ctx, tx, g)
	})
	return l.Parked(t, "system_sdwan_create_access_grant", args)
}

const kubeconfigSecret = "c2VjcmV0LWtleS1vZi1hbi1hZG1pbmlzdHJhdG9y"

// readyCluster makes a cluster whose first server has reported its kubeconfig.
func (l *lab) readyCluster(t *testing.T, network string) string {
	t.Helper()
	id := at(t, l.Call(t, "kubernetes_create_cluster", toolstest.Object{"name": "blue", "network_id": network}), "cluster", "id").(string)
	l.Update(t, func(ctx context.Context, tx *store.Tx) error {
		c, err := store.ClusterByID(ctx, &tx.View, l.Account.ID, store.ClusterID(id))
		if err != nil {
			return err
		}
		c.Status = "active"
		c.Kubeconfig, err = l.Platform.Sealer.Seal(tx, "clusters:"+id+":kubeconfig", []byte(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config",
			"clusters": [{"name": "default", "cluster": {"server": "https://127.0.0.1:6443", "certificate-authority-data": "Y2E="}}],
			"users": [{"name": "default", "user": {"client-certificate-data": "Y2VydA==", "client-key-data": %q}}],
			"contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}], "current-context": "default"}`, kubeconfigSecret)))
		if err != nil {
			return err
		}
		return store.UpdateCluster(ctx, tx, c)
	})
	return id
}

// callerOf is who may call a verb: the account's agent, or an administrator where the agent may not.
func (w *world) callerOf(d *tools.Definition) tools.Caller {
	if governance.Permits(w.Caller, d.Contract().Permission) && !d.Contract().HumanOnly {
		return w.Caller
	}
	return governance.PersonCaller(w.Person)
}

// stopped puts the account under an emergency stop, which the answer ends as a person does.
func (l *lab) stopped(t *testing.T) (end func()) {
	t.Helper()
	on := func() (on bool) {
		l.View(t, func(ctx context.Context, v *store.View) error {
			e, err := l.Platform.Governance.Stopped(ctx, v, l.Account.ID)
			on = e != nil
			return err
		})
		return on
	}
	if on() {
		return func() {}
	}
	l.Update(t, func(ctx context.Context, tx *store.Tx) error {
		_, err := l.Platform.Governance.Stop(ctx, tx, l.Account.ID, "x")
		return err
	})
	return func() {
		if !on() { // the test has ended it
			return
		}
		l.SetPolicy(t, "platform.resume", governance.RequireApproval, governance.Scope{})
		l.Resume(t, "x")
	}
}

// walk gives every verb with its arguments to a test of its own, in order.
func (w *world) walk(t *testing.T, visit func(t *testing.T, d *tools.Definition, args toolstest.Object)) {
	t.Helper()
	for _, d := range w.Platform.Verbs() {
		if len(w.args[d.Name()]) == 0 {
			t.Errorf("no arguments for %s: every verb is walked", d.Name())
		}
		for i, args := range w.args[d.Name()] {
			t.Run(fmt.Sprintf("%s %d", d.Name(), i), func(t *testing.T) {
				if d.Name() == governance.VerbResume { // it needs what it ends
					defer w.stopped(t)()
				}
				visit(t, d, args)
			})
		}
	}
}

func TestBlockStopsEveryVerbThatWrites(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, d := range w.Platform.Verbs() {
		for _, category := range append(slices.Clone(d.Contract().Escalates), d.Contract().Category) {
			if category != "" {
				w.SetPolicy(t, category, governance.Block, governance.Scope{})
			}
		}
	}
	operations := len(w.Call(t, "platform_list_operations", nil)["operations"].([]any))
	machines, walked := len(w.host.machines), 0
	w.walk(t, func(t *testing.T, d *tools.Definition, args toolstest.Object) {
		if c := d.Contract(); c.Annotations.ReadOnly && c.Category == "" {
			return
		}
		walked++
		w.RefusedAs(t, w.callerOf(d), d.Name(), args, schema.BlockedByPolicy, "is blocked by policy")
		if !d.Contract().Gated() { // what it carries is
			return
		}
		preview := w.CallAs(t, w.callerOf(d), "platform_preview", toolstest.Object{"verb": d.Name(), "arguments": args})
		if refusals := objects(t, preview["refusals"]); len(refusals) != 1 || refusals[0]["code"] != "blocked_by_policy" || preview["plan_digest"] != nil {
			t.Errorf("its preview is %s, want a refusal by policy", spelt(preview))
		}
	})
	if walked < 29 {
		t.Errorf("only %d calls were walked", walked)
	}
	if n := len(w.Call(t, "platform_list_operations", nil)["operations"].([]any)); n != operations {
		t.Errorf("%d operations, want the %d from before", n, operations)
	}
	if n := w.host.count(); n != machines {
		t.Errorf("%d machines, want %d", n, machines)
	}
}

func TestViewerReadsAndWritesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	viewer := w.AddPerson(t, "vi@example.org", governance.RoleViewer)
	w.walk(t, func(t *testing.T, d *tools.Definition, args toolstest.Object) {
		c := d.Contract()
		switch {
		case !slices.Contains(governance.Permissions[c.Permission], governance.RoleViewer):
			w.RefusedAs(t, viewer, d.Name(), args, schema.PermissionDenied, "permission denied: "+c.Permission+" required")
		case d.Name() == "request_confirmation", d.Name() == "platform_call_verb":
			w.RefusedAs(t, viewer, d.Name(), args, schema.PermissionDenied, "permission denied: system.nodes.create required")
		case d.Name() == "system_sdwan_get_device_config":
			w.RefusedAs(t, viewer, d.Name(), args, schema.PermissionDenied, "permission denied")
		case d.Name() == "platform_get_operation":
			w.RefusedAs(t, viewer, d.Name(), args, schema.NotFound, "operation not found")
		case !c.Annotations.ReadOnly:
			t.Errorf("a viewer may call %s, which writes", d.Name())
		default:
			before := w.Revision(t)
			w.CallAs(t, viewer, d.Name(), args)
			if after := w.Revision(t); after != before {
				t.Errorf("reading moved the revision from %d to %d", before, after)
			}
		}
	})
}

// hasIDs says whether arguments name something that exists.
func hasIDs(args toolstest.Object) bool {
	for key, value := range args {
		if nested, ok := value.(toolstest.Object); ok && hasIDs(nested) {
			return true
		}
		if key == "correlation_id" { // of calls; nothing is named by it
			continue
		}
		if key == "id" || strings.HasSuffix(key, "_id") || strings.HasSuffix(key, "_ids") && len(value.([]any)) > 0 {
			return true
		}
	}
	return false
}

func TestForeignIDsAreNotFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	foreign := w.AddAccount(t, "other", "fd5e:8a21:c0df::/48").ID
	w.walk(t, func(t *testing.T, d *tools.Definition, args toolstest.Object) {
		other := w.callerOf(d)
		if other.AccountID = foreign; other.Kind == governance.KindAgent {
			other = governance.AgentCaller(foreign)
		}
		switch {
		case !hasIDs(args):
			return
		case d.Name() == "platform_preview":
			got := w.CallAs(t, other, d.Name(), args)
			if refusals := objects(t, got["refusals"]); len(refusals) != 1 || refusals[0]["code"] != "not_found" {
				t.Errorf("preview %s, want a refusal not_found", spelt(got))
			}
			return
		case d.Name() == "system_get_architecture", d.Name() == "system_create_platform": // architectures are the installation's
			return
		case d.Name() == "system_sdwan_get_device_config": // nobody but its own person, here or elsewhere
			w.RefusedAs(t, other, d.Name(), args, schema.PermissionDenied, "the caller's own devices alone")
			return
		}
		w.RefusedAs(t, other, d.Name(), args, schema.NotFound, "")
	})
}

// TestSecretsStandInNoRow hands every kind of secret out, parked and not, and looks for it in all that the store has
// written.
func TestSecretsStandInNoRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.Platform.Fleet
	f.PlatformURLs = func() []string { return []string{"https://10.127.0.1:7443"} }
	secrets := map[string]string{"a kubeconfig's key": kubeconfigSecret}
	read := func(verb string, how func(args toolstest.Object) toolstest.Object) toolstest.Object {
		return how(w.args[verb][0])
	}
	approved := func(verb string) func(toolstest.Object) toolstest.Object {
		return func(args toolstest.Object) toolstest.Object { return w.Approve(t, w.Parked(t, verb, args)) }
	}
	if got := w.Call(t, "kubernetes_get_kubeconfig", w.args["kubernetes_get_kubeconfig"][0]); !strings.Contains(spelt(got), kubeconfigSecret) {
		t.Fatalf("no credential in %s", spelt(got))
	}
	for _, category := range []string{"system.runtime_k8s_kubeconfig_read", "sdwan.user_device_create", "system.instance_provision"} {
		w.SetPolicy(t, category, governance.RequireApproval, governance.Scope{})
	}
	if got := read("kubernetes_get_kubeconfig", approved("kubernetes_get_kubeconfig")); !strings.Contains(spelt(got), kubeconfigSecret) {
		t.Errorf("its requester reads no credential in %s", spelt(got))
	}
	secrets["a device's bootstrap token"] = tokenOf(t, read("system_sdwan_issue_user_device", approved("system_sdwan_issue_user_device")))
	read("system_provision_instance", approved("system_provision_instance"))
	var enrolment struct{ Token string }
	if err := json.Unmarshal(w.host.created[0].Enrollment, &enrolment); err != nil {
		t.Fatal(err)
	}
	secrets["an enrolment token"] = enrolment.Token
	w.View(t, func(ctx context.Context, v *store.View) error {
		c, err := store.ClusterByRef(ctx, v, w.Account.ID, "blue")
		if err != nil {
			return err
		}
		for kind, sealed := range map[string][]byte{"server": c.ServerToken, "agent": c.AgentToken} {
			opened, err := w.Platform.Sealer.Open("clusters:"+string(c.ID)+":"+kind+"_token", sealed)
			if err != nil {
				return err
			}
			secrets["a cluster's "+kind+" token"] = string(opened)
		}
		return nil
	})
	w.events(t) // also those that are held back
	files, err := filepath.Glob(filepath.Join(filepath.Dir(t.TempDir()), "*", "powernode.db*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no database to look into: %v", err)
	}
	looked := false
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for what, secret := range secrets {
			if len(secret) < 16 {
				t.Errorf("%s is %q", what, secret)
			}
			if bytes.Contains(raw, []byte(secret)) || bytes.Contains(raw, []byte(base64.StdEncoding.EncodeToString([]byte(secret)))) {
				t.Errorf("%s stands in %s", what, filepath.Base(file))
			}
		}
		looked = looked || bytes.Contains(raw, []byte("tenant-a"))
	}
	if !looked {
		t.Errorf("the network stands in none of %v: these are not the database", files)
	}
}

func (l *lab) events(t *testing.T) {
	t.Helper()
	if err := l.Platform.FlushReads(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// auditTypes are the resource types that the contract names (§7).
var auditTypes = map[string]string{
	"System::": "Node NodeInstance NodeTemplate TemplateModule NodeModule NodeModuleVersion NodeModuleAssignment NodePlatform Task InstancePool " +
		"Provider ProviderConnection ProviderRegion ProviderInstanceType SensorConfig",
	"Sdwan::":      "Network Peer VirtualIp FirewallRule RoutePolicy PortMapping AccessGrant UserDevice FederationPeer AccountBgp",
	"Devops::":     "KubernetesCluster KubernetesNode KubernetesSnapshot KubernetesUpgrade KubernetesCredential",
	"Governance::": "Operation Policy EmergencyStop Account User Token",
}

func TestEveryWriteHasAuditRowsOfTheContractsTypes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	known := map[string]bool{}
	for prefix, names := range auditTypes {
		for _, name := range strings.Fields(names) {
			known[prefix+name] = true
		}
	}
	changesNothing := map[string]bool{
		"system_sdwan_update_network_routing_mode": true, // it is static, and stays so
		"system_apply_template":                    true, // it was applied
	}
	w.walk(t, func(t *testing.T, d *tools.Definition, args toolstest.Object) {
		if !d.Contract().Gated() {
			return
		}
		before := w.Revision(t)
		preview := w.CallAs(t, w.callerOf(d), "platform_preview", toolstest.Object{"verb": d.Name(), "arguments": args})
		if refusals := preview["refusals"].([]any); len(refusals) > 0 {
			t.Fatalf("refused: %s", spelt(refusals))
		}
		effects := objects(t, preview["effects"])
		if len(effects) == 0 && !changesNothing[d.Name()] {
			t.Error("it leaves no audit row")
		}
		for _, e := range effects {
			if !known[e["resource_type"].(string)] {
				t.Errorf("an audit row is about a %s, which the contract doesn't name", e["resource_type"])
			}
		}
		if after := w.Revision(t); after != before {
			t.Errorf("the preview moved the revision from %d to %d", before, after)
		}
	})
}
