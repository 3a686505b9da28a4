package approval_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"powernode/spec/rig"
)

// unused is a user that nothing on a host belongs to.
const unused = 61_734

// house is an installation of an unprivileged user, with a person, and a parked call that would delete the network
// "prize".
type house struct {
	*rig.Installation
	base      string
	network   string
	operation string
}

// build makes the house that each attack gets a copy of. Its control plane does not run.
func build(ctx context.Context, t *testing.T) *house {
	t.Helper()
	base, err := os.MkdirTemp("", "powernode-approval-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, os.RemoveAll(base)) })
	bin := filepath.Join(base, "bin")
	must(t, errors.Join(os.Chmod(base, 0o755), os.Mkdir(bin, 0o755)))
	from, err := filepath.Abs(rig.Given("BIN", "../../bin"))
	must(t, err)
	self, err := os.Executable()
	must(t, err)
	for name, path := range map[string]string{"powernode": filepath.Join(from, "powernode"), attacker: self} {
		must(t, exec.CommandContext(ctx, "install", "-m", "755", path, filepath.Join(bin, name)).Run())
	}
	h := &house{Installation: rig.New(bin, ""), base: base}
	if os.Geteuid() == 0 {
		h.User = &syscall.Credential{Uid: unused, Gid: unused}
	}
	h.live(t, "first")
	must(t, h.Init(ctx))
	h.network = h.create(ctx, t, "prize")
	h.operation = h.park(ctx, t, h.network)
	h.stop(ctx, t)
	return h
}

// live gives the installation a home of its own below the base.
func (h *house) live(t *testing.T, name string) {
	t.Helper()
	h.Home = filepath.Join(h.base, name)
	h.Dir = filepath.Join(h.Home, "state")
	must(t, os.Mkdir(h.Home, 0o700))
	if h.User != nil {
		must(t, os.Chown(h.Home, int(h.User.Uid), int(h.User.Gid)))
	}
	t.Cleanup(func() {
		if _, err := h.Run(context.Background(), "stop"); err != nil {
			t.Error(err)
		}
	})
}

// copy is a house with the same content, for one attack. Its control plane starts with the first command.
func (h *house) copy(ctx context.Context, t *testing.T, name string) *house {
	t.Helper()
	one := *h.Installation
	c := &house{Installation: &one, base: h.base, network: h.network, operation: h.operation}
	c.live(t, name)
	must(t, exec.CommandContext(ctx, "cp", "-a", h.Dir, c.Home).Run())
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (h *house) stop(ctx context.Context, t *testing.T) {
	t.Helper()
	_, err := h.Run(ctx, "stop")
	must(t, err)
}

// call calls a verb as the assistant.
func (h *house) call(ctx context.Context, t *testing.T, verb string, arguments rig.Object) rig.Object {
	t.Helper()
	raw, err := json.Marshal(arguments)
	must(t, err)
	out, err := h.Run(ctx, "call", verb, "--json", string(raw))
	must(t, err)
	var answer rig.Object
	must(t, json.Unmarshal(out, &answer))
	data, _ := answer["data"].(rig.Object)
	return data
}

func (h *house) create(ctx context.Context, t *testing.T, name string) string {
	t.Helper()
	return rig.Text(h.call(ctx, t, "system_sdwan_create_network", rig.Object{"name": name}), "network", "id")
}

// park asks for a network's deletion and answers the operation's id.
func (h *house) park(ctx context.Context, t *testing.T, network string) string {
	t.Helper()
	out := h.call(ctx, t, "system_sdwan_delete_network", rig.Object{"network_id": network})
	id := rig.Text(out, "deferred_operation_id")
	if out["pending"] != true || id == "" {
		t.Fatalf("the deletion of a network did not park: %v", out)
	}
	return id
}

// networks are the names of the networks that are there.
func (h *house) networks(ctx context.Context, t *testing.T) []string {
	t.Helper()
	names := []string{}
	for _, n := range rig.List(h.call(ctx, t, "system_sdwan_list_networks", rig.Object{}), "networks") {
		names = append(names, rig.Text(n, "name"))
	}
	slices.Sort(names)
	return names
}

// deed does one of the attacker's deeds and answers what it printed.
func (h *house) deed(ctx context.Context, t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := h.Program(ctx, attacker, append([]string{name, h.Dir}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("attacker %s: %v: %s%s", name, err, &stdout, &stderr)
	}
	return strings.TrimSpace(stdout.String())
}

// denied does a deed that must be answered with 403, or must find nothing to sign.
func (h *house) denied(ctx context.Context, t *testing.T, name string, args ...string) {
	t.Helper()
	if got := h.deed(ctx, t, name, args...); !strings.HasPrefix(got, "403 ") || !strings.Contains(got, `"permission_denied"`) {
		t.Errorf("attacker %s %v was answered %s, want 403 permission_denied", name, args, got)
	}
}

// fails converses with a command that must not succeed, and must say why.
func (h *house) fails(ctx context.Context, t *testing.T, cmd *exec.Cmd, why string, exchanges ...rig.Exchange) {
	t.Helper()
	said, err := rig.Converse(ctx, cmd, exchanges)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(said, why) {
		t.Errorf("%s: %v, said:\n%s\nwant a failure that says %q", strings.Join(cmd.Args[3:], " "), err, said, why)
	}
}

// approving is the command line that approves the parked call.
func (h *house) approving(ctx context.Context) *exec.Cmd {
	return h.Command(ctx, "approvals", "approve", h.operation)
}

var yes = rig.Exchange{Asked: "approve? [y/n]", Typed: "yes"}

func passphrase(p string) rig.Exchange { return rig.Exchange{Asked: "passphrase:", Typed: p} }

// stands asserts that nothing ran, and that audit verify names the written row, as "table id"; "" is that it finds nothing.
func (h *house) stands(ctx context.Context, t *testing.T, when, written string) {
	t.Helper()
	if got := h.networks(ctx, t); !slices.Contains(got, "prize") {
		t.Errorf("%s: networks %v: the parked call ran", when, got)
	}
	status := rig.Text(h.call(ctx, t, "platform_get_operation", rig.Object{"deferred_operation_id": h.operation}), "operation", "status")
	if status == "completed" || status == "executing" && !strings.HasPrefix(written, "operations ") {
		t.Errorf("%s: the operation is %s", when, status)
	}
	h.proof(ctx, t, when, written)
}

func (h *house) proof(ctx context.Context, t *testing.T, when, written string) {
	t.Helper()
	out, err := h.Run(ctx, "audit", "verify")
	if written == "" {
		if err != nil {
			t.Errorf("%s: audit verify: %v", when, err)
		}
		return
	}
	if exitCode(err) != 1 || !bytes.Contains(out, []byte("\n"+written+": ")) {
		t.Errorf("%s: audit verify said %v:\n%s\nwant exit code 1 and a line that begins %q", when, err, out, written)
	}
}

func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

// putBack waits until the control plane has looked at operations and put a forged approval back.
func (h *house) putBack(ctx context.Context, t *testing.T, operation string) {
	t.Helper()
	must(t, rig.Await(ctx, "the forged approval to be put back", 15*time.Second, func(ctx context.Context) (string, error) {
		out := h.call(ctx, t, "platform_get_operation", rig.Object{"deferred_operation_id": operation})
		if status := rig.Text(out, "operation", "status"); status != "pending" {
			return "the operation is " + status, nil
		}
		return "", nil
	}))
	told := h.call(ctx, t, "system_recent_signals", rig.Object{"kind": "system.signature_invalid"})
	if len(rig.List(told, "events")) == 0 {
		t.Error("no signal system.signature_invalid tells of the forged approval")
	}
}
