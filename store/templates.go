package store

import (
	"context"
	"fmt"
)

// Template is what nodes carry: modules are joined to it by TemplateModule.
type Template struct {
	ID             TemplateID
	AccountID      AccountID
	Name           string
	PlatformID     PlatformID
	ArchitectureID ArchitectureID // the platform's
	Description    string
	Enabled        bool
	Public         bool
	AdminUser      string
	Config         JSON[Object]
	CreatedAt      Time
	UpdatedAt      Time
	Revision       int64
}

const templateColumns = `id, account_id, name, platform_id, (SELECT architecture_id FROM platforms p WHERE p.id = platform_id),
	description, enabled, public, admin_user, config, created_at, updated_at, revision`

func scanTemplate(v *View, s scanner) (Template, error) {
	var t Template
	err := s.Scan(&t.ID, &t.AccountID, &t.Name, &t.PlatformID, &t.ArchitectureID, &t.Description, &t.Enabled, &t.Public,
		&t.AdminUser, &t.Config, &t.CreatedAt, &t.UpdatedAt, &t.Revision)
	if err != nil {
		return t, fmt.Errorf("read template: %w", err)
	}
	v.noteRow("templates", string(t.ID), t.Revision)
	return t, nil
}

// TemplateByID finds a template.
func TemplateByID(ctx context.Context, v *View, acct AccountID, id TemplateID) (Template, error) {
	return scanTemplate(v, v.queryRow(ctx, `SELECT `+templateColumns+` FROM templates WHERE account_id = ? AND id = ?`, acct, id))
}

// TemplateByName finds a template by its name.
func TemplateByName(ctx context.Context, v *View, acct AccountID, name string) (Template, error) {
	return scanTemplate(v, v.queryRow(ctx, `SELECT `+templateColumns+` FROM templates WHERE account_id = ? AND name = ?`, acct, name))
}

// Templates lists an account's templates by name.
func Templates(ctx context.Context, v *View, acct AccountID) ([]Template, error) {
	return collect(v, ctx, scanTemplate, `SELECT `+templateColumns+` FROM templates WHERE account_id = ? ORDER BY name, id`, acct)
}

// InsertTemplate makes a template.
func InsertTemplate(ctx context.Context, tx *Tx, t Template) (Template, error) {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return t, err
	}
	err = tx.exec(ctx, `INSERT INTO templates (id, account_id, name, platform_id, description, enabled, public, admin_user, config,
		created_at, updated_at, revision) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)`,
		t.ID, t.AccountID, t.Name, t.PlatformID, t.Description, t.Enabled, t.Public, t.AdminUser, t.Config, At(tx.now), At(tx.now), revision)
	if err != nil {
		return t, fmt.Errorf("write template: %w", err)
	}
	return TemplateByID(ctx, &tx.View, t.AccountID, t.ID)
}

// UpdateTemplate writes a template's row.
func UpdateTemplate(ctx context.Context, tx *Tx, t Template) (Template, error) {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return t, err
	}
	t.UpdatedAt, t.Revision = At(tx.now), revision
	err = tx.exec(ctx, `UPDATE templates SET name = ?, description = ?, enabled = ?, public = ?, admin_user = ?, config = ?,
		updated_at = ?, revision = ? WHERE account_id = ? AND id = ?`,
		t.Name, t.Description, t.Enabled, t.Public, t.AdminUser, t.Config, t.UpdatedAt, t.Revision, t.AccountID, t.ID)
	if err != nil {
		return t, fmt.Errorf("write template: %w", err)
	}
	return t, nil
}

// DeleteTemplate removes a template with its joins. Assignments keep the id of their source.
func DeleteTemplate(ctx context.Context, tx *Tx, acct AccountID, id TemplateID) error {
	if err := tx.exec(ctx, `DELETE FROM template_modules WHERE account_id = ? AND template_id = ?`, acct, id); err != nil {
		return fmt.Errorf("remove the modules of a template: %w", err)
	}
	if err := tx.exec(ctx, `DELETE FROM templates WHERE account_id = ? AND id = ?`, acct, id); err != nil {
		return fmt.Errorf("remove template: %w", err)
	}
	return nil
}

// Override says which recommended modules a join leaves out or puts in their place. One form is used: Replace, or the
// other two.
type Override struct {
	Replace  []ModuleID `json:"replace"`
	Included []ModuleID `json:"included"`
	Excluded []ModuleID `json:"excluded"`
}

// TemplateModule is the join template–module.
type TemplateModule struct {
	ID         TemplateModuleID
	AccountID  AccountID
	TemplateID TemplateID
	ModuleID   ModuleID
	ModuleName string
	Enabled    bool
	Priority   int64
	Config     JSON[Object]
	Override   JSON[*Override] // nil is none
	CreatedAt  Time
	UpdatedAt  Time
	Revision   int64
}

const templateModuleColumns = `id, account_id, template_id, module_id, (SELECT name FROM modules m WHERE m.id = module_id), enabled,
	priority, config, recommends_override, created_at, updated_at, revision`

func scanTemplateModule(v *View, s scanner) (TemplateModule, error) {
	var t TemplateModule
	err := s.Scan(&t.ID, &t.AccountID, &t.TemplateID, &t.ModuleID, &t.ModuleName, &t.Enabled, &t.Priority, &t.Config, &t.Override,
		&t.CreatedAt, &t.UpdatedAt, &t.Revision)
	if err != nil {
		return t, fmt.Errorf("read template module: %w", err)
	}
	v.noteRow("template_modules", string(t.ID), t.Revision)
	return t, nil
}

// TemplateModuleOf finds the join of a template with a module.
func TemplateModuleOf(ctx context.Context, v *View, acct AccountID, template TemplateID, module ModuleID) (TemplateModule, error) {
	return scanTemplateModule(v, v.queryRow(ctx, `SELECT `+templateModuleColumns+` FROM template_modules WHERE account_id = ?
		AND template_id = ? AND module_id = ?`, acct, template, module))
}

// TemplateModules lists a template's joins: higher priority first, then by id.
func TemplateModules(ctx context.Context, v *View, acct AccountID, template TemplateID) ([]TemplateModule, error) {
	return collect(v, ctx, scanTemplateModule, `SELECT `+templateModuleColumns+` FROM template_modules WHERE account_id = ?
		AND template_id = ? ORDER BY priority DESC, id`, acct, template)
}

// TemplateModulesByModule lists the joins of a module.
func TemplateModulesByModule(ctx context.Context, v *View, acct AccountID, module ModuleID) ([]TemplateModule, error) {
	return collect(v, ctx, scanTemplateModule, `SELECT `+templateModuleColumns+` FROM template_modules WHERE account_id = ?
		AND module_id = ? ORDER BY id`, acct, module)
}

// InsertTemplateModule makes a join.
func InsertTemplateModule(ctx context.Context, tx *Tx, t TemplateModule) (TemplateModule, error) {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return t, err
	}
	t.CreatedAt, t.UpdatedAt, t.Revision = At(tx.now), At(tx.now), revision
	err = tx.exec(ctx, `INSERT INTO template_modules (id, account_id, template_id, module_id, enabled, priority, config,
		recommends_override, created_at, updated_at, revision) VALUES (?,?,?,?,?,?,?,?,?,?,?)`,
		t.ID, t.AccountID, t.TemplateID, t.ModuleID, t.Enabled, t.Priority, t.Config, t.Override, t.CreatedAt, t.UpdatedAt, t.Revision)
	if err != nil {
		return t, fmt.Errorf("write template module: %w", err)
	}
	return t, nil
}

// UpdateTemplateModule writes a join's row.
func UpdateTemplateModule(ctx context.Context, tx *Tx, t TemplateModule) (TemplateModule, error) {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return t, err
	}
	t.UpdatedAt, t.Revision = At(tx.now), revision
	err = tx.exec(ctx, `UPDATE template_modules SET enabled = ?, priority = ?, config = ?, recommends_override = ?, updated_at = ?,
		revision = ? WHERE account_id = ? AND id = ?`,
		t.Enabled, t.Priority, t.Config, t.Override, t.UpdatedAt, t.Revision, t.AccountID, t.ID)
	if err != nil {
		return t, fmt.Errorf("write template module: %w", err)
	}
	return t, nil
}

// DeleteTemplateModule removes a join. Assignments that came from it keep the id of their source.
func DeleteTemplateModule(ctx context.Context, tx *Tx, acct AccountID, id TemplateModuleID) error {
	if err := tx.exec(ctx, `DELETE FROM template_modules WHERE account_id = ? AND id = ?`, acct, id); err != nil {
		return fmt.Errorf("remove template module: %w", err)
	}
	return nil
}
