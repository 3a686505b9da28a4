package tools_test

import (
	"context"
	"encoding/json"
	"testing"

	"powernode/schema"
	"powernode/store"
	"powernode/tools"
	"powernode/tools/toolstest"
)

// repeatableVerb is a verb whose first results the call path keeps, with arguments that it would run with.
const repeatableVerb = "system_reboot_instance"

func TestKeyedCallAnswersItsFirstResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	args := toolstest.Object{"operation_id": "first"}
	for key, value := range w.args[repeatableVerb][0] {
		args[key] = value
	}
	first, err := w.Platform.Call(t.Context(), w.Caller, tools.Request{Verb: repeatableVerb, Arguments: encoded(t, args)})
	if err != nil || first.Pending {
		t.Fatalf("answered %s, %v", first.JSON, err)
	}
	revision := w.Revision(t)
	again, err := w.Platform.Call(t.Context(), w.Caller, tools.Request{Verb: repeatableVerb, Arguments: encoded(t, args), CallID: "c"})
	if err != nil || string(again.JSON) != string(first.JSON) {
		t.Errorf("again: %s, %v, want the first result %s", again.JSON, err, first.JSON)
	}
	if w.Revision(t) != revision {
		t.Error("the repetition wrote")
	}
	other := toolstest.Object{"instance_id": "01a22c8c-2c82-7202-bd22-04f288b6c0fa", "operation_id": "first"}
	w.Refused(t, repeatableVerb, other, schema.Conflict, "operation_id was used with other arguments")
	var stored []byte
	w.View(t, func(ctx context.Context, v *store.View) error {
		k, err := store.IdempotencyKeyOf(ctx, v, w.Account.ID, repeatableVerb, "first")
		stored = k.Result
		return err
	})
	if len(stored) == 0 || json.Valid(stored) {
		t.Errorf("the kept result is %q, want it sealed", stored)
	}
}

func TestRefusedCallUsesNoKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	gone := toolstest.Object{"instance_id": "01a22c8c-2c82-7202-bd22-04f288b6c0fa", "operation_id": "first"}
	w.Refused(t, repeatableVerb, gone, schema.NotFound, "")
	args := toolstest.Object{"operation_id": "first"}
	for key, value := range w.args[repeatableVerb][0] {
		args[key] = value
	}
	w.Call(t, repeatableVerb, args)
}
