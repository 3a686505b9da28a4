package stdio_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"powernode/spec/rig"
)

// start makes an installation without a person or machines; its control plane ends with the test.
func start(t *testing.T) (context.Context, *rig.Installation) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	bin, err := filepath.Abs(rig.Given("BIN", "../../bin"))
	if err != nil {
		t.Fatal(err)
	}
	i := rig.New(bin, filepath.Join(t.TempDir(), "state"))
	t.Cleanup(func() {
		if _, err := i.Run(context.Background(), "stop"); err != nil {
			t.Error(err)
		}
	})
	return ctx, i
}

// converse sends bytes and then the end of input, and answers all that came back until the bridge's own end.
func converse(ctx context.Context, t *testing.T, i *rig.Installation, input string) []rig.Answer {
	t.Helper()
	s, err := i.Stdio(ctx)
	if err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() {
		_, err := io.WriteString(s, input)
		written <- errors.Join(err, s.End())
	}()
	var all []rig.Answer
	for {
		a, err := s.Answer()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, a)
	}
	if err := errors.Join(<-written, s.Wait()); err != nil {
		t.Fatal(err)
	}
	return all
}

// call is the line of a verb's call.
func call(id, verb, arguments string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + verb + `","arguments":` + arguments + `}}` + "\n"
}

func create(id int, name string) string {
	return call(strconv.Itoa(id), "system_sdwan_create_network", `{"name":"`+name+`"}`)
}

// networks are the names of the networks that are there.
func networks(ctx context.Context, t *testing.T, i *rig.Installation) []string {
	t.Helper()
	raw, err := i.Run(ctx, "call", "system_sdwan_list_networks", "--json", `{"limit":500}`)
	if err != nil {
		t.Fatal(err)
	}
	var out rig.Object
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, n := range rig.List(out, "data", "networks") {
		names = append(names, rig.Text(n, "name"))
	}
	slices.Sort(names)
	return names
}

const opening = `{"jsonrpc":"2.0","id":"open","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},` +
	`"clientInfo":{"name":"spec","version":"1"}}}` + "\n" + `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"

// Two of three calls create, every third reads; the input ends behind the last, whose line has no newline.
func TestFiveHundredPipelinedCallsAreAnsweredCreatesInOrder(t *testing.T) {
	t.Parallel()
	const calls = 500
	ctx, i := start(t)
	var input strings.Builder
	input.WriteString(opening)
	var want, wantOrder []string
	for n := range calls {
		want = append(want, strconv.Itoa(n))
		if n%3 == 2 {
			input.WriteString(call(strconv.Itoa(n), "platform_whoami", `{}`))
			continue
		}
		name := fmt.Sprintf("net-%03d", n)
		wantOrder = append(wantOrder, name)
		input.WriteString(create(n, name))
	}
	answers := converse(ctx, t, i, strings.TrimSuffix(input.String(), "\n"))

	var got, order []string
	revision := 0.0
	for _, a := range answers {
		if string(a.ID) == `"open"` {
			continue
		}
		got = append(got, string(a.ID))
		if a.Result == nil || a.Result.IsError {
			t.Fatalf("a call failed: %s", a.Line)
		}
		var result rig.Object
		if err := json.Unmarshal(a.Result.StructuredContent, &result); err != nil {
			t.Fatal(err)
		}
		name := rig.Text(result, "network", "name")
		if name == "" {
			continue
		}
		order = append(order, name)
		at, _ := result["revision"].(float64)
		if at <= revision {
			t.Errorf("%s was written at revision %v, the one before it at %v", name, at, revision)
		}
		revision = at
	}
	slices.SortFunc(got, func(a, b string) int { return cmpNumbers(t, a, b) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ids of the answers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantOrder, order); diff != "" {
		t.Errorf("order of the creates (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantOrder, networks(ctx, t, i)); diff != "" {
		t.Errorf("networks (-want +got):\n%s", diff)
	}
}

func cmpNumbers(t *testing.T, a, b string) int {
	x, errX := strconv.Atoi(a)
	y, errY := strconv.Atoi(b)
	if err := errors.Join(errX, errY); err != nil {
		t.Error(err)
	}
	return x - y
}

func TestLastLineWithoutNewlineIsAnswered(t *testing.T) {
	t.Parallel()
	ctx, i := start(t)
	answers := converse(ctx, t, i, strings.TrimSuffix(create(1, "last"), "\n"))
	if len(answers) != 1 || string(answers[0].ID) != "1" || answers[0].Result == nil || answers[0].Result.IsError {
		t.Fatalf("answers: %+v, want the network's", answers)
	}
	if diff := cmp.Diff([]string{"last"}, networks(ctx, t, i)); diff != "" {
		t.Errorf("networks (-want +got):\n%s", diff)
	}
}

// The ids are the client's own, as it wrote them.
func TestIdsComeBackAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	ctx, i := start(t)
	want := []string{"9007199254740993", `"a b"`, `"é\u0000"`, "-1", "0"}
	var input strings.Builder
	for _, id := range want {
		input.WriteString(call(id, "platform_whoami", `{}`))
	}
	var got []string
	for _, a := range converse(ctx, t, i, input.String()) {
		got = append(got, string(a.ID))
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ids (-want +got):\n%s", diff)
	}
}

func TestWhatIsNotAsDeclaredIsRefusedWithItsPointer(t *testing.T) {
	t.Parallel()
	ctx, i := start(t)
	params := func(p string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"system_sdwan_create_network",` + p + `}}`
	}
	for _, tt := range []struct{ name, line, pointer, text string }{
		{"an array for the object of arguments", params(`"arguments":["a"]`), "", "arguments must be an object (got array)"},
		{"a text for the object of arguments", params(`"arguments":"{\"name\":\"a\"}"`), "", "arguments must be an object (got string"},
		{"an array for a nested object", params(`"arguments":{"name":"a","options":[]}`), "/options", "options must be an object"},
		{"an object for a text", params(`"arguments":{"name":{"a":1}}`), "/name", "name must be a string"},
		{"a key twice", params(`"arguments":{"name":"a","name":"b"}`), "/name", `key "name" is given twice`},
		{"a key twice in a nested object", params(`"arguments":{"name":"a","options":{"mtu":1400,"mtu":1500}}`), "/options/mtu", `key "mtu" is given twice`},
		{"the arguments twice", params(`"arguments":{"name":"a"},"arguments":{"name":"b"}`), "/params/arguments", "given twice"},
		{"a misspelt key", params(`"arguments":{"name":"a","descripton":"b"}`), "/descripton", "descripton (did you mean description?)"},
		{"a key in another case", params(`"arguments":{"name":"a","Description":"b"}`), "/Description", "Description (did you mean description?)"},
		{"the arguments in another case", params(`"Arguments":{"name":"a"}`), "/params/Arguments", "did you mean arguments?"},
	} {
		answers := converse(ctx, t, i, tt.line+"\n")
		if len(answers) != 1 || string(answers[0].ID) != "1" {
			t.Fatalf("%s: answers %+v, want one", tt.name, answers)
		}
		got, err := answers[0].Refusal()
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if got == nil {
			t.Errorf("%s: was taken: %s", tt.name, answers[0].Line)
			continue
		}
		if got.Code != "invalid_arguments" || !strings.Contains(got.Message, tt.text) || got.Details["pointer"] != tt.pointer {
			t.Errorf("%s: %s at %q: %s\nwant invalid_arguments at %q: …%s…", tt.name, got.Code, got.Details["pointer"], got.Message, tt.pointer, tt.text)
		}
	}
	if diff := cmp.Diff([]string{}, networks(ctx, t, i)); diff != "" {
		t.Errorf("networks after refusals (-want +got):\n%s", diff)
	}
}

func TestWhatIsNoCallIsAProtocolError(t *testing.T) {
	t.Parallel()
	ctx, i := start(t)
	for _, tt := range []struct {
		name, line, id string
		code           int
		text           string
	}{
		{"an envelope key in another case", `{"jsonrpc":"2.0","id":1,"method":"tools/call","Params":{"name":"system_sdwan_create_network","arguments":{"name":"a"}}}`,
			"1", -32600, "did you mean params?"},
		{"the method in another case", `{"jsonrpc":"2.0","id":1,"Method":"tools/call","params":{"name":"system_sdwan_create_network","arguments":{"name":"a"}}}`,
			"1", -32600, "did you mean method?"},
		{"params twice", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"platform_whoami"},"params":{"name":"system_sdwan_create_network","arguments":{"name":"a"}}}`,
			"1", -32600, `"params" is given twice`},
		{"an id twice", `{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}`, "null", -32600, `"id" is given twice`},
		{"a batch", `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, "null", -32600, "batches"},
		{"params as an array", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":["system_sdwan_create_network",{"name":"a"}]}`, "1", -32602, "tools/call takes an object"},
		{"no JSON", `create a network`, "null", -32700, "Parse error"},
		{"two documents in a line", `{"jsonrpc":"2.0","id":1,"method":"ping"}{"jsonrpc":"2.0","id":2,"method":"ping"}`, "null", -32700, "Parse error"},
		{"bytes that are no UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"system_sdwan_create_network\",\"arguments\":{\"name\":\"\xff\"}}}",
			"null", -32700, "Parse error"},
		{"another version of JSON-RPC", `{"jsonrpc":"1.0","id":1,"method":"ping"}`, "1", -32600, "jsonrpc"},
		{"a tool that is none", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"system_sdwan_crate_network"}}`, "1", -32602, "did you mean system_sdwan_create_network?"},
	} {
		answers := converse(ctx, t, i, tt.line+"\n"+`{"jsonrpc":"2.0","id":"after","method":"ping"}`)
		at := slices.IndexFunc(answers, func(a rig.Answer) bool { return string(a.ID) == tt.id || a.ID == nil && tt.id == "null" })
		if len(answers) != 2 || at < 0 || answers[at].Error == nil {
			t.Errorf("%s: answers %s, want an error for %s and the ping's", tt.name, lines(answers), tt.id)
			continue
		}
		if got := answers[at].Error; got.Code != tt.code || !strings.Contains(got.Message, tt.text) {
			t.Errorf("%s: %d %s, want %d …%s…", tt.name, got.Code, got.Message, tt.code, tt.text)
		}
	}
	if diff := cmp.Diff([]string{}, networks(ctx, t, i)); diff != "" {
		t.Errorf("networks after refusals (-want +got):\n%s", diff)
	}
}

func lines(all []rig.Answer) string {
	var b strings.Builder
	for _, a := range all {
		b.Write(a.Line)
	}
	return b.String()
}
