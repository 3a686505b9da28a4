package store

import (
	"context"
	"fmt"
)

// Node is the intent of a machine, bound to a template.
type Node struct {
	ID                NodeID
	AccountID         AccountID
	Name              string
	TemplateID        TemplateID
	Description       string
	Enabled           bool
	WorkerID          string // "" is none
	PublicAddress     string // "" is none
	AllocatePublicIP  bool
	Config            JSON[Object]
	AppliedTemplateID TemplateID // of the last apply; "" is none
	CreatedAt         Time
	UpdatedAt         Time
	Revision          int64
}

const nodeColumns = `id, account_id, name, template_id, description, enabled, coalesce(worker_id, ''), coalesce(public_address, ''),
	allocate_public_ip, config, coalesce(applied_template_id, ''), created_at, updated_at, revision`

func scanNode(v *View, s scanner) (Node, error) {
	var n Node
	err := s.Scan(&n.ID, &n.AccountID, &n.Name, &n.TemplateID, &n.Description, &n.Enabled, &n.WorkerID, &n.PublicAddress,
		&n.AllocatePublicIP, &n.Config, &n.AppliedTemplateID, &n.CreatedAt, &n.UpdatedAt, &n.Revision)
	if err != nil {
		return n, fmt.Errorf("read node: %w", err)
	}
	v.noteRow("nodes", string(n.ID), n.Revision)
	return n, nil
}

// NodeByID finds a node.
func NodeByID(ctx context.Context, v *View, acct AccountID, id NodeID) (Node, error) {
	return scanNode(v, v.queryRow(ctx, `SELECT `+nodeColumns+` FROM nodes WHERE account_id = ? AND id = ?`, acct, id))
}

// NodeByName finds a node by its name.
func NodeByName(ctx context.Context, v *View, acct AccountID, name string) (Node, error) {
	return scanNode(v, v.queryRow(ctx, `SELECT `+nodeColumns+` FROM nodes WHERE account_id = ? AND name = ?`, acct, name))
}

// Nodes lists an account's nodes by name, of one template where it is not empty.
func Nodes(ctx context.Context, v *View, acct AccountID, template TemplateID) ([]Node, error) {
	return collect(v, ctx, scanNode, `SELECT `+nodeColumns+` FROM nodes WHERE account_id = ?1 AND (?2 = '' OR template_id = ?2)
		ORDER BY name, id`, acct, template)
}

// InsertNode makes a node.
func InsertNode(ctx context.Context, tx *Tx, n Node) (Node, error) {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return n, err
	}
	n.CreatedAt, n.UpdatedAt, n.Revision = At(tx.now), At(tx.now), revision
	err = tx.exec(ctx, `INSERT INTO nodes (id, account_id, name, template_id, description, enabled, worker_id, public_address,
		allocate_public_ip, config, applied_template_id, created_at, updated_at, revision) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)`,
		n.ID, n.AccountID, n.Name, n.TemplateID, n.Description, n.Enabled, nullable(n.WorkerID), nullable(n.PublicAddress),
		n.AllocatePublicIP, n.Config, nullable(n.AppliedTemplateID), n.CreatedAt, n.UpdatedAt, n.Revision)
	if err != nil {
		return n, fmt.Errorf("write node: %w", err)
	}
	return n, nil
}

// UpdateNode writes a node's row.
func UpdateNode(ctx context.Context, tx *Tx, n Node) (Node, error) {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return n, err
	}
	n.UpdatedAt, n.Revision = At(tx.now), revision
	err = tx.exec(ctx, `UPDATE nodes SET name = ?, template_id = ?, description = ?, enabled = ?, worker_id = ?, public_address = ?,
		allocate_public_ip = ?, config = ?, applied_template_id = ?, updated_at = ?, revision = ? WHERE account_id = ? AND id = ?`,
		n.Name, n.TemplateID, n.Description, n.Enabled, nullable(n.WorkerID), nullable(n.PublicAddress), n.AllocatePublicIP,
		n.Config, nullable(n.AppliedTemplateID), n.UpdatedAt, n.Revision, n.AccountID, n.ID)
	if err != nil {
		return n, fmt.Errorf("write node: %w", err)
	}
	return n, nil
}

// DeleteNode removes a node with its assignments. Its instances are gone by then (DeleteInstance).
func DeleteNode(ctx context.Context, tx *Tx, acct AccountID, id NodeID) error {
	if err := tx.exec(ctx, `DELETE FROM assignments WHERE account_id = ? AND node_id = ?`, acct, id); err != nil {
		return fmt.Errorf("remove assignments of a node: %w", err)
	}
	if err := tx.exec(ctx, `DELETE FROM nodes WHERE account_id = ? AND id = ?`, acct, id); err != nil {
		return fmt.Errorf("remove node: %w", err)
	}
	return nil
}

// NodesWithMachine are the nodes of an account that have a live instance.
func NodesWithMachine(ctx context.Context, v *View, acct AccountID) (map[NodeID]bool, error) {
	scan := func(_ *View, s scanner) (id NodeID, err error) {
		err = s.Scan(&id)
		return id, err
	}
	ids, err := collect(v, ctx, scan, `SELECT DISTINCT node_id FROM instances WHERE account_id = ? AND status <> 'terminated'`, acct)
	if err != nil {
		return nil, fmt.Errorf("read which nodes have a machine: %w", err)
	}
	out := make(map[NodeID]bool, len(ids))
	for _, id := range ids {
		out[id] = true
	}
	return out, nil
}

// ProvisionedNodes counts the nodes of a template that have live instances.
func ProvisionedNodes(ctx context.Context, v *View, acct AccountID, template TemplateID) (int64, error) {
	var n int64
	err := v.queryRow(ctx, `SELECT count(*) FROM nodes n WHERE n.account_id = ? AND n.template_id = ? AND EXISTS
		(SELECT 1 FROM instances i WHERE i.node_id = n.id AND i.status <> 'terminated')`, acct, template).Scan(&n)
	return n, err
}
