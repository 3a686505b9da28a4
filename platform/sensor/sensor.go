package sensor

import (
	"context"
	"strings"
	"time"

	"powernode/platform/signal"
	"powernode/store"
)

// State is what a look says of one subject.
type State int

// States of a subject. What is not measured closes nothing.
const (
	NotMeasured State = iota
	Well
	Wrong
)

// heardFor is how old an agent's word may be to count as a measurement: it reports at least each 30 s.
const heardFor = 90 * time.Second

// Observation is what a sensor says of one subject now.
type Observation struct {
	Kind     string // the opening kind
	Subject  string // what the fingerprint names
	State    State
	Severity string // of what is wrong; empty: the catalogue's
	About    signal.Subject
	Payload  store.Object
}

// Sensor watches some kinds of conditions.
type Sensor struct {
	Name       string
	Kinds      []string // opening kinds
	Thresholds []Threshold
	Every      time.Duration
	// ByRows says that the look depends on rows alone, not on telemetry or time: at the same revision it says the same.
	ByRows bool
	// Owns says which subjects of its kinds are the sensor's, where others open the same kinds; nil: all.
	Owns func(subject string) bool
	Look func(ctx context.Context, v *store.View, in Input) ([]Observation, error)
}

func (s Sensor) owns(subject string) bool { return s.Owns == nil || s.Owns(subject) }

// Input is what a look is given.
type Input struct {
	Account store.AccountID
	Values  Values
	// Open are the sensor's open conditions, by kind and subject.
	Open map[Key]store.Condition

	only  map[string]bool // subjects to look at; nil: all
	marks *round
	from  time.Time // since when the platform listens
}

// Key names a condition by its opening kind and subject.
type Key struct{ Kind, Subject string }

// Wants says whether a subject is to be looked at: a second look is at those alone that the first would change.
func (in Input) Wants(subject string) bool { return in.only == nil || in.only[subject] }

// lasted says how long something has been so: since it was first seen so, or since an earlier instant that rows tell. A
// restart forgets what was seen, so a grace begins anew; nothing closes by that.
func (in Input) lasted(now time.Time, key string, since time.Time) time.Duration {
	if seen := in.marks.since(key, now); seen.Before(since) {
		since = seen
	}
	return in.unheard(now, since)
}

// unheard is how long something has lasted since an instant, as far as the platform has listened.
func (in Input) unheard(now, since time.Time) time.Duration {
	if since.Before(in.from) {
		since = in.from
	}
	return now.Sub(since)
}

// Fingerprint is what a condition of a kind about a subject is known by.
func Fingerprint(kind, subject string) string { return signal.Catalogue[kind].Family + ":" + subject }

// SubjectOf is what a fingerprint is about.
func SubjectOf(fingerprint string) string {
	_, subject, _ := strings.Cut(fingerprint, ":")
	return subject
}

// change is a condition that a look would open, raise or close.
type change struct {
	kind, subject string
	seen          *Observation // nil: the subject is gone
}

// changes compares what was seen with what is open.
func (s Sensor) changes(in Input, seen []Observation) []change {
	var out []change
	looked := map[Key]bool{}
	for i := range seen {
		o := &seen[i]
		key := Key{o.Kind, o.Subject}
		looked[key] = true
		open, isOpen := in.Open[key]
		switch {
		case o.State == Wrong && (!isOpen || signal.Rises(open.Severity, severityOf(*o))),
			o.State == Well && isOpen:
			out = append(out, change{o.Kind, o.Subject, o})
		}
	}
	for key := range in.Open {
		if !looked[key] && in.Wants(key.Subject) {
			out = append(out, change{key.Kind, key.Subject, nil})
		}
	}
	return out
}

func severityOf(o Observation) string {
	if o.Severity == "" {
		return signal.Catalogue[o.Kind].Severity
	}
	return o.Severity
}

// rising is the severity that a measure reaches: that of the last of the steps that are at or below it.
func rising[T int64 | int | time.Duration](measure T, steps ...step[T]) (severity string, reached bool) {
	for _, st := range steps {
		if measure >= st.from {
			severity, reached = st.severity, true
		}
	}
	return severity, reached
}

type step[T int64 | int | time.Duration] struct {
	from     T
	severity string
}

// wrongIf is the state of something that was measured.
func wrongIf(wrong bool) State {
	if wrong {
		return Wrong
	}
	return Well
}
