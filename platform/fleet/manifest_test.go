package fleet

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
)

// The verb's file is the contract; the copy exists because the domain reads no verbs.
func TestManifestsShapeIsTheVerbs(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../schema/verbs/system_create_module_version.json")
	if err != nil {
		t.Fatal(err)
	}
	var verb struct {
		Input struct {
			Properties struct {
				Manifest map[string]any `json:"manifest"`
			} `json:"properties"`
		} `json:"input"`
	}
	var own any
	if err := errors.Join(json.Unmarshal(raw, &verb), json.Unmarshal(manifestSchema, &own)); err != nil {
		t.Fatal(err)
	}
	delete(verb.Input.Properties.Manifest, "x-brief") // it is about the listing alone
	if diff := cmp.Diff(any(verb.Input.Properties.Manifest), own); diff != "" {
		t.Errorf("manifest.schema.json (-verb +own):\n%s", diff)
	}
}

func faultsOf(t *testing.T, module, text string) []sdwan.ManifestFault {
	t.Helper()
	manifest, err := ManifestFromYAML(text)
	if err != nil {
		t.Fatal(err)
	}
	faults, err := ManifestFaults(store.Module{Name: module}, manifest)
	if err != nil {
		t.Fatal(err)
	}
	return faults
}

func TestManifestIsTakenWithAllThatTheContractDeclares(t *testing.T) {
	t.Parallel()
	text := `
dependencies: {requires: [base], recommends: [], conflicts: [], provides: [web]}
config_schema: {type: object, properties: {port: {type: integer}}}
packages: [nginx, libssl3, g++]
services:
  - name: httpd
    exec: /usr/sbin/nginx
    args: [-g, "daemon off;"]
    env: {A: "b $c %d"}
    restart: on-failure
files:
  - path: /etc/web/site.conf
    mode: 0640          # as people write it
    content: |
      server {}
  - {path: /opt/web/lib/x, content: y}
`
	if got := faultsOf(t, "web", text); len(got) > 0 {
		t.Errorf("faults %v", got)
	}
	manifest, err := ManifestFromYAML(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckManifest(store.Module{Name: "web"}, manifest); err != nil {
		t.Error(err)
	}
	var same store.Object
	if err := json.Unmarshal(mustJSON(manifest), &same); err != nil {
		t.Fatal(err)
	}
	again, err := ManifestFromYAML(string(mustJSON(manifest)))
	if err != nil || string(mustJSON(again)) != string(mustJSON(same)) {
		t.Errorf("as JSON it reads as %s, %v", mustJSON(again), err)
	}
}

func TestManifestsFaultsHavePointersAndTexts(t *testing.T) {
	t.Parallel()
	file := func(path string) string { return `files: [{path: "` + path + `", content: x}]` }
	service := func(rest string) string { return `services: [{name: x, ` + rest + `}]` }
	for _, tt := range []struct{ name, module, manifest, pointer, text string }{
		{"an undeclared key", "web", "sudoers: x", "/sudoers", "Undeclared parameters: sudoers"},
		{"an undeclared key of a file", "web", "files: [{path: /etc/web/x, content: x, owner: root}]", "/files/0/owner", "Undeclared parameters: files.0.owner"},
		{"a file without content", "web", "files: [{path: /etc/web/x}]", "/files/0/content", "Missing required parameters: files.0.content"},
		{"a number for a text", "web", "packages: [1]", "/packages/0", "must be a string"},
		{"a relative path", "web", file("etc/web/x"), "/files/0/path", `file path refused: it must be absolute (got "etc/web/x")`},
		{"a path that climbs", "web", file("/etc/web/../ssh/x"), "/files/0/path", "file path refused: it must be clean"},
		{"a path that ends in a slash", "web", file("/etc/web/x/"), "/files/0/path", "file path refused: it must be clean"},
		{"a doubled slash", "web", file("/etc/web//x"), "/files/0/path", "file path refused: it must be clean"},
		{"an invisible character", "web", file(`/etc/web/x\u202e`), "/files/0/path", "file path refused: it must be clean"},
		{"the folder itself", "web", file("/etc/web"), "/files/0/path", "file path refused: it must be below"},
		{"another module's folder", "web", file("/etc/web2/x"), "/files/0/path", "file path refused: it must be below"},
		{"another root", "web", file("/usr/bin/web"), "/files/0/path", "file path refused: it must be below"},
		{"ssh's", "ssh", file("/etc/ssh/sshd_config"), "/files/0/path", "file path refused: it is below /etc/ssh"},
		{"systemd's", "systemd", file("/etc/systemd/system/x.service"), "/files/0/path", "file path refused: it is below /etc/systemd"},
		{"udev's, which is systemd's", "udev", file("/etc/udev/rules.d/x"), "/files/0/path", "file path refused: it is below /etc/udev"},
		{"K3s'", "rancher", file("/var/lib/rancher/k3s/x"), "/files/0/path", "file path refused: it is below /var/lib/rancher"},
		{"the agent's", "powernode-agent", file("/var/lib/powernode-agent/x"), "/files/0/path", "file path refused: it is the agent's"},
		{"the platform's", "powernode", file("/etc/powernode/x"), "/files/0/path", "file path refused: it is the agent's"},
		{"a module whose name has a slash", "ssh/x", file("/etc/ssh/x/y"), "/files/0/path", "file path refused: it is below /etc/ssh"},
		{"the artefact's place", "web", file("/opt/web/bin/web"), "/files/0/path", "file path refused: that is where the version's artefact goes"},
		{"below the artefact's place", "web", file("/opt/web/bin/web/x"), "/files/0/path", "file path refused: that is where"},
		{"the folder of the artefact's place", "web", file("/opt/web/bin"), "/files/0/path", "file path refused: it is the folder where"},
		{"a name that a write uses", "web", file("/etc/web/.x.powernode-new"), "/files/0/path", "file path refused: it ends like a file that is being written"},
		{"a path twice", "web", "files: [{path: /etc/web/x, content: a}, {path: /etc/web/x, content: b}]", "/files/1/path", "file path refused: it is given twice"},
		{"a file as a folder", "web", "files: [{path: /etc/web/x, content: a}, {path: /etc/web/x/y, content: b}]", "/files/1/path", "file path refused: another file is its folder"},
		{"setuid", "web", `files: [{path: /etc/web/x, content: a, mode: "4755"}]`, "/files/0/mode", "must match"},
		{"no program", "web", service("exec: sh -c true"), "/services/0/exec", "service x must be an argument vector: exec is an absolute path"},
		{"an unclean program", "web", service("exec: /bin/../bin/sh"), "/services/0/exec", "service x must be an argument vector"},
		{"a line break in an argument", "web", service(`exec: /bin/true, args: ["a\nExecStart=/bin/sh"]`), "/services/0/args/0", "service x must be an argument vector: an argument holds no control character"},
		{"a line break in the environment", "web", service(`exec: /bin/true, env: {A: "a\nb"}`), "/services/0/env/A", "service x must be an argument vector"},
		{"no environment variable", "web", service(`exec: /bin/true, env: {"A B": c}`), "/services/0/env", "service x must be an argument vector"},
		{"another restart", "web", service("exec: /bin/true, restart: sometimes"), "/services/0/restart", "must be one of: always, on-failure, never"},
		{"a service's name that is a path", "web", `services: [{name: ../x, exec: /bin/true}]`, "/services/0/name", "service name refused"},
		{"a service twice", "web", `services: [{name: x, exec: /bin/true}, {name: x, exec: /bin/true}]`, "/services/1/name", "service name refused: it is given twice"},
		{"an option for a package", "web", `packages: ["-oDPkg::Pre-Invoke::=sh"]`, "/packages/0", "package name refused"},
		{"a package's version", "web", "packages: [nginx=1.2]", "/packages/0", "package name refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := faultsOf(t, tt.module, tt.manifest)
			if len(got) != 1 || got[0].Pointer != tt.pointer || !strings.Contains(got[0].Text, tt.text) {
				t.Errorf("faults %+v, want %q at %s", got, tt.text, tt.pointer)
			}
		})
	}
}

func TestRefusedManifestListsAllFaultsBelowItsPlace(t *testing.T) {
	t.Parallel()
	err := CheckManifest(store.Module{Name: "web"}, store.Object{"files": []any{
		map[string]any{"path": "/etc/ssh/x", "content": "x"}, map[string]any{"path": "x", "content": "x"}}})
	var refused *schema.Error
	if !errors.As(err, &refused) || refused.Code != schema.InvalidArguments {
		t.Fatalf("got %v", err)
	}
	violations, _ := refused.Details["violations"].([]schema.Violation)
	if len(violations) != 2 || violations[1].Pointer != "/manifest/files/1/path" || refused.Details["pointer"] != "/manifest/files/0/path" {
		t.Errorf("details %+v", refused.Details)
	}
}

func TestManifestsTextIsReadStrictly(t *testing.T) {
	t.Parallel()
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		bomb += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+string(c-1)+",", 8) + "]\n"
	}
	for _, tt := range []struct{ name, text, says string }{
		{"nothing", "", "it is empty"},
		{"a list", "[a]", "it must be an object"},
		{"a key twice", "packages: [a]\npackages: [b]", "line 2: the key \"packages\" is given twice"},
		{"a key twice inside", "services: [{name: a, name: b}]", "given twice"},
		{"two documents", "packages: [a]\n---\npackages: [b]", "more than one document"},
		{"an anchor that grows", bomb, "anchors and aliases are not taken"},
		{"a merge", "a: &a {x: y}\nb: {<<: *a}", "anchors and aliases are not taken"},
		{"bytes", "packages: [!!binary aGVsbG8=]", "the tag !!binary is not taken"},
		{"a type of its own", "packages: !evil [a]", "the tag !evil is not taken"},
		{"a key that is no text", "1: a", "a key must be a text"},
		{"a key that is a list", "? [a]\n: b", "a key must be a text"},
		{"no YAML", "packages: [a", "did not find expected"},
		{"no UTF-8", "packages: [\xff]", "it is not UTF-8"},
		{"too deep", strings.Repeat("{a: ", 40) + "b" + strings.Repeat("}", 40), "nested deeper than"},
		{"too long", "packages: [" + strings.Repeat("a,", 1<<20) + "]", "more than"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := ManifestFromYAML(tt.text)
			if schema.CodeOf(err) != schema.InvalidArguments || !strings.Contains(err.Error(), "manifest_yaml does not parse: ") || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, %v, want %q", got, err, tt.says)
			}
		})
	}
}

// What is read encodes to JSON, reads the same again as that JSON, and is judged without a fault of ours.
func FuzzManifestFromYAML(f *testing.F) {
	for _, seed := range []string{"packages: [a]", "files: [{path: /etc/web/x, mode: 0644, content: |\n  a\n}]", "a: &a [*a]", "{}", `{"services": [{"name": "x"}]}`,
		"a: 2024-01-01\nb: .inf\nc: 0x1f\nd: ~\ne: yes\nf: 1e3", "? a\n: b", "a: !!str 1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		manifest, err := ManifestFromYAML(text)
		if err != nil {
			if schema.CodeOf(err) != schema.InvalidArguments {
				t.Fatalf("a refusal without its code: %v", err)
			}
			return
		}
		raw := mustJSON(manifest)
		var first, second any
		if err := json.Unmarshal(raw, &first); err != nil {
			t.Fatal(err)
		}
		again, err := ManifestFromYAML(string(raw))
		if err != nil {
			t.Fatalf("as JSON %s: %v", raw, err)
		}
		if err := json.Unmarshal(mustJSON(again), &second); err != nil || !reflect.DeepEqual(first, second) {
			t.Fatalf("%s, then %s, %v", raw, mustJSON(again), err)
		}
		if _, err := ManifestFaults(store.Module{Name: "web"}, manifest); err != nil {
			t.Fatal(err)
		}
	})
}
