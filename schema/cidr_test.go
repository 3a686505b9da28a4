package schema

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// rangesIn calls found for each property of an input schema that takes a range of addresses, by its name.
func rangesIn(t *testing.T, raw json.RawMessage, at string, found func(at string, declared map[string]any)) {
	t.Helper()
	var declared map[string]any
	if err := json.Unmarshal(raw, &declared); err != nil {
		t.Fatalf("%s: %v", at, err)
	}
	var walk func(at string, declared map[string]any)
	walk = func(at string, declared map[string]any) {
		name := at[strings.LastIndex(at, "/")+1:]
		says := func(word string) bool { return strings.Contains(name, word) }
		if declared["type"] == "string" && slices.ContainsFunc([]string{"cidr", "prefix", "subnet"}, says) {
			found(at, declared)
		}
		if items, is := declared["items"].(map[string]any); is {
			walk(at, items)
		}
		properties, _ := declared["properties"].(map[string]any)
		for key, p := range properties {
			walk(at+"/"+key, p.(map[string]any))
		}
	}
	walk(at, declared)
}

func TestEveryRangeOfAddressesIsGivenWithoutHostBits(t *testing.T) {
	t.Parallel()
	otherwise := map[string]string{"system_sdwan_create_virtual_ip/cidr": "a /128, which has none, or auto",
		"system_watch_signals/kind_prefix": "the begin of a word"}
	walked := 0
	for name, v := range declared(t) {
		rangesIn(t, v.Input, name, func(at string, declared map[string]any) {
			walked++
			if declared["format"] != "cidr" && otherwise[at] == "" {
				t.Errorf("%s is no cidr to the schema: %v", at, declared)
			}
		})
	}
	if walked < 6 {
		t.Errorf("walked %d ranges", walked)
	}
	for text, fits := range map[string]bool{
		"fd00::/8": true, "FD00:0::/8": true, "10.42.0.0/16": true, "::/0": true, "0.0.0.0/0": true, "fd00::1/128": true, "192.0.2.1/32": true,
		"fd00::1/8": false, "10.42.0.1/16": false, "fd00::/129": false, "fd00::": false, "10.0.0.0/08": false, "::ffff:10.0.0.0/104": false,
		"fd00::%eth0/64": false, "": false,
	} {
		if got := IsCIDR(text); got != fits {
			t.Errorf("%q is a range: %v, want %v", text, got, fits)
		}
	}
}
