package network

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
)

const maxPriority = 999999

// SelectorInput is one side of a rule as a call gives it; nil fields are not given.
type SelectorInput struct {
	PeerID *store.PeerID `json:"peer_id"`
	Tag    *string       `json:"tag"`
	CIDR   *string       `json:"cidr"`
	All    *bool         `json:"all"`
}

// RuleInput is a firewall rule to make.
type RuleInput struct {
	NetworkID   store.NetworkID
	Name        string
	Action      string
	Direction   string
	Protocol    string
	Priority    int
	Source      *SelectorInput
	Destination *SelectorInput
	PortFrom    *int
	PortTo      *int
}

// selector checks one side's shape.
func selector(pointer string, in *SelectorInput) (*store.Selector, error) {
	if in == nil {
		return nil, nil
	}
	given := 0
	var out store.Selector
	if in.PeerID != nil {
		given++
		out.PeerID = *in.PeerID
	}
	if in.Tag != nil {
		given++
		out.Tag = strings.TrimSpace(*in.Tag)
		if !tagPattern.MatchString(out.Tag) {
			return nil, schema.InvalidArgument(pointer+"/tag", *in.Tag, "a tag has 1..64 characters of a-z 0-9 - _ .")
		}
	}
	if in.CIDR != nil {
		given++
		p, err := netip.ParsePrefix(*in.CIDR)
		if err != nil || !schema.IsCIDR(*in.CIDR) {
			return nil, schema.InvalidArgument(pointer+"/cidr", *in.CIDR, "%s.cidr must be a CIDR without host bits (got %q)",
				strings.TrimPrefix(pointer, "/"), *in.CIDR)
		}
		out.CIDR = p.String()
	}
	if in.All != nil && *in.All {
		given++
		out.All = true
	}
	if given != 1 {
		return nil, schema.InvalidArgument(pointer, nil, "selector must have exactly one of: peer_id, tag, cidr, all")
	}
	return &out, nil
}

// rule checks what needs no row and makes the row.
func (in RuleInput) rule(acct store.AccountID) (store.FirewallRule, error) {
	r := store.FirewallRule{AccountID: acct, NetworkID: in.NetworkID, Name: in.Name, Priority: in.Priority, Action: in.Action,
		Direction: in.Direction, Protocol: in.Protocol, PortFrom: in.PortFrom, PortTo: in.PortTo, Enabled: true}
	if err := checkName("/name", in.Name, maxRuleName); err != nil {
		return r, err
	}
	if in.Priority < 0 || in.Priority > maxPriority {
		return r, schema.InvalidArgument("/priority", in.Priority, "priority must be between 0 and %d (got %d)", maxPriority, in.Priority)
	}
	var err error
	if r.Source, err = selector("/src_selector", in.Source); err != nil {
		return r, err
	}
	if r.Destination, err = selector("/dst_selector", in.Destination); err != nil {
		return r, err
	}
	if s, d := cidrOf(r.Source), cidrOf(r.Destination); s.IsValid() && d.IsValid() && s.Addr().Is4() != d.Addr().Is4() {
		return r, schema.InvalidCombination("/dst_selector/cidr", "src_selector and dst_selector are cidrs of two families")
	}
	return r, checkPorts(in)
}

func checkPorts(in RuleInput) error {
	switch {
	case in.PortFrom == nil && in.PortTo == nil:
		return nil
	case in.Protocol != sdwan.ProtocolTCP && in.Protocol != sdwan.ProtocolUDP:
		return schema.InvalidCombination("/protocol", "ports need protocol tcp or udp")
	case in.PortFrom == nil || in.PortTo == nil:
		return schema.InvalidCombination("/port_from", "port_from and port_to go together")
	case *in.PortFrom > *in.PortTo:
		return schema.InvalidCombination("/port_from", "port_from must not be above port_to")
	}
	return nil
}

func cidrOf(s *store.Selector) netip.Prefix {
	if s == nil || s.CIDR == "" {
		return netip.Prefix{}
	}
	p, err := netip.ParsePrefix(s.CIDR)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}

// CheckRule refuses what CreateRule could not do.
func (s *Service) CheckRule(ctx context.Context, v *store.View, acct store.AccountID, in RuleInput) error {
	r, err := in.rule(acct)
	if err != nil {
		return err
	}
	n, err := s.Find(ctx, v, acct, in.NetworkID)
	if err != nil {
		return err
	}
	for _, side := range []*store.Selector{r.Source, r.Destination} {
		if side == nil || side.PeerID == "" {
			continue
		}
		p, err := store.PeerByID(ctx, v, acct, side.PeerID)
		if err != nil {
			return orNotFound(err, "peer not found")
		}
		if p.NetworkID != n.ID {
			return schema.Errorf(schema.NotFound, "peer not found in this network").WithDetail("peer_id", string(side.PeerID))
		}
	}
	other, err := store.FirewallRuleByName(ctx, v, acct, n.ID, in.Name)
	if free, err := absent(err); err != nil || free {
		return err
	}
	return schema.Errorf(schema.Conflict, "firewall rule name %q is already in use", in.Name).WithDetail("firewall_rule_id", string(other.ID))
}

// CreateRule adds a rule. It can't cut an agent off the platform: users' rules match overlay interfaces alone, and the
// flow to the platform is accepted before them.
func (s *Service) CreateRule(ctx context.Context, tx *store.Tx, acct store.AccountID, in RuleInput) (store.FirewallRule, error) {
	if err := s.CheckRule(ctx, &tx.View, acct, in); err != nil {
		return store.FirewallRule{}, err
	}
	r, err := in.rule(acct)
	if err != nil {
		return r, err
	}
	r.ID = store.FirewallRuleID(tx.NewID())
	if err := store.InsertFirewallRule(ctx, tx, r); err != nil {
		return r, fmt.Errorf("make firewall rule %s: %w", r.Name, err)
	}
	_, err = tx.Audit(ctx, store.AuditEntry{AccountID: acct, Action: "created", ResourceType: "Sdwan::FirewallRule", ResourceID: string(r.ID),
		New: store.Object{"network_id": string(r.NetworkID), "name": r.Name, "action": r.Action, "direction": r.Direction, "protocol": r.Protocol,
			"priority": r.Priority, "src_selector": r.Source, "dst_selector": r.Destination, "port_from": r.PortFrom, "port_to": r.PortTo}})
	if err != nil {
		return r, err
	}
	tx.TouchNetwork(r.NetworkID)
	return store.FirewallRuleByID(ctx, &tx.View, acct, r.ID)
}

// FindRule finds a rule.
func (s *Service) FindRule(ctx context.Context, v *store.View, acct store.AccountID, id store.FirewallRuleID) (store.FirewallRule, error) {
	r, err := store.FirewallRuleByID(ctx, v, acct, id)
	return r, orNotFound(err, "firewall rule not found")
}

// BuiltIn are the rules that a network's clusters need, before every user's rule without force.
func (s *Service) BuiltIn(ctx context.Context, v *store.View, n store.Network) ([]sdwan.BuiltInRule, error) {
	clusters, err := s.clusters(ctx, v, n.AccountID, n.ID)
	if err != nil {
		return nil, err
	}
	var out []sdwan.BuiltInRule
	for _, c := range clusters {
		out = append(out, sdwan.BuiltInRules(c)...)
	}
	slices.SortFunc(out, func(a, b sdwan.BuiltInRule) int { return compareText(a.ID, b.ID) })
	return out, nil
}

// compiled is a rule as the compiler takes it.
func compiled(r store.FirewallRule) sdwan.Rule {
	out := sdwan.Rule{ID: string(r.ID), Name: r.Name, Priority: r.Priority, Action: r.Action, Direction: r.Direction, Protocol: r.Protocol,
		Source: side(r.Source), Destination: side(r.Destination), Enabled: r.Enabled, Force: r.Force}
	if r.PortFrom != nil && r.PortTo != nil {
		out.PortFrom, out.PortTo = *r.PortFrom, *r.PortTo
	}
	return out
}

func side(s *store.Selector) *sdwan.Selector {
	if s == nil {
		return nil
	}
	return &sdwan.Selector{PeerID: string(s.PeerID), Tag: s.Tag, CIDR: cidrOf(s), All: s.All}
}

// RuleEffect is what a rule means now.
type RuleEffect struct {
	Source             []netip.Prefix
	Destination        []netip.Prefix
	SourceMatches      int // addresses of peers, devices and virtual IPs among them
	DestinationMatches int
	ShadowedBy         []sdwan.BuiltInRule
	Warnings           []Warning
	Preview            *RulePreview // nil: it compiles nowhere now
}

// RulePreview is a rule as one of its hosts has it.
type RulePreview struct {
	PeerID  store.PeerID
	Ruleset string
}

// Effect resolves a rule against its network as it is now.
func (s *Service) Effect(ctx context.Context, v *store.View, r store.FirewallRule) (RuleEffect, error) {
	in, err := s.Intent(ctx, v, r.AccountID, r.NetworkID)
	if err != nil {
		return RuleEffect{}, err
	}
	rule := compiled(r)
	e := RuleEffect{Source: sdwan.ResolveSelector(in, rule.Source), Destination: sdwan.ResolveSelector(in, rule.Destination),
		ShadowedBy: sdwan.ShadowedBy(in, rule)}
	e.SourceMatches, e.DestinationMatches = matches(in, e.Source), matches(in, e.Destination)
	for _, side := range []struct {
		name     string
		selector *store.Selector
		resolved []netip.Prefix
	}{{"src_selector", r.Source, e.Source}, {"dst_selector", r.Destination, e.Destination}} {
		if side.selector == nil || side.selector.All || inside(in, side.resolved) {
			continue
		}
		e.Warnings = append(e.Warnings, Warning{"selector_empty", side.name + " resolves to nothing in this network: the rule matches nothing until it does"})
	}
	e.Preview, err = s.preview(in, r)
	return e, err
}

// inside says whether a side has an address of the network, or of what lies behind its peers.
func inside(in sdwan.Intent, resolved []netip.Prefix) bool {
	for _, own := range sdwan.ResolveSelector(in, nil) {
		for _, p := range resolved {
			if sdwan.Overlaps(own, p) {
				return true
			}
		}
	}
	return false
}

func matches(in sdwan.Intent, prefixes []netip.Prefix) int {
	n := 0
	count := func(a netip.Addr) {
		for _, p := range prefixes {
			if a.IsValid() && p.Contains(a) {
				n++
				return
			}
		}
	}
	for _, m := range in.Members {
		count(m.Address)
		count(m.AddressV4)
	}
	for _, d := range in.Devices {
		count(d.Address)
	}
	for _, ip := range in.VIPs {
		count(ip.Address)
	}
	return n
}

// preview is the rule in the table of the first host that has it.
func (s *Service) preview(in sdwan.Intent, r store.FirewallRule) (*RulePreview, error) {
	members := slices.Clone(in.Members)
	slices.SortFunc(members, func(a, b sdwan.Member) int { return compareText(a.PeerID, b.PeerID) })
	for _, m := range members {
		fw, err := sdwan.HostFirewall(sdwan.Host{InstanceID: m.InstanceID, Memberships: []sdwan.Membership{{Intent: in, PeerID: m.PeerID}}})
		if err != nil {
			return nil, fmt.Errorf("compile the firewall of peer %s: %w", m.PeerID, err)
		}
		if only, some := onlyRule(fw, string(r.ID)); some {
			return &RulePreview{PeerID: store.PeerID(m.PeerID), Ruleset: only.Script()}, nil
		}
	}
	return nil, nil
}

// onlyRule is a table with one rule's lines and their sets.
func onlyRule(fw sdwan.Firewall, id string) (only sdwan.Firewall, some bool) {
	used := map[string]bool{}
	keep := func(chain []sdwan.FirewallRule) []sdwan.FirewallRule {
		out := []sdwan.FirewallRule{}
		for _, r := range chain {
			if r.RuleID == id {
				used[r.SourceSet], used[r.DestinationSet] = true, true
				out = append(out, r)
			}
		}
		return out
	}
	only = sdwan.Firewall{Table: fw.Table, Input: keep(fw.Input), Forward: keep(fw.Forward), Output: keep(fw.Output)}
	for _, set := range fw.Sets {
		if used[set.Name] {
			only.Sets = append(only.Sets, set)
		}
	}
	return only, len(only.Input)+len(only.Forward)+len(only.Output) > 0
}
