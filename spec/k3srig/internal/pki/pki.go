// Package pki makes the certificate authorities of a cluster and what they sign.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

const (
	caLifetime   = 10 * 365 * 24 * time.Hour
	leafLifetime = 365 * 24 * time.Hour
	// A certificate is valid from a little in the past, for clocks that differ.
	backdate = time.Hour

	pemCert = "CERTIFICATE"
	pemKey  = "EC PRIVATE KEY"
)

// CA is a certificate authority on disk.
type CA struct {
	Cert *x509.Certificate
	PEM  []byte
	key  *ecdsa.PrivateKey
}

// EnsureCA loads certFile and keyFile, or makes both with this name.
func EnsureCA(certFile, keyFile, name string) (*CA, error) {
	if _, err := os.Stat(certFile); errors.Is(err, os.ErrNotExist) {
		if err := newCA(certFile, keyFile, name); err != nil {
			return nil, fmt.Errorf("make %s: %w", certFile, err)
		}
	}
	return LoadCA(certFile, keyFile)
}

// LoadCA reads an authority.
func LoadCA(certFile, keyFile string) (*CA, error) {
	raw, err := os.ReadFile(certFile)
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	cert, err := parseCert(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", certFile, err)
	}
	key, err := loadKey(keyFile)
	if err != nil {
		return nil, err
	}
	return &CA{Cert: cert, PEM: raw, key: key}, nil
}

func newCA(certFile, keyFile, name string) error {
	key, err := EnsureKey(keyFile)
	if err != nil {
		return err
	}
	serial, err := serialNumber()
	if err != nil {
		return err
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: serial,
		// Like K3s, the name carries the time, so that two clusters' authorities differ.
		Subject:               pkix.Name{CommonName: fmt.Sprintf("%s@%d", name, now.Unix())},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(caLifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return err
	}
	return writePEM(certFile, 0o644, pemCert, der)
}

// Subject is what a certificate says about its holder.
type Subject struct {
	CommonName string
	Groups     []string
	Names      []string // host names or addresses
	Server     bool     // may serve
	Client     bool     // may be a client
}

func (s Subject) template() (*x509.Certificate, error) {
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: s.CommonName, Organization: s.Groups},
		NotBefore:    time.Now().Add(-backdate),
		NotAfter:     time.Now().Add(leafLifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
	}
	if s.Server {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if s.Client {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	seen := map[string]bool{}
	for _, n := range s.Names {
		if n == "" || seen[n] {
			continue
		}
		seen[n] = true
		if ip, err := netip.ParseAddr(n); err == nil {
			t.IPAddresses = append(t.IPAddresses, net.IP(ip.AsSlice()))
		} else {
			t.DNSNames = append(t.DNSNames, n)
		}
	}
	return t, nil
}

// Sign makes a certificate for a public key and answers it with the authority's own behind it.
func (ca *CA) Sign(s Subject, pub crypto.PublicKey) ([]byte, error) {
	t, err := s.template()
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, ca.Cert, pub, ca.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate of %s: %w", s.CommonName, err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: der}), ca.PEM...), nil
}

// Issue writes a fresh certificate to certFile, for the key in keyFile, which is made once.
func (ca *CA) Issue(certFile, keyFile string, s Subject) error {
	key, err := EnsureKey(keyFile)
	if err != nil {
		return err
	}
	out, err := ca.Sign(s, key.Public())
	if err != nil {
		return err
	}
	return WriteFile(certFile, out, 0o644)
}

// SignRequest signs a PEM certificate request; the subject is ours, only the key is the caller's.
func (ca *CA) SignRequest(csrPEM []byte, s Subject) ([]byte, error) {
	block, _ := pem.Decode(csrPEM)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("a PEM certificate request is expected")
	}
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse certificate request: %w", err)
	}
	if err := req.CheckSignature(); err != nil {
		return nil, fmt.Errorf("check certificate request: %w", err)
	}
	return ca.Sign(s, req.PublicKey)
}

// NewRequest makes a certificate request for the key in keyFile, which is made once.
func NewRequest(keyFile, commonName string) ([]byte, error) {
	key, err := EnsureKey(keyFile)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: commonName}}, key)
	if err != nil {
		return nil, fmt.Errorf("make certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}

// EnsureKey loads a private key, or makes one.
func EnsureKey(file string) (*ecdsa.PrivateKey, error) {
	if _, err := os.Stat(file); err == nil {
		return loadKey(file)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return key, writePEM(file, 0o600, pemKey, der)
}

func loadKey(file string) (*ecdsa.PrivateKey, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	block, _ := pem.Decode(raw)
	if block == nil {
		return nil, fmt.Errorf("%s holds no PEM block", file)
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse key %s: %w", file, err)
	}
	return key, nil
}

func parseCert(raw []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(raw)
	if block == nil {
		return nil, errors.New("no PEM block found")
	}
	return x509.ParseCertificate(block.Bytes)
}

func serialNumber() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 63))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	return n, nil
}

func writePEM(file string, mode os.FileMode, typ string, der []byte) error {
	return WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: typ, Bytes: der}), mode)
}

// WriteFile replaces a file as a whole, so that a reader never sees half of it.
func WriteFile(file string, content []byte, mode os.FileMode) error {
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	tmp, err := os.CreateTemp(dir, ".tmp-")
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	_, werr := tmp.Write(content)
	err = errors.Join(werr, tmp.Chmod(mode), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		os.Remove(tmp.Name())
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}
