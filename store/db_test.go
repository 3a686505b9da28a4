package store_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"powernode/schema"
	"powernode/store"
	"powernode/store/storetest"
)

func update(t *testing.T, db *store.DB, fn func(ctx context.Context, tx *store.Tx) error) {
	t.Helper()
	if err := db.Update(t.Context(), func(tx *store.Tx) error { return fn(t.Context(), tx) }); err != nil {
		t.Fatalf("write: %v", err)
	}
}

func view(t *testing.T, db *store.DB, fn func(ctx context.Context, v *store.View) error) {
	t.Helper()
	if err := db.View(t.Context(), func(v *store.View) error { return fn(t.Context(), v) }); err != nil {
		t.Fatalf("read: %v", err)
	}
}

// anAccount makes an account with its prefix.
func anAccount(t *testing.T, db *store.DB) store.Account {
	t.Helper()
	a := store.Account{Name: "home", Prefix: store.Prefix{Prefix: netip.MustParsePrefix("fd5e:8a21:c0de::/48")}}
	update(t, db, func(ctx context.Context, tx *store.Tx) error {
		a.ID = store.AccountID(tx.NewID())
		return store.InsertAccount(ctx, tx, a)
	})
	return a
}

func revision(t *testing.T, db *store.DB) (n int64) {
	t.Helper()
	view(t, db, func(ctx context.Context, v *store.View) (err error) {
		n, err = v.CurrentRevision(ctx)
		return err
	})
	return n
}

func TestWhatAProcessNotesOfATransactionIsOfOneThatWasCommitted(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	var noted []string
	as := func(name string, outcome error) func(*store.Tx) error {
		return func(tx *store.Tx) error {
			tx.Committed(func() { noted = append(noted, name) })
			return outcome
		}
	}
	if err := db.Update(t.Context(), as("rolled back", errors.New("boom"))); err == nil {
		t.Error("a transaction that fails is committed")
	}
	if _, err := db.DryRun(t.Context(), as("dry run", nil)); err != nil {
		t.Error(err)
	}
	if err := db.Update(t.Context(), as("committed", nil)); err != nil {
		t.Error(err)
	}
	if want := []string{"committed"}; !slices.Equal(noted, want) {
		t.Errorf("noted %q, want %q", noted, want)
	}
}

func TestTransactionIsWholeOrAbsent(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	before := revision(t, db)
	boom := errors.New("boom")
	err := db.Update(t.Context(), func(tx *store.Tx) error {
		if err := store.InsertAccount(t.Context(), tx, store.Account{ID: "a", Name: "a", Prefix: store.Prefix{Prefix: netip.MustParsePrefix("fd00::/48")}}); err != nil {
			return err
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Fatalf("got %v, want the error of the transaction", err)
	}
	view(t, db, func(ctx context.Context, v *store.View) error {
		accounts, err := store.Accounts(ctx, v)
		if len(accounts) != 0 {
			t.Errorf("accounts = %v, want none", accounts)
		}
		return err
	})
	if after := revision(t, db); after != before {
		t.Errorf("revision %d after a failed transaction, want %d", after, before)
	}
}

func TestTransactionThatPanicsGivesItsConnectionBack(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	guarded := func(run func() error) {
		defer func() {
			if r := recover(); r != "boom" {
				t.Errorf("recovered %v, want boom", r)
			}
		}()
		t.Errorf("got %v, want a panic", run())
	}
	for range 20 { // more than there are connections
		guarded(func() error { return db.View(ctx, func(*store.View) error { panic("boom") }) })
		guarded(func() error {
			return db.Update(ctx, func(tx *store.Tx) error {
				if _, err := tx.Revision(ctx); err != nil {
					t.Error(err)
				}
				panic("boom")
			})
		})
	}
	before := revision(t, db)
	if err := db.Update(ctx, func(tx *store.Tx) error {
		_, err := tx.Revision(ctx)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if after := revision(t, db); after != before+1 {
		t.Errorf("revision %d, want %d: what panicked wrote nothing", after, before+1)
	}
}

func TestTransactionHasOneInstantAndOneRevision(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	anAccount(t, db)
	update(t, db, func(ctx context.Context, tx *store.Tx) error {
		now := tx.Now()
		first, err := tx.Revision(ctx)
		if err != nil {
			return err
		}
		second, err := tx.Revision(ctx)
		if err != nil {
			return err
		}
		if first != second || !tx.Now().Equal(now) {
			t.Errorf("revisions %d and %d, instants %s and %s", first, second, now, tx.Now())
		}
		if current, err := tx.CurrentRevision(ctx); err != nil || current != first {
			t.Errorf("the store is at %d (%v), want %d", current, err, first)
		}
		return nil
	})
}

func TestIdsAreSortedInTime(t *testing.T) {
	t.Parallel()
	clock := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	db := openAt(t, filepath.Join(t.TempDir(), "s.db"), func() time.Time { clock = clock.Add(time.Millisecond); return clock })
	var ids []string
	for range 5 {
		update(t, db, func(_ context.Context, tx *store.Tx) error { ids = append(ids, tx.NewID()); return nil })
	}
	for i, id := range ids {
		if !schema.IsID(id) || id[14] != '7' || (i > 0 && id <= ids[i-1]) {
			t.Errorf("ids = %v, want UUIDv7 in rising order", ids)
			break
		}
	}
}

func openAt(t *testing.T, path string, now func() time.Time) *store.DB {
	t.Helper()
	db, err := store.Open(t.Context(), store.Options{Path: path, Now: now})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(db.Check(context.Background()), db.Close()); err != nil {
			t.Errorf("store after the test: %v", err)
		}
	})
	return db
}

func TestManyWritersNeverFindTheStoreLocked(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	a := anAccount(t, db)
	before := revision(t, db)
	const writers, each = 20, 10
	var group sync.WaitGroup
	failed := make(chan error, 2*writers*each)
	for w := range writers {
		group.Go(func() {
			for n := range each {
				failed <- db.Update(context.Background(), func(tx *store.Tx) error {
					u := store.User{ID: store.UserID(tx.NewID()), AccountID: a.ID, Email: fmt.Sprintf("%d-%d@example.org", w, n), Role: "viewer"}
					return store.InsertUser(context.Background(), tx, u)
				})
				failed <- db.View(context.Background(), func(v *store.View) error {
					_, err := store.Users(context.Background(), v, a.ID)
					return err
				})
			}
		})
	}
	group.Wait()
	close(failed)
	for err := range failed {
		if err != nil {
			t.Error(err)
		}
	}
	if after := revision(t, db); after != before+writers*each {
		t.Errorf("revision %d, want %d: one a transaction", after, before+writers*each)
	}
}

func TestWaitingToWriteEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	update(t, db, func(context.Context, *store.Tx) error {
		cancel()
		if err := db.Update(ctx, func(*store.Tx) error { return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("a second writer got %v, want its context's end", err)
		}
		return nil
	})
}

func TestWatcherIsWokenByTheCommitAlone(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	woken := db.Watch("topic")
	_ = db.Update(t.Context(), func(tx *store.Tx) error { tx.Wake("topic"); return errors.New("no") })
	select {
	case <-woken:
		t.Fatal("woken by a transaction that failed")
	default:
	}
	update(t, db, func(_ context.Context, tx *store.Tx) error { tx.Wake("topic"); return nil })
	<-woken
	again := db.Watch("topic")
	select {
	case <-again:
		t.Fatal("a new watcher is woken by an old commit")
	default:
	}
}

func TestDryRunWritesNothingAndTellsItsGround(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	a := anAccount(t, db)
	before := revision(t, db)
	plan, err := db.DryRun(t.Context(), func(tx *store.Tx) error {
		if _, err := store.AccountByID(t.Context(), &tx.View, a.ID); err != nil {
			return err
		}
		u := store.User{ID: store.UserID(tx.NewID()), AccountID: a.ID, Email: "ada@example.org", Role: "admin"}
		if err := store.InsertUser(t.Context(), tx, u); err != nil {
			return err
		}
		if _, err := store.UserByRef(t.Context(), &tx.View, a.ID, string(u.ID)); err != nil { // its own row is no ground
			return err
		}
		_, err := tx.Audit(t.Context(), store.AuditEntry{AccountID: a.ID, Action: "created", ResourceType: "Governance::User", ResourceID: string(u.ID)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.Seen) != 1 || plan.Seen[store.Seen{Table: "accounts", ID: string(a.ID)}] != before {
		t.Errorf("the plan rests on %v, want the account at %d", plan.Seen, before)
	}
	if len(plan.Effects) != 1 || len(plan.Made) != 2 {
		t.Errorf("effects %v, made %v, want one effect and two ids", plan.Effects, plan.Made)
	}
	view(t, db, func(ctx context.Context, v *store.View) error {
		people, err := store.Users(ctx, v, a.ID)
		if len(people) != 0 {
			t.Errorf("people = %v, want none", people)
		}
		return err
	})
	if after := revision(t, db); after != before {
		t.Errorf("revision %d after a dry run, want %d", after, before)
	}
}

// A plan that changes a row rests on the revision that the row had before.
func TestPlanRestsOnTheRowsBeforeItsOwnWrites(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	a := anAccount(t, db)
	var u store.User
	update(t, db, func(ctx context.Context, tx *store.Tx) error {
		u = store.User{ID: store.UserID(tx.NewID()), AccountID: a.ID, Email: "ada@example.org", Role: "admin"}
		return store.InsertUser(ctx, tx, u)
	})
	before := revision(t, db)
	plan, err := db.DryRun(t.Context(), func(tx *store.Tx) error {
		read := func() error { _, err := store.UserByRef(t.Context(), &tx.View, a.ID, string(u.ID)); return err }
		return errors.Join(read(), store.SetUserKey(t.Context(), tx, a.ID, u.ID, []byte("k")), read())
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := plan.Seen[store.Seen{Table: "users", ID: string(u.ID)}]; got != before {
		t.Errorf("the plan rests on the row at %d, want %d", got, before)
	}
}

func TestStoreKeepsItsIncarnation(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	first, err := store.Open(t.Context(), store.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	born := first.Incarnation()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if second := openAt(t, path, nil); second.Incarnation() != born || born == "" {
		t.Errorf("incarnation %q after %q", second.Incarnation(), born)
	}
}

func TestForeignRowsAreNotFound(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	a := anAccount(t, db)
	view(t, db, func(ctx context.Context, v *store.View) error {
		if _, err := store.UserByRef(ctx, v, a.ID, "nobody"); !errors.Is(err, store.ErrNoRow) {
			t.Errorf("got %v, want no row", err)
		}
		return nil
	})
}
