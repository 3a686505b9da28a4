package sdwan

import (
	"net/netip"
	"slices"
	"strings"
)

// Hooks of the table.
const (
	HookInput   = "input"
	HookForward = "forward"
	HookOutput  = "output"
)

// Packet is what a chain sees of one packet. An empty state is a new connection; neighbour discovery is `untracked`.
type Packet struct {
	InInterface     string
	OutInterface    string
	Source          netip.Addr
	Destination     netip.Addr
	Protocol        string // tcp, udp, icmp6, icmp
	SourcePort      int
	DestinationPort int
	ICMPType        int
	MidStream       bool // tcp: the segment opens no connection
	State           string
}

// Decision is a chain's verdict on a packet, and the rule that gave it; without one, Index is -1 and the chain's
// policy accepted.
type Decision struct {
	Verdict string // accept, drop, reject
	Index   int
	Rule    FirewallRule
}

// Accepted reports whether the packet passes.
func (d Decision) Accepted() bool { return d.Verdict == ActionAccept }

// Decide walks one chain of the table as the kernel does.
func (f Firewall) Decide(p Packet, hook string) Decision {
	chain := map[string][]FirewallRule{HookInput: f.Input, HookForward: f.Forward, HookOutput: f.Output}[hook]
	for i, r := range chain {
		if f.matches(r, p) {
			return Decision{Verdict: r.Verdict, Index: i, Rule: r}
		}
	}
	return Decision{Verdict: ActionAccept, Index: -1}
}

func (f Firewall) matches(r FirewallRule, p Packet) bool {
	family := familyIPv4
	if p.Destination.Is6() {
		family = familyIPv6
	}
	switch {
	case len(r.InInterfaces) > 0 && !namesInterface(r.InInterfaces, p.InInterface),
		len(r.OutInterfaces) > 0 && !namesInterface(r.OutInterfaces, p.OutInterface),
		namesInterface(r.InExcept, p.InInterface),
		namesInterface(r.OutExcept, p.OutInterface):
		return false
	case r.Family != "" && r.Family != family,
		r.Protocol != "" && r.Protocol != p.Protocol,
		r.SourceSet != "" && !f.inSet(r.SourceSet, p.Source),
		r.DestinationSet != "" && !f.inSet(r.DestinationSet, p.Destination):
		return false
	case r.PortFrom != 0 && !portIn(r.PortFrom, r.PortTo, p.DestinationPort),
		r.SourcePortFrom != 0 && !portIn(r.SourcePortFrom, r.SourcePortTo, p.SourcePort):
		return false
	case r.NotOpening && !p.MidStream,
		len(r.ICMPTypes) > 0 && !slices.Contains(r.ICMPTypes, p.ICMPType):
		return false
	}
	state := p.State
	if state == "" {
		state = "new"
	}
	return len(r.States) == 0 || slices.Contains(r.States, state)
}

func (f Firewall) inSet(name string, a netip.Addr) bool {
	i := slices.IndexFunc(f.Sets, func(s FirewallSet) bool { return s.Name == name })
	return i >= 0 && holds(f.Sets[i].Prefixes, a)
}

func namesInterface(names []string, name string) bool {
	return slices.ContainsFunc(names, func(n string) bool {
		if prefix, ok := strings.CutSuffix(n, "*"); ok {
			return strings.HasPrefix(name, prefix)
		}
		return n == name
	})
}

func portIn(from, to, port int) bool {
	return from <= port && port <= max(from, to)
}
