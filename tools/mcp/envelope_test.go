package mcp

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// What the reader takes is one request, notification or answer, in the protocol's own keys; what it refuses has a code.
func FuzzEnvelope(f *testing.F) {
	for _, seed := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"b":1},"_meta":{"progressToken":"p"}}}`,
		`{"jsonrpc":"2.0","id":"x","result":{}}`, `{"jsonrpc":"2.0","id":"x","error":{"code":1,"message":"m"}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
		`{"jsonrpc":"2.0","id":1,"Method":"ping"}`, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"param\u017f\":{}}",
		`{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}`, `[{}]`, `null`, `{`, "{\"\xff\":1}",
		`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"URI":"a"}}`, `{"jsonrpc":"2.0","id":1e999,"method":"ping","params":null}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","Arguments":[1],"arguments":null}}`,
		`{"id":1,"a":` + strings.Repeat("[", maxNesting) + strings.Repeat("]", maxNesting) + `}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		e, err := readEnvelope(raw)
		if err != nil {
			p, coded := err.(*ProtocolError)
			if !coded || p.Code > codeInvalidRequest || p.Code < codeParse || len(p.Message) > 400 {
				t.Fatalf("refused %q with %v", raw, err)
			}
			return
		}
		var keys map[string]json.RawMessage
		if err := json.Unmarshal(raw, &keys); err != nil {
			t.Fatalf("took %q: %v", raw, err)
		}
		for key := range keys {
			if folded(key, envelopeKeys) != "" {
				t.Fatalf("took %q of %q", key, raw)
			}
		}
		if answers := keys["result"] != nil || keys["error"] != nil; answers == (e.method != "") {
			t.Fatalf("took %q as a request and an answer, or as neither", raw)
		}
		if _, has := keys["id"]; has != (e.id != nil) || has && !bytes.Equal(e.id, keys["id"]) {
			t.Fatalf("took id %s of %q", e.id, raw)
		}
		if e.method != "tools/call" {
			return
		}
		c, err := readCall(e.params)
		if err != nil {
			return
		}
		var params map[string]json.RawMessage
		if err := json.Unmarshal(e.params, &params); err != nil {
			t.Fatalf("took parameters %q: %v", e.params, err)
		}
		if c.refusal == nil && c.arguments != nil && !bytes.Equal(c.arguments, params["arguments"]) {
			t.Fatalf("arguments %s of %q", c.arguments, raw)
		}
		for key := range params {
			if c.refusal == nil && strings.EqualFold(key, "arguments") && key != "arguments" {
				t.Fatalf("took %q", raw)
			}
		}
	})
}

func FuzzPromptFile(f *testing.F) {
	f.Add([]byte("---\nname: a\ntitle: A\ndescription: d\narguments:\n  - name: x\n    description: y\n    default: z\n---\nText {{x}}\n"))
	f.Add([]byte("---\nname: a\n---\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		head, text, err := readPrompt(raw)
		if err == nil && (head.Name == "" || text == "") {
			t.Fatalf("took %q", raw)
		}
	})
}
