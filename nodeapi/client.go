package nodeapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"powernode/sdwan"
)

// Deadlines of the client's calls. Each call also ends with its context.
const (
	callTimeout = 30 * time.Second
	dialTimeout = 5 * time.Second
)

// ClientOptions say whom an agent speaks to, and as whom.
type ClientOptions struct {
	URLs  []string // https://HOST:PORT, in order of preference
	CAPEM string   // the one CA that is trusted
	// Certificate is asked at each TLS handshake; nil before enrolment.
	Certificate func() (*tls.Certificate, error)
}

// Client speaks the agent API over TLS 1.3 with a pinned CA. It doesn't retry: what has an answer is an *Error, the
// rest never reached the platform, and the next call tries the next address. Safe for several goroutines.
type Client struct {
	urls      []string
	at        atomic.Uint32 // index into urls that answered last
	http      *http.Client
	transport *http.Transport
}

// NewClient makes a client; it connects at the first call.
func NewClient(o ClientOptions) (*Client, error) {
	if len(o.URLs) == 0 {
		return nil, errors.New("no address of the platform")
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(o.CAPEM)) {
		return nil, errors.New("the platform's CA is no PEM certificate")
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool}
	if o.Certificate != nil {
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return o.Certificate() }
	}
	c := newClient(cfg)
	for _, raw := range o.URLs {
		base, err := baseURL(raw)
		if err != nil {
			return nil, err
		}
		c.urls = append(c.urls, base)
	}
	return c, nil
}

func newClient(cfg *tls.Config) *Client {
	t := &http.Transport{
		TLSClientConfig:     cfg, // a config of our own also keeps HTTP/2 out: a dead connection then blocks one call, not all
		DialContext:         (&net.Dialer{Timeout: dialTimeout, KeepAliveConfig: keepAlive()}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 4,
		IdleConnTimeout:     90 * time.Second,
		ReadBufferSize:      4 << 10,
	}
	return &Client{transport: t, http: &http.Client{Transport: t, CheckRedirect: noRedirect}}
}

// keepAlive notices within half a minute that the platform's machine has vanished without a word.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}
}

// noRedirect: the agent API has none, and a credential follows no foreign answer.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

func baseURL(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("the platform's address must be https://HOST:PORT, not %q", raw)
	}
	return strings.TrimSuffix(u.String(), "/"), nil
}

// CloseIdle closes connections that carry no call.
func (c *Client) CloseIdle() { c.transport.CloseIdleConnections() }

// Enroll trades a one-time token for a certificate.
func (c *Client) Enroll(ctx context.Context, in EnrollRequest) (EnrollAnswer, error) {
	return post[EnrollAnswer](ctx, c, BasePath+"/enroll", in, maxEnrollBytes)
}

// Refresh renews the certificate with a new key.
func (c *Client) Refresh(ctx context.Context, in RefreshRequest) (RefreshAnswer, error) {
	return post[RefreshAnswer](ctx, c, BasePath+"/enroll/refresh", in, maxEnrollBytes)
}

// Desired waits until there is a document above the revision, or one of another store; nil when nothing came.
func (c *Client) Desired(ctx context.Context, after int64, incarnation string, wait time.Duration) (*sdwan.Document, error) {
	ctx, cancel := context.WithTimeout(ctx, wait+callTimeout)
	defer cancel()
	q := url.Values{"after": {strconv.FormatInt(after, 10)}, "wait": {strconv.Itoa(int(wait / time.Second))}}
	if incarnation != "" {
		q.Set("incarnation", incarnation)
	}
	res, err := c.do(ctx, http.MethodGet, BasePath+"/node/desired?"+q.Encode(), nil, nil)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusNoContent {
		return nil, nil
	}
	doc, err := answer[sdwan.Document](res, maxDocumentBytes)
	if err != nil {
		return nil, err
	}
	if err := validateDocument(&doc); err != nil {
		return nil, fmt.Errorf("the platform's document: %w", err)
	}
	return &doc, nil
}

// Report tells the platform what the machine is.
func (c *Client) Report(ctx context.Context, in sdwan.Report) (ReportAnswer, error) {
	return post[ReportAnswer](ctx, c, BasePath+"/node/report", in, maxReportBytes)
}

// Handshake tells or asks one phase of a runtime's life.
func (c *Client) Handshake(ctx context.Context, in HandshakeRequest) (HandshakeAnswer, error) {
	return post[HandshakeAnswer](ctx, c, BasePath+"/runtime/handshake", in, maxHandshakeBytes)
}

// RuntimeConfig reads what the desired document says of one runtime.
func (c *Client) RuntimeConfig(ctx context.Context, runtime string) (RuntimeConfig, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := c.do(ctx, http.MethodGet, BasePath+"/runtime/"+url.PathEscape(runtime)+"/config", nil, nil)
	if err != nil {
		return RuntimeConfig{}, err
	}
	defer res.Body.Close()
	if runtime == RuntimeK3sServer {
		v, err := answer[sdwan.K3sServer](res, maxAnswerBytes)
		return RuntimeConfig{Server: &v}, err
	}
	v, err := answer[sdwan.K3sAgent](res, maxAnswerBytes)
	return RuntimeConfig{Agent: &v}, err
}

// Artifact copies an artefact's bytes from offset on; its caller checks the SHA-256 of the whole.
func (c *Client) Artifact(ctx context.Context, sum string, offset int64, w io.Writer) (int64, error) {
	header := http.Header{}
	if offset > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
		header.Set("If-Range", `"`+sum+`"`)
	}
	res, err := c.do(ctx, http.MethodGet, BasePath+"/artifacts/"+url.PathEscape(sum), nil, header)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if offset > 0 && res.StatusCode != http.StatusPartialContent {
		return 0, fmt.Errorf("artefact from byte %d: the platform answered with HTTP %d", offset, res.StatusCode)
	}
	n, err := io.Copy(w, res.Body)
	if err != nil {
		return n, fmt.Errorf("read an artefact: %w", err)
	}
	return n, nil
}

func post[A any](ctx context.Context, c *Client, path string, in any, limit int) (A, error) {
	var none A
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	body, err := encode(in, limit)
	if err != nil {
		return none, err
	}
	res, err := c.do(ctx, http.MethodPost, path, body, nil)
	if err != nil {
		return none, err
	}
	defer res.Body.Close()
	return answer[A](res, maxAnswerBytes)
}

// do sends one request to the address that answered last. An answer that is no success comes back as *Error.
func (c *Client) do(ctx context.Context, method, path string, body []byte, header http.Header) (*http.Response, error) {
	at := c.at.Load()
	req, err := http.NewRequestWithContext(ctx, method, c.urls[int(at)%len(c.urls)]+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make a request: %w", err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	req.Header.Set(ProtocolHeader, ProtocolVersion)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(req)
	if err != nil {
		c.at.CompareAndSwap(at, at+1)
		return nil, fmt.Errorf("reach the platform: %w", redact(err))
	}
	if res.StatusCode >= 200 && res.StatusCode < 300 {
		return res, nil
	}
	defer res.Body.Close()
	return nil, failure(res)
}

// redact leaves the address out of an error: it may hold a token.
func redact(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

func answer[A any](res *http.Response, limit int) (A, error) {
	var none A
	data, err := io.ReadAll(io.LimitReader(res.Body, int64(limit)+1))
	if err != nil {
		return none, fmt.Errorf("read the platform's answer: %w", err)
	}
	env, err := decode[envelope[A]](data, limit)
	if err != nil {
		return none, fmt.Errorf("the platform's answer: %w", err)
	}
	if !env.Success || env.Data == nil || env.Error != nil {
		return none, errors.New("the platform's answer is no success, with a status of success")
	}
	return *env.Data, nil
}

func failure(res *http.Response) error {
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswerBytes))
	if err != nil {
		return fmt.Errorf("read the platform's answer: %w", err)
	}
	env, err := decode[envelope[struct{}]](data, maxAnswerBytes)
	if err != nil || env.Error == nil || env.Success {
		return fmt.Errorf("the platform answered HTTP %d without an error of the agent API", res.StatusCode)
	}
	env.Error.HTTPStatus = res.StatusCode
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s > 0 {
		env.Error.RetryAfter = min(s, 300)
	}
	return env.Error
}
