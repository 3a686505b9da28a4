// Package storetest opens real stores for tests.
//
// It is a leaf for tests only: nothing of the product imports it. Every store is a file of its own in the test's
// directory, with seeded randomness, and is checked for damage when the test ends.
package storetest

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"powernode/store"
)

// New opens a fresh store. It ends with an integrity and a foreign key check.
func New(t testing.TB) *store.DB {
	t.Helper()
	return open(t, nil)
}

// NewAt is New with a clock that the test moves.
func NewAt(t testing.TB, c *Clock) *store.DB {
	t.Helper()
	return open(t, c.Now)
}

// Clock is a store's time, which stands until the test moves it.
type Clock struct {
	mu sync.Mutex
	at time.Time
}

// NewClock makes a clock that stands at an instant of the past, so that what the machine's own clock says is later.
func NewClock() *Clock { return &Clock{at: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }

// Now is the clock's instant.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

// Advance moves the clock.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

func open(t testing.TB, now func() time.Time) *store.DB {
	t.Helper()
	db, err := store.Open(context.Background(), store.Options{
		Path: filepath.Join(t.TempDir(), "powernode.db"),
		Now:  now,
		Rand: rand.NewChaCha8([32]byte{'p', 'o', 'w', 'e', 'r', 'n', 'o', 'd', 'e'}),
	})
	if err != nil {
		t.Fatalf("open a store: %v", err)
	}
	t.Cleanup(func() {
		if err := db.Check(context.Background()); err != nil {
			t.Errorf("store after the test: %v", err)
		}
		if err := db.Close(); err != nil {
			t.Errorf("close the store: %v", err)
		}
	})
	return db
}
