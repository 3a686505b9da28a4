package k3s

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"powernode/agent"
	"powernode/agent/artifact"
	"powernode/agent/service"
	"powernode/nodeapi"
	"powernode/sdwan"
)

// fakeHost notes that it was cleaned; the kernel's state has no root folder.
type fakeHost struct{ cleaned int }

func (h *fakeHost) KillContainers(context.Context) error { h.cleaned++; return nil }
func (h *fakeHost) Unmount([]string) error               { return nil }
func (h *fakeHost) RemoveLinks([]string) error           { return nil }
func (h *fakeHost) CleanFilter(context.Context) error    { return nil }
func (h *fakeHost) RemoveCgroups() error                 { return nil }
func (h *fakeHost) Left(_, _ []string) ([]string, error) { return nil, nil }

func (h *fakeHost) assertCleaned(t *testing.T, cleaned bool) {
	t.Helper()
	if (h.cleaned > 0) != cleaned {
		t.Errorf("host cleaned %d times", h.cleaned)
	}
}

// lab is a host in a folder, with a K3s that "runs" as soon as its unit does: an API server that answers what a test
// says, with certificates and files where K3s has them.
type lab struct {
	t    *testing.T
	s    *Subsystem
	dir  string
	host *fakeHost
	api  *httptest.Server

	mu         sync.Mutex
	units      map[string]service.Unit
	restarts   int
	up         bool // the API server answers
	asked      []nodeapi.HandshakeRequest
	answer     func(nodeapi.HandshakeRequest) (nodeapi.HandshakeAnswer, error)
	hasAddress bool
	binary     []byte
	nodeReady  string
}

func newLab(t *testing.T) *lab {
	l := &lab{t: t, dir: t.TempDir(), host: &fakeHost{}, units: map[string]service.Unit{}, hasAddress: true, up: true,
		binary: []byte("#!/bin/false\n"), nodeReady: "True"}
	l.answer = l.firstServer
	l.startAPI()
	l.restartAgent()
	return l
}

// restartAgent makes the subsystem anew, as a restarted agent would.
func (l *lab) restartAgent() {
	l.s = New(Options{Root: filepath.Join(l.dir, "host"), StateDir: filepath.Join(l.dir, "state"), BootID: "boot-1", Services: l, CgroupV1: true,
		Platform:   func() (Platform, error) { return l, nil },
		Store:      artifact.NewStore(filepath.Join(l.dir, "fetched"), func() (artifact.Platform, error) { return l, nil }),
		HasAddress: func(netip.Addr) (bool, error) { return l.hasAddress, nil }, Log: zerolog.Nop()})
	l.s.host = l.host
}

func (l *lab) path(p string) string { return l.s.root.path(p) }

func (l *lab) read(p string) string {
	l.t.Helper()
	b, err := os.ReadFile(l.path(p))
	if err != nil {
		l.t.Fatal(err)
	}
	return string(b)
}

func (l *lab) write(p, text string) {
	l.t.Helper()
	path := l.path(p)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		l.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) Handshake(_ context.Context, in nodeapi.HandshakeRequest) (nodeapi.HandshakeAnswer, error) {
	l.mu.Lock()
	l.asked = append(l.asked, in)
	l.mu.Unlock()
	return l.answer(in)
}

func (l *lab) phases() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for _, a := range l.asked {
		out = append(out, a.Phase)
	}
	return strings.Join(out, " ")
}

func (l *lab) Artifact(_ context.Context, _ string, offset int64, w io.Writer) (int64, error) {
	return io.Copy(w, bytes.NewReader(l.binary[offset:]))
}

func (l *lab) sum() string {
	h := sha256.Sum256(l.binary)
	return hex.EncodeToString(h[:])
}

// Ensure is the service manager's: K3s comes up at once and has its files.
func (l *lab) Ensure(_ context.Context, u service.Unit) error {
	l.units[u.Name] = u
	if u.Name == serverUnit {
		l.write(kubeconfigPath, l.kubeconfig())
		l.write(etcdMemberPath+"/wal", "")
		l.write(etcdNamePath, "a-1-7f3e")
	}
	return nil
}

func (l *lab) Restart(context.Context, string) error { l.restarts++; return nil }

func (l *lab) Stop(_ context.Context, name string) error { delete(l.units, name); return nil }

func (l *lab) Status(_ context.Context, name string) (service.Status, error) {
	if _, ok := l.units[name]; !ok {
		return service.Status{State: service.Absent}, nil
	}
	return service.Status{State: service.Running, PID: 7}, nil
}

func (l *lab) firstServer(in nodeapi.HandshakeRequest) (nodeapi.HandshakeAnswer, error) {
	if in.Phase != nodeapi.PhaseJoinRequest {
		return nodeapi.HandshakeAnswer{ClusterID: "cluster-1", Acknowledged: true}, nil
	}
	return nodeapi.HandshakeAnswer{Mode: "init", ClusterID: "cluster-1", APIEndpoint: "https://[fd12:3456:789a:1::100]:6443",
		ServerToken: "server-secret", AgentToken: "agent-secret", NodeName: "a-1", NodeIP: "fd12:3456:789a:1::1:21", TokenGeneration: 1}, nil
}

func (l *lab) joins(in nodeapi.HandshakeRequest) (nodeapi.HandshakeAnswer, error) {
	a, err := l.firstServer(in)
	if in.Phase == nodeapi.PhaseJoinRequest {
		a.Mode, a.ServerURL = "join", "https://[fd12:3456:789a:1::100]:6443"
		if in.Runtime == nodeapi.RuntimeK3sAgent {
			a.ServerToken = ""
		}
	}
	return a, err
}

func (l *lab) server() *sdwan.Document {
	return &sdwan.Document{K3s: sdwan.K3s{Server: &sdwan.K3sServer{State: "present", ClusterID: "cluster-1", Mode: "init", TokenGeneration: 1,
		Endpoint: "https://[fd12:3456:789a:1::100]:6443", Artifact: &sdwan.Artifact{Version: "v1.36.5+k3s1", SHA256: l.sum()},
		Bootstrap: sdwan.BootstrapConfig{CNIPlugin: "flannel", FlannelIface: "wg-sdwan-1", FlannelBackend: "vxlan", ClusterInit: true,
			ClusterCIDR: netip.MustParsePrefix("fd12:3456:789a:a00::/56"), ServiceCIDR: netip.MustParsePrefix("fd12:3456:789a:ff01::/112"),
			TLSSAN: []string{"fd12:3456:789a:1::100"}, NodeIP: netip.MustParseAddr("fd12:3456:789a:1::1:21"), NodeName: "a-1"}}}}
}

func (l *lab) worker() *sdwan.Document {
	return &sdwan.Document{K3s: sdwan.K3s{Agent: &sdwan.K3sAgent{State: "present", TargetClusterID: "cluster-1",
		Artifact: &sdwan.Artifact{Version: "v1.36.5+k3s1", SHA256: l.sum()},
		Agent: sdwan.AgentConfig{FlannelIface: "wg-sdwan-1", NodeIP: netip.MustParseAddr("fd12:3456:789a:1::1:21"), NodeName: "a-1",
			NodeLabels: []string{"pool=blue"}}}}}
}

func (l *lab) must(doc *sdwan.Document) {
	l.t.Helper()
	if err := l.s.Reconcile(l.t.Context(), doc); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) waits(doc *sdwan.Document, reason string) {
	l.t.Helper()
	var p *agent.Pending
	if err := l.s.Reconcile(l.t.Context(), doc); !errors.As(err, &p) || !strings.Contains(p.Reason, reason) {
		l.t.Fatalf("got %v, want to wait for %q", err, reason)
	}
}

// startAPI serves what health asks of an API server and of etcd, with client certificates required.
func (l *lab) startAPI() {
	mux := http.NewServeMux()
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !l.up {
			http.Error(w, "[-]etcd failed", http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, "ok")
	})
	mux.HandleFunc("/version", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"gitVersion":"v1.36.5+k3s1"}`) })
	node := func() string {
		return `{"metadata":{"name":"a-1","labels":{"node-role.kubernetes.io/etcd":"true"}},"spec":{"unschedulable":true,"podCIDRs":["fd12:3456:789a:a00::/64"]},` +
			`"status":{"nodeInfo":{"kubeletVersion":"v1.36.5+k3s1"},"conditions":[{"type":"Ready","status":"` + l.nodeReady + `","reason":"KubeletReady","lastHeartbeatTime":"` + time.Now().Format(time.RFC3339Nano) + `"}]}}`
	}
	mux.HandleFunc("/api/v1/nodes", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, `{"items":[%s]}`, node()) })
	mux.HandleFunc("/api/v1/nodes/a-1", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, node()) })
	l.api = httptest.NewUnstartedServer(mux)
	ca, key := l.makeCA()
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	l.api.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, Certificates: []tls.Certificate{l.issue(ca, key)}}
	l.api.StartTLS()
	l.t.Cleanup(l.api.Close)
}

var clusterTime = time.Hour

func (l *lab) makeCA() (*x509.Certificate, *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		l.t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "k3s-server-ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-clusterTime), NotAfter: time.Now().Add(clusterTime)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		l.t.Fatal(err)
	}
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		l.t.Fatal(err)
	}
	return ca, key
}

// issue makes one pair that serves as server's, admin's and etcd client's, and writes it where K3s has it.
func (l *lab) issue(ca *x509.Certificate, caKey *ecdsa.PrivateKey) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		l.t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(2), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-clusterTime), NotAfter: time.Now().Add(clusterTime),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, ca, key.Public(), caKey)
	if err != nil {
		l.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		l.t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"ca": {Type: "CERTIFICATE", Bytes: ca.Raw}, "crt": {Type: "CERTIFICATE", Bytes: der}, "key": {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(filepath.Join(l.dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			l.t.Fatal(err)
		}
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (l *lab) pem(name string) string {
	b, err := os.ReadFile(filepath.Join(l.dir, name))
	if err != nil {
		l.t.Fatal(err)
	}
	return string(b)
}

func (l *lab) kubeconfig() string {
	b64 := func(name string) string { return base64.StdEncoding.EncodeToString([]byte(l.pem(name))) }
	return fmt.Sprintf("clusters:\n- cluster:\n    server: %s\n    certificate-authority-data: %s\n  name: default\nusers:\n- name: default\n  user:\n"+
		"    client-certificate-data: %s\n    client-key-data: %s\n", l.api.URL, b64("ca"), b64("crt"), b64("key"))
}

func TestFirstServerIsConfiguredStartedAndToldOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.must(l.server())
	want := `# Written by powernode-agent; changes are overwritten or reported.
cluster-init: true
token-file: /etc/rancher/k3s/server-token
agent-token-file: /etc/rancher/k3s/agent-token
node-name: a-1
node-ip: fd12:3456:789a:1::1:21
advertise-address: fd12:3456:789a:1::1:21
tls-san:
  - fd12:3456:789a:1::100
flannel-iface: wg-sdwan-1
flannel-backend: vxlan
flannel-ipv6-masq: true
cluster-cidr: fd12:3456:789a:a00::/56
service-cidr: fd12:3456:789a:ff01::/112
write-kubeconfig-mode: "0600"
kubelet-arg:
  - fail-cgroupv1=false
`
	if diff := cmp.Diff(want, l.read(configPath)); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	if got := l.read(serverTokenPath) + l.read(agentTokenPath); got != "server-secret\nagent-secret\n" {
		t.Errorf("tokens %q", got)
	}
	for path, mode := range map[string]os.FileMode{configPath: 0o600, serverTokenPath: 0o600, agentTokenPath: 0o600, binaryPath: 0o755} {
		if info, err := os.Stat(l.path(path)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v %v", path, info, err)
		}
	}
	if diff := cmp.Diff([]string{"/usr/local/bin/k3s", "server"}, l.units["k3s"].Exec); diff != "" {
		t.Errorf("argument vector (-want +got):\n%s", diff)
	}
	if got := l.units["k3s"].AwaitAddress.String(); got != "fd12:3456:789a:1::1:21" {
		t.Errorf("the unit waits for %s", got)
	}
	l.restartAgent()
	l.must(l.server())
	if got := l.phases(); got != "join_request bootstrap ready" {
		t.Errorf("told %s", got)
	}
	if l.asked[1].Kubeconfig != l.kubeconfig() || l.asked[1].K8sVersion != "v1.36.5+k3s1" || l.asked[2].ClusterID != "cluster-1" || l.asked[2].Role != "server" {
		t.Errorf("told %+v", l.asked[1:])
	}
	state, err := os.ReadFile(filepath.Join(l.dir, "state", "k3s", "state.json"))
	if err != nil || strings.Contains(string(state), "secret\"") || bytes.Contains(state, []byte("server-secret")) {
		t.Errorf("state %s, %v", state, err)
	}
	if left, err := os.ReadDir(filepath.Join(l.dir, "fetched")); err != nil || len(left) != 0 {
		t.Errorf("the fetched file is still there: %v %v", left, err)
	}
}

func TestReadyIsToldAgainAfterABootAndForAnotherVersion(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.must(l.server())
	l.s.o.BootID = "boot-2"
	l.must(l.server())
	if got := l.phases(); got != "join_request bootstrap ready ready" {
		t.Errorf("told %s", got)
	}
	l.binary = []byte("another K3s")
	l.must(l.server())
	if l.restarts != 1 || l.read(binaryPath) != "another K3s" {
		t.Errorf("restarted %d times", l.restarts)
	}
}

func TestServerWaitsInOrder(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	doc := l.server()
	doc.K3s.Server.Mode, doc.K3s.Server.Reason = "wait", "missing_sdwan_peer"
	l.waits(doc, "not_ready: missing_sdwan_peer")
	l.hasAddress = false
	l.waits(l.server(), "no interface has the node's address fd12:3456:789a:1::1:21 yet")
	l.hasAddress = true
	l.answer = func(nodeapi.HandshakeRequest) (nodeapi.HandshakeAnswer, error) {
		return nodeapi.HandshakeAnswer{}, &nodeapi.Error{HTTPStatus: 503, Code: "unavailable", Message: "no ready server", RetryAfter: 7}
	}
	l.waits(l.server(), "join_request: no ready server")
	if len(l.units) != 0 {
		t.Errorf("units %v", l.units)
	}
	l.answer = l.firstServer
	l.up = false
	l.waits(l.server(), "K3s starts: the API server is not ready")
	l.up = true
	l.must(l.server())
}

func TestWorkerGetsTheAgentTokenAlone(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.answer = l.joins
	l.waits(l.worker(), "the worker has no certificate yet")
	want := `# Written by powernode-agent; changes are overwritten or reported.
server: https://[fd12:3456:789a:1::100]:6443
token-file: /etc/rancher/k3s/agent-token
node-name: a-1
node-ip: fd12:3456:789a:1::1:21
flannel-iface: wg-sdwan-1
node-label:
  - pool=blue
kubelet-arg:
  - fail-cgroupv1=false
`
	if diff := cmp.Diff(want, l.read(configPath)); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	if exists(l.path(serverTokenPath)) {
		t.Error("a worker has a server token")
	}
	if diff := cmp.Diff([]string{"/usr/local/bin/k3s", "agent"}, l.units["k3s-agent"].Exec); diff != "" {
		t.Errorf("argument vector (-want +got):\n%s", diff)
	}
	// The kubelet's certificate comes; its kubeconfig names files.
	for _, name := range []string{"ca", "crt", "key"} {
		l.write(dataDir+"/agent/"+name, l.pem(name))
	}
	l.write(kubeletConfigPath, fmt.Sprintf("clusters: [{cluster: {server: %q, certificate-authority: %s/agent/ca}}]\nusers: [{user: {client-certificate: %s/agent/crt, client-key: %s/agent/key}}]\n",
		l.api.URL, dataDir, dataDir, dataDir))
	l.must(l.worker())
	if got := l.phases(); got != "join_request ready" {
		t.Errorf("told %s", got)
	}
}

func TestRefusedJoinsSayTheirClass(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.answer = func(nodeapi.HandshakeRequest) (nodeapi.HandshakeAnswer, error) {
		return nodeapi.HandshakeAnswer{}, &nodeapi.Error{HTTPStatus: 409, Code: "conflict", Class: "AmbiguousClusterError", Message: "two clusters"}
	}
	doc := l.worker()
	doc.K3s.Agent.TargetClusterID = ""
	var waits []time.Duration
	for range 7 {
		var later *agent.Later
		err := l.s.Reconcile(t.Context(), doc)
		if !errors.As(err, &later) || err.Error() != "join_request: AmbiguousClusterError (HTTP 409): two clusters" {
			t.Fatalf("got %v", err)
		}
		waits = append(waits, later.After)
	}
	if diff := cmp.Diff([]time.Duration{1e9, 2e9, 4e9, 8e9, 16e9, 30e9, 30e9}, waits); diff != "" {
		t.Errorf("waits (-want +got):\n%s", diff)
	}
	if exists(l.path(configPath)) || len(l.units) != 0 {
		t.Error("something was installed")
	}
}

func TestMaterialOfAnotherMemberIsRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*nodeapi.HandshakeAnswer)
		says   string
	}{
		{"another cluster's", func(a *nodeapi.HandshakeAnswer) { a.ClusterID = "cluster-2" }, "the answer is for cluster cluster-2"},
		{"a worker's", func(a *nodeapi.HandshakeAnswer) { a.ServerToken = "" }, "has not the tokens of a server"},
		{"another address'", func(a *nodeapi.HandshakeAnswer) { a.NodeIP = "fd00::1" }, "the answer is for address fd00::1"},
		{"another node's", func(a *nodeapi.HandshakeAnswer) { a.NodeName = "b-1" }, "the answer is for node b-1"},
		{"no cluster's", func(a *nodeapi.HandshakeAnswer) { a.ClusterID = "" }, "names no cluster"},
		{"one without a server", func(a *nodeapi.HandshakeAnswer) { a.Mode = "join" }, "names no server"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.answer = func(in nodeapi.HandshakeRequest) (nodeapi.HandshakeAnswer, error) {
				a, err := l.firstServer(in)
				tt.change(&a)
				return a, err
			}
			if err := l.s.Reconcile(t.Context(), l.server()); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v", err)
			}
			if exists(l.path(serverTokenPath)) {
				t.Error("its token was written")
			}
		})
	}
}

func TestTokensAreAskedForAgainWhenTheyAreNotWhatWeWrote(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		harm  func(*lab)
		asked string
	}{
		{"nothing happened", func(*lab) {}, "join_request bootstrap ready"},
		{"a token file was changed", func(l *lab) { l.write(serverTokenPath, "mine") }, "join_request bootstrap ready join_request"},
		{"a token file is gone", func(l *lab) { _ = os.Remove(l.path(agentTokenPath)) }, "join_request bootstrap ready join_request"},
		{"the state is lost", func(l *lab) { _ = os.RemoveAll(l.s.state.dir) }, "join_request bootstrap ready join_request bootstrap ready"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.must(l.server())
			tt.harm(l)
			l.must(l.server())
			if got := l.phases(); got != tt.asked {
				t.Errorf("asked %s", got)
			}
			if got := l.read(serverTokenPath); got != "server-secret\n" {
				t.Errorf("token %q", got)
			}
		})
	}
}

func TestChangedSettingsOfARunningServer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		from, to string
		finding  string
		restarts int
		repaired bool
	}{
		{"a range that can't change is a finding", "ff01::/112", "ff02::/112", "service-cidr: desired fd12:3456:789a:ff01::/112, actual fd12:3456:789a:ff02::/112", 0, false},
		{"a key of somebody's is taken out, with a restart", "write-kubeconfig-mode", "debug: true\nwrite-kubeconfig-mode", "", 1, true},
		{"a comment is no restart", "# Written", "# written", "", 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.must(l.server())
			wanted := l.read(configPath)
			l.write(configPath, strings.Replace(wanted, tt.from, tt.to, 1))
			l.must(l.server())
			var r sdwan.Report
			if err := l.s.Observe(t.Context(), &r); err != nil {
				t.Fatal(err)
			}
			found := ""
			for _, f := range r.Findings {
				found += f.Evidence
			}
			if found != tt.finding || l.restarts != tt.restarts || (l.read(configPath) == wanted) != tt.repaired {
				t.Errorf("finding %q, %d restarts, file\n%s", found, l.restarts, l.read(configPath))
			}
		})
	}
}

func TestAbsentCleansTheHostTellsOnceAndForgets(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.must(l.server())
	for _, p := range []string{"/etc/rancher/node/password", "/var/lib/kubelet/pods/x", "/var/lib/cni/y", "/run/k3s/z", "/run/flannel/subnet.env", "/var/log/pods/p", "/usr/local/bin/other", "/usr/local/bin/.k3s.123"} {
		l.write(p, "")
	}
	if err := os.Symlink("k3s", l.path("/usr/local/bin/kubectl")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/usr/bin/other", l.path("/usr/local/bin/ctr")); err != nil {
		t.Fatal(err)
	}
	doc := l.server()
	doc.K3s.Server = &sdwan.K3sServer{State: "absent"}
	fail := true
	l.answer = func(in nodeapi.HandshakeRequest) (nodeapi.HandshakeAnswer, error) {
		if fail {
			return nodeapi.HandshakeAnswer{}, errors.New("the platform is away")
		}
		return nodeapi.HandshakeAnswer{Acknowledged: true}, nil
	}
	if err := l.s.Reconcile(t.Context(), doc); err == nil || !strings.Contains(err.Error(), "the platform is away") {
		t.Fatalf("got %v", err)
	}
	l.host.assertCleaned(t, true)
	if len(l.units) != 0 {
		t.Errorf("units %v", l.units)
	}
	var left []string
	err := filepath.WalkDir(l.path("/"), func(p string, _ os.DirEntry, err error) error {
		rel, _ := filepath.Rel(l.path("/"), p)
		left = append(left, rel)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := ". etc run usr usr/local usr/local/bin usr/local/bin/ctr usr/local/bin/other var var/lib var/log"
	if got := strings.Join(left, " "); got != want {
		t.Errorf("left\n%s, want\n%s", got, want)
	}
	fail = false
	l.restartAgent()
	l.must(doc)
	l.must(doc)
	last := l.asked[len(l.asked)-1]
	if last.Phase != "stopped" || last.ClusterID != "cluster-1" || last.Reason != "uninstalled" {
		t.Errorf("told %+v", last)
	}
	if got := l.phases(); got != "join_request bootstrap ready stopped stopped" {
		t.Errorf("told %s", got)
	}
	if _, err := os.Stat(l.s.state.dir); !os.IsNotExist(err) {
		t.Errorf("state: %v", err)
	}
	var r sdwan.Report
	l.s.keep((&measurer{s: l.s}).measure(t.Context()))
	if err := l.s.Observe(t.Context(), &r); err != nil || r.K3s == nil || r.K3s.Installed || r.K3s.UnitState != "absent" || r.K3s.Role != "" {
		t.Errorf("report %+v, %v", r.K3s, err)
	}
}

// The platform waits for each removal that it asks for, also where nothing is left to remove.
func TestRemovalThatIsAskedForAnewIsToldAnew(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	doc := l.worker()
	doc.K3s.Agent = &sdwan.K3sAgent{State: "absent"}
	doc.Incarnation = "one"
	for _, asked := range []struct {
		incarnation string
		revision    int64
	}{{"one", 7}, {"one", 9}, {"restored from a backup", 9}} {
		doc.Incarnation, doc.Revision = asked.incarnation, asked.revision
		l.must(doc)
		l.must(doc)
	}
	if got := l.phases(); got != "stopped stopped stopped" {
		t.Errorf("told %s, want a word for each document that asks", got)
	}
}

func TestMachineThatKnowsOfNoRoleSaysThatItIsCleanBeforeItTakesAnother(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	doc := l.worker()
	doc.K3s.Server = &sdwan.K3sServer{State: "absent", ClusterID: "cluster-0"}
	waiting := &nodeapi.Error{HTTPStatus: http.StatusServiceUnavailable, Retryable: true, RetryAfter: 1, Message: "the machine has still to clean up"}
	l.answer = func(in nodeapi.HandshakeRequest) (nodeapi.HandshakeAnswer, error) {
		if in.Phase == nodeapi.PhaseStopped {
			return nodeapi.HandshakeAnswer{Acknowledged: true}, nil
		}
		return nodeapi.HandshakeAnswer{}, waiting
	}
	for range 2 {
		if err := l.s.Reconcile(t.Context(), doc); err == nil {
			t.Error("a join that has to wait is done")
		}
	}
	if got := l.phases(); got != "stopped join_request join_request" || l.asked[0].Runtime != nodeapi.RuntimeK3sServer {
		t.Errorf("told %s, first of %s", got, l.asked[0].Runtime)
	}
	l.answer = l.joins
	l.waits(doc, "the worker has no certificate yet")
}

func TestNoOpinionTouchesNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.must(l.server())
	before := l.read(configPath)
	l.must(&sdwan.Document{})
	if l.read(configPath) != before || len(l.units) != 1 {
		t.Error("a document without K3s took it away")
	}
	l.host.assertCleaned(t, false)
}

func TestAnotherRoleOrClusterNeedsThePlatformsWord(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.must(l.server())
	if err := l.s.Reconcile(t.Context(), l.worker()); err == nil || !strings.Contains(err.Error(), "is a K3s server") {
		t.Errorf("got %v", err)
	}
	other := l.server()
	other.K3s.Server.ClusterID = "cluster-2"
	if err := l.s.Reconcile(t.Context(), other); err == nil || !strings.Contains(err.Error(), "moving is an operation of its own") {
		t.Errorf("got %v", err)
	}
	l.host.assertCleaned(t, false)
	change := l.worker()
	change.K3s.Server = &sdwan.K3sServer{State: "absent"}
	l.answer = l.joins
	l.waits(change, "the worker has no certificate yet")
	l.host.assertCleaned(t, true)
	if got := l.phases(); got != "join_request bootstrap ready stopped join_request" {
		t.Errorf("told %s", got)
	}
}

func TestHealthIsMeasuredAndChangesAreTold(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	doc := l.server()
	doc.K3s.Server.Endpoint = l.api.URL // the VIP's certificate is the server's
	l.answer = func(in nodeapi.HandshakeRequest) (nodeapi.HandshakeAnswer, error) {
		a, err := l.firstServer(in)
		a.APIEndpoint = l.api.URL
		return a, err
	}
	l.must(doc)
	m := &measurer{s: l.s}
	t.Cleanup(m.close)
	first := m.measure(t.Context())
	yes := true
	want := &sdwan.K3sReport{Role: "server", ClusterID: "cluster-1", UnitState: "running", Version: "v1.36.5+k3s1", NodeReady: &yes, APIReady: &yes, VIPReady: &yes,
		Conditions: json.RawMessage(`[{"type":"Ready","status":"True","reason":"KubeletReady","message":"","lastTransitionTime":""}]`),
		PodCIDRs:   []netip.Prefix{netip.MustParsePrefix("fd12:3456:789a:a00::/64")}, TokenGeneration: 1, Installed: true,
		Nodes: []sdwan.K3sNodeReport{{Name: "a-1", Ready: true, Unschedulable: true, Version: "v1.36.5+k3s1", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("fd12:3456:789a:a00::/64")}}}}
	if diff := cmp.Diff(want, first, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	told := func() bool {
		select {
		case <-l.s.Changes():
			return true
		default:
			return false
		}
	}
	told()
	l.s.keep(first)
	if !told() {
		t.Error("a first measurement is news")
	}
	l.s.keep(m.measure(t.Context()))
	if told() {
		t.Error("a heartbeat is no news")
	}
	l.nodeReady = "False"
	l.s.keep(m.measure(t.Context()))
	if !told() {
		t.Error("a Node that isn't ready is news")
	}
	l.up = false
	r := m.measure(t.Context())
	if *r.APIReady || *r.VIPReady || r.NodeReady != nil {
		t.Errorf("with the API down: %+v", r)
	}
}

func TestEtcdIsMeasuredWhereItAnswers(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	for file, name := range map[string]string{"server-ca.crt": "ca", "client.crt": "crt", "client.key": "key"} {
		l.write(etcdTLSDir+"/"+file, l.pem(name))
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"health":"true","reason":""}`) })
	mux.HandleFunc("POST /v3/cluster/member/list", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"members":[{"ID":"1"},{"ID":"2"},{"ID":"3"}]}`)
	})
	srv := httptest.NewUnstartedServer(mux)
	srv.TLS = l.api.TLS.Clone()
	srv.StartTLS()
	t.Cleanup(srv.Close)
	e, err := openEtcd(l.s.root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.close)
	healthy, err := e.healthy(t.Context(), srv.URL)
	if err != nil || !healthy {
		t.Errorf("healthy %v, %v", healthy, err)
	}
	if n, err := e.members(t.Context(), srv.URL); err != nil || n != 3 {
		t.Errorf("%d members, %v", n, err)
	}
	if _, err := e.healthy(t.Context(), l.api.URL); err == nil {
		t.Error("an API server counts as etcd")
	}
}

func TestOnlyK3sLinesLeaveThePacketFilter(t *testing.T) {
	t.Parallel()
	saved := "*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SVC-X - [0:0]\n:DOCKER - [0:0]\n-A PREROUTING -j KUBE-SERVICES\n-A POSTROUTING -m comment --comment \"flanneld masq\" -j FLANNEL-POSTRTG\n-A POSTROUTING -j MASQUERADE\nCOMMIT\n"
	rest, found := withoutK3s(saved)
	if want := "*nat\n:PREROUTING ACCEPT [0:0]\n:DOCKER - [0:0]\n-A POSTROUTING -j MASQUERADE\nCOMMIT\n"; rest != want || !found {
		t.Errorf("got\n%s", rest)
	}
	if _, found := withoutK3s("*nat\n-A POSTROUTING -j MASQUERADE\nCOMMIT\n"); found {
		t.Error("a foreign rule counts as K3s'")
	}
}

func TestKubeletsThatKnowTheirCgroupArgumentGetIt(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"v1.36.5+k3s1": true, "v1.31.0+k3s1": true, "v1.30.9+k3s1": false, "custom": true} {
		if got := refusesCgroupV1(target{artifact: &sdwan.Artifact{Version: version}}); got != want {
			t.Errorf("%s: %v", version, got)
		}
	}
}
