package nodeapi

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
)

// RedeemDevice redeems a device's bootstrap URL, whose fragment is the SHA-256 of the platform's CA certificate (DER,
// hex). Nothing is sent before the presented chain has led to that CA.
func RedeemDevice(ctx context.Context, bootstrapURL string, in DeviceBootstrapRequest) (DeviceBootstrapAnswer, error) {
	u, err := url.Parse(bootstrapURL)
	if err != nil || u.Scheme != "https" || u.Host == "" || !strings.HasPrefix(u.Path, DeviceBootstrapPath) {
		return DeviceBootstrapAnswer{}, errors.New("no bootstrap URL of a device: it is https://HOST:PORT" + DeviceBootstrapPath + "TOKEN#CA")
	}
	if !validSHA256(u.Fragment) {
		return DeviceBootstrapAnswer{}, errors.New("the bootstrap URL lacks the CA's SHA-256 after #: copy it whole")
	}
	c := newClient(pinned(u.Hostname(), u.Fragment, nil))
	defer c.CloseIdle()
	c.urls = []string{"https://" + u.Host}
	return post[DeviceBootstrapAnswer](ctx, c, u.EscapedPath(), in, maxDeviceBytes)
}

// FetchCA asks a platform for its CA certificate (PEM) and takes the one of that SHA-256 (DER, hex) alone. Nothing is sent
// but the handshake, which has to lead to that CA.
func FetchCA(ctx context.Context, platformURL, caSHA256 string) (string, error) {
	u, err := url.Parse(platformURL)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return "", errors.New("the platform's address must be https://HOST:PORT")
	}
	if !validSHA256(caSHA256) {
		return "", errors.New("the CA's SHA-256 must be 64 lower-case hex digits")
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	var found *x509.Certificate
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout}, Config: pinned(u.Hostname(), caSHA256, &found)}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return "", fmt.Errorf("reach the platform: %w", err)
	}
	_ = conn.Close() // the handshake is all that was wanted
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: found.Raw})), nil
}

// pinned is TLS to a host whose chain leads to the CA of that hash, which the system's roots don't hold; found is told it.
func pinned(host, caSHA256 string, found **x509.Certificate) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // VerifyConnection does it
		VerifyConnection: func(s tls.ConnectionState) error {
			ca, err := verifyPinned(s, host, caSHA256)
			if err == nil && found != nil {
				*found = ca
			}
			return err
		},
	}
}

// verifyPinned checks that the presented chain has a CA certificate of that hash and leads to it, for that host.
func verifyPinned(s tls.ConnectionState, host, caSHA256 string) (*x509.Certificate, error) {
	roots, others := x509.NewCertPool(), x509.NewCertPool()
	var found *x509.Certificate
	for _, cert := range s.PeerCertificates[1:] {
		sum := sha256.Sum256(cert.Raw)
		if cert.IsCA && hex.EncodeToString(sum[:]) == caSHA256 {
			roots.AddCert(cert)
			found = cert
			continue
		}
		others.AddCert(cert)
	}
	if found == nil {
		return nil, errors.New("the platform presented no CA certificate with the SHA-256 that is pinned")
	}
	_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{DNSName: host, Roots: roots, Intermediates: others,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	if err != nil {
		return nil, fmt.Errorf("verify the platform's certificate: %w", err)
	}
	return found, nil
}
