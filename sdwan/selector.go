package sdwan

import (
	"cmp"
	"net/netip"
	"slices"
)

// ResolveSelector returns the addresses that a selector means now, merged and sorted. Nil and all are the whole
// network with what lies behind its peers. A peer is its assigned addresses, not its virtual IPs or LANs; a tag is
// the peers and devices that have it. What resolves to nothing matches nothing.
func ResolveSelector(in Intent, s *Selector) []netip.Prefix {
	switch {
	case s == nil || s.All:
		return networkPrefixes(in)
	case s.PeerID != "":
		return peerAddresses(in, func(m Member) bool { return m.PeerID == s.PeerID })
	case s.Tag != "":
		tagged := peerAddresses(in, func(m Member) bool { return slices.Contains(m.Tags, s.Tag) })
		for _, d := range in.Devices {
			if slices.Contains(d.Tags, s.Tag) {
				tagged = append(tagged, host(d.Address))
			}
		}
		return merged(tagged)
	case s.CIDR.IsValid():
		return []netip.Prefix{s.CIDR.Masked()}
	}
	return nil
}

func peerAddresses(in Intent, want func(Member) bool) []netip.Prefix {
	var out []netip.Prefix
	for _, m := range in.Members {
		if want(m) {
			out = append(out, m.addresses()...)
		}
	}
	return merged(out)
}

func (m Member) addresses() []netip.Prefix {
	out := []netip.Prefix{host(m.Address)}
	if m.AddressV4.IsValid() {
		out = append(out, host(m.AddressV4))
	}
	return out
}

// networkPrefixes is everything that may be an end of traffic inside a network: its /64, its peers' IPv4 addresses,
// and the LAN and pod ranges behind them.
func networkPrefixes(in Intent) []netip.Prefix {
	out := []netip.Prefix{in.CIDR}
	for _, m := range in.Members {
		if m.AddressV4.IsValid() {
			out = append(out, host(m.AddressV4))
		}
		out = append(out, m.LANSubnets...)
		out = append(out, m.PodCIDRs...)
	}
	for _, c := range in.Clusters {
		out = append(out, c.PodCIDR)
	}
	return merged(out)
}

// orderedRules are the enabled rules in the order that counts: those with force first, then priority, then name.
func orderedRules(in Intent) []Rule {
	var out []Rule
	for _, r := range in.Rules {
		if r.Enabled {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b Rule) int {
		if a.Force != b.Force {
			if a.Force {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// BuiltInRule is traffic that a cluster needs. It is accepted before every user's rule without force.
type BuiltInRule struct {
	ID          string // <cluster id>/<key>, stable
	ClusterID   string
	Name        string
	Action      string // accept
	Protocol    string // tcp, udp, any
	PortFrom    int
	PortTo      int
	Source      Ends
	Destination Ends
	Pods        bool // pods send too, masqueraded as their node
}

// Ends are one side of a built-in rule: peers, and prefixes beside them.
type Ends struct {
	PeerIDs  []string
	Prefixes []netip.Prefix
}

// BuiltInRules are the flows of a cluster, by desired membership, so that a node about to join is in them already.
func BuiltInRules(c Cluster) []BuiltInRule {
	servers := Ends{PeerIDs: sortedIDs(c.ServerPeerIDs)}
	nodes := Ends{PeerIDs: sortedIDs(slices.Concat(c.ServerPeerIDs, c.AgentPeerIDs))}
	api := servers
	if c.VIP.IsValid() {
		api.Prefixes = []netip.Prefix{host(c.VIP)}
	}
	rule := func(key, protocol string, from, to int, source, destination Ends) BuiltInRule {
		return BuiltInRule{
			ID: c.ID + "/" + key, ClusterID: c.ID, Name: cmp.Or(c.Name, c.ID) + " " + key, Action: ActionAccept,
			Protocol: protocol, PortFrom: from, PortTo: to, Source: source, Destination: destination,
		}
	}
	rules := []BuiltInRule{
		rule("api", ProtocolTCP, 6443, 6443, nodes, api),
		rule("etcd", ProtocolTCP, 2379, 2380, servers, servers),
		rule("kubelet", ProtocolTCP, 10250, 10250, nodes, nodes),
	}
	rules[0].Pods, rules[2].Pods = true, true // controllers and metrics run in pods
	if c.FlannelBackend != BackendHostGW {
		return append(rules, rule("vxlan", ProtocolUDP, 8472, 8472, nodes, nodes))
	}
	if !c.PodCIDR.IsValid() {
		return rules
	}
	pods := Ends{Prefixes: []netip.Prefix{c.PodCIDR.Masked()}}
	return append(rules, rule("pods", ProtocolAny, 0, 0, pods, pods))
}

func sortedIDs(ids []string) []string {
	out := slices.Clone(ids)
	slices.Sort(out)
	return slices.Compact(out)
}

// Resolve returns the addresses of one side of a built-in rule; a peer that is no member has none.
func (e Ends) Resolve(in Intent) []netip.Prefix {
	ids := make(map[string]bool, len(e.PeerIDs))
	for _, id := range e.PeerIDs {
		ids[id] = true
	}
	peers := peerAddresses(in, func(m Member) bool { return ids[m.PeerID] })
	return merged(slices.Concat(peers, e.Prefixes))
}

// ShadowedBy returns the built-in rules that come first for part of a rule's traffic, sorted by id. A rule with
// force comes before them all.
func ShadowedBy(in Intent, r Rule) []BuiltInRule {
	out := []BuiltInRule{}
	if r.Force {
		return out
	}
	source, destination := ResolveSelector(in, r.Source), ResolveSelector(in, r.Destination)
	for _, c := range in.Clusters {
		for _, b := range BuiltInRules(c) {
			if protocolsMeet(r, b) && intersects(source, b.Source.Resolve(in)) &&
				intersects(destination, b.Destination.Resolve(in)) {
				out = append(out, b)
			}
		}
	}
	slices.SortFunc(out, func(a, b BuiltInRule) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func protocolsMeet(r Rule, b BuiltInRule) bool {
	if isAny(r.Protocol) || isAny(b.Protocol) {
		return true
	}
	if r.Protocol != b.Protocol {
		return false
	}
	return r.PortFrom == 0 || b.PortFrom == 0 || r.PortFrom <= b.PortTo && b.PortFrom <= r.PortTo
}

func isAny(protocol string) bool { return protocol == "" || protocol == ProtocolAny }
