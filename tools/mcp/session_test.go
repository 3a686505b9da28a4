package mcp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"powernode/schema"
	"powernode/tools/mcp"
	"powernode/tools/toolstest"
)

// reply is an answer as a client reads it.
type reply struct {
	ID     json.RawMessage `json:"id"`
	Result *struct {
		Content []struct {
			Type string `json:"type"`
			Text string `json:"text"`
		} `json:"content"`
		StructuredContent json.RawMessage `json:"structuredContent"`
		IsError           bool            `json:"isError"`
		Instructions      string          `json:"instructions"`
		ResultType        string          `json:"resultType"`
		RequestState      string          `json:"requestState"`
		InputRequests     map[string]any  `json:"inputRequests"`
		Tools             []tool          `json:"tools"`
	} `json:"result"`
	Error *struct {
		Code    int            `json:"code"`
		Message string         `json:"message"`
		Data    map[string]any `json:"data"`
	} `json:"error"`
}

// refusal is the coded error of a tool's result.
func (r reply) refusal(t *testing.T) schema.Error {
	t.Helper()
	if r.Result == nil || !r.Result.IsError || len(r.Result.Content) != 1 {
		t.Fatalf("answer %+v is no tool error", r)
	}
	if r.Result.StructuredContent != nil {
		t.Errorf("an error carries structuredContent %s", r.Result.StructuredContent)
	}
	var e schema.Error
	if err := json.Unmarshal([]byte(r.Result.Content[0].Text), &e); err != nil {
		t.Fatalf("text of an error: %v", err)
	}
	return e
}

// converse has a session of its own take the input, and answers what came back once the input had ended.
func converse(t *testing.T, env *toolstest.Env, choice mcp.Choice, input string) []reply {
	t.Helper()
	var out bytes.Buffer
	face := mcp.Face{Platform: env.Platform, Version: "test", Log: env.Platform.Log}
	if err := face.Serve(t.Context(), env.Caller, choice, mcp.Lines(strings.NewReader(input), &out)); err != nil {
		t.Fatalf("session: %v", err)
	}
	var replies []reply
	for dec := json.NewDecoder(&out); ; {
		var r reply
		err := dec.Decode(&r)
		if err == io.EOF {
			return replies
		}
		if err != nil {
			t.Fatalf("stdout carries something else than the protocol: %v", err)
		}
		replies = append(replies, r)
	}
}

func byID(t *testing.T, replies []reply, id string) reply {
	t.Helper()
	i := slices.IndexFunc(replies, func(r reply) bool { return string(r.ID) == id })
	if i < 0 {
		t.Fatalf("no answer to %s", id)
	}
	return replies[i]
}

func callLine(id int, verb, arguments string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s}}`+"\n", id, verb, arguments)
}

func TestPipelinedCallsAreAllAnsweredAfterTheEndOfInputAndDoneInOrder(t *testing.T) {
	t.Parallel()
	const calls = 500
	env := toolstest.New(t)
	var in strings.Builder
	for n := range calls {
		in.WriteString(callLine(n, "system_sdwan_create_network", fmt.Sprintf(`{"name":"net-%03d"}`, n)))
	}
	replies := converse(t, env, mcp.Choice{}, in.String())
	if len(replies) != calls {
		t.Fatalf("%d answers, want %d", len(replies), calls)
	}
	last := int64(0)
	for n, r := range replies {
		var result struct {
			Network  struct{ Name string }
			Revision int64
		}
		if r.Result == nil || r.Result.IsError {
			t.Fatalf("call %d: %+v", n, r)
		}
		if err := json.Unmarshal(r.Result.StructuredContent, &result); err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("net-%03d", n); string(r.ID) != fmt.Sprint(n) || result.Network.Name != want || result.Revision <= last {
			t.Fatalf("answer %d: id %s, network %s at revision %d after %d", n, r.ID, result.Network.Name, result.Revision, last)
		}
		if text := r.Result.Content[0].Text; !jsonEqual(t, text, string(r.Result.StructuredContent)) {
			t.Errorf("text and structuredContent differ: %s", text)
		}
		last = result.Revision
	}
}

func jsonEqual(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return false
	}
	return cmp.Equal(x, y)
}

func TestLastLineWithoutLineFeedIsAnswered(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	line := strings.TrimSuffix(callLine(7, "platform_whoami", `{}`), "\n")
	replies := converse(t, env, mcp.Choice{}, line)
	if len(replies) != 1 || string(replies[0].ID) != "7" || replies[0].Result.IsError {
		t.Errorf("answers %+v", replies)
	}
}

func TestWhatDecodingWouldLoseIsRefusedWithItsPointer(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	before := env.Revision(t)
	for _, tt := range []struct{ name, params, pointer, text string }{
		{"an array for the arguments", `"arguments":[1]`, "", "arguments must be an object"},
		{"a string for the arguments", `"arguments":"{}"`, "", "arguments must be an object"},
		{"a misspelt key", `"arguments":{"name":"a","descripton":"b"}`, "/descripton", "Undeclared parameters: descripton (did you mean description?)"},
		{"a key in another case", `"arguments":{"name":"a","Description":"b"}`, "/Description", "Undeclared parameters: Description (did you mean description?)"},
		{"a key given twice", `"arguments":{"name":"a","name":"b"}`, "/name", `given twice`},
		{"arguments in another case", `"Arguments":{"name":"a"}`, "/params/Arguments", "did you mean arguments?"},
		{"arguments given twice", `"arguments":{"name":"a"},"arguments":{"name":"b"}`, "/params/arguments", "given twice"},
		{"arguments under another name", `"args":{"name":"a"}`, "/params/args", "Undeclared key of tools/call"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			line := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"system_sdwan_create_network",` + tt.params + `}}`
			got := byID(t, converse(t, env, mcp.Choice{}, line), "1").refusal(t)
			if got.Code != schema.InvalidArguments || !strings.Contains(got.Message, tt.text) {
				t.Errorf("refused with %s: %s, want %q", got.Code, got.Message, tt.text)
			}
			if got.Details["pointer"] != tt.pointer {
				t.Errorf("pointer %q, want %q", got.Details["pointer"], tt.pointer)
			}
		})
	}
	if after := env.Revision(t); after != before {
		t.Errorf("refusals moved the revision from %d to %d", before, after)
	}
}

func TestWhatIsNoToolCallIsAProtocolErrorAndTheSessionGoesOn(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	for _, tt := range []struct {
		name, line, id string
		code           int
	}{
		{"a broken line", `{"jsonrpc":"2.0","id":1`, "null", -32700},
		{"two documents on a line", `{"jsonrpc":"2.0","id":1,"method":"ping"} {}`, "null", -32700},
		{"bytes that are no text", "{\"jsonrpc\":\"2.0\",\"id\":\"\xff\",\"method\":\"ping\"}", "null", -32700},
		{"a batch", `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, "null", -32600},
		{"a method in another case", `{"jsonrpc":"2.0","id":1,"Method":"ping"}`, "1", -32600},
		{"params in another case", `{"jsonrpc":"2.0","id":1,"method":"tools/call","Params":{}}`, "1", -32600},
		{"params in letters that decoding folds", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{},"paramſ":{"uri":"a"}}`, "1", -32600},
		{"a method given twice", `{"jsonrpc":"2.0","id":1,"method":"ping","method":"ping"}`, "1", -32600},
		{"an id that is none", `{"jsonrpc":"2.0","id":{},"method":"ping"}`, "null", -32600},
		{"another version", `{"jsonrpc":"1.0","id":1,"method":"ping"}`, "1", -32600},
		{"a method that there is not", `{"jsonrpc":"2.0","id":1,"method":"tools/run"}`, "1", -32601},
		{"a call without a name", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"Name":"platform_whoami"}}`, "1", -32602},
		{"a call without parameters", `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, "1", -32602},
		{"a tool that there is not", strings.TrimSpace(callLine(1, "platform_whoareyou", "{}")), "1", -32602},
		{"a message that is too large", `{"jsonrpc":"2.0","id":1,"method":"` + strings.Repeat("x", 8<<20) + `"}`, "null", -32600},
	} {
		t.Run(tt.name, func(t *testing.T) {
			replies := converse(t, env, mcp.Choice{}, tt.line+"\n"+`{"jsonrpc":"2.0","id":"next","method":"ping"}`)
			if len(replies) != 2 {
				t.Fatalf("%d answers, want 2", len(replies))
			}
			if got := byID(t, replies, tt.id); got.Error == nil || got.Error.Code != tt.code {
				t.Errorf("answer %+v, want code %d", got.Error, tt.code)
			}
			if got := byID(t, replies, `"next"`); got.Error != nil {
				t.Errorf("the next message: %+v", got.Error)
			}
		})
	}
}

func TestUnknownToolNamesTheNearest(t *testing.T) {
	t.Parallel()
	replies := converse(t, toolstest.New(t), mcp.Choice{}, callLine(1, "system_sdwan_create_netwrok", "{}"))
	want := map[string]any{"candidates": []any{"system_sdwan_create_network"}}
	if diff := cmp.Diff(want, replies[0].Error.Data); diff != "" {
		t.Errorf("data (-want +got):\n%s", diff)
	}
}

func TestIDsComeBackAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	for _, id := range []string{`9007199254740993`, `"9007199254740993"`, `0`, `-1`, `""`, `1e2`} {
		line := `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"platform_whoami"}}`
		if replies := converse(t, env, mcp.Choice{}, line); len(replies) != 1 || string(replies[0].ID) != id {
			t.Errorf("id %s came back as %+v", id, replies)
		}
	}
}

func TestParkedCallIsAPlainResult(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	network := env.Call(t, "system_sdwan_create_network", `{"name":"a"}`)["network"].(toolstest.Object)
	replies := converse(t, env, mcp.Choice{}, callLine(1, "system_sdwan_delete_network", fmt.Sprintf(`{"network_id":%q}`, network["id"])))
	if replies[0].Result == nil || replies[0].Result.IsError {
		t.Fatalf("answer %+v", replies[0])
	}
	var parked struct{ Pending bool }
	if err := json.Unmarshal(replies[0].Result.StructuredContent, &parked); err != nil || !parked.Pending {
		t.Errorf("structuredContent %s", replies[0].Result.StructuredContent)
	}
}

func TestNotificationsAndStrayAnswersAreTakenInSilence(t *testing.T) {
	t.Parallel()
	in := `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n" +
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":4}}` + "\n" +
		`{"jsonrpc":"2.0","id":5,"result":{}}` + "\n\n"
	if replies := converse(t, toolstest.New(t), mcp.Choice{}, in); len(replies) != 0 {
		t.Errorf("answers %+v", replies)
	}
}

func TestReadOnlySessionRefusesWriters(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	choice, err := mcp.ParseChoice("", true)
	if err != nil {
		t.Fatal(err)
	}
	replies := converse(t, env, choice, callLine(1, "system_sdwan_create_network", `{"name":"a"}`)+callLine(2, "system_sdwan_list_networks", `{}`))
	if got := byID(t, replies, "1").refusal(t); got.Code != schema.PermissionDenied {
		t.Errorf("a writer is refused with %s: %s", got.Code, got.Message)
	}
	if got := byID(t, replies, "2"); got.Result == nil || got.Result.IsError {
		t.Errorf("a reader: %+v", got)
	}
}

func TestInstructionsSayWhetherThereIsAHumanKey(t *testing.T) {
	t.Parallel()
	const open = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	for _, tt := range []struct {
		name string
		env  *toolstest.Env
		want bool
	}{
		{"without a key", toolstest.NewWithoutKey(t), true},
		{"with a key", toolstest.New(t), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := converse(t, tt.env, mcp.Choice{}, open)[0].Result.Instructions
			if got := strings.Contains(text, "powernode init"); got != tt.want {
				t.Errorf("instructions name powernode init: %v, want %v\n%s", got, tt.want, text)
			}
		})
	}
}

// A client of the stateless era sends its version with each request, and is answered in its terms.
func TestStatelessRequestNeedsNoHandshake(t *testing.T) {
	t.Parallel()
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},` +
		`"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"}}`
	in := `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{` + meta + `}}` + "\n" +
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"platform_whoami",` + meta + `}}`
	replies := converse(t, toolstest.New(t), mcp.Choice{}, in)
	if got := byID(t, replies, "1"); got.Error != nil || got.Result.Instructions == "" {
		t.Errorf("server/discover: %+v", got)
	}
	if got := byID(t, replies, "2"); got.Error != nil || got.Result.ResultType == "" {
		t.Errorf("tools/call: %+v", got)
	}
}

// gone is a client that takes no answer.
type gone struct{}

func (gone) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestCallsOfAClientThatIsGoneAreNotBegun(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	var in strings.Builder
	for n := range 50 {
		in.WriteString(callLine(n, "system_sdwan_create_network", fmt.Sprintf(`{"name":"net-%03d"}`, n)))
	}
	face := mcp.Face{Platform: env.Platform, Version: "test", Log: env.Platform.Log}
	if err := face.Serve(t.Context(), env.Caller, mcp.Choice{}, mcp.Lines(strings.NewReader(in.String()), gone{})); err != nil {
		t.Logf("session: %v", err)
	}
	if made := env.Call(t, "system_sdwan_list_networks", `{}`)["count"]; made != 1.0 {
		t.Errorf("%v networks were made, want the one that had begun", made)
	}
}

// live is a session that a test speaks with line by line.
type live struct {
	in   *io.PipeWriter
	out  *json.Decoder
	stop context.CancelFunc
	done chan error
}

func speak(t *testing.T, env *toolstest.Env) *live {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	toServer, in := io.Pipe()
	out, fromServer := io.Pipe()
	l := &live{in: in, out: json.NewDecoder(out), stop: stop, done: make(chan error, 1)}
	go func() {
		face := mcp.Face{Platform: env.Platform, Version: "test", Log: env.Platform.Log}
		err := face.Serve(ctx, env.Caller, mcp.Choice{}, mcp.Lines(toServer, fromServer))
		fromServer.Close() // a pipe in memory
		l.done <- err
	}()
	t.Cleanup(func() {
		in.Close()  // a pipe in memory
		out.Close() // the same; the test has heard what it wanted
		if err := <-l.done; err != nil {
			t.Errorf("session: %v", err)
		}
		stop()
	})
	return l
}

func (l *live) say(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(l.in, line+"\n"); err != nil {
		t.Fatal(err)
	}
}

func (l *live) hear(t *testing.T, id string) reply {
	t.Helper()
	var r reply
	if err := l.out.Decode(&r); err != nil || string(r.ID) != id {
		t.Fatalf("answer to %s (%v), want %s", r.ID, err, id)
	}
	return r
}

// takeBack takes a request back. What is answered from then on is heard after it.
func (l *live) takeBack(t *testing.T, id string) {
	t.Helper()
	l.say(t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"`+id+`"}}`+"\n"+request("ping", ""))
	l.hear(t, "1")
}

// silent ends the session, and fails for what is answered still.
func (l *live) silent(t *testing.T) {
	t.Helper()
	l.stop()
	l.in.Close() // a pipe in memory
	var r reply
	if err := l.out.Decode(&r); !errors.Is(err, io.EOF) {
		t.Errorf("answer to %s (%v) at the end", r.ID, err)
	}
}

// The waits are far longer than a test should take: it fails when the call was waited for instead.
const waitLine = `{"jsonrpc":"2.0","id":"wait","method":"tools/call","params":{"name":"system_watch_signals","arguments":{"wait_seconds":45}}}`

const patience = 30 * time.Second

func TestCallThatWaitsHoldsUpNoOtherAndCanBeTakenBack(t *testing.T) {
	t.Parallel()
	l := speak(t, toolstest.New(t))
	started := time.Now()
	for range 20 {
		l.say(t, strings.Replace(waitLine, `"wait"`, `"other"`, 1)) // more than may read at once
	}
	l.say(t, waitLine)
	l.say(t, strings.TrimSpace(callLine(1, "platform_whoami", "{}")))
	l.hear(t, "1")
	l.say(t, strings.TrimSpace(callLine(2, "platform_whoareyou", "{}")))
	l.hear(t, "2")
	l.takeBack(t, "wait")
	l.stop() // of the others nobody knows by which id
	for range 20 {
		if got := l.hear(t, `"other"`).refusal(t); got.Code != schema.Unavailable || !got.Retryable {
			t.Errorf("a wait that was cut off: %+v", got)
		}
	}
	l.silent(t) // what was taken back has no answer
	if took := time.Since(started); took > patience {
		t.Errorf("it took %s: the waits were waited for", took)
	}
}
