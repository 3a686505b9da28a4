package main

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"powernode/internal/humankey"
	"powernode/platform/governance"
	"powernode/store"
	"powernode/tools"
)

const passphrase = "correct horse battery"

// said is what a person answers to a prompt.
type said struct{ prompt, answer string }

// onTerminal runs powernode on a terminal of its own, answers its prompts in order, and returns what the terminal shows.
func onTerminal(t *testing.T, dir string, dialogue []said, args ...string) (shown string, code int) {
	t.Helper()
	cmd := exec.Command("powernode", append([]string{"--state-dir", dir}, args...)...)
	tty, err := pty.Start(cmd)
	if err != nil {
		t.Fatalf("start on a terminal: %v", err)
	}
	defer tty.Close() // the process has ended
	chunks := make(chan []byte)
	go func() {
		defer close(chunks)
		for {
			b := make([]byte, 4096)
			n, err := tty.Read(b)
			if n > 0 {
				chunks <- b[:n]
			}
			if err != nil { // the process has closed its end
				return
			}
		}
	}()
	deadline := time.After(60 * time.Second)
	var out strings.Builder
	from := 0
	for open := true; open; {
		select {
		case chunk, more := <-chunks:
			out.Write(chunk)
			open = more
		case <-deadline:
			_ = cmd.Process.Kill()
			t.Fatalf("powernode %v waits; its terminal shows:\n%s", args, out.String())
		}
		for len(dialogue) > 0 {
			at := strings.Index(out.String()[from:], dialogue[0].prompt)
			if at < 0 {
				break
			}
			from += at + len(dialogue[0].prompt)
			if _, err := tty.WriteString(dialogue[0].answer + "\n"); err != nil {
				t.Fatalf("answer %q: %v", dialogue[0].prompt, err)
			}
			dialogue = dialogue[1:]
		}
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("powernode %v: %v", args, err)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// offTerminal runs it without a terminal, with a passphrase wherever a program might look for one.
func offTerminal(t *testing.T, dir string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.Command("powernode", append([]string{"--state-dir", dir}, args...)...)
	var out, problems bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(passphrase+"\n"+passphrase+"\n"), &out, &problems
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Env = append(os.Environ(), "PASSPHRASE="+passphrase, "POWERNODE_PASSPHRASE="+passphrase)
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("powernode %v: %v", args, err)
	}
	return out.String(), problems.String(), cmd.ProcessState.ExitCode()
}

func stateDirOf(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	t.Cleanup(func() { endServe(t, dir) })
	return dir
}

// initialised makes a state directory with a person.
func initialised(t *testing.T) string {
	t.Helper()
	dir := stateDirOf(t)
	shown, code := onTerminal(t, dir, []said{{"E-mail address: ", "ada@example.org"}, {"Name: ", "Ada"},
		{"Passphrase: ", passphrase}, {"Passphrase again: ", passphrase}}, "init")
	if code != 0 {
		t.Fatalf("init ends with %d:\n%s", code, shown)
	}
	return dir
}

var approval = []said{{"Approve? [y/N] ", "y"}, {"Passphrase: ", passphrase}}

// parked raises the policy of creating networks and parks a call; it answers the operation's id.
func parked(t *testing.T, dir string) string {
	t.Helper()
	shown, code := onTerminal(t, dir, []said{{"Set it? [y/N] ", "y"}, {"Passphrase: ", passphrase}},
		"policies", "set", "sdwan.network_create", "require_approval")
	if code != 0 {
		t.Fatalf("policies set ends with %d:\n%s", code, shown)
	}
	return call(t, dir, "system_sdwan_create_network", "--name", "tenant-a")["deferred_operation_id"].(string)
}

func call(t *testing.T, dir, verb string, args ...string) map[string]any {
	t.Helper()
	stdout, stderr, code := offTerminal(t, dir, append([]string{"call", verb}, args...)...)
	var answer struct {
		Success bool
		Data    map[string]any
	}
	if err := json.Unmarshal([]byte(stdout), &answer); err != nil || code != 0 || !answer.Success {
		t.Fatalf("call %s ends with %d: %v\n%s%s", verb, code, err, stdout, stderr)
	}
	return answer.Data
}

func networks(t *testing.T, dir string) int {
	t.Helper()
	return len(call(t, dir, "system_sdwan_list_networks")["networks"].([]any))
}

func TestInitNeedsATerminal(t *testing.T) {
	t.Parallel()
	dir := stateDirOf(t)
	_, stderr, code := offTerminal(t, dir, "init", "--email", "ada@example.org", "--name", "Ada")
	if code == 0 || !strings.Contains(stderr, "no controlling terminal") {
		t.Errorf("init without a terminal ends with %d: %s", code, stderr)
	}
	if _, err := os.Stat(stateDir(dir).humanKeyFile()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a key file is there: %v", err)
	}
}

func TestPersonApprovesWithThePassphraseAlone(t *testing.T) {
	t.Parallel()
	dir := initialised(t)
	id := parked(t, dir)

	if _, stderr, code := offTerminal(t, dir, "approvals", "approve", id); code == 0 || !strings.Contains(stderr, "no controlling terminal") {
		t.Errorf("approval without a terminal ends with %d: %s", code, stderr)
	}
	shown, code := onTerminal(t, dir, []said{{"Approve? [y/N] ", "y"}, {"Passphrase: ", "a guess of mine"}}, "approvals", "approve", id)
	if code == 0 || !strings.Contains(shown, "the passphrase does not fit") {
		t.Errorf("approval with another passphrase ends with %d:\n%s", code, shown)
	}
	if strings.Contains(shown, "a guess of mine") {
		t.Error("the terminal shows the passphrase")
	}
	if shown, code = onTerminal(t, dir, []said{{"Approve? [y/N] ", ""}}, "approvals", "approve", id); code == 0 {
		t.Errorf("approval without a yes ends with 0:\n%s", shown)
	}
	if n := networks(t, dir); n != 0 {
		t.Fatalf("%d networks before the approval, want none", n)
	}

	stdout, _, _ := offTerminal(t, dir, "approvals", "show", id)
	for _, want := range []string{"system_sdwan_create_network", "created Sdwan::Network \"tenant-a\"", "sha256:"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("approvals show says %q, want %q in it", stdout, want)
		}
	}
	if shown, code = onTerminal(t, dir, approval, "approvals", "approve", id); code != 0 || !strings.Contains(shown, "completed") {
		t.Fatalf("approval ends with %d:\n%s", code, shown)
	}
	if n := networks(t, dir); n != 1 {
		t.Errorf("%d networks after the approval, want 1", n)
	}
	if stdout, stderr, code := offTerminal(t, dir, "audit", "verify"); code != 0 {
		t.Errorf("audit verify ends with %d: %s%s", code, stdout, stderr)
	}
}

func TestAnotherProcessOfTheSameUserApprovesNothing(t *testing.T) {
	t.Parallel()
	dir := initialised(t)
	id := parked(t, dir)
	state := stateDir(dir)

	if shown, code := onTerminal(t, dir, nil, "init", "--email", "eve@example.org", "--name", "Eve"); code == 0 || !strings.Contains(shown, "human key already") {
		t.Errorf("a second init ends with %d:\n%s", code, shown)
	}
	genuine, err := os.ReadFile(state.humanKeyFile())
	if err != nil {
		t.Fatal(err)
	}
	forged, err := humankey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	if err := humankey.Write(state.humanKeyFile(), "ada@example.org", forged, []byte(passphrase)); err != nil {
		t.Fatal(err)
	}
	if shown, code := onTerminal(t, dir, approval, "approvals", "approve", id); code == 0 || !strings.Contains(shown, "no usable human key") {
		t.Errorf("approval with another key file ends with %d:\n%s", code, shown)
	}
	speakWithout(t, dir, id)
	if err := os.WriteFile(state.humanKeyFile(), genuine, 0o600); err != nil {
		t.Fatal(err)
	}

	write(t, dir, `UPDATE operations SET status = 'approved', decided_by = 'eve', signature = x'00' WHERE id = ?`, id)
	verifyNames(t, dir, "operations "+id)
	write(t, dir, `UPDATE policies SET verdict = 'auto_approve'`)
	verifyNames(t, dir, "policies ")
	if again := call(t, dir, "system_sdwan_create_network", "--name", "tenant-b"); again["pending"] != true {
		t.Errorf("the call answers %v under a policy row that was written by hand, want it parked", again)
	}
	if n := networks(t, dir); n != 0 {
		t.Errorf("%d networks, want none", n)
	}
}

// speakWithout speaks to the socket as the commands do, with signatures that are none.
func speakWithout(t *testing.T, dir, id string) {
	t.Helper()
	call(t, dir, "platform_whoami") // where none runs, this program must not start itself as one
	c, err := dialServe(t.Context(), stateDir(dir))
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer c.Close() // nothing hangs on it
	var shown tools.OperationAnswer
	if err := c.People(t.Context(), tools.PeopleOperation, tools.OperationRequest{ID: id}, &shown); err != nil {
		t.Fatalf("show: %v", err)
	}
	for name, request := range map[string]struct {
		request string
		body    any
	}{
		"an approval": {tools.PeopleDecide, governance.Decision{OperationID: shown.Operation.ID, PlanDigest: shown.Operation.PlanDigest,
			Decision: governance.Approve, Signature: make([]byte, 64)}},
		"a policy": {tools.PeopleSetPolicy, governance.PolicyInput{Policy: governance.PolicyStatement{AccountID: shown.Statement.AccountID,
			PolicyID: "x", ActionCategory: "sdwan.network_create", Verdict: "auto_approve", UserID: shown.Statement.UserID}, Signature: make([]byte, 64)}},
		"a key": {tools.PeopleRecordKey, governance.KeyInput{Email: "ada@example.org", Name: "Ada", PublicKey: make([]byte, 32), Proof: make([]byte, 64)}},
	} {
		if err := c.People(t.Context(), request.request, request.body, nil); err == nil {
			t.Errorf("%s without a signature is taken", name)
		}
	}
}

// write changes the store as sqlite3 does.
func write(t *testing.T, dir, statement string, args ...any) {
	t.Helper()
	db, err := sql.Open("sqlite3", stateDir(dir).storeFile()+"?_busy_timeout=10000")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() // what was written is committed
	if _, err := db.ExecContext(t.Context(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func verifyNames(t *testing.T, dir, row string) {
	t.Helper()
	stdout, _, code := offTerminal(t, dir, "audit", "verify")
	if code == 0 || !strings.Contains(stdout, row) {
		t.Errorf("audit verify ends with %d and says %q, want %q named", code, stdout, row)
	}
}

func TestKeyIsReplacedWithTheOldOneOrByRoot(t *testing.T) {
	t.Parallel()
	dir := initialised(t)
	const another = "another passphrase"
	right := said{"Old passphrase: ", passphrase}
	if os.Geteuid() == 0 { // root needs no old passphrase, and says that it means it
		right = said{"as root? [y/N] ", "y"}
	}
	shown, code := onTerminal(t, dir, []said{right, {"Passphrase: ", another}, {"Passphrase again: ", another}}, "init", "--replace")
	if code != 0 {
		t.Fatalf("init --replace ends with %d:\n%s", code, shown)
	}
	set := []string{"policies", "set", "sdwan.network_create", "require_approval"}
	shown, code = onTerminal(t, dir, []said{{"Set it? [y/N] ", "y"}, {"Passphrase: ", passphrase}}, set...)
	if code == 0 || !strings.Contains(shown, "the passphrase does not fit") {
		t.Errorf("the old passphrase after that ends with %d:\n%s", code, shown)
	}
	if shown, code = onTerminal(t, dir, []said{{"Set it? [y/N] ", "y"}, {"Passphrase: ", another}}, set...); code != 0 {
		t.Errorf("the new passphrase ends with %d:\n%s", code, shown)
	}
	if stdout, stderr, code := offTerminal(t, dir, "audit", "verify"); code != 0 {
		t.Errorf("audit verify ends with %d: %s%s", code, stdout, stderr)
	}
}

func TestAuditVerifyGoesOnFromANotedHead(t *testing.T) {
	t.Parallel()
	dir := initialised(t)
	stdout, _, _ := offTerminal(t, dir, "audit", "verify")
	_, noted, ok := strings.Cut(strings.TrimSpace(stdout), "head ")
	if !ok {
		t.Fatalf("audit verify says %q, want the head", stdout)
	}
	_, hash, _ := strings.Cut(noted, ":")
	if _, _, code := offTerminal(t, dir, "call", "system_sdwan_create_network", "--name", "later"); code != 0 {
		t.Fatalf("call ends with %d", code)
	}
	for _, tt := range []struct {
		head, says string
		fits       bool
	}{
		{noted, "audit rows fit", true},
		{"1:" + hash, "the record ended with row 1 before", false},
		{"9999:" + hash, "the record ended with row 9999 before", false},
		{"9999", "ROWS:HASH", false},
	} {
		stdout, stderr, code := offTerminal(t, dir, "audit", "verify", "--head", tt.head)
		if (code == 0) != tt.fits || !strings.Contains(stdout+stderr, tt.says) {
			t.Errorf("--head %s ends with %d: %s%s", tt.head, code, stdout, stderr)
		}
	}
}

func TestNothingInACallHidesTheRestOfItFromThePerson(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long ", 5000)
	shown := summary(tools.OperationAnswer{
		Operation: governance.OperationView{ID: "id\x1b[2K", Status: "pending\x1b[1A", PlanDigest: "sha256:\x1b[2K", Verb: "v",
			Arguments: store.Object{"a": long, "list": []any{long, store.Object{"deep": long}}, "zone": "the last"}},
		Effects: []governance.Effect{{Action: "updated", ResourceType: "Sdwan::FirewallRule", Before: store.Object{"description": "", "priority": 1},
			After: store.Object{"description": long, "priority": 2, "zone": "any"}}},
	})
	for _, want := range []string{`"zone":"the last"`, "priority 1 → 2", `zone "any"`, "(25000 characters)"} {
		if !strings.Contains(shown, want) {
			t.Errorf("%q is not shown", want)
		}
	}
	if strings.Contains(shown, "\x1b") {
		t.Error("control characters are shown as they are")
	}
}

// TestApprovalThatCanNotSucceedTakesNoPassphrase: nobody signs what can't come of anything, and scripts learn why from the exit code.
func TestApprovalThatCanNotSucceedTakesNoPassphrase(t *testing.T) {
	t.Parallel()
	dir := initialised(t)
	id := parked(t, dir)
	setPolicy := func(verdict string) {
		t.Helper()
		shown, code := onTerminal(t, dir, []said{{"Set it? [y/N] ", "y"}, {"Passphrase: ", passphrase}}, "policies", "set", "sdwan.network_create", verdict)
		if code != 0 {
			t.Fatalf("policies set ends with %d:\n%s", code, shown)
		}
	}
	refused := func(id, want string, exit int) {
		t.Helper()
		shown, code := onTerminal(t, dir, nil, "approvals", "approve", id)
		if code != exit || !strings.Contains(shown, want) || strings.Contains(shown, "Passphrase") {
			t.Errorf("it ends with %d, want %d with %q and no passphrase:\n%s", code, exit, want, shown)
		}
	}
	setPolicy("block")
	refused(id, "it can't be approved: Action sdwan.network_create is blocked by policy", 8)
	setPolicy("require_approval")
	if shown, code := onTerminal(t, dir, approval, "approvals", "approve", id); code != 0 {
		t.Fatalf("approval ends with %d:\n%s", code, shown)
	}
	refused(id, "the operation is completed", 5)

	stale := call(t, dir, "system_sdwan_create_network", "--name", "tenant-b")["deferred_operation_id"].(string)
	other := call(t, dir, "system_sdwan_create_network", "--name", "tenant-c")["deferred_operation_id"].(string)
	if shown, code := onTerminal(t, dir, approval, "approvals", "approve", other); code != 0 {
		t.Fatalf("approval ends with %d:\n%s", code, shown)
	}
	refused(stale, "it can't be approved: plan is stale", 5)
	refused(stale, "the operation is stale", 5)
}

func TestPersonReadsWhatTheOperationOfARemedyAnswers(t *testing.T) {
	t.Parallel()
	words := "The platform's remedy of system.sdwan_vip_unreachable"
	shown := summary(tools.OperationAnswer{Operation: governance.OperationView{Description: &words,
		RequestedBy: store.Object{"kind": governance.KindPlatform, "id": "platform"}}})
	for _, want := range []string{"asked by  the platform itself", `What it answers: "` + words} {
		if !strings.Contains(shown, want) {
			t.Errorf("%q is not shown in\n%s", want, shown)
		}
	}
}
