package mcp_test

import (
	"io"
	"strings"
	"testing"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	sdk "github.com/mark3labs/mcp-go/mcp"

	"powernode/tools/mcp"
	"powernode/tools/toolstest"
)

// A client that we have not written works in both eras of the protocol: it lists, calls, is refused and parked.
func TestForeignClientWorksInBothEras(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2025-06-18", "2025-11-25", sdk.LATEST_PROTOCOL_VERSION} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := connect(t, toolstest.New(t), version)
			opened, err := c.Initialize(t.Context(), sdk.InitializeRequest{Params: sdk.InitializeParams{ProtocolVersion: version,
				ClientInfo: sdk.Implementation{Name: "foreign", Version: "1"}}})
			if err != nil {
				t.Fatalf("initialize: %v", err)
			}
			if c.ProtocolVersion() != version || opened.ServerInfo.Name != "powernode" {
				t.Errorf("speaks %s with %q, want %s with powernode", c.ProtocolVersion(), opened.ServerInfo.Name, version)
			}
			listed, err := c.ListTools(t.Context(), sdk.ListToolsRequest{})
			if err != nil || len(listed.Tools) == 0 {
				t.Errorf("list: %d tools, %v", len(listed.Tools), err)
			}
			made := call(t, c, "system_sdwan_create_network", map[string]any{"name": "a"})
			if made.IsError || made.StructuredContent == nil {
				t.Fatalf("create: %+v", made)
			}
			network := made.StructuredContent.(map[string]any)["network"].(map[string]any)["id"]
			parked := call(t, c, "system_sdwan_delete_network", map[string]any{"network_id": network})
			if parked.IsError || parked.StructuredContent.(map[string]any)["pending"] != true {
				t.Errorf("delete: %+v", parked)
			}
			refused := call(t, c, "system_sdwan_create_network", map[string]any{"name": "b", "cidr": "fd00::/64"})
			text, ok := sdk.AsTextContent(refused.Content[0])
			if !refused.IsError || refused.StructuredContent != nil || !ok || !strings.Contains(text.Text, `"pointer":"/cidr"`) {
				t.Errorf("create with an undeclared key: %+v", refused)
			}
			if _, err := c.CallTool(t.Context(), sdk.CallToolRequest{Params: sdk.CallToolParams{Name: "system_make_coffee"}}); err == nil {
				t.Error("a tool that there is not was called")
			}
		})
	}
}

func call(t *testing.T, c *client.Client, verb string, arguments any) *sdk.CallToolResult {
	t.Helper()
	result, err := c.CallTool(t.Context(), sdk.CallToolRequest{Params: sdk.CallToolParams{Name: verb, Arguments: arguments}})
	if err != nil {
		t.Fatalf("%s: %v", verb, err)
	}
	return result
}

// connect is a client with a session of its own at the other end of two pipes.
func connect(t *testing.T, env *toolstest.Env, version string) *client.Client {
	t.Helper()
	toServer, fromClient := io.Pipe()
	toClient, fromServer := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		face := mcp.Face{Platform: env.Platform, Version: "test", Log: env.Platform.Log}
		err := face.Serve(t.Context(), env.Caller, mcp.Choice{}, mcp.Lines(toServer, fromServer))
		fromServer.Close() // a pipe in memory
		ended <- err
	}()
	c := client.NewClient(transport.NewIO(toClient, fromClient, io.NopCloser(strings.NewReader(""))), client.WithProtocolVersion(version))
	if err := c.Start(t.Context()); err != nil {
		t.Fatalf("start the client: %v", err)
	}
	t.Cleanup(func() {
		fromClient.Close() // a pipe in memory
		if err := <-ended; err != nil {
			t.Errorf("session: %v", err)
		}
		c.Close() // its input has ended
	})
	return c
}
