package agent

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"powernode/nodeapi"
)

// pendingRequest is kept while an enrolment or a renewal runs: a repeat after a lost answer, or one that could not be kept,
// sends the same CSR, which gets the same certificate.
type pendingRequest struct {
	InstanceID string `json:"instance_id"`
	KeyPEM     string `json:"key_pem"`
	CSRPEM     string `json:"csr_pem"`
}

// makeCSR makes a key on this node and the request for its certificate.
func makeCSR(instanceID string) (keyPEM, csrPEM string, err error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", "", fmt.Errorf("make a key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", "", fmt.Errorf("encode a key: %w", err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: instanceID}}, key)
	if err != nil {
		return "", "", fmt.Errorf("make a certificate request: %w", err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr})), nil
}

// enroll trades the token for a certificate and keeps the identity. It is repeatable until it has succeeded.
func (s *state) enroll(ctx context.Context, e nodeapi.Enrollment, version string) (*identity, error) {
	pending, err := s.pending(enrollingFile, e.InstanceID, "")
	if err != nil {
		return nil, err
	}
	client, err := nodeapi.NewClient(nodeapi.ClientOptions{URLs: e.PlatformURLs, CAPEM: e.CAPEM})
	if err != nil {
		return nil, err
	}
	defer client.CloseIdle()
	ans, err := client.Enroll(ctx, nodeapi.EnrollRequest{Token: e.Token, CSRPEM: pending.CSRPEM, AgentVersion: version, Machine: describeMachine()})
	if err != nil {
		return nil, fmt.Errorf("enrol: %w", err)
	}
	if ans.InstanceID != e.InstanceID {
		return nil, fmt.Errorf("enrol: the platform answered for instance %s, the token is for %s", ans.InstanceID, e.InstanceID)
	}
	id := &identity{InstanceID: ans.InstanceID, NodeID: ans.NodeID, PlatformURLs: ans.PlatformURLs, CAPEM: e.CAPEM,
		CertPEM: ans.CertPEM, KeyPEM: pending.KeyPEM, NotAfter: ans.NotAfter, RenewAfter: ans.RenewAfter}
	if len(id.PlatformURLs) == 0 {
		id.PlatformURLs = e.PlatformURLs
	}
	if _, err := id.certificate(); err != nil {
		return nil, err
	}
	if err := s.writeJSON(identityFile, id); err != nil {
		return nil, err
	}
	return id, s.remove(enrollingFile)
}

// pending is the request that a file keeps, or a new one, which is on disk before anybody sees it. One that is unreadable,
// another instance's, or of the key that is in use, is done with: nothing rests on it.
func (s *state) pending(file, instanceID, inUse string) (*pendingRequest, error) {
	var p pendingRequest
	found, err := s.readJSON(file, &p)
	if err == nil && found && p.InstanceID == instanceID && p.KeyPEM != "" && p.CSRPEM != "" && p.KeyPEM != inUse {
		return &p, nil
	}
	p = pendingRequest{InstanceID: instanceID}
	if p.KeyPEM, p.CSRPEM, err = makeCSR(instanceID); err != nil {
		return nil, err
	}
	return &p, s.writeJSON(file, &p)
}

// refresh renews the certificate with a new key. The key is on disk before the platform is asked, and the old pair until the
// new one is: the answer ends the old certificate, and must not be lost with the connection, this process or a full disk.
func (s *state) refresh(ctx context.Context, client *nodeapi.Client, id identity, version string) (*identity, error) {
	pending, err := s.pending(renewingFile, id.InstanceID, id.KeyPEM)
	if err != nil {
		return nil, err
	}
	ans, err := client.Refresh(ctx, nodeapi.RefreshRequest{CSRPEM: pending.CSRPEM, AgentVersion: version})
	if err != nil {
		return nil, fmt.Errorf("renew the certificate: %w", err)
	}
	id.CertPEM, id.KeyPEM, id.NotAfter, id.RenewAfter = ans.CertPEM, pending.KeyPEM, ans.NotAfter, ans.RenewAfter
	if _, err := id.certificate(); err != nil {
		return nil, errors.Join(err, s.remove(renewingFile)) // halves that don't fit: another request has to do
	}
	if err := s.writeJSON(identityFile, &id); err != nil {
		return nil, err
	}
	_ = s.remove(renewingFile) // one that stays is known by its key, and is done with
	return &id, nil
}

func describeMachine() nodeapi.Machine {
	m := nodeapi.Machine{Hostname: "unknown", Architecture: runtime.GOARCH, OS: runtime.GOOS}
	if name, err := os.Hostname(); err == nil && name != "" {
		m.Hostname = name
	}
	m.MachineID = line(machineIDFile)
	if b, err := os.ReadFile("/etc/os-release"); err == nil {
		m.OS = osName(string(b))
	}
	return m
}

// osName takes PRETTY_NAME out of os-release, or says linux.
func osName(release string) string {
	for line := range strings.Lines(release) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			if v = strings.Trim(v, `"`); v != "" {
				return v
			}
		}
	}
	return runtime.GOOS
}

// ReadEnrollment reads an enrolment from a 0600 file.
func ReadEnrollment(path string) (nodeapi.Enrollment, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nodeapi.Enrollment{}, fmt.Errorf("read the enrolment: %w", err)
	}
	if info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
		return nodeapi.Enrollment{}, fmt.Errorf("enrolment file %s is %#o, not 0600", path, info.Mode().Perm())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nodeapi.Enrollment{}, fmt.Errorf("read the enrolment: %w", err)
	}
	e, err := nodeapi.DecodeEnrollment(data)
	if err != nil {
		return e, fmt.Errorf("read the enrolment: %w", err)
	}
	return e, nil
}

// Enroll enrols this machine into dir, also over an identity that is there, and does no more.
func Enroll(ctx context.Context, dir, version string, e nodeapi.Enrollment) error {
	s, err := openState(dir)
	if err != nil {
		return err
	}
	_, err = s.enroll(ctx, e, version)
	return errors.Join(err, s.close())
}
