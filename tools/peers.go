package tools

import (
	"context"
	"encoding/json"

	"powernode/platform/network"
	"powernode/sdwan"
	"powernode/store"
)

func peerVerbs() []*Definition {
	return []*Definition{attachPeer(), listPeers(), getPeer(), detachPeer()}
}

// peerSummary is a peer in a list.
type peerSummary struct {
	ID                      store.PeerID     `json:"id"`
	NetworkID               store.NetworkID  `json:"network_id"`
	NodeInstanceID          store.InstanceID `json:"node_instance_id"`
	AssignedAddress         string           `json:"assigned_address"`
	AssignedAddressV4       *string          `json:"assigned_address_v4"`
	PubliclyReachable       bool             `json:"publicly_reachable"`
	EndpointHost            *string          `json:"endpoint_host"`
	EndpointHostV6          *string          `json:"endpoint_host_v6"`
	EndpointHostV4          *string          `json:"endpoint_host_v4"`
	EndpointPort            *int             `json:"endpoint_port"`
	EffectiveEndpoint       *string          `json:"effective_endpoint"`
	EffectiveEndpointFamily *string          `json:"effective_endpoint_family"`
	FallbackEndpoint        *string          `json:"fallback_endpoint"`
	ListenPort              int              `json:"listen_port"`
	DeviceName              string           `json:"device_name"`
	Status                  string           `json:"status"`
	PublicKey               *string          `json:"public_key"`
	Tags                    []string         `json:"tags"`
	LastHandshakeAt         *store.Time      `json:"last_handshake_at"`
	RXBytes                 *int64           `json:"rx_bytes"`
	TXBytes                 *int64           `json:"tx_bytes"`
	CountersSampledAt       *store.Time      `json:"counters_sampled_at"`
}

// lacking is what a document lacks, and why.
type lacking struct {
	What   string `json:"what"`
	Reason string `json:"reason"`
}

// peerObject is a peer (full).
type peerObject struct {
	peerSummary
	Capabilities            json.RawMessage `json:"capabilities"`
	LANSubnets              []string        `json:"lan_subnets"`
	PodCIDR                 *string         `json:"pod_cidr"`
	BGPRouteReflectorClient bool            `json:"bgp_route_reflector_client"`
	AppliedRevision         *int64          `json:"applied_revision"`
	KeyRotation             *struct{}       `json:"key_rotation"` // none before rotations are available
	NotReady                []lacking       `json:"not_ready"`
	CreatedAt               store.Time      `json:"created_at"`
}

func summarisePeer(p store.Peer, m network.PeerMeasure) peerSummary {
	s := peerSummary{ID: p.ID, NetworkID: p.NetworkID, NodeInstanceID: p.InstanceID, AssignedAddress: p.Address.String(),
		PubliclyReachable: p.PubliclyReachable, EndpointHost: orNull(p.EndpointHost), EndpointHostV6: orNull(p.EndpointHostV6),
		EndpointHostV4: orNull(p.EndpointHostV4), EffectiveEndpoint: orNull(m.Endpoint), EffectiveEndpointFamily: orNull(m.EndpointFamily),
		FallbackEndpoint: orNull(m.Fallback), ListenPort: p.ListenPort, DeviceName: sdwan.DeviceName(p.ShortID), Status: m.Status,
		PublicKey: orNull(p.PublicKey), Tags: notNil(p.Tags), LastHandshakeAt: m.LastHandshakeAt, RXBytes: m.RXBytes, TXBytes: m.TXBytes,
		CountersSampledAt: m.SampledAt}
	if p.AddressV4.IsValid() {
		s.AssignedAddressV4 = orNull(p.AddressV4.String())
	}
	if p.EndpointPort != 0 {
		s.EndpointPort = &p.EndpointPort
	}
	return s
}

func viewPeer(ctx context.Context, p *Platform, v *store.View, peer store.Peer) (peerObject, error) {
	measure, err := p.Network.Measure(ctx, v, peer)
	if err != nil {
		return peerObject{}, err
	}
	d, err := p.Network.PeerDetail(ctx, v, peer)
	if err != nil {
		return peerObject{}, err
	}
	o := peerObject{peerSummary: summarisePeer(peer, measure), Capabilities: d.Capabilities, LANSubnets: []string{},
		BGPRouteReflectorClient: peer.RRClient, AppliedRevision: d.AppliedRevision, NotReady: []lacking{}, CreatedAt: peer.CreatedAt}
	for _, lan := range peer.LANSubnets {
		o.LANSubnets = append(o.LANSubnets, lan.String())
	}
	if len(peer.PodCIDRs) > 0 {
		o.PodCIDR = orNull(peer.PodCIDRs[0].String())
	}
	for _, missing := range d.NotReady {
		o.NotReady = append(o.NotReady, lacking(missing))
	}
	return o, nil
}

type attachPeerArgs struct {
	NetworkID         store.NetworkID  `json:"network_id"`
	NodeInstanceID    store.InstanceID `json:"node_instance_id"`
	PubliclyReachable bool             `json:"publicly_reachable"`
	EndpointHost      string           `json:"endpoint_host"`
	EndpointHostV6    string           `json:"endpoint_host_v6"`
	EndpointHostV4    string           `json:"endpoint_host_v4"`
	EndpointPort      int              `json:"endpoint_port"` // 0: absent
	ListenPort        int              `json:"listen_port"`   // 0: absent
}

func (a attachPeerArgs) input() network.AttachInput {
	return network.AttachInput{NetworkID: a.NetworkID, InstanceID: a.NodeInstanceID, PubliclyReachable: a.PubliclyReachable,
		EndpointHost: a.EndpointHost, EndpointHostV6: a.EndpointHostV6, EndpointHostV4: a.EndpointHostV4, EndpointPort: a.EndpointPort,
		ListenPort: a.ListenPort}
}

type attachPeerResult struct {
	Written
	Attached bool       `json:"attached"`
	Peer     peerObject `json:"peer"`
}

func attachPeer() *Definition {
	return define("system_sdwan_attach_peer", handler[attachPeerArgs, attachPeerResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a attachPeerArgs) error {
			return p.Network.CheckAttach(ctx, v, c.AccountID, a.input())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a attachPeerArgs) (r attachPeerResult, err error) {
			peer, warnings, err := p.Network.Attach(ctx, tx, c.AccountID, a.input())
			if err != nil {
				return r, err
			}
			r.Attached = true
			r.warnOf(warnings)
			r.Peer, err = viewPeer(ctx, p, &tx.View, peer)
			return r, err
		},
	})
}

type networkListArgs struct {
	NetworkID store.NetworkID `json:"network_id"`
	Limit     int             `json:"limit"`
	Cursor    string          `json:"cursor"`
}

type listPeersResult struct {
	Peers []peerSummary `json:"peers"`
	Page
}

func listPeers() *Definition {
	const verb = "system_sdwan_list_peers"
	return define(verb, handler[networkListArgs, listPeersResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a networkListArgs) (r listPeersResult, err error) {
			if _, err := p.Network.Find(ctx, v, c.AccountID, a.NetworkID); err != nil {
				return r, err
			}
			peers, err := store.PeersByNetwork(ctx, v, c.AccountID, a.NetworkID)
			if err != nil {
				return r, err
			}
			measures, err := p.Network.Measures(ctx, v, c.AccountID, a.NetworkID)
			if err != nil {
				return r, err
			}
			rows := make([]peerSummary, len(peers))
			for i, peer := range peers {
				rows[i] = summarisePeer(peer, measures[peer.ID])
			}
			r.Peers, r.Page, err = page(verb, a.NetworkID, a.Limit, a.Cursor, rows, func(p peerSummary) string { return string(p.ID) })
			return r, err
		},
	})
}

type peerIDArgs struct {
	PeerID store.PeerID `json:"peer_id"`
}

type getPeerResult struct {
	Peer peerObject `json:"peer"`
}

func getPeer() *Definition {
	return define("system_sdwan_get_peer", handler[peerIDArgs, getPeerResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a peerIDArgs) (r getPeerResult, err error) {
			peer, err := p.Network.FindPeer(ctx, v, c.AccountID, a.PeerID)
			if err != nil {
				return r, err
			}
			r.Peer, err = viewPeer(ctx, p, v, peer)
			return r, err
		},
	})
}

type detachPeerResult struct {
	Written
	Detached             bool                `json:"detached"`
	ID                   store.PeerID        `json:"id"`
	ReleasedVirtualIPIDs []store.VirtualIPID `json:"released_virtual_ip_ids"`
}

func detachPeer() *Definition {
	return define("system_sdwan_detach_peer", handler[peerIDArgs, detachPeerResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a peerIDArgs) error {
			return p.Network.CheckDetach(ctx, v, c.AccountID, a.PeerID)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a peerIDArgs) (detachPeerResult, error) {
			released, err := p.Network.Detach(ctx, tx, c.AccountID, a.PeerID)
			return detachPeerResult{Detached: true, ID: a.PeerID, ReleasedVirtualIPIDs: notNil(released)}, err
		},
	})
}
