package store

import (
	"context"
	"fmt"
)

// Artifact is a file of the platform's artefact store, known by its name and by its bytes.
type Artifact struct {
	SHA256    string
	Name      string
	SizeBytes int64
	AddedAt   Time
}

const artifactColumns = `sha256, name, size_bytes, added_at`

func scanArtifact(_ *View, s scanner) (Artifact, error) {
	var a Artifact
	if err := s.Scan(&a.SHA256, &a.Name, &a.SizeBytes, &a.AddedAt); err != nil {
		return a, fmt.Errorf("read artefact: %w", err)
	}
	return a, nil
}

// Artifacts lists the store's files by name.
func Artifacts(ctx context.Context, v *View) ([]Artifact, error) {
	return collect(v, ctx, scanArtifact, `SELECT `+artifactColumns+` FROM artifacts ORDER BY name`)
}

// ArtifactByName finds a file by its name.
func ArtifactByName(ctx context.Context, v *View, name string) (Artifact, error) {
	return scanArtifact(v, v.queryRow(ctx, `SELECT `+artifactColumns+` FROM artifacts WHERE name = ?`, name))
}

// PutArtifact records a file: its name, or the same bytes, may have been there before under another.
func PutArtifact(ctx context.Context, tx *Tx, a Artifact) (Artifact, error) {
	a.AddedAt = At(tx.now)
	if err := tx.exec(ctx, `DELETE FROM artifacts WHERE name = ? OR sha256 = ?`, a.Name, a.SHA256); err != nil {
		return a, fmt.Errorf("replace artefact: %w", err)
	}
	err := tx.exec(ctx, `INSERT INTO artifacts (`+artifactColumns+`) VALUES (?,?,?,?)`, a.SHA256, a.Name, a.SizeBytes, a.AddedAt)
	if err != nil {
		return a, fmt.Errorf("write artefact: %w", err)
	}
	return a, nil
}

// ArtifactHostAllowed says whether the operator allows a host whose addresses are not public.
func ArtifactHostAllowed(ctx context.Context, v *View, host string) (bool, error) {
	var n int64
	err := v.queryRow(ctx, `SELECT count(*) FROM artifact_hosts WHERE host = ?`, host).Scan(&n)
	return n > 0, err
}

// AllowArtifactHost records the operator's word for a host.
func AllowArtifactHost(ctx context.Context, tx *Tx, host string) error {
	return tx.exec(ctx, `INSERT INTO artifact_hosts (host, added_at) VALUES (?, ?) ON CONFLICT (host) DO NOTHING`, host, At(tx.now))
}
