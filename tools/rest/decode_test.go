package rest

import (
	"bytes"
	"encoding/json"
	"net/url"
	"testing"

	"powernode/schema"
)

// A body that is put a member into is valid exactly where it was before, but for that member.
func FuzzMemberInFront(f *testing.F) {
	for _, seed := range []string{``, `{}`, ` { } `, `{"dry_run":true}`, `{,}`, `{]`, `[]`, `"{"`, `{"a":{"node_id":1}}`, `{} {}`, " ", "\v{}", "{\"a\":\"\xff\"}"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		out, err := withMember(raw, "node_id", `x"y`)
		if err != nil {
			t.Fatal(err)
		}
		if len(bytes.Trim(raw, blanks)) == 0 {
			return // no body: the member alone
		}
		if json.Valid(raw) != json.Valid(out) {
			t.Fatalf("%q became %q", raw, out)
		}
		var before, after map[string]json.RawMessage
		if json.Unmarshal(raw, &before) != nil || before == nil {
			return
		}
		if err := json.Unmarshal(out, &after); err != nil {
			t.Fatal(err)
		}
		for key, value := range before {
			if string(after[key]) != string(value) {
				t.Fatalf("%q changed: %q became %q", key, value, after[key])
			}
		}
		if _, own := before["node_id"]; !own && string(after["node_id"]) != `"x\"y"` {
			t.Fatalf("the member is %s", after["node_id"])
		}
	})
}

// A query becomes an object with each of its pairs, or is refused; what it declares is of its type.
func FuzzQueryArguments(f *testing.F) {
	for _, seed := range []string{``, `limit=5`, `limit=5&limit=6`, `resource_type=System%3A%3ANode`, `limit=%ff`, `a;b`, `=`, `&&`, `limit=1e9999`, `%zz`} {
		f.Add(seed)
	}
	d, err := schema.NewDocument(json.RawMessage(`{"type":"object","additionalProperties":false,"properties":{
		"limit":{"type":"integer","minimum":1,"maximum":500},"resource_type":{"type":"string"}}}`))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		out, err := queryArguments(raw, d.Shape())
		if err != nil {
			return
		}
		if !json.Valid(out) {
			t.Fatalf("%q became %q", raw, out)
		}
		query, err := url.ParseQuery(raw)
		if err != nil {
			t.Fatalf("%q is no query and became %s", raw, out)
		}
		_, err = d.Validate(out)
		for key, values := range query {
			if (key != "limit" && key != "resource_type" || len(values) > 1) && err == nil {
				t.Fatalf("%q was taken as %s", raw, out)
			}
		}
	})
}

// Bodies of people's surface: what is taken is normalised, and is taken again as it is.
func FuzzPeoplesBodies(f *testing.F) {
	for _, seed := range []string{`{}`, `{"plan_digest":"sha256:0","signature":"AA=="}`, `{"verdict":"block","scope":{"role":"agent"}}`, `{"scope":null}`, `[]`} {
		f.Add([]byte(seed))
	}
	d, err := readDocuments()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, each := range []*schema.Document{d.decision, d.policy, d.unsetPolicy} {
			in, err := declared[policyBody](raw, each)
			if schema.CodeOf(err) == schema.Internal {
				t.Fatalf("%q: %v", raw, err)
			}
			if err == nil && len(in.Signature) != 64 {
				t.Fatalf("%q was taken with a signature of %d bytes", raw, len(in.Signature))
			}
		}
	})
}
