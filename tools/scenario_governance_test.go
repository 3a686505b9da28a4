package tools_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"powernode/platform/cluster"
	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
	"powernode/tools"
	"powernode/tools/toolstest"
)

// Scenario 21: the kubeconfig of a declared cluster is called as the cluster, not as its server.
func TestKubeconfigOfADeclaredClusterHasTheClustersName(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := l.network(t, "tenant-a")
	id := at(t, l.Call(t, "kubernetes_create_cluster", toolstest.Object{"name": "prod", "network_id": a}), "cluster", "id")
	server := l.machine(t, "s-1")
	l.attach(t, a, server)
	l.assign(t, server, cluster.ModuleServer, id)
	l.activate(t, server, "s-1")
	config := l.Call(t, "kubernetes_get_kubeconfig", toolstest.Object{"cluster_id": id})["kubeconfig"].(string)
	if !strings.Contains(config, "current-context: prod\n") || strings.Contains(config, "s-1") {
		t.Errorf("the kubeconfig is not the cluster's:\n%s", config)
	}
	toolstest.Has(t, toolstest.Object{"count": 1.0}, l.Call(t, "kubernetes_list_clusters", nil))
}

// Scenario 56: the files of two clusters merge into one with two contexts, because no name in them is another's.
func TestKubeconfigsOfTwoClustersShareNoName(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	named := func(list any) (out []string) {
		for _, each := range list.([]any) {
			out = append(out, each.(map[string]any)["name"].(string))
		}
		return out
	}
	for network, server := range map[string]string{"tenant-a": "a-1", "tenant-b": "b-1"} {
		l.activate(t, l.server(t, l.network(t, network), server), server)
		answer := l.Call(t, "kubernetes_get_kubeconfig", toolstest.Object{"cluster_id": server})
		var file map[string]any
		if err := yaml.Unmarshal([]byte(answer["kubeconfig"].(string)), &file); err != nil {
			t.Fatal(err)
		}
		for _, list := range []string{"clusters", "users", "contexts"} {
			if diff := cmp.Diff([]string{server}, named(file[list])); diff != "" {
				t.Errorf("%s of %s (-want +got):\n%s", list, server, diff)
			}
		}
		address := file["clusters"].([]any)[0].(map[string]any)["cluster"].(map[string]any)["server"]
		if address != answer["api_endpoint"] || file["current-context"] != server {
			t.Errorf("server %v, context %v; want %v and %s", address, file["current-context"], answer["api_endpoint"], server)
		}
	}
}

// Scenario 40.
func TestImpossibleDestructiveCallsAreRefusedBeforeAnybodyIsAsked(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	network, _ := p.up(t, "tenant-a", "a-1")
	empty := p.lab.network(t, "empty")
	template := p.template(t, "used")
	node := p.node(t, "n", template)
	id := p.provision(t, node)
	hints(t, p.Refused(t, "system_sdwan_delete_network", toolstest.Object{"network_id": network}, schema.PreconditionFailed, "network is used by cluster(s) a-1"),
		"kubernetes_decommission_cluster")
	hints(t, p.Refused(t, "system_delete_template", toolstest.Object{"template_id": template}, schema.PreconditionFailed, "template 'used' is in use by 1 node(s)"),
		"system_update_node")
	hints(t, p.Refused(t, "system_delete_node", toolstest.Object{"node_id": node}, schema.PreconditionFailed, "1 live instance"), "system_terminate_instance")
	toolstest.Has(t, toolstest.Object{"count": 0.0}, p.Call(t, "platform_list_operations", nil))
	for _, parks := range []struct{ verb, key, id, category string }{
		{"system_terminate_instance", "instance_id", id, "system.task.terminate"},
		{"system_sdwan_delete_network", "network_id", empty, "sdwan.network_delete"},
	} {
		got := p.Call(t, parks.verb, toolstest.Object{parks.key: parks.id})
		toolstest.Has(t, toolstest.Object{"pending": true, "action_category": parks.category}, got)
	}
	toolstest.Has(t, toolstest.Object{"instance": toolstest.Object{"status": "provisioning"}}, p.Call(t, "system_get_instance", toolstest.Object{"instance_id": id}))
	p.Call(t, "system_sdwan_get_network", toolstest.Object{"network_id": empty})
}

// Scenario 46.
func TestBootstrapIsWatchedBySignalsAndByThemAlone(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := l.server(t, l.network(t, "tenant-a"), "a-1")
	const watch = "system_watch_signals"
	args := func(after any, wait int) toolstest.Object {
		out := toolstest.Object{"kind_prefix": "system.k3s", "wait_seconds": wait, "severity_min": "low"}
		if after != nil {
			out["after"] = after
		}
		return out
	}
	place := l.Call(t, watch, args(nil, 0))["next_after"]
	if refusal := l.join(t, server, cluster.RoleServer); refusal != nil {
		t.Fatal(refusal.Message)
	}
	const wait = 30 // seconds; far longer than a wake-up takes, on whatever host
	began := l.Call(t, watch, args(place, wait))
	if kinds := kindsOf(t, began); !slices.Contains(kinds, "system.k3s_cluster_bootstrapping") {
		t.Fatalf("watched %v, want the bootstrapping", kinds)
	}
	type answer struct {
		result tools.Result
		err    error
		at     time.Time
	}
	answers := make(chan answer, 1)
	go func() {
		r, err := l.Platform.Call(t.Context(), l.Caller, request(watch, args(began["next_after"], wait)))
		answers <- answer{r, err, time.Now()}
	}()
	l.activate(t, server, "a-1")
	committed := time.Now()
	got := <-answers
	if got.err != nil {
		t.Fatal(got.err)
	}
	// Woken, and not back from its wait.
	if late := got.at.Sub(committed); late > wait*time.Second/2 {
		t.Errorf("the watcher was told %s after the bootstrap", late)
	}
	first := decoded(t, got.result.JSON)
	toolstest.Has(t, toolstest.Object{"timed_out": false}, first)
	rest := l.Call(t, watch, args(first["next_after"], 0))
	again := l.Call(t, watch, args(rest["next_after"], 0))
	toolstest.Has(t, toolstest.Object{"events": []any{}, "count": 0.0, "timed_out": true}, again)
	seen := map[any]int{}
	for _, e := range append(objects(t, first["events"]), objects(t, rest["events"])...) {
		seen[e["id"]]++
		if seen[e["id"]] > 1 {
			t.Errorf("signal %s came twice", spelt(e))
		}
	}
	if kinds := append(kindsOf(t, first), kindsOf(t, rest)...); !slices.Contains(kinds, "system.k3s_cluster_bootstrapped") {
		t.Errorf("watched %v, want the bootstrap's end", kinds)
	}
	for _, e := range objects(t, l.Call(t, "recent_events", toolstest.Object{"limit": 200})["events"]) {
		if kind := e["event_type"].(string); strings.Contains(kind, ".") {
			t.Errorf("recent_events has %s, which is a signal's kind", kind)
		}
	}
}

func kindsOf(t *testing.T, answer toolstest.Object) (kinds []string) {
	t.Helper()
	for _, e := range objects(t, answer["events"]) {
		kinds = append(kinds, e["kind"].(string))
	}
	return kinds
}

// Scenario 47.
func TestConfirmationIsAskedForWhatAnAssistantMayAskFor(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.activate(t, l.server(t, l.network(t, "tenant-a"), "a-1"), "a-1")
	ask := func(verb string, args toolstest.Object) toolstest.Object {
		return toolstest.Object{"action_description": "the tenant has left", "tool_name": verb, "tool_arguments": args}
	}
	l.Refused(t, "request_confirmation", ask("kubernetes_decommission_cluster", toolstest.Object{"cluster_id": "nowhere"}), schema.NotFound, "Kubernetes cluster not found: nowhere")
	l.Refused(t, "request_confirmation", ask("platform_emergency_stop", toolstest.Object{"reason": "x"}), schema.PermissionDenied, "a human credential is required")
	l.Refused(t, "request_confirmation", ask("kubernetes_list_nodes", toolstest.Object{"cluster_id": "a-1"}), schema.InvalidArguments, "has no action category")
	toolstest.Has(t, toolstest.Object{"count": 0.0}, l.Call(t, "platform_list_operations", nil))

	got := l.Call(t, "request_confirmation", ask("kubernetes_decommission_cluster", toolstest.Object{"cluster_id": "a-1"}))
	toolstest.Has(t, toolstest.Object{"status": "confirmation_requested", "action_category": "system.runtime_k8s_cluster_decommission"}, got)
	id := store.OperationID(got["deferred_operation_id"].(string))
	toolstest.Has(t, toolstest.Object{"status": "pending", "verb": "kubernetes_decommission_cluster", "plan_digest": got["plan_digest"]}, operation(t, l.Env, id))
	toolstest.Has(t, toolstest.Object{"status": "active"}, l.cluster(t, "a-1"))
	toolstest.Has(t, toolstest.Object{"decommissioned": true}, l.Approve(t, id))
}

// Scenario 48.
func TestWhatWasPreviewedIsWhatTheApprovedCallDoes(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := l.network(t, "tenant-a")
	l.activate(t, l.server(t, a, "a-1"), "a-1")
	args := toolstest.Object{"cluster_id": "a-1"}
	preview := func() toolstest.Object {
		return l.Call(t, "platform_preview", toolstest.Object{"verb": "kubernetes_decommission_cluster", "arguments": args})
	}
	before := preview()
	id := l.Parked(t, "kubernetes_decommission_cluster", args)
	worker := l.machine(t, "w-1")
	l.attach(t, a, worker)
	l.assign(t, worker, cluster.ModuleAgent, "")
	if r := l.join(t, worker, cluster.RoleAgent); r != nil {
		t.Fatal(r.Message)
	}
	if err := l.Decide(t, id, governance.Approve); schema.CodeOf(err) != schema.Conflict || !strings.Contains(err.Error(), "plan is stale") {
		t.Errorf("approved after a node joined: %v, want plan is stale", err)
	}
	toolstest.Has(t, toolstest.Object{"status": "stale", "plan_digest": before["plan_digest"]}, operation(t, l.Env, id))

	now := preview()
	if now["plan_digest"] == before["plan_digest"] {
		t.Error("the plan with one more node has the same digest")
	}
	id = l.Parked(t, "kubernetes_decommission_cluster", args)
	toolstest.Has(t, toolstest.Object{"plan_digest": now["plan_digest"]}, operation(t, l.Env, id))
	l.Approve(t, id)
	foreseen := map[string]int{}
	for _, e := range objects(t, now["effects"]) {
		foreseen[e["action"].(string)+" "+e["resource_type"].(string)]++
	}
	done := map[string]int{}
	for _, e := range objects(t, l.Call(t, "platform_audit_log", toolstest.Object{"limit": 500})["entries"]) {
		if e["operation_id"] == string(id) && !strings.HasPrefix(e["resource_type"].(string), "Governance::") {
			done[e["action"].(string)+" "+e["resource_type"].(string)]++
		}
	}
	if diff := cmp.Diff(foreseen, done); diff != "" {
		t.Errorf("effects (-previewed +done):\n%s", diff)
	}
	if n := foreseen["deleted Devops::KubernetesCluster"]; n != 1 {
		t.Errorf("the preview foresees %v", foreseen)
	}
}

// Scenario 49.
func TestDeletedClusterIsInTheRecordUnderBothSpellings(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	id := at(t, l.Call(t, "kubernetes_create_cluster", toolstest.Object{"name": "a", "network_id": l.network(t, "tenant-a")}), "cluster", "id")
	l.Approve(t, l.Parked(t, "kubernetes_decommission_cluster", toolstest.Object{"cluster_id": "a"}))
	read := func(spelling string) []toolstest.Object {
		return objects(t, l.Call(t, "platform_audit_log", toolstest.Object{"resource_type": spelling, "action": "deleted"})["entries"])
	}
	bare, full := read("KubernetesCluster"), read("Devops::KubernetesCluster")
	if len(bare) != 1 || spelt(bare) != spelt(full) {
		t.Fatalf("read %s and %s, want one row, the same", spelt(bare), spelt(full))
	}
	toolstest.Has(t, toolstest.Object{"resource_id": id, "resource_type": "Devops::KubernetesCluster", "verb": "kubernetes_decommission_cluster",
		"old_values": toolstest.Object{"name": "a", "slug": "a", "environment": "custom", "node_count": 0.0}}, bare[0])
	proved(t, l.Env)
}

// Scenario 50.
func TestEmergencyStopIsAPersonsAndEndsWithThem(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	person := governance.PersonCaller(env.Person)
	for _, verb := range []string{"platform_emergency_stop", "platform_resume"} {
		env.Refused(t, verb, toolstest.Object{"reason": "x"}, schema.PermissionDenied, "")
	}
	toolstest.Has(t, toolstest.Object{"stopped": true, "paused_upgrade_ids": []any{}}, env.CallAs(t, person, "platform_emergency_stop", toolstest.Object{"reason": "x"}))
	create := toolstest.Object{"name": "a"}
	env.Refused(t, "system_sdwan_create_network", create, schema.BlockedByPolicy, "emergency stop since ")
	env.Call(t, "system_sdwan_list_networks", nil) // reads go on
	env.CallAs(t, person, "system_sdwan_create_network", toolstest.Object{"name": "by-a-person"})
	toolstest.Has(t, toolstest.Object{"resumed": true}, env.CallAs(t, person, "platform_resume", toolstest.Object{"reason": "y"}))
	env.Call(t, "system_sdwan_create_network", create)
}

// Scenario 66.
func TestWhoamiTellsEachCallerWhoTheyAre(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	callers := map[string]tools.Caller{"agent agent": env.Caller}
	for _, role := range []string{governance.RoleViewer, governance.RoleOperator} {
		callers["person "+role] = env.AddPerson(t, role+"@example.org", role)
	}
	secret, _ := env.Token(t, "operator@example.org", governance.TokenStatement{Role: governance.RoleViewer})
	narrowed := env.CallerBy(t, secret)
	for want, caller := range callers {
		got := env.CallAs(t, caller, "platform_whoami", nil)
		c := at(t, got, "caller").(toolstest.Object)
		if is := strings.Join([]string{c["kind"].(string), c["role"].(string)}, " "); is != want || c["id"] != caller.ID {
			t.Errorf("%s is told %s", want, spelt(c))
		}
		if n := len(got["users"].([]any)); n != 3 || at(t, got, "account", "id") != string(env.Account.ID) {
			t.Errorf("%s is told %d people of account %s", want, n, at(t, got, "account", "id"))
		}
	}
	toolstest.Has(t, toolstest.Object{"caller": toolstest.Object{"role": "viewer"}}, env.CallAs(t, narrowed, "platform_whoami", nil))
}

// The member that left with its machine is told as the cluster told it.
func TestRemovedMemberHasTheKeysOfAClusterNode(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	network, a := p.up(t, "tenant-a", "a-1")
	id := p.provision(t, p.node(t, "w-1", p.templateOn(t, "workers", network, p.agent, toolstest.Object{"target_cluster_id": a})))
	p.site.report(t, id, converged("boot", 1))
	if refusal := p.lab.join(t, store.InstanceID(id), cluster.RoleAgent); refusal != nil {
		t.Fatal(refusal.Message)
	}
	listed := objects(t, p.Call(t, "kubernetes_list_nodes", toolstest.Object{"cluster_id": a})["nodes"])[1]
	got := p.Approve(t, p.Parked(t, "system_terminate_instance", toolstest.Object{"instance_id": id}))["removed_member"].(toolstest.Object)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(listed)), slices.Sorted(maps.Keys(got))); diff != "" {
		t.Errorf("keys (-cluster node +removed member):\n%s", diff)
	}
	if got["id"] != listed["id"] || got["node_instance_id"] != id {
		t.Errorf("removed %s, want %s", spelt(got), spelt(listed))
	}
	if members, _ := p.members(t, a); !cmp.Equal(members, []string{"a-1"}) {
		t.Errorf("members %v", members)
	}
}

// A fault of ours says nothing of itself but where it is recorded.
func TestFaultOfOursNamesItsExecutionEvent(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	env.Platform.Network = nil // a verb that needs it panics
	_, err := env.Platform.Call(context.WithoutCancel(t.Context()), env.Caller, request("system_sdwan_create_network", toolstest.Object{"name": "a"}))
	var e *schema.Error
	if schema.CodeOf(err) != schema.Internal {
		t.Fatalf("got %v, want internal", err)
	}
	e, _ = err.(*schema.Error)
	id, _ := e.Details["event_id"].(store.ExecutionEventID)
	if e.Message != "internal error (event "+string(id)+")" {
		t.Errorf("message %q, details %v", e.Message, e.Details)
	}
	failed := objects(t, env.Call(t, "recent_events", toolstest.Object{"status": "failed"})["events"])
	if len(failed) != 1 || failed[0]["id"] != string(id) || failed[0]["error_class"] != "internal" {
		t.Errorf("events %s, want the one that the error names", spelt(failed))
	}
}
