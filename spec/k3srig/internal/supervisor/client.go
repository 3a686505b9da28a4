package supervisor

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"powernode/spec/k3srig/internal/pki"
	"powernode/spec/k3srig/internal/token"
)

const clientTimeout = 10 * time.Second

// StatusError is an answer other than success.
type StatusError struct {
	URL    string
	Code   int
	Reason string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s: %d %s: %s", e.URL, e.Code, http.StatusText(e.Code), e.Reason)
}

// Refused tells whether the caller's token or password was not accepted, which waiting doesn't change.
func Refused(err error) bool {
	var s *StatusError
	return errors.As(err, &s) && (s.Code == http.StatusUnauthorized || s.Code == http.StatusForbidden)
}

// Client talks to a supervisor whose CA it has checked.
type Client struct {
	CA       []byte
	base     string
	user     string
	password string
	http     *http.Client
}

// Connect fetches a server's CA, compares it with the token, and only then
// is ready to send the password.
func Connect(ctx context.Context, serverURL string, t token.Token, user string) (*Client, error) {
	c := &Client{base: strings.TrimRight(serverURL, "/"), user: user, password: t.Password}
	// The CA is what this request fetches; the hash in the token vouches for it.
	insecure := newHTTP(&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
	ca, err := c.do(ctx, insecure, http.MethodGet, PathCACerts, nil, nil)
	insecure.CloseIdleConnections()
	if err != nil {
		return nil, fmt.Errorf("failed to get CA certs: %w", err)
	}
	if err := t.CheckCA(ca); err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("CA cert validation failed: %s%s holds no certificate", c.base, PathCACerts)
	}
	c.CA = ca
	c.http = newHTTP(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12})
	if _, err := c.do(ctx, c.http, http.MethodGet, PathCACerts, nil, nil); err != nil {
		return nil, fmt.Errorf("CA cert validation failed: %w", err)
	}
	return c, nil
}

func newHTTP(t *tls.Config) *http.Client {
	return &http.Client{Timeout: clientTimeout, Transport: &http.Transport{TLSClientConfig: t, DisableKeepAlives: true}}
}

// Config fetches the cluster's configuration; it is also how a token is tried.
func (c *Client) Config(ctx context.Context) (Config, error) {
	var out Config
	return out, c.get(ctx, PathConfig, &out)
}

// Bootstrap fetches what a joining server needs.
func (c *Client) Bootstrap(ctx context.Context) (pki.Bootstrap, error) {
	var out pki.Bootstrap
	return out, c.get(ctx, PathBootstrap, &out)
}

// Members fetches the members of the datastore.
func (c *Client) Members(ctx context.Context) ([]Member, error) {
	var out []Member
	return out, c.get(ctx, PathDBInfo, &out)
}

// APIServers fetches the addresses of all servers.
func (c *Client) APIServers(ctx context.Context) ([]string, error) {
	var out []string
	return out, c.get(ctx, PathAPIServers, &out)
}

// ClientCA fetches the authority of client certificates.
func (c *Client) ClientCA(ctx context.Context) ([]byte, error) {
	return c.do(ctx, c.http, http.MethodGet, PathClientCA, nil, nil)
}

// Node is how a machine identifies itself when it asks for certificates.
type Node struct {
	Name     string
	Password string
	IPs      []netip.Addr
}

// Certificate has a certificate request signed, at one of the kubelet paths.
func (c *Client) Certificate(ctx context.Context, path string, n Node, csr []byte) ([]byte, error) {
	var ips []string
	for _, ip := range n.IPs {
		ips = append(ips, ip.String())
	}
	return c.do(ctx, c.http, http.MethodPost, path, csr, map[string]string{
		HeaderNodeName: n.Name, HeaderNodePassword: n.Password, HeaderNodeIP: strings.Join(ips, ","),
	})
}

func (c *Client) get(ctx context.Context, path string, into any) error {
	raw, err := c.do(ctx, c.http, http.MethodGet, path, nil, nil)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("%s%s: %w", c.base, path, err)
	}
	return nil
}

func (c *Client) do(ctx context.Context, client *http.Client, method, path string, body []byte, headers map[string]string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for k, v := range headers {
		req.Header.Set(k, v)
	}
	if path != PathCACerts {
		req.SetBasicAuth(c.user, c.password)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return nil, fmt.Errorf("%s%s: %w", c.base, path, err)
	}
	if resp.StatusCode/100 != 2 {
		return nil, &StatusError{URL: c.base + path, Code: resp.StatusCode, Reason: strings.TrimSpace(string(out))}
	}
	return out, nil
}
