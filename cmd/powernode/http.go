package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"powernode/agent/atomicfile"
	"powernode/platform/governance"
	"powernode/schema"
	"powernode/tools"
	"powernode/tools/mcp"
	"powernode/tools/rest"
)

const (
	// httpOff is the address that ends serving over HTTP.
	httpOff = "off"
	// httpHeaders bounds what a request's head may hold.
	httpHeaders = 64 << 10
	// httpWait bounds how long a request may take to arrive, whoever sends it, and an answer that no face sends. The faces
	// set bounds of their own once they know the caller: a call may take longer.
	httpWait = 30 * time.Second
)

// httpChoice is what the flags of serve say of the HTTP listener; the zero value: nothing, what is recorded stands.
type httpChoice struct {
	address, cert, key string
}

// check refuses a choice that can't be, before anything is begun.
func (c httpChoice) check() error {
	switch c.address {
	case "", httpOff:
		if c.cert != "" || c.key != "" {
			return usagef("--tls-cert and --tls-key need --http ADDRESS:PORT")
		}
		return nil
	}
	_, err := c.record()
	return err
}

// httpRecord is where serve answers over HTTP. It is kept in the state directory: the next start answers there too.
type httpRecord struct {
	Address netip.AddrPort `json:"address"`
	Cert    string         `json:"tls_cert,omitempty"` // absolute paths; empty: no TLS, on loopback alone
	Key     string         `json:"tls_key,omitempty"`
}

// record reads a choice, or refuses it: credentials travel in the clear on loopback alone.
func (c httpChoice) record() (httpRecord, error) {
	var r httpRecord
	host, port, err := net.SplitHostPort(c.address)
	if err != nil {
		return r, usagef("--http takes ADDRESS:PORT, as 127.0.0.1:8470, or %s: %w", httpOff, err)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	if r.Address, err = netip.ParseAddrPort(net.JoinHostPort(host, port)); err != nil {
		return r, usagef("--http takes an address, and no name: %w", err)
	}
	switch {
	case (c.cert == "") != (c.key == ""):
		return r, usagef("--tls-cert and --tls-key go together")
	case c.cert == "" && !r.Address.Addr().Unmap().IsLoopback():
		return r, usagef("%s is no loopback address: credentials travel there, give --tls-cert and --tls-key", r.Address)
	case c.cert == "":
		return r, nil
	}
	if r.Cert, err = filepath.Abs(c.cert); err != nil {
		return r, fmt.Errorf("find the certificate: %w", err)
	}
	if r.Key, err = filepath.Abs(c.key); err != nil {
		return r, fmt.Errorf("find the certificate's key: %w", err)
	}
	return r, nil
}

// recordedHTTP is where the last start answered; ok is false where it did not.
func recordedHTTP(path string) (r httpRecord, ok bool, err error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, false, nil
	}
	if err != nil {
		return r, false, fmt.Errorf("read the HTTP listener's address: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		return r, false, fmt.Errorf("read the HTTP listener's address from %s: %w", path, err)
	}
	again, err := httpChoice{r.Address.String(), r.Cert, r.Key}.record() // the file may have been edited
	return again, err == nil, err
}

// operatorHTTP is the control plane over HTTP, for whoever has a token: REST below /api/v1, MCP at /mcp. Agents' certificates
// mean nothing here: none is asked for.
type operatorHTTP struct {
	listener net.Listener
	server   *http.Server
	url      string
	log      zerolog.Logger
}

// openHTTP opens the listener that the flags name, or else the recorded one; nil: there is none. One that is recorded and
// can't be opened is told, and the control plane goes on without it: agents need it.
func openHTTP(ctx context.Context, dir stateDir, choice httpChoice, p *tools.Platform, face *mcp.Face, log zerolog.Logger) (*operatorHTTP, error) {
	switch choice.address {
	case "":
		r, ok, err := recordedHTTP(dir.httpFile())
		var o *operatorHTTP
		if err == nil && ok {
			o, err = newOperatorHTTP(ctx, r, p, face, log)
		}
		if err != nil {
			log.Error().Err(err).Msg("not served over HTTP")
		}
		return o, nil
	case httpOff:
		if err := os.Remove(dir.httpFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("forget the HTTP listener's address: %w", err)
		}
		return nil, nil
	}
	r, err := choice.record()
	if err != nil {
		return nil, err
	}
	o, err := newOperatorHTTP(ctx, r, p, face, log)
	if err != nil {
		return nil, err
	}
	if r.Address, err = netip.ParseAddrPort(o.listener.Addr().String()); err == nil {
		err = writeHTTPRecord(dir.httpFile(), r)
	}
	if err != nil {
		return nil, errors.Join(err, o.listener.Close())
	}
	return o, nil
}

func writeHTTPRecord(path string, r httpRecord) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, raw, 0o600)
}

func newOperatorHTTP(ctx context.Context, r httpRecord, p *tools.Platform, face *mcp.Face, log zerolog.Logger) (*operatorHTTP, error) {
	o := &operatorHTTP{log: log}
	var names *certificates
	if r.Cert != "" {
		names = &certificates{cert: r.Cert, key: r.Key, log: log}
		if err := names.load(); err != nil {
			return nil, err
		}
	}
	handler, err := operatorRoutes(ctx, p, face, names, log)
	if err != nil {
		return nil, err
	}
	var config net.ListenConfig
	if o.listener, err = config.Listen(ctx, "tcp", r.Address.String()); err != nil {
		return nil, fmt.Errorf("listen for HTTP: %w", err)
	}
	o.url = "http://" + o.listener.Addr().String()
	if names != nil {
		o.url = "https://" + o.listener.Addr().String()
		o.listener = tls.NewListener(o.listener, names.config())
	}
	o.server = operatorServer(handler, log)
	return o, nil
}

func operatorServer(handler http.Handler, log zerolog.Logger) *http.Server {
	return &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: httpWait, WriteTimeout: httpWait,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: httpHeaders, ErrorLog: quiet(log)}
}

// operatorRoutes are both faces. stopping ends when serve is told to: sessions that wait are cut off then.
func operatorRoutes(stopping context.Context, p *tools.Platform, face *mcp.Face, names *certificates, log zerolog.Logger) (http.Handler, error) {
	places := &tools.Places{} // of both faces: a token has one share
	api := &rest.Face{Platform: p, Version: version(), Log: log, Authenticate: p.Authenticate, Places: places}
	routes, err := api.Handler()
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/api/v1/", api.SameOrigin(routes, names.know))
	authenticate := func(ctx context.Context, bearer string) (tools.Caller, error) {
		c, err := p.Authenticate(ctx, bearer)
		if errors.Is(err, governance.ErrNoCredential) {
			return c, schema.Errorf(schema.PermissionDenied, "no valid credential")
		}
		return c, err
	}
	session, err := face.HTTP(mcp.HTTPOptions{Stopping: stopping, Places: places, Known: names.know, Authenticate: authenticate})
	if err != nil {
		return nil, err
	}
	mux.Handle("/mcp", session)
	return mux, nil
}

// serve answers until the context ends, and waits for the calls in flight then.
func (o *operatorHTTP) serve(ctx context.Context) error {
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	o.server.BaseContext = func(net.Listener) context.Context { return requests }
	ended := make(chan error, 1)
	go func() { ended <- o.server.Serve(o.listener) }()
	o.log.Info().Str("url", o.url).Msg("serving REST and MCP over HTTP")
	select {
	case err := <-ended:
		o.log.Error().Err(err).Msg("no longer served over HTTP")
		return nil // agents and the socket go on
	case <-ctx.Done():
	}
	bounded, done := context.WithTimeout(requests, stopWait)
	defer done()
	err := o.server.Shutdown(bounded)
	if errors.Is(err, context.DeadlineExceeded) {
		o.log.Warn().Msg("calls over HTTP are cut off: they took too long")
		err = o.server.Close()
	}
	<-ended
	return err
}

// certificates are the TLS certificate of the listener, read again when its files change. A nil one knows no name.
type certificates struct {
	cert, key string
	log       zerolog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	read    [2]string // the files as they were, also where they could not be used
}

func (c *certificates) config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, ClientAuth: tls.NoClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.latest(), nil }}
}

// latest is the certificate as its files are now; where they can't be read, as they were.
func (c *certificates) latest() *tls.Certificate {
	if err := c.load(); err != nil {
		c.log.Error().Err(err).Msg("the renewed certificate is not taken")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

func (c *certificates) load() error {
	cert, err := os.ReadFile(c.cert)
	if err != nil {
		return fmt.Errorf("read the TLS certificate: %w", err)
	}
	info, err := os.Stat(c.key)
	if err != nil {
		return fmt.Errorf("look at the TLS certificate's key: %w", err)
	}
	if info.Mode().Perm()&0o007 != 0 {
		return fmt.Errorf("the TLS key %s is refused: everybody may use it (%s); run chmod o-rwx on it", c.key, info.Mode().Perm())
	}
	key, err := os.ReadFile(c.key)
	if err != nil {
		return fmt.Errorf("read the TLS certificate's key: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := [2]string{string(cert), string(key)}
	if now == c.read && c.current != nil {
		return nil
	}
	c.read = now // a broken pair is told of once
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("use the TLS certificate: %w", err)
	}
	c.current = &pair
	return nil
}

// know says whether a name is one of the certificate's.
func (c *certificates) know(name string) bool {
	if c == nil {
		return false
	}
	return c.latest().Leaf.VerifyHostname(name) == nil
}
