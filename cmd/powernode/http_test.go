package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"powernode/platform/governance"
	"powernode/tools/mcp"
	"powernode/tools/toolstest"
)

// operatorSite is a platform served over HTTP as serve does it.
type operatorSite struct {
	*toolstest.Env
	url    string
	client *http.Client
	stop   func() error // once
}

// serveHTTP serves a platform at a record's address until the test ends.
func serveHTTP(t *testing.T, e *toolstest.Env, r httpRecord) *operatorSite {
	t.Helper()
	face := &mcp.Face{Platform: e.Platform, Version: "test", Log: zerolog.Nop()}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	o, err := newOperatorHTTP(ctx, r, e.Platform, face, zerolog.Nop())
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- o.serve(ctx) }()
	s := &operatorSite{Env: e, url: o.url, client: &http.Client{Transport: &http.Transport{ExpectContinueTimeout: time.Minute}}}
	s.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// post sends a body with a token; empty: none.
func (s *operatorSite) post(t *testing.T, path, token, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close() // it was read
	raw, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(raw)
}

const (
	whoamiPath = "/api/v1/verbs/platform_whoami"
	mcpWhoami  = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"platform_whoami","arguments":{}}}`
	loopback   = "127.0.0.1:0"
)

func TestTokenOpensBothFaces(t *testing.T) {
	t.Parallel()
	e := toolstest.New(t)
	s := serveHTTP(t, e, httpRecord{Address: netip.MustParseAddrPort(loopback)})
	agent, _ := e.Token(t, "", governance.TokenStatement{Role: governance.RoleAgent})
	viewer, _ := e.Token(t, e.Person.Email, governance.TokenStatement{Role: governance.RoleViewer})
	for token, kind := range map[string]string{agent: `"kind":"agent"`, viewer: `"role":"viewer"`} {
		if code, body := s.post(t, whoamiPath, token, `{}`); code != http.StatusOK || !strings.Contains(body, kind) {
			t.Errorf("REST: %d %s, want %s", code, body, kind)
		}
		if code, body := s.post(t, "/mcp", token, mcpWhoami); code != http.StatusOK || !strings.Contains(body, kind) {
			t.Errorf("MCP: %d %s, want %s", code, body, kind)
		}
	}
	if code, body := s.post(t, "/api/v1/verbs/system_sdwan_create_network", viewer, `{"name": "a"}`); code != http.StatusForbidden {
		t.Errorf("a viewer writes: %d %s, want 403", code, body)
	}
	if code, body := s.post(t, "/api/v1/verbs/system_sdwan_create_network", agent, `{"name": "a"}`); code != http.StatusOK {
		t.Errorf("an assistant writes: %d %s, want 200", code, body)
	}
	for _, token := range []string{"", "nobody", agent + "x", governance.NewSecret()} {
		for path, body := range map[string]string{whoamiPath: `{}`, "/mcp": mcpWhoami} {
			if code, answer := s.post(t, path, token, body); code != http.StatusUnauthorized {
				t.Errorf("%s with %q: %d %s, want 401", path, token, code, answer)
			}
		}
	}
}

// selfSigned writes a certificate of the test's own authority for 127.0.0.1, and answers its files and the pool.
func selfSigned(t *testing.T, a *agents) (r httpRecord, pool *x509.CertPool) {
	t.Helper()
	pair, err := a.Platform.Fleet.Authority.ServerCertificate([]netip.Addr{netip.MustParseAddr("127.0.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	var chain []byte
	for _, der := range pair.Certificate {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r = httpRecord{Address: netip.MustParseAddrPort(loopback), Cert: filepath.Join(dir, "crt"), Key: filepath.Join(dir, "key")}
	err = errors.Join(os.WriteFile(r.Cert, chain, 0o600), os.WriteFile(r.Key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return r, a.Platform.Fleet.Authority.Pool()
}

func TestAgentsCertificateGetsNoVerb(t *testing.T) {
	t.Parallel()
	a := newAgents(t)
	machine := a.enrol(t, "a-1")
	r, pool := selfSigned(t, a)
	s := serveHTTP(t, a.Env, r)
	certificates := machine.client.Transport.(*http.Transport).TLSClientConfig.Certificates
	if len(certificates) != 1 {
		t.Fatalf("the agent has %d certificates", len(certificates))
	}
	s.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificates[0], nil }, Certificates: certificates}}}
	for path, body := range map[string]string{whoamiPath: `{}`, "/mcp": mcpWhoami, "/api/v1/verbs/system_sdwan_create_network": `{"name": "a"}`} {
		if code, answer := s.post(t, path, "", body); code != http.StatusUnauthorized {
			t.Errorf("%s with an agent's certificate: %d %s, want 401", path, code, answer)
		}
	}
	token, _ := a.Token(t, "", governance.TokenStatement{Role: governance.RoleAgent})
	if code, answer := s.post(t, whoamiPath, token, `{}`); code != http.StatusOK {
		t.Errorf("with a token beside it: %d %s, want 200", code, answer)
	}
	// And the agents' API knows no verb, with certificate and token.
	if got := machine.a.ask(t, machine.client, "", http.MethodPost, whoamiPath, `{}`); got.status != http.StatusNotFound {
		t.Errorf("a verb at the agents' API: %d %v, want 404", got.status, got.body)
	}
}

func TestRenewedCertificateIsTaken(t *testing.T) {
	t.Parallel()
	a := newAgents(t)
	r, _ := selfSigned(t, a)
	c := &certificates{cert: r.Cert, key: r.Key, log: zerolog.Nop()}
	if err := c.load(); err != nil {
		t.Fatal(err)
	}
	before := c.latest()
	renewed, _ := selfSigned(t, a)
	for from, to := range map[string]string{renewed.Key: r.Key, renewed.Cert: r.Cert} {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	after := c.latest()
	if cmp.Equal(before.Leaf.Raw, after.Leaf.Raw) {
		t.Error("the certificate is the old one")
	}
	if err := os.WriteFile(r.Cert, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := c.latest(); got == nil || !cmp.Equal(got.Leaf.Raw, after.Leaf.Raw) {
		t.Error("a broken file takes the good certificate away")
	}
	if err := os.Chmod(r.Key, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := (&certificates{cert: r.Cert, key: r.Key, log: zerolog.Nop()}).load(); err == nil || !strings.Contains(err.Error(), "everybody may use it") {
		t.Errorf("a key that everybody may read: %v", err)
	}
}

// oneConn is a listener with one connection.
type oneConn struct {
	net.Conn
	once, end chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case l.once <- struct{}{}:
		return l.Conn, nil
	case <-l.end:
		return nil, net.ErrClosed
	}
}

func (l *oneConn) Close() error   { close(l.end); return nil }
func (l *oneConn) Addr() net.Addr { return l.LocalAddr() }

// A stranger's request that is refused unread holds its connection no longer than others: its body is not waited for.
func TestBodyThatNeverArrivesHoldsUpNoConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		l := &oneConn{Conn: ours, once: make(chan struct{}, 1), end: make(chan struct{})}
		server := operatorServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }), zerolog.Nop())
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(l) }()
		began := time.Now()
		if _, err := io.WriteString(theirs, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, theirs); err != nil { // until the server ends it
			t.Error(err)
		}
		if took := time.Since(began); took > 2*httpWait {
			t.Errorf("it took %s", took)
		}
		if err := errors.Join(server.Close(), theirs.Close()); err != nil {
			t.Error(err)
		}
		<-ended
	})
}

func TestCallInFlightIsAnsweredBeforeTheEnd(t *testing.T) {
	t.Parallel()
	e := toolstest.New(t)
	s := serveHTTP(t, e, httpRecord{Address: netip.MustParseAddrPort(loopback)})
	token, _ := e.Token(t, "", governance.TokenStatement{Role: governance.RoleAgent})
	in, body := io.Pipe()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/api/v1/verbs/system_sdwan_create_network", in)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Expect", "100-continue") // the server asks for the body once the call is under way
	ended := make(chan error, 1)
	go func() {
		_, err := io.WriteString(body, `{"name": `) // returns when the server reads
		go func() { ended <- s.stop() }()
		for err == nil && t.Context().Err() == nil { // until nobody is let in any more
			conn, refused := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
			if refused != nil {
				break
			}
			err = conn.Close()
		}
		_, rest := io.WriteString(body, `"last"}`)
		if err := errors.Join(err, rest, body.Close()); err != nil {
			t.Error(err)
		}
	}()
	answer, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(answer.Body)
	if err := errors.Join(err, answer.Body.Close()); err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(raw), `"last"`) {
		t.Errorf("%d %s, %v", answer.StatusCode, raw, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAddressIsRefusedOrRecorded(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		choice httpChoice
		want   string // of the address; empty: refused
	}{
		{"loopback", httpChoice{address: "127.0.0.1:8470"}, "127.0.0.1:8470"},
		{"loopback of IPv6", httpChoice{address: "[::1]:0"}, "[::1]:0"},
		{"localhost", httpChoice{address: "localhost:80"}, "127.0.0.1:80"},
		{"another address with TLS", httpChoice{"192.0.2.7:443", "c", "k"}, "192.0.2.7:443"},
		{"every address with TLS", httpChoice{"[::]:443", "c", "k"}, "[::]:443"},
		{"another address", httpChoice{address: "192.0.2.7:80"}, ""},
		{"every address", httpChoice{address: "0.0.0.0:80"}, ""},
		{"a port alone", httpChoice{address: ":80"}, ""},
		{"a name", httpChoice{address: "powernode.example:80"}, ""},
		{"no port", httpChoice{address: "127.0.0.1"}, ""},
		{"a certificate without its key", httpChoice{"127.0.0.1:1", "c", ""}, ""},
		{"a key without its certificate", httpChoice{"127.0.0.1:1", "", "k"}, ""},
	} {
		r, err := tt.choice.record()
		switch {
		case tt.want == "":
			if exitOf(err) != exitUsage {
				t.Errorf("%s: %+v, %v, want it refused", tt.name, r, err)
			}
		case err != nil || r.Address.String() != tt.want:
			t.Errorf("%s: %+v, %v, want %s", tt.name, r, err, tt.want)
		case tt.choice.cert != "" && !filepath.IsAbs(r.Cert):
			t.Errorf("%s: the certificate's path is %s", tt.name, r.Cert)
		}
	}
	path := filepath.Join(t.TempDir(), "http.json")
	want := httpRecord{Address: netip.MustParseAddrPort("127.0.0.1:8470")}
	if err := writeHTTPRecord(path, want); err != nil {
		t.Fatal(err)
	}
	if got, ok, err := recordedHTTP(path); err != nil || !ok || got != want {
		t.Errorf("recorded: %+v, %t, %v", got, ok, err)
	}
	for _, edited := range []string{`{"address":"0.0.0.0:80"}`, `{"address":"127.0.0.1:80","tls":false}`, `{`} {
		if err := os.WriteFile(path, []byte(edited), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, ok, err := recordedHTTP(path); err == nil {
			t.Errorf("%s was taken as %+v, %t", edited, got, ok)
		}
	}
	if raw, err := json.Marshal(want); err != nil || string(raw) != `{"address":"127.0.0.1:8470"}` {
		t.Errorf("the record is %s, %v", raw, err)
	}
}

func TestTokenOverTheSocketIsNeverTheAgentsInstead(t *testing.T) {
	t.Parallel()
	e := toolstest.New(t)
	c := newControl(e.Platform, stateDir(t.TempDir()), e.Account.ID, zerolog.Nop())
	server := httptest.NewServer(c.routes(t.Context()))
	t.Cleanup(server.Close)
	viewer, _ := e.Token(t, e.Person.Email, governance.TokenStatement{Role: governance.RoleViewer})
	for _, tt := range []struct {
		name, want string
		tokens     []string
	}{
		{"no token", `"role":"agent"`, nil},
		{"a viewer's", `"role":"viewer"`, []string{viewer}},
		{"an unknown one", `"code":"permission_denied"`, []string{"pn_nobody"}},
		{"an empty one", `"code":"permission_denied"`, []string{""}},
		{"two", `"code":"permission_denied"`, []string{viewer, viewer}},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/v1/verbs/platform_whoami", strings.NewReader(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header[tokenHeader] = tt.tokens
		answer, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(answer.Body)
		if err := errors.Join(err, answer.Body.Close()); err != nil || !strings.Contains(string(raw), tt.want) {
			t.Errorf("%s: %s, %v, want %s", tt.name, raw, err, tt.want)
		}
	}
}
