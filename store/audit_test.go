package store_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	"powernode/store"
	"powernode/store/storetest"
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

func TestChainTakesNothingBehindACut(t *testing.T) {
	t.Parallel()
	appended := func(t *testing.T, db *store.DB) error {
		return db.Update(t.Context(), func(tx *store.Tx) error {
			tx.Act(store.Actor{Kind: "agent", ID: "agent", CorrelationID: tx.NewID()})
			_, err := tx.Audit(t.Context(), store.AuditEntry{Action: "created", ResourceType: "System::Node", ResourceID: "m"})
			return err
		})
	}
	for _, tt := range []struct {
		name, statement string
		refused         bool
	}{
		{"the last row removed", `DELETE FROM audit WHERE sequence = 3`, true},
		{"all rows removed", `DELETE FROM audit`, true},
		{"the last row another", `UPDATE audit SET hash = 'x' WHERE sequence = 3`, true},
		{"a row added", `INSERT INTO audit SELECT 4, 'x', account_id, action, resource_type, resource_id, actor, verb, old_values, new_values,
			operation_id, correlation_id, created_at, hash, 'y' FROM audit WHERE sequence = 3`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			db, path := auditedStore(t)
			storetest.Write(t, path, tt.statement)
			err := appended(t, db)
			var cut *store.CutAuditError
			if errors.As(err, &cut) != tt.refused || (err != nil) != tt.refused || (tt.refused && cut.Head.Rows != 3) {
				t.Errorf("got %v, want it refused: %t", err, tt.refused)
			}
			if err := appended(t, openAt(t, path, nil)); err != nil {
				t.Errorf("after a restart: %v", err)
			}
		})
	}
}

func TestRolledBackRowIsNoHead(t *testing.T) {
	t.Parallel()
	db, _ := auditedStore(t)
	before := db.Head()
	audit := func(tx *store.Tx) error {
		for range 2 {
			if _, err := tx.Audit(t.Context(), store.AuditEntry{Action: "created", ResourceType: "System::Node", ResourceID: "m"}); err != nil {
				return err
			}
		}
		return nil
	}
	if _, err := db.DryRun(t.Context(), audit); err != nil || db.Head() != before {
		t.Errorf("after a dry run: %v, head %v, want %v", err, db.Head(), before)
	}
	if err := db.Update(t.Context(), audit); err != nil || db.Head().Rows != before.Rows+2 {
		t.Errorf("after a write: %v, head %v, want %d rows", err, db.Head(), before.Rows+2)
	}
	if count, err := verifyAudit(t, db); err != nil || count != before.Rows+2 {
		t.Errorf("%d rows fit (%v)", count, err)
	}
}

func FuzzParseHead(f *testing.F) {
	const hash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
	for _, seed := range []string{"1:" + hash, "0:" + hash, "01:" + hash, "999999999999999999999:" + hash, ":" + hash, "1:", "1", "", "-1:" + hash, "1:" + hash + "\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		head, err := store.ParseHead(s)
		if err == nil && (head.String() != s || head.Rows < 1 || len(head.Hash) != len(hash)) {
			t.Errorf("%q is read as %+v", s, head)
		}
	})
}
