package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	sdk "github.com/mark3labs/mcp-go/mcp"

	"powernode/schema"
	"powernode/tools"
)

const (
	// maxBody bounds a request over HTTP: arguments of 1 MiB, and what stands around them.
	maxBody = 1<<20 + 64<<10
	// bodyWait is how long a request's body may take, and writeWait how long a client may take nothing of an answer.
	bodyWait, writeWait = 30 * time.Second, 30 * time.Second
	// keepEvery is how often a client that waits is shown that its call is alive.
	keepEvery = 15 * time.Second
)

// Codes of refusals that the transport makes.
const (
	codeUnauthorised = -32001
	codeForbidden    = -32003
)

// HTTPOptions say how a server is served over HTTP.
type HTTPOptions struct {
	// Authenticate says whose a bearer token is. A *schema.Error refuses it; another error says that it can't be told now.
	// nil: no credential is asked.
	Authenticate func(ctx context.Context, bearer string) (tools.Caller, error)
	// Known says whether a name or address, beside loopback, is one under which clients, and pages of browsers, reach the
	// server; nil: there is none.
	Known func(name string) bool
	// Places bound how many requests are worked on at once; more are told to come again. nil: the server's own.
	Places *tools.Places
	// Stopping ends when the process is told to: calls that wait are cut off then. nil: never.
	Stopping context.Context
}

// endpoint is a server's streamable HTTP. It remembers no client: what initialize would have it remember is in the
// session id, and a later request needs none.
type endpoint struct {
	*Server
	HTTPOptions
	keep time.Duration
}

// HTTP is the server over streamable HTTP, for both eras of the protocol.
func (s *Server) HTTP(o HTTPOptions) http.Handler {
	s.prepare()
	if o.Stopping == nil {
		o.Stopping = context.Background()
	}
	if o.Places == nil {
		o.Places = &tools.Places{}
	}
	h := &endpoint{Server: s, HTTPOptions: o, keep: keepEvery}
	return h
}

// refusal is an answer of the transport itself.
type refusal struct {
	status int
	err    *ProtocolError
	id     json.RawMessage
	header map[string]string
}

func refuse(status, code int, format string, args ...any) *refusal {
	return &refusal{status: status, err: &ProtocolError{Code: code, Message: fmt.Sprintf(format, args...)}}
}

func (f *refusal) with(header, value string) *refusal {
	f.header = map[string]string{header: value}
	return f
}

func (f *refusal) to(id json.RawMessage) *refusal {
	f.id = id
	return f
}

// ServeHTTP answers one request.
func (h *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f := h.serve(w, r); f != nil {
		for name, value := range f.header {
			w.Header().Set(name, value)
		}
		p := newPost(w, r)
		p.finish(f.status, reply{ID: f.id, Error: f.err}.bytes(h.Server))
	}
}

func (h *endpoint) serve(w http.ResponseWriter, r *http.Request) *refusal {
	if f := h.checkOrigin(r); f != nil {
		return f
	}
	principal, f := h.principal(r)
	if f != nil {
		return f
	}
	if r.Method != http.MethodPost {
		return refuse(http.StatusMethodNotAllowed, codeInvalidRequest,
			"%.20s is not allowed: this server keeps no session, and sends what it has on the answer to a POST", r.Method).
			with("Allow", http.MethodPost)
	}
	p := newPost(w, r)
	if f := p.checkTypes(r); f != nil {
		return f
	}
	raw, f := readBody(w, r)
	if f != nil {
		return f
	}
	e, err := readEnvelope(raw)
	if err != nil {
		return &refusal{status: http.StatusBadRequest, err: err.(*ProtocolError), id: e.id}
	}
	leave, ok := h.Places.Take(principal.Caller)
	if !ok {
		return refuse(http.StatusServiceUnavailable, codeNotBegun, "Too many requests at once: nothing was changed").to(e.id).with("Retry-After", "1")
	}
	defer leave()
	return h.take(r, p, principal, e, raw)
}

// checkOrigin keeps pages of browsers out, also those that reach a local server by a name of their own.
func (h *endpoint) checkOrigin(r *http.Request) *refusal {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if (local == nil || loopback(local.String())) && !h.ours(r.Host) {
		return refuse(http.StatusForbidden, codeForbidden, "Host %.100q is not this server's", r.Host)
	}
	for _, origin := range r.Header.Values("Origin") {
		u, err := url.Parse(origin)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || !h.ours(u.Host) {
			return refuse(http.StatusForbidden, codeForbidden, "Origin %.100q is not allowed", origin)
		}
	}
	return nil
}

// ours says whether a host, with or without a port, is loopback or one that the operator has named.
func (h *endpoint) ours(host string) bool {
	name := strings.ToLower(hostname(host))
	return name == "localhost" || loopback(name) || h.Known != nil && name != "" && h.Known(name)
}

func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return strings.Trim(host, "[]")
}

func loopback(host string) bool {
	addr, err := netip.ParseAddr(hostname(host))
	return err == nil && addr.Unmap().IsLoopback()
}

// principal is who sends a request, and what it wants to be shown.
func (h *endpoint) principal(r *http.Request) (Principal, *refusal) {
	var p Principal
	if h.Authenticate != nil {
		scheme, bearer, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		bearer = strings.TrimSpace(bearer)
		if len(r.Header.Values("Authorization")) > 1 || !strings.EqualFold(scheme, "Bearer") || bearer == "" {
			return p, refuse(http.StatusUnauthorized, codeUnauthorised, "A bearer token is required").
				with("WWW-Authenticate", `Bearer realm="powernode"`)
		}
		caller, err := h.Authenticate(r.Context(), bearer)
		var coded *schema.Error
		switch {
		case err == nil:
			p.Caller = caller
		case errors.As(err, &coded) && coded.Code != schema.Internal && coded.Code != schema.Unavailable:
			return p, refuse(http.StatusUnauthorized, codeUnauthorised, "The bearer token is not valid").
				with("WWW-Authenticate", `Bearer realm="powernode", error="invalid_token"`)
		default:
			h.Log.Error().Err(err).Msg("bearer token not checked")
			return p, refuse(http.StatusServiceUnavailable, codeInternal, "The bearer token can't be checked now").with("Retry-After", "1")
		}
	}
	choice, err := choiceOf(r.URL.Query())
	if err != nil {
		return p, refuse(http.StatusBadRequest, codeInvalidParams, "%s", err)
	}
	p.Choice = choice
	p.Caller.ReadOnly = p.Caller.ReadOnly || choice.ReadOnly
	return p, nil
}

// choice reads a request's query: toolsets and read_only, and nothing else.
func choiceOf(query url.Values) (Choice, error) {
	if len(query) == 0 {
		return Choice{}, nil
	}
	for key, values := range query {
		switch {
		case key != "toolsets" && key != "read_only":
			return Choice{}, fmt.Errorf("query key %.64q is not declared: there are toolsets and read_only", key)
		case len(values) != 1:
			return Choice{}, fmt.Errorf("query key %s is given twice", key)
		}
	}
	readOnly := query.Get("read_only")
	if query.Has("read_only") && readOnly != "true" && readOnly != "false" {
		return Choice{}, fmt.Errorf("read_only is true or false (got %.64q)", readOnly)
	}
	return ParseChoice(query.Get("toolsets"), readOnly == "true")
}

// checkTypes holds a request to JSON, and finds out what its answer may be.
func (p *post) checkTypes(r *http.Request) *refusal {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return refuse(http.StatusUnsupportedMediaType, codeInvalidRequest, "Content-Type must be application/json")
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return refuse(http.StatusUnsupportedMediaType, codeInvalidRequest, "Content-Encoding %.64q is not taken", encoding)
	}
	if !p.json && !p.events {
		return refuse(http.StatusNotAcceptable, codeInvalidRequest, "Accept must name application/json and text/event-stream")
	}
	return nil
}

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, *refusal) {
	control := http.NewResponseController(w)
	control.SetReadDeadline(time.Now().Add(bodyWait)) // a connection that can't has none
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return nil, refuse(http.StatusRequestEntityTooLarge, codeInvalidRequest, "A request has at most %d bytes: nothing was changed", maxBody)
	}
	if err != nil {
		return nil, refuse(http.StatusBadRequest, codeParse, "The request's body could not be read")
	}
	control.SetReadDeadline(time.Time{}) // the same
	return raw, nil
}

// take deals with a message that was read.
func (h *endpoint) take(r *http.Request, p *post, principal Principal, e envelope, raw []byte) *refusal {
	session := r.Header.Get(sdk.HeaderSessionID)
	x := &exchange{Principal: principal, envelope: e, meta: readMeta(e.params), client: h.newClient(principal, p)}
	x.client.Initialize()
	version := r.Header.Get(sdk.HeaderProtocolVersion)
	modern := sdk.IsModernProtocol(version) || sdk.IsModernProtocol(x.meta.version)
	switch {
	case modern && e.id != nil && e.method != "":
		if f := h.checkModern(r, x); f != nil {
			return f.to(e.id)
		}
	case !modern:
		if version != "" && !sdk.IsValidProtocolVersion(version) {
			return refuse(http.StatusBadRequest, codeInvalidRequest, "Unsupported protocol version: %.64q", version).to(e.id)
		}
		capabilities, ok := sessionCapabilities(session)
		if session != "" && !ok {
			return refuse(http.StatusNotFound, codeInvalidRequest, "Mcp-Session-Id is not one that this server gave").to(e.id)
		}
		if version == "" {
			version = sdk.ProtocolVersion20250326
		}
		x.client.SetProtocolVersion(version)
		x.client.SetClientCapabilities(capabilities)
	}
	switch {
	case e.method == "":
		h.questions.answered(principal.Caller.ID, e)
	case e.id == nil && e.method == "notifications/cancelled":
		h.posts.cancel(postKey(principal, session, cancelledID(e.params)))
	case e.id == nil:
		h.handle(r.Context(), x, raw)
	default:
		return h.request(r, p, x, session, raw)
	}
	p.finish(http.StatusAccepted, nil)
	return nil
}

// checkModern holds a request of the stateless era to what it must say in headers as well as in its body.
func (h *endpoint) checkModern(r *http.Request, x *exchange) *refusal {
	mismatch := func(format string, args ...any) *refusal {
		return refuse(http.StatusBadRequest, sdk.HEADER_MISMATCH, "Header mismatch: "+format, args...)
	}
	version := r.Header.Get(sdk.HeaderProtocolVersion)
	switch {
	case x.meta.version == "":
		return refuse(http.StatusBadRequest, codeInvalidParams, "Invalid params: _meta misses %s", sdk.MetaKeyProtocolVersion)
	case version == "":
		return mismatch("%s is missing", sdk.HeaderProtocolVersion)
	case version != x.meta.version:
		return mismatch("%s is %.64q, and _meta says %.64q", sdk.HeaderProtocolVersion, version, x.meta.version)
	case r.Header.Get(sdk.HeaderLastEventID) != "":
		return mismatch("%s means nothing: no answer can be resumed", sdk.HeaderLastEventID)
	case !sdk.IsValidProtocolVersion(version):
		return nil // the SDK says which there are
	}
	err := sdk.ValidateStandardHeaders(r.Header.Get, version, sdk.MCPMethod(x.method), x.params)
	if err != nil {
		return mismatch("%s", mismatched(err))
	}
	if x.method == string(sdk.MethodSubscriptionsListen) {
		x.client.listening = x.id
	}
	return nil
}

// request has a request answered, on the one answer or on a stream that ends with it.
func (h *endpoint) request(r *http.Request, p *post, x *exchange, session string, raw []byte) *refusal {
	ctx, end := context.WithCancelCause(r.Context())
	cancel := func() { end(nil) }
	defer cancel()
	kind := Reads
	if x.method == "tools/call" {
		t, f := h.prepareCall(ctx, r, x)
		if f != nil {
			return f
		}
		kind = t.kind(x.call.arguments)
	}
	switch {
	case kind == Writes: // a client that goes away changes nothing of what was begun
		ctx = context.WithoutCancel(ctx)
	default:
		defer h.posts.enter(postKey(x.Principal, session, x.id), cancel)()
	}
	if kind == Waits || x.client.listening != nil {
		defer context.AfterFunc(h.Stopping, func() { end(errStopping) })()
	}
	answer := h.answer(ctx, p, x, raw)
	if answer == nil {
		answer = new(h.failure(x.id, fmt.Errorf("%s has no answer", x.method)))
	}
	if x.method == string(sdk.MethodInitialize) && answer.Error == nil {
		p.w.Header().Set(sdk.HeaderSessionID, newSessionID(x.client.GetClientCapabilities()))
	}
	p.finish(statusOf(x, answer), answer.bytes(h.Server))
	return nil
}

// answer handles a request, and meanwhile sends what the SDK has for its client and shows that the call is alive.
func (h *endpoint) answer(ctx context.Context, p *post, x *exchange, raw []byte) *reply {
	beside, done := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { p.keepAlive(beside, h.keep) })
	if x.client.listening != nil {
		running.Go(func() { x.client.pump(beside) })
	}
	answer := h.handle(ctx, x, raw)
	done()
	running.Wait()
	x.client.leave()
	return answer
}

func (h *endpoint) prepareCall(ctx context.Context, r *http.Request, x *exchange) (*Tool, *refusal) {
	status := http.StatusOK
	if sdk.IsModernProtocol(x.version()) {
		status = http.StatusBadRequest
	}
	c, err := readCall(x.params)
	if err != nil {
		return nil, (&refusal{status: status, err: err.(*ProtocolError)}).to(x.id)
	}
	t, ok := h.tool(c.name)
	if !ok {
		return nil, (&refusal{status: status, err: h.unknown(ctx, x.Principal, c.name)}).to(x.id)
	}
	if status == http.StatusBadRequest {
		lookup := func(name string) (string, bool) { return r.Header.Get(name), len(r.Header.Values(name)) > 0 }
		if err := sdk.ValidateParamHeadersLookup(lookup, &t.Listed, x.params); err != nil {
			return nil, refuse(status, sdk.HEADER_MISMATCH, "Header mismatch: %s", mismatched(err)).to(x.id)
		}
	}
	c.name = t.Listed.Name
	x.call = &c
	return t, nil
}

// statusOf is the status of an answer. In the handshake era an error is an answer like others.
func statusOf(x *exchange, answer *reply) int {
	if answer.Error == nil || !sdk.IsModernProtocol(x.version()) {
		return http.StatusOK
	}
	switch answer.Error.Code {
	case sdk.METHOD_NOT_FOUND:
		return http.StatusNotFound
	case codeParse, codeInvalidRequest, codeInvalidParams, sdk.HEADER_MISMATCH, sdk.MISSING_REQUIRED_CLIENT_CAPABILITY,
		sdk.UNSUPPORTED_PROTOCOL_VERSION:
		return http.StatusBadRequest
	}
	return http.StatusOK
}

// posts are the requests over HTTP that their clients may take back by notifications/cancelled.
type posts struct {
	mu   sync.Mutex
	open map[string]*context.CancelFunc
}

// postKey names a request; empty where it has no session: its id may be another client's too.
func postKey(p Principal, session string, id json.RawMessage) string {
	if session == "" || id == nil {
		return ""
	}
	return p.Caller.ID + "\x00" + session + "\x00" + string(id)
}

func (o *posts) enter(key string, cancel context.CancelFunc) (leave func()) {
	if key == "" {
		return func() {}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.open == nil {
		o.open = map[string]*context.CancelFunc{}
	}
	own := &cancel
	o.open[key] = own
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.open[key] == own {
			delete(o.open, key)
		}
	}
}

func (o *posts) cancel(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if cancel, ok := o.open[key]; ok {
		(*cancel)()
	}
}
