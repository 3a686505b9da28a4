package probe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"powernode/sdwan"
)

// Results of a probe.
const (
	Reachable   = "reachable"
	Unreachable = "unreachable"
	Failed      = "error"
)

const (
	defaultDeadline = time.Second
	maxDeadline     = 10 * time.Second
	// atOnce bounds how many probes run side by side.
	atOnce = 64
)

// Options are what a Subsystem needs.
type Options struct {
	Log zerolog.Logger
}

// Subsystem is the agent's prober.
type Subsystem struct {
	log     zerolog.Logger
	changes chan struct{}
	running sync.Mutex // one Reconcile at a time

	mu   sync.Mutex
	done map[string]sdwan.ProbeReport // by id, as long as the document asks for it
}

// New makes the subsystem.
func New(o Options) *Subsystem {
	return &Subsystem{log: o.Log, changes: make(chan struct{}, 1), done: map[string]sdwan.ProbeReport{}}
}

// Name is the subsystem's name.
func (s *Subsystem) Name() string { return "probe" }

// Changes has a value when there are outcomes that were not told yet.
func (s *Subsystem) Changes() <-chan struct{} { return s.changes }

// Reconcile measures what was not measured yet, side by side, and returns when all is measured.
func (s *Subsystem) Reconcile(ctx context.Context, doc *sdwan.Document) error {
	if doc == nil {
		return errors.New("there is no document")
	}
	s.running.Lock()
	defer s.running.Unlock()
	due := s.due(doc.Probes)
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, p := range due {
		g.Go(func() error {
			r, err := measure(ctx, p)
			if ctx.Err() != nil {
				return nil // not measured: again with the next document
			}
			if err != nil {
				s.log.Warn().Err(err).Str("probe", p.ID).Msg("probe: not measured")
			}
			s.finish(r)
			return nil
		})
	}
	_ = g.Wait()
	return ctx.Err()
}

// due lists probes without an outcome, and forgets outcomes that nobody asks for any more.
func (s *Subsystem) due(probes []sdwan.Probe) []sdwan.Probe {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := map[string]bool{}
	var out []sdwan.Probe
	for _, p := range probes {
		if _, done := s.done[p.ID]; !done && !asked[p.ID] {
			out = append(out, p)
		}
		asked[p.ID] = true
	}
	maps.DeleteFunc(s.done, func(id string, _ sdwan.ProbeReport) bool { return !asked[id] })
	return out
}

func (s *Subsystem) finish(r sdwan.ProbeReport) {
	s.mu.Lock()
	s.done[r.ID] = r
	s.mu.Unlock()
	select {
	case s.changes <- struct{}{}:
	default:
	}
}

// Observe adds the outcomes of the probes that the last document asks for.
func (s *Subsystem) Observe(_ context.Context, report *sdwan.Report) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	report.Probes = append(report.Probes, slices.SortedFunc(maps.Values(s.done), func(a, b sdwan.ProbeReport) int {
		return strings.Compare(a.ID, b.ID)
	})...)
	return nil
}

// measure carries out one probe. The error says why nothing was measured.
func measure(ctx context.Context, p sdwan.Probe) (sdwan.ProbeReport, error) {
	limit := time.Duration(p.DeadlineMS) * time.Millisecond
	if limit <= 0 {
		limit = defaultDeadline
	}
	ctx, cancel := context.WithTimeout(ctx, min(limit, maxDeadline))
	defer cancel()
	start := time.Now()
	answered, err := false, fmt.Errorf("protocol %q is neither icmp6 nor tcp", p.Protocol)
	switch p.Protocol {
	case "icmp6":
		answered, err = echo(ctx, p.Source, p.Target)
	case "tcp":
		answered, err = connect(ctx, p.Source, p.Target, p.Port)
	}
	r := sdwan.ProbeReport{ID: p.ID, Result: Unreachable, MeasuredAt: time.Now().UTC()}
	switch {
	case err != nil:
		r.Result = Failed
	case answered:
		r.Result, r.RTTMS = Reachable, float64(time.Since(start).Microseconds())/1000
	}
	return r, err
}
