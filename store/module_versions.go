package store

import (
	"context"
	"encoding/json"
	"fmt"
)

// VersionArtifact names the bytes of a version for one operating system and architecture: by URL, or by the name of a
// file in the platform's artefact store.
type VersionArtifact struct {
	OS     string `json:"os"`
	Arch   string `json:"arch"`
	URL    string `json:"url,omitempty"`
	File   string `json:"file,omitempty"`
	SHA256 string `json:"sha256"`
}

// ModuleVersion is a version of a module.
type ModuleVersion struct {
	ID             ModuleVersionID
	AccountID      AccountID
	ModuleID       ModuleID
	Version        string
	VersionNumber  int64
	PromotionState string // built, staging, blessed, live, retired
	MadeBy         string // built_in, person, assistant
	EverLive       bool
	Artifacts      JSON[[]VersionArtifact]
	Manifest       JSON[json.RawMessage]
	CurrentOrder   *int64 // its place in the line of the module's current versions; nil: it is in none
	CreatedAt      Time
	Revision       int64
}

// Servable says whether machines may be served the version anew: it was released and is not retired.
func (m ModuleVersion) Servable() bool { return m.PromotionState != "retired" && m.Released() }

// Released says whether a person stands behind the version: it is built in, made by a person, or a person released it. A
// cluster keeps being served the released version it has, also when that is retired.
func (m ModuleVersion) Released() bool { return m.MadeBy != "assistant" || m.EverLive }

// Artifact is the version's artefact for an architecture of Linux; ok is false where it has none.
func (m ModuleVersion) Artifact(arch string) (a VersionArtifact, ok bool) {
	for _, a := range m.Artifacts.V {
		if a.OS == "linux" && a.Arch == arch {
			return a, true
		}
	}
	return VersionArtifact{}, false
}

const versionColumns = `id, account_id, module_id, version, version_number, promotion_state, made_by, ever_live, artifacts, manifest,
	current_order, created_at, revision`

func scanModuleVersion(v *View, s scanner) (ModuleVersion, error) {
	var m ModuleVersion
	err := s.Scan(&m.ID, &m.AccountID, &m.ModuleID, &m.Version, &m.VersionNumber, &m.PromotionState, &m.MadeBy, &m.EverLive,
		&m.Artifacts, &m.Manifest, &m.CurrentOrder, &m.CreatedAt, &m.Revision)
	if err != nil {
		return m, fmt.Errorf("read module version: %w", err)
	}
	v.noteRow("module_versions", string(m.ID), m.Revision)
	return m, nil
}

// ModuleVersionByID finds a version.
func ModuleVersionByID(ctx context.Context, v *View, acct AccountID, id ModuleVersionID) (ModuleVersion, error) {
	return scanModuleVersion(v, v.queryRow(ctx, `SELECT `+versionColumns+` FROM module_versions WHERE account_id = ? AND id = ?`, acct, id))
}

// ModuleVersionByName finds a module's version by its name.
func ModuleVersionByName(ctx context.Context, v *View, acct AccountID, module ModuleID, version string) (ModuleVersion, error) {
	return scanModuleVersion(v, v.queryRow(ctx, `SELECT `+versionColumns+` FROM module_versions WHERE account_id = ? AND module_id = ?
		AND version = ?`, acct, module, version))
}

// CurrentVersion finds the version that a module's pointer names, or ErrNoRow.
func CurrentVersion(ctx context.Context, v *View, m Module) (ModuleVersion, error) {
	return ModuleVersionByID(ctx, v, m.AccountID, m.CurrentVersionID)
}

// CurrentVersions lists the versions that the pointers of an account's modules name.
func CurrentVersions(ctx context.Context, v *View, acct AccountID) ([]ModuleVersion, error) {
	return collect(v, ctx, scanModuleVersion, `SELECT `+versionColumns+` FROM module_versions WHERE account_id = ?
		AND id IN (SELECT current_version_id FROM modules WHERE account_id = ?) ORDER BY id`, acct, acct)
}

// ModuleVersions lists a module's versions, latest first.
func ModuleVersions(ctx context.Context, v *View, acct AccountID, module ModuleID) ([]ModuleVersion, error) {
	return collect(v, ctx, scanModuleVersion, `SELECT `+versionColumns+` FROM module_versions WHERE account_id = ? AND module_id = ?
		ORDER BY version_number DESC`, acct, module)
}

// InsertModuleVersion makes a version; its number is the module's next.
func InsertModuleVersion(ctx context.Context, tx *Tx, m ModuleVersion) (ModuleVersion, error) {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return m, err
	}
	row := tx.queryRow(ctx, `SELECT coalesce(max(version_number), 0) + 1 FROM module_versions WHERE module_id = ?`, m.ModuleID)
	if err := row.Scan(&m.VersionNumber); err != nil {
		return m, fmt.Errorf("number a module version: %w", err)
	}
	m.CreatedAt, m.Revision = At(tx.now), revision
	err = tx.exec(ctx, `INSERT INTO module_versions (`+versionColumns+`) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)`,
		m.ID, m.AccountID, m.ModuleID, m.Version, m.VersionNumber, m.PromotionState, m.MadeBy, m.EverLive, m.Artifacts, m.Manifest,
		m.CurrentOrder, m.CreatedAt, m.Revision)
	if err != nil {
		return m, fmt.Errorf("write module version: %w", err)
	}
	return m, nil
}

// UpdateModuleVersion writes how far a version was promoted, and its place in the line of current ones.
func UpdateModuleVersion(ctx context.Context, tx *Tx, m ModuleVersion) (ModuleVersion, error) {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return m, err
	}
	m.Revision = revision
	err = tx.exec(ctx, `UPDATE module_versions SET promotion_state = ?, ever_live = ?, current_order = ?, revision = ?
		WHERE account_id = ? AND id = ?`, m.PromotionState, m.EverLive, m.CurrentOrder, m.Revision, m.AccountID, m.ID)
	if err != nil {
		return m, fmt.Errorf("write module version: %w", err)
	}
	return m, nil
}
