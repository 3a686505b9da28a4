package store

import (
	"context"
	"fmt"
)

// Assignment is the join node–module: what an agent is really served. AppliedPriority and AppliedConfig are what the
// template said at the last apply; nil where it never came from one.
type Assignment struct {
	ID                     AssignmentID
	AccountID              AccountID
	NodeID                 NodeID
	ModuleID               ModuleID
	ModuleName             string
	Enabled                bool
	Priority               int64
	Config                 JSON[Object]
	SourceTemplateModuleID TemplateModuleID // "": made by hand
	SourceTemplateID       TemplateID
	AutoResolved           bool // required or recommended by another module of the template
	AppliedPriority        *int64
	AppliedConfig          JSON[*Object]
	DisabledBy             string // operator:ID, decommission, remove; "" while enabled
	CreatedAt              Time
	UpdatedAt              Time
	Revision               int64
}

const assignmentColumns = `id, account_id, node_id, module_id, (SELECT name FROM modules m WHERE m.id = module_id), enabled, priority,
	config, coalesce(source_template_module_id, ''), coalesce(source_template_id, ''), auto_resolved, applied_priority, applied_config,
	coalesce(disabled_by, ''), created_at, updated_at, revision`

func scanAssignment(v *View, s scanner) (Assignment, error) {
	var a Assignment
	err := s.Scan(&a.ID, &a.AccountID, &a.NodeID, &a.ModuleID, &a.ModuleName, &a.Enabled, &a.Priority, &a.Config,
		&a.SourceTemplateModuleID, &a.SourceTemplateID, &a.AutoResolved, &a.AppliedPriority, &a.AppliedConfig, &a.DisabledBy,
		&a.CreatedAt, &a.UpdatedAt, &a.Revision)
	if err != nil {
		return a, fmt.Errorf("read assignment: %w", err)
	}
	v.noteRow("assignments", string(a.ID), a.Revision)
	return a, nil
}

// AssignmentByID finds an assignment.
func AssignmentByID(ctx context.Context, v *View, acct AccountID, id AssignmentID) (Assignment, error) {
	return scanAssignment(v, v.queryRow(ctx, `SELECT `+assignmentColumns+` FROM assignments WHERE account_id = ? AND id = ?`, acct, id))
}

// AssignmentOf finds the assignment of a module to a node.
func AssignmentOf(ctx context.Context, v *View, acct AccountID, node NodeID, module ModuleID) (Assignment, error) {
	return scanAssignment(v, v.queryRow(ctx, `SELECT `+assignmentColumns+` FROM assignments WHERE account_id = ? AND node_id = ?
		AND module_id = ?`, acct, node, module))
}

// AssignmentsByNode lists a node's assignments: higher priority first, then by id.
func AssignmentsByNode(ctx context.Context, v *View, acct AccountID, node NodeID) ([]Assignment, error) {
	return collect(v, ctx, scanAssignment, `SELECT `+assignmentColumns+` FROM assignments WHERE account_id = ? AND node_id = ?
		ORDER BY priority DESC, id`, acct, node)
}

// AssignmentsByModule lists the assignments of a module.
func AssignmentsByModule(ctx context.Context, v *View, acct AccountID, module ModuleID) ([]Assignment, error) {
	return collect(v, ctx, scanAssignment, `SELECT `+assignmentColumns+` FROM assignments WHERE account_id = ? AND module_id = ?
		ORDER BY id`, acct, module)
}

// InsertAssignment makes an assignment.
func InsertAssignment(ctx context.Context, tx *Tx, a Assignment) (Assignment, error) {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return a, err
	}
	a.CreatedAt, a.UpdatedAt, a.Revision = At(tx.now), At(tx.now), revision
	err = tx.exec(ctx, `INSERT INTO assignments (id, account_id, node_id, module_id, enabled, priority, config,
		source_template_module_id, source_template_id, auto_resolved, applied_priority, applied_config, disabled_by, created_at,
		updated_at, revision) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`,
		a.ID, a.AccountID, a.NodeID, a.ModuleID, a.Enabled, a.Priority, a.Config, nullable(a.SourceTemplateModuleID),
		nullable(a.SourceTemplateID), a.AutoResolved, a.AppliedPriority, a.AppliedConfig, nullable(a.DisabledBy), a.CreatedAt,
		a.UpdatedAt, a.Revision)
	if err != nil {
		return a, fmt.Errorf("write assignment: %w", err)
	}
	return a, nil
}

// UpdateAssignment writes an assignment's row.
func UpdateAssignment(ctx context.Context, tx *Tx, a Assignment) (Assignment, error) {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return a, err
	}
	a.UpdatedAt, a.Revision = At(tx.now), revision
	err = tx.exec(ctx, `UPDATE assignments SET enabled = ?, priority = ?, config = ?, source_template_module_id = ?,
		source_template_id = ?, auto_resolved = ?, applied_priority = ?, applied_config = ?, disabled_by = ?, updated_at = ?,
		revision = ? WHERE account_id = ? AND id = ?`,
		a.Enabled, a.Priority, a.Config, nullable(a.SourceTemplateModuleID), nullable(a.SourceTemplateID), a.AutoResolved,
		a.AppliedPriority, a.AppliedConfig, nullable(a.DisabledBy), a.UpdatedAt, a.Revision, a.AccountID, a.ID)
	if err != nil {
		return a, fmt.Errorf("write assignment: %w", err)
	}
	return a, nil
}

// DeleteAssignment removes an assignment.
func DeleteAssignment(ctx context.Context, tx *Tx, acct AccountID, id AssignmentID) error {
	if err := tx.exec(ctx, `DELETE FROM assignments WHERE account_id = ? AND id = ?`, acct, id); err != nil {
		return fmt.Errorf("remove assignment: %w", err)
	}
	return nil
}
