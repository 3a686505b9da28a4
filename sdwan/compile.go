package sdwan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Kinds of an interface's peers.
const (
	KindPeer       = "peer"
	KindUserDevice = "user_device"
)

// Forwarding of a network's interface.
const (
	ForwardOff     = "off"
	ForwardDevices = "devices"
	ForwardOn      = "on"
)

// KeepaliveSeconds keeps the way through a NAT open, and makes a handshake's age mean something.
const KeepaliveSeconds = 25

// Compile returns one Network section for each member, sorted by peer id. Inputs that differ only in order give the
// same bytes. An address that two would hold is an *OverlapError, another contradiction an *IntentError.
func Compile(in Intent) ([]Network, error) {
	f, err := weave(in)
	if err != nil {
		return nil, err
	}
	out := make([]Network, len(f.members))
	for i := range f.members {
		out[i] = f.section(i)
	}
	return out, nil
}

// CompilePeer returns the section of one member: the same as Compile's.
func CompilePeer(in Intent, peerID string) (Network, error) {
	f, err := weave(in)
	if err != nil {
		return Network{}, err
	}
	i, ok := f.index[peerID]
	if !ok {
		return Network{}, f.contradiction("peer "+peerID, "is no member of the network")
	}
	return f.section(i), nil
}

func (f *fabric) section(i int) Network {
	m := &f.members[i]
	s := Network{
		NetworkID:  f.in.NetworkID,
		PeerID:     m.PeerID,
		DeviceName: DeviceName(m.ShortID),
		CIDR:       f.in.CIDR.Masked(),
		Addresses:  []netip.Prefix{host(m.Address)},
		ListenPort: m.ListenPort,
		MTU:        cmp.Or(f.in.MTU, DefaultMTU),
		Key:        KeyState{State: "current"},
		Peers:      []Peer{},
		Routes:     []Route{},
		Forward:    ForwardOff,
		VIPs:       []VIP{},
		NotReady:   []NotReady{},
		Suspended:  f.in.Suspended,
	}
	if m.AddressV4.IsValid() {
		s.Addresses = append(s.Addresses, host(m.AddressV4))
	}
	if m.PublicKey == "" {
		s.lacks("public_key", "no public key reported yet")
	}
	if f.in.Suspended {
		s.lacks("network", "the network is suspended")
		s.Routes = f.unreachable(s.Routes)
		return s
	}
	f.tunnels(i, &s)
	f.devicesOf(i, &s)
	f.routes(i, &s)
	for _, v := range f.vips {
		if v.HolderPeerID == m.PeerID {
			s.VIPs = append(s.VIPs, VIP{VirtualIPID: v.ID, Address: host(v.Address), Epoch: v.Epoch})
		}
	}
	s.Forward = f.forward(i)
	if len(m.LANSubnets) > 0 {
		s.lacks("lan_subnets", "forwarding to LAN subnets is not available yet")
	}
	slices.SortFunc(s.NotReady, func(a, b NotReady) int {
		return cmp.Or(cmp.Compare(a.What, b.What), cmp.Compare(a.Reason, b.Reason))
	})
	return s
}

func (s *Network) lacks(what, reason string) {
	s.NotReady = append(s.NotReady, NotReady{What: what, Reason: reason})
}

// tunnels fills the peers of member i. What is reached through a hub is owned by the hub's entry, so an address has
// one owner in each document.
func (f *fabric) tunnels(i int, s *Network) {
	behind := map[int][]netip.Prefix{} // by hub
	s.Peers = make([]Peer, 0, len(f.members))
	var direct []int
	for j := range f.members {
		other := &f.members[j]
		if j == i {
			continue
		}
		if other.PublicKey == "" {
			s.lacks("peer", fmt.Sprintf("peer %s: no public key reported yet", other.label()))
			continue
		}
		switch p, hub := f.path(i, j); p {
		case pathDirect:
			direct = append(direct, j)
		case pathThroughHub:
			behind[hub] = append(behind[hub], other.block...)
		case pathNone:
			s.lacks("tunnel", fmt.Sprintf("peer %s: no endpoint on either side, and no hub", other.label()))
		}
	}
	for _, j := range direct {
		if !usableFor(&f.members[i], &f.members[j]) && !usableFor(&f.members[j], &f.members[i]) {
			s.lacks("endpoint", fmt.Sprintf("peer %s: no endpoint on either side", f.members[j].label()))
		}
		p := f.entry(i, j)
		if extra := behind[j]; len(extra) > 0 {
			p.AllowedIPs = sortedPrefixes(append(p.AllowedIPs, extra...))
		}
		s.Peers = append(s.Peers, p)
	}
}

// entry is member j as member i sees it.
func (f *fabric) entry(i, j int) Peer {
	viewer, m := &f.members[i], &f.members[j]
	endpoints := m.operator
	if sameRegion(viewer, m) {
		endpoints = m.endpoints
	}
	p := Peer{
		PeerID:           m.PeerID,
		Kind:             KindPeer,
		PublicKey:        m.PublicKey,
		NextPublicKey:    m.NextPublicKey,
		Endpoints:        append([]netip.AddrPort{}, endpoints...),
		AllowedIPs:       slices.Clone(m.block),
		KeepaliveSeconds: KeepaliveSeconds,
	}
	if m.hostname != "" {
		p.EndpointHost, p.EndpointPort = m.hostname, m.port
	}
	return p
}

// devicesOf gives the gateway an entry for each device; in all other documents the gateway's block has them. A
// device sends first, so there is neither endpoint nor keepalive.
func (f *fabric) devicesOf(i int, s *Network) {
	if f.gateway < 0 && len(f.devices) > 0 {
		s.lacks("devices", "no gateway: the network has neither a hub nor a peer with an endpoint")
	}
	if i != f.gateway {
		return
	}
	for _, d := range f.devices {
		if d.PublicKey == "" {
			s.lacks("device", fmt.Sprintf("device %s: no public key yet", cmp.Or(d.Label, d.ID)))
			continue
		}
		s.Peers = append(s.Peers, Peer{
			PeerID:     d.ID,
			Kind:       KindUserDevice,
			PublicKey:  d.PublicKey,
			Endpoints:  []netip.AddrPort{},
			AllowedIPs: []netip.Prefix{host(d.Address)},
		})
	}
}

// routes fills the kernel routes of member i: the /64, what lies outside it, and the account's /48 as unreachable, so
// that packets for networks that the host is not in fail at once. A node's services have a route too, or that /48
// would swallow them before kube-proxy sees them. A prefix whose owner is not ready has its route
// all the same: it fails in the tunnel and never leaves in clear.
func (f *fabric) routes(i int, s *Network) {
	m := &f.members[i]
	s.Routes = f.unreachable(s.Routes)
	s.Routes = append(s.Routes, Route{Prefix: f.in.CIDR.Masked(), Source: m.Address})
	for _, c := range f.in.Clusters {
		if c.ServiceCIDR.IsValid() && c.has(m.PeerID) {
			s.Routes = append(s.Routes, Route{Prefix: c.ServiceCIDR.Masked(), Source: m.source(c.ServiceCIDR)})
		}
	}
	for j := range f.members {
		if j == i {
			continue
		}
		for _, p := range f.members[j].routed {
			if own, covered := m.covered(p); covered {
				s.lacks("route", fmt.Sprintf("%s of peer %s covers this machine's own address %s",
					p, f.members[j].label(), own))
				continue
			}
			s.Routes = append(s.Routes, Route{Prefix: p, Source: m.source(p)})
		}
	}
	slices.SortFunc(s.Routes, func(a, b Route) int { return comparePrefix(a.Prefix, b.Prefix) })
}

func (f *fabric) unreachable(routes []Route) []Route {
	if !f.in.AccountPrefix.IsValid() {
		return routes
	}
	return append(routes, Route{Prefix: f.in.AccountPrefix.Masked(), Unreachable: true})
}

// source is the member's own address of a prefix's family, or invalid.
func (n *node) source(p netip.Prefix) netip.Addr {
	if p.Addr().Is6() {
		return n.Address
	}
	return n.AddressV4
}

// covered reports whether a prefix holds an underlay address of the member: a route for it would cut the machine off.
func (n *node) covered(p netip.Prefix) (netip.Addr, bool) {
	for _, e := range n.endpoints {
		if p.Contains(e.Addr()) {
			return e.Addr(), true
		}
	}
	return netip.Addr{}, false
}

func (f *fabric) forward(i int) string {
	m := &f.members[i]
	inCluster := slices.ContainsFunc(f.in.Clusters, func(c Cluster) bool { return c.has(m.PeerID) })
	switch {
	case m.isHub(), len(m.LANSubnets) > 0, inCluster:
		return ForwardOn
	case i == f.gateway && len(f.devices) > 0:
		return ForwardDevices
	}
	return ForwardOff
}
