package tools_test

import (
	"context"
	"slices"
	"testing"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
	"powernode/tools/toolstest"
)

// armTemplate makes a template for arm64, which the site's host is not.
func (s *site) armTemplate(t *testing.T, name string) string {
	t.Helper()
	platform := s.first(t, "system_list_platforms", "platforms", "name", "linux-arm64")
	return at(t, s.Call(t, "system_create_template", toolstest.Object{"name": name, "node_platform_id": platform}), "template", "id").(string)
}

func TestATemplateForAnotherArchitectureIsRefusedWhereItMeetsAMachine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	arm := s.armTemplate(t, "arm")
	const made = "provider local makes amd64 machines, and template 'arm' is for arm64"
	provision := s.provisionArgs(s.node(t, "none", arm))
	refusal := s.Refused(t, "system_provision_instance", provision, schema.PreconditionFailed, made)
	if refusal.Details["architecture"] != "arm64" || refusal.Hint == nil || refusal.Hint.Verb != "system_update_node" {
		t.Errorf("details %v, hint %v", refusal.Details, refusal.Hint)
	}
	plan := s.Call(t, "platform_preview", toolstest.Object{"verb": "system_provision_instance", "arguments": provision})
	if refusals := objects(t, plan["refusals"]); len(refusals) != 1 || refusals[0]["message"] != made {
		t.Errorf("the preview refuses %v", refusals)
	}
	if n := s.host.count(); n != 0 {
		t.Errorf("%d machines were made", n)
	}

	// A pointer may move, for the machines that come; those that are there are not made what it says.
	node := s.node(t, "amd", s.template(t, "plain"))
	id := s.provision(t, node)
	s.report(t, id, converged("boot", 1))
	moved := s.Call(t, "system_update_node", toolstest.Object{"node_id": node, "node_template_id": arm})
	if !slices.Contains(codes(moved), any("architecture_differs")) {
		t.Errorf("warnings of the moved pointer: %v", moved["warnings"])
	}
	const there = "instance amd is amd64, and template 'arm' is for arm64"
	for verb, args := range map[string]toolstest.Object{"apply": {"node_id": node}, "dry run": {"node_id": node, "dry_run": true},
		"purge": {"node_id": node, "purge_stale": true}} {
		if e := s.Refused(t, "system_apply_template", args, schema.PreconditionFailed, there); e.Details["instance_id"] != store.InstanceID(id) {
			t.Errorf("%s: details %v", verb, e.Details)
		}
	}
	s.Refused(t, "system_replace_instance", toolstest.Object{"instance_id": id, "operation_id": "x", "accept_running": true}, schema.PreconditionFailed, made)
}

func TestAMachineThatExistsMayBeOfAnyArchitecture(t *testing.T) {
	t.Parallel()
	s, args := manualSite(t)
	args["node_id"] = s.node(t, "arm", s.armTemplate(t, "arm"))
	got := s.Call(t, "system_provision_instance", args)
	toolstest.Has(t, toolstest.Object{"instance": toolstest.Object{"architecture": "arm64"}}, got)
	if !slices.Contains(codes(got), any("agent_not_fetched")) {
		t.Errorf("warnings %v, want that the agent is to be brought", got["warnings"])
	}
}

func TestAModuleForOnePlatformIsRefusedOnAnother(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	arm, amd := s.armTemplate(t, "arm"), s.template(t, "amd")
	platform := s.first(t, "system_list_platforms", "platforms", "name", "linux-arm64")
	own := s.module(t, "own", toolstest.Object{"node_platform_id": platform})
	const text = "module 'own' is for platform linux-arm64, and template 'amd' for linux-amd64"
	s.Refused(t, "system_assign_module_to_template", toolstest.Object{"template_id": amd, "module_id": own}, schema.PreconditionFailed, text)
	node := s.node(t, "n", amd)
	s.Refused(t, "system_assign_module_to_node", toolstest.Object{"node_id": node, "module_id": own}, schema.PreconditionFailed, text)
	s.join(t, arm, own, nil)
	s.apply(t, s.node(t, "m", arm), nil)

	app := s.module(t, "app", needs("own")) // it comes along, and can't
	s.join(t, amd, app, nil)
	s.Refused(t, "system_apply_template", toolstest.Object{"node_id": node}, schema.PreconditionFailed, text)
	s.Refused(t, "system_provision_instance", s.provisionArgs(node), schema.PreconditionFailed, text)
}

func TestAModuleWithoutAnArtefactForTheMachinesIsWarnedOf(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	own := s.module(t, "own", nil)
	s.CallAs(t, governance.PersonCaller(s.Person), "system_create_module_version", toolstest.Object{"module_id": own, "version": "1",
		"artifacts": []any{toolstest.Object{"arch": "amd64", "url": "https://example.org/own", "sha256": sum}}})
	s.Update(t, func(ctx context.Context, tx *store.Tx) error {
		m, err := store.ModuleByID(ctx, &tx.View, s.Account.ID, store.ModuleID(own))
		if err != nil {
			return err
		}
		v, err := store.ModuleVersionByName(ctx, &tx.View, s.Account.ID, m.ID, "1")
		if err != nil {
			return err
		}
		m.CurrentVersionID = v.ID
		_, err = store.UpdateModule(ctx, tx, m)
		return err
	})
	for name, warned := range map[string]bool{"arm": true, "amd": false} {
		template := s.template(t, "amd-"+name)
		if warned {
			template = s.armTemplate(t, name)
		}
		node := s.node(t, name, template)
		for verb, args := range map[string]toolstest.Object{"system_assign_module_to_template": {"template_id": template, "module_id": own},
			"system_assign_module_to_node": {"node_id": node, "module_id": own}} {
			if got := codes(s.Call(t, verb, args)); slices.Contains(got, any("no_artifact")) != warned {
				t.Errorf("%s on %s warns %v", verb, name, got)
			}
		}
	}
}
