package store_test

import (
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"powernode/store"
)

func TestResultsAreForgottenAfterTheirTime(t *testing.T) {
	t.Parallel()
	ctx, now := t.Context(), time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	db, err := store.Open(ctx, store.Options{Path: filepath.Join(t.TempDir(), "powernode.db"), Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	const acct = store.AccountID("account")
	err = db.Update(ctx, func(tx *store.Tx) error {
		if err := store.InsertAccount(ctx, tx, store.Account{ID: acct, Name: "home", Prefix: store.Prefix{Prefix: netip.MustParsePrefix("fd00::/48")}}); err != nil {
			return err
		}
		expires := store.At(now.Add(time.Hour))
		return store.PutExecutionEvent(ctx, tx, store.ExecutionEvent{ID: "event", AccountID: acct, Status: "ok", CallID: "call",
			Result: []byte("sealed"), ResultExpiresAt: &expires})
	})
	if err != nil {
		t.Fatal(err)
	}
	kept := func() []byte {
		var e store.ExecutionEvent
		err := db.Update(ctx, func(tx *store.Tx) error { return store.ForgetResults(ctx, tx) })
		if err == nil {
			err = db.View(ctx, func(v *store.View) (err error) {
				e, err = store.ExecutionEventByCall(ctx, v, acct, "call")
				return err
			})
		}
		if err != nil {
			t.Fatal(err)
		}
		return e.Result
	}
	now = now.Add(59 * time.Minute)
	if string(kept()) != "sealed" {
		t.Error("a result was forgotten before its time")
	}
	now = now.Add(2 * time.Minute)
	if got := kept(); got != nil {
		t.Errorf("a result is kept past its time: %q", got)
	}
}
