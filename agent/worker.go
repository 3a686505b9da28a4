package agent

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/rs/zerolog"

	"powernode/sdwan"
)

const (
	// resyncEvery is how often a subsystem looks at the machine without a newer document.
	resyncEvery = time.Minute
	// reconcileTimeout ends a stuck Reconcile; fetching an artefact fits in.
	reconcileTimeout = 30 * time.Minute
	// soonest keeps a subsystem that wants to be asked again from being asked all the time.
	soonest = 100 * time.Millisecond
	// keepsFailing is after how many failures in a row changes of the machine are no reason to try again.
	keepsFailing = 5
	maxMessage   = 500 // characters of a subsystem's message
)

// worker drives one subsystem: newest document, backoff, resync, and what it reports.
type worker struct {
	sub     Subsystem
	log     zerolog.Logger
	changed func()
	wake    chan struct{}

	failures atomic.Int32 // in a row

	mu     sync.Mutex
	want   *sdwan.Document
	report sdwan.SubsystemReport
	busy   bool // Observe runs
}

func newWorker(sub Subsystem, log zerolog.Logger, changed func()) *worker {
	return &worker{sub: sub, log: log.With().Str("subsystem", sub.Name()).Logger(), changed: changed, wake: make(chan struct{}, 1),
		report: sdwan.SubsystemReport{Name: sub.Name(), State: "not_measured", Message: "no document yet", ObservedAt: time.Now()}}
}

// offer gives the worker a document; one that it has not begun with is replaced.
func (w *worker) offer(doc *sdwan.Document) {
	w.mu.Lock()
	w.want = doc
	w.mu.Unlock()
	w.nudge()
}

// nudge makes the worker look again.
func (w *worker) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *worker) run(ctx context.Context) {
	b := backoff{low: time.Second, high: 5 * time.Minute}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-timer.C:
		}
		w.mu.Lock()
		doc := w.want
		w.mu.Unlock()
		if doc == nil {
			continue
		}
		timer.Reset(w.pass(ctx, doc, &b))
	}
}

// pass reconciles once and answers when to look again.
func (w *worker) pass(ctx context.Context, doc *sdwan.Document, b *backoff) time.Duration {
	rctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	err := guard(func() error { return w.sub.Reconcile(rctx, doc) })
	if ctx.Err() != nil {
		return time.Hour
	}
	var pending *Pending
	var later *Later
	switch {
	case err == nil:
		b.reset()
		w.failures.Store(0)
		w.set(doc.Revision, "ok", "")
		return resyncEvery - rand.N(resyncEvery/10)
	case errors.As(err, &pending):
		b.reset()
		w.set(0, "not_measured", pending.Error())
		return max(pending.After, soonest)
	case errors.As(err, &later):
		b.reset()
		w.set(0, "error", err.Error())
		return max(later.After, soonest)
	default:
		w.failures.Add(1)
		w.set(0, "error", err.Error())
		return b.next()
	}
}

// set takes the outcome of a pass; revision 0 leaves the applied one. Only a change is reported at once and logged.
func (w *worker) set(revision int64, state, message string) {
	message = cleanText(message, maxMessage)
	w.mu.Lock()
	r := &w.report
	changed := r.State != state || r.Message != message || (revision != 0 && r.AppliedRevision != revision)
	if revision != 0 {
		r.AppliedRevision = revision
	}
	told := r.State != state || r.Message != message
	r.State, r.Message, r.ObservedAt = state, message, time.Now()
	w.mu.Unlock()
	if told {
		level := zerolog.InfoLevel
		if state == "error" {
			level = zerolog.WarnLevel
		}
		w.log.WithLevel(level).Str("state", state).Str("message", message).Msg("subsystem")
	}
	if changed {
		w.changed()
	}
}

func (w *worker) snapshot() sdwan.SubsystemReport {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.report
}

// begin claims the worker's Observe; false while an earlier one still runs.
func (w *worker) begin() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy {
		return false
	}
	w.busy = true
	return true
}

func (w *worker) end() {
	w.mu.Lock()
	w.busy = false
	w.mu.Unlock()
}

// cleanText strips control characters and bounds the length: such texts reach people and assistants.
func cleanText(s string, limit int) string {
	out := make([]rune, 0, min(len(s), limit))
	for _, r := range s {
		if len(out) == limit {
			return string(append(out[:limit-1], '…'))
		}
		if unicode.IsControl(r) {
			r = ' '
		}
		out = append(out, r)
	}
	return string(out)
}
