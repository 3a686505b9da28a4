package sdwan_test

import (
	"encoding/json"
	"path"
	"strings"
	"testing"

	"powernode/sdwan"
)

func TestManifestIsReadStrictly(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, raw, says string }{
		{"nothing", ``, ""},
		{"no content", `{}`, ""},
		{"what is the platform's affair", `{"dependencies":{"requires":["a"]},"config_schema":{"type":"object"}}`, ""},
		{"an undeclared key", `{"sudoers":"x"}`, "unknown field"},
		{"an undeclared key of a file", `{"files":[{"path":"/etc/a/x","owner":"root"}]}`, "unknown field"},
		{"a number for a text", `{"packages":[1]}`, "cannot unmarshal"},
		{"something after it", `{} {}`, "data after it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := sdwan.ReadManifest(json.RawMessage(tt.raw))
			if (tt.says == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), tt.says)) {
				t.Errorf("got %v, want %q", err, tt.says)
			}
		})
	}
}

// Whatever a document carries: a file without a fault lies in a folder with the module's name, and has no mode above 0777.
func FuzzManifestFaults(f *testing.F) {
	f.Add("web", "/etc/web/x", "0644")
	f.Add("ssh", "/etc/ssh/x", "4755")
	f.Add("..", "/etc/../x", "")
	f.Add("a/b", "/etc/a/b/x", "777")
	f.Add("powernode-agent", "/var/lib/powernode-agent/identity.json", "")
	f.Fuzz(func(t *testing.T, module, file, mode string) {
		each := sdwan.ManifestFile{Path: file, Mode: mode}
		m := sdwan.Manifest{Files: []sdwan.ManifestFile{each}}
		if len(m.Faults(module)) > 0 {
			return
		}
		if n, err := each.Permissions(); err != nil || n > 0o777 {
			t.Errorf("mode %q is %#o, %v", mode, n, err)
		}
		inside := false
		for _, root := range []string{"/etc", "/opt", "/srv", "/var/lib"} {
			inside = inside || strings.HasPrefix(file, path.Join(root, module)+"/")
		}
		for _, never := range []string{"/etc/ssh/", "/etc/systemd/", "/etc/rancher/", "/var/lib/rancher/", "/var/lib/powernode", "/etc/powernode"} {
			inside = inside && !strings.HasPrefix(file, never)
		}
		if !inside || path.Clean(file) != file || strings.Contains(file, "..") && path.Clean("/"+file) != file {
			t.Errorf("module %q may write %q", module, file)
		}
	})
}
