// Package supervisor is the part of a server that machines talk to before
// they have certificates: it shares the API server's port and takes tokens.
package supervisor

import (
	"fmt"
	"net/netip"
	"reflect"
	"sort"
	"strings"

	"powernode/spec/k3srig/internal/config"
)

// Paths of the supervisor.
const (
	PathCACerts       = "/cacerts"
	PathPing          = "/ping"
	PathConfig        = "/v1-k3s/config"
	PathReady         = "/v1-k3s/readyz"
	PathAPIServers    = "/v1-k3s/apiservers"
	PathClientCA      = "/v1-k3s/client-ca.crt"
	PathServerCA      = "/v1-k3s/server-ca.crt"
	PathClientKubelet = "/v1-k3s/client-kubelet.crt"
	PathServeKubelet  = "/v1-k3s/serving-kubelet.crt"
	PathBootstrap     = "/v1-k3s/server-bootstrap"
	PathDBInfo        = "/db/info"
)

// Headers of a certificate request.
const (
	HeaderNodeName     = "k3s-Node-Name"
	HeaderNodePassword = "k3s-Node-Password"
	HeaderNodeIP       = "k3s-Node-IP"
)

// Config is what a server tells those who join: agents take from it what
// they are not told themselves, servers compare it with their own.
type Config struct {
	ClusterCIDRs           []netip.Prefix
	ServiceCIDRs           []netip.Prefix
	ClusterDNS             []netip.Addr
	ClusterDomain          string
	FlannelBackend         string
	FlannelIPv6Masq        bool
	FlannelExternalIP      bool
	EgressSelectorMode     string
	DisableCloudController bool
	DisableHelmController  bool
	DisableKubeProxy       bool
	DisableNetworkPolicy   bool
	DisableServiceLB       bool
	EmbeddedRegistry       bool
	SecretsEncryption      bool
}

// ConfigOf takes the values that must be equal on all servers from a server's settings.
func ConfigOf(s *config.Settings) Config {
	c := Config{
		ClusterCIDRs:           s.ClusterCIDRs,
		ServiceCIDRs:           s.ServiceCIDRs,
		ClusterDNS:             s.ClusterDNS,
		ClusterDomain:          s.ClusterDomain,
		FlannelBackend:         s.FlannelBackend,
		FlannelIPv6Masq:        s.FlannelIPv6Masq,
		FlannelExternalIP:      s.FlannelExternalIP,
		EgressSelectorMode:     s.EgressSelectorMode,
		DisableCloudController: s.DisableCloudController,
		DisableHelmController:  s.DisableHelmController,
		DisableKubeProxy:       s.DisableKubeProxy,
		DisableNetworkPolicy:   s.DisableNetworkPolicy,
		EmbeddedRegistry:       s.EmbeddedRegistry,
		SecretsEncryption:      s.SecretsEncryption,
	}
	for _, d := range s.Disable {
		if d == "servicelb" {
			c.DisableServiceLB = true
		}
	}
	return c
}

// CheckCritical compares a joining server's values with those of the cluster.
func (c Config) CheckCritical(own Config) error {
	a, b := reflect.ValueOf(c), reflect.ValueOf(own)
	var diff []string
	for i := range a.NumField() {
		if !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			diff = append(diff, fmt.Sprintf("%s (cluster: %v, here: %v)", a.Type().Field(i).Name, a.Field(i), b.Field(i)))
		}
	}
	if len(diff) == 0 {
		return nil
	}
	sort.Strings(diff)
	return fmt.Errorf("failed to validate server configuration: critical configuration value mismatch between servers: %s", strings.Join(diff, "; "))
}

// Member is one member of the datastore.
type Member struct {
	Name       string
	PeerURLs   []string
	ClientURLs []string
}
