package tools_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/schema"
	"powernode/tools/toolstest"
)

// dependencyWays are the calls that say what a module says of others, with where they say it.
func (s *site) dependencyWays(t *testing.T) map[string]struct {
	pointer string
	call    func(dependencies toolstest.Object) (verb string, args toolstest.Object)
} {
	t.Helper()
	web := s.module(t, "web", nil)
	return map[string]struct {
		pointer string
		call    func(dependencies toolstest.Object) (verb string, args toolstest.Object)
	}{
		"create_module": {"", func(d toolstest.Object) (string, toolstest.Object) {
			return "system_create_module", toolstest.Object{"name": "fresh", "dependencies": d}
		}},
		"update_module": {"", func(d toolstest.Object) (string, toolstest.Object) {
			return "system_update_module", toolstest.Object{"module_id": web, "dependencies": d}
		}},
		"create_module_version": {"/manifest", func(d toolstest.Object) (string, toolstest.Object) {
			return "system_create_module_version", toolstest.Object{"module_id": web, "version": "1", "manifest": toolstest.Object{"dependencies": d}}
		}},
	}
}

func TestADependencyIsAName(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	const nobody = "0198c0de-0000-7000-8000-000000000000"
	for name, way := range s.dependencyWays(t) {
		for _, key := range []string{"requires", "recommends", "conflicts", "provides"} {
			for id, candidates := range map[string][]string{s.server: {"k3s-server"}, nobody: {}} {
				verb, args := way.call(toolstest.Object{key: []string{id}})
				refusal := s.Refused(t, verb, args, schema.InvalidArguments, "dependencies."+key+" must hold names, not ids")
				want := []any{way.pointer + "/dependencies/" + key + "/0", candidates}
				if diff := cmp.Diff(want, []any{refusal.Details["pointer"], refusal.Details["candidates"]}); diff != "" {
					t.Errorf("%s: %s (-want +got):\n%s", name, key, diff)
				}
			}
		}
	}
	web := s.module(t, "other", nil)
	for _, tt := range []struct{ said, pointer string }{
		{"dependencies: {conflicts: [" + s.server + "]}", "/dependencies/conflicts/0"},
		{"dependencies: {requires: [other]}", "/dependencies/requires/0"},
		{"config_schema: {type: 7}", "/config_schema"},
	} {
		got := s.Call(t, "system_validate_module_manifest", toolstest.Object{"module_id": web, "manifest_yaml": tt.said})
		if faults := objects(t, got["validation_errors"]); got["valid"] != false || len(faults) != 1 || faults[0]["pointer"] != tt.pointer {
			t.Errorf("%s: valid %v, %v, want a fault at %s, as system_create_module_version has it", tt.said, got["valid"], faults, tt.pointer)
		}
	}
}

func TestADependencyThatNothingProvidesIsWarnedOf(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for name, way := range s.dependencyWays(t) {
		verb, args := way.call(toolstest.Object{"requires": []string{"later", "k3s-server"}, "recommends": []string{"nice", "k3s-agent"},
			"conflicts": []string{"foe", "k3s-agent"}, "provides": []string{"anything"}})
		warnings := objects(t, s.Call(t, verb, args)["warnings"])
		for code, unknown := range map[string]string{"requirement_unmet": "later", "recommendation_missing": "nice", "conflict_unknown": "foe"} {
			said := slices.IndexFunc(warnings, func(w toolstest.Object) bool { return w["code"] == code })
			if said < 0 || !strings.Contains(warnings[said]["text"].(string), " "+unknown+", ") {
				t.Errorf("%s: no warning %s of %s in %v", name, code, unknown, warnings)
			}
		}
		if all, err := json.Marshal(warnings); err != nil || strings.Contains(string(all), "k3s-") || strings.Contains(string(all), "anything") {
			t.Errorf("%s: warns of what is there: %s (%v)", name, all, err)
		}
	}
}
