package network

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	"powernode/sdwan"
	"powernode/store"
)

// NetworkDetail is what a network's rows add up to.
type NetworkDetail struct {
	PeerCount       int
	HubCount        int
	GatewayPeerID   store.PeerID // empty: none
	ClusterIDs      []string
	UserDeviceCount int
}

// Detail adds up what a network is made of.
func (s *Service) Detail(ctx context.Context, v *store.View, n store.Network) (NetworkDetail, error) {
	in, err := s.Intent(ctx, v, n.AccountID, n.ID)
	if err != nil {
		return NetworkDetail{}, err
	}
	d := NetworkDetail{PeerCount: len(in.Members), ClusterIDs: []string{}, UserDeviceCount: len(in.Devices)}
	for _, m := range in.Members {
		if m.PubliclyReachable {
			d.HubCount++
		}
	}
	if g, ok := sdwan.GatewayOf(in); ok {
		d.GatewayPeerID = store.PeerID(g.PeerID)
	}
	for _, c := range in.Clusters {
		d.ClusterIDs = append(d.ClusterIDs, c.ID)
	}
	return d, nil
}

// PeerMeasure is what agents say about a peer; nil is not measured.
type PeerMeasure struct {
	Status          string
	LastHandshakeAt *store.Time
	RXBytes         *int64
	TXBytes         *int64
	SampledAt       *store.Time
	Endpoint        string // effective: the first that others are told
	EndpointFamily  string // ipv6, ipv4, name
	Fallback        string
}

// Measures tells what agents say about the peers of a network. A handshake counts where another peer reports it; the
// counters are those of the peer's own machine.
func (s *Service) Measures(ctx context.Context, v *store.View, acct store.AccountID, id store.NetworkID) (map[store.PeerID]PeerMeasure, error) {
	peers, err := store.PeersByNetwork(ctx, v, acct, id)
	if err != nil {
		return nil, err
	}
	tunnels, err := store.TunnelsByNetwork(ctx, v, id)
	if err != nil {
		return nil, err
	}
	return s.measured(ctx, v, acct, id, peers, tunnels)
}

// Measure tells what agents say about one peer.
func (s *Service) Measure(ctx context.Context, v *store.View, p store.Peer) (PeerMeasure, error) {
	tunnels, err := store.TunnelsOfPeer(ctx, v, p)
	if err != nil {
		return PeerMeasure{}, err
	}
	all, err := s.measured(ctx, v, p.AccountID, p.NetworkID, []store.Peer{p}, tunnels)
	return all[p.ID], err
}

func (s *Service) measured(ctx context.Context, v *store.View, acct store.AccountID, id store.NetworkID, peers []store.Peer, tunnels []store.Tunnel) (map[store.PeerID]PeerMeasure, error) {
	endpoints, err := store.EndpointsByNetwork(ctx, v, acct, id)
	if err != nil {
		return nil, err
	}
	hosts, err := store.PeerHosts(ctx, v, acct, id)
	if err != nil {
		return nil, err
	}
	byPeer, byInstance := map[string]*PeerMeasure{}, map[store.InstanceID]*PeerMeasure{}
	for _, p := range peers {
		m := &PeerMeasure{}
		byPeer[string(p.ID)], byInstance[p.InstanceID] = m, m
	}
	for i := range tunnels {
		t := &tunnels[i]
		if m := byInstance[t.InstanceID]; m != nil {
			m.count(t)
		}
		if m := byPeer[t.RemotePeerID]; m != nil {
			m.shook(t.LastHandshakeAt)
		}
	}
	reported := map[store.PeerID][]netip.AddrPort{}
	for _, e := range endpoints {
		reported[e.PeerID] = append(reported[e.PeerID], netip.AddrPortFrom(e.Address.Addr, uint16(e.Port)))
	}
	out := make(map[store.PeerID]PeerMeasure, len(peers))
	for _, p := range peers {
		m := byPeer[string(p.ID)]
		m.Status = PeerStatus(m.LastHandshakeAt, v.Now())
		m.name(proposed(p, hosts[p.ID]), append(reported[p.ID], givenEndpoints(p, hosts[p.ID])...))
		out[p.ID] = *m
	}
	return out, nil
}

func (m *PeerMeasure) count(t *store.Tunnel) {
	rx, tx := t.RXBytes, t.TXBytes
	if m.RXBytes != nil {
		rx, tx = rx+*m.RXBytes, tx+*m.TXBytes
	}
	m.RXBytes, m.TXBytes, m.SampledAt = &rx, &tx, &t.SampledAt
}

func (m *PeerMeasure) shook(at *store.Time) {
	if at != nil && (m.LastHandshakeAt == nil || m.LastHandshakeAt.Before(at.Time)) {
		m.LastHandshakeAt = at
	}
}

// name says which endpoints others are told, in their order: the operator's, IPv6 first, then reported ones.
func (m *PeerMeasure) name(p store.Peer, reported []netip.AddrPort) {
	port := orDefault(p.EndpointPort, p.ListenPort)
	type endpoint struct{ spelt, family string }
	var all []endpoint
	for _, host := range []string{p.EndpointHostV6, p.EndpointHostV4, p.EndpointHost} {
		if host == "" {
			continue
		}
		a, err := netip.ParseAddr(host)
		if err != nil {
			all = append(all, endpoint{fmt.Sprintf("%s:%d", host, port), "name"})
			continue
		}
		all = append(all, endpoint{netip.AddrPortFrom(a.Unmap(), uint16(port)).String(), familyOf(a)})
	}
	for _, want6 := range []bool{true, false} {
		for _, e := range reported {
			if e.IsValid() && e.Addr().Is6() == want6 {
				all = append(all, endpoint{e.String(), familyOf(e.Addr())})
			}
		}
	}
	for _, e := range all {
		switch {
		case m.Endpoint == "":
			m.Endpoint, m.EndpointFamily = e.spelt, e.family
		case m.Fallback == "" && e.spelt != m.Endpoint:
			m.Fallback = e.spelt
		}
	}
}

func familyOf(a netip.Addr) string {
	if a.Unmap().Is4() {
		return "ipv4"
	}
	return "ipv6"
}

// PeerDetail is what a peer's document and its agent's last report say.
type PeerDetail struct {
	Capabilities    json.RawMessage // nil: not measured
	AppliedRevision *int64          // of the wireguard subsystem; nil: not measured
	NotReady        []sdwan.NotReady
}

// PeerDetail reads what a peer's document lacks and how far its agent has come.
func (s *Service) PeerDetail(ctx context.Context, v *store.View, p store.Peer) (PeerDetail, error) {
	d := PeerDetail{NotReady: []sdwan.NotReady{}}
	in, err := s.Intent(ctx, v, p.AccountID, p.NetworkID)
	if err != nil {
		return d, err
	}
	section, err := sdwan.CompilePeer(in, string(p.ID))
	if err != nil {
		return d, fmt.Errorf("compile peer %s: %w", p.ID, err)
	}
	d.NotReady = section.NotReady
	report, err := store.InstanceReportOf(ctx, v, p.InstanceID)
	if none, err := absent(err); err != nil || none {
		return d, err
	}
	if raw := report.Facts.V.Capabilities; len(raw) > 0 && string(raw) != "null" {
		d.Capabilities = raw
	}
	for _, part := range report.Subsystems.V {
		if part.Name == "wireguard" {
			d.AppliedRevision = &part.AppliedRevision
		}
	}
	return d, nil
}

// Routing is what a network routes.
type Routing struct {
	Routes              []sdwan.RouteEntry
	PeerCount, HubCount int
	DeclaredSubnetCount int
	VIPCount            int
	AdvertisedCount     int // prefixes that peers route beside their own addresses
}

// Routes tells which prefixes the network's peers route, and where each comes from.
func (s *Service) Routes(ctx context.Context, v *store.View, n store.Network) (Routing, error) {
	in, err := s.Intent(ctx, v, n.AccountID, n.ID)
	if err != nil {
		return Routing{}, err
	}
	r := Routing{Routes: sdwan.Routes(in), PeerCount: len(in.Members), VIPCount: len(in.VIPs)}
	for _, m := range in.Members {
		if m.PubliclyReachable {
			r.HubCount++
		}
		r.DeclaredSubnetCount += len(m.LANSubnets)
	}
	for _, e := range r.Routes {
		if e.Kind == sdwan.RouteVirtualIP || e.Kind == sdwan.RouteLANSubnet || e.Kind == sdwan.RoutePodSubnet {
			r.AdvertisedCount++
		}
	}
	return r, nil
}
