package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	sdk "github.com/mark3labs/mcp-go/mcp"
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

// errStopping cuts off what waits, because the process is told to end.
var errStopping = errors.New("the control plane stops")

// session is one client's on a stream.
type session struct {
	server    *Server
	principal Principal
	client    *client
	stream    Stream

	stop    context.Context // its end cuts off what waits
	sending sync.Mutex
	ended   context.CancelFunc // the client is gone, or is not waited for any longer
	room    chan struct{}      // a token for each call that waits or runs
	lane    chan *work         // calls that write
	reads   chan struct{}      // a token for each call that reads
	running sync.WaitGroup

	mu       sync.Mutex
	inflight map[string]*work // requests that may be taken back, by id
}

// work is a request on its way that is not answered at once.
type work struct {
	message  Message
	exchange *exchange
	cancel   context.CancelCauseFunc // of one that may be taken back; nil: its client has
	taken    bool                    // back: nobody waits for its answer; guarded by the session's mu
}

// Serve runs a session until the end of its input, and then until every call has its answer, within a bound. An error
// says that the client went away, or was not waited for any longer. The end of ctx cuts off calls that wait for something
// to happen, and no others: who ends ctx ends the input too.
func (s *Server) Serve(ctx context.Context, p Principal, stream Stream) error {
	s.prepare()
	stop := ctx
	ctx, ended := context.WithCancel(context.WithoutCancel(ctx))
	defer ended()
	ss := &session{server: s, principal: p, stream: stream, stop: stop, ended: ended, room: make(chan struct{}, queued),
		lane: make(chan *work, queued), reads: make(chan struct{}, reading), inflight: map[string]*work{}}
	ss.client = s.newClient(p, ss)
	ss.client.gone = make(chan struct{})
	defer ss.client.leave()
	ss.running.Go(func() { ss.write(ctx) })
	err := ss.receive(ctx)
	close(ss.client.gone)
	close(ss.lane)
	return errors.Join(err, ss.drain())
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

// take deals with one message, or puts its call on its way.
func (s *session) take(ctx context.Context, m Message) {
	if len(m.Raw) > maxMessage {
		s.answer(m, s.server.failure(nil, tooLarge()))
		return
	}
	e, err := readEnvelope(m.Raw)
	if err != nil && (e.id != nil || e.method == "") {
		s.answer(m, s.server.failure(e.id, err))
		return
	}
	switch {
	case e.method == "":
		s.server.questions.answered(s.principal.Caller.ID, e)
		s.send(m, nil)
	case err != nil: // a notification that is not understood
		s.send(m, nil)
	case e.method == "notifications/cancelled":
		s.cancel(e.params)
		s.send(m, nil)
	case e.method == "tools/call" && e.id != nil:
		s.takeCall(ctx, m, e)
	case beside(e.method) && e.id != nil:
		s.takeRequest(ctx, m, e)
	default:
		s.respond(ctx, m, s.exchange(m, e, nil))
	}
}

// beside says whether a request may take its time: it is answered beside others.
func beside(method string) bool {
	switch sdk.MCPMethod(method) {
	case sdk.MethodResourcesRead, sdk.MethodPromptsGet, sdk.MethodCompletionComplete, sdk.MethodSubscriptionsListen:
		return true
	}
	return false
}

// exchange is a message with what its handler needs to know. A request of the stateless era has nothing of a session.
func (s *session) exchange(m Message, e envelope, call *toolCall) *exchange {
	x := &exchange{Principal: s.principal, envelope: e, meta: readMeta(e.params), callID: m.CallID, fresh: m.Fresh, call: call, client: s.client}
	if sdk.IsModernProtocol(x.meta.version) {
		x.client = s.server.newClient(s.principal, s)
		x.client.gone = s.client.gone
		if e.method == string(sdk.MethodSubscriptionsListen) {
			x.client.listening = e.id
		}
	}
	return x
}

func (s *session) takeCall(ctx context.Context, m Message, e envelope) {
	c, err := readCall(e.params)
	if err != nil {
		s.answer(m, s.server.failure(e.id, err))
		return
	}
	t, ok := s.server.tool(c.name)
	if !ok {
		s.answer(m, s.server.failure(e.id, s.server.unknown(ctx, s.principal, c.name)))
		return
	}
	c.name = t.Listed.Name
	w := &work{message: m, exchange: s.exchange(m, e, &c)}
	select {
	case s.room <- struct{}{}:
	case <-ctx.Done():
		return
	}
	kind := t.kind(c.arguments)
	if kind == Writes {
		s.lane <- w // never blocks: the lane holds as many as there is room for
		return
	}
	// One that may wait for something takes no turn from the others.
	ctx = s.enter(ctx, w)
	s.running.Go(func() { s.read(ctx, w, kind) })
}

func (t *Tool) kind(arguments json.RawMessage) Kind {
	if t.Kind == nil {
		return Writes
	}
	return t.Kind(arguments)
}

// takeRequest puts a request that is no call on its way.
func (s *session) takeRequest(ctx context.Context, m Message, e envelope) {
	select {
	case s.room <- struct{}{}:
	case <-ctx.Done():
		return
	}
	kind := Reads
	if e.method == string(sdk.MethodSubscriptionsListen) {
		kind = Waits
	}
	w := &work{message: m, exchange: s.exchange(m, e, nil)}
	ctx = s.enter(ctx, w)
	s.running.Go(func() { s.read(ctx, w, kind) })
}

// write runs the calls of the lane, one by one.
func (s *session) write(ctx context.Context) {
	for w := range s.lane {
		if ctx.Err() != nil {
			s.answer(w.message, s.server.failure(w.exchange.id, notBegun()))
		} else {
			s.respond(context.WithoutCancel(ctx), w.message, w.exchange)
		}
		<-s.room
	}
}

func notBegun() *ProtocolError {
	return &ProtocolError{Code: codeNotBegun, Message: "The session ended before this call began: nothing was changed"}
}

func (s *session) read(ctx context.Context, w *work, kind Kind) {
	defer func() { <-s.room }()
	defer s.leave(w)
	if kind == Waits {
		defer context.AfterFunc(s.stop, func() { w.cancel(errStopping) })()
	} else {
		s.reads <- struct{}{}
		defer func() { <-s.reads }()
	}
	if w.exchange.client.listening == nil {
		answer := s.server.handle(ctx, w.exchange, w.message.Raw)
		if s.takenBack(w) {
			answer = nil
		}
		s.deliver(w.message, answer)
		return
	}
	// Nothing ends a subscription but its client: the end of its input does.
	listening, cancel := context.WithCancel(ctx)
	defer cancel()
	var pumping sync.WaitGroup
	pumping.Go(func() { w.exchange.client.pump(listening) })
	pumping.Go(func() {
		select {
		case <-s.client.gone:
			w.cancel(nil)
		case <-listening.Done():
		}
	})
	answer := s.server.handle(ctx, w.exchange, w.message.Raw)
	cancel()
	pumping.Wait()
	w.exchange.client.leave()
	s.deliver(w.message, answer)
}

// respond has a message handled, and sends the answer.
func (s *session) respond(ctx context.Context, m Message, x *exchange) {
	s.deliver(m, s.server.handle(ctx, x, m.Raw))
}

func (s *session) deliver(m Message, answer *reply) {
	if answer == nil {
		s.send(m, nil)
		return
	}
	s.answer(m, *answer)
}

func (s *session) answer(m Message, r reply) { s.send(m, r.bytes(s.server)) }

// send hands an answer to the stream. A client that takes none is gone.
func (s *session) send(m Message, answer []byte) {
	s.sending.Lock()
	defer s.sending.Unlock()
	if err := s.stream.Send(m.CallID, answer); err != nil {
		s.ended()
	}
}

// tell hands on what answers no message.
func (s *session) tell(note []byte) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	err := s.stream.Send("", note)
	if err != nil {
		s.ended()
	}
	return err
}

// enter notes a request that may be taken back; the context is its own.
func (s *session) enter(ctx context.Context, w *work) context.Context {
	ctx, w.cancel = context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inflight[string(w.exchange.id)] = w
	return ctx
}

func (s *session) leave(w *work) {
	w.cancel(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inflight[string(w.exchange.id)] == w { // a client may have used an id twice
		delete(s.inflight, string(w.exchange.id))
	}
}

// takenBack says whether a client wants no answer any more: the protocol has none for it then.
func (s *session) takenBack(w *work) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return w.taken
}

// cancel ends a request that reads. A call that writes is left alone: whether it was done must not depend on a race.
func (s *session) cancel(params json.RawMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w, ok := s.inflight[string(cancelledID(params))]; ok {
		w.taken = true
		w.cancel(nil)
	}
}

// cancelledID is the request that notifications/cancelled takes back; nil: none.
func cancelledID(params json.RawMessage) json.RawMessage {
	members, err := fields(params)
	if err != nil {
		return nil
	}
	for _, m := range members {
		if m.key == "requestId" {
			return m.raw
		}
	}
	return nil
}
