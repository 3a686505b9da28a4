// Package config reads what K3s reads: its configuration file, the files
// beside it, its environment and its command line.
package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
)

// Settings is the configuration of one server or agent, checked and with defaults.
type Settings struct {
	Role Role

	Token       string
	AgentToken  string
	ServerURL   string
	ClusterInit bool

	NodeName        string
	WithNodeID      bool
	NodeIPs         []netip.Addr
	NodeExternalIPs []netip.Addr
	NodeLabels      []string
	NodeTaints      []string

	ClusterCIDRs         []netip.Prefix
	ServiceCIDRs         []netip.Prefix
	ServiceNodePortRange string
	ClusterDNS           []netip.Addr
	ClusterDomain        string
	FlannelIface         string
	FlannelBackend       string
	FlannelIPv6Masq      bool
	FlannelExternalIP    bool
	EgressSelectorMode   string

	BindAddress      string
	HTTPSPort        int
	AdvertiseAddress netip.Addr
	AdvertisePort    int
	LBServerPort     int
	TLSSANs          []string

	DataDir              string
	WriteKubeconfig      string
	WriteKubeconfigMode  os.FileMode
	WriteKubeconfigGroup string

	APIServerArgs         []string
	ControllerManagerArgs []string
	EtcdArgs              []string
	EtcdExposeMetrics     bool

	Disable                []string
	DisableAgent           bool
	DisableAPIServerLB     bool
	DisableKubeProxy       bool
	DisableNetworkPolicy   bool
	DisableCloudController bool
	DisableHelmController  bool
	EmbeddedRegistry       bool
	SecretsEncryption      bool

	LogFile   string
	Debug     bool
	Verbosity int
}

// NewSettings turns loaded values into settings.
func NewSettings(role Role, v Values) (*Settings, error) {
	s := &Settings{
		Role:                   role,
		ServerURL:              v.text("server", ""),
		ClusterInit:            v.flag("cluster-init"),
		WithNodeID:             v.flag("with-node-id"),
		NodeLabels:             v["node-label"],
		NodeTaints:             v["node-taint"],
		ClusterDomain:          v.text("cluster-domain", "cluster.local"),
		ServiceNodePortRange:   v.text("service-node-port-range", "30000-32767"),
		FlannelIface:           v.text("flannel-iface", ""),
		FlannelBackend:         v.text("flannel-backend", "vxlan"),
		FlannelIPv6Masq:        v.flag("flannel-ipv6-masq"),
		FlannelExternalIP:      v.flag("flannel-external-ip"),
		EgressSelectorMode:     v.text("egress-selector-mode", "agent"),
		BindAddress:            v.text("bind-address", ""),
		HTTPSPort:              v.number("https-listen-port", 6443),
		LBServerPort:           v.number("lb-server-port", 6444),
		TLSSANs:                v["tls-san"],
		DataDir:                v.text("data-dir", "/var/lib/rancher/k3s"),
		WriteKubeconfig:        v.text("write-kubeconfig", "/etc/rancher/k3s/k3s.yaml"),
		WriteKubeconfigGroup:   v.text("write-kubeconfig-group", ""),
		APIServerArgs:          v["kube-apiserver-arg"],
		ControllerManagerArgs:  v["kube-controller-manager-arg"],
		EtcdArgs:               v["etcd-arg"],
		EtcdExposeMetrics:      v.flag("etcd-expose-metrics"),
		Disable:                v["disable"],
		DisableAgent:           v.flag("disable-agent"),
		DisableAPIServerLB:     v.flag("disable-apiserver-lb"),
		DisableKubeProxy:       v.flag("disable-kube-proxy"),
		DisableNetworkPolicy:   v.flag("disable-network-policy"),
		DisableCloudController: v.flag("disable-cloud-controller"),
		DisableHelmController:  v.flag("disable-helm-controller"),
		EmbeddedRegistry:       v.flag("embedded-registry"),
		SecretsEncryption:      v.flag("secrets-encryption"),
		LogFile:                v.text("log", ""),
		Debug:                  v.flag("debug"),
		Verbosity:              v.number("v", 0),
	}
	for _, step := range []func(Values) error{s.tokens, s.identity, s.addresses, s.networks, s.kubeconfig} {
		if err := step(v); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Settings) tokens(v Values) error {
	var err error
	if s.Token, err = secret(v, "token"); err != nil {
		return err
	}
	if s.AgentToken, err = secret(v, "agent-token"); err != nil {
		return err
	}
	if s.ServerURL != "" {
		u, err := url.Parse(s.ServerURL)
		if err != nil {
			return fmt.Errorf("Invalid server url, failed to parse: %s: %w", s.ServerURL, err) // K3s' own words
		}
		if u.Scheme != "https" {
			return fmt.Errorf("only https:// URLs are supported, invalid scheme: %s", s.ServerURL)
		}
	}
	if s.Role == RoleAgent {
		if s.Token == "" {
			return fmt.Errorf("--token is required")
		}
		if s.ServerURL == "" {
			return fmt.Errorf("--server is required")
		}
	}
	if s.Role == RoleServer && s.ServerURL != "" && s.Token == "" {
		return fmt.Errorf("--token is required to join a cluster")
	}
	return nil
}

// secret reads NAME, or the file that NAME-file names.
func secret(v Values, name string) (string, error) {
	if t := v.text(name, ""); t != "" {
		return t, nil
	}
	file := v.text(name+"-file", "")
	if file == "" {
		return "", nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read --%s-file: %w", name, err)
	}
	t := strings.TrimSpace(string(b))
	if t == "" {
		return "", fmt.Errorf("--%s-file %s is empty", name, file)
	}
	return t, nil
}

func (s *Settings) identity(v Values) error {
	name := v.text("node-name", "")
	if name == "" {
		h, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("find the host name: %w", err)
		}
		name = h
	}
	s.NodeName = strings.ToLower(name)
	for _, l := range s.NodeLabels {
		key, _, ok := strings.Cut(l, "=")
		if !ok || key == "" {
			return fmt.Errorf("invalid node-label %q: KEY=VALUE is expected", l)
		}
		if err := kubeletMaySet(key); err != nil {
			return err
		}
	}
	for _, t := range s.NodeTaints {
		if _, effect, ok := cutLast(t, ":"); !ok || !validEffect(effect) {
			return fmt.Errorf("invalid node-taint %q: KEY[=VALUE]:EFFECT is expected", t)
		}
	}
	return nil
}

// kubeletMaySet refuses what the kubelet refuses at its own start: labels
// in Kubernetes' domains that a node may not give itself.
func kubeletMaySet(key string) error {
	domain, _, ok := strings.Cut(key, "/")
	if !ok || !inDomain(domain, "kubernetes.io", "k8s.io") || inDomain(domain, "kubelet.kubernetes.io", "node.kubernetes.io") {
		return nil
	}
	switch key {
	case "kubernetes.io/hostname", "kubernetes.io/arch", "kubernetes.io/os",
		"beta.kubernetes.io/arch", "beta.kubernetes.io/os", "beta.kubernetes.io/instance-type",
		"topology.kubernetes.io/zone", "topology.kubernetes.io/region",
		"failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region":
		return nil
	}
	return fmt.Errorf("failed to validate kubelet flags: unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [%s]", key)
}

func inDomain(name string, domains ...string) bool {
	for _, d := range domains {
		if name == d || strings.HasSuffix(name, "."+d) {
			return true
		}
	}
	return false
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

func validEffect(e string) bool {
	return e == "NoSchedule" || e == "PreferNoSchedule" || e == "NoExecute"
}

func (s *Settings) addresses(v Values) error {
	var err error
	if s.NodeIPs, err = addrs("node-ip", v["node-ip"]); err != nil {
		return err
	}
	if s.NodeExternalIPs, err = addrs("node-external-ip", v["node-external-ip"]); err != nil {
		return err
	}
	if s.ClusterDNS, err = addrs("cluster-dns", v["cluster-dns"]); err != nil {
		return err
	}
	if a := v.text("advertise-address", ""); a != "" {
		if s.AdvertiseAddress, err = netip.ParseAddr(a); err != nil {
			return fmt.Errorf("invalid advertise-address %q: %w", a, err)
		}
	}
	if s.BindAddress != "" {
		if _, err := netip.ParseAddr(s.BindAddress); err != nil {
			return fmt.Errorf("invalid bind-address %q: %w", s.BindAddress, err)
		}
	}
	s.AdvertisePort = v.number("advertise-port", s.HTTPSPort)
	return nil
}

func addrs(name string, values []string) ([]netip.Addr, error) {
	var out []netip.Addr
	for _, a := range values {
		ip, err := netip.ParseAddr(a)
		if err != nil {
			return nil, fmt.Errorf("invalid %s %q: %w", name, a, err)
		}
		out = append(out, ip.Unmap())
	}
	return out, nil
}

func (s *Settings) kubeconfig(v Values) error {
	mode := v.text("write-kubeconfig-mode", "0600")
	m, err := strconv.ParseUint(mode, 8, 32)
	if err != nil {
		return fmt.Errorf("invalid write-kubeconfig-mode %q: an octal file mode is expected", mode)
	}
	s.WriteKubeconfigMode = os.FileMode(m)
	return nil
}
