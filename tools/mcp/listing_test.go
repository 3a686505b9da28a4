package mcp_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v5"

	"powernode/tools/mcp"
	"powernode/tools/toolstest"
)

// tool is a listed tool as a client reads it.
type tool struct {
	Name         string          `json:"name"`
	Description  string          `json:"description"`
	InputSchema  json.RawMessage `json:"inputSchema"`
	OutputSchema json.RawMessage `json:"outputSchema"`
	Annotations  struct {
		Title           string `json:"title"`
		ReadOnlyHint    *bool  `json:"readOnlyHint"`
		DestructiveHint *bool  `json:"destructiveHint"`
		IdempotentHint  *bool  `json:"idempotentHint"`
		OpenWorldHint   *bool  `json:"openWorldHint"`
	} `json:"annotations"`
}

func list(t *testing.T, env *toolstest.Env, toolsets string, readOnly bool) []tool {
	t.Helper()
	choice, err := mcp.ParseChoice(toolsets, readOnly)
	if err != nil {
		t.Fatal(err)
	}
	return converse(t, env, choice, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)[0].Result.Tools
}

func names(tools []tool) []string {
	var out []string
	for _, t := range tools {
		out = append(out, t.Name)
	}
	return out
}

func TestListingStaysWithinItsBudget(t *testing.T) {
	t.Parallel()
	const maxTools, maxWithout, maxWith, maxName, maxDescription = 96, 64 << 10, 96 << 10, 45, 400
	tools := list(t, toolstest.New(t), "", false)
	with, err := json.Marshal(tools)
	if err != nil {
		t.Fatal(err)
	}
	outputs := 0
	for _, l := range tools {
		outputs += len(l.OutputSchema) + len(`"outputSchema":,`)
		if len(l.Name) > maxName || len(l.Description) > maxDescription || l.Description == "" {
			t.Errorf("%s: name of %d, description of %d characters", l.Name, len(l.Name), len(l.Description))
		}
	}
	without := len(with) - outputs
	t.Logf("%d tools, %d bytes without output schemas, %d with", len(tools), without, len(with))
	if len(tools) == 0 || len(tools) > maxTools || without > maxWithout || len(with) > maxWith {
		t.Errorf("default list: %d tools (at most %d), %d bytes without output schemas (%d), %d with (%d)", len(tools), maxTools, without, maxWithout,
			len(with), maxWith)
	}
}

func TestChoiceListsToolsetsAndAlwaysThePreview(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	var every []string
	for _, d := range env.Platform.Verbs() {
		every = append(every, d.Name())
	}
	for _, tt := range []struct {
		name, toolsets string
		readOnly       bool
		listed         func(toolset string, byDefault, reads bool) bool
	}{
		{"the default list", "", false, func(_ string, byDefault, _ bool) bool { return byDefault }},
		{"all", "all", false, func(string, bool, bool) bool { return true }},
		{"two toolsets", "sdwan, kubernetes", false, func(toolset string, _, _ bool) bool { return toolset == "sdwan" || toolset == "kubernetes" }},
		{"readers of all", "all", true, func(_ string, _, reads bool) bool { return reads }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := names(list(t, env, tt.toolsets, tt.readOnly))
			for _, name := range every {
				d, _ := env.Platform.Lookup(name)
				v := d.Contract()
				want := name == "platform_preview" || tt.listed(v.Toolset, v.Default, v.Annotations.ReadOnly)
				if slices.Contains(got, name) != want {
					t.Errorf("%s is listed: %v, want %v", name, !want, want)
				}
			}
		})
	}
	if _, err := mcp.ParseChoice("sdwan,nonsense", false); err == nil {
		t.Error("a toolset that there is not was taken")
	}
}

func TestVerbOutsideTheListIsCallable(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	choice, err := mcp.ParseChoice("kubernetes", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"system_sdwan_list_networks", "platform.system_sdwan_list_networks"} {
		if r := converse(t, env, choice, callLine(1, name, `{}`))[0]; r.Result == nil || r.Result.IsError {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// Large clients take no more of JSON Schema than this.
func TestListedSchemasStayInTheSubsetThatClientsTake(t *testing.T) {
	t.Parallel()
	for _, l := range list(t, toolstest.New(t), "all", false) {
		if a := l.Annotations; a.Title == "" || a.ReadOnlyHint == nil || a.DestructiveHint == nil || a.IdempotentHint == nil || a.OpenWorldHint == nil {
			t.Errorf("%s: a hint or the title is missing", l.Name)
		}
		walk(t, l.Name+" input", l.InputSchema, true)
		walk(t, l.Name+" output", l.OutputSchema, true)
		for _, raw := range []json.RawMessage{l.InputSchema, l.OutputSchema} {
			if _, err := jsonschema.CompileString("schema.json", string(raw)); err != nil {
				t.Errorf("%s: %v", l.Name, err)
			}
			if strings.Contains(string(raw), `"x-`) {
				t.Errorf("%s lists notes that are for us alone", l.Name)
			}
		}
		if strings.Contains(string(l.OutputSchema), "description") && !strings.Contains(string(l.OutputSchema), `"description":{`) {
			t.Errorf("%s: the output schema is described", l.Name)
		}
	}
}

func walk(t *testing.T, at string, raw json.RawMessage, root bool) {
	t.Helper()
	var s struct {
		Type       any                        `json:"type"`
		Properties map[string]json.RawMessage `json:"properties"`
		Items      json.RawMessage            `json:"items"`
		AnyOf      []json.RawMessage          `json:"anyOf"`
		OneOf      json.RawMessage            `json:"oneOf"`
		AllOf      json.RawMessage            `json:"allOf"`
		Ref        json.RawMessage            `json:"$ref"`
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Errorf("%s: %v", at, err)
		return
	}
	if _, text := s.Type.(string); s.Type != nil && !text {
		t.Errorf("%s: type is a list", at)
	}
	if s.OneOf != nil || s.AllOf != nil || s.Ref != nil || root && s.AnyOf != nil {
		t.Errorf("%s: a combinator or reference", at)
	}
	if root && (s.Type != "object" || s.Properties == nil) {
		t.Errorf("%s: the root is no object with properties", at)
	}
	if s.Type == "array" && s.Items == nil {
		t.Errorf("%s: an array without items", at)
	}
	for name, p := range s.Properties {
		walk(t, at+"/"+name, p, false)
	}
}

// What a call answers is what a client was told: clients check that.
func TestAnswersFitTheListedOutputSchemas(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	listed := map[string]tool{}
	for _, l := range list(t, env, "all", false) {
		listed[l.Name] = l
	}
	network := env.Call(t, "system_sdwan_create_network", `{"name":"a"}`)["network"].(toolstest.Object)["id"].(string)
	for _, tt := range []struct{ verb, arguments string }{
		{"platform_whoami", `{}`},
		{"system_sdwan_create_network", `{"name":"b"}`},
		{"system_sdwan_list_networks", `{}`},
		{"system_sdwan_get_network", `{"network_id":"` + network + `"}`},
		{"system_sdwan_delete_network", `{"network_id":"` + network + `"}`}, // parked
		{"kubernetes_list_clusters", `{}`},
		{"platform_list_operations", `{}`},
		{"platform_preview", `{"verb":"system_sdwan_create_network","arguments":{"name":"c"}}`},
		{"system_recent_signals", `{}`},
		{"recent_events", `{}`},
	} {
		r := converse(t, env, mcp.Choice{}, callLine(1, tt.verb, tt.arguments))[0]
		if r.Result == nil || r.Result.IsError {
			t.Errorf("%s: %+v", tt.verb, r)
			continue
		}
		compiled, err := jsonschema.CompileString("output.json", string(listed[tt.verb].OutputSchema))
		if err != nil {
			t.Fatalf("%s: %v", tt.verb, err)
		}
		var got any
		if err := json.Unmarshal(r.Result.StructuredContent, &got); err != nil {
			t.Fatal(err)
		}
		if err := compiled.Validate(got); err != nil {
			t.Errorf("%s: %v\n%s", tt.verb, err, r.Result.StructuredContent)
		}
	}
}
