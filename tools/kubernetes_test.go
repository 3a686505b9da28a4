package tools_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/cluster"
	"powernode/platform/governance"
	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
	"powernode/tools/toolstest"
)

const serverKubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: default, cluster: {server: "https://127.0.0.1:6443", certificate-authority-data: Q0E=}}]
users: [{name: default, user: {client-certificate-data: Y2VydA==, client-key-data: c2VjcmV0LW1hdGVyaWFs}}]
`

// asAgent lets an instance's agent speak to the cluster rules.
func (l *lab) asAgent(t *testing.T, id store.InstanceID, fn func(context.Context, *store.Tx, store.Instance) error) {
	t.Helper()
	l.Update(t, func(ctx context.Context, tx *store.Tx) error {
		i, err := store.InstanceByID(ctx, &tx.View, l.Account.ID, id)
		if err != nil {
			return err
		}
		return fn(ctx, tx, i)
	})
}

func refusedAs(r *cluster.Refusal, err error) error {
	if err != nil || r == nil {
		return err
	}
	return errors.New(r.Class + ": " + r.Message)
}

// join lets an instance's agent ask join_request.
func (l *lab) join(t *testing.T, id store.InstanceID, role string) (refusal *cluster.Refusal) {
	t.Helper()
	l.asAgent(t, id, func(ctx context.Context, tx *store.Tx, i store.Instance) (err error) {
		_, refusal, err = l.Platform.Cluster.JoinRequest(ctx, tx, i, role, "")
		return err
	})
	return refusal
}

// server makes a machine on a network that declares its cluster; the cluster has its name.
func (l *lab) server(t *testing.T, network, name string) store.InstanceID {
	t.Helper()
	id := l.machine(t, name)
	l.attach(t, network, id)
	l.assign(t, id, cluster.ModuleServer, "")
	return id
}

// activate brings the cluster of a first server up, as its agent does.
func (l *lab) activate(t *testing.T, id store.InstanceID, name string) {
	t.Helper()
	if refusal := l.join(t, id, cluster.RoleServer); refusal != nil {
		t.Fatalf("first server of %s: %+v", name, refusal)
	}
	yes := true
	l.asAgent(t, id, func(ctx context.Context, tx *store.Tx, i store.Instance) error {
		c, _, refusal, err := l.Platform.Cluster.Bootstrap(ctx, tx, i, serverKubeconfig, "v1.36.5+k3s1")
		if err := refusedAs(refusal, err); err != nil {
			return err
		}
		_, refusal, err = l.Platform.Cluster.Ready(ctx, tx, i, cluster.RoleServer, c.ID, "v1.36.5+k3s1")
		if err := refusedAs(refusal, err); err != nil {
			return err
		}
		return l.Platform.Cluster.Ingest(ctx, tx, i, sdwan.Report{K3s: &sdwan.K3sReport{Role: "server", ClusterID: string(c.ID), Installed: true, NodeReady: &yes,
			APIReady: &yes, VIPReady: &yes, Etcd: &sdwan.EtcdReport{Member: name, Healthy: true, Members: 1}, Nodes: []sdwan.K3sNodeReport{{Name: name, Ready: true}}}})
	})
}

func (l *lab) cluster(t *testing.T, ref string) toolstest.Object {
	t.Helper()
	return l.Call(t, "kubernetes_get_cluster", toolstest.Object{"cluster_id": ref})["cluster"].(toolstest.Object)
}

func TestClustersAreListedByNameWithWhatIsMeasured(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a, b := l.network(t, "tenant-a"), l.network(t, "tenant-b")
	beta, alpha := l.server(t, b, "beta"), l.server(t, a, "alpha")
	l.activate(t, beta, "beta")
	list := l.Call(t, "kubernetes_list_clusters", toolstest.Object{})
	toolstest.Has(t, toolstest.Object{"count": 2.0, "has_more": false}, list)
	rows := objects(t, list["clusters"])
	toolstest.Has(t, toolstest.Object{"name": "alpha", "slug": "alpha", "status": "pending", "node_count": 0.0, "has_kubeconfig": false, "network_id": a,
		"flavor": "k3s", "last_synced_at": nil, "pod_count": nil}, rows[0])
	toolstest.Has(t, toolstest.Object{"name": "beta", "status": "active", "node_count": 1.0, "has_kubeconfig": true, "network_id": b,
		"k8s_version": "v1.36.5+k3s1"}, rows[1])
	full := l.cluster(t, "beta")
	toolstest.Has(t, toolstest.Object{"datastore": "etcd", "cni_plugin": "flannel", "server_count": 1.0, "agent_count": 0.0, "bootstrap_node_instance_id": string(beta),
		"etcd": toolstest.Object{"members": 1.0, "healthy": 1.0, "quorum": 1.0}, "health": toolstest.Object{"verdict": "healthy"},
		"token_generation": toolstest.Object{"agent": 1.0, "server": 1.0}}, full)
	pending := l.cluster(t, rows[0]["id"].(string))
	toolstest.Has(t, toolstest.Object{"health": toolstest.Object{"verdict": "not_measured"}, "bootstrap_node_instance_id": string(alpha),
		"etcd": toolstest.Object{"members": nil, "healthy": nil, "quorum": nil}}, pending)
	if full["api_endpoint"] == pending["api_endpoint"] || !strings.HasPrefix(full["api_endpoint"].(string), "https://[fd") || !strings.HasSuffix(full["api_endpoint"].(string), "]:6443") {
		t.Errorf("endpoints %s and %s", full["api_endpoint"], pending["api_endpoint"])
	}
}

func TestUnknownClusterIsRefusedWithNearNames(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.server(t, l.network(t, "tenant-a"), "alpha")
	for _, verb := range []string{"kubernetes_get_cluster", "kubernetes_list_nodes", "kubernetes_get_kubeconfig", "kubernetes_decommission_cluster"} {
		e := l.Refused(t, verb, toolstest.Object{"cluster_id": "alphaa"}, schema.NotFound, "Kubernetes cluster not found: alphaa")
		if diff := cmp.Diff([]string{"alpha"}, e.Details["candidates"]); diff != "" {
			t.Errorf("%s: candidates (-want +got):\n%s", verb, diff)
		}
	}
	other := l.AddAccount(t, "elsewhere", "fd5e:8a21:beef::/48")
	l.RefusedAs(t, governance.AgentCaller(other.ID), "kubernetes_get_cluster", toolstest.Object{"cluster_id": "alpha"}, schema.NotFound, "Kubernetes cluster not found")
}

func TestNodesAreListedServersFirstBesideWhoWaits(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a, b := l.network(t, "tenant-a"), l.network(t, "tenant-b")
	sa, sb := l.server(t, a, "z-server"), l.server(t, b, "b-server")
	l.activate(t, sa, "z-server")
	for _, w := range []struct{ name, network, target string }{
		{"a-joined", a, "z-server"}, {"b-ambiguous", a, ""}, {"c-elsewhere", a, "b-server"}, {"d-early", b, "b-server"},
	} {
		id := l.machine(t, w.name)
		l.attach(t, w.network, id)
		target := ""
		if w.target != "" {
			target = l.cluster(t, w.target)["id"].(string)
		}
		l.assign(t, id, cluster.ModuleAgent, target)
		refusal := l.join(t, id, cluster.RoleAgent)
		if joined := refusal == nil; joined != (w.name == "a-joined") {
			t.Errorf("%s: refusal %+v", w.name, refusal)
		}
	}
	answer := l.Call(t, "kubernetes_list_nodes", toolstest.Object{"cluster_id": "z-server"})
	nodes := objects(t, answer["nodes"])
	toolstest.Has(t, toolstest.Object{"count": 2.0, "has_more": false}, answer)
	toolstest.Has(t, toolstest.Object{"name": "z-server", "role": "server", "status": "active", "node_instance_id": string(sa), "k8s_version": "v1.36.5+k3s1",
		"api_ready": true, "etcd_member": "z-server", "cordon": nil}, nodes[0])
	toolstest.Has(t, toolstest.Object{"name": "a-joined", "role": "agent", "status": "joining", "k8s_version": nil, "api_ready": nil, "etcd_member": nil,
		"last_heartbeat_at": nil}, nodes[1])
	waits := func(ref string) string {
		out := []string{}
		for _, w := range objects(t, l.Call(t, "kubernetes_list_nodes", toolstest.Object{"cluster_id": ref})["waiting"]) {
			out = append(out, fmt.Sprintf("%s %s %s", w["name"], w["role"], w["reason"]))
		}
		return strings.Join(out, "; ")
	}
	if got := waits("z-server"); got != "b-ambiguous agent ambiguous" {
		t.Errorf("waiting for z-server: %s", got)
	}
	if got := waits("b-server"); got != "b-ambiguous agent ambiguous; c-elsewhere agent not_on_cluster_network; d-early agent no_ready_server" {
		t.Errorf("waiting for b-server: %s", got)
	}
	// A target that went into error after it was written is served as none, and the cluster shows who waits for it.
	l.Update(t, func(ctx context.Context, tx *store.Tx) error {
		c, err := store.ClusterByRef(ctx, &tx.View, l.Account.ID, "b-server")
		if err != nil {
			return err
		}
		c.Status = cluster.StatusError
		return store.UpdateCluster(ctx, tx, c)
	})
	if got := waits("b-server"); !strings.Contains(got, "d-early agent error") {
		t.Errorf("waiting for the cluster in error: %s", got)
	}
	_ = sb
}

func TestWhatAStoppedServerMeasuredIsNotShownAsReady(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	first := l.server(t, l.network(t, "tenant-a"), "alpha")
	l.activate(t, first, "alpha")
	l.asAgent(t, first, func(ctx context.Context, tx *store.Tx, i store.Instance) error {
		_, err := l.Platform.Cluster.Stopped(ctx, tx, i, "failed")
		return err
	})
	nodes := objects(t, l.Call(t, "kubernetes_list_nodes", toolstest.Object{"cluster_id": "alpha"})["nodes"])
	toolstest.Has(t, toolstest.Object{"status": "disconnected", "api_ready": nil}, nodes[0])
	toolstest.Has(t, toolstest.Object{"status": "degraded", "etcd": toolstest.Object{"healthy": nil}, "health": toolstest.Object{"verdict": "unhealthy"}}, l.cluster(t, "alpha"))
}

func TestKubeconfigIsRefusedUntilTheClusterIsUp(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	first := l.server(t, l.network(t, "tenant-a"), "alpha")
	refused := func(status string) {
		t.Helper()
		e := l.Refused(t, "kubernetes_get_kubeconfig", toolstest.Object{"cluster_id": "alpha"}, schema.PreconditionFailed,
			"kubeconfig not yet available — cluster is still bootstrapping (status="+status+")")
		if !e.Retryable || e.Hint == nil || e.Hint.Verb != "kubernetes_get_cluster" {
			t.Errorf("%s: retryable %t, hint %+v", status, e.Retryable, e.Hint)
		}
	}
	refused("pending")
	if r := l.join(t, first, cluster.RoleServer); r != nil {
		t.Fatal(r.Message)
	}
	refused("bootstrapping")
	l.activate(t, first, "alpha")
	answer := l.Call(t, "kubernetes_get_kubeconfig", toolstest.Object{"cluster_id": "alpha"})
	c := l.cluster(t, "alpha")
	toolstest.Has(t, toolstest.Object{"cluster_id": c["id"], "api_endpoint": c["api_endpoint"]}, answer)
	config := answer["kubeconfig"].(string)
	for _, want := range []string{"server: " + c["api_endpoint"].(string), "certificate-authority-data: Q0E=", "current-context: alpha", "client-key-data: c2VjcmV0LW1hdGVyaWFs"} {
		if !strings.Contains(config, want) {
			t.Errorf("kubeconfig lacks %q:\n%s", want, config)
		}
	}
	reads := 0
	for _, row := range l.Audit(t, "Devops::KubernetesCluster") {
		if strings.Contains(spelt(row), "c2VjcmV0LW1hdGVyaWFs") {
			t.Errorf("the audit row %s holds the material", row.Action)
		}
		if row.Action == "kubernetes.kubeconfig_read" {
			reads++
			if row.ResourceID != c["id"] || row.Actor.Kind == "" {
				t.Errorf("audit row %+v", row)
			}
		}
	}
	if reads != 1 {
		t.Errorf("%d audit rows of the read, want 1", reads)
	}
	told := 0
	for _, s := range l.Signals(t, "system.operation_notified") {
		if s.Payload["verb"] == "kubernetes_get_kubeconfig" && s.Payload["action_category"] == "system.runtime_k8s_kubeconfig_read" {
			told++
		}
		if strings.Contains(spelt(s.Payload), "c2VjcmV0") {
			t.Error("a signal holds the material")
		}
	}
	if told != 1 {
		t.Errorf("%d signals of the read, want 1", told)
	}
}

func TestKubeconfigThatIsParkedIsForItsRequesterAlone(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.activate(t, l.server(t, l.network(t, "tenant-a"), "alpha"), "alpha")
	l.SetPolicy(t, "system.runtime_k8s_kubeconfig_read", governance.RequireApproval, governance.Scope{})
	id := l.Parked(t, "kubernetes_get_kubeconfig", toolstest.Object{"cluster_id": "alpha"})
	for _, row := range l.Audit(t, "Devops::KubernetesCluster") {
		if row.Action == "kubernetes.kubeconfig_read" {
			t.Error("a parked read is recorded as a read")
		}
	}
	result := l.Approve(t, id)
	if !strings.Contains(spelt(result), "current-context: alpha") {
		t.Errorf("the requester's result: %s", spelt(result))
	}
	var o store.Operation
	l.View(t, func(ctx context.Context, v *store.View) (err error) {
		o, err = store.OperationByID(ctx, v, l.Account.ID, id)
		return err
	})
	seen, err := l.Platform.Governance.Seen(o, l.AddPerson(t, "bob@example.org", "admin"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(spelt(seen), "current-context") || strings.Contains(spelt(o), "current-context") {
		t.Error("the material is readable by others, or lies open in the store")
	}
	for _, row := range l.Audit(t, "Devops::KubernetesCluster") {
		if strings.Contains(spelt(row), "c2VjcmV0LW1hdGVyaWFs") {
			t.Errorf("the audit row %s holds the material", row.Action)
		}
	}
}

func TestCredentialInAnOperationIsReadOnTheRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, tt := range []struct{ verb, category, secret, resource, action string }{
		{"kubernetes_get_kubeconfig", "system.runtime_k8s_kubeconfig_read", "current-context", "Devops::KubernetesCluster", "kubernetes.kubeconfig_read"},
		{"system_sdwan_issue_user_device", "sdwan.user_device_create", "bootstrap_url", "Sdwan::UserDevice", "read"},
	} {
		t.Run(tt.verb, func(t *testing.T) {
			w.SetPolicy(t, tt.category, governance.RequireApproval, governance.Scope{})
			id := w.Parked(t, tt.verb, w.args[tt.verb][0])
			w.Approve(t, id)
			reads := func() (n int) {
				for _, row := range w.Audit(t, tt.resource) {
					if row.Action == tt.action && row.Actor.Verb == "platform_get_operation" {
						n++
					}
				}
				return n
			}
			if listed := spelt(w.Call(t, "platform_list_operations", nil)); strings.Contains(listed, tt.secret) || !strings.Contains(listed, string(id)) {
				t.Errorf("the list hands the credential out: %s", listed)
			}
			if reads() != 0 {
				t.Error("a list is recorded as a reading of the credential")
			}
			for n := 1; n <= 2; n++ {
				if got := spelt(w.Call(t, "platform_get_operation", toolstest.Object{"deferred_operation_id": id})); !strings.Contains(got, tt.secret) {
					t.Errorf("its requester reads no credential in %s", got)
				}
				if reads() != n {
					t.Errorf("%d readings are recorded after %d", reads(), n)
				}
			}
			w.SetPolicy(t, tt.category, governance.Block, governance.Scope{})
			w.Refused(t, "platform_get_operation", toolstest.Object{"deferred_operation_id": id}, schema.BlockedByPolicy, tt.category)
			if reads() != 2 {
				t.Error("a reading that policy forbids is recorded as one")
			}
		})
	}
}

func TestPreviewOfTheKubeconfigHandsNothingOut(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.activate(t, l.server(t, l.network(t, "tenant-a"), "alpha"), "alpha")
	plan := l.Call(t, "platform_preview", toolstest.Object{"verb": "kubernetes_get_kubeconfig", "arguments": toolstest.Object{"cluster_id": "alpha"}})
	if strings.Contains(spelt(plan), "c2VjcmV0") || strings.Contains(spelt(plan), "current-context") {
		t.Errorf("the preview hands the credential out: %s", spelt(plan))
	}
}

func TestCreatedClusterWaitsForItsFirstServer(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := l.network(t, "tenant-a")
	answer := l.Call(t, "kubernetes_create_cluster", toolstest.Object{"name": "alpha", "network_id": a})
	c := answer["cluster"].(toolstest.Object)
	toolstest.Has(t, toolstest.Object{"name": "alpha", "status": "pending", "node_count": 0.0, "server_count": 0.0, "bootstrap_node_instance_id": nil,
		"has_kubeconfig": false, "environment": "custom", "network_id": a}, c)
	toolstest.Has(t, toolstest.Object{"verb": "system_assign_module_to_template"}, answer["hint"].(toolstest.Object))
	if !strings.Contains(answer["hint"].(toolstest.Object)["text"].(string), c["id"].(string)) {
		t.Errorf("hint %v names no target", answer["hint"])
	}
	if !strings.HasSuffix(c["pod_cidr"].(string), "/56") || !strings.HasSuffix(c["service_cidr"].(string), "/112") {
		t.Errorf("ranges %s and %s", c["pod_cidr"], c["service_cidr"])
	}
	vip := l.Call(t, "system_sdwan_get_virtual_ip", toolstest.Object{"virtual_ip_id": c["api_vip_id"]})["virtual_ip"].(toolstest.Object)
	toolstest.Has(t, toolstest.Object{"name": "alpha-api", "state": "pending", "cluster_id": c["id"], "holder_peer_ids": []any{}}, vip)
	if told := l.Signals(t, "system.k3s_cluster_declared"); len(told) != 1 || told[0].Payload["by"] != "verb" || told[0].Payload["name"] != "alpha" {
		t.Errorf("signals %s", spelt(told))
	}
	// The agent waits, the server bootstraps that row, the agent joins: one cluster.
	worker, server := l.machine(t, "w-1"), l.machine(t, "s-1")
	l.attach(t, a, worker)
	l.assign(t, worker, cluster.ModuleAgent, c["id"])
	if r := l.join(t, worker, cluster.RoleAgent); r == nil || !r.Wait {
		t.Fatalf("the agent of a pending cluster: %+v", r)
	}
	l.attach(t, a, server)
	l.assign(t, server, cluster.ModuleServer, c["id"])
	l.activate(t, server, "s-1")
	if r := l.join(t, worker, cluster.RoleAgent); r != nil {
		t.Fatalf("the agent of an active cluster: %+v", r)
	}
	toolstest.Has(t, toolstest.Object{"count": 1.0}, l.Call(t, "kubernetes_list_clusters", toolstest.Object{}))
	toolstest.Has(t, toolstest.Object{"id": c["id"], "status": "active", "node_count": 2.0, "agent_count": 1.0}, l.cluster(t, "alpha"))
	e := l.Refused(t, "system_sdwan_failover_virtual_ip", toolstest.Object{"virtual_ip_id": c["api_vip_id"]}, schema.PreconditionFailed, "no failover candidates configured")
	if e.Hint == nil || e.Hint.Verb != "kubernetes_list_nodes" {
		t.Errorf("hint %+v", e.Hint)
	}
}

func TestClusterThatCouldNotBeIsRefused(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := l.network(t, "tenant-a")
	cidr := l.Call(t, "system_sdwan_get_network", toolstest.Object{"network_id": a})["network"].(toolstest.Object)["cidr_64"].(string)
	l.Call(t, "kubernetes_create_cluster", toolstest.Object{"name": "alpha", "network_id": a})
	wide := netip.PrefixFrom(netip.MustParsePrefix(cidr).Addr(), 63).Masked().String()
	for _, tt := range []struct {
		args toolstest.Object
		code schema.Code
		text string
	}{
		{toolstest.Object{"name": "alpha", "network_id": a}, schema.Conflict, `cluster name "alpha" is already in use`},
		{toolstest.Object{"name": "Beta", "network_id": a}, schema.InvalidArguments, "name"},
		{toolstest.Object{"name": "beta", "network_id": a, "datastore": "sqlite"}, schema.InvalidArguments, `datastore must be one of: etcd (got "sqlite")`},
		{toolstest.Object{"name": "beta", "network_id": a, "pod_cidr": wide}, schema.Conflict, "overlaps cidr_64 of network tenant-a"},
		{toolstest.Object{"name": "beta", "network_id": a, "pod_cidr": "10.42.0.0/16"}, schema.PreconditionFailed, "not available yet: an IPv4 pod_cidr"},
		{toolstest.Object{"name": "beta", "network_id": a, "pod_cidr": "fd12:3456:789a::/56", "service_cidr": "fd12:3456:789a:1::/112"}, schema.Conflict, "overlaps pod_cidr of cluster beta"},
		{toolstest.Object{"name": "beta", "network_id": a, "cni_plugin": "ovn_kubernetes"}, schema.PreconditionFailed, "not available yet: cni_plugin ovn_kubernetes"},
		{toolstest.Object{"name": "beta", "network_id": a, "k8s_version": "v0.1.0"}, schema.NotFound, "k3s-server has no version v0.1.0"},
		{toolstest.Object{"name": "beta", "network_id": "00000000-0000-7000-8000-000000000000"}, schema.NotFound, "network not found"},
		{toolstest.Object{"name": "beta"}, schema.InvalidArguments, "Missing required parameters: network_id"},
	} {
		l.Refused(t, "kubernetes_create_cluster", tt.args, tt.code, tt.text)
	}
	b := l.network(t, "tenant-b")
	l.member(t, b, "p-1")
	l.Call(t, "system_sdwan_update_network", toolstest.Object{"network_id": b, "options": toolstest.Object{"status": "archived"}})
	l.Refused(t, "kubernetes_create_cluster", toolstest.Object{"name": "beta", "network_id": b}, schema.PreconditionFailed, "network tenant-b is archived")
}

func TestDecommissionParksAndRunsAsPreviewed(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a, b := l.network(t, "tenant-a"), l.network(t, "tenant-b")
	server, worker := l.server(t, b, "beta"), l.machine(t, "w-1")
	l.activate(t, l.server(t, a, "alpha"), "alpha")
	l.activate(t, server, "beta")
	l.attach(t, b, worker)
	id := l.cluster(t, "beta")["id"].(string)
	vip := l.cluster(t, "beta")["api_vip_id"]
	l.assign(t, worker, cluster.ModuleAgent, id)
	if r := l.join(t, worker, cluster.RoleAgent); r != nil {
		t.Fatal(r.Message)
	}
	args := toolstest.Object{"cluster_id": "beta"}
	plan := l.Call(t, "platform_preview", toolstest.Object{"verb": "kubernetes_decommission_cluster", "arguments": args})
	operation := l.Parked(t, "kubernetes_decommission_cluster", args)
	toolstest.Has(t, toolstest.Object{"status": "active"}, l.cluster(t, "beta"))
	stored := l.Call(t, "platform_get_operation", toolstest.Object{"deferred_operation_id": operation})["operation"].(toolstest.Object)
	if diff := cmp.Diff(plan["plan_digest"], stored["plan_digest"]); diff != "" {
		t.Errorf("the digest of preview and parking differ:\n%s", diff)
	}
	result := l.Approve(t, operation)
	toolstest.Has(t, toolstest.Object{"decommissioned": true, "cluster_id": id, "freed_node_count": 2.0,
		"tombstone": toolstest.Object{"cluster_id": id, "name": "beta", "node_count": 2.0, "operation_id": string(operation),
			"cleanup": toolstest.Object{"state": "cleaning", "total": 2.0, "cleaned": 0.0}}}, result)
	l.Refused(t, "kubernetes_get_cluster", args, schema.NotFound, "Kubernetes cluster not found")
	l.Refused(t, "system_sdwan_get_virtual_ip", toolstest.Object{"virtual_ip_id": vip}, schema.NotFound, "")
	deleted := 0
	for _, row := range l.Audit(t, "Devops::KubernetesCluster") {
		if row.Action == "deleted" && row.ResourceID == id {
			deleted++
			toolstest.Has(t, toolstest.Object{"name": "beta", "slug": "beta", "status": "active", "environment": "custom", "node_count": 2.0}, decoded(t, row.Old))
		}
	}
	if deleted != 1 {
		t.Errorf("%d audit rows of the end, want 1", deleted)
	}
	l.View(t, func(ctx context.Context, v *store.View) error {
		for _, instance := range []store.InstanceID{server, worker} {
			i, err := store.InstanceByID(ctx, v, l.Account.ID, instance)
			if err != nil {
				return err
			}
			all, err := store.AssignmentsByNode(ctx, v, l.Account.ID, i.NodeID)
			if err != nil {
				return err
			}
			if i.Status != store.InstanceRunning || len(all) != 1 || all[0].Enabled || all[0].DisabledBy == "" {
				t.Errorf("%s: status %s, assignments %+v", i.Name, i.Status, all)
			}
		}
		return nil
	})
	if told := l.Signals(t, "system.k3s_cluster_decommissioned"); len(told) != 1 || told[0].Severity != "medium" || told[0].Payload["name"] != "beta" {
		t.Errorf("signals %s", spelt(told))
	}
	// A join without a target is no longer ambiguous.
	late := l.machine(t, "late")
	l.attach(t, a, late)
	l.assign(t, late, cluster.ModuleAgent, "")
	if r := l.join(t, late, cluster.RoleAgent); r != nil {
		t.Errorf("the only cluster left is not joined: %+v", r)
	}
	e := l.Refused(t, "kubernetes_list_clusters", toolstest.Object{"include_decommissioned": true}, schema.InvalidArguments, "include_decommissioned")
	if e.Hint == nil || e.Hint.Verb != "kubernetes_list_decommissioned_clusters" {
		t.Errorf("hint %+v", e.Hint)
	}
	toolstest.Has(t, toolstest.Object{"name": "beta"}, objects(t, l.Call(t, "kubernetes_list_decommissioned_clusters", toolstest.Object{})["clusters"])[0])
}

func TestDecommissionIsStaleOnceANodeHasJoined(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := l.network(t, "tenant-a")
	l.activate(t, l.server(t, a, "alpha"), "alpha")
	operation := l.Parked(t, "kubernetes_decommission_cluster", toolstest.Object{"cluster_id": "alpha"})
	worker := l.machine(t, "w-1")
	l.attach(t, a, worker)
	l.assign(t, worker, cluster.ModuleAgent, "")
	if r := l.join(t, worker, cluster.RoleAgent); r != nil {
		t.Fatal(r.Message)
	}
	err := l.Decide(t, operation, governance.Approve)
	if schema.CodeOf(err) != schema.Conflict || !strings.Contains(err.Error(), "plan is stale") {
		t.Errorf("approving a plan that has changed: %v", err)
	}
	toolstest.Has(t, toolstest.Object{"status": "active", "node_count": 2.0}, l.cluster(t, "alpha"))
}

func TestDecommissionSurvivesMeasurementsMeanwhile(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	first := l.server(t, l.network(t, "tenant-a"), "alpha")
	l.activate(t, first, "alpha")
	operation := l.Parked(t, "kubernetes_decommission_cluster", toolstest.Object{"cluster_id": "alpha"})
	l.activate(t, first, "alpha") // the agent tells again what it is, and reports
	toolstest.Has(t, toolstest.Object{"decommissioned": true}, l.Approve(t, operation))
}

func TestDecommissionedClustersAreListedInPagesLatestFirst(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := l.network(t, "tenant-a")
	for n := range 3 {
		name := fmt.Sprintf("c-%d", n)
		l.Call(t, "kubernetes_create_cluster", toolstest.Object{"name": name, "network_id": a})
		l.Approve(t, l.Parked(t, "kubernetes_decommission_cluster", toolstest.Object{"cluster_id": name}))
	}
	var got []string
	cursor := any(nil)
	for range 3 {
		page := l.Call(t, "kubernetes_list_decommissioned_clusters", toolstest.Object{"limit": 2, "cursor": cursor})
		if page["count"] != 3.0 {
			t.Errorf("count %v, want 3", page["count"])
		}
		for _, row := range objects(t, page["clusters"]) {
			got = append(got, row["name"].(string))
			toolstest.Has(t, toolstest.Object{"cleanup": toolstest.Object{"state": "cleaned", "total": 0.0, "cleaned": 0.0, "pending_instance_ids": []any{}}}, row)
		}
		if cursor = page["next_cursor"]; cursor == nil {
			break
		}
	}
	if diff := cmp.Diff([]string{"c-2", "c-1", "c-0"}, got); diff != "" {
		t.Errorf("pages (-want +got):\n%s", diff)
	}
	l.Refused(t, "kubernetes_list_decommissioned_clusters", toolstest.Object{"cursor": "made-up"}, schema.InvalidArguments, "cursor is not one that this verb issued")
	l.Refused(t, "kubernetes_list_decommissioned_clusters", toolstest.Object{"limit": 0}, schema.InvalidArguments, "limit must be a positive integer")
}

func TestNetworkOfALiveClusterStays(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := l.network(t, "tenant-a")
	server := l.server(t, a, "alpha")
	l.activate(t, server, "alpha")
	e := l.Refused(t, "system_sdwan_delete_network", toolstest.Object{"network_id": a}, schema.PreconditionFailed, "network is used by cluster(s) alpha")
	if e.Hint == nil || e.Hint.Verb != "kubernetes_decommission_cluster" {
		t.Errorf("hint %+v", e.Hint)
	}
	for _, status := range []string{"suspended", "archived"} {
		l.Refused(t, "system_sdwan_update_network", toolstest.Object{"network_id": a, "options": toolstest.Object{"status": status}}, schema.PreconditionFailed, "alpha")
	}
	peers := objects(t, l.Call(t, "system_sdwan_list_peers", toolstest.Object{"network_id": a})["peers"])
	l.Refused(t, "system_sdwan_detach_peer", toolstest.Object{"peer_id": peers[0]["id"]}, schema.PreconditionFailed, "member of cluster alpha over this network")
}

// decoded is a stored object as a result spells it.
func decoded(t *testing.T, v any) toolstest.Object {
	t.Helper()
	var o toolstest.Object
	if err := json.Unmarshal([]byte(spelt(v)), &o); err != nil {
		t.Fatal(err)
	}
	return o
}
