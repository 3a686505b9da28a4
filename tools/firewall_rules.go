package tools

import (
	"context"
	"net/netip"

	"powernode/platform/network"
	"powernode/sdwan"
	"powernode/store"
)

func firewallRuleVerbs() []*Definition {
	return []*Definition{createFirewallRule(), listFirewallRules(), getFirewallRule()}
}

type portRange struct {
	From int `json:"from"`
	To   int `json:"to"`
}

// firewallRuleObject is a user's rule, or a built-in one: then priority, times and force say nothing, and a side is
// peer_ids and cidrs.
type firewallRuleObject struct {
	ID          string           `json:"id"`
	NetworkID   store.NetworkID  `json:"network_id"`
	Name        string           `json:"name"`
	Priority    *int             `json:"priority"`
	Action      string           `json:"action"`
	Direction   string           `json:"direction"`
	Protocol    string           `json:"protocol"`
	SrcSelector *store.Object    `json:"src_selector"`
	DstSelector *store.Object    `json:"dst_selector"`
	PortRange   *portRange       `json:"port_range"`
	Enabled     bool             `json:"enabled"`
	Force       bool             `json:"force"`
	BuiltIn     bool             `json:"built_in"`
	ClusterID   *store.ClusterID `json:"cluster_id"`
	CreatedAt   *store.Time      `json:"created_at"`
	UpdatedAt   *store.Time      `json:"updated_at"`
}

func viewRule(r store.FirewallRule) firewallRuleObject {
	o := firewallRuleObject{ID: string(r.ID), NetworkID: r.NetworkID, Name: r.Name, Priority: &r.Priority, Action: r.Action,
		Direction: r.Direction, Protocol: r.Protocol, SrcSelector: viewSelector(r.Source), DstSelector: viewSelector(r.Destination),
		Enabled: r.Enabled, Force: r.Force, CreatedAt: &r.CreatedAt, UpdatedAt: &r.UpdatedAt}
	if r.PortFrom != nil && r.PortTo != nil {
		o.PortRange = &portRange{*r.PortFrom, *r.PortTo}
	}
	return o
}

func viewSelector(s *store.Selector) *store.Object {
	switch {
	case s == nil:
		return nil
	case s.PeerID != "":
		return &store.Object{"peer_id": s.PeerID}
	case s.Tag != "":
		return &store.Object{"tag": s.Tag}
	case s.CIDR != "":
		return &store.Object{"cidr": s.CIDR}
	}
	return &store.Object{"all": true}
}

func viewBuiltIn(id store.NetworkID, b sdwan.BuiltInRule) firewallRuleObject {
	side := func(e sdwan.Ends) *store.Object {
		return &store.Object{"peer_ids": notNil(e.PeerIDs), "cidrs": spelt(e.Prefixes)}
	}
	o := firewallRuleObject{ID: b.ID, NetworkID: id, Name: b.Name, Action: b.Action, Direction: sdwan.DirectionBoth, Protocol: b.Protocol,
		SrcSelector: side(b.Source), DstSelector: side(b.Destination), Enabled: true, BuiltIn: true, ClusterID: orNull(store.ClusterID(b.ClusterID))}
	if b.PortFrom != 0 {
		o.PortRange = &portRange{b.PortFrom, b.PortTo}
	}
	return o
}

func spelt(prefixes []netip.Prefix) []string {
	out := make([]string, len(prefixes))
	for i, p := range prefixes {
		out[i] = p.String()
	}
	return out
}

type resolvedObject struct {
	Src        []string `json:"src"`
	Dst        []string `json:"dst"`
	SrcMatches int      `json:"src_matches"`
	DstMatches int      `json:"dst_matches"`
}

func viewEffect(e network.RuleEffect) resolvedObject {
	return resolvedObject{Src: spelt(e.Source), Dst: spelt(e.Destination), SrcMatches: e.SourceMatches, DstMatches: e.DestinationMatches}
}

type createFirewallRuleArgs struct {
	NetworkID      store.NetworkID        `json:"network_id"`
	Name           string                 `json:"name"`
	FirewallAction string                 `json:"firewall_action"`
	Direction      string                 `json:"direction"`
	Protocol       string                 `json:"protocol"`
	Priority       int                    `json:"priority"`
	SrcSelector    *network.SelectorInput `json:"src_selector"`
	DstSelector    *network.SelectorInput `json:"dst_selector"`
	PortFrom       *int                   `json:"port_from"`
	PortTo         *int                   `json:"port_to"`
}

func (a createFirewallRuleArgs) input() network.RuleInput {
	return network.RuleInput{NetworkID: a.NetworkID, Name: a.Name, Action: a.FirewallAction, Direction: a.Direction, Protocol: a.Protocol,
		Priority: a.Priority, Source: a.SrcSelector, Destination: a.DstSelector, PortFrom: a.PortFrom, PortTo: a.PortTo}
}

type createFirewallRuleResult struct {
	Written
	FirewallRule firewallRuleObject   `json:"firewall_rule"`
	Resolved     resolvedObject       `json:"resolved"`
	ShadowedBy   []firewallRuleObject `json:"shadowed_by"`
}

func createFirewallRule() *Definition {
	return define("system_sdwan_create_firewall_rule", handler[createFirewallRuleArgs, createFirewallRuleResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a createFirewallRuleArgs) error {
			return p.Network.CheckRule(ctx, v, c.AccountID, a.input())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a createFirewallRuleArgs) (r createFirewallRuleResult, err error) {
			rule, err := p.Network.CreateRule(ctx, tx, c.AccountID, a.input())
			if err != nil {
				return r, err
			}
			effect, err := p.Network.Effect(ctx, &tx.View, rule)
			if err != nil {
				return r, err
			}
			r.FirewallRule, r.Resolved, r.ShadowedBy = viewRule(rule), viewEffect(effect), []firewallRuleObject{}
			for _, b := range effect.ShadowedBy {
				r.ShadowedBy = append(r.ShadowedBy, viewBuiltIn(rule.NetworkID, b))
			}
			r.warnOf(effect.Warnings)
			return r, nil
		},
	})
}

type listFirewallRulesResult struct {
	NetworkID     store.NetworkID      `json:"network_id"`
	FirewallRules []firewallRuleObject `json:"firewall_rules"`
	DefaultPolicy string               `json:"default_policy"`
	Page
}

func listFirewallRules() *Definition {
	const verb = "system_sdwan_list_firewall_rules"
	return define(verb, handler[networkListArgs, listFirewallRulesResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a networkListArgs) (r listFirewallRulesResult, err error) {
			n, err := p.Network.Find(ctx, v, c.AccountID, a.NetworkID)
			if err != nil {
				return r, err
			}
			rules, err := rulesInOrder(ctx, p, v, n)
			if err != nil {
				return r, err
			}
			r.NetworkID, r.DefaultPolicy = n.ID, n.FirewallDefaultPolicy
			r.FirewallRules, r.Page, err = page(verb, a.NetworkID, a.Limit, a.Cursor, rules, func(f firewallRuleObject) string { return f.ID })
			return r, err
		},
	})
}

// rulesInOrder are a network's rules in the order that counts: users' with force, the built-in ones, users' without.
func rulesInOrder(ctx context.Context, p *Platform, v *store.View, n store.Network) ([]firewallRuleObject, error) {
	own, err := store.FirewallRulesByNetwork(ctx, v, n.AccountID, n.ID)
	if err != nil {
		return nil, err
	}
	built, err := p.Network.BuiltIn(ctx, v, n)
	if err != nil {
		return nil, err
	}
	var forced, out, plain []firewallRuleObject
	for _, r := range own {
		if r.Force {
			forced = append(forced, viewRule(r))
		} else {
			plain = append(plain, viewRule(r))
		}
	}
	out = append(out, forced...)
	for _, b := range built {
		out = append(out, viewBuiltIn(n.ID, b))
	}
	return append(out, plain...), nil
}

type firewallRuleIDArgs struct {
	FirewallRuleID store.FirewallRuleID `json:"firewall_rule_id"`
}

type rulePreviewObject struct {
	PeerID  store.PeerID `json:"peer_id"`
	Ruleset string       `json:"ruleset"`
}

type getFirewallRuleResult struct {
	FirewallRule    firewallRuleObject `json:"firewall_rule"`
	Resolved        resolvedObject     `json:"resolved"`
	CompiledPreview *rulePreviewObject `json:"compiled_preview"`
}

func getFirewallRule() *Definition {
	return define("system_sdwan_get_firewall_rule", handler[firewallRuleIDArgs, getFirewallRuleResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a firewallRuleIDArgs) (r getFirewallRuleResult, err error) {
			rule, err := p.Network.FindRule(ctx, v, c.AccountID, a.FirewallRuleID)
			if err != nil {
				return r, err
			}
			effect, err := p.Network.Effect(ctx, v, rule)
			if err != nil {
				return r, err
			}
			r.FirewallRule, r.Resolved = viewRule(rule), viewEffect(effect)
			if effect.Preview != nil {
				r.CompiledPreview = &rulePreviewObject{PeerID: effect.Preview.PeerID, Ruleset: effect.Preview.Ruleset}
			}
			return r, nil
		},
	})
}
