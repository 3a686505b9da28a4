package mcp

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	sdk "github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// questionWait bounds how long a client's answer to a question is waited for.
const questionWait = 5 * time.Minute

// peer takes what is sent to a client beside answers: notifications, and questions of the handshake era.
type peer interface {
	tell(note []byte) error
}

// client is a client as the SDK and handlers see it: of a session, or of one request where there is none.
type client struct {
	id        string
	server    *Server
	principal Principal
	peer      peer
	notes     chan sdk.JSONRPCNotification // of the SDK's own making

	mu           sync.Mutex
	initialised  bool
	version      string // negotiated; empty: the handshake's first
	capabilities sdk.ClientCapabilities
	level        sdk.LoggingLevel
	watched      map[string]bool
	listening    json.RawMessage // id of the subscriptions/listen request that this client is for; nil: none
	gone         chan struct{}   // nil, or closed when no more answers come from it
}

var (
	_ server.SessionWithClientInfo            = (*client)(nil)
	_ server.SessionWithLogging               = (*client)(nil)
	_ server.SessionWithElicitation           = (*client)(nil)
	_ server.SessionWithSampling              = (*client)(nil)
	_ server.SessionWithRoots                 = (*client)(nil)
	_ server.SessionWithProtocolVersion       = (*client)(nil)
	_ server.SessionWithResourceSubscriptions = (*client)(nil)
)

func (s *Server) newClient(p Principal, to peer) *client {
	return &client{id: rand.Text(), server: s, principal: p, peer: to, notes: make(chan sdk.JSONRPCNotification, 16),
		watched: map[string]bool{}}
}

// flush sends what the SDK has put aside for the client.
func (c *client) flush() {
	for {
		select {
		case note := <-c.notes:
			c.send(note)
		default:
			return
		}
	}
}

// pump is flush until the context ends, for a request that is not answered meanwhile.
func (c *client) pump(ctx context.Context) {
	for {
		select {
		case note := <-c.notes:
			c.send(note)
		case <-ctx.Done():
			return
		}
	}
}

// send tells the client. What can't be sent is lost: the answer fails as well then, or the client takes nothing else.
func (c *client) send(message any) {
	if err := c.tell(message); err != nil {
		c.server.Log.Debug().Err(err).Msg("MCP notification not sent")
	}
}

func (c *client) tell(message any) error {
	raw, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	return c.peer.tell(raw)
}

// declared is what the client of a request can do: in the stateless era each request says it.
func (c *client) declared(ctx context.Context) sdk.ClientCapabilities {
	if info := server.RequestProtocolInfoFromContext(ctx); info != nil && info.Modern {
		if info.ClientCapabilities != nil {
			return *info.ClientCapabilities
		}
		return sdk.ClientCapabilities{}
	}
	return c.GetClientCapabilities()
}

// note is a notification or a question on its way to a client.
type note struct {
	JSONRPC string `json:"jsonrpc"`
	ID      string `json:"id,omitempty"` // of a question
	Method  string `json:"method"`
	Params  any    `json:"params,omitempty"`
}

// Progress tells how far a call is, where the client asked to be told. total 0: not known.
func (c *Call) Progress(done, total float64, message string) {
	if c.meta.progress == nil {
		return
	}
	c.client.send(note{JSONRPC: "2.0", Method: "notifications/progress", Params: struct {
		Token    json.RawMessage `json:"progressToken"`
		Progress float64         `json:"progress"`
		Total    float64         `json:"total,omitempty"`
		Message  string          `json:"message,omitempty"`
	}{c.meta.progress, done, total, message}})
}

// AsksProgress says whether the client wants to be told how far the call is.
func (c *Call) AsksProgress() bool { return c.meta.progress != nil }

// AsksLogs says whether the client has set a level for log messages: in the handshake era it is sent some without, too.
func (c *Call) AsksLogs() bool { return c.logLevel() != "" }

// Log sends a log message, where its level is one that the client takes.
func (c *Call) Log(level sdk.LoggingLevel, logger string, data any) {
	least := c.logLevel()
	if least == "" && !c.Modern() {
		least = sdk.LoggingLevelDebug
	}
	if !level.ShouldSendTo(least) {
		return
	}
	c.client.send(note{JSONRPC: "2.0", Method: "notifications/message",
		Params: map[string]any{"level": level, "logger": logger, "data": data}})
}

func (c *Call) logLevel() sdk.LoggingLevel {
	if c.Modern() {
		return c.meta.logLevel
	}
	return c.client.GetLogLevel()
}

// errStateless refuses a question that would be a request of its own: the stateless era has none.
var errStateless = errors.New("in the stateless era a result asks the client")

// Elicit asks the client's user, and waits. In the stateless era a result asks instead.
func (c *Call) Elicit(ctx context.Context, params sdk.ElicitationParams) (*sdk.ElicitationResult, error) {
	switch {
	case c.capabilities.Elicitation == nil:
		return nil, MissingCapability("elicitation")
	case c.Modern():
		return nil, errStateless
	}
	return c.client.RequestElicitation(ctx, sdk.ElicitationRequest{Params: params})
}

// Sample asks the client's model, and waits. In the stateless era a result asks instead.
func (c *Call) Sample(ctx context.Context, params sdk.CreateMessageParams) (*sdk.CreateMessageResult, error) {
	switch {
	case c.capabilities.Sampling == nil:
		return nil, MissingCapability("sampling")
	case c.Modern():
		return nil, errStateless
	}
	return c.client.RequestSampling(ctx, sdk.CreateMessageRequest{CreateMessageParams: params})
}

// Shows says whether something can be put before the client's user beside the answer: in the stateless era a result would
// have to ask for it, and hold up the answer.
func (c *Call) Shows() bool { return !c.Modern() && shows(c.capabilities) }

// shows says whether a client takes forms: one that names no kind of elicitation does.
func shows(c sdk.ClientCapabilities) bool {
	return c.Elicitation != nil && (c.Elicitation.Form != nil || c.Elicitation.URL == nil)
}

// Show puts a text before the client's user and waits for no answer.
func (c *Call) Show(text string) {
	c.client.send(note{JSONRPC: "2.0", ID: rand.Text(), Method: string(sdk.MethodElicitationCreate), Params: sdk.ElicitationParams{
		Mode: sdk.ElicitationModeForm, Message: text, RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{}}}})
}

// questions are those that clients have not answered yet. Their ids can't be guessed, so an answer needs no session.
type questions struct {
	mu   sync.Mutex
	open map[string]question
}

type question struct {
	caller string
	answer chan envelope // takes one without waiting
}

func (q *questions) add(caller string) (id string, answer <-chan envelope) {
	ch := make(chan envelope, 1)
	id = rand.Text()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open == nil {
		q.open = map[string]question{}
	}
	q.open[id] = question{caller, ch}
	return id, ch
}

func (q *questions) drop(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.open, id)
}

// answered hands a client's answer to who waits for it; one to what nobody asked is taken in silence.
func (q *questions) answered(caller string, e envelope) {
	var id string
	if json.Unmarshal(e.id, &id) != nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if asked, ok := q.open[id]; ok && asked.caller == caller {
		delete(q.open, id)
		asked.answer <- e
	}
}

// errGone says that the client ended before it answered a question.
var errGone = errors.New("the client answers no more")

// ask sends a question and waits for its answer.
func (c *client) ask(ctx context.Context, method sdk.MCPMethod, params, into any) error {
	ctx, cancel := context.WithTimeout(ctx, questionWait)
	defer cancel()
	id, answer := c.server.questions.add(c.principal.Caller.ID)
	defer c.server.questions.drop(id)
	if err := c.tell(note{JSONRPC: "2.0", ID: id, Method: string(method), Params: params}); err != nil {
		return fmt.Errorf("ask the client: %w", err)
	}
	select {
	case e := <-answer:
		if e.failed != nil {
			var failed ProtocolError
			if err := json.Unmarshal(e.failed, &failed); err != nil {
				return fmt.Errorf("ask the client: %w", err)
			}
			return fmt.Errorf("the client answers %s with an error: %.200s", method, failed.Message)
		}
		if err := json.Unmarshal(e.result, into); err != nil {
			return fmt.Errorf("read the client's answer to %s: %w", method, err)
		}
		return nil
	case <-c.gone:
		return errGone
	case <-ctx.Done():
		return fmt.Errorf("wait for the client's answer to %s: %w", method, ctx.Err())
	}
}

// RequestElicitation implements the SDK's session.
func (c *client) RequestElicitation(ctx context.Context, request sdk.ElicitationRequest) (*sdk.ElicitationResult, error) {
	var result sdk.ElicitationResult
	if err := c.ask(ctx, sdk.MethodElicitationCreate, request.Params, &result); err != nil {
		return nil, err
	}
	return &result, nil
}

// RequestSampling implements the SDK's session.
func (c *client) RequestSampling(ctx context.Context, request sdk.CreateMessageRequest) (*sdk.CreateMessageResult, error) {
	var result sdk.CreateMessageResult
	if err := c.ask(ctx, sdk.MethodSamplingCreateMessage, request.CreateMessageParams, &result); err != nil {
		return nil, err
	}
	return &result, nil
}

// ListRoots implements the SDK's session.
func (c *client) ListRoots(ctx context.Context, _ sdk.ListRootsRequest) (*sdk.ListRootsResult, error) {
	var result sdk.ListRootsResult
	if err := c.ask(ctx, sdk.MethodListRoots, nil, &result); err != nil {
		return nil, err
	}
	return &result, nil
}

// Initialize, and the methods below, implement the SDK's session.
func (c *client) Initialize() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.initialised = true
}

func (c *client) Initialized() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.initialised
}

func (c *client) NotificationChannel() chan<- sdk.JSONRPCNotification { return c.notes }
func (c *client) SessionID() string                                   { return c.id }
func (c *client) GetClientInfo() sdk.Implementation                   { return sdk.Implementation{} }
func (c *client) SetClientInfo(sdk.Implementation)                    {}

func (c *client) GetClientCapabilities() sdk.ClientCapabilities {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.capabilities
}

func (c *client) SetClientCapabilities(declared sdk.ClientCapabilities) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.capabilities = declared
}

func (c *client) ProtocolVersion() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.version
}

// SetProtocolVersion is told what initialize has negotiated.
func (c *client) SetProtocolVersion(version string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version = version
}

func (c *client) SetLogLevel(level sdk.LoggingLevel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.level = level
}

func (c *client) GetLogLevel() sdk.LoggingLevel {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.level
}

// watching are the clients that have subscribed to resources.
type watching struct {
	mu      sync.Mutex
	clients map[*client]bool
}

// Updated tells those who have subscribed to a resource that it has changed.
func (s *Server) Updated(uri string) {
	s.watching.mu.Lock()
	var tell []*client
	for c := range s.watching.clients {
		if c.IsSubscribedToResource(uri) {
			tell = append(tell, c)
		}
	}
	s.watching.mu.Unlock()
	for _, c := range tell {
		params := map[string]any{"uri": uri}
		if c.listening != nil {
			params["_meta"] = map[string]any{sdk.MetaKeySubscriptionID: c.listening}
		}
		c.send(note{JSONRPC: "2.0", Method: "notifications/resources/updated", Params: params})
	}
}

func (c *client) SubscribeToResource(uri string) {
	c.mu.Lock()
	c.watched[uri] = true
	c.mu.Unlock()
	w := &c.server.watching
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.clients == nil {
		w.clients = map[*client]bool{}
	}
	w.clients[c] = true
}

func (c *client) UnsubscribeFromResource(uri string) {
	c.mu.Lock()
	delete(c.watched, uri)
	none := len(c.watched) == 0
	c.mu.Unlock()
	if none {
		c.leave()
	}
}

// leave ends a client's subscriptions.
func (c *client) leave() {
	w := &c.server.watching
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.clients, c)
}

func (c *client) SubscribedResources() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for uri := range c.watched {
		all = append(all, uri)
	}
	return all
}

func (c *client) IsSubscribedToResource(uri string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.watched[uri]
}
