package tools_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/schema"
	"powernode/tools/toolstest"
)

// module makes a module of the account's own.
func (s *site) module(t testing.TB, name string, more toolstest.Object) string {
	t.Helper()
	args := toolstest.Object{"name": name}
	for k, v := range more {
		args[k] = v
	}
	return at(t, s.Call(t, "system_create_module", args), "module", "id").(string)
}

func needs(names ...string) toolstest.Object {
	return toolstest.Object{"dependencies": toolstest.Object{"requires": names}}
}

func TestUpdateTemplateChangesItsOwnFields(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	template := s.template(t, "a")
	s.template(t, "b")
	update := func(changes toolstest.Object) toolstest.Object {
		changes["template_id"] = template
		return changes
	}
	network := s.network(t, "tenant-a")
	got := s.Call(t, "system_update_template", update(toolstest.Object{"name": "c", "description": "d", "public": true, "admin_user": "ada",
		"config": toolstest.Object{"sdwan_network_id": network}}))
	want := toolstest.Object{"name": "c", "description": "d", "public": true, "admin_user": "ada", "config": toolstest.Object{"sdwan_network_id": network}}
	toolstest.Has(t, toolstest.Object{"template": want}, got)
	toolstest.Has(t, toolstest.Object{"template": want}, s.Call(t, "system_get_template", toolstest.Object{"template_id": template}))
	toolstest.Has(t, toolstest.Object{"template": toolstest.Object{"admin_user": nil}}, s.Call(t, "system_update_template", update(toolstest.Object{"admin_user": ""})))
	if rows := s.Audit(t, "System::NodeTemplate"); rows[len(rows)-1].Action != "updated" {
		t.Errorf("the last audit row is %s", rows[len(rows)-1].Action)
	}
	s.Refused(t, "system_update_template", update(toolstest.Object{}), schema.InvalidArguments,
		"nothing to update — pass at least one of name, description, enabled, public, admin_user, config")
	s.Refused(t, "system_update_template", update(toolstest.Object{"name": "b"}), schema.Conflict, `template name "b" is already in use`)
	s.Call(t, "system_update_template", update(toolstest.Object{"name": "c"})) // its own
	s.Refused(t, "system_update_template", update(toolstest.Object{"config": toolstest.Object{"sdwan_network_id": template}}), schema.NotFound, "network not found")

	s.Call(t, "system_update_template", update(toolstest.Object{"enabled": false}))
	s.Refused(t, "system_create_node", toolstest.Object{"name": "n", "template_id": template}, schema.PreconditionFailed, "is disabled")
}

func TestCloneTemplateCopiesFieldsAndJoins(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	source := s.template(t, "a")
	gold := toolstest.Object{"node_labels": toolstest.Object{"tier": "gold"}}
	s.join(t, source, s.server, gold)
	s.Call(t, "system_update_template_module", toolstest.Object{"template_id": source, "module_id": s.server, "priority": 7, "enabled": false})
	s.Call(t, "system_update_template", toolstest.Object{"template_id": source, "description": "d", "admin_user": "ada"})
	got := s.Call(t, "system_clone_template", toolstest.Object{"template_id": source})
	toolstest.Has(t, toolstest.Object{"template": toolstest.Object{"name": "a-copy", "description": "d", "admin_user": "ada", "platform_id": s.platform}}, got)
	if at(t, got, "template", "id") == source {
		t.Error("the clone is its source")
	}
	modules := got["modules"].([]any)
	if len(modules) != 1 {
		t.Fatalf("modules %v, want one", modules)
	}
	toolstest.Has(t, toolstest.Object{"name": "k3s-server", "priority": 7.0, "enabled": false, "config": gold}, modules[0].(toolstest.Object))
	s.Refused(t, "system_clone_template", toolstest.Object{"template_id": source}, schema.Conflict, `template name "a-copy" is already in use`)
	toolstest.Has(t, toolstest.Object{"template": toolstest.Object{"name": "z"}}, s.Call(t, "system_clone_template", toolstest.Object{"template_id": source, "name": "z"}))
	// A name of full length has room for the suffix.
	long := s.template(t, strings.Repeat("x", 128))
	name := at(t, s.Call(t, "system_clone_template", toolstest.Object{"template_id": long}), "template", "name").(string)
	if len(name) != 128 || !strings.HasSuffix(name, "-copy") {
		t.Errorf("the clone is called %s", name)
	}
}

func TestUnassignKeepsAssignmentsUntilAPurge(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	template := s.template(t, "a")
	node := s.node(t, "n", template)
	s.join(t, template, s.server, nil)
	s.apply(t, node, nil)
	args := toolstest.Object{"template_id": template, "module_id": s.server}
	got := s.Approve(t, s.Parked(t, "system_unassign_module_from_template", args))
	toolstest.Has(t, toolstest.Object{"unassigned": true, "already_absent": false, "hint": toolstest.Object{"verb": "system_apply_template"}}, got)
	if signals := s.Signals(t, "system.template_mutation"); signals[0].Payload["change"] != "module_unassigned" {
		t.Errorf("the latest signal is %v", signals[0].Payload)
	}
	s.assignment(t, node) // still there, and it still knows where it came from
	purged := s.Approve(t, s.Parked(t, "system_apply_template", toolstest.Object{"node_id": node, "purge_stale": true}))
	if n := len(purged["purged"].([]any)); n != 1 {
		t.Errorf("purged %v, want one", purged["purged"])
	}

	before := s.Revision(t)
	got = s.Call(t, "system_unassign_module_from_template", args) // nobody is asked for what is so already
	toolstest.Has(t, toolstest.Object{"unassigned": false, "already_absent": true, "revision": float64(before), "warnings": []any{}}, got)
	if after := s.Revision(t); after != before {
		t.Errorf("the revision moved from %d to %d", before, after)
	}
	s.Refused(t, "system_unassign_module_from_template", toolstest.Object{"template_id": template, "module_id": template}, schema.NotFound, "module not found")
}

func TestComposePreviewTellsWhatAnApplyWouldMeet(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.module(t, "libc", toolstest.Object{"dependencies": toolstest.Object{"provides": []string{"base"}}})
	app := s.module(t, "app", toolstest.Object{"priority": 9, "dependencies": toolstest.Object{"requires": []string{"base"}, "recommends": []string{"logs"}}})
	got := s.Call(t, "system_compose_preview_template", toolstest.Object{"module_ids": []any{app}})
	toolstest.Has(t, toolstest.Object{"conflicts": []any{}, "errors": []any{}, "dependency_graph": toolstest.Object{"order": []any{"libc", "app"},
		"edges": []any{toolstest.Object{"from": "app", "to": "libc", "kind": "requires"}}}}, got)
	modules := objects(t, got["modules"])
	toolstest.Has(t, toolstest.Object{"name": "libc", "auto_resolved": true, "brought_by": "app"}, modules[0])
	toolstest.Has(t, toolstest.Object{"name": "app", "auto_resolved": false, "brought_by": nil}, modules[1])
	if diff := cmp.Diff([]any{"no_current_version", "no_current_version", "recommendation_missing"}, codes(got)); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}

	lonely := s.module(t, "lonely", needs("nothing"))
	got = s.Call(t, "system_compose_preview_template", toolstest.Object{"module_ids": []any{s.server, s.agent, lonely}})
	if diff := cmp.Diff([]any{"k3s-agent and k3s-server"}, got["conflicts"]); diff != "" {
		t.Errorf("conflicts (-want +got):\n%s", diff)
	}
	if faults := objects(t, got["errors"]); len(faults) != 1 || !strings.Contains(faults[0]["text"].(string), "module lonely requires nothing, which no module provides") {
		t.Errorf("errors %v", faults)
	}
	s.Refused(t, "system_compose_preview_template", toolstest.Object{"module_ids": []any{app, s.platform}}, schema.NotFound, "module not found")
}

func TestApplyOrdersAndMarksTheClosure(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.module(t, "base", toolstest.Object{"priority": 1, "config": toolstest.Object{"from": "module"}})
	s.module(t, "runtime", toolstest.Object{"priority": 5, "dependencies": toolstest.Object{"requires": []string{"base"}}})
	app := s.module(t, "app", toolstest.Object{"priority": 9, "dependencies": toolstest.Object{"requires": []string{"runtime"}}})
	template := s.template(t, "a")
	node := s.node(t, "n", template)
	join := s.join(t, template, app, toolstest.Object{"size": 3})
	s.Call(t, "system_update_template_module", toolstest.Object{"template_id": template, "module_id": app, "priority": 42})
	got := s.apply(t, node, nil)
	var names []any
	for _, item := range objects(t, got["created"]) {
		names = append(names, item["module_name"])
	}
	if diff := cmp.Diff([]any{"base", "runtime", "app"}, names); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	rows := map[any]toolstest.Object{}
	for _, a := range objects(t, s.Call(t, "system_list_node_module_assignments", toolstest.Object{"node_id": node})["assignments"]) {
		rows[a["module_name"]] = a
	}
	toolstest.Has(t, toolstest.Object{"auto_resolved": false, "priority": 42.0, "config": toolstest.Object{"size": 3.0}}, rows["app"])
	toolstest.Has(t, toolstest.Object{"auto_resolved": true, "priority": 1.0, "config": toolstest.Object{"from": "module"},
		"source_template_module_id": join["template_module_id"]}, rows["base"])

	// A required module that is assigned and disabled stays so, and is named.
	s.Call(t, "system_update_module_assignment", toolstest.Object{"assignment_id": rows["runtime"]["id"], "enabled": false})
	if diff := cmp.Diff([]any{"assignment_disabled", "required_module_disabled"}, codes(s.apply(t, node, nil))); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

func TestApplyRefusesADisabledTemplate(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	template := s.template(t, "a")
	node := s.node(t, "n", template)
	s.Call(t, "system_update_template", toolstest.Object{"template_id": template, "enabled": false})
	s.Refused(t, "system_apply_template", toolstest.Object{"node_id": node}, schema.PreconditionFailed, "template 'a' is disabled")
	s.Refused(t, "system_apply_template", toolstest.Object{"node_id": node, "dry_run": true}, schema.PreconditionFailed, "template 'a' is disabled")
}

// Scenario 5: a changed target reaches what came from the template and has not joined, and nothing that is hand-made.
func TestChangedTargetReachesTemplateBornAssignmentsOnly(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	clusters := map[string]string{}
	for _, name := range []string{"a", "b"} {
		clusters[name] = at(t, s.Call(t, "kubernetes_create_cluster", toolstest.Object{"name": name, "network_id": s.network(t, "tenant-"+name)}), "cluster", "id").(string)
	}
	template := s.template(t, "workers")
	s.join(t, template, s.agent, toolstest.Object{"target_cluster_id": clusters["a"]})
	born, made := s.node(t, "born", template), s.node(t, "made", template)
	s.apply(t, born, nil)
	s.Call(t, "system_assign_module_to_node", toolstest.Object{"node_id": made, "module_id": s.agent, "config": toolstest.Object{"target_cluster_id": clusters["a"]}})
	got := s.Call(t, "system_update_template_module", toolstest.Object{"template_id": template, "module_id": s.agent, "config": toolstest.Object{"target_cluster_id": "b"}})
	toolstest.Has(t, toolstest.Object{"hint": toolstest.Object{"verb": "system_apply_template"}}, got)

	got = s.apply(t, born, nil)
	if updated := objects(t, got["updated"]); len(updated) != 1 {
		t.Fatalf("updated %v, want one", updated)
	}
	toolstest.Has(t, toolstest.Object{"config": toolstest.Object{"target_cluster_id": clusters["b"]}}, s.assignment(t, born))
	if diff := cmp.Diff([]any{"hand_made"}, reasons(t, s.apply(t, made, nil), "skipped")); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
	toolstest.Has(t, toolstest.Object{"config": toolstest.Object{"target_cluster_id": clusters["a"]}}, s.assignment(t, made))
}
