package store

import (
	"context"
	"fmt"
)

// Network is an isolated overlay with a /64 of its own.
type Network struct {
	ID                    NetworkID
	AccountID             AccountID
	Name                  string
	Slug                  string
	Description           string
	Status                string // registered, active, suspended, archived
	CIDR                  Prefix // the /64
	MTU                   int
	TopologyStrategy      string
	FirewallDefaultPolicy string
	RoutingProtocol       string
	PodSubnetPrefix       Prefix // invalid: none
	Tags                  []string
	CreatedAt             Time
	UpdatedAt             Time
	Revision              int64
}

const networkColumns = `id, account_id, name, slug, description, status, cidr_64, mtu, topology_strategy, firewall_default_policy,
	routing_protocol, pod_subnet_prefix, tags, created_at, updated_at, revision`

func scanNetwork(v *View, s scanner) (Network, error) {
	var n Network
	var tags JSON[[]string]
	err := s.Scan(&n.ID, &n.AccountID, &n.Name, &n.Slug, &n.Description, &n.Status, &n.CIDR, &n.MTU, &n.TopologyStrategy,
		&n.FirewallDefaultPolicy, &n.RoutingProtocol, &n.PodSubnetPrefix, &tags, &n.CreatedAt, &n.UpdatedAt, &n.Revision)
	if err != nil {
		return n, fmt.Errorf("read network: %w", err)
	}
	n.Tags = tags.V
	v.noteRow("networks", string(n.ID), n.Revision)
	return n, nil
}

// Networks lists an account's networks by name.
func Networks(ctx context.Context, v *View, acct AccountID) ([]Network, error) {
	return collect(v, ctx, scanNetwork, `SELECT `+networkColumns+` FROM networks WHERE account_id = ? ORDER BY name`, acct)
}

// NetworkByID finds a network.
func NetworkByID(ctx context.Context, v *View, acct AccountID, id NetworkID) (Network, error) {
	return scanNetwork(v, v.queryRow(ctx, `SELECT `+networkColumns+` FROM networks WHERE account_id = ? AND id = ?`, acct, id))
}

// NetworkByName finds a network by its name.
func NetworkByName(ctx context.Context, v *View, acct AccountID, name string) (Network, error) {
	return scanNetwork(v, v.queryRow(ctx, `SELECT `+networkColumns+` FROM networks WHERE account_id = ? AND name = ?`, acct, name))
}

// NetworkBySlug finds a network by its slug.
func NetworkBySlug(ctx context.Context, v *View, acct AccountID, slug string) (Network, error) {
	return scanNetwork(v, v.queryRow(ctx, `SELECT `+networkColumns+` FROM networks WHERE account_id = ? AND slug = ?`, acct, slug))
}

// InsertNetwork makes a network.
func InsertNetwork(ctx context.Context, tx *Tx, n Network) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `INSERT INTO networks (`+networkColumns+`) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`,
		n.ID, n.AccountID, n.Name, n.Slug, n.Description, n.Status, n.CIDR, n.MTU, n.TopologyStrategy, n.FirewallDefaultPolicy,
		n.RoutingProtocol, n.PodSubnetPrefix, JSON[[]string]{notNil(n.Tags)}, At(tx.now), At(tx.now), revision)
}

// UpdateNetwork writes a network's changeable columns.
func UpdateNetwork(ctx context.Context, tx *Tx, n Network) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `UPDATE networks SET name = ?, slug = ?, description = ?, status = ?, mtu = ?, topology_strategy = ?,
		firewall_default_policy = ?, routing_protocol = ?, pod_subnet_prefix = ?, tags = ?, updated_at = ?, revision = ?
		WHERE account_id = ? AND id = ?`,
		n.Name, n.Slug, n.Description, n.Status, n.MTU, n.TopologyStrategy, n.FirewallDefaultPolicy, n.RoutingProtocol,
		n.PodSubnetPrefix, JSON[[]string]{notNil(n.Tags)}, At(tx.now), revision, n.AccountID, n.ID)
}

// DeleteNetwork removes a network; everything in it is gone before.
func DeleteNetwork(ctx context.Context, tx *Tx, acct AccountID, id NetworkID) error {
	if _, err := tx.Revision(ctx); err != nil {
		return err
	}
	return tx.exec(ctx, `DELETE FROM networks WHERE account_id = ? AND id = ?`, acct, id)
}

// notNil makes a list that encodes as [] and not as null.
func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
