package mcp

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	sdk "github.com/mark3labs/mcp-go/mcp"
)

// post is the answer to one POST: a JSON document, or an event stream once there is something to send before the answer.
type post struct {
	w       http.ResponseWriter
	control *http.ResponseController
	json    bool // the client takes a JSON document
	events  bool // the client takes an event stream

	mu     sync.Mutex
	stream bool // it has begun
}

func newPost(w http.ResponseWriter, r *http.Request) *post {
	p := &post{w: w, control: http.NewResponseController(w)}
	accept := strings.Join(r.Header.Values("Accept"), ",")
	if strings.TrimSpace(accept) == "" {
		accept = "*/*"
	}
	for kind := range strings.SplitSeq(accept, ",") {
		kind, _, _ = strings.Cut(kind, ";")
		switch strings.ToLower(strings.TrimSpace(kind)) {
		case "*/*":
			p.json, p.events = true, true
		case "application/json", "application/*":
			p.json = true
		case "text/event-stream", "text/*":
			p.events = true
		}
	}
	return p
}

// errNoStream says that a client takes nothing but the answer.
var errNoStream = errors.New("the client takes no event stream")

// tell sends what is no answer, on a stream.
func (p *post) tell(note []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.events {
		return errNoStream
	}
	return p.event(note)
}

// keepAlive shows a client that waits for long that its call is alive.
func (p *post) keepAlive(ctx context.Context, every time.Duration) {
	if !p.events {
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.mu.Lock()
			err := p.write(": alive\n\n")
			p.mu.Unlock()
			if err != nil {
				return // the request's context ends with its connection
			}
		case <-ctx.Done():
			return
		}
	}
}

// finish sends the answer, nil where there is none. A client that takes it no more has gone, and nobody is to be told.
func (p *post) finish(status int, answer []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stream || answer != nil && status == http.StatusOK && !p.json && p.events {
		p.event(answer)
		return
	}
	if answer != nil {
		p.w.Header().Set("Content-Type", "application/json")
		p.w.Header().Set("Cache-Control", "no-store") // it may hold a credential
		p.w.Header().Set("X-Content-Type-Options", "nosniff")
	}
	p.deadline()
	p.w.WriteHeader(status)
	if answer != nil {
		p.w.Write(answer)
	}
}

func (p *post) event(message []byte) error {
	return p.write("event: message\ndata: " + string(message) + "\n\n")
}

// write writes to the stream, and begins it.
func (p *post) write(text string) error {
	if !p.stream {
		p.stream = true
		p.w.Header().Set("Content-Type", "text/event-stream")
		p.w.Header().Set("Cache-Control", "no-store")
		p.w.Header().Set("X-Content-Type-Options", "nosniff")
		p.w.Header().Set("X-Accel-Buffering", "no") // a proxy would hold events back
		p.w.WriteHeader(http.StatusOK)
	}
	p.deadline()
	if _, err := p.w.Write([]byte(text)); err != nil {
		return err
	}
	return p.control.Flush()
}

func (p *post) deadline() {
	p.control.SetWriteDeadline(time.Now().Add(writeWait)) // a connection that can't has none
}

// A session id spells what a client of the handshake era has declared, so that the server need not remember it: a text
// that nobody else has, and a letter a capability.
const (
	sessionElicits = "e"
	sessionOpens   = "u"
	sessionSamples = "s"
	sessionRoots   = "r"

	sessionText = 26 // characters of a text of crypto/rand
)

func newSessionID(c sdk.ClientCapabilities) string {
	id := rand.Text() + "."
	if c.Elicitation != nil && shows(c) {
		id += sessionElicits
	}
	if c.Elicitation != nil && c.Elicitation.URL != nil {
		id += sessionOpens
	}
	if c.Sampling != nil {
		id += sessionSamples
	}
	if c.Roots != nil {
		id += sessionRoots
	}
	return id
}

// sessionCapabilities reads a session id; false: it is none of ours.
func sessionCapabilities(id string) (c sdk.ClientCapabilities, ok bool) {
	unique, letters, cut := strings.Cut(id, ".")
	if !cut || len(unique) != sessionText || strings.Trim(unique, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") != "" {
		return c, false
	}
	for _, letter := range strings.Split(letters, "") {
		switch letter {
		case sessionElicits, sessionOpens:
			if c.Elicitation == nil {
				c.Elicitation = &sdk.ElicitationCapability{}
			}
			if letter == sessionElicits {
				c.Elicitation.Form = &struct{}{}
			} else {
				c.Elicitation.URL = &struct{}{}
			}
		case sessionSamples:
			c.Sampling = &sdk.SamplingCapability{}
		case sessionRoots:
			c.Roots = &struct {
				ListChanged bool `json:"listChanged,omitempty"`
			}{}
		default:
			return sdk.ClientCapabilities{}, false
		}
	}
	return c, true
}
