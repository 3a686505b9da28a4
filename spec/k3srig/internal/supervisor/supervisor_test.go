package supervisor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes/fake"

	"powernode/spec/k3srig/internal/layout"
	"powernode/spec/k3srig/internal/pki"
	"powernode/spec/k3srig/internal/token"
)

// serve starts a supervisor with TLS from a cluster of its own.
func serve(t *testing.T) (string, *Handler) {
	t.Helper()
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	d := layout.Data(t.TempDir())
	cluster, err := pki.EnsureCluster(d)
	if err != nil {
		t.Fatal(err)
	}
	if err := cluster.IssueServer(d, pki.Identity{NodeName: "s1", ServiceIP: netip.MustParseAddr("fd00::1")}); err != nil {
		t.Fatal(err)
	}
	bootstrap, err := pki.ReadBootstrap(d)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.LoadX509KeyPair(d.TLS("serving-kube-apiserver.crt"), d.TLS("serving-kube-apiserver.key"))
	if err != nil {
		t.Fatal(err)
	}
	h := &Handler{
		Secrets: token.Secrets{Server: "server-pw", Agent: "agent-pw"}, Cluster: cluster, Bootstrap: bootstrap,
		Config:     Config{FlannelBackend: "vxlan", ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("fd00:42::/56")}},
		Client:     fake.NewClientset(),
		Members:    func(context.Context) ([]Member, error) { return []Member{{Name: "m1"}}, nil },
		APIServers: func(context.Context) ([]string, error) { return nil, errors.New("not yet") },
	}
	srv := httptest.NewUnstartedServer(h.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "api")
	})))
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv.URL, h
}

func TestJoin(t *testing.T) {
	ctx := context.Background()
	url, h := serve(t)
	full, err := token.Parse(token.Format(h.Cluster.Server.PEM, token.UserServer, "server-pw"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := Connect(ctx, url+"/", full, token.UserServer)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := c.Bootstrap(ctx); err != nil || len(b) != len(h.Bootstrap) {
		t.Errorf("bootstrap: %d entries, %v", len(b), err)
	}
	if m, err := c.Members(ctx); err != nil || len(m) != 1 {
		t.Errorf("members: %v, %v", m, err)
	}
	if cfg, err := c.Config(ctx); err != nil || cfg.CheckCritical(h.Config) != nil {
		t.Errorf("config: %+v, %v", cfg, err)
	}

	full.CAHash = strings.Repeat("0", 64)
	if _, err := Connect(ctx, url, full, token.UserServer); err == nil || !strings.Contains(err.Error(), "does not match") {
		t.Errorf("a token of another cluster: %v", err)
	}
}

func TestAccess(t *testing.T) {
	ctx := context.Background()
	url, _ := serve(t)
	for name, c := range map[string]struct {
		user, password    string
		config, bootstrap int
	}{
		"server token":          {token.UserServer, "server-pw", 0, 0},
		"server token as agent": {token.UserNode, "server-pw", 0, http.StatusForbidden},
		"agent token":           {token.UserNode, "agent-pw", 0, http.StatusForbidden},
		"agent token as server": {token.UserServer, "agent-pw", http.StatusUnauthorized, http.StatusUnauthorized},
		"wrong":                 {token.UserNode, "x", http.StatusUnauthorized, http.StatusUnauthorized},
	} {
		client, err := Connect(ctx, url, token.Token{Password: c.password}, c.user)
		if err != nil {
			t.Fatal(err)
		}
		_, cerr := client.Config(ctx)
		_, berr := client.Bootstrap(ctx)
		if code(cerr) != c.config || code(berr) != c.bootstrap {
			t.Errorf("%s: config %v, bootstrap %v", name, cerr, berr)
		}
		if c.config == http.StatusUnauthorized && (!Refused(cerr) || !strings.Contains(cerr.Error(), "not authorized")) {
			t.Errorf("%s: %v", name, cerr)
		}
	}
}

func code(err error) int {
	var s *StatusError
	if errors.As(err, &s) {
		return s.Code
	}
	return 0
}

func TestKubeletCertificate(t *testing.T) {
	ctx := context.Background()
	url, h := serve(t)
	c, err := Connect(ctx, url, token.Token{Password: "agent-pw"}, token.UserNode)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := pki.NewRequest(filepath.Join(t.TempDir(), "k"), "anything")
	if err != nil {
		t.Fatal(err)
	}
	n := Node{Name: "n1", Password: "p", IPs: []netip.Addr{netip.MustParseAddr("fd00::11")}}
	raw, err := c.Certificate(ctx, PathClientKubelet, n, csr)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(raw)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if cert.Subject.CommonName != "system:node:n1" || cert.CheckSignatureFrom(h.Cluster.Client.Cert) != nil {
		t.Errorf("%v", cert.Subject)
	}
	if _, err := c.Certificate(ctx, PathServeKubelet, n, csr); err != nil {
		t.Error(err)
	}
	n.Password = "another machine's"
	if _, err := c.Certificate(ctx, PathClientKubelet, n, csr); code(err) != http.StatusForbidden || !strings.Contains(err.Error(), "Node password rejected") {
		t.Errorf("a second machine of that name: %v", err)
	}
	if _, err := c.Certificate(ctx, PathClientKubelet, Node{}, csr); code(err) != http.StatusBadRequest {
		t.Errorf("no name: %v", err)
	}
	if _, err := c.APIServers(ctx); code(err) != http.StatusServiceUnavailable {
		t.Errorf("API not ready: %v", err)
	}
}

func TestOtherPathsReachTheAPI(t *testing.T) {
	_, h := serve(t)
	w := httptest.NewRecorder()
	h.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "api") })).
		ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/nodes", nil))
	if w.Body.String() != "api" {
		t.Errorf("%q", w.Body)
	}
}

func TestCheckCritical(t *testing.T) {
	a := Config{FlannelBackend: "vxlan", ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("fd00::/112")}}
	b := a
	b.FlannelBackend = "host-gw"
	if err := a.CheckCritical(a); err != nil {
		t.Error(err)
	}
	if err := a.CheckCritical(b); err == nil || !strings.Contains(err.Error(), "critical configuration value mismatch between servers: FlannelBackend") {
		t.Error(err)
	}
}
