package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"sync"
	"time"

	sdk "github.com/mark3labs/mcp-go/mcp"
	"github.com/rs/zerolog"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
	"powernode/tools"
)

// progressEvery is how often a client that asked is told that its call still runs.
const progressEvery = 2 * time.Second

// ElicitationCategory is what a policy forbids showing parked calls to a client's user under, by block or
// require_approval.
const ElicitationCategory = "platform.elicitation"

// Face is the MCP face of a platform: its verbs as tools, what there is as resources, the usual jobs as prompts. Its fields
// are set before it serves.
type Face struct {
	Platform *tools.Platform
	Version  string
	Log      zerolog.Logger
	Docs     fs.FS // the documents for operators, *.md; nil: none

	once   sync.Once
	server *Server
	fault  error
	every  time.Duration // between two notices of progress
}

// serving makes the face's server, once.
func (f *Face) serving() (*Server, error) {
	f.once.Do(func() {
		if f.every == 0 {
			f.every = progressEvery
		}
		c := Catalogue{Lists: f.lists, Resolve: f.resolve, Unknown: f.unknown, Complete: f.complete, Instructions: f.instructions}
		for _, d := range f.Platform.Verbs() {
			tool, err := listed(d.Contract())
			if err != nil {
				f.fault = err
				return
			}
			c.Tools = append(c.Tools, Tool{Listed: tool, Kind: f.kind(d), Call: f.call(d), Refused: f.refused(d)})
		}
		if c.Resources, f.fault = f.resources(); f.fault != nil {
			return
		}
		c.Templates = f.templates()
		if c.Prompts, f.fault = prompts(); f.fault != nil {
			return
		}
		f.server = &Server{Name: "powernode", Title: "Powernode", Version: f.Version, Log: f.Log, Catalogue: c}
	})
	return f.server, f.fault
}

// Serve runs a session on a stream; see Server.Serve.
func (f *Face) Serve(ctx context.Context, caller tools.Caller, choice Choice, stream Stream) error {
	s, err := f.serving()
	if err != nil {
		return fmt.Errorf("prepare the MCP face: %w", err)
	}
	caller.ReadOnly = caller.ReadOnly || choice.ReadOnly
	return s.Serve(ctx, Principal{Caller: caller, Choice: choice}, stream)
}

// HTTP is the face over streamable HTTP. It asks for a bearer token: whose it is, Authenticate says.
func (f *Face) HTTP(o HTTPOptions) (http.Handler, error) {
	if o.Authenticate == nil {
		return nil, errors.New("the MCP face is not served to whom nobody knows")
	}
	s, err := f.serving()
	if err != nil {
		return nil, fmt.Errorf("prepare the MCP face: %w", err)
	}
	return s.HTTP(o), nil
}

func (f *Face) lists(p Principal, tool string) bool {
	d, ok := f.Platform.Lookup(tool)
	return ok && p.Choice.lists(d.Contract(), p.Caller)
}

// resolve takes the name of a verb as the seed documents write it, too.
func (f *Face) resolve(name string) string {
	if d, ok := f.Platform.Lookup(name); ok {
		return d.Name()
	}
	return name
}

// unknown answers a call of no verb, with those that may have been meant.
func (f *Face) unknown(ctx context.Context, p Principal, name string) *ProtocolError {
	_, err := f.Platform.Call(ctx, p.Caller, tools.Request{Verb: name})
	var unknown *tools.UnknownVerbError
	answer := &ProtocolError{Code: codeInvalidParams, Message: fmt.Sprintf("Unknown tool: %.64q", name)}
	if errors.As(err, &unknown) && len(unknown.Candidates) > 0 {
		answer.Message += " (did you mean " + unknown.Candidates[0] + "?)"
		answer.Data = map[string]any{"candidates": unknown.Candidates}
	}
	return answer
}

// carrier is the verb that calls another: how it runs is that one's to say.
const carrier = "platform_call_verb"

func (f *Face) kind(d *tools.Definition) func(json.RawMessage) Kind {
	return func(arguments json.RawMessage) Kind {
		in, _ := f.carried(d, arguments)
		v := in.Contract()
		switch {
		case !v.Annotations.ReadOnly:
			return Writes
		case waits(v):
			return Waits
		}
		return Reads
	}
}

// carried is the verb that a call runs in the end, with its arguments.
func (f *Face) carried(d *tools.Definition, arguments json.RawMessage) (*tools.Definition, json.RawMessage) {
	var in struct {
		Verb      string          `json:"verb"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if d.Name() != carrier || json.Unmarshal(arguments, &in) != nil {
		return d, arguments
	}
	if inner, ok := f.Platform.Lookup(in.Verb); ok && inner.Name() != carrier {
		return inner, in.Arguments
	}
	return d, arguments
}

// waits says whether a verb may wait for something to happen.
func waits(v *schema.Verb) bool {
	_, ok := v.InputShape().Properties["wait_seconds"]
	return ok
}

// call runs a verb.
func (f *Face) call(d *tools.Definition) func(ctx context.Context, c *Call) (*sdk.CallToolResult, error) {
	return func(ctx context.Context, c *Call) (*sdk.CallToolResult, error) {
		defer f.progress(ctx, d, c)()
		result, err := f.Platform.Call(ctx, c.Caller, tools.Request{Verb: d.Name(), Arguments: c.Arguments, CallID: c.ID, Fresh: c.Fresh})
		if err != nil {
			return nil, err
		}
		if result.Pending {
			f.parked(ctx, c, result.JSON)
		}
		content := []sdk.Content{sdk.NewTextContent(string(result.JSON))}
		if len(result.JSON) > largeResult && takesLinks(c.Version) {
			if link, ok := f.link(d, c.Arguments, len(result.JSON)); ok {
				content = link
			}
		}
		return &sdk.CallToolResult{Content: content, RawStructuredContent: result.JSON}, nil
	}
}

// refused leaves the execution event of a call that never became one of its verb's.
func (f *Face) refused(d *tools.Definition) func(ctx context.Context, c *Call, refusal *schema.Error) error {
	return func(ctx context.Context, c *Call, refusal *schema.Error) error {
		_, err := f.Platform.Call(ctx, c.Caller,
			tools.Request{Verb: d.Name(), Arguments: c.Arguments, CallID: c.ID, Fresh: c.Fresh, Refusal: refusal})
		return err
	}
}

// progress tells a client that asked for it how long its call has been running; the end of the call ends it.
func (f *Face) progress(ctx context.Context, d *tools.Definition, c *Call) (stop func()) {
	if !c.AsksProgress() {
		return func() {}
	}
	in, arguments := f.carried(d, c.Arguments)
	var wait struct {
		Seconds float64 `json:"wait_seconds"`
	}
	if json.Unmarshal(arguments, &wait) != nil || wait.Seconds < 0 {
		wait.Seconds = 0
	}
	began := time.Now()
	c.Progress(0, wait.Seconds, in.Name()+" has begun")
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(f.every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				took := time.Since(began)
				c.Progress(took.Seconds(), max(wait.Seconds, 0), fmt.Sprintf("%s runs for %s", in.Name(), took.Round(time.Second)))
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// parked tells the client's user, where there is a way, that a call waits for a person. It decides nothing and holds up
// no answer: who decides signs with the human key, elsewhere.
func (f *Face) parked(ctx context.Context, c *Call, answer json.RawMessage) {
	var parked struct {
		ID       string `json:"deferred_operation_id"`
		Category string `json:"action_category"`
	}
	if err := json.Unmarshal(answer, &parked); err != nil || parked.ID == "" {
		return
	}
	command := "powernode approvals show " + parked.ID
	if c.AsksLogs() {
		c.Log(sdk.LoggingLevelNotice, "governance", map[string]any{"text": "a call waits for a person", "deferred_operation_id": parked.ID,
			"action_category": parked.Category, "command": command})
	}
	if !c.Shows() || !f.mayShow(ctx, c.Caller) {
		return
	}
	c.Show("Approval required: " + parked.Category + ". Your assistant's call waits for a person: look at it with `" + command +
		"` in a terminal, and approve or reject it there with your passphrase. What you answer here decides nothing.")
}

// mayShow asks the account's policy whether parked calls are shown by elicitation. What can't be asked is not shown.
func (f *Face) mayShow(ctx context.Context, caller tools.Caller) bool {
	verdict := governance.Block
	err := f.Platform.DB.View(ctx, func(v *store.View) error {
		var err error
		verdict, err = f.Platform.Governance.Decide(ctx, v, caller, ElicitationCategory, nil)
		return err
	})
	if err != nil {
		f.Log.Error().Err(err).Msg("policy of elicitation not read")
		return false
	}
	return verdict == governance.AutoApprove || verdict == governance.NotifyAndProceed
}
