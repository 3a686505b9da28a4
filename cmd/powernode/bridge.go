package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"powernode/schema"
	"powernode/tools/mcp"
)

const (
	// unanswered is how many messages may wait for their answers; more are read when there is room.
	unanswered = 10_000
	// bridgeWait is how long answers are waited for after the end of input: longer than serve's own bound.
	bridgeWait = 75 * time.Second
	// maxFruitless is how many control planes may end in a row without any answer.
	maxFruitless = 20
	// freshSession is the parameter that says of a session that nothing was sent in another before.
	freshSession = "fresh"
	// replayID is the id of a message that tells a new serve what the one before was told; its answer is known.
	replayID = "replay"
)

// errClientGone says that nobody takes answers any more.
var errClientGone = errors.New("the client takes no answers any more")

// bridge carries the messages of one MCP client to a control plane and the answers back. It looks into no message but to
// find the opening of the session. A serve that dies is started again, and gets what has no answer yet under the same call
// ids: it answers what the one before has done, and does the rest.
type bridge struct {
	dir    stateDir
	query  url.Values
	token  string // of a person, or of one narrowed; empty: the account's agent
	in     *bufio.Reader
	out    io.Writer
	errOut io.Writer
	prefix string // of the call ids: this process's own
	again  bool   // this is no longer the first session: what is sent may have been sent before

	mu      sync.Mutex
	changed *sync.Cond
	waiting []*message // in the order of arrival; those in front have no answer yet
	first   int        // the number of waiting[0]
	byID    map[string]*message
	opening []frame // initialize, what followed it and the level of log messages, once answered
	ended   bool    // no more input
	broken  bool    // the connection
	failed  error   // the client is gone, or the wait is over
	room    chan struct{}
}

type message struct {
	frame
	answered bool
	sent     bool // to a control plane: it may have been done
}

func newBridge(dir stateDir, query url.Values, token string, in io.Reader, out, errOut io.Writer) *bridge {
	b := &bridge{dir: dir, query: query, token: token, in: bufio.NewReaderSize(in, 64<<10), out: out, errOut: errOut, prefix: rand.Text(),
		byID: map[string]*message{}, room: make(chan struct{}, unanswered)}
	b.changed = sync.NewCond(&b.mu)
	return b
}

// run carries messages until the input has ended and each has its answer. The reader is not waited for: it may hang in a
// read of the client's, and ends with the process.
func (b *bridge) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { b.fail(ctx.Err()) })()
	go b.read()
	fruitless := 0 // connections in a row that brought no answer
	for {
		more, err := b.await()
		if !more {
			return err
		}
		answered, err := b.session(ctx)
		if answered {
			fruitless = 0
		}
		if err == nil {
			if fruitless++; answered || fruitless < maxFruitless {
				continue
			}
			err = fmt.Errorf("it ended %d times without an answer; see %s", fruitless, b.dir.logFile())
		}
		fmt.Fprintln(b.errOut, "powernode:", err)
		b.giveUp(err)
	}
}

// read takes the client's lines until their end.
func (b *bridge) read() {
	for n := 0; ; {
		line, err := mcp.ReadLine(b.in)
		if len(line) > 0 {
			n++
			b.room <- struct{}{}
			b.add(frame{id: b.prefix + "-" + strconv.Itoa(n), message: line})
		}
		if err != nil {
			break
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	b.changed.Broadcast()
	time.AfterFunc(bridgeWait, func() { b.fail(errors.New("not every message was answered in time after the end of input")) })
}

func (b *bridge) add(f frame) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := &message{frame: f}
	b.waiting, b.byID[f.id] = append(b.waiting, m), m
	b.changed.Broadcast()
}

// fail ends the bridge; the first reason stands.
func (b *bridge) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failed == nil {
		b.failed = err
	}
	b.changed.Broadcast()
}

// await waits until there is something to carry. An idle bridge holds no broken connection against anybody: powernode
// stop ends a control plane, and only a further message starts one again.
func (b *bridge) await() (more bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.failed == nil && len(b.waiting) == 0 && !b.ended {
		b.changed.Wait()
	}
	b.broken = false
	return b.failed == nil && len(b.waiting) > 0, b.failed
}

// session finds or starts the control plane, and carries messages and answers until the connection breaks or all is done.
// An error says that there is no control plane to be had; one that dies is none.
func (b *bridge) session(ctx context.Context) (answered bool, err error) {
	conn, err := connectControl(ctx, b.dir)
	if err != nil {
		return false, err
	}
	c := &bridgeConn{UnixConn: conn, in: bufio.NewReaderSize(conn, 64<<10), out: bufio.NewWriterSize(conn, 64<<10)}
	query := maps.Clone(b.query)
	query.Set(freshSession, strconv.FormatBool(!b.again))
	b.again = true
	refused, err := c.upgrade(query, b.token)
	if err != nil {
		c.Close() // it broke
		return false, nil
	}
	if refused != nil {
		return false, errors.Join(refused, c.Close())
	}
	return b.attend(c), nil
}

// refusedSession is the control plane's word that it opens no session, as of a token that is none.
type refusedSession struct{ error }

func (e *refusedSession) Unwrap() error { return e.error }

type bridgeConn struct {
	*net.UnixConn
	in  *bufio.Reader
	out *bufio.Writer
}

// upgrade turns the connection into one of frames. An error is the connection's; a refusal is the control plane's word.
func (c *bridgeConn) upgrade(query url.Values, token string) (refused, err error) {
	request := &http.Request{Method: http.MethodPost, URL: &url.URL{Path: "/v1/mcp", RawQuery: query.Encode()}, Host: "powernode",
		Header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {bridgeProtocol}}}
	if token != "" {
		request.Header.Set(tokenHeader, token)
	}
	if err = request.Write(c); err != nil {
		return nil, fmt.Errorf("open the session: %w", err)
	}
	answer, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return nil, fmt.Errorf("open the session: %w", err)
	}
	if answer.StatusCode == http.StatusSwitchingProtocols {
		return nil, nil
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, 4096))
	if err != nil {
		return nil, fmt.Errorf("open the session: %w", err)
	}
	return &refusedSession{refusalFrom(answer.Status, text)}, nil
}

// attend is session on an open connection. It says whether there was any answer.
func (b *bridge) attend(c *bridgeConn) (answered bool) {
	var sending sync.WaitGroup
	sending.Go(func() {
		if !b.send(c) {
			c.Close() // it is broken, or nobody needs it
		}
	})
	answered = b.receive(c)
	b.mu.Lock()
	b.broken = true
	b.changed.Broadcast()
	b.mu.Unlock()
	sending.Wait()
	c.Close() // it is broken, or all was said
	return answered
}

// send sends the opening again, and then what has no answer, in the order of arrival. It ends the connection's one side
// when all is sent and nothing more comes; false says that the connection is of no use.
func (b *bridge) send(c *bridgeConn) bool {
	b.mu.Lock()
	opening := b.opening
	b.mu.Unlock()
	for _, f := range opening {
		if writeFrame(c.out, frame{id: replayID, message: f.message}) != nil {
			return false
		}
	}
	for at := 0; ; {
		m, next, state := b.next(at)
		switch state {
		case carry:
			if writeFrame(c.out, m.frame) != nil {
				return false
			}
			at = next
		case flush:
			if c.out.Flush() != nil {
				return false
			}
			b.awaitAfter(at)
		case done:
			return c.out.Flush() == nil && c.CloseWrite() == nil
		case stopped:
			return false
		}
	}
}

type sendState int

const (
	carry   sendState = iota // there is a message
	flush                    // there is none now
	done                     // there will be none
	stopped                  // the connection broke, or the bridge ends
)

// next is the first message from the given number on that has no answer.
func (b *bridge) next(at int) (*message, int, sendState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken || b.failed != nil {
		return nil, at, stopped
	}
	for at = max(at, b.first); at < b.first+len(b.waiting); at++ {
		if m := b.waiting[at-b.first]; !m.answered {
			m.sent = true
			return m, at + 1, carry
		}
	}
	if b.ended {
		return nil, at, done
	}
	return nil, at, flush
}

// awaitAfter waits for a message from the given number on, or for an end.
func (b *bridge) awaitAfter(at int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.broken && b.failed == nil && !b.ended && b.first+len(b.waiting) <= at {
		b.changed.Wait()
	}
}

// receive hands answers to the client until the connection ends.
func (b *bridge) receive(c *bridgeConn) (any bool) {
	for {
		f, err := readFrame(c.in)
		if err != nil {
			return any
		}
		if f.id == replayID {
			continue
		}
		if any = true; !b.answer(f) {
			return any
		}
	}
}

// answer hands one answer to the client. It is a message's only one: of two connections one counts.
func (b *bridge) answer(f frame) bool {
	b.mu.Lock()
	m, known := b.byID[f.id]
	b.mu.Unlock()
	if !known && f.id != noteID {
		return true
	}
	if len(f.message) > 0 {
		if _, err := b.out.Write(append(f.message, '\n')); err != nil {
			b.fail(errClientGone)
			return false
		}
	}
	if known {
		b.settle(m)
	}
	return true
}

// settle strikes a message off, and keeps it where it opened the session.
func (b *bridge) settle(m *message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m.answered = true
	delete(b.byID, m.id)
	for len(b.waiting) > 0 && b.waiting[0].answered {
		b.waiting[0] = nil
		b.waiting = b.waiting[1:]
		b.first++
	}
	switch openingOf(m.message) {
	case "initialize":
		b.opening = []frame{m.frame}
	case "notifications/initialized":
		b.opening = append(slices.Clip(b.opening[:min(len(b.opening), 1)]), m.frame)
	case "logging/setLevel": // a new serve starts without one
		b.opening = append(slices.Clip(b.opening[:min(len(b.opening), 2)]), m.frame)
	}
	b.changed.Broadcast()
	<-b.room
}

// unserved is the error that answers a message which no control plane takes.
func (m *message) unserved(cause error) map[string]any {
	code, text := -32000, "The control plane can't be reached: "+cause.Error()
	var refused *refusedSession
	if errors.As(cause, &refused) {
		text = "The control plane refused the session: " + cause.Error()
		if schema.CodeOf(cause) == schema.PermissionDenied {
			code = -32001
		}
	}
	if m.sent {
		return map[string]any{"code": code, "message": text + ". This was sent before and may have been done: read before you repeat it."}
	}
	return map[string]any{"code": code, "message": text + ". Nothing was done."}
}

// giveUp answers what waits with an error, because no control plane can be reached.
func (b *bridge) giveUp(cause error) {
	b.mu.Lock()
	waiting := append([]*message(nil), b.waiting...) // what it says is this goroutine's: nothing is being sent
	b.mu.Unlock()
	for _, m := range waiting {
		if m.answered {
			continue
		}
		var head struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
		}
		var out []byte
		if json.Unmarshal(m.message, &head) == nil && head.ID != nil && head.Method != "" {
			out, _ = json.Marshal(map[string]any{"jsonrpc": "2.0", "id": head.ID, "error": m.unserved(cause)}) // these types encode
		}
		if !b.answer(frame{id: m.id, message: out}) {
			return
		}
	}
}

// openingOf is a message's method, where it may be one that opens a session.
func openingOf(raw []byte) string {
	if !bytes.Contains(raw, []byte("initialize")) && !bytes.Contains(raw, []byte("setLevel")) {
		return ""
	}
	var head struct {
		Method string `json:"method"`
	}
	if json.Unmarshal(raw, &head) != nil {
		return ""
	}
	return head.Method
}
