package store

import (
	"context"
	"fmt"
)

// Tunnel is what an instance counts for one peer of one of its interfaces. It is telemetry and has no revision.
type Tunnel struct {
	InstanceID      InstanceID
	NetworkID       NetworkID
	RemotePeerID    string // a peer, or a device
	LastHandshakeAt *Time
	RXBytes         int64
	TXBytes         int64
	Endpoint        string
	SampledAt       Time
}

// ReplaceTunnels writes an instance's counters in place of those before.
func ReplaceTunnels(ctx context.Context, tx *Tx, instance InstanceID, tunnels []Tunnel) error {
	if err := tx.exec(ctx, `DELETE FROM tunnels WHERE instance_id = ?`, instance); err != nil {
		return fmt.Errorf("replace tunnels: %w", err)
	}
	for _, t := range tunnels {
		err := tx.exec(ctx, `INSERT INTO tunnels (instance_id, network_id, remote_peer_id, last_handshake_at, rx_bytes, tx_bytes, endpoint,
			sampled_at) VALUES (?,?,?,?,?,?,?,?) ON CONFLICT (instance_id, network_id, remote_peer_id) DO NOTHING`,
			instance, t.NetworkID, t.RemotePeerID, t.LastHandshakeAt, t.RXBytes, t.TXBytes, t.Endpoint, At(tx.now))
		if err != nil {
			return fmt.Errorf("replace tunnels: %w", err)
		}
	}
	return nil
}

const tunnelColumns = `instance_id, network_id, remote_peer_id, last_handshake_at, rx_bytes, tx_bytes, endpoint, sampled_at`

func scanTunnel(_ *View, s scanner) (Tunnel, error) {
	var t Tunnel
	err := s.Scan(&t.InstanceID, &t.NetworkID, &t.RemotePeerID, &t.LastHandshakeAt, &t.RXBytes, &t.TXBytes, &t.Endpoint, &t.SampledAt)
	if err != nil {
		return t, fmt.Errorf("read tunnel: %w", err)
	}
	return t, nil
}

// TunnelsByNetwork lists what the instances of a network count.
func TunnelsByNetwork(ctx context.Context, v *View, network NetworkID) ([]Tunnel, error) {
	return collect(v, ctx, scanTunnel, `SELECT `+tunnelColumns+` FROM tunnels WHERE network_id = ? ORDER BY instance_id, remote_peer_id`, network)
}

// TunnelsOfPeer lists what a peer's instance counts in its network, and what others count about the peer.
func TunnelsOfPeer(ctx context.Context, v *View, p Peer) ([]Tunnel, error) {
	return collect(v, ctx, scanTunnel, `SELECT `+tunnelColumns+` FROM tunnels WHERE instance_id = ?1 AND network_id = ?2
		UNION ALL SELECT `+tunnelColumns+` FROM tunnels WHERE network_id = ?2 AND remote_peer_id = ?3 ORDER BY instance_id, remote_peer_id`,
		p.InstanceID, p.NetworkID, p.ID)
}

// DeleteTunnels forgets what an instance counted in a network.
func DeleteTunnels(ctx context.Context, tx *Tx, instance InstanceID, network NetworkID) error {
	return tx.exec(ctx, `DELETE FROM tunnels WHERE instance_id = ? AND network_id = ?`, instance, network)
}
