package tools_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/sdwan"
	"powernode/tools/toolstest"
)

// version makes a version as the caller, without artefacts.
func (s *site) version(t testing.TB, module, name string, manifest toolstest.Object) string {
	t.Helper()
	args := toolstest.Object{"module_id": module, "version": name}
	if manifest != nil {
		args["manifest"] = manifest
	}
	return at(t, s.Call(t, "system_create_module_version", args), "version", "id").(string)
}

// served is the version of a module that an instance's document has, "" for none.
func served(d sdwan.Document, module string) string {
	for _, m := range d.Modules {
		if m.Name == module {
			return m.Version
		}
	}
	return ""
}

// carried makes a machine that carries a module.
func (s *site) carried(t testing.TB, name, module string) string {
	t.Helper()
	template := s.template(t, name)
	s.join(t, template, module, nil)
	return s.provision(t, s.node(t, name, template))
}

func (s *site) promote(t testing.TB, version string, states ...string) (got toolstest.Object) {
	t.Helper()
	for _, state := range states {
		got = s.Approve(t, s.Parked(t, "system_promote_module_version", toolstest.Object{"module_version_id": version, "target_state": state}))
	}
	return got
}

func TestVersionIsPromotedOneStepAtATime(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	web := s.module(t, "web", nil)
	id := s.carried(t, "n", web)
	one := s.version(t, web, "1", nil)
	refusal := s.Refused(t, "system_promote_module_version", toolstest.Object{"module_version_id": one, "target_state": "live"}, schema.PreconditionFailed,
		"cannot promote from built to live")
	if diff := cmp.Diff([]string{"staging", "retired"}, refusal.Details["allowed"]); diff != "" {
		t.Errorf("allowed (-want +got):\n%s", diff)
	}
	got := s.promote(t, one, "staging", "blessed")
	toolstest.Has(t, toolstest.Object{"promoted": true, "version": toolstest.Object{"promotion_state": "blessed", "servable": false}}, got)
	got = s.promote(t, one, "live")
	toolstest.Has(t, toolstest.Object{"version": toolstest.Object{"promotion_state": "live", "servable": true, "current": false},
		"hint": toolstest.Object{"verb": "system_set_current_module_version"}}, got)
	if v := served(s.document(t, id), "web"); v != "" {
		t.Errorf("version %s is served although no pointer names it", v)
	}
	s.SetPolicy(t, "system.module_version_set_current", governance.NotifyAndProceed, governance.Scope{})
	got = s.Call(t, "system_set_current_module_version", toolstest.Object{"module_id": web, "module_version_id": one}) // it was released
	toolstest.Has(t, toolstest.Object{"affected_instance_count": 1.0, "previous_version_id": nil, "module": toolstest.Object{"current_version": "1"}}, got)
	if v := served(s.document(t, id), "web"); v != "1" {
		t.Errorf("version %q is served, want 1", v)
	}
	refusal = s.Refused(t, "system_promote_module_version", toolstest.Object{"module_version_id": one, "target_state": "retired"}, schema.PreconditionFailed,
		"version 1 is the current one of module web")
	if refusal.Hint.Verb != "system_set_current_module_version" {
		t.Errorf("hint %v", refusal.Hint)
	}
	two := s.version(t, web, "2", nil)
	s.promote(t, two, "retired")
	s.Refused(t, "system_promote_module_version", toolstest.Object{"module_version_id": two, "target_state": "staging"}, schema.PreconditionFailed, "cannot promote from retired to staging")
	s.Refused(t, "system_set_current_module_version", toolstest.Object{"module_id": web, "module_version_id": two}, schema.PreconditionFailed, "version 2 of module web is retired")
}

func TestApprovalOfThePointerReleasesTheVersion(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	web := s.module(t, "web", nil)
	id := s.carried(t, "n", web)
	one := s.version(t, web, "1", nil)
	args := toolstest.Object{"module_id": web, "module_version_id": one}
	got := s.Approve(t, s.Parked(t, "system_set_current_module_version", args))
	toolstest.Has(t, toolstest.Object{"version": toolstest.Object{"promotion_state": "live", "servable": true, "current": true}, "affected_instance_count": 1.0}, got)
	if v := served(s.document(t, id), "web"); v != "1" {
		t.Errorf("version %q is served, want 1", v)
	}
	two := s.version(t, web, "2", nil)
	got = s.Approve(t, s.Parked(t, "system_set_current_module_version", toolstest.Object{"module_id": web, "module_version_id": two}))
	toolstest.Has(t, toolstest.Object{"previous_version_id": one}, got)
	signals := s.Signals(t, "system.module_version_changed")
	toolstest.Has(t, toolstest.Object{"from": "1", "to": "2", "affected_instance_count": 1.0, "module_id": web}, signals[0].Payload)
	s.Refused(t, "system_set_current_module_version", toolstest.Object{"module_id": s.server, "module_version_id": two}, schema.InvalidArguments, "a version of another module")
	s.Refused(t, "system_set_current_module_version", toolstest.Object{"module_id": web, "module_version_id": web}, schema.NotFound, "module version not found")
}

// Loosening a policy releases nothing: without a person's word, what an assistant made is served nowhere.
func TestLoosePolicyReleasesNoVersion(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	web := s.module(t, "web", nil)
	id := s.carried(t, "n", web)
	one := s.version(t, web, "1", nil)
	for _, category := range []string{"system.module_version_set_current", "release.promote", "release.rollback"} {
		s.SetPolicy(t, category, governance.NotifyAndProceed, governance.Scope{})
	}
	const text = "version 1 of module web is not released"
	refusal := s.Refused(t, "system_set_current_module_version", toolstest.Object{"module_id": web, "module_version_id": one}, schema.PreconditionFailed, text)
	if refusal.Hint.Verb != "system_promote_module_version" {
		t.Errorf("hint %v, want system_promote_module_version", refusal.Hint)
	}
	s.Refused(t, "system_rollback_module_version", toolstest.Object{"module_id": web, "version_id": one}, schema.PreconditionFailed, text)
	s.Refused(t, "system_create_module_version", toolstest.Object{"module_id": web, "version": "2", "make_current": true}, schema.PreconditionFailed,
		"version 2 of module web is not released")
	for _, state := range []string{"staging", "blessed"} {
		s.Call(t, "system_promote_module_version", toolstest.Object{"module_version_id": one, "target_state": state})
	}
	s.Refused(t, "system_promote_module_version", toolstest.Object{"module_version_id": one, "target_state": "live"}, schema.PreconditionFailed, text)
	if v := served(s.document(t, id), "web"); v != "" {
		t.Errorf("version %s is served", v)
	}
	got := s.CallAs(t, governance.PersonCaller(s.Person), "system_promote_module_version", toolstest.Object{"module_version_id": one, "target_state": "live"})
	toolstest.Has(t, toolstest.Object{"version": toolstest.Object{"servable": true}}, got)
	s.Call(t, "system_set_current_module_version", toolstest.Object{"module_id": web, "module_version_id": one})
	if v := served(s.document(t, id), "web"); v != "1" {
		t.Errorf("version %q is served, want 1", v)
	}
}

func TestRollbackGoesBackAlongTheLine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, category := range []string{"system.module_version_set_current", "release.rollback"} {
		s.SetPolicy(t, category, governance.NotifyAndProceed, governance.Scope{})
	}
	person := governance.PersonCaller(s.Person)
	web := s.module(t, "web", nil)
	id := s.carried(t, "n", web)
	s.Refused(t, "system_rollback_module_version", toolstest.Object{"module_id": web}, schema.PreconditionFailed, "no earlier version")
	ids := map[string]string{}
	current := func(name string) {
		t.Helper()
		if ids[name] == "" {
			ids[name] = at(t, s.CallAs(t, person, "system_create_module_version", toolstest.Object{"module_id": web, "version": name}), "version", "id").(string)
		}
		s.CallAs(t, person, "system_set_current_module_version", toolstest.Object{"module_id": web, "module_version_id": ids[name]})
	}
	back := func(want, previous string) {
		t.Helper()
		got := s.Call(t, "system_rollback_module_version", toolstest.Object{"module_id": web, "reason": "it fails"})
		toolstest.Has(t, toolstest.Object{"previous_version_id": ids[previous], "module": toolstest.Object{"current_version": want},
			"version": toolstest.Object{"version": want, "promotion_state": "live", "current": true}}, got)
		if v := served(s.document(t, id), "web"); v != want {
			t.Errorf("version %q is served, want %s", v, want)
		}
	}
	for _, name := range []string{"1", "2", "3"} {
		current(name)
	}
	back("2", "3")
	back("1", "2")
	s.Refused(t, "system_rollback_module_version", toolstest.Object{"module_id": web}, schema.PreconditionFailed, "no earlier version")
	current("3") // from here on the line is 1, 3
	back("1", "3")
	if rows := s.Audit(t, "System::NodeModule"); rows[len(rows)-1].New["reason"] != "it fails" {
		t.Errorf("the audit row says %v", rows[len(rows)-1].New)
	}
	got := s.Call(t, "system_rollback_module_version", toolstest.Object{"module_id": web, "version_id": ids["2"]})
	toolstest.Has(t, toolstest.Object{"module": toolstest.Object{"current_version": "2"}}, got)
	s.Refused(t, "system_rollback_module_version", toolstest.Object{"module_id": web, "version_id": ids["2"]}, schema.PreconditionFailed, "is current already")
	s.Refused(t, "system_rollback_module_version", toolstest.Object{"module_id": web, "version_id": s.serverVersion}, schema.InvalidArguments, "a version of another module")
	s.CallAs(t, person, "system_promote_module_version", toolstest.Object{"module_version_id": ids["2"], "target_state": "live"}) // it is
	if n := len(s.Signals(t, "system.module_version_changed")); n != 8 {
		t.Errorf("%d signals, want 8", n)
	}
}

// Scenarios 52 and 63: a cluster keeps its version, whatever becomes of the pointer and of the version itself.
func TestClusterKeepsItsVersion(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	network := s.network(t, "tenant-a")
	kept := s.file(t, "k3s-own", "#!binary")
	own := at(t, s.Call(t, "system_create_module_version", toolstest.Object{"module_id": s.server, "version": "own-1",
		"artifacts": []any{toolstest.Object{"arch": "amd64", "file": "k3s-own", "sha256": kept.SHA256}}}), "version", "id").(string)
	create := toolstest.Object{"name": "a", "network_id": network, "k8s_version": "own-1"}
	s.Refused(t, "kubernetes_create_cluster", create, schema.PreconditionFailed, "version own-1 of module k3s-server is not released")
	s.promote(t, own, "staging", "blessed")
	s.Refused(t, "kubernetes_create_cluster", create, schema.PreconditionFailed, "version own-1 of module k3s-server is not released")
	s.promote(t, own, "live")
	cluster := at(t, s.Call(t, "kubernetes_create_cluster", create), "cluster", "id").(string)

	template := s.template(t, "servers")
	s.join(t, template, s.server, toolstest.Object{"target_cluster_id": cluster})
	id := s.provision(t, s.node(t, "n", template))
	s.Call(t, "system_sdwan_attach_peer", toolstest.Object{"network_id": network, "node_instance_id": id})
	artifact := func() (name, sum string) {
		for _, m := range s.document(t, id).Modules {
			if m.Name == "k3s-server" && m.Artifact != nil {
				name, sum = m.Version, m.Artifact.SHA256
			}
		}
		return name, sum
	}
	before := s.document(t, id)
	if name, sum := artifact(); name != "own-1" || sum != kept.SHA256 {
		t.Fatalf("version %q is served with %s, want own-1: %+v", name, sum, before.K3s)
	}
	// The pointer moves on, and later back: the member follows neither.
	next := at(t, s.Call(t, "system_create_module_version", toolstest.Object{"module_id": s.server, "version": "own-2",
		"artifacts": []any{toolstest.Object{"arch": "arm64", "file": "k3s-own", "sha256": kept.SHA256}}}), "version", "id")
	moved := s.Approve(t, s.Parked(t, "system_set_current_module_version", toolstest.Object{"module_id": s.server, "module_version_id": next}))
	toolstest.Has(t, toolstest.Object{"affected_instance_count": 0.0, "previous_version_id": s.serverVersion}, moved)
	if name, _ := artifact(); name != "own-1" {
		t.Errorf("after the pointer moved, version %q is served, want own-1", name)
	}
	plan := s.Call(t, "system_plan_rolling_module_upgrade", toolstest.Object{"template_id": template, "module_id": s.server, "target_version_id": next})
	toolstest.Has(t, toolstest.Object{"total_instances": 0.0, "clusters": []any{toolstest.Object{"cluster_id": cluster, "name": "a", "version": "own-1",
		"instance_ids": []any{id}}}}, plan)
	s.Approve(t, s.Parked(t, "system_rollback_module_version", toolstest.Object{"module_id": s.server}))

	s.promote(t, own, "retired")
	s.Refused(t, "kubernetes_create_cluster", toolstest.Object{"name": "b", "network_id": s.network(t, "tenant-b"), "k8s_version": "own-1"},
		schema.PreconditionFailed, "is not released")
	s.Call(t, "system_update_node", toolstest.Object{"node_id": string(s.instance(t, id).NodeID), "description": "compiled anew"})
	s.Call(t, "system_refresh_instance_modules", toolstest.Object{"instance_id": id})
	if name, sum := artifact(); name != "own-1" || sum != kept.SHA256 {
		t.Errorf("after it was retired, version %q is served with %s, want own-1", name, sum)
	}
	toolstest.Has(t, toolstest.Object{"cluster": toolstest.Object{"k8s_version": "own-1"}}, s.Call(t, "kubernetes_get_cluster", toolstest.Object{"cluster_id": cluster}))
}

// Scenario 63, of a person: what a person made is taken at once.
func TestPersonsVersionIsTakenForAClusterAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	kept := s.file(t, "k3s-own", "#!binary")
	args := toolstest.Object{"module_id": s.server, "version": "own-1", "artifacts": []any{toolstest.Object{"arch": "amd64", "file": "k3s-own", "sha256": kept.SHA256}}}
	got := s.CallAs(t, governance.PersonCaller(s.Person), "system_create_module_version", args)
	toolstest.Has(t, toolstest.Object{"version": toolstest.Object{"promotion_state": "built", "servable": true}, "warnings": []any{}}, got)
	got = s.Call(t, "kubernetes_create_cluster", toolstest.Object{"name": "a", "network_id": s.network(t, "tenant-a"), "k8s_version": "own-1"})
	toolstest.Has(t, toolstest.Object{"cluster": toolstest.Object{"k8s_version": "own-1"}}, got)
}

// Scenario 53.
func TestRollingPlanTellsWhoFollowsThePointer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	web := s.module(t, "web", nil)
	inside, outside := s.carried(t, "in", web), s.carried(t, "out", web)
	template := s.first(t, "system_list_templates", "templates", "name", "in")
	one := s.version(t, web, "1", nil)
	args := toolstest.Object{"template_id": template, "module_id": web, "target_version_id": one}
	before := s.Revision(t)
	got := s.Call(t, "system_plan_rolling_module_upgrade", args)
	toolstest.Has(t, toolstest.Object{"total_instances": 2.0, "affected_instance_ids": []any{inside}, "also_affected_instance_ids": []any{outside},
		"clusters": []any{}, "executed": false, "max_consecutive_failures": 2.0, "target_version": toolstest.Object{"version": "1"},
		"hint": toolstest.Object{"verb": "system_set_current_module_version"}}, got)
	if s.Revision(t) != before {
		t.Error("the plan wrote something")
	}
	args["batch_pct"] = 10
	s.Refused(t, "system_plan_rolling_module_upgrade", args, schema.InvalidArguments, "Undeclared parameters: batch_pct")
	s.Refused(t, "system_plan_rolling_module_upgrade", toolstest.Object{"template_id": template, "module_id": web, "target_version_id": s.serverVersion},
		schema.InvalidArguments, "target_version_id names a version of another module than web")
	s.Refused(t, "system_plan_rolling_module_upgrade", toolstest.Object{"template_id": template, "module_id": web, "target_version_id": web},
		schema.NotFound, "module version not found")
}

func TestModuleDiffShowsArtefactsAndManifest(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	web := s.module(t, "web", nil)
	file := func(name, content string) toolstest.Object {
		return toolstest.Object{"path": "/etc/web/" + name, "content": content}
	}
	a := s.version(t, web, "1", toolstest.Object{"packages": []string{"jq"}, "files": []any{file("a", "1"), file("b", "1")}})
	b := s.version(t, web, "2", toolstest.Object{"packages": []string{"jq", "curl"}, "files": []any{file("c", "1"), file("b", "2")}})
	got := s.Call(t, "system_module_diff", toolstest.Object{"version_a_id": a, "version_b_id": b})
	var lines []string
	for _, c := range objects(t, got["manifest_changes"]) {
		lines = append(lines, fmt.Sprint(c["pointer"], " ", c["change"], " ", c["from"], " ", c["to"]))
	}
	want := []string{`/files/0 removed {"content":"1","path":"/etc/web/a"} <nil>`, `/files/0 added <nil> {"content":"1","path":"/etc/web/c"}`,
		`/files/1/content changed "1" "2"`, `/packages changed ["jq"] ["jq","curl"]`}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	toolstest.Has(t, toolstest.Object{"unchanged": true, "artifact_changes": []any{}, "manifest_changes": []any{}},
		s.Call(t, "system_module_diff", toolstest.Object{"version_a_id": a, "version_b_id": a}))
	s.Refused(t, "system_module_diff", toolstest.Object{"version_a_id": a, "version_b_id": s.serverVersion}, schema.InvalidArguments, "versions of two modules")

	kept := s.file(t, "web-own", "#!binary")
	c := at(t, s.Call(t, "system_create_module_version", toolstest.Object{"module_id": web, "version": "3",
		"artifacts": []any{toolstest.Object{"arch": "amd64", "file": "web-own", "sha256": kept.SHA256}}}), "version", "id")
	got = s.Call(t, "system_module_diff", toolstest.Object{"version_a_id": a, "version_b_id": c})
	changes := objects(t, got["artifact_changes"])
	if len(changes) != 1 {
		t.Fatalf("artefacts %v, want one", changes)
	}
	toolstest.Has(t, toolstest.Object{"arch": "amd64", "change": "added", "from": nil, "to": toolstest.Object{"file": "web-own", "url": nil}}, changes[0])
}

func TestManifestIsValidatedAsItWouldBeTaken(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	web := s.module(t, "web", nil)
	for _, tt := range []struct {
		name, text string
		pointers   []any
	}{
		{"YAML", "packages: [jq]\nfiles:\n  - path: /etc/web/a\n    content: x\n", []any{}},
		{"JSON", `{"services": [{"name": "edge", "exec": "/usr/bin/edge"}]}`, []any{}},
		{"unknown keys", "sudoers: x\n", []any{"/sudoers"}},
		{"a forbidden path", "files:\n  - path: /etc/ssh/a\n    content: x\n", []any{"/files/0/path"}},
		{"a shell", "services:\n  - name: x\n    exec: sh -c true\n", []any{"/services/0/exec"}},
		{"no YAML", "a: [", []any{""}},
		{"a key twice", "packages: []\npackages: []\n", []any{""}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := s.Call(t, "system_validate_module_manifest", toolstest.Object{"module_id": web, "manifest_yaml": tt.text})
			pointers := []any{}
			for _, f := range objects(t, got["validation_errors"]) {
				pointers = append(pointers, f["pointer"])
			}
			if diff := cmp.Diff(tt.pointers, pointers); diff != "" {
				t.Errorf("pointers (-want +got):\n%s\n%v", diff, got)
			}
			if got["valid"] != (len(tt.pointers) == 0) {
				t.Errorf("valid is %v", got["valid"])
			}
		})
	}
}
