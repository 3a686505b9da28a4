package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
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

// listedInput is the contract's input schema without the notes that are for us alone (x-…), on one line.
func listedInput(contract json.RawMessage) (json.RawMessage, error) {
	var out bytes.Buffer
	if err := withoutNotes(&out, contract); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// withoutNotes copies a schema, its keys in their order. Names of properties are no keywords: those are kept.
func withoutNotes(out *bytes.Buffer, raw json.RawMessage) error {
	members, err := fields(raw)
	if err != nil {
		return json.Compact(out, raw) // no object: true, a list, a word
	}
	out.WriteByte('{')
	first := true
	for _, m := range members {
		if strings.HasPrefix(m.key, "x-") {
			continue
		}
		if err := writeKey(out, &first, m.key); err != nil {
			return err
		}
		switch m.key {
		case "properties":
			err = eachProperty(out, m.raw)
		case "items", "additionalProperties":
			err = withoutNotes(out, m.raw)
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
		if err := withoutNotes(out, m.raw); err != nil {
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
