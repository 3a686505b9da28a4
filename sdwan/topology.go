package sdwan

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
)

// fabric is an intent put in order: everything that its documents share, computed once.
type fabric struct {
	in         Intent
	members    []node // sorted by peer id; an index below is one in here
	index      map[string]int
	vips       []VIPIntent // sorted by address
	devices    []Device    // sorted by id
	hubs       []int       // that can serve: with a key
	servingHub []int       // by member, -1 without hubs
	gateway    int         // -1: none
}

// node is a member with what is derived from it alone.
type node struct {
	Member
	operator  []netip.AddrPort // literal endpoints that the operator named, in order of preference
	hostname  string           // an endpoint that is a name, which the agent resolves
	port      int              // the endpoint port
	reported  []netip.AddrPort // usable reported endpoints, IPv6 first
	endpoints []netip.AddrPort // both
	block     []netip.Prefix   // whatever is reached at this member: sorted, nothing twice
	routed    []netip.Prefix   // of block, what the route of the /64 does not cover
}

func (n *node) hasOperatorEndpoint() bool { return len(n.operator) > 0 || n.hostname != "" }
func (n *node) hasEndpoint() bool         { return n.hasOperatorEndpoint() || len(n.reported) > 0 }
func (n *node) isHub() bool               { return n.PubliclyReachable && n.hasOperatorEndpoint() }

// path is the answer to how two members reach each other.
type path int

const (
	pathNone path = iota
	pathDirect
	pathThroughHub
)

// weave orders an intent and refuses one that contradicts itself.
func weave(in Intent) (*fabric, error) {
	f := &fabric{
		in:      in,
		members: make([]node, len(in.Members)),
		index:   make(map[string]int, len(in.Members)),
		vips:    slices.Clone(in.VIPs),
		devices: slices.Clone(in.Devices),
		gateway: -1,
	}
	for i, m := range in.Members {
		f.members[i] = newNode(in, m)
	}
	slices.SortFunc(f.members, func(a, b node) int { return cmp.Compare(a.PeerID, b.PeerID) })
	slices.SortFunc(f.vips, func(a, b VIPIntent) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.ID, b.ID))
	})
	slices.SortFunc(f.devices, func(a, b Device) int { return cmp.Compare(a.ID, b.ID) })
	for i := range f.members {
		f.index[f.members[i].PeerID] = i
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	f.gateway = gatewayIndex(f.members)
	f.serveHubs()
	f.fillBlocks()
	return f, nil
}

func newNode(in Intent, m Member) node {
	n := node{Member: m, port: cmp.Or(m.EndpointPort, m.ListenPort)}
	for _, h := range []string{m.EndpointHostV6, m.EndpointHostV4, m.EndpointHost} {
		if h == "" {
			continue
		}
		a, err := netip.ParseAddr(h)
		if err != nil {
			n.hostname = cmp.Or(n.hostname, h)
			continue
		}
		n.operator = append(n.operator, netip.AddrPortFrom(a.Unmap(), uint16(n.port)))
	}
	for _, e := range m.ReportedEndpoints {
		if e = netip.AddrPortFrom(e.Addr().Unmap(), e.Port()); usableEndpoint(in, m, e) {
			n.reported = append(n.reported, e)
		}
	}
	slices.SortFunc(n.reported, func(a, b netip.AddrPort) int {
		if a.Addr().Is6() != b.Addr().Is6() {
			return preferIPv6(a.Addr())
		}
		return a.Compare(b)
	})
	n.reported = slices.Compact(n.reported)
	n.endpoints = slices.Clone(n.operator)
	for _, e := range n.reported {
		if !slices.Contains(n.operator, e) {
			n.endpoints = append(n.endpoints, e)
		}
	}
	return n
}

func preferIPv6(a netip.Addr) int {
	if a.Is6() {
		return -1
	}
	return 1
}

// usableEndpoint leaves out what no other machine can send to, and overlay addresses: a tunnel inside itself.
func usableEndpoint(in Intent, m Member, e netip.AddrPort) bool {
	a := e.Addr()
	switch {
	case e.Port() == 0, !a.IsValid(), a.Zone() != "":
		return false
	case a.IsUnspecified(), a.IsLoopback(), a.IsMulticast(), a.IsLinkLocalUnicast():
		return false
	case in.AccountPrefix.IsValid() && in.AccountPrefix.Contains(a), in.CIDR.IsValid() && in.CIDR.Contains(a):
		return false
	}
	return a != m.AddressV4 && !holds(m.PodCIDRs, a)
}

func (f *fabric) check() error {
	for i := range f.members {
		m := &f.members[i]
		if i > 0 && f.members[i-1].PeerID == m.PeerID {
			return f.contradiction("peer "+m.PeerID, "is a member twice")
		}
		if m.ShortID < 1 || m.ShortID > MaxShortID {
			return f.contradiction("peer "+m.PeerID, fmt.Sprintf("interface number %d is not in 1..%d", m.ShortID, MaxShortID))
		}
		if !validPort(m.ListenPort) {
			return f.contradiction("peer "+m.PeerID, fmt.Sprintf("listen port %d is not in 1..65535", m.ListenPort))
		}
		if !f.in.CIDR.Contains(m.Address) {
			return f.contradiction("peer "+m.PeerID, fmt.Sprintf("%s is not in %s", m.Address, f.in.CIDR))
		}
		for _, p := range slices.Concat(m.LANSubnets, m.PodCIDRs) {
			if !p.IsValid() || p.Bits() == 0 {
				return f.contradiction("peer "+m.PeerID, fmt.Sprintf("%s covers the default route", p))
			}
		}
	}
	for _, v := range f.vips {
		if !f.in.CIDR.Contains(v.Address) {
			return f.contradiction("virtual_ip "+v.ID, fmt.Sprintf("%s is not in %s", v.Address, f.in.CIDR))
		}
		if _, ok := f.index[v.HolderPeerID]; !ok && v.HolderPeerID != "" {
			return f.contradiction("virtual_ip "+v.ID, "holder "+v.HolderPeerID+" is no member of the network")
		}
	}
	for _, d := range f.devices {
		if !f.in.CIDR.Contains(d.Address) {
			return f.contradiction("device "+d.ID, fmt.Sprintf("%s is not in %s", d.Address, f.in.CIDR))
		}
	}
	if err := f.checkKeys(); err != nil {
		return err
	}
	return f.checkOverlaps()
}

func validPort(port int) bool { return port >= 1 && port <= 65535 }

func (f *fabric) contradiction(object, reason string) error {
	return &IntentError{NetworkID: f.in.NetworkID, Object: object, Reason: reason}
}

// checkKeys refuses a key that two have: WireGuard would see one peer, and the other's addresses would be lost.
func (f *fabric) checkKeys() error {
	owner := make(map[string]string, len(f.members)+len(f.devices))
	claim := func(key, object string) error {
		if other, ok := owner[key]; ok && key != "" && other != object {
			return f.contradiction(object, "has the public key of "+other)
		}
		owner[key] = object
		return nil
	}
	for i := range f.members {
		for _, key := range []string{f.members[i].PublicKey, f.members[i].NextPublicKey} {
			if err := claim(key, "peer "+f.members[i].PeerID); err != nil {
				return err
			}
		}
	}
	for _, d := range f.devices {
		if err := claim(d.PublicKey, "device "+d.ID); err != nil {
			return err
		}
	}
	return nil
}

// checkOverlaps refuses prefixes of two owners of which one contains the other. The network's /64 counts as an owner
// against what is routed to a member from outside of it.
func (f *fabric) checkOverlaps() error {
	type claim struct {
		prefix netip.Prefix
		owner  string
	}
	claims := make([]claim, 0, 2*len(f.members))
	for i := range f.members {
		m := &f.members[i]
		owner := "peer " + m.PeerID
		claims = append(claims, claim{host(m.Address), owner})
		if m.AddressV4.IsValid() {
			claims = append(claims, claim{host(m.AddressV4), owner})
		}
		for _, p := range slices.Concat(m.LANSubnets, f.routedPods(m.Member)) {
			if Overlaps(p, f.in.CIDR) {
				return &OverlapError{f.in.NetworkID, p.Masked(), owner, f.in.CIDR, "network " + f.in.NetworkID}
			}
			claims = append(claims, claim{p.Masked(), owner})
		}
	}
	for _, v := range f.vips {
		claims = append(claims, claim{host(v.Address), "virtual_ip " + v.ID})
	}
	for _, d := range f.devices {
		claims = append(claims, claim{host(d.Address), "device " + d.ID})
	}
	slices.SortFunc(claims, func(a, b claim) int {
		return cmp.Or(comparePrefix(a.prefix, b.prefix), cmp.Compare(a.owner, b.owner))
	})
	// Sorted, whatever contains a prefix stands on this stack when its turn comes.
	var open []claim
	for _, c := range claims {
		for len(open) > 0 && !contains(open[len(open)-1].prefix, c.prefix) {
			open = open[:len(open)-1]
		}
		for _, o := range open {
			if o.owner != c.owner {
				return &OverlapError{f.in.NetworkID, c.prefix, c.owner, o.prefix, o.owner}
			}
		}
		open = append(open, c)
	}
	return nil
}

// routedPods are a member's pod ranges that travel bare. Inside vxlan pod addresses never show on the overlay.
func (f *fabric) routedPods(m Member) []netip.Prefix {
	for _, c := range f.in.Clusters {
		if c.FlannelBackend != BackendHostGW && c.has(m.PeerID) {
			return nil
		}
	}
	return m.PodCIDRs
}

// has reports whether a peer is bound to the cluster.
func (c Cluster) has(peerID string) bool {
	return slices.Contains(c.ServerPeerIDs, peerID) || slices.Contains(c.AgentPeerIDs, peerID)
}

func (f *fabric) fillBlocks() {
	held := make([][]netip.Prefix, len(f.members))
	for _, v := range f.vips {
		if i, ok := f.index[v.HolderPeerID]; ok {
			held[i] = append(held[i], host(v.Address))
		}
	}
	for i := range f.members {
		n := &f.members[i]
		if n.AddressV4.IsValid() {
			n.routed = append(n.routed, host(n.AddressV4))
		}
		for _, p := range slices.Concat(n.LANSubnets, f.routedPods(n.Member)) {
			n.routed = append(n.routed, p.Masked())
		}
		n.routed = sortedPrefixes(n.routed)
		block := slices.Concat([]netip.Prefix{host(n.Address)}, held[i], n.routed)
		if i == f.gateway {
			for _, d := range f.devices {
				block = append(block, host(d.Address))
			}
		}
		n.block = sortedPrefixes(block)
	}
}

func sortedPrefixes(in []netip.Prefix) []netip.Prefix {
	slices.SortFunc(in, comparePrefix)
	return slices.Compact(in)
}

// serveHubs gives each member its serving hub by rendezvous hashing: the loss of a hub moves only its own members.
func (f *fabric) serveHubs() {
	for i := range f.members {
		if f.members[i].isHub() && f.members[i].PublicKey != "" {
			f.hubs = append(f.hubs, i)
		}
	}
	f.servingHub = make([]int, len(f.members))
	for i := range f.members {
		f.servingHub[i] = -1
		var best uint64
		for _, h := range f.hubs {
			if w := rendezvous(f.members[h].PeerID, f.members[i].PeerID); f.servingHub[i] < 0 || w > best {
				f.servingHub[i], best = h, w
			}
		}
	}
}

// rendezvous weighs a hub for a member. A weak hash would give ids that look alike the same hub.
func rendezvous(hub, member string) uint64 {
	sum := sha256.Sum256([]byte(hub + "\x00" + member))
	return binary.BigEndian.Uint64(sum[:8])
}

// path is the one function of a pair: both documents are compiled from its answer, so paths are symmetric. A pair
// that meets through a hub takes the serving hub of the member with the lower id.
func (f *fabric) path(i, j int) (p path, hub int) {
	a, b := &f.members[i], &f.members[j]
	if f.direct(a, b) {
		return pathDirect, -1
	}
	h := f.servingHub[min(i, j)]
	if h < 0 || h == i || h == j {
		return pathNone, -1
	}
	return pathThroughHub, h
}

func (f *fabric) direct(a, b *node) bool {
	switch f.in.Strategy {
	case StrategyFullMesh:
		return true
	case StrategyHubAndSpoke:
		return a.isHub() || b.isHub()
	}
	return usableFor(a, b) || usableFor(b, a)
}

// usableFor reports whether a member has an endpoint to which the viewer can send. What the operator named is for
// everybody; what is reported counts inside one region, because elsewhere it can be another machine's address.
func usableFor(viewer, m *node) bool {
	return m.hasOperatorEndpoint() || len(m.reported) > 0 && sameRegion(viewer, m)
}

func sameRegion(a, b *node) bool {
	return a.RegionID != "" && a.RegionID == b.RegionID
}

// GatewayOf is the member through which devices enter: a hub, else one with an endpoint, reported ones count; of
// several the lowest id. It depends on rows, not on health, because a device's file can't follow.
func GatewayOf(in Intent) (Member, bool) {
	nodes := make([]node, len(in.Members))
	for i, m := range in.Members {
		nodes[i] = newNode(in, m)
	}
	if i := gatewayIndex(nodes); i >= 0 {
		return nodes[i].Member, true
	}
	return Member{}, false
}

func gatewayIndex(nodes []node) int {
	best := -1
	for i := range nodes {
		if n := &nodes[i]; n.hasEndpoint() && (best < 0 || betterGateway(n, &nodes[best])) {
			best = i
		}
	}
	return best
}

func betterGateway(a, b *node) bool {
	if a.isHub() != b.isHub() {
		return a.isHub()
	}
	return a.PeerID < b.PeerID
}
