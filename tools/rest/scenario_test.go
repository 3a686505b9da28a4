package rest_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"powernode/store"
	"powernode/tools/toolstest"
)

// Scenario 49, over REST: the row of a cluster that is gone is read under both spellings of its type, and a key that the
// verb does not declare is refused in a query too.
func TestRecordOfADeletedClusterIsReadByTheSeedDocumentsPath(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	network := h.Call(t, "system_sdwan_create_network", `{"name": "a"}`)["network"].(toolstest.Object)["id"]
	id := h.Call(t, "kubernetes_create_cluster", toolstest.Object{"name": "blue", "network_id": network})["cluster"].(toolstest.Object)["id"]
	h.Approve(t, h.Parked(t, "kubernetes_decommission_cluster", toolstest.Object{"cluster_id": "blue"}))
	read := func(query string) reply {
		return h.do(t, request{method: http.MethodGet, path: "/api/v1/audit_logs?" + query, token: "operator"})
	}
	var raw []string
	for _, spelling := range []string{"KubernetesCluster", "Devops::KubernetesCluster"} {
		got := read("action=deleted&resource_type=" + spelling)
		entries, _ := got.body.Data["entries"].([]any)
		if got.status != http.StatusOK || len(entries) != 1 {
			t.Fatalf("%s: %d %s, want one row", spelling, got.status, got.raw)
		}
		toolstest.Has(t, toolstest.Object{"resource_id": id, "resource_type": "Devops::KubernetesCluster", "old_values": toolstest.Object{"name": "blue"}},
			entries[0].(toolstest.Object))
		raw = append(raw, fmt.Sprint(entries[0]))
	}
	if raw[0] != raw[1] {
		t.Errorf("the spellings read %s and %s", raw[0], raw[1])
	}
	if got := read("resource=KubernetesCluster"); got.status != http.StatusBadRequest || !strings.Contains(got.body.Error.Message, "Undeclared parameters: resource") {
		t.Errorf("an undeclared key: %d %s", got.status, got.raw)
	}
	if got := h.do(t, request{method: http.MethodGet, path: "/api/v1/audit_logs", token: "viewer"}); got.status != http.StatusForbidden {
		t.Errorf("a viewer reads the record: %d", got.status)
	}
}

// Scenario 23, over REST: the wrapper is such that .data.kubeconfig is the file.
func TestKubeconfigIsTheWrappedResultsText(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	network := h.Call(t, "system_sdwan_create_network", `{"name": "a"}`)["network"].(toolstest.Object)["id"]
	id := h.Call(t, "kubernetes_create_cluster", toolstest.Object{"name": "blue", "network_id": network})["cluster"].(toolstest.Object)["id"].(string)
	early := h.call(t, "agent", "kubernetes_get_kubeconfig", `{"cluster_id": "blue"}`)
	if early.status != http.StatusPreconditionFailed || !early.body.Error.Retryable || early.body.Error.Hint.Verb != "kubernetes_get_cluster" {
		t.Errorf("before it is up: %d %s", early.status, early.raw)
	}
	h.Update(t, func(ctx context.Context, tx *store.Tx) error {
		c, err := store.ClusterByID(ctx, &tx.View, h.Account.ID, store.ClusterID(id))
		if err != nil {
			return err
		}
		c.Status = "active"
		c.Kubeconfig, err = h.Platform.Sealer.Seal(tx, "clusters:"+id+":kubeconfig", []byte(`{"apiVersion": "v1", "kind": "Config",
			"clusters": [{"name": "default", "cluster": {"server": "https://127.0.0.1:6443", "certificate-authority-data": "Y2E="}}],
			"users": [{"name": "default", "user": {"client-certificate-data": "Y2VydA==", "client-key-data": "a2V5"}}],
			"contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}], "current-context": "default"}`))
		if err != nil {
			return err
		}
		return store.UpdateCluster(ctx, tx, c)
	})
	got := h.call(t, "agent", "kubernetes_get_kubeconfig", `{"cluster_id": "blue"}`)
	config, _ := got.body.Data["kubeconfig"].(string)
	if got.status != http.StatusOK || got.body.Success == nil || !*got.body.Success ||
		!strings.Contains(config, "current-context: blue") || !strings.HasPrefix(fmt.Sprint(got.body.Data["api_endpoint"]), "https://[fd") {
		t.Errorf("answered %d %s", got.status, got.raw)
	}
}
