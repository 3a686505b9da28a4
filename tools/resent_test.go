package tools_test

import (
	"errors"
	"testing"

	"powernode/schema"
	"powernode/store"
	"powernode/tools"
	"powernode/tools/toolstest"
)

// A call that was done must not be done again because its answer is gone.
func TestDoneCallWhoseResultIsForgottenIsNotRepeated(t *testing.T) {
	t.Parallel()
	e := toolstest.New(t)
	ctx := t.Context()
	request := tools.Request{Verb: "system_sdwan_create_network", Arguments: []byte(`{"name": "prod"}`), CallID: "call-1"}
	if _, err := e.Platform.Call(ctx, e.Caller, request); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Platform.Call(ctx, e.Caller, request); err != nil {
		t.Fatalf("sent again within its time: %v", err)
	}
	err := e.Platform.DB.Update(ctx, func(tx *store.Tx) error {
		event, err := store.ExecutionEventByCall(ctx, &tx.View, e.Account.ID, "call-1")
		if err != nil {
			return err
		}
		event.Result, event.ResultExpiresAt = nil, nil
		return store.PutExecutionEvent(ctx, tx, event)
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Platform.Call(ctx, e.Caller, request); !errors.Is(err, &schema.Error{Code: schema.Conflict}) {
		t.Errorf("sent again after its time: %v, want conflict", err)
	}
}
