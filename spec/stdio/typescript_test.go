package stdio_test

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/spec/rig"
)

// outcome is what the TypeScript client made of one answer.
type outcome struct {
	Result *rig.ToolResult `json:"result"`
	Thrown *struct {
		Code    *int   `json:"code"`
		Message string `json:"message"`
	} `json:"thrown"`
}

// listed is a tool as the client lists it.
type listed struct {
	Name   string `json:"name"`
	Output bool   `json:"output"` // it has an output schema
}

// seen is what the client printed.
type seen struct {
	Server       struct{ Name, Version string } `json:"server"`
	Instructions string                         `json:"instructions"`
	Tools        []listed                       `json:"tools"`
	Made         outcome                        `json:"made"`
	Read         outcome                        `json:"read"`
	Misspelt     outcome                        `json:"misspelt"`
	Array        outcome                        `json:"array"`
	Absent       outcome                        `json:"absent"`
	Parked       outcome                        `json:"parked"`
	Unknown      outcome                        `json:"unknown"`
}

// The client holds each result against the output schema that it was listed with, and throws where it does not fit.
func TestTypeScriptClientGetsErrorsAndParkedAnswersAsToolResults(t *testing.T) {
	t.Parallel()
	ctx, i := start(t)
	s := typescript(ctx, t, i)

	if s.Server.Name != "powernode" || !strings.Contains(s.Instructions, "powernode approvals") {
		t.Errorf("server %+v, instructions %q", s.Server, s.Instructions)
	}
	for _, want := range []string{"system_create_node", "system_sdwan_delete_network", "platform_get_operation"} {
		if !slices.Contains(s.Tools, listed{want, true}) {
			t.Errorf("tool %s with an output schema is not listed", want)
		}
	}
	made, read, parked := structured(t, "made", s.Made), structured(t, "read", s.Read), structured(t, "parked", s.Parked)
	id := rig.Text(made, "network", "id")
	if rig.Text(read, "networks", 0, "id") != id || id == "" {
		t.Errorf("made %v, read %v", made, read)
	}
	want := rig.Object{"pending": true, "action_category": "sdwan.network_delete"}
	if diff := cmp.Diff(want, rig.Object{"pending": parked["pending"], "action_category": parked["action_category"]}); diff != "" {
		t.Errorf("parked (-want +got):\n%s", diff)
	}
	if rig.Text(parked, "deferred_operation_id") == "" || !strings.HasPrefix(rig.Text(parked, "plan_digest"), "sha256:") {
		t.Errorf("parked: %v", parked)
	}
	if diff := cmp.Diff([]string{"from-typescript"}, networks(ctx, t, i)); diff != "" {
		t.Errorf("networks after the parked deletion (-want +got):\n%s", diff)
	}
	for _, tt := range []struct {
		name       string
		got        outcome
		code, text string
	}{
		{"misspelt", s.Misspelt, "invalid_arguments", "hostname (did you mean name?)"},
		{"array", s.Array, "invalid_arguments", "arguments must be an object (got array)"},
		{"absent", s.Absent, "not_found", "network not found"},
	} {
		refused(t, tt.name, tt.got, tt.code, tt.text)
	}
	if s.Unknown.Thrown == nil || s.Unknown.Thrown.Code == nil || *s.Unknown.Thrown.Code != -32602 {
		t.Errorf("a tool that is none: %+v, want the protocol error -32602", s.Unknown)
	}
}

// typescript installs the client where it is not yet, and has it talk to the installation.
func typescript(ctx context.Context, t *testing.T, i *rig.Installation) (s seen) {
	t.Helper()
	modules := filepath.Join(rig.Given("CACHE", "../../.cache"), "mcp")
	if out, err := exec.CommandContext(ctx, "sh", "../mcp/install.sh", modules).CombinedOutput(); err != nil {
		t.Fatalf("install the TypeScript client: %v\n%s", err, out)
	}
	out, err := exec.CommandContext(ctx, "node", "../mcp/client.mjs", modules, filepath.Join(i.Bin, "powernode"),
		"--state-dir", i.Dir, "mcp", "--toolsets", "all").Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		t.Fatalf("the TypeScript client: %v\n%s", err, exit.Stderr)
	}
	if err == nil {
		err = json.Unmarshal(out, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// structured is a result's content, which is the same in both of its forms.
func structured(t *testing.T, name string, o outcome) rig.Object {
	t.Helper()
	if o.Thrown != nil || o.Result == nil || o.Result.IsError || len(o.Result.Content) != 1 {
		t.Fatalf("%s: %+v %+v, want a result", name, o.Thrown, o.Result)
	}
	var object, text rig.Object
	if err := errors.Join(json.Unmarshal(o.Result.StructuredContent, &object), json.Unmarshal([]byte(o.Result.Content[0].Text), &text)); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if diff := cmp.Diff(object, text); diff != "" {
		t.Errorf("%s: structured content and text differ (-structured +text):\n%s", name, diff)
	}
	return object
}

func refused(t *testing.T, name string, o outcome, code, text string) {
	t.Helper()
	got, err := rig.Answer{Result: o.Result}.Refusal()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if o.Thrown != nil || got == nil || got.Code != code || !strings.Contains(got.Message, text) {
		t.Errorf("%s: thrown %+v, refused with %v; want the tool result %s: …%s…", name, o.Thrown, got, code, text)
	}
}
