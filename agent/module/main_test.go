package module

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"powernode/agent"
	"powernode/agent/artifact"
	"powernode/agent/service"
	"powernode/sdwan"
)

// TestMain lets the test's binary be the agent's: supervisors are processes of their own.
func TestMain(m *testing.M) {
	if len(os.Args) == 6 && os.Args[1] == "supervise" {
		if err := service.Supervise(context.Background(), os.Args[5], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// hello is the one artefact that the platform has.
const (
	hello    = "hello"
	helloSum = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
)

type platform struct{ fetched int }

func (p *platform) Artifact(_ context.Context, sum string, _ int64, w io.Writer) (int64, error) {
	if sum != helloSum {
		return 0, errors.New("no such artefact")
	}
	p.fetched++
	n, err := io.WriteString(w, hello)
	return int64(n), err
}

// host is a machine made of two folders.
type host struct {
	t           *testing.T
	root, state string
	platform    *platform
	packages    Packages
	k3sIn       bool
	services    service.Manager
	*Subsystem
}

func newHost(t *testing.T) *host {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, root: t.TempDir(), state: t.TempDir(), platform: &platform{}}
	h.services = service.New(service.Options{StateDir: h.state, AgentBinary: program, Log: zerolog.Nop()})
	h.restart()
	t.Cleanup(func() { // the services are processes of this host
		if _, err := h.RunTask(context.Background(), sdwan.Task{}, &sdwan.Document{Revision: 1 << 40}); err != nil {
			t.Errorf("take everything away: %v", err)
		}
	})
	return h
}

// restart is another agent on the same machine.
func (h *host) restart() {
	h.Subsystem = New(Options{StateDir: h.state, Root: h.root, Services: h.services, Packages: h.packages, LogToFile: true, Log: zerolog.Nop(),
		Elsewhere: func(string) bool { return h.k3sIn },
		Store:     artifact.NewStore(filepath.Join(h.state, "modules"), func() (artifact.Platform, error) { return h.platform, nil })})
}

// module is one of the document. Its id is its name, and its digest tells one content from another.
func module(name string, manifest any) sdwan.Module {
	raw, err := json.Marshal(manifest)
	if err != nil {
		panic(err)
	}
	return sdwan.Module{ModuleID: name, Name: name, Version: "1", Manifest: raw, Config: json.RawMessage(`{}`), Digest: hashOf(string(raw))}
}

type object = map[string]any

func of(modules ...sdwan.Module) *sdwan.Document { return &sdwan.Document{Modules: modules} }

func (h *host) reconcile(modules ...sdwan.Module) {
	h.t.Helper()
	if err := h.Reconcile(h.t.Context(), of(modules...)); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) refused(says string, modules ...sdwan.Module) {
	h.t.Helper()
	if err := h.Reconcile(h.t.Context(), of(modules...)); err == nil || !strings.Contains(err.Error(), says) {
		h.t.Fatalf("got %v, want %q", err, says)
	}
}

func (h *host) has(want map[string]string) {
	h.t.Helper()
	if diff := cmp.Diff(want, h.reported()); diff != "" {
		h.t.Errorf("digests (-want +got):\n%s", diff)
	}
}

func (h *host) reported() map[string]string {
	h.t.Helper()
	var r sdwan.Report
	if err := h.Observe(h.t.Context(), &r); err != nil {
		h.t.Fatal(err)
	}
	return r.Modules
}

func (h *host) read(path string) string {
	h.t.Helper()
	b, err := os.ReadFile(filepath.Join(h.root, path))
	if err != nil {
		h.t.Fatal(err)
	}
	return string(b)
}

func (h *host) pid(name string) int {
	h.t.Helper()
	st, err := h.services.Status(h.t.Context(), unitPrefix+name)
	if err != nil || st.State != service.Running || st.PID == 0 {
		h.t.Fatalf("service %s is %+v, %v", name, st, err)
	}
	return st.PID
}

func (h *host) serviceState(name string) service.State {
	h.t.Helper()
	st, err := h.services.Status(h.t.Context(), unitPrefix+name)
	if err != nil {
		h.t.Fatal(err)
	}
	return st.State
}

// awaitStatus waits until a unit is as asked.
func (h *host) awaitStatus(unit, what string, fits func(service.Status) bool) {
	h.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(20 * time.Second)
	for {
		st, err := h.services.Status(h.t.Context(), unit)
		if err != nil {
			h.t.Fatal(err)
		}
		if fits(st) {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			h.t.Fatalf("waited in vain for %s %s: %+v", unit, what, st)
		}
	}
}

// snapshot lists a tree with what every write changes.
func snapshot(t *testing.T, dirs ...string) []string {
	t.Helper()
	var out []string
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			st, _ := info.Sys().(*syscall.Stat_t)
			out = append(out, fmt.Sprintf("%s %v inode %d changed %v", path, info.Mode(), st.Ino, st.Ctim))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(out)
	return out
}

// atRest waits until no supervisor has a word left to write: each service runs, or has ended for good.
func (h *host) atRest() {
	h.t.Helper()
	units, err := filepath.Glob(filepath.Join(h.state, "services", "*", "unit.json"))
	if err != nil {
		h.t.Fatal(err)
	}
	for _, path := range units {
		var u service.Unit
		raw, err := os.ReadFile(path)
		if err := errors.Join(err, json.Unmarshal(raw, &u)); err != nil {
			h.t.Fatal(err)
		}
		h.awaitStatus(u.Name, "to be at rest", func(st service.Status) bool {
			return st.State == service.Ended || u.Restart != service.Never && st.State == service.Running && st.PID > 0
		})
	}
}

// quiet runs a look that must write nothing.
func (h *host) quiet(modules ...sdwan.Module) {
	h.t.Helper()
	h.atRest()
	before := snapshot(h.t, h.root, h.state)
	h.reconcile(modules...)
	if diff := cmp.Diff(before, snapshot(h.t, h.root, h.state)); diff != "" {
		h.t.Errorf("a look at what is as wanted wrote (-before +after):\n%s", diff)
	}
}

func (h *host) empty() {
	h.t.Helper()
	left, err := os.ReadDir(h.root)
	if err != nil || len(left) > 0 {
		h.t.Errorf("left on the machine: %v, %v", left, err)
	}
}

var _ agent.TaskRunner = (*Subsystem)(nil)

// awaitOther waits until a service runs as another process than before.
func (h *host) awaitOther(name string, before int) {
	h.t.Helper()
	h.awaitStatus(unitPrefix+name, "to be started again", func(st service.Status) bool {
		return st.State == service.Running && st.PID > 0 && st.PID != before
	})
}

func mkfifo(path string) error { return syscall.Mkfifo(path, 0o600) }
