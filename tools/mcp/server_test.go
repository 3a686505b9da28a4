package mcp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	sdk "github.com/mark3labs/mcp-go/mcp"

	"powernode/schema"
	"powernode/tools/mcp"
)

// talk is a session with the fixture that a test speaks with message by message.
type talk struct {
	in  *io.PipeWriter
	out chan message // heard while the test says something: a pipe takes what is read
}

// listen hears a server until its end.
func listen(t *testing.T, in *io.PipeWriter, out io.Reader) *talk {
	k := &talk{in: in, out: make(chan message, 10_000)}
	var hearing sync.WaitGroup
	hearing.Go(func() {
		defer close(k.out)
		for dec := json.NewDecoder(out); ; {
			var m message
			if err := dec.Decode(&m); err != nil {
				return
			}
			k.out <- m
		}
	})
	t.Cleanup(hearing.Wait)
	return k
}

func talkTo(t *testing.T, s *mcp.Server) *talk {
	t.Helper()
	toServer, in := io.Pipe()
	out, fromServer := io.Pipe()
	k, done := listen(t, in, out), make(chan error, 1)
	go func() {
		err := s.Serve(context.Background(), mcp.Principal{}, mcp.Lines(toServer, fromServer))
		fromServer.Close() // a pipe in memory
		done <- err
	}()
	t.Cleanup(func() {
		in.Close() // a pipe in memory
		if err := <-done; err != nil {
			t.Errorf("session: %v", err)
		}
	})
	return k
}

// message is one of the server's: an answer, a notification or a question.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params map[string]any  `json:"params"`
	Result map[string]any  `json:"result"`
	Error  *struct {
		Code    int            `json:"code"`
		Message string         `json:"message"`
		Data    map[string]any `json:"data"`
	} `json:"error"`
}

func (k *talk) say(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(k.in, line+"\n"); err != nil {
		t.Fatal(err)
	}
}

func (k *talk) hear(t *testing.T) message {
	t.Helper()
	m, more := <-k.out
	if !more {
		t.Fatal("the session has ended")
	}
	return m
}

func (k *talk) ask(t *testing.T, line string) message {
	t.Helper()
	k.say(t, line)
	return k.hear(t)
}

// silent ends the session, and fails for what is answered still.
func (k *talk) silent(t *testing.T) {
	t.Helper()
	k.in.Close() // a pipe in memory
	for m := range k.out {
		if m.Method == "" {
			t.Fatalf("told %+v at the end", m)
		}
	}
}

func (k *talk) open(t *testing.T, version, capabilities string) map[string]any {
	t.Helper()
	m := k.ask(t, `{"jsonrpc":"2.0","id":"open","method":"initialize","params":{"protocolVersion":"`+version+`","capabilities":`+capabilities+
		`,"clientInfo":{"name":"t","version":"1"}}}`)
	k.say(t, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return m.Result
}

func request(method, params string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{` + params + `}}`
}

func TestHandshakeAgreesOnARevisionThatBothKnow(t *testing.T) {
	t.Parallel()
	for asked, want := range map[string]string{"2024-11-05": "2024-11-05", "2025-03-26": "2025-03-26", "2025-06-18": "2025-06-18", "2025-11-25": "2025-11-25",
		"2026-07-28": "2025-11-25", "1999-01-01": "2025-11-25"} {
		k := talkTo(t, fixture(t))
		got := k.open(t, asked, "{}")
		if got["protocolVersion"] != want {
			t.Errorf("asked for %s, agreed on %v, want %s", asked, got["protocolVersion"], want)
		}
		if m := k.ask(t, request("ping", "")); m.Error != nil {
			t.Errorf("ping: %+v", m.Error)
		}
	}
}

func TestCatalogueIsListedReadAndCompleted(t *testing.T) {
	t.Parallel()
	k := talkTo(t, fixture(t))
	opened := k.open(t, "2025-11-25", "{}")
	capabilities := map[string]any{"tools": map[string]any{}, "prompts": map[string]any{}, "resources": map[string]any{"subscribe": true}, "logging": map[string]any{}, "completions": map[string]any{}}
	if diff := cmp.Diff(capabilities, opened["capabilities"]); diff != "" {
		t.Errorf("capabilities (-want +got):\n%s", diff)
	}
	for _, tt := range []struct{ method, params, want string }{
		{"tools/call", `"name":"add","arguments":{"a":2}`, `"sum":3`},
		{"tools/call", `"name":"add","arguments":{"a":2,"c":1}`, `Undeclared parameters: c`},
		{"resources/list", ``, `test://text`},
		{"resources/templates/list", ``, `test://rows/{id}`},
		{"resources/read", `"uri":"test://text"`, `a text`},
		{"resources/read", `"uri":"test://rows/7"`, `row 7`},
		{"prompts/list", ``, `greet`},
		{"prompts/get", `"name":"greet","arguments":{"name":"Ada"}`, `Hello Ada`},
		{"completion/complete", `"ref":{"type":"ref/prompt","name":"greet"},"argument":{"name":"name","value":"A"}`, `greet/name/A`},
		{"completion/complete", `"ref":{"type":"ref/resource","uri":"test://rows/{id}"},"argument":{"name":"id","value":""}`, `test://rows/{id}/id/`},
		{"logging/setLevel", `"level":"warning"`, `{}`},
	} {
		m := k.ask(t, request(tt.method, tt.params))
		var spelt strings.Builder
		enc := json.NewEncoder(&spelt)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(m.Result); err != nil {
			t.Fatal(err)
		}
		if m.Error != nil || !strings.Contains(strings.ReplaceAll(spelt.String(), `\"`, `"`), tt.want) {
			t.Errorf("%s %s: %s %+v, want %s", tt.method, tt.params, spelt.String(), m.Error, tt.want)
		}
	}
}

func TestRefusedRequestsSayWhyInCodes(t *testing.T) {
	t.Parallel()
	k := talkTo(t, fixture(t))
	k.open(t, "2025-11-25", "{}")
	for _, tt := range []struct {
		method, params, text string
		code                 int
	}{
		{"resources/read", `"uri":"test://nothing"`, "test://nothing", -32002},
		{"resources/read", `"uri":"test://rows/none"`, "row not found", -32002},
		{"resources/read", `"URI":"test://text"`, "did you mean uri?", -32602},
		{"resources/read", `"uri":"test://text","uri":"test://rows/1"`, "given twice", -32602},
		{"prompts/get", `"name":"greet"`, "missing required argument name", -32602},
		{"prompts/get", `"name":"greet","arguments":{"name":"Ada","mood":"x"}`, `undeclared argument "mood"`, -32602},
		{"prompts/get", `"name":"greet","arguments":{"name":7}`, "another type", -32602},
		{"prompts/get", `"name":"greet","arguments":{"name":"a","name":"b"}`, "given twice", -32602},
		{"prompts/get", `"name":"greet","arguments":["Ada"]`, "another type", -32602},
		{"resources/read", `"uri":7`, "another type", -32602},
		{"prompts/get", `"name":"nobody"`, "nobody", -32602},
		{"logging/setLevel", `"level":"loud"`, "loud", -32602},
		{"tools/call", `"name":"broken"`, "Internal error", -32603},
		{"tools/call", `"name":"nobody"`, "Unknown tool", -32602},
		{"tools/call", `"name":"ask"`, "elicitation", sdk.MISSING_REQUIRED_CLIENT_CAPABILITY},
		{"server/discover", ``, "", -32601},
		{"tools/run", ``, "tools/run", -32601},
	} {
		m := k.ask(t, request(tt.method, tt.params))
		if m.Error == nil || m.Error.Code != tt.code || !strings.Contains(m.Error.Message, tt.text) {
			t.Errorf("%s %s: %+v, want %d with %q", tt.method, tt.params, m.Error, tt.code, tt.text)
			continue
		}
		if m.Error.Code == -32002 && !strings.Contains(tt.params, fmt.Sprintf(`"uri":%q`, m.Error.Data["uri"])) {
			t.Errorf("%s %s: data %v", tt.method, tt.params, m.Error.Data)
		}
	}
}

func TestRefusalRepeatsNoLongText(t *testing.T) {
	t.Parallel()
	k := talkTo(t, fixture(t))
	k.open(t, "2025-11-25", "{}")
	long := strings.Repeat("x", 100_000)
	for _, line := range []string{request(long, ""), request("resources/read", `"uri":"`+long+`"`), request("prompts/get", `"name":"`+long+`"`),
		request("logging/setLevel", `"level":"`+long+`"`), request("tools/call", `"name":"`+long+`"`)} {
		if m := k.ask(t, line); m.Error == nil || len(m.Error.Message) >= 1003 || m.Error.Data["uri"] != nil {
			t.Errorf("%.60s: %.200v", line, m.Error)
		}
	}
}

func TestRefusalToReadNamesTheAddress(t *testing.T) {
	t.Parallel()
	k := talkTo(t, fixture(t))
	k.open(t, "2025-11-25", "{}")
	for _, era := range []struct{ meta, name string }{{"", "handshake"}, {"," + fmt.Sprintf(modernMeta, "{}", ""), "stateless"}} {
		for _, uri := range []string{"test://nothing", "test://rows/none"} {
			m := k.ask(t, request("resources/read", `"uri":"`+uri+`"`+era.meta))
			if m.Error == nil || m.Error.Data["uri"] != uri {
				t.Errorf("%s era, %s: refused with %+v", era.name, uri, m.Error)
			}
		}
	}
}

// Whatever the end of its context makes of a call: it has changed nothing, and may be made again.
func TestCallThatIsEndedMayBeMadeAgain(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	s := fixture(t)
	s.Catalogue.Tools = append(s.Catalogue.Tools, plain("endless", func(ctx context.Context, _ *mcp.Call) (*sdk.CallToolResult, error) {
		stop()
		<-ctx.Done()
		return nil, schema.Errorf(schema.Internal, "begin to read: %v", ctx.Err())
	}))
	var out bytes.Buffer
	if err := s.Serve(ctx, mcp.Principal{}, mcp.Lines(strings.NewReader(request("tools/call", `"name":"endless"`)+"\n"), &out)); err != nil {
		t.Fatal(err)
	}
	var r reply
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if got := r.refusal(t); got.Code != schema.Unavailable || !got.Retryable {
		t.Errorf("refused with %+v", got)
	}
}

func TestQuestionsOfTheHandshakesEraAreRequests(t *testing.T) {
	t.Parallel()
	k := talkTo(t, fixture(t))
	k.open(t, "2025-06-18", `{"elicitation":{},"sampling":{}}`)
	question := k.ask(t, request("tools/call", `"name":"ask"`))
	if question.Method != "elicitation/create" || question.Params["message"] != "Your name?" {
		t.Fatalf("asked %+v", question)
	}
	k.say(t, `{"jsonrpc":"2.0","id":`+string(question.ID)+`,"result":{"action":"accept","content":{"name":"Ada"}}}`)
	if got := text(k.hear(t)); got != "accept Ada state-1" {
		t.Errorf("answered %q", got)
	}
	question = k.ask(t, request("tools/call", `"name":"sample"`))
	if question.Method != "sampling/createMessage" {
		t.Fatalf("asked %+v", question)
	}
	k.say(t, `{"jsonrpc":"2.0","id":`+string(question.ID)+`,"error":{"code":-1,"message":"no model today"}}`)
	if got := k.hear(t); got.Error == nil || got.Error.Code != -32603 {
		t.Errorf("answered %+v", got)
	}
	// The end of input ends what waits for an answer.
	k.ask(t, request("tools/call", `"name":"ask"`))
	k.in.Close() // a pipe in memory
	if got := k.hear(t); got.Error == nil {
		t.Errorf("answered %+v", got)
	}
}

func text(m message) string {
	content, _ := m.Result["content"].([]any)
	if len(content) == 0 {
		return ""
	}
	first, _ := content[0].(map[string]any)
	text, _ := first["text"].(string)
	return text
}

func TestQuestionsOfTheStatelessEraAreResultsOnAStreamToo(t *testing.T) {
	t.Parallel()
	k := talkTo(t, fixture(t))
	meta := func(capabilities string) string {
		return `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":` + capabilities + `}`
	}
	asked := k.ask(t, request("tools/call", `"name":"ask",`+meta(`{"elicitation":{}}`)))
	if asked.Result["resultType"] != "input_required" || asked.Result["requestState"] != "state-1" {
		t.Fatalf("asked %+v", asked)
	}
	done := k.ask(t, request("tools/call", `"name":"ask","requestState":"state-1","inputResponses":{"name":{"action":"decline"}},`+meta(`{"elicitation":{}}`)))
	if got := text(done); got != "decline <nil> state-1" {
		t.Errorf("answered %q: %+v", got, done.Error)
	}
	// What one request has declared is nothing that the next one has.
	if got := k.ask(t, request("tools/call", `"name":"ask",`+meta(`{}`))); got.Error == nil || got.Error.Code != sdk.MISSING_REQUIRED_CLIENT_CAPABILITY {
		t.Errorf("without the capability: %+v", got)
	}
	for _, method := range []string{"initialize", "ping", "logging/setLevel", "resources/subscribe"} {
		if got := k.ask(t, request(method, meta(`{}`))); got.Error == nil || got.Error.Code != -32601 {
			t.Errorf("%s: %+v", method, got)
		}
	}
	if got := k.ask(t, request("server/discover", `"_meta":{"io.modelcontextprotocol/protocolVersion":"2031-01-01","io.modelcontextprotocol/clientCapabilities":{}}`)); got.Error == nil || got.Error.Code != sdk.UNSUPPORTED_PROTOCOL_VERSION {
		t.Errorf("a revision to come: %+v", got)
	}
}

func TestLogMessagesKeepToTheLevel(t *testing.T) {
	t.Parallel()
	k := talkTo(t, fixture(t))
	k.open(t, "2025-11-25", "{}")
	steps := request("tools/call", `"name":"steps","_meta":{"progressToken":"p"}`)
	methods := func() (got []string) {
		k.say(t, steps)
		for {
			m := k.hear(t)
			if m.Method == "" {
				return got
			}
			got = append(got, strings.TrimPrefix(m.Method, "notifications/"))
		}
	}
	for _, tt := range []struct {
		level string
		want  []string
	}{
		{"info", []string{"progress", "progress", "progress", "message"}},
		{"error", []string{"progress", "progress", "progress"}},
	} {
		k.ask(t, request("logging/setLevel", `"level":"`+tt.level+`"`))
		if diff := cmp.Diff(tt.want, methods()); diff != "" {
			t.Errorf("level %s (-want +got):\n%s", tt.level, diff)
		}
	}
}

func TestSubscribersAreToldOfWhatChanged(t *testing.T) {
	t.Parallel()
	s := fixture(t)
	old, stateless := talkTo(t, s), talkTo(t, s)
	old.open(t, "2025-11-25", "{}")
	old.ask(t, request("resources/subscribe", `"uri":"test://text"`))
	ack := stateless.ask(t, request("subscriptions/listen", `"notifications":{"resourceSubscriptions":["test://text"]},`+
		`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`))
	if ack.Method != "notifications/subscriptions/acknowledged" {
		t.Fatalf("acknowledged %+v", ack)
	}
	var telling sync.WaitGroup // a pipe takes what is read
	telling.Go(func() {
		s.Updated("test://other")
		s.Updated("test://text")
	})
	for _, k := range []*talk{old, stateless} {
		if m := k.hear(t); m.Method != "notifications/resources/updated" || m.Params["uri"] != "test://text" {
			t.Errorf("told %+v", m)
		}
	}
	old.ask(t, request("resources/unsubscribe", `"uri":"test://text"`))
	telling.Go(func() { s.Updated("test://text") })
	if m := old.ask(t, request("ping", "")); m.Method != "" {
		t.Errorf("told %+v after the end of the subscription", m)
	}
	if m := stateless.hear(t); m.Params["_meta"].(map[string]any)["io.modelcontextprotocol/subscriptionId"] != 1.0 {
		t.Errorf("told without its subscription: %+v", m)
	}
	telling.Wait()
	stateless.say(t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	if m := stateless.hear(t); m.Method != "" || string(m.ID) != "1" {
		t.Errorf("the end of a subscription: %+v", m)
	}
}

// A declaration that is not the contract's is listed and validated as one that is.
func TestDeclaredToolIsListedAsAVerbIs(t *testing.T) {
	t.Parallel()
	k := talkTo(t, fixture(t))
	k.open(t, "2025-11-25", "{}")
	listed := k.ask(t, request("tools/list", "")).Result["tools"].([]any)
	i := slices.IndexFunc(listed, func(l any) bool { return l.(map[string]any)["name"] == "add" })
	add := listed[i].(map[string]any)
	if add["outputSchema"] == nil || add["annotations"].(map[string]any)["readOnlyHint"] != true {
		t.Errorf("listed %v", add)
	}
	m := k.ask(t, request("tools/call", `"name":"add","arguments":[1]`))
	var refused schema.Error
	if err := json.Unmarshal([]byte(text(m)), &refused); err != nil || refused.Code != schema.InvalidArguments {
		t.Errorf("an array for the arguments: %s", text(m))
	}
}
