package store

import (
	"context"
	"fmt"
)

// VirtualIP is an address that moves between peers of a network.
type VirtualIP struct {
	ID                    VirtualIPID
	AccountID             AccountID
	NetworkID             NetworkID
	Name                  string
	Address               Addr
	Anycast               bool
	State                 string // pending, active, failing_over, unassigned, error
	Epoch                 int64
	HolderPeerIDs         []PeerID
	FailoverHolderPeerIDs []PeerID
	AdvertisedMED         int64
	AdvertisedLocalPref   int64
	Tags                  []string
	Description           string
	ClusterID             ClusterID // empty: none
	CreatedAt             Time
	UpdatedAt             Time
	Revision              int64
}

// Holder is the primary holder, or "".
func (v VirtualIP) Holder() PeerID {
	if len(v.HolderPeerIDs) == 0 {
		return ""
	}
	return v.HolderPeerIDs[0]
}

const virtualIPColumns = `id, account_id, network_id, name, address, anycast, state, epoch, holder_peer_ids, failover_holder_peer_ids,
	advertised_med, advertised_local_pref, tags, description, coalesce(cluster_id, ''), created_at, updated_at, revision`

func scanVirtualIP(v *View, s scanner) (VirtualIP, error) {
	var ip VirtualIP
	var holders, candidates JSON[[]PeerID]
	var tags JSON[[]string]
	err := s.Scan(&ip.ID, &ip.AccountID, &ip.NetworkID, &ip.Name, &ip.Address, &ip.Anycast, &ip.State, &ip.Epoch, &holders, &candidates,
		&ip.AdvertisedMED, &ip.AdvertisedLocalPref, &tags, &ip.Description, &ip.ClusterID, &ip.CreatedAt, &ip.UpdatedAt, &ip.Revision)
	if err != nil {
		return ip, fmt.Errorf("read virtual IP: %w", err)
	}
	ip.HolderPeerIDs, ip.FailoverHolderPeerIDs, ip.Tags = holders.V, candidates.V, tags.V
	v.noteRow("virtual_ips", string(ip.ID), ip.Revision)
	return ip, nil
}

// VirtualIPByID finds a virtual IP.
func VirtualIPByID(ctx context.Context, v *View, acct AccountID, id VirtualIPID) (VirtualIP, error) {
	return scanVirtualIP(v, v.queryRow(ctx, `SELECT `+virtualIPColumns+` FROM virtual_ips WHERE account_id = ? AND id = ?`, acct, id))
}

// VirtualIPByName finds a network's virtual IP by its name.
func VirtualIPByName(ctx context.Context, v *View, acct AccountID, network NetworkID, name string) (VirtualIP, error) {
	return scanVirtualIP(v, v.queryRow(ctx, `SELECT `+virtualIPColumns+` FROM virtual_ips WHERE account_id = ? AND network_id = ? AND name = ?`,
		acct, network, name))
}

// VirtualIPsByNetwork lists a network's virtual IPs by name.
func VirtualIPsByNetwork(ctx context.Context, v *View, acct AccountID, network NetworkID) ([]VirtualIP, error) {
	return collect(v, ctx, scanVirtualIP, `SELECT `+virtualIPColumns+` FROM virtual_ips WHERE account_id = ? AND network_id = ? ORDER BY name`,
		acct, network)
}

// InsertVirtualIP makes a virtual IP.
func InsertVirtualIP(ctx context.Context, tx *Tx, ip VirtualIP) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `INSERT INTO virtual_ips (id, account_id, network_id, name, address, anycast, state, epoch, holder_peer_ids,
		failover_holder_peer_ids, advertised_med, advertised_local_pref, tags, description, cluster_id, created_at, updated_at, revision)
		VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`,
		ip.ID, ip.AccountID, ip.NetworkID, ip.Name, ip.Address, ip.Anycast, ip.State, ip.Epoch, JSON[[]PeerID]{notNil(ip.HolderPeerIDs)},
		JSON[[]PeerID]{notNil(ip.FailoverHolderPeerIDs)}, ip.AdvertisedMED, ip.AdvertisedLocalPref, JSON[[]string]{notNil(ip.Tags)},
		ip.Description, nullable(ip.ClusterID), At(tx.now), At(tx.now), revision)
}

// UpdateVirtualIP writes a virtual IP's changeable columns.
func UpdateVirtualIP(ctx context.Context, tx *Tx, ip VirtualIP) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `UPDATE virtual_ips SET name = ?, state = ?, epoch = ?, holder_peer_ids = ?, failover_holder_peer_ids = ?,
		advertised_med = ?, advertised_local_pref = ?, tags = ?, description = ?, cluster_id = ?, updated_at = ?, revision = ?
		WHERE account_id = ? AND id = ?`,
		ip.Name, ip.State, ip.Epoch, JSON[[]PeerID]{notNil(ip.HolderPeerIDs)}, JSON[[]PeerID]{notNil(ip.FailoverHolderPeerIDs)},
		ip.AdvertisedMED, ip.AdvertisedLocalPref, JSON[[]string]{notNil(ip.Tags)}, ip.Description, nullable(ip.ClusterID), At(tx.now),
		revision, ip.AccountID, ip.ID)
}

// DeleteVirtualIP removes a virtual IP with its assignments.
func DeleteVirtualIP(ctx context.Context, tx *Tx, acct AccountID, id VirtualIPID) error {
	if _, err := tx.Revision(ctx); err != nil {
		return err
	}
	return tx.exec(ctx, `DELETE FROM virtual_ips WHERE account_id = ? AND id = ?`, acct, id)
}

// VirtualIPAssignment is a time for which a peer holds, or held, a virtual IP.
type VirtualIPAssignment struct {
	ID                string
	VirtualIPID       VirtualIPID
	PeerID            PeerID
	AssumedAt         Time
	ReleasedAt        *Time // nil: open
	Reason            string
	TriggeredByUserID UserID // empty: nobody
}

// VirtualIPAssignments lists the latest assignments of a virtual IP, latest first.
func VirtualIPAssignments(ctx context.Context, v *View, id VirtualIPID, limit int) ([]VirtualIPAssignment, error) {
	scan := func(_ *View, s scanner) (VirtualIPAssignment, error) {
		var a VirtualIPAssignment
		err := s.Scan(&a.ID, &a.VirtualIPID, &a.PeerID, &a.AssumedAt, &a.ReleasedAt, &a.Reason, &a.TriggeredByUserID)
		if err != nil {
			return a, fmt.Errorf("read virtual IP assignment: %w", err)
		}
		return a, nil
	}
	return collect(v, ctx, scan, `SELECT id, virtual_ip_id, peer_id, assumed_at, released_at, reason, coalesce(triggered_by_user_id, '')
		FROM virtual_ip_assignments WHERE virtual_ip_id = ? ORDER BY assumed_at DESC, id DESC LIMIT ?`, id, limit)
}

// OpenVirtualIPAssignment begins the time of a holder.
func OpenVirtualIPAssignment(ctx context.Context, tx *Tx, a VirtualIPAssignment) error {
	return tx.exec(ctx, `INSERT INTO virtual_ip_assignments (id, virtual_ip_id, peer_id, assumed_at, reason, triggered_by_user_id)
		VALUES (?,?,?,?,?,?)`, tx.NewID(), a.VirtualIPID, a.PeerID, At(tx.now), a.Reason, nullable(a.TriggeredByUserID))
}

// CloseVirtualIPAssignment ends the time of a holder.
func CloseVirtualIPAssignment(ctx context.Context, tx *Tx, id VirtualIPID, peer PeerID) error {
	return tx.exec(ctx, `UPDATE virtual_ip_assignments SET released_at = ? WHERE virtual_ip_id = ? AND peer_id = ? AND released_at IS NULL`,
		At(tx.now), id, peer)
}

// UnsettledVirtualIPs lists a network's virtual IPs whose holder has yet to say that it holds them.
func UnsettledVirtualIPs(ctx context.Context, v *View, acct AccountID, network NetworkID) ([]VirtualIP, error) {
	return collect(v, ctx, scanVirtualIP, `SELECT `+virtualIPColumns+` FROM virtual_ips WHERE account_id = ? AND network_id = ?
		AND state IN ('failing_over', 'error') ORDER BY name`, acct, network)
}
