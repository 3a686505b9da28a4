package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"powernode/schema"
	"powernode/tools"
	"powernode/tools/rest"
)

const (
	// askWait bounds one request: longer than any verb's own deadline.
	askWait = 5 * time.Minute
	// askTries is how often a call is sent whose control plane dies under it.
	askTries = 5
)

// serveClient asks the control plane behind a state directory's socket.
type serveClient struct {
	dir   stateDir
	http  *http.Client
	token string // empty: the account's agent
}

var _ client = (*serveClient)(nil)

// dialServe finds the control plane of a state directory, and starts a detached one where none runs.
func dialServe(ctx context.Context, dir stateDir) (client, error) { return dialControlPlane(ctx, dir) }

func dialControlPlane(ctx context.Context, dir stateDir) (*serveClient, error) {
	conn, err := connectControl(ctx, dir)
	if err != nil {
		return nil, err
	}
	if err := conn.Close(); err != nil {
		return nil, fmt.Errorf("try the control socket: %w", err)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return connectControl(ctx, dir) }
	return &serveClient{dir: dir, http: &http.Client{Transport: &http.Transport{DialContext: dial}, Timeout: askWait}}, nil
}

func (c *serveClient) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// As is the same client with a token.
func (c *serveClient) As(token string) client {
	own := *c
	own.token = token
	return &own
}

// Call sends a call under an id of its own, so that it is done once however often it is sent.
func (c *serveClient) Call(ctx context.Context, verb string, arguments json.RawMessage) (json.RawMessage, bool, error) {
	id := "call-" + rand.Text()
	var answer verbAnswer
	var err error
	for range askTries {
		err = c.ask(ctx, "/v1/verbs/"+url.PathEscape(verb), arguments, http.Header{rest.CallIDHeader: {id}}, &answer)
		if !lost(err) || ctx.Err() != nil {
			break
		}
	}
	return answer.Result, answer.Pending, err
}

// People asks people's surface.
func (c *serveClient) People(ctx context.Context, request string, in, out any) error {
	return c.post(ctx, "/v1/people/"+url.PathEscape(request), in, out)
}

// ImportArtifact puts a file of this host, by its absolute path, into the artefact store.
func (c *serveClient) ImportArtifact(ctx context.Context, path string) (importAnswer, error) {
	var a importAnswer
	err := c.post(ctx, "/v1/artifacts", importRequest{Path: path}, &a)
	return a, err
}

// AllowArtifactHost is the operator's word that artefact URLs may name a host whose addresses are not public.
func (c *serveClient) AllowArtifactHost(ctx context.Context, host string) error {
	return c.post(ctx, "/v1/artifact-hosts", allowHostRequest{Host: host}, nil)
}

func (c *serveClient) post(ctx context.Context, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("encode a request: %w", err)
	}
	return c.ask(ctx, path, body, http.Header{}, out)
}

// errLost says that the connection broke before the answer was there.
var errLost = errors.New("the control plane ended before it answered")

func lost(err error) bool { return errors.Is(err, errLost) }

// ask sends one request. What the control plane refuses comes back as the error that it is there.
func (c *serveClient) ask(ctx context.Context, path string, body []byte, header http.Header, out any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://powernode"+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("make a request: %w", err)
	}
	request.Header = header
	request.Header.Set("Content-Type", "application/json")
	if c.token != "" {
		request.Header.Set(tokenHeader, c.token)
	}
	answer, err := c.http.Do(request)
	var unreachable *net.OpError
	if err != nil && !errors.As(err, &unreachable) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	defer answer.Body.Close() // it was read
	raw, err := io.ReadAll(answer.Body)
	if err != nil {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	if answer.StatusCode != http.StatusOK {
		return refusalFrom(answer.Status, raw)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("read the control plane's answer: %w", err)
	}
	return nil
}

func refusalFrom(status string, raw []byte) error {
	var f failure
	err := json.Unmarshal(raw, &f)
	switch {
	case err == nil && f.Error != nil:
		return f.Error
	case err == nil && f.Unknown != nil:
		return &tools.UnknownVerbError{Name: f.Unknown.Name, Candidates: f.Unknown.Candidates}
	}
	return schema.Errorf(schema.Internal, "the control plane answered %s: %.200s", status, raw)
}
