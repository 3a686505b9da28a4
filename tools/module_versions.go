package tools

import (
	"context"
	"encoding/json"
	"fmt"

	"powernode/platform/fleet"
	"powernode/platform/governance"
	"powernode/store"
)

type versionArtifact struct {
	OS     string  `json:"os"`
	Arch   string  `json:"arch"`
	URL    *string `json:"url"`
	File   *string `json:"file"`
	SHA256 string  `json:"sha256"`
}

type versionObject struct {
	ID             store.ModuleVersionID `json:"id"`
	ModuleID       store.ModuleID        `json:"module_id"`
	Version        string                `json:"version"`
	VersionNumber  int64                 `json:"version_number"`
	PromotionState string                `json:"promotion_state"`
	Current        bool                  `json:"current"`
	Servable       bool                  `json:"servable"`
	MadeBy         string                `json:"made_by"`
	Artifacts      []versionArtifact     `json:"artifacts"`
	Manifest       json.RawMessage       `json:"manifest"`
	CreatedAt      store.Time            `json:"created_at"`
}

func versionOf(m store.Module, v store.ModuleVersion) versionObject {
	return versionObject{ID: v.ID, ModuleID: v.ModuleID, Version: v.Version, VersionNumber: v.VersionNumber, PromotionState: v.PromotionState,
		Current: m.CurrentVersionID == v.ID, Servable: v.Servable(), MadeBy: v.MadeBy, Manifest: v.Manifest.V, CreatedAt: v.CreatedAt,
		Artifacts: mapped(v.Artifacts.V, versionArtifactOf)}
}

func versionArtifactOf(a store.VersionArtifact) versionArtifact {
	return versionArtifact{OS: a.OS, Arch: a.Arch, URL: orNull(a.URL), File: orNull(a.File), SHA256: a.SHA256}
}

type listVersionsArgs struct {
	ModuleID store.ModuleID `json:"module_id"`
	Limit    int            `json:"limit"`
	Cursor   string         `json:"cursor"`
}

type listVersionsResult struct {
	Versions []versionObject `json:"versions"`
	Page
}

func listModuleVersions() *Definition {
	const verb = "system_list_module_versions"
	return define(verb, handler[listVersionsArgs, listVersionsResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a listVersionsArgs) (r listVersionsResult, err error) {
			m, err := fleet.ModuleByID(ctx, v, c.AccountID, a.ModuleID)
			if err != nil {
				return r, err
			}
			all, err := store.ModuleVersions(ctx, v, c.AccountID, m.ID)
			if err != nil {
				return r, err
			}
			all, r.Page, err = page(verb, m.ID, a.Limit, a.Cursor, all, func(v store.ModuleVersion) string { return string(v.ID) })
			r.Versions = mapped(all, func(v store.ModuleVersion) versionObject { return versionOf(m, v) })
			return r, err
		},
	})
}

type artifactArgs struct {
	OS     string `json:"os"`
	Arch   string `json:"arch"`
	URL    string `json:"url"`
	File   string `json:"file"`
	SHA256 string `json:"sha256"`
}

type createVersionArgs struct {
	ModuleID    store.ModuleID  `json:"module_id"`
	Version     string          `json:"version"`
	Artifacts   []artifactArgs  `json:"artifacts"`
	Manifest    json.RawMessage `json:"manifest"` // as the contract types it; the domain takes it as the object that it is
	MakeCurrent bool            `json:"make_current"`
}

func (a createVersionArgs) input(c Caller) (fleet.VersionInput, error) {
	in := fleet.VersionInput{ModuleID: a.ModuleID, Version: a.Version, MakeCurrent: a.MakeCurrent, Person: c.Human()}
	for _, x := range a.Artifacts {
		if x.OS == "" {
			x.OS = "linux"
		}
		in.Artifacts = append(in.Artifacts, store.VersionArtifact(x))
	}
	in.Manifest = store.Object{}
	if a.Manifest == nil {
		return in, nil
	}
	if err := json.Unmarshal(a.Manifest, &in.Manifest); err != nil {
		return in, fmt.Errorf("read a manifest: %w", err)
	}
	return in, nil
}

type createVersionResult struct {
	Version versionObject `json:"version"`
	Written
}

func createModuleVersion() *Definition {
	return define("system_create_module_version", handler[createVersionArgs, createVersionResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a createVersionArgs) error {
			in, err := a.input(c)
			if err != nil {
				return err
			}
			if err := p.Fleet.CheckCreateVersion(ctx, v, c.AccountID, in); err != nil || !a.MakeCurrent {
				return err
			}
			m, err := fleet.ModuleByID(ctx, v, c.AccountID, a.ModuleID)
			if err != nil {
				return err
			}
			category, err := versionCategory(ctx, p, v, c, a)
			if err != nil {
				return err
			}
			return refuseUnreleased(ctx, p, v, c, category, m, store.ModuleVersion{Version: a.Version, MadeBy: "assistant"})
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a createVersionArgs) (r createVersionResult, err error) {
			in, err := a.input(c)
			if err != nil {
				return r, err
			}
			in.By = releaser(tx, c)
			v, m, err := p.Fleet.CreateVersion(ctx, tx, c.AccountID, in)
			if err != nil {
				return r, err
			}
			warnings, err := fleet.Unmet(ctx, &tx.View, m, v)
			if err != nil {
				return r, err
			}
			r.Version = versionOf(m, v)
			r.warned(warnings)
			if !r.Version.Servable {
				r.Warn("not_released", "the version was made by an assistant: it is served to no machine before a person has released it or made it current")
			}
			return r, nil
		},
		categoryIn: versionCategory,
	})
}

// releaser says whether a person stands behind a call: who calls, or who approved the operation that runs.
func releaser(tx *store.Tx, c Caller) fleet.Release {
	if c.Human() || tx.Actor().OperationID != "" {
		return fleet.ByPerson
	}
	return fleet.ByNobody
}

// refuseUnreleased refuses to have a version served that no person stands behind, where policy would let the call run
// without one: loosening a policy releases nothing.
func refuseUnreleased(ctx context.Context, p *Platform, v *store.View, c Caller, category string, m store.Module, version store.ModuleVersion) error {
	if c.Human() || version.Released() {
		return nil
	}
	verdict, err := p.Governance.Decide(ctx, v, c, category, nil)
	if err != nil {
		return err
	}
	if verdict == governance.RequireApproval || verdict == governance.Block {
		return nil
	}
	return fleet.NotReleased(m, version)
}

// versionCategory gates a version that becomes current by the stricter of the two categories that it concerns.
func versionCategory(ctx context.Context, p *Platform, v *store.View, c Caller, a createVersionArgs) (string, error) {
	const create, current = "system.module_version_create", "system.module_version_set_current"
	if !a.MakeCurrent {
		return create, nil
	}
	created, err := p.Governance.Decide(ctx, v, c, create, nil)
	if err != nil {
		return "", err
	}
	set, err := p.Governance.Decide(ctx, v, c, current, nil)
	if err != nil {
		return "", err
	}
	if created != set && governance.Stricter(set, created) == created {
		return create, nil
	}
	return current, nil
}
