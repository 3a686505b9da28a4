package mcp

import (
	"context"
	"encoding/json"

	sdk "github.com/mark3labs/mcp-go/mcp"

	"powernode/schema"
	"powernode/tools"
)

// Principal is who speaks to a server, and what it wants to be shown.
type Principal struct {
	Caller tools.Caller
	Choice Choice
}

// Catalogue is what a server offers. It does not change once the server serves.
type Catalogue struct {
	Tools     []Tool
	Resources []Resource
	Templates []ResourceTemplate
	Prompts   []Prompt

	// Lists says whether a tool is in a principal's list; what is not can be called all the same. nil: all are.
	Lists func(p Principal, tool string) bool
	// Resolve finds the tool that is meant by another name; nil: a name is a tool's own.
	Resolve func(name string) string
	// Unknown is told of a call of no tool, and answers it; nil: a plain refusal.
	Unknown func(ctx context.Context, p Principal, name string) *ProtocolError
	// Complete answers what a prompt's argument or a template's variable may be; nil: no completions.
	Complete func(ctx context.Context, c *Call, ref Reference) ([]string, error)
	// Instructions tell a model how to use the server; nil: nothing is told.
	Instructions func(ctx context.Context, p Principal) (string, error)
	// Subscribe lets clients subscribe to resources, which Server.Updated then tells of.
	Subscribe bool
}

// Kind is how a call is run beside others of its session.
type Kind int

// A call that writes waits for those before it, one that reads takes one of a few turns, one that waits for something to
// happen takes none.
const (
	Writes Kind = iota
	Reads
	Waits
)

// Tool is what tools/list shows and tools/call runs.
type Tool struct {
	Listed sdk.Tool
	// Kind says how a call with these arguments is run; nil: it writes.
	Kind func(arguments json.RawMessage) Kind
	// Call runs it. A *schema.Error is the tool's refusal, a *ProtocolError the request's; any other is internal.
	Call func(ctx context.Context, c *Call) (*sdk.CallToolResult, error)
	// Refused records a call that is refused for what stands beside its arguments, and answers why; nil: nothing is recorded.
	Refused func(ctx context.Context, c *Call, refusal *schema.Error) error
}

// Declared is a tool with a declaration like the contract's. It is listed, and its arguments are validated, as a verb is.
func Declared(v *schema.Verb, kind Kind, call func(ctx context.Context, c *Call) (*sdk.CallToolResult, error)) (Tool, error) {
	tool, err := listed(v)
	return Tool{Listed: tool, Kind: func(json.RawMessage) Kind { return kind },
		Call: func(ctx context.Context, c *Call) (*sdk.CallToolResult, error) {
			arguments, err := v.Validate(c.Arguments)
			if err != nil {
				return nil, err
			}
			c.Arguments = arguments
			return call(ctx, c)
		}}, err
}

// Resource is a document under one address.
type Resource struct {
	Listed sdk.Resource
	Read   func(ctx context.Context, c *Call) ([]sdk.ResourceContents, error)
}

// ResourceTemplate is a family of documents; a call's Values are the variables of its address.
type ResourceTemplate struct {
	Listed sdk.ResourceTemplate
	Read   func(ctx context.Context, c *Call) ([]sdk.ResourceContents, error)
}

// Prompt is a text for a model; a call's Values are its arguments, all declared ones that are required among them.
type Prompt struct {
	Listed sdk.Prompt
	Get    func(ctx context.Context, c *Call) (*sdk.GetPromptResult, error)
}

// Reference is what a completion is asked for: an argument of a prompt, or a variable of a resource template.
type Reference struct {
	Prompt   string // name; empty: of a template
	Template string
	Argument string
	Value    string            // what was typed so far
	Others   map[string]string // what the other arguments are
}

// Call is one request on its way to its handler.
type Call struct {
	Principal
	ID        string             // under which it may be sent again; empty: none
	Fresh     bool               // nothing was ever sent under the ID before
	Version   string             // the protocol revision in effect
	Arguments json.RawMessage    // of a tool, as the client wrote them; nil: none were given
	URI       string             // of a resource
	Values    map[string]string  // of a template, or of a prompt
	Responses sdk.InputResponses // what the client answers to a result that asked for input
	State     string             // that such a result left with the client

	client       *client
	meta         meta
	capabilities sdk.ClientCapabilities
}

// Capabilities are what the client declared that it can do.
func (c *Call) Capabilities() sdk.ClientCapabilities { return c.capabilities }

// Modern says whether the call is of the stateless era: a question to the client is then a result that asks for input.
func (c *Call) Modern() bool { return sdk.IsModernProtocol(c.Version) }

// ProtocolError is the answer to what is no tool call at all.
type ProtocolError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
}

func (e *ProtocolError) Error() string { return e.Message }

// MissingCapability refuses a request that needs what the client has not declared: elicitation, sampling or roots.
func MissingCapability(capability string) *ProtocolError {
	return &ProtocolError{Code: sdk.MISSING_REQUIRED_CLIENT_CAPABILITY, Message: "Missing required client capability: " + capability,
		Data: map[string]any{"requiredCapabilities": map[string]any{capability: struct{}{}}}}
}
