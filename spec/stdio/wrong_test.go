package stdio_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"powernode/schema"
)

// wrong is one wrong message, and what must come of it.
type wrong struct {
	id       string // of the message; "null": it has none that could be read
	verb     string
	kind     string
	line     string
	pointer  string // one of the refusal's violations is there
	protocol bool   // it is no call: a JSON-RPC error
}

// declared is a verb's input schema, as far as wrong values are made from it.
type declared struct {
	Type       string               `json:"type"`
	Properties map[string]*declared `json:"properties"`
	Required   []string             `json:"required"`
	Additional json.RawMessage      `json:"additionalProperties"`
	Items      *declared            `json:"items"`
	Enum       []string             `json:"enum"`
	Format     string               `json:"format"`
	Pattern    string               `json:"pattern"`
	Minimum    *float64             `json:"minimum"`
	Maximum    *float64             `json:"maximum"`
	MinLength  int                  `json:"minLength"`
	MaxLength  *int                 `json:"maxLength"`
	MinItems   int                  `json:"minItems"`
	MaxItems   *int                 `json:"maxItems"`
	NullClears bool                 `json:"x-null-clears"`
}

// names are the declared keys, in an order of their own that does not change.
func (d *declared) names() []string { return slices.Sorted(maps.Keys(d.Properties)) }

func (d *declared) closed() bool { return string(d.Additional) == "false" }

// generator makes wrong calls; the same seed makes the same ones.
type generator struct {
	r      *rand.Rand
	verbs  []*schema.Verb
	inputs []*declared
}

func newGenerator(t *testing.T, seed byte) *generator {
	t.Helper()
	verbs, err := schema.Verbs()
	if err != nil {
		t.Fatal(err)
	}
	g := &generator{r: rand.New(rand.NewChaCha8([32]byte{seed})), verbs: verbs}
	for _, v := range verbs {
		d := &declared{}
		if err := json.Unmarshal(v.Input, d); err != nil {
			t.Fatalf("%s: %v", v.Name, err)
		}
		g.inputs = append(g.inputs, d)
	}
	return g
}

// mutation makes a right call's arguments wrong in one way; ok is false where the verb has nothing for that.
type mutation struct {
	kind string
	make func(g *generator, d *declared, right map[string]any) (arguments string, pointer string, ok bool)
}

// mutations are of the arguments; envelopes are of what stands around them.
var mutations = []mutation{
	{"a misspelt key", misspelt},
	{"a key in another case", otherCase},
	{"an extra key", func(g *generator, _ *declared, right map[string]any) (string, string, bool) {
		key := fmt.Sprintf("extra_%d", g.r.IntN(1000))
		return with(right, key, g.anything()), "/" + key, true
	}},
	{"an extra key in a nested object", nestedExtra},
	{"a wrong type", wrongType},
	{"a wrong type inside", wrongTypeInside},
	{"null for what is required", func(g *generator, d *declared, right map[string]any) (string, string, bool) {
		key, ok := g.one(slices.DeleteFunc(slices.Clone(d.Required), func(k string) bool { return d.Properties[k].NullClears }))
		return with(right, key, nil), "/" + key, ok
	}},
	{"blank for what is required", func(g *generator, d *declared, right map[string]any) (string, string, bool) {
		key, ok := g.one(slices.DeleteFunc(slices.Clone(d.Required), func(k string) bool { return d.Properties[k].Type != "string" }))
		return with(right, key, " \t"), "/" + key, ok
	}},
	{"what is required is missing", func(g *generator, d *declared, right map[string]any) (string, string, bool) {
		key, ok := g.one(d.Required)
		left := maps.Clone(right)
		delete(left, key)
		return text(left), "/" + key, ok
	}},
	{"a value out of its set or bounds", outOfBounds},
	{"a huge string", func(g *generator, d *declared, right map[string]any) (string, string, bool) {
		key, ok := g.one(g.keys(d, func(p *declared) bool {
			return p.Type == "string" && (p.MaxLength != nil || p.Enum != nil || p.Format != "")
		}))
		return with(right, key, strings.Repeat("x", 50_000)), "/" + key, ok
	}},
	{"a huge array", func(g *generator, d *declared, right map[string]any) (string, string, bool) {
		key, ok := g.one(g.keys(d, func(p *declared) bool { return p.Type == "array" && p.MaxItems != nil }))
		if !ok {
			return "", "", false
		}
		entry := g.value(d.Properties[key].Items)
		list := make([]any, *d.Properties[key].MaxItems+1+g.r.IntN(1000))
		for i := range list {
			list[i] = entry
		}
		return with(right, key, list), "/" + key, true
	}},
	{"too deep", func(g *generator, d *declared, right map[string]any) (string, string, bool) {
		key, ok := g.one(d.names())
		depth := 70 + g.r.IntN(2000)
		return withRaw(right, key, strings.Repeat("[", depth)+strings.Repeat("]", depth)), "", ok
	}},
	{"a key twice", func(g *generator, _ *declared, right map[string]any) (string, string, bool) {
		key, ok := g.one(slices.Sorted(maps.Keys(right)))
		return strings.TrimSuffix(text(right), "}") + "," + text(key) + ":" + text(right[key]) + "}", "/" + key, ok
	}},
	{"a key twice in a nested object", func(g *generator, d *declared, right map[string]any) (string, string, bool) {
		key, ok := g.one(g.keys(d, func(p *declared) bool { return p.Type == "object" }))
		return withRaw(right, key, `{"a":{"b":1,"b":2}}`), "/" + key + "/a/b", ok
	}},
	{"an array for the object", func(_ *generator, _ *declared, right map[string]any) (string, string, bool) {
		return "[" + text(right) + "]", "", true
	}},
	{"a text for the object", func(_ *generator, _ *declared, right map[string]any) (string, string, bool) {
		return text(text(right)), "", true
	}},
	{"half a character", func(g *generator, d *declared, right map[string]any) (string, string, bool) {
		key, ok := g.one(g.keys(d, func(p *declared) bool { return p.Type == "string" }))
		return withRaw(right, key, `"a\ud800b"`), "", ok
	}},
	{"a number without a size", func(g *generator, d *declared, right map[string]any) (string, string, bool) {
		key, ok := g.one(d.names())
		return withRaw(right, key, "1e999999999"), "", ok
	}},
}

// enormous is rare: each is more than arguments may be.
var enormous = mutation{"enormous arguments", func(_ *generator, _ *declared, right map[string]any) (string, string, bool) {
	return with(right, "description", strings.Repeat("y", schema.MaxArguments)), "", true
}}

// envelopes are wrong around right arguments: a refusal with a pointer where it is a call, a protocol error where it is none.
var envelopes = []struct {
	kind     string
	line     string // %[1]s the id, %[2]s the verb, %[3]s the arguments
	pointer  string
	protocol bool
	nameless bool // its id can't be read
}{
	{"arguments in another case", `{"jsonrpc":"2.0","id":%[1]s,"method":"tools/call","params":{"name":"%[2]s","Arguments":%[3]s}}`, "/params/Arguments", false, false},
	{"arguments twice", `{"jsonrpc":"2.0","id":%[1]s,"method":"tools/call","params":{"name":"%[2]s","arguments":%[3]s,"arguments":%[3]s}}`, "/params/arguments", false, false},
	{"params in another case", `{"jsonrpc":"2.0","id":%[1]s,"method":"tools/call","PARAMS":{"name":"%[2]s","arguments":%[3]s}}`, "", true, false},
	{"the method in another case", `{"jsonrpc":"2.0","id":%[1]s,"Method":"tools/call","params":{"name":"%[2]s","arguments":%[3]s}}`, "", true, false},
	{"params as an array", `{"jsonrpc":"2.0","id":%[1]s,"method":"tools/call","params":["%[2]s",%[3]s]}`, "", true, false},
	{"a verb that there is not", `{"jsonrpc":"2.0","id":%[1]s,"method":"tools/call","params":{"name":"%[2]s_x","arguments":%[3]s}}`, "", true, false},
	{"bytes that are no UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":%[1]s,\"method\":\"tools/call\",\"params\":{\"name\":\"%[2]s\",\"arguments\":{\"\xff\xfe\":%[3]s}}}", "", true, true},
	{"a batch", `[{"jsonrpc":"2.0","id":%[1]s,"method":"tools/call","params":{"name":"%[2]s","arguments":%[3]s}}]`, "", true, true},
	{"half a message", `{"jsonrpc":"2.0","id":%[1]s,"method":"tools/call","params":{"name":"%[2]s","arguments":%[3]s}`, "", true, true},
}

// calls makes so many wrong calls, each verb and each kind in turn.
func (g *generator) calls(n int) []wrong {
	out := make([]wrong, n)
	order := g.r.Perm(len(g.verbs))
	for i := range out {
		at := order[i%len(order)]
		out[i] = g.call(i, g.verbs[at], g.inputs[at])
	}
	return out
}

func (g *generator) call(i int, v *schema.Verb, d *declared) wrong {
	id := strconv.Itoa(i)
	right := g.object(d)
	kind := g.r.IntN(len(mutations) + len(envelopes)/3)
	if kind >= len(mutations) {
		e := envelopes[g.r.IntN(len(envelopes))]
		w := wrong{id: id, verb: v.Name, kind: e.kind, pointer: e.pointer, protocol: e.protocol, line: fmt.Sprintf(e.line, id, v.Name, text(right))}
		if e.nameless {
			w.id = "null"
		}
		return w
	}
	if i%250 == 249 {
		return enormous.of(g, id, v, d, right)
	}
	for !mutations[kind].fits(g, d, right) {
		kind = (kind + 1) % len(mutations)
	}
	return mutations[kind].of(g, id, v, d, right)
}

// fits says whether a verb has what a mutation needs.
func (m mutation) fits(g *generator, d *declared, right map[string]any) bool {
	_, _, ok := m.make(g, d, right)
	return ok
}

func (m mutation) of(g *generator, id string, v *schema.Verb, d *declared, right map[string]any) wrong {
	arguments, pointer, _ := m.make(g, d, right)
	return wrong{id: id, verb: v.Name, kind: m.kind, pointer: pointer, line: strings.TrimSuffix(call(id, v.Name, arguments), "\n")}
}

func misspelt(g *generator, d *declared, right map[string]any) (string, string, bool) {
	key, ok := g.one(d.names())
	if !ok {
		return "", "", false
	}
	value := g.value(d.Properties[key])
	at := g.r.IntN(len(key))
	bad := []string{key[:at] + key[at+1:], key + "s", key[:at] + "q" + key[at:], strings.ReplaceAll(key, "_", "")}[g.r.IntN(4)]
	if bad == "" || d.Properties[bad] != nil {
		bad = key + "_qq"
	}
	left := maps.Clone(right)
	delete(left, key)
	return with(left, bad, value), "/" + bad, true
}

func otherCase(g *generator, d *declared, right map[string]any) (string, string, bool) {
	key, ok := g.one(d.names())
	if !ok {
		return "", "", false
	}
	bad := []string{strings.ToUpper(key), strings.ToUpper(key[:1]) + key[1:], camel(key) + "X"}[g.r.IntN(3)]
	left := maps.Clone(right)
	delete(left, key)
	return with(left, bad, g.value(d.Properties[key])), "/" + bad, true
}

func camel(key string) string {
	parts := strings.Split(key, "_")
	for i := 1; i < len(parts); i++ {
		parts[i] = strings.ToUpper(parts[i][:1]) + parts[i][1:]
	}
	return strings.Join(parts, "")
}

func nestedExtra(g *generator, d *declared, right map[string]any) (string, string, bool) {
	key, ok := g.one(g.keys(d, func(p *declared) bool {
		return p.Type == "object" && p.closed() || p.Items != nil && p.Items.Type == "object" && p.Items.closed()
	}))
	if !ok {
		return "", "", false
	}
	p := d.Properties[key]
	if p.Type == "object" {
		inside := g.object(p)
		inside["extra"] = g.anything()
		return with(right, key, inside), "/" + key + "/extra", true
	}
	entry := g.object(p.Items)
	entry["extra"] = g.anything()
	list := []any{}
	for range p.MinItems {
		list = append(list, g.value(p.Items))
	}
	return with(right, key, append(list, entry)), fmt.Sprintf("/%s/%d/extra", key, len(list)), true
}

func wrongType(g *generator, d *declared, right map[string]any) (string, string, bool) {
	key, ok := g.one(g.keys(d, typed))
	if !ok {
		return "", "", false
	}
	return withRaw(right, key, g.notOf(d.Properties[key].Type)), "/" + key, true
}

// wrongTypeInside is wrongType one level down: in an object, or an entry of a list.
func wrongTypeInside(g *generator, d *declared, right map[string]any) (string, string, bool) {
	key, ok := g.one(g.keys(d, func(p *declared) bool {
		return p.Type == "object" && len(g.keys(p, typed)) > 0 || p.Type == "array" && p.Items != nil && typed(p.Items)
	}))
	if !ok {
		return "", "", false
	}
	p := d.Properties[key]
	if p.Type == "array" {
		list := make([]any, p.MinItems+1)
		for i := range list {
			list[i] = g.value(p.Items)
		}
		list[len(list)-1] = json.RawMessage(g.notOf(p.Items.Type))
		return with(right, key, list), fmt.Sprintf("/%s/%d", key, len(list)-1), true
	}
	inner, _ := g.one(g.keys(p, typed))
	inside := g.object(p)
	inside[inner] = json.RawMessage(g.notOf(p.Properties[inner].Type))
	return with(right, key, inside), "/" + key + "/" + inner, true
}

func typed(p *declared) bool { return p.Type != "" }

// notOf is a value of another type than the named.
func (g *generator) notOf(kind string) string {
	all := map[string][]string{
		"string":  {`7`, `true`, `["a"]`, `{"a":1}`, `1.5`},
		"integer": {`"10"`, `1.5`, `true`, `[1]`, `{"a":1}`, `"1"`},
		"number":  {`"1.5"`, `true`, `[1]`, `{"a":1}`},
		"boolean": {`"true"`, `1`, `0`, `[true]`, `{"a":1}`, `"yes"`},
		"array":   {`"a"`, `{"0":"a"}`, `7`, `true`},
		"object":  {`["a"]`, `"{}"`, `7`, `true`, `[]`},
	}[kind]
	return all[g.r.IntN(len(all))]
}

func outOfBounds(g *generator, d *declared, right map[string]any) (string, string, bool) {
	key, ok := g.one(g.keys(d, func(p *declared) bool {
		return p.Enum != nil || p.Format != "" || p.Pattern != "" || p.Minimum != nil || p.Maximum != nil
	}))
	if !ok {
		return "", "", false
	}
	p := d.Properties[key]
	var value any = "no such thing / \u202e at all"
	switch {
	case p.Maximum != nil:
		value = *p.Maximum + 1 + float64(g.r.IntN(1000))
	case p.Minimum != nil:
		value = *p.Minimum - 1 - float64(g.r.IntN(1000))
	}
	return with(right, key, value), "/" + key, true
}

// keys are the declared keys whose declaration fits.
func (g *generator) keys(d *declared, fits func(*declared) bool) []string {
	return slices.DeleteFunc(d.names(), func(key string) bool { return !fits(d.Properties[key]) })
}

func (g *generator) one(of []string) (string, bool) {
	if len(of) == 0 {
		return "", false
	}
	return of[g.r.IntN(len(of))], true
}

func (g *generator) anything() any {
	return []any{nil, true, 7, "text", []any{1}, map[string]any{"a": 1}, -1.5}[g.r.IntN(7)]
}

// object is a right one: what is required, and some of the rest.
func (g *generator) object(d *declared) map[string]any {
	out := map[string]any{}
	for _, key := range d.names() {
		if slices.Contains(d.Required, key) || g.r.IntN(4) == 0 {
			out[key] = g.value(d.Properties[key])
		}
	}
	return out
}

// value is a right one, as far as the schema says.
func (g *generator) value(d *declared) any {
	switch {
	case d == nil:
		return "x"
	case len(d.Enum) > 0:
		return d.Enum[g.r.IntN(len(d.Enum))]
	}
	switch d.Type {
	case "object":
		return g.object(d)
	case "array":
		list := make([]any, d.MinItems+g.r.IntN(2))
		for i := range list {
			list[i] = g.value(d.Items)
		}
		return list
	case "boolean":
		return g.r.IntN(2) == 0
	case "integer", "number":
		if d.Minimum != nil {
			return *d.Minimum
		}
		return 1
	}
	switch d.Format {
	case "uuid":
		return "01890a5d-ac96-774b-bcce-b302099a8057"
	case "ip":
		return "192.0.2.1"
	case "cidr":
		return "192.0.2.0/24"
	}
	return strings.Repeat("a", max(d.MinLength, 1))
}

func text(v any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // values of ours
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// with is an object with one more value, or another.
func with(o map[string]any, key string, value any) string {
	o = maps.Clone(o)
	o[key] = value
	return text(o)
}

func withRaw(o map[string]any, key, raw string) string { return with(o, key, json.RawMessage(raw)) }
