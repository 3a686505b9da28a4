package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
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
		{"hyphens for underscores", []string{"system_get_instance", "--instance-id", "x"}, `{"instance_id":"x"}`},
		{"an integer", []string{"recent_events", "--limit", "5"}, `{"limit":5}`},
		{"a negative integer", []string{"recent_events", "--limit", "-5"}, `{"limit":-5}`},
		{"what is no integer goes on as it is", []string{"recent_events", "--limit", "5x"}, `{"limit":"5x"}`},
		{"what no parameter has the name of goes on as text", []string{"recent_events", "--mit", "5"}, `{"mit":"5"}`},
		{"an object", []string{"system_create_node", "--config", `{"a": 1}`}, `{"config":{"a":1}}`},
		{"a switch", []string{"system_sdwan_attach_peer", "--publicly_reachable", "--network_id", "x"}, `{"publicly_reachable":true,"network_id":"x"}`},
		{"a switch with a value", []string{"system_sdwan_attach_peer", "--publicly_reachable", "false"}, `{"publicly_reachable":false}`},
		{"the state directory is no argument", []string{"--state-dir", "/x", "platform_whoami"}, `{}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := parseCall(tt.args)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, string(got.arguments)); diff != "" {
				t.Errorf("arguments (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCommandLinesOfNoCallAreRefused(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"no verb":                   {},
		"two verbs":                 {"platform_whoami", "recent_events"},
		"a flag twice":              {"recent_events", "--limit", "1", "--limit", "2"},
		"JSON beside a flag":        {"recent_events", "--json", "{}", "--limit", "2"},
		"JSON without an object":    {"recent_events", "--json"},
		"no folder after state-dir": {"recent_events", "--state-dir"},
	} {
		if got, err := parseCall(args); err == nil {
			t.Errorf("%s: taken as %+v", name, got)
		}
	}
}
