package store_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"powernode/store"
	"powernode/store/storetest"
)

func TestOperationIDNamesATaskOfItsObjectForSevenDays(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	db := storetest.NewAt(t, clock)
	a := anAccount(t, db)
	update(t, db, func(ctx context.Context, tx *store.Tx) error {
		_, err := store.InsertTask(ctx, tx, store.Task{ID: "t-1", AccountID: a.ID, Command: "stop", Status: store.TaskComplete,
			OperableID: "i-1", Parameters: store.JSON[store.Object]{V: store.Object{"operation_id": "once"}}})
		return err
	})
	find := func(object string) (err error) {
		view(t, db, func(ctx context.Context, v *store.View) error {
			_, err = store.TaskOfOperation(ctx, v, a.ID, object, "stop", "once")
			return nil
		})
		return err
	}
	if err := find("i-1"); err != nil {
		t.Errorf("the task's own object: %v", err)
	}
	if err := find("i-2"); !errors.Is(err, store.ErrNoRow) {
		t.Errorf("another object: %v, want none", err)
	}
	clock.Advance(8 * 24 * time.Hour)
	if err := find("i-1"); !errors.Is(err, store.ErrNoRow) {
		t.Errorf("after eight days: %v, want none", err)
	}
}
