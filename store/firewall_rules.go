package store

import (
	"context"
	"fmt"
)

// Selector names one side of a firewall rule; exactly one field is set.
type Selector struct {
	PeerID PeerID `json:"peer_id,omitempty"`
	Tag    string `json:"tag,omitempty"`
	CIDR   string `json:"cidr,omitempty"`
	All    bool   `json:"all,omitempty"`
}

// FirewallRule is a user's rule of a network.
type FirewallRule struct {
	ID          FirewallRuleID
	AccountID   AccountID
	NetworkID   NetworkID
	Name        string
	Priority    int
	Action      string // accept, drop, reject
	Direction   string // ingress, egress, both
	Protocol    string // any, tcp, udp, icmp6
	Source      *Selector
	Destination *Selector
	PortFrom    *int
	PortTo      *int
	Enabled     bool
	Force       bool
	CreatedAt   Time
	UpdatedAt   Time
	Revision    int64
}

const firewallRuleColumns = `id, account_id, network_id, name, priority, action, direction, protocol, src_selector, dst_selector,
	port_from, port_to, enabled, force, created_at, updated_at, revision`

func scanFirewallRule(v *View, s scanner) (FirewallRule, error) {
	var r FirewallRule
	var source, destination JSON[*Selector]
	err := s.Scan(&r.ID, &r.AccountID, &r.NetworkID, &r.Name, &r.Priority, &r.Action, &r.Direction, &r.Protocol, &source, &destination,
		&r.PortFrom, &r.PortTo, &r.Enabled, &r.Force, &r.CreatedAt, &r.UpdatedAt, &r.Revision)
	if err != nil {
		return r, fmt.Errorf("read firewall rule: %w", err)
	}
	r.Source, r.Destination = source.V, destination.V
	v.noteRow("firewall_rules", string(r.ID), r.Revision)
	return r, nil
}

// FirewallRulesByNetwork lists a network's rules in the order that counts.
func FirewallRulesByNetwork(ctx context.Context, v *View, acct AccountID, network NetworkID) ([]FirewallRule, error) {
	return collect(v, ctx, scanFirewallRule, `SELECT `+firewallRuleColumns+` FROM firewall_rules WHERE account_id = ? AND network_id = ?
		ORDER BY force DESC, priority, name`, acct, network)
}

// FirewallRuleByID finds a rule.
func FirewallRuleByID(ctx context.Context, v *View, acct AccountID, id FirewallRuleID) (FirewallRule, error) {
	return scanFirewallRule(v, v.queryRow(ctx, `SELECT `+firewallRuleColumns+` FROM firewall_rules WHERE account_id = ? AND id = ?`, acct, id))
}

// FirewallRuleByName finds a network's rule by its name.
func FirewallRuleByName(ctx context.Context, v *View, acct AccountID, network NetworkID, name string) (FirewallRule, error) {
	return scanFirewallRule(v, v.queryRow(ctx, `SELECT `+firewallRuleColumns+` FROM firewall_rules
		WHERE account_id = ? AND network_id = ? AND name = ?`, acct, network, name))
}

// InsertFirewallRule makes a rule.
func InsertFirewallRule(ctx context.Context, tx *Tx, r FirewallRule) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `INSERT INTO firewall_rules (`+firewallRuleColumns+`) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`,
		r.ID, r.AccountID, r.NetworkID, r.Name, r.Priority, r.Action, r.Direction, r.Protocol, orNull(r.Source), orNull(r.Destination),
		r.PortFrom, r.PortTo, r.Enabled, r.Force, At(tx.now), At(tx.now), revision)
}

// DeleteFirewallRules removes all rules of a network and answers how many there were.
func DeleteFirewallRules(ctx context.Context, tx *Tx, acct AccountID, network NetworkID) (int64, error) {
	if _, err := tx.Revision(ctx); err != nil {
		return 0, err
	}
	return tx.execCount(ctx, `DELETE FROM firewall_rules WHERE account_id = ? AND network_id = ?`, acct, network)
}

// orNull stores a pointer's value as JSON, and nil as NULL.
func orNull[T any](p *T) any {
	if p == nil {
		return nil
	}
	return JSON[*T]{p}
}
