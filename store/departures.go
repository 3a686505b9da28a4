package store

import (
	"context"
	"fmt"
)

// Departure is a machine that lives on after its instance has ended: its agent cleans up, and says so.
type Departure struct {
	InstanceID       InstanceID
	DocumentRevision int64 // of the document that tells the agent to leave
	EndsAt           Time  // its certificate holds no longer
	CleanedAt        *Time
}

// DepartureOf finds an instance's departure, or ErrNoRow.
func DepartureOf(ctx context.Context, v *View, id InstanceID) (Departure, error) {
	var d Departure
	err := v.queryRow(ctx, `SELECT instance_id, document_revision, ends_at, cleaned_at FROM departures WHERE instance_id = ?`, id).
		Scan(&d.InstanceID, &d.DocumentRevision, &d.EndsAt, &d.CleanedAt)
	if err != nil {
		return d, fmt.Errorf("read departure: %w", err)
	}
	return d, nil
}

// InsertDeparture records that a machine is to leave.
func InsertDeparture(ctx context.Context, tx *Tx, d Departure) error {
	return tx.exec(ctx, `INSERT INTO departures (instance_id, document_revision, ends_at) VALUES (?,?,?)`,
		d.InstanceID, d.DocumentRevision, d.EndsAt)
}

// FinishDeparture records that a machine is clean.
func FinishDeparture(ctx context.Context, tx *Tx, id InstanceID, at Time) error {
	return tx.exec(ctx, `UPDATE departures SET cleaned_at = ? WHERE instance_id = ?`, at, id)
}
