package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	sdk "github.com/mark3labs/mcp-go/mcp"

	"powernode/schema"
)

// listed is a verb as an MCP tool.
func listed(v *schema.Verb) (sdk.Tool, error) {
	input, err := listedInput(v.Input)
	if err != nil {
		return sdk.Tool{}, fmt.Errorf("list %s: %w", v.Name, err)
	}
	output, err := listedOutput(v.OutputShape())
	if err != nil {
		return sdk.Tool{}, fmt.Errorf("list %s: %w", v.Name, err)
	}
	closed := false
	return sdk.Tool{Name: v.Name, Description: v.Description, RawInputSchema: input, RawOutputSchema: output,
		Annotations: sdk.ToolAnnotation{Title: v.Title, ReadOnlyHint: &v.Annotations.ReadOnly, DestructiveHint: &v.Annotations.Destructive,
			IdempotentHint: &v.Annotations.Idempotent, OpenWorldHint: &closed}}, nil
}

// listedInput is the contract's input schema as it is listed, on one line: what a model needs to write a call. Bounds of
// lengths and forms of words are left out, for assistants pay for each byte and the call is held to them all the same, by
// the schema that platform_search_verbs tells whole.
func listedInput(contract json.RawMessage) (json.RawMessage, error) {
	var out bytes.Buffer
	if err := condense(&out, contract); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// unlisted says whether a keyword of the contract is left out: the notes that are for us alone, and the bounds.
func unlisted(key string, value json.RawMessage) bool {
	switch key {
	case "minLength", "maxLength", "minItems", "maxItems", "pattern":
		return true
	case "minimum":
		return string(value) == "0" || string(value) == "1" // what anybody expects
	case "format":
		return string(value) == `"uuid"` // the name and the description say that it is an id
	case "default":
		return slices.Contains([]string{"false", "{}", "[]", `""`}, string(value))
	}
	return strings.HasPrefix(key, "x-")
}

// condense copies a schema, its keys in their order. Names of properties are no keywords: those are kept.
func condense(out *bytes.Buffer, raw json.RawMessage) error {
	members, err := fields(raw)
	if err != nil {
		return json.Compact(out, raw) // no object: true, a list, a word
	}
	brief := slices.ContainsFunc(members, func(m field) bool { return m.key == "x-brief" })
	out.WriteByte('{')
	first := true
	for _, m := range members {
		if unlisted(m.key, m.raw) || brief && m.key == "properties" {
			continue
		}
		if err := writeKey(out, &first, m.key); err != nil {
			return err
		}
		switch {
		case m.key == "properties":
			err = eachProperty(out, m.raw)
		case brief && m.key == "additionalProperties":
			out.WriteString("true") // its keys are told elsewhere
		case m.key == "items", m.key == "additionalProperties":
			err = condense(out, m.raw)
		default:
			err = json.Compact(out, m.raw)
		}
		if err != nil {
			return err
		}
	}
	out.WriteByte('}')
	return nil
}

func eachProperty(out *bytes.Buffer, raw json.RawMessage) error {
	members, err := fields(raw)
	if err != nil {
		return err
	}
	out.WriteByte('{')
	first := true
	for _, m := range members {
		if err := writeKey(out, &first, m.key); err != nil {
			return err
		}
		if err := condense(out, m.raw); err != nil {
			return err
		}
	}
	out.WriteByte('}')
	return nil
}

func writeKey(out *bytes.Buffer, first *bool, key string) error {
	if !*first {
		out.WriteByte(',')
	}
	*first = false
	quoted, err := json.Marshal(key)
	if err != nil {
		return err
	}
	out.Write(quoted)
	out.WriteByte(':')
	return nil
}

// listedOutput is an output schema one level deep: names and types of a result's keys, which is what a model needs to
// plan with, and a client to check.
func listedOutput(root *schema.Shape) (json.RawMessage, error) {
	var out bytes.Buffer
	out.WriteString(`{"type":"object","properties":{`)
	first := true
	var required []string
	for _, name := range root.Names {
		if err := writeKey(&out, &first, name); err != nil {
			return nil, err
		}
		out.WriteString(flat(root.Properties[name]))
		if root.Required[name] {
			required = append(required, name)
		}
	}
	out.WriteByte('}')
	if len(required) > 0 {
		names, err := json.Marshal(required)
		if err != nil {
			return nil, err
		}
		out.WriteString(`,"required":`)
		out.Write(names)
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

func flat(s *schema.Shape) string {
	kind := "{}"
	switch {
	case s.Type == "array" && s.Items != nil && s.Items.Type != "" && !s.Items.Nullable:
		kind = fmt.Sprintf(`{"type":"array","items":{"type":%q}}`, s.Items.Type)
	case s.Type == "array":
		kind = `{"type":"array","items":{}}`
	case s.Type != "":
		kind = fmt.Sprintf(`{"type":%q}`, s.Type)
	}
	if s.Nullable {
		return `{"anyOf":[` + kind + `,{"type":"null"}]}`
	}
	return kind
}
