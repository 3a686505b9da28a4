package storetest

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"testing"

	_ "github.com/mattn/go-sqlite3" // the driver
)

// Write changes a store's file as whoever may write it does.
func Write(t testing.TB, path string, statements ...string) {
	t.Helper()
	onFile(t, path, func(tx *sql.Tx) error { return execute(tx, statements) })
}

// Rewrite does that, and numbers and hashes the audit chain anew, so that it fits.
func Rewrite(t testing.TB, path string, statements ...string) {
	t.Helper()
	onFile(t, path, func(tx *sql.Tx) error {
		if err := execute(tx, statements); err != nil {
			return err
		}
		return rehash(tx)
	})
}

func onFile(t testing.TB, path string, do func(tx *sql.Tx) error) {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+path+"?_busy_timeout=10000&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(context.Background(), nil)
	if err == nil {
		if err = do(tx); err == nil {
			err = tx.Commit()
		} else {
			err = errors.Join(err, tx.Rollback())
		}
	}
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatalf("write the store's file: %v", err)
	}
}

func execute(tx *sql.Tx, statements []string) error {
	for _, s := range statements {
		if _, err := tx.Exec(s); err != nil {
			return err
		}
	}
	return nil
}

// auditRow is a row of the audit chain as its hash covers it.
type auditRow struct {
	Sequence                                      int64
	PreviousHash, ID, AccountID, Action           string
	ResourceType, ResourceID, Actor, Verb         string
	Old, New, OperationID, CorrelationID, Created string
}

func rehash(tx *sql.Tx) error {
	found, err := tx.Query(`SELECT id, coalesce(account_id, ''), action, resource_type, resource_id, actor, verb, old_values, new_values,
		coalesce(operation_id, ''), correlation_id, created_at FROM audit ORDER BY sequence`)
	if err != nil {
		return err
	}
	defer found.Close()
	var rows []auditRow
	for found.Next() {
		var r auditRow
		if err := found.Scan(&r.ID, &r.AccountID, &r.Action, &r.ResourceType, &r.ResourceID, &r.Actor, &r.Verb, &r.Old, &r.New,
			&r.OperationID, &r.CorrelationID, &r.Created); err != nil {
			return err
		}
		rows = append(rows, r)
	}
	if err := errors.Join(found.Err(), found.Close(), execute(tx, []string{`UPDATE audit SET sequence = -sequence`})); err != nil {
		return err
	}
	previous := ""
	for i, r := range rows {
		r.Sequence, r.PreviousHash = int64(i+1), previous
		spelt, err := json.Marshal(r)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(spelt)
		previous = hex.EncodeToString(sum[:])
		_, err = tx.Exec(`UPDATE audit SET sequence = ?, previous_hash = ?, hash = ? WHERE id = ?`, r.Sequence, r.PreviousHash, previous, r.ID)
		if err != nil {
			return err
		}
	}
	return nil
}
