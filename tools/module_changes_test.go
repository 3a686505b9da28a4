package tools_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/tools/toolstest"
)

func TestCreateModuleTakesNamesOnceInAnyCase(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	got := s.Call(t, "system_create_module", toolstest.Object{"name": "Web", "variety": "config", "priority": 5, "node_platform_id": nil,
		"dependencies":  toolstest.Object{"provides": []string{"http"}, "requires": []string{"tls"}},
		"config_schema": toolstest.Object{"type": "object", "properties": toolstest.Object{"port": toolstest.Object{"type": "integer"}}, "additionalProperties": false}})
	toolstest.Has(t, toolstest.Object{"module": toolstest.Object{"name": "Web", "variety": "config", "priority": 5.0, "locked": false, "current_version_id": nil,
		"node_platform_id": nil, "dependencies": toolstest.Object{"requires": []any{"tls"}, "recommends": []any{}, "conflicts": []any{}, "provides": []any{"http"}}},
		"hint": toolstest.Object{"verb": "system_create_module_version"}}, got)
	if diff := cmp.Diff([]any{"requirement_unmet"}, codes(got)); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	for _, tt := range []struct {
		name string
		args toolstest.Object
		code schema.Code
		text string
	}{
		{"the name in another case", toolstest.Object{"name": "wEB"}, schema.Conflict, `module name "wEB" is already in use`},
		{"no name", toolstest.Object{"name": " "}, schema.InvalidArguments, "Missing required parameters: name"},
		{"a name that is a path", toolstest.Object{"name": "../ssh"}, schema.InvalidArguments, "usable as a folder's name"},
		{"a platform that is none", toolstest.Object{"name": "x", "node_platform_id": s.server}, schema.NotFound, "platform not found"},
		{"a schema that is none", toolstest.Object{"name": "x", "config_schema": toolstest.Object{"type": "objekt"}}, schema.InvalidArguments, "config_schema is no schema"},
		{"a schema that refers elsewhere", toolstest.Object{"name": "x", "config_schema": toolstest.Object{"$ref": "https://example.org/s.json"}},
			schema.InvalidArguments, "config_schema is no schema"},
		{"itself required", toolstest.Object{"name": "x", "dependencies": toolstest.Object{"requires": []string{"x"}}}, schema.InvalidArguments, "names the module itself"},
		{"a config that breaks the schema", toolstest.Object{"name": "x", "config": toolstest.Object{"b": 1}, "config_schema": toolstest.Object{"type": "object",
			"properties": toolstest.Object{"a": toolstest.Object{"type": "integer"}}, "additionalProperties": false}}, schema.InvalidArguments, "config.b"},
	} {
		t.Run(tt.name, func(t *testing.T) { s.Refused(t, "system_create_module", tt.args, tt.code, tt.text) })
	}
}

func TestUpdateModuleKeepsStoredConfigsValid(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	web := s.module(t, "web", nil)
	template := s.template(t, "a")
	s.join(t, template, web, toolstest.Object{"prt": 80})
	s.apply(t, s.node(t, "n", template), nil)
	strict := toolstest.Object{"type": "object", "properties": toolstest.Object{"port": toolstest.Object{"type": "integer"}}, "additionalProperties": false}
	refusal := s.Refused(t, "system_update_module", toolstest.Object{"module_id": web, "config_schema": strict}, schema.PreconditionFailed,
		"2 stored config(s) of module web break the new config_schema: Undeclared parameters: config.prt (did you mean port?)")
	if n := len(refusal.Details["configs"].([]toolstest.Object)); n != 2 {
		t.Errorf("%d configs are listed, want 2", n)
	}
	s.Call(t, "system_update_template_module", toolstest.Object{"template_id": template, "module_id": web, "config": toolstest.Object{"port": 80}})
	s.Refused(t, "system_update_module", toolstest.Object{"module_id": web, "config_schema": strict}, schema.PreconditionFailed, "1 stored config(s)")
	s.Call(t, "system_apply_template", toolstest.Object{"node_id": at(t, s.Call(t, "system_list_nodes", nil), "nodes").([]any)[0].(toolstest.Object)["id"]})
	got := s.Call(t, "system_update_module", toolstest.Object{"module_id": web, "config_schema": strict, "description": "d"})
	toolstest.Has(t, toolstest.Object{"module": toolstest.Object{"description": "d", "config_schema": strict, "assignment_count": 1.0, "template_count": 1.0}}, got)
	s.Refused(t, "system_update_template_module", toolstest.Object{"template_id": template, "module_id": web, "config": toolstest.Object{"prt": 1}},
		schema.InvalidArguments, "config.prt (did you mean port?)")
	got = s.Call(t, "system_update_module", toolstest.Object{"module_id": web, "config_schema": toolstest.Object{}})
	toolstest.Has(t, toolstest.Object{"module": toolstest.Object{"config_schema": nil}}, got)

	s.Refused(t, "system_update_module", toolstest.Object{"module_id": s.server, "description": "d"}, schema.PreconditionFailed, "module 'k3s-server' is locked")
	s.Refused(t, "system_update_module", toolstest.Object{"module_id": web}, schema.InvalidArguments,
		"nothing to update — pass at least one of description, enabled, public, priority, dependencies, config, config_schema")

	// A disabled module is assigned to nothing new.
	s.Call(t, "system_update_module", toolstest.Object{"module_id": web, "enabled": false})
	s.Refused(t, "system_assign_module_to_template", toolstest.Object{"template_id": s.template(t, "b"), "module_id": web}, schema.PreconditionFailed, "is disabled")
	fresh := s.node(t, "fresh", template)
	dry := s.apply(t, fresh, nil)
	if diff := cmp.Diff([]any{"module_disabled"}, codes(dry)); diff != "" || len(dry["created"].([]any)) != 0 {
		t.Errorf("warnings (-want +got):\n%s\ncreated %v", diff, dry["created"])
	}
}

func TestDeleteModuleInUseIsRefusedBeforeItParks(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	web, template := s.module(t, "web", nil), s.template(t, "a")
	s.Call(t, "system_create_module_version", toolstest.Object{"module_id": web, "version": "1"})
	s.join(t, template, web, nil)
	refusal := s.Refused(t, "system_delete_module", toolstest.Object{"module_id": web}, schema.PreconditionFailed, "module 'web' is in use: 0 assignment(s), 1 template(s)")
	if refusal.Details["template_count"] != 1 {
		t.Errorf("details %v", refusal.Details)
	}
	s.Refused(t, "system_delete_module", toolstest.Object{"module_id": s.agent}, schema.PreconditionFailed, "built in")
	s.Approve(t, s.Parked(t, "system_unassign_module_from_template", toolstest.Object{"template_id": template, "module_id": web}))
	got := s.Approve(t, s.Parked(t, "system_delete_module", toolstest.Object{"module_id": web}))
	toolstest.Has(t, toolstest.Object{"deleted": true, "name": "web", "versions_cascaded": 1.0}, got)
	s.Refused(t, "system_get_module", toolstest.Object{"module_id": web}, schema.NotFound, "module not found")
	for _, kind := range []string{"System::NodeModule", "System::NodeModuleVersion"} {
		if rows := s.Audit(t, kind); rows[len(rows)-1].Action != "deleted" {
			t.Errorf("the last audit row of %s is %s", kind, rows[len(rows)-1].Action)
		}
	}
}

func TestVersionsManifestSpeaksForTheModule(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	person := governance.PersonCaller(s.Person)
	for _, category := range []string{"system.module_version_set_current"} {
		s.SetPolicy(t, category, governance.NotifyAndProceed, governance.Scope{})
	}
	web := s.module(t, "web", nil)
	s.module(t, "tls", nil)
	template := s.template(t, "a")
	s.join(t, template, web, toolstest.Object{"anything": true})
	manifest := toolstest.Object{"dependencies": toolstest.Object{"requires": []string{"tls"}}}
	s.CallAs(t, person, "system_create_module_version", toolstest.Object{"module_id": web, "version": "1", "make_current": true, "manifest": manifest})
	got := s.apply(t, s.node(t, "n", template), toolstest.Object{"dry_run": true})
	var names []any
	for _, item := range objects(t, got["created"]) {
		names = append(names, item["module_name"])
	}
	if diff := cmp.Diff([]any{"tls", "web"}, names); diff != "" {
		t.Errorf("closure (-want +got):\n%s", diff)
	}
	manifest["config_schema"] = toolstest.Object{"type": "object", "properties": toolstest.Object{}, "additionalProperties": false}
	s.RefusedAs(t, person, "system_create_module_version", toolstest.Object{"module_id": web, "version": "2", "make_current": true, "manifest": manifest},
		schema.PreconditionFailed, "1 stored config(s) of module web break the new config_schema")
	// Two modules that would place one service can't be together.
	service := toolstest.Object{"services": []any{toolstest.Object{"name": "edge", "exec": "/usr/bin/edge"}}}
	for _, name := range []string{"one", "two"} {
		m := s.module(t, name, nil)
		s.CallAs(t, person, "system_create_module_version", toolstest.Object{"module_id": m, "version": "1", "make_current": true, "manifest": service})
		if name == "one" {
			s.join(t, template, m, nil)
			continue
		}
		refusal := s.Refused(t, "system_assign_module_to_template", toolstest.Object{"template_id": template, "module_id": m}, schema.PreconditionFailed,
			"it would introduce 1 composition conflict(s)")
		if diff := cmp.Diff([]string{"one and two (both have service edge)"}, refusal.Details["conflicts"]); diff != "" {
			t.Errorf("conflicts (-want +got):\n%s", diff)
		}
	}
}

func TestDiscoverFindsByWords(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.module(t, "nginx", toolstest.Object{"description": "Web server and reverse proxy", "dependencies": toolstest.Object{"provides": []string{"http"}}})
	s.module(t, "vector", toolstest.Object{"description": "Ships logs and metrics", "variety": "config"})
	names := func(got toolstest.Object) (out []any) {
		for _, r := range objects(t, got["results"]) {
			out = append(out, r["name"])
		}
		return out
	}
	got := s.Call(t, "system_discover_modules", `{"intent": "I need a Kubernetes worker"}`)
	first := objects(t, got["results"])[0]
	toolstest.Has(t, toolstest.Object{"name": "k3s-agent", "score": 1.0, "why": "name: kubernetes; name: worker"}, first)
	if diff := cmp.Diff(names(got), names(s.Call(t, "system_discover_modules", `{"intent": "I need a Kubernetes worker"}`))); diff != "" {
		t.Errorf("the same question has two answers:\n%s", diff)
	}
	for intent, want := range map[string]string{"ship my logs": "vector", "HTTP proxy": "nginx"} {
		if got := names(s.Call(t, "system_discover_modules", toolstest.Object{"intent": intent, "top_k": 1})); len(got) != 1 || got[0] != want {
			t.Errorf("%s: found %v, want %s", intent, got, want)
		}
	}
	if got := names(s.Call(t, "system_discover_modules", `{"intent": "logs", "variety": "instance"}`)); len(got) != 0 {
		t.Errorf("found %v of another variety", got)
	}
	if got := names(s.Call(t, "system_discover_modules", `{"intent": "zeppelin"}`)); len(got) != 0 {
		t.Errorf("found %v for a word that nothing has", got)
	}

	workers, off := s.template(t, "prod-workers"), s.template(t, "old-workers")
	s.join(t, workers, s.agent, nil)
	s.Call(t, "system_update_template", toolstest.Object{"template_id": off, "enabled": false})
	got = s.Call(t, "system_discover_templates", `{"intent": "k3s worker"}`)
	if diff := cmp.Diff([]any{"prod-workers"}, names(got)); diff != "" {
		t.Errorf("templates (-want +got):\n%s", diff)
	}
	if why := objects(t, got["results"])[0]["why"].(string); !strings.Contains(why, "module k3s-agent: k3s") {
		t.Errorf("why is %q", why)
	}
	if got := names(s.Call(t, "system_discover_templates", `{"intent": "workers", "include_disabled": true}`)); len(got) != 2 {
		t.Errorf("found %v, want the disabled one too", got)
	}
	other := s.first(t, "system_list_platforms", "platforms", "name", "linux-arm64")
	if got := names(s.Call(t, "system_discover_templates", toolstest.Object{"intent": "workers", "platform_id": other})); len(got) != 0 {
		t.Errorf("found %v of another platform", got)
	}
}

// Scenario 54.
func TestAccountStartsWithTwoPlatformsAndTakesAThird(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	admin := governance.PersonCaller(s.Person)
	toolstest.Has(t, toolstest.Object{"count": 2.0}, s.Call(t, "system_list_platforms", nil))
	arm := s.first(t, "system_list_architectures", "architectures", "name", "arm64", "family", "arm")
	toolstest.Has(t, toolstest.Object{"architecture": toolstest.Object{"name": "arm64", "rpm_name": "aarch64", "is_canonical": true, "enabled": true}},
		s.Call(t, "system_get_architecture", toolstest.Object{"architecture_id": arm}))
	toolstest.Has(t, toolstest.Object{"count": 0.0}, s.Call(t, "system_list_architectures", `{"is_canonical": false}`))
	args := toolstest.Object{"name": "edge", "architecture_id": arm}
	s.Refused(t, "system_create_platform", args, schema.PermissionDenied, "permission denied: system.platforms.manage required")
	got := s.CallAs(t, admin, "system_create_platform", args)
	toolstest.Has(t, toolstest.Object{"platform": toolstest.Object{"name": "edge", "os": "linux", "architecture_id": arm, "enabled": true}}, got)
	toolstest.Has(t, toolstest.Object{"count": 3.0}, s.Call(t, "system_list_platforms", nil))
	s.Call(t, "system_create_template", toolstest.Object{"name": "t", "node_platform_id": at(t, got, "platform", "id")})
	s.RefusedAs(t, admin, "system_create_platform", args, schema.Conflict, `platform name "edge" is already in use`)
	s.RefusedAs(t, admin, "system_create_platform", toolstest.Object{"name": "x", "architecture_id": s.server}, schema.NotFound, "architecture not found")
	s.Refused(t, "system_get_architecture", toolstest.Object{"architecture_id": s.server}, schema.NotFound, "architecture not found")
	if n := len(s.Audit(t, "System::NodePlatform")); n != 1 {
		t.Errorf("%d audit rows, want 1", n)
	}
}
