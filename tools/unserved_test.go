package tools_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/schema"
	"powernode/tools/toolstest"
)

func TestAModuleThatMachinesGetNothingOfIsAssignedWithAWarning(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	platform := at(t, objects(t, l.Call(t, "system_list_platforms", nil)["platforms"])[0], "id")
	template := at(t, l.Call(t, "system_create_template", toolstest.Object{"name": "web", "node_platform_id": platform}), "template", "id")
	node := at(t, l.Call(t, "system_create_node", toolstest.Object{"name": "web-1", "template_id": template}), "node", "id")
	module := at(t, l.Call(t, "system_create_module", toolstest.Object{"name": "motd"}), "module", "id")
	joined := l.Call(t, "system_assign_module_to_template", toolstest.Object{"template_id": template, "module_id": module})
	assigned := l.Call(t, "system_assign_module_to_node", toolstest.Object{"node_id": node, "module_id": module})
	for verb, answer := range map[string]toolstest.Object{"to a template": joined, "to a node": assigned} {
		if diff := cmp.Diff([]any{"no_current_version"}, codes(answer)); diff != "" {
			t.Errorf("warnings %s (-want +got):\n%s", verb, diff)
		}
	}

	refused := l.Refused(t, "system_delete_module", toolstest.Object{"module_id": module}, schema.PreconditionFailed, "1 assignment(s), 1 template(s)")
	if refused.Hint == nil || refused.Hint.Verb != "system_unassign_module_from_template" {
		t.Errorf("hint %+v, want the way out of the template", refused.Hint)
	}
	l.Approve(t, l.Parked(t, "system_unassign_module_from_template", toolstest.Object{"template_id": template, "module_id": module}))
	refused = l.Refused(t, "system_delete_module", toolstest.Object{"module_id": module}, schema.PreconditionFailed, "1 assignment(s), 0 template(s)")
	if refused.Hint == nil || refused.Hint.Verb != "system_delete_node" {
		t.Errorf("hint %+v, want the way out of the node that has it by hand", refused.Hint)
	}
}
