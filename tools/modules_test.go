package tools_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
	"powernode/tools/toolstest"
)

func TestAnAccountStartsWithEnoughToProvision(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	toolstest.Has(t, toolstest.Object{"count": 2.0}, s.Call(t, "system_list_platforms", nil))
	toolstest.Has(t, toolstest.Object{"count": 3.0}, s.Call(t, "system_list_instance_types", nil))
	providers := s.Call(t, "system_list_providers", nil)["providers"].([]any)
	got := s.Call(t, "system_get_provider", toolstest.Object{"id": providers[0].(toolstest.Object)["id"]})
	toolstest.Has(t, toolstest.Object{"provider": toolstest.Object{"name": "local", "provider_type": "local", "enabled": true}, "capabilities": []any{"power", "sync"}}, got)
	s.provision(t, s.node(t, "a", s.template(t, "plain")))
}

func TestListModulesIsTheWayFromANameToAnID(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	rows := s.Call(t, "system_list_modules", `{"options": {"name": "K3S-SERVER"}}`)["modules"].([]any)
	if len(rows) != 1 {
		t.Fatalf("%d modules, want 1", len(rows))
	}
	toolstest.Has(t, toolstest.Object{"name": "k3s-server", "variety": "instance", "locked": true, "current_version": "v1.36.5+k3s1", "node_platform_id": nil},
		rows[0].(toolstest.Object))
	toolstest.Has(t, toolstest.Object{"count": 0.0}, s.Call(t, "system_list_modules", `{"options": {"variety": "config"}}`))
	got := s.Call(t, "system_get_module", toolstest.Object{"module_id": s.server})
	keys := at(t, got, "module", "config_schema", "properties").(toolstest.Object)
	for _, key := range []string{"target_cluster_id", "network_id", "cni_plugin", "node_labels", "node_taints"} {
		if keys[key] == nil {
			t.Errorf("config_schema lacks %s", key)
		}
	}
}

const sum = "d73847bcd3c5fccef0115b372e2f9a91f3032dc84bbf71518a4617565294d313"

func TestCreateModuleVersionRefusals(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	with := func(artifact toolstest.Object) toolstest.Object {
		return toolstest.Object{"module_id": s.server, "version": "v2", "artifacts": []any{artifact}}
	}
	at := func(url string) toolstest.Object {
		return with(toolstest.Object{"arch": "amd64", "url": url, "sha256": sum})
	}
	for _, tt := range []struct {
		name string
		args toolstest.Object
		code schema.Code
		text string
	}{
		{"no digest", with(toolstest.Object{"arch": "amd64", "url": "https://example.org/k3s"}), schema.InvalidArguments, "sha256"},
		{"a digest that is none", with(toolstest.Object{"arch": "amd64", "url": "https://example.org/k3s", "sha256": "abc"}), schema.InvalidArguments, "64 lower-case hexadecimal digits"},
		{"neither url nor file", with(toolstest.Object{"arch": "amd64", "sha256": sum}), schema.InvalidArguments, "exactly one of url and file"},
		{"both", with(toolstest.Object{"arch": "amd64", "url": "https://example.org/k3s", "file": "k3s", "sha256": sum}), schema.InvalidArguments, "exactly one of url and file"},
		{"plain http", at("http://example.org/k3s"), schema.InvalidArguments, "artefact URL refused: it must be https"},
		{"this host", at("https://127.0.0.1/k3s"), schema.InvalidArguments, "artefact URL refused: its address is not public"},
		{"this host, mapped", at("https://[::ffff:127.0.0.1]/k3s"), schema.InvalidArguments, "artefact URL refused"},
		{"this host as a number", at("https://2130706433/k3s"), schema.InvalidArguments, "artefact URL refused"},
		{"this host by name", at("https://localhost/k3s"), schema.InvalidArguments, "artefact URL refused"},
		{"a private address", at("https://10.0.0.1/k3s"), schema.InvalidArguments, "artefact URL refused"},
		{"an overlay address", at("https://[fd5e::1]/k3s"), schema.InvalidArguments, "artefact URL refused"},
		{"link-local", at("https://169.254.169.254/latest"), schema.InvalidArguments, "artefact URL refused"},
		{"a credential in it", at("https://a:b@example.org/k3s"), schema.InvalidArguments, "artefact URL refused"},
		{"a file that is not there", with(toolstest.Object{"arch": "amd64", "file": "k3s", "sha256": sum}), schema.NotFound, "file k3s not found"},
		{"one architecture twice", toolstest.Object{"module_id": s.server, "version": "v2", "artifacts": []any{
			toolstest.Object{"arch": "amd64", "url": "https://example.org/1", "sha256": sum}, toolstest.Object{"arch": "amd64", "url": "https://example.org/2", "sha256": sum}}},
			schema.InvalidArguments, "linux/amd64 twice"},
		{"a version that exists", toolstest.Object{"module_id": s.server, "version": "v1.36.5+k3s1"}, schema.Conflict, "exists already"},
		{"a file below ssh's folder", toolstest.Object{"module_id": s.server, "version": "v2", "manifest": toolstest.Object{
			"files": []any{toolstest.Object{"path": "/etc/ssh/sshd_config", "content": "x"}}}}, schema.InvalidArguments, "file path refused: it is below /etc/ssh"},
		{"a file that climbs out", toolstest.Object{"module_id": s.server, "version": "v2", "manifest": toolstest.Object{
			"files": []any{toolstest.Object{"path": "/etc/k3s-server/../ssh/x", "content": "x"}}}}, schema.InvalidArguments, "file path refused: it must be clean"},
		{"a service through a shell", toolstest.Object{"module_id": s.server, "version": "v2", "manifest": toolstest.Object{
			"services": []any{toolstest.Object{"name": "x", "exec": "sh -c true"}}}}, schema.InvalidArguments, "service x must be an argument vector"},
		{"a requirement of itself", toolstest.Object{"module_id": s.server, "version": "v2", "manifest": toolstest.Object{
			"dependencies": toolstest.Object{"requires": []string{"k3s-server"}}}}, schema.InvalidArguments, "dependencies.requires names the module itself"},
		{"a config_schema that is none", toolstest.Object{"module_id": s.server, "version": "v2", "manifest": toolstest.Object{
			"config_schema": toolstest.Object{"type": 7}}}, schema.InvalidArguments, "config_schema is no schema"},
		{"a manifest's key that is none", toolstest.Object{"module_id": s.server, "version": "v2", "manifest": toolstest.Object{"sudoers": "x"}},
			schema.InvalidArguments, "Undeclared parameters: manifest.sudoers"},
	} {
		t.Run(tt.name, func(t *testing.T) { s.Refused(t, "system_create_module_version", tt.args, tt.code, tt.text) })
	}
}

// file puts a file into the platform's artefact store.
func (s *site) file(t testing.TB, name, content string) store.Artifact {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
	a, err := s.Platform.Fleet.ImportArtifact(t.Context(), path)
	if err != nil {
		t.Fatalf("import %s: %v", name, err)
	}
	return a
}

func TestAssistantsVersionIsServedOnlyOnceAPersonStandsBehindIt(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	kept := s.file(t, "k3s-own", "#!binary")
	artifacts := []any{toolstest.Object{"arch": "amd64", "file": "k3s-own", "sha256": kept.SHA256}}
	plain := s.Call(t, "system_create_module_version", toolstest.Object{"module_id": s.server, "version": "own-1", "artifacts": artifacts})
	toolstest.Has(t, toolstest.Object{"version": toolstest.Object{"promotion_state": "built", "servable": false, "current": false, "made_by": "assistant"}}, plain)
	if diff := cmp.Diff([]any{"not_released"}, codes(plain)); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	network := s.network(t, "tenant-a")
	s.Refused(t, "kubernetes_create_cluster", toolstest.Object{"name": "a", "network_id": network, "k8s_version": "own-1"}, schema.PreconditionFailed,
		"version own-1 of module k3s-server is not released")

	template := s.template(t, "servers")
	s.join(t, template, s.server, nil)
	id := s.provision(t, s.node(t, "a", template))
	if _, err := s.Platform.Fleet.OpenArtifact(t.Context(), s.instance(t, id), kept.SHA256); schema.CodeOf(err) != schema.NotFound {
		t.Errorf("before a person released it, an agent that asks for the artefact gets %v", err)
	}
	operation := s.Parked(t, "system_create_module_version", toolstest.Object{"module_id": s.server, "version": "own-2", "artifacts": artifacts, "make_current": true})
	toolstest.Has(t, toolstest.Object{"operation": toolstest.Object{"action_category": "system.module_version_set_current"}},
		s.Call(t, "platform_get_operation", toolstest.Object{"deferred_operation_id": operation}))
	got := s.Approve(t, operation)
	toolstest.Has(t, toolstest.Object{"version": toolstest.Object{"promotion_state": "live", "servable": true, "current": true, "version_number": 3.0}}, got)
	d := s.document(t, id)
	if len(d.Modules) != 1 || d.Modules[0].Version != "own-2" || d.Modules[0].Artifact.SHA256 != kept.SHA256 {
		t.Errorf("document has modules %+v, want own-2", d.Modules)
	}
	if f, err := s.Platform.Fleet.OpenArtifact(t.Context(), s.instance(t, id), kept.SHA256); err != nil {
		t.Errorf("after it was released: %v", err)
	} else if err := f.Close(); err != nil {
		t.Error(err)
	}
	if n := len(s.Signals(t, "system.module_version_changed")); n != 1 {
		t.Errorf("%d signals, want 1", n)
	}
	rows := s.Call(t, "system_list_module_versions", toolstest.Object{"module_id": s.server})["versions"].([]any)
	states := map[any]any{}
	for _, row := range rows {
		states[row.(toolstest.Object)["version"]] = row.(toolstest.Object)["promotion_state"]
	}
	if diff := cmp.Diff(map[any]any{"own-1": "built", "own-2": "live", "v1.36.5+k3s1": "blessed"}, states); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
}

func TestPersonsVersionIsServedAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	got := s.CallAs(t, governance.PersonCaller(s.Person), "system_create_module_version", toolstest.Object{"module_id": s.agent, "version": "mine",
		"artifacts": []any{toolstest.Object{"arch": "arm64", "url": "https://example.org/k3s-arm64", "sha256": sum}}})
	toolstest.Has(t, toolstest.Object{"version": toolstest.Object{"promotion_state": "built", "servable": true, "made_by": "person"}}, got)
}

func TestVersionIsGatedByTheStricterOfItsCategories(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.SetPolicy(t, "system.module_version_set_current", governance.NotifyAndProceed, governance.Scope{})
	s.SetPolicy(t, "system.module_version_create", governance.RequireApproval, governance.Scope{})
	args := toolstest.Object{"module_id": s.server, "version": "x", "make_current": true}
	operation := s.Parked(t, "system_create_module_version", args)
	toolstest.Has(t, toolstest.Object{"operation": toolstest.Object{"action_category": "system.module_version_create"}},
		s.Call(t, "platform_get_operation", toolstest.Object{"deferred_operation_id": operation}))
}

func TestVersionThatMachinesCannotRunIsNotMadeCurrent(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	arm := func(version string, current bool) toolstest.Object {
		return toolstest.Object{"module_id": s.server, "version": version, "make_current": current,
			"artifacts": []any{toolstest.Object{"arch": "arm64", "url": "https://example.org/k3s-arm64", "sha256": sum}}}
	}
	s.Parked(t, "system_create_module_version", arm("no-machine-yet", true))
	template := s.template(t, "servers")
	s.join(t, template, s.server, nil)
	id := s.provision(t, s.node(t, "a", template))
	refusal := s.Refused(t, "system_create_module_version", arm("arm", true), schema.PreconditionFailed, "an architecture in use has no artefact: amd64, of instance a")
	if refusal.Details["instance_id"] != store.InstanceID(id) {
		t.Errorf("details %v, want the instance", refusal.Details)
	}
	s.Refused(t, "system_create_module_version", toolstest.Object{"module_id": s.server, "version": "none", "make_current": true},
		schema.PreconditionFailed, "an architecture in use has no artefact")
	made := s.Call(t, "system_create_module_version", arm("arm", false))
	s.Refused(t, "system_set_current_module_version", toolstest.Object{"module_id": s.server, "module_version_id": at(t, made, "version", "id")},
		schema.PreconditionFailed, "an architecture in use has no artefact: amd64, of instance a")
}

func TestFileOfAVersionMustHaveItsDigest(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.file(t, "k3s-own", "#!binary")
	s.Refused(t, "system_create_module_version", toolstest.Object{"module_id": s.server, "version": "x",
		"artifacts": []any{toolstest.Object{"arch": "amd64", "file": "k3s-own", "sha256": strings.Repeat("0", 64)}}}, schema.InvalidArguments,
		"sha256 is not that of file k3s-own")
}
