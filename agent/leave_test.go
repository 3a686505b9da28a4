package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"powernode/agent"
	"powernode/nodeapi"
	"powernode/nodeapi/nodeapitest"
	"powernode/sdwan"
)

// leaver runs an agent that is to leave, and answers how it ended.
func leaver(t *testing.T, p *nodeapitest.Platform, dir string, parts ...agent.Subsystem) <-chan error {
	t.Helper()
	file := filepath.Join(dir, "enrollment.json")
	data, err := json.Marshal(p.Enrollment())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	ended, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		ended <- agent.Run(ctx, agent.Options{StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"), Version: "test",
			Enrollment: file, Subsystems: func(*agent.Connection) []agent.Subsystem { return parts }, Log: zerolog.Nop()})
	}()
	t.Cleanup(func() { cancel(); <-done })
	return ended
}

func TestAgentLeavesOnceItsMachineIsClean(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	var stuck atomic.Bool
	stuck.Store(true)
	wireguard := newPart("wireguard")
	wireguard.act = func(_ context.Context, want *sdwan.Document) error {
		if want.Instance.Leave && stuck.Load() {
			return &agent.Pending{Reason: "the interface is busy", After: 20 * time.Millisecond}
		}
		return nil
	}
	firewall := newPart("firewall")
	p.SetDocument(sdwan.Document{Revision: 3})
	ended := leaver(t, p, t.TempDir(), wireguard, firewall)
	wireguard.await(t, 3)
	p.SetDocument(sdwan.Document{Revision: 4, Instance: sdwan.Instance{Leave: true}})
	firewall.await(t, 4)
	wireguard.await(t, 4)
	select {
	case err := <-ended:
		t.Fatalf("the agent ended with %v while its machine was not clean", err)
	default:
	}
	stuck.Store(false)
	if err := <-ended; !errors.Is(err, agent.ErrLeft) {
		t.Errorf("the agent ended with %v, want ErrLeft", err)
	}
	last := p.Reports()[len(p.Reports())-1]
	if got := subsystem(last, "wireguard"); got.State != "ok" || got.AppliedRevision != 4 {
		t.Errorf("the platform was told %+v", got)
	}
}

// TestAgentKeepsAMachineThatIsAnotherInstanceByNow finds the document by which its former instance left.
func TestAgentKeepsAMachineThatIsAnotherInstanceByNow(t *testing.T) {
	t.Parallel()
	for name, incarnation := range map[string]string{"of another platform": "before", "of the same platform": nodeapitest.Incarnation} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			keepsAnother(t, incarnation)
		})
	}
}

func keepsAnother(t *testing.T, incarnation string) {
	p := nodeapitest.New(t)
	left, err := nodeapi.EncodeDocument(&sdwan.Document{Revision: 9, Incarnation: incarnation, Instance: sdwan.Instance{ID: "former", Leave: true}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	if err := errors.Join(os.Mkdir(state, 0o700), os.WriteFile(filepath.Join(state, "document.json"), left, 0o600)); err != nil {
		t.Fatal(err)
	}
	part := newPart("wireguard")
	ended := leaver(t, p, dir, part)
	part.await(t, 9)
	p.AwaitReport(t, "what the former document asked for", func(r sdwan.Report) bool { return subsystem(r, "wireguard").AppliedRevision == 9 })
	p.SetDocument(sdwan.Document{Revision: 4})
	part.await(t, 4)
	select {
	case err := <-ended:
		t.Errorf("the agent ended with %v", err)
	default:
	}
}

func TestAgentLeavesAlsoWhereThePlatformHasForgottenIt(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	var free atomic.Bool
	part := newPart("wireguard")
	part.act = func(_ context.Context, want *sdwan.Document) error {
		if want.Instance.Leave && !free.Load() {
			return &agent.Pending{Reason: "wait for the test", After: 20 * time.Millisecond}
		}
		return nil
	}
	p.SetDocument(sdwan.Document{Revision: 4, Instance: sdwan.Instance{Leave: true}})
	ended := leaver(t, p, t.TempDir(), part)
	part.await(t, 4)
	p.Revoke()
	free.Store(true)
	if err := <-ended; !errors.Is(err, agent.ErrLeft) {
		t.Errorf("the agent ended with %v, want ErrLeft", err)
	}
}

func TestWhetherAMachineIsToLeaveIsAskedOfItsPlatform(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	dir := filepath.Join(t.TempDir(), "state")
	asked := func(what string, want bool) {
		t.Helper()
		if leave, err := agent.ToLeave(t.Context(), dir); leave != want || err != nil {
			t.Errorf("%s: to leave is %v (%v), want %v", what, leave, err, want)
		}
	}
	asked("a machine that is no instance", false)
	if err := agent.Enroll(t.Context(), dir, "test", p.Enrollment()); err != nil {
		t.Fatal(err)
	}
	p.SetDocument(sdwan.Document{Revision: 3})
	asked("an instance that lives", false)
	p.SetDocument(sdwan.Document{Revision: 4, Instance: sdwan.Instance{Leave: true}})
	asked("an instance that has ended", true)
	p.FailDesired(&nodeapi.Error{HTTPStatus: 503, Code: "unavailable", Message: "later"})
	if leave, err := agent.ToLeave(t.Context(), dir); leave || err == nil {
		t.Errorf("a platform that does not say: to leave is %v (%v), want an error", leave, err)
	}
	p.FailDesired(nil)
	p.Revoke()
	asked("an instance that the platform knows no more", false)
}
