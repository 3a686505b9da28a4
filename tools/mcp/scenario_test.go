package mcp_test

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/schema"
	"powernode/tools/mcp"
	"powernode/tools/toolstest"
)

// Scenario 70: what is absent is null, a refused call is an error as JSON text and has no structured content, and a parked
// call has its own keys and none of the result; what has structured content fits the verb's output schema.
func TestEachKindOfAnswerFitsItsVerbsOutputSchema(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	network := env.Call(t, "system_sdwan_create_network", `{"name":"a"}`)["network"].(toolstest.Object)["id"].(string)
	env.Call(t, "kubernetes_create_cluster", toolstest.Object{"name": "blue", "network_id": network})
	replies := map[string]reply{}
	ask := func(verb, arguments string) reply {
		r := converse(t, env, mcp.Choice{}, callLine(1, verb, arguments))[0]
		if r.Result == nil {
			t.Fatalf("%s: %+v is no result", verb, r)
		}
		replies[verb] = r
		return r
	}
	var absent struct {
		Cluster map[string]any `json:"cluster"`
	}
	if err := json.Unmarshal(ask("kubernetes_get_cluster", `{"cluster_id":"blue"}`).Result.StructuredContent, &absent); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"pod_count", "bootstrap_node_instance_id", "last_synced_at", "active_upgrade_id", "last_snapshot_at"} {
		if value, there := absent.Cluster[key]; !there || value != nil {
			t.Errorf("%s is %v (there: %t), want null", key, value, there)
		}
	}

	refused := ask("system_sdwan_get_network", `{"network_id":"0198c0de-0000-7000-8000-000000000000"}`).Result
	var e schema.Error
	if !refused.IsError || refused.StructuredContent != nil || len(refused.Content) != 1 {
		t.Fatalf("a refused call answers %+v", refused)
	}
	if err := json.Unmarshal([]byte(refused.Content[0].Text), &e); err != nil || e.Code != schema.NotFound {
		t.Errorf("a refused call says %s (%v)", refused.Content[0].Text, err)
	}

	var parked map[string]any
	if err := json.Unmarshal(ask("kubernetes_decommission_cluster", `{"cluster_id":"blue"}`).Result.StructuredContent, &parked); err != nil {
		t.Fatal(err)
	}
	want := []string{"action_category", "deferred_operation_id", "expires_at", "message", "pending", "plan_digest"}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(parked))); diff != "" {
		t.Errorf("keys of a parked call (-want +got):\n%s", diff)
	}
	for verb, r := range replies {
		if r.Result.StructuredContent == nil {
			continue
		}
		d, _ := env.Platform.Lookup(verb)
		if err := d.Contract().ValidateOutput(r.Result.StructuredContent); err != nil {
			t.Errorf("%s: %v", verb, err)
		}
	}
}
