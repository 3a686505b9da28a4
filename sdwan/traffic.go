package sdwan

import (
	"cmp"
	"net/netip"
	"slices"
)

// way is one direction of traffic through a chain: which interfaces, between which ends, and which rules concern it.
type way struct {
	match     FirewallRule // interfaces only
	ends      []ends       // a rule is cut to each of them
	ingress   bool         // rules of direction ingress count
	egress    bool         // rules of direction egress count
	toSelf    bool         // a rule's destination must be able to be this host
	fromSelf  bool         // a rule's source must be able to be this host
	fromPods  bool         // pods send for their node: masqueraded later, so the cluster's rules hold for them
	dropsRest bool         // the network's default policy counts: traffic that enters a peer
	echo      []int        // ICMPv6 types that always pass
}

func inputTraffic(s scope) way {
	return way{
		match: FirewallRule{InInterfaces: []string{s.iface}}, ends: []ends{{s.net, s.net}},
		ingress: true, toSelf: true, dropsRest: s.in.DefaultPolicy == ActionDrop, echo: icmp6Essentials(),
	}
}

func outputTraffic(s scope) way {
	return way{
		match: FirewallRule{OutInterfaces: []string{s.iface}}, ends: []ends{{s.net, s.net}},
		egress: true, fromSelf: true, echo: icmp6Essentials(),
	}
}

// forwardTraffic are the ways through a host: from peer to peer at a hub, to and from devices at a gateway, to and
// from the pods of a cluster of this network. Any other host has none.
func (h *hostRules) forwardTraffic(s scope) []way {
	var ways []way
	drops := s.in.DefaultPolicy == ActionDrop
	if s.in.Suspended {
		return nil
	}
	if s.hub || s.gateway {
		w := way{
			match:   FirewallRule{InInterfaces: []string{s.iface}, OutInterfaces: []string{s.iface}},
			ends:    []ends{{s.net, s.net}},
			ingress: true, egress: true, dropsRest: drops, echo: icmp6Forwarded(),
		}
		if !s.hub {
			w.ends = []ends{{s.devices, s.net}, {s.net, s.devices}}
		}
		ways = append(ways, w)
	}
	if !s.cluster || len(h.pods) == 0 {
		return ways
	}
	pods := s.podPrefixes()
	return append(ways,
		way{match: FirewallRule{InInterfaces: []string{s.iface}, OutInterfaces: h.pods}, ends: []ends{{s.net, pods}},
			ingress: true, dropsRest: drops, echo: icmp6Forwarded()},
		way{match: FirewallRule{InInterfaces: h.pods, OutInterfaces: []string{s.iface}}, ends: []ends{{pods, s.net}},
			egress: true, fromPods: true, echo: icmp6Forwarded()})
}

// podPrefixes are the pod ranges of the clusters that this host is a node of.
func (s scope) podPrefixes() []netip.Prefix {
	out := slices.Clone(s.self.PodCIDRs)
	for _, c := range s.in.Clusters {
		if c.has(s.self.PeerID) {
			out = append(out, c.PodCIDR)
		}
	}
	return merged(out)
}

func icmp6Essentials() []int { return []int{1, 2, 3, 4, 128, 129, 133, 134, 135, 136} }
func icmp6Forwarded() []int  { return []int{1, 2, 3, 4, 128, 129} }
func icmpEssentials() []int  { return []int{0, 3, 8, 11, 12} }

// established accepts what belongs to a connection, inside the network alone.
func (h *hostRules) established(c *[]FirewallRule, s scope, match FirewallRule) {
	if s.in.Suspended {
		return
	}
	match.Comment, match.Verdict = s.comment("established"), ActionAccept
	match.States = []string{stateEstablished, stateRelated}
	h.within(c, s, match, ends{s.net, s.net})
}

// section compiles what one membership lets through one way, in the order that counts.
func (h *hostRules) section(c *[]FirewallRule, s scope, w way) {
	if s.in.Suspended {
		return
	}
	h.essentials(c, s, w)
	for _, r := range s.rules {
		if r.Force {
			h.user(c, s, w, r)
		}
	}
	for _, b := range s.built {
		h.builtIn(c, s, w, b)
	}
	for _, r := range s.rules {
		if !r.Force {
			h.user(c, s, w, r)
		}
	}
	if w.dropsRest {
		return
	}
	for _, e := range w.ends {
		r := w.match
		r.Comment, r.Verdict = s.comment("inside the network"), ActionAccept
		h.within(c, s, r, e)
	}
}

func (h *hostRules) essentials(c *[]FirewallRule, s scope, w way) {
	for _, e := range w.ends {
		r := w.match
		r.Comment, r.Verdict = s.comment("ICMP essentials"), ActionAccept
		r.Protocol, r.ICMPTypes = "icmp6", w.echo
		h.family(c, s, r, e, familyIPv6, "net", "net")
		r.Protocol, r.ICMPTypes = "icmp", icmpEssentials()
		h.family(c, s, r, e, familyIPv4, "net", "net")
	}
}

func (h *hostRules) user(c *[]FirewallRule, s scope, w way, r resolvedRule) {
	ingress := r.Direction != DirectionEgress && w.ingress
	egress := r.Direction != DirectionIngress && w.egress
	if !ingress && !egress {
		return
	}
	source, destination := r.ends.source, r.ends.destination
	if w.toSelf && !intersects(destination, s.own) || w.fromSelf && !intersects(source, s.own) {
		return
	}
	rule := w.match
	rule.Comment, rule.RuleID, rule.Verdict = r.Name, r.ID, r.Action
	if !isAny(r.Protocol) {
		rule.Protocol = r.Protocol
	}
	rule.PortFrom, rule.PortTo = r.PortFrom, r.PortTo
	for _, e := range w.ends {
		cut := ends{intersection(source, e.source), intersection(destination, e.destination)}
		for _, family := range families() {
			if family == familyIPv4 && r.Protocol == ProtocolICMP6 {
				continue
			}
			h.family(c, s, rule, cut, family, r.Source.name(), r.Destination.name())
		}
	}
}

func (h *hostRules) builtIn(c *[]FirewallRule, s scope, w way, b resolvedBuiltIn) {
	source, destination := b.ends.source, b.ends.destination
	if w.toSelf && !intersects(destination, s.own) || w.fromSelf && !intersects(source, s.own) {
		return
	}
	if w.fromPods && b.Pods && intersects(source, s.own) {
		source = s.podPrefixes()
	}
	rule := w.match
	rule.Comment, rule.Verdict = b.Name, b.Action
	if !isAny(b.Protocol) {
		rule.Protocol = b.Protocol
	}
	rule.PortFrom, rule.PortTo = b.PortFrom, b.PortTo
	for _, e := range w.ends {
		cut := ends{intersection(source, e.source), intersection(destination, e.destination)}
		for _, family := range families() {
			h.family(c, s, rule, cut, family, b.ID+"_from", b.ID+"_to")
		}
	}
}

// within adds a rule for each family that has both ends.
func (h *hostRules) within(c *[]FirewallRule, s scope, r FirewallRule, e ends) {
	for _, family := range families() {
		h.family(c, s, r, e, family, "net", "net")
	}
}

// family adds a rule for one family, if there is anybody on both sides.
func (h *hostRules) family(c *[]FirewallRule, s scope, r FirewallRule, e ends, family, source, destination string) {
	from, to := ofFamily(family, e.source), ofFamily(family, e.destination)
	if len(from) == 0 || len(to) == 0 {
		return
	}
	r.Family = family
	r.SourceSet = h.set(s.setFor(source, from), family, from)
	r.DestinationSet = h.set(s.setFor(destination, to), family, to)
	h.add(c, r)
}

// setFor names a set after the network, and after what chose its addresses.
func (s scope) setFor(name string, prefixes []netip.Prefix) string {
	if name == "net" && !slices.Equal(prefixes, ofFamily(familyOf(prefixes), s.net)) {
		name = "pods"
		if slices.Equal(prefixes, ofFamily(familyOf(prefixes), s.devices)) {
			name = "devices"
		}
	}
	return s.name + "_" + name
}

func familyOf(prefixes []netip.Prefix) string {
	if prefixes[0].Addr().Is6() {
		return familyIPv6
	}
	return familyIPv4
}

// name is how the sets of a selector are called.
func (s *Selector) name() string {
	switch {
	case s == nil || s.All:
		return "net"
	case s.PeerID != "":
		return "peer_" + s.PeerID
	case s.Tag != "":
		return "tag_" + s.Tag
	}
	return cmp.Or("cidr_"+s.CIDR.Masked().String(), "cidr")
}
