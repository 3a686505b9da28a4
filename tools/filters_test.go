package tools_test

import (
	"maps"
	"slices"
	"testing"

	"powernode/schema"
	"powernode/tools/toolstest"
)

// TestAReadByAnIDThatIsNotOfTheAccountFindsNothing walks every reader's ids, filters among them: what another account has
// can't be told from what there is not, and neither is an empty list.
func TestAReadByAnIDThatIsNotOfTheAccountFindsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	foreign := w.AddAccount(t, "other", "fd12:3456:789a::/48").ID
	walked := 0
	for _, d := range w.Platform.Verbs() {
		if !d.Contract().Annotations.ReadOnly || len(w.args[d.Name()]) == 0 {
			continue
		}
		input := d.Contract().InputShape()
		for _, name := range input.Names {
			given := any(string(foreign))
			switch p := input.Properties[name]; {
			case p.Type == "array" && p.Items.Format == "uuid":
				given = []any{given}
			case p.Format != "uuid":
				continue
			}
			walked++
			t.Run(d.Name()+" "+name, func(t *testing.T) {
				args := maps.Clone(w.args[d.Name()][0])
				args[name] = given
				refused := w.RefusedAs(t, w.callerOf(d), d.Name(), args, schema.NotFound, "not found")
				if len(refused.Details) > 0 && slices.Contains(refused.Details["candidates"].([]string), string(foreign)) {
					t.Errorf("the refusal names it: %s", spelt(refused))
				}
			})
		}
	}
	if walked < 30 {
		t.Errorf("only %d ids are taken by readers", walked)
	}
	w.Refused(t, "system_list_tasks", toolstest.Object{"instance_id": foreign}, schema.NotFound, "instance not found")
}
