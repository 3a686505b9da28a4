package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Validate holds raw arguments against the verb's schema and returns them normalised: optional nulls dropped, integers
// spelt as integers, declared defaults filled in. A refusal is an *Error that names every violation.
// Empty raw arguments are an empty object.
func (v *Verb) Validate(raw []byte) (json.RawMessage, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		raw = []byte("{}")
	}
	tree, err := parseTree(raw)
	var twice *twiceError
	switch {
	case errors.As(err, &twice):
		return nil, v.refuse([]Violation{{Pointer: pointer(twice.path), Problem: "value", text: err.Error()}})
	case err != nil:
		return nil, v.refuse([]Violation{{Problem: "type", text: err.Error()}})
	}
	o, ok := tree.(*object)
	if !ok {
		return nil, v.refuse([]Violation{{Problem: "type", Value: shown(tree), text: "arguments must be an object (got " + typeAndValue(tree) + ")"}})
	}
	c := &checker{verb: v}
	normalised := c.object(v.input, o, nil)
	if len(c.found) > 0 {
		return nil, v.refuse(c.found)
	}
	if err := v.backstop(normalised); err != nil {
		return nil, err
	}
	fillDefaults(v.input, normalised)
	out, err := json.Marshal(ordered{normalised})
	if err != nil {
		return nil, fmt.Errorf("encode normalised arguments: %w", err)
	}
	return out, nil
}

// ValidateOutput holds a result against the verb's output schema. It is for tests and for the MCP face's own checks.
func (v *Verb) ValidateOutput(raw []byte) error {
	tree, err := parseTree(raw)
	if err != nil {
		return err
	}
	o, ok := tree.(*object)
	if !ok {
		return fmt.Errorf("result is no object")
	}
	c := &checker{verb: v, output: true}
	c.object(v.output, o, nil)
	if len(c.found) > 0 {
		return v.refuse(c.found)
	}
	return nil
}

// InvalidArgument is the refusal of a rule that the schema can't say: a domain's own check of one argument.
func InvalidArgument(pointer string, value any, format string, args ...any) *Error {
	text := fmt.Sprintf(format, args...)
	violation := Violation{Pointer: pointer, Problem: "value", Value: value, Candidates: []string{}}
	return &Error{Code: InvalidArguments, Message: bound(text), Details: map[string]any{"pointer": pointer, "value": value,
		"declared": []string{}, "candidates": []string{}, "violations": []Violation{violation}}}
}

// InvalidCombination is InvalidArgument for a rule that several arguments break together.
func InvalidCombination(pointer string, format string, args ...any) *Error {
	e := InvalidArgument(pointer, nil, format, args...)
	violation := Violation{Pointer: pointer, Problem: "combination", Candidates: []string{}}
	return e.WithDetail("violations", []Violation{violation})
}

// backstop asks the schema library too: what it refuses and we let pass would be a fault of ours, and is refused.
func (v *Verb) backstop(o *object) error {
	compiled, err := v.compiled()
	if err != nil {
		return fmt.Errorf("schema of %s does not compile: %w", v.Name, err)
	}
	if err := compiled.Validate(plain(withoutNulls(o))); err != nil {
		return v.refuse([]Violation{{Problem: "value", text: "arguments do not fit the schema of " + v.Name}})
	}
	return nil
}

type checker struct {
	verb   *Verb
	output bool
	found  []Violation
}

// maxViolations bounds what one refusal lists: a call with thousands of undeclared keys is told of the first.
const maxViolations = 100

func (c *checker) add(v Violation) {
	if len(c.found) >= maxViolations {
		return
	}
	if v.Candidates == nil {
		v.Candidates = []string{}
	}
	c.found = append(c.found, v)
}

// object checks o and returns a normalised copy.
func (c *checker) object(n *node, o *object, path []string) *object {
	out := &object{values: map[string]any{}}
	for _, name := range n.names {
		value, given := o.values[name]
		child := n.properties[name]
		if n.required[name] && (!given || (!c.output && missing(child, value))) {
			c.add(Violation{Pointer: pointer(path, name), Problem: "missing", name: dotted(path, name), declared: n.names})
			continue
		}
		if !given || (value == nil && !child.nullClears && !c.output) {
			continue
		}
		out.set(name, c.value(child, value, append(path, name)))
	}
	for _, key := range o.keys {
		if _, declared := n.properties[key]; declared {
			continue
		}
		if !n.freeForm {
			c.undeclared(n, o, key, path)
			continue
		}
		if n.values != nil {
			out.set(key, c.value(n.values, o.values[key], append(path, key)))
			continue
		}
		out.set(key, o.values[key])
	}
	if n.freeForm {
		c.freeForm(o, path)
	}
	return out
}

func (c *checker) undeclared(n *node, o *object, key string, path []string) {
	if len(c.found) >= maxViolations {
		return
	}
	var candidates []string
	var hint *Hint
	if len(path) == 0 {
		candidates, hint = c.verb.alias(key)
	}
	if candidates == nil && hint == nil {
		if near := nearest(key, n.names); near != "" {
			candidates = []string{near}
		} else if inside := n.inside(key); inside != "" {
			candidates = []string{inside}
		}
	}
	c.add(Violation{Pointer: pointer(path, key), Problem: "undeclared", Value: shown(o.values[key]), Candidates: candidates,
		name: dotted(path, key), declared: n.names, hint: hint})
}

// inside is the parameter of a typed object among the node's that has the name of a key which the node itself has not.
func (n *node) inside(key string) string {
	for _, name := range n.names {
		if _, declared := n.properties[name].properties[key]; declared {
			return name + "." + key
		}
	}
	return ""
}

func (c *checker) freeForm(o *object, path []string) {
	raw, err := json.Marshal(plain(o))
	switch {
	case err != nil || len(raw) > MaxFreeForm:
		c.wrong(path, o, fmt.Sprintf("%s must be at most %d KiB", nameOf(path), MaxFreeForm>>10))
	case depthOf(o) > MaxFreeFormDepth:
		c.wrong(path, o, fmt.Sprintf("%s must be at most %d levels deep", nameOf(path), MaxFreeFormDepth))
	}
}

func (c *checker) value(n *node, value any, path []string) any {
	if value == nil && (n.nullClears || (c.output && n.anyOfNull)) {
		return nil
	}
	switch n.typ {
	case "object":
		if o, ok := value.(*object); ok {
			return c.object(n, o, path)
		}
	case "array":
		if list, ok := value.([]any); ok {
			return c.array(n, list, path)
		}
	case "string":
		if s, ok := value.(string); ok {
			c.text(n, s, path)
			return s
		}
	case "boolean":
		if b, ok := value.(bool); ok {
			return b
		}
	case "integer":
		if number, ok := value.(json.Number); ok {
			if i, ok := integer(number); ok {
				c.bounds(n, i, path)
				return i
			}
		}
	case "number":
		if number, ok := value.(json.Number); ok {
			c.bounds(n, number, path)
			return number
		}
	case "":
		return value
	}
	c.add(Violation{Pointer: pointer(path), Problem: "type", Value: shown(value),
		text: fmt.Sprintf("%s must be %s (got %s)", nameOf(path), withArticle(n.typ), typeAndValue(value))})
	return value
}

func (c *checker) array(n *node, list []any, path []string) any {
	if n.minItems != nil && len(list) < *n.minItems {
		c.wrong(path, list, fmt.Sprintf("%s must have at least %d entries (got %d)", nameOf(path), *n.minItems, len(list)))
	}
	if n.maxItems != nil && len(list) > *n.maxItems {
		c.wrong(path, list, fmt.Sprintf("%s must have at most %d entries (got %d)", nameOf(path), *n.maxItems, len(list)))
	}
	out := make([]any, len(list))
	for i := range list {
		out[i] = list[i]
		if n.items != nil {
			out[i] = c.value(n.items, list[i], append(path, strconv.Itoa(i)))
		}
	}
	return out
}

func (c *checker) text(n *node, s string, path []string) {
	if c.output {
		return
	}
	name, got := nameOf(path), " (got "+quote(s)+")"
	length := utf8.RuneCountInString(s)
	switch {
	case n.refusalText != "" && !textFits(n, s, length):
		c.add(Violation{Pointer: pointer(path), Problem: "value", Value: shown(s), Candidates: n.enum, text: n.refusalText})
	case len(n.enum) > 0 && !contains(n.enum, s):
		c.add(Violation{Pointer: pointer(path), Problem: "value", Value: shown(s), Candidates: n.enum,
			text: name + " must be one of: " + strings.Join(n.enum, ", ") + got})
	case n.minLength != nil && length < *n.minLength, n.maxLength != nil && length > *n.maxLength:
		c.wrong(path, s, fmt.Sprintf("%s must have %s characters%s", name, lengths(n), got))
	case n.format != "" && !formatFits(n.format, s):
		c.wrong(path, s, name+" must be "+formatName(n.format)+got)
	case n.pattern != "" && !matches(n.pattern, s):
		c.wrong(path, s, fmt.Sprintf("%s must match %s%s", name, n.pattern, got))
	}
}

func textFits(n *node, s string, length int) bool {
	return (len(n.enum) == 0 || contains(n.enum, s)) && (n.minLength == nil || length >= *n.minLength) &&
		(n.maxLength == nil || length <= *n.maxLength) && (n.format == "" || formatFits(n.format, s)) &&
		(n.pattern == "" || matches(n.pattern, s))
}

func (c *checker) bounds(n *node, number json.Number, path []string) {
	if c.output {
		return
	}
	f, err := number.Float64()
	if err != nil || math.IsInf(f, 0) {
		c.wrong(path, number, nameOf(path)+" is out of range")
		return
	}
	below, above := n.minimum != nil && f < float(*n.minimum), n.maximum != nil && f > float(*n.maximum)
	if !below && !above {
		return
	}
	switch {
	case n.refusalText != "" && (below || n.minimum == nil):
		c.wrong(path, number, n.refusalText)
	case n.minimum != nil && n.maximum != nil:
		c.wrong(path, number, fmt.Sprintf("%s must be between %s and %s (got %s)", nameOf(path), *n.minimum, *n.maximum, cut(string(number))))
	case below:
		c.wrong(path, number, fmt.Sprintf("%s must be at least %s (got %s)", nameOf(path), *n.minimum, cut(string(number))))
	default:
		c.wrong(path, number, fmt.Sprintf("%s must be at most %s (got %s)", nameOf(path), *n.maximum, cut(string(number))))
	}
}

func (c *checker) wrong(path []string, value any, text string) {
	c.add(Violation{Pointer: pointer(path), Problem: "value", Value: shown(value), text: text})
}

// refuse makes the one error of a call from its violations.
func (v *Verb) refuse(found []Violation) *Error {
	rank := map[string]int{"missing": 0, "undeclared": 1, "type": 2, "value": 3, "combination": 4}
	sort.SliceStable(found, func(i, j int) bool { return rank[found[i].Problem] < rank[found[j].Problem] })
	var missing, undeclared, rest []string
	var hint *Hint
	for i := range found {
		f := &found[i]
		if f.Candidates == nil {
			f.Candidates = []string{}
		}
		if hint == nil {
			hint = f.hint
		}
		switch f.Problem {
		case "missing":
			missing = append(missing, f.name)
		case "undeclared":
			undeclared = append(undeclared, withSuggestion(*f))
		default:
			rest = append(rest, f.text)
		}
	}
	var parts []string
	if len(missing) > 0 {
		parts = append(parts, "Missing required parameters: "+strings.Join(missing, ", "))
	}
	if len(undeclared) > 0 {
		parts = append(parts, "Undeclared parameters: "+strings.Join(undeclared, ", "))
	}
	first := found[0]
	declared := first.declared
	if declared == nil {
		declared = v.input.names
	}
	if declared == nil {
		declared = []string{}
	}
	if hint == nil && len(missing) > 0 {
		hint = &Hint{Verb: v.Name, Text: "Pass " + sentenceList(v.toPass(missing)) + "."}
	}
	return &Error{Code: InvalidArguments, Message: bound(strings.Join(append(parts, rest...), "; ")), Hint: hint,
		Details: map[string]any{"pointer": first.Pointer, "value": first.Value, "declared": declared,
			"candidates": first.Candidates, "violations": found}}
}

// toPass is what a call with missing parameters is told to pass: all that is required, or, where those are there, what is
// missing inside them.
func (v *Verb) toPass(missing []string) []string {
	all := v.requiredNames()
	if slices.ContainsFunc(missing, func(name string) bool { return slices.Contains(all, name) }) {
		return all
	}
	return missing
}

func (v *Verb) requiredNames() []string {
	var names []string
	for _, name := range v.input.names {
		if v.input.required[name] {
			names = append(names, name)
		}
	}
	return names
}

func withSuggestion(f Violation) string {
	if len(f.Candidates) == 0 {
		return cut(printable(f.name))
	}
	return cut(printable(f.name)) + " (did you mean " + sentenceList(f.Candidates) + "?)"
}

func sentenceList(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

func missing(n *node, value any) bool {
	if value == nil {
		return !n.nullClears
	}
	s, ok := value.(string)
	return ok && n.typ == "string" && strings.TrimSpace(s) == ""
}

// fillDefaults fills in declared defaults, and leaves the declared keys in the order of declaration: equal arguments
// are equal bytes, however they were given.
func fillDefaults(n *node, o *object) {
	keys := make([]string, 0, len(n.names))
	for _, name := range n.names {
		child := n.properties[name]
		value, given := o.values[name]
		if !given && len(child.def) > 0 {
			tree, err := parseTree(child.def)
			if err != nil {
				continue // a test compiles every default
			}
			o.values[name], value, given = tree, tree, true
		}
		if given {
			keys = append(keys, name)
		}
		if nested, ok := value.(*object); ok && child.typ == "object" {
			fillDefaults(child, nested)
		}
		if list, ok := value.([]any); ok && child.items != nil {
			fillEntries(child.items, list)
		}
	}
	for _, key := range o.keys { // of a free-form object
		if _, declared := n.properties[key]; !declared {
			keys = append(keys, key)
		}
	}
	o.keys = keys
}

func fillEntries(n *node, list []any) {
	for _, entry := range list {
		if nested, ok := entry.(*object); ok && n.typ == "object" {
			fillDefaults(n, nested)
		}
	}
}

func withoutNulls(o *object) *object {
	out := &object{values: map[string]any{}}
	for _, k := range o.keys {
		switch v := o.values[k].(type) {
		case nil:
		case *object:
			out.set(k, withoutNulls(v))
		default:
			out.set(k, v)
		}
	}
	return out
}

func (o *object) set(key string, value any) {
	if _, there := o.values[key]; !there {
		o.keys = append(o.keys, key)
	}
	o.values[key] = value
}

// ordered encodes a tree with its keys in order.
type ordered struct{ v any }

func (t ordered) MarshalJSON() ([]byte, error) {
	switch v := t.v.(type) {
	case *object:
		var b bytes.Buffer
		b.WriteByte('{')
		for i, k := range v.keys {
			if i > 0 {
				b.WriteByte(',')
			}
			key, err := json.Marshal(k)
			if err != nil {
				return nil, err
			}
			value, err := json.Marshal(ordered{v.values[k]})
			if err != nil {
				return nil, err
			}
			b.Write(key)
			b.WriteByte(':')
			b.Write(value)
		}
		b.WriteByte('}')
		return b.Bytes(), nil
	case []any:
		list := make([]ordered, len(v))
		for i := range v {
			list[i] = ordered{v[i]}
		}
		return json.Marshal(list)
	}
	return json.Marshal(t.v)
}

// integer spells a number as an integer, if it is one: 1.0 and 1e2 are.
func integer(number json.Number) (json.Number, bool) {
	if _, err := strconv.ParseInt(string(number), 10, 64); err == nil {
		return number, true
	}
	f, err := number.Float64()
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return number, false
	}
	return json.Number(strconv.FormatInt(int64(f), 10)), true
}

func float(number json.Number) float64 {
	f, _ := number.Float64() // a bound of the contract's own files: compiled by a test
	return f
}

func lengths(n *node) string {
	switch {
	case n.minLength != nil && n.maxLength != nil:
		return fmt.Sprintf("%d to %d", *n.minLength, *n.maxLength)
	case n.minLength != nil:
		return fmt.Sprintf("at least %d", *n.minLength)
	default:
		return fmt.Sprintf("at most %d", *n.maxLength)
	}
}

var (
	uuidPattern  = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	labelPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

// IsID says whether a text has the form of an id.
func IsID(s string) bool { return uuidPattern.MatchString(s) }

// IsDNSLabel says whether a text can name a host (RFC 1123).
func IsDNSLabel(s string) bool { return labelPattern.MatchString(s) }

// IsCIDR says whether a text is a network's prefix: an address in it (10.0.0.1/8) says something else than its length does.
func IsCIDR(s string) bool {
	p, err := netip.ParsePrefix(s)
	return err == nil && p == p.Masked() && !p.Addr().Is4In6()
}

func formatFits(format, s string) bool {
	switch format {
	case "uuid":
		return IsID(s)
	case "dns-label":
		return IsDNSLabel(s)
	case "ip":
		_, err := netip.ParseAddr(s)
		return err == nil
	case "cidr":
		return IsCIDR(s)
	}
	return true
}

func formatName(format string) string {
	switch format {
	case "uuid":
		return "an id"
	case "dns-label":
		return "a DNS label (lower-case letters, digits and hyphens, at most 63)"
	case "ip":
		return "an IP address"
	case "cidr":
		return "a CIDR without host bits"
	}
	return format
}

func matches(pattern, s string) bool {
	re, err := regexp.Compile(pattern)
	return err == nil && re.MatchString(s)
}

func contains(list []string, s string) bool {
	for _, e := range list {
		if e == s {
			return true
		}
	}
	return false
}

func pointer(path []string, more ...string) string {
	var b strings.Builder
	for _, p := range append(append([]string{}, path...), more...) {
		b.WriteByte('/')
		b.WriteString(strings.NewReplacer("~", "~0", "/", "~1").Replace(cut(printable(p))))
	}
	return b.String()
}

func dotted(path []string, name string) string {
	return strings.Join(append(append([]string{}, path...), name), ".")
}

func nameOf(path []string) string {
	if len(path) == 0 {
		return "arguments"
	}
	return printable(strings.Join(path, "."))
}

func withArticle(typ string) string {
	if typ == "integer" || typ == "object" || typ == "array" {
		return "an " + typ
	}
	return "a " + typ
}

func typeAndValue(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case string:
		return "string " + quote(v)
	case bool:
		return fmt.Sprintf("boolean %t", v)
	case json.Number:
		return "number " + cut(string(v))
	case *object:
		return "object"
	default:
		return "array"
	}
}

// shown is a value as details repeat it: short, and without its inside when it has one.
func shown(value any) any {
	switch v := value.(type) {
	case string:
		return cut(printable(v))
	case json.Number:
		if len(v) > maxShown {
			return cut(string(v))
		}
	case *object:
		return "object"
	case []any:
		return "array"
	}
	return value
}

// Printable is a text from outside as messages show it: control characters replaced, at most 64 characters.
func Printable(s string) string { return cut(printable(s)) }

// Message is a text that may hold values from outside as a caller is told it: control characters replaced, below 1,000
// characters.
func Message(s string) string { return bound(printable(s)) }

func quote(s string) string { return `"` + cut(printable(s)) + `"` }

// printable replaces control characters, so that a value can't write a message of its own.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f || (r >= 0x80 && r < 0xa0) || r == '\u2028' || r == '\u2029' || (r >= 0x202a && r <= 0x202e) || (r >= 0x2066 && r <= 0x2069) {
			return '\ufffd'
		}
		return r
	}, s)
}

// maxShown is how many characters of a value a message repeats.
const maxShown = 64

func cut(s string) string {
	if utf8.RuneCountInString(s) <= maxShown {
		return s
	}
	return string([]rune(s)[:maxShown-1]) + "…"
}

// bound keeps a message below 1,000 characters.
func bound(s string) string {
	r := []rune(s)
	if len(r) < 1000 {
		return s
	}
	return string(r[:998]) + "…"
}
