package agent

import (
	"context"
	"time"

	"powernode/sdwan"
)

// Subsystem makes one part of the machine what a document says. Reconcile is idempotent and quiet, and is called
// again after an error (with backoff), for every newer document and every few minutes; never twice at once. Want
// isn't written to: subsystems share it.
type Subsystem interface {
	Name() string
	Reconcile(ctx context.Context, want *sdwan.Document) error
}

// Observer is a Subsystem that has something to tell. Observe adds its sections to the report; what it can't read it
// leaves out, which is "not measured". It may run beside Reconcile and must answer within a second: what takes longer
// is measured in Reconcile or by a Runner, and kept.
type Observer interface {
	Observe(ctx context.Context, report *sdwan.Report) error
}

// Notifier is a Subsystem that learns things between two calls of Reconcile (a probe's outcome, a Node's readiness):
// each value from the channel makes the agent report at once. The channel is the same for the subsystem's life and
// has room for one value, so that a sender never blocks.
type Notifier interface {
	Changes() <-chan struct{}
}

// Runner is a Subsystem with work of its own beside Reconcile: Run lives as long as the agent and returns when its
// context ends.
type Runner interface {
	Run(ctx context.Context) error
}

// Pending is what Reconcile returns when it did what can be done now and waits for something that isn't a fault: an
// API server that starts, a VIP that another subsystem is about to add. The agent reports not_measured with the
// reason and calls Reconcile again after the given time, without backoff.
type Pending struct {
	Reason string
	After  time.Duration
}

func (p *Pending) Error() string { return "waiting: " + p.Reason }

// Later is an error that also says when to try again, for those whose other side has said so or whose retries have a
// rhythm of their own. The agent reports error with its text.
type Later struct {
	Err   error
	After time.Duration
}

func (l *Later) Error() string { return l.Err.Error() }

func (l *Later) Unwrap() error { return l.Err }
