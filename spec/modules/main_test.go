package modules

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"powernode/spec/rig"
)

// shared is the machine of the tests; TestMain makes it.
var shared *rig.Machine

func TestMain(m *testing.M) {
	os.Exit(rig.RunTests(m, func(ctx context.Context, i *rig.Installation) error {
		template, err := i.Template(ctx, "plain")
		if err != nil {
			return err
		}
		shared, err = rig.NewMachine(ctx, i, template, "carrier")
		return err
	}))
}

// must calls a verb, with the person's word where it parks.
func must(t *testing.T, verb string, arguments rig.Object) rig.Object {
	t.Helper()
	out, err := shared.Approved(t.Context(), verb, arguments)
	if err != nil {
		t.Fatalf("%s: %v", verb, err)
	}
	return out
}

// newModule makes a module and answers its id.
func newModule(t *testing.T, name string) string {
	t.Helper()
	return rig.Text(must(t, "system_create_module", rig.Object{"name": name}), "module", "id")
}

// release makes a version current.
func release(t *testing.T, module, version string, more rig.Object) {
	t.Helper()
	arguments := rig.Object{"module_id": module, "version": version, "make_current": true}
	for k, v := range more {
		arguments[k] = v
	}
	must(t, "system_create_module_version", arguments)
}

// assign puts a module on the machine's node until the test ends, or until the returned function is called.
func assign(t *testing.T, module string, config rig.Object) (unassign func()) {
	t.Helper()
	out := must(t, "system_assign_module_to_node", rig.Object{"node_id": shared.Node, "module_id": module, "config": config})
	id := rig.Text(out, "assignment", "id")
	assigned := true
	unassign = func() {
		if !assigned {
			return
		}
		assigned = false
		if _, err := shared.Approved(context.WithoutCancel(t.Context()), "system_update_module_assignment",
			rig.Object{"assignment_id": id, "enabled": false}); err != nil {
			t.Errorf("take the module off: %v", err)
		}
	}
	t.Cleanup(unassign)
	return unassign
}

// addArtifact puts a program into the platform's artefact store and answers the version's entry for it.
func addArtifact(t *testing.T, name, text string) []rig.Object {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := shared.Run(t.Context(), "artifact", "add", path)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range strings.Fields(string(out)) {
		if len(word) == 64 {
			return []rig.Object{{"arch": "amd64", "file": name, "sha256": word}}
		}
	}
	t.Fatalf("artifact add names no SHA-256: %s", out)
	return nil
}

// onMachine runs a program there and answers what it printed.
func onMachine(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := shared.Exec(t.Context(), shared.Name, argv...)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// says whether a program on the machine ended well.
func says(t *testing.T, argv ...string) bool {
	t.Helper()
	_, err := shared.Exec(t.Context(), shared.Name, argv...)
	if err != nil && !rig.Exited(err) {
		t.Fatal(err)
	}
	return err == nil
}

// await asks the machine until a program there ends well.
func await(t *testing.T, what string, argv ...string) {
	t.Helper()
	err := rig.Await(t.Context(), what, 30*time.Second, func(ctx context.Context) (string, error) {
		_, err := shared.Exec(ctx, shared.Name, argv...)
		if rig.Exited(err) {
			return err.Error(), nil
		}
		return "", err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// digest is what the machine reports of a module, "" for nothing.
func digest(ctx context.Context, module string) (string, error) {
	out, err := shared.Call(ctx, "system_get_instance", rig.Object{"instance_id": shared.Instance})
	return rig.Text(out, "instance", "running_module_digests", module), err
}

// awaitDigest waits until what the machine reports of a module is as asked.
func awaitDigest(t *testing.T, what, module string, fits func(string) bool) string {
	t.Helper()
	got := ""
	err := rig.Await(t.Context(), what, 30*time.Second, func(ctx context.Context) (string, error) {
		var err error
		if got, err = digest(ctx, module); err != nil || fits(got) {
			return "", err
		}
		return fmt.Sprintf("the reported digest is %q", got), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// awaitMessage waits until the modules subsystem is in a state and says something.
func awaitMessage(t *testing.T, state, text string) {
	t.Helper()
	err := rig.Await(t.Context(), "the modules subsystem to say "+text, 30*time.Second, func(ctx context.Context) (string, error) {
		out, err := shared.Call(ctx, "system_get_instance", rig.Object{"instance_id": shared.Instance})
		s := rig.Find(rig.List(out, "instance", "subsystems"), "name", "modules")
		if err != nil || (s["state"] == state && strings.Contains(rig.Text(s, "message"), text)) {
			return "", err
		}
		return fmt.Sprint(s), nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// refusedWith calls a verb that must be refused.
func refusedWith(t *testing.T, code, text, verb string, arguments rig.Object) {
	t.Helper()
	_, err := shared.Call(t.Context(), verb, arguments)
	var refusal *rig.Refusal
	if !errors.As(err, &refusal) || refusal.Code != code || !strings.Contains(refusal.Message, text) {
		t.Fatalf("%s: got %v, want %s %q", verb, err, code, text)
	}
}

// drifted says what the platform must see: a module that is not as it was served, or one that is.
func drifted(t *testing.T, module string, want bool) {
	t.Helper()
	out := must(t, "system_drift_report", rig.Object{"instance_id": shared.Instance})
	if got := rig.At(out, "mismatched", module) != nil; got != want {
		t.Errorf("drift of the module is %v, want %v: %v", got, want, out)
	}
}
