package tools_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/tools"
	"powernode/tools/toolstest"
)

// nameless are types of audit rows that stand for nothing which people could call by a name.
var nameless = []string{"Governance::EmergencyStop", "Governance::Operation", "Governance::Policy", "System::SensorConfig"}

func TestAPlanNamesEveryRowThatStands(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	named := map[string]bool{}
	for _, d := range w.Platform.Verbs() {
		if !d.Contract().Gated() {
			continue
		}
		for _, args := range w.args[d.Contract().Name] {
			preview := w.CallAs(t, w.callerOf(d), "platform_preview", toolstest.Object{"verb": d.Contract().Name, "arguments": args})
			for _, e := range objects(t, preview["effects"]) {
				kind := e["resource_type"].(string)
				switch name, _ := e["name"].(string); {
				case name != "":
					named[name] = true
				case e["id"] != nil && !slices.Contains(nameless, kind):
					t.Errorf("%s: %v %s %v has no name", d.Contract().Name, e["action"], kind, e["id"])
				}
			}
		}
	}
	for _, want := range []string{"m-1", "m-1 in tenant-a", "k3s-agent on spare", "own 1"} {
		if !named[want] {
			t.Errorf("no plan is about %q", want)
		}
	}
}

func TestAPersonSeesWhatAReleaseBringsToMachines(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	module := at(t, l.Call(t, "system_create_module", toolstest.Object{"name": "motd"}), "module", "id")
	manifest := toolstest.Object{"files": []any{toolstest.Object{"path": "/etc/motd/today", "content": "hello"}}}
	version := at(t, l.Call(t, "system_create_module_version", toolstest.Object{"module_id": module, "version": "1", "manifest": manifest}), "version", "id")
	operation := l.Parked(t, "system_set_current_module_version", toolstest.Object{"module_id": module, "module_version_id": version})
	shown := func() tools.OperationAnswer {
		body, err := json.Marshal(tools.OperationRequest{ID: string(operation)})
		if err != nil {
			t.Fatal(err)
		}
		answer, err := l.Platform.People(t.Context(), l.Account.ID, tools.PeopleOperation, body)
		if err != nil {
			t.Fatalf("show the operation: %v", err)
		}
		return answer.(tools.OperationAnswer)
	}()
	if len(shown.Releases) != 1 {
		t.Fatalf("shown releases %+v, want the one", shown.Releases)
	}
	got := shown.Releases[0]
	if got.Module != "motd" || got.Version != "1" || got.MadeBy != "assistant" {
		t.Errorf("released is %s %s made by %s", got.Module, got.Version, got.MadeBy)
	}
	var brought toolstest.Object
	if err := json.Unmarshal(got.Manifest, &brought); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(manifest, brought); diff != "" {
		t.Errorf("manifest (-want +got):\n%s", diff)
	}
}
