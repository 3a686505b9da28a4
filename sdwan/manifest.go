package sdwan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	slashpath "path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Manifest is what a module version declares beside its artefact: what is put on a machine.
type Manifest struct {
	Dependencies json.RawMessage   `json:"dependencies"`  // the platform's affair
	ConfigSchema json.RawMessage   `json:"config_schema"` // the platform's affair
	Packages     []string          `json:"packages"`
	Services     []ManifestService `json:"services"`
	Files        []ManifestFile    `json:"files"`
}

// ManifestService is a process to run: an argument vector, no shell.
type ManifestService struct {
	Name    string            `json:"name"`
	Exec    string            `json:"exec"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env"`
	Restart string            `json:"restart"` // always (also ""), on-failure, never
}

// ManifestFile is a file to place. Mode is octal; "" is 0644.
type ManifestFile struct {
	Path    string `json:"path"`
	Mode    string `json:"mode"`
	Content string `json:"content"`
}

// ManifestFault is a rule that a manifest breaks. Pointer is the place inside the manifest.
type ManifestFault struct {
	Pointer string
	Value   string
	Text    string
}

// Bounds of a manifest: what a machine takes at a time.
const (
	maxManifestEntries = 64
	maxFilePath        = 512
	maxPathPart        = 128
	maxServiceWords    = 128
)

// TempSuffix is the end of the name under which a file is written before it gets its own; no manifest may name such a file.
const TempSuffix = ".powernode-new"

// ReadManifest reads a manifest strictly: another key than the declared ones is an error.
func ReadManifest(raw json.RawMessage) (Manifest, error) {
	var m Manifest
	if len(raw) == 0 {
		return m, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		return m, fmt.Errorf("read the manifest: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return m, errors.New("read the manifest: data after it")
	}
	return m, nil
}

// Empty says whether there is nothing to put on a machine.
func (m Manifest) Empty() bool { return len(m.Packages)+len(m.Services)+len(m.Files) == 0 }

// Faults are the rules that a module's manifest breaks, in its own order. Both sides ask: the platform when a version is
// made, and the agent, which takes nobody's word for what it writes and runs.
func (m Manifest) Faults(module string) []ManifestFault {
	var out []ManifestFault
	out = append(out, m.packageFaults()...)
	out = append(out, m.serviceFaults()...)
	return append(out, m.fileFaults(module)...)
}

// The names that a package manager, systemd and a shell's environment take. A name of a package never begins with what
// makes an option of it.
var (
	packagePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]{1,127}$`)
	servicePattern = regexp.MustCompile(`^[a-z][a-z0-9-]{0,30}$`)
	envPattern     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
	modePattern    = regexp.MustCompile(`^0?[0-7]{3}$`)
)

func (m Manifest) packageFaults() []ManifestFault {
	out := tooMany("/packages", len(m.Packages))
	for i, name := range m.Packages {
		if !packagePattern.MatchString(name) {
			out = append(out, ManifestFault{fmt.Sprintf("/packages/%d", i), name,
				"package name refused: lower-case letters, digits, plus, dot and hyphen, without a version"})
		}
	}
	return out
}

func (m Manifest) serviceFaults() []ManifestFault {
	out := tooMany("/services", len(m.Services))
	seen := map[string]bool{}
	for i, s := range m.Services {
		at := fmt.Sprintf("/services/%d", i)
		switch {
		case !servicePattern.MatchString(s.Name):
			out = append(out, ManifestFault{at + "/name", s.Name, "service name refused: at most 31 lower-case letters, digits and hyphens, a letter first"})
		case seen[s.Name]:
			out = append(out, ManifestFault{at + "/name", s.Name, "service name refused: it is given twice"})
		}
		seen[s.Name] = true
		for _, f := range s.faults() {
			out = append(out, ManifestFault{at + f.Pointer, f.Value, f.Text})
		}
	}
	return out
}

func (s ManifestService) faults() []ManifestFault {
	var out []ManifestFault
	add := func(pointer, value, why string) {
		out = append(out, ManifestFault{pointer, value, fmt.Sprintf("service %s must be an argument vector: %s", readable(s.Name), why)})
	}
	if !strings.HasPrefix(s.Exec, "/") || slashpath.Clean(s.Exec) != s.Exec || s.Exec == "/" || unclean(s.Exec) {
		add("/exec", s.Exec, "exec is an absolute path")
	}
	if len(s.Args) > maxServiceWords || len(s.Env) > maxServiceWords {
		add("", "", fmt.Sprintf("at most %d arguments and environment variables", maxServiceWords))
	}
	for i, arg := range s.Args {
		if hasControl(arg) {
			add(fmt.Sprintf("/args/%d", i), arg, "an argument holds no control character")
		}
	}
	for _, key := range sortedKeys(s.Env) {
		switch {
		case !envPattern.MatchString(key):
			add("/env", key, "an environment variable is named by letters, digits and underscores")
		case hasControl(s.Env[key]):
			add("/env/"+key, "", "an environment variable holds no control character")
		}
	}
	if !slices.Contains([]string{"", "always", "on-failure", "never"}, s.Restart) {
		out = append(out, ManifestFault{"/restart", s.Restart, "restart must be one of: always, on-failure, never"})
	}
	return out
}

func (m Manifest) fileFaults(module string) []ManifestFault {
	out := tooMany("/files", len(m.Files))
	taken := map[string]bool{}
	for i, f := range m.Files {
		at := fmt.Sprintf("/files/%d", i)
		why := RefusedPath(module, f.Path)
		switch {
		case why != "":
		case f.Path == ArtifactPath(module), strings.HasPrefix(f.Path, ArtifactPath(module)+"/"):
			why = "that is where the version's artefact goes"
		case taken[f.Path]:
			why = "it is given twice"
		}
		taken[f.Path] = true
		if why != "" {
			out = append(out, ManifestFault{at + "/path", f.Path, "file path refused: " + why})
		}
		if _, err := f.Permissions(); err != nil {
			out = append(out, ManifestFault{at + "/mode", f.Mode, err.Error()})
		}
	}
	for i, f := range m.Files {
		for dir := slashpath.Dir(f.Path); len(dir) > 1; dir = slashpath.Dir(dir) {
			if taken[dir] {
				out = append(out, ManifestFault{fmt.Sprintf("/files/%d/path", i), f.Path, "file path refused: another file is its folder"})
			}
		}
		if strings.HasPrefix(ArtifactPath(module), f.Path+"/") {
			out = append(out, ManifestFault{fmt.Sprintf("/files/%d/path", i), f.Path, "file path refused: it is the folder where the version's artefact goes"})
		}
	}
	return out
}

// Permissions are the file's mode as a number: never more than nine bits, so neither setuid nor setgid.
func (f ManifestFile) Permissions() (uint32, error) {
	if f.Mode == "" {
		return 0o644, nil
	}
	if !modePattern.MatchString(f.Mode) {
		return 0, errors.New("mode must be three octal digits")
	}
	n, err := strconv.ParseUint(f.Mode, 8, 9)
	if err != nil {
		return 0, errors.New("mode must be three octal digits")
	}
	return uint32(n), nil
}

// ArtifactPath is where a module's artefact is placed, as an executable.
func ArtifactPath(module string) string { return "/opt/" + module + "/bin/" + module }

// ConfigPath is where a module's configuration is placed, where it has any and its manifest places no file there.
func ConfigPath(module string) string { return "/etc/" + module + "/config.json" }

// moduleRoots are the folders in each of which a module has one with its name.
var moduleRoots = []string{"/etc/", "/opt/", "/srv/", "/var/lib/"}

// forbiddenFolders are never a module's, whatever it is called: K3s', systemd's and ssh's. What begins with the agent's
// name is the agent's.
var forbiddenFolders = []string{
	"/etc/rancher", "/var/lib/rancher", "/opt/rancher", "/srv/rancher", "/var/lib/kubelet", "/etc/cni", "/opt/cni", "/var/lib/cni",
	"/etc/systemd", "/var/lib/systemd", "/opt/systemd", "/etc/udev", "/etc/tmpfiles.d", "/etc/sysusers.d", "/etc/init.d",
	"/etc/ssh", "/var/lib/ssh", "/opt/ssh", "/srv/ssh", "/etc/sshd", "/var/lib/sshd",
}

const agentsName = "powernode"

// RefusedPath says why a module may not place a file at a path, or "".
func RefusedPath(module, file string) string {
	switch {
	case !strings.HasPrefix(file, "/"):
		return "it must be absolute"
	case slashpath.Clean(file) != file || unclean(file) || len(file) > maxFilePath:
		return "it must be clean"
	case strings.HasSuffix(file, TempSuffix):
		return "it ends like a file that is being written"
	}
	for part := range strings.SplitSeq(file, "/") {
		if len(part) > maxPathPart {
			return fmt.Sprintf("a part of it has more than %d characters", maxPathPart)
		}
	}
	for _, folder := range forbiddenFolders {
		if file == folder || strings.HasPrefix(file, folder+"/") {
			return "it is below " + folder
		}
	}
	for _, root := range moduleRoots {
		if strings.HasPrefix(file, root+agentsName) {
			return "it is the agent's"
		}
		if module != "" && !strings.Contains(module, "/") && strings.HasPrefix(file, root+module+"/") {
			return ""
		}
	}
	return "it must be below /etc, /opt, /srv or /var/lib, in a folder with the module's name"
}

func tooMany(pointer string, n int) []ManifestFault {
	if n <= maxManifestEntries {
		return nil
	}
	return []ManifestFault{{pointer, strconv.Itoa(n), fmt.Sprintf("%s must have at most %d entries (got %d)", pointer[1:], maxManifestEntries, n)}}
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// unclean says whether a path holds what no reader of it would see.
func unclean(s string) bool {
	return !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

func hasControl(s string) bool {
	return !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl)
}

// readable is a name as a text may carry it.
func readable(s string) string {
	if len(s) > 64 || unclean(s) {
		return strconv.QuoteToASCII(s[:min(len(s), 64)])
	}
	return s
}
