package schema

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Document is the declared shape of a request that is no verb's arguments: it is held to the same rules, in the same
// words.
type Document struct {
	Schema json.RawMessage
	verb   *Verb
}

// NewDocument reads a schema in the subset that verbs use; its root is an object.
func NewDocument(schema json.RawMessage) (*Document, error) {
	input, err := parseNode(schema)
	if err != nil {
		return nil, fmt.Errorf("read the schema of a document: %w", err)
	}
	if input.typ != "object" {
		return nil, errors.New("read the schema of a document: its root is no object")
	}
	return &Document{Schema: schema, verb: &Verb{Name: "document", Input: schema, input: input}}, nil
}

// Shape describes what is declared.
func (d *Document) Shape() *Shape { return d.verb.InputShape() }

// Validate holds raw JSON against the schema and returns it normalised, as Verb.Validate does for arguments.
func (d *Document) Validate(raw []byte) (json.RawMessage, error) {
	out, err := d.verb.Validate(raw)
	var refused *Error
	if !errors.As(err, &refused) {
		return out, err
	}
	told := *refused
	told.Hint = nil // it would name a verb, and this is none
	return nil, &told
}
