package module

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"powernode/agent"
	"powernode/agent/artifact"
	"powernode/sdwan"
)

// Options are what a Subsystem needs.
type Options struct {
	Store *artifact.Store // below the state directory, in modules
	// Elsewhere says whether another subsystem has an artefact of that SHA-256 in place: K3s' is not fetched twice.
	Elsewhere func(sum string) bool
	Log       zerolog.Logger
}

// Subsystem is the modules subsystem.
type Subsystem struct {
	o Options

	pass    sync.Mutex // one look at a time
	mu      sync.Mutex
	digests map[string]string // nil: not measured yet
	changed chan struct{}
}

// New makes the subsystem.
func New(o Options) *Subsystem { return &Subsystem{o: o, changed: make(chan struct{}, 1)} }

// Name is the subsystem's name in reports.
func (s *Subsystem) Name() string { return "modules" }

// Changes gives a value when a digest has changed.
func (s *Subsystem) Changes() <-chan struct{} { return s.changed }

// Reconcile fetches what is missing. One module's trouble doesn't hold up another.
func (s *Subsystem) Reconcile(ctx context.Context, want *sdwan.Document) error {
	s.pass.Lock()
	defer s.pass.Unlock()
	digests, keep := map[string]string{}, map[string]bool{}
	var errs []error
	var waiting []string
	for _, m := range want.Modules {
		switch in, err := s.inPlace(ctx, m, keep); {
		case err != nil:
			errs = append(errs, fmt.Errorf("module %s: %w", m.Name, err))
		case in:
			digests[m.ModuleID] = m.Digest
		default:
			waiting = append(waiting, m.Name)
		}
	}
	s.publish(digests)
	if len(errs) == 0 {
		errs = append(errs, s.o.Store.Keep(keep))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if len(waiting) > 0 {
		return &agent.Pending{Reason: "not in place yet: " + strings.Join(waiting, ", "), After: lookAgain}
	}
	return nil
}

// lookAgain is how soon a module that another subsystem installs is looked for again.
const lookAgain = 2 * time.Second

// installedByK3s are the modules whose artefact package k3s installs.
func installedByK3s(name string) bool { return name == "k3s-server" || name == "k3s-agent" }

func (s *Subsystem) inPlace(ctx context.Context, m sdwan.Module, keep map[string]bool) (bool, error) {
	if m.Artifact == nil {
		return true, nil // nothing to carry but its configuration
	}
	if installedByK3s(m.Name) {
		return s.o.Elsewhere(m.Artifact.SHA256), nil
	}
	keep[m.Artifact.SHA256] = true
	_, err := s.o.Store.Fetch(ctx, *m.Artifact)
	return err == nil, err
}

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

// syncParameters are those of system_refresh_instance_modules.
type syncParameters struct {
	ForceResync bool    `json:"force_resync"`
	ModuleID    *string `json:"module_id"`
}

// RunTask looks at the modules now; with force_resync every file is read again.
func (s *Subsystem) RunTask(ctx context.Context, task sdwan.Task, want *sdwan.Document) (json.RawMessage, error) {
	var p syncParameters
	if len(task.Parameters) > 0 {
		if err := json.Unmarshal(task.Parameters, &p); err != nil {
			return nil, fmt.Errorf("the task's parameters: %w", err)
		}
	}
	if p.ForceResync {
		s.o.Store.Forget()
	}
	var pending *agent.Pending
	if err := s.Reconcile(ctx, want); err != nil && !errors.As(err, &pending) {
		return nil, err
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
