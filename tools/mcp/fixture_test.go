package mcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	sdk "github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"github.com/rs/zerolog"

	"powernode/schema"
	"powernode/tools/mcp"
)

const addDeclaration = `{"name": "add", "title": "Add", "description": "Adds two numbers.", "toolset": "test", "default": true, "category": "", "escalates": [],
	"permission": "any", "human_only": false, "annotations": {"read_only": true, "destructive": false, "idempotent": true}, "aliases": [],
	"input": {"type": "object", "additionalProperties": false, "required": ["a"], "properties": {
		"a": {"type": "integer", "description": "One."}, "b": {"type": "integer", "description": "The other.", "default": 1}}},
	"output": {"type": "object", "additionalProperties": false, "required": ["sum"], "properties": {"sum": {"type": "integer"}}}}`

// fixture is a server of other tools than verbs, on the stack that serves the verbs.
func fixture(t *testing.T) *mcp.Server {
	t.Helper()
	v, err := schema.ParseVerb([]byte(addDeclaration))
	if err != nil {
		t.Fatal(err)
	}
	add, err := mcp.Declared(v, mcp.Reads, func(_ context.Context, c *mcp.Call) (*sdk.CallToolResult, error) {
		var in struct{ A, B int }
		if err := json.Unmarshal(c.Arguments, &in); err != nil {
			return nil, err
		}
		sum := json.RawMessage(fmt.Sprintf(`{"sum":%d}`, in.A+in.B))
		return &sdk.CallToolResult{Content: []sdk.Content{sdk.NewTextContent(string(sum))}, RawStructuredContent: sum}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &mcp.Server{Name: "fixture", Title: "Fixture", Version: "1", Log: zerolog.New(zerolog.NewTestWriter(t))}
	s.Catalogue = mcp.Catalogue{
		Tools: []mcp.Tool{add, plain("ask", askName), plain("sample", sampleWord), plain("steps", threeSteps), plain("broken", func(context.Context, *mcp.Call) (*sdk.CallToolResult, error) {
			return nil, fmt.Errorf("open /etc/secret: no such file")
		})},
		Resources: []mcp.Resource{{Listed: sdk.Resource{URI: "test://text", Name: "text"}, Read: func(_ context.Context, c *mcp.Call) ([]sdk.ResourceContents, error) {
			return []sdk.ResourceContents{sdk.TextResourceContents{URI: c.URI, Text: "a text"}}, nil
		}}},
		Templates: []mcp.ResourceTemplate{{Listed: sdk.NewResourceTemplate("test://rows/{id}", "row"), Read: func(_ context.Context, c *mcp.Call) ([]sdk.ResourceContents, error) {
			if c.Values["id"] == "none" {
				return nil, schema.Errorf(schema.NotFound, "row not found")
			}
			return []sdk.ResourceContents{sdk.TextResourceContents{URI: c.URI, Text: "row " + c.Values["id"]}}, nil
		}}},
		Prompts: []mcp.Prompt{{Listed: sdk.NewPrompt("greet", sdk.WithArgument("name", sdk.RequiredArgument())), Get: func(_ context.Context, c *mcp.Call) (*sdk.GetPromptResult, error) {
			return sdk.NewGetPromptResult("", []sdk.PromptMessage{sdk.NewPromptMessage(sdk.RoleUser, sdk.NewTextContent("Hello "+c.Values["name"]))}), nil
		}}},
		Complete: func(_ context.Context, _ *mcp.Call, ref mcp.Reference) ([]string, error) {
			return []string{ref.Prompt + ref.Template + "/" + ref.Argument + "/" + ref.Value}, nil
		},
		Subscribe: true,
	}
	return s
}

func plain(name string, call func(ctx context.Context, c *mcp.Call) (*sdk.CallToolResult, error)) mcp.Tool {
	return mcp.Tool{Listed: sdk.NewTool(name, sdk.WithDescription("A tool of a test.")), Kind: func(json.RawMessage) mcp.Kind { return mcp.Waits }, Call: call}
}

// askName asks the user for a name, in the words of both eras.
func askName(_ context.Context, c *mcp.Call) (*sdk.CallToolResult, error) {
	answer := server.ElicitationResponse(c.Responses, "name")
	if answer == nil {
		return server.NewInputRequestBuilder("state-1").Elicit("name", sdk.ElicitationParams{Message: "Your name?",
			RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{"name": map[string]any{"type": "string"}}}}).ToolResult(), nil
	}
	content, _ := answer.Content.(map[string]any)
	return sdk.NewToolResultText(fmt.Sprintf("%s %v %s", answer.Action, content["name"], c.State)), nil
}

// sampleWord asks the client's model, as only the handshake's eras know it.
func sampleWord(ctx context.Context, c *mcp.Call) (*sdk.CallToolResult, error) {
	result, err := c.Sample(ctx, sdk.CreateMessageParams{MaxTokens: 5, Messages: []sdk.SamplingMessage{{Role: sdk.RoleUser, Content: sdk.NewTextContent("A word?")}}})
	if err != nil {
		return nil, err
	}
	text, _ := sdk.AsTextContent(result.Content)
	if text == nil {
		return sdk.NewToolResultText(fmt.Sprint(result.Content)), nil
	}
	return sdk.NewToolResultText(text.Text), nil
}

// threeSteps tells how far it is, and logs.
func threeSteps(_ context.Context, c *mcp.Call) (*sdk.CallToolResult, error) {
	for n := range 3 {
		c.Progress(float64(n+1), 3, fmt.Sprintf("step %d", n+1))
	}
	c.Log(sdk.LoggingLevelInfo, "steps", "done")
	return sdk.NewToolResultText("done"), nil
}
