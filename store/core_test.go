package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"powernode/store"
	"powernode/store/storetest"
)

func TestSecretDoesNotShow(t *testing.T) {
	t.Parallel()
	s := store.Secret("hunter2")
	for _, shown := range []string{fmt.Sprint(s), fmt.Sprintf("%v %+v %#v %q", s, s, s, s)} {
		if strings.Contains(shown, "hunter2") {
			t.Errorf("it shows in %q", shown)
		}
	}
	if b, err := json.Marshal(struct{ S store.Secret }{s}); err == nil {
		t.Errorf("it marshals as %s", b)
	}
	if s.Reveal() != "hunter2" || len(s.Hash()) != 64 {
		t.Error("it is not itself")
	}
}

func TestSealedValueOpensInItsPlaceAlone(t *testing.T) {
	t.Parallel()
	sealer, err := store.NewSealer([]byte(strings.Repeat("k", 32)))
	if err != nil {
		t.Fatal(err)
	}
	var sealed []byte
	update(t, storetest.New(t), func(_ context.Context, tx *store.Tx) (err error) {
		sealed, err = sealer.Seal(tx, "clusters.token:a", []byte("secret"))
		return err
	})
	if opened, err := sealer.Open("clusters.token:a", sealed); err != nil || string(opened) != "secret" {
		t.Errorf("opened %q, %v", opened, err)
	}
	if _, err := sealer.Open("clusters.token:b", sealed); err == nil {
		t.Error("it opens in another place")
	}
	sealed[len(sealed)-1] ^= 1
	if _, err := sealer.Open("clusters.token:a", sealed); err == nil {
		t.Error("it opens after a change")
	}
	if _, err := sealer.Open("clusters.token:a", []byte("x")); err == nil {
		t.Error("a stump opens")
	}
	if _, err := store.NewSealer([]byte("short")); err == nil {
		t.Error("a short key is taken")
	}
}

func TestTimesAreTextThatSorts(t *testing.T) {
	t.Parallel()
	at := store.At(time.Date(2026, 1, 2, 3, 4, 5, 678_900_000, time.FixedZone("x", 3600)))
	b, err := json.Marshal(at)
	if err != nil || string(b) != `"2026-01-02T02:04:05.678Z"` {
		t.Errorf("encoded %s, %v", b, err)
	}
	var back store.Time
	if err := json.Unmarshal(b, &back); err != nil || !back.Equal(at.Time) {
		t.Errorf("decoded %v, %v, want %v", back, err, at)
	}
	value, err := at.Value()
	if err != nil {
		t.Fatal(err)
	}
	var scanned store.Time
	if err := scanned.Scan(value); err != nil || scanned != at {
		t.Errorf("scanned %v, %v, want %v", scanned, err, at)
	}
}

func TestSignalsAreReadInOrderAndByAccount(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	a := anAccount(t, db)
	other := anAccount(t, db)
	for i, kind := range []string{"k.a", "k.b", "k.a"} {
		update(t, db, func(ctx context.Context, tx *store.Tx) error {
			_, err := store.InsertSignal(ctx, tx, store.Signal{AccountID: a.ID, Kind: kind, Severity: []string{"low", "high", "low"}[i], CorrelationID: kind})
			return err
		})
	}
	update(t, db, func(ctx context.Context, tx *store.Tx) error {
		_, err := store.InsertSignal(ctx, tx, store.Signal{AccountID: other.ID, Kind: "k.a", Severity: "low"})
		return err
	})
	view(t, db, func(ctx context.Context, v *store.View) error {
		latest, err := store.LatestSignals(ctx, v, a.ID, "", "", 2)
		after, afterErr := store.SignalsAfter(ctx, v, a.ID, 0, []string{"k.a", "k.b"}, []string{"low"}, 10)
		none, noneErr := store.SignalsAfter(ctx, v, a.ID, 0, []string{}, nil, 10)
		last, lastErr := store.LastSignal(ctx, v)
		got := [][]int64{sequences(latest), sequences(after), sequences(none), {last}}
		if diff := cmp.Diff([][]int64{{3, 2}, {1, 3}, nil, {4}}, got); diff != "" {
			t.Errorf("sequences of latest, after, no kind, last (-want +got):\n%s", diff)
		}
		return errors.Join(err, afterErr, noneErr, lastErr)
	})
}

func sequences(signals []store.Signal) []int64 {
	var out []int64
	for _, s := range signals {
		out = append(out, s.Sequence)
	}
	return out
}

func TestEventsKeepTheirResultsForAWhile(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	a := anAccount(t, db)
	put := func(e store.ExecutionEvent) {
		update(t, db, func(ctx context.Context, tx *store.Tx) error { return store.PutExecutionEvent(ctx, tx, e) })
	}
	past := store.At(time.Now().Add(-time.Minute))
	e := store.ExecutionEvent{ID: "e", AccountID: a.ID, SourceType: "verb_call", EventType: "v", Status: "pending", CallID: "c"}
	put(e)
	e.Status, e.Result, e.ResultExpiresAt = "ok", []byte("sealed"), &past
	put(e) // its outcome, in the same row
	find := func() (got store.ExecutionEvent) {
		view(t, db, func(ctx context.Context, v *store.View) (err error) {
			got, err = store.ExecutionEventByCall(ctx, v, a.ID, "c")
			return err
		})
		return got
	}
	if got := find(); got.Status != "ok" || string(got.Result) != "sealed" {
		t.Errorf("got %+v, want the outcome", got)
	}
	update(t, db, func(ctx context.Context, tx *store.Tx) error { return store.ForgetResults(ctx, tx) })
	if got := find(); got.Result != nil || got.Status != "ok" {
		t.Errorf("got %+v, want no result any more", got)
	}
}

func TestIdempotencyKeysAreKeptForAWeek(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	db := openAt(t, t.TempDir()+"/s.db", func() time.Time { return now })
	a := anAccount(t, db)
	k := store.IdempotencyKey{AccountID: a.ID, Verb: "v", Key: "k", ArgumentsHash: "h", SubjectID: "s"}
	update(t, db, func(ctx context.Context, tx *store.Tx) error { return store.PutIdempotencyKey(ctx, tx, k) })
	find := func() (got store.IdempotencyKey, err error) {
		view(t, db, func(ctx context.Context, v *store.View) error {
			got, err = store.IdempotencyKeyOf(ctx, v, a.ID, "v", "k")
			return nil
		})
		return got, err
	}
	now = now.AddDate(0, 0, 6)
	if got, err := find(); err != nil || cmp.Diff(k, got) != "" {
		t.Errorf("after six days: %+v, %v, want it", got, err)
	}
	now = now.AddDate(0, 0, 2)
	if _, err := find(); !errors.Is(err, store.ErrNoRow) {
		t.Errorf("after eight days: %v, want none", err)
	}
}

func TestPendingOperationIsItsCallersAndItsArguments(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	a := anAccount(t, db)
	o := store.Operation{ID: "o", AccountID: a.ID, Verb: "v", Arguments: []byte("sealed"), ArgumentsHash: "h", Status: "pending",
		ActionCategory: "c", PlanDigest: "d", CreatedAt: store.At(time.Now()), ExpiresAt: store.At(time.Now().Add(time.Hour))}
	o.RequestedBy.V = store.Object{"id": "agent"}
	update(t, db, func(ctx context.Context, tx *store.Tx) error { return store.InsertOperation(ctx, tx, o) })
	for _, tt := range []struct {
		verb, hash, caller string
		found              bool
	}{{"v", "h", "agent", true}, {"w", "h", "agent", false}, {"v", "i", "agent", false}, {"v", "h", "eve", false}} {
		view(t, db, func(ctx context.Context, v *store.View) error {
			got, err := store.PendingOperation(ctx, v, a.ID, tt.verb, tt.hash, tt.caller)
			if (err == nil) != tt.found || (tt.found && got.RequesterID != "agent") {
				t.Errorf("%+v: %+v, %v", tt, got.ID, err)
			}
			return nil
		})
	}
}
