package store

import (
	"context"
	"fmt"
)

// EnrollmentToken is a one-time token, known by its hash alone, bound to one instance.
type EnrollmentToken struct {
	Hash          string
	AccountID     AccountID
	InstanceID    InstanceID
	ExpiresAt     Time
	UsedAt        *Time
	CSRHash       string // of the CSR that used it
	CertificateID CertificateID
	CreatedAt     Time
}

const enrollmentColumns = `hash, account_id, instance_id, expires_at, used_at, coalesce(csr_hash, ''), coalesce(certificate_id, ''), created_at`

// EnrollmentTokenByHash finds a token, or ErrNoRow.
func EnrollmentTokenByHash(ctx context.Context, v *View, hash string) (EnrollmentToken, error) {
	var t EnrollmentToken
	err := v.queryRow(ctx, `SELECT `+enrollmentColumns+` FROM enrollment_tokens WHERE hash = ?`, hash).Scan(&t.Hash, &t.AccountID,
		&t.InstanceID, &t.ExpiresAt, &t.UsedAt, &t.CSRHash, &t.CertificateID, &t.CreatedAt)
	if err != nil {
		return t, fmt.Errorf("read enrolment token: %w", err)
	}
	return t, nil
}

// InsertEnrollmentToken makes a token.
func InsertEnrollmentToken(ctx context.Context, tx *Tx, t EnrollmentToken) error {
	err := tx.exec(ctx, `INSERT INTO enrollment_tokens (hash, account_id, instance_id, expires_at, created_at) VALUES (?,?,?,?,?)`,
		t.Hash, t.AccountID, t.InstanceID, t.ExpiresAt, At(tx.now))
	if err != nil {
		return fmt.Errorf("write enrolment token: %w", err)
	}
	return nil
}

// UseEnrollmentToken marks a token as used by a CSR.
func UseEnrollmentToken(ctx context.Context, tx *Tx, hash, csrHash string, certificate CertificateID) error {
	err := tx.exec(ctx, `UPDATE enrollment_tokens SET used_at = ?, csr_hash = ?, certificate_id = ? WHERE hash = ?`,
		At(tx.now), csrHash, certificate, hash)
	if err != nil {
		return fmt.Errorf("use enrolment token: %w", err)
	}
	return nil
}

// DeleteEnrollmentTokens removes an instance's tokens that were not used.
func DeleteEnrollmentTokens(ctx context.Context, tx *Tx, id InstanceID) error {
	return tx.exec(ctx, `DELETE FROM enrollment_tokens WHERE instance_id = ? AND used_at IS NULL`, id)
}

// Certificate is an agent's certificate as it was issued.
type Certificate struct {
	ID         CertificateID
	AccountID  AccountID
	InstanceID InstanceID
	Serial     string // hex
	Subject    string
	CertPEM    string
	NotBefore  Time
	NotAfter   Time
	EndsAt     *Time  // replaced or revoked: it ends here
	CSRHash    string // of the request that a renewal answered; "" for an enrolment's
	CreatedAt  Time
	Revision   int64
}

// Valid says whether the certificate may be used at an instant.
func (c Certificate) Valid(at Time) bool {
	return !at.Before(c.NotBefore.Time) && at.Before(c.NotAfter.Time) && (c.EndsAt == nil || at.Before(c.EndsAt.Time))
}

const certificateColumns = `id, account_id, instance_id, serial, subject, cert_pem, not_before, not_after, ends_at, csr_hash, created_at, revision`

func scanCertificate(v *View, s scanner) (Certificate, error) {
	var c Certificate
	var csrHash *string
	err := s.Scan(&c.ID, &c.AccountID, &c.InstanceID, &c.Serial, &c.Subject, &c.CertPEM, &c.NotBefore, &c.NotAfter, &c.EndsAt, &csrHash,
		&c.CreatedAt, &c.Revision)
	if err != nil {
		return c, fmt.Errorf("read certificate: %w", err)
	}
	if csrHash != nil {
		c.CSRHash = *csrHash
	}
	return c, nil
}

// CertificateBySerial finds a certificate of any account: the serial is what a handshake proves.
func CertificateBySerial(ctx context.Context, v *View, serial string) (Certificate, error) {
	return scanCertificate(v, v.queryRow(ctx, `SELECT `+certificateColumns+` FROM certificates WHERE serial = ?`, serial))
}

// CertificateByID finds a certificate.
func CertificateByID(ctx context.Context, v *View, acct AccountID, id CertificateID) (Certificate, error) {
	return scanCertificate(v, v.queryRow(ctx, `SELECT `+certificateColumns+` FROM certificates WHERE account_id = ? AND id = ?`, acct, id))
}

// CertificatesByInstance lists an instance's certificates, latest first.
func CertificatesByInstance(ctx context.Context, v *View, id InstanceID) ([]Certificate, error) {
	return collect(v, ctx, scanCertificate, `SELECT `+certificateColumns+` FROM certificates WHERE instance_id = ?
		ORDER BY created_at DESC, id DESC`, id)
}

// InsertCertificate records an issued certificate.
func InsertCertificate(ctx context.Context, tx *Tx, c Certificate) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	err = tx.exec(ctx, `INSERT INTO certificates (`+certificateColumns+`) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)`,
		c.ID, c.AccountID, c.InstanceID, c.Serial, c.Subject, c.CertPEM, c.NotBefore, c.NotAfter, c.EndsAt, nullable(c.CSRHash), At(tx.now), revision)
	if err != nil {
		return fmt.Errorf("write certificate: %w", err)
	}
	return nil
}

// EndCertificates ends an instance's certificates but one ("" spares none) at an instant; one that ends earlier keeps its end.
func EndCertificates(ctx context.Context, tx *Tx, id InstanceID, but CertificateID, at Time) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `UPDATE certificates SET ends_at = ?1, revision = ?2 WHERE instance_id = ?3 AND id <> ?4
		AND (ends_at IS NULL OR ends_at > ?1)`, at, revision, id, but)
}
