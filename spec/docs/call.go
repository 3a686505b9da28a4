package docs

import (
	"bytes"
	"embed"
	"fmt"
	"io"
	"time"

	"go.yaml.in/yaml/v3"
)

//go:embed tutorial.yaml runbook.yaml
var files embed.FS

// Object is a JSON object.
type Object = map[string]any

// Document is what one document calls.
type Document struct {
	Name   string  `yaml:"document"`
	Title  string  `yaml:"title"`
	Steps  []Step  `yaml:"steps"`
	Others []Other `yaml:"others"`
}

// Step is a section of a document. Steps stand in the document's order.
type Step struct {
	Heading string `yaml:"heading"`
	After   string `yaml:"after"` // heading of the step that it runs after, where that is not the one before
	Note    string `yaml:"note"`
	Calls   []Call `yaml:"calls"`
}

// Other is a block or a mention that is no verb call.
type Other struct {
	Heading string `yaml:"heading"`
	Kind    string `yaml:"kind"` // diagram, shell, data, rest, prose
	Text    string `yaml:"text"`
	Note    string `yaml:"note"`
}

// Place is where a call stands.
type Place string

// Places of calls.
const (
	Block   Place = "block"   // a code block
	Table   Place = "table"   // a table of withdrawn calls
	Prose   Place = "prose"   // in a sentence
	Comment Place = "comment" // in a comment of a code block
	Shell   Place = "shell"   // a shell block: what it shows is run on a machine
	Ours    Place = "ours"    // in no document; needed in between
)

// Outcome is what a call comes to.
type Outcome string

// Outcomes of calls.
const (
	Succeeds Outcome = "succeeds"
	Parks    Outcome = "parks" // and succeeds once a person has approved it
	Refused  Outcome = "refused"
)

// Call is one call, or something done on a machine: exactly one of Verb, Powernode, Policy, Exec, Write and
// Install is set.
type Call struct {
	Place     Place  `yaml:"place"`
	Verb      string `yaml:"verb"`
	Arguments Object `yaml:"arguments"` // as they stand in the document, with <name> for what stands there as an example id
	Open      bool   `yaml:"open"`      // the example ends in `...`
	Added     Object `yaml:"added"`     // keys that the example leaves open
	Note      string `yaml:"note"`

	Outcome   Outcome           `yaml:"outcome"`
	Withdrawn bool              `yaml:"withdrawn"` // the document takes it back: pinned with what it does here
	Category  string            `yaml:"category"`  // of a call that parks
	Waiting   []Read            `yaml:"waiting"`   // what shows that nothing is done before the approval
	Refusal   *Refusal          `yaml:"refusal"`
	Answer    Check             `yaml:"answer"`
	Save      map[string]string `yaml:"save"` // reference → path in the answer
	Reads     []Read            `yaml:"reads"`

	Powernode []string `yaml:"powernode"` // the command line's arguments
	Policy    *Policy  `yaml:"policy"`
	Exec      *Exec    `yaml:"exec"`
	Write     *Write   `yaml:"write"`
	Install   *Install `yaml:"install"`
}

// Refusal is the error of a refused call.
type Refusal struct {
	Code string `yaml:"code"`
	Text string `yaml:"text"` // the message begins so
	Hint string `yaml:"hint"` // the verb to call next; "" is not looked at
}

// Check is what an answer must be, by paths.
type Check struct {
	Want         map[string]any    `yaml:"want"`          // equal
	Contains     map[string]string `yaml:"contains"`      // a text with that in it
	Differ       map[string]any    `yaml:"differ"`        // there, and another value
	WithinPrefix map[string]string `yaml:"within_prefix"` // an address in that prefix
	Present      []string          `yaml:"present"`       // there, not null and not empty
	Absent       []string          `yaml:"absent"`        // not there
	Count        map[string]int    `yaml:"count"`         // length of a list
	Nowhere      []string          `yaml:"nowhere"`       // a text that stands nowhere in the answer
}

// Read is a call that shows an effect, asked again until it shows or the time is over.
type Read struct {
	Verb      string        `yaml:"verb"`
	Arguments Object        `yaml:"arguments"`
	Within    time.Duration `yaml:"within"` // zero: at once
	Check     `yaml:",inline"`
	Save      map[string]string `yaml:"save"`
}

// Policy is a policy that the person sets, on a terminal.
type Policy struct {
	Category string `yaml:"category"`
	Verdict  string `yaml:"verdict"`
}

// Exec is a command inside a machine.
type Exec struct {
	Machine string        `yaml:"machine"`
	Command []string      `yaml:"command"`
	Within  time.Duration `yaml:"within"`
	Fails   bool          `yaml:"fails"`
	Prints  string        `yaml:"prints"`
}

// Write is a file made inside a machine.
type Write struct {
	Machine string `yaml:"machine"`
	Path    string `yaml:"path"`
	Content string `yaml:"content"`
}

// Install puts the K3s binary into a machine.
type Install struct {
	Machine string `yaml:"machine"`
	Path    string `yaml:"path"`
}

// Given is a call's arguments: those of the document and what was added to them.
func (c Call) Given() Object {
	out := Object{}
	for _, from := range []Object{c.Arguments, c.Added} {
		for key, value := range from {
			out[key] = value
		}
	}
	return out
}

// Load reads a document: tutorial or runbook.
func Load(name string) (Document, error) {
	raw, err := files.ReadFile(name + ".yaml")
	if err != nil {
		return Document{}, fmt.Errorf("read the calls of %s: %w", name, err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	dec.KnownFields(true)
	var d Document
	if err := dec.Decode(&d); err != nil {
		return d, fmt.Errorf("parse the calls of %s: %w", name, err)
	}
	if err := dec.Decode(new(any)); err != io.EOF {
		return d, fmt.Errorf("parse the calls of %s: something follows the document", name)
	}
	return d, nil
}

// InOrder is the steps as they are run.
func (d Document) InOrder() []Step {
	var out []Step
	for _, s := range d.Steps {
		if s.After != "" {
			continue
		}
		out = append(out, s)
		for _, moved := range d.Steps {
			if moved.After == s.Heading {
				out = append(out, moved)
			}
		}
	}
	return out
}
