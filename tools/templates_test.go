package tools_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/schema"
	"powernode/store"
	"powernode/tools/toolstest"
)

func TestCreateTemplateTakesNoModulesInline(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	refusal := s.Refused(t, "system_create_template", `{"name": "w", "module_assignments": [{"module_name": "k3s-agent"}]}`, schema.InvalidArguments,
		"Missing required parameters: node_platform_id; Undeclared parameters: module_assignments")
	if refusal.Hint == nil || refusal.Hint.Verb != "system_assign_module_to_template" {
		t.Errorf("hint %v, want system_assign_module_to_template", refusal.Hint)
	}
	nowhere := "0198c0de-0000-7000-8000-000000000000"
	s.Refused(t, "system_create_template", toolstest.Object{"name": "w", "node_platform_id": nowhere}, schema.NotFound, "platform not found")
	s.Refused(t, "system_create_template", toolstest.Object{"name": "w", "node_platform_id": s.platform, "config": toolstest.Object{"sdwan_network_id": nowhere}},
		schema.NotFound, "network not found")
	s.template(t, "w")
	s.Refused(t, "system_create_template", toolstest.Object{"name": "w", "node_platform_id": s.platform}, schema.Conflict, "already in use")
}

func TestAssignModuleToTemplateMakesTheJoinOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	template := s.template(t, "servers")
	node := s.node(t, "a", template)
	s.provision(t, node)
	got := s.join(t, template, s.server, toolstest.Object{"node_labels": toolstest.Object{"tier": "gold"}})
	toolstest.Has(t, toolstest.Object{"assigned": true, "provisioned_node_count": 1.0, "hint": toolstest.Object{"verb": "system_apply_template"},
		"template_module": toolstest.Object{"module_name": "k3s-server", "priority": 100.0, "enabled": true,
			"config": toolstest.Object{"node_labels": toolstest.Object{"tier": "gold"}}, "recommends_override": nil}}, got)
	toolstest.Has(t, toolstest.Object{"count": 0.0}, s.Call(t, "system_list_node_module_assignments", toolstest.Object{"node_id": node}))
	if signals := s.Signals(t, "system.template_mutation"); len(signals) != 1 || signals[0].CorrelationID != "template_mutation:"+template {
		t.Errorf("signals %v, want one of the template", signals)
	}

	refusal := s.Refused(t, "system_assign_module_to_template", toolstest.Object{"template_id": template, "module_id": s.server}, schema.Conflict,
		"template already has this module")
	if refusal.Hint.Verb != "system_update_template_module" || refusal.Details["template_module_id"] != store.TemplateModuleID(got["template_module_id"].(string)) {
		t.Errorf("refusal %+v names neither the join nor how to edit it", refusal)
	}
	update := s.Call(t, "system_update_template_module", toolstest.Object{"template_id": template, "module_id": s.server, "config": toolstest.Object{}})
	toolstest.Has(t, toolstest.Object{"updated": true, "template_module": toolstest.Object{"config": toolstest.Object{}}}, update)
}

func TestAssignModuleToTemplateRefusals(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	template := s.template(t, "workers")
	args := func(changes toolstest.Object) toolstest.Object {
		out := toolstest.Object{"template_id": template, "module_id": s.agent}
		for k, v := range changes {
			out[k] = v
		}
		return out
	}
	for _, tt := range []struct {
		name    string
		args    toolstest.Object
		code    schema.Code
		text    string
		pointer string
	}{
		{"a priority that is a text", args(toolstest.Object{"priority": "10"}), schema.InvalidArguments, `priority must be an integer (got string "10")`, "/priority"},
		{"a priority with a fraction", args(toolstest.Object{"priority": 1.5}), schema.InvalidArguments, "priority must be an integer (got number 1.5)", "/priority"},
		{"a misspelt key of the config", args(toolstest.Object{"config": toolstest.Object{"target_clusterid": "b"}}), schema.InvalidArguments,
			"config.target_clusterid (did you mean target_cluster_id?)", "/config/target_clusterid"},
		{"a key of the other module", args(toolstest.Object{"config": toolstest.Object{"cni_plugin": "flannel"}}), schema.InvalidArguments, "config.cni_plugin", "/config/cni_plugin"},
		{"a target that is none", args(toolstest.Object{"config": toolstest.Object{"target_cluster_id": "b"}}), schema.NotFound,
			"target_cluster_id names no cluster of this account", ""},
		{"both forms of an override", args(toolstest.Object{"recommends_override": toolstest.Object{"replace": []string{}, "included": []string{}}}),
			schema.InvalidArguments, "either replace, or included and excluded", "/recommends_override"},
		{"no such module", args(toolstest.Object{"module_id": template}), schema.NotFound, "module not found", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			refusal := s.Refused(t, "system_assign_module_to_template", tt.args, tt.code, tt.text)
			if pointer, _ := refusal.Details["pointer"].(string); pointer != tt.pointer {
				t.Errorf("pointer %q, want %q", pointer, tt.pointer)
			}
		})
	}
	refusal := s.Refused(t, "system_assign_module_to_template", args(toolstest.Object{"module_id": "K3s-agent"}), schema.InvalidArguments, "not its name")
	if diff := cmp.Diff([]string{s.agent}, refusal.Details["candidates"]); diff != "" {
		t.Errorf("candidates (-want +got):\n%s", diff)
	}
	s.join(t, template, s.agent, nil)
	s.Refused(t, "system_assign_module_to_template", args(toolstest.Object{"module_id": s.server}), schema.PreconditionFailed,
		"Module assignment refused: it would introduce 1 composition conflict(s)")
	s.Call(t, "system_assign_module_to_template", args(toolstest.Object{"module_id": s.server, "enabled": false}))
	s.Refused(t, "system_update_template_module", args(toolstest.Object{"module_id": s.server, "enabled": true}), schema.PreconditionFailed, "1 composition conflict")
	s.Refused(t, "system_update_template_module", toolstest.Object{"template_id": template, "module_id": s.agent}, schema.InvalidArguments,
		"nothing to update — pass at least one of priority, enabled, config, recommends_override")
}

func TestChangesAreAuditedUnderTheContractsTypes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	template := s.template(t, "w")
	s.join(t, template, s.agent, nil)
	node := s.node(t, "a", template)
	s.provision(t, node)
	for _, kind := range []string{"System::NodeTemplate", "System::TemplateModule", "System::Node", "System::NodeInstance", "System::NodeModuleAssignment"} {
		if len(s.Audit(t, kind)) == 0 {
			t.Errorf("no audit row of %s", kind)
		}
	}
}

func TestUpdateTemplateModuleNeedsTheJoin(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	refusal := s.Refused(t, "system_update_template_module", toolstest.Object{"template_id": s.template(t, "w"), "module_id": s.agent, "priority": 1},
		schema.NotFound, "template has no such module")
	if refusal.Hint.Verb != "system_assign_module_to_template" {
		t.Errorf("hint %v, want system_assign_module_to_template", refusal.Hint)
	}
}

func TestDeleteTemplateInUseIsRefusedBeforeItParks(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	template := s.template(t, "w")
	node := s.node(t, "a", template)
	s.Refused(t, "system_delete_template", toolstest.Object{"template_id": template}, schema.PreconditionFailed, "template 'w' is in use by 1 node(s)")
	toolstest.Has(t, toolstest.Object{"count": 0.0}, s.Call(t, "platform_list_operations", nil))
	s.Call(t, "system_update_node", toolstest.Object{"node_id": node, "node_template_id": s.template(t, "other")})
	got := s.Approve(t, s.Parked(t, "system_delete_template", toolstest.Object{"template_id": template}))
	toolstest.Has(t, toolstest.Object{"deleted": true, "name": "w"}, got)
	s.Refused(t, "system_get_template", toolstest.Object{"template_id": template}, schema.NotFound, "template not found")
}

func TestGetTemplateShowsItsModules(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	template := s.template(t, "Workers of B")
	s.join(t, template, s.agent, nil)
	s.node(t, "a", template)
	got := s.Call(t, "system_get_template", toolstest.Object{"template_id": template})
	toolstest.Has(t, toolstest.Object{"node_count": 1.0, "template": toolstest.Object{"name": "Workers of B", "admin_user": nil}}, got)
	if modules := got["modules"].([]any); len(modules) != 1 || modules[0].(toolstest.Object)["name"] != "k3s-agent" {
		t.Errorf("modules %v, want k3s-agent", modules)
	}
	toolstest.Has(t, toolstest.Object{"count": 1.0}, s.Call(t, "system_list_templates", `{"q": "workers"}`))
	toolstest.Has(t, toolstest.Object{"count": 0.0}, s.Call(t, "system_list_templates", `{"q": "servers"}`))
}

// assignment reads the one assignment of a node.
func (s *site) assignment(t testing.TB, node string) toolstest.Object {
	t.Helper()
	rows := s.Call(t, "system_list_node_module_assignments", toolstest.Object{"node_id": node})["assignments"].([]any)
	if len(rows) != 1 {
		t.Fatalf("node has %d assignments, want 1", len(rows))
	}
	return rows[0].(toolstest.Object)
}

func (s *site) apply(t testing.TB, node string, more toolstest.Object) toolstest.Object {
	t.Helper()
	args := toolstest.Object{"node_id": node}
	for k, v := range more {
		args[k] = v
	}
	return s.Call(t, "system_apply_template", args)
}

// reasons are the reasons of an apply's items.
func reasons(t testing.TB, got toolstest.Object, list string) []any {
	t.Helper()
	out := []any{}
	for _, item := range got[list].([]any) {
		out = append(out, item.(toolstest.Object)["reason"])
	}
	return out
}

func codes(got toolstest.Object) []any {
	out := []any{}
	for _, w := range got["warnings"].([]any) {
		out = append(out, w.(toolstest.Object)["code"])
	}
	return out
}

func TestApplyBringsModulesToRunningMachines(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	template := s.template(t, "servers")
	node := s.node(t, "a", template)
	id := s.provision(t, node)
	s.join(t, template, s.server, toolstest.Object{"node_labels": toolstest.Object{"tier": "gold"}})

	before := s.Revision(t)
	dry := s.apply(t, node, toolstest.Object{"dry_run": true})
	toolstest.Has(t, toolstest.Object{"dry_run": true, "revision": nil, "woken_instance_ids": []any{}}, dry)
	if n := len(dry["created"].([]any)); n != 1 || dry["created"].([]any)[0].(toolstest.Object)["assignment_id"] != nil {
		t.Errorf("a dry run would create %v", dry["created"])
	}
	if after := s.Revision(t); after != before {
		t.Errorf("a dry run moved the revision from %d to %d", before, after)
	}

	got := s.apply(t, node, nil)
	toolstest.Has(t, toolstest.Object{"dry_run": false, "woken_instance_ids": []any{id}, "template_id": template}, got)
	toolstest.Has(t, toolstest.Object{"module_name": "k3s-server", "priority": 100.0, "enabled": true, "source_template_id": template, "auto_resolved": false,
		"config": toolstest.Object{"node_labels": toolstest.Object{"tier": "gold"}}, "target": toolstest.Object{"cluster_id": nil, "usable": false, "reason": "none_set"}},
		s.assignment(t, node))
	d := s.document(t, id)
	if len(d.Modules) != 1 || d.Revision != int64(got["revision"].(float64)) {
		t.Errorf("document %d has modules %v, want the module at revision %v", d.Revision, d.Modules, got["revision"])
	}
	if n := len(s.Signals(t, "system.template_applied")); n != 1 {
		t.Errorf("%d signals, want 1", n)
	}
	if diff := cmp.Diff([]any{"unchanged"}, reasons(t, s.apply(t, node, nil), "skipped")); diff != "" {
		t.Errorf("second apply (-want +got):\n%s", diff)
	}
	toolstest.Has(t, toolstest.Object{"node": toolstest.Object{"applied_template_id": template, "module_count": 1.0}},
		s.Call(t, "system_get_node", toolstest.Object{"node_id": node}))
}

func TestApplyKeepsWhatAPersonChanged(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	template := s.template(t, "servers")
	node := s.node(t, "a", template)
	s.join(t, template, s.server, nil)
	s.apply(t, node, nil)
	assignment := s.assignment(t, node)["id"]
	edit := func(changes toolstest.Object) {
		args := toolstest.Object{"template_id": template, "module_id": s.server}
		for k, v := range changes {
			args[k] = v
		}
		s.Call(t, "system_update_template_module", args)
	}

	s.Call(t, "system_update_module_assignment", toolstest.Object{"assignment_id": assignment, "priority": 7})
	gold := toolstest.Object{"node_labels": toolstest.Object{"tier": "gold"}}
	edit(toolstest.Object{"config": gold})
	got := s.apply(t, node, nil)
	if len(got["updated"].([]any)) != 1 {
		t.Fatalf("updated %v, want the config", got["updated"])
	}
	toolstest.Has(t, toolstest.Object{"priority": 7.0, "config": gold}, s.assignment(t, node))

	edit(toolstest.Object{"priority": 200})
	got = s.apply(t, node, nil)
	if diff := cmp.Diff([]any{"changed_by_hand"}, reasons(t, got, "skipped")); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]any{"changed_by_hand"}, codes(got)); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	const both = "module k3s-server keeps priority 7, which was set by hand; the template says 200"
	if text := objects(t, got["warnings"])[0]["text"]; text != both {
		t.Errorf("the warning says %q, want %q", text, both)
	}
	toolstest.Has(t, toolstest.Object{"priority": 7.0, "config": gold}, s.assignment(t, node))

	// Equal again: from now on it follows.
	edit(toolstest.Object{"priority": 7})
	s.apply(t, node, nil)
	edit(toolstest.Object{"priority": 9})
	s.apply(t, node, nil)
	toolstest.Has(t, toolstest.Object{"priority": 9.0}, s.assignment(t, node))
}

func TestApplyLeavesDisabledAndHandMadeAssignments(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	template := s.template(t, "servers")
	node := s.node(t, "a", template)
	s.join(t, template, s.server, nil)
	s.apply(t, node, nil)
	assignment := s.assignment(t, node)["id"]
	got := s.Call(t, "system_update_module_assignment", toolstest.Object{"assignment_id": assignment, "enabled": false})
	by := "operator:" + s.Caller.ID
	toolstest.Has(t, toolstest.Object{"updated": true, "assignment": toolstest.Object{"enabled": false, "disabled_by": by}}, got)
	got = s.apply(t, node, nil)
	if diff := cmp.Diff([]any{"disabled"}, reasons(t, got, "skipped")); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]any{"assignment_disabled"}, codes(got)); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	s.Call(t, "system_update_module_assignment", toolstest.Object{"assignment_id": assignment, "enabled": true})
	toolstest.Has(t, toolstest.Object{"enabled": true, "disabled_by": nil}, s.assignment(t, node))

	s.Update(t, func(ctx context.Context, tx *store.Tx) error {
		a, err := store.AssignmentByID(ctx, &tx.View, s.Account.ID, store.AssignmentID(assignment.(string)))
		if err != nil {
			return err
		}
		a.SourceTemplateID, a.SourceTemplateModuleID = "", ""
		_, err = store.UpdateAssignment(ctx, tx, a)
		return err
	})
	if diff := cmp.Diff([]any{"hand_made"}, reasons(t, s.apply(t, node, nil), "skipped")); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
}

func TestAssignmentsOfADeletedTemplateKeepTheirSourceAndCountAsHandMade(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	servers, other := s.template(t, "servers"), s.template(t, "other")
	node := s.node(t, "a", servers)
	s.join(t, servers, s.server, nil)
	s.apply(t, node, nil)
	s.Call(t, "system_update_node", toolstest.Object{"node_id": node, "node_template_id": other})
	s.Approve(t, s.Parked(t, "system_delete_template", toolstest.Object{"template_id": servers}))
	toolstest.Has(t, toolstest.Object{"source_template_id": servers}, s.assignment(t, node))
	s.join(t, other, s.server, toolstest.Object{"node_labels": toolstest.Object{"a": "b"}})
	got := s.apply(t, node, toolstest.Object{"dry_run": true, "purge_stale": true})
	if diff := cmp.Diff([]any{"hand_made"}, reasons(t, got, "skipped")); diff != "" || len(got["purged"].([]any)) != 0 {
		t.Errorf("reasons (-want +got):\n%s\npurged %v", diff, got["purged"])
	}
	toolstest.Has(t, toolstest.Object{"config": toolstest.Object{}}, s.assignment(t, node))
}

func TestApplyPurgesOnlyWhenAskedAndApproved(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	servers, plain := s.template(t, "servers"), s.template(t, "plain")
	node := s.node(t, "a", servers)
	s.join(t, servers, s.server, nil)
	s.apply(t, node, nil)
	toolstest.Has(t, toolstest.Object{"assignments_stale": true},
		s.Call(t, "system_update_node", toolstest.Object{"node_id": node, "node_template_id": plain}))
	got := s.apply(t, node, nil)
	if diff := cmp.Diff([]any{"stale_assignment"}, codes(got)); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	s.assignment(t, node)
	operation := s.Parked(t, "system_apply_template", toolstest.Object{"node_id": node, "purge_stale": true})
	s.assignment(t, node)
	purged := s.Approve(t, operation)
	if n := len(purged["purged"].([]any)); n != 1 {
		t.Errorf("purged %v, want one", purged["purged"])
	}
	toolstest.Has(t, toolstest.Object{"count": 0.0}, s.Call(t, "system_list_node_module_assignments", toolstest.Object{"node_id": node}))
}

func TestAssignmentTargetsAreCheckedWhenTheyAreWritten(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	clusters := map[string]string{}
	for _, name := range []string{"a", "b"} {
		clusters[name] = at(t, s.Call(t, "kubernetes_create_cluster", toolstest.Object{"name": name, "network_id": s.network(t, "tenant-"+name)}), "cluster", "id").(string)
	}
	template := s.template(t, "workers")
	node := s.node(t, "w", template)
	s.provision(t, node)
	got := s.join(t, template, s.agent, nil)
	if diff := cmp.Diff([]any{"target_ambiguous"}, codes(got)); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	s.apply(t, node, nil)
	assignment := s.assignment(t, node)["id"]
	// A name is stored as the id.
	got = s.Call(t, "system_update_module_assignment", toolstest.Object{"assignment_id": assignment, "config": toolstest.Object{"target_cluster_id": "b"}})
	toolstest.Has(t, toolstest.Object{"assignment": toolstest.Object{"config": toolstest.Object{"target_cluster_id": clusters["b"]},
		"target": toolstest.Object{"cluster_id": clusters["b"], "usable": true, "reason": nil}}}, got)
	if diff := cmp.Diff([]any{"not_on_cluster_network"}, codes(got)); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	s.Refused(t, "system_update_module_assignment", toolstest.Object{"assignment_id": assignment, "config": toolstest.Object{"target_cluster_id": "c"}},
		schema.NotFound, "target_cluster_id names no cluster of this account")
	s.Refused(t, "system_update_module_assignment", toolstest.Object{"assignment_id": assignment}, schema.InvalidArguments, "nothing to update")
}
