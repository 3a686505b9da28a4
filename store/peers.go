package store

import (
	"context"
	"fmt"
	"net/netip"
)

// Peer is an instance's membership of a network.
type Peer struct {
	ID                PeerID
	AccountID         AccountID
	NetworkID         NetworkID
	InstanceID        InstanceID
	Address           Addr
	AddressV4         Addr // invalid: none
	PubliclyReachable bool
	EndpointHost      string
	EndpointHostV6    string
	EndpointHostV4    string
	EndpointPort      int // 0: none
	ListenPort        int
	ShortID           int    // numbers the interface on its host
	PublicKey         string // base64; empty: not reported yet
	NextPublicKey     string
	Tags              []string
	LANSubnets        []netip.Prefix
	PodCIDRs          []netip.Prefix // of its Kubernetes node, as reported
	RRClient          bool
	CreatedAt         Time
	UpdatedAt         Time
	Revision          int64
}

const peerColumns = `id, account_id, network_id, instance_id, address, address_v4, publicly_reachable, endpoint_host,
	endpoint_host_v6, endpoint_host_v4, endpoint_port, listen_port, short_id, public_key, next_public_key, tags, lan_subnets,
	pod_cidrs, rr_client, created_at, updated_at, revision`

func scanPeer(v *View, s scanner) (Peer, error) {
	var p Peer
	var tags JSON[[]string]
	var lans, pods JSON[[]netip.Prefix]
	err := s.Scan(&p.ID, &p.AccountID, &p.NetworkID, &p.InstanceID, &p.Address, &p.AddressV4, &p.PubliclyReachable, &p.EndpointHost,
		&p.EndpointHostV6, &p.EndpointHostV4, &p.EndpointPort, &p.ListenPort, &p.ShortID, &p.PublicKey, &p.NextPublicKey, &tags,
		&lans, &pods, &p.RRClient, &p.CreatedAt, &p.UpdatedAt, &p.Revision)
	if err != nil {
		return p, fmt.Errorf("read peer: %w", err)
	}
	p.Tags, p.LANSubnets, p.PodCIDRs = tags.V, lans.V, pods.V
	v.noteRow("peers", string(p.ID), p.Revision)
	return p, nil
}

// PeerByID finds a peer.
func PeerByID(ctx context.Context, v *View, acct AccountID, id PeerID) (Peer, error) {
	return scanPeer(v, v.queryRow(ctx, `SELECT `+peerColumns+` FROM peers WHERE account_id = ? AND id = ?`, acct, id))
}

// PeerOf finds the membership of an instance in a network.
func PeerOf(ctx context.Context, v *View, acct AccountID, network NetworkID, instance InstanceID) (Peer, error) {
	return scanPeer(v, v.queryRow(ctx, `SELECT `+peerColumns+` FROM peers WHERE account_id = ? AND network_id = ? AND instance_id = ?`,
		acct, network, instance))
}

// PeersByNetwork lists a network's peers, latest first.
func PeersByNetwork(ctx context.Context, v *View, acct AccountID, network NetworkID) ([]Peer, error) {
	return collect(v, ctx, scanPeer, `SELECT `+peerColumns+` FROM peers WHERE account_id = ? AND network_id = ?
		ORDER BY created_at DESC, id DESC`, acct, network)
}

// PeersByInstance lists an instance's memberships, in the order of its interfaces.
func PeersByInstance(ctx context.Context, v *View, acct AccountID, instance InstanceID) ([]Peer, error) {
	return collect(v, ctx, scanPeer, `SELECT `+peerColumns+` FROM peers WHERE account_id = ? AND instance_id = ? ORDER BY short_id`,
		acct, instance)
}

// NetworkMembers lists the instances whose documents depend on a network. It reads rows of the compiler's own account
// only: a network has one.
func NetworkMembers(ctx context.Context, v *View, network NetworkID) ([]InstanceID, error) {
	scan := func(_ *View, s scanner) (InstanceID, error) {
		var id InstanceID
		return id, s.Scan(&id)
	}
	return collect(v, ctx, scan, `SELECT instance_id FROM peers WHERE network_id = ? ORDER BY instance_id`, network)
}

// PeerCounts answers how many peers each network of an account has.
func PeerCounts(ctx context.Context, v *View, acct AccountID) (map[NetworkID]int, error) {
	type count struct {
		network NetworkID
		n       int
	}
	scan := func(_ *View, s scanner) (count, error) {
		var c count
		return c, s.Scan(&c.network, &c.n)
	}
	rows, err := collect(v, ctx, scan, `SELECT network_id, count(*) FROM peers WHERE account_id = ? GROUP BY network_id`, acct)
	if err != nil {
		return nil, fmt.Errorf("count peers: %w", err)
	}
	out := make(map[NetworkID]int, len(rows))
	for _, c := range rows {
		out[c.network] = c.n
	}
	return out, nil
}

// InsertPeer makes a peer.
func InsertPeer(ctx context.Context, tx *Tx, p Peer) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `INSERT INTO peers (`+peerColumns+`) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`,
		p.ID, p.AccountID, p.NetworkID, p.InstanceID, p.Address, p.AddressV4, p.PubliclyReachable, p.EndpointHost, p.EndpointHostV6,
		p.EndpointHostV4, p.EndpointPort, p.ListenPort, p.ShortID, p.PublicKey, p.NextPublicKey, JSON[[]string]{notNil(p.Tags)},
		JSON[[]netip.Prefix]{notNil(p.LANSubnets)}, JSON[[]netip.Prefix]{notNil(p.PodCIDRs)}, p.RRClient, At(tx.now), At(tx.now), revision)
}

// UpdatePeer writes a peer's changeable columns.
func UpdatePeer(ctx context.Context, tx *Tx, p Peer) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `UPDATE peers SET address_v4 = ?, publicly_reachable = ?, endpoint_host = ?, endpoint_host_v6 = ?,
		endpoint_host_v4 = ?, endpoint_port = ?, listen_port = ?, public_key = ?, next_public_key = ?, tags = ?, lan_subnets = ?,
		pod_cidrs = ?, rr_client = ?, updated_at = ?, revision = ? WHERE account_id = ? AND id = ?`,
		p.AddressV4, p.PubliclyReachable, p.EndpointHost, p.EndpointHostV6, p.EndpointHostV4, p.EndpointPort, p.ListenPort,
		p.PublicKey, p.NextPublicKey, JSON[[]string]{notNil(p.Tags)}, JSON[[]netip.Prefix]{notNil(p.LANSubnets)},
		JSON[[]netip.Prefix]{notNil(p.PodCIDRs)}, p.RRClient, At(tx.now), revision, p.AccountID, p.ID)
}

// DeletePeer removes a peer, with the endpoints reported for it.
func DeletePeer(ctx context.Context, tx *Tx, acct AccountID, id PeerID) error {
	if _, err := tx.Revision(ctx); err != nil {
		return err
	}
	return tx.exec(ctx, `DELETE FROM peers WHERE account_id = ? AND id = ?`, acct, id)
}

// PeerHost is what a peer's instance contributes to its network.
type PeerHost struct {
	PeerID    PeerID
	Name      string
	RegionID  RegionID
	PrivateIP Addr // what the provider gave; invalid: none
	PublicIP  Addr // what the provider gave or an operator wrote; invalid: none
	// PublicAddress is what an operator says of the node: an address or a host name, "" for none.
	PublicAddress string
}

// PeerHosts answers the instances behind a network's peers.
func PeerHosts(ctx context.Context, v *View, acct AccountID, network NetworkID) (map[PeerID]PeerHost, error) {
	scan := func(_ *View, s scanner) (PeerHost, error) {
		var h PeerHost
		return h, s.Scan(&h.PeerID, &h.Name, &h.RegionID, &h.PrivateIP, &h.PublicIP, &h.PublicAddress)
	}
	rows, err := collect(v, ctx, scan, `SELECT p.id, i.name, i.region_id, i.private_ip, i.public_ip, coalesce(n.public_address, '')
		FROM peers p JOIN instances i ON i.id = p.instance_id JOIN nodes n ON n.id = i.node_id
		WHERE p.account_id = ? AND p.network_id = ?`, acct, network)
	if err != nil {
		return nil, fmt.Errorf("read the hosts of a network: %w", err)
	}
	out := make(map[PeerID]PeerHost, len(rows))
	for _, h := range rows {
		out[h.PeerID] = h
	}
	return out, nil
}

// PeerEndpoint is an address under which a peer's agent thinks that it can be reached.
type PeerEndpoint struct {
	PeerID  PeerID
	Address Addr
	Port    int
	Source  string // interface, learned
}

func scanPeerEndpoint(_ *View, s scanner) (PeerEndpoint, error) {
	var e PeerEndpoint
	return e, s.Scan(&e.PeerID, &e.Address, &e.Port, &e.Source)
}

// EndpointsByNetwork lists the endpoints reported for a network's peers.
func EndpointsByNetwork(ctx context.Context, v *View, acct AccountID, network NetworkID) ([]PeerEndpoint, error) {
	return collect(v, ctx, scanPeerEndpoint, `SELECT e.peer_id, e.address, e.port, e.source FROM peer_endpoints e
		JOIN peers p ON p.id = e.peer_id WHERE p.account_id = ? AND p.network_id = ? ORDER BY e.peer_id, e.address, e.port`, acct, network)
}

// EndpointsByPeer lists the endpoints reported for one peer.
func EndpointsByPeer(ctx context.Context, v *View, peer PeerID) ([]PeerEndpoint, error) {
	return collect(v, ctx, scanPeerEndpoint, `SELECT peer_id, address, port, source FROM peer_endpoints WHERE peer_id = ?
		ORDER BY address, port`, peer)
}

// ReplaceEndpoints writes the endpoints reported for a peer in place of those before.
func ReplaceEndpoints(ctx context.Context, tx *Tx, peer PeerID, endpoints []PeerEndpoint) error {
	if err := tx.exec(ctx, `DELETE FROM peer_endpoints WHERE peer_id = ?`, peer); err != nil {
		return fmt.Errorf("replace endpoints: %w", err)
	}
	for _, e := range endpoints {
		err := tx.exec(ctx, `INSERT INTO peer_endpoints (peer_id, address, port, source) VALUES (?,?,?,?)
			ON CONFLICT (peer_id, address, port) DO NOTHING`, peer, e.Address, e.Port, e.Source)
		if err != nil {
			return fmt.Errorf("replace endpoints: %w", err)
		}
	}
	return nil
}
