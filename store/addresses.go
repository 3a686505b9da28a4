package store

import (
	"context"
	"fmt"
	"time"
)

// AddressRest is how long a released address, range or interface number is left alone.
const AddressRest = 24 * time.Hour

// AddressRange is a prefix that an account has given to somebody: nothing else may overlap it.
type AddressRange struct {
	AccountID  AccountID
	Prefix     Prefix
	Kind       string // network, pod_cidr, service_cidr, lan_subnet, pod_subnet_prefix
	OwnerID    string
	OwnerName  string
	ReleasedAt *Time
}

func scanAddressRange(_ *View, s scanner) (AddressRange, error) {
	var r AddressRange
	if err := s.Scan(&r.AccountID, &r.Prefix, &r.Kind, &r.OwnerID, &r.OwnerName, &r.ReleasedAt); err != nil {
		return r, fmt.Errorf("read address range: %w", err)
	}
	return r, nil
}

// AddressRanges lists what an account has taken, and what rests after its release.
func AddressRanges(ctx context.Context, v *View, acct AccountID) ([]AddressRange, error) {
	return collect(v, ctx, scanAddressRange, `SELECT account_id, prefix, kind, owner_id, owner_name, released_at FROM address_ranges
		WHERE account_id = ? AND (released_at IS NULL OR released_at > ?) ORDER BY prefix, kind`, acct, At(v.now.Add(-AddressRest)))
}

// TakeAddressRange gives a range to its owner.
func TakeAddressRange(ctx context.Context, tx *Tx, r AddressRange) error {
	if _, err := tx.Revision(ctx); err != nil {
		return err
	}
	return tx.exec(ctx, `INSERT INTO address_ranges (account_id, prefix, kind, owner_id, owner_name) VALUES (?,?,?,?,?)
		ON CONFLICT (account_id, prefix, kind, owner_id) DO UPDATE SET owner_name = excluded.owner_name, released_at = NULL`,
		r.AccountID, r.Prefix, r.Kind, r.OwnerID, r.OwnerName)
}

// ReleaseAddressRanges lets all ranges of an owner rest.
func ReleaseAddressRanges(ctx context.Context, tx *Tx, acct AccountID, ownerID string) error {
	if _, err := tx.Revision(ctx); err != nil {
		return err
	}
	return tx.exec(ctx, `UPDATE address_ranges SET released_at = ? WHERE account_id = ? AND owner_id = ? AND released_at IS NULL`,
		At(tx.now), acct, ownerID)
}

// RenameAddressRanges follows an owner's name, so that refusals name it as it is called now.
func RenameAddressRanges(ctx context.Context, tx *Tx, acct AccountID, ownerID, name string) error {
	return tx.exec(ctx, `UPDATE address_ranges SET owner_name = ? WHERE account_id = ? AND owner_id = ?`, name, acct, ownerID)
}

// NetworkAddress is a single address of a network that somebody has, or had until its rest ends.
type NetworkAddress struct {
	AccountID  AccountID
	NetworkID  NetworkID
	Address    Addr
	Kind       string // peer, device, virtual_ip
	OwnerID    string
	ReleasedAt *Time
}

// NetworkAddresses lists the addresses of one kind in a network that can't be given now.
func NetworkAddresses(ctx context.Context, v *View, acct AccountID, network NetworkID, kind string) ([]NetworkAddress, error) {
	scan := func(_ *View, s scanner) (NetworkAddress, error) {
		var a NetworkAddress
		if err := s.Scan(&a.AccountID, &a.NetworkID, &a.Address, &a.Kind, &a.OwnerID, &a.ReleasedAt); err != nil {
			return a, fmt.Errorf("read address: %w", err)
		}
		return a, nil
	}
	return collect(v, ctx, scan, `SELECT account_id, network_id, address, kind, owner_id, released_at FROM addresses
		WHERE account_id = ? AND network_id = ? AND kind = ? AND (released_at IS NULL OR released_at > ?)`,
		acct, network, kind, At(v.now.Add(-AddressRest)))
}

// TakeAddress gives an address to its owner; one that has rested changes hands.
func TakeAddress(ctx context.Context, tx *Tx, a NetworkAddress) error {
	if _, err := tx.Revision(ctx); err != nil {
		return err
	}
	n, err := tx.execCount(ctx, `INSERT INTO addresses (account_id, network_id, address, kind, owner_id) VALUES (?,?,?,?,?)
		ON CONFLICT (account_id, address) DO UPDATE SET network_id = excluded.network_id, kind = excluded.kind,
		owner_id = excluded.owner_id, released_at = NULL WHERE addresses.released_at <= ?`,
		a.AccountID, a.NetworkID, a.Address, a.Kind, a.OwnerID, At(tx.now.Add(-AddressRest)))
	if err == nil && n == 0 {
		return fmt.Errorf("take address %s: it is not free", a.Address)
	}
	return err
}

// ReleaseAddresses lets an owner's addresses rest.
func ReleaseAddresses(ctx context.Context, tx *Tx, acct AccountID, ownerID string) error {
	if _, err := tx.Revision(ctx); err != nil {
		return err
	}
	return tx.exec(ctx, `UPDATE addresses SET released_at = ? WHERE account_id = ? AND owner_id = ? AND released_at IS NULL`,
		At(tx.now), acct, ownerID)
}

// ShortIDs answers which interface numbers of a host are in use, or rest.
func ShortIDs(ctx context.Context, v *View, instance InstanceID) (map[int]bool, error) {
	scan := func(_ *View, s scanner) (int, error) {
		var n int
		return n, s.Scan(&n)
	}
	rows, err := collect(v, ctx, scan, `SELECT short_id FROM short_ids WHERE instance_id = ? AND (released_at IS NULL OR released_at > ?)`,
		instance, At(v.now.Add(-AddressRest)))
	if err != nil {
		return nil, fmt.Errorf("read interface numbers: %w", err)
	}
	out := make(map[int]bool, len(rows))
	for _, n := range rows {
		out[n] = true
	}
	return out, nil
}

// TakeShortID gives an interface number of a host to a peer.
func TakeShortID(ctx context.Context, tx *Tx, instance InstanceID, n int, peer PeerID) error {
	return tx.exec(ctx, `INSERT INTO short_ids (instance_id, short_id, peer_id) VALUES (?,?,?)
		ON CONFLICT (instance_id, short_id) DO UPDATE SET peer_id = excluded.peer_id, released_at = NULL`, instance, n, peer)
}

// ReleaseShortID lets a peer's interface number rest.
func ReleaseShortID(ctx context.Context, tx *Tx, peer PeerID) error {
	return tx.exec(ctx, `UPDATE short_ids SET released_at = ? WHERE peer_id = ? AND released_at IS NULL`, At(tx.now), peer)
}

// LeftNetworks says whether a host has interface numbers that rest: it left a network a short time ago.
func LeftNetworks(ctx context.Context, v *View, instance InstanceID) (bool, error) {
	var n int
	err := v.queryRow(ctx, `SELECT count(*) FROM short_ids WHERE instance_id = ? AND released_at > ?`,
		instance, At(v.now.Add(-AddressRest))).Scan(&n)
	return n > 0, err
}
