package fleet

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
)

// manifestSchema is a manifest's shape: that of system_create_module_version's parameter, which a test holds it to.
//
//go:embed manifest.schema.json
var manifestSchema []byte

// CheckManifest refuses a manifest that breaks a rule. The refusal's pointers are below /manifest, and it lists all faults.
func CheckManifest(m store.Module, manifest store.Object) error {
	faults, err := ManifestFaults(m, manifest)
	if err != nil || len(faults) == 0 {
		return err
	}
	texts := make([]string, len(faults))
	violations := make([]schema.Violation, len(faults))
	for i, f := range faults {
		texts[i] = f.Text
		violations[i] = schema.Violation{Pointer: "/manifest" + f.Pointer, Problem: "value", Value: schema.Printable(f.Value), Candidates: []string{}}
	}
	return schema.InvalidArgument(violations[0].Pointer, violations[0].Value, "%s", strings.Join(texts, "; ")).WithDetail("violations", violations)
}

// checkPlace refuses artefacts of a module whose name gives no folder to place them in. K3s' has a place of its own.
func checkPlace(m store.Module, artifacts []store.VersionArtifact) error {
	if len(artifacts) == 0 || m.Locked {
		return nil
	}
	file := sdwan.ArtifactPath(m.Name)
	if why := sdwan.RefusedPath(m.Name, file); why != "" {
		return schema.InvalidArgument("/artifacts", nil, "file path refused: the artefact's place is %q, and %s", schema.Printable(file), why)
	}
	return nil
}

// ManifestFaults are the rules that a manifest of a module breaks, with pointers inside the manifest: first those of its
// shape, and where there are none, those of what it says.
func ManifestFaults(m store.Module, manifest store.Object) ([]sdwan.ManifestFault, error) {
	raw, err := json.Marshal(object(manifest))
	if err != nil {
		return nil, fmt.Errorf("encode a manifest: %w", err)
	}
	shape, err := schema.NewDocument(manifestSchema)
	if err != nil {
		return nil, err
	}
	normal, err := shape.Validate(raw)
	var refused *schema.Error
	if errors.As(err, &refused) {
		return shapeFaults(refused), nil
	}
	if err != nil {
		return nil, err
	}
	read, err := sdwan.ReadManifest(normal)
	if err != nil {
		return nil, err // the shape promises that it can be read
	}
	faults := read.Faults(m.Name)
	for i, f := range faults {
		if f.Value != "" {
			faults[i].Text = fmt.Sprintf("%s (got %q)", f.Text, schema.Printable(f.Value))
		}
	}
	return faults, nil
}

func shapeFaults(refused *schema.Error) []sdwan.ManifestFault {
	violations, _ := refused.Details["violations"].([]schema.Violation)
	out := make([]sdwan.ManifestFault, len(violations))
	for i, v := range violations {
		out[i] = sdwan.ManifestFault{Pointer: v.Pointer, Text: v.Text()}
	}
	if len(out) == 0 {
		out = append(out, sdwan.ManifestFault{Text: refused.Message})
	}
	return out
}

// Bounds of a manifest's text.
const (
	maxManifestText  = 1 << 20
	maxManifestDepth = 24
)

// ManifestFromYAML reads a manifest that is written in YAML, or in JSON, strictly: one document, no key twice, no anchors
// and aliases, no tags of its own. A number that JSON would spell otherwise (0644) is taken as the text that it is.
func ManifestFromYAML(text string) (store.Object, error) {
	if len(text) > maxManifestText {
		return nil, yamlRefusal("it has more than %d bytes", maxManifestText)
	}
	if !utf8.ValidString(text) {
		return nil, yamlRefusal("it is not UTF-8")
	}
	dec := yaml.NewDecoder(strings.NewReader(text))
	var document yaml.Node
	if err := dec.Decode(&document); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, yamlRefusal("it is empty")
		}
		return nil, yamlRefusal("%s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	var second yaml.Node
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, yamlRefusal("it has more than one document")
	}
	if len(document.Content) != 1 || document.Content[0].Kind != yaml.MappingNode {
		return nil, yamlRefusal("it must be an object")
	}
	value, err := yamlValue(document.Content[0], 0)
	if err != nil {
		return nil, err
	}
	out, _ := value.(map[string]any) // a mapping node is nothing else
	return out, nil
}

func yamlRefusal(format string, args ...any) error {
	return schema.InvalidArgument("/manifest_yaml", nil, "manifest_yaml does not parse: %s", schema.Printable(fmt.Sprintf(format, args...)))
}

func yamlValue(n *yaml.Node, depth int) (any, error) {
	switch {
	case depth > maxManifestDepth:
		return nil, yamlRefusal("line %d: nested deeper than %d", n.Line, maxManifestDepth)
	case n.Anchor != "" || n.Kind == yaml.AliasNode:
		return nil, yamlRefusal("line %d: anchors and aliases are not taken", n.Line)
	case n.Kind == yaml.MappingNode && n.ShortTag() == "!!map":
		return yamlObject(n, depth)
	case n.Kind == yaml.SequenceNode && n.ShortTag() == "!!seq":
		list := make([]any, 0, len(n.Content))
		for _, c := range n.Content {
			v, err := yamlValue(c, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	case n.Kind == yaml.ScalarNode:
		return yamlScalar(n)
	}
	return nil, yamlRefusal("line %d: the tag %s is not taken", n.Line, n.ShortTag())
}

func yamlObject(n *yaml.Node, depth int) (any, error) {
	out := make(map[string]any, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str" || key.Anchor != "" {
			return nil, yamlRefusal("line %d: a key must be a text", key.Line)
		}
		if _, twice := out[key.Value]; twice {
			return nil, yamlRefusal("line %d: the key %q is given twice", key.Line, schema.Printable(key.Value))
		}
		v, err := yamlValue(n.Content[i+1], depth+1)
		if err != nil {
			return nil, err
		}
		out[key.Value] = v
	}
	return out, nil
}

func yamlScalar(n *yaml.Node) (any, error) {
	switch n.ShortTag() {
	case "!!str", "!!timestamp":
		return n.Value, nil
	case "!!null":
		return nil, nil
	case "!!bool":
		return strings.EqualFold(n.Value, "true"), nil
	case "!!int", "!!float":
		if json.Valid([]byte(n.Value)) {
			return json.Number(n.Value), nil
		}
		return n.Value, nil
	}
	return nil, yamlRefusal("line %d: the tag %s is not taken", n.Line, n.ShortTag())
}

func unprintable(r rune) bool { return r < 0x20 || r == 0x7f }
