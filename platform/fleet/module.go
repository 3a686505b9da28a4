package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
)

// ModuleByID finds a module, or refuses.
func ModuleByID(ctx context.Context, v *store.View, acct store.AccountID, id store.ModuleID) (store.Module, error) {
	m, err := store.ModuleByID(ctx, v, acct, id)
	return m, orNotFound(err, "module not found")
}

// VersionInput makes a module version.
type VersionInput struct {
	ModuleID    store.ModuleID
	Version     string
	Artifacts   []store.VersionArtifact
	Manifest    store.Object
	MakeCurrent bool
	Person      bool    // the caller is one; else what is made must be released before it is served
	By          Release // who stands behind making it current
}

// CheckCreateVersion refuses what CreateVersion could not do.
func (s *Service) CheckCreateVersion(ctx context.Context, v *store.View, acct store.AccountID, in VersionInput) error {
	seen := map[string]int{}
	for i, a := range in.Artifacts {
		pointer := fmt.Sprintf("/artifacts/%d", i)
		if err := checkArtifact(ctx, v, pointer, a); err != nil {
			return err
		}
		key := a.OS + "/" + a.Arch
		if _, twice := seen[key]; twice {
			return schema.InvalidArgument(pointer, key, "artifacts has %s twice", key)
		}
		seen[key] = i
	}
	m, err := ModuleByID(ctx, v, acct, in.ModuleID)
	if err != nil {
		return err
	}
	for i, a := range in.Artifacts {
		if err := checkArtifactFile(ctx, v, fmt.Sprintf("/artifacts/%d", i), a); err != nil {
			return err
		}
	}
	if err := CheckManifest(m, in.Manifest); err != nil {
		return err
	}
	if err := checkPlace(m, in.Artifacts); err != nil {
		return err
	}
	if err := under("/manifest", checkDeclaration(ctx, v, m, in.Manifest)); err != nil {
		return err
	}
	other, err := store.ModuleVersionByName(ctx, v, acct, m.ID, in.Version)
	if err := free(err, false, holder{"module_version_id", string(other.ID)}, "version %q of module %s exists already", in.Version, m.Name); err != nil || !in.MakeCurrent {
		return err
	}
	if err := s.checkCarried(ctx, v, m, in.Artifacts); err != nil {
		return err
	}
	return refuseUnfit(ctx, v, m, store.ModuleVersion{Manifest: store.JSON[json.RawMessage]{V: mustJSON(object(in.Manifest))}})
}

// checkDeclaration refuses what a manifest says of other modules and of the config, where it says nothing usable.
func checkDeclaration(ctx context.Context, v *store.View, m store.Module, manifest store.Object) error {
	d, err := declarationOf(store.ModuleVersion{Manifest: store.JSON[json.RawMessage]{V: mustJSON(object(manifest))}})
	if err != nil {
		return err
	}
	if err := checkDependencies(ctx, v, m.AccountID, m.Name, d.Dependencies); err != nil {
		return err
	}
	declared, _ := manifest["config_schema"].(store.Object)
	return checkConfigSchema(declared, nil)
}

// DeclarationFault is what checkDeclaration refuses a manifest for, as a fault of it; nil: nothing.
func DeclarationFault(ctx context.Context, v *store.View, m store.Module, manifest store.Object) (*sdwan.ManifestFault, error) {
	err := checkDeclaration(ctx, v, m, manifest)
	refusal, is := errors.AsType[*schema.Error](err)
	if !is {
		return nil, err
	}
	pointer, _ := refusal.Details["pointer"].(string)
	return &sdwan.ManifestFault{Pointer: pointer, Text: refusal.Message}, nil
}

// under moves a refusal to where the refused value stands.
func under(prefix string, err error) error {
	var refusal *schema.Error
	if errors.As(err, &refusal) {
		return refusal.Under(prefix)
	}
	return err
}

// checkCarried refuses to make current what the machines that follow the pointer could not run: their architecture has no
// artefact. A module whose versions have none at all needs none.
func (s *Service) checkCarried(ctx context.Context, v *store.View, m store.Module, artifacts []store.VersionArtifact) error {
	before, err := store.CurrentVersion(ctx, v, m)
	if err != nil && !errors.Is(err, store.ErrNoRow) {
		return err
	}
	if len(artifacts)+len(before.Artifacts.V) == 0 {
		return nil
	}
	followers, err := s.followersOf(ctx, v, m)
	if err != nil {
		return err
	}
	for _, i := range followers {
		has := slices.ContainsFunc(artifacts, func(x store.VersionArtifact) bool { return x.Arch == i.Architecture })
		if !has {
			return schema.Errorf(schema.PreconditionFailed, "an architecture in use has no artefact: %s, of instance %s", i.Architecture, i.Name).
				WithDetail("architecture", i.Architecture).WithDetail("instance_id", i.ID)
		}
	}
	return nil
}

func checkArtifact(ctx context.Context, v *store.View, pointer string, a store.VersionArtifact) error {
	switch {
	case !shaPattern.MatchString(a.SHA256):
		return schema.InvalidArgument(pointer+"/sha256", schema.Printable(a.SHA256), "artifacts: sha256 must have 64 lower-case hexadecimal digits")
	case (a.URL == "") == (a.File == ""):
		return schema.InvalidCombination(pointer, "artifacts: exactly one of url and file")
	case a.URL != "":
		return checkArtifactURL(ctx, v, pointer+"/url", a.URL)
	}
	return nil
}

func checkArtifactFile(ctx context.Context, v *store.View, pointer string, a store.VersionArtifact) error {
	if a.File == "" {
		return nil
	}
	kept, err := store.ArtifactByName(ctx, v, a.File)
	if err != nil {
		return orNotFound(err, fmt.Sprintf("file %s not found in the platform's artefact store: powernode artifact add puts one there", schema.Printable(a.File)))
	}
	if kept.SHA256 != a.SHA256 {
		return schema.InvalidArgument(pointer+"/sha256", a.SHA256, "artifacts: sha256 is not that of file %s, which is %s", a.File, kept.SHA256)
	}
	return nil
}

// CreateVersion makes a version. What an assistant made is built until a person releases it; made current by a call that
// a person approved, it is released with it.
func (s *Service) CreateVersion(ctx context.Context, tx *store.Tx, acct store.AccountID, in VersionInput) (store.ModuleVersion, store.Module, error) {
	m, err := ModuleByID(ctx, &tx.View, acct, in.ModuleID)
	if err != nil {
		return store.ModuleVersion{}, m, err
	}
	v := store.ModuleVersion{ID: store.ModuleVersionID(tx.NewID()), AccountID: acct, ModuleID: m.ID, Version: in.Version,
		PromotionState: "built", MadeBy: "assistant"}
	if in.Person {
		v.MadeBy = "person"
	}
	v.Artifacts.V = in.Artifacts
	if v.Artifacts.V == nil {
		v.Artifacts.V = []store.VersionArtifact{}
	}
	v.Manifest.V = mustJSON(object(in.Manifest))
	if v, err = store.InsertModuleVersion(ctx, tx, v); err != nil {
		return v, m, err
	}
	err = audit(ctx, tx, acct, "created", resourceVersion, string(v.ID), nil, versionValues(v))
	if err != nil || !in.MakeCurrent {
		return v, m, err
	}
	moved, err := s.makeCurrent(ctx, tx, m, v, in.By, nil)
	return moved.Version, moved.Module, err
}

func versionValues(v store.ModuleVersion) store.Object {
	return store.Object{"module_id": v.ModuleID, "version": v.Version, "artifacts": v.Artifacts.V, "manifest": v.Manifest.V, "made_by": v.MadeBy}
}
