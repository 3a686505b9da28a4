package fleet

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"powernode/platform/signal"
	"powernode/schema"
	"powernode/store"
)

const (
	tokenLifetime = time.Hour
	// tokenRepeat is how long the same CSR gets the same certificate again: its first answer may have been lost.
	tokenRepeat = 5 * time.Minute
	// replacedEnds is how long a renewed certificate's predecessor still works.
	replacedEnds = 10 * time.Minute
)

// ErrUnauthenticated says that a token or certificate proves nothing (HTTP 401). What exactly is wrong is not told.
var ErrUnauthenticated = errors.New("no valid credential")

// IssueEnrollmentToken makes the one-time token of an instance; the ones before it that were not used end.
func (s *Service) IssueEnrollmentToken(ctx context.Context, tx *store.Tx, instance store.Instance) (store.Secret, error) {
	raw := make([]byte, 32)
	if err := tx.Random(raw); err != nil {
		return "", fmt.Errorf("make an enrolment token: %w", err)
	}
	token := store.Secret("pne_" + base64.RawURLEncoding.EncodeToString(raw))
	if err := store.DeleteEnrollmentTokens(ctx, tx, instance.ID); err != nil {
		return "", err
	}
	return token, store.InsertEnrollmentToken(ctx, tx, store.EnrollmentToken{Hash: token.Hash(), AccountID: instance.AccountID,
		InstanceID: instance.ID, ExpiresAt: store.At(tx.Now().Add(tokenLifetime))})
}

// EnrollInput trades a one-time token for a certificate.
type EnrollInput struct {
	Token        store.Secret
	CSRPEM       string
	AgentVersion string
	Hostname     string
	Architecture string
	OS           string
	MachineID    string
}

// Enrolled is a node's identity.
type Enrolled struct {
	InstanceID    store.InstanceID
	NodeID        store.NodeID
	Variety       string // of the instance: which of the platform's addresses it reaches
	CertificateID store.CertificateID
	CertPEM       string
	CAPEM         string
	NotAfter      time.Time
	RenewAfter    time.Time
}

// Enroll uses a token up and answers with the certificate, in one transaction: of two machines at once, one wins.
func (s *Service) Enroll(ctx context.Context, tx *store.Tx, in EnrollInput) (Enrolled, error) {
	csr, err := parseCSR(in.CSRPEM)
	if err != nil {
		return Enrolled{}, err
	}
	token, err := store.EnrollmentTokenByHash(ctx, &tx.View, in.Token.Hash())
	if errors.Is(err, store.ErrNoRow) {
		return Enrolled{}, ErrUnauthenticated
	}
	if err != nil {
		return Enrolled{}, err
	}
	instance, err := store.InstanceByIDAnyAccount(ctx, &tx.View, token.InstanceID)
	if err != nil {
		return Enrolled{}, err
	}
	csrHash := hashOf([]byte(in.CSRPEM))
	switch now := store.At(tx.Now()); {
	case !instance.Live():
		return Enrolled{}, ErrUnauthenticated
	case token.UsedAt != nil && token.CSRHash == csrHash && now.Before(token.UsedAt.Add(tokenRepeat)):
		c, err := store.CertificateByID(ctx, &tx.View, token.AccountID, token.CertificateID)
		if err != nil {
			return Enrolled{}, err
		}
		return s.enrolled(instance, c), nil
	case token.UsedAt != nil:
		return Enrolled{}, schema.Errorf(schema.Conflict, "the enrolment token was used already")
	case !now.Before(token.ExpiresAt.Time):
		return Enrolled{}, ErrUnauthenticated
	}
	if err := checkEnrolled(instance, in.Architecture); err != nil {
		return Enrolled{}, err
	}
	tx.Act(store.Actor{Kind: "node_agent", ID: string(instance.ID), Verb: "enroll", CorrelationID: tx.NewID()})
	c, err := s.issue(ctx, tx, instance, csr, "")
	if err != nil {
		return Enrolled{}, err
	}
	if err := store.UseEnrollmentToken(ctx, tx, token.Hash, csrHash, c.ID); err != nil {
		return Enrolled{}, err
	}
	if instance, err = handTokenOver(ctx, tx, instance); err != nil {
		return Enrolled{}, err
	}
	// A machine that enrols anew has a new identity; what it had before ends now.
	if err := store.EndCertificates(ctx, tx, instance.ID, c.ID, store.At(tx.Now())); err != nil {
		return Enrolled{}, err
	}
	if machine := printed(in.MachineID); machine != instance.Provisioning.V.MachineID {
		instance.Provisioning.V.MachineID, instance.Provisioning.V.HostsPlatform = machine, false
		if instance, err = store.UpdateInstance(ctx, tx, instance); err != nil {
			return Enrolled{}, err
		}
		tx.TouchInstance(instance.ID)
	}
	err = signal.Emit(ctx, tx, instance.AccountID, signal.Event{Kind: "system.instance_enrolled", Subject: about(instance),
		Payload: store.Object{"certificate_id": c.ID}})
	return s.enrolled(instance, c), err
}

// Refresh signs an agent's new key; its certificate ends ten minutes later. A request that was answered before gets the same
// certificate again: its first answer may have been lost.
func (s *Service) Refresh(ctx context.Context, tx *store.Tx, instance store.Instance, csrPEM string) (Enrolled, error) {
	csr, err := parseCSR(csrPEM)
	if err != nil {
		return Enrolled{}, err
	}
	if !instance.Live() {
		return Enrolled{}, ErrUnauthenticated
	}
	if again, err := s.RefreshAgain(ctx, &tx.View, instance, csrPEM); !errors.Is(err, ErrUnauthenticated) {
		return again, err
	}
	tx.Act(store.Actor{Kind: "node_agent", ID: string(instance.ID), Verb: "refresh", CorrelationID: tx.NewID()})
	c, err := s.issue(ctx, tx, instance, csr, hashOf([]byte(csrPEM)))
	if err != nil {
		return Enrolled{}, err
	}
	err = store.EndCertificates(ctx, tx, instance.ID, c.ID, store.At(tx.Now().Add(replacedEnds)))
	return s.enrolled(instance, c), err
}

// RefreshAgain answers a renewal that was granted before, and nothing else: for an agent that died, or lost its connection,
// between the request and the answer, and has its old certificate still. The certificate is worth nothing without the key that
// the request was made with.
func (s *Service) RefreshAgain(ctx context.Context, v *store.View, instance store.Instance, csrPEM string) (Enrolled, error) {
	if !instance.Live() {
		return Enrolled{}, ErrUnauthenticated
	}
	all, err := store.CertificatesByInstance(ctx, v, instance.ID)
	if err != nil {
		return Enrolled{}, err
	}
	hash, now := hashOf([]byte(csrPEM)), store.At(v.Now())
	for _, c := range all {
		if c.CSRHash == hash && c.Valid(now) {
			return s.enrolled(instance, c), nil
		}
	}
	return Enrolled{}, ErrUnauthenticated
}

// Standing is what a certificate is good for.
type Standing int

const (
	// StandingCurrent is a certificate in its time.
	StandingCurrent Standing = iota
	// StandingReplaced is one that a renewal has ended, of an instance that lives: it may ask for that renewal's answer again.
	StandingReplaced
	// StandingEnded is one of an instance that has ended, and whose machine lives on, however long ago: it may learn that, and tell
	// of the clean-up.
	StandingEnded
)

// Presented is whose a certificate is.
type Presented struct {
	InstanceID    store.InstanceID
	CertificateID store.CertificateID // "" once the record of it has gone
	Serial        string
	Standing      Standing
}

// Authenticate finds whose a presented certificate is. The TLS stack has verified that the CA signed it and that the caller has
// its key; serial, validity, revocation and subject are checked here.
func (s *Service) Authenticate(ctx context.Context, v *store.View, cert *x509.Certificate) (Presented, error) {
	serial := fmt.Sprintf("%x", cert.SerialNumber)
	c, err := store.CertificateBySerial(ctx, v, serial)
	if noRow(err) {
		return authenticateDeparted(ctx, v, cert, serial)
	}
	if err != nil {
		return Presented{}, err
	}
	p := Presented{InstanceID: c.InstanceID, CertificateID: c.ID, Serial: serial}
	if !isOf(cert, c.CertPEM, c.InstanceID) {
		return Presented{}, ErrUnauthenticated
	}
	instance, err := store.InstanceByIDAnyAccount(ctx, v, c.InstanceID)
	if err != nil {
		return Presented{}, err
	}
	now := store.At(v.Now())
	switch {
	case !instance.Live():
		return authenticateDeparted(ctx, v, cert, serial)
	case c.Valid(now):
		return p, nil
	case c.EndsAt == nil || now.Before(c.NotBefore.Time) || !now.Before(c.NotAfter.Time):
		return Presented{}, ErrUnauthenticated
	}
	all, err := store.CertificatesByInstance(ctx, v, c.InstanceID)
	if err != nil {
		return Presented{}, err
	}
	if !slices.ContainsFunc(all, func(next store.Certificate) bool { return next.CSRHash != "" && next.Valid(now) }) {
		return Presented{}, ErrUnauthenticated // it was revoked
	}
	p.Standing = StandingReplaced
	return p, nil
}

// authenticateDeparted finds the departure that a certificate belongs to. When the certificate itself would have ended plays no
// part: a machine that was off for a year is told too.
func authenticateDeparted(ctx context.Context, v *store.View, cert *x509.Certificate, serial string) (Presented, error) {
	d, certPEM, err := store.DepartureBySerial(ctx, v, serial)
	if noRow(err) {
		return Presented{}, ErrUnauthenticated
	}
	if err != nil {
		return Presented{}, err
	}
	if !isOf(cert, certPEM, d.InstanceID) {
		return Presented{}, ErrUnauthenticated
	}
	return Presented{InstanceID: d.InstanceID, Serial: serial, Standing: StandingEnded}, nil
}

// isOf says whether a presented certificate is, byte for byte, the one that an instance was given.
func isOf(cert *x509.Certificate, issuedPEM string, id store.InstanceID) bool {
	return encodeCertificate(cert.Raw) == issuedPEM && cert.Subject.CommonName == string(id)
}

// issue signs a request and records the certificate. csrHash is that of a renewal.
func (s *Service) issue(ctx context.Context, tx *store.Tx, instance store.Instance, csr *x509.CertificateRequest, csrHash string) (store.Certificate, error) {
	signed, err := s.Authority.sign(random{tx}, tx.Now(), instance.ID, csr)
	if err != nil {
		return store.Certificate{}, err
	}
	c := store.Certificate{ID: store.CertificateID(tx.NewID()), AccountID: instance.AccountID, InstanceID: instance.ID, Serial: signed.serial,
		Subject: string(instance.ID), CertPEM: signed.pem, NotBefore: store.At(signed.notBefore), NotAfter: store.At(signed.notAfter), CSRHash: csrHash}
	if err := store.InsertCertificate(ctx, tx, c); err != nil {
		return c, err
	}
	return c, audit(ctx, tx, instance.AccountID, "certificate_issued", resourceInstance, string(instance.ID), nil,
		store.Object{"certificate_id": c.ID, "serial": c.Serial, "not_after": c.NotAfter})
}

func (s *Service) enrolled(instance store.Instance, c store.Certificate) Enrolled {
	lifetime := c.NotAfter.Sub(c.NotBefore.Time)
	return Enrolled{InstanceID: instance.ID, NodeID: instance.NodeID, Variety: instance.Variety, CertificateID: c.ID, CertPEM: c.CertPEM, CAPEM: s.Authority.CAPEM(),
		NotAfter: c.NotAfter.Time, RenewAfter: c.NotBefore.Add(lifetime * 2 / 3)}
}

// parseCSR takes a request for a key that TLS 1.3 signs with. Names in it are not taken: the platform chooses them.
func parseCSR(csrPEM string) (*x509.CertificateRequest, error) {
	block, rest := pem.Decode([]byte(csrPEM))
	if block == nil || block.Type != "CERTIFICATE REQUEST" || strings.TrimSpace(string(rest)) != "" {
		return nil, schema.InvalidArgument("/csr_pem", nil, "csr_pem must be one PEM certificate request")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = csr.CheckSignature()
	}
	if err != nil {
		return nil, schema.InvalidArgument("/csr_pem", nil, "csr_pem must be a certificate request signed by its own key")
	}
	switch csr.PublicKey.(type) {
	case ed25519.PublicKey, *ecdsa.PublicKey:
		return csr, nil
	}
	return nil, schema.InvalidArgument("/csr_pem", nil, "csr_pem must be for an Ed25519 or ECDSA key")
}

// random is a transaction's randomness as an io.Reader.
type random struct{ tx *store.Tx }

func (r random) Read(b []byte) (int, error) { return len(b), r.tx.Random(b) }

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// about is what signals of an instance speak of.
func about(i store.Instance) signal.Subject {
	return signal.Subject{NodeID: i.NodeID, InstanceID: i.ID}
}

// checkEnrolled refuses a machine of another architecture than its instance is of; the token stays good for one that fits.
func checkEnrolled(i store.Instance, reported string) error {
	if architectureOf(reported) == i.Architecture {
		return nil
	}
	return schema.Errorf(schema.PreconditionFailed, "this machine is %s, and instance %s is of a template for %s: enrol one that is, or give the node "+
		"another template and provision anew", printed(reported), i.Name, i.Architecture)
}

// architectureOf is the platform's name of an architecture that a machine reports; "" is one we don't know.
func architectureOf(reported string) string {
	switch reported {
	case "amd64", "x86_64":
		return "amd64"
	case "arm64", "aarch64":
		return "arm64"
	}
	return ""
}
