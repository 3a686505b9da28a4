package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"powernode/platform/signal"
	"powernode/schema"
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
	Person      bool // the caller is one; else what is made must be released before it is served
	Released    bool // the call runs because a person approved it
}

// notYet are the keys of a manifest that later issues build: they are refused rather than stored without effect.
var notYet = []string{"packages", "files", "services", "dependencies", "config_schema"}

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
	if err := checkManifest(m, in.Manifest); err != nil {
		return err
	}
	for _, key := range notYet {
		if given(in.Manifest[key]) {
			return schema.Errorf(schema.PreconditionFailed, "not available yet: a manifest with %s", key)
		}
	}
	other, err := store.ModuleVersionByName(ctx, v, acct, m.ID, in.Version)
	if err := free(other, err, false, "version %q of module %s exists already", in.Version, m.Name); err != nil || !in.MakeCurrent {
		return err
	}
	return checkCarried(ctx, v, m, in.Artifacts)
}

// checkCarried refuses to make current what the machines that carry the module could not run: their architecture has no
// artefact. A module whose versions have none at all needs none.
func checkCarried(ctx context.Context, v *store.View, m store.Module, artifacts []store.VersionArtifact) error {
	before, err := store.CurrentVersion(ctx, v, m)
	if err != nil && !errors.Is(err, store.ErrNoRow) {
		return err
	}
	if len(artifacts)+len(before.Artifacts.V) == 0 {
		return nil
	}
	assigned, err := store.AssignmentsByModule(ctx, v, m.AccountID, m.ID)
	if err != nil {
		return err
	}
	for _, a := range assigned {
		live, err := LiveInstances(ctx, v, m.AccountID, a.NodeID)
		if err != nil {
			return err
		}
		for _, i := range live {
			has := slices.ContainsFunc(artifacts, func(x store.VersionArtifact) bool { return x.Arch == i.Architecture })
			if a.Enabled && !has {
				return schema.Errorf(schema.PreconditionFailed, "an architecture in use has no artefact: %s, of instance %s", i.Architecture, i.Name).
					WithDetail("architecture", i.Architecture).WithDetail("instance_id", i.ID)
			}
		}
	}
	return nil
}

// given says whether a value of a manifest says anything.
func given(v any) bool {
	switch v := v.(type) {
	case nil:
		return false
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	return true
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
	err = audit(ctx, tx, acct, "created", resourceVersion, string(v.ID), nil, store.Object{"module_id": m.ID, "version": v.Version,
		"artifacts": v.Artifacts.V, "manifest": json.RawMessage(v.Manifest.V), "made_by": v.MadeBy})
	if err != nil || !in.MakeCurrent {
		return v, m, err
	}
	return s.makeCurrent(ctx, tx, m, v, in.Person || in.Released)
}

// makeCurrent moves a module's pointer: the version becomes live, the one before blessed. released says that a person
// stands behind it: then it may be served from now on.
func (s *Service) makeCurrent(ctx context.Context, tx *store.Tx, m store.Module, v store.ModuleVersion, released bool) (store.ModuleVersion, store.Module, error) {
	before, err := store.CurrentVersion(ctx, &tx.View, m)
	if err != nil && !errors.Is(err, store.ErrNoRow) {
		return v, m, err
	}
	if before.PromotionState == "live" && before.ID != v.ID {
		before.PromotionState = "blessed"
		if _, err := store.UpdateModuleVersion(ctx, tx, before); err != nil {
			return v, m, err
		}
	}
	v.PromotionState, v.EverLive = "live", v.EverLive || released
	if v, err = store.UpdateModuleVersion(ctx, tx, v); err != nil {
		return v, m, err
	}
	m.CurrentVersionID = v.ID
	if m, err = store.UpdateModule(ctx, tx, m); err != nil {
		return v, m, err
	}
	err = audit(ctx, tx, m.AccountID, "updated", resourceModule, string(m.ID), store.Object{"current_version_id": orNull(string(before.ID))},
		store.Object{"current_version_id": v.ID})
	if err != nil {
		return v, m, err
	}
	affected, err := s.touchCarriers(ctx, tx, m)
	if err != nil {
		return v, m, err
	}
	return v, m, signal.Emit(ctx, tx, m.AccountID, signal.Event{Kind: "system.module_version_changed", Subject: signal.Subject{ModuleID: m.ID},
		Payload: store.Object{"module_id": m.ID, "from": orNull(before.Version), "to": v.Version, "affected_instance_count": affected}})
}

// touchCarriers compiles anew for the instances that carry a module, and counts them.
func (s *Service) touchCarriers(ctx context.Context, tx *store.Tx, m store.Module) (int64, error) {
	assigned, err := store.AssignmentsByModule(ctx, &tx.View, m.AccountID, m.ID)
	if err != nil {
		return 0, err
	}
	var n int64
	for _, a := range assigned {
		live, err := LiveInstances(ctx, &tx.View, m.AccountID, a.NodeID)
		if err != nil {
			return 0, err
		}
		for _, i := range live {
			tx.TouchInstance(i.ID)
			if a.Enabled {
				n++
			}
		}
	}
	return n, nil
}

// forbiddenFolders are never a module's, whatever it is called: the agent's, K3s', systemd's and ssh's.
var forbiddenFolders = []string{"/etc/powernode", "/var/lib/powernode", "/opt/powernode", "/srv/powernode", "/etc/rancher", "/var/lib/rancher",
	"/etc/systemd", "/var/lib/systemd", "/etc/ssh", "/var/lib/kubelet"}

// checkManifest holds files and services of a manifest to the rules that need no machine.
func checkManifest(m store.Module, manifest store.Object) error {
	files, _ := manifest["files"].([]any)
	for i, f := range files {
		file, _ := f.(map[string]any)
		path, _ := file["path"].(string)
		if why := refusedPath(m.Name, path); why != "" {
			return schema.InvalidArgument(fmt.Sprintf("/manifest/files/%d/path", i), schema.Printable(path), "file path refused: %s (got %q)", why,
				schema.Printable(path))
		}
	}
	services, _ := manifest["services"].([]any)
	for i, sv := range services {
		service, _ := sv.(map[string]any)
		exec, _ := service["exec"].(string)
		if !strings.HasPrefix(exec, "/") || path.Clean(exec) != exec || strings.ContainsFunc(exec, unprintable) {
			name, _ := service["name"].(string)
			return schema.InvalidArgument(fmt.Sprintf("/manifest/services/%d/exec", i), schema.Printable(exec),
				"service %s must be an argument vector: exec is an absolute path", schema.Printable(name))
		}
	}
	return nil
}

// refusedPath says why a module may not place a file at a path, or "".
func refusedPath(module, file string) string {
	switch {
	case !strings.HasPrefix(file, "/"):
		return "it must be absolute"
	case path.Clean(file) != file || strings.ContainsFunc(file, unprintable):
		return "it must be clean"
	}
	for _, folder := range forbiddenFolders {
		if file == folder || strings.HasPrefix(file, folder+"/") {
			return "it is below " + folder
		}
	}
	for _, root := range []string{"/etc/", "/opt/", "/srv/", "/var/lib/"} {
		if strings.HasPrefix(file, root+module+"/") {
			return ""
		}
	}
	return "it must be below /etc, /opt, /srv or /var/lib, in a folder with the module's name"
}

func unprintable(r rune) bool { return r < 0x20 || r == 0x7f }
