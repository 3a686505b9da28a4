package module

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"powernode/agent/service"
	"powernode/sdwan"
)

// unitPrefix keeps the services of modules apart from all others of a machine.
const unitPrefix = "pn-module-"

// restartSeconds is the pause before a service that ended is started again.
const restartSeconds = 1

// wanted is a module as it is to be on this machine.
type wanted struct {
	module   sdwan.Module
	key      string // changes with all that is placed, the configuration too
	packages []string
	files    []file
	artifact *sdwan.Artifact // to be placed by us
	units    []service.Unit
}

// installedByK3s are the modules whose artefact and configuration are package k3s' work.
func installedByK3s(name string) bool { return name == "k3s-server" || name == "k3s-agent" }

// read makes a module of the document what is to be done here, or refuses it. It takes nobody's word: the rules that the
// platform holds a manifest to are asked again.
func (s *Subsystem) read(m sdwan.Module) (wanted, error) {
	w := wanted{module: m}
	manifest, err := sdwan.ReadManifest(m.Manifest)
	if err != nil {
		return w, err
	}
	if faults := manifest.Faults(m.Name); len(faults) > 0 {
		return w, fmt.Errorf("%s (%s %q)", faults[0].Text, faults[0].Pointer, faults[0].Value)
	}
	if w.packages = manifest.Packages; len(w.packages) > 0 && s.o.Packages == nil {
		return w, errors.New("it needs packages, and this machine has no package manager that the agent knows (apt)")
	}
	for _, f := range manifest.Files {
		mode, err := f.Permissions()
		if err != nil {
			return w, err
		}
		w.files = append(w.files, fileOf(f.Path, mode, []byte(f.Content)))
	}
	for _, each := range manifest.Services {
		w.units = append(w.units, s.unit(m, each))
	}
	if !installedByK3s(m.Name) {
		if err := w.own(m); err != nil {
			return w, err
		}
	}
	config, err := compact(m.Config)
	if err != nil {
		return w, fmt.Errorf("its config: %w", err)
	}
	w.key = hashOf(m.Digest, config)
	return w, nil
}

// own adds what a module has beside its manifest's content: the artefact's place, and its configuration as a file.
func (w *wanted) own(m sdwan.Module) error {
	if w.artifact = m.Artifact; w.artifact != nil {
		if why := sdwan.RefusedPath(m.Name, sdwan.ArtifactPath(m.Name)); why != "" {
			return fmt.Errorf("file path refused: %s, where its artefact would go", why)
		}
	}
	config, err := compact(m.Config)
	if err != nil || config == "" || config == "{}" || config == "null" {
		return err
	}
	place := sdwan.ConfigPath(m.Name)
	if slices.ContainsFunc(w.files, func(f file) bool { return f.path == place || strings.HasPrefix(f.path, place+"/") }) {
		return nil // the manifest has a file of its own there
	}
	if why := sdwan.RefusedPath(m.Name, place); why != "" {
		return fmt.Errorf("file path refused: %s, where its config would go", why)
	}
	w.files = append(w.files, fileOf(place, 0o600, []byte(config+"\n")))
	return nil
}

func fileOf(path string, mode uint32, content []byte) file {
	sum := sha256.Sum256(content)
	return file{path: path, mode: mode, size: int64(len(content)), content: content, sum: hex.EncodeToString(sum[:])}
}

func compact(raw json.RawMessage) (string, error) {
	if len(raw) == 0 {
		return "", nil
	}
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return "", err
	}
	return b.String(), nil
}

func (s *Subsystem) unit(m sdwan.Module, each sdwan.ManifestService) service.Unit {
	u := service.Unit{Name: unitPrefix + each.Name, Description: fmt.Sprintf("Service %s of module %s", each.Name, m.Name),
		Exec: append([]string{each.Exec}, each.Args...), RestartSeconds: restartSeconds, Restart: each.Restart}
	for key, value := range each.Env {
		u.Env = append(u.Env, key+"="+value)
	}
	slices.Sort(u.Env)
	if s.o.LogToFile {
		u.LogFile = filepath.Join(s.o.StateDir, "services", u.Name, "log") // it goes with the service
	}
	return u
}

// paths are where the module has files, the artefact's among them.
func (w wanted) paths() []string {
	out := make([]string, 0, len(w.files)+1)
	for _, f := range w.files {
		out = append(out, f.path)
	}
	if w.artifact != nil {
		out = append(out, sdwan.ArtifactPath(w.module.Name))
	}
	slices.Sort(out)
	return out
}

func (w wanted) hasUnit(name string) bool {
	return slices.ContainsFunc(w.units, func(u service.Unit) bool { return u.Name == name })
}

func hashOf(parts ...any) string {
	b, _ := json.Marshal(parts) // texts, numbers and units: nothing that does not encode
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
