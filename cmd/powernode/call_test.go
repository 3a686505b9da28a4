package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/schema"
)

func TestFlagsBecomeArguments(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"a text", []string{"system_sdwan_create_network", "--name", "a"}, `{"name":"a"}`},
		{"a text that looks like a number", []string{"system_sdwan_create_network", "--name", "7"}, `{"name":"7"}`},
		{"with an equals sign", []string{"system_sdwan_create_network", "--name=a=b"}, `{"name":"a=b"}`},
		{"an empty text", []string{"system_update_node", "--description", ""}, `{"description":""}`},
		{"hyphens for underscores", []string{"system_get_instance", "--instance-id", "x"}, `{"instance_id":"x"}`},
		{"an integer", []string{"recent_events", "--limit", "5"}, `{"limit":5}`},
		{"a negative integer", []string{"recent_events", "--limit", "-5"}, `{"limit":-5}`},
		{"what is no integer goes on as it is", []string{"recent_events", "--limit", "5x"}, `{"limit":"5x"}`},
		{"what no parameter has the name of goes on as text", []string{"recent_events", "--mit", "5"}, `{"mit":"5"}`},
		{"an object", []string{"system_create_node", "--config", `{"a": 1}`}, `{"config":{"a":1}}`},
		{"a key of an object", []string{"system_sdwan_create_network", "--options.mtu", "1380"}, `{"options":{"mtu":1380}}`},
		{"several keys of an object", []string{"system_sdwan_create_firewall_rule", "--src-selector.cidr", "::/0", "--name", "x", "--src_selector.all", "true"},
			`{"src_selector":{"cidr":"::/0","all":true},"name":"x"}`},
		{"a key of an object in another spelling", []string{"system_provision_instance", "--options.admin-user", "root"}, `{"options":{"admin_user":"root"}}`},
		{"a list inside an object", []string{"system_provision_instance", "--options.ssh_key_ids", "1", "--options.ssh_key_ids", "2"},
			`{"options":{"ssh_key_ids":["1","2"]}}`},
		{"a key of a free-form object is as it was written", []string{"system_create_node", "--config.my-key", "7", "--config.a.b", "c"},
			`{"config":{"my-key":"7","a":{"b":"c"}}}`},
		{"a key of nothing declared", []string{"system_sdwan_create_network", "--optons.mtu", "1"}, `{"optons":{"mtu":"1"}}`},
		{"a list by repetition", []string{"system_sdwan_create_access_grant", "--tags", "a", "--tags", "b"}, `{"tags":["a","b"]}`},
		{"a list as JSON", []string{"system_sdwan_create_access_grant", "--tags", `["a", "b"]`}, `{"tags":["a","b"]}`},
		{"an empty list", []string{"system_sdwan_create_access_grant", "--tags", `[]`}, `{"tags":[]}`},
		{"null where it clears", []string{"system_update_node", "--worker_id", "null"}, `{"worker_id":null}`},
		{"null where it doesn't", []string{"system_update_node", "--name", "null"}, `{"name":"null"}`},
		{"a switch", []string{"system_sdwan_attach_peer", "--publicly_reachable", "--network_id", "x"}, `{"publicly_reachable":true,"network_id":"x"}`},
		{"a switch with a value", []string{"system_sdwan_attach_peer", "--publicly_reachable", "false"}, `{"publicly_reachable":false}`},
		{"a text that begins with an at", []string{"system_sdwan_create_network", "--description", "@@ops"}, `{"description":"@ops"}`},
		{"a text from stdin", []string{"system_sdwan_create_network", "--description", "@-"}, `{"description":"{\"from\": \"stdin\"}"}`},
		{"an object from stdin", []string{"system_create_node", "--config", "@-"}, `{"config":{"from":"stdin"}}`},
		{"a value of no parameter is no file", []string{"recent_events", "--mit", "@x"}, `{"mit":"@x"}`},
		{"all from stdin", []string{"system_create_node", "--json", "-"}, `{"from": "stdin"}`},
		{"the state directory is no argument", []string{"--state-dir", "/x", "platform_whoami"}, `{}`},
		{"nor is the output", []string{"platform_whoami", "--output", "table"}, `{}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := parseCall(tt.args, strings.NewReader(`{"from": "stdin"}`))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, string(got.arguments)); diff != "" {
				t.Errorf("arguments (-want +got):\n%s", diff)
			}
		})
	}
}

func TestArgumentsComeFromFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.json")
	if err := os.WriteFile(path, []byte(`{"a": 1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		`{"config":{"a":1}}`:                  {"system_create_node", "--config", "@" + path},
		`{"description":"{\"a\": 1}"}`:        {"system_create_node", "--description", "@" + path},
		`{"a": 1}`:                            {"system_create_node", "--json", "@" + path},
		`{"tags":["{\"a\": 1}"]}`:             {"system_sdwan_create_access_grant", "--tags", "@" + path},
		`{"options":{"mtu":"@` + path + `"}}`: {"system_sdwan_create_network", "--options.mtu", "@" + path}, // an integer is in no file
	} {
		got, err := parseCall(args, strings.NewReader(""))
		if err != nil || string(got.arguments) != want {
			t.Errorf("%q: %s, %v, want %s", args, got.arguments, err, want)
		}
	}
}

func TestCommandLinesOfNoCallAreRefused(t *testing.T) {
	t.Parallel()
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, make([]byte, schema.MaxArguments+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"no verb":                   {},
		"two verbs":                 {"platform_whoami", "recent_events"},
		"a flag twice":              {"recent_events", "--limit", "1", "--limit", "2"},
		"a key of an object twice":  {"system_sdwan_create_network", "--options.mtu", "1", "--options.mtu", "2"},
		"an object and its key":     {"system_sdwan_create_network", "--options", "{}", "--options.mtu", "2"},
		"a key and its object":      {"system_sdwan_create_network", "--options.mtu", "2", "--options", "{}"},
		"a text without a value":    {"system_sdwan_create_network", "--name"},
		"bytes that are no UTF-8":   {"system_sdwan_create_network", "--name", "a\xff"},
		"a file that is not there":  {"system_sdwan_create_network", "--name", "@/none"},
		"a file that is too large":  {"system_sdwan_create_network", "--name", "@" + large},
		"JSON beside a flag":        {"recent_events", "--json", "{}", "--limit", "2"},
		"JSON without an object":    {"recent_events", "--json"},
		"JSON that is empty":        {"recent_events", "--json", ""},
		"JSON of an empty stdin":    {"recent_events", "--json", "-"},
		"no folder after state-dir": {"recent_events", "--state-dir"},
		"an output that is none":    {"recent_events", "--output", "yaml"},
		"an output without a value": {"recent_events", "--output"},
	} {
		if got, err := parseCall(args, strings.NewReader("")); err == nil {
			t.Errorf("%s: taken as %+v", name, got)
		}
	}
}

// The command's own flags would hide a parameter of the same name.
func TestNoParameterHasTheNameOfAFlagOfCall(t *testing.T) {
	t.Parallel()
	verbs, err := schema.Verbs()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range verbs {
		for _, name := range v.Parameters() {
			if slices.Contains(ownFlags, name) || slices.Contains(ownFlags, strings.ReplaceAll(name, "_", "-")) {
				t.Errorf("%s has the parameter %s", v.Name, name)
			}
		}
	}
}

// Whatever stands on a command line: it is refused, or makes one JSON object whose values can be told from the flags.
func FuzzCommandLineOfCall(f *testing.F) {
	for _, seed := range []string{"system_create_node\x00--name\x00a", "system_sdwan_create_network\x00--options.mtu\x001380",
		"system_create_node\x00--config\x00{\"a\":[1]}", "system_sdwan_create_access_grant\x00--tags\x00[]\x00--tags\x00b",
		"x\x00--a.b.c\x00--a.b\x00", "--json\x00-\x00x", "system_update_node\x00--worker_id=null", "system_create_node\x00--.\x00--..=\x00--=\x00",
		"system_create_node\x00--config.a\x00@@\x00--config\x00\xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if strings.Contains(line, "@") && !strings.Contains(line, "@@") {
			return // would read files
		}
		in, err := parseCall(strings.Split(line, "\x00"), strings.NewReader(`{"a": 1}`))
		if err != nil || in.help {
			return
		}
		if slices.Contains(strings.Split(line, "\x00"), "--json") || strings.Contains(line, "--json=") {
			return // goes on as it is
		}
		var got map[string]any
		if err := json.Unmarshal(in.arguments, &got); err != nil {
			t.Fatalf("%q became %q: %v", line, in.arguments, err)
		}
		if v := verbNamed(in.verb); v != nil {
			if _, err := v.Validate(in.arguments); schema.CodeOf(err) == schema.Internal {
				t.Fatalf("%q became %q: %v", line, in.arguments, err)
			}
		}
	})
}
