package store

import (
	"context"
	"fmt"
)

// StoredDocument is an instance's desired document as it was last composed. Hash covers the content without revision
// and incarnation, so that equal content keeps its revision.
type StoredDocument struct {
	InstanceID InstanceID
	Revision   int64
	Hash       string
	Body       []byte
	CompiledAt Time
}

// DocumentOf finds an instance's document, or ErrNoRow.
func DocumentOf(ctx context.Context, v *View, id InstanceID) (StoredDocument, error) {
	d := StoredDocument{InstanceID: id}
	err := v.queryRow(ctx, `SELECT revision, hash, body, compiled_at FROM documents WHERE instance_id = ?`, id).
		Scan(&d.Revision, &d.Hash, &d.Body, &d.CompiledAt)
	if err != nil {
		return d, fmt.Errorf("read document: %w", err)
	}
	return d, nil
}

// DocumentHead is DocumentOf without the body: revision and hash, or zeros where there is none.
func DocumentHead(ctx context.Context, v *View, id InstanceID) (revision int64, hash string, err error) {
	err = v.queryRow(ctx, `SELECT coalesce(max(revision), 0), coalesce(max(hash), '') FROM documents WHERE instance_id = ?`, id).
		Scan(&revision, &hash)
	return revision, hash, err
}

// PutDocument writes an instance's document at the transaction's revision and wakes its agent.
func PutDocument(ctx context.Context, tx *Tx, d StoredDocument) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	err = tx.exec(ctx, `INSERT INTO documents (instance_id, revision, hash, body, compiled_at) VALUES (?,?,?,?,?)
		ON CONFLICT (instance_id) DO UPDATE SET revision = excluded.revision, hash = excluded.hash, body = excluded.body,
		compiled_at = excluded.compiled_at`, d.InstanceID, revision, d.Hash, d.Body, At(tx.now))
	if err != nil {
		return fmt.Errorf("write document: %w", err)
	}
	tx.Wake(TopicDocument(d.InstanceID))
	return nil
}
