package clusters

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"powernode/spec/rig"
)

// bootLimit is how long a cluster may take from its assignment to active, on a host that does much else.
const bootLimit = 3 * time.Minute

// lab is the installation that the tests share. Cluster a came to be by its first server, cluster b was declared before.
type lab struct {
	*rig.Installation
	base, serverModule, agentModule string
	a, b                            tenant
}

type tenant struct {
	network, cluster, endpoint string
	server                     *rig.Machine
}

var shared *lab // TestMain makes it

func TestMain(m *testing.M) {
	os.Exit(rig.RunTests(m, func(ctx context.Context, i *rig.Installation) (err error) {
		shared, err = newLab(ctx, i)
		return err
	}))
}

func newLab(ctx context.Context, i *rig.Installation) (*lab, error) {
	k3s, err := rig.Describe(ctx, rig.Given("K3S", "../../.cache/k3s"))
	if err != nil {
		return nil, err
	}
	if err := i.Provide(ctx, k3s); err != nil {
		return nil, err
	}
	l := &lab{Installation: i}
	modules, err := i.Call(ctx, "system_list_modules", rig.Object{})
	if err != nil {
		return nil, err
	}
	l.serverModule = rig.Text(rig.Find(rig.List(modules, "modules"), "name", "k3s-server"), "id")
	l.agentModule = rig.Text(rig.Find(rig.List(modules, "modules"), "name", "k3s-agent"), "id")
	if l.base, err = i.Template(ctx, "base"); err != nil {
		return nil, err
	}
	if err := l.tenants(ctx); err != nil {
		return nil, err
	}
	return l, errors.Join(l.awaitActive(ctx, &l.a), l.awaitActive(ctx, &l.b))
}

// tenants makes both networks with their servers, which then come up side by side.
func (l *lab) tenants(ctx context.Context) error {
	for name, of := range map[string]*tenant{"a": &l.a, "b": &l.b} {
		var err error
		if of.server, err = rig.NewMachine(ctx, l.Installation, l.base, "server-"+name); err != nil {
			return err
		}
		of.network = of.server.Network
	}
	template, err := l.template(ctx, "server-of-its-own", l.serverModule, rig.Object{})
	if err != nil {
		return err
	}
	if err := l.retemplate(ctx, l.a.server, template); err != nil {
		return err
	}
	declared, err := l.Call(ctx, "kubernetes_create_cluster", rig.Object{"name": "declared-b", "network_id": l.b.network})
	if err != nil {
		return err
	}
	l.b.cluster = rig.Text(declared, "cluster", "id")
	if template, err = l.template(ctx, "server-of-declared-b", l.serverModule, rig.Object{"target_cluster_id": l.b.cluster}); err != nil {
		return err
	}
	return l.retemplate(ctx, l.b.server, template)
}

// template makes one with one K3s module.
func (l *lab) template(ctx context.Context, name, module string, config rig.Object) (string, error) {
	id, err := l.Template(ctx, name)
	if err != nil {
		return "", err
	}
	_, err = l.Call(ctx, "system_assign_module_to_template", rig.Object{"template_id": id, "module_id": module, "config": config})
	return id, err
}

// retemplate moves a node that has its machine already to a template, and applies it.
func (l *lab) retemplate(ctx context.Context, m *rig.Machine, template string) error {
	if _, err := l.Call(ctx, "system_update_node", rig.Object{"node_id": m.Node, "node_template_id": template}); err != nil {
		return err
	}
	_, err := l.Call(ctx, "system_apply_template", rig.Object{"node_id": m.Node})
	return err
}

// awaitActive waits for the cluster on a tenant's network.
func (l *lab) awaitActive(ctx context.Context, of *tenant) error {
	return rig.Await(ctx, "the cluster of "+of.server.Name+" to be active", bootLimit, func(ctx context.Context) (string, error) {
		out, err := l.Call(ctx, "kubernetes_list_clusters", rig.Object{})
		if err != nil {
			return "", err
		}
		c := rig.Find(rig.List(out, "clusters"), "network_id", of.network)
		of.cluster, of.endpoint = rig.Text(c, "id"), rig.Text(c, "api_endpoint")
		if rig.Text(c, "status") == "active" {
			return "", nil
		}
		got, err := l.Call(ctx, "system_get_instance", rig.Object{"instance_id": of.server.Instance})
		b, _ := json.Marshal(rig.At(got, "instance", "subsystems"))
		return fmt.Sprintf("it is %v; %s", c["status"], b), err
	})
}

// awaitMember waits until a machine is an active member of a cluster.
func (l *lab) awaitMember(t *testing.T, cluster string, m *rig.Machine) {
	t.Helper()
	ok(t, rig.Await(t.Context(), m.Name+" to be a member", 90*time.Second, func(ctx context.Context) (string, error) {
		out, err := l.Call(ctx, "kubernetes_list_nodes", rig.Object{"cluster_id": cluster})
		if err != nil || rig.Text(rig.Find(rig.List(out, "nodes"), "name", m.Name), "status") == "active" {
			return "", err
		}
		b, _ := json.Marshal(out)
		return string(b), nil
	}))
}

// members are the names of a cluster's members.
func (l *lab) members(t *testing.T, cluster string) []string {
	t.Helper()
	names := []string{}
	for _, n := range rig.List(l.must(t, "kubernetes_list_nodes", rig.Object{"cluster_id": cluster}), "nodes") {
		names = append(names, rig.Text(n, "name"))
	}
	slices.Sort(names)
	return names
}

func (l *lab) clusters(t *testing.T) []rig.Object {
	t.Helper()
	return rig.List(l.must(t, "kubernetes_list_clusters", rig.Object{}), "clusters")
}

func (l *lab) must(t *testing.T, verb string, arguments rig.Object) rig.Object {
	t.Helper()
	out, err := l.Call(t.Context(), verb, arguments)
	if err != nil {
		t.Fatalf("%s: %v", verb, err)
	}
	return out
}

// refused calls a verb that must be refused.
func (l *lab) refused(t *testing.T, verb string, arguments rig.Object, code string) *rig.Refusal {
	t.Helper()
	out, err := l.Call(t.Context(), verb, arguments)
	var refusal *rig.Refusal
	if !errors.As(err, &refusal) || refusal.Code != code {
		t.Fatalf("%s: %v, %v, want it refused with %s", verb, out, err, code)
	}
	return refusal
}

// parked calls a verb that must park, has the person approve, and answers the result.
func (l *lab) parked(t *testing.T, verb string, arguments rig.Object) rig.Object {
	t.Helper()
	out := l.must(t, verb, arguments)
	if out["pending"] != true {
		t.Fatalf("%s did not park: %v", verb, out)
	}
	id, err := l.Decide(t.Context(), verb, arguments, out)
	ok(t, err)
	operation := l.must(t, "platform_get_operation", rig.Object{"deferred_operation_id": id})
	if status := rig.Text(operation, "operation", "status"); status != "completed" {
		t.Fatalf("%s: the operation is %s: %v", verb, status, rig.At(operation, "operation", "error"))
	}
	result, _ := rig.At(operation, "operation", "result").(rig.Object)
	return result
}

func (l *lab) exec(t *testing.T, machine string, argv ...string) string {
	t.Helper()
	out, err := l.Exec(t.Context(), machine, argv...)
	ok(t, err)
	return string(out)
}

// kubectl asks a server's own API.
func (l *lab) kubectl(t *testing.T, server *rig.Machine, argv ...string) string {
	t.Helper()
	return l.exec(t, server.Name, append([]string{"k3s", "kubectl", "--kubeconfig", "/etc/rancher/k3s/k3s.yaml", "--cache-dir", "/tmp/kubectl"}, argv...)...)
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
