package mcp_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/spec/rig"
)

// outcome is what a client made of one answer.
type outcome struct {
	Result json.RawMessage `json:"result"`
	Thrown *thrown         `json:"thrown"`
}

type thrown struct {
	Code    *int   `json:"code"`
	Message string `json:"message"`
}

// listed is a tool as the client lists it.
type listed struct {
	Name   string `json:"name"`
	Output bool   `json:"output"` // it has an output schema
}

// seen is what a client printed.
type seen struct {
	Server       struct{ Name, Version string } `json:"server"`
	Instructions string                         `json:"instructions"`
	Revision     *string                        `json:"revision"`
	Tools        []listed                       `json:"tools"`
	Network      string                         `json:"network"`

	Made     outcome `json:"made"`
	Again    outcome `json:"again"`
	Read     outcome `json:"read"`
	Misspelt outcome `json:"misspelt"`
	Array    outcome `json:"array"`
	Absent   outcome `json:"absent"`
	Parked   outcome `json:"parked"`
	Unknown  outcome `json:"unknown"`

	Resources []string `json:"resources"`
	Templates []string `json:"templates"`
	Document  outcome  `json:"document"`
	Nowhere   outcome  `json:"nowhere"`
	Prompts   []string `json:"prompts"`
	Prompt    outcome  `json:"prompt"`
	NoPrompt  outcome  `json:"noPrompt"`
	Completed struct {
		Completion struct{ Values []string }
	} `json:"completed"`

	Cancelled struct {
		Progress []string `json:"progress"`
		Thrown   *thrown  `json:"thrown"`
	} `json:"cancelled"`
	Shown  []string `json:"shown"`  // what the server put before the user
	Faults []string `json:"faults"` // what the client found beside its calls
	Exit   *int     `json:"exit"`   // of the server on stdio; null: it had to be killed
}

const stateless = "2026-07-28"

// Each client holds each result against the output schema that it was listed with, and throws where it does not fit.
func TestTypeScriptClientsListCallAndGetErrorsRight(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ program, era, revision string }{
		{"v1.mjs", "", "2025-11-25"},
		{"v2.mjs", "legacy", "2025-11-25"},
		{"v2.mjs", "auto", stateless},
		{"v2.mjs", stateless, stateless},
	} {
		for _, transport := range []string{"stdio", "http"} {
			name := strings.TrimSuffix(tt.program, ".mjs") + strings.TrimSuffix("-"+tt.era, "-") + "-" + transport
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := typescript(t, tt.program, rig.Object{"name": name, "era": tt.era}, transport)
				s.checkOpening(t, tt.revision)
				s.checkCalls(t, name)
				missing := -32002
				if tt.program == "v2.mjs" { // it has one code for both eras
					missing = -32602
				}
				s.checkDocuments(t, name, missing)
				s.checkTold(t, tt.revision, transport)
			})
		}
	}
}

func typescript(t *testing.T, program string, given rig.Object, transport string) (s seen) {
	t.Helper()
	given["modules"] = modules
	if transport == "stdio" {
		given["command"], given["args"] = filepath.Join(shared.Bin, "powernode"), []string{"--state-dir", shared.Dir, "mcp", "--toolsets", "all"}
	} else {
		given["url"], given["token"] = shared.url+"?toolsets=all", shared.token
	}
	raw, err := json.Marshal(given)
	ok(t, err)
	out, said, code := node(t, program, string(raw))
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, said)
	}
	ok(t, json.Unmarshal([]byte(out), &s))
	return s
}

func (s seen) checkOpening(t *testing.T, revision string) {
	t.Helper()
	if s.Server.Name != "powernode" || !strings.Contains(s.Instructions, "powernode approvals") {
		t.Errorf("server %+v, instructions %q", s.Server, s.Instructions)
	}
	if s.Revision != nil && *s.Revision != revision {
		t.Errorf("agreed on revision %s, want %s", *s.Revision, revision)
	}
	for _, want := range []string{"system_create_node", "system_sdwan_delete_network", "platform_get_operation"} {
		if !slices.Contains(s.Tools, listed{want, true}) {
			t.Errorf("tool %s with an output schema is not listed", want)
		}
	}
}

func (s seen) checkCalls(t *testing.T, name string) {
	t.Helper()
	made, read, parked := structured(t, "made", s.Made), structured(t, "read", s.Read), structured(t, "parked", s.Parked)
	if id := rig.Text(made, "network", "id"); id == "" || id != s.Network || rig.Text(read, "network", "id") != id || rig.Text(read, "network", "name") != name {
		t.Errorf("made %v, read %v", made, read)
	}
	want := rig.Object{"pending": true, "action_category": "sdwan.network_delete"}
	if diff := cmp.Diff(want, rig.Object{"pending": parked["pending"], "action_category": parked["action_category"]}); diff != "" {
		t.Errorf("parked (-want +got):\n%s", diff)
	}
	if rig.Text(parked, "deferred_operation_id") == "" || !strings.HasPrefix(rig.Text(parked, "plan_digest"), "sha256:") {
		t.Errorf("parked: %v", parked)
	}
	for _, tt := range []struct {
		name       string
		got        outcome
		code, text string
	}{
		{"made again", s.Again, "conflict", "already in use"},
		{"misspelt", s.Misspelt, "invalid_arguments", "hostname (did you mean name?)"},
		{"an array", s.Array, "invalid_arguments", "arguments must be an object (got array)"},
		{"absent", s.Absent, "not_found", "network not found"},
	} {
		refused(t, tt.name, tt.got, tt.code, tt.text)
	}
	s.Unknown.fails(t, "a tool that is none", -32602, "did you mean system_sdwan_list_networks?")
}

// checkDocuments checks resources and prompts. missing is the code that a document which is none is told by.
func (s seen) checkDocuments(t *testing.T, name string, missing int) {
	t.Helper()
	if !slices.Contains(s.Resources, "powernode://networks") || !slices.Contains(s.Templates, "powernode://networks/{id}") {
		t.Errorf("resources %v, templates %v", s.Resources, s.Templates)
	}
	var document struct {
		Contents []struct{ URI, Text string }
	}
	if err := json.Unmarshal(s.Document.Result, &document); err != nil || len(document.Contents) != 1 {
		t.Fatalf("document %s %+v", s.Document.Result, s.Document.Thrown)
	}
	if c := document.Contents[0]; c.URI != "powernode://networks/"+s.Network || !strings.Contains(c.Text, fmt.Sprintf("%q", name)) {
		t.Errorf("document %+v", c)
	}
	s.Nowhere.fails(t, "a document that is none", missing, "powernode://nowhere")
	if !slices.Contains(s.Prompts, "set-up-clusters") || !strings.Contains(string(s.Prompt.Result), "blue,green") {
		t.Errorf("prompts %v, and %s %+v", s.Prompts, s.Prompt.Result, s.Prompt.Thrown)
	}
	s.NoPrompt.fails(t, "a prompt that is none", -32602, "set-up-nothing")
	if !slices.Contains(s.Completed.Completion.Values, name) && !slices.Contains(s.Completed.Completion.Values, s.Network) {
		t.Errorf("completed with %v", s.Completed.Completion.Values)
	}
}

// checkTold checks what comes beside answers: progress, what is shown to the user, and the end of a call taken back.
func (s seen) checkTold(t *testing.T, revision, transport string) {
	t.Helper()
	if c := s.Cancelled; len(c.Progress) == 0 || !strings.Contains(c.Progress[0], "system_watch_signals has begun") || c.Thrown == nil ||
		!strings.Contains(c.Thrown.Message, "no longer wanted") {
		t.Errorf("a call taken back: %+v", c)
	}
	shows := 0 // a result that asks would hold up the answer
	if revision != stateless {
		shows = 1
	}
	if len(s.Shown) != shows || shows == 1 && !strings.Contains(s.Shown[0], "powernode approvals show") {
		t.Errorf("the user was shown %q", s.Shown)
	}
	for _, fault := range s.Faults {
		if transport == "stdio" || fault != "This operation was aborted" { // over HTTP that is the client's own doing
			t.Errorf("the client found a fault: %s", fault)
		}
	}
	// The server had ended the call: it would have waited for it.
	if s.Exit == nil || *s.Exit != 0 {
		t.Errorf("the server's exit code is %v", s.Exit)
	}
}

// structured is a result's content, which is the same in both of its forms.
func structured(t *testing.T, name string, o outcome) rig.Object {
	t.Helper()
	var r rig.ToolResult
	if err := json.Unmarshal(o.Result, &r); err != nil || o.Thrown != nil || r.IsError || len(r.Content) != 1 {
		t.Fatalf("%s: %+v %s, want a result", name, o.Thrown, o.Result)
	}
	var object, text rig.Object
	if err := errors.Join(json.Unmarshal(r.StructuredContent, &object), json.Unmarshal([]byte(r.Content[0].Text), &text)); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if diff := cmp.Diff(object, text); diff != "" {
		t.Errorf("%s: structured content and text differ (-structured +text):\n%s", name, diff)
	}
	return object
}

func refused(t *testing.T, name string, o outcome, code, text string) {
	t.Helper()
	var r rig.ToolResult
	if err := json.Unmarshal(o.Result, &r); err != nil {
		t.Fatalf("%s: thrown %+v, want a tool result", name, o.Thrown)
	}
	got, err := rig.Answer{Result: &r}.Refusal()
	ok(t, err)
	if got == nil || got.Code != code || !strings.Contains(got.Message, text) {
		t.Errorf("%s: refused with %v; want the tool result %s: …%s…", name, got, code, text)
	}
}

// fails says whether a request came out as a protocol error.
func (o outcome) fails(t *testing.T, name string, code int, text string) {
	t.Helper()
	if o.Thrown == nil || o.Thrown.Code == nil || *o.Thrown.Code != code || !strings.Contains(o.Thrown.Message, text) {
		t.Errorf("%s: %s %+v, want the protocol error %d: …%s…", name, o.Result, o.Thrown, code, text)
	}
}
