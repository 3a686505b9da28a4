package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"io"
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

	"powernode/nodeapi"
	"powernode/platform/cluster"
	"powernode/platform/fleet"
	"powernode/sdwan"
	"powernode/store"
	"powernode/tools/toolstest"
)

// agents is the agents' API over mutual TLS with a real store behind it, and machines that are rows.
type agents struct {
	*toolstest.Env
	url      string
	pool     *x509.CertPool
	now      func() time.Time
	template store.TemplateID
	provider store.ProviderID // of the machines; "" is the first
}

func newAgents(t *testing.T) *agents {
	t.Helper()
	return agentsOf(t, toolstest.New(t), time.Now)
}

// agentsOf is newAgents of a platform whose time is now's.
func agentsOf(t *testing.T, env *toolstest.Env, now func() time.Time) *agents {
	t.Helper()
	a := &agents{Env: env, now: now}
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	authority, err := fleet.OpenAuthority(dir, a.Platform.Sealer, nil, now)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := authority.ServerCertificate([]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})})
	if err != nil {
		t.Fatal(err)
	}
	f := a.Platform.Fleet
	f.DB, f.Authority, f.StateDir = a.Platform.DB, authority, dir
	reports := newReports(a.Platform)
	server := httptest.NewUnstartedServer(nodeapi.NewServer(&agentAPI{p: a.Platform, reports: reports, log: zerolog.Nop()}, zerolog.Nop()))
	server.TLS = nodeapi.ServerTLS(certificate, authority.Pool())
	server.StartTLS()
	a.url, a.pool = server.URL, authority.Pool()
	f.PlatformURLs = func() []string { return []string{server.URL} }
	a.Platform.Network.PlatformURL = func() string { return server.URL }
	a.Platform.Network.CAFingerprint = func() string { return fingerprint(authority.CAPEM()) }
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { reports.run(ctx) }) // it ends with the context alone
	t.Cleanup(func() { server.Close(); stop(); running.Wait() })
	a.template = a.makeTemplate(t)
	return a
}

func (a *agents) makeTemplate(t *testing.T) (id store.TemplateID) {
	t.Helper()
	a.Update(t, func(ctx context.Context, tx *store.Tx) error {
		platforms, err := store.Platforms(ctx, &tx.View, a.Account.ID)
		if err != nil {
			return err
		}
		made, err := store.InsertTemplate(ctx, tx, store.Template{ID: store.TemplateID(tx.NewID()), AccountID: a.Account.ID, Name: "base", PlatformID: platforms[0].ID, Enabled: true})
		id = made.ID
		return err
	})
	return id
}

// agent is a machine's agent: what it presents, and who it is.
type agent struct {
	a        *agents
	instance store.Instance
	client   *http.Client
}

// answer is what the API said.
type answer struct {
	status int
	header http.Header
	body   toolstest.Object
}

func (r answer) data() toolstest.Object {
	d, _ := r.body["data"].(toolstest.Object)
	return d
}

func (r answer) refusal() toolstest.Object {
	e, _ := r.body["error"].(toolstest.Object)
	return e
}

// wants fails unless the answer is a refusal with the status and these keys.
func (r answer) wants(t *testing.T, what string, status int, want toolstest.Object) {
	t.Helper()
	if r.status != status || r.body["success"] != false {
		t.Errorf("%s: HTTP %d %v, want %d", what, r.status, r.body, status)
		return
	}
	got := toolstest.Object{}
	for key := range want {
		got[key] = r.refusal()[key]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func (a *agents) client(t *testing.T, certificates ...tls.Certificate) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: a.pool, MinVersion: tls.VersionTLS13, Time: a.now, Certificates: certificates,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &append(certificates, tls.Certificate{})[0], nil // also one whose time is over
		}}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// ask sends a message as it is; version is the protocol's header.
func (a *agents) ask(t *testing.T, c *http.Client, version, method, path, body string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, a.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if version != "" {
		r.Header.Set(nodeapi.ProtocolHeader, version)
	}
	response, err := c.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	out := answer{status: response.StatusCode, header: response.Header}
	if len(raw) > 0 && response.Header.Get("Content-Type") == "application/json" {
		if err := json.Unmarshal(raw, &out.body); err != nil {
			t.Fatalf("%s %s: %v in %s", method, path, err, raw)
		}
	}
	return out
}

func (g *agent) get(t *testing.T, path string) answer {
	t.Helper()
	return g.a.ask(t, g.client, nodeapi.ProtocolVersion, http.MethodGet, nodeapi.BasePath+path, "")
}

func (g *agent) post(t *testing.T, path string, body any) answer {
	t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return g.a.ask(t, g.client, nodeapi.ProtocolVersion, http.MethodPost, nodeapi.BasePath+path, string(b))
}

func (g *agent) handshake(t *testing.T, runtime, phase string, more toolstest.Object) answer {
	t.Helper()
	body := toolstest.Object{"runtime": runtime, "phase": phase}
	for k, v := range more {
		body[k] = v
	}
	return g.post(t, "/runtime/handshake", body)
}

// machine makes a node with an instance and a token for it.
func (a *agents) machine(t *testing.T, name string) (i store.Instance, token store.Secret) {
	t.Helper()
	a.Update(t, func(ctx context.Context, tx *store.Tx) error {
		node, err := store.InsertNode(ctx, tx, store.Node{ID: store.NodeID(tx.NewID()), AccountID: a.Account.ID, Name: name, TemplateID: a.template, Enabled: true})
		if err != nil {
			return err
		}
		providers, err := store.Providers(ctx, &tx.View, a.Account.ID)
		if err != nil {
			return err
		}
		if a.provider == "" {
			a.provider = providers[0].ID
		}
		i, err = store.InsertInstance(ctx, tx, store.Instance{ID: store.InstanceID(tx.NewID()), AccountID: a.Account.ID, NodeID: node.ID, Name: name,
			Variety: "local", Status: store.InstanceProvisioning, Architecture: "amd64", NetworkProfile: "lightweight", ProviderID: a.provider, Config: store.JSON[store.Object]{V: store.Object{}}})
		if err != nil {
			return err
		}
		token, err = a.Platform.Fleet.IssueEnrollmentToken(ctx, tx, i)
		return err
	})
	return i, token
}

func signingRequest(t *testing.T) (ed25519.PrivateKey, string) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

func enrolment(token store.Secret, csr string) toolstest.Object {
	return toolstest.Object{"token": token.Reveal(), "csr_pem": csr, "agent_version": "test",
		"machine": toolstest.Object{"hostname": "h", "architecture": "amd64", "os": "linux"}}
}

// enrol makes a machine whose agent has its certificate.
func (a *agents) enrol(t *testing.T, name string) *agent {
	t.Helper()
	i, token := a.machine(t, name)
	g := &agent{a: a, instance: i, client: a.client(t)}
	key, csr := signingRequest(t)
	r := g.post(t, "/enroll", enrolment(token, csr))
	if r.status != http.StatusOK {
		t.Fatalf("enrol %s: HTTP %d %v", name, r.status, r.body)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair([]byte(r.data()["cert_pem"].(string)), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}))
	if err != nil {
		t.Fatal(err)
	}
	g.client = a.client(t, certificate)
	return g
}

func (a *agents) network(t *testing.T, name string) string {
	t.Helper()
	return a.Call(t, "system_sdwan_create_network", toolstest.Object{"name": name})["network"].(toolstest.Object)["id"].(string)
}

func (g *agent) attach(t *testing.T, network string) {
	t.Helper()
	g.a.Call(t, "system_sdwan_attach_peer", toolstest.Object{"network_id": network, "node_instance_id": g.instance.ID})
}

// assign puts a K3s module on the agent's node.
func (g *agent) assign(t *testing.T, module string, target string) {
	t.Helper()
	g.a.Update(t, func(ctx context.Context, tx *store.Tx) error {
		m, err := store.ModuleByName(ctx, &tx.View, g.a.Account.ID, module)
		if err != nil {
			return err
		}
		row := store.Assignment{ID: store.AssignmentID(tx.NewID()), AccountID: g.a.Account.ID, NodeID: g.instance.NodeID, ModuleID: m.ID, Enabled: true}
		if row.Config.V = (store.Object{}); target != "" {
			row.Config.V["target_cluster_id"] = target
		}
		if _, err := store.InsertAssignment(ctx, tx, row); err != nil {
			return err
		}
		return g.a.Platform.Cluster.AssignmentChanged(ctx, tx, g.a.Account.ID, g.instance.NodeID)
	})
}

const bootstrapped = `apiVersion: v1
kind: Config
clusters: [{name: default, cluster: {server: "https://127.0.0.1:6443", certificate-authority-data: Q0E=}}]
users: [{name: default, user: {client-certificate-data: Y2VydA==, client-key-data: a2V5}}]
`

// server makes an agent whose machine is the first server of an active cluster of its name.
func (a *agents) server(t *testing.T, network, name string) (g *agent, clusterID string) {
	t.Helper()
	g = a.enrol(t, name)
	g.attach(t, network)
	g.assign(t, cluster.ModuleServer, "")
	return g, g.activate(t)
}

func (g *agent) activate(t *testing.T) (clusterID string) {
	t.Helper()
	joined := g.handshake(t, "k3s_server", "join_request", nil)
	id, _ := joined.data()["cluster_id"].(string)
	for _, r := range []answer{joined,
		g.handshake(t, "k3s_server", "bootstrap", toolstest.Object{"kubeconfig": bootstrapped, "k8s_version": "v1.36.5+k3s1"}),
		g.handshake(t, "k3s_server", "ready", toolstest.Object{"cluster_id": id, "k8s_version": "v1.36.5+k3s1", "role": "server"}),
		g.report(t, func(r *sdwan.Report) {
			yes := true
			r.K3s = &sdwan.K3sReport{Role: "server", ClusterID: id, Installed: true, NodeReady: &yes, APIReady: &yes, VIPReady: &yes,
				Nodes: []sdwan.K3sNodeReport{{Name: g.instance.Name, Ready: true}}}
		})} {
		if r.status != http.StatusOK {
			t.Fatalf("bring up %s: HTTP %d %v", g.instance.Name, r.status, r.body)
		}
	}
	return id
}

func (g *agent) report(t *testing.T, change func(*sdwan.Report)) answer {
	t.Helper()
	r := sdwan.Report{BootID: "boot", AgentVersion: "test"}
	if change != nil {
		change(&r)
	}
	return g.post(t, "/node/report", r)
}

func TestAgentEnrolsReadsItsDocumentAndReports(t *testing.T) {
	t.Parallel()
	a := newAgents(t)
	i, token := a.machine(t, "m-1")
	stranger := &agent{a: a, client: a.client(t)}
	_, csr := signingRequest(t)
	first := stranger.post(t, "/enroll", enrolment(token, csr))
	if first.status != http.StatusOK || first.data()["instance_id"] != string(i.ID) || first.header.Get(nodeapi.ProtocolHeader) != "1" {
		t.Fatalf("HTTP %d %v", first.status, first.body)
	}
	for _, key := range []string{"node_id", "certificate_id", "cert_pem", "ca_chain_pem", "not_after", "renew_after", "platform_urls"} {
		if first.data()[key] == nil || first.data()[key] == "" {
			t.Errorf("enrolment lacks %s", key)
		}
	}
	if again := stranger.post(t, "/enroll", enrolment(token, csr)); again.data()["certificate_id"] != first.data()["certificate_id"] {
		t.Errorf("the same request again: HTTP %d %v", again.status, again.body)
	}
	_, other := signingRequest(t)
	stranger.post(t, "/enroll", enrolment(token, other)).wants(t, "a used token", http.StatusConflict, toolstest.Object{"code": "conflict"})
	stranger.post(t, "/enroll", enrolment("pne_unknown", other)).wants(t, "an unknown token", http.StatusUnauthorized, toolstest.Object{"code": "", "retryable": false})
	stranger.post(t, "/enroll", toolstest.Object{"token": "x"}).wants(t, "a missing field", http.StatusUnprocessableEntity, toolstest.Object{"code": "invalid_arguments"})
	extra := enrolment(token, other)
	extra["instance_id"] = string(i.ID)
	stranger.post(t, "/enroll", extra).wants(t, "an undeclared field", http.StatusUnprocessableEntity, toolstest.Object{"code": "invalid_arguments"})
	a.ask(t, stranger.client, "1", http.MethodPost, nodeapi.BasePath+"/enroll", "{").wants(t, "no JSON", http.StatusBadRequest, toolstest.Object{"code": "invalid_arguments"})

	g := a.enrol(t, "m-2")
	g.attach(t, a.network(t, "tenant-a"))
	document := g.get(t, "/node/desired?after=0&wait=0")
	if document.status != http.StatusOK || len(document.data()["networks"].([]any)) != 1 {
		t.Fatalf("desired: HTTP %d %v", document.status, document.body)
	}
	revision, _ := json.Marshal(document.data()["revision"])
	if r := g.get(t, "/node/desired?wait=0&after="+string(revision)+"&incarnation="+document.data()["incarnation"].(string)); r.status != http.StatusNoContent {
		t.Errorf("nothing new: HTTP %d %v", r.status, r.body)
	}
	for _, bad := range []string{"after=-1", "wait=61", "since=0"} {
		g.get(t, "/node/desired?"+bad).wants(t, bad, http.StatusUnprocessableEntity, toolstest.Object{"code": "invalid_arguments"})
	}
	r := g.report(t, nil)
	if r.status != http.StatusOK || r.data()["acknowledged"] != true || r.data()["next_report_seconds"] != 30.0 || r.data()["server_time"] == nil {
		t.Errorf("report: HTTP %d %v", r.status, r.body)
	}
	a.View(t, func(ctx context.Context, v *store.View) error {
		i, err := store.InstanceByID(ctx, v, a.Account.ID, g.instance.ID)
		if err == nil && i.Status != store.InstanceRunning {
			t.Errorf("after the first report the instance is %s", i.Status)
		}
		return err
	})
}

func TestCallerThatIsNotKnownIsRefused(t *testing.T) {
	t.Parallel()
	a := newAgents(t)
	g := a.enrol(t, "m-1")
	stranger := &agent{a: a, client: a.client(t)}
	for _, path := range []string{"/node/desired?wait=0", "/runtime/k3s_server/config", "/artifacts/" + strings.Repeat("0", 64)} {
		stranger.get(t, path).wants(t, path, http.StatusUnauthorized, toolstest.Object{"code": ""})
	}
	for _, path := range []string{"/node/report", "/runtime/handshake", "/enroll/refresh"} {
		stranger.post(t, path, toolstest.Object{}).wants(t, path, http.StatusUnauthorized, toolstest.Object{"code": ""})
	}
	for _, version := range []string{"", "2", "01"} {
		a.ask(t, g.client, version, http.MethodGet, nodeapi.BasePath+"/node/desired?wait=0", "").wants(t, "protocol "+version, http.StatusUpgradeRequired, toolstest.Object{})
	}
	a.Update(t, func(ctx context.Context, tx *store.Tx) error {
		return store.EndCertificates(ctx, tx, g.instance.ID, "", store.At(tx.Now()))
	})
	g.get(t, "/node/desired?wait=0").wants(t, "a revoked certificate", http.StatusUnauthorized, toolstest.Object{"code": ""})
	g.report(t, nil).wants(t, "a revoked certificate", http.StatusUnauthorized, toolstest.Object{"code": ""})
}

func TestJoinRequestsAreAnsweredByRole(t *testing.T) {
	t.Parallel()
	a := newAgents(t)
	tenantA, tenantB := a.network(t, "tenant-a"), a.network(t, "tenant-b")
	first := a.enrol(t, "a-1")
	first.attach(t, tenantA)
	first.assign(t, cluster.ModuleServer, "")
	mode := first.handshake(t, "k3s_server", "join_request", nil)
	toolstest.Has(t, toolstest.Object{"mode": "init", "server_url": "", "ca_pem": "", "node_name": "a-1", "token_generation": 1.0}, mode.data())
	if mode.data()["server_token"] == "" || mode.data()["agent_token"] == "" || mode.data()["configuration"] == nil {
		t.Errorf("the first server's material: %v", mode.data())
	}
	worker := a.enrol(t, "w-1")
	worker.attach(t, tenantA)
	worker.handshake(t, "k3s_agent", "join_request", nil).wants(t, "no module", http.StatusForbidden, toolstest.Object{"code": "permission_denied"})
	worker.get(t, "/runtime/k3s_agent/config").wants(t, "no module", http.StatusForbidden, toolstest.Object{"code": "permission_denied"})
	worker.assign(t, cluster.ModuleAgent, "")
	early := worker.handshake(t, "k3s_agent", "join_request", nil)
	early.wants(t, "no ready server", http.StatusServiceUnavailable, toolstest.Object{"code": "unavailable", "retryable": true, "reason": "no_ready_server"})
	if early.header.Get("Retry-After") == "" {
		t.Error("503 without Retry-After")
	}
	id := first.activate(t)
	joined := worker.handshake(t, "k3s_agent", "join_request", toolstest.Object{"target_cluster_id": ""})
	toolstest.Has(t, toolstest.Object{"mode": "join", "cluster_id": id, "server_token": "", "ca_pem": "CA", "node_name": "w-1", "server_url": joined.data()["api_endpoint"]}, joined.data())
	if joined.data()["agent_token"] == "" || joined.data()["agent_configuration"] == nil {
		t.Errorf("the worker's material: %v", joined.data())
	}
	// The worker's agent asks for what is the server's.
	worker.get(t, "/runtime/k3s_server/config").wants(t, "the server's configuration", http.StatusForbidden, toolstest.Object{"code": "permission_denied"})
	worker.handshake(t, "k3s_server", "join_request", nil).wants(t, "the server's tokens", http.StatusForbidden, toolstest.Object{"code": "permission_denied"})
	worker.handshake(t, "k3s_server", "bootstrap", toolstest.Object{"kubeconfig": bootstrapped, "k8s_version": "v1"}).wants(t, "a worker's bootstrap",
		http.StatusForbidden, toolstest.Object{"code": "permission_denied"})
	worker.get(t, "/runtime/containerd/config").wants(t, "another runtime", http.StatusUnprocessableEntity, toolstest.Object{"code": "invalid_arguments"})
	// Several clusters could be meant.
	second, _ := a.server(t, tenantB, "b-1")
	lost := a.enrol(t, "w-2")
	lost.attach(t, tenantB)
	lost.assign(t, cluster.ModuleAgent, "")
	for range 2 {
		r := lost.handshake(t, "k3s_agent", "join_request", nil)
		r.wants(t, "ambiguous", http.StatusConflict, toolstest.Object{"code": "conflict", "class": "AmbiguousClusterError", "retryable": false})
		candidates, _ := r.refusal()["candidates"].([]any)
		if len(candidates) != 2 {
			t.Fatalf("candidates %v", r.refusal())
		}
		toolstest.Has(t, toolstest.Object{"cluster_id": id, "name": "a-1", "status": "active"}, candidates[0].(toolstest.Object))
	}
	if told := a.Signals(t, "system.k3s_ambiguous_cluster_join_refused"); len(told) != 1 || told[0].Severity != "high" {
		t.Errorf("%d signals, want one of severity high", len(told))
	}
	config := lost.get(t, "/runtime/k3s_agent/config").data()
	toolstest.Has(t, toolstest.Object{"runtime": "k3s_agent", "target_cluster_id": "", "reason": "none_set"}, config)
	// The field counts where the assignment names none; it is held against the network.
	lost.handshake(t, "k3s_agent", "join_request", toolstest.Object{"target_cluster_id": id}).wants(t, "off the cluster's network",
		http.StatusUnprocessableEntity, toolstest.Object{"code": "precondition_failed", "class": "NoClusterAvailableError", "reason": "not_on_cluster_network"})
	named := a.enrol(t, "w-3")
	named.attach(t, tenantB)
	named.assign(t, cluster.ModuleAgent, second.get(t, "/runtime/k3s_server/config").data()["cluster_id"].(string))
	named.handshake(t, "k3s_agent", "join_request", toolstest.Object{"target_cluster_id": id}).wants(t, "another target than the assignment's",
		http.StatusUnprocessableEntity, toolstest.Object{"code": "invalid_arguments", "reason": "target_mismatch"})
	toolstest.Has(t, toolstest.Object{"runtime": "k3s_server", "mode": "init", "cluster_id": id, "reason": "", "token_generation": 1.0}, first.get(t, "/runtime/k3s_server/config").data())
}

func TestHandshakeIsHeldAgainstItsPhases(t *testing.T) {
	t.Parallel()
	a := newAgents(t)
	g := a.enrol(t, "a-1")
	for _, tt := range []struct {
		name string
		body toolstest.Object
	}{
		{"an unknown runtime", toolstest.Object{"runtime": "docker", "phase": "ready"}},
		{"an unknown phase", toolstest.Object{"runtime": "k3s_server", "phase": "dance"}},
		{"a worker's bootstrap", toolstest.Object{"runtime": "k3s_agent", "phase": "bootstrap"}},
		{"bootstrap without its kubeconfig", toolstest.Object{"runtime": "k3s_server", "phase": "bootstrap", "k8s_version": "v1"}},
		{"ready without its cluster", toolstest.Object{"runtime": "k3s_server", "phase": "ready", "k8s_version": "v1"}},
		{"a field of another phase", toolstest.Object{"runtime": "k3s_server", "phase": "join_request", "cluster_id": "x"}},
		{"an undeclared field", toolstest.Object{"runtime": "k3s_server", "phase": "join_request", "target": "x"}},
		{"a role that is not the runtime's", toolstest.Object{"runtime": "k3s_agent", "phase": "ready", "cluster_id": "x", "k8s_version": "v1", "role": "server"}},
	} {
		g.post(t, "/runtime/handshake", tt.body).wants(t, tt.name, http.StatusUnprocessableEntity, toolstest.Object{"code": "invalid_arguments"})
	}
	g.handshake(t, "k3s_server", "join_request", nil).wants(t, "no module", http.StatusForbidden, toolstest.Object{"code": "permission_denied"})
	g.assign(t, cluster.ModuleServer, "")
	g.handshake(t, "k3s_server", "join_request", nil).wants(t, "no network", http.StatusUnprocessableEntity,
		toolstest.Object{"code": "precondition_failed", "class": "MissingSdwanPeerError"})
	toolstest.Has(t, toolstest.Object{"mode": "wait", "reason": "missing_sdwan_peer"}, g.get(t, "/runtime/k3s_server/config").data())
	alone := a.enrol(t, "w-1")
	alone.assign(t, cluster.ModuleAgent, "")
	alone.handshake(t, "k3s_agent", "join_request", nil).wants(t, "no cluster", http.StatusUnprocessableEntity,
		toolstest.Object{"code": "precondition_failed", "class": "NoClusterAvailableError", "reason": "no_cluster"})
	stopped := alone.handshake(t, "k3s_agent", "stopped", toolstest.Object{"reason": "failed"})
	toolstest.Has(t, toolstest.Object{"acknowledged": true, "node_id": ""}, stopped.data())
}

func TestLaterPhasesAreAnsweredForTheMembersOwnCluster(t *testing.T) {
	t.Parallel()
	a := newAgents(t)
	first, id := a.server(t, a.network(t, "tenant-a"), "a-1")
	other, _ := a.server(t, a.network(t, "tenant-b"), "b-1")
	again := first.handshake(t, "k3s_server", "bootstrap", toolstest.Object{"kubeconfig": bootstrapped, "k8s_version": "v1.36.5+k3s1"})
	toolstest.Has(t, toolstest.Object{"cluster_id": id, "cluster_status": "active"}, again.data())
	first.handshake(t, "k3s_server", "bootstrap", toolstest.Object{"kubeconfig": "not one", "k8s_version": "v1"}).wants(t, "no kubeconfig",
		http.StatusUnprocessableEntity, toolstest.Object{"code": "invalid_arguments", "reason": "kubeconfig"})
	ready := first.handshake(t, "k3s_server", "ready", toolstest.Object{"cluster_id": id, "k8s_version": "v1.36.5+k3s1"})
	toolstest.Has(t, toolstest.Object{"cluster_id": id, "node_status": "active", "role": "server"}, ready.data())
	body := toolstest.Object{"cluster_id": id, "k8s_version": "v1.36.5+k3s1"}
	other.handshake(t, "k3s_server", "ready", body).wants(t, "another cluster's member", http.StatusConflict, toolstest.Object{"code": "conflict"})
	stopped := first.handshake(t, "k3s_server", "stopped", toolstest.Object{"cluster_id": id, "reason": "failed"})
	toolstest.Has(t, toolstest.Object{"acknowledged": true, "node_id": ready.data()["node_id"]}, stopped.data())
	a.Approve(t, a.Parked(t, "kubernetes_decommission_cluster", toolstest.Object{"cluster_id": id}))
	first.handshake(t, "k3s_server", "ready", body).wants(t, "a decommissioned cluster", http.StatusNotFound,
		toolstest.Object{"code": "not_found", "message": "cluster " + id + " was decommissioned"})
	toolstest.Has(t, toolstest.Object{"server": toolstest.Object{"state": "absent"}}, first.get(t, "/node/desired?after=0&wait=0").data()["k3s"].(toolstest.Object))
}

func TestArtefactIsServedToWhoseDocumentNamesIt(t *testing.T) {
	t.Parallel()
	a := newAgents(t)
	content := []byte("a binary")
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	other := sha256.Sum256([]byte("another"))
	for _, each := range [][]byte{content, []byte("another")} {
		s := sha256.Sum256(each)
		dir := filepath.Join(a.Platform.Fleet.StateDir, "artifacts")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, hex.EncodeToString(s[:])), each, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a.Update(t, func(ctx context.Context, tx *store.Tx) error {
		m, err := store.ModuleByName(ctx, &tx.View, a.Account.ID, cluster.ModuleServer)
		if err != nil {
			return err
		}
		v := store.ModuleVersion{ID: store.ModuleVersionID(tx.NewID()), AccountID: a.Account.ID, ModuleID: m.ID, Version: "v9", PromotionState: "live", MadeBy: "person", EverLive: true}
		v.Artifacts.V = []store.VersionArtifact{{OS: "linux", Arch: "amd64", File: "k3s", SHA256: digest}}
		v.Manifest.V = json.RawMessage("{}")
		if v, err = store.InsertModuleVersion(ctx, tx, v); err != nil {
			return err
		}
		m.CurrentVersionID = v.ID
		_, err = store.UpdateModule(ctx, tx, m)
		return err
	})
	g := a.enrol(t, "a-1")
	g.get(t, "/artifacts/"+digest).wants(t, "before it is named", http.StatusNotFound, toolstest.Object{"code": "not_found"})
	g.attach(t, a.network(t, "tenant-a"))
	g.assign(t, cluster.ModuleServer, "")
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.url+nodeapi.BasePath+"/artifacts/"+digest, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(nodeapi.ProtocolHeader, "1")
	r.Header.Set("Range", "bytes=2-")
	response, err := g.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if part, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusPartialContent || !bytes.Equal(part, content[2:]) {
		t.Errorf("HTTP %d %q, %v", response.StatusCode, part, err)
	}
	g.get(t, "/artifacts/"+hex.EncodeToString(other[:])).wants(t, "what no document names", http.StatusNotFound, toolstest.Object{"code": "not_found"})
	a.enrol(t, "x-1").get(t, "/artifacts/"+digest).wants(t, "another machine's", http.StatusNotFound, toolstest.Object{"code": "not_found"})
	g.get(t, "/artifacts/nonsense").wants(t, "no digest", http.StatusUnprocessableEntity, toolstest.Object{"code": "invalid_arguments"})
}

func TestDeviceBootstrapAnswersByTheTokensState(t *testing.T) {
	t.Parallel()
	a := newAgents(t)
	network := a.network(t, "tenant-a")
	grant := a.Call(t, "system_sdwan_create_access_grant", toolstest.Object{"network_id": network, "user_id": a.Person.ID})["grant"].(toolstest.Object)
	key := func(n byte) string { return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{n}, 32)) }
	path := func(label string, more toolstest.Object) string {
		args := toolstest.Object{"access_grant_id": grant["id"], "label": label}
		for k, v := range more {
			args[k] = v
		}
		url, _, _ := strings.Cut(a.Call(t, "system_sdwan_issue_user_device", args)["bootstrap_url"].(string), "#")
		return strings.TrimPrefix(url, a.url)
	}
	browser := a.client(t)
	redeem := func(path, body string) answer { return a.ask(t, browser, "", http.MethodPost, path, body) }
	own, issued := path("laptop", nil), path("phone", toolstest.Object{"public_key": key(9)})
	if info := a.ask(t, browser, "", http.MethodGet, own, ""); info.status != http.StatusOK {
		t.Errorf("GET: HTTP %d %v", info.status, info.body)
	}
	redeem(own, `{}`).wants(t, "no key", http.StatusUnprocessableEntity, toolstest.Object{"code": "invalid_arguments"})
	redeem(own, `{"private_key": "x"}`).wants(t, "an undeclared field", http.StatusUnprocessableEntity, toolstest.Object{"code": "invalid_arguments"})
	redeem(issued, `{"public_key": "`+key(8)+`"}`).wants(t, "another key than the issued one", http.StatusConflict, toolstest.Object{"code": "conflict"})
	done := redeem(own, `{"public_key": "`+key(1)+`"}`)
	if config, _ := done.data()["config"].(string); done.status != http.StatusOK || !strings.Contains(config, "[Interface]") {
		t.Fatalf("HTTP %d %v", done.status, done.body)
	}
	redeem(own, `{"public_key": "`+key(1)+`"}`).wants(t, "used", http.StatusGone, toolstest.Object{"code": "precondition_failed"})
	redeem(nodeapi.DeviceBootstrapPath+"nonsense", `{}`).wants(t, "bad token", http.StatusUnauthorized, toolstest.Object{"code": ""})
	redeem(nodeapi.DeviceBootstrapPath+strings.Repeat("0", 64), `{}`).wants(t, "unknown token", http.StatusNotFound, toolstest.Object{"code": "not_found"})
	a.Update(t, func(ctx context.Context, tx *store.Tx) error {
		devices, err := store.UserDevicesByNetwork(ctx, &tx.View, a.Account.ID, store.NetworkID(network))
		if err != nil {
			return err
		}
		for _, d := range devices {
			past := store.At(tx.Now())
			d.TokenExpiresAt = &past
			if err := store.UpdateUserDevice(ctx, tx, d); err != nil {
				return err
			}
		}
		return nil
	})
	redeem(issued, `{}`).wants(t, "expired", http.StatusUnauthorized, toolstest.Object{"code": ""})
}

func TestRefusedReportIsRefusedAlone(t *testing.T) {
	t.Parallel()
	a := newAgents(t)
	network := a.network(t, "tenant-a")
	g := a.enrol(t, "m-1")
	g.report(t, func(r *sdwan.Report) {
		r.Keys = []sdwan.KeyReport{{NetworkID: network, PublicKey: base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{1}, 32)), Stage: "current"}}
	}).wants(t, "a key of a network that the instance is no peer of", http.StatusUnprocessableEntity, toolstest.Object{"code": "invalid_arguments"})
	// One batch: the refused one in the middle, the store shared.
	r := newReports(a.Platform)
	var batch []pendingReport
	for n, name := range []string{"b-1", "b-2", "b-3"} {
		i, _ := a.machine(t, name)
		p := pendingReport{instance: i.ID, report: sdwan.Report{BootID: "boot", AgentVersion: name}, done: make(chan error, 1)}
		if n == 1 {
			p.report.Keys = []sdwan.KeyReport{{NetworkID: network, PublicKey: "x", Stage: "current"}}
		}
		batch = append(batch, p)
	}
	r.write(t.Context(), batch)
	for n, p := range batch {
		err := <-p.done
		if refused := err != nil; refused != (n == 1) {
			t.Errorf("report %d: %v", n, err)
		}
		a.View(t, func(ctx context.Context, v *store.View) error {
			_, err := store.InstanceReportOf(ctx, v, p.instance)
			if kept := err == nil; kept != (n != 1) {
				t.Errorf("report %d: kept %t (%v)", n, kept, err)
			}
			return nil
		})
	}
}

func TestBadAgentsReportDoesNotBlockItsNetwork(t *testing.T) {
	t.Parallel()
	a := newAgents(t)
	network := a.network(t, "tenant-a")
	good, bad := a.enrol(t, "m-1"), a.enrol(t, "m-2")
	good.attach(t, network)
	bad.attach(t, network)
	key := sdwan.KeyReport{NetworkID: network, PublicKey: base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{1}, 32)), Stage: "current"}
	for _, g := range []*agent{good, bad} {
		if r := g.report(t, func(r *sdwan.Report) { r.Keys = []sdwan.KeyReport{key} }); r.status != http.StatusOK {
			t.Fatalf("HTTP %d %v", r.status, r.body)
		}
	}
	if told := a.Signals(t, "system.host_finding"); len(told) != 1 || told[0].Payload["finding"] != "duplicate_identity" {
		t.Errorf("%d signals of the duplicate key", len(told))
	}
	late := a.enrol(t, "m-3")
	late.attach(t, network) // publishes the whole network
	if r := late.get(t, "/node/desired?after=0&wait=0"); r.status != http.StatusOK || len(r.data()["networks"].([]any)) != 1 {
		t.Errorf("the network does not compile any more: HTTP %d %v", r.status, r.body)
	}
}
