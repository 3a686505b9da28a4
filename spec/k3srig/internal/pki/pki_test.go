package pki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"powernode/spec/k3srig/internal/layout"
)

func TestServerCertificates(t *testing.T) {
	d := layout.Data(t.TempDir())
	c, err := EnsureCluster(d)
	if err != nil {
		t.Fatal(err)
	}
	err = c.IssueServer(d, Identity{
		NodeName: "s1", NodeIPs: []netip.Addr{netip.MustParseAddr("fd00::1")}, ServiceIP: netip.MustParseAddr("fd00:43::1"),
		Domain: "cluster.local", SANs: []string{"fd00::100", "api.example", "fd00::1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(d.TLS("serving-kube-apiserver.crt"), d.TLS("serving-kube-apiserver.key"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(c.Server.Cert)
	for _, name := range []string{"localhost", "127.0.0.1", "::1", "s1", "fd00::1", "fd00::100", "api.example", "fd00:43::1", "kubernetes.default.svc.cluster.local"} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: "fd00::200"}); err == nil {
		t.Error("the certificate is good for an address that nobody listed")
	}
	for _, f := range []string{"etcd/server-ca.crt", "etcd/client.crt", "etcd/client.key", "client-admin.crt"} {
		if _, err := os.Stat(d.TLS(f)); err != nil {
			t.Error(err)
		}
	}
}

func TestBootstrapHandOver(t *testing.T) {
	first, second := layout.Data(t.TempDir()), layout.Data(t.TempDir())
	a, err := EnsureCluster(first)
	if err != nil {
		t.Fatal(err)
	}
	b, err := ReadBootstrap(first)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Write(second); err != nil {
		t.Fatal(err)
	}
	other, err := EnsureCluster(second)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a.Server.PEM, other.Server.PEM) || !bytes.Equal(a.EtcdPeer.PEM, other.EtcdPeer.PEM) {
		t.Error("the second server made authorities of its own")
	}
	delete(b, "ServiceKey")
	if err := b.Write(second); err == nil {
		t.Error("incomplete bootstrap data was accepted")
	}
}

func TestSignRequest(t *testing.T) {
	d := layout.Data(t.TempDir())
	c, err := EnsureCluster(d)
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(t.TempDir(), "node.key")
	csr, err := NewRequest(key, "system:masters-wish")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := c.Client.SignRequest(csr, Subject{CommonName: "system:node:n1", Groups: []string{"system:nodes"}, Client: true})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := parseCert(raw)
	if err != nil {
		t.Fatal(err)
	}
	if cert.Subject.CommonName != "system:node:n1" {
		t.Errorf("the caller chose its own name: %s", cert.Subject.CommonName)
	}
	if _, err := c.Client.SignRequest([]byte("nonsense"), Subject{}); err == nil {
		t.Error("nonsense was signed")
	}
}
