package schema_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/schema"
)

const decision = `{"type": "object", "required": ["digest"], "additionalProperties": false, "properties": {
	"digest": {"type": "string"}, "comment": {"type": "string", "default": "", "maxLength": 10}}}`

func TestDocumentIsHeldToTheRulesOfArguments(t *testing.T) {
	t.Parallel()
	d, err := schema.NewDocument([]byte(decision))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, given, pointer string }{
		{"what fits", `{"digest": "x"}`, "none"},
		{"a misspelt key", `{"digest": "x", "coment": "y"}`, "/coment"},
		{"a missing key", `{}`, "/digest"},
		{"a wrong type", `{"digest": 1}`, "/digest"},
		{"a key twice", `{"digest": "x", "digest": "y"}`, "/digest"},
		{"too long a text", `{"digest": "x", "comment": "0123456789a"}`, "/comment"},
		{"an array", `[]`, ""},
		{"bytes that are no UTF-8", "{\"digest\": \"\xff\"}", ""},
	} {
		got := "none"
		_, err := d.Validate([]byte(tt.given))
		var refused *schema.Error
		if errors.As(err, &refused) {
			got, _ = refused.Details["pointer"].(string)
			if refused.Code != schema.InvalidArguments || refused.Hint != nil {
				t.Errorf("%s: %s with hint %v, want invalid_arguments without", tt.name, refused.Code, refused.Hint)
			}
		}
		if got != tt.pointer {
			t.Errorf("%s: %v at %q, want %q", tt.name, err, got, tt.pointer)
		}
	}
	out, err := d.Validate([]byte(`{"digest": "x"}`))
	if err != nil || string(out) != `{"digest":"x","comment":""}` {
		t.Errorf("normalised: %s, %v", out, err)
	}
}

func TestDocumentsAreObjectsInTheSubset(t *testing.T) {
	t.Parallel()
	for _, broken := range []string{`{"type": "array"}`, `{"type": "object", "oneOf": []}`, `7`} {
		if _, err := schema.NewDocument([]byte(broken)); err == nil {
			t.Errorf("%s was taken", broken)
		}
	}
}

func TestTextIsReadByItsDeclaredType(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		shape *schema.Shape
		text  string
		want  string
	}{
		{"a text", &schema.Shape{Type: "string"}, "7", `"7"`},
		{"an integer", &schema.Shape{Type: "integer"}, "-7", `-7`},
		{"an integer in scientific spelling", &schema.Shape{Type: "integer"}, "1e2", `1e2`},
		{"no integer", &schema.Shape{Type: "integer"}, "7x", `"7x"`},
		{"a number that JSON doesn't spell so", &schema.Shape{Type: "integer"}, "+7", `"+7"`},
		{"a number without a size", &schema.Shape{Type: "integer"}, "1e999999999", `"1e999999999"`},
		{"a truth", &schema.Shape{Type: "boolean"}, "false", `false`},
		{"an object", &schema.Shape{Type: "object"}, `{"a": 1}`, `{"a":1}`},
		{"no object", &schema.Shape{Type: "object"}, `7`, `"7"`},
		{"a list", &schema.Shape{Type: "array"}, `[1]`, `[1]`},
		{"null where it clears", &schema.Shape{Type: "string", Nullable: true}, "null", `null`},
		{"null where it doesn't", &schema.Shape{Type: "string"}, "null", `"null"`},
		{"no declaration", nil, "7", `"7"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := compactJSON(t, tt.shape.FromText(tt.text))
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func compactJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestVerbIsFoundByItsName(t *testing.T) {
	t.Parallel()
	v, err := schema.Named("platform_whoami")
	if err != nil || v == nil || v.Name != "platform_whoami" {
		t.Errorf("platform_whoami: %v, %v", v, err)
	}
	for _, none := range []string{"", "platform_whoam", "../verbs/platform_whoami", "README", "."} {
		if v, err := schema.Named(none); v != nil || err != nil {
			t.Errorf("%q: %v, %v, want none", none, v, err)
		}
	}
}
