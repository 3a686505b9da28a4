package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func testVerb(t testing.TB) *Verb {
	t.Helper()
	raw, err := os.ReadFile("testdata/verb.json")
	if err != nil {
		t.Fatalf("read the test's verb: %v", err)
	}
	v, err := parseVerb(raw)
	if err != nil {
		t.Fatalf("parse the test's verb: %v", err)
	}
	return v
}

const sound = `"name": "a-1", "template_id": "01890a5d-ac96-774b-bcce-b302099a8057"`

func TestArgumentsAreNormalised(t *testing.T) {
	t.Parallel()
	v := testVerb(t)
	for _, tt := range []struct{ name, given, want string }{
		{"defaults are filled in", `{` + sound + `}`, `{"name":"a-1","template_id":"01890a5d-ac96-774b-bcce-b302099a8057","priority":100}`},
		{"in the order of declaration", `{"template_id": "01890a5d-ac96-774b-bcce-b302099a8057", "name": "a-1", "priority": 3}`,
			`{"name":"a-1","template_id":"01890a5d-ac96-774b-bcce-b302099a8057","priority":3}`},
		{"1.0 is the integer 1", `{` + sound + `, "priority": 1.0}`, `{"name":"a-1","template_id":"01890a5d-ac96-774b-bcce-b302099a8057","priority":1}`},
		{"1e2 is the integer 100", `{` + sound + `, "priority": 1e2}`, `{"name":"a-1","template_id":"01890a5d-ac96-774b-bcce-b302099a8057","priority":100}`},
		{"an optional null is not given", `{` + sound + `, "direction": null, "priority": null}`,
			`{"name":"a-1","template_id":"01890a5d-ac96-774b-bcce-b302099a8057","priority":100}`},
		{"null clears where it is declared so", `{` + sound + `, "prefix": null}`,
			`{"name":"a-1","template_id":"01890a5d-ac96-774b-bcce-b302099a8057","priority":100,"prefix":null}`},
		{"a free-form object is kept as it is", `{` + sound + `, "config": {"b": {"a": null, "c": [1.50]}, "a": 1}}`,
			`{"name":"a-1","template_id":"01890a5d-ac96-774b-bcce-b302099a8057","priority":100,"config":{"b":{"a":null,"c":[1.50]},"a":1}}`},
		{"a nested default", `{` + sound + `, "selector": {"kind": "x"}}`,
			`{"name":"a-1","template_id":"01890a5d-ac96-774b-bcce-b302099a8057","priority":100,"selector":{"kind":"x","weight":1}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := v.Validate([]byte(tt.given))
			if err != nil {
				t.Fatalf("refused: %v", err)
			}
			if diff := cmp.Diff(tt.want, string(got)); diff != "" {
				t.Errorf("normalised (-want +got):\n%s", diff)
			}
			again, err := v.Validate(got)
			if err != nil || string(again) != string(got) {
				t.Errorf("normalised again: %s, %v", again, err)
			}
		})
	}
}

func TestViolationsAreNamed(t *testing.T) {
	t.Parallel()
	v := testVerb(t)
	for _, tt := range []struct{ name, given, want string }{
		{"missing comes first, in the order of declaration", `{"metadata": {}, "hostname": "a", "priority": "10"}`,
			`Missing required parameters: name, template_id; Undeclared parameters: metadata (did you mean config?), hostname (did you mean name?); priority must be an integer (got string "10")`},
		{"a blank required text is missing", `{"name": " ", "template_id": null}`, `Missing required parameters: name, template_id`},
		{"nothing is coerced", `{` + sound + `, "priority": 1.5, "enabled": "true", "ratio": "1", "tags": "a", "config": [], "code": 7}`,
			`priority must be an integer (got number 1.5); ratio must be a number (got string "1"); enabled must be a boolean (got string "true"); code must be a string (got number 7); tags must be an array (got string "a"); config must be an object (got array)`},
		{"a choice", `{` + sound + `, "direction": "in"}`, `direction must be one of: ingress, egress, both (got "in")`},
		{"a fixed text", `{` + sound + `, "profile": "x"}`, `profile must be one of: light, heavy`},
		{"a bound", `{` + sound + `, "priority": -1}`, `priority must be between 0 and 9999 (got -1)`},
		{"one bound", `{` + sound + `, "ratio": 0.25}`, `ratio must be at least 0.5 (got 0.25)`},
		{"a fixed text below", `{` + sound + `, "limit": 0}`, `limit must be a positive integer`},
		{"and not above", `{` + sound + `, "limit": 501}`, `limit must be between 1 and 500 (got 501)`},
		{"a format", `{"name": "A_1", "template_id": "7"}`,
			`name must be a DNS label (lower-case letters, digits and hyphens, at most 63) (got "A_1"); template_id must be an id (got "7")`},
		{"an address with a zone or a port is none", `{` + sound + `, "address": "10.0.0.1:80"}`, `address must be an IP address (got "10.0.0.1:80")`},
		{"a range", `{` + sound + `, "prefix": "fd00::"}`, `prefix must be a CIDR without host bits (got "fd00::")`},
		{"a length", `{` + sound + `, "code": "a"}`, `code must have 2 to 4 characters (got "a")`},
		{"a pattern", `{` + sound + `, "code": "A1"}`, `code must match ^[a-z]+$ (got "A1")`},
		{"too few and too many entries", `{` + sound + `, "tags": []}`, `tags must have at least 1 entries (got 0)`},
		{"an entry", `{` + sound + `, "tags": ["a", 1]}`, `tags.1 must be a string (got number 1)`},
		{"a nested key", `{` + sound + `, "selector": {"kin": "x"}}`,
			`Missing required parameters: selector.kind; Undeclared parameters: selector.kin (did you mean kind?)`},
		{"a value of a free-form object with declared values", `{` + sound + `, "labels": {"a": 1}}`, `labels.a must be a string (got number 1)`},
		{"several meanings", `{` + sound + `, "port_range": [1, 2]}`, `Undeclared parameters: port_range (did you mean port_from and port_to?)`},
		{"a key of an object", `{` + sound + `, "weight": 1}`, `Undeclared parameters: weight (did you mean selector.weight?)`},
		{"no meaning", `{` + sound + `, "quux": 1}`, `Undeclared parameters: quux`},
		{"a misspelt name", `{` + sound + `, "prioritty": 1}`, `Undeclared parameters: prioritty (did you mean priority?)`},
		{"a name in another case", `{` + sound + `, "Priority": 1}`, `Undeclared parameters: Priority (did you mean priority?)`},
		{"a part of a name", `{` + sound + `, "template": 1}`, `Undeclared parameters: template (did you mean template_id?)`},
		{"control characters", `{` + sound + `, "direction": "a\u001b[31m\nb"}`, "direction must be one of: ingress, egress, both (got \"a\ufffd[31m\ufffdb\")"},
		{"an array for the object", `[1]`, `arguments must be an object (got array)`},
		{"a text for the object", `"x"`, `arguments must be an object (got string "x")`},
		{"duplicate keys", `{` + sound + `, "name": "b"}`, `key "name" is given twice`},
		{"duplicate keys deep in a free-form object", `{` + sound + `, "config": {"a": [{"b": 1, "b": 2}]}}`, `key "b" is given twice`},
		{"bytes that are no UTF-8", "{" + sound + ", \"code\": \"a\xffb\"}", `arguments are not valid UTF-8`},
		{"half a character", `{` + sound + `, "code": "\ud83d"}`, `arguments are not valid UTF-8`},
		{"two objects", `{` + sound + `} {}`, `arguments must be one JSON object, and something follows it`},
		{"no size", `{` + sound + `, "config": {"a": 1e99999999}}`, `number 1e99999999 is out of range`},
		{"too deep for a free-form object", `{` + sound + `, "config": ` + strings.Repeat(`{"a":`, 17) + `1` + strings.Repeat(`}`, 17) + `}`, `config must be at most 16 levels deep`},
		{"too large for a free-form object", `{` + sound + `, "config": {"a": "` + strings.Repeat("x", 65<<10) + `"}}`, `config must be at most 64 KiB`},
		{"nested beyond all bounds", strings.Repeat(`[`, 100_000), `arguments are nested deeper than 64 levels`},
		{"too large", `{"name": "` + strings.Repeat("x", 1<<20) + `"}`, `arguments are 1048588 bytes, at most 1048576 are taken`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := v.Validate([]byte(tt.given))
			var refused *Error
			if !errors.As(err, &refused) || refused.Code != InvalidArguments {
				t.Fatalf("got %v, want invalid_arguments", err)
			}
			if diff := cmp.Diff(tt.want, refused.Message); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
			if len(refused.Message) > 1000 {
				t.Errorf("the message has %d bytes", len(refused.Message))
			}
		})
	}
}

func TestErrorIsTheContractsObject(t *testing.T) {
	t.Parallel()
	_, err := testVerb(t).Validate([]byte(`{"hostname": "k3s-server-b-1", "priority": "10", "template_id": "01890a5d-ac96-774b-bcce-b302099a8057"}`))
	got, encodeErr := json.MarshalIndent(err, "", " ")
	if encodeErr != nil {
		t.Fatal(encodeErr)
	}
	const want = `{
 "code": "invalid_arguments",
 "message": "Missing required parameters: name; Undeclared parameters: hostname (did you mean name?); priority must be an integer (got string \"10\")",
 "details": {
  "candidates": [],
  "declared": ["name", "template_id", "priority", "ratio", "direction", "profile", "limit", "port_from", "port_to", "enabled",
   "address", "prefix", "code", "tags", "config", "labels", "selector"],
  "pointer": "/name",
  "value": null,
  "violations": [
   {"pointer": "/name", "problem": "missing", "value": null, "candidates": []},
   {"pointer": "/hostname", "problem": "undeclared", "value": "k3s-server-b-1", "candidates": ["name"]},
   {"pointer": "/priority", "problem": "type", "value": "10", "candidates": []}]
 },
 "hint": {"verb": "test_verb", "text": "Pass name and template_id."},
 "retryable": false
}`
	if diff := cmp.Diff(compacted(t, want), compacted(t, string(got))); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
}

func compacted(t *testing.T, s string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		t.Fatalf("%v in %s", err, s)
	}
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestHintOfAnAliasIsTheErrors(t *testing.T) {
	t.Parallel()
	_, err := testVerb(t).Validate([]byte(`{` + sound + `, "dry_run": true}`))
	var refused *Error
	if !errors.As(err, &refused) || refused.Hint == nil || refused.Hint.Verb != "platform_preview" {
		t.Errorf("got %+v, want the hint platform_preview", refused)
	}
}

func TestPointersAreEscaped(t *testing.T) {
	t.Parallel()
	_, err := testVerb(t).Validate([]byte(`{` + sound + `, "a/b~c": 1}`))
	var refused *Error
	if !errors.As(err, &refused) || refused.Details["pointer"] != "/a~1b~0c" {
		t.Errorf("got %+v, want the pointer /a~1b~0c", refused)
	}
}

func TestManyViolationsStayBounded(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(`{` + sound)
	for i := range 50_000 {
		fmt.Fprintf(&b, `, "key%d": 1`, i)
	}
	b.WriteString(`}`)
	_, err := testVerb(t).Validate([]byte(b.String()))
	encoded, encodeErr := json.Marshal(err)
	if encodeErr != nil {
		t.Fatal(encodeErr)
	}
	if len(encoded) > 32<<10 {
		t.Errorf("the error has %d bytes", len(encoded))
	}
}

func TestOutputsAreHeldToTheirSchema(t *testing.T) {
	t.Parallel()
	v := testVerb(t)
	for _, tt := range []struct {
		result string
		fits   bool
	}{
		{`{"id": "a", "end": null}`, true},
		{`{"id": "a", "end": "b", "rows": [1, 2]}`, true},
		{`{"id": "a"}`, false},
		{`{"id": null, "end": null}`, false},
		{`{"id": "a", "end": null, "more": 1}`, false},
		{`{"id": "a", "end": null, "rows": ["x"]}`, false},
	} {
		if err := v.ValidateOutput([]byte(tt.result)); (err == nil) != tt.fits {
			t.Errorf("%s: %v, want fits %t", tt.result, err, tt.fits)
		}
	}
}

func TestContractCompiles(t *testing.T) {
	t.Parallel()
	verbs, err := Verbs()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range verbs {
		if _, err := v.compiled(); err != nil {
			t.Errorf("%s: %v", v.Name, err)
		}
		checkDefaults(t, v.Name, v.input)
	}
}

// checkDefaults holds declared defaults to the schema that declares them.
func checkDefaults(t *testing.T, at string, n *node) {
	t.Helper()
	for _, name := range n.names {
		child := n.properties[name]
		if len(child.def) > 0 {
			tree, err := parseTree(child.def)
			c := &checker{verb: &Verb{input: n}}
			c.value(child, tree, []string{name})
			if err != nil || len(c.found) > 0 {
				t.Errorf("%s: the default of %s does not fit: %v %v", at, name, err, c.found)
			}
		}
		checkDefaults(t, at+"/"+name, child)
	}
}

func TestBrokenDeclarationsAreRefused(t *testing.T) {
	t.Parallel()
	whole, err := os.ReadFile("testdata/verb.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, old, new string }{
		{"an unknown key", `"toolset"`, `"tool_set"`},
		{"a combinator", `"type": "boolean"`, `"oneOf": []`},
		{"a type array", `"type": "boolean"`, `"type": ["boolean", "null"]`},
		{"something after it", "\n}\n", "\n} {}\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			broken := strings.Replace(string(whole), tt.old, tt.new, 1)
			if broken == string(whole) {
				t.Fatal("the test changes nothing")
			}
			if _, err := parseVerb([]byte(broken)); err == nil {
				t.Error("taken")
			}
		})
	}
}

// The explainer and the schema library must agree: what validation passes, the library passes; nothing panics; what is
// normalised stays as it is.
func FuzzValidate(f *testing.F) {
	for _, seed := range []string{`{` + sound + `}`, `{` + sound + `, "priority": 1e2, "config": {"a": [null]}, "prefix": null}`,
		`{"hostname": "a", "selector": {"kind": 1}}`, `[{}]`, `{"name": "\ud800"}`, `{` + sound + `, "labels": {"a": "b"}, "tags": ["x"]}`,
		`{` + sound + `, "ratio": 0.5000000000000000000001}`, `{` + sound + `, "code": "abc", "address": "::1", "limit": 500}`} {
		f.Add([]byte(seed))
	}
	v := testVerb(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := v.Validate(raw)
		var refused *Error
		switch {
		case err == nil:
		case !errors.As(err, &refused) || refused.Code != InvalidArguments:
			t.Fatalf("%q: %v is no invalid_arguments", raw, err)
		case strings.HasPrefix(refused.Message, "arguments do not fit the schema"):
			t.Fatalf("%q: the library refuses what the explainer passes", raw)
		case refused.Message == "" || len([]rune(refused.Message)) > 1000:
			t.Fatalf("%q: message %q", raw, refused.Message)
		default:
			return
		}
		again, err := v.Validate(got)
		if err != nil || string(again) != string(got) {
			t.Fatalf("%q: normalised %s, and again %s: %v", raw, got, again, err)
		}
	})
}

func TestWhatIsMissingInsideAParameterIsHintedAtItself(t *testing.T) {
	t.Parallel()
	_, err := testVerb(t).Validate([]byte(`{` + sound + `, "selector": {}}`))
	refused, ok := err.(*Error)
	if !ok {
		t.Fatalf("got %v, want a refusal", err)
	}
	if diff := cmp.Diff(&Hint{Verb: "test_verb", Text: "Pass selector.kind."}, refused.Hint); diff != "" {
		t.Errorf("hint (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"kind", "weight"}, refused.Details["declared"]); diff != "" {
		t.Errorf("declared (-want +got):\n%s", diff)
	}
}
