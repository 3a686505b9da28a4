package fleet_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"powernode/platform/fleet"
	"powernode/schema"
	"powernode/store"
)

// request makes a key and a request for it, as an agent does.
func request(t testing.TB) (ed25519.PrivateKey, string) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "whatever"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

func (w *world) token(t testing.TB, i store.Instance) (token store.Secret) {
	t.Helper()
	w.update(t, func(ctx context.Context, tx *store.Tx) (err error) {
		token, err = w.IssueEnrollmentToken(ctx, tx, i)
		return err
	})
	return token
}

func (w *world) enroll(t testing.TB, token store.Secret, csr string) (e fleet.Enrolled, err error) {
	t.Helper()
	err = w.try(t, func(ctx context.Context, tx *store.Tx) (err error) {
		e, err = w.Enroll(ctx, tx, fleet.EnrollInput{Token: token, CSRPEM: csr, AgentVersion: "1", Hostname: "h", Architecture: "x86_64", OS: "linux"})
		return err
	})
	return e, err
}

func parsed(t testing.TB, certPEM string) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode([]byte(certPEM))
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (w *world) authenticate(t testing.TB, certPEM string) (i store.Instance, err error) {
	t.Helper()
	w.view(t, func(ctx context.Context, v *store.View) error {
		var who fleet.Presented
		if who, err = w.Authenticate(ctx, v, parsed(t, certPEM)); err != nil {
			return nil
		}
		i, err = store.InstanceByIDAnyAccount(ctx, v, who.InstanceID)
		return err
	})
	return i, err
}

func TestEnrolmentTradesATokenForACertificateOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.instance(t, w.node(t, "a"))
	token := w.token(t, i)
	_, csr := request(t)

	e, err := w.enroll(t, token, csr)
	if err != nil {
		t.Fatal(err)
	}
	c := parsed(t, e.CertPEM)
	if c.Subject.CommonName != string(i.ID) || e.InstanceID != i.ID || !e.RenewAfter.Before(e.NotAfter) {
		t.Errorf("certificate of %s for instance %s, renewed after %s of %s", c.Subject.CommonName, e.InstanceID, e.RenewAfter, e.NotAfter)
	}
	again, err := w.enroll(t, token, csr)
	if err != nil || again.CertPEM != e.CertPEM {
		t.Errorf("the same request, repeated, got another certificate (%v)", err)
	}
	_, other := request(t)
	if _, err := w.enroll(t, token, other); schema.CodeOf(err) != schema.Conflict {
		t.Errorf("a second machine got %v, want conflict", err)
	}
	if _, err := w.enroll(t, "pne_unknown", other); !errors.Is(err, fleet.ErrUnauthenticated) {
		t.Errorf("an unknown token got %v, want no credential", err)
	}
	w.view(t, func(ctx context.Context, v *store.View) error {
		rows, err := store.AuditOf(ctx, v, i.AccountID, "System::NodeInstance", string(i.ID))
		if n := len(rows); n == 0 || rows[n-1].Action != "certificate_issued" || rows[n-1].New["certificate_id"] != string(e.CertificateID) {
			t.Errorf("audit rows of the instance %v, want its certificate", rows)
		}
		return err
	})
	if who, err := w.authenticate(t, e.CertPEM); err != nil || who.ID != i.ID || who.Architecture != "amd64" {
		t.Errorf("authenticated %s (%s), %v", who.ID, who.Architecture, err)
	}
}

func TestMachineOfAnotherArchitectureDoesNotEnrol(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.instance(t, w.node(t, "a"))
	token := w.token(t, i)
	_, csr := request(t)
	for _, reported := range []string{"arm64", "aarch64", "riscv64", ""} {
		err := w.try(t, func(ctx context.Context, tx *store.Tx) error {
			_, err := w.Enroll(ctx, tx, fleet.EnrollInput{Token: token, CSRPEM: csr, Architecture: reported})
			return err
		})
		if want := "this machine is " + reported + ", and instance a is of a template for amd64"; schema.CodeOf(err) != schema.PreconditionFailed || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("a machine that is %q got %v, want %s", reported, err, want)
		}
	}
	if _, err := w.enroll(t, token, csr); err != nil {
		t.Errorf("the token is used up: %v", err)
	}
}

func TestNewTokenEndsTheOneBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.instance(t, w.node(t, "a"))
	first, _ := w.token(t, i), w.token(t, i)
	_, csr := request(t)
	if _, err := w.enroll(t, first, csr); !errors.Is(err, fleet.ErrUnauthenticated) {
		t.Errorf("got %v, want no credential", err)
	}
}

func TestRequestThatItsKeyDidNotSignIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	token := w.token(t, w.instance(t, w.node(t, "a")))
	_, csr := request(t)
	block, _ := pem.Decode([]byte(csr))
	block.Bytes[len(block.Bytes)-1] ^= 1
	for _, bad := range []string{"", "x", string(pem.EncodeToMemory(block)), csr + csr} {
		if _, err := w.enroll(t, token, bad); schema.CodeOf(err) != schema.InvalidArguments {
			t.Errorf("got %v, want invalid_arguments", err)
		}
	}
}

func TestRenewedCertificateOutlivesItsPredecessorByMinutes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.instance(t, w.node(t, "a"))
	_, csr := request(t)
	e, err := w.enroll(t, w.token(t, i), csr)
	if err != nil {
		t.Fatal(err)
	}
	_, next := request(t)
	var renewed fleet.Enrolled
	w.update(t, func(ctx context.Context, tx *store.Tx) (err error) {
		renewed, err = w.Refresh(ctx, tx, i, next)
		return err
	})
	w.view(t, func(ctx context.Context, v *store.View) error {
		all, err := store.CertificatesByInstance(ctx, v, i.ID)
		for _, c := range all {
			if ends := c.EndsAt != nil; ends != (c.ID == e.CertificateID) {
				t.Errorf("certificate %s ends early: %v", c.ID, ends)
			}
		}
		return err
	})
	for _, c := range []string{e.CertPEM, renewed.CertPEM} {
		if _, err := w.authenticate(t, c); err != nil {
			t.Errorf("a certificate in its time: %v", err)
		}
	}
}

func TestRevokedAndForeignCertificatesProveNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.instance(t, w.node(t, "a"))
	_, csr := request(t)
	e, err := w.enroll(t, w.token(t, i), csr)
	if err != nil {
		t.Fatal(err)
	}
	w.update(t, func(ctx context.Context, tx *store.Tx) error {
		return store.EndCertificates(ctx, tx, i.ID, "", store.At(tx.Now()))
	})
	if _, err := w.authenticate(t, e.CertPEM); !errors.Is(err, fleet.ErrUnauthenticated) {
		t.Errorf("a revoked certificate: %v", err)
	}
	other := newWorld(t)
	j := other.instance(t, other.node(t, "a"))
	f, err := other.enroll(t, other.token(t, j), csr)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.authenticate(t, f.CertPEM); !errors.Is(err, fleet.ErrUnauthenticated) {
		t.Errorf("another platform's certificate: %v", err)
	}
}

func TestAuthorityIsKeptAndServesAgentsOverMutualTLS(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	reopened, err := fleet.OpenAuthority(w.StateDir, w.Sealer, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if reopened.CAPEM() != w.Authority.CAPEM() {
		t.Fatal("a second start made another CA")
	}
	key, csr := request(t)
	e, err := w.enroll(t, w.token(t, w.instance(t, w.node(t, "a"))), csr)
	if err != nil {
		t.Fatal(err)
	}
	server, err := reopened.ServerCertificate([]netip.Addr{netip.MustParseAddr("127.0.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	agent := tls.Certificate{Certificate: [][]byte{parsed(t, e.CertPEM).Raw}, PrivateKey: key}
	pinned := x509.NewCertPool()
	pinned.AppendCertsFromPEM([]byte(e.CAPEM))
	listening := func(own tls.Certificate) *tls.Config {
		return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: reopened.Pool()}
	}
	dialling := func(own tls.Certificate, name string) *tls.Config {
		return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, RootCAs: pinned, ServerName: name}
	}
	if err := shake(listening(server), dialling(agent, "127.0.0.1")); err != nil {
		t.Errorf("agent and platform: %v", err)
	}
	if err := shake(listening(server), dialling(agent, "127.0.0.2")); err == nil {
		t.Error("the platform is believed at an address that is not its own")
	}
	if err := shake(listening(agent), dialling(agent, string(e.InstanceID)+".agent.powernode.internal")); err == nil {
		t.Error("an agent's certificate is believed to be a server's")
	}
	if err := shake(listening(server), dialling(server, "127.0.0.1")); err == nil {
		t.Error("the platform's certificate is believed to be an agent's")
	}
}

// shake runs a handshake over a pipe, and answers what either side said against it.
func shake(server, client *tls.Config) error {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	failed := make(chan error, 1)
	go func() {
		s := tls.Server(a, server)
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte("."))
		}
		a.Close()
		failed <- err
	}()
	c := tls.Client(b, client)
	err := c.Handshake()
	if err == nil {
		_, err = io.ReadFull(c, make([]byte, 1))
	}
	b.Close()
	return errors.Join(err, <-failed)
}

func TestAuthorityWithoutItsKeyFileIsNotReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wrong, err := store.NewSealer(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fleet.OpenAuthority(w.StateDir, wrong, nil, nil); err == nil {
		t.Error("a CA was opened with another sealing key")
	}
	if err := os.Chmod(filepath.Join(w.StateDir, "ca.key.sealed"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := fleet.OpenAuthority(w.StateDir, w.Sealer, nil, nil); err == nil {
		t.Error("a key file that others can read was taken")
	}
}
