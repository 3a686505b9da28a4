package clusters

import (
	"context"
	"strings"
	"testing"
	"time"

	"powernode/spec/rig"
)

// guest is a pod that a drain must move; nobody runs it, so it asks for no time to end.
const guest = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "guest", "namespace": "default"}, "spec": {"nodeName": "worker-p",
	"terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "example.org/none"}]}}`

func TestWorkerIsStoppedDrainedAndReplaced(t *testing.T) {
	l := shared
	ctx := t.Context()
	worker, err := rig.AddMachine(ctx, l.Installation, l.base, "worker-p", l.b.network)
	ok(t, err)
	template, err := l.template(ctx, "powered-worker-of-b", l.agentModule, rig.Object{"target_cluster_id": l.b.cluster})
	ok(t, err)
	ok(t, l.retemplate(ctx, worker, template))
	l.awaitMember(t, l.b.cluster, worker)
	on := rig.Object{"instance_id": worker.Instance}

	stopped := l.must(t, "system_stop_instance", on)
	if rig.Text(stopped, "instance", "status") != "stopped" {
		t.Errorf("the stop answers %v", stopped)
	}
	if _, err := l.Exec(ctx, worker.Name, "true"); err == nil {
		t.Error("the machine runs on")
	}
	l.must(t, "system_start_instance", on)
	l.awaitStatus(t, worker.Instance, "running")
	reboot := l.parked(t, "system_reboot_instance", rig.Object{"instance_id": worker.Instance, "force": true})
	if rig.Text(reboot, "instance", "status") != "rebooting" {
		t.Errorf("the reboot answers %v", reboot)
	}
	l.awaitStatus(t, worker.Instance, "running")
	l.awaitMember(t, l.b.cluster, worker)

	// A drain cordons and moves; the uncordon takes it back.
	ok(t, l.Write(ctx, l.b.server.Name, "/tmp/guest.json", []byte(guest)))
	l.kubectl(t, l.b.server, "apply", "-f", "/tmp/guest.json")
	drain := l.parked(t, "system_drain_instance", rig.Object{"instance_id": worker.Instance, "timeout_seconds": 60})
	l.awaitTask(t, rig.Text(drain, "task", "id"))
	if got := l.kubectl(t, l.b.server, "get", "pods", "-o", "name"); strings.Contains(got, "guest") {
		t.Errorf("pods after the drain: %s", got)
	}
	if got := l.unschedulable(t, "worker-p"); got != "true" {
		t.Errorf("after the drain unschedulable is %q", got)
	}
	l.must(t, "system_uncordon_instance", on)
	ok(t, rig.Await(ctx, "the Node to be uncordoned", time.Minute, func(context.Context) (string, error) { return l.unschedulable(t, "worker-p"), nil }))

	// A replacement brings a new machine under the old name, and the name joins again.
	replaced := l.parked(t, "system_replace_instance", rig.Object{"instance_id": worker.Instance, "operation_id": "swap", "accept_running": true})
	l.awaitTask(t, rig.Text(replaced, "task", "id"))
	l.awaitMember(t, l.b.cluster, worker)
	found := rig.List(l.must(t, "system_list_instances", rig.Object{"node_id": worker.Node, "status": "running"}), "instances")
	if len(found) != 1 || rig.Text(found[0], "name") != "worker-p" || rig.Text(found[0], "id") == worker.Instance {
		t.Fatalf("instances %v, want a new one under the old name", found)
	}
	l.parked(t, "system_terminate_instance", rig.Object{"instance_id": rig.Text(found[0], "id")})
	ok(t, rig.Await(ctx, "the Node to go", time.Minute, func(context.Context) (string, error) {
		if got := l.remains(t); strings.Contains(got, "worker-p") {
			return got, nil
		}
		return "", nil
	}))
}

func (l *lab) awaitStatus(t *testing.T, instance, want string) {
	t.Helper()
	ok(t, rig.Await(t.Context(), "instance to be "+want, time.Minute, func(ctx context.Context) (string, error) {
		out, err := l.Call(ctx, "system_get_instance", rig.Object{"instance_id": instance})
		if got := rig.Text(out, "instance", "status"); err != nil || got != want {
			return "it is " + got, err
		}
		return "", nil
	}))
}

// awaitTask waits until a task is complete.
func (l *lab) awaitTask(t *testing.T, id string) {
	t.Helper()
	ok(t, rig.Await(t.Context(), "task "+id, 3*time.Minute, func(ctx context.Context) (string, error) {
		out, err := l.Call(ctx, "system_get_task", rig.Object{"id": id, "include_events": true, "wait_seconds": 5})
		if status := rig.Text(out, "task", "status"); err != nil || status != "complete" {
			return spelt(out), err
		}
		return "", nil
	}))
}

func (l *lab) unschedulable(t *testing.T, node string) string {
	t.Helper()
	return l.kubectl(t, l.b.server, "get", "node", node, "-o", "jsonpath={.spec.unschedulable}")
}
