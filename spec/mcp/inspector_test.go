package mcp_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"powernode/spec/rig"
)

// inspect runs the inspector's command line on the production binary.
func inspect(t *testing.T, args ...string) (answer rig.Object, said string, code int) {
	t.Helper()
	out, said, code := node(t, filepath.Join(modules, "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"),
		append([]string{"--cli"}, args...)...)
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		t.Fatalf("the inspector printed no JSON (%v), exit code %d:\n%s%s", err, code, out, said)
	}
	return answer, said, code
}

func TestInspectorListsAndCalls(t *testing.T) {
	t.Parallel()
	stdio := []string{filepath.Join(shared.Bin, "powernode"), "--state-dir", shared.Dir, "mcp", "--toolsets", "all"}
	http := []string{"--transport", "http", "--server-url", shared.url + "?toolsets=all", "--header", "Authorization: Bearer " + shared.token}
	list := []string{"--method", "tools/list"}
	call := func(verb, arguments string) []string {
		return []string{"--method", "tools/call", "--tool-name", verb, "--tool-args-json", arguments}
	}
	refused := call("system_get_node", `{"node_id":"00000000-0000-7000-8000-000000000000"}`)
	for _, tt := range []struct {
		name   string
		server []string
		args   []string
		code   int
		want   string // in what it prints
	}{
		{"lists over stdio", stdio, list, 0, `"name":"kubernetes_create_cluster"`},
		{"lists over HTTP", http, list, 0, `"name":"kubernetes_create_cluster"`},
		{"calls over stdio", stdio, call("system_list_nodes", "{}"), 0, `"structuredContent":{"count":0`},
		{"calls over HTTP", http, call("system_list_nodes", "{}"), 0, `"structuredContent":{"count":0`},
		{"calls in the stateless era", http, append(call("system_list_nodes", "{}"), "--protocol-era", "modern"), 0, `"structuredContent":{"count":0`},
		{"is refused over stdio", stdio, refused, 5, `"isError":true`},
		{"is refused over HTTP", http, refused, 5, `"isError":true`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			answer, said, code := inspect(t, append(tt.args, tt.server...)...)
			got, err := json.Marshal(answer)
			ok(t, err)
			if code != tt.code || !strings.Contains(string(got), tt.want) {
				t.Errorf("exit code %d, want %d, and %s in:\n%.2000s\n%s", code, tt.code, tt.want, got, said)
			}
		})
	}
}

// Every schema can be used by every client that the inspector knows: it finds nothing, not even a warning.
func TestInspectorFindsNoFaultInTheSchemas(t *testing.T) {
	t.Parallel()
	for _, toolsets := range [][]string{nil, {"--toolsets", "all"}} {
		t.Run(strings.Join(append([]string{"listed"}, toolsets...), " "), func(t *testing.T) {
			t.Parallel()
			answer, said, code := inspect(t, append([]string{"--strict", "--method", "tools/list",
				filepath.Join(shared.Bin, "powernode"), "--state-dir", shared.Dir, "mcp"}, toolsets...)...)
			if code != 0 || said != "" || len(rig.List(answer, "tools")) == 0 {
				t.Errorf("exit code %d with %d tools: %s", code, len(rig.List(answer, "tools")), said)
			}
		})
	}
}
