package mcp_test

import (
	"encoding/json"
	"reflect"
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
	const maxTools, maxWithout, maxWith, maxEach, maxName, maxDescription = 96, 64 << 10, 96 << 10, 780, 45, 400
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
	if each := without / len(tools); each > maxEach {
		t.Errorf("%d bytes a tool, at most %d: there are more to come", each, maxEach)
	}
	if len(tools) == 0 || len(tools) > maxTools || without > maxWithout || len(with) > maxWith {
		t.Errorf("default list: %d tools (at most %d), %d bytes without output schemas (%d), %d with (%d)", len(tools), maxTools, without, maxWithout,
			len(with), maxWith)
	}
}

func TestChoiceListsToolsetsAndAlwaysWhatReachesTheOthers(t *testing.T) {
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
				always := name == "platform_preview" || name == "platform_search_verbs" || name == "platform_call_verb"
				want := always || tt.listed(v.Toolset, v.Default, v.Annotations.ReadOnly)
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
	env := toolstest.New(t)
	all := list(t, env, "all", false)
	if len(all) != len(env.Platform.Verbs()) {
		t.Errorf("all lists %d of %d verbs", len(all), len(env.Platform.Verbs()))
	}
	for _, l := range all {
		if len(l.Name) > 45 || len(l.Description) > 400 || l.Description == "" || l.OutputSchema == nil {
			t.Errorf("%s: name of %d, description of %d characters, output schema of %d", l.Name, len(l.Name), len(l.Description), len(l.OutputSchema))
		}
		if a := l.Annotations; a.Title == "" || a.ReadOnlyHint == nil || a.DestructiveHint == nil || a.IdempotentHint == nil || a.OpenWorldHint == nil {
			t.Errorf("%s: a hint or the title is missing", l.Name)
		}
		walk(t, l.Name+" input", l.InputSchema, true, true)
		walk(t, l.Name+" output", l.OutputSchema, true, false)
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

// dropped are the keywords of the contract that a listing may leave out, with the values that it may leave out; nil: any.
// A call is held to all of them.
var dropped = map[string][]string{"minLength": nil, "maxLength": nil, "minItems": nil, "maxItems": nil, "pattern": nil,
	"minimum": {"0", "1"}, "format": {`"uuid"`}, "default": {"false", "{}", "[]", `""`}, "x-null-clears": nil, "x-refusal": nil, "x-brief": nil}

// What is listed lets through all that is accepted, and says nothing else of it than the contract does.
func TestListedSchemasSayWhatIsHeldToAndLeaveOutBoundsAlone(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	brief := 0
	var same func(at string, contract, listed json.RawMessage)
	same = func(at string, contract, listed json.RawMessage) {
		var want, got map[string]json.RawMessage
		if json.Unmarshal(contract, &want) != nil || json.Unmarshal(listed, &got) != nil {
			t.Errorf("%s: %s is listed as %s", at, contract, listed)
			return
		}
		for key := range got {
			if want[key] == nil {
				t.Errorf("%s: %s is listed and not declared", at, key)
			}
		}
		_, isBrief := want["x-brief"]
		for key, value := range want {
			told, there := got[key]
			values, may := dropped[key]
			switch {
			case isBrief && key == "properties" && !there, isBrief && key == "additionalProperties" && string(told) == "true":
				brief++
			case !there && (!may || values != nil && !slices.Contains(values, string(value))):
				t.Errorf("%s: %s %s is left out", at, key, value)
			case !there:
			case key == "properties":
				var declared, shown map[string]json.RawMessage
				if json.Unmarshal(value, &declared) != nil || json.Unmarshal(told, &shown) != nil || len(declared) != len(shown) {
					t.Errorf("%s: properties %s are listed as %s", at, value, told)
				}
				for name := range declared {
					same(at+"/"+name, declared[name], shown[name])
				}
			case key == "items", key == "additionalProperties" && value[0] == '{':
				same(at+"/"+key, value, told)
			case !equalJSON(value, told):
				t.Errorf("%s: %s is %s in the contract, and listed as %s", at, key, value, told)
			}
		}
	}
	for _, l := range list(t, env, "all", false) {
		d, _ := env.Platform.Lookup(l.Name)
		same(l.Name, d.Contract().Input, l.InputSchema)
	}
	if brief == 0 {
		t.Error("no object is listed without its keys")
	}
}

func equalJSON(a, b json.RawMessage) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// Keywords that all large clients take. The ones of an input's bounds are ours to enforce; others may ignore them.
var keywords = []string{"type", "properties", "required", "additionalProperties", "items", "description", "default", "enum", "format", "pattern",
	"minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "anyOf"}

func walk(t *testing.T, at string, raw json.RawMessage, root, input bool) {
	t.Helper()
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(raw, &keys); err != nil {
		t.Errorf("%s: %v", at, err)
		return
	}
	for key := range keys {
		if !slices.Contains(keywords, key) || key == "anyOf" && (root || input) {
			t.Errorf("%s: keyword %s", at, key)
		}
	}
	var s struct {
		Type        any                        `json:"type"`
		Description string                     `json:"description"`
		Properties  map[string]json.RawMessage `json:"properties"`
		Required    []string                   `json:"required"`
		Items       json.RawMessage            `json:"items"`
		AnyOf       []json.RawMessage          `json:"anyOf"`
		Values      json.RawMessage            `json:"additionalProperties"`
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Errorf("%s: %v", at, err)
		return
	}
	typ, text := s.Type.(string)
	switch {
	case s.Type != nil && !text:
		t.Errorf("%s: type is a list", at)
	case root && (typ != "object" || s.Properties == nil):
		t.Errorf("%s: the root is no object with properties", at)
	case input && typ == "":
		t.Errorf("%s: no type", at)
	case typ == "array" && s.Items == nil:
		t.Errorf("%s: an array without items", at)
	case input && typ == "object" && s.Values == nil:
		t.Errorf("%s: neither closed nor free", at)
	case s.AnyOf != nil && (len(s.AnyOf) != 2 || string(s.AnyOf[1]) != `{"type":"null"}`):
		t.Errorf("%s: anyOf says more than that it may be null", at)
	}
	for _, name := range s.Required {
		if s.Properties[name] == nil {
			t.Errorf("%s: %s is required and not declared", at, name)
		}
	}
	for name, p := range s.Properties {
		walk(t, at+"/"+name, p, false, input)
		var described struct{ Description string }
		if json.Unmarshal(p, &described) != nil || input && described.Description == "" {
			t.Errorf("%s/%s: no description", at, name)
		}
	}
	if s.Items != nil {
		walk(t, at+"[]", s.Items, false, input && string(s.Items) != "{}")
	}
	if len(s.Values) > 0 && s.Values[0] == '{' {
		walk(t, at+"{}", s.Values, false, input)
	}
	if s.AnyOf != nil {
		walk(t, at, s.AnyOf[0], false, input)
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
