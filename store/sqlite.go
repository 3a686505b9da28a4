package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"

	"github.com/mattn/go-sqlite3"
	"github.com/pressly/goose/v3"
)

// What is SQLite's own stands in this file: pragmas, BEGIN IMMEDIATE, the checkpoint. A PostgreSQL store would have
// another.

//go:embed migrations/*.sql
var migrations embed.FS

const readers = 8

// openSQLite opens the one writer and the pool of readers of a database file.
func openSQLite(ctx context.Context, path string) (writer, pool *sql.DB, err error) {
	dsn := func(extra string) string {
		return "file:" + (&url.URL{Path: path}).EscapedPath() +
			"?_journal_mode=WAL&_synchronous=FULL&_foreign_keys=on&_busy_timeout=10000&_stmt_cache_size=256" + extra
	}
	writer, err = sql.Open("sqlite3", dsn("&_txlock=immediate")) // as the migrations begin
	if err != nil {
		return nil, nil, fmt.Errorf("open the store: %w", err)
	}
	writer.SetMaxOpenConns(1)
	if err := migrate(ctx, writer); err != nil {
		writer.Close()
		return nil, nil, err
	}
	pool, err = sql.Open("sqlite3", dsn("&_query_only=on"))
	if err != nil {
		writer.Close()
		return nil, nil, fmt.Errorf("open the store's readers: %w", err)
	}
	pool.SetMaxOpenConns(readers)
	pool.SetMaxIdleConns(readers)
	return writer, pool, nil
}

// How a transaction begins: one that writes has the store's lock from its first statement on.
const (
	beginRead  = "BEGIN"
	beginWrite = "BEGIN IMMEDIATE"
)

// transaction is one on a connection that is its own until it ends. database/sql's type of that name would watch for the
// end of a context in a goroutine for the transaction and in another for each query: as much work as the queries, and
// nothing ever ends ours but their owner.
type transaction struct {
	conn *sql.Conn
	done bool // committed
}

func begin(ctx context.Context, db *sql.DB, how string) (*transaction, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.ExecContext(ctx, how); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &transaction{conn: conn}, nil
}

func (t *transaction) commit() error {
	_, err := t.conn.ExecContext(context.Background(), "COMMIT")
	t.done = err == nil
	return err
}

// end rolls back what was not committed and gives the connection back; one that is still inside a transaction is closed.
func (t *transaction) end() {
	if !t.done {
		t.conn.ExecContext(context.Background(), "ROLLBACK") // SQLite may have done it by itself: its state tells, below
		t.conn.Raw(func(c any) error {
			if open, ok := c.(*sqlite3.SQLiteConn); ok && open.AutoCommit() {
				return nil
			}
			return driver.ErrBadConn
		})
	}
	t.conn.Close() // fails on the closed one alone
}

// repeats says whether a statement was refused because what it writes must be unique.
func repeats(err error) bool {
	var refused sqlite3.Error
	return errors.As(err, &refused) && refused.ExtendedCode == sqlite3.ErrConstraintUnique
}

func migrate(ctx context.Context, db *sql.DB) error {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, files)
	if err != nil {
		return fmt.Errorf("read the store's migrations: %w", err)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate the store: %w", err)
	}
	return nil
}

// checkIntegrity asks SQLite whether the file and its foreign keys are whole.
func checkIntegrity(ctx context.Context, db *sql.DB) error {
	var verdict string
	if err := db.QueryRowContext(ctx, `PRAGMA integrity_check`).Scan(&verdict); err != nil {
		return fmt.Errorf("check integrity: %w", err)
	}
	if verdict != "ok" {
		return fmt.Errorf("store is damaged: %s", verdict)
	}
	rows, err := db.QueryContext(ctx, `PRAGMA foreign_key_check`)
	if err != nil {
		return fmt.Errorf("check foreign keys: %w", err)
	}
	defer rows.Close()
	if rows.Next() {
		var table string
		var rowid, parent, index any
		if err := rows.Scan(&table, &rowid, &parent, &index); err != nil {
			return err
		}
		return fmt.Errorf("row %v of %s refers to nothing in %v", rowid, table, parent)
	}
	return rows.Err()
}
