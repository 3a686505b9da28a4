package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	sdk "github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"github.com/rs/zerolog"

	"powernode/schema"
)

// Server serves a catalogue to clients of both eras of the protocol, each by its own session or request. Its fields are
// set before it serves.
type Server struct {
	Name      string
	Title     string
	Version   string
	Catalogue Catalogue
	Log       zerolog.Logger

	once      sync.Once
	core      *server.MCPServer
	tools     map[string]*Tool
	prompts   map[string]*Prompt
	questions questions
	watching  watching
	posts     posts
}

// prepare makes the SDK's server, once.
func (s *Server) prepare() {
	s.once.Do(func() {
		c := &s.Catalogue
		var hooks server.Hooks
		hooks.AddAfterInitialize(func(ctx context.Context, _ any, _ *sdk.InitializeRequest, result *sdk.InitializeResult) {
			result.Instructions = s.instructions(ctx)
		})
		hooks.AddAfterDiscover(func(ctx context.Context, _ any, _ *sdk.DiscoverRequest, result *sdk.DiscoverResult) {
			result.Instructions = s.instructions(ctx)
		})
		// The SDK's own filter would refuse the calls of what it hides too.
		hooks.AddAfterListTools(func(ctx context.Context, _ any, _ *sdk.ListToolsRequest, result *sdk.ListToolsResult) {
			p := exchangeOf(ctx).Principal
			result.Tools = slices.DeleteFunc(result.Tools, func(t sdk.Tool) bool { return c.Lists != nil && !c.Lists(p, t.Name) })
		})
		options := []server.ServerOption{server.WithTitle(s.Title), server.WithHooks(&hooks), server.WithToolCapabilities(false),
			server.WithLogging()}
		if len(c.Resources)+len(c.Templates) > 0 {
			options = append(options, server.WithResourceCapabilities(c.Subscribe, false))
		}
		if len(c.Prompts) > 0 {
			options = append(options, server.WithPromptCapabilities(false))
		}
		if c.Complete != nil {
			options = append(options, server.WithCompletions(), server.WithPromptCompletionProvider(completer{s}),
				server.WithResourceCompletionProvider(completer{s}))
		}
		s.core = server.NewMCPServer(s.Name, s.Version, options...)
		s.fill()
	})
}

// fill hands the catalogue to the SDK's server.
func (s *Server) fill() {
	s.tools, s.prompts = map[string]*Tool{}, map[string]*Prompt{}
	var callable []server.ServerTool
	for i := range s.Catalogue.Tools {
		t := &s.Catalogue.Tools[i]
		s.tools[t.Listed.Name] = t
		callable = append(callable, server.ServerTool{Tool: t.Listed, Handler: s.call(t)})
	}
	s.core.AddTools(callable...)
	for _, r := range s.Catalogue.Resources {
		s.core.AddResource(r.Listed, s.read(r.Read))
	}
	for _, t := range s.Catalogue.Templates {
		s.core.AddResourceTemplate(t.Listed, server.ResourceTemplateHandlerFunc(s.read(t.Read)))
	}
	for i := range s.Catalogue.Prompts {
		p := &s.Catalogue.Prompts[i]
		s.prompts[p.Listed.Name] = p
		s.core.AddPrompt(p.Listed, s.prompt(p))
	}
}

// tool finds a tool by a name that a client uses.
func (s *Server) tool(name string) (*Tool, bool) {
	if s.Catalogue.Resolve != nil {
		name = s.Catalogue.Resolve(name)
	}
	t, ok := s.tools[name]
	return t, ok
}

// exchange is one message on its way: who sent it, what it says, and what its handler left for the answer.
type exchange struct {
	Principal
	envelope
	meta   meta
	callID string
	fresh  bool      // see Message
	call   *toolCall // of tools/call
	client *client
	fault  *ProtocolError // in place of the SDK's answer
}

type exchangeKey struct{}

// exchangeOf is the exchange that a context carries: every context that goes through the SDK does.
func exchangeOf(ctx context.Context) *exchange { return ctx.Value(exchangeKey{}).(*exchange) }

// newCall is what a handler gets.
func (x *exchange) newCall(ctx context.Context) *Call {
	return &Call{Principal: x.Principal, ID: x.callID, Fresh: x.fresh, Version: x.version(), client: x.client, meta: x.meta,
		capabilities: x.client.declared(ctx)}
}

// version is the protocol revision in effect.
func (x *exchange) version() string {
	if x.meta.version != "" {
		return x.meta.version
	}
	return x.client.ProtocolVersion()
}

// refuse keeps what a handler refused with for the answer, and answers an error for the SDK.
func (x *exchange) refuse(ctx context.Context, s *Server, err error) error {
	var refusal *ProtocolError
	var coded *schema.Error
	switch {
	case errors.As(err, &refusal):
		x.fault = refusal
	case errors.As(err, &coded) && coded.Code != schema.Internal:
		x.fault = &ProtocolError{Code: codeInvalidParams, Message: coded.Message, Data: coded}
		if coded.Code == schema.NotFound && !sdk.IsModernProtocol(x.version()) {
			x.fault.Code = sdk.RESOURCE_NOT_FOUND
		}
	case ctx.Err() != nil: // the client has taken it back, or is gone
		x.fault = &ProtocolError{Code: codeInternal, Message: "Request cancelled"}
	default:
		s.Log.Error().Err(err).Str("method", x.method).Msg("MCP request failed")
		x.fault = &ProtocolError{Code: codeInternal, Message: "Internal error"}
	}
	return err
}

// call runs a tool. What the SDK has decoded of the arguments is not looked at.
func (s *Server) call(t *Tool) server.ToolHandlerFunc {
	return func(ctx context.Context, req sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		x := exchangeOf(ctx)
		c := x.newCall(ctx)
		c.Arguments, c.Responses, c.State = x.call.arguments, req.Params.InputResponses, req.Params.RequestState
		call := t.Call
		if x.call.refusal != nil {
			call = t.refuses(x.call.refusal)
		}
		result, err := call(ctx, c)
		var coded *schema.Error
		switch {
		case errors.As(err, &coded) && (coded.Code != schema.Internal || ctx.Err() == nil):
			return refused(coded)
		case coded != nil: // only a call that writes nothing can be ended
			return refused(schema.Errorf(schema.Unavailable, "the call was ended before it was done"))
		}
		if err == nil && result.NeedsInput() {
			err = c.mayAsk(result.InputRequests)
		}
		if err != nil {
			return nil, x.refuse(ctx, s, err)
		}
		return result, nil
	}
}

// refuses answers a call of a tool that is refused for what stands beside its arguments.
func (t *Tool) refuses(refusal *schema.Error) func(ctx context.Context, c *Call) (*sdk.CallToolResult, error) {
	return func(ctx context.Context, c *Call) (*sdk.CallToolResult, error) {
		if t.Refused != nil {
			return nil, t.Refused(ctx, c, refusal)
		}
		return nil, refusal
	}
}

func (s *Server) read(read func(ctx context.Context, c *Call) ([]sdk.ResourceContents, error)) server.ResourceHandlerFunc {
	return func(ctx context.Context, req sdk.ReadResourceRequest) ([]sdk.ResourceContents, error) {
		x := exchangeOf(ctx)
		c := x.newCall(ctx)
		c.URI, c.Values = req.Params.URI, map[string]string{}
		for name, value := range req.Params.Arguments {
			switch v := value.(type) {
			case string:
				c.Values[name] = v
			case []string:
				if len(v) > 0 {
					c.Values[name] = v[0]
				}
			}
		}
		contents, err := read(ctx, c)
		if err != nil {
			return nil, x.refuse(ctx, s, err)
		}
		return contents, nil
	}
}

func (s *Server) prompt(p *Prompt) server.PromptHandlerFunc {
	return func(ctx context.Context, req sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
		x := exchangeOf(ctx)
		c := x.newCall(ctx)
		c.Responses, c.State = req.Params.InputResponses, req.Params.RequestState
		var err error
		if c.Values, err = promptArguments(p.Listed, x.params); err != nil {
			return nil, x.refuse(ctx, s, err)
		}
		result, err := p.Get(ctx, c)
		if err == nil && result.NeedsInput() {
			err = c.mayAsk(result.InputRequests)
		}
		if err != nil {
			return nil, x.refuse(ctx, s, err)
		}
		return result, nil
	}
}

// promptArguments reads a prompt's arguments strictly: texts alone, each declared and given once, none missing.
func promptArguments(p sdk.Prompt, params json.RawMessage) (map[string]string, error) {
	invalid := func(format string, args ...any) error {
		return &ProtocolError{Code: codeInvalidParams, Message: fmt.Sprintf("Invalid params: prompt %s: ", p.Name) + fmt.Sprintf(format, args...)}
	}
	values := map[string]string{}
	var outer struct {
		Arguments json.RawMessage `json:"arguments"`
	}
	if err := json.Unmarshal(params, &outer); err != nil {
		return nil, invalid("not understood")
	}
	if outer.Arguments != nil && string(outer.Arguments) != "null" {
		members, err := fields(outer.Arguments)
		if err != nil {
			return nil, invalid("arguments must be an object of texts")
		}
		for _, m := range members {
			_, twice := values[m.key]
			var text string
			switch {
			case twice:
				return nil, invalid("argument %.64q is given twice", m.key)
			case !slices.ContainsFunc(p.Arguments, func(a sdk.PromptArgument) bool { return a.Name == m.key }):
				return nil, invalid("undeclared argument %.64q", m.key)
			case json.Unmarshal(m.raw, &text) != nil || m.raw[0] != '"':
				return nil, invalid("argument %.64q must be a text", m.key)
			}
			values[m.key] = text
		}
	}
	for _, a := range p.Arguments {
		if a.Required && strings.TrimSpace(values[a.Name]) == "" {
			return nil, invalid("missing required argument %s, or it is blank", a.Name)
		}
	}
	return values, nil
}

// mayAsk refuses a result that asks the client for what it has not declared.
func (c *Call) mayAsk(requests sdk.InputRequests) error {
	for _, r := range requests {
		switch {
		case r.Method == sdk.MethodElicitationCreate && c.capabilities.Elicitation == nil:
			return MissingCapability("elicitation")
		case r.Method == sdk.MethodSamplingCreateMessage && c.capabilities.Sampling == nil:
			return MissingCapability("sampling")
		case r.Method == sdk.MethodListRoots && c.capabilities.Roots == nil:
			return MissingCapability("roots")
		}
	}
	return nil
}

// refused is an error as a tool's result: its JSON as text, and nothing that a client would hold against the output schema.
func refused(e *schema.Error) (*sdk.CallToolResult, error) {
	text, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode a refusal: %w", err)
	}
	return &sdk.CallToolResult{Content: []sdk.Content{sdk.NewTextContent(string(text))}, IsError: true}, nil
}

func (s *Server) instructions(ctx context.Context) string {
	if s.Catalogue.Instructions == nil {
		return ""
	}
	x := exchangeOf(ctx)
	text, err := s.Catalogue.Instructions(ctx, x.Principal)
	if err != nil {
		x.refuse(ctx, s, err) // that is what the client is answered
	}
	return text
}

// completer hands completions to the catalogue.
type completer struct{ s *Server }

// maxCompletions is the protocol's bound.
const maxCompletions = 100

func (k completer) complete(ctx context.Context, ref Reference, a sdk.CompleteArgument, others sdk.CompleteContext) (
	*sdk.Completion, error) {
	x := exchangeOf(ctx)
	ref.Argument, ref.Value, ref.Others = a.Name, a.Value, others.Arguments
	if err := k.s.checkReference(ref); err != nil {
		return nil, x.refuse(ctx, k.s, err)
	}
	values, err := k.s.Catalogue.Complete(ctx, x.newCall(ctx), ref)
	if err != nil {
		return nil, x.refuse(ctx, k.s, err)
	}
	shown := values[:min(len(values), maxCompletions)]
	return &sdk.Completion{Values: shown, Total: len(values), HasMore: len(shown) < len(values)}, nil
}

// CompletePromptArgument implements the SDK's provider.
func (k completer) CompletePromptArgument(ctx context.Context, prompt string, a sdk.CompleteArgument, c sdk.CompleteContext) (
	*sdk.Completion, error) {
	return k.complete(ctx, Reference{Prompt: prompt}, a, c)
}

// CompleteResourceArgument implements the SDK's provider.
func (k completer) CompleteResourceArgument(ctx context.Context, uri string, a sdk.CompleteArgument, c sdk.CompleteContext) (
	*sdk.Completion, error) {
	return k.complete(ctx, Reference{Template: uri}, a, c)
}

// reply is a JSON-RPC answer: a result or an error. ID nil is null.
type reply struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  any             `json:"result,omitempty"`
	Error   *ProtocolError  `json:"error,omitempty"`
}

// bytes encode a reply.
func (r reply) bytes(s *Server) []byte {
	r.JSONRPC = "2.0"
	out, err := json.Marshal(r)
	if err != nil {
		s.Log.Error().Err(err).Msg("MCP answer not encoded")
		return []byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"Internal error"}}`)
	}
	return out
}

// failure is the reply to a message that is refused.
func (s *Server) failure(id json.RawMessage, err error) reply {
	var p *ProtocolError
	if !errors.As(err, &p) {
		s.Log.Error().Err(err).Msg("MCP message failed")
		p = &ProtocolError{Code: codeInternal, Message: "Internal error"}
	}
	return reply{ID: id, Error: p}
}

// handle has the SDK answer a message; nil: the protocol has no answer to it. The reply bears the id as the client wrote
// it: the SDK would round a large one. A panic costs one answer, not the session.
func (s *Server) handle(ctx context.Context, x *exchange, raw json.RawMessage) (answer *reply) {
	defer func() {
		if r := recover(); r != nil {
			s.Log.Error().Interface("panic", r).Bytes("stack", debug.Stack()).Msg("MCP message failed")
			answer = &reply{ID: x.id, Error: &ProtocolError{Code: codeInternal, Message: "Internal error"}}
		}
	}()
	if err := s.checkRequest(x); err != nil && x.id != nil {
		return new(s.failure(x.id, err))
	}
	ctx = s.core.WithContext(context.WithValue(ctx, exchangeKey{}, x), x.client)
	if x.call != nil {
		var err error
		if raw, err = x.plain(); err != nil {
			return new(s.failure(x.id, err))
		}
	}
	said := s.core.HandleMessage(ctx, raw)
	x.client.flush()
	switch {
	case said == nil:
		return nil
	case x.fault != nil:
		return &reply{ID: x.id, Error: x.addressed(x.fault)}
	}
	switch a := said.(type) {
	case sdk.JSONRPCResponse:
		return &reply{ID: x.id, Result: a.Result}
	case sdk.JSONRPCError:
		return &reply{ID: x.id, Error: x.addressed(x.refusedBy(a.Error))}
	}
	return new(s.failure(x.id, fmt.Errorf("answer of type %T", said)))
}

// maxURI is how long an address may be to be repeated.
const maxURI = 2048

// uri is the address that a request is about; empty: none.
func (x *exchange) uri() string {
	var asked struct {
		URI string `json:"uri"`
	}
	if json.Unmarshal(x.params, &asked) != nil {
		return ""
	}
	return asked.URI
}

// addressed names, in a refusal to read a document, the address that was asked for: the protocol wants it there.
func (x *exchange) addressed(e *ProtocolError) *ProtocolError {
	asked := struct {
		URI string `json:"uri"`
	}{x.uri()}
	refused := e.Code == sdk.RESOURCE_NOT_FOUND || e.Code == codeInvalidParams
	if x.method != string(sdk.MethodResourcesRead) || !refused || asked.URI == "" || len(asked.URI) > maxURI {
		return e
	}
	switch data := e.Data.(type) {
	case nil:
		e.Data = asked
	case *schema.Error:
		e.Data = struct {
			*schema.Error
			URI string `json:"uri"`
		}{data, asked.URI}
	}
	return e
}

// plain is a call in words that leave nothing to the SDK's decoding.
func (x *exchange) plain() (json.RawMessage, error) {
	params := map[string]any{"name": x.call.name, "arguments": struct{}{}}
	for key, raw := range map[string]json.RawMessage{"_meta": x.call.meta, "inputResponses": x.call.responses, "requestState": x.call.state} {
		if raw != nil {
			params[key] = raw
		}
	}
	return json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
}

// unknown answers a call of no tool.
func (s *Server) unknown(ctx context.Context, p Principal, name string) *ProtocolError {
	if s.Catalogue.Unknown != nil {
		return s.Catalogue.Unknown(ctx, p, name)
	}
	return &ProtocolError{Code: codeInvalidParams, Message: fmt.Sprintf("Unknown tool: %.64q", name)}
}
