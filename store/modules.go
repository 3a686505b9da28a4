package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
)

// Dependencies are what a module says of others, by their names.
type Dependencies struct {
	Requires   []string `json:"requires"`
	Recommends []string `json:"recommends"`
	Conflicts  []string `json:"conflicts"`
	Provides   []string `json:"provides"`
}

// Module is a named, versioned unit that nodes carry.
type Module struct {
	ID               ModuleID
	AccountID        AccountID
	Name             string
	Variety          string     // config, instance, subscription
	PlatformID       PlatformID // "": every platform
	Description      string
	Enabled          bool
	Public           bool
	Locked           bool // built in
	Priority         int64
	Dependencies     JSON[Dependencies]
	Config           JSON[Object]
	ConfigSchema     JSON[json.RawMessage] // nil: free-form
	CurrentVersionID ModuleVersionID       // "" is none
	CreatedAt        Time
	UpdatedAt        Time
	Revision         int64
}

const moduleColumns = `id, account_id, name, variety, coalesce(platform_id, ''), description, enabled, public, locked, priority,
	dependencies, config, config_schema, coalesce(current_version_id, ''), created_at, updated_at, revision`

func scanModule(v *View, s scanner) (Module, error) {
	var m Module
	err := s.Scan(&m.ID, &m.AccountID, &m.Name, &m.Variety, &m.PlatformID, &m.Description, &m.Enabled, &m.Public, &m.Locked,
		&m.Priority, &m.Dependencies, &m.Config, &m.ConfigSchema, &m.CurrentVersionID, &m.CreatedAt, &m.UpdatedAt, &m.Revision)
	if err != nil {
		return m, fmt.Errorf("read module: %w", err)
	}
	v.noteRow("modules", string(m.ID), m.Revision)
	return m, nil
}

// ModuleByID finds a module.
func ModuleByID(ctx context.Context, v *View, acct AccountID, id ModuleID) (Module, error) {
	return scanModule(v, v.queryRow(ctx, `SELECT `+moduleColumns+` FROM modules WHERE account_id = ? AND id = ?`, acct, id))
}

// ModuleByName finds a module by its name, in any case.
func ModuleByName(ctx context.Context, v *View, acct AccountID, name string) (Module, error) {
	return scanModule(v, v.queryRow(ctx, `SELECT `+moduleColumns+` FROM modules WHERE account_id = ? AND name_folded = ?`,
		acct, strings.ToLower(name)))
}

// Modules lists an account's modules by name.
func Modules(ctx context.Context, v *View, acct AccountID) ([]Module, error) {
	return collect(v, ctx, scanModule, `SELECT `+moduleColumns+` FROM modules WHERE account_id = ? ORDER BY name, id`, acct)
}

// InsertModule makes a module.
func InsertModule(ctx context.Context, tx *Tx, m Module) (Module, error) {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return m, err
	}
	m.CreatedAt, m.UpdatedAt, m.Revision = At(tx.now), At(tx.now), revision
	err = tx.exec(ctx, `INSERT INTO modules (id, account_id, name, name_folded, variety, platform_id, description, enabled, public,
		locked, priority, dependencies, config, config_schema, current_version_id, created_at, updated_at, revision)
		VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`,
		m.ID, m.AccountID, m.Name, strings.ToLower(m.Name), m.Variety, nullable(m.PlatformID), m.Description, m.Enabled, m.Public,
		m.Locked, m.Priority, m.Dependencies, m.Config, m.schemaColumn(), nullable(m.CurrentVersionID), m.CreatedAt, m.UpdatedAt, m.Revision)
	if err != nil {
		return m, fmt.Errorf("write module: %w", err)
	}
	return m, nil
}

// UpdateModule writes a module's row.
func UpdateModule(ctx context.Context, tx *Tx, m Module) (Module, error) {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return m, err
	}
	m.UpdatedAt, m.Revision = At(tx.now), revision
	err = tx.exec(ctx, `UPDATE modules SET description = ?, enabled = ?, public = ?, priority = ?, dependencies = ?, config = ?,
		config_schema = ?, current_version_id = ?, updated_at = ?, revision = ? WHERE account_id = ? AND id = ?`,
		m.Description, m.Enabled, m.Public, m.Priority, m.Dependencies, m.Config, m.schemaColumn(), nullable(m.CurrentVersionID),
		m.UpdatedAt, m.Revision, m.AccountID, m.ID)
	if err != nil {
		return m, fmt.Errorf("write module: %w", err)
	}
	return m, nil
}

// DeleteModule removes a module with its versions.
func DeleteModule(ctx context.Context, tx *Tx, acct AccountID, id ModuleID) error {
	if err := tx.exec(ctx, `DELETE FROM module_versions WHERE account_id = ? AND module_id = ?`, acct, id); err != nil {
		return fmt.Errorf("remove the versions of a module: %w", err)
	}
	if err := tx.exec(ctx, `DELETE FROM modules WHERE account_id = ? AND id = ?`, acct, id); err != nil {
		return fmt.Errorf("remove module: %w", err)
	}
	return nil
}

func (m Module) schemaColumn() any {
	if m.ConfigSchema.V == nil {
		return nil
	}
	return string(m.ConfigSchema.V)
}
