package mcp_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"powernode/store"
	"powernode/tools/mcp"
	"powernode/tools/toolstest"
)

// ourWords is how each refusal of ours begins.
var ourWords = regexp.MustCompile(`^(Invalid params: |Method not found: "|Resource not found: "|Unknown tool: "|Missing required client capability: )`)

// theirWords are those of the SDK, of encoding/json and of base64.
var theirWords = regexp.MustCompile(`(?i)illegal|base64|json|EOF|handler|marshal|%!|not found: .*not found|mismatch: .*mismatch`)

func TestEveryMethodRefusesInOurOwnWords(t *testing.T) {
	t.Parallel()
	methods := []string{"tools/list", "tools/call", "resources/list", "resources/templates/list", "resources/read", "resources/subscribe",
		"resources/unsubscribe", "prompts/list", "prompts/get", "completion/complete", "logging/setLevel", "tasks/list", "tasks/get",
		"server/discover", "roots/list", "tools/run", "subscriptions/listen"}
	params := []string{``, `"cursor":"zzz"`, `"cursor":"!"`, `"cursor":7`, `"uri":""`, `"uri":"test://nothing"`, `"uri":"%zz"`, `"uri":[1]`, `"name":""`,
		`"name":"nobody"`, `"name":{}`, `"name":"greet","arguments":7`, `"level":"loud"`, `"level":1`, `"ref":7`, `"ref":{}`, `"ref":{"type":"ref/other"}`,
		`"ref":{"type":"ref/prompt","name":"nobody"},"argument":{"name":"x","value":""}`, `"ref":{"type":"ref/prompt","name":"greet"},"argument":7`,
		`"taskId":"x"`, `"_meta":7`}
	for _, era := range []string{"", fmt.Sprintf(modernMeta, "{}", "")} {
		k := talkTo(t, fixture(t))
		k.open(t, "2025-11-25", "{}")
		refused := 0
		for _, method := range methods {
			for _, p := range params {
				if era != "" && method == "subscriptions/listen" || era != "" && strings.Contains(p, "_meta") {
					continue // it waits; it is of neither era
				}
				m := k.ask(t, request(method, strings.Trim(p+","+era, ",")))
				if m.Error == nil {
					continue
				}
				refused++
				if text := m.Error.Message; !ourWords.MatchString(text) || theirWords.MatchString(text) {
					t.Errorf("%s {%s} is refused with %d %q", method, p, m.Error.Code, text)
				}
			}
		}
		if refused < 100 {
			t.Errorf("%d refusals", refused)
		}
	}
}

func TestRefusalsHaveTheProtocolsCodes(t *testing.T) {
	t.Parallel()
	k := talkTo(t, fixture(t))
	k.open(t, "2025-11-25", "{}")
	complete := func(ref, argument string) string {
		return fmt.Sprintf(`"ref":%s,"argument":{"name":%q,"value":""}`, ref, argument)
	}
	for _, tt := range []struct {
		method, params, text string
		code                 int
	}{
		{"tools/list", `"cursor":"zzz"`, "Invalid params: cursor is none that this server gave: each of its lists is one page", -32602},
		{"tools/list", `"cursor":"enp6"`, "Invalid params: cursor is none that this server gave: each of its lists is one page", -32602},
		{"resources/read", ``, "Invalid params: resources/read needs the uri of a resource", -32602},
		{"resources/read", `"uri":null`, "Invalid params: resources/read needs the uri of a resource", -32602},
		{"resources/read", `"uri":"test://nothing"`, `Resource not found: "test://nothing"`, -32002},
		{"prompts/get", `"name":"greeet"`, `Invalid params: unknown prompt "greeet" (did you mean greet?)`, -32602},
		{"prompts/get", `"name":"greet","arguments":{"name":" \t"}`, "Invalid params: prompt greet: missing required argument name, or it is blank", -32602},
		{"completion/complete", complete(`{"type":"ref/prompt","name":"nobody"}`, "name"), `Invalid params: unknown prompt "nobody"`, -32602},
		{"completion/complete", complete(`{"type":"ref/prompt","name":"greet"}`, "mood"), `Invalid params: prompt greet has no argument "mood"`, -32602},
		{"completion/complete", complete(`{"type":"ref/resource","uri":"test://rows/{row}"}`, "row"),
			`Invalid params: unknown resource "test://rows/{row}": resources/templates/list has those with arguments`, -32602},
		{"completion/complete", complete(`{"type":"ref/resource","uri":"test://rows/{id}"}`, "row"), `Invalid params: resource test://rows/{id} has no argument "row"`, -32602},
		{"completion/complete", complete(`{"type":"ref/resource","uri":"test://text"}`, "id"), `Invalid params: resource test://text has no argument "id"`, -32602},
		{"logging/setLevel", `"level":"loud"`, `Invalid params: level "loud" is none: there are debug, info, notice, warning, error, critical, alert, emergency`, -32602},
		{"tools/run", ``, `Method not found: "tools/run"`, -32601},
		{"server/discover", ``, `Method not found: "server/discover" in the revision of the protocol that this request is of`, -32601},
	} {
		m := k.ask(t, request(tt.method, tt.params))
		if m.Error == nil || m.Error.Code != tt.code || m.Error.Message != tt.text {
			t.Errorf("%s {%s}: %+v, want %d %q", tt.method, tt.params, m.Error, tt.code, tt.text)
		}
	}
}

func TestMessageNestedTooDeepIsToldSoUnderItsID(t *testing.T) {
	t.Parallel()
	deep := func(members string) string {
		return `{"jsonrpc":"2.0",` + members + `"method":"tools/call","params":{"name":"platform_whoami","arguments":` +
			strings.Repeat(`{"a":[`, 100_000) + `"x"` + strings.Repeat(`]}`, 100_000) + `}}`
	}
	k := talkTo(t, fixture(t))
	k.open(t, "2025-11-25", "{}")
	for _, tt := range []struct{ line, id string }{
		{deep(`"id":7,`), "7"},
		{deep(`"id" : "seven",`), `"seven"`},
		{deep(`"x":{"id":1},"id":12345678901234567890,`), "12345678901234567890"},
		{deep(`"id":7,"id":8,`), "null"},
		{deep(``), "null"},
	} {
		m := k.ask(t, tt.line)
		if m.Error == nil || m.Error.Code != -32600 || m.Error.Message != "Invalid request: the message is nested deeper than 10000 levels" || string(m.ID) != tt.id {
			t.Errorf("%.60s…: id %s, %+v, want id %s", tt.line, m.ID, m.Error, tt.id)
		}
	}
	if m := k.ask(t, deep(`"id":7,`)[:500_000]); m.Error == nil || m.Error.Code != -32700 {
		t.Errorf("one that breaks off: %+v", m.Error)
	}
}

// Whatever refuses a call whose verb is known, the record has it: once, also where it is sent again.
func TestCallRefusedForItsEnvelopeLeavesAnExecutionEvent(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	for _, tt := range []struct{ name, params, verb string }{
		{"arguments in another case", `"name":"system_sdwan_create_network","Arguments":{"name":"b"}`, "system_sdwan_create_network"},
		{"a key that is not declared", `"name":"system_list_nodes","arguments":{},"foo":1`, "system_list_nodes"},
		{"a name given twice", `"name":"system_sdwan_create_network","name":"system_list_nodes","arguments":{}`, "system_list_nodes"},
		{"arguments given twice", `"name":"platform.system_list_nodes","arguments":{},"arguments":{}`, "system_list_nodes"},
	} {
		line := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + tt.params + `}}`
		before := recorded(t, env)
		refusal := byID(t, converse(t, env, mcp.Choice{}, line), "1").refusal(t)
		after := recorded(t, env)
		if len(after) != len(before)+1 {
			t.Errorf("%s: %d events more, want 1", tt.name, len(after)-len(before))
			continue
		}
		if e := after[0]; e.EventType != tt.verb || e.Status != "refused" || e.ErrorClass != "invalid_arguments" || e.ErrorMessage != refusal.Message {
			t.Errorf("%s: recorded as %s %s %s %q", tt.name, e.EventType, e.Status, e.ErrorClass, e.ErrorMessage)
		}
	}
}

// recorded are the execution events, the latest first.
func recorded(t *testing.T, env *toolstest.Env) (events []store.ExecutionEvent) {
	t.Helper()
	if err := env.Platform.FlushReads(t.Context()); err != nil {
		t.Fatal(err)
	}
	env.View(t, func(ctx context.Context, v *store.View) (err error) {
		events, err = store.ExecutionEvents(ctx, v, env.Caller.AccountID, "", "", 1000)
		return err
	})
	return events
}
