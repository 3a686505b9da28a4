package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	sdk "github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"powernode/tools"
)

const (
	// queued is how many calls of a session wait or run at once; more are read when there is room.
	queued = 10_000
	// reading is how many calls that read run at once.
	reading = 16
)

// DrainWait is how long calls are waited for after the end of input.
const DrainWait = 60 * time.Second

// errUnanswered says that calls were not begun before the wait after the end of input was over.
var errUnanswered = errors.New("calls were still waiting a minute after the end of input: those were not begun")

// session is one client's.
type session struct {
	face   *Face
	caller tools.Caller
	server *server.MCPServer
	client *client
	stream Stream

	stop    context.Context // its end cuts off what waits
	sending sync.Mutex
	ended   context.CancelFunc // the client is gone, or is not waited for any longer
	room    chan struct{}      // a token for each call that waits or runs
	lane    chan *work         // calls that write
	reads   chan struct{}      // a token for each call that reads
	running sync.WaitGroup

	mu       sync.Mutex
	inflight map[string]*work // calls that read, by request id: the client may take them back
}

// work is a call on its way: its message and what was read of it.
type work struct {
	message Message
	id      json.RawMessage
	call    *pending
	cancel  context.CancelFunc // of a call that reads
}

// Serve runs a session until the end of its input, and then until every call has its answer, within a bound. An error
// says that the client went away, or was not waited for any longer. The end of ctx cuts off calls that wait for something
// to happen, and no others: who ends ctx ends the input too.
func (f *Face) Serve(ctx context.Context, caller tools.Caller, choice Choice, stream Stream) error {
	caller.ReadOnly = caller.ReadOnly || choice.ReadOnly
	mcpServer, err := f.server(ctx, caller, choice)
	if err != nil {
		return fmt.Errorf("prepare an MCP session: %w", err)
	}
	stop := ctx
	ctx, ended := context.WithCancel(context.WithoutCancel(ctx))
	defer ended()
	s := &session{face: f, caller: caller, server: mcpServer, client: &client{id: uuid.NewString(), notes: make(chan sdk.JSONRPCNotification, 16)},
		stream: stream, stop: stop, ended: ended, room: make(chan struct{}, queued), lane: make(chan *work, queued),
		reads: make(chan struct{}, reading), inflight: map[string]*work{}}
	if err := mcpServer.RegisterSession(ctx, s.client); err != nil {
		return fmt.Errorf("prepare an MCP session: %w", err)
	}
	defer mcpServer.UnregisterSession(ctx, s.client.SessionID())
	ctx = mcpServer.WithContext(ctx, s.client)
	s.running.Go(func() { s.write(ctx) })
	err = s.receive(ctx)
	close(s.lane)
	return errors.Join(err, s.drain())
}

// receive takes messages until their end.
func (s *session) receive(ctx context.Context) error {
	for {
		m, err := s.stream.Receive()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			s.ended()
			return fmt.Errorf("read a message: %w", err)
		case ctx.Err() != nil:
			return fmt.Errorf("client is gone: %w", ctx.Err())
		}
		s.take(ctx, m)
	}
}

// drain waits for the calls in flight. Past the bound what has not begun is answered so, and what has is waited for: a
// transaction that has begun is never cut off.
func (s *session) drain() error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.running.Wait()
	}()
	bound := time.NewTimer(DrainWait)
	defer bound.Stop()
	select {
	case <-done:
		return nil
	case <-bound.C:
	}
	s.ended()
	<-done
	return errUnanswered
}

// take deals with one message, or puts its call into the lane.
func (s *session) take(ctx context.Context, m Message) {
	if len(m.Raw) > maxMessage {
		s.fail(m, nil, tooLarge())
		return
	}
	e, err := readEnvelope(m.Raw)
	switch {
	case err != nil:
		s.fail(m, e.id, err)
	case e.method == "":
		s.send(m, nil) // an answer to what nobody asked
	case e.method == "notifications/cancelled":
		s.cancel(e.params)
		s.send(m, nil)
	case e.method == "tools/call" && e.id != nil:
		s.takeCall(ctx, m, e)
	default:
		s.answer(m, e.id, s.handle(ctx, m.Raw))
	}
}

func (s *session) takeCall(ctx context.Context, m Message, e envelope) {
	c, err := readCall(e.params)
	if err != nil {
		s.fail(m, e.id, err)
		return
	}
	d, ok := s.face.Platform.Lookup(c.name)
	if !ok {
		s.unknown(ctx, m, e, c.name)
		return
	}
	w := &work{message: m, id: e.id, call: &pending{verb: d.Name(), callID: m.CallID, toolCall: c}}
	select {
	case s.room <- struct{}{}:
	case <-ctx.Done():
		return
	}
	if d.Contract().Annotations.ReadOnly {
		// One that may wait for something takes no turn from the others.
		waits := slices.Contains(d.Contract().Parameters(), "wait_seconds")
		ctx := s.enter(ctx, w)
		s.running.Go(func() { s.read(ctx, w, waits) })
		return
	}
	s.lane <- w // never blocks: the lane holds as many as there is room for
}

// unknown answers a call of no verb, with those that may have been meant.
func (s *session) unknown(ctx context.Context, m Message, e envelope, name string) {
	_, err := s.face.Platform.Call(ctx, s.caller, tools.Request{Verb: name})
	var unknown *tools.UnknownVerbError
	p := &protocolError{Code: codeInvalidParams, Message: fmt.Sprintf("Unknown tool: %.64q", name)}
	if errors.As(err, &unknown) && len(unknown.Candidates) > 0 {
		p.Message += " (did you mean " + unknown.Candidates[0] + "?)"
		p.Data = map[string]any{"candidates": unknown.Candidates}
	}
	s.fail(m, e.id, p)
}

// write runs the calls of the lane, one by one.
func (s *session) write(ctx context.Context) {
	for w := range s.lane {
		if ctx.Err() != nil {
			s.fail(w.message, w.id, &protocolError{Code: codeNotBegun, Message: "The session ended before this call began: nothing was changed"})
		} else {
			s.run(context.WithoutCancel(ctx), w)
		}
		<-s.room
	}
}

func (s *session) read(ctx context.Context, w *work, waits bool) {
	defer func() { <-s.room }()
	defer s.leave(w)
	if waits {
		defer context.AfterFunc(s.stop, w.cancel)()
	} else {
		s.reads <- struct{}{}
		defer func() { <-s.reads }()
	}
	s.run(ctx, w)
}

// run hands a call to the SDK, in words that leave nothing to its decoding.
func (s *session) run(ctx context.Context, w *work) {
	params := map[string]any{"name": w.call.verb, "arguments": struct{}{}}
	if w.call.meta != nil {
		params["_meta"] = w.call.meta
	}
	plain, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
	if err != nil {
		s.fail(w.message, w.id, err)
		return
	}
	s.answer(w.message, w.id, s.handle(context.WithValue(ctx, pendingKey{}, w.call), plain))
}

// handle is the SDK's answer to a message, nil for a notification. A panic costs one answer, not the session.
func (s *session) handle(ctx context.Context, raw json.RawMessage) (answer any) {
	defer func() {
		if r := recover(); r != nil {
			s.face.Log.Error().Interface("panic", r).Bytes("stack", debug.Stack()).Msg("MCP message failed")
			answer = &protocolError{Code: codeInternal, Message: "Internal error"}
		}
	}()
	return s.server.HandleMessage(ctx, raw)
}

// answer sends the SDK's answer under the id as the client wrote it: the SDK would round a large one.
func (s *session) answer(m Message, id json.RawMessage, answer any) {
	switch a := answer.(type) {
	case nil:
		s.send(m, nil)
	case sdk.JSONRPCResponse:
		s.encode(m, reply{ID: id, Result: a.Result})
	case sdk.JSONRPCError:
		s.encode(m, reply{ID: id, Error: a.Error})
	case *protocolError:
		s.fail(m, id, a)
	default:
		s.fail(m, id, fmt.Errorf("answer of type %T", answer))
	}
}

// fail sends a protocol error; id nil is null.
func (s *session) fail(m Message, id json.RawMessage, err error) {
	var p *protocolError
	if !errors.As(err, &p) {
		s.face.Log.Error().Err(err).Msg("MCP message failed")
		p = &protocolError{Code: codeInternal, Message: "Internal error"}
	}
	s.encode(m, reply{ID: id, Error: p})
}

// reply is a JSON-RPC answer: a result or an error. ID nil is null.
type reply struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  any             `json:"result,omitempty"`
	Error   any             `json:"error,omitempty"`
}

func (s *session) encode(m Message, answer reply) {
	answer.JSONRPC = "2.0"
	out, err := json.Marshal(answer)
	if err != nil {
		s.face.Log.Error().Err(err).Msg("MCP answer not encoded")
		out = []byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"Internal error"}}`)
	}
	s.send(m, out)
}

// send hands an answer to the stream, after the notifications that its making caused. A client that takes none is gone.
func (s *session) send(m Message, answer []byte) {
	s.sending.Lock()
	defer s.sending.Unlock()
	for {
		select {
		case note := <-s.client.notes:
			raw, err := json.Marshal(note)
			if err == nil {
				err = s.stream.Send("", raw)
			}
			if err != nil {
				s.ended()
			}
			continue
		default:
		}
		break
	}
	if err := s.stream.Send(m.CallID, answer); err != nil {
		s.ended()
	}
}

// enter notes a call that reads; the context is its own.
func (s *session) enter(ctx context.Context, w *work) context.Context {
	ctx, w.cancel = context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inflight[string(w.id)] = w
	return ctx
}

func (s *session) leave(w *work) {
	w.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inflight[string(w.id)] == w { // a client may have used an id twice
		delete(s.inflight, string(w.id))
	}
}

// cancel ends a call that reads. One that writes is left alone: whether it was done must not depend on a race.
func (s *session) cancel(params json.RawMessage) {
	members, err := fields(params)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range members {
		if w, ok := s.inflight[string(m.raw)]; ok && m.key == "requestId" {
			w.cancel()
		}
	}
}

// client is the SDK's view of the session.
type client struct {
	id          string
	initialised atomic.Bool
	notes       chan sdk.JSONRPCNotification
}

var _ server.ClientSession = (*client)(nil)

func (c *client) Initialize()                                         { c.initialised.Store(true) }
func (c *client) Initialized() bool                                   { return c.initialised.Load() }
func (c *client) NotificationChannel() chan<- sdk.JSONRPCNotification { return c.notes }
func (c *client) SessionID() string                                   { return c.id }
