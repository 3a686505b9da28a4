package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// AuditEntry is one change as the record keeps it. Values hold no secret; a changed secret is named, not shown.
type AuditEntry struct {
	ID           AuditEntryID
	AccountID    AccountID
	Action       string // created, updated, deleted, read, approved, rejected, …
	ResourceType string // System::Node, …
	ResourceID   string
	Old, New     Object // only what changed; nil is {}
	Actor        Actor
	CreatedAt    Time
	PreviousHash string
	Hash         string
	Sequence     int64
}

// Audit appends a row to the hash chain, in the transaction of the change that it tells.
func (tx *Tx) Audit(ctx context.Context, e AuditEntry) (AuditEntryID, error) {
	e.ID, e.Actor, e.CreatedAt = AuditEntryID(tx.NewID()), tx.actor, At(tx.now)
	if e.Old == nil {
		e.Old = Object{}
	}
	if e.New == nil {
		e.New = Object{}
	}
	last, err := tx.goesOn(ctx)
	if err != nil {
		return "", err
	}
	e.Sequence, e.PreviousHash = last.Rows+1, last.Hash
	c, err := e.content()
	if err != nil {
		return "", err
	}
	e.Hash = c.hash()
	tx.effects = append(tx.effects, e)
	err = tx.exec(ctx, `INSERT INTO audit (sequence, id, account_id, action, resource_type, resource_id, actor, verb, old_values,
		new_values, operation_id, correlation_id, created_at, previous_hash, hash) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`,
		e.Sequence, e.ID, e.AccountID, e.Action, e.ResourceType, e.ResourceID, c.Actor, e.Actor.Verb, c.Old, c.New,
		nullable(e.Actor.OperationID), e.Actor.CorrelationID, e.CreatedAt, e.PreviousHash, e.Hash)
	if err != nil {
		return "", fmt.Errorf("append to the audit chain: %w", err)
	}
	tx.appended = Head{Rows: e.Sequence, Hash: e.Hash}
	return e.ID, nil
}

// goesOn is the end of the chain that the transaction appends to. A chain that has lost what this process has seen of it
// takes nothing more: what was written behind a cut would make it a chain that fits.
func (tx *Tx) goesOn(ctx context.Context) (Head, error) {
	if tx.appended.Rows > 0 {
		return tx.appended, nil
	}
	last, err := AuditHead(ctx, &tx.View)
	if err != nil {
		return last, err
	}
	held := tx.db.Head()
	if last == held {
		return last, nil
	}
	holds, err := HasHead(ctx, &tx.View, held)
	switch {
	case err != nil:
		return last, err
	case !holds:
		return last, &Fault{what: "the record of changes lost rows under the control plane", cause: &CutAuditError{held},
			advice: "a person runs powernode audit verify and looks into it; the control plane writes again once it was restarted"}
	}
	return last, nil
}

// CutAuditError says that the audit chain has lost the row that it ended with before.
type CutAuditError struct{ Head Head }

func (e *CutAuditError) Error() string {
	return fmt.Sprintf("the audit chain ended with row %d before, and that row is gone or another", e.Head.Rows)
}

// Head is the end of the audit chain at some time: how many rows it had, and the hash of the last.
type Head struct {
	Rows int64  `json:"rows"`
	Hash string `json:"hash"`
}

// String spells a head as people note it.
func (h Head) String() string { return fmt.Sprintf("%d:%s", h.Rows, h.Hash) }

var headSpelt = regexp.MustCompile(`^([1-9][0-9]{0,17}):([0-9a-f]{64})$`)

// ParseHead reads what String spells.
func ParseHead(s string) (Head, error) {
	found := headSpelt.FindStringSubmatch(s)
	if found == nil {
		return Head{}, errors.New("a head of the audit chain is ROWS:HASH, as audit verify prints it")
	}
	rows, err := strconv.ParseInt(found[1], 10, 64)
	return Head{Rows: rows, Hash: found[2]}, err
}

// AuditHead is the end of the chain as the view sees it; the zero value of one without rows.
func AuditHead(ctx context.Context, v *View) (h Head, err error) {
	err = v.queryRow(ctx, `SELECT sequence, hash FROM audit ORDER BY sequence DESC LIMIT 1`).Scan(&h.Rows, &h.Hash)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return h, fmt.Errorf("read the end of the audit chain: %w", err)
	}
	return h, nil
}

// HasHead says whether the chain once ended so: the row is there, with this hash. Every chain has begun with no rows.
func HasHead(ctx context.Context, v *View, h Head) (bool, error) {
	if h.Rows == 0 {
		return h.Hash == "", nil
	}
	var hash string
	err := v.queryRow(ctx, `SELECT hash FROM audit WHERE sequence = ?`, h.Rows).Scan(&hash)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return false, fmt.Errorf("read row %d of the audit chain: %w", h.Rows, err)
	}
	return err == nil && hash == h.Hash, nil
}

// heldHead is the end of the audit chain as this process has last seen it, which nobody who writes the database can change.
type heldHead struct {
	mu   sync.Mutex
	head Head
}

func (h *heldHead) advance(to Head) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if to.Rows > h.head.Rows {
		h.head = to
	}
}

// Head is the end of the audit chain as this process has last seen it. Ask before a view begins: the chain that it sees
// goes on from there.
func (db *DB) Head() Head {
	db.held.mu.Lock()
	defer db.held.mu.Unlock()
	return db.held.head
}

// holdHead takes the chain as it is: from here on this process knows better.
func (db *DB) holdHead(ctx context.Context) error {
	return db.View(ctx, func(v *View) error {
		h, err := AuditHead(ctx, v)
		db.held.advance(h)
		return err
	})
}

// auditContent is what an entry's hash covers, as the columns hold it.
type auditContent struct {
	Sequence                                      int64
	PreviousHash, ID, AccountID, Action           string
	ResourceType, ResourceID, Actor, Verb         string
	Old, New, OperationID, CorrelationID, Created string
}

func (e AuditEntry) content() (auditContent, error) {
	actor, err := json.Marshal(map[string]string{"kind": e.Actor.Kind, "id": e.Actor.ID})
	if err != nil {
		return auditContent{}, err
	}
	oldValues, err := json.Marshal(e.Old)
	if err != nil {
		return auditContent{}, fmt.Errorf("encode old values: %w", err)
	}
	newValues, err := json.Marshal(e.New)
	if err != nil {
		return auditContent{}, fmt.Errorf("encode new values: %w", err)
	}
	return auditContent{Sequence: e.Sequence, PreviousHash: e.PreviousHash, ID: string(e.ID), AccountID: string(e.AccountID),
		Action: e.Action, ResourceType: e.ResourceType, ResourceID: e.ResourceID, Actor: string(actor), Verb: e.Actor.Verb,
		Old: string(oldValues), New: string(newValues), OperationID: e.Actor.OperationID, CorrelationID: e.Actor.CorrelationID,
		Created: e.CreatedAt.String()}, nil
}

func (c auditContent) hash() string {
	b, _ := json.Marshal(c) // a struct of strings and a number always encodes
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

const auditColumns = `sequence, id, coalesce(account_id, ''), action, resource_type, resource_id, actor, verb, old_values, new_values,
	coalesce(operation_id, ''), correlation_id, created_at, previous_hash, hash`

// BrokenAuditError names the first row of the audit chain that does not fit.
type BrokenAuditError struct {
	Sequence int64
	ID       string
	Reason   string
}

func (e *BrokenAuditError) Error() string {
	return fmt.Sprintf("audit row %d (%s): %s", e.Sequence, e.ID, e.Reason)
}

// VerifyAudit walks the chain and answers how many rows fit; the first that doesn't is a *BrokenAuditError.
// each, if not nil, is called with every row that fits.
func VerifyAudit(ctx context.Context, v *View, each func(AuditEntry) error) (int64, error) {
	rows, err := v.query(ctx, `SELECT `+auditColumns+` FROM audit ORDER BY sequence`)
	if err != nil {
		return 0, fmt.Errorf("read the audit chain: %w", err)
	}
	defer rows.Close()
	var count int64
	previous := ""
	for rows.Next() {
		c, hash, err := scanAuditContent(rows)
		if err != nil {
			return count, err
		}
		switch {
		case c.Sequence != count+1:
			return count, &BrokenAuditError{c.Sequence, c.ID, fmt.Sprintf("row %d is missing before it", count+1)}
		case c.PreviousHash != previous:
			return count, &BrokenAuditError{c.Sequence, c.ID, "it does not follow the row before it"}
		case c.hash() != hash:
			return count, &BrokenAuditError{c.Sequence, c.ID, "its content is not what was written"}
		}
		if each != nil {
			e, err := c.entry(hash)
			if err != nil {
				return count, err
			}
			if err := each(e); err != nil {
				return count, err
			}
		}
		count, previous = count+1, hash
	}
	return count, rows.Err()
}

// AuditOf lists an account's rows about a type of resource, oldest first; id narrows it to one where not empty.
func AuditOf(ctx context.Context, v *View, acct AccountID, resourceType, id string) ([]AuditEntry, error) {
	condition, args := `account_id = ? AND resource_type = ?`, []any{acct, resourceType}
	if id != "" { // a condition of its own: the index finds one resource's rows among many
		condition, args = condition+` AND resource_id = ?`, append(args, id)
	}
	return collect(v, ctx, scanAudit, `SELECT `+auditColumns+` FROM audit WHERE `+condition+` ORDER BY sequence`, args...)
}

// AuditFilter narrows the record.
type AuditFilter struct {
	AccountID     AccountID // empty: of all accounts
	ResourceTypes []string  // nil: all
	Action        string    // empty: all
}

// where is the filter as a condition with its arguments.
func (f AuditFilter) where() (string, []any) {
	condition, args := "TRUE", []any{}
	if f.AccountID != "" {
		condition, args = condition+" AND account_id = ?", append(args, f.AccountID)
	}
	if f.Action != "" {
		condition, args = condition+" AND action = ?", append(args, f.Action)
	}
	if f.ResourceTypes != nil {
		condition += " AND resource_type IN (" + strings.TrimSuffix(strings.Repeat("?,", len(f.ResourceTypes)), ",") + ")"
		for _, t := range f.ResourceTypes {
			args = append(args, t)
		}
	}
	return condition, args
}

// AuditPage lists rows that fit, latest first, from before a sequence on (0: from the end), and counts all that fit.
func AuditPage(ctx context.Context, v *View, f AuditFilter, before int64, limit int) (entries []AuditEntry, count int64, err error) {
	condition, args := f.where()
	if err := v.queryRow(ctx, `SELECT count(*) FROM audit WHERE `+condition, args...).Scan(&count); err != nil {
		return nil, 0, fmt.Errorf("count audit rows: %w", err)
	}
	if before > 0 {
		condition, args = condition+" AND sequence < ?", append(args, before)
	}
	entries, err = collect(v, ctx, scanAudit, `SELECT `+auditColumns+` FROM audit WHERE `+condition+` ORDER BY sequence DESC LIMIT ?`, append(args, limit)...)
	return entries, count, err
}

func scanAudit(_ *View, s scanner) (AuditEntry, error) {
	c, hash, err := scanAuditContent(s)
	if err != nil {
		return AuditEntry{}, err
	}
	return c.entry(hash)
}

func scanAuditContent(s scanner) (auditContent, string, error) {
	var c auditContent
	var hash string
	err := s.Scan(&c.Sequence, &c.ID, &c.AccountID, &c.Action, &c.ResourceType, &c.ResourceID, &c.Actor, &c.Verb, &c.Old, &c.New,
		&c.OperationID, &c.CorrelationID, &c.Created, &c.PreviousHash, &hash)
	if err != nil {
		return c, "", fmt.Errorf("read an audit row: %w", err)
	}
	return c, hash, nil
}

func (c auditContent) entry(hash string) (AuditEntry, error) {
	e := AuditEntry{ID: AuditEntryID(c.ID), AccountID: AccountID(c.AccountID), Action: c.Action, ResourceType: c.ResourceType,
		ResourceID: c.ResourceID, PreviousHash: c.PreviousHash, Hash: hash, Sequence: c.Sequence}
	var actor struct{ Kind, ID string }
	if err := json.Unmarshal([]byte(c.Actor), &actor); err != nil {
		return e, fmt.Errorf("read the actor of audit row %s: %w", c.ID, err)
	}
	e.Actor = Actor{Kind: actor.Kind, ID: actor.ID, Verb: c.Verb, OperationID: c.OperationID, CorrelationID: c.CorrelationID}
	if err := json.Unmarshal([]byte(c.Old), &e.Old); err != nil {
		return e, fmt.Errorf("read audit row %s: %w", c.ID, err)
	}
	if err := json.Unmarshal([]byte(c.New), &e.New); err != nil {
		return e, fmt.Errorf("read audit row %s: %w", c.ID, err)
	}
	return e, e.CreatedAt.Scan(c.Created)
}

// nullable stores an empty text as NULL.
func nullable[T ~string](s T) any {
	if s == "" {
		return nil
	}
	return string(s)
}
