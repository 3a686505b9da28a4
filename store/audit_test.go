package store_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	"powernode/store"
)

// auditedStore is a store with three audit rows; it answers the path of its file.
func auditedStore(t *testing.T) (*store.DB, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s.db")
	db := openAt(t, path, nil)
	a := anAccount(t, db)
	for _, action := range []string{"created", "updated", "deleted"} {
		update(t, db, func(ctx context.Context, tx *store.Tx) error {
			tx.Act(store.Actor{Kind: "agent", ID: "agent", Verb: "test", CorrelationID: tx.NewID()})
			_, err := tx.Audit(ctx, store.AuditEntry{AccountID: a.ID, Action: action, ResourceType: "System::Node", ResourceID: "n",
				New: store.Object{"name": "a<b", "count": 1, "nested": store.Object{"b": nil, "a": []any{1.5, "x"}}}})
			return err
		})
	}
	return db, path
}

func verifyAudit(t *testing.T, db *store.DB) (count int64, err error) {
	t.Helper()
	view(t, db, func(ctx context.Context, v *store.View) error {
		count, err = store.VerifyAudit(ctx, v, nil)
		return nil
	})
	return count, err
}

func TestAuditChainVerifies(t *testing.T) {
	t.Parallel()
	db, _ := auditedStore(t)
	if count, err := verifyAudit(t, db); err != nil || count != 3 {
		t.Errorf("%d rows fit (%v), want 3", count, err)
	}
}

func TestAuditChainNamesTheRowThatDoesNotFit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, statement string
		row             int64
	}{
		{"a value changed", `UPDATE audit SET new_values = '{}' WHERE sequence = 2`, 2},
		{"an actor changed", `UPDATE audit SET actor = '{"id":"eve","kind":"agent"}' WHERE sequence = 1`, 1},
		{"a row removed", `DELETE FROM audit WHERE sequence = 2`, 3},
		{"the first row removed", `DELETE FROM audit WHERE sequence = 1`, 2},
		{"a hash changed", `UPDATE audit SET hash = 'x' WHERE sequence = 3`, 3},
		{"two rows swapped", `UPDATE audit SET sequence = CASE sequence WHEN 2 THEN -3 ELSE -2 END WHERE sequence > 1;
			UPDATE audit SET sequence = -sequence WHERE sequence < 0`, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			db, path := auditedStore(t)
			raw, err := sql.Open("sqlite3", path)
			if err != nil {
				t.Fatal(err)
			}
			_, err = raw.ExecContext(t.Context(), tt.statement)
			if err := errors.Join(err, raw.Close()); err != nil {
				t.Fatal(err)
			}
			_, err = verifyAudit(t, db)
			var broken *store.BrokenAuditError
			if !errors.As(err, &broken) || broken.Sequence != tt.row {
				t.Errorf("got %v, want row %d named", err, tt.row)
			}
		})
	}
}

func TestAuditOfNarrowsByResource(t *testing.T) {
	t.Parallel()
	db, _ := auditedStore(t)
	view(t, db, func(ctx context.Context, v *store.View) error {
		accounts, err := store.Accounts(ctx, v)
		if err != nil {
			return err
		}
		rows, err := store.AuditOf(ctx, v, accounts[0].ID, "System::Node", "n")
		if len(rows) != 3 || rows[0].Action != "created" || rows[0].Actor.ID != "agent" || rows[0].New["name"] != "a<b" {
			t.Errorf("rows = %+v, want three, oldest first", rows)
		}
		none, other := store.AuditOf(ctx, v, accounts[0].ID, "System::NodeInstance", "")
		if len(none) != 0 {
			t.Errorf("rows of another type: %v", none)
		}
		return errors.Join(err, other)
	})
}
