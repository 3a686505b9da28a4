package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"powernode/docs"
	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
	"powernode/tools"
	"powernode/tools/mcp"
	"powernode/tools/rest"
)

const (
	// bridgeProtocol is what a connection of a bridge turns into.
	bridgeProtocol = "powernode-bridge/1"
	// stopWait is how long calls in flight are waited for when serve ends.
	stopWait = 20 * time.Second
)

// control is the local socket of a control plane: bridges of MCP clients, and the operator's commands. Who connects is
// this user or root; what a person alone may decide is signed, and verified behind it.
type control struct {
	platform *tools.Platform
	dir      stateDir
	account  store.AccountID
	log      zerolog.Logger
	face     *mcp.Face
	sessions sync.WaitGroup
}

func newControl(p *tools.Platform, dir stateDir, acct store.AccountID, log zerolog.Logger) *control {
	face := &mcp.Face{Platform: p, Version: version(), Log: log, Docs: docs.Files}
	return &control{platform: p, dir: dir, account: acct, log: log, face: face}
}

// Serve answers on the socket until the context ends, and waits for the calls in flight then.
func (c *control) Serve(ctx context.Context) error {
	listener, err := listenControl(c.dir, c.log)
	if err != nil {
		return err
	}
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	server := &http.Server{Handler: c.routes(ctx), ReadHeaderTimeout: 10 * time.Second, ErrorLog: quiet(c.log),
		BaseContext: func(net.Listener) context.Context { return requests }}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve the control socket: %w", err)
	case <-ctx.Done():
	}
	// Whoever connects from now on finds no socket, and starts the next serve.
	err = os.Remove(c.dir.socketFile())
	bounded, done := context.WithTimeout(requests, stopWait)
	defer done()
	if shut := server.Shutdown(bounded); shut != nil {
		err = errors.Join(err, shut, server.Close())
	}
	<-ended
	c.sessions.Wait() // each ends with ctx, within its own bound
	return err
}

// routes are the socket's paths. stopping ends when serve is told to: sessions take no more then.
func (c *control) routes(stopping context.Context) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/verbs/{verb}", c.verb)
	mux.HandleFunc("POST /v1/people/{request}", c.people)
	mux.HandleFunc("POST /v1/artifacts", c.importArtifact)
	mux.HandleFunc("POST "+artifactListPath, c.listArtifacts)
	mux.HandleFunc("POST /v1/artifact-hosts", c.allowArtifactHost)
	mux.HandleFunc("POST /v1/mcp", func(w http.ResponseWriter, r *http.Request) { c.bridge(stopping, w, r) })
	return mux
}

// asking is for whom a request runs, or the refusal of a token that is none.
func (c *control) asking(r *http.Request) (tools.Caller, error) {
	caller, err := c.callerOf(r)
	switch {
	case errors.Is(err, governance.ErrExpired):
		return caller, schema.Errorf(schema.PermissionDenied, "the token is not valid: it has expired (powernode token create makes another)")
	case errors.Is(err, governance.ErrNoCredential):
		return caller, schema.Errorf(schema.PermissionDenied, "the token is not valid: unknown or revoked")
	}
	return caller, err
}

// verbAnswer is a call's answer: a result, or a parked call's.
type verbAnswer struct {
	Pending bool            `json:"pending"`
	Result  json.RawMessage `json:"result"`
}

// verb runs a call; the body is its arguments, untouched.
func (c *control) verb(w http.ResponseWriter, r *http.Request) {
	arguments, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxMessage))
	if err != nil {
		c.answer(w, nil, schema.Errorf(schema.InvalidArguments, "arguments are larger than %d bytes", maxMessage))
		return
	}
	caller, err := c.asking(r)
	if err != nil {
		c.answer(w, nil, err)
		return
	}
	result, err := c.platform.Call(context.WithoutCancel(r.Context()), caller,
		tools.Request{Verb: r.PathValue("verb"), Arguments: arguments, CallID: r.Header.Get(rest.CallIDHeader)})
	c.answer(w, verbAnswer{Pending: result.Pending, Result: result.JSON}, err)
}

// people asks people's surface: what decides there is signed.
func (c *control) people(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxMessage))
	if err != nil {
		c.answer(w, nil, schema.Errorf(schema.InvalidArguments, "the request is larger than %d bytes", maxMessage))
		return
	}
	answer, err := c.platform.People(r.Context(), c.account, r.PathValue("request"), body)
	c.answer(w, answer, err)
}

type importRequest struct {
	Path string `json:"path"` // absolute
}

type importAnswer struct {
	Name      string `json:"name"`
	SHA256    string `json:"sha256"`
	SizeBytes int64  `json:"size_bytes"`
}

// importArtifact takes a file of this host into the artefact store.
func (c *control) importArtifact(w http.ResponseWriter, r *http.Request) {
	var in importRequest
	if err := readBody(w, r, &in); err != nil {
		c.answer(w, nil, err)
		return
	}
	if !filepath.IsAbs(in.Path) {
		c.answer(w, nil, schema.Errorf(schema.InvalidArguments, "the path of an artefact is absolute"))
		return
	}
	a, err := c.platform.Fleet.ImportArtifact(r.Context(), in.Path)
	c.answer(w, importAnswer{Name: a.Name, SHA256: a.SHA256, SizeBytes: a.SizeBytes}, err)
}

type allowHostRequest struct {
	Host string `json:"host"`
}

func (c *control) allowArtifactHost(w http.ResponseWriter, r *http.Request) {
	var in allowHostRequest
	err := readBody(w, r, &in)
	if err == nil {
		err = c.platform.DB.Update(r.Context(), func(tx *store.Tx) error {
			tx.Act(store.Actor{Kind: governance.KindPlatform, ID: "platform", Verb: "artifact_host", CorrelationID: tx.NewID()})
			return c.platform.Fleet.AllowArtifactHost(r.Context(), tx, in.Host)
		})
	}
	c.answer(w, in, err)
}

// failure is what a refused request is answered with: a coded error, or the name of no verb.
type failure struct {
	Error   *schema.Error `json:"error,omitempty"`
	Unknown *unknownVerb  `json:"unknown_verb,omitempty"`
}

type unknownVerb struct {
	Name       string   `json:"name"`
	Candidates []string `json:"candidates"`
}

// answer writes a result, or the refusal in its place.
func (c *control) answer(w http.ResponseWriter, result any, err error) {
	var coded *schema.Error
	var unknown *tools.UnknownVerbError
	status := http.StatusOK
	switch {
	case err == nil:
	case errors.As(err, &unknown):
		status, result = http.StatusNotFound, failure{Unknown: &unknownVerb{unknown.Name, unknown.Candidates}}
	case errors.As(err, &coded):
		status, result = coded.Code.HTTPStatus(), failure{Error: coded}
	default:
		c.log.Error().Err(err).Msg("request failed")
		status, result = http.StatusInternalServerError, failure{Error: schema.Errorf(schema.Internal, "%s", err)}
	}
	out, err := json.Marshal(result)
	if err != nil {
		c.log.Error().Err(err).Msg("answer not encoded")
		status, out = http.StatusInternalServerError, []byte(`{"error":{"code":"internal","message":"answer not encoded"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if _, err := w.Write(out); err != nil {
		c.log.Debug().Err(err).Msg("answer not taken")
	}
}

// readBody decodes a request strictly: what it does not know is refused.
func readBody(w http.ResponseWriter, r *http.Request, into any) error {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxMessage))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return schema.Errorf(schema.InvalidArguments, "the request is not understood: %s", err)
	}
	return nil
}

// bridge turns a connection into the session of one MCP client.
func (c *control) bridge(stopping context.Context, w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	choice, err := mcp.ParseChoice(query.Get("toolsets"), query.Get("read_only") == "true")
	if err != nil {
		c.answer(w, nil, schema.Errorf(schema.InvalidArguments, "%s", err))
		return
	}
	caller, err := c.asking(r)
	if err != nil {
		c.answer(w, nil, err)
		return
	}
	c.sessions.Add(1)
	defer c.sessions.Done()
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		c.answer(w, nil, fmt.Errorf("take over the connection: %w", err))
		return
	}
	defer conn.Close() // all that matters was written
	_, err = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", bridgeProtocol)
	if err != nil {
		return
	}
	stream := &frameStream{conn: conn, in: buffered.Reader, fresh: query.Get(freshSession) == "true"}
	unblock := context.AfterFunc(stopping, stream.end)
	defer unblock()
	if err := c.face.Serve(stopping, caller, choice, stream); err != nil {
		c.log.Info().Err(err).Msg("session of a bridge ended")
	}
}

// frameStream is a bridge's messages as frames on a connection.
type frameStream struct {
	conn  net.Conn
	in    *bufio.Reader
	fresh bool // of the bridge's first session
}

func (s *frameStream) Receive() (mcp.Message, error) {
	f, err := readFrame(s.in)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = io.EOF // serve ends: the bridge sends what was not taken to the next one
	}
	return mcp.Message{CallID: f.id, Fresh: s.fresh, Raw: f.message}, err
}

func (s *frameStream) Send(callID string, answer []byte) error {
	if callID == "" {
		callID = noteID
	}
	out := bufio.NewWriterSize(s.conn, len(answer)+len(callID)+32) // one write, one frame
	if err := writeFrame(out, frame{id: callID, message: answer}); err != nil {
		return err
	}
	return out.Flush()
}

// end makes Receive end as if the client had: what was taken is answered, no more is taken. A client that takes no answers
// holds nobody up for longer than calls are waited for.
func (s *frameStream) end() {
	s.conn.SetReadDeadline(time.Unix(1, 0))                // a connection that can't has ended
	s.conn.SetWriteDeadline(time.Now().Add(mcp.DrainWait)) // the same
}
