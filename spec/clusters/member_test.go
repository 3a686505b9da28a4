package clusters

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"powernode/spec/rig"
)

func TestServerWithATargetBindsTheDeclaredCluster(t *testing.T) {
	l := shared
	c := rig.At(l.must(t, "kubernetes_get_cluster", rig.Object{"cluster_id": "declared-b"}), "cluster")
	if rig.Text(c, "id") != l.b.cluster || rig.Text(c, "status") != "active" || rig.Text(c, "bootstrap_node_instance_id") != l.b.server.Instance {
		t.Errorf("cluster %v, want the declared one, with %s as its first server", c, l.b.server.Instance)
	}
	if diff := cmp.Diff([]string{"server-b"}, l.members(t, l.b.cluster)); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
	for _, each := range l.clusters(t) {
		if each["network_id"] == l.b.network && each["id"] != l.b.cluster {
			t.Errorf("the server made a cluster of its own, too: %v", each)
		}
	}
}

func TestTerminatedWorkerLeavesItsClusterAndTheLastServerStays(t *testing.T) {
	l := shared
	ctx := t.Context()
	worker, err := rig.AddMachine(ctx, l.Installation, l.base, "worker-b", l.b.network)
	ok(t, err)
	template, err := l.template(ctx, "worker-of-b", l.agentModule, rig.Object{"target_cluster_id": l.b.cluster})
	ok(t, err)
	ok(t, l.retemplate(ctx, worker, template))
	l.awaitMember(t, l.b.cluster, worker)
	const password = "secret/worker-b.node-password.k3s"
	if got := l.remains(t); !strings.Contains(got, "node/worker-b\n") || !strings.Contains(got, password) {
		t.Fatalf("the API server has no Node and password of the worker: %s", got)
	}

	floor := l.refused(t, "system_terminate_instance", rig.Object{"instance_id": l.b.server.Instance}, "precondition_failed")
	if floor.Details["floor"] != "last_server" {
		t.Errorf("refusal %+v, want the floor last_server", floor)
	}

	result := l.parked(t, "system_terminate_instance", rig.Object{"instance_id": worker.Instance})
	if result["terminated"] != true || rig.Text(result, "removed_member", "name") != "worker-b" {
		t.Errorf("result %v, want the member that was removed", result)
	}
	if diff := cmp.Diff([]string{"server-b"}, l.members(t, l.b.cluster)); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
	ok(t, rig.Await(ctx, "the Node and its password to go", time.Minute, func(context.Context) (string, error) {
		if got := l.remains(t); strings.Contains(got, "worker-b") {
			return got, nil
		}
		return "", nil
	}))
	ok(t, rig.Await(ctx, "the task to complete", time.Minute, func(ctx context.Context) (string, error) {
		out, err := l.Call(ctx, "system_list_tasks", rig.Object{"instance_id": l.b.server.Instance})
		if task := rig.Find(rig.List(out, "tasks"), "command", "k8s_remove_node"); err != nil || task["status"] == "complete" {
			return "", err
		}
		return spelt(out), nil
	}))
}

// remains lists Nodes and node passwords as B's API server has them.
func (l *lab) remains(t *testing.T) string {
	t.Helper()
	return l.kubectl(t, l.b.server, "get", "nodes", "-o", "name") + l.kubectl(t, l.b.server, "get", "secrets", "-n", "kube-system", "-o", "name")
}

func TestClusterRunsOnWhileControlPlaneAndAgentsDie(t *testing.T) {
	l := shared
	ctx := t.Context()
	watcher, err := rig.AddMachine(ctx, l.Installation, l.base, "watcher-a", l.a.network)
	ok(t, err)
	ok(t, l.a.server.Converged(ctx))
	ok(t, l.InstallProbe(ctx, watcher.Name))
	kubeconfig := rig.Text(l.must(t, "kubernetes_get_kubeconfig", rig.Object{"cluster_id": l.a.cluster}), "kubeconfig")
	ok(t, l.Write(ctx, watcher.Name, "/root/kubeconfig", []byte(kubeconfig)))
	loop, err := l.Readyz(ctx, watcher.Name, "/root/kubeconfig")
	ok(t, err)
	defer func() { ok(t, loop.Close()) }()
	more := func(what string, n int) {
		begin := len(loop.Lines())
		ok(t, loop.Await(ctx, "answers "+what, time.Minute, func(lines []string) string {
			if len(lines) < begin+n {
				return "there are too few"
			}
			return ""
		}))
	}
	ok(t, loop.Await(ctx, "the API to answer", time.Minute, func(lines []string) string { // a tunnel's first handshake takes its time
		if len(lines) == 0 || lines[len(lines)-1] != "ok" {
			return spelt(lines)
		}
		return ""
	}))
	begin := len(loop.Lines())
	const kills = 20
	for round := range kills {
		ok(t, l.KillServe(ctx))
		if round%5 == 0 {
			for _, m := range []*rig.Machine{l.a.server, watcher} {
				ok(t, l.KillAgent(ctx, m.Name))
			}
		}
		more("while the control plane is dead", 1+rand.N(4))
		if found := rig.Find(l.clusters(t), "id", l.a.cluster); found["id"] != l.a.cluster { // this call starts the next one
			t.Errorf("after restart %d the list has %v", round+1, found)
		}
		more("after the restart", rand.N(4))
	}
	ok(t, l.awaitActive(ctx, &l.a))
	more("at the end", 10)
	answers := loop.Lines()[begin:]
	for n, line := range answers {
		if line != "ok" {
			t.Errorf("answer %d of %d: %s", n+1, len(answers), line)
		}
	}
	t.Logf("%d questions over %d kills, all answered", len(answers), kills)
}
