package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The toolsets that are whole are listed whole; which verbs they are is held in package schema, against the contract.
func TestToolsListHasEveryVerbOfTheWholeToolsets(t *testing.T) {
	t.Parallel()
	listed := func(args ...string) (names []string, toolsets map[string]int) {
		t.Helper()
		cmd, out := toolsCommand(), &bytes.Buffer{}
		cmd.SetOut(out)
		cmd.SetArgs(append([]string{"list", "--output", "json"}, args...))
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		var answer struct {
			Data struct {
				Count int `json:"count"`
				Verbs []struct {
					Name    string `json:"name"`
					Toolset string `json:"toolset"`
				} `json:"verbs"`
			} `json:"data"`
		}
		if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		toolsets = map[string]int{}
		for _, v := range answer.Data.Verbs {
			names = append(names, v.Name)
			toolsets[v.Toolset]++
		}
		if answer.Data.Count != len(names) {
			t.Errorf("count %d, and %d verbs", answer.Data.Count, len(names))
		}
		return names, toolsets
	}
	all, sizes := listed()
	seen := map[string]bool{}
	for _, name := range all {
		seen[name] = true
	}
	for toolset, want := range map[string]int{"fleet": 32, "templates": 30, "signals": 7, "governance": 11, "providers": 13} {
		names, only := listed("--toolset", toolset)
		if diff := cmp.Diff(map[string]int{toolset: want}, only); diff != "" || sizes[toolset] != want {
			t.Errorf("toolset %s (-want +listed), %d in the whole list:\n%s", toolset, sizes[toolset], diff)
		}
		for _, name := range names {
			if !seen[name] {
				t.Errorf("%s is in its toolset's list and not in the whole one", name)
			}
		}
	}
}
