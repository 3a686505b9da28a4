package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// bridgeProcess is powernode mcp as a client runs it.
type bridgeProcess struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	errOut *bytes.Buffer
}

func startBridge(t *testing.T, dir string, args ...string) *bridgeProcess {
	t.Helper()
	b := &bridgeProcess{cmd: exec.CommandContext(t.Context(), "powernode", append([]string{"mcp", "--state-dir", dir}, args...)...), errOut: &bytes.Buffer{}}
	b.cmd.Stderr = b.errOut
	var err error
	if b.in, err = b.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	b.out = bufio.NewReader(out)
	if err := b.cmd.Start(); err != nil {
		t.Fatalf("start powernode mcp: %v", err)
	}
	return b
}

// stateOf is a state directory for a test, with its control plane ended after it.
func stateOf(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	t.Cleanup(func() { endServe(t, dir) })
	return dir
}

// bridged is an answer as it came over a bridge.
type bridged struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"` // of what is no answer
	Result *struct {
		IsError           bool            `json:"isError"`
		StructuredContent json.RawMessage `json:"structuredContent"`
		Content           json.RawMessage `json:"content"`
	} `json:"result"`
	Error json.RawMessage `json:"error"`
}

// answer reads one answer; false is the end of the output.
func (b *bridgeProcess) answer(t *testing.T) (bridged, bool) {
	t.Helper()
	line, err := b.out.ReadBytes('\n')
	if errors.Is(err, io.EOF) && len(line) == 0 {
		return bridged{}, false
	}
	var a bridged
	if err := json.Unmarshal(line, &a); err != nil {
		t.Fatalf("stdout carries something else than the protocol: %q: %v", line, err)
	}
	return a, true
}

// wait waits for the bridge's end.
func (b *bridgeProcess) wait(t *testing.T) {
	t.Helper()
	if err := b.cmd.Wait(); err != nil {
		t.Errorf("powernode mcp: %v\n%s", err, b.errOut)
	}
}

func createLine(n int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"system_sdwan_create_network","arguments":{"name":"net-%03d"}}}`+"\n", n, n)
}

// servePID is the process that runs the control plane; 0: none that is known.
func servePID(dir string) int {
	raw, err := os.ReadFile(filepath.Join(dir, "serve.pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return 0
	}
	return pid
}

// Twenty kills while five hundred creates are on their way: the client notices nothing, and each network is there once.
func TestKilledControlPlaneLosesAndRepeatsNoCall(t *testing.T) {
	t.Parallel()
	const calls, kills = 500, 20
	dir := stateOf(t)
	b := startBridge(t, dir)
	var writing sync.WaitGroup
	writing.Go(func() {
		for n := range calls {
			if _, err := io.WriteString(b.in, createLine(n)); err != nil {
				t.Errorf("write call %d: %v", n, err)
				return
			}
		}
		if err := b.in.Close(); err != nil {
			t.Errorf("end the input: %v", err)
		}
	})
	defer writing.Wait()

	at := rand.New(rand.NewPCG(1, 2))
	killed, due := 0, 1+at.IntN(10)
	ids := map[string]string{} // network id by request id
	for {
		a, more := b.answer(t)
		if !more {
			break
		}
		if a.Result == nil || a.Result.IsError {
			t.Fatalf("call %s was answered %s %+v", a.ID, a.Error, a.Result)
		}
		var result struct{ Network struct{ ID, Name string } }
		if err := json.Unmarshal(a.Result.StructuredContent, &result); err != nil {
			t.Fatal(err)
		}
		id := string(a.ID)
		if _, twice := ids[id]; twice {
			t.Errorf("call %s was answered twice", id)
		}
		if want := fmt.Sprintf("net-%03s", id); result.Network.Name != want {
			t.Errorf("call %s made %s, want %s", id, result.Network.Name, want)
		}
		ids[id] = result.Network.ID
		if len(ids) >= due && killed < kills {
			if pid := servePID(dir); pid > 0 && syscall.Kill(pid, syscall.SIGKILL) == nil {
				killed++
			}
			due = len(ids) + 1 + at.IntN(calls/kills)
		}
	}
	b.wait(t)
	if len(ids) != calls || killed < kills {
		t.Errorf("%d answers, %d kills; want %d and %d\n%s", len(ids), killed, calls, kills, b.errOut)
	}

	var list struct {
		Data struct {
			Networks []struct{ ID, Name string }
			Count    int
		}
	}
	if err := json.Unmarshal(powernode(t, dir, "call", "system_sdwan_list_networks", "--json", `{"limit":500}`), &list); err != nil {
		t.Fatal(err)
	}
	there := map[string]string{}
	for _, n := range list.Data.Networks {
		there[n.Name] = n.ID
	}
	if list.Data.Count != calls || len(there) != calls {
		t.Errorf("%d networks are there, %d names; want %d", list.Data.Count, len(there), calls)
	}
	for id, network := range ids {
		if name := fmt.Sprintf("net-%03s", id); there[name] != network {
			t.Errorf("call %s was told network %s, %s is %s", id, network, name, there[name])
		}
	}
	powernode(t, dir, "audit", "verify")
}

// powernode runs a command that must succeed, and answers what it printed.
func powernode(t *testing.T, dir string, args ...string) []byte {
	t.Helper()
	var errOut bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "powernode", append(args, "--state-dir", dir)...)
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("powernode %s: %v\n%s%s", strings.Join(args, " "), err, out, &errOut)
	}
	return out
}

func TestManyBridgesStartOneControlPlane(t *testing.T) {
	t.Parallel()
	dir := stateOf(t)
	const bridges = 8
	var all [bridges]*bridgeProcess
	for i := range all {
		all[i] = startBridge(t, dir)
		if _, err := io.WriteString(all[i].in, createLine(i)); err != nil {
			t.Fatal(err)
		}
	}
	pids := map[int]bool{}
	for i, b := range all {
		a, _ := b.answer(t)
		if a.Result == nil || a.Result.IsError {
			t.Errorf("bridge %d: %+v", i, a)
		}
		pids[servePID(dir)] = true
		if err := b.in.Close(); err != nil {
			t.Error(err)
		}
		b.wait(t)
	}
	if len(pids) != 1 {
		t.Errorf("control planes %v, want one", pids)
	}
	log, err := os.ReadFile(filepath.Join(dir, "serve.log"))
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(log, []byte("control plane started")); n != 1 {
		t.Errorf("the control plane was started %d times", n)
	}
}

// A session goes on after powernode stop: the next call starts a control plane, which is told how the session was opened.
func TestSessionSurvivesAStop(t *testing.T) {
	t.Parallel()
	dir := stateOf(t)
	b := startBridge(t, dir)
	const initialised = `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"
	const open = initialised /* a client in a hurry */ + `{"jsonrpc":"2.0","id":"open","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},` +
		`"clientInfo":{"name":"t","version":"1"}}}` + "\n" + initialised +
		`{"jsonrpc":"2.0","id":"level","method":"logging/setLevel","params":{"level":"notice"}}` + "\n"
	if _, err := io.WriteString(b.in, open+createLine(0)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"open"`, `"level"`, "0"} {
		if a, _ := b.answer(t); string(a.ID) != want {
			t.Fatalf("answer to %s, want %s", a.ID, want)
		}
	}
	before := servePID(dir)
	powernode(t, dir, "stop")
	if _, err := os.Stat(filepath.Join(dir, "control.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
	if _, err := io.WriteString(b.in, createLine(1)); err != nil {
		t.Fatal(err)
	}
	a, _ := b.answer(t)
	if string(a.ID) != "1" || a.Result == nil || a.Result.IsError {
		t.Fatalf("the call after the stop: %+v", a)
	}
	var made struct{ Network struct{ ID string } }
	if err := json.Unmarshal(a.Result.StructuredContent, &made); err != nil {
		t.Fatal(err)
	}
	// The level of log messages is still the one that was set: a parked call is told.
	if _, err := fmt.Fprintf(b.in, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"system_sdwan_delete_network","arguments":{"network_id":%q}}}`+"\n", made.Network.ID); err != nil {
		t.Fatal(err)
	}
	if a, _ := b.answer(t); a.Method != "notifications/message" {
		t.Errorf("before the answer of a parked call: %+v", a)
	}
	if a, _ := b.answer(t); string(a.ID) != "2" || a.Result == nil || a.Result.IsError {
		t.Errorf("the parked call: %+v", a)
	}
	if now := servePID(dir); now == before {
		t.Error("the control plane was not stopped")
	}
	if err := b.in.Close(); err != nil {
		t.Error(err)
	}
	if a, more := b.answer(t); more {
		t.Errorf("an answer to nothing: %+v", a)
	}
	b.wait(t)
}

// A token that is none never becomes the account's agent.
func TestBridgeWithATokenThatIsNoneIsRefused(t *testing.T) {
	t.Parallel()
	dir := stateOf(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("no token of ours\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := startBridge(t, dir, "--token-file", token)
	if _, err := io.WriteString(b.in, createLine(0)); err != nil {
		t.Fatal(err)
	}
	if a, _ := b.answer(t); string(a.ID) != "0" || !strings.Contains(string(a.Error), "token is not valid") {
		t.Errorf("answer %+v", a)
	}
	if err := b.in.Close(); err != nil {
		t.Error(err)
	}
	b.wait(t)
}

// A control plane that can't start is told, to the client and on stderr, and the bridge does not hang.
func TestControlPlaneThatCannotStartIsTold(t *testing.T) {
	t.Parallel()
	dir := stateOf(t)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "seal.key"), []byte("too short"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := startBridge(t, dir)
	if _, err := io.WriteString(b.in, createLine(1)); err != nil {
		t.Fatal(err)
	}
	a, _ := b.answer(t)
	if string(a.ID) != "1" || !strings.Contains(string(a.Error), "can't be started") || !strings.Contains(string(a.Error), "sealing key") {
		t.Errorf("answer %s: %s", a.ID, a.Error)
	}
	if err := b.in.Close(); err != nil {
		t.Error(err)
	}
	b.wait(t)
	if !strings.Contains(b.errOut.String(), "can't be started") {
		t.Errorf("stderr: %s", b.errOut)
	}
}

// Of a bridge that was killed nothing stays, and the control plane goes on for the others.
func TestKilledBridgeLeavesTheControlPlaneToOthers(t *testing.T) {
	t.Parallel()
	dir := stateOf(t)
	b, other := startBridge(t, dir), startBridge(t, dir)
	for n, each := range []*bridgeProcess{b, other} {
		if _, err := io.WriteString(each.in, createLine(n)); err != nil {
			t.Fatal(err)
		}
		each.answer(t)
	}
	pid := servePID(dir)
	if err := b.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	b.cmd.Wait() // it was killed
	started := time.Now()
	if _, err := io.WriteString(other.in, createLine(2)); err != nil {
		t.Fatal(err)
	}
	if a, _ := other.answer(t); a.Result == nil || a.Result.IsError {
		t.Errorf("the other's call after %s: %+v", time.Since(started), a)
	}
	if now := servePID(dir); now != pid {
		t.Errorf("the control plane is process %d, was %d", now, pid)
	}
	if err := other.in.Close(); err != nil {
		t.Error(err)
	}
	other.wait(t)
}
