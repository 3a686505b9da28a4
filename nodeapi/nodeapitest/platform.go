package nodeapitest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"powernode/nodeapi"
	"powernode/sdwan"
)

// Incarnation is that of every document that SetDocument gets without one.
const Incarnation = "incarnation-1"

// Platform is a nodeapi.Backend and the server in front of it.
type Platform struct {
	URL        string
	CAPEM      string
	InstanceID string
	Token      string
	// OnHandshake answers handshakes; nil refuses them.
	OnHandshake func(nodeapi.HandshakeRequest) (nodeapi.HandshakeAnswer, error)
	// OnDevice answers device bootstraps; nil refuses them.
	OnDevice func(token string, in nodeapi.DeviceBootstrapRequest) (nodeapi.DeviceBootstrapAnswer, error)

	ca    *x509.Certificate
	caKey *ecdsa.PrivateKey
	srv   *httptest.Server

	mu        sync.Mutex
	lifetime  time.Duration // of the certificates that it issues
	begin     time.Duration // when they begin, from now
	serial    int64
	enrolled  string                           // CSR that used the token up
	renewed   map[string]nodeapi.RefreshAnswer // by CSR
	renewals  int                              // questions for one
	losing    bool                             // renewals are granted, and their answers lost
	due       time.Duration                    // when a certificate is to be renewed; 0 is after two thirds of its life
	revoked   map[string]bool
	doc       *sdwan.Document
	docErr    error
	failed    int // questions that docErr was the answer to
	newer     chan struct{}
	reports   []sdwan.Report
	reported  chan struct{}
	handshake []nodeapi.HandshakeRequest
	artifacts map[string][]byte
}

// New starts a platform that ends with the test, on the loopback address.
func New(t testing.TB) *Platform {
	t.Helper()
	return NewAt(t, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
}

// NewAt starts one on an address that machines of a test reach.
func NewAt(t testing.TB, at netip.Addr) *Platform {
	t.Helper()
	p := &Platform{InstanceID: "instance-1", Token: "enrol-me", lifetime: 90 * 24 * time.Hour, begin: -time.Minute, serial: 1,
		revoked: map[string]bool{}, renewed: map[string]nodeapi.RefreshAnswer{}, newer: make(chan struct{}), reported: make(chan struct{}), artifacts: map[string][]byte{}}
	if err := p.makeCA(); err != nil {
		t.Fatal(err)
	}
	p.srv = httptest.NewUnstartedServer(nodeapi.NewServer(p, zerolog.New(zerolog.NewTestWriter(t))))
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", netip.AddrPortFrom(at, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	_ = p.srv.Listener.Close() // httptest's own, on the loopback address
	p.srv.Listener = listener
	if err := p.startTLS(at); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	return p
}

func (p *Platform) close() {
	p.srv.CloseClientConnections()
	p.srv.Close()
}

// DropConnections cuts every connection, as a restarted platform would.
func (p *Platform) DropConnections() { p.srv.CloseClientConnections() }

// CASHA256 is the hash that bootstrap URLs carry.
func (p *Platform) CASHA256() string {
	sum := sha256.Sum256(p.ca.Raw)
	return hex.EncodeToString(sum[:])
}

// ServerCertificate is what the platform presents, with its key.
func (p *Platform) ServerCertificate() tls.Certificate { return p.srv.TLS.Certificates[0] }

// Enrollment is what a machine of this platform is handed.
func (p *Platform) Enrollment() nodeapi.Enrollment {
	return nodeapi.Enrollment{InstanceID: p.InstanceID, Token: p.Token, PlatformURLs: []string{p.URL}, CAPEM: p.CAPEM}
}

func (p *Platform) makeCA() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return err
	}
	if p.ca, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	p.caKey = key
	p.CAPEM = encodeCert(der)
	return nil
}

func encodeCert(der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func (p *Platform) startTLS(at netip.Addr) error {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	der, err := p.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "platform"}, IPAddresses: []net.IP{at.AsSlice()},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, key.Public(), time.Hour)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AddCert(p.ca)
	p.srv.TLS = nodeapi.ServerTLS(tls.Certificate{Certificate: [][]byte{der, p.ca.Raw}, PrivateKey: key}, pool)
	p.srv.StartTLS()
	p.URL = p.srv.URL
	return nil
}

func (p *Platform) sign(tmpl *x509.Certificate, pub any, lifetime time.Duration) ([]byte, error) {
	p.serial++
	tmpl.SerialNumber = big.NewInt(p.serial)
	tmpl.NotBefore, tmpl.NotAfter = time.Now().Add(p.begin), time.Now().Add(lifetime)
	tmpl.KeyUsage = x509.KeyUsageDigitalSignature
	return x509.CreateCertificate(rand.Reader, tmpl, p.ca, pub, p.caKey)
}

func (p *Platform) issue(csrPEM string) (nodeapi.RefreshAnswer, error) {
	block, _ := pem.Decode([]byte(csrPEM))
	if block == nil {
		return nodeapi.RefreshAnswer{}, &nodeapi.Error{Code: "invalid_arguments", Message: "no CSR"}
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || csr.CheckSignature() != nil {
		return nodeapi.RefreshAnswer{}, &nodeapi.Error{Code: "invalid_arguments", Message: "bad CSR"}
	}
	der, err := p.sign(&x509.Certificate{Subject: pkix.Name{CommonName: p.InstanceID},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, csr.PublicKey, p.lifetime)
	if err != nil {
		return nodeapi.RefreshAnswer{}, err
	}
	now := time.Now().UTC()
	due := p.lifetime * 2 / 3
	if p.due != 0 {
		due = p.due
	}
	return nodeapi.RefreshAnswer{CertificateID: fmt.Sprintf("certificate-%d", p.serial), CertPEM: encodeCert(der), CAChainPEM: p.CAPEM,
		NotAfter: now.Add(p.lifetime), RenewAfter: now.Add(due)}, nil
}

// SetDue is when certificates issued from now on are to be renewed; a negative one is what a clock that runs ahead sees.
func (p *Platform) SetDue(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.due = d
}

// LoseRenewals grants renewals whose answers don't arrive, until it is told otherwise: the certificate before has ended.
func (p *Platform) LoseRenewals(lose bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.losing = lose
}

// Renewals says how often a renewal was asked for.
func (p *Platform) Renewals() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.renewals
}

// SetLifetime is that of certificates issued from now on; they are to be renewed after two thirds of it.
func (p *Platform) SetLifetime(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lifetime = d
}

// SetBegin is when certificates issued from now on begin, from now; the CA's own did an hour before New.
func (p *Platform) SetBegin(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begin = d
}

// Revoke ends every certificate issued so far.
func (p *Platform) Revoke() { p.revoke(0) }

// RevokeOlder ends every certificate but the one issued last.
func (p *Platform) RevokeOlder() { p.revoke(1) }

func (p *Platform) revoke(but int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := int64(0); s <= p.serial-but; s++ {
		p.revoked[big.NewInt(s).String()] = true
	}
}

// SetDocument makes doc the desired one and wakes who waits. What a document must have is filled in.
func (p *Platform) SetDocument(doc sdwan.Document) {
	if doc.Incarnation == "" {
		doc.Incarnation = Incarnation
	}
	if doc.Instance.ID == "" {
		doc.Instance.ID = p.InstanceID
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doc = &doc
	close(p.newer)
	p.newer = make(chan struct{})
}

// FailDesired makes every question for a document fail with err; nil ends that.
func (p *Platform) FailDesired(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.docErr = err
	close(p.newer)
	p.newer = make(chan struct{})
}

// FailedDesired says how many questions FailDesired has failed.
func (p *Platform) FailedDesired() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// AddArtifact serves data under its SHA-256, which it answers.
func (p *Platform) AddArtifact(data []byte) string {
	sum := sha256.Sum256(data)
	name := hex.EncodeToString(sum[:])
	p.mu.Lock()
	defer p.mu.Unlock()
	p.artifacts[name] = data
	return name
}

// Reports are all that came.
func (p *Platform) Reports() []sdwan.Report {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]sdwan.Report(nil), p.reports...)
}

// Handshakes are all that came.
func (p *Platform) Handshakes() []nodeapi.HandshakeRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]nodeapi.HandshakeRequest(nil), p.handshake...)
}

// AwaitReport answers the first report, of those that came and come, that fits; the test fails when none does in time.
func (p *Platform) AwaitReport(t testing.TB, what string, fits func(sdwan.Report) bool) sdwan.Report {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for seen := 0; ; {
		p.mu.Lock()
		reports, more := p.reports, p.reported
		p.mu.Unlock()
		for ; seen < len(reports); seen++ {
			if fits(reports[seen]) {
				return reports[seen]
			}
		}
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("no report with %s in 20 s; %d came", what, len(reports))
		}
	}
}

// Authenticate is nodeapi.Backend's.
func (p *Platform) Authenticate(_ context.Context, cert *x509.Certificate) (nodeapi.Identity, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.revoked[cert.SerialNumber.String()] && len(p.renewed) > 0 {
		return nodeapi.Identity{InstanceID: cert.Subject.CommonName, Serial: cert.SerialNumber.String(), Standing: nodeapi.StandingReplaced}, nil
	}
	if p.revoked[cert.SerialNumber.String()] {
		return nodeapi.Identity{}, &nodeapi.Error{HTTPStatus: http.StatusUnauthorized, Message: "certificate is revoked"}
	}
	return nodeapi.Identity{InstanceID: cert.Subject.CommonName, Serial: cert.SerialNumber.String()}, nil
}

// Enroll is nodeapi.Backend's.
func (p *Platform) Enroll(_ context.Context, in nodeapi.EnrollRequest) (nodeapi.EnrollAnswer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if in.Token != p.Token {
		return nodeapi.EnrollAnswer{}, &nodeapi.Error{HTTPStatus: http.StatusUnauthorized, Message: "token unknown or expired"}
	}
	if p.enrolled != "" && p.enrolled != in.CSRPEM {
		return nodeapi.EnrollAnswer{}, &nodeapi.Error{Code: "conflict", Message: "token already used"}
	}
	a, err := p.issue(in.CSRPEM)
	if err != nil {
		return nodeapi.EnrollAnswer{}, err
	}
	p.enrolled = in.CSRPEM
	return nodeapi.EnrollAnswer{InstanceID: p.InstanceID, NodeID: "node-1", CertificateID: a.CertificateID, CertPEM: a.CertPEM, CAChainPEM: a.CAChainPEM,
		NotAfter: a.NotAfter, RenewAfter: a.RenewAfter, PlatformURLs: []string{p.URL}}, nil
}

// Refresh is nodeapi.Backend's.
func (p *Platform) Refresh(_ context.Context, id nodeapi.Identity, in nodeapi.RefreshRequest) (nodeapi.RefreshAnswer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.renewals++
	answer, again := p.renewed[in.CSRPEM]
	var err error
	switch {
	case again:
	case id.Standing == nodeapi.StandingReplaced:
		return answer, &nodeapi.Error{HTTPStatus: http.StatusUnauthorized, Message: "certificate is revoked"}
	default:
		if answer, err = p.issue(in.CSRPEM); err != nil {
			return answer, err
		}
		p.renewed[in.CSRPEM] = answer
	}
	if p.losing {
		p.revoked[id.Serial] = true
		return answer, &nodeapi.Error{Code: "unavailable", Message: "the answer is lost"}
	}
	return answer, nil
}

// Desired is nodeapi.Backend's.
func (p *Platform) Desired(ctx context.Context, _ nodeapi.Identity, after int64, incarnation string, wait time.Duration) (*sdwan.Document, error) {
	end := time.After(wait)
	for {
		p.mu.Lock()
		doc, err, newer := p.doc, p.docErr, p.newer
		if err != nil {
			p.failed++
		}
		p.mu.Unlock()
		if err != nil {
			return nil, err
		}
		if doc != nil && (doc.Revision > after || (incarnation != "" && incarnation != doc.Incarnation)) {
			return doc, nil
		}
		select {
		case <-newer:
		case <-end:
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Report is nodeapi.Backend's.
func (p *Platform) Report(_ context.Context, _ nodeapi.Identity, in sdwan.Report) (nodeapi.ReportAnswer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reports = append(p.reports, in)
	close(p.reported)
	p.reported = make(chan struct{})
	return nodeapi.ReportAnswer{Acknowledged: true, ServerTime: time.Now().UTC(), NextReportSeconds: 30}, nil
}

// Handshake is nodeapi.Backend's.
func (p *Platform) Handshake(_ context.Context, _ nodeapi.Identity, in nodeapi.HandshakeRequest) (nodeapi.HandshakeAnswer, error) {
	p.mu.Lock()
	p.handshake = append(p.handshake, in)
	p.mu.Unlock()
	if p.OnHandshake == nil {
		return nodeapi.HandshakeAnswer{}, &nodeapi.Error{Code: "permission_denied", Message: "module is not assigned"}
	}
	return p.OnHandshake(in)
}

// RuntimeConfig is nodeapi.Backend's; it answers from the document.
func (p *Platform) RuntimeConfig(_ context.Context, _ nodeapi.Identity, runtime string) (nodeapi.RuntimeConfig, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.doc != nil && runtime == nodeapi.RuntimeK3sServer && p.doc.K3s.Server != nil {
		return nodeapi.RuntimeConfig{Server: p.doc.K3s.Server}, nil
	}
	if p.doc != nil && runtime == nodeapi.RuntimeK3sAgent && p.doc.K3s.Agent != nil {
		return nodeapi.RuntimeConfig{Agent: p.doc.K3s.Agent}, nil
	}
	return nodeapi.RuntimeConfig{}, &nodeapi.Error{Code: "permission_denied", Message: "module is not assigned"}
}

type artifact struct{ *bytes.Reader }

func (artifact) Close() error { return nil }

// Artifact is nodeapi.Backend's.
func (p *Platform) Artifact(_ context.Context, _ nodeapi.Identity, sum string) (io.ReadSeekCloser, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	data, ok := p.artifacts[sum]
	if !ok {
		return nil, &nodeapi.Error{Code: "not_found", Message: "no such artefact in your document"}
	}
	return artifact{bytes.NewReader(data)}, nil
}

// AgentProgram is nodeapi.Backend's: artefacts serve as one.
func (p *Platform) AgentProgram(ctx context.Context, sum string) (io.ReadSeekCloser, error) {
	return p.Artifact(ctx, nodeapi.Identity{}, sum)
}

// DeviceBootstrap is nodeapi.Backend's.
func (p *Platform) DeviceBootstrap(_ context.Context, token string, in nodeapi.DeviceBootstrapRequest) (nodeapi.DeviceBootstrapAnswer, error) {
	if p.OnDevice == nil {
		return nodeapi.DeviceBootstrapAnswer{}, &nodeapi.Error{Code: "not_found", Message: "unknown token"}
	}
	return p.OnDevice(token, in)
}

// DeviceBootstrapInfo is nodeapi.Backend's.
func (p *Platform) DeviceBootstrapInfo(context.Context, string) (string, error) {
	return "run: powernode-agent device join URL", nil
}
