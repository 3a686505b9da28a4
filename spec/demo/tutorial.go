package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"powernode/spec/rig"
)

type object = rig.Object

// tutorial is the state of the walk: what earlier steps made.
type tutorial struct {
	*rig.Installation
	k3s      rig.K3s
	breakage string
	started  time.Time

	platform, region, size, base   string
	serverModule, agentModule      string
	a, b                           tenant
	workerNode, workerInstance     string
	outsiderNode, outsiderInstance string
	workerTemplate                 string
	tenantBTemplates               []string
	user                           string
}

// tenant is one network with its cluster.
type tenant struct {
	name, network, cidr      string
	node, instance, template string
	cluster, endpoint        string
	vip                      netip.Addr
}

func (t *tutorial) title(text string) { fmt.Printf("\n== %s\n", text) }

func (t *tutorial) say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// evidence is an assertion: it holds, or the demo ends here with its name.
func (t *tutorial) evidence(holds bool, format string, args ...any) error {
	what := fmt.Sprintf(format, args...)
	if !holds {
		fmt.Printf("  ✗ %s\n", what)
		return errors.New(what)
	}
	fmt.Printf("  ✓ %s\n", what)
	return nil
}

// call calls a verb and shows it.
func (t *tutorial) call(ctx context.Context, verb string, arguments object) (object, error) {
	t.show(verb, arguments)
	out, err := t.Call(ctx, verb, arguments)
	t.showResult(out, err)
	return out, err
}

// approved is call, with the person's approval where it parks.
func (t *tutorial) approved(ctx context.Context, verb string, arguments object) (object, error) {
	t.show(verb, arguments)
	out, err := t.Call(ctx, verb, arguments)
	t.showResult(out, err)
	if err != nil || out["pending"] != true {
		return out, err
	}
	id, err := t.Decide(ctx, verb, arguments, out)
	if err != nil {
		return nil, err
	}
	operation, err := t.Call(ctx, "platform_get_operation", object{"deferred_operation_id": id})
	if err != nil {
		return nil, err
	}
	status := rig.Text(operation, "operation", "status")
	if err := t.evidence(status == "completed", "it waited for a person; approved with the passphrase, it ran (%s)", status); err != nil {
		return nil, fmt.Errorf("%w: %v", err, rig.At(operation, "operation", "error"))
	}
	result, _ := rig.At(operation, "operation", "result").(object)
	return result, nil
}

func (t *tutorial) show(verb string, arguments object) {
	b, _ := json.Marshal(arguments) // maps of texts and numbers always encode
	fmt.Printf("  → %s %s\n", verb, b)
}

func (t *tutorial) showResult(out object, err error) {
	if err != nil {
		fmt.Printf("  ← %v\n", err)
		return
	}
	b, _ := json.Marshal(out)
	short := string(b)
	if len(short) > 220 {
		short = short[:217] + "…"
	}
	fmt.Printf("  ← %s\n", short)
}

func (t *tutorial) look(ctx context.Context) error {
	if err := t.Connect(ctx); err != nil {
		return err
	}
	who, err := t.call(ctx, "platform_whoami", object{})
	if err != nil {
		return err
	}
	t.user = rig.Text(who, "users", 0, "id")
	if err := t.evidence(rig.Text(who, "caller", "kind") == "agent" && t.user != "", "the caller is an assistant, the account has a person"); err != nil {
		return err
	}
	platforms, err := t.call(ctx, "system_list_platforms", object{})
	if err != nil {
		return err
	}
	regions, err := t.call(ctx, "system_list_regions", object{})
	if err != nil {
		return err
	}
	sizes, err := t.call(ctx, "system_list_instance_types", object{})
	if err != nil {
		return err
	}
	modules, err := t.call(ctx, "system_list_modules", object{})
	if err != nil {
		return err
	}
	t.platform = rig.Text(rig.Find(rig.List(platforms, "platforms"), "name", "linux-amd64"), "id")
	t.region, t.size = rig.Text(regions, "regions", 0, "id"), rig.Text(sizes, "instance_types", 0, "id")
	t.serverModule = rig.Text(rig.Find(rig.List(modules, "modules"), "name", "k3s-server"), "id")
	t.agentModule = rig.Text(rig.Find(rig.List(modules, "modules"), "name", "k3s-agent"), "id")
	if err := t.evidence(t.platform != "" && t.region != "" && t.size != "" && t.serverModule != "" && t.agentModule != "",
		"a fresh account has platforms, a region, instance types and the K3s modules"); err != nil {
		return err
	}
	base, err := t.template(ctx, "base")
	t.base = base
	return err
}

func (t *tutorial) provide(ctx context.Context) error {
	if err := t.Provide(ctx, t.k3s); err != nil {
		return err
	}
	for _, module := range []string{t.serverModule, t.agentModule} {
		got, err := t.call(ctx, "system_get_module", object{"module_id": module})
		if err != nil {
			return err
		}
		if err := t.evidence(rig.Text(got, "module", "current_version") == t.k3s.Version, "%s runs %s from now on, released by a person",
			rig.Text(got, "module", "name"), t.k3s.Version); err != nil {
			return err
		}
	}
	return nil
}

func (t *tutorial) template(ctx context.Context, name string) (string, error) {
	out, err := t.call(ctx, "system_create_template", object{"name": name, "node_platform_id": t.platform})
	if err != nil {
		return "", err
	}
	id := rig.Text(out, "template", "id")
	if strings.HasPrefix(name, "tenant-b") {
		t.tenantBTemplates = append(t.tenantBTemplates, id)
	}
	return id, nil
}

func (t *tutorial) network(ctx context.Context, name, description string) (tenant, error) {
	out, err := t.call(ctx, "system_sdwan_create_network", object{"name": name, "description": description})
	if err != nil {
		return tenant{}, err
	}
	return tenant{name: name, network: rig.Text(out, "network", "id"), cidr: rig.Text(out, "network", "cidr_64")}, nil
}

// machine makes a node and its machine, and attaches it to a network.
func (t *tutorial) machine(ctx context.Context, name, tag, network string) (node, instance string, err error) {
	made, err := t.call(ctx, "system_create_node", object{"name": name, "template_id": t.base, "config": object{"tenant": tag}})
	if err != nil {
		return "", "", err
	}
	node = rig.Text(made, "node", "id")
	begin := time.Now()
	out, err := t.call(ctx, "system_provision_instance", object{"node_id": node, "provider_region_id": t.region, "provider_instance_type_id": t.size})
	if err != nil {
		return "", "", err
	}
	instance = rig.Text(out, "instance", "id")
	t.say("  (the machine was made in %s)", time.Since(begin).Round(time.Millisecond))
	if _, err = t.call(ctx, "system_sdwan_attach_peer", object{"network_id": network, "node_instance_id": instance}); err != nil {
		return "", "", err
	}
	return node, instance, t.keyed(ctx, network, instance)
}

// keyed waits until a machine has made its key and reported it: from then on nothing about its peer changes by itself.
func (t *tutorial) keyed(ctx context.Context, network, instance string) error {
	return rig.Await(ctx, "the key of instance "+instance, 30*time.Second, func(ctx context.Context) (string, error) {
		out, err := t.Call(ctx, "system_sdwan_list_peers", object{"network_id": network})
		if err != nil || rig.Text(rig.Find(rig.List(out, "peers"), "node_instance_id", instance), "public_key") != "" {
			return "", err
		}
		return "no public key reported yet", nil
	})
}

// converged waits until an agent has applied what its machine is to be.
func (t *tutorial) converged(ctx context.Context, instance string) error {
	return rig.Await(ctx, "instance "+instance+" to converge", 30*time.Second, func(ctx context.Context) (string, error) {
		out, err := t.Call(ctx, "system_get_instance", object{"instance_id": instance})
		if err != nil || rig.At(out, "instance", "converged") == true {
			return "", err
		}
		b, _ := json.Marshal(rig.At(out, "instance", "subsystems"))
		return fmt.Sprintf("status %s, desired %v, subsystems %s", rig.Text(out, "instance", "status"), rig.At(out, "instance", "desired_revision"), b), nil
	})
}

// active waits for a cluster on a network.
func (t *tutorial) active(ctx context.Context, of *tenant, since time.Time) error {
	err := rig.Await(ctx, "the cluster of "+of.name+" to become active", 4*time.Minute, func(ctx context.Context) (string, error) {
		out, err := t.Call(ctx, "kubernetes_list_clusters", object{})
		if err != nil {
			return "", err
		}
		c := rig.Find(rig.List(out, "clusters"), "network_id", of.network)
		of.cluster, of.endpoint = rig.Text(c, "id"), rig.Text(c, "api_endpoint")
		if rig.Text(c, "status") == "active" {
			return "", nil
		}
		got, err := t.Call(ctx, "system_get_instance", object{"instance_id": of.instance})
		b, _ := json.Marshal(rig.At(got, "instance", "subsystems"))
		return fmt.Sprintf("cluster is %v; %s", c["status"], b), err
	})
	if err != nil {
		return err
	}
	endpoint, err := netip.ParseAddrPort(strings.TrimPrefix(of.endpoint, "https://"))
	if err != nil {
		return fmt.Errorf("read the API address %q: %w", of.endpoint, err)
	}
	of.vip = endpoint.Addr()
	return t.evidence(true, "cluster of %s is active at %s, %s after the call", of.name, of.endpoint, time.Since(since).Round(100*time.Millisecond))
}

// retemplate moves a provisioned node to a template and applies it.
func (t *tutorial) retemplate(ctx context.Context, node, template string) error {
	moved, err := t.call(ctx, "system_update_node", object{"node_id": node, "node_template_id": template})
	if err != nil {
		return err
	}
	if err := t.evidence(moved["assignments_stale"] == true && rig.Text(moved, "hint", "verb") == "system_apply_template",
		"the pointer moved, nothing else: the answer says that the assignments are stale and what to call"); err != nil {
		return err
	}
	_, err = t.call(ctx, "system_apply_template", object{"node_id": node})
	return err
}

// server gives a tenant's machine a cluster of its own.
func (t *tutorial) server(ctx context.Context, of *tenant) error {
	template, err := t.template(ctx, of.name+"-k3s-server")
	if err != nil {
		return err
	}
	of.template = template
	if _, err := t.call(ctx, "system_assign_module_to_template", object{"template_id": template, "module_id": t.serverModule}); err != nil {
		return err
	}
	since := time.Now()
	if err := t.retemplate(ctx, of.node, template); err != nil {
		return err
	}
	return t.active(ctx, of, since)
}

func (t *tutorial) clusterA(ctx context.Context) error {
	var err error
	if t.a, err = t.network(ctx, "tenant-a", "Tenant A's isolated cluster"); err != nil {
		return err
	}
	if t.a.node, t.a.instance, err = t.machine(ctx, "k3s-server-a-1", "a", t.a.network); err != nil {
		return err
	}
	return t.server(ctx, &t.a)
}

func (t *tutorial) step1(ctx context.Context) error {
	var err error
	if t.b, err = t.network(ctx, "tenant-b", "Tenant B's isolated cluster"); err != nil {
		return err
	}
	_, refused := t.call(ctx, "system_sdwan_create_network", object{"name": "tenant-c", "prefix": "fd00::/64"})
	if err := t.evidence(refused != nil && strings.Contains(refused.Error(), "Undeclared parameters: prefix"), "a prefix is refused, not dropped"); err != nil {
		return err
	}
	return t.evidence(t.a.cidr != t.b.cidr, "two /64s of one account: %s and %s", t.a.cidr, t.b.cidr)
}

func (t *tutorial) step2(ctx context.Context) error {
	var err error
	if t.b.node, t.b.instance, err = t.machine(ctx, "k3s-server-b-1", "b", t.b.network); err != nil {
		return err
	}
	if t.workerNode, t.workerInstance, err = t.machine(ctx, "k3s-worker-b-1", "b", t.b.network); err != nil {
		return err
	}
	for _, instance := range []string{t.b.instance, t.workerInstance} {
		if err := t.converged(ctx, instance); err != nil {
			return err
		}
	}
	address, err := t.overlayAddress(ctx, t.b.network, t.workerInstance)
	if err != nil {
		return err
	}
	_, err = t.Exec(ctx, "k3s-server-b-1", "ping", "-6", "-c", "3", "-i", "0.2", "-W", "2", address)
	return errors.Join(err, t.evidence(err == nil, "tenant B's machines reach each other over the overlay"))
}

func (t *tutorial) overlayAddress(ctx context.Context, network, instance string) (string, error) {
	out, err := t.Call(ctx, "system_sdwan_list_peers", object{"network_id": network})
	return rig.Text(rig.Find(rig.List(out, "peers"), "node_instance_id", instance), "assigned_address"), err
}

func (t *tutorial) step3(ctx context.Context) error {
	_, refused := t.call(ctx, "system_update_instance", object{"instance_id": t.b.instance, "node_template_id": t.base})
	if err := t.evidence(refused != nil && strings.Contains(refused.Error(), "Undeclared parameters: node_template_id"),
		"the call that the tutorial withdraws is refused with the way out"); err != nil {
		return err
	}
	return t.server(ctx, &t.b)
}

func (t *tutorial) step4(ctx context.Context) error {
	template, err := t.template(ctx, "tenant-b-k3s-worker")
	if err != nil {
		return err
	}
	t.workerTemplate = template
	_, err = t.call(ctx, "system_assign_module_to_template", object{"template_id": template, "module_id": t.agentModule,
		"config": object{"target_cluster_id": t.b.cluster}})
	if err != nil {
		return err
	}
	if err := t.retemplate(ctx, t.workerNode, template); err != nil {
		return err
	}
	if err := t.joined(ctx, "k3s-worker-b-1"); err != nil {
		return err
	}
	inA, err := t.call(ctx, "kubernetes_list_nodes", object{"cluster_id": t.a.cluster})
	if err != nil {
		return err
	}
	return t.evidence(len(rig.List(inA, "nodes")) == 1, "the worker is in cluster B, and not in cluster A")
}

// joined waits until a machine is an active member of cluster B.
func (t *tutorial) joined(ctx context.Context, machine string) error {
	return rig.Await(ctx, machine+" to join cluster B", 2*time.Minute, func(ctx context.Context) (string, error) {
		out, err := t.Call(ctx, "kubernetes_list_nodes", object{"cluster_id": t.b.cluster})
		if err != nil || rig.Text(rig.Find(rig.List(out, "nodes"), "name", machine), "status") == "active" {
			return "", err
		}
		b, _ := json.Marshal(out)
		return string(b), nil
	})
}

// ambiguous gives a machine a worker's module without a target while two clusters exist.
func (t *tutorial) ambiguous(ctx context.Context) error {
	template, err := t.template(ctx, "untargeted-worker")
	if err != nil {
		return err
	}
	if _, err := t.call(ctx, "system_assign_module_to_template", object{"template_id": template, "module_id": t.agentModule}); err != nil {
		return err
	}
	node, instance, err := t.machine(ctx, "outsider-b-1", "b", t.b.network)
	if err != nil {
		return err
	}
	t.outsiderNode, t.outsiderInstance = node, instance
	if err := t.retemplate(ctx, node, template); err != nil {
		return err
	}
	const kind = "system.k3s_ambiguous_cluster_join_refused"
	err = rig.Await(ctx, "the refusal's signal", time.Minute, func(ctx context.Context) (string, error) {
		out, err := t.Call(ctx, "system_recent_signals", object{"kind": kind})
		if err != nil || len(rig.List(out, "events")) > 0 {
			return "", err
		}
		return "no signal", nil
	})
	if err != nil {
		return err
	}
	signals, err := t.call(ctx, "system_recent_signals", object{"kind": kind})
	if err != nil {
		return err
	}
	nodes, err := t.Call(ctx, "kubernetes_list_nodes", object{"cluster_id": t.b.cluster})
	if err != nil {
		return err
	}
	if err := t.evidence(len(rig.List(signals, "events")) == 1 && rig.Text(signals, "events", 0, "severity") == "high" && len(rig.List(nodes, "nodes")) == 2,
		"exactly one signal of severity high, no member: it guesses nothing"); err != nil {
		return err
	}
	return t.untemplate(ctx, node)
}

// untemplate takes the untargeted worker's module away again: the machine stays as a plain peer of tenant B.
func (t *tutorial) untemplate(ctx context.Context, node string) error {
	if _, err := t.call(ctx, "system_update_node", object{"node_id": node, "node_template_id": t.base}); err != nil {
		return err
	}
	_, err := t.approved(ctx, "system_apply_template", object{"node_id": node, "purge_stale": true})
	return err
}

const workstation = "ops-laptop"

func (t *tutorial) workstation(ctx context.Context) error {
	var urls []string
	for _, of := range []tenant{t.a, t.b} {
		grant, err := t.call(ctx, "system_sdwan_create_access_grant", object{"network_id": of.network, "user_id": t.user, "tags": []string{"operator-ws"}})
		if err != nil {
			return err
		}
		device, err := t.Call(ctx, "system_sdwan_issue_user_device", object{"access_grant_id": rig.Text(grant, "grant", "id"), "label": workstation})
		if err != nil {
			return err
		}
		urls = append(urls, rig.Text(device, "bootstrap_url"))
	}
	if _, err := t.Run(ctx, append([]string{"local", "workstation", workstation}, urls...)...); err != nil {
		return err
	}
	if err := t.Install(ctx, workstation, t.k3s.Path, "/usr/local/bin/k3s"); err != nil {
		return err
	}
	for _, of := range []tenant{t.a, t.b} {
		if err := t.kubectl(ctx, of); err != nil {
			return err
		}
	}
	return t.foreignCA(ctx)
}

func kubeconfigPath(of tenant) string { return "/root/.kube/" + of.name + ".yaml" }

// kubectl reads a cluster's nodes from the workstation, through the cluster's virtual IP.
func (t *tutorial) kubectl(ctx context.Context, of tenant) error {
	out, err := t.Call(ctx, "kubernetes_get_kubeconfig", object{"cluster_id": of.cluster})
	if err != nil {
		return err
	}
	text := rig.Text(out, "kubeconfig")
	if err := t.evidence(strings.Contains(text, "certificate-authority-data") && !strings.Contains(text, "insecure") && strings.Contains(text, of.endpoint),
		"the kubeconfig of %s has the cluster's CA, no insecure flag, and the virtual IP", of.name); err != nil {
		return err
	}
	if err := t.Write(ctx, workstation, kubeconfigPath(of), []byte(text)); err != nil {
		return err
	}
	nodes, err := t.Exec(ctx, workstation, "k3s", "kubectl", "--kubeconfig", kubeconfigPath(of), "get", "nodes", "-o", "wide")
	t.say("%s", indent(string(nodes)))
	want := "k3s-server-" + of.name[len("tenant-"):] + "-1"
	return errors.Join(err, t.evidence(err == nil && strings.Contains(string(nodes), want) && strings.Contains(string(nodes), " Ready"),
		"kubectl get nodes works from the workstation through %s", of.endpoint))
}

// foreignCA calls B's API with A's certificate authority.
func (t *tutorial) foreignCA(ctx context.Context) error {
	a, err := t.Exec(ctx, workstation, "cat", kubeconfigPath(t.a))
	if err != nil {
		return err
	}
	b, err := t.Exec(ctx, workstation, "cat", kubeconfigPath(t.b))
	if err != nil {
		return err
	}
	mixed := strings.Replace(string(b), caOf(string(b)), caOf(string(a)), 1)
	if err := t.Write(ctx, workstation, "/root/.kube/mixed.yaml", []byte(mixed)); err != nil {
		return err
	}
	_, err = t.Exec(ctx, workstation, "k3s", "kubectl", "--kubeconfig", "/root/.kube/mixed.yaml", "get", "nodes")
	return t.evidence(err != nil && strings.Contains(err.Error(), "x509"), "with the other cluster's CA the same call fails: TLS is verified")
}

func caOf(kubeconfig string) string {
	_, rest, _ := strings.Cut(kubeconfig, "certificate-authority-data: ")
	ca, _, _ := strings.Cut(rest, "\n")
	if _, err := base64.StdEncoding.DecodeString(strings.TrimSpace(ca)); err != nil {
		return "no CA in the kubeconfig"
	}
	return strings.TrimSpace(ca)
}

func indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n    ")
}

// reaches says whether a TCP connection from a machine comes about.
func (t *tutorial) reaches(ctx context.Context, machine string, address netip.AddrPort) bool {
	_, err := t.Exec(ctx, machine, "timeout", "3", "bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s/%d", address.Addr(), address.Port()))
	return err == nil
}

func (t *tutorial) pings(ctx context.Context, machine string, address netip.Addr) bool {
	_, err := t.Exec(ctx, machine, "ping", "-c", "2", "-i", "0.2", "-W", "1", address.String())
	return err == nil
}

func (t *tutorial) isolation(ctx context.Context) error {
	api := netip.AddrPortFrom(t.b.vip, 6443)
	if err := t.evidence(t.reaches(ctx, workstation, api), "control: the workstation reaches %s", api); err != nil {
		return err
	}
	if err := t.evidence(!t.reaches(ctx, "k3s-server-a-1", api) && !t.pings(ctx, "k3s-server-a-1", t.b.vip),
		"tenant A's server reaches neither B's API server nor its address by ping"); err != nil {
		return err
	}
	if t.breakage == "firewall" {
		t.say("  BREAK=firewall: the agents of both servers are stopped, and our tables there deleted")
		for _, machine := range []string{"k3s-server-a-1", "k3s-server-b-1"} {
			if err := t.disarm(ctx, machine); err != nil {
				return err
			}
		}
	} else {
		t.show("system_sdwan_verify_isolation", object{})
		verdict, err := t.Isolation(ctx, object{}, "isolated")
		t.showResult(verdict, err)
		if err := errors.Join(t.evidence(err == nil, "the platform's own proof says %v", verdict["verdict"]), err); err != nil {
			return err
		}
		if err := t.disarm(ctx, "k3s-server-a-1"); err != nil {
			return err
		}
	}
	return errors.Join(t.attack(ctx), t.rearm(ctx))
}

// disarm stops a machine's agent and deletes our table there: what an attacker who is root on it would do.
func (t *tutorial) disarm(ctx context.Context, machine string) error {
	_, err := t.Exec(ctx, machine, "sh", "-c", `pkill -STOP -f '[p]owernode-agent run'; nft delete table inet powernode`)
	return err
}

func (t *tutorial) rearm(ctx context.Context) error {
	for _, machine := range []string{"k3s-server-a-1", "k3s-server-b-1"} {
		if _, err := t.Exec(ctx, machine, "sh", "-c", `pkill -CONT -f '[p]owernode-agent run'; ip -6 route del `+t.b.vip.String()+` 2>/dev/null; true`); err != nil {
			return err
		}
	}
	return rig.Await(ctx, "A's table to come back", 30*time.Second, func(ctx context.Context) (string, error) {
		if _, err := t.Exec(ctx, "k3s-server-a-1", "nft", "list", "table", "inet", "powernode"); err != nil {
			return "the table is not there yet", nil // that it is missing is what is awaited
		}
		return "", nil
	})
}

// attack goes from A's server, as root, by the shared underlay straight to B's server.
func (t *tutorial) attack(ctx context.Context) error {
	out, err := t.Call(ctx, "system_get_instance", object{"instance_id": t.b.instance})
	if err != nil {
		return err
	}
	underlay, err := netip.ParseAddr(rig.Text(out, "instance", "private_ip"))
	if err != nil {
		return fmt.Errorf("read B's underlay address: %w", err)
	}
	_, err = t.Exec(ctx, "k3s-server-a-1", "sh", "-c", fmt.Sprintf(
		`dev=$(ip -o -6 route get %[1]s | sed 's/.* dev \([^ ]*\).*/\1/'); ip -6 route replace %[2]s via %[1]s dev "$dev" metric 1`, underlay, t.b.vip))
	if err != nil {
		return err
	}
	for _, target := range []netip.AddrPort{netip.AddrPortFrom(t.b.vip, 6443), netip.AddrPortFrom(underlay, 6443), netip.AddrPortFrom(underlay, 10250),
		netip.AddrPortFrom(underlay, 2379)} {
		if err := t.evidence(!t.reaches(ctx, "k3s-server-a-1", target), "an attacker on A's server, its firewall gone, does not reach %s over the underlay", target); err != nil {
			return err
		}
	}
	for _, target := range []netip.Addr{t.b.vip, underlay} {
		if err := t.evidence(!t.pings(ctx, "k3s-server-a-1", target), "nor does ping reach %s", target); err != nil {
			return err
		}
	}
	return t.evidence(t.reaches(ctx, workstation, netip.AddrPortFrom(t.b.vip, 6443)), "in the same moment the workstation reaches B's API server")
}

func (t *tutorial) step6(ctx context.Context) error {
	rule := object{"network_id": t.b.network, "name": "tenant-b-apiserver-default-deny", "direction": "ingress", "firewall_action": "drop",
		"dst_selector": object{"cidr": t.b.vip.String() + "/128"}, "protocol": "tcp", "port_from": 6443, "port_to": 6443, "priority": 100}
	denied, err := t.call(ctx, "system_sdwan_create_firewall_rule", rule)
	if err != nil {
		return err
	}
	if err := t.evidence(len(rig.List(denied, "shadowed_by")) > 0, "the answer names the cluster's own rules that come first"); err != nil {
		return err
	}
	_, err = t.call(ctx, "system_sdwan_create_firewall_rule", object{"network_id": t.b.network, "name": "tenant-b-apiserver-allow-operator-ws",
		"direction": "ingress", "firewall_action": "accept", "src_selector": object{"tag": "operator-ws"}, "dst_selector": object{"cidr": t.b.vip.String() + "/128"},
		"protocol": "tcp", "port_from": 6443, "port_to": 6443, "priority": 10})
	if err != nil {
		return err
	}
	for _, instance := range []string{t.b.instance, t.workerInstance, t.outsiderInstance} {
		if err := t.converged(ctx, instance); err != nil {
			return err
		}
	}
	api := netip.AddrPortFrom(t.b.vip, 6443)
	if err := t.evidence(t.reaches(ctx, workstation, api), "the workstation, tagged operator-ws, reaches B's API server"); err != nil {
		return err
	}
	if err := t.evidence(!t.reaches(ctx, "outsider-b-1", api), "an arbitrary peer of tenant B does not"); err != nil {
		return err
	}
	if err := t.evidence(t.reaches(ctx, "k3s-worker-b-1", api), "the worker does: the cluster's own rules come first"); err != nil {
		return err
	}
	return t.newWorker(ctx)
}

// newWorker lets the arbitrary peer become a worker: the rules that shut it out don't keep it from joining.
func (t *tutorial) newWorker(ctx context.Context) error {
	if err := t.retemplate(ctx, t.outsiderNode, t.workerTemplate); err != nil {
		return err
	}
	if err := t.joined(ctx, "outsider-b-1"); err != nil {
		return err
	}
	tables, err := t.Exec(ctx, "outsider-b-1", "nft", "list", "tables")
	if err != nil {
		return err
	}
	return t.evidence(strings.TrimSpace(string(tables)) == "table inet powernode", "a new worker joins under these rules; its machine has one table of ours and no other")
}

func (t *tutorial) verify(ctx context.Context) error {
	clusters, err := t.call(ctx, "kubernetes_list_clusters", object{})
	if err != nil {
		return err
	}
	list := rig.List(clusters, "clusters")
	if err := t.evidence(len(list) == 2 && rig.Text(list[0], "status") == "active" && rig.Text(list[1], "status") == "active", "two clusters, both active"); err != nil {
		return err
	}
	routes, err := t.call(ctx, "system_sdwan_get_routing_summary", object{"network_id": t.a.network})
	if err != nil {
		return err
	}
	b, _ := json.Marshal(routes)
	prefix := strings.TrimSuffix(t.b.cidr, "::/64")
	return t.evidence(!strings.Contains(string(b), prefix+":"), "the routing summary of tenant-a knows nothing of %s", t.b.cidr)
}

func (t *tutorial) cleanUp(ctx context.Context) error {
	if _, err := t.approved(ctx, "kubernetes_decommission_cluster", object{"cluster_id": t.b.cluster}); err != nil {
		return err
	}
	err := rig.Await(ctx, "the hosts of cluster B to be cleaned", time.Minute, func(ctx context.Context) (string, error) {
		out, err := t.Call(ctx, "kubernetes_list_decommissioned_clusters", object{})
		if err != nil || rig.Text(out, "clusters", 0, "cleanup", "state") == "cleaned" {
			return "", err
		}
		return fmt.Sprint(rig.At(out, "clusters", 0, "cleanup")), nil
	})
	if err != nil {
		return err
	}
	left, err := t.Exec(ctx, "k3s-server-b-1", "sh", "-c", `ls -d /etc/rancher /var/lib/rancher /usr/local/bin/k3s 2>/dev/null; pgrep -a k3s; true`)
	if err != nil {
		return err
	}
	if err := t.evidence(len(left) == 0, "nothing of K3s is left on its machine"); err != nil {
		return fmt.Errorf("%w: %s", err, left)
	}
	for _, instance := range []string{t.b.instance, t.workerInstance, t.outsiderInstance} {
		if _, err := t.approved(ctx, "system_terminate_instance", object{"instance_id": instance}); err != nil {
			return err
		}
	}
	if _, err := t.approved(ctx, "system_sdwan_delete_network", object{"network_id": t.b.network}); err != nil {
		return err
	}
	for _, node := range []string{t.b.node, t.workerNode, t.outsiderNode} {
		if _, err := t.approved(ctx, "system_delete_node", object{"node_id": node}); err != nil {
			return err
		}
	}
	for _, template := range t.tenantBTemplates {
		if _, err := t.approved(ctx, "system_delete_template", object{"template_id": template}); err != nil {
			return err
		}
	}
	nodes, err := t.Exec(ctx, workstation, "k3s", "kubectl", "--kubeconfig", kubeconfigPath(t.a), "get", "nodes")
	t.say("%s", indent(string(nodes)))
	return errors.Join(err, t.evidence(err == nil, "cluster A goes on as before"), t.auditHolds(ctx))
}

func (t *tutorial) auditHolds(ctx context.Context) error {
	out, err := t.Run(ctx, "audit", "verify")
	t.say("%s", indent(string(out)))
	return errors.Join(err, t.evidence(err == nil, "the audit chain, and each approval's signature, verify"))
}

func (t *tutorial) picture(ctx context.Context) error {
	size, err := os.Stat(filepath.Join(t.Dir))
	if err != nil || !size.IsDir() {
		return fmt.Errorf("the state directory is gone: %w", err)
	}
	devices, err := t.Exec(ctx, "k3s-server-b-1", "wg", "show")
	if err != nil && !errors.Is(err, exec.ErrNotFound) {
		return err
	}
	fmt.Printf(`
                        ┌───────────────────────────┐
                        │ %-25s │  one device, one key, a /128 in each
                        └─────┬───────────────┬─────┘
             WireGuard        │               │        WireGuard
   ┌──────────────────────────┴───┐   ┌───────┴──────────────────────┐
   │ %-28s │   │ %-28s │
   │ %-28s │   │ %-28s │
   │   k3s-server-a-1             │ ╳ │   k3s-server-b-1             │
   │   API %-22s │   │   API %-22s │
   │                              │   │   k3s-worker-b-1             │
   │                              │   │   outsider-b-1 (plain peer)  │
   └──────────────────────────────┘   └──────────────────────────────┘
     no route, no AllowedIP, no forward path between the two

`, workstation, t.a.name, t.b.name, t.a.cidr, t.b.cidr, t.a.vip, t.b.vip)
	t.say("%s", indent(string(devices)))
	return nil
}

func (t *tutorial) person(ctx context.Context) error {
	if err := t.Init(ctx); err != nil {
		return err
	}
	return t.evidence(true, "%s has a human key, sealed with a passphrase that no program was given", rig.Email)
}
