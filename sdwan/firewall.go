package sdwan

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
)

// FirewallTable is the name of our table, of family inet.
const FirewallTable = "powernode"

// Families of sets and rules.
const (
	familyIPv6 = "ip6"
	familyIPv4 = "ip"
)

// States of connection tracking, and the names that never change.
const (
	stateEstablished = "established"
	stateRelated     = "related"
	stateInvalid     = "invalid"
	loopback         = "lo"
	maxComment       = 64
)

// DefaultPodInterfaces are the interfaces of flannel's pods. The pods' own veth ends are ports of the bridge cni0, so
// no rule ever sees them.
func DefaultPodInterfaces() []string { return []string{"cni0", "flannel*"} }

// HostFirewall compiles the one table of a host from all its memberships. A host without any has an empty table.
//
// Order of a chain: loopback; overlay addresses on foreign interfaces dropped, before anything established is
// accepted; established; the lock of the underlay; then for each membership ICMP essentials, rules with force, the
// clusters' built-in rules, users' rules, the default, and the drop of everything on its interface that was not
// accepted. Each accept on an interface of ours has both ends inside the network of that interface, so nothing
// crosses from one membership to another.
func HostFirewall(in Host) (Firewall, error) {
	h, err := newHostRules(in)
	if err != nil {
		return Firewall{}, err
	}
	if len(h.scopes) > 0 {
		h.input()
		h.forward()
		h.output()
	}
	return h.finish(), nil
}

// hostRules collects the table of one host.
type hostRules struct {
	fw       Firewall
	sets     map[string]FirewallSet
	seen     map[string]bool // rules of the chain that is being filled
	scopes   []scope         // sorted by interface name
	pods     []string
	ours     []string       // the interfaces of all memberships
	known    []string       // ours, lo and the pods': all else is underlay
	overlays []netip.Prefix // the addresses that may show on no underlay
	platform []netip.AddrPort
}

// scope is one membership with what its rules need.
type scope struct {
	in      Intent
	self    Member
	name    string // of its sets: n<short id>
	iface   string
	net     []netip.Prefix // both ends of everything on the interface
	own     []netip.Prefix // addresses of this host, virtual IPs held included
	devices []netip.Prefix
	cluster bool // the host is a node of a cluster of this network
	hub     bool
	gateway bool
	built   []resolvedBuiltIn
	rules   []resolvedRule
}

// resolvedRule is a user's rule with both sides looked up, once for all chains.
type resolvedRule struct {
	Rule
	ends ends
}

// resolvedBuiltIn is the same for a built-in rule.
type resolvedBuiltIn struct {
	BuiltInRule
	ends ends
}

func newHostRules(in Host) (*hostRules, error) {
	h := &hostRules{
		fw: Firewall{
			Table: FirewallTable, Sets: []FirewallSet{},
			Input: []FirewallRule{}, Forward: []FirewallRule{}, Output: []FirewallRule{},
		},
		sets:     map[string]FirewallSet{},
		seen:     map[string]bool{},
		platform: slices.Clone(in.Platform),
	}
	for _, m := range in.Memberships {
		s, err := newScope(m)
		if err != nil {
			return nil, err
		}
		h.scopes = append(h.scopes, s)
	}
	slices.SortFunc(h.scopes, func(a, b scope) int { return cmp.Compare(a.self.ShortID, b.self.ShortID) })
	inCluster := false
	for i, s := range h.scopes {
		if i > 0 && h.scopes[i-1].iface == s.iface {
			return nil, &IntentError{s.in.NetworkID, "peer " + s.self.PeerID, "shares interface " + s.iface + " with another membership"}
		}
		h.ours = append(h.ours, s.iface)
		inCluster = inCluster || s.cluster
	}
	h.overlays = h.overlayPrefixes()
	h.pods = sortedIDs(in.PodInterfaces)
	if len(h.pods) == 0 && inCluster {
		h.pods = DefaultPodInterfaces()
	}
	h.known = slices.Concat([]string{loopback}, h.ours, h.pods)
	slices.SortFunc(h.platform, netip.AddrPort.Compare)
	h.platform = slices.Compact(h.platform)
	return h, nil
}

func newScope(m Membership) (scope, error) {
	i := slices.IndexFunc(m.Intent.Members, func(c Member) bool { return c.PeerID == m.PeerID })
	if i < 0 {
		return scope{}, &IntentError{m.Intent.NetworkID, "peer " + m.PeerID, "is no member of the network"}
	}
	self := m.Intent.Members[i]
	if !validPort(self.ListenPort) { // as a rule's port, 0 would open all of UDP
		return scope{}, &IntentError{m.Intent.NetworkID, "peer " + m.PeerID, fmt.Sprintf("listen port %d is not in 1..65535", self.ListenPort)}
	}
	for _, r := range m.Intent.Rules {
		if err := checkRule(m.Intent, r); err != nil {
			return scope{}, err
		}
	}
	n := newNode(m.Intent, self)
	s := scope{
		in: m.Intent, self: self, iface: DeviceName(self.ShortID), name: fmt.Sprintf("n%d", self.ShortID),
		net: networkPrefixes(m.Intent), own: self.addresses(), hub: n.isHub(),
	}
	for _, v := range m.Intent.VIPs {
		if v.HolderPeerID == self.PeerID {
			s.own = append(s.own, host(v.Address))
		}
	}
	s.own = merged(s.own)
	for _, d := range m.Intent.Devices {
		s.devices = append(s.devices, host(d.Address))
	}
	s.devices = merged(s.devices)
	if g, ok := GatewayOf(m.Intent); ok {
		s.gateway = g.PeerID == self.PeerID && len(s.devices) > 0
	}
	s.resolve()
	return s, nil
}

// checkRule refuses a word that no chain knows: a rule is never compiled into something else.
func checkRule(in Intent, r Rule) error {
	switch {
	case !slices.Contains([]string{ActionAccept, ActionDrop, ActionReject}, r.Action):
		return &IntentError{in.NetworkID, "firewall_rule " + r.ID, fmt.Sprintf("unknown action %q", r.Action)}
	case !slices.Contains([]string{"", DirectionIngress, DirectionEgress, DirectionBoth}, r.Direction):
		return &IntentError{in.NetworkID, "firewall_rule " + r.ID, fmt.Sprintf("unknown direction %q", r.Direction)}
	case !slices.Contains([]string{"", ProtocolAny, ProtocolTCP, ProtocolUDP, ProtocolICMP6}, r.Protocol):
		return &IntentError{in.NetworkID, "firewall_rule " + r.ID, fmt.Sprintf("unknown protocol %q", r.Protocol)}
	case r.PortFrom != 0 && r.Protocol != ProtocolTCP && r.Protocol != ProtocolUDP:
		return &IntentError{in.NetworkID, "firewall_rule " + r.ID, "ports need protocol tcp or udp"}
	}
	return nil
}

// resolve looks up every rule's sides, each selector once, and cuts them to the network.
func (s *scope) resolve() {
	known := map[Selector][]netip.Prefix{}
	side := func(sel *Selector) []netip.Prefix {
		if sel == nil {
			return s.net
		}
		out, ok := known[*sel]
		if !ok {
			out = intersection(ResolveSelector(s.in, sel), s.net)
			known[*sel] = out
		}
		return out
	}
	for _, r := range orderedRules(s.in) {
		s.rules = append(s.rules, resolvedRule{r, ends{side(r.Source), side(r.Destination)}})
	}
	clusters := slices.Clone(s.in.Clusters)
	slices.SortFunc(clusters, func(a, b Cluster) int { return cmp.Compare(a.ID, b.ID) })
	for _, c := range clusters {
		s.cluster = s.cluster || c.has(s.self.PeerID)
		for _, b := range BuiltInRules(c) {
			s.built = append(s.built, resolvedBuiltIn{b, ends{
				intersection(b.Source.Resolve(s.in), s.net), intersection(b.Destination.Resolve(s.in), s.net)}})
		}
	}
}

// ends are the sources and destinations to which a rule is cut.
type ends struct{ source, destination []netip.Prefix }

func (h *hostRules) input() {
	c := &h.fw.Input
	h.add(c, FirewallRule{Comment: "loopback", InInterfaces: []string{loopback}, Verdict: ActionAccept})
	h.overlay(c, FirewallRule{Comment: "overlay from the underlay", InExcept: h.known})
	h.podsStayInTheirNetwork(c)
	h.add(c, FirewallRule{Comment: "established", InExcept: h.ours,
		States: []string{stateEstablished, stateRelated}, Verdict: ActionAccept})
	for _, s := range h.scopes {
		h.established(c, s, FirewallRule{InInterfaces: []string{s.iface}})
	}
	h.add(c, FirewallRule{Comment: "invalid", InExcept: slices.Concat([]string{loopback}, h.pods),
		States: []string{stateInvalid}, Verdict: ActionDrop})
	h.lockUnderlay(c)
	for _, s := range h.scopes {
		h.section(c, s, inputTraffic(s))
		h.add(c, FirewallRule{Comment: s.comment("nothing else comes in"), InInterfaces: []string{s.iface}, Verdict: ActionDrop})
	}
}

func (h *hostRules) forward() {
	c := &h.fw.Forward
	if len(h.pods) > 0 {
		// Answers to masqueraded pods have pod addresses here, which are overlay addresses. None can be forged: the
		// connection's answer comes to the machine's own address.
		h.add(c, FirewallRule{Comment: "answers to pods", InExcept: h.known, OutInterfaces: h.pods,
			States: []string{stateEstablished, stateRelated}, Verdict: ActionAccept})
	}
	h.overlay(c, FirewallRule{Comment: "overlay from the underlay", InExcept: h.known})
	h.overlayTo(c, FirewallRule{Comment: "overlay to the underlay", OutExcept: h.known})
	h.overlayFrom(c, FirewallRule{Comment: "overlay to the underlay", InExcept: h.pods, OutExcept: h.known})
	h.add(c, FirewallRule{Comment: "underlay to the overlay", InExcept: h.known,
		OutInterfaces: slices.Concat(h.ours, h.pods), Verdict: ActionDrop})
	for _, s := range h.scopes {
		ways := h.forwardTraffic(s)
		for _, w := range ways {
			h.established(c, s, w.match)
		}
		if len(ways) > 0 {
			h.add(c, FirewallRule{Comment: s.comment("invalid"), InInterfaces: []string{s.iface},
				States: []string{stateInvalid}, Verdict: ActionDrop})
		}
		for _, w := range ways {
			h.section(c, s, w)
		}
		h.add(c, FirewallRule{Comment: s.comment("no way through"), InInterfaces: []string{s.iface}, Verdict: ActionDrop})
		h.add(c, FirewallRule{Comment: s.comment("no way through"), OutInterfaces: []string{s.iface}, Verdict: ActionDrop})
	}
}

func (h *hostRules) output() {
	c := &h.fw.Output
	h.add(c, FirewallRule{Comment: "loopback", OutInterfaces: []string{loopback}, Verdict: ActionAccept})
	h.overlay(c, FirewallRule{Comment: "overlay to the underlay", OutExcept: h.known})
	h.toPlatform(c)
	for _, s := range h.scopes {
		h.established(c, s, FirewallRule{OutInterfaces: []string{s.iface}})
		h.section(c, s, outputTraffic(s))
		h.add(c, FirewallRule{Comment: s.comment("nothing else goes out"), OutInterfaces: []string{s.iface}, Verdict: ActionDrop})
	}
}

// lockUnderlay lets in what a host needs to be reached at all, and WireGuard. Answers were accepted before.
func (h *hostRules) lockUnderlay(c *[]FirewallRule) {
	lock := func(r FirewallRule) {
		r.InExcept, r.Verdict = h.known, cmp.Or(r.Verdict, ActionAccept)
		h.add(c, r)
	}
	lock(FirewallRule{Comment: "neighbour and router discovery", Family: familyIPv6, Protocol: "icmp6",
		ICMPTypes: []int{130, 133, 134, 135, 136}}) // 130: who does not answer it loses its multicast, and discovery with it
	lock(FirewallRule{Comment: "ICMP errors", Family: familyIPv6, Protocol: "icmp6", ICMPTypes: icmp6Errors()})
	lock(FirewallRule{Comment: "ICMP errors", Family: familyIPv4, Protocol: "icmp", ICMPTypes: icmpErrors()})
	lock(FirewallRule{Comment: "DHCP answers", Family: familyIPv4, Protocol: "udp",
		SourcePortFrom: 67, SourcePortTo: 67, PortFrom: 68, PortTo: 68})
	lock(FirewallRule{Comment: "DHCP answers", Family: familyIPv6, Protocol: "udp",
		SourcePortFrom: 547, SourcePortTo: 547, PortFrom: 546, PortTo: 546})
	for _, s := range h.scopes {
		lock(FirewallRule{Comment: s.comment("WireGuard"), Protocol: "udp",
			PortFrom: s.self.ListenPort, PortTo: s.self.ListenPort})
	}
	h.fromPlatform(lock)
	lock(FirewallRule{Comment: "the underlay is locked", Verdict: ActionDrop})
}

func icmp6Errors() []int { return []int{1, 2, 3, 4} }
func icmpErrors() []int  { return []int{3, 11, 12} }

// overlay drops overlay addresses, as source and as destination.
func (h *hostRules) overlay(c *[]FirewallRule, match FirewallRule) {
	h.overlayFrom(c, match)
	h.overlayTo(c, match)
}

func (h *hostRules) overlayFrom(c *[]FirewallRule, match FirewallRule) {
	for _, family := range families() {
		if match.SourceSet = h.set("overlay", family, h.overlays); match.SourceSet != "" {
			match.Family, match.Verdict = family, ActionDrop
			h.add(c, match)
		}
	}
}

func (h *hostRules) overlayTo(c *[]FirewallRule, match FirewallRule) {
	for _, family := range families() {
		if match.DestinationSet = h.set("overlay", family, h.overlays); match.DestinationSet != "" {
			match.Family, match.Verdict = family, ActionDrop
			h.add(c, match)
		}
	}
}

// overlayPrefixes are the addresses that may show on no underlay: the accounts' /48, the networks, IPv4 addresses
// and pods. A LAN behind a peer is an underlay there.
func (h *hostRules) overlayPrefixes() []netip.Prefix {
	var out []netip.Prefix
	for _, s := range h.scopes {
		out = append(out, s.in.AccountPrefix, s.in.CIDR)
		for _, m := range s.in.Members {
			if m.AddressV4.IsValid() {
				out = append(out, host(m.AddressV4))
			}
			out = append(out, m.PodCIDRs...)
		}
		for _, c := range s.in.Clusters {
			out = append(out, c.PodCIDR)
		}
	}
	return merged(out)
}

// podsStayInTheirNetwork keeps pods from the host's addresses in networks that their cluster is not in.
func (h *hostRules) podsStayInTheirNetwork(c *[]FirewallRule) {
	if len(h.pods) == 0 {
		return
	}
	for _, s := range h.scopes {
		if s.cluster {
			continue
		}
		for _, family := range families() {
			if set := h.set(s.name+"_own", family, s.own); set != "" {
				h.add(c, FirewallRule{Comment: s.comment("not for pods"), InInterfaces: h.pods, DestinationSet: set,
					Family: family, Verdict: ActionDrop})
			}
		}
	}
}

// toPlatform accepts the agent's flow by name, so that no later rule can ever cut it.
func (h *hostRules) toPlatform(c *[]FirewallRule) {
	for _, p := range h.platform {
		family, port := addressFamily(p.Addr()), int(p.Port())
		h.add(c, FirewallRule{Comment: "the platform", OutExcept: h.ours, Family: family, Protocol: "tcp",
			DestinationSet: h.set(fmt.Sprintf("platform_%d", port), family, h.platformAt(p.Port())),
			PortFrom:       port, PortTo: port, Verdict: ActionAccept})
	}
}

// fromPlatform lets the platform's answers in without asking connection tracking: it knows nothing of connections that
// are older than the table, and their next segment would count as new. What opens a connection stays out.
func (h *hostRules) fromPlatform(lock func(FirewallRule)) {
	for _, p := range h.platform {
		port := int(p.Port())
		family := addressFamily(p.Addr())
		lock(FirewallRule{Comment: "the platform's answers", Family: family, Protocol: "tcp", NotOpening: true,
			SourceSet: h.set(fmt.Sprintf("platform_%d", port), family, h.platformAt(p.Port())), SourcePortFrom: port, SourcePortTo: port})
	}
}

func addressFamily(a netip.Addr) string {
	if a.Unmap().Is6() {
		return familyIPv6
	}
	return familyIPv4
}

func (h *hostRules) platformAt(port uint16) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range h.platform {
		if p.Port() == port {
			out = append(out, host(p.Addr().Unmap()))
		}
	}
	return merged(out)
}

func families() []string { return []string{familyIPv6, familyIPv4} }

// add appends a rule, unless the chain has just the same one already.
func (h *hostRules) add(c *[]FirewallRule, r FirewallRule) {
	if len(*c) == 0 {
		clear(h.seen)
	}
	r = r.whole()
	key := fmt.Sprintf("%#v", r)
	if h.seen[key] {
		return
	}
	h.seen[key] = true
	*c = append(*c, r)
}

// set registers the prefixes of one family, which are merged, under a name and returns it; an empty set has none.
func (h *hostRules) set(name, family string, prefixes []netip.Prefix) string {
	prefixes = ofFamily(family, prefixes)
	if len(prefixes) == 0 {
		return ""
	}
	base := setName(name) + "_" + family
	for n := 1; ; n++ {
		full := base
		if n > 1 {
			full = fmt.Sprintf("%s_%d", base, n)
		}
		known, ok := h.sets[full]
		if ok && !slices.Equal(known.Prefixes, prefixes) {
			continue
		}
		h.sets[full] = FirewallSet{Name: full, Family: family, Prefixes: prefixes}
		return full
	}
}

// setName keeps what nft takes in a name.
func setName(s string) string {
	b := []byte(s)
	for i, c := range b {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '-') {
			b[i] = '_'
		}
	}
	return string(b)
}

func (h *hostRules) finish() Firewall {
	for _, s := range h.sets {
		h.fw.Sets = append(h.fw.Sets, s)
	}
	slices.SortFunc(h.fw.Sets, func(a, b FirewallSet) int { return cmp.Compare(a.Name, b.Name) })
	h.fw.Hash = h.fw.ContentHash()
	return h.fw
}

// ContentHash is the SHA-256, in hex, over everything but the hash.
func (f Firewall) ContentHash() string {
	f.Hash = ""
	b, err := json.Marshal(f)
	if err != nil {
		panic("a firewall is plain values: " + err.Error())
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// whole makes every list present and cuts the comment to what nft keeps.
func (r FirewallRule) whole() FirewallRule {
	r.Comment = cutComment(r.Comment)
	for _, list := range []*[]string{&r.InInterfaces, &r.InExcept, &r.OutInterfaces, &r.OutExcept, &r.States} {
		*list = append([]string{}, *list...)
	}
	r.ICMPTypes = append([]int{}, r.ICMPTypes...)
	return r
}

// cutComment keeps printable ASCII without quotes and backslashes: a comment ends up inside a script.
func cutComment(s string) string {
	var b []byte
	for _, c := range s {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			c = '?'
		}
		if len(b) < maxComment {
			b = append(b, byte(c))
		}
	}
	return string(b)
}

func (s scope) comment(text string) string { return s.iface + ": " + text }
