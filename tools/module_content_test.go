package tools_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/fleet"
	"powernode/platform/governance"
	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
	"powernode/tools/toolstest"
)

// live makes a version current, as a person.
func (s *site) live(t testing.TB, module, version string, manifest toolstest.Object) {
	t.Helper()
	s.CallAs(t, governance.PersonCaller(s.Person), "system_create_module_version",
		toolstest.Object{"module_id": module, "version": version, "manifest": manifest, "make_current": true})
}

func (s *site) served(t testing.TB, instance string) []sdwan.Module {
	return s.document(t, instance).Modules
}

func TestDocumentCarriesTheModulesThatANodeIsAssigned(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.SetPolicy(t, "system.module_version_set_current", governance.NotifyAndProceed, governance.Scope{})
	content := func(name, text string) toolstest.Object {
		return toolstest.Object{"files": []any{toolstest.Object{"path": "/etc/" + name + "/x", "content": text}}}
	}
	base, web, extra := s.module(t, "zz-base", nil), s.module(t, "web", needs("zz-base")), s.module(t, "extra", nil)
	for name, id := range map[string]string{"zz-base": base, "web": web, "extra": extra} {
		s.live(t, id, "1", content(name, "a"))
	}
	node := s.node(t, "a", s.template(t, "plain"))
	id := s.provision(t, node)
	assign := func(module string, more toolstest.Object) string {
		args := toolstest.Object{"node_id": node, "module_id": module}
		for k, v := range more {
			args[k] = v
		}
		return at(t, s.Call(t, "system_assign_module_to_node", args), "assignment", "id").(string)
	}
	names := func() (out []string) {
		for _, m := range s.served(t, id) {
			out = append(out, m.Name)
		}
		return out
	}
	assign(extra, toolstest.Object{"priority": 1})
	assign(base, nil)
	ofWeb := assign(web, toolstest.Object{"priority": 50, "config": toolstest.Object{"port": 80}})
	if diff := cmp.Diff([]string{"zz-base", "web", "extra"}, names()); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	first := s.served(t, id)[1]
	if string(first.Config) != `{"port":80}` || first.Version != "1" || first.Artifact != nil {
		t.Errorf("web is served as %+v", first)
	}
	var manifest sdwan.Manifest
	if err := json.Unmarshal(first.Manifest, &manifest); err != nil || len(manifest.Files) != 1 || manifest.Files[0].Content != "a" {
		t.Errorf("manifest %s, %v", first.Manifest, err)
	}

	before := s.document(t, id).Revision
	s.Call(t, "system_update_module_assignment", toolstest.Object{"assignment_id": ofWeb, "config": toolstest.Object{"port": 81}})
	changed := s.served(t, id)[1]
	if string(changed.Config) != `{"port":81}` || changed.Digest != first.Digest || s.document(t, id).Revision <= before {
		t.Errorf("a changed config is served as %+v; a digest is of the version", changed)
	}
	s.live(t, web, "2", content("web", "b"))
	second := s.served(t, id)[1]
	if second.Version != "2" || second.Digest == first.Digest {
		t.Errorf("a new current version is served as %+v", second)
	}
	s.Call(t, "system_update_module_assignment", toolstest.Object{"assignment_id": ofWeb, "enabled": false})
	if diff := cmp.Diff([]string{"extra", "zz-base"}, names()); diff != "" {
		t.Errorf("without web (-want +got):\n%s", diff)
	}
}

func TestModuleDigestsAreThoseOfTheDocument(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	module := s.module(t, "web", nil)
	s.SetPolicy(t, "system.module_version_set_current", governance.NotifyAndProceed, governance.Scope{})
	s.live(t, module, "1", toolstest.Object{})
	id := s.carried(t, "a", module)
	var got map[store.ModuleID]string
	err := s.Platform.DB.View(t.Context(), func(v *store.View) (err error) {
		got, err = fleet.ModuleDigests(t.Context(), v, s.instance(t, id))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[store.ModuleID]string{store.ModuleID(module): s.served(t, id)[0].Digest}
	if diff := cmp.Diff(want, got); diff != "" || len(want[store.ModuleID(module)]) != 64 {
		t.Errorf("digests (-want +got):\n%s", diff)
	}
}

func TestArtefactNeedsAFolderOfItsModulesName(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	kept := s.file(t, "tool", "#!binary")
	artifacts := []any{toolstest.Object{"arch": "amd64", "file": "tool", "sha256": kept.SHA256}}
	s.Call(t, "system_create_module_version", toolstest.Object{"module_id": s.module(t, "tool", nil), "version": "1", "artifacts": artifacts})
	s.Refused(t, "system_create_module_version", toolstest.Object{"module_id": s.module(t, "powernode-x", nil), "version": "1", "artifacts": artifacts},
		schema.InvalidArguments, "file path refused: the artefact's place is \"/opt/powernode-x/bin/powernode-x\"")
}
