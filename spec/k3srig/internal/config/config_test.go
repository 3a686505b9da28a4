package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// load reads a configuration with drop-ins, arguments and environment.
func load(t *testing.T, role Role, file string, dropins map[string]string, args []string, env map[string]string) (Values, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	write(t, path, file)
	for name, content := range dropins {
		write(t, filepath.Join(path+".d", name), content)
	}
	return Load(role, append([]string{"--config", path}, args...), func(k string) string { return env[k] })
}

func TestLoadOrder(t *testing.T) {
	v, err := load(t, RoleServer, `
node-name: from-file
write-kubeconfig-mode: 0600
tls-san: [a, b]
node-label:
  - x=1,2
cluster-init: true
disable: [traefik]
`, map[string]string{
		"10.yaml":  "disable+: [servicelb]\nnode-ip: fd00::1\n",
		"20.yaml":  "node-ip: fd00::2,10.0.0.1\n",
		"skip.txt": "no-such-key: 1\n",
	}, []string{"--tls-san", "c", "--tls-san=d,e", "-t", "cli"}, map[string]string{"K3S_TOKEN": "env", "K3S_NODE_NAME": "env", "K3S_URL": "https://x:6443"})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]string{
		"node-name":             {"from-file"},
		"write-kubeconfig-mode": {"0600"}, // as written, not the number 384
		"tls-san":               {"c", "d", "e"},
		"node-label":            {"x=1,2"},
		"disable":               {"traefik", "servicelb"},
		"node-ip":               {"fd00::2", "10.0.0.1"},
		"token":                 {"cli"},
		"server":                {"https://x:6443"},
		"cluster-init":          {"true"},
	} {
		if !slices.Equal(v[name], want) {
			t.Errorf("%s: %q, want %q", name, v[name], want)
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		role Role
		file string
		args []string
		want string
	}{
		"unknown key":          {RoleServer, "cluster-cdir: x\n", nil, "flag provided but not defined: -cluster-cdir"},
		"unknown flag":         {RoleServer, "", []string{"--nope"}, "flag provided but not defined: -nope"},
		"server's key":         {RoleAgent, "cluster-init: true\n", nil, "flag provided but not defined: -cluster-init"},
		"not a bool":           {RoleServer, "cluster-init: maybe\n", nil, `invalid value "maybe" for flag -cluster-init`},
		"not a number":         {RoleServer, "https-listen-port: x\n", nil, `invalid value "x" for flag -https-listen-port`},
		"nested":               {RoleServer, "tls-san: {a: b}\n", nil, "a plain value or a list is expected"},
		"not a mapping":        {RoleServer, "- a\n", nil, "a mapping of keys to values is expected"},
		"broken":               {RoleServer, "a: [\n", nil, "config file"},
		"argument":             {RoleServer, "", []string{"stray"}, `unexpected argument "stray"`},
		"no value":             {RoleServer, "", []string{"--token"}, "flag needs an argument: -token"},
		"beyond the stand-in":  {RoleServer, "datastore-endpoint: x\n", nil, "does not support --datastore-endpoint"},
		"duplicate in mapping": {RoleServer, "token: a\ntoken: b\n", nil, "already defined"},
	} {
		_, err := load(t, c.role, c.file, nil, c.args, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := Load(RoleServer, []string{"-c", filepath.Join(t.TempDir(), "none")}, func(string) string { return "" }); err == nil {
		t.Error("a missing file that was asked for is no error")
	}
}

func settings(t *testing.T, role Role, file string) (*Settings, error) {
	t.Helper()
	v, err := load(t, role, file, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return NewSettings(role, v)
}

func TestServerSettings(t *testing.T) {
	tok := filepath.Join(t.TempDir(), "token")
	write(t, tok, "secret\n")
	s, err := settings(t, RoleServer, `
cluster-init: true
token-file: `+tok+`
agent-token: other
node-name: K3s-Prod-1
node-ip: fd12:3456:789a:1::1:21
advertise-address: fd12:3456:789a:1::1:21
tls-san: [ "fd12:3456:789a:1::100" ]
flannel-iface: wg-sdwan-1
flannel-ipv6-masq: true
cluster-cidr: fd12:3456:789a:a00::/56
service-cidr: fd12:3456:789a:ff01::/112
write-kubeconfig-mode: "0640"
`)
	if err != nil {
		t.Fatal(err)
	}
	if s.Token != "secret" || s.AgentToken != "other" || s.NodeName != "k3s-prod-1" || !s.ClusterInit {
		t.Errorf("%+v", s)
	}
	if s.FirstServiceIP() != netip.MustParseAddr("fd12:3456:789a:ff01::1") || s.ClusterDNS[0] != netip.MustParseAddr("fd12:3456:789a:ff01::a") {
		t.Errorf("service addresses: %v, %v", s.FirstServiceIP(), s.ClusterDNS)
	}
	if s.WriteKubeconfigMode != 0o640 || s.FlannelBackend != "vxlan" || s.HTTPSPort != 6443 || s.AdvertisePort != 6443 {
		t.Errorf("%+v", s)
	}
}

func TestDefaultRanges(t *testing.T) {
	for ip, want := range map[string]string{"10.0.0.1": "10.42.0.0/16", "fd00::1": "fd00:42::/56"} {
		s, err := settings(t, RoleServer, "node-ip: "+ip+"\n")
		if err != nil {
			t.Fatal(err)
		}
		if got := s.ClusterCIDRs[0].String(); got != want {
			t.Errorf("node-ip %s: %s, want %s", ip, got, want)
		}
	}
}

func TestSettingsRefuse(t *testing.T) {
	const v6 = "cluster-cidr: fd00:1::/56\n"
	for name, c := range map[string]struct {
		role Role
		file string
		want string
	}{
		"service family":     {RoleServer, v6 + "service-cidr: 10.43.0.0/16\n", "must share the same IP version"},
		"default service":    {RoleServer, v6, "must share the same IP version"},
		"node family":        {RoleServer, v6 + "service-cidr: fd00:2::/112\nnode-ip: 10.0.0.1\n", "and node-ip: [10.0.0.1], must share the same IP version"},
		"service too large":  {RoleServer, "node-ip: fd00::1\nservice-cidr: fd00:2::/64\n", "too large"},
		"advertise family":   {RoleServer, "advertise-address: fd00::1\n", "same IP version as the first service-cidr"},
		"backend":            {RoleServer, "flannel-backend: udp\n", `unknown flannel-backend "udp"`},
		"egress":             {RoleServer, "egress-selector-mode: x\n", "invalid egress-selector-mode x"},
		"node-ip":            {RoleServer, "node-ip: nine\n", `invalid node-ip "nine"`},
		"mode":               {RoleServer, "write-kubeconfig-mode: rw\n", "write-kubeconfig-mode"},
		"label":              {RoleServer, "node-label: [x]\n", "invalid node-label"},
		"role label":         {RoleAgent, "token: t\nserver: https://x\nnode-label: [node-role.kubernetes.io/worker=true]\n", "unknown 'kubernetes.io' or 'k8s.io' labels"},
		"taint":              {RoleServer, "node-taint: [a=b]\n", "invalid node-taint"},
		"agent's token":      {RoleAgent, "server: https://x\n", "--token is required"},
		"agent's server":     {RoleAgent, "token: x\n", "--server is required"},
		"scheme":             {RoleAgent, "token: x\nserver: http://x\n", "only https:// URLs are supported"},
		"join without token": {RoleServer, "server: https://x\n", "--token is required to join"},
		"empty token file":   {RoleServer, "token-file: /dev/null\n", "is empty"},
	} {
		_, err := settings(t, c.role, c.file)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestFlagsAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range flags {
		for _, n := range []string{f.name, f.short} {
			if n != "" && seen[n] {
				t.Errorf("flag %s is there twice", n)
			}
			seen[n] = n != ""
		}
	}
}
