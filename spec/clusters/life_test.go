package clusters

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"powernode/spec/rig"
)

const ambiguous = "system.k3s_ambiguous_cluster_join_refused"

// TestThirdClusterLivesAndGoesWithoutATrace walks one cluster's life: it comes to be beside two others, a worker that could
// mean any of the three is refused and joins once told, and a decommission leaves its hosts as they were.
func TestThirdClusterLivesAndGoesWithoutATrace(t *testing.T) {
	l := shared
	ctx := t.Context()
	server, err := rig.NewMachine(ctx, l.Installation, l.base, "server-c")
	ok(t, err)
	worker, err := rig.AddMachine(ctx, l.Installation, l.base, "worker-c", server.Network)
	ok(t, err)
	ok(t, server.Converged(ctx)) // it has learned of the worker
	before := map[*rig.Machine]host{server: l.listing(t, server), worker: l.listing(t, worker)}
	others := len(l.clusters(t))

	c := tenant{network: server.Network, server: server}
	serverTemplate, err := l.template(ctx, "server-of-c", l.serverModule, rig.Object{})
	ok(t, err)
	ok(t, l.retemplate(ctx, server, serverTemplate))
	l.kubeconfigIsRefusedWhileBootstrapping(t, c.network)
	ok(t, l.awaitActive(ctx, &c))
	if kubeconfig := rig.Text(l.must(t, "kubernetes_get_kubeconfig", rig.Object{"cluster_id": c.cluster}), "kubeconfig"); !strings.Contains(kubeconfig, c.endpoint) {
		t.Errorf("the kubeconfig does not name %s:\n%s", c.endpoint, kubeconfig)
	}
	if got := l.clusters(t); len(got) != others+1 || c.cluster == l.a.cluster || c.cluster == l.b.cluster {
		t.Fatalf("clusters %v, want one more than the %d others", got, others)
	}

	workerTemplate, err := l.template(ctx, "worker-of-c", l.agentModule, rig.Object{})
	ok(t, err)
	l.refusesToGuess(t, c, worker, workerTemplate)
	t.Run("with a target it joins", func(t *testing.T) {
		l.must(t, "system_update_template_module", rig.Object{"template_id": workerTemplate, "module_id": l.agentModule, "config": rig.Object{"target_cluster_id": c.cluster}})
		l.must(t, "system_apply_template", rig.Object{"node_id": worker.Node})
		l.awaitMember(t, c.cluster, worker)
		if got := l.kubectl(t, server, "get", "nodes", "-o", "name"); !strings.Contains(got, "node/worker-c") {
			t.Errorf("kubectl lists %s", got)
		}
		if got := l.signals(t); len(got) != 1 {
			t.Errorf("signals %v, want the one from before", got)
		}
	})
	t.Run("a decommission leaves the hosts as they were", func(t *testing.T) { l.decommission(t, c, before) })
	t.Run("applying the template again bootstraps nothing", func(t *testing.T) { l.applyAgain(t, server, before[server], others) })
}

func (l *lab) kubeconfigIsRefusedWhileBootstrapping(t *testing.T, network string) {
	t.Helper()
	c := rig.Find(l.clusters(t), "network_id", network)
	refusal := l.refused(t, "kubernetes_get_kubeconfig", rig.Object{"cluster_id": c["id"]}, "precondition_failed")
	if !refusal.Retryable || !strings.HasPrefix(refusal.Message, "kubeconfig not yet available — cluster is still bootstrapping (status=") ||
		refusal.Hint == nil || refusal.Hint.Verb != "kubernetes_get_cluster" {
		t.Errorf("refusal %+v, hint %+v", refusal, refusal.Hint)
	}
}

func (l *lab) signals(t *testing.T) []rig.Object {
	t.Helper()
	return rig.List(l.must(t, "system_recent_signals", rig.Object{"kind": ambiguous}), "events")
}

func (l *lab) refusesToGuess(t *testing.T, c tenant, worker *rig.Machine, template string) {
	t.Helper()
	ok(t, l.retemplate(t.Context(), worker, template))
	// The agent asks, is refused, and asks again: its message stays, and there is one signal.
	ok(t, rig.Await(t.Context(), "the worker to be refused", time.Minute, func(ctx context.Context) (string, error) {
		out, err := l.Call(ctx, "system_get_instance", rig.Object{"instance_id": worker.Instance})
		message := rig.Text(rig.Find(rig.List(out, "instance", "subsystems"), "name", "k3s"), "message")
		if err != nil || strings.Contains(message, "AmbiguousClusterError (HTTP 409)") {
			return "", err
		}
		return "k3s says " + message, nil
	}))
	if got := l.signals(t); len(got) != 1 || got[0]["severity"] != "high" || got[0]["node_instance_id"] != worker.Instance {
		t.Errorf("signals %v, want one of severity high about %s", got, worker.Instance)
	}
	for _, each := range l.clusters(t) {
		if slices.Contains(l.members(t, rig.Text(each, "id")), worker.Name) {
			t.Errorf("%s has become a member of %v", worker.Name, each["name"])
		}
	}
	waiting := rig.Find(rig.List(l.must(t, "kubernetes_list_nodes", rig.Object{"cluster_id": c.cluster}), "waiting"), "name", worker.Name)
	if waiting["reason"] != "ambiguous" && waiting["reason"] != "none_set" {
		t.Errorf("it waits for %v, want that it is ambiguous", waiting)
	}
}

func (l *lab) decommission(t *testing.T, c tenant, before map[*rig.Machine]host) {
	vip := rig.Text(l.must(t, "kubernetes_get_cluster", rig.Object{"cluster_id": c.cluster}), "cluster", "api_vip_id")
	result := l.parked(t, "kubernetes_decommission_cluster", rig.Object{"cluster_id": c.cluster})
	if result["decommissioned"] != true || result["freed_node_count"] != 2.0 {
		t.Errorf("result %v, want two freed nodes", result)
	}
	if rig.Find(l.clusters(t), "id", c.cluster) != nil {
		t.Error("the cluster is still listed")
	}
	ok(t, rig.Await(t.Context(), "the hosts to be cleaned", time.Minute, func(ctx context.Context) (string, error) {
		out, err := l.Call(ctx, "kubernetes_list_decommissioned_clusters", rig.Object{})
		cleanup := rig.At(rig.Find(rig.List(out, "clusters"), "cluster_id", c.cluster), "cleanup")
		if err != nil || rig.Text(cleanup, "state") == "cleaned" {
			return "", err
		}
		return strings.TrimSpace(spelt(cleanup)), nil
	}))
	if refusal := l.refused(t, "system_sdwan_get_virtual_ip", rig.Object{"virtual_ip_id": vip}, "not_found"); refusal == nil {
		t.Error("the API's virtual IP is still there")
	}
	for m, was := range before {
		ok(t, m.Converged(t.Context()))
		if diff := cmp.Diff(was, l.listing(t, m)); diff != "" {
			t.Errorf("%s (-before the assignment +after the decommission):\n%s", m.Name, diff)
		}
		if status := rig.Text(l.must(t, "system_get_instance", rig.Object{"instance_id": m.Instance}), "instance", "status"); status != "running" {
			t.Errorf("instance %s is %s, want that it runs on", m.Name, status)
		}
	}
}

func (l *lab) applyAgain(t *testing.T, server *rig.Machine, was host, others int) {
	out := l.must(t, "system_apply_template", rig.Object{"node_id": server.Node})
	skipped := rig.List(out, "skipped")
	if len(skipped) != 1 || skipped[0]["reason"] != "disabled" || len(rig.List(out, "created")) != 0 || len(rig.List(out, "updated")) != 0 {
		t.Errorf("applied: %v, want the assignment skipped as disabled", out)
	}
	ok(t, server.Converged(t.Context()))
	if got := l.clusters(t); len(got) != others {
		t.Errorf("clusters %v, want the %d others", got, others)
	}
	if diff := cmp.Diff(was, l.listing(t, server)); diff != "" {
		t.Errorf("the host (-before the assignment +now):\n%s", diff)
	}
}
