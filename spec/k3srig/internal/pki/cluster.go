package pki

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"powernode/spec/k3srig/internal/layout"
)

// Cluster is the set of authorities that the servers of one cluster share.
type Cluster struct {
	Server        *CA
	Client        *CA
	RequestHeader *CA
	EtcdServer    *CA
	EtcdPeer      *CA
}

// shared lists, by the names K3s uses in its bootstrap data, what a joining
// server must have of the first one. Everything else is a server's own.
var shared = []struct{ name, file string }{
	{"ServerCA", "server-ca.crt"},
	{"ServerCAKey", "server-ca.key"},
	{"ClientCA", "client-ca.crt"},
	{"ClientCAKey", "client-ca.key"},
	{"RequestHeaderCA", "request-header-ca.crt"},
	{"RequestHeaderCAKey", "request-header-ca.key"},
	{"ETCDServerCA", "etcd/server-ca.crt"},
	{"ETCDServerCAKey", "etcd/server-ca.key"},
	{"ETCDPeerCA", "etcd/peer-ca.crt"},
	{"ETCDPeerCAKey", "etcd/peer-ca.key"},
	{"ServiceKey", "service.key"},
}

// Bootstrap is what one server hands to the next, by name.
type Bootstrap map[string][]byte

// ReadBootstrap collects a server's bootstrap data.
func ReadBootstrap(d layout.Data) (Bootstrap, error) {
	b := Bootstrap{}
	for _, s := range shared {
		raw, err := os.ReadFile(d.TLS(s.file))
		if err != nil {
			return nil, fmt.Errorf("read bootstrap data: %w", err)
		}
		b[s.name] = raw
	}
	return b, nil
}

// Write stores bootstrap data received from another server.
func (b Bootstrap) Write(d layout.Data) error {
	for _, s := range shared {
		raw, ok := b[s.name]
		if !ok {
			return fmt.Errorf("bootstrap data has no %s", s.name)
		}
		mode := os.FileMode(0o644)
		if filepath.Ext(s.file) == ".key" {
			mode = 0o600
		}
		if err := WriteFile(d.TLS(s.file), raw, mode); err != nil {
			return err
		}
	}
	return nil
}

// EnsureCluster loads the authorities, or makes them for a new cluster.
func EnsureCluster(d layout.Data) (*Cluster, error) {
	c := &Cluster{}
	for _, a := range []struct {
		ca   **CA
		file string
		name string
	}{
		{&c.Server, "server-ca", "k3s-server-ca"},
		{&c.Client, "client-ca", "k3s-client-ca"},
		{&c.RequestHeader, "request-header-ca", "k3s-request-header-ca"},
		{&c.EtcdServer, "etcd/server-ca", "etcd-server-ca"},
		{&c.EtcdPeer, "etcd/peer-ca", "etcd-peer-ca"},
	} {
		ca, err := EnsureCA(d.TLS(a.file+".crt"), d.TLS(a.file+".key"), a.name)
		if err != nil {
			return nil, err
		}
		*a.ca = ca
	}
	if _, err := EnsureKey(d.TLS("service.key")); err != nil {
		return nil, err
	}
	return c, nil
}

// Identity is what a server's certificates must name.
type Identity struct {
	NodeName  string
	NodeIPs   []netip.Addr
	ServiceIP netip.Addr
	Domain    string
	SANs      []string
}

func (id Identity) local() []string {
	names := []string{"localhost", "127.0.0.1", "::1", id.NodeName}
	for _, ip := range id.NodeIPs {
		names = append(names, ip.String())
	}
	return names
}

// IssueServer writes the certificates of one server. They are renewed at
// every start: it costs nothing, and no file of an old address survives.
func (c *Cluster) IssueServer(d layout.Data, id Identity) error {
	api := append(id.local(), id.ServiceIP.String(), "kubernetes", "kubernetes.default",
		"kubernetes.default.svc", "kubernetes.default.svc."+id.Domain)
	api = append(api, id.SANs...)
	masters := []string{"system:masters"}

	var errs []error
	issue := func(ca *CA, file string, s Subject) {
		errs = append(errs, ca.Issue(d.TLS(file+".crt"), d.TLS(file+".key"), s))
	}
	issue(c.Server, "serving-kube-apiserver", Subject{CommonName: "kube-apiserver", Names: api, Server: true})
	issue(c.Client, "client-admin", Subject{CommonName: "system:admin", Groups: masters, Client: true})
	issue(c.Client, "client-supervisor", Subject{CommonName: "system:k3s-supervisor", Groups: masters, Client: true})
	issue(c.Client, "client-kube-apiserver", Subject{CommonName: "system:apiserver", Groups: masters, Client: true})
	issue(c.Client, "client-controller", Subject{CommonName: "system:kube-controller-manager", Client: true})
	issue(c.Client, "client-scheduler", Subject{CommonName: "system:kube-scheduler", Client: true})
	issue(c.RequestHeader, "client-auth-proxy", Subject{CommonName: "system:auth-proxy", Client: true})
	issue(c.EtcdServer, "etcd/server-client", Subject{CommonName: "etcd-server", Names: id.local(), Server: true, Client: true})
	issue(c.EtcdServer, "etcd/client", Subject{CommonName: "etcd-client", Client: true})
	issue(c.EtcdPeer, "etcd/peer-server-client", Subject{CommonName: "etcd-peer", Names: id.local(), Server: true, Client: true})
	return errors.Join(errs...)
}
