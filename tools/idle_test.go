package tools_test

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
	"powernode/tools"
	"powernode/tools/toolstest"
)

// strictly has calls of a verb parked from here on.
func (w *world) strictly(t *testing.T, d *tools.Definition) {
	t.Helper()
	for _, category := range append(slices.Clone(d.Contract().Escalates), d.Contract().Category) {
		w.SetPolicy(t, category, governance.RequireApproval, governance.Scope{})
	}
}

func (w *world) audited(t *testing.T) float64 {
	t.Helper()
	return w.CallAs(t, governance.PersonCaller(w.Person), "platform_audit_log", nil)["count"].(float64)
}

// revisionIn is the revision that an answer says, where it says an integer.
func revisionIn(t *testing.T, answer []byte) (at int64, is bool) {
	t.Helper()
	var said struct{ Revision *int64 }
	if answer == nil {
		return 0, false
	}
	if err := json.Unmarshal(answer, &said); err != nil {
		t.Fatal(err)
	}
	if said.Revision == nil {
		return 0, false
	}
	return *said.Revision, true
}

// The contract calls a verb idempotent whose second call has no effect: a person is not asked about that.
func TestACallWhoseEffectIsThereAsksNobodyAndChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, args := range w.args["system_update_provider_connection"] {
		args["test_connection"] = false // a test measures anew whenever it is asked for
	}
	walked := 0
	second := func(d *tools.Definition, args toolstest.Object) {
		walked++
		caller := w.callerOf(d)
		if id, parked := w.CallAs(t, caller, d.Name(), args)["deferred_operation_id"].(string); parked {
			w.Approve(t, store.OperationID(id))
		}
		w.strictly(t, d)
		before, revision := w.audited(t), w.Revision(t)
		answer, err := w.Platform.Call(t.Context(), caller, tools.Request{Verb: d.Name(), Arguments: encoded(t, args)})
		var refused *schema.Error
		if err != nil && (!errors.As(err, &refused) || refused.Code != schema.PreconditionFailed && refused.Code != schema.Conflict) {
			t.Errorf("%s: the second call with %v: %v", d.Name(), args, err)
		}
		if answer.Pending {
			t.Errorf("%s: the second call with %v asks a person: %s", d.Name(), args, answer.JSON)
		}
		if rows := w.audited(t) - before; rows != 0 {
			t.Errorf("%s: the second call with %v left %.0f audit rows", d.Name(), args, rows)
		}
		if at, is := revisionIn(t, answer.JSON); err == nil && (!is || at > revision) {
			t.Errorf("%s: the second call with %v answers revision %v, want one up to %v: %s", d.Name(), args, at, revision, answer.JSON)
		}
	}
	for _, destructive := range []bool{false, true} { // what ends others' targets comes last
		for _, d := range w.Platform.Verbs() {
			c := d.Contract()
			if !c.Annotations.ReadOnly && c.Annotations.Idempotent && !c.HumanOnly && c.Annotations.Destructive == destructive {
				second(d, w.args[d.Name()][0])
			}
		}
	}
	if walked < 20 {
		t.Errorf("only %d verbs are idempotent", walked)
	}
}

func TestAConfirmationIsAskedForAlsoWhereNothingIsToDo(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.running(t, "a-1")
	s.Approve(t, s.Parked(t, "system_terminate_instance", on(id)))
	if again := s.Call(t, "system_terminate_instance", on(id)); again["terminated"] != true {
		t.Errorf("terminated again: %s, want the result again", spelt(again))
	}
	asked := s.Call(t, "request_confirmation", toolstest.Object{"action_description": "again", "tool_name": "system_terminate_instance",
		"tool_arguments": on(id)})
	if asked["status"] != "confirmation_requested" {
		t.Errorf("a confirmation: %s, want it asked for", spelt(asked))
	}
}

func TestADrainIsDoneOnceUntilWorkComesBack(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.running(t, "a-1")
	s.SetPolicy(t, "system.instance_drain", governance.AutoApprove, governance.Scope{})
	first := at(t, s.Call(t, "system_drain_instance", on(id)), "task", "id")
	if again := at(t, s.Call(t, "system_drain_instance", on(id)), "task", "id"); again != first {
		t.Errorf("drained again: task %v, want the first, %v", again, first)
	}
	s.Call(t, "system_uncordon_instance", on(id))
	if anew := at(t, s.Call(t, "system_drain_instance", on(id)), "task", "id"); anew == first {
		t.Error("drained after work came back: the old task is answered")
	}
}
