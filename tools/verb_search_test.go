package tools_test

import (
	"slices"
	"testing"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/tools/toolstest"
)

func found(t *testing.T, env *toolstest.Env, query string) []string {
	t.Helper()
	var names []string
	for _, v := range objects(t, env.Call(t, "platform_search_verbs", toolstest.Object{"query": query})["verbs"]) {
		names = append(names, v["name"].(string))
	}
	return names
}

func TestSearchFindsWhatIsMeant(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	env.Caller = governance.PersonCaller(env.Person) // who may call every one of them
	for query, want := range map[string]string{
		"connect a machine to a network":           "system_sdwan_attach_peer",
		"take a machine out of the vpn":            "system_sdwan_detach_peer",
		"launch a machine for a node":              "system_provision_instance",
		"kill a vm for good":                       "system_terminate_instance",
		"who changed this cluster":                 "platform_audit_log",
		"what verdict does the policy give a call": "platform_list_policies",
		"stop everything, something is wrong":      "platform_emergency_stop",
		"block a port":                             "system_sdwan_create_firewall_rule",
		"get credentials for kubectl":              "kubernetes_get_kubeconfig",
		"retire a kubernetes cluster":              "kubernetes_decommission_cluster",
		"is the network isolated from the others":  "system_sdwan_verify_isolation",
		"wait for alerts":                          "system_watch_signals",
		"put a module on a template":               "system_assign_module_to_template",
		"what would this call do before I make it": "platform_preview",
		"kubernetes_get_cluster":                   "kubernetes_get_cluster",
		"platform.system_list_nodes":               "system_list_nodes",
	} {
		t.Run(query, func(t *testing.T) {
			names := found(t, env, query)
			if !slices.Contains(names[:min(3, len(names))], want) {
				t.Errorf("found %v, want %s among the first three", names, want)
			}
			if len(names) > 12 || !slices.Equal(names, found(t, env, query)) {
				t.Errorf("%d found, or others the second time", len(names))
			}
		})
	}
	if names := found(t, env, "!?"); len(names) != 0 {
		t.Errorf("no words find %v", names)
	}
}

func TestSearchTellsWhatACallNeeds(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	env.SetPolicy(t, "sdwan.network_create", governance.Block, governance.Scope{Role: governance.RoleAgent})
	got := objects(t, env.Call(t, "platform_search_verbs", toolstest.Object{"query": "system_sdwan_create_network"})["verbs"])[0]
	toolstest.Has(t, toolstest.Object{"name": "system_sdwan_create_network", "toolset": "sdwan", "action_category": "sdwan.network_create",
		"verdict": "block", "annotations": toolstest.Object{"read_only": false}}, got)
	if properties := at(t, got, "parameters", "properties").(toolstest.Object); properties["name"] == nil {
		t.Errorf("parameters = %v, want the schema", got["parameters"])
	}
	viewer := env.AddPerson(t, "vi@example.org", governance.RoleViewer)
	for _, v := range objects(t, env.CallAs(t, viewer, "platform_search_verbs", toolstest.Object{"query": "create a network"})["verbs"]) {
		if at(t, v, "annotations", "read_only") != true {
			t.Errorf("a viewer finds %s, which they may not call", v["name"])
		}
	}
}

func TestCallVerbIsTheCallItself(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	through := func(verb string, args toolstest.Object) toolstest.Object {
		return toolstest.Object{"verb": verb, "arguments": args}
	}
	got := env.Call(t, "platform_call_verb", through("platform.system_sdwan_create_network", toolstest.Object{"name": "tenant-a"}))
	if at(t, got, "network", "name") != "tenant-a" || got["revision"] == nil {
		t.Errorf("answered %s, want the network", spelt(got))
	}
	events := objects(t, env.Call(t, "recent_events", nil)["events"])
	if events[0]["event_type"] != "system_sdwan_create_network" || events[0]["status"] != "ok" || len(events) != 1 {
		t.Errorf("events %s, want one under the called verb's name", spelt(events))
	}
	if list := env.Call(t, "platform_call_verb", through("system_sdwan_list_networks", toolstest.Object{})); list["count"] != 1.0 {
		t.Errorf("a list through it: %s", spelt(list))
	}
	refused := env.Refused(t, "platform_call_verb", through("system_sdwan_create_network", toolstest.Object{"nam": "x"}), schema.InvalidArguments, "nam (did you mean name?)")
	if refused.Details["pointer"] != "/arguments/name" && refused.Details["pointer"] != "/arguments/nam" {
		t.Errorf("pointer %v, want one below /arguments", refused.Details["pointer"])
	}
	env.Refused(t, "platform_call_verb", through("platform_call_verb", toolstest.Object{}), schema.InvalidArguments, "does not call itself")
	if unknown := env.Refused(t, "platform_call_verb", through("system_create_nod", toolstest.Object{}), schema.InvalidArguments, "unknown verb"); unknown.Details["pointer"] != "/verb" {
		t.Errorf("pointer %v, want /verb", unknown.Details["pointer"])
	}
	nested := env.Refused(t, "platform_call_verb", through("request_confirmation", toolstest.Object{"action_description": "x",
		"tool_name": "system_sdwan_create_network", "tool_arguments": toolstest.Object{"nam": "x"}}), schema.InvalidArguments, "nam")
	if p := nested.Details["pointer"]; p != "/arguments/tool_arguments/name" && p != "/arguments/tool_arguments/nam" {
		t.Errorf("pointer %v, want one below /arguments/tool_arguments", p)
	}
	id := at(t, env.Call(t, "system_sdwan_list_networks", nil), "networks").([]any)[0].(toolstest.Object)["id"]
	parked := env.Call(t, "platform_call_verb", through("system_sdwan_delete_network", toolstest.Object{"network_id": id}))
	if parked["pending"] != true || parked["action_category"] != "sdwan.network_delete" {
		t.Errorf("answered %s, want it parked", spelt(parked))
	}
}
