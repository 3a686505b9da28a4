package k3s

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// fileConfig is K3s' configuration file as we write it. The order of fields is the file's.
type fileConfig struct {
	ClusterInit         bool     `yaml:"cluster-init,omitempty"`
	Server              string   `yaml:"server,omitempty"`
	TokenFile           string   `yaml:"token-file"`
	AgentTokenFile      string   `yaml:"agent-token-file,omitempty"`
	NodeName            string   `yaml:"node-name"`
	NodeIP              string   `yaml:"node-ip"`
	AdvertiseAddress    string   `yaml:"advertise-address,omitempty"`
	TLSSAN              []string `yaml:"tls-san,omitempty"`
	FlannelIface        string   `yaml:"flannel-iface,omitempty"`
	FlannelBackend      string   `yaml:"flannel-backend,omitempty"`
	FlannelIPv6Masq     bool     `yaml:"flannel-ipv6-masq,omitempty"`
	ClusterCIDR         string   `yaml:"cluster-cidr,omitempty"`
	ServiceCIDR         string   `yaml:"service-cidr,omitempty"`
	WriteKubeconfigMode string   `yaml:"write-kubeconfig-mode,omitempty"`
	NodeLabel           []string `yaml:"node-label,omitempty"`
	NodeTaint           []string `yaml:"node-taint,omitempty"`
	KubeletArg          []string `yaml:"kubelet-arg,omitempty"`
}

// critical are the keys that a K3s which has started once can't change, or not by a restart alone.
var critical = map[string]bool{
	"cluster-init": true, "server": true, "token-file": true, "agent-token-file": true, "node-name": true, "node-ip": true,
	"advertise-address": true, "tls-san": true, "flannel-iface": true, "flannel-backend": true, "flannel-ipv6-masq": true,
	"cluster-cidr": true, "service-cidr": true,
}

// render writes the configuration file of a member. serverURL is empty on the first server.
func render(t target, serverURL string, cgroupV1 bool) ([]byte, error) {
	c := fileConfig{NodeName: t.nodeName, NodeIP: t.nodeIP.String(), FlannelIface: t.iface, Server: serverURL}
	if t.role == roleServer {
		if err := c.forServer(t); err != nil {
			return nil, err
		}
	} else {
		c.TokenFile, c.NodeLabel, c.NodeTaint = agentTokenPath, t.agent.NodeLabels, t.agent.NodeTaints
		if serverURL == "" {
			return nil, errors.New("a worker without a server's address")
		}
	}
	if cgroupV1 && refusesCgroupV1(t) {
		c.KubeletArg = []string{"fail-cgroupv1=false"}
	}
	var b bytes.Buffer
	b.WriteString("# Written by powernode-agent; changes are overwritten or reported.\n")
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(c); err != nil {
		return nil, fmt.Errorf("write K3s' configuration: %w", err)
	}
	return b.Bytes(), enc.Close()
}

func (c *fileConfig) forServer(t target) error {
	s := t.server
	if s.CNIPlugin != "" && s.CNIPlugin != "flannel" {
		return fmt.Errorf("CNI plugin %q is not available yet", s.CNIPlugin)
	}
	c.ClusterInit = c.Server == "" && s.ClusterInit
	c.TokenFile, c.AgentTokenFile = serverTokenPath, agentTokenPath
	c.AdvertiseAddress = c.NodeIP
	c.TLSSAN = s.TLSSAN
	c.FlannelBackend = s.FlannelBackend
	c.FlannelIPv6Masq = s.ClusterCIDR.IsValid() && s.ClusterCIDR.Addr().Is6()
	c.ClusterCIDR, c.ServiceCIDR = prefixText(s.ClusterCIDR), prefixText(s.ServiceCIDR)
	c.WriteKubeconfigMode = "0600"
	c.NodeLabel, c.NodeTaint = s.NodeLabels, s.NodeTaints
	return nil
}

func prefixText(p netip.Prefix) string {
	if !p.IsValid() {
		return ""
	}
	return p.String()
}

// refusesCgroupV1 says whether a kubelet of this version has the argument that lets it start on cgroup v1. From 1.35
// on it needs it; 1.31 is the first to know it. A version that can't be read counts as a new one.
func refusesCgroupV1(t target) bool {
	if t.artifact == nil {
		return true
	}
	minor, ok := minorOf(t.artifact.Version)
	return !ok || minor >= 31
}

// minorOf reads 36 out of v1.36.5+k3s1.
func minorOf(version string) (int, bool) {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 2 || parts[0] != "1" {
		return 0, false
	}
	n, err := strconv.Atoi(parts[1])
	return n, err == nil
}

// difference is one key whose value in the file is another than the wanted one.
type difference struct {
	key, want, have string
}

// differences compares two configuration files by meaning, sorted by key.
func differences(want, have []byte) ([]difference, error) {
	w, h := map[string]any{}, map[string]any{}
	if err := yaml.Unmarshal(want, &w); err != nil {
		return nil, fmt.Errorf("read the wanted configuration: %w", err)
	}
	if err := yaml.Unmarshal(have, &h); err != nil {
		return nil, fmt.Errorf("read K3s' configuration file: %w", err)
	}
	keys := maps.Clone(w)
	maps.Copy(keys, h)
	var out []difference
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		if !reflect.DeepEqual(w[k], h[k]) {
			out = append(out, difference{k, valueText(w, k), valueText(h, k)})
		}
	}
	return out, nil
}

// valueText shows a value; a token that somebody wrote into the file is not shown.
func valueText(m map[string]any, key string) string {
	v, ok := m[key]
	if !ok {
		return "(absent)"
	}
	if key == "token" || key == "agent-token" {
		return "[secret]"
	}
	return fmt.Sprint(v)
}
