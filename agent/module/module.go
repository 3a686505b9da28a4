package module

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"powernode/agent"
	"powernode/agent/artifact"
	"powernode/agent/service"
	"powernode/sdwan"
)

// Options are what a Subsystem needs.
type Options struct {
	StateDir string // the agent's: the journal is there
	Root     string // of the machine's files
	Store    *artifact.Store
	Services service.Manager
	Packages Packages // nil: this machine has no package manager that we know
	// Elsewhere says whether another subsystem has an artefact of that SHA-256 in place: K3s' is not fetched twice.
	Elsewhere func(sum string) bool
	LogToFile bool // where there is no journal that keeps what services say
	Log       zerolog.Logger
}

// Subsystem is the modules subsystem.
type Subsystem struct {
	o    Options
	disk *disk

	pass   sync.Mutex      // one look at a time
	newest *sdwan.Document // that was seen
	told   map[string]told // by module: what is reported before it is put right
	now    func() time.Time

	mu      sync.Mutex
	digests map[string]string // nil: not measured yet
	changed chan struct{}
}

// told is a deviation that is being reported.
type told struct {
	digest string
	since  time.Time
}

// New makes the subsystem.
func New(o Options) *Subsystem {
	return &Subsystem{o: o, disk: newDisk(o.Root), told: map[string]told{}, now: time.Now, changed: make(chan struct{}, 1)}
}

// Name is the subsystem's name in reports.
func (s *Subsystem) Name() string { return "modules" }

// Changes gives a value when a digest has changed.
func (s *Subsystem) Changes() <-chan struct{} { return s.changed }

const (
	// lookAgain is how soon a module that another subsystem installs is looked for again.
	lookAgain = 2 * time.Second
	// tellFirst is the time in which a deviation is reported before it is put right.
	tellFirst = 3 * time.Second
)

// Reconcile makes the machine's modules what the document says. One module's trouble doesn't hold up another.
func (s *Subsystem) Reconcile(ctx context.Context, want *sdwan.Document) error {
	s.pass.Lock()
	defer s.pass.Unlock()
	s.newest = want
	return s.look(ctx, want, tells{}).result()
}

// tells says how a look treats what was changed by hand: reported first, or put right at once.
type tells struct{ repair bool }

// outcome is what a look came to.
type outcome struct {
	failed   map[string]error // by module id, "" for what is no module's
	order    []string         // of failed
	waiting  []string         // names
	deviated []string         // names
}

func (o *outcome) fail(id string, err error) {
	if err == nil {
		return
	}
	if _, before := o.failed[id]; !before {
		o.order = append(o.order, id)
	}
	o.failed[id] = errors.Join(o.failed[id], err)
}

func (o *outcome) result() error {
	errs := make([]error, 0, len(o.order))
	for _, id := range o.order {
		errs = append(errs, o.failed[id])
	}
	err := errors.Join(errs...)
	switch {
	case err != nil && len(o.deviated) > 0:
		return &agent.Later{Err: err, After: tellFirst}
	case err != nil:
		return err
	case len(o.deviated) > 0:
		return &agent.Pending{Reason: "changed by hand, to be put right: " + strings.Join(o.deviated, ", "), After: tellFirst}
	case len(o.waiting) > 0:
		return &agent.Pending{Reason: "not in place yet: " + strings.Join(o.waiting, ", "), After: lookAgain}
	}
	return nil
}

// look takes away what no module wants, then puts the modules in place in the document's order.
func (s *Subsystem) look(ctx context.Context, want *sdwan.Document, how tells) *outcome {
	out := &outcome{failed: map[string]error{}}
	j, err := readJournal(s.journalPath())
	if err != nil {
		out.fail("", err)
		return out
	}
	p := &pass{s: s, j: j, how: how, out: out, owner: map[string]string{}}
	modules := p.read(want)
	p.detach(ctx, want)
	digests, keep := map[string]string{}, map[string]bool{}
	for _, m := range want.Modules {
		if m.Artifact != nil && !installedByK3s(m.Name) {
			keep[m.Artifact.SHA256] = true
		}
	}
	for _, w := range modules {
		digest, err := p.attach(ctx, w)
		if err != nil {
			out.fail(w.module.ModuleID, fmt.Errorf("module %s: %w", w.module.Name, err))
		}
		if digest != "" {
			digests[w.module.ModuleID] = digest
		}
	}
	p.packages(ctx, want)
	s.publish(digests)
	if len(out.failed) == 0 {
		out.fail("", s.o.Store.Keep(keep))
	}
	return out
}

func (s *Subsystem) journalPath() string { return filepath.Join(s.o.StateDir, "modules.json") }

func (s *Subsystem) publish(digests map[string]string) {
	s.mu.Lock()
	changed := s.digests == nil || !maps.Equal(s.digests, digests)
	s.digests = digests
	s.mu.Unlock()
	if !changed {
		return
	}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Observe reports the digests as the last look found them.
func (s *Subsystem) Observe(_ context.Context, report *sdwan.Report) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	report.Modules = maps.Clone(s.digests)
	return nil
}

// Commands are the tasks that RunTask carries out.
func (s *Subsystem) Commands() []string { return []string{"sync_modules"} }

// RunTask looks at the modules now; with force_resync every file is read again, and what was changed by hand is put right
// at once.
func (s *Subsystem) RunTask(ctx context.Context, task sdwan.Task, want *sdwan.Document) (json.RawMessage, error) {
	var p sdwan.SyncModules
	if len(task.Parameters) > 0 {
		if err := json.Unmarshal(task.Parameters, &p); err != nil {
			return nil, fmt.Errorf("the task's parameters: %w", err)
		}
	}
	out := s.sync(ctx, want, p)
	if p.ModuleID != nil {
		if err := errors.Join(out.failed[""], out.failed[*p.ModuleID]); err != nil {
			return nil, err
		}
	} else if len(out.failed) > 0 {
		return nil, out.result()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	digests := s.digests
	if p.ModuleID != nil {
		digests = map[string]string{}
		if d, ok := s.digests[*p.ModuleID]; ok {
			digests[*p.ModuleID] = d
		}
	}
	return json.Marshal(map[string]any{"digests": digests})
}

func (s *Subsystem) sync(ctx context.Context, want *sdwan.Document, p sdwan.SyncModules) *outcome {
	s.pass.Lock()
	defer s.pass.Unlock()
	if p.ForceResync {
		s.o.Store.Forget()
		s.disk.forget()
	}
	if n := s.newest; n != nil && n.Incarnation == want.Incarnation && n.Revision > want.Revision {
		want = n // a newer document came while the task waited
	}
	return s.look(ctx, want, tells{repair: p.ForceResync})
}
