package signal

import (
	"context"
	"errors"
	"fmt"

	"powernode/store"
)

// Severities, in rising order.
const (
	Low      = "low"
	Medium   = "medium"
	High     = "high"
	Critical = "critical"
)

var rank = map[string]int{Low: 0, Medium: 1, High: 2, Critical: 3}

// Subject is what a signal is about; what does not apply is empty.
type Subject struct {
	NodeID     store.NodeID
	InstanceID store.InstanceID
	ModuleID   store.ModuleID
	ClusterID  store.ClusterID
	NetworkID  store.NetworkID
}

// Event is a signal to emit. Severity is the catalogue's where it is empty.
type Event struct {
	Kind          string
	Severity      string
	Subject       Subject
	Payload       store.Object
	CorrelationID string // empty: the transaction's
}

// Emit writes a signal of a single kind, or a closing kind whose opening one was never needed.
func Emit(ctx context.Context, tx *store.Tx, acct store.AccountID, e Event) error {
	k, known := Catalogue[e.Kind]
	if !known || k.Closes != "" {
		return fmt.Errorf("emit %q: not a kind of the catalogue that stands alone", e.Kind)
	}
	return insert(ctx, tx, acct, e, k, "")
}

// Open tells that something began, once: again only when its severity rises. subject is what the family's
// fingerprint names, mostly an id.
func Open(ctx context.Context, tx *store.Tx, acct store.AccountID, subject string, e Event) error {
	k, known := Catalogue[e.Kind]
	if !known || k.Closes == "" {
		return fmt.Errorf("open %q: not an opening kind of the catalogue", e.Kind)
	}
	if e.Severity == "" {
		e.Severity = k.Severity
	}
	fingerprint := k.Family + ":" + subject
	open, err := store.ConditionByFingerprint(ctx, &tx.View, acct, fingerprint)
	switch {
	case err == nil && open.Kind == e.Kind && rank[e.Severity] <= rank[open.Severity]:
		return nil
	case err != nil && !errors.Is(err, store.ErrNoRow):
		return fmt.Errorf("look for condition %s: %w", fingerprint, err)
	}
	c := store.Condition{Fingerprint: fingerprint, Kind: e.Kind, Severity: e.Severity, OpenedAt: open.OpenedAt}
	if err != nil {
		c.OpenedAt = store.At(tx.Now())
	}
	if err := store.PutCondition(ctx, tx, acct, c); err != nil {
		return err
	}
	return insert(ctx, tx, acct, e, k, fingerprint)
}

// Close tells that something ended; nothing happens when it had not begun. kind is the opening kind.
func Close(ctx context.Context, tx *store.Tx, acct store.AccountID, subject, kind string, about Subject, payload store.Object) error {
	k, known := Catalogue[kind]
	if !known || k.Closes == "" {
		return fmt.Errorf("close %q: not an opening kind of the catalogue", kind)
	}
	fingerprint := k.Family + ":" + subject
	open, err := store.ConditionByFingerprint(ctx, &tx.View, acct, fingerprint)
	if errors.Is(err, store.ErrNoRow) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for condition %s: %w", fingerprint, err)
	}
	if err := store.DeleteCondition(ctx, tx, acct, fingerprint); err != nil {
		return err
	}
	full := store.Object{"opened_at": open.OpenedAt, "duration_seconds": int64(tx.Now().Sub(open.OpenedAt.Time).Seconds())}
	for key, value := range payload {
		full[key] = value
	}
	return insert(ctx, tx, acct, Event{Kind: k.Closes, Severity: Low, Subject: about, Payload: full}, Catalogue[k.Closes], fingerprint)
}

func insert(ctx context.Context, tx *store.Tx, acct store.AccountID, e Event, k Kind, fingerprint string) error {
	if e.Severity == "" {
		e.Severity = k.Severity
	}
	if e.CorrelationID == "" {
		e.CorrelationID = tx.Actor().CorrelationID
	}
	source := tx.Actor().Verb
	if source == "" {
		source = tx.Actor().Kind
	}
	_, err := store.InsertSignal(ctx, tx, store.Signal{AccountID: acct, Kind: e.Kind, Severity: e.Severity, NodeID: e.Subject.NodeID,
		NodeInstanceID: e.Subject.InstanceID, ModuleID: e.Subject.ModuleID, ClusterID: e.Subject.ClusterID,
		NetworkID: e.Subject.NetworkID, Payload: e.Payload, Fingerprint: fingerprint, CorrelationID: e.CorrelationID, Source: source})
	return err
}
