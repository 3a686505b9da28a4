package tools

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"powernode/internal/golden"
	"powernode/platform/governance"
	"powernode/schema"
)

// What clients take of a listing (design §12).
const (
	maxVerbName    = 45
	maxDescription = 400
	maxDefaultList = 96
	maxListing     = 64 << 10
)

var toolsets = []string{"fleet", "templates", "sdwan", "kubernetes", "signals", "governance", "pools", "providers"}

// parkedKeys are the keys of a parked answer.
var parkedKeys = []string{"pending", "deferred_operation_id", "action_category", "plan_digest", "expires_at", "message"}

// promised are the verbs that stand here by now; others may come.
var promised = strings.Fields(`
	system_create_node system_update_node system_provision_instance system_get_instance system_update_instance system_terminate_instance
	system_refresh_instance_modules system_create_template system_delete_template system_assign_module_to_template
	system_update_template_module system_list_modules system_sdwan_create_network system_sdwan_update_network_routing_mode
	system_sdwan_delete_network system_sdwan_attach_peer system_sdwan_create_access_grant system_sdwan_create_firewall_rule
	system_sdwan_get_routing_summary system_sdwan_get_virtual_ip system_sdwan_failover_virtual_ip kubernetes_list_clusters
	kubernetes_get_cluster kubernetes_list_nodes kubernetes_get_kubeconfig kubernetes_decommission_cluster recent_events
	system_recent_signals request_confirmation
	system_list_nodes system_get_node system_list_instances system_list_templates system_get_template system_get_module
	system_list_platforms system_list_providers system_get_provider system_list_regions system_list_instance_types
	system_sdwan_list_networks system_sdwan_get_network system_sdwan_list_peers system_sdwan_get_peer system_sdwan_list_firewall_rules
	system_sdwan_get_firewall_rule system_list_tasks system_get_task system_apply_template system_update_module_assignment
	system_list_node_module_assignments system_delete_node system_create_module_version system_sdwan_update_network
	system_sdwan_detach_peer system_sdwan_create_virtual_ip system_sdwan_issue_user_device system_sdwan_get_device_config
	system_sdwan_verify_isolation kubernetes_create_cluster kubernetes_list_decommissioned_clusters platform_whoami platform_preview
	platform_get_operation platform_list_operations system_watch_signals
	system_list_module_versions system_update_template system_clone_template system_compose_preview_template
	system_unassign_module_from_template system_discover_templates system_discover_modules system_plan_rolling_module_upgrade
	system_create_module system_update_module system_delete_module system_set_current_module_version system_promote_module_version
	system_rollback_module_version system_module_diff system_validate_module_manifest system_create_platform system_list_architectures
	system_get_architecture
	system_create_provider system_update_provider system_delete_provider system_list_provider_connections system_get_provider_connection
	system_create_provider_connection system_update_provider_connection system_create_provider_region system_create_provider_instance_type`)

func registered(t *testing.T) *Platform {
	t.Helper()
	p := &Platform{}
	if err := p.Register(); err != nil {
		t.Errorf("verbs that are not whole: %v", err)
	}
	return p
}

func TestEveryVerbIsWhole(t *testing.T) {
	t.Parallel()
	p := registered(t)
	for _, name := range promised {
		if _, there := p.Lookup(name); !there {
			t.Errorf("no verb %s", name)
		}
	}
	if d, there := p.Lookup("platform.platform_whoami"); !there || d.Name() != "platform_whoami" {
		t.Error("a leading platform. is not accepted")
	}
}

func TestEveryDeclarationIsSound(t *testing.T) {
	t.Parallel()
	p := registered(t)
	for _, d := range p.Verbs() {
		t.Run(d.name, func(t *testing.T) {
			v := d.Verb
			if len(v.Name) > maxVerbName {
				t.Errorf("the name has %d characters, at most %d are taken by clients", len(v.Name), maxVerbName)
			}
			if n := len([]rune(v.Description)); n < 40 || n > maxDescription {
				t.Errorf("the description has %d characters, want 40 to %d", n, maxDescription)
			}
			if v.Title == "" || len(v.Title) > 60 {
				t.Errorf("title = %q", v.Title)
			}
			if !slices.Contains(toolsets, v.Toolset) {
				t.Errorf("unknown toolset %q", v.Toolset)
			}
			for _, category := range append(slices.Clone(v.Escalates), v.Category) {
				if _, known := governance.Defaults[category]; !known && category != "" {
					t.Errorf("unknown action category %q", category)
				}
			}
			if _, known := governance.Permissions[v.Permission]; !known {
				t.Errorf("unknown permission %q", v.Permission)
			}
			checkAnnotations(t, d)
			if v.Gated() && d.credential == nil && holdsCredential(v.OutputShape()) {
				t.Error("its kept results hold a credential, and reading one again leaves no audit row")
			}
			checkAliases(t, p, v)
		})
	}
}

var credentialKey = regexp.MustCompile(`^(kubeconfig|bootstrap_url|enrollment|.*(password|secret|private_key|token))$`)

// holdsCredential says whether a result has a key that is called like a credential.
func holdsCredential(s *schema.Shape) bool {
	if s == nil {
		return false
	}
	for name, of := range s.Properties {
		if (of.Type != "integer" && credentialKey.MatchString(name)) || holdsCredential(of) {
			return true
		}
	}
	return holdsCredential(s.Items)
}

func checkAnnotations(t *testing.T, d *Definition) {
	t.Helper()
	v, a := d.Verb, d.Verb.Annotations
	behaviours := 0
	for _, has := range []bool{d.read != nil, d.wait != nil, d.run != nil, d.carry != nil, d.preview != nil, d.call != nil} {
		if has {
			behaviours++
		}
	}
	writes := d.run != nil || d.carry != nil || d.call != nil
	switch {
	case behaviours != 1:
		t.Errorf("it has %d behaviours, want one of read, wait, run, carry, preview, call", behaviours)
	case a.ReadOnly && (a.Destructive || !a.Idempotent):
		t.Error("read only implies idempotent and not destructive")
	case !a.ReadOnly && !writes:
		t.Error("it is not said to be read only, and writes nothing")
	case d.run != nil && !a.ReadOnly && v.Category == "":
		t.Error("a writing verb needs an action category")
	case d.act != nil && d.run == nil:
		t.Error("it acts without an intent")
	}
}

func checkAliases(t *testing.T, p *Platform, v *schema.Verb) {
	t.Helper()
	for _, a := range v.Aliases {
		if slices.Contains(v.Parameters(), a.Given) {
			t.Errorf("alias %s is a parameter", a.Given)
		}
		for _, meant := range a.Meant {
			if !slices.Contains(v.Parameters(), meant) {
				t.Errorf("alias %s means %s, which is no parameter", a.Given, meant)
			}
		}
		if a.Hint != nil {
			if _, there := p.Lookup(a.Hint.Verb); !there {
				t.Errorf("alias %s hints at %s, which is no verb", a.Given, a.Hint.Verb)
			}
		}
	}
}

func TestEverySchemaIsInTheSubsetThatClientsTake(t *testing.T) {
	t.Parallel()
	for _, d := range registered(t).Verbs() {
		t.Run(d.name, func(t *testing.T) {
			lintInput(t, "", decodeSchema(t, d.Verb.Input), true)
			lintOutput(t, "", decodeSchema(t, d.Verb.Output), d.call == nil) // what another verb answers is open
		})
	}
}

func decodeSchema(t *testing.T, raw []byte) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatalf("read the schema: %v", err)
	}
	return m
}

var (
	knownTypes = []string{"object", "array", "string", "integer", "number", "boolean"}
	inputKeys  = strings.Fields(`type description properties required items additionalProperties enum format pattern default minimum
		maximum minLength maxLength minItems maxItems x-null-clears x-refusal x-brief`)
	outputKeys = strings.Fields(`type description properties required items additionalProperties enum anyOf`)
	formats    = []string{"", "uuid", "dns-label", "ip", "cidr"}
)

func lintInput(t *testing.T, at string, s map[string]any, root bool) {
	t.Helper()
	typ := lintNode(t, at, s, inputKeys)
	if description, _ := s["description"].(string); !root && strings.TrimSpace(description) == "" {
		t.Errorf("input%s has no description", at)
	}
	if format, _ := s["format"].(string); !slices.Contains(formats, format) {
		t.Errorf("input%s has the unknown format %q", at, format)
	}
	if root && (typ != "object" || s["additionalProperties"] != false) {
		t.Error("the input is no closed object")
	}
	each(t, at, s, typ, lintInput)
}

func lintOutput(t *testing.T, at string, s map[string]any, root bool) {
	t.Helper()
	if anyOf, absent := s["anyOf"].([]any); absent && !root {
		if len(anyOf) != 2 || len(s) > 2 {
			t.Errorf("output%s: anyOf must be a type and null, alone", at)
			return
		}
		s, _ = anyOf[0].(map[string]any)
	}
	typ := lintNode(t, at, s, outputKeys)
	if root && (typ != "object" || s["additionalProperties"] != false) {
		t.Error("the output is no closed object")
	}
	each(t, at, s, typ, lintOutput)
}

func lintNode(t *testing.T, at string, s map[string]any, keys []string) string {
	t.Helper()
	for key := range s {
		if !slices.Contains(keys, key) {
			t.Errorf("%s uses %s, which not every client takes", at, key)
		}
	}
	typ, _ := s["type"].(string)
	if !slices.Contains(knownTypes, typ) {
		t.Errorf("%s has type %v", at, s["type"])
	}
	if _, said := s["additionalProperties"]; typ == "object" && !said {
		t.Errorf("%s is neither closed nor declared free-form", at)
	}
	if _, has := s["items"]; typ == "array" && !has {
		t.Errorf("%s has no items", at)
	}
	return typ
}

func each(t *testing.T, at string, s map[string]any, typ string, lint func(*testing.T, string, map[string]any, bool)) {
	t.Helper()
	properties, _ := s["properties"].(map[string]any)
	if typ == "object" && at == "" && properties == nil {
		t.Error("properties are missing; some clients need them even when empty")
	}
	for name, child := range properties {
		lint(t, at+"/"+name, child.(map[string]any), false)
	}
	for _, name := range requiredOf(s) {
		if _, there := properties[name]; !there {
			t.Errorf("%s requires %s, which it does not declare", at, name)
		}
	}
	if items, ok := s["items"].(map[string]any); ok {
		if _, described := items["description"]; !described {
			items = maps.Clone(items)
			items["description"] = "an entry"
		}
		lint(t, at+"/[]", items, false)
	}
}

func requiredOf(s map[string]any) []string {
	var out []string
	list, _ := s["required"].([]any)
	for _, name := range list {
		out = append(out, fmt.Sprint(name))
	}
	return out
}

func TestArgumentTypesFitTheSchemas(t *testing.T) {
	t.Parallel()
	for _, d := range registered(t).Verbs() {
		t.Run(d.name, func(t *testing.T) {
			changes := strings.Contains(d.name, "_update_") // there an empty text is a value: it clears
			fitArguments(t, "", d.arguments, d.Verb.InputShape(), decodeSchema(t, d.Verb.Input), changes)
		})
	}
}

// fitArguments holds a struct against a closed object: the same names, and types in which absent, zero and null can be
// told apart where the schema tells them apart.
func fitArguments(t *testing.T, at string, typ reflect.Type, s *schema.Shape, raw map[string]any, changes bool) {
	t.Helper()
	fields := fieldsOf(t, at, typ)
	sameNames(t, at, fields, s.Names)
	for name, f := range fields {
		p, declared := s.Properties[name]
		if !declared {
			continue
		}
		here := at + "/" + name
		inner, optional, nullable := unwrap(f.Type)
		plain := s.Required[name] || p.HasDefault
		switch {
		case p.Nullable != nullable:
			t.Errorf("%s: null clears is %t in the schema, and the Go type is %s", here, p.Nullable, f.Type)
		case plain && optional && !nullable && f.Type.Kind() == reflect.Pointer:
			t.Errorf("%s is always there, and %s is a pointer", here, f.Type)
		case !plain && !optional && !zeroIsAbsent(f.Type, property(raw, name), changes):
			t.Errorf("%s may be absent, and %s can't say so", here, f.Type)
		}
		fitType(t, here, inner, p, func(t *testing.T, at string, typ reflect.Type, s *schema.Shape) {
			fitArguments(t, at, typ, s, nestedSchema(property(raw, name)), changes)
		})
	}
}

// zeroIsAbsent says whether a plain type can stand for a parameter that may be absent: its zero is no value of it, or
// an empty text means the same as none.
func zeroIsAbsent(typ reflect.Type, raw map[string]any, changes bool) bool {
	number := func(key string) float64 { f, _ := raw[key].(float64); return f }
	switch {
	case typ.Kind() == reflect.String:
		return !changes || number("minLength") >= 1 || raw["enum"] != nil || raw["format"] != nil || raw["pattern"] != nil
	case typ.Kind() >= reflect.Int && typ.Kind() <= reflect.Uint64:
		return number("minimum") >= 1
	}
	return false
}

func property(raw map[string]any, name string) map[string]any {
	properties, _ := raw["properties"].(map[string]any)
	p, _ := properties[name].(map[string]any)
	return p
}

// nestedSchema is the object inside an array, or the object itself.
func nestedSchema(raw map[string]any) map[string]any {
	if items, ok := raw["items"].(map[string]any); ok {
		return items
	}
	return raw
}

func TestResultTypesFitTheSchemas(t *testing.T) {
	t.Parallel()
	for _, d := range registered(t).Verbs() {
		t.Run(d.name, func(t *testing.T) {
			s := *d.Verb.OutputShape()
			if d.Verb.Gated() {
				if len(s.Required) > 0 {
					t.Error("a verb that can park requires keys of its result")
				}
				own := fieldsOf(t, "", d.result)
				for _, key := range parkedKeys {
					if !slices.Contains(s.Names, key) {
						t.Errorf("the key %s of a parked answer is not declared", key)
					}
				}
				s.Names = slices.DeleteFunc(slices.Clone(s.Names), func(name string) bool {
					_, result := own[name]
					return slices.Contains(parkedKeys, name) && !result
				})
			}
			if d.run != nil && !d.Verb.Annotations.ReadOnly {
				if _, ok := reflect.New(d.result).Interface().(interface{ written() *Written }); !ok {
					t.Error("the result of a mutating verb embeds Written")
				}
			}
			fitResult(t, "", d.result, &s)
		})
	}
}

func fitResult(t *testing.T, at string, typ reflect.Type, s *schema.Shape) {
	t.Helper()
	fields := fieldsOf(t, at, typ)
	sameNames(t, at, fields, s.Names)
	for name, f := range fields {
		p, declared := s.Properties[name]
		if !declared {
			continue
		}
		here := at + "/" + name
		if strings.Contains(f.Tag.Get("json"), "omitempty") {
			t.Errorf("%s: a declared key is always there", here)
		}
		inner, _, _ := unwrap(f.Type)
		absent := f.Type.Kind() == reflect.Pointer
		open := f.Type == reflect.TypeFor[json.RawMessage]() || f.Type.Kind() == reflect.Interface || f.Type.Kind() == reflect.Map
		if !open && absent != p.Nullable {
			t.Errorf("%s: null is %t in the schema, and the Go type is %s", here, p.Nullable, f.Type)
		}
		fitType(t, here, inner, p, fitResult)
	}
}

// fitType holds a Go type against a schema's type.
func fitType(t *testing.T, at string, typ reflect.Type, s *schema.Shape, nested func(*testing.T, string, reflect.Type, *schema.Shape)) {
	t.Helper()
	if typ == reflect.TypeFor[json.RawMessage]() || typ.Kind() == reflect.Interface || s.Type == "" {
		return
	}
	text := reflect.TypeFor[interface{ MarshalText() ([]byte, error) }]()
	object := reflect.TypeFor[interface{ MarshalJSON() ([]byte, error) }]()
	ok := false
	switch s.Type {
	case "string":
		ok = typ.Kind() == reflect.String || typ.Implements(text) || typ.Implements(object)
	case "integer":
		ok = typ.Kind() >= reflect.Int && typ.Kind() <= reflect.Uint64
	case "number":
		ok = typ.Kind() == reflect.Float64 || typ.Kind() >= reflect.Int && typ.Kind() <= reflect.Uint64
	case "boolean":
		ok = typ.Kind() == reflect.Bool
	case "array":
		if ok = typ.Kind() == reflect.Slice; ok && s.Items != nil {
			inner, _, _ := unwrap(typ.Elem())
			fitType(t, at+"/[]", inner, s.Items, nested)
		}
	case "object":
		ok = typ.Kind() == reflect.Map && s.FreeForm || typ.Kind() == reflect.Struct
		if typ.Kind() == reflect.Struct && !s.FreeForm {
			nested(t, at, typ, s)
		}
	}
	if !ok {
		t.Errorf("%s is %s in the schema and %s in Go", at, s.Type, typ)
	}
}

// unwrap takes a pointer or a schema.Nullable off a type, and says whether the type can tell absent from zero.
func unwrap(typ reflect.Type) (inner reflect.Type, optional, nullable bool) {
	if typ.Kind() == reflect.Struct && typ.PkgPath() == "powernode/schema" && strings.HasPrefix(typ.Name(), "Nullable[") {
		field, _ := typ.FieldByName("Value")
		return field.Type.Elem(), true, true
	}
	switch {
	case typ.Kind() == reflect.Pointer:
		return typ.Elem(), true, false
	case typ.Kind() == reflect.Slice, typ.Kind() == reflect.Map:
		return typ, true, false
	}
	return typ, false, false
}

// fieldsOf are a struct's fields by their JSON names, those of embedded structs among them.
func fieldsOf(t *testing.T, at string, typ reflect.Type) map[string]reflect.StructField {
	t.Helper()
	out := map[string]reflect.StructField{}
	if typ.Kind() != reflect.Struct {
		t.Errorf("%s: %s is no struct", at, typ)
		return out
	}
	for _, f := range reflect.VisibleFields(typ) {
		tag, tagged := f.Tag.Lookup("json")
		if f.Anonymous && !tagged {
			continue
		}
		name, _, _ := strings.Cut(tag, ",")
		switch {
		case !f.IsExported():
		case name == "":
			t.Errorf("%s: field %s of %s has no JSON name", at, f.Name, typ)
		case name != "-":
			out[name] = f
		}
	}
	return out
}

func sameNames(t *testing.T, at string, fields map[string]reflect.StructField, names []string) {
	t.Helper()
	for _, name := range names {
		if _, there := fields[name]; !there {
			t.Errorf("%s/%s is declared, and no field has it", at, name)
		}
	}
	for name := range fields {
		if !slices.Contains(names, name) {
			t.Errorf("%s/%s is a field, and not declared", at, name)
		}
	}
}

// listing is a verb as a client's list has it.
type listing struct {
	Name        string             `json:"name"`
	Title       string             `json:"title"`
	Description string             `json:"description"`
	Annotations schema.Annotations `json:"annotations"`
	Input       json.RawMessage    `json:"input"`
	Output      json.RawMessage    `json:"output,omitempty"`
}

func TestDefaultListFitsTheBudget(t *testing.T) {
	t.Parallel()
	var listed []listing
	for _, d := range registered(t).Verbs() {
		v := d.Verb
		if v.Default {
			listed = append(listed, listing{v.Name, v.Title, v.Description, v.Annotations, v.Input, nil})
		}
	}
	if len(listed) > maxDefaultList {
		t.Errorf("%d verbs are in the default list, at most %d", len(listed), maxDefaultList)
	}
	b, err := json.Marshal(listed) // compacts the schemas
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d verbs, %d bytes without output schemas", len(listed), len(b))
	if len(b) > maxListing {
		t.Errorf("the default list has %d bytes, at most %d", len(b), maxListing)
	}
}

func TestListingsAreGolden(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, d := range registered(t).Verbs() {
		b, err := json.Marshal(d.Verb)
		if err != nil {
			t.Fatalf("encode %s: %v", d.name, err)
		}
		var pretty bytes.Buffer
		if err := json.Indent(&pretty, b, "", "  "); err != nil {
			t.Fatalf("indent %s: %v", d.name, err)
		}
		pretty.WriteByte('\n')
		names[d.name+".golden"] = true
		golden.Equal(t, "verbs/"+d.name+".golden", pretty.Bytes())
	}
	golden.Only(t, "verbs", names)
}
