package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	vip         = "fd00:9::100"
	serverToken = "server-secret"
	agentToken  = "agent-secret"
	etcdClient  = "/var/lib/rancher/k3s/server/tls/etcd/client"
	ownAPI      = "https://[::1]:6443"
)

func serverConfig(m *machine, how string) string {
	return fmt.Sprintf(`%s
token: %s
agent-token: %s
node-name: %s
node-ip: %s
advertise-address: %s
tls-san: [ "%s" ]
flannel-iface: %s
flannel-backend: vxlan
flannel-ipv6-masq: true
cluster-cidr: fd12:3456:789a:a00::/56
service-cidr: fd12:3456:789a:ff01::/112
write-kubeconfig-mode: "0600"
`, how, serverToken, agentToken, m.name, m.ip, m.ip, vip, iface)
}

func agentConfig(m *machine, token string) string {
	return fmt.Sprintf(`server: https://[%s]:6443
token: %s
node-name: %s
node-ip: %s
node-label: [ "pool=test" ]
node-taint: [ "dedicated=test:NoSchedule" ]
flannel-iface: %s
`, vip, token, m.name, m.ip, iface)
}

// TestCluster runs servers and an agent on machines that have IPv6 only.
func TestCluster(t *testing.T) {
	if binary := os.Getenv(envInner); binary != "" {
		cluster(t, binary)
		return
	}
	if os.Getuid() != 0 {
		t.Fatal("needs root for namespaces")
	}
	for _, tool := range []string{"ip", "nsenter", "mount", "hostname"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("needs %s", tool)
		}
	}
	inNamespaces(t, build(t))
}

// build answers the binary of K3SRIG_BINARY, or builds one.
func build(t *testing.T) string {
	t.Helper()
	if b := os.Getenv("K3SRIG_BINARY"); b != "" {
		return b
	}
	out := filepath.Join(t.TempDir(), "k3s")
	cmd := exec.Command("../build.sh", out)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("build the stand-in: %v", err)
	}
	return out
}

func cluster(t *testing.T, binary string) {
	l := newLab(t, binary)
	s1, s2, a1 := l.machine("s1", "fd00:9::1"), l.machine("s2", "fd00:9::2"), l.machine("a1", "fd00:9::11")
	init := serverConfig(s1, "cluster-init: true")

	version := s1.run(binary, "--version")
	if !strings.HasPrefix(version, "k3s version v1.34.4+k3s1 (standin)\ngo version go") {
		t.Errorf("version: %q", version)
	}
	refusals(t, s1, init)

	// The address that moves between servers must not become a source address.
	s1.run("ip", "addr", "add", vip+"/128", "dev", iface, "nodad", "preferred_lft", "0")
	s1.configure(init)
	server := s1.start("server")
	l.eventually("node s1 is Ready", ready(s1, "s1"))
	files(t, s1)
	answers(t, s1)

	a1.configure(agentConfig(a1, "wrong"))
	intruder := a1.start("agent")
	intruder.logged("401 Unauthorized: not authorized")
	if out, err := s1.kubectl("get", "node", "a1"); err == nil {
		t.Errorf("an agent with a wrong token is a node:\n%s", out)
	}
	intruder.stop()

	full := strings.TrimSpace(s1.run("cat", "/var/lib/rancher/k3s/server/agent-token"))
	a1.configure(agentConfig(a1, strings.Replace(full, full[3:13], "0123456789", 1)))
	intruder = a1.start("agent")
	intruder.logged("token CA hash does not match the Cluster CA certificate hash")
	intruder.stop()

	a1.configure(strings.Replace(agentConfig(a1, full), iface, "wg-none", 1))
	refused(t, a1, "unable to find interface wg-none", "agent")
	a1.configure(agentConfig(a1, full))
	agent := a1.start("agent")
	l.eventually("nodes s1 and a1 are Ready", ready(s1, "s1", "a1"))
	node(t, s1)

	s2.configure(strings.Replace(serverConfig(s2, "server: https://["+vip+"]:6443"), serverToken, agentToken, 1))
	refused(t, s2, "401 Unauthorized: not authorized", "server")
	s2.configure(strings.Replace(serverConfig(s2, "server: https://["+vip+"]:6443"), "backend: vxlan", "backend: none", 1))
	refused(t, s2, "critical configuration value mismatch", "server")
	s2.configure(serverConfig(s2, "server: https://["+vip+"]:6443"))
	second := s2.start("server")
	l.eventually("nodes s1, a1 and s2 are Ready", ready(s2, "s1", "a1", "s2"))
	l.eventually("etcd has two members", members(s1, 2))
	l.eventually("s2 is marked as a server", func() error {
		return want(s1, "s2", "get", "node", "-l", "node-role.kubernetes.io/control-plane=true,node-role.kubernetes.io/etcd=true", "-o", "name")
	})

	if out, err := s1.kubectl("delete", "node", "s2", "--timeout=60s"); err != nil {
		t.Fatalf("delete a server: %v\n%s", err, out)
	}
	l.eventually("etcd has one member", members(s1, 1))
	if code := second.wait(30 * time.Second); code != 1 || !strings.Contains(second.log.String(), "this node has been removed from the cluster") {
		t.Errorf("a removed server ended with %d", code)
	}

	server.stop()
	server = s1.start("server")
	server.logged("k3s is up and running")
	l.eventually("nodes are Ready after a restart", ready(s1, "s1", "a1"))
	agent.stop()
	if out, err := s1.kubectl("delete", "node", "a1", "--timeout=60s"); err != nil {
		t.Fatalf("delete an agent: %v\n%s", err, out)
	}
	l.eventually("the password of a1 is dropped", func() error {
		if err := want(s1, "", "get", "secret", "-n", "kube-system", "a1.node-password.k3s"); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
	server.stop()
}

// refusals tries configurations that must not start anything.
func refusals(t *testing.T, m *machine, good string) {
	t.Helper()
	m.run("ip", "link", "add", "bare0", "type", "veth", "peer", "name", "bare1")
	for _, c := range []struct{ config, want string }{
		{good + "cluster-cdir: fd00::/56\n", "flag provided but not defined: -cluster-cdir"},
		{strings.Replace(good, iface, "bare0", 1), "failed to find IPv6 address for interface bare0"},
		{strings.Replace(good, iface, "wg-none", 1), "unable to find interface wg-none"},
		{strings.Replace(good, "node-ip: "+m.ip, "node-ip: fd00:9::99", 1), "not found in the host's network interfaces"},
		{strings.Replace(good, "fd12:3456:789a:ff01::/112", "10.43.0.0/16", 1), "must share the same IP version"},
	} {
		m.configure(c.config)
		refused(t, m, c.want, "server")
	}
	if _, err := m.try("test", "-e", "/var/lib/rancher"); err == nil {
		t.Error("a refused configuration left something behind")
	}
}

func refused(t *testing.T, m *machine, want, role string) {
	t.Helper()
	out, err := m.try(m.binary, role)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(out, want) || !strings.Contains(out, "level=fatal") {
		t.Errorf("%v, want %q, got\n%s", err, want, out)
	}
}

func ready(m *machine, nodes ...string) func() error {
	return func() error {
		const path = `jsonpath={range .items[*]}{.metadata.name}={.status.conditions[?(@.type=="Ready")].status} {end}`
		out, err := m.kubectl("get", "nodes", "-o", path)
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		for _, n := range nodes {
			if !strings.Contains(" "+out, " "+n+"=True ") {
				return errors.New(out)
			}
		}
		return nil
	}
}

func want(m *machine, text string, args ...string) error {
	out, err := m.kubectl(args...)
	if err == nil && !strings.Contains(out, text) {
		err = fmt.Errorf("%q is not in it", text)
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func members(m *machine, n int) func() error {
	return func() error {
		out, err := m.fetch(ownAPI+"/db/info", "", "server:"+serverToken)
		if err == nil && strings.Count(out, `"Name":"s`) != n {
			err = errors.New("other members")
		}
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
}

// files looks at what the agent of the platform reads.
func files(t *testing.T, m *machine) {
	t.Helper()
	if got := m.run("stat", "-c", "%a %U", "/etc/rancher/k3s/k3s.yaml"); got != "600 root\n" {
		t.Errorf("kubeconfig: %s", got)
	}
	if got := m.run("cat", "/etc/rancher/k3s/k3s.yaml"); !strings.Contains(got, "server: "+ownAPI) {
		t.Errorf("kubeconfig:\n%s", got)
	}
	for file, start := range map[string]string{"token": "::server:" + serverToken, "node-token": "::server:" + serverToken, "agent-token": "::node:" + agentToken} {
		got := strings.TrimSpace(m.run("cat", "/var/lib/rancher/k3s/server/"+file))
		if !strings.HasPrefix(got, "K10") || !strings.HasSuffix(got, start) {
			t.Errorf("%s: %s", file, got)
		}
	}
}

// answers looks at the ports of a server.
func answers(t *testing.T, m *machine) {
	t.Helper()
	for _, c := range []struct{ url, cert, auth, want string }{
		{ownAPI + "/readyz", "", "", "200 ok"},
		{"https://[" + vip + "]:6443/livez", "", "", "200 ok"},
		{"https://[" + vip + "]:6443/ping", "", "", "200 pong"},
		{ownAPI + "/cacerts", "", "", "200 -----BEGIN CERTIFICATE-----"},
		{ownAPI + "/api/v1/nodes", "", "", "403"},
		{ownAPI + "/v1-k3s/config", "", "", "401"},
		{ownAPI + "/v1-k3s/config", "", "node:" + agentToken, `200 {"ClusterCIDRs":["fd12:3456:789a:a00::/56"]`},
		{ownAPI + "/v1-k3s/server-bootstrap", "", "node:" + agentToken, "403"},
		{"https://[::1]:2382/health", etcdClient, "", `200 {"health":"true"`},
		{"http://[::1]:2381/metrics", "", "", "200 # HELP"},
		{"https://[" + m.ip + "]:10250/healthz", "", "", "401"},
	} {
		got, err := m.fetch(c.url, c.cert, c.auth)
		if err != nil || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %v, %.200s, want %s", c.url, err, got, c.want)
		}
	}
	if got, err := m.fetch("https://[::1]:2382/health", "", ""); err == nil {
		t.Errorf("etcd without a certificate: %s", got)
	}
	if got := m.run("ss", "-lnu"); !strings.Contains(got, "["+m.ip+"]:8472") {
		t.Errorf("VXLAN's port:\n%s", got)
	}
}

// node looks at the Node of the agent.
func node(t *testing.T, m *machine) {
	t.Helper()
	m.eventually("a1 has a range for pods", func() error {
		return want(m, "fd12:3456:789a:a0", "get", "node", "a1", "-o", "jsonpath={.spec.podCIDR}")
	})
	for _, c := range []struct{ path, want string }{
		{"{.metadata.labels.pool}", "test"},
		{"{.spec.taints}", `"effect":"NoSchedule","key":"dedicated","value":"test"`},
		{"{.status.addresses}", `"address":"fd00:9::11","type":"InternalIP"`},
		{"{.status.nodeInfo.kubeletVersion}", "v1.34.4+k3s1"},
		{"{.spec.podCIDR}", "::/64"},
	} {
		if err := want(m, c.want, "get", "node", "a1", "-o", "jsonpath="+c.path); err != nil {
			t.Errorf("%s: %v", c.path, err)
		}
	}
}
