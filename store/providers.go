package store

import (
	"context"
	"fmt"
)

// Architecture is a processor architecture that the installation knows.
type Architecture struct {
	ID          ArchitectureID
	Name        string
	Family      string
	AptName     string
	RPMName     string
	DisplayName string
	IsCanonical bool
	Enabled     bool
}

const architectureColumns = `id, name, family, apt_name, rpm_name, display_name, is_canonical, enabled`

func scanArchitecture(_ *View, s scanner) (Architecture, error) {
	var a Architecture
	err := s.Scan(&a.ID, &a.Name, &a.Family, &a.AptName, &a.RPMName, &a.DisplayName, &a.IsCanonical, &a.Enabled)
	if err != nil {
		return a, fmt.Errorf("read architecture: %w", err)
	}
	return a, nil
}

// Architectures lists the installation's architectures by name.
func Architectures(ctx context.Context, v *View) ([]Architecture, error) {
	return collect(v, ctx, scanArchitecture, `SELECT `+architectureColumns+` FROM architectures ORDER BY name`)
}

// ArchitectureByID finds an architecture.
func ArchitectureByID(ctx context.Context, v *View, id ArchitectureID) (Architecture, error) {
	return scanArchitecture(v, v.queryRow(ctx, `SELECT `+architectureColumns+` FROM architectures WHERE id = ?`, id))
}

// InsertArchitecture makes an architecture.
func InsertArchitecture(ctx context.Context, tx *Tx, a Architecture) error {
	return tx.exec(ctx, `INSERT INTO architectures (`+architectureColumns+`) VALUES (?,?,?,?,?,?,?,?)`,
		a.ID, a.Name, a.Family, a.AptName, a.RPMName, a.DisplayName, a.IsCanonical, a.Enabled)
}

// Platform is an operating system on an architecture, that templates are for.
type Platform struct {
	ID             PlatformID
	AccountID      AccountID
	Name           string
	ArchitectureID ArchitectureID
	OS             string
	Enabled        bool
	Description    string
	CreatedAt      Time
	Revision       int64
}

const platformColumns = `id, account_id, name, architecture_id, os, enabled, description, created_at, revision`

func scanPlatform(v *View, s scanner) (Platform, error) {
	var p Platform
	err := s.Scan(&p.ID, &p.AccountID, &p.Name, &p.ArchitectureID, &p.OS, &p.Enabled, &p.Description, &p.CreatedAt, &p.Revision)
	if err != nil {
		return p, fmt.Errorf("read platform: %w", err)
	}
	v.noteRow("platforms", string(p.ID), p.Revision)
	return p, nil
}

// PlatformByID finds a platform.
func PlatformByID(ctx context.Context, v *View, acct AccountID, id PlatformID) (Platform, error) {
	return scanPlatform(v, v.queryRow(ctx, `SELECT `+platformColumns+` FROM platforms WHERE account_id = ? AND id = ?`, acct, id))
}

// Platforms lists an account's platforms by name.
func Platforms(ctx context.Context, v *View, acct AccountID) ([]Platform, error) {
	return collect(v, ctx, scanPlatform, `SELECT `+platformColumns+` FROM platforms WHERE account_id = ? ORDER BY name, id`, acct)
}

// InsertPlatform makes a platform.
func InsertPlatform(ctx context.Context, tx *Tx, p Platform) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `INSERT INTO platforms (`+platformColumns+`) VALUES (?,?,?,?,?,?,?,?,?)`,
		p.ID, p.AccountID, p.Name, p.ArchitectureID, p.OS, p.Enabled, p.Description, At(tx.now), revision)
}

// Provider is where machines come from.
type Provider struct {
	ID           ProviderID
	AccountID    AccountID
	Name         string
	ProviderType string
	Description  string
	Enabled      bool
	Config       JSON[Object]
	CreatedAt    Time
	Revision     int64
}

const providerColumns = `id, account_id, name, provider_type, description, enabled, config, created_at, revision`

func scanProvider(v *View, s scanner) (Provider, error) {
	var p Provider
	err := s.Scan(&p.ID, &p.AccountID, &p.Name, &p.ProviderType, &p.Description, &p.Enabled, &p.Config, &p.CreatedAt, &p.Revision)
	if err != nil {
		return p, fmt.Errorf("read provider: %w", err)
	}
	v.noteRow("providers", string(p.ID), p.Revision)
	return p, nil
}

// ProviderByID finds a provider.
func ProviderByID(ctx context.Context, v *View, acct AccountID, id ProviderID) (Provider, error) {
	return scanProvider(v, v.queryRow(ctx, `SELECT `+providerColumns+` FROM providers WHERE account_id = ? AND id = ?
		AND deleted_at IS NULL`, acct, id))
}

// ProviderByName finds a provider.
func ProviderByName(ctx context.Context, v *View, acct AccountID, name string) (Provider, error) {
	return scanProvider(v, v.queryRow(ctx, `SELECT `+providerColumns+` FROM providers WHERE account_id = ? AND name = ?
		AND deleted_at IS NULL`, acct, name))
}

// Providers lists an account's providers by name.
func Providers(ctx context.Context, v *View, acct AccountID) ([]Provider, error) {
	return collect(v, ctx, scanProvider, `SELECT `+providerColumns+` FROM providers WHERE account_id = ?
		AND deleted_at IS NULL ORDER BY name, id`, acct)
}

// InsertProvider makes a provider.
func InsertProvider(ctx context.Context, tx *Tx, p Provider) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `INSERT INTO providers (`+providerColumns+`) VALUES (?,?,?,?,?,?,?,?,?)`,
		p.ID, p.AccountID, p.Name, p.ProviderType, p.Description, p.Enabled, p.Config, At(tx.now), revision)
}

// UpdateProvider writes a provider.
func UpdateProvider(ctx context.Context, tx *Tx, p Provider) (Provider, error) {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return p, err
	}
	p.Revision = revision
	return p, tx.exec(ctx, `UPDATE providers SET name = ?, description = ?, enabled = ?, config = ?, revision = ? WHERE account_id = ? AND id = ?`,
		p.Name, p.Description, p.Enabled, p.Config, p.Revision, p.AccountID, p.ID)
}

// DeleteProvider takes a provider away. Its row stays, under no name, for the instances that have ended.
func DeleteProvider(ctx context.Context, tx *Tx, acct AccountID, id ProviderID) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `UPDATE providers SET deleted_at = ?, name = id, config = '{}', enabled = 0, revision = ? WHERE account_id = ? AND id = ?`,
		At(tx.now), revision, acct, id)
}

// LiveInstancesOfProvider counts the instances of a provider that have not ended.
func LiveInstancesOfProvider(ctx context.Context, v *View, acct AccountID, id ProviderID) (int64, error) {
	var n int64
	err := v.queryRow(ctx, `SELECT count(*) FROM instances WHERE account_id = ? AND provider_id = ? AND status <> 'terminated'`, acct, id).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count the instances of a provider: %w", err)
	}
	return n, nil
}

// Region is a place of a provider.
type Region struct {
	ID           RegionID
	AccountID    AccountID
	ProviderID   ProviderID
	Name         string
	RegionCode   string
	Description  string
	EndpointURL  string
	Enabled      bool
	MachineImage string
	CreatedAt    Time
	Revision     int64
}

const regionColumns = `id, account_id, provider_id, name, region_code, description, endpoint_url, enabled, machine_image, created_at, revision`

func scanRegion(v *View, s scanner) (Region, error) {
	var r Region
	err := s.Scan(&r.ID, &r.AccountID, &r.ProviderID, &r.Name, &r.RegionCode, &r.Description, &r.EndpointURL, &r.Enabled,
		&r.MachineImage, &r.CreatedAt, &r.Revision)
	if err != nil {
		return r, fmt.Errorf("read region: %w", err)
	}
	v.noteRow("regions", string(r.ID), r.Revision)
	return r, nil
}

// RegionByID finds a region.
func RegionByID(ctx context.Context, v *View, acct AccountID, id RegionID) (Region, error) {
	return scanRegion(v, v.queryRow(ctx, `SELECT `+regionColumns+` FROM regions WHERE account_id = ? AND id = ?`, acct, id))
}

// Regions lists an account's regions by name, of one provider where it is not empty.
func Regions(ctx context.Context, v *View, acct AccountID, provider ProviderID) ([]Region, error) {
	return collect(v, ctx, scanRegion, `SELECT `+regionColumns+` FROM regions WHERE account_id = ?1 AND (?2 = '' OR provider_id = ?2)
		ORDER BY name, id`, acct, provider)
}

// InsertRegion makes a region.
func InsertRegion(ctx context.Context, tx *Tx, r Region) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `INSERT INTO regions (`+regionColumns+`) VALUES (?,?,?,?,?,?,?,?,?,?,?)`,
		r.ID, r.AccountID, r.ProviderID, r.Name, r.RegionCode, r.Description, r.EndpointURL, r.Enabled, r.MachineImage, At(tx.now), revision)
}

// DeleteRegion removes a region.
func DeleteRegion(ctx context.Context, tx *Tx, acct AccountID, id RegionID) error {
	return tx.exec(ctx, `DELETE FROM regions WHERE account_id = ? AND id = ?`, acct, id)
}

// InstanceType is a size of machines of a provider.
type InstanceType struct {
	ID               InstanceTypeID
	AccountID        AccountID
	ProviderID       ProviderID
	Name             string
	InstanceTypeCode string
	Description      string
	VCPUs            int64
	MemoryMB         int64
	StorageGB        int64
	HourlyPrice      *float64 // nil: unknown
	Enabled          bool
	Specs            JSON[Object]
	CreatedAt        Time
	Revision         int64
}

const instanceTypeColumns = `id, account_id, provider_id, name, instance_type_code, description, vcpus, memory_mb, storage_gb,
	hourly_price, enabled, specs, created_at, revision`

func scanInstanceType(v *View, s scanner) (InstanceType, error) {
	var t InstanceType
	err := s.Scan(&t.ID, &t.AccountID, &t.ProviderID, &t.Name, &t.InstanceTypeCode, &t.Description, &t.VCPUs, &t.MemoryMB,
		&t.StorageGB, &t.HourlyPrice, &t.Enabled, &t.Specs, &t.CreatedAt, &t.Revision)
	if err != nil {
		return t, fmt.Errorf("read instance type: %w", err)
	}
	v.noteRow("instance_types", string(t.ID), t.Revision)
	return t, nil
}

// InstanceTypeByID finds an instance type.
func InstanceTypeByID(ctx context.Context, v *View, acct AccountID, id InstanceTypeID) (InstanceType, error) {
	return scanInstanceType(v, v.queryRow(ctx, `SELECT `+instanceTypeColumns+` FROM instance_types WHERE account_id = ? AND id = ?`, acct, id))
}

// InstanceTypes lists an account's instance types by name, of one provider where it is not empty.
func InstanceTypes(ctx context.Context, v *View, acct AccountID, provider ProviderID) ([]InstanceType, error) {
	return collect(v, ctx, scanInstanceType, `SELECT `+instanceTypeColumns+` FROM instance_types WHERE account_id = ?1
		AND (?2 = '' OR provider_id = ?2) ORDER BY name, id`, acct, provider)
}

// InsertInstanceType makes an instance type.
func InsertInstanceType(ctx context.Context, tx *Tx, t InstanceType) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `INSERT INTO instance_types (`+instanceTypeColumns+`) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)`,
		t.ID, t.AccountID, t.ProviderID, t.Name, t.InstanceTypeCode, t.Description, t.VCPUs, t.MemoryMB, t.StorageGB, t.HourlyPrice,
		t.Enabled, t.Specs, At(tx.now), revision)
}

// DeleteInstanceType removes an instance type.
func DeleteInstanceType(ctx context.Context, tx *Tx, acct AccountID, id InstanceTypeID) error {
	return tx.exec(ctx, `DELETE FROM instance_types WHERE account_id = ? AND id = ?`, acct, id)
}
