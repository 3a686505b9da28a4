package schema

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// promise is what the contract says of one verb.
type promise struct {
	Toolset, Permission, Categories, Annotations string
	Default, HumanOnly                           bool
}

// promises reads what the contract says: of each verb that stands, the names that come later with their toolset, and the
// number of verbs in each toolset.
func promises(t *testing.T) (stand map[string]promise, later map[string]string, counts map[string]int) {
	t.Helper()
	stand, later, counts = map[string]promise{}, map[string]string{}, map[string]int{}
	toolset := ""
	for _, line := range lines(t, "testdata/contract.txt") {
		f := strings.Fields(line)
		if strings.HasPrefix(line, "[") {
			n, err := strconv.Atoi(strings.TrimSuffix(f[1], "]"))
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			toolset = strings.TrimPrefix(f[0], "[")
			counts[toolset] = n
			continue
		}
		if f[0] == "later" {
			later[f[1]] = toolset
			continue
		}
		stand[f[0]] = promise{Toolset: toolset, Permission: f[1], Categories: f[2], Annotations: f[3],
			Default: slices.Contains(f[4:], "default"), HumanOnly: slices.Contains(f[4:], "human")}
	}
	return stand, later, counts
}

// lines are a file's lines that say something; a line that begins with "+" goes on with the one before.
func lines(t *testing.T, path string) (out []string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("read what is promised: %v", err)
	}
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "+"):
			out[len(out)-1] += strings.TrimPrefix(line, "+")
		default:
			out = append(out, line)
		}
	}
	return out
}

func declared(t *testing.T) map[string]*Verb {
	t.Helper()
	all, err := Verbs()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*Verb{}
	for _, v := range all {
		out[v.Name] = v
	}
	return out
}

func promised(v *Verb) promise {
	p := promise{Toolset: v.Toolset, Permission: v.Permission, Categories: "-", Annotations: "-", Default: v.Default, HumanOnly: v.HumanOnly}
	if v.Category != "" {
		p.Categories = strings.Join(append([]string{v.Category}, v.Escalates...), ",")
	}
	var notes []string
	if v.Annotations.Destructive {
		notes = append(notes, "de")
	}
	if v.Annotations.ReadOnly {
		notes = append(notes, "ro")
	} else if v.Annotations.Idempotent {
		notes = append(notes, "id")
	}
	if len(notes) > 0 {
		p.Annotations = strings.Join(notes, ",")
	}
	return p
}

// What is listed and what is promised agree: no verb is missing, none is undocumented, and each is what the contract says.
func TestVerbsAreThoseOfTheContract(t *testing.T) {
	t.Parallel()
	stand, later, counts := promises(t)
	verbs := declared(t)
	for name, want := range stand {
		v, there := verbs[name]
		if !there {
			t.Errorf("%s of toolset %s is promised and not declared", name, want.Toolset)
			continue
		}
		if diff := cmp.Diff(want, promised(v)); diff != "" {
			t.Errorf("%s (-contract +declared):\n%s", name, diff)
		}
	}
	for name, v := range verbs {
		_, whole := stand[name]
		if toolset, comes := later[name]; !whole && !comes {
			t.Errorf("%s is declared and no verb of the contract", name)
		} else if !whole && toolset != v.Toolset {
			t.Errorf("%s is of toolset %s, want %s", name, v.Toolset, toolset)
		}
	}
	sizes := map[string]int{}
	for _, p := range stand {
		sizes[p.Toolset]++
	}
	for _, toolset := range later {
		sizes[toolset]++
	}
	if diff := cmp.Diff(counts, sizes); diff != "" {
		t.Errorf("verbs by toolset (-want +got):\n%s", diff)
	}
	for _, whole := range []string{"fleet", "templates", "signals", "governance", "providers"} {
		for name, toolset := range later {
			if toolset == whole {
				t.Errorf("%s of the whole toolset %s is said to come later", name, whole)
			}
		}
	}
}

// The objects of the contract have its keys, in whichever verb's answer they are; that the Go types have the declared keys
// is held for every verb by the tests of package tools.
func TestObjectsHaveTheKeysOfTheContract(t *testing.T) {
	t.Parallel()
	verbs := declared(t)
	seen := 0
	for _, line := range lines(t, "testdata/objects.txt") {
		place, keys, isPlace := strings.Cut(line, ":")
		if !isPlace {
			continue
		}
		seen++
		t.Run(place, func(t *testing.T) {
			name, way, _ := strings.Cut(place, " ")
			v, there := verbs[name]
			if !there {
				t.Fatalf("no verb %s", name)
			}
			at := v.OutputShape()
			for _, key := range strings.Split(way, ".") {
				if at = at.Properties[key]; at == nil {
					t.Fatalf("its answer has no %s", key)
				}
				if at.Items != nil {
					at = at.Items
				}
			}
			want, got := strings.Fields(keys), slices.Clone(at.Names)
			slices.Sort(want)
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("keys (-contract +declared):\n%s", diff)
			}
		})
	}
	if seen < 60 {
		t.Errorf("%d places are held against the contract", seen)
	}
}

// Names that pages and models use for something else are told what is meant, or which verb does it.
func TestAliasesAreThoseOfTheContract(t *testing.T) {
	t.Parallel()
	verbs := declared(t)
	for _, tt := range []struct{ verbs, given, meant, hint string }{
		{"system_create_node", "hostname", "name", ""},
		{"system_create_node", "node_template_id", "template_id", ""},
		{"system_create_node", "metadata", "config", ""},
		{"system_update_instance", "node_template_id template_id", "", "system_update_node"},
		{"system_create_template", "module_assignments modules", "", "system_assign_module_to_template"},
		{"system_assign_module_to_template", "module_name", "module_id", "system_list_modules"},
		{"system_sdwan_create_network", "prefix cidr cidr_64", "", "system_sdwan_create_network"},
		{"system_sdwan_create_network", "pod_subnet_prefix", "", "system_sdwan_update_network"},
		{"system_sdwan_create_network", "routing_mode routing_protocol", "", "system_sdwan_update_network_routing_mode"},
		{"system_sdwan_create_firewall_rule", "action", "firewall_action", ""},
		{"system_sdwan_create_firewall_rule", "selector", "dst_selector", ""},
		{"system_sdwan_create_firewall_rule", "port_range", "port_from port_to", ""},
		{"system_sdwan_failover_virtual_ip", "dry_run", "", "platform_preview"},
		{"kubernetes_list_clusters", "include_decommissioned", "", "kubernetes_list_decommissioned_clusters"},
		{"system_recent_signals recent_events", "kind_prefix", "", "system_watch_signals"},
	} {
		for _, name := range strings.Fields(tt.verbs) {
			for _, given := range strings.Fields(tt.given) {
				i := slices.IndexFunc(verbs[name].Aliases, func(a Alias) bool { return a.Given == given })
				if i < 0 {
					t.Errorf("%s knows no alias %s", name, given)
					continue
				}
				hint := ""
				if a := verbs[name].Aliases[i]; a.Hint != nil {
					hint = a.Hint.Verb
				}
				if meant := strings.Join(verbs[name].Aliases[i].Meant, " "); meant != tt.meant || hint != tt.hint {
					t.Errorf("%s: %s means %q with hint %q, want %q with %q", name, given, meant, hint, tt.meant, tt.hint)
				}
			}
		}
	}
}

func TestToolsetsAreThoseOfTheVerbs(t *testing.T) {
	t.Parallel()
	verbs, err := Verbs()
	if err != nil {
		t.Fatal(err)
	}
	var of []string
	for _, v := range verbs {
		of = append(of, v.Toolset)
	}
	slices.Sort(of)
	if diff := cmp.Diff(slices.Compact(of), Toolsets()); diff != "" {
		t.Errorf("toolsets (-of the verbs +named):\n%s", diff)
	}
}
