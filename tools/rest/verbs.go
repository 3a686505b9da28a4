package rest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"powernode/schema"
	"powernode/tools"
)

// verb calls the verb that the path names; the body is its arguments, untouched.
func (f *Face) verb(w http.ResponseWriter, r *http.Request, c tools.Caller) (answer, error) {
	arguments, err := body(w, r)
	if err != nil {
		return answer{}, err
	}
	return f.call(r, c, r.PathValue("verb"), arguments)
}

// call runs a call to its end, also where the client goes away meanwhile.
func (f *Face) call(r *http.Request, c tools.Caller, verb string, arguments json.RawMessage) (answer, error) {
	id, err := callID(r, c, verb, arguments)
	if err != nil {
		return answer{}, err
	}
	result, err := f.Platform.Call(context.WithoutCancel(r.Context()), c, tools.Request{Verb: verb, Arguments: arguments, CallID: id})
	if err != nil {
		return answer{}, err
	}
	if result.Pending {
		return answer{data: result.JSON, status: http.StatusAccepted}, nil
	}
	return answer{data: result.JSON}, nil
}

// callID is under which id a call may be sent again: the client's, for this credential, verb and body alone.
func callID(r *http.Request, c tools.Caller, verb string, arguments json.RawMessage) (string, error) {
	given := r.Header.Get(CallIDHeader)
	switch {
	case given == "":
		return "", nil
	case len(given) > maxCallID || strings.ContainsFunc(given, func(c rune) bool { return c <= ' ' || c > '~' }):
		return "", schema.Errorf(schema.InvalidArguments, "%s must have at most %d printable ASCII characters", CallIDHeader, maxCallID)
	}
	sum := sha256.New()
	for _, part := range [][]byte{[]byte(c.ID), []byte(c.TokenID), []byte(given), []byte(verb), arguments} {
		fmt.Fprintf(sum, "%d:", len(part))
		sum.Write(part)
	}
	return "rest-" + hex.EncodeToString(sum.Sum(nil)), nil
}

// applyTemplate is system_apply_template as the seed documents call it: the node stands in the path.
func (f *Face) applyTemplate(w http.ResponseWriter, r *http.Request, c tools.Caller) (answer, error) {
	raw, err := body(w, r)
	if err != nil {
		return answer{}, err
	}
	arguments, err := withMember(raw, "node_id", r.PathValue("id"))
	if err != nil {
		return answer{}, err
	}
	return f.call(r, c, "system_apply_template", arguments)
}

// blanks are what JSON takes as white space.
const blanks = " \t\r\n"

// withMember puts a member in front of a raw object's own, and changes nothing else of it: what is wrong with it, the
// call path refuses, also the same key in the body.
func withMember(raw json.RawMessage, key, value string) (json.RawMessage, error) {
	member, err := json.Marshal(map[string]string{key: value})
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", key, err)
	}
	raw = bytes.Trim(raw, blanks)
	if len(raw) == 0 {
		return member, nil
	}
	rest, ok := bytes.CutPrefix(raw, []byte("{"))
	if !ok {
		return raw, nil
	}
	out := bytes.TrimSuffix(member, []byte("}"))
	if !bytes.HasPrefix(bytes.TrimLeft(rest, blanks), []byte("}")) {
		out = append(out, ',')
	}
	return append(out, rest...), nil
}

// auditLogs is platform_audit_log as the seed documents call it: its parameters are the query.
func (f *Face) auditLogs(_ http.ResponseWriter, r *http.Request, c tools.Caller) (answer, error) {
	const verb = "platform_audit_log"
	d, ok := f.Platform.Lookup(verb)
	if !ok {
		return answer{}, &tools.UnknownVerbError{Name: verb, Candidates: []string{}}
	}
	arguments, err := queryArguments(r.URL.RawQuery, d.Contract().InputShape())
	if err != nil {
		return answer{}, err
	}
	return f.call(r, c, verb, arguments)
}

// queryArguments makes the object of arguments from a query, read by its declared types. A key that is there twice is
// there twice in the object too, which validation refuses; so it does undeclared ones.
func queryArguments(raw string, declared *schema.Shape) (json.RawMessage, error) {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return nil, schema.Errorf(schema.InvalidArguments, "the query is not understood")
	}
	var b bytes.Buffer
	for _, key := range sortedKeys(query) {
		for _, text := range query[key] {
			if !utf8.ValidString(key + text) {
				return nil, schema.Errorf(schema.InvalidArguments, "the query is not valid UTF-8")
			}
			member, err := json.Marshal(map[string]any{key: declared.Properties[key].FromText(text)})
			if err != nil {
				return nil, fmt.Errorf("encode a query: %w", err)
			}
			b.WriteByte(',')
			b.Write(member[1 : len(member)-1])
		}
	}
	return json.RawMessage("{" + strings.TrimPrefix(b.String(), ",") + "}"), nil
}

func sortedKeys(query url.Values) []string {
	keys := make([]string, 0, len(query))
	for key := range query {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
