package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"powernode/agent"
	"powernode/nodeapi"
	"powernode/nodeapi/nodeapitest"
	"powernode/sdwan"
)

// part is a subsystem that a test steers: it records what it was asked to be.
type part struct {
	name    string
	act     func(ctx context.Context, want *sdwan.Document) error // nil succeeds
	observe func(ctx context.Context, r *sdwan.Report) error

	mu      sync.Mutex
	got     []int64
	more    chan struct{}
	aborted chan struct{} // closed when its task was ended
}

func newPart(name string) *part {
	return &part{name: name, more: make(chan struct{}), aborted: make(chan struct{})}
}

func (p *part) Name() string { return p.name }

func (p *part) Reconcile(ctx context.Context, want *sdwan.Document) error {
	p.mu.Lock()
	p.got = append(p.got, want.Revision)
	close(p.more)
	p.more = make(chan struct{})
	p.mu.Unlock()
	if p.act == nil {
		return nil
	}
	return p.act(ctx, want)
}

func (p *part) Observe(ctx context.Context, r *sdwan.Report) error {
	if p.observe == nil {
		return nil
	}
	return p.observe(ctx, r)
}

func (p *part) Commands() []string { return []string{"sync_" + p.name} }

func (p *part) RunTask(ctx context.Context, task sdwan.Task, _ *sdwan.Document) (json.RawMessage, error) {
	if string(task.Parameters) == `"wait"` {
		<-ctx.Done()
		close(p.aborted)
		return nil, ctx.Err()
	}
	if string(task.Parameters) == `"fail"` {
		return nil, errors.New("it can't be done")
	}
	return json.RawMessage(`{"done":1}`), nil
}

// await waits until the part was asked to be that revision.
func (p *part) await(t *testing.T, revision int64) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		p.mu.Lock()
		got, more := p.got, p.more
		p.mu.Unlock()
		for _, r := range got {
			if r == revision {
				return
			}
		}
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("%s was never asked for revision %d; it got %v", p.name, revision, got)
		}
	}
}

type machine struct {
	dir  string
	stop func()
}

// start runs an agent on a machine; a machine without enrolment file has enrolled before.
func start(t *testing.T, p *nodeapitest.Platform, dir string, parts ...agent.Subsystem) machine {
	t.Helper()
	file := filepath.Join(dir, "enrollment.json")
	if _, err := os.Stat(filepath.Join(dir, "state")); err != nil {
		data, err := json.Marshal(p.Enrollment())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- agent.Run(ctx, agent.Options{StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"), Version: "test",
			Enrollment: file, Subsystems: func(*agent.Connection) []agent.Subsystem { return parts }, Log: zerolog.Nop()})
	}()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("agent ended with %v", err)
		}
	})
	t.Cleanup(stop)
	return machine{dir: dir, stop: stop}
}

func subsystem(r sdwan.Report, name string) sdwan.SubsystemReport {
	for _, s := range r.Subsystems {
		if s.Name == name {
			return s
		}
	}
	return sdwan.SubsystemReport{}
}

func TestAgentEnrolsAppliesAndReports(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	p.SetDocument(sdwan.Document{Revision: 3})
	one := newPart("wireguard")
	m := start(t, p, t.TempDir(), one)
	one.await(t, 3)
	r := p.AwaitReport(t, "revision 3 applied", func(r sdwan.Report) bool { return subsystem(r, "wireguard").AppliedRevision == 3 })
	if s := subsystem(r, "wireguard"); s.State != "ok" || r.BootID == "" || r.AgentVersion != "test" || r.MemoryTotalKB == 0 {
		t.Errorf("report %+v", r)
	}
	if _, err := os.Stat(filepath.Join(m.dir, "enrollment.json")); !os.IsNotExist(err) {
		t.Errorf("the enrolment file is still there: %v", err)
	}
	for _, name := range []string{"identity.json", "document.json"} {
		info, err := os.Stat(filepath.Join(m.dir, "state", name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
	p.SetDocument(sdwan.Document{Revision: 4})
	one.await(t, 4)
	p.AwaitReport(t, "revision 4 applied", func(r sdwan.Report) bool { return subsystem(r, "wireguard").AppliedRevision == 4 })
}

func TestAgentAppliesTheLastDocumentWithoutThePlatform(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	p.SetDocument(sdwan.Document{Revision: 3})
	dir := t.TempDir()
	first := newPart("wireguard")
	m := start(t, p, dir, first)
	first.await(t, 3)
	before := p.AwaitReport(t, "a report", func(sdwan.Report) bool { return true })
	m.stop()
	p.FailDesired(&nodeapi.Error{HTTPStatus: 404, Code: "not_found", Message: "the instance is gone"})
	second := newPart("wireguard")
	start(t, p, dir, second)
	second.await(t, 3)
	after := p.AwaitReport(t, "a report after the restart", func(r sdwan.Report) bool {
		return subsystem(r, "wireguard").AppliedRevision == 3 && r.SentAt.After(before.SentAt)
	})
	if before.BootID != after.BootID {
		t.Error("a restart of the agent is no boot of the machine")
	}
}

func TestStuckSubsystemBlocksNoOther(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	p.SetDocument(sdwan.Document{Revision: 3})
	stuck, mute, works := newPart("k3s"), newPart("vip"), newPart("wireguard")
	stuck.act = func(ctx context.Context, _ *sdwan.Document) error { <-ctx.Done(); return ctx.Err() }
	mute.observe = func(ctx context.Context, _ *sdwan.Report) error { <-ctx.Done(); return ctx.Err() }
	works.observe = func(_ context.Context, r *sdwan.Report) error {
		r.Keys = append(r.Keys, sdwan.KeyReport{NetworkID: "n", PublicKey: "k", Stage: "current"})
		return nil
	}
	start(t, p, t.TempDir(), stuck, mute, works)
	r := p.AwaitReport(t, "wireguard's work and key", func(r sdwan.Report) bool {
		return subsystem(r, "wireguard").AppliedRevision == 3 && len(r.Keys) == 1
	})
	if s := subsystem(r, "k3s"); s.State != "not_measured" || s.AppliedRevision != 0 {
		t.Errorf("the stuck one says %+v", s)
	}
	p.SetDocument(sdwan.Document{Revision: 4})
	works.await(t, 4)
}

func TestErrorsAndWaitingKeepTheAppliedRevision(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	p.SetDocument(sdwan.Document{Revision: 3})
	broken, waits, panics := newPart("firewall"), newPart("k3s"), newPart("vip")
	broken.act = func(context.Context, *sdwan.Document) error { return errors.New("no\nnftables") }
	waits.act = func(context.Context, *sdwan.Document) error {
		return &agent.Pending{Reason: "the API server starts", After: time.Hour}
	}
	panics.act = func(context.Context, *sdwan.Document) error { panic("oh") }
	start(t, p, t.TempDir(), broken, waits, panics)
	p.AwaitReport(t, "every outcome", func(r sdwan.Report) bool {
		f, k, v := subsystem(r, "firewall"), subsystem(r, "k3s"), subsystem(r, "vip")
		return f.State == "error" && f.Message == "no nftables" && f.AppliedRevision == 0 &&
			k.State == "not_measured" && k.Message == "waiting: the API server starts" && v.State == "error" && v.Message == "panic: oh"
	})
}

func TestOlderOrForeignDocumentsAreRefused(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	p.SetDocument(sdwan.Document{Revision: 8})
	one := newPart("wireguard")
	start(t, p, t.TempDir(), one)
	one.await(t, 8)
	p.SetDocument(sdwan.Document{Revision: 9, Instance: sdwan.Instance{ID: "somebody else"}})
	p.SetDocument(sdwan.Document{Revision: 2, Incarnation: "restored"}) // another store: its revisions start anew
	one.await(t, 2)
	one.mu.Lock()
	defer one.mu.Unlock()
	for _, r := range one.got {
		if r == 9 {
			t.Error("applied another instance's document")
		}
	}
}

func TestTasksAreCarriedOutAndReportedUntilTheyAreGone(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	p.SetDocument(sdwan.Document{Revision: 3, Tasks: []sdwan.Task{{ID: "a", Command: "sync_modules"},
		{ID: "b", Command: "sync_modules", Parameters: json.RawMessage(`"fail"`)}, {ID: "c", Command: "rm -rf"}}})
	start(t, p, t.TempDir(), newPart("modules"))
	r := p.AwaitReport(t, "all tasks at their end", func(r sdwan.Report) bool {
		for _, task := range r.Tasks {
			if task.State == "running" {
				return false
			}
		}
		return len(r.Tasks) == 3
	})
	var lines []string
	for _, task := range r.Tasks {
		lines = append(lines, task.ID+" "+task.State+" "+string(task.Result)+" "+task.Message)
	}
	want := "a complete {\"done\":1} \nb failed null it can't be done\nc failed null this agent knows no command \"rm -rf\""
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	p.SetDocument(sdwan.Document{Revision: 4})
	p.AwaitReport(t, "no tasks", func(r sdwan.Report) bool { return subsystem(r, "modules").AppliedRevision == 4 && len(r.Tasks) == 0 })
}

func TestTaskThatTheDocumentNoLongerNamesIsEnded(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	p.SetDocument(sdwan.Document{Revision: 3, Tasks: []sdwan.Task{{ID: "a", Command: "sync_modules", Parameters: json.RawMessage(`"wait"`)}}})
	modules := newPart("modules")
	start(t, p, t.TempDir(), modules)
	p.AwaitReport(t, "the task under way", func(r sdwan.Report) bool { return len(r.Tasks) == 1 && r.Tasks[0].State == "running" })
	p.SetDocument(sdwan.Document{Revision: 4})
	select {
	case <-modules.aborted:
	case <-time.After(20 * time.Second):
		t.Error("it goes on")
	}
	p.AwaitReport(t, "no tasks", func(r sdwan.Report) bool { return subsystem(r, "modules").AppliedRevision == 4 && len(r.Tasks) == 0 })
}

func TestAgentComesBackAfterALostConnection(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	p.SetDocument(sdwan.Document{Revision: 3})
	one := newPart("wireguard")
	start(t, p, t.TempDir(), one)
	one.await(t, 3)
	p.DropConnections()
	p.SetDocument(sdwan.Document{Revision: 4})
	one.await(t, 4)
}

func TestCertificateIsRenewedOnceItIsDue(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	const due = time.Second
	p.SetLifetime(time.Minute) // far from its end all the same; up to a tenth of what is left is waited for on top
	p.SetDue(due)
	p.SetDocument(sdwan.Document{Revision: 3})
	one := newPart("wireguard")
	dir := t.TempDir()
	before := time.Now()
	start(t, p, dir, one)
	one.await(t, 3)
	await(t, "question for a renewal", func() bool { return p.Renewals() > 0 })
	if early := due - time.Since(before); early > 0 {
		t.Errorf("asked %s before it was due", early)
	}
	// What was asked for is on disk from before the question until the new certificate is.
	await(t, "new certificate on disk", func() bool {
		_, err := os.Stat(filepath.Join(dir, "state", "renewing.json"))
		return os.IsNotExist(err)
	})
	p.RevokeOlder()
	for revision := int64(4); revision < 7; revision++ { // the first is the answer to a question asked with the old one
		p.SetDocument(sdwan.Document{Revision: revision})
		one.await(t, revision)
		p.AwaitReport(t, "a report with the new certificate", func(r sdwan.Report) bool { return subsystem(r, "wireguard").AppliedRevision == revision })
	}
}

func TestSecondAgentOnOneStateDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	p.SetDocument(sdwan.Document{Revision: 3})
	one := newPart("wireguard")
	dir := t.TempDir()
	start(t, p, dir, one)
	one.await(t, 3)
	err := agent.Run(t.Context(), agent.Options{StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run")})
	if err == nil || !strings.Contains(err.Error(), "another agent uses") {
		t.Errorf("got %v", err)
	}
}

func TestWideStateDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := agent.Run(t.Context(), agent.Options{StateDir: dir}); err == nil || !strings.Contains(err.Error(), "not 0700") {
		t.Errorf("got %v", err)
	}
}

func TestAgentWithoutIdentityOrEnrollmentSaysWhatToDo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	err := agent.Run(t.Context(), agent.Options{StateDir: filepath.Join(dir, "s"), RunDir: filepath.Join(dir, "r"),
		Subsystems: func(*agent.Connection) []agent.Subsystem { return nil }})
	if !errors.Is(err, agent.ErrNotEnrolled) {
		t.Errorf("got %v", err)
	}
}

// await asks until the answer is yes.
func await(t *testing.T, what string, yes func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for !yes() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("no %s in 30 s", what)
		}
	}
}
