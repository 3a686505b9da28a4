package fleet

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"powernode/store"
)

const (
	authorityCertFile = "ca.pem"
	authorityKeyFile  = "ca.key.sealed"
	authorityPurpose  = "authority:key"
	authorityLifetime = 20 * 365 * 24 * time.Hour
	// serverLifetime is longer than any serve process lives without a restart; each start issues a new one.
	serverLifetime = 365 * 24 * time.Hour
	// agentLifetime and renewal at two thirds of it are the contract's (15.2).
	agentLifetime = 90 * 24 * time.Hour
	// clockSkew is how far behind a machine's clock may be when it first looks at a certificate.
	clockSkew = 5 * time.Minute

	// namesDomain is the one domain that the CA may sign names of.
	namesDomain    = "powernode.internal"
	platformDomain = "platform." + namesDomain
	agentsDomain   = "agent." + namesDomain
)

// Authority is the platform's own CA: it signs agents (client authentication alone) and the agent API's listener (server
// authentication alone). Its key is sealed on disk by a key outside of the database, and is in no backup.
type Authority struct {
	cert   *x509.Certificate
	pem    string
	key    crypto.Signer
	random io.Reader
	now    func() time.Time
}

// OpenAuthority reads the CA of a state directory, or makes it. random nil is the system's.
func OpenAuthority(stateDir string, sealer *store.Sealer, random io.Reader, now func() time.Time) (*Authority, error) {
	if random == nil {
		random = rand.Reader
	}
	if now == nil {
		now = time.Now
	}
	a := &Authority{random: random, now: now}
	sealed, err := readPrivate(filepath.Join(stateDir, authorityKeyFile))
	if errors.Is(err, fs.ErrNotExist) {
		return a, a.make(stateDir, sealer)
	}
	if err != nil {
		return nil, err
	}
	certPEM, err := readPrivate(filepath.Join(stateDir, authorityCertFile))
	if err != nil {
		return nil, fmt.Errorf("read the CA's certificate: %w", err)
	}
	seed, err := sealer.Open(authorityPurpose, sealed)
	if err != nil {
		return nil, fmt.Errorf("open the CA's key: %w", err)
	}
	if len(seed) != ed25519.SeedSize {
		return nil, errors.New("the CA's key is damaged")
	}
	a.key, a.pem = ed25519.NewKeyFromSeed(seed), string(certPEM)
	a.cert, err = parseCertificate(certPEM)
	if err != nil {
		return nil, fmt.Errorf("read the CA's certificate: %w", err)
	}
	if !bytes.Equal(a.cert.PublicKey.(ed25519.PublicKey), a.key.Public().(ed25519.PublicKey)) {
		return nil, errors.New("the CA's certificate and key do not fit each other")
	}
	return a, nil
}

// make makes the CA. The certificate is written first: a key without one would be a CA that nobody can pin.
func (a *Authority) make(stateDir string, sealer *store.Sealer) error {
	seed := make([]byte, ed25519.SeedSize)
	if _, err := io.ReadFull(a.random, seed); err != nil {
		return fmt.Errorf("make the CA's key: %w", err)
	}
	a.key = ed25519.NewKeyFromSeed(seed)
	serial, err := a.serial()
	if err != nil {
		return err
	}
	template := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: "Powernode CA"},
		NotBefore: a.now().Add(-clockSkew), NotAfter: a.now().Add(authorityLifetime), IsCA: true, BasicConstraintsValid: true,
		MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage:                 []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: []string{namesDomain},
		// No mail address and no URI is ever a name of ours.
		PermittedEmailAddresses: []string{namesDomain}, PermittedURIDomains: []string{namesDomain}}
	der, err := x509.CreateCertificate(a.random, template, template, a.key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("make the CA: %w", err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return fmt.Errorf("make the CA: %w", err)
	}
	a.pem = encodeCertificate(der)
	sealed, err := sealer.SealFrom(a.random, authorityPurpose, seed)
	if err != nil {
		return err
	}
	if err := writePrivate(filepath.Join(stateDir, authorityCertFile), []byte(a.pem)); err != nil {
		return err
	}
	return writePrivate(filepath.Join(stateDir, authorityKeyFile), sealed)
}

// CAPEM is the certificate that agents pin.
func (a *Authority) CAPEM() string { return a.pem }

// Pool is the CA as a TLS configuration takes it.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// ServerCertificate signs a fresh key for the agent API's listeners on the given addresses.
func (a *Authority) ServerCertificate(ips []netip.Addr) (tls.Certificate, error) {
	seed := make([]byte, ed25519.SeedSize)
	if _, err := io.ReadFull(a.random, seed); err != nil {
		return tls.Certificate{}, fmt.Errorf("make the listener's key: %w", err)
	}
	key := ed25519.NewKeyFromSeed(seed)
	serial, err := a.serial()
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: platformDomain}, DNSNames: []string{platformDomain},
		NotBefore: a.now().Add(-clockSkew), NotAfter: a.now().Add(serverLifetime), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, ip := range ips {
		template.IPAddresses = append(template.IPAddresses, net.IP(ip.Unmap().AsSlice()))
	}
	der, err := x509.CreateCertificate(a.random, template, a.cert, key.Public(), a.key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("sign the listener's certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("read the listener's certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: key, Leaf: leaf}, nil
}

// issued is a signed agent certificate.
type issued struct {
	pem, serial         string
	notBefore, notAfter time.Time
}

// sign signs an agent's key. random and now are the transaction's.
func (a *Authority) sign(random io.Reader, now time.Time, instance store.InstanceID, csr *x509.CertificateRequest) (issued, error) {
	raw := make([]byte, 16)
	if _, err := io.ReadFull(random, raw); err != nil {
		return issued{}, fmt.Errorf("number a certificate: %w", err)
	}
	raw[0] = raw[0]&0x7f | 0x40 // positive, and of one length
	out := issued{serial: fmt.Sprintf("%x", raw), notBefore: now.Add(-clockSkew), notAfter: now.Add(agentLifetime)}
	template := &x509.Certificate{SerialNumber: new(big.Int).SetBytes(raw), Subject: pkix.Name{CommonName: string(instance)},
		DNSNames: []string{string(instance) + "." + agentsDomain}, NotBefore: out.notBefore, NotAfter: out.notAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(a.random, template, a.cert, csr.PublicKey, a.key)
	if err != nil {
		return issued{}, fmt.Errorf("sign an agent's certificate: %w", err)
	}
	out.pem = encodeCertificate(der)
	return out, nil
}

func (a *Authority) serial() (*big.Int, error) {
	raw := make([]byte, 16)
	if _, err := io.ReadFull(a.random, raw); err != nil {
		return nil, fmt.Errorf("number a certificate: %w", err)
	}
	raw[0] = raw[0]&0x7f | 0x40
	return new(big.Int).SetBytes(raw), nil
}

func parseCertificate(raw []byte) (*x509.Certificate, error) {
	block, rest := pem.Decode(raw)
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("not one PEM certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}

func encodeCertificate(der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// readPrivate reads a file of ours and refuses one that others could have written or read.
func readPrivate(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s must be a file that only its owner can reach (mode 0600)", path)
	}
	return os.ReadFile(path)
}

// writePrivate writes a file whole or not at all, readable by its owner alone.
func writePrivate(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	defer os.Remove(f.Name()) // after the rename there is nothing left of it
	_, err = f.Write(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return nil
}
