package nodeapi_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"powernode/nodeapi"
	"powernode/nodeapi/nodeapitest"
	"powernode/sdwan"
)

// enrolled answers a client with a certificate of the platform.
func enrolled(t *testing.T, p *nodeapitest.Platform) *nodeapi.Client {
	t.Helper()
	pair, err := pairOf(t, p)
	if err != nil {
		t.Fatal(err)
	}
	return newClient(t, p, pair)
}

// pairOf enrols and answers the certificate with its key.
func pairOf(t *testing.T, p *nodeapitest.Platform) (*tls.Certificate, error) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, err
	}
	plain := newClient(t, p, nil)
	ans, err := plain.Enroll(t.Context(), nodeapi.EnrollRequest{Token: p.Token, AgentVersion: "1",
		CSRPEM:  string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr})),
		Machine: nodeapi.Machine{Hostname: "h", Architecture: "amd64", OS: "linux"}})
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair([]byte(ans.CertPEM), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	return &pair, err
}

func newClient(t *testing.T, p *nodeapitest.Platform, pair *tls.Certificate) *nodeapi.Client {
	t.Helper()
	o := nodeapi.ClientOptions{URLs: []string{p.URL}, CAPEM: p.CAPEM}
	if pair != nil {
		o.Certificate = func() (*tls.Certificate, error) { return pair, nil }
	}
	c, err := nodeapi.NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdle)
	return c
}

func apiError(t *testing.T, err error) *nodeapi.Error {
	t.Helper()
	var e *nodeapi.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want an error of the agent API", err)
	}
	return e
}

// raw posts bytes as they are and answers status and body.
func raw(t *testing.T, p *nodeapitest.Platform, method, path, body string, header http.Header) (int, string) {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(p.CAPEM))
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), method, p.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	res, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

func TestServerRefusesWhatTheProtocolDoesNotHave(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	one := http.Header{nodeapi.ProtocolHeader: {"1"}}
	enroll := nodeapi.BasePath + "/enroll"
	for _, tt := range []struct {
		name, method, path, body string
		header                   http.Header
		status                   int
		says                     string
	}{
		{"a version that we don't speak", "POST", enroll, `{}`, http.Header{nodeapi.ProtocolHeader: {"2"}}, 426, `not \"2\"`},
		{"no version", "POST", enroll, `{}`, http.Header{}, 426, "Powernode-Protocol"},
		{"no JSON", "POST", enroll, `{`, one, 400, "no JSON"},
		{"nothing", "POST", enroll, ``, one, 400, "no JSON"},
		{"a second value", "POST", enroll, `{"token":"a"} {}`, one, 400, "after the JSON value"},
		{"too large", "POST", enroll, `{"token":"` + strings.Repeat("x", 70<<10) + `"}`, one, 400, "too large"},
		{"an undeclared key", "POST", enroll, `{"tokem":"a"}`, one, 422, "/tokem: undeclared key"},
		{"a key in another case", "POST", enroll, `{"Token":"a"}`, one, 422, "/Token: undeclared key"},
		{"a doubled key", "POST", enroll, `{"token":"a","token":"b"}`, one, 422, "/token: key given twice"},
		{"an undeclared key inside", "POST", enroll, `{"machine":{"host":"a"}}`, one, 422, "/machine/host: undeclared key"},
		{"a wrong type", "POST", enroll, `{"token":1}`, one, 422, "/token: is number"},
		{"a missing field", "POST", enroll, `{"token":"a"}`, one, 422, "/csr_pem: is missing"},
		{"no certificate", "GET", nodeapi.BasePath + "/node/desired", "", one, 401, "enrol first"},
		{"a route that isn't", "GET", nodeapi.BasePath + "/nothing", "", one, 404, "no such route"},
		{"a method that isn't", "GET", enroll, "", one, 404, "no such route"},
		{"a wrong token", "POST", enroll, `{"token":"wrong","csr_pem":"c","agent_version":"1","machine":{"hostname":"h","architecture":"a","os":"o"}}`, one, 401, "token unknown"},
		{"an unknown device token", "POST", nodeapi.DeviceBootstrapPath + "abc", `{}`, http.Header{}, 404, "unknown token"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			status, body := raw(t, p, tt.method, tt.path, tt.body, tt.header)
			if status != tt.status || !strings.Contains(body, tt.says) || !strings.HasPrefix(body, `{"success":false,"error":{`) {
				t.Errorf("HTTP %d %s, want %d with %q", status, body, tt.status, tt.says)
			}
		})
	}
}

func TestDeviceBootstrapTellsWhatToDoWithoutAHeader(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	status, body := raw(t, p, "GET", nodeapi.DeviceBootstrapPath+"abc", "", http.Header{})
	if status != 200 || body != `{"success":true,"data":{"instructions":"run: powernode-agent device join URL"}}` {
		t.Errorf("HTTP %d %s", status, body)
	}
}

func TestHandshakeRefusesFieldsOfOtherPhases(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	c := enrolled(t, p)
	for _, tt := range []struct {
		name string
		in   nodeapi.HandshakeRequest
		says string
	}{
		{"unknown runtime comes first", nodeapi.HandshakeRequest{Runtime: "docker", Phase: "nothing"}, "/runtime: must be one of"},
		{"unknown phase", nodeapi.HandshakeRequest{Runtime: "k3s_server", Phase: "nothing"}, "/phase: must be one of"},
		{"an agent has no bootstrap", nodeapi.HandshakeRequest{Runtime: "k3s_agent", Phase: "bootstrap"}, "/phase: must be one of"},
		{"bootstrap without kubeconfig", nodeapi.HandshakeRequest{Runtime: "k3s_server", Phase: "bootstrap", K8sVersion: "v1"}, "/kubeconfig: is missing"},
		{"ready without cluster", nodeapi.HandshakeRequest{Runtime: "k3s_agent", Phase: "ready", K8sVersion: "v1"}, "/cluster_id: is missing"},
		{"ready with a target", nodeapi.HandshakeRequest{Runtime: "k3s_agent", Phase: "ready", K8sVersion: "v1", ClusterID: "c", TargetClusterID: "d"}, "/target_cluster_id: is not taken in the phase ready"},
		{"unknown reason", nodeapi.HandshakeRequest{Runtime: "k3s_agent", Phase: "stopped", Reason: "bored"}, "/reason: must be one of"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := c.Handshake(t.Context(), tt.in)
			if e := apiError(t, err); e.HTTPStatus != 422 || !strings.Contains(e.Message, tt.says) {
				t.Errorf("HTTP %d %s, want 422 with %q", e.HTTPStatus, e.Message, tt.says)
			}
		})
	}
	if got := len(p.Handshakes()); got != 0 {
		t.Errorf("%d refused handshakes reached the platform", got)
	}
}

func TestErrorsKeepClassCandidatesAndRetryAfter(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	want := nodeapi.Error{HTTPStatus: 409, Code: "conflict", Class: "AmbiguousClusterError", Message: "which?", Reason: "none_set",
		Candidates: []nodeapi.Candidate{{ClusterID: "1", Name: "a", Status: "active"}, {ClusterID: "2", Name: "b", Status: "active"}}}
	later := nodeapi.Error{HTTPStatus: 503, Code: "unavailable", Message: "no ready server", Retryable: true, RetryAfter: 7}
	p.OnHandshake = func(in nodeapi.HandshakeRequest) (nodeapi.HandshakeAnswer, error) {
		if in.TargetClusterID == "later" {
			return nodeapi.HandshakeAnswer{}, &later
		}
		return nodeapi.HandshakeAnswer{}, &want
	}
	c := enrolled(t, p)
	_, err := c.Handshake(t.Context(), nodeapi.HandshakeRequest{Runtime: "k3s_agent", Phase: "join_request"})
	if diff := cmp.Diff(&want, apiError(t, err)); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
	_, err = c.Handshake(t.Context(), nodeapi.HandshakeRequest{Runtime: "k3s_agent", Phase: "join_request", TargetClusterID: "later"})
	if diff := cmp.Diff(&later, apiError(t, err)); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
}

func TestDesiredWaitsForANewerRevisionOrAnotherStore(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	c := enrolled(t, p)
	p.SetDocument(sdwan.Document{Revision: 5})
	ask := func(after int64, incarnation string, wait time.Duration) *sdwan.Document {
		t.Helper()
		doc, err := c.Desired(t.Context(), after, incarnation, wait)
		if err != nil {
			t.Fatal(err)
		}
		return doc
	}
	if doc := ask(5, nodeapitest.Incarnation, 0); doc != nil {
		t.Errorf("nothing is newer, got revision %d", doc.Revision)
	}
	if doc := ask(0, "", 0); doc == nil || doc.Revision != 5 {
		t.Errorf("full sync answered %v", doc)
	}
	if doc := ask(9, "another", 0); doc == nil || doc.Revision != 5 {
		t.Errorf("another store's revision was believed: %v", doc)
	}
	got := make(chan *sdwan.Document, 1)
	go func() {
		doc, err := c.Desired(context.WithoutCancel(t.Context()), 5, nodeapitest.Incarnation, 30*time.Second)
		if err != nil {
			t.Error(err)
		}
		got <- doc
	}()
	p.SetDocument(sdwan.Document{Revision: 6})
	if doc := <-got; doc == nil || doc.Revision != 6 {
		t.Errorf("the wait ended with %v", doc)
	}
}

func TestDesiredRefusesUndeclaredAndWrongParameters(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	c := enrolled(t, p)
	_, err := c.Desired(t.Context(), -1, "", 0)
	if e := apiError(t, err); e.HTTPStatus != 422 || !strings.Contains(e.Message, "/after") {
		t.Errorf("got %d %s", e.HTTPStatus, e.Message)
	}
	_, err = c.Desired(t.Context(), 0, "", 61*time.Second)
	if e := apiError(t, err); e.HTTPStatus != 422 || !strings.Contains(e.Message, "/wait: must be 0..60") {
		t.Errorf("got %d %s", e.HTTPStatus, e.Message)
	}
}

func TestArtifactIsServedInRanges(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	c := enrolled(t, p)
	data := bytes.Repeat([]byte("0123456789"), 10000)
	sum := p.AddArtifact(data)
	for _, offset := range []int64{0, 1, 99999} {
		var got bytes.Buffer
		if _, err := c.Artifact(t.Context(), sum, offset, &got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), data[offset:]) {
			t.Errorf("from byte %d: %d bytes that differ", offset, got.Len())
		}
	}
	_, err := c.Artifact(t.Context(), strings.Repeat("0", 64), 0, io.Discard)
	if e := apiError(t, err); e.HTTPStatus != 404 {
		t.Errorf("an artefact of nobody: HTTP %d", e.HTTPStatus)
	}
	_, err = c.Artifact(t.Context(), "x", 0, io.Discard)
	if e := apiError(t, err); e.HTTPStatus != 422 {
		t.Errorf("no SHA-256: HTTP %d", e.HTTPStatus)
	}
}

func TestRevokedCertificateIsRefused(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	c := enrolled(t, p)
	if _, err := c.Report(t.Context(), sdwan.Report{}); err != nil {
		t.Fatal(err)
	}
	p.Revoke()
	_, err := c.Report(t.Context(), sdwan.Report{})
	if e := apiError(t, err); e.HTTPStatus != 401 {
		t.Errorf("HTTP %d, want 401", e.HTTPStatus)
	}
}

func TestClientTrustsThePinnedCAAlone(t *testing.T) {
	t.Parallel()
	p, other := nodeapitest.New(t), nodeapitest.New(t)
	c, err := nodeapi.NewClient(nodeapi.ClientOptions{URLs: []string{p.URL}, CAPEM: other.CAPEM})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Enroll(t.Context(), nodeapi.EnrollRequest{Token: p.Token}); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a foreign CA's platform was taken: %v", err)
	}
}

func TestClientTurnsToTheNextAddress(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	c, err := nodeapi.NewClient(nodeapi.ClientOptions{URLs: []string{"https://127.0.0.1:1", p.URL}, CAPEM: p.CAPEM})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Enroll(t.Context(), nodeapi.EnrollRequest{}); err == nil {
		t.Fatal("nobody listens there")
	}
	_, err = c.Enroll(t.Context(), nodeapi.EnrollRequest{})
	if e := apiError(t, err); e.HTTPStatus != 422 {
		t.Errorf("HTTP %d, want the second address's 422", e.HTTPStatus)
	}
}

func TestRedeemDeviceSendsNothingToAnotherCA(t *testing.T) {
	t.Parallel()
	p, other := nodeapitest.New(t), nodeapitest.New(t)
	asked := 0
	p.OnDevice = func(token string, in nodeapi.DeviceBootstrapRequest) (nodeapi.DeviceBootstrapAnswer, error) {
		asked++
		return nodeapi.DeviceBootstrapAnswer{Config: token + " " + in.PublicKey, Filename: "f"}, nil
	}
	url := p.URL + nodeapi.DeviceBootstrapPath + "secret"
	for _, bad := range []string{url, url + "#" + other.CASHA256(), url + "#xyz", "http" + strings.TrimPrefix(url, "https") + "#" + p.CASHA256(), p.URL + "/elsewhere#" + p.CASHA256()} {
		_, err := nodeapi.RedeemDevice(t.Context(), bad, nodeapi.DeviceBootstrapRequest{PublicKey: "k"})
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if asked != 0 {
		t.Fatalf("%d redemptions reached the platform", asked)
	}
	got, err := nodeapi.RedeemDevice(t.Context(), url+"#"+p.CASHA256(), nodeapi.DeviceBootstrapRequest{PublicKey: "k"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(nodeapi.DeviceBootstrapAnswer{Config: "secret k", Filename: "f"}, got); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}

// Who signed a certificate is settled before a byte of a call is read; whether it is in its time is the platform's to say.
func TestCertificateIsVerifiedWithTheHandshakeButForItsTime(t *testing.T) {
	t.Parallel()
	p, other := nodeapitest.New(t), nodeapitest.New(t)
	foreign, err := pairOf(t, other)
	if err != nil {
		t.Fatal(err)
	}
	var e *nodeapi.Error
	if _, err := newClient(t, p, foreign).Report(t.Context(), sdwan.Report{}); err == nil || errors.As(err, &e) {
		t.Errorf("another CA's certificate: %v, want a failed handshake", err)
	}
	p.SetLifetime(-time.Second)
	expired, err := pairOf(t, p)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newClient(t, p, expired).Report(t.Context(), sdwan.Report{}); err != nil { // the stand-in looks at no time
		t.Errorf("a certificate whose time is over does not come as far as the platform: %v", err)
	}
	// A server's certificate is of the same CA, and no client's.
	server := p.ServerCertificate()
	if _, err := newClient(t, p, &server).Report(t.Context(), sdwan.Report{}); err == nil || errors.As(err, &e) {
		t.Errorf("a server's certificate: %v, want a failed handshake", err)
	}
}

// A clock that was set back after the CA was made gives certificates that begin before it.
func TestSignerIsKnownWhereItsCertificateIsTheYounger(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	p.SetBegin(-2 * time.Hour) // before the CA's
	p.SetLifetime(time.Hour)
	early, err := pairOf(t, p)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newClient(t, p, early).Report(t.Context(), sdwan.Report{}); err != nil {
		t.Errorf("a certificate of the CA's own is not verified: %v", err)
	}
}
