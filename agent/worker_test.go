package agent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"powernode/sdwan"
)

// counter is a subsystem that notes when it was called and answers what it is told to.
type counter struct {
	answer error
	at     []time.Time
}

func (c *counter) Name() string { return "wireguard" }

func (c *counter) Reconcile(context.Context, *sdwan.Document) error {
	c.at = append(c.at, time.Now())
	return c.answer
}

// drive runs a worker for some virtual time and answers the gaps between its calls.
func drive(t *testing.T, answer error, d time.Duration) []time.Duration {
	var gaps []time.Duration
	synctest.Test(t, func(t *testing.T) {
		c := &counter{answer: answer}
		w := newWorker(c, zerolog.Nop(), func() {})
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		w.offer(&sdwan.Document{Revision: 1})
		w.run(ctx)
		for i := 1; i < len(c.at); i++ {
			gaps = append(gaps, c.at[i].Sub(c.at[i-1]))
		}
	})
	return gaps
}

func TestFailingSubsystemBacksOffFromASecondToFiveMinutes(t *testing.T) {
	t.Parallel()
	gaps := drive(t, errors.New("no"), time.Hour)
	if len(gaps) < 15 {
		t.Fatalf("%d tries in an hour: %v", len(gaps), gaps)
	}
	low, high := 500*time.Millisecond, time.Second
	for i, g := range gaps {
		if g < low || g > high {
			t.Errorf("wait %d is %v, not in %v..%v", i, g, low, high)
		}
		low, high = min(2*low, 150*time.Second), min(2*high, 5*time.Minute)
	}
}

func TestHealthySubsystemIsLookedAtEveryMinute(t *testing.T) {
	t.Parallel()
	for _, g := range drive(t, nil, 10*time.Minute) {
		if g < 54*time.Second || g > time.Minute {
			t.Errorf("looked again after %v", g)
		}
	}
}

func TestPendingSubsystemIsAskedWhenItSaid(t *testing.T) {
	t.Parallel()
	gaps := drive(t, &Pending{Reason: "x", After: 2 * time.Second}, 59*time.Second)
	if len(gaps) != 29 {
		t.Errorf("%d waits", len(gaps))
	}
	for _, g := range gaps {
		if g != 2*time.Second {
			t.Errorf("asked again after %v", g)
		}
	}
}

func TestNewerDocumentEndsABackoffAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &counter{answer: errors.New("no")}
		w := newWorker(c, zerolog.Nop(), func() {})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
		defer cancel()
		w.offer(&sdwan.Document{Revision: 1})
		done := make(chan struct{})
		go func() { defer close(done); w.run(ctx) }()
		<-time.After(10 * time.Minute) // virtual: the bubble's clock
		synctest.Wait()
		before := len(c.at)
		w.offer(&sdwan.Document{Revision: 2})
		synctest.Wait()
		if len(c.at) != before+1 {
			t.Errorf("%d calls after a newer document, want one more than %d", len(c.at), before)
		}
		cancel()
		<-done
	})
}

func TestCgroupVersionIsReadFromTheMounts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, mounts string
		want         int
	}{
		{"none", "1 2 0:1 / / rw - ext4 /dev/vda rw\n", 0},
		{"unified", "1 2 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", 2},
		{"hybrid is version 1", "1 2 0:1 / /u rw - cgroup2 cgroup2 rw\n1 2 0:1 / /m rw - cgroup cgroup rw,memory\n", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := cgroupVersionOf(tt.mounts); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}
