package schema

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"sort"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

//go:embed verbs
var verbFiles embed.FS

// Annotations are what a client may know of a verb before it calls it.
type Annotations struct {
	ReadOnly    bool `json:"read_only"`
	Destructive bool `json:"destructive"`
	Idempotent  bool `json:"idempotent"`
}

// Alias is a name that people and models use for something else. Meant is empty where nothing declared fits.
type Alias struct {
	Given string   `json:"given"`
	Meant []string `json:"meant"`
	Hint  *Hint    `json:"hint"`
}

// Verb is one operation as the contract declares it: everything that is said about it, in one value.
type Verb struct {
	Name        string          `json:"name"`
	Title       string          `json:"title"`
	Description string          `json:"description"`
	Toolset     string          `json:"toolset"`
	Default     bool            `json:"default"`    // in the default list
	Category    string          `json:"category"`   // action category; empty: no gate
	Escalates   []string        `json:"escalates"`  // further categories that arguments can move a call to
	Permission  string          `json:"permission"` // the one permission that it needs
	HumanOnly   bool            `json:"human_only"`
	Annotations Annotations     `json:"annotations"`
	Aliases     []Alias         `json:"aliases"`
	Input       json.RawMessage `json:"input"`
	Output      json.RawMessage `json:"output"`

	input  *node
	output *node
	once   sync.Once
	strict *jsonschema.Schema
	failed error
}

// Gated says whether the verb has an action category, and so can park.
func (v *Verb) Gated() bool { return v.Category != "" }

// Toolsets are the names of the groups that verbs are listed by. They stand here too, so that a process that only names
// one needn't read the contract.
func Toolsets() []string {
	return []string{"fleet", "governance", "kubernetes", "providers", "sdwan", "signals", "templates"}
}

// Verbs reads the embedded contract, sorted by name. An error is a fault of the contract's files.
func Verbs() ([]*Verb, error) {
	entries, err := verbFiles.ReadDir("verbs")
	if err != nil {
		return nil, fmt.Errorf("read the contract: %w", err)
	}
	var verbs []*Verb
	for _, e := range entries {
		if path.Ext(e.Name()) != ".json" {
			continue
		}
		raw, err := verbFiles.ReadFile(path.Join("verbs", e.Name()))
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", e.Name(), err)
		}
		v, err := parseVerb(raw)
		if err != nil {
			return nil, fmt.Errorf("contract file %s: %w", e.Name(), err)
		}
		if v.Name+".json" != e.Name() {
			return nil, fmt.Errorf("contract file %s declares verb %s", e.Name(), v.Name)
		}
		verbs = append(verbs, v)
	}
	sort.Slice(verbs, func(i, j int) bool { return verbs[i].Name < verbs[j].Name })
	return verbs, nil
}

// Named reads one verb of the embedded contract; nil: it has none of that name.
func Named(name string) (*Verb, error) {
	raw, err := verbFiles.ReadFile(path.Join("verbs", path.Base(name)+".json"))
	if errors.Is(err, fs.ErrNotExist) || path.Base(name) != name {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read verb %s: %w", name, err)
	}
	v, err := parseVerb(raw)
	if err != nil {
		return nil, fmt.Errorf("contract file of %s: %w", name, err)
	}
	return v, nil
}

func parseVerb(raw []byte) (*Verb, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	v := &Verb{}
	if err := dec.Decode(v); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("something follows the declaration")
	}
	var err error
	if v.input, err = parseNode(v.Input); err != nil {
		return nil, fmt.Errorf("input: %w", err)
	}
	if v.output, err = parseNode(v.Output); err != nil {
		return nil, fmt.Errorf("output: %w", err)
	}
	return v, nil
}

// Parameters are the names of the declared parameters, in the order of declaration.
func (v *Verb) Parameters() []string { return v.input.names }

// Subject is the kind of object that a parameter takes ids of, as parameters call it: empty where it takes none. One that is called
// id takes that of what the verb is about.
func (v *Verb) Subject(parameter string) string {
	if parameter == "id" {
		_, about, _ := strings.Cut(strings.TrimPrefix(v.Name, "system_"), "_")
		return about
	}
	for _, suffix := range []string{"_id", "_ids"} {
		if kind, of := strings.CutSuffix(parameter, suffix); of {
			return kind
		}
	}
	return ""
}

// InputShape and OutputShape describe the schemas to tests that hold Go types against them.
func (v *Verb) InputShape() *Shape  { return v.input.shape() }
func (v *Verb) OutputShape() *Shape { return v.output.shape() }

// Shape is a schema's outline.
type Shape struct {
	Type       string
	Names      []string // of properties, in order
	Properties map[string]*Shape
	Items      *Shape
	FreeForm   bool
	Required   map[string]bool
	HasDefault bool
	Nullable   bool // null clears (input), or null is absent (output)
	Enum       []string
	Format     string
	Values     *Shape // of a free-form object whose values are declared; nil: anything
}

// compiled is the library's view of the input schema, made on first use under an opaque name.
func (v *Verb) compiled() (*jsonschema.Schema, error) {
	v.once.Do(func() {
		c := jsonschema.NewCompiler()
		c.Draft = jsonschema.Draft2020
		name := "verb:" + v.Name
		if v.failed = c.AddResource(name, bytes.NewReader(v.Input)); v.failed != nil {
			return
		}
		v.strict, v.failed = c.Compile(name)
	})
	return v.strict, v.failed
}

func refuseReferences(string) (io.ReadCloser, error) {
	return nil, fmt.Errorf("references to other documents are not taken")
}

// node is a parsed schema, with the order of its properties.
type node struct {
	typ         string
	names       []string
	properties  map[string]*node
	required    map[string]bool
	items       *node
	freeForm    bool // additionalProperties is not false
	values      *node
	enum        []string
	format      string
	pattern     string
	def         json.RawMessage
	minimum     *json.Number
	maximum     *json.Number
	minLength   *int
	maxLength   *int
	minItems    *int
	maxItems    *int
	nullClears  bool
	anyOfNull   bool
	refusalText string // x-refusal: the sentence for a wrong value, where the contract fixes it
}

type rawNode struct {
	Type                 string            `json:"type"`
	Properties           json.RawMessage   `json:"properties"`
	Required             []string          `json:"required"`
	Items                json.RawMessage   `json:"items"`
	AdditionalProperties json.RawMessage   `json:"additionalProperties"`
	Enum                 []string          `json:"enum"`
	Format               string            `json:"format"`
	Pattern              string            `json:"pattern"`
	Default              json.RawMessage   `json:"default"`
	Minimum              *json.Number      `json:"minimum"`
	Maximum              *json.Number      `json:"maximum"`
	MinLength            *int              `json:"minLength"`
	MaxLength            *int              `json:"maxLength"`
	MinItems             *int              `json:"minItems"`
	MaxItems             *int              `json:"maxItems"`
	AnyOf                []json.RawMessage `json:"anyOf"`
	Description          string            `json:"description"`
	NullClears           bool              `json:"x-null-clears"`
	Refusal              string            `json:"x-refusal"`
	Brief                bool              `json:"x-brief"` // MCP lists the object without its keys
}

func parseNode(raw json.RawMessage) (*node, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	var r rawNode
	if err := dec.Decode(&r); err != nil {
		return nil, err
	}
	if len(r.AnyOf) > 0 {
		return parseAnyOf(r)
	}
	n := &node{typ: r.Type, enum: r.Enum, format: r.Format, pattern: r.Pattern, def: r.Default,
		minimum: r.Minimum, maximum: r.Maximum, minLength: r.MinLength, maxLength: r.MaxLength,
		minItems: r.MinItems, maxItems: r.MaxItems, nullClears: r.NullClears, refusalText: r.Refusal,
		properties: map[string]*node{}, required: map[string]bool{}}
	for _, name := range r.Required {
		n.required[name] = true
	}
	if len(r.Properties) > 0 {
		if err := n.parseProperties(r.Properties); err != nil {
			return nil, err
		}
	}
	if len(r.Items) > 0 {
		items, err := parseNode(r.Items)
		if err != nil {
			return nil, fmt.Errorf("items: %w", err)
		}
		n.items = items
	}
	if n.typ == "object" {
		return n, n.parseAdditional(r.AdditionalProperties)
	}
	return n, nil
}

// parseAnyOf takes the one combination that output schemas know: a type, or null.
func parseAnyOf(r rawNode) (*node, error) {
	var null map[string]string
	if len(r.AnyOf) != 2 || json.Unmarshal(r.AnyOf[1], &null) != nil || len(null) != 1 || null["type"] != "null" {
		return nil, fmt.Errorf("anyOf must be a type and null")
	}
	n, err := parseNode(r.AnyOf[0])
	if err != nil {
		return nil, err
	}
	n.anyOfNull = true
	return n, nil
}

func (n *node) parseProperties(raw json.RawMessage) error {
	tree, err := parseTree(raw)
	if err != nil {
		return err
	}
	o, ok := tree.(*object)
	if !ok {
		return fmt.Errorf("properties must be an object")
	}
	var each map[string]json.RawMessage
	if err := json.Unmarshal(raw, &each); err != nil {
		return err
	}
	for _, name := range o.keys {
		child, err := parseNode(each[name])
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		n.names = append(n.names, name)
		n.properties[name] = child
	}
	return nil
}

func (n *node) parseAdditional(raw json.RawMessage) error {
	switch s := strings.TrimSpace(string(raw)); s {
	case "false":
		return nil
	case "", "true":
		n.freeForm = true
		return nil
	default:
		values, err := parseNode(raw)
		if err != nil {
			return fmt.Errorf("additionalProperties: %w", err)
		}
		n.freeForm, n.values = true, values
		return nil
	}
}

func (n *node) shape() *Shape {
	if n == nil {
		return nil
	}
	s := &Shape{Type: n.typ, Names: n.names, FreeForm: n.freeForm, Required: n.required, Items: n.items.shape(),
		HasDefault: len(n.def) > 0, Nullable: n.nullClears || n.anyOfNull, Properties: map[string]*Shape{}, Enum: n.enum, Format: n.format,
		Values: n.values.shape()}
	for name, child := range n.properties {
		s.Properties[name] = child.shape()
	}
	return s
}
