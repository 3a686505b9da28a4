package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Options says how a store is opened. Zero values are the real thing; tests seed Now and Rand.
type Options struct {
	Path string // of the database file
	Now  func() time.Time
	Rand io.Reader
	// Publish runs at the end of every write transaction that touched a network or an instance, before the commit:
	// it compiles the documents that the change concerns, so that they carry the change's revision.
	Publish func(ctx context.Context, tx *Tx) error
}

// DB is the store: one writer, many readers.
type DB struct {
	writer, pool *sql.DB
	opt          Options
	write        chan struct{} // one token: whoever holds it writes; waiting respects the caller's context
	watch        watchers
	incarnation  string
	held         heldHead
}

// Open opens the database, makes or migrates it, and reads its incarnation.
func Open(ctx context.Context, opt Options) (*DB, error) {
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.Rand == nil {
		opt.Rand = rand.Reader
	}
	writer, pool, err := openSQLite(ctx, opt.Path)
	if err != nil {
		return nil, told(err)
	}
	db := &DB{writer: writer, pool: pool, opt: opt, write: make(chan struct{}, 1)}
	if err := errors.Join(db.readIncarnation(ctx), db.holdHead(ctx)); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// SetPublish says what compiles documents; main calls it once, before the store is served.
func (db *DB) SetPublish(publish func(ctx context.Context, tx *Tx) error) { db.opt.Publish = publish }

// Close closes the store. It does not wait for transactions: their owners have ended by then.
func (db *DB) Close() error { return errors.Join(db.pool.Close(), db.writer.Close()) }

// Check asks whether the database file and its references are whole.
func (db *DB) Check(ctx context.Context) error { return checkIntegrity(ctx, db.writer) }

// Incarnation names this store's life: a restored backup has another.
func (db *DB) Incarnation() string { return db.incarnation }

func (db *DB) readIncarnation(ctx context.Context) error {
	return db.Update(ctx, func(tx *Tx) error {
		err := tx.queryRow(ctx, `SELECT value FROM meta WHERE key = 'incarnation'`).Scan(&db.incarnation)
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		db.incarnation = tx.NewID()
		return tx.exec(ctx, `INSERT INTO meta (key, value) VALUES ('incarnation', ?)`, db.incarnation)
	})
}

// View is a consistent read. It remembers which rows it saw, and at which revision: a plan rests on them.
type View struct {
	conn *sql.Conn
	now  time.Time
	saw  map[Seen]int64
	note bool
}

// Seen names a row that a transaction read.
type Seen struct{ Table, ID string }

// View runs fn in a read transaction.
func (db *DB) View(ctx context.Context, fn func(v *View) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("begin to read: %w", err)
	}
	t, err := begin(context.WithoutCancel(ctx), db.pool, beginRead)
	if err != nil {
		return told(fmt.Errorf("begin to read: %w", err))
	}
	defer t.end()
	return told(fn(&View{conn: t.conn, now: db.opt.Now().UTC().Truncate(time.Millisecond)}))
}

// Now is the transaction's instant: one for all its rows.
func (v *View) Now() time.Time { return v.now }

// note remembers a row for the plan.
func (v *View) noteRow(table, id string, revision int64) {
	row := Seen{table, id}
	if _, before := v.saw[row]; v.note && !before { // what the run itself writes later is no ground of its plan
		v.saw[row] = revision
	}
}

// Tx is a write transaction; it contains a View that sees its own writes.
type Tx struct {
	View
	db        *DB
	revision  int64 // 0 until something asks for it
	made      []string
	instances map[InstanceID]bool
	networks  map[NetworkID]bool
	wake      map[string]bool
	effects   []AuditEntry
	committed []func()
	appended  Head // the transaction's last row of the audit chain; the zero value: it has none
	actor     Actor
}

// Actor is who a transaction's rows are written for.
type Actor struct {
	Kind          string // person, agent, platform, node_agent
	ID            string
	Verb          string
	OperationID   string
	CorrelationID string
}

// Update runs fn in the one write transaction of its time and commits it, or nothing of it. Publish runs at its end.
// After the commit those who watch what it touched are woken.
func (db *DB) Update(ctx context.Context, fn func(tx *Tx) error) error {
	return db.update(ctx, false, func(tx *Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		return db.publish(ctx, tx)
	})
}

// Plan is what a run would do: the audit rows it would write, and the rows that it rests on.
type Plan struct {
	Now       time.Time // of the run: what is of this instant or later was made by it
	Effects   []AuditEntry
	Seen      map[Seen]int64
	Made      []string // ids that the run made: another run makes others
	Instances []InstanceID
	Networks  []NetworkID
	Names     map[string]string // of rows that the run changes, by id, as they are without it; only of a dry run
	Writes    bool              // the run raised the store's revision: something changes
}

// Idle says whether the run changes nothing: what was asked for is so already.
func (p *Plan) Idle() bool {
	return !p.Writes && len(p.Effects) == 0 && len(p.Instances) == 0 && len(p.Networks) == 0
}

// errRollback ends a dry run.
var errRollback = errors.New("dry run")

// DryRun runs fn in a write transaction that is rolled back, and returns what it would have done.
func (db *DB) DryRun(ctx context.Context, fn func(tx *Tx) error) (*Plan, error) {
	var plan *Plan
	err := db.update(ctx, true, func(tx *Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		plan = tx.plan()
		return errRollback
	})
	if !errors.Is(err, errRollback) {
		return plan, err
	}
	err = db.View(ctx, func(v *View) (err error) {
		plan.Names, err = namesOf(ctx, v, plan.Effects)
		return err
	})
	return plan, err
}

func (db *DB) publish(ctx context.Context, tx *Tx) error {
	if db.opt.Publish == nil || (len(tx.instances) == 0 && len(tx.networks) == 0) {
		return nil
	}
	return db.opt.Publish(ctx, tx)
}

func (db *DB) update(ctx context.Context, note bool, fn func(tx *Tx) error) error {
	select {
	case db.write <- struct{}{}:
		defer func() { <-db.write }()
	case <-ctx.Done():
		return fmt.Errorf("wait to write: %w", ctx.Err())
	}
	// A transaction that has begun is not cancelled with its caller: its outcome can be looked up.
	ctx = context.WithoutCancel(ctx)
	t, err := begin(ctx, db.writer, beginWrite)
	if err != nil {
		return told(fmt.Errorf("begin to write: %w", err))
	}
	defer t.end()
	tx := &Tx{View: View{conn: t.conn, now: db.opt.Now().UTC().Truncate(time.Millisecond), note: note, saw: map[Seen]int64{}},
		db: db, instances: map[InstanceID]bool{}, networks: map[NetworkID]bool{}, wake: map[string]bool{}}
	if err := fn(tx); err != nil {
		return told(err)
	}
	if err := t.commit(); err != nil {
		return told(fmt.Errorf("commit: %w", err))
	}
	db.held.advance(tx.appended)
	for _, note := range tx.committed {
		note()
	}
	db.watch.wake(tx.wake)
	return nil
}

// Revision is the revision that this transaction writes; the first to ask for it raises the store's.
func (tx *Tx) Revision(ctx context.Context) (int64, error) {
	if tx.revision != 0 {
		return tx.revision, nil
	}
	row := tx.queryRow(ctx, `UPDATE revision SET value = value + 1 RETURNING value`)
	if err := row.Scan(&tx.revision); err != nil {
		return 0, fmt.Errorf("take a revision: %w", err)
	}
	return tx.revision, nil
}

// StandingRevision is the revision at which what this transaction leaves is so: its own, or the store's where it changes nothing.
func (tx *Tx) StandingRevision(ctx context.Context) (int64, error) {
	if tx.revision == 0 && len(tx.effects) == 0 && len(tx.instances) == 0 && len(tx.networks) == 0 {
		return tx.CurrentRevision(ctx)
	}
	return tx.Revision(ctx)
}

// CurrentRevision is the store's revision as the view sees it.
func (v *View) CurrentRevision(ctx context.Context) (int64, error) {
	var revision int64
	err := v.queryRow(ctx, `SELECT value FROM revision`).Scan(&revision)
	return revision, err
}

// NewID makes an id: a UUIDv7 of the transaction's instant (RFC 9562).
func (tx *Tx) NewID() string {
	var u uuid.UUID
	if _, err := io.ReadFull(tx.db.opt.Rand, u[6:]); err != nil {
		panic("the system has no randomness: " + err.Error()) // crypto/rand never fails; a test's source is endless
	}
	ms := tx.now.UnixMilli()
	for i := range 6 {
		u[i] = byte(ms >> (8 * (5 - i)))
	}
	u[6] = u[6]&0x0f | 0x70
	u[8] = u[8]&0x3f | 0x80
	id := u.String()
	tx.made = append(tx.made, id)
	return id
}

// Random fills b from the store's source; secrets come from here, so that tests can seed them.
func (tx *Tx) Random(b []byte) error {
	_, err := io.ReadFull(tx.db.opt.Rand, b)
	return err
}

// TouchInstance says that the document of an instance may have changed.
func (tx *Tx) TouchInstance(id InstanceID) { tx.instances[id] = true }

// TouchNetwork says that the documents of all of a network's members may have changed.
func (tx *Tx) TouchNetwork(id NetworkID) { tx.networks[id] = true }

// Touched answers what the transaction touched, sorted.
func (tx *Tx) Touched() ([]InstanceID, []NetworkID) {
	return sortedKeys(tx.instances), sortedKeys(tx.networks)
}

// Wake wakes those who watch a topic, after the commit.
func (tx *Tx) Wake(topic string) { tx.wake[topic] = true }

// Committed has a process note, once the transaction is committed, what it remembers of it. What is rolled back was not.
func (tx *Tx) Committed(note func()) { tx.committed = append(tx.committed, note) }

// Act names who the transaction's audit rows are written for.
func (tx *Tx) Act(a Actor) { tx.actor = a }

// Actor is who the transaction is written for.
func (tx *Tx) Actor() Actor { return tx.actor }

// Note remembers from here on which rows the transaction reads, so that Plan can tell what it rests on.
func (tx *Tx) Note() { tx.note = true }

// Plan is what the transaction has done until now.
func (tx *Tx) Plan() *Plan { return tx.plan() }

func (tx *Tx) plan() *Plan {
	instances, networks := tx.Touched()
	seen := make(map[Seen]int64, len(tx.saw))
	for row, revision := range tx.saw {
		if tx.revision == 0 || revision < tx.revision { // what the run itself wrote, it did not rest on
			seen[row] = revision
		}
	}
	return &Plan{Now: tx.now, Effects: tx.effects, Seen: seen, Made: tx.made, Instances: instances, Networks: networks,
		Writes: tx.revision != 0}
}

// A statement is not cancelled with its caller: it is short, a transaction that has begun runs to its end, and watching for
// a cancellation costs the driver a goroutine a statement, which is as much as the statement itself.

func (v *View) queryRow(ctx context.Context, query string, args ...any) *sql.Row {
	return v.conn.QueryRowContext(context.WithoutCancel(ctx), query, args...)
}

func (v *View) query(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return v.conn.QueryContext(context.WithoutCancel(ctx), query, args...)
}

func (tx *Tx) exec(ctx context.Context, query string, args ...any) error {
	_, err := tx.conn.ExecContext(context.WithoutCancel(ctx), query, args...)
	return err
}

// execCount runs a statement and answers how many rows it changed.
func (tx *Tx) execCount(ctx context.Context, query string, args ...any) (int64, error) {
	res, err := tx.conn.ExecContext(context.WithoutCancel(ctx), query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// collect reads all rows of a query with one scan function.
func collect[T any](v *View, ctx context.Context, scan func(*View, scanner) (T, error), query string, args ...any) ([]T, error) {
	rows, err := v.query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []T{}
	for rows.Next() {
		row, err := scan(v, rows)
		if err != nil {
			return nil, err
		}
		out = append(out, row)
	}
	return out, rows.Err()
}

// scanner is a *sql.Row or *sql.Rows.
type scanner interface{ Scan(dest ...any) error }

// ErrNoRow says that a look-up found nothing in the account. The domain turns it into not_found with its own words.
var ErrNoRow = sql.ErrNoRows

// watchers wake whoever waits for a topic.
type watchers struct {
	mu     sync.Mutex
	topics map[string]chan struct{}
}

// Watch returns a channel that is closed at the next commit that wakes the topic. Watch first, then read: nothing is
// missed in between.
func (db *DB) Watch(topic string) <-chan struct{} {
	w := &db.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.topics == nil {
		w.topics = map[string]chan struct{}{}
	}
	if w.topics[topic] == nil {
		w.topics[topic] = make(chan struct{})
	}
	return w.topics[topic]
}

func (w *watchers) wake(topics map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for topic := range topics {
		if ch := w.topics[topic]; ch != nil {
			close(ch)
			delete(w.topics, topic)
		}
	}
}
