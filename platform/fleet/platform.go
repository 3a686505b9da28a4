package fleet

import (
	"context"

	"powernode/store"
)

// PlatformInput makes a platform.
type PlatformInput struct {
	Name           string
	ArchitectureID store.ArchitectureID
	OS             string
	Description    string
	Enabled        bool
}

// ArchitectureByID finds an architecture of the installation, or refuses.
func ArchitectureByID(ctx context.Context, v *store.View, id store.ArchitectureID) (store.Architecture, error) {
	a, err := store.ArchitectureByID(ctx, v, id)
	return a, orNotFound(err, "architecture not found")
}

// CheckCreatePlatform refuses what CreatePlatform could not do.
func (s *Service) CheckCreatePlatform(ctx context.Context, v *store.View, acct store.AccountID, in PlatformInput) error {
	if _, err := ArchitectureByID(ctx, v, in.ArchitectureID); err != nil {
		return err
	}
	other, err := store.PlatformByName(ctx, v, acct, in.Name)
	return free(err, false, holder{"platform_id", string(other.ID)}, "platform name %q is already in use", in.Name)
}

// CreatePlatform makes a platform, which templates and modules can be for.
func (s *Service) CreatePlatform(ctx context.Context, tx *store.Tx, acct store.AccountID, in PlatformInput) (store.Platform, error) {
	p := store.Platform{ID: store.PlatformID(tx.NewID()), AccountID: acct, Name: in.Name, ArchitectureID: in.ArchitectureID, OS: in.OS,
		Description: in.Description, Enabled: in.Enabled}
	if err := store.InsertPlatform(ctx, tx, p); err != nil {
		return p, err
	}
	return p, audit(ctx, tx, acct, "created", resourcePlatform, string(p.ID), nil, store.Object{"name": p.Name, "architecture_id": p.ArchitectureID,
		"os": p.OS, "description": p.Description, "enabled": p.Enabled})
}
