package sdwan

import (
	"cmp"
	"net/netip"
	"slices"
)

// Kinds of a network's routes.
const (
	RouteOverlay    = "overlay"
	RoutePeer       = "peer"
	RouteVirtualIP  = "virtual_ip"
	RouteLANSubnet  = "lan_subnet"
	RoutePodSubnet  = "pod_subnet"
	RouteUserDevice = "user_device"
)

// RouteEntry is a prefix of the network and the peer behind which it is. The /64 itself is behind nobody alone.
type RouteEntry struct {
	Prefix     netip.Prefix
	ViaPeerID  string
	ViaAddress netip.Addr
	Kind       string
}

// Routes are the static routes of a network, sorted by prefix. A virtual IP without a holder and a device without a
// gateway are behind nobody and missing here.
func Routes(in Intent) []RouteEntry {
	out := []RouteEntry{{Prefix: in.CIDR.Masked(), Kind: RouteOverlay}}
	byID := make(map[string]Member, len(in.Members))
	via := func(m Member, p netip.Prefix, kind string) {
		out = append(out, RouteEntry{Prefix: p.Masked(), ViaPeerID: m.PeerID, ViaAddress: m.Address, Kind: kind})
	}
	f := fabric{in: in}
	for _, m := range in.Members {
		byID[m.PeerID] = m
		for _, p := range m.addresses() {
			via(m, p, RoutePeer)
		}
		for _, p := range m.LANSubnets {
			via(m, p, RouteLANSubnet)
		}
		for _, p := range f.routedPods(m) {
			via(m, p, RoutePodSubnet)
		}
	}
	for _, v := range in.VIPs {
		if m, ok := byID[v.HolderPeerID]; ok {
			via(m, host(v.Address), RouteVirtualIP)
		}
	}
	if g, ok := GatewayOf(in); ok {
		for _, d := range in.Devices {
			via(g, host(d.Address), RouteUserDevice)
		}
	}
	slices.SortFunc(out, func(a, b RouteEntry) int {
		return cmp.Or(comparePrefix(a.Prefix, b.Prefix), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ViaPeerID, b.ViaPeerID))
	})
	return out
}

// Reach says whether the documents of one network's peers reach into another network, or, of a network to itself,
// whether every peer reaches every other one.
type Reach struct {
	FromNetworkID string
	ToNetworkID   string
	Reachable     bool
	Passages      []Passage // between two networks: each way that a document opens
	Missing       []Passage // inside one network: what a peer's document does not reach
}

// Passage is the evidence: what of whose document it is.
type Passage struct {
	InstanceID string
	PeerID     string
	Prefix     netip.Prefix
	Why        string
}

// Reachability is the matrix of all networks that the documents have, sorted by the two ids. It reads compiled
// documents, as agents have applied them, and knows nothing of the intent.
func Reachability(docs []Document) []Reach {
	networks := networksOf(docs)
	ids := make([]string, 0, len(networks))
	for id := range networks {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	var out []Reach
	for _, from := range ids {
		for _, to := range ids {
			r := Reach{FromNetworkID: from, ToNetworkID: to, Passages: []Passage{}, Missing: []Passage{}}
			if from == to {
				r.Missing = missing(networks[from])
				r.Reachable = len(r.Missing) == 0
			} else {
				r.Passages = passages(networks[from], networks[to])
				r.Reachable = len(r.Passages) > 0
			}
			out = append(out, r)
		}
	}
	return out
}

// placed is a section with the document that it is in.
type placed struct {
	doc     *Document
	section *Network
}

func networksOf(docs []Document) map[string][]placed {
	out := map[string][]placed{}
	for d := range docs {
		for n := range docs[d].Networks {
			s := &docs[d].Networks[n]
			out[s.NetworkID] = append(out[s.NetworkID], placed{&docs[d], s})
		}
	}
	for _, list := range out {
		slices.SortFunc(list, func(a, b placed) int { return cmp.Compare(a.section.PeerID, b.section.PeerID) })
	}
	return out
}

// passages are the ways from one network's peers into another one: an AllowedIP, a route, or a forward chain of an
// instance that is in both.
func passages(from, to []placed) []Passage {
	out := []Passage{}
	target := to[0].section.CIDR
	for _, p := range from {
		add := func(prefix netip.Prefix, why string) {
			out = append(out, Passage{p.doc.Instance.ID, p.section.PeerID, prefix, why})
		}
		for _, peer := range p.section.Peers {
			for _, a := range peer.AllowedIPs {
				if Overlaps(a, target) {
					add(a, "allowed to "+peer.Kind+" "+peer.PeerID)
				}
			}
		}
		for _, r := range p.section.Routes {
			if !r.Unreachable && Overlaps(r.Prefix, target) {
				add(r.Prefix, "routed into "+p.section.DeviceName)
			}
		}
		for _, other := range to {
			if other.doc == p.doc && crosses(p, other) {
				add(target, "the firewall forwards from "+p.section.DeviceName+" to "+other.section.DeviceName)
			}
		}
	}
	return out
}

// crosses reports whether a host that is in both networks would pass a packet from one to the other, through itself
// or to its own address in the other.
func crosses(from, to placed) bool {
	packet := Packet{
		InInterface: from.section.DeviceName, Source: from.section.CIDR.Addr().Next(),
		Destination: to.section.Addresses[0].Addr(), Protocol: "tcp", DestinationPort: 6443,
	}
	fw := from.doc.Firewall
	if fw.Decide(packet, HookInput).Accepted() {
		return true
	}
	packet.OutInterface, packet.Destination = to.section.DeviceName, to.section.CIDR.Addr().Next()
	return fw.Decide(packet, HookForward).Accepted()
}

// missing is what peers don't reach inside their own network. A suspended network reaches nothing and is quiet.
func missing(sections []placed) []Passage {
	out := []Passage{}
	for _, p := range sections {
		if p.section.Suspended {
			continue
		}
		reached := map[netip.Prefix]bool{}
		var wide []netip.Prefix
		for _, peer := range p.section.Peers {
			for _, a := range peer.AllowedIPs {
				reached[a] = true
				if !a.IsSingleIP() {
					wide = append(wide, a)
				}
			}
		}
		for _, other := range sections {
			if other.section.PeerID == p.section.PeerID {
				continue
			}
			for _, a := range other.section.Addresses {
				if !reached[a] && !holds(wide, a.Addr()) {
					out = append(out, Passage{p.doc.Instance.ID, p.section.PeerID, a, "no tunnel to peer " + other.section.PeerID})
				}
			}
		}
	}
	return out
}
