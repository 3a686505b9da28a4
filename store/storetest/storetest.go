// Package storetest opens real stores for tests.
//
// It is a leaf for tests only: nothing of the product imports it. Every store is a file of its own in the test's
// directory, with seeded randomness, and is checked for damage when the test ends.
package storetest

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"powernode/store"
)

// New opens a fresh store. It ends with an integrity and a foreign key check.
func New(t testing.TB) *store.DB {
	t.Helper()
	db, err := store.Open(context.Background(), store.Options{
		Path: filepath.Join(t.TempDir(), "powernode.db"),
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
