package tools_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"powernode/store"
	"powernode/tools"
	"powernode/tools/toolstest"
)

// TestPlansOfDestructiveVerbsSayWhatIsIrreversible walks every verb that is annotated as destructive.
func TestPlansOfDestructiveVerbsSayWhatIsIrreversible(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	takesNothing := map[string]string{
		"platform_call_verb": "it is what it calls",
	}
	platform, module := w.args["system_create_template"][0]["node_platform_id"], w.args["system_assign_module_to_template"][0]["module_id"]
	template := at(t, w.Call(t, "system_create_template", toolstest.Object{"name": "stale", "node_platform_id": platform}), "template", "id")
	join := toolstest.Object{"template_id": template, "module_id": module}
	w.Call(t, "system_assign_module_to_template", join)
	node := at(t, w.Call(t, "system_create_node", toolstest.Object{"name": "stale", "template_id": template}), "node", "id")
	w.Call(t, "system_apply_template", toolstest.Object{"node_id": node})
	w.Approve(t, w.Parked(t, "system_unassign_module_from_template", join))
	w.args["system_apply_template"] = []toolstest.Object{{"node_id": node, "purge_stale": true}}
	w.walk(t, func(t *testing.T, d *tools.Definition, args toolstest.Object) {
		if !d.Contract().Annotations.Destructive || takesNothing[d.Name()] != "" {
			return
		}
		plan := w.CallAs(t, w.callerOf(d), "platform_preview", toolstest.Object{"verb": d.Name(), "arguments": args})
		if lost := plan["irreversible"].([]any); len(lost) == 0 {
			t.Errorf("its plan calls nothing irreversible: %s %s", spelt(plan["effects"]), spelt(plan["refusals"]))
		}
	})
}

// TestPlanSaysWhetherAMachineIsDestroyed holds for every way to end one.
func TestPlanSaysWhetherAMachineIsDestroyed(t *testing.T) {
	t.Parallel()
	s := newWorld(t)
	instance := fmt.Sprint(s.args["system_reap_instance"][0]["instance_id"])
	s.Update(t, func(ctx context.Context, tx *store.Tx) error {
		i, err := store.InstanceByID(ctx, &tx.View, s.Account.ID, store.InstanceID(instance))
		if err == nil {
			i.CloudInstanceID = "m-3" // the world's has never had a machine
			_, err = store.UpdateInstance(ctx, tx, i)
		}
		return err
	})
	const destroyed = `its machine is destroyed, with all that is on it`
	for verb, want := range map[string]string{
		"system_terminate_instance":     `System::NodeInstance "m-3" terminated: ` + destroyed,
		"system_reap_instance":          `System::NodeInstance "m-3" terminated: ` + destroyed,
		"system_replace_instance":       `System::NodeInstance "m-3" replaced: ` + destroyed,
		"system_destroy_instance":       `System::NodeInstance "m-3" deleted`,
		"system_stop_instance":          `cut off: what it has not written to disk is lost`,
		"system_reboot_instance":        `cut off: what it has not written to disk is lost`,
		"system_promote_module_version": `System::NodeModuleVersion "own 1" retired: no machine gets it again`,
	} {
		t.Run(verb, func(t *testing.T) {
			args := map[string]toolstest.Object{
				"system_terminate_instance":     {"instance_id": instance},
				"system_promote_module_version": {"module_version_id": s.args["system_promote_module_version"][0]["module_version_id"], "target_state": "retired"},
			}[verb]
			if args == nil {
				args = s.args[verb][len(s.args[verb])-1] // the last of them is the forced one
			}
			plan := s.Call(t, "platform_preview", toolstest.Object{"verb": verb, "arguments": args})
			lost := plan["irreversible"].([]any)
			if !slices.ContainsFunc(lost, func(o any) bool { return strings.HasSuffix(o.(string), want) }) {
				t.Errorf("%v, want %q", lost, want)
			}
		})
	}
}
