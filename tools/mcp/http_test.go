package mcp_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	sdk "github.com/mark3labs/mcp-go/mcp"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/tools"
	"powernode/tools/mcp"
	"powernode/tools/toolstest"
)

// tokens are bearer tokens of a test.
func tokens(of map[string]tools.Caller) func(context.Context, string) (tools.Caller, error) {
	return func(_ context.Context, bearer string) (tools.Caller, error) {
		if bearer == "out-of-order" {
			return tools.Caller{}, errors.New("the store is closed")
		}
		c, ok := of[bearer]
		if !ok {
			return c, schema.Errorf(schema.PermissionDenied, "the token is not valid")
		}
		return c, nil
	}
}

// serveFace is the face of a platform over HTTP, with tokens agent, viewer and narrow.
func serveFace(t *testing.T, env *toolstest.Env) string {
	t.Helper()
	narrow := env.Caller
	narrow.Toolsets = []string{"sdwan"}
	viewer := env.AddPerson(t, "viewer@example.org", governance.RoleViewer)
	face := mcp.Face{Platform: env.Platform, Version: "test", Log: env.Platform.Log}
	h, err := face.HTTP(mcp.HTTPOptions{Authenticate: tokens(map[string]tools.Caller{"agent": env.Caller, "viewer": viewer, "narrow": narrow})})
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, h)
}

func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

// post is one request; headers win over those that a well-behaved client sends.
type post struct {
	query, body string
	headers     map[string]string
}

type answered struct {
	status int
	header http.Header
	events []json.RawMessage // of a stream, or the one document
	kind   string
}

// last is the final message.
func (a answered) last(t *testing.T) reply {
	t.Helper()
	if len(a.events) == 0 {
		t.Fatalf("status %d, and nothing was said", a.status)
	}
	var r reply
	if err := json.Unmarshal(a.events[len(a.events)-1], &r); err != nil {
		t.Fatalf("answer %s: %v", a.events[len(a.events)-1], err)
	}
	return r
}

func (p post) request(t *testing.T, url string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+p.query, strings.NewReader(p.body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Authorization", "Bearer agent")
	for name, value := range p.headers {
		if value == "" {
			r.Header.Del(name)
			continue
		}
		if r.Header.Set(name, value); name == "Host" {
			r.Host = value
		}
	}
	return r
}

func (p post) send(t *testing.T, url string) answered {
	t.Helper()
	return do(t, p.request(t, url))
}

func do(t *testing.T, r *http.Request) answered {
	t.Helper()
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close() // it was read
	a := answered{status: response.StatusCode, header: response.Header}
	a.kind, _, _ = strings.Cut(response.Header.Get("Content-Type"), ";")
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if a.kind != "text/event-stream" {
		if len(bytes.TrimSpace(body)) > 0 {
			a.events = append(a.events, body)
		}
		return a
	}
	for lines := bufio.NewScanner(bytes.NewReader(body)); lines.Scan(); {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			a.events = append(a.events, json.RawMessage(data))
		}
	}
	return a
}

const modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":%s,` +
	`"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"}%s}`

// modern is a request of the stateless era.
func modern(id int, method, name, params, capabilities, more string) post {
	if params != "" {
		params += ","
	}
	p := post{body: fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{%s`+modernMeta+`}}`, id, method, params, capabilities, more),
		headers: map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": method}}
	if name != "" {
		p.headers["Mcp-Name"] = name
	}
	return p
}

const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`

func TestHTTPHoldsRequestsToTheTransport(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	url := serveFace(t, env)
	before := env.Revision(t)
	large := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"system_sdwan_create_network","arguments":{"name":"` + strings.Repeat("a", 2<<20) + `"}}}`
	for _, tt := range []struct {
		name   string
		post   post
		status int
	}{
		{"a ping", post{body: ping}, 200},
		{"no credential", post{body: ping, headers: map[string]string{"Authorization": ""}}, 401},
		{"another scheme", post{body: ping, headers: map[string]string{"Authorization": "Basic YTpi"}}, 401},
		{"a token that there is not", post{body: ping, headers: map[string]string{"Authorization": "Bearer nobody"}}, 401},
		{"a store that can't be asked", post{body: ping, headers: map[string]string{"Authorization": "Bearer out-of-order"}}, 503},
		{"a page of another site", post{body: ping, headers: map[string]string{"Origin": "https://evil.example"}}, 403},
		{"a page without an origin of its own", post{body: ping, headers: map[string]string{"Origin": "null"}}, 403},
		{"a page that looks like ours", post{body: ping, headers: map[string]string{"Origin": "http://localhost.evil.example"}}, 403},
		{"a local page", post{body: ping, headers: map[string]string{"Origin": "http://localhost:6274"}}, 200},
		{"a name bound to us", post{body: ping, headers: map[string]string{"Host": "evil.example"}}, 403},
		{"a local name", post{body: ping, headers: map[string]string{"Host": "localhost:1"}}, 200},
		{"a form", post{body: ping, headers: map[string]string{"Content-Type": "application/x-www-form-urlencoded"}}, 415},
		{"JSON with its character set", post{body: ping, headers: map[string]string{"Content-Type": "application/json; charset=utf-8"}}, 200},
		{"a packed body", post{body: ping, headers: map[string]string{"Content-Encoding": "gzip"}}, 415},
		{"a client that takes pages alone", post{body: ping, headers: map[string]string{"Accept": "text/html"}}, 406},
		{"a client that takes documents alone", post{body: ping, headers: map[string]string{"Accept": "application/json"}}, 200},
		{"a version that there is not", post{body: ping, headers: map[string]string{"Mcp-Protocol-Version": "2020-01-01"}}, 400},
		{"a session of another server", post{body: ping, headers: map[string]string{"Mcp-Session-Id": "mcp-session-1"}}, 404},
		{"what is no JSON", post{body: `{"jsonrpc":`}, 400},
		{"a batch", post{body: `[` + ping + `]`}, 400},
		{"a notification", post{body: `{"jsonrpc":"2.0","method":"notifications/initialized"}`}, 202},
		{"an answer to nothing", post{body: `{"jsonrpc":"2.0","id":"x","result":{}}`}, 202},
		{"too much", post{body: large}, 413},
		{"an unknown key of the query", post{query: "?tools=all", body: ping}, 400},
		{"an unknown toolset", post{query: "?toolsets=nonsense", body: ping}, 400},
		{"read_only that is neither", post{query: "?read_only=yes", body: ping}, 400},
		{"toolsets twice", post{query: "?toolsets=all&toolsets=sdwan", body: ping}, 400},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.post.send(t, url)
			if got.status != tt.status {
				t.Fatalf("status %d, want %d: %s", got.status, tt.status, got.events)
			}
			if challenge := got.header.Get("WWW-Authenticate"); (tt.status == 401) != strings.HasPrefix(challenge, "Bearer ") {
				t.Errorf("WWW-Authenticate is %q", challenge)
			}
			if refused := tt.status >= 400; refused != (len(got.events) > 0 && got.last(t).Error != nil) {
				t.Errorf("answer %s", got.events)
			}
		})
	}
	for _, method := range []string{http.MethodGet, http.MethodDelete, http.MethodPut, http.MethodOptions} {
		r := post{}.request(t, url)
		r.Method = method
		if got := do(t, r); got.status != http.StatusMethodNotAllowed || got.header.Get("Allow") != http.MethodPost {
			t.Errorf("%s: status %d, Allow %q", method, got.status, got.header.Get("Allow"))
		}
		stranger := post{headers: map[string]string{"Authorization": ""}}.request(t, url)
		stranger.Method = method
		if got := do(t, stranger); got.status != http.StatusUnauthorized {
			t.Errorf("%s without a credential: status %d", method, got.status)
		}
	}
	if after := env.Revision(t); after != before {
		t.Errorf("refusals moved the revision from %d to %d", before, after)
	}
}

func TestServerIsKnownByTheNamesThatItIsGiven(t *testing.T) {
	t.Parallel()
	url := serve(t, fixture(t).HTTP(mcp.HTTPOptions{Known: func(name string) bool { return name == "powernode.example" }}))
	for _, tt := range []struct {
		host, origin string
		status       int
	}{
		{"powernode.example:8470", "", 200},
		{"POWERNODE.example", "https://powernode.example", 200},
		{"powernode.example.evil.example", "", 403},
		{"powernode.example", "https://evil.example", 403},
		{"", "http://", 403},
	} {
		if got := (post{body: ping, headers: map[string]string{"Host": tt.host, "Origin": tt.origin}}).send(t, url); got.status != tt.status {
			t.Errorf("host %q, origin %q: status %d, want %d", tt.host, tt.origin, got.status, tt.status)
		}
	}
}

func TestAnswersOverHTTPAreKeptByNobody(t *testing.T) {
	t.Parallel()
	url := serve(t, fixture(t).HTTP(mcp.HTTPOptions{}))
	for kind, p := range map[string]post{"application/json": {body: ping},
		"text/event-stream": {body: ping, headers: map[string]string{"Accept": "text/event-stream"}}} {
		got := p.send(t, url)
		if h := got.header; got.kind != kind || h.Get("Cache-Control") != "no-store" || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", kind, h)
		}
	}
}

// A client that we have not written works over HTTP in both eras.
func TestForeignClientWorksOverHTTPInBothEras(t *testing.T) {
	t.Parallel()
	url := serveFace(t, toolstest.New(t))
	for _, version := range []string{"2025-03-26", "2025-06-18", "2025-11-25", sdk.LATEST_PROTOCOL_VERSION} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			over, err := transport.NewStreamableHTTP(url, transport.WithHTTPHeaders(map[string]string{"Authorization": "Bearer agent"}))
			if err != nil {
				t.Fatal(err)
			}
			c := client.NewClient(over, client.WithProtocolVersion(version))
			if err := c.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			defer c.Close() // a test's client
			opened, err := c.Initialize(t.Context(), sdk.InitializeRequest{Params: sdk.InitializeParams{ProtocolVersion: version,
				ClientInfo: sdk.Implementation{Name: "foreign", Version: "1"}}})
			if err != nil || c.ProtocolVersion() != version || opened.ServerInfo.Name != "powernode" {
				t.Fatalf("initialize: %v, speaks %s", err, c.ProtocolVersion())
			}
			if listed, err := c.ListTools(t.Context(), sdk.ListToolsRequest{}); err != nil || len(listed.Tools) == 0 {
				t.Errorf("list tools: %v", err)
			}
			if listed, err := c.ListPrompts(t.Context(), sdk.ListPromptsRequest{}); err != nil || len(listed.Prompts) == 0 {
				t.Errorf("list prompts: %v", err)
			}
			read, err := c.ReadResource(t.Context(), sdk.ReadResourceRequest{Params: sdk.ReadResourceParams{URI: "powernode://clusters"}})
			if err != nil || len(read.Contents) != 1 {
				t.Errorf("read a resource: %v", err)
			}
			name := "net-" + strings.ReplaceAll(version, "-", "")
			if made := call(t, c, "system_sdwan_create_network", map[string]any{"name": name}); made.IsError {
				t.Errorf("create: %+v", made)
			}
			if refused := call(t, c, "system_sdwan_create_network", map[string]any{"name": name, "cidr": "fd00::/64"}); !refused.IsError || refused.StructuredContent != nil {
				t.Errorf("a refusal: %+v", refused)
			}
			if _, err := c.CallTool(t.Context(), sdk.CallToolRequest{Params: sdk.CallToolParams{Name: "system_make_coffee"}}); err == nil {
				t.Error("a tool that there is not was called")
			}
		})
	}
}

func TestModernRequestMustSayInHeadersWhatItsBodySays(t *testing.T) {
	t.Parallel()
	url := serveFace(t, toolstest.New(t))
	whoami := modern(1, "tools/call", "platform_whoami", `"name":"platform_whoami"`, "{}", "")
	with := func(p post, name, value string) post {
		headers := map[string]string{}
		for k, v := range p.headers {
			headers[k] = v
		}
		headers[name] = value
		return post{body: p.body, headers: headers}
	}
	for _, tt := range []struct {
		name   string
		post   post
		status int
		code   int
	}{
		{"a call", whoami, 200, 0},
		{"no version in the headers", with(whoami, "Mcp-Protocol-Version", ""), 400, -32020},
		{"another version in the headers", with(whoami, "Mcp-Protocol-Version", "2025-11-25"), 400, -32020},
		{"no method in the headers", with(whoami, "Mcp-Method", ""), 400, -32020},
		{"another name in the headers", with(whoami, "Mcp-Name", "platform_preview"), 400, -32020},
		{"a stream to resume", with(whoami, "Last-Event-ID", "7"), 400, -32020},
		{"a version in the headers alone", post{body: ping, headers: map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "ping"}}, 400, -32602},
		{"a method of the other era", modern(1, "initialize", "", "", "{}", ""), 404, -32601},
		{"a method that there is not", modern(1, "tools/run", "", "", "{}", ""), 404, -32601},
		{"a tool that there is not", modern(1, "tools/call", "no_such", `"name":"no_such"`, "{}", ""), 400, -32602},
		{"a resource that there is not", modern(1, "resources/read", "powernode://nothing", `"uri":"powernode://nothing"`, "{}", ""), 400, -32602},
		{"discovery", modern(1, "server/discover", "", "", "{}", ""), 200, 0},
	} {
		got := tt.post.send(t, url)
		code := 0
		if e := got.last(t).Error; e != nil {
			code = e.Code
			if theirWords.MatchString(e.Message) {
				t.Errorf("%s: refused in the library's words: %s", tt.name, e.Message)
			}
		}
		if got.status != tt.status || code != tt.code || string(got.last(t).ID) != "1" {
			t.Errorf("%s: status %d, code %d, want %d and %d: %s", tt.name, got.status, code, tt.status, tt.code, got.events)
		}
		if id := got.header.Get("Mcp-Session-Id"); id != "" {
			t.Errorf("%s: a session %s in the stateless era", tt.name, id)
		}
	}
}

func TestHTTPListsWhatTheQueryAndTheTokenAllow(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	url := serveFace(t, env)
	list := func(query, token string) []tool {
		got := post{query: query, body: `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, headers: map[string]string{"Authorization": "Bearer " + token}}.send(t, url)
		return got.last(t).Result.Tools
	}
	if got := len(list("?toolsets=all", "agent")); got != len(env.Platform.Verbs()) {
		t.Errorf("all lists %d of %d verbs", got, len(env.Platform.Verbs()))
	}
	for _, l := range list("?toolsets=all", "narrow") {
		if d, _ := env.Platform.Lookup(l.Name); d.Contract().Toolset != "sdwan" && d.Contract().Toolset != "governance" {
			t.Errorf("a token of toolset sdwan is shown %s", l.Name)
		}
	}
	for _, l := range list("?toolsets=all&read_only=true", "agent") {
		if !*l.Annotations.ReadOnlyHint && l.Name != "platform_call_verb" {
			t.Errorf("read_only lists %s", l.Name)
		}
	}
	create := callLine(1, "system_sdwan_create_network", `{"name":"a"}`)
	for _, p := range []post{{query: "?read_only=true", body: create}, {body: create, headers: map[string]string{"Authorization": "Bearer viewer"}}} {
		if got := p.send(t, url).last(t).refusal(t); got.Code != schema.PermissionDenied {
			t.Errorf("%s: %s", p.query, got.Code)
		}
	}
}

// The answer is a document where nothing else is to be said, and a stream where there is.
func TestProgressComesBeforeTheAnswerOverHTTP(t *testing.T) {
	t.Parallel()
	url := serve(t, fixture(t).HTTP(mcp.HTTPOptions{}))
	const steps = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"steps","arguments":{},"_meta":{"progressToken":9007199254740993}}}`
	for _, tt := range []struct {
		name string
		post post
		want []string
	}{
		{"the handshake's era", post{body: steps}, []string{"notifications/progress", "notifications/progress", "notifications/progress", "notifications/message", ""}},
		{"a client that takes documents alone", post{body: steps, headers: map[string]string{"Accept": "application/json"}}, []string{""}},
		{"the stateless era", modern(1, "tools/call", "steps", `"name":"steps","arguments":{}`, "{}", `,"progressToken":"p"`),
			[]string{"notifications/progress", "notifications/progress", "notifications/progress", ""}},
		{"the stateless era, with a log level", modern(1, "tools/call", "steps", `"name":"steps","arguments":{}`, "{}", `,"io.modelcontextprotocol/logLevel":"info"`),
			[]string{"notifications/message", ""}},
		{"the stateless era, with a higher log level", modern(1, "tools/call", "steps", `"name":"steps","arguments":{}`, "{}", `,"io.modelcontextprotocol/logLevel":"error"`),
			[]string{""}},
	} {
		got := tt.post.send(t, url)
		var methods []string
		for _, e := range got.events {
			var m struct {
				Method string `json:"method"`
				Params struct {
					Token json.RawMessage `json:"progressToken"`
				} `json:"params"`
			}
			if err := json.Unmarshal(e, &m); err != nil {
				t.Fatal(err)
			}
			methods = append(methods, m.Method)
			if token := string(m.Params.Token); token != "" && token != `"p"` && token != "9007199254740993" {
				t.Errorf("%s: token %s", tt.name, token)
			}
		}
		if diff := cmp.Diff(tt.want, methods); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if streamed := got.kind == "text/event-stream"; streamed != (len(tt.want) > 1) {
			t.Errorf("%s: answered with %s", tt.name, got.kind)
		}
	}
}

// The session id carries what the client has declared; the server keeps nothing, and another one of the same kind goes on.
func TestQuestionOverHTTPNeedsNoMemoryOfTheServer(t *testing.T) {
	t.Parallel()
	opening := serve(t, fixture(t).HTTP(mcp.HTTPOptions{}))
	other := serve(t, fixture(t).HTTP(mcp.HTTPOptions{}))
	open := func(capabilities string) string {
		got := post{body: `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":` + capabilities +
			`,"clientInfo":{"name":"t","version":"1"}}}`}.send(t, opening)
		if got.status != 200 || got.last(t).Error != nil {
			t.Fatalf("initialize: %s", got.events)
		}
		return got.header.Get("Mcp-Session-Id")
	}
	session := map[string]string{"Mcp-Session-Id": open(`{"elicitation":{}}`), "Mcp-Protocol-Version": "2025-11-25"}
	response, err := http.DefaultClient.Do(post{body: callLine(2, "ask", `{}`), headers: session}.request(t, other))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close() // a test's
	lines := bufio.NewScanner(response.Body)
	next := func() (m struct {
		ID     json.RawMessage
		Method string
		Result struct{ Content []struct{ Text string } }
	}) {
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				if err := json.Unmarshal([]byte(data), &m); err != nil {
					t.Fatal(err)
				}
				return m
			}
		}
		t.Fatalf("the stream ended: %v", lines.Err())
		return m
	}
	question := next()
	if question.Method != "elicitation/create" {
		t.Fatalf("asked %+v", question)
	}
	said := post{body: `{"jsonrpc":"2.0","id":` + string(question.ID) + `,"result":{"action":"accept","content":{"name":"Ada"}}}`, headers: session}.send(t, other)
	if said.status != http.StatusAccepted {
		t.Errorf("an answer: status %d", said.status)
	}
	if got := next(); string(got.ID) != "2" || got.Result.Content[0].Text != "accept Ada state-1" {
		t.Errorf("answered %+v", got)
	}
	// Who has not declared it is not asked.
	for _, headers := range []map[string]string{nil, {"Mcp-Session-Id": open(`{}`)}} {
		if got := (post{body: callLine(3, "ask", `{}`), headers: headers}).send(t, other).last(t); got.Error == nil || got.Error.Code != sdk.MISSING_REQUIRED_CLIENT_CAPABILITY {
			t.Errorf("without the capability: %+v", got)
		}
	}
	// Nobody waits for an answer to a question that can't be put.
	session["Accept"] = "application/json"
	if got := (post{body: callLine(4, "ask", `{}`), headers: session}).send(t, other).last(t); got.Error == nil {
		t.Errorf("a client that takes no stream: %+v", got)
	}
}

func TestQuestionOfTheStatelessEraIsAResult(t *testing.T) {
	t.Parallel()
	url := serve(t, fixture(t).HTTP(mcp.HTTPOptions{}))
	asked := modern(1, "tools/call", "ask", `"name":"ask","arguments":{}`, `{"elicitation":{}}`, "").send(t, url).last(t)
	if asked.Result == nil || asked.Result.ResultType != "input_required" || asked.Result.RequestState != "state-1" || len(asked.Result.InputRequests) != 1 {
		t.Fatalf("asked %+v", asked.Result)
	}
	done := modern(2, "tools/call", "ask", `"name":"ask","arguments":{},"requestState":"state-1","inputResponses":{"name":{"action":"accept","content":{"name":"Ada"}}}`,
		`{"elicitation":{}}`, "").send(t, url).last(t)
	if done.Result == nil || done.Result.ResultType != "complete" || done.Result.Content[0].Text != "accept Ada state-1" {
		t.Errorf("answered %+v", done.Result)
	}
	for name, params := range map[string]string{"ask": `"name":"ask","arguments":{}`, "sample": `"name":"sample","arguments":{}`} {
		got := modern(3, "tools/call", name, params, "{}", "").send(t, url)
		if e := got.last(t).Error; got.status != 400 || e == nil || e.Code != sdk.MISSING_REQUIRED_CLIENT_CAPABILITY || e.Data["requiredCapabilities"] == nil {
			t.Errorf("%s without the capability: %d %+v", name, got.status, e)
		}
	}
}

func TestWaitOverHTTPEndsWithItsClientAndWithTheProcess(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	stopping, stop := context.WithCancel(t.Context())
	face := mcp.Face{Platform: env.Platform, Version: "test", Log: env.Platform.Log}
	h, err := face.HTTP(mcp.HTTPOptions{Authenticate: tokens(map[string]tools.Caller{"agent": env.Caller}), Stopping: stopping})
	if err != nil {
		t.Fatal(err)
	}
	url := serve(t, h)
	session := post{body: `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`}.
		send(t, url).header.Get("Mcp-Session-Id")
	wait := strings.Replace(waitLine, `"arguments"`, `"_meta":{"progressToken":1},"arguments"`, 1)
	begin := func() (*bufio.Scanner, func()) {
		response, err := http.DefaultClient.Do(post{body: wait, headers: map[string]string{"Mcp-Session-Id": session}}.request(t, url))
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(response.Body)
		for lines.Scan() && !strings.Contains(lines.Text(), "notifications/progress") {
		}
		return lines, func() { response.Body.Close() } // a test's
	}
	end := func(lines *bufio.Scanner) (last string) {
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), "data: ") {
				last = lines.Text()
			}
		}
		return last
	}
	lines, done := begin()
	taken := post{body: `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"wait"}}`, headers: map[string]string{"Mcp-Session-Id": session}}
	if got := taken.send(t, url); got.status != http.StatusAccepted {
		t.Errorf("taken back: status %d", got.status)
	}
	if last := end(lines); !strings.Contains(last, `"id":"wait"`) {
		t.Errorf("taken back: %s", last)
	}
	done()
	lines, done = begin()
	stop()
	if last := end(lines); !strings.Contains(last, "unavailable") {
		t.Errorf("cut off: %s", last)
	}
	done()
}

// Two accounts' credentials on one endpoint, and one session id: neither reads, or takes back, what is the other's.
func TestCredentialsOfTwoAccountsOnOneEndpointShareNothing(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	network := env.Call(t, "system_sdwan_create_network", `{"name":"a"}`)["network"].(toolstest.Object)["id"].(string)
	foreign := governance.AgentCaller(env.AddAccount(t, "other", "fd5e:8a21:c0df::/48").ID)
	face := &mcp.Face{Platform: env.Platform, Version: "test", Log: env.Platform.Log}
	mcp.Often(face, time.Millisecond)
	h, err := face.HTTP(mcp.HTTPOptions{Authenticate: tokens(map[string]tools.Caller{"agent": env.Caller, "other": foreign})})
	if err != nil {
		t.Fatal(err)
	}
	url := serve(t, h)
	session := post{body: `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},` +
		`"clientInfo":{"name":"t","version":"1"}}}`}.send(t, url).header.Get("Mcp-Session-Id")
	as := func(token, body string) answered {
		return post{body: body, headers: map[string]string{"Authorization": "Bearer " + token, "Mcp-Session-Id": session}}.send(t, url)
	}
	if got := as("other", callLine(1, "system_sdwan_get_network", fmt.Sprintf(`{"network_id":%q}`, network))).last(t).refusal(t); got.Code != schema.NotFound {
		t.Errorf("a foreign network: %+v", got)
	}
	began := time.Now()
	wait := strings.Replace(waitLine, `"arguments"`, `"_meta":{"progressToken":1},"arguments"`, 1)
	response, err := http.DefaultClient.Do(post{body: wait, headers: map[string]string{"Mcp-Session-Id": session}}.request(t, url))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close() // a test's
	if got := as("other", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"wait"}}`); got.status != http.StatusAccepted {
		t.Errorf("taken back: status %d", got.status)
	}
	afterwards := time.Since(began).Seconds()
	var note struct{ Params struct{ Progress float64 } }
	for lines := bufio.NewScanner(response.Body); note.Params.Progress <= afterwards; {
		if !lines.Scan() {
			t.Fatal("the call was ended by another account's word")
		}
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			if err := json.Unmarshal([]byte(data), &note); err != nil {
				t.Fatal(err)
			}
		}
	}
}
