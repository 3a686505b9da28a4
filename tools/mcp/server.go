package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	sdk "github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"github.com/rs/zerolog"

	"powernode/schema"
	"powernode/store"
	"powernode/tools"
)

// Face is the MCP face of a platform. Its fields are set before it serves.
type Face struct {
	Platform *tools.Platform
	Version  string
	Log      zerolog.Logger

	once  sync.Once
	tools []sdk.Tool
	fault error
}

// listing are all verbs as tools, made once.
func (f *Face) listing() ([]sdk.Tool, error) {
	f.once.Do(func() {
		for _, d := range f.Platform.Verbs() {
			tool, err := listed(d.Contract())
			if err != nil {
				f.fault = err
				return
			}
			f.tools = append(f.tools, tool)
		}
	})
	return f.tools, f.fault
}

// server is the SDK's server with every verb as a tool. It hides what is not chosen from the list and from nothing else:
// the SDK's own filter would refuse the calls too.
func (f *Face) server(ctx context.Context, caller tools.Caller, choice Choice) (*server.MCPServer, error) {
	all, err := f.listing()
	if err != nil {
		return nil, err
	}
	instructions, err := f.instructions(ctx, caller, choice)
	if err != nil {
		return nil, err
	}
	var hooks server.Hooks
	hooks.AddAfterListTools(func(_ context.Context, _ any, _ *sdk.ListToolsRequest, result *sdk.ListToolsResult) {
		result.Tools = slices.DeleteFunc(result.Tools, func(t sdk.Tool) bool {
			d, ok := f.Platform.Lookup(t.Name)
			return !ok || !choice.lists(d.Contract())
		})
	})
	s := server.NewMCPServer("powernode", f.Version, server.WithTitle("Powernode"), server.WithInstructions(instructions),
		server.WithToolCapabilities(false), server.WithHooks(&hooks))
	callable := make([]server.ServerTool, len(all))
	for i, tool := range all {
		callable[i] = server.ServerTool{Tool: tool, Handler: f.call(caller)}
	}
	s.AddTools(callable...)
	return s, nil
}

// pending is the call that a context carries to its handler: what the client wrote, past the SDK's decoding.
type pending struct {
	verb   string
	callID string
	toolCall
}

type pendingKey struct{}

// call runs the call that the context carries. What the SDK has decoded is not looked at.
func (f *Face) call(caller tools.Caller) server.ToolHandlerFunc {
	return func(ctx context.Context, _ sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		p, ok := ctx.Value(pendingKey{}).(*pending)
		if !ok {
			return nil, errors.New("no call in the context")
		}
		if p.refusal != nil {
			return refused(p.refusal)
		}
		result, err := f.Platform.Call(ctx, caller, tools.Request{Verb: p.verb, Arguments: p.arguments, CallID: p.callID})
		var coded *schema.Error
		switch {
		case errors.As(err, &coded) && coded.Code != schema.Internal:
			return refused(coded)
		case err != nil && ctx.Err() != nil: // the client has taken it back, or is gone
			return nil, fmt.Errorf("request cancelled: %w", ctx.Err())
		case coded != nil:
			return refused(coded)
		case err != nil:
			return nil, err
		}
		return &sdk.CallToolResult{Content: []sdk.Content{sdk.NewTextContent(string(result.JSON))}, RawStructuredContent: result.JSON}, nil
	}
}

// refused is an error as a tool's result: its JSON as text, and nothing that a client would hold against the output schema.
func refused(e *schema.Error) (*sdk.CallToolResult, error) {
	text, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode a refusal: %w", err)
	}
	return &sdk.CallToolResult{Content: []sdk.Content{sdk.NewTextContent(string(text))}, IsError: true}, nil
}

// instructions tell a model how the verbs work, once, so that no description has to.
func (f *Face) instructions(ctx context.Context, caller tools.Caller, choice Choice) (string, error) {
	lines := []string{
		"Powernode runs isolated K3s clusters on private networks of machines. Each operation is a tool; results are one JSON object.",
		"Arguments are strict: a misspelt or undeclared key is refused with the declared name, and then nothing was changed.",
		"An error has a code, a message and often a hint: the tool to call next. Repeat a call only when it says retryable: true.",
		"A result with pending: true is parked and not done: a person decides it with powernode approvals. You can't approve; say what waits, with its deferred_operation_id.",
	}
	for verb, line := range map[string]string{
		"platform_get_operation": "platform_get_operation tells whether a parked call was decided.",
		"platform_preview":       "platform_preview shows what a call would change before you make it.",
		"platform_search_verbs":  "Not every tool is listed: platform_search_verbs finds the others, platform_call_verb calls them.",
		"system_watch_signals":   "What happens on machines is told by system_watch_signals, system_recent_signals and the get tools, not by waiting in a call.",
	} {
		if _, ok := f.Platform.Lookup(verb); ok {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines[4:]) // a map has no order, a text has one
	if choice.ReadOnly {
		lines = append(lines, "This session is read only: calls that change something are refused.")
	}
	has := false
	err := f.Platform.DB.View(ctx, func(v *store.View) error {
		var err error
		has, err = f.Platform.Governance.HasKey(ctx, v, caller.AccountID)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("ask for the human key: %w", err)
	}
	if !has {
		lines = append(lines, "No human key yet: nothing that is parked can be approved until a person runs powernode init in a terminal. Tell them.")
	}
	return strings.Join(lines, "\n"), nil
}
