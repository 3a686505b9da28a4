package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	sdk "github.com/mark3labs/mcp-go/mcp"

	"powernode/schema"
)

// Codes of JSON-RPC.
const (
	codeParse          = -32700
	codeInvalidRequest = -32600
	codeInvalidParams  = -32602
	codeInternal       = -32603
	codeNotBegun       = -32000
)

func invalidRequest(format string, args ...any) *ProtocolError {
	return &ProtocolError{Code: codeInvalidRequest, Message: "Invalid request: " + fmt.Sprintf(format, args...)}
}

// field is a member of a JSON object, its value as it was written.
type field struct {
	key string
	raw json.RawMessage
}

// errNoObject says that a JSON document is something else than an object.
var errNoObject = errors.New("not an object")

// fields are an object's members in their order, duplicates included: what decoding into Go values would lose.
func fields(raw []byte) ([]field, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	start, err := dec.Token()
	if err != nil {
		return nil, err
	}
	if start != json.Delim('{') {
		return nil, errNoObject
	}
	var members []field
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		m := field{key: fmt.Sprint(key)}
		if err := dec.Decode(&m.raw); err != nil {
			return nil, err
		}
		members = append(members, m)
	}
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the object")
	}
	return members, nil
}

// envelope is a JSON-RPC message, read strictly: the SDK's own decoding takes any case of a key, and the last of two.
type envelope struct {
	id     json.RawMessage // nil: a notification, or an answer of the client's
	method string          // empty: an answer of the client's
	params json.RawMessage // nil: none
	result json.RawMessage // of an answer
	failed json.RawMessage // of an answer that is an error
}

var envelopeKeys = []string{"jsonrpc", "id", "method", "params", "result", "error"}

// readEnvelope reads a message. Of a message that is refused it answers the id, where that can be told.
func readEnvelope(raw []byte) (envelope, error) {
	var e envelope
	if !json.Valid(raw) || !utf8.Valid(raw) {
		if id, deep := tooDeep(raw); deep {
			e.id = id
			return e, invalidRequest("the message is nested deeper than %d levels", maxNesting)
		}
		return e, &ProtocolError{Code: codeParse, Message: "Parse error: the line is not one JSON document in UTF-8"}
	}
	members, err := fields(raw)
	if err != nil {
		return e, invalidRequest("a message is one JSON object; batches are not taken")
	}
	seen := map[string]json.RawMessage{}
	var twice []string
	misspelt, meant := "", ""
	for _, m := range members {
		if _, before := seen[m.key]; before {
			twice = append(twice, m.key)
		} else if key := folded(m.key, envelopeKeys); key != "" && misspelt == "" {
			misspelt, meant = m.key, key
		}
		seen[m.key] = m.raw
	}
	id, hasID := seen["id"]
	if hasID && isID(id) && !slices.Contains(twice, "id") {
		e.id = id
	}
	switch {
	case len(twice) > 0:
		return e, invalidRequest("key %.64q is given twice", twice[0])
	case misspelt != "":
		return e, invalidRequest("key %q is not declared (did you mean %s?)", misspelt, meant)
	case string(seen["jsonrpc"]) != `"2.0"`:
		return e, invalidRequest(`jsonrpc must be "2.0"`)
	case hasID && e.id == nil:
		return e, invalidRequest("id must be a string or a number")
	}
	if method, ok := seen["method"]; ok {
		if err := json.Unmarshal(method, &e.method); err != nil || e.method == "" {
			return e, invalidRequest("method must be a string")
		}
	}
	e.params, e.result, e.failed = seen["params"], seen["result"], seen["error"]
	if string(e.params) == "null" {
		e.params = nil
	}
	switch answers := e.result != nil || e.failed != nil; {
	case e.method == "" && !answers:
		return e, invalidRequest("method is missing")
	case e.method != "" && answers:
		return e, invalidRequest("a request has no result and no error")
	case e.method != "tools/call":
		return e, checkParams(e.params)
	}
	return e, nil
}

// paramKeys are the keys of the protocol's parameters, of all methods but tools/call.
var paramKeys = []string{"_meta", "argument", "arguments", "capabilities", "clientInfo", "context", "cursor", "inputResponses", "level",
	"name", "notifications", "protocolVersion", "reason", "ref", "requestId", "requestState", "uri"}

// checkParams refuses parameters of which the SDK's decoding would take another key, or the last of two. Keys that the
// protocol does not know pass: a later revision may.
func checkParams(raw json.RawMessage) error {
	if raw == nil {
		return nil
	}
	members, err := fields(raw)
	if err != nil {
		return &ProtocolError{Code: codeInvalidParams, Message: "Invalid params: not an object"}
	}
	seen := map[string]bool{}
	for _, m := range members {
		if seen[m.key] {
			return &ProtocolError{Code: codeInvalidParams, Message: fmt.Sprintf("Invalid params: key %.64q is given twice", m.key)}
		}
		seen[m.key] = true
		if key := folded(m.key, paramKeys); key != "" {
			return &ProtocolError{Code: codeInvalidParams,
				Message: fmt.Sprintf("Invalid params: key %.64q is not declared (did you mean %s?)", m.key, key)}
		}
	}
	return nil
}

// folded is the key that the SDK's decoding would take a key for, though it is written otherwise; empty: none. Decoding folds
// more than ASCII: a long s is an s to it.
func folded(key string, declared []string) string {
	i := slices.IndexFunc(declared, func(d string) bool { return strings.EqualFold(d, key) })
	if i < 0 || declared[i] == key {
		return ""
	}
	return declared[i]
}

// meta is what a request's _meta says that matters here.
type meta struct {
	version  string          // of the stateless era; empty: the handshake's
	progress json.RawMessage // progressToken, as it was written; nil: none
	logLevel sdk.LoggingLevel
}

// readMeta reads _meta out of parameters. What is of another type counts as absent; the SDK refuses it where it must.
func readMeta(params json.RawMessage) meta {
	var m meta
	var outer struct {
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	if json.Unmarshal(params, &outer) != nil {
		return m
	}
	if json.Unmarshal(outer.Meta[sdk.MetaKeyProtocolVersion], &m.version) != nil {
		m.version = ""
	}
	if json.Unmarshal(outer.Meta[sdk.MetaKeyLogLevel], &m.logLevel) != nil {
		m.logLevel = ""
	}
	if token := outer.Meta["progressToken"]; isID(token) {
		m.progress = token
	}
	return m
}

func isID(raw json.RawMessage) bool {
	return len(raw) > 0 && (raw[0] == '"' || raw[0] == '-' || '0' <= raw[0] && raw[0] <= '9')
}

// toolCall is what tools/call asks for.
type toolCall struct {
	name      string
	arguments json.RawMessage // nil: none were given
	meta      json.RawMessage
	responses json.RawMessage // to a result that asked for input; nil: none
	state     json.RawMessage // that such a result left with the client
	refusal   *schema.Error   // of keys beside the arguments; nil: none
}

// The keys of tools/call. Those of tasks and of round trips are the protocol's, and mean nothing to our tools.
var callKeys = []string{"name", "arguments", "_meta", "task", "inputResponses", "requestState"}

// readCall reads the parameters of tools/call. A key that is not declared is refused as an argument would be, because a
// model that wrote it needs to be told: its arguments would be lost otherwise.
func readCall(params json.RawMessage) (toolCall, error) {
	members, err := fields(params)
	if err != nil {
		return toolCall{}, &ProtocolError{Code: codeInvalidParams, Message: "Invalid params: tools/call takes an object with name and arguments"}
	}
	seen := map[string]json.RawMessage{}
	var found []schema.Violation
	var texts []string
	for _, m := range members {
		_, before := seen[m.key]
		switch {
		case before:
			found = append(found, schema.Violation{Pointer: pointerTo(m.key), Problem: "value", Candidates: []string{}})
			texts = append(texts, fmt.Sprintf("key %.64q of tools/call is given twice", m.key))
		case !slices.Contains(callKeys, m.key):
			v := schema.Violation{Pointer: pointerTo(m.key), Problem: "undeclared", Candidates: nearCallKey(m.key)}
			found = append(found, v)
			text := fmt.Sprintf("Undeclared key of tools/call: %.64q", m.key)
			if len(v.Candidates) > 0 {
				text += " (did you mean " + v.Candidates[0] + "?)"
			}
			texts = append(texts, text)
		}
		seen[m.key] = m.raw
	}
	c := toolCall{arguments: seen["arguments"], meta: seen["_meta"], responses: seen["inputResponses"], state: seen["requestState"]}
	if err := json.Unmarshal(seen["name"], &c.name); err != nil || c.name == "" {
		return c, &ProtocolError{Code: codeInvalidParams, Message: "Invalid params: tools/call needs the name of a tool"}
	}
	if string(c.arguments) == "null" {
		c.arguments = nil
	}
	if len(found) > 0 {
		c.refusal = refusalOf(found, texts)
	}
	return c, nil
}

func pointerTo(key string) string {
	return "/params/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}

func nearCallKey(key string) []string {
	if best := schema.Nearest(strings.ToLower(key), []string{"name", "arguments"}); best != "" {
		return []string{best}
	}
	return []string{}
}

// maxViolations bounds what is told of the keys of one message.
const maxViolations = 8

func refusalOf(found []schema.Violation, texts []string) *schema.Error {
	found, texts = found[:min(len(found), maxViolations)], texts[:min(len(texts), maxViolations)]
	return &schema.Error{Code: schema.InvalidArguments, Message: schema.Message(strings.Join(texts, "; ")), Details: map[string]any{
		"pointer": found[0].Pointer, "value": nil, "declared": []string{"name", "arguments"}, "candidates": found[0].Candidates,
		"violations": found}}
}
