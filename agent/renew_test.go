package agent_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"powernode/agent"
	"powernode/nodeapi"
	"powernode/nodeapi/nodeapitest"
	"powernode/sdwan"
)

// The agent dies, or its machine does, after the platform has renewed its certificate and before it knows.
func TestRenewalWhoseAnswerWasLostIsTakenByTheNextStart(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	p.SetDocument(sdwan.Document{Revision: 3})
	p.SetDue(-time.Hour)
	p.LoseRenewals(true)
	dir := t.TempDir()
	first := newPart("wireguard")
	m := start(t, p, dir, first)
	await(t, "question for a renewal", func() bool { return p.Renewals() > 0 })
	m.stop()
	p.LoseRenewals(false)
	p.SetDocument(sdwan.Document{Revision: 4})
	next := newPart("wireguard")
	start(t, p, dir, next)
	next.await(t, 4)
	if _, err := os.Stat(filepath.Join(dir, "state", "renewing.json")); !os.IsNotExist(err) {
		t.Errorf("the request of a renewal that is over: %v", err)
	}
}

// By a clock that runs far ahead every certificate is due as soon as it comes.
func TestClockThatRunsAheadDoesNotRenewInACircle(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	p.SetDue(-time.Hour)
	p.SetDocument(sdwan.Document{Revision: 3})
	one := newPart("wireguard")
	start(t, p, t.TempDir(), one)
	await(t, "question for a renewal", func() bool { return p.Renewals() > 0 })
	for revision := int64(4); revision < 10; revision++ {
		p.SetDocument(sdwan.Document{Revision: revision})
		one.await(t, revision)
		p.AwaitReport(t, "what was applied", func(r sdwan.Report) bool { return subsystem(r, "wireguard").AppliedRevision == revision })
	}
	if n := p.Renewals(); n > 1 {
		t.Errorf("%d renewals in the time of six documents", n)
	}
}

// What the state directory holds may be damaged, one file at a time: the agent starts, applies what it has, and comes to the
// platform's document with an identity that is readable, or is made so.
func TestDamagedStateFileEndsNeitherTheDataPlaneNorTheAgent(t *testing.T) {
	t.Parallel()
	damages := map[string]func(string) string{
		"empty":         func(string) string { return "" },
		"cut short":     func(s string) string { return s[:len(s)/2] },
		"no JSON":       func(string) string { return "\x00\x00\x00" },
		"another shape": func(string) string { return `{"instance_id": 7, "revision": "x"}` },
		"null":          func(string) string { return "null" },
		"a JSON object": func(string) string { return "{}" },
	}
	for _, name := range []string{"identity.json", "document.json", "renewing.json", "enrolling.json", "agent.lock", "../run/boot_id"} {
		for damage, do := range damages {
			t.Run(strings.TrimPrefix(name, "../run/")+" "+damage, func(t *testing.T) {
				t.Parallel()
				p := nodeapitest.New(t)
				p.SetDocument(sdwan.Document{Revision: 3})
				dir := t.TempDir()
				first := newPart("wireguard")
				m := start(t, p, dir, first)
				first.await(t, 3)
				await(t, "document on disk", func() bool { _, err := os.Stat(filepath.Join(dir, "state", "document.json")); return err == nil })
				m.stop()
				path := filepath.Join(dir, "state", name)
				whole, err := os.ReadFile(path)
				if err != nil && !os.IsNotExist(err) {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(do(string(whole))), 0o600); err != nil {
					t.Fatal(err)
				}
				next := newPart("wireguard")
				start(t, p, dir, next)
				if name == "identity.json" {
					next.await(t, 3) // without the platform, which it can't name
					if is, err := agent.EnrolledAs(filepath.Join(dir, "state")); err == nil {
						t.Errorf("the machine takes itself for instance %q", is)
					}
					if err := os.WriteFile(path, whole, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				p.SetDocument(sdwan.Document{Revision: 4})
				next.await(t, 4)
				p.AwaitReport(t, "what was applied", func(r sdwan.Report) bool { return subsystem(r, "wireguard").AppliedRevision == 4 })
			})
		}
	}
}

// The disk was full when a document came; the machine may reboot without the platform later.
func TestDocumentThatCouldNotBeKeptIsKeptLater(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	p.SetDocument(sdwan.Document{Revision: 3})
	dir := t.TempDir()
	file := filepath.Join(dir, "state", "document.json")
	one := newPart("wireguard")
	start(t, p, dir, one)
	one.await(t, 3)
	await(t, "document on disk", func() bool { _, err := os.Stat(file); return err == nil })
	if err := errors.Join(os.Remove(file), os.MkdirAll(filepath.Join(file, "in the way"), 0o700)); err != nil {
		t.Fatal(err)
	}
	p.SetDocument(sdwan.Document{Revision: 4})
	one.await(t, 4)
	p.AwaitReport(t, "what was applied", func(r sdwan.Report) bool { return subsystem(r, "wireguard").AppliedRevision == 4 })
	if err := os.RemoveAll(file); err != nil {
		t.Fatal(err)
	}
	p.FailDesired(&nodeapi.Error{Code: "unavailable", Message: "for a moment"})
	await(t, "question that fails", func() bool { return p.FailedDesired() > 0 })
	p.FailDesired(nil)
	await(t, "document on disk", func() bool {
		raw, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(raw), `"revision":4`)
	})
}

func TestAgentRunsWhereItCannotKeepItsBootID(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	p.SetDocument(sdwan.Document{Revision: 3})
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "run"), nil, 0o600); err != nil { // in the way of the folder
		t.Fatal(err)
	}
	one := newPart("wireguard")
	start(t, p, dir, one)
	one.await(t, 3)
	p.AwaitReport(t, "a boot id", func(r sdwan.Report) bool { return len(r.BootID) == 32 })
}
