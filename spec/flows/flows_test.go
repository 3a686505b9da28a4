package flows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"powernode/schema"
	"powernode/spec/rig"
)

var shared *rig.Installation // TestMain makes it

func TestMain(m *testing.M) {
	os.Exit(rig.RunTests(m, func(ctx context.Context, i *rig.Installation) error {
		k3s, err := rig.Describe(ctx, rig.Given("K3S", "../../.cache/k3s"))
		if err != nil {
			return err
		}
		if err := errors.Join(i.Provide(ctx, k3s), i.Disconnect()); err != nil {
			return err
		}
		i.Listing = []string{} // what an assistant gets that is started without flags
		shared = i
		return i.Connect(ctx)
	}))
}

// assistant plays one prompt.
type assistant struct {
	*rig.Installation
	prompt string
	phases []string // told so far
}

func play(t *testing.T, prompt string, arguments map[string]string) *assistant {
	t.Helper()
	text, err := shared.Prompt(t.Context(), prompt, arguments)
	ok(t, err)
	for name, value := range arguments {
		if !strings.Contains(text, value) {
			t.Errorf("prompt %s does not have %s, which was given as %s", prompt, value, name)
		}
	}
	return &assistant{Installation: shared, prompt: text}
}

// call makes a call that the prompt asks for.
func (a *assistant) call(t *testing.T, verb string, arguments rig.Object) rig.Object {
	t.Helper()
	out, err := a.attempt(t, verb, arguments)
	if err != nil {
		t.Fatalf("%s: %v", verb, err)
	}
	return out
}

func (a *assistant) attempt(t *testing.T, verb string, arguments rig.Object) (rig.Object, error) {
	t.Helper()
	if !strings.Contains(a.prompt, "`"+verb+"`") {
		t.Fatalf("the prompt does not name %s, which its flow needs", verb)
	}
	return a.Call(t.Context(), verb, arguments)
}

// told ends a phase: the prompt has it after the one before, and the clusters' status is told.
func (a *assistant) told(t *testing.T, phase string, clusters ...string) {
	t.Helper()
	a.phases = append(a.phases, phase)
	at := -1
	for _, p := range a.phases {
		next := strings.Index(a.prompt, "**"+p)
		if next <= at {
			t.Errorf("the prompt has phase %q not after the one before", p)
		}
		at = next
	}
	for _, c := range clusters {
		got := a.call(t, "kubernetes_get_cluster", rig.Object{"cluster_id": c})
		t.Logf("%s: cluster %s is %s", phase, c, rig.Text(got, "cluster", "status"))
	}
}

// ids are what a flow looks up first.
type ids struct{ platform, region, size, server, agent string }

func (a *assistant) lookUp(t *testing.T) ids {
	t.Helper()
	modules := rig.List(a.call(t, "system_list_modules", rig.Object{}), "modules")
	return ids{
		region: rig.Text(a.call(t, "system_list_regions", rig.Object{}), "regions", 0, "id"),
		size:   rig.Text(a.call(t, "system_list_instance_types", rig.Object{}), "instance_types", 0, "id"),
		server: rig.Text(rig.Find(modules, "name", "k3s-server"), "id"),
		agent:  rig.Text(rig.Find(modules, "name", "k3s-agent"), "id"),
	}
}

// template makes one for a module, whose machines are on a network from the start.
func (a *assistant) template(t *testing.T, name, platform, network, module string, config rig.Object) string {
	t.Helper()
	made := a.call(t, "system_create_template", rig.Object{"name": name, "node_platform_id": platform, "config": rig.Object{"sdwan_network_id": network}})
	id := rig.Text(made, "template", "id")
	a.call(t, "system_assign_module_to_template", rig.Object{"template_id": id, "module_id": module, "config": config})
	return id
}

func (a *assistant) machine(t *testing.T, of ids, name, template string) (node, instance string) {
	t.Helper()
	node = rig.Text(a.call(t, "system_create_node", rig.Object{"name": name, "template_id": template}), "node", "id")
	made := a.call(t, "system_provision_instance", rig.Object{"node_id": node, "provider_region_id": of.region, "provider_instance_type_id": of.size})
	return node, rig.Text(made, "instance", "id")
}

func (a *assistant) awaitStatus(t *testing.T, cluster, want string) {
	t.Helper()
	ok(t, rig.Await(t.Context(), "cluster "+cluster+" to be "+want, 3*time.Minute, func(ctx context.Context) (string, error) {
		out, err := a.Call(ctx, "kubernetes_get_cluster", rig.Object{"cluster_id": cluster})
		var refusal *rig.Refusal
		if errors.As(err, &refusal) && refusal.Code == "not_found" {
			return "it is not there yet", nil
		}
		if err != nil || rig.Text(out, "cluster", "status") == want {
			return "", err
		}
		return "it is " + rig.Text(out, "cluster", "status"), nil
	}))
}

func (a *assistant) awaitNode(t *testing.T, cluster, name string) {
	t.Helper()
	ok(t, rig.Await(t.Context(), name+" to join "+cluster, 90*time.Second, func(ctx context.Context) (string, error) {
		out, err := a.Call(ctx, "kubernetes_list_nodes", rig.Object{"cluster_id": cluster})
		if err != nil || rig.Text(rig.Find(rig.List(out, "nodes"), "name", name), "status") == "active" {
			return "", err
		}
		b, err := json.Marshal(out)
		return string(b), err
	}))
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The flows are one story: each stands on the state that the one before has left.
func TestConciergeFlows(t *testing.T) {
	t.Run("set up prod and staging", setUp)
	t.Run("add a worker to staging", addWorker)
	t.Run("why did the join fail", diagnose)
	t.Run("decommission staging", decommission)
}

func setUp(t *testing.T) {
	a := play(t, "set-up-clusters", map[string]string{"clusters": "prod, staging", "workers": "none"})
	warning := regexp.MustCompile(`(?s)Before a second cluster, warn the person.*target_cluster_id.*refused`)
	at := warning.FindStringIndex(a.prompt)
	if at == nil || at[0] > strings.Index(a.prompt, "**Phase 2") || at[0] < strings.Index(a.prompt, "**Phase 1") {
		t.Errorf("the prompt does not warn before the second cluster that workers need a target from then on")
	}
	a.call(t, "platform_whoami", rig.Object{})
	if n := a.call(t, "kubernetes_list_clusters", rig.Object{})["count"]; n != 0.0 {
		t.Fatalf("%v clusters stand before the flow", n)
	}
	platforms := rig.List(a.call(t, "system_list_platforms", rig.Object{}), "platforms")
	of := a.lookUp(t)
	of.platform = rig.Text(rig.Find(platforms, "name", "linux-amd64"), "id")
	a.told(t, "Phase 0")

	networks := map[string]string{}
	for i, name := range []string{"prod", "staging"} {
		networks[name] = rig.Text(a.call(t, "system_sdwan_create_network", rig.Object{"name": name}), "network", "id")
		template := a.template(t, name+"-server", of.platform, networks[name], of.server, rig.Object{})
		a.machine(t, of, name, template)
		a.awaitStatus(t, name, "active")
		a.told(t, fmt.Sprintf("Phase %d", i+1), name)
	}
	a.highAvailability(t, of, networks["prod"])

	_, err := a.Isolation(t.Context(), rig.Object{}, "isolated")
	ok(t, err)
	a.told(t, "Phase 4", "prod", "staging")
	if got := names(a.call(t, "kubernetes_list_clusters", rig.Object{}), "clusters"); !slices.Equal(got, []string{"prod", "staging"}) {
		t.Errorf("clusters %v, want prod and staging", got)
	}
}

// highAvailability asks for what the prompt says can't be had: it says the truth, and no third cluster comes of it.
func (a *assistant) highAvailability(t *testing.T, of ids, network string) {
	t.Helper()
	if !regexp.MustCompile("(?s)high availability.*never add a second `k3s-server`").MatchString(a.prompt) {
		t.Errorf("the prompt does not say what is true of high availability")
	}
	made := a.call(t, "system_create_template", rig.Object{"name": "second-server", "node_platform_id": of.platform, "config": rig.Object{"sdwan_network_id": network}})
	_, err := a.attempt(t, "system_assign_module_to_template", rig.Object{"template_id": rig.Text(made, "template", "id"), "module_id": of.server,
		"config": rig.Object{"target_cluster_id": "prod"}})
	var refusal *rig.Refusal
	if !errors.As(err, &refusal) || !strings.HasPrefix(refusal.Message, "not available yet") {
		t.Errorf("a second server for prod: %v, want it refused as not available yet", err)
	}
}

func addWorker(t *testing.T) {
	a := play(t, "add-worker", map[string]string{"cluster": "staging", "worker": "staging-worker-1"})
	network := rig.Text(a.call(t, "kubernetes_get_cluster", rig.Object{"cluster_id": "staging"}), "cluster", "network_id")
	a.call(t, "kubernetes_list_nodes", rig.Object{"cluster_id": "staging"})
	a.told(t, "Phase 1", "staging")

	var platform string
	for _, each := range rig.List(a.call(t, "system_list_templates", rig.Object{}), "templates") {
		platform = rig.Text(each, "platform_id")
	}
	of := a.lookUp(t)
	template := a.template(t, "staging-worker", platform, network, of.agent, rig.Object{"target_cluster_id": "staging"})
	a.told(t, "Phase 2", "staging")
	a.machine(t, of, "staging-worker-1", template)
	a.told(t, "Phase 3", "staging")
	a.awaitNode(t, "staging", "staging-worker-1")
	a.told(t, "Phase 4", "staging")
}

func diagnose(t *testing.T) {
	lost := breakJoin(t)
	a := play(t, "diagnose-join", map[string]string{"machine": "lost-worker", "cluster": "staging"})
	var reason string
	ok(t, rig.Await(t.Context(), "the machine to wait", time.Minute, func(ctx context.Context) (string, error) {
		out, err := a.Call(ctx, "kubernetes_list_nodes", rig.Object{"cluster_id": "staging"})
		reason = rig.Text(rig.Find(rig.List(out, "waiting"), "name", "lost-worker"), "reason")
		if err != nil || reason == "" {
			return "it is not in waiting", err
		}
		return "", nil
	}))
	if !regexp.MustCompile(`\| [a-z_, ]*\b` + reason + `\b[a-z_, ]* \|`).MatchString(a.prompt) {
		t.Errorf("the prompt's table has no reason %s", reason)
	}
	a.told(t, "Phase 1", "staging")

	ok(t, rig.Await(t.Context(), "the refused join to be told", time.Minute, func(ctx context.Context) (string, error) {
		out, err := a.Call(ctx, "system_recent_signals", rig.Object{"kind": "system.k3s_ambiguous_cluster_join_refused"})
		if err != nil || len(rig.List(out, "events")) > 0 {
			return "", err
		}
		return "no signal", nil
	}))
	instance := rig.Text(rig.Find(rig.List(a.call(t, "system_list_instances", rig.Object{}), "instances"), "name", "lost-worker"), "id")
	a.call(t, "system_get_instance", rig.Object{"instance_id": instance})
	assignments := rig.List(a.call(t, "system_list_node_module_assignments", rig.Object{"node_id": lost}), "assignments")
	causes := a.call(t, "system_attribute_failure", rig.Object{"instance_id": instance})
	if causes["verdict"] != "attributed" {
		t.Errorf("attribution %v, want causes", causes)
	}
	a.told(t, "Phase 2", "staging")

	a.call(t, "system_update_module_assignment", rig.Object{"assignment_id": assignments[0]["id"], "config": rig.Object{"target_cluster_id": "staging"}})
	a.told(t, "Phase 3", "staging")
	a.awaitNode(t, "staging", "lost-worker")
	a.told(t, "Phase 4", "staging")
}

// breakJoin makes a worker on staging's network whose assignment names no cluster.
func breakJoin(t *testing.T) (node string) {
	t.Helper()
	a := play(t, "add-worker", map[string]string{"cluster": "staging"})
	network := rig.Text(a.call(t, "kubernetes_get_cluster", rig.Object{"cluster_id": "staging"}), "cluster", "network_id")
	platform := rig.Text(a.call(t, "system_list_templates", rig.Object{}), "templates", 0, "platform_id")
	of := a.lookUp(t)
	template := a.template(t, "lost-worker", platform, network, of.agent, rig.Object{})
	node, _ = a.machine(t, of, "lost-worker", template)
	return node
}

func decommission(t *testing.T) {
	a := play(t, "decommission-cluster", map[string]string{"cluster": "staging", "reason": "the tests are over"})
	if !regexp.MustCompile(`Only through .request_confirmation.`).MatchString(a.prompt) {
		t.Errorf("the prompt does not ask through request_confirmation alone")
	}
	a.call(t, "kubernetes_list_nodes", rig.Object{"cluster_id": "staging"})
	preview := a.call(t, "platform_preview", rig.Object{"verb": "kubernetes_decommission_cluster", "arguments": rig.Object{"cluster_id": "staging"}})
	if len(rig.List(preview, "effects")) == 0 {
		t.Errorf("preview %v, want what it would do", preview)
	}
	a.told(t, "Phase 1", "staging")

	operation := a.decided(t)
	a.told(t, "Phase 2")
	done := a.call(t, "platform_get_operation", rig.Object{"deferred_operation_id": operation})
	if status := rig.Text(done, "operation", "status"); status != "completed" {
		t.Fatalf("operation is %s: %v", status, rig.At(done, "operation", "error"))
	}
	a.told(t, "Phase 3")
	if got := names(a.call(t, "kubernetes_list_clusters", rig.Object{}), "clusters"); !slices.Equal(got, []string{"prod"}) {
		t.Errorf("clusters %v, want prod alone", got)
	}
	ok(t, rig.Await(t.Context(), "the machines to be clean", 2*time.Minute, func(ctx context.Context) (string, error) {
		out, err := a.Call(ctx, "kubernetes_list_decommissioned_clusters", rig.Object{})
		if state := rig.Text(out, "clusters", 0, "cleanup", "state"); err != nil || state != "cleaned" {
			return state, err
		}
		return "", nil
	}))
	a.told(t, "Phase 4", "prod")
	for _, i := range rig.List(must(t, "system_list_instances", rig.Object{}), "instances") {
		if i["status"] != "running" {
			t.Errorf("machine %v is %v, want it to run on", i["name"], i["status"])
		}
	}
}

// decided asks for the decommissioning, and has the person approve. What a machine reports meanwhile makes a plan stale:
// it is asked for again then.
func (a *assistant) decided(t *testing.T) (operation string) {
	t.Helper()
	for {
		asked := a.call(t, "request_confirmation", rig.Object{"action_description": "Decommission staging: the tests are over.",
			"tool_name": "kubernetes_decommission_cluster", "tool_arguments": rig.Object{"cluster_id": "staging"}})
		if asked["status"] != "confirmation_requested" {
			t.Fatalf("answer %v, want a requested confirmation", asked)
		}
		operation = rig.Text(asked, "deferred_operation_id")
		err := a.Approve(t.Context(), operation)
		if err == nil {
			return operation
		}
		if !strings.Contains(err.Error(), "plan is stale") {
			t.Fatal(err)
		}
	}
}

func must(t *testing.T, verb string, arguments rig.Object) rig.Object {
	t.Helper()
	out, err := shared.Call(t.Context(), verb, arguments)
	ok(t, err)
	return out
}

func names(answer rig.Object, list string) (out []string) {
	for _, each := range rig.List(answer, list) {
		out = append(out, rig.Text(each, "name"))
	}
	slices.Sort(out)
	return out
}

// What a prompt names can be called from a session that lists less: each call answers as a verb does.
func TestVerbsOfPromptsAndOfKubernetesCanBeCalled(t *testing.T) {
	contract, err := schema.Verbs()
	ok(t, err)
	var known, wanted []string
	for _, v := range contract {
		known = append(known, v.Name)
		if v.Toolset == "kubernetes" {
			wanted = append(wanted, v.Name)
		}
	}
	prompts, err := shared.Prompts(t.Context())
	ok(t, err)
	flows := []string{"add-worker", "decommission-cluster", "diagnose-join", "investigate", "move-virtual-ip", "set-up-clusters"}
	if diff := cmp.Diff(flows, slices.Sorted(maps.Keys(prompts))); diff != "" {
		t.Errorf("prompts (-want +got):\n%s", diff)
	}
	for prompt, required := range prompts {
		arguments := map[string]string{}
		for _, name := range required {
			arguments[name] = "prod"
		}
		text, err := shared.Prompt(t.Context(), prompt, arguments)
		ok(t, err)
		for _, m := range regexp.MustCompile("`([a-z]+_[a-z_]+)`").FindAllStringSubmatch(text, -1) {
			if slices.Contains(known, m[1]) {
				wanted = append(wanted, m[1])
			}
		}
	}
	slices.Sort(wanted)
	for _, verb := range slices.Compact(wanted) {
		_, err := shared.Call(t.Context(), verb, rig.Object{"no_such_key": true})
		var refusal *rig.Refusal
		if !errors.As(err, &refusal) || refusal.Code != "invalid_arguments" {
			t.Errorf("%s: %v, want its own refusal of an undeclared key", verb, err)
		}
	}
}
