package store

import (
	"context"
	"fmt"
)

// Departure is a machine that lives on after its instance has ended: its agent cleans up, and says so. It stands by itself,
// and outlives the rows of its instance.
type Departure struct {
	InstanceID       InstanceID
	AccountID        AccountID
	NodeID           NodeID
	Name             string
	DocumentRevision int64
	Document         []byte // the last, by which the agent leaves
	Since            Time
	CleanedAt        *Time
}

const departureColumns = `instance_id, account_id, node_id, name, document_revision, document, since, cleaned_at`

// DepartureOf finds an instance's departure, or ErrNoRow.
func DepartureOf(ctx context.Context, v *View, id InstanceID) (Departure, error) {
	return scanDeparture(v.queryRow(ctx, `SELECT `+departureColumns+` FROM departures WHERE instance_id = ?`, id))
}

// DepartureBySerial finds the departure of the machine that a certificate was issued to, and that certificate as it was
// issued; or ErrNoRow.
func DepartureBySerial(ctx context.Context, v *View, serial string) (d Departure, certPEM string, err error) {
	err = v.queryRow(ctx, `SELECT instance_id, cert_pem FROM departure_certificates WHERE serial = ?`, serial).Scan(&d.InstanceID, &certPEM)
	if err != nil {
		return d, "", fmt.Errorf("read a departed machine's certificate: %w", err)
	}
	d, err = DepartureOf(ctx, v, d.InstanceID)
	return d, certPEM, err
}

func scanDeparture(s scanner) (Departure, error) {
	var d Departure
	err := s.Scan(&d.InstanceID, &d.AccountID, &d.NodeID, &d.Name, &d.DocumentRevision, &d.Document, &d.Since, &d.CleanedAt)
	if err != nil {
		return d, fmt.Errorf("read departure: %w", err)
	}
	return d, nil
}

// InsertDeparture records that a machine is to leave, and by which certificates it is known: all that its instance had.
func InsertDeparture(ctx context.Context, tx *Tx, d Departure) error {
	err := tx.exec(ctx, `INSERT INTO departures (`+departureColumns+`) VALUES (?,?,?,?,?,?,?,?)`, d.InstanceID, d.AccountID, d.NodeID, d.Name,
		d.DocumentRevision, d.Document, d.Since, d.CleanedAt)
	if err != nil {
		return fmt.Errorf("write departure: %w", err)
	}
	err = tx.exec(ctx, `INSERT INTO departure_certificates (serial, instance_id, cert_pem)
		SELECT serial, instance_id, cert_pem FROM certificates WHERE instance_id = ?`, d.InstanceID)
	if err != nil {
		return fmt.Errorf("write a departed machine's certificates: %w", err)
	}
	return nil
}

// FinishDeparture records that a machine is clean.
func FinishDeparture(ctx context.Context, tx *Tx, id InstanceID, at Time) error {
	return tx.exec(ctx, `UPDATE departures SET cleaned_at = ? WHERE instance_id = ?`, at, id)
}
