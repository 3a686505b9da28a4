package crash_test

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"powernode/spec/rig"
)

// seeded is randomness that a failed test tells how to repeat.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if given := os.Getenv("SEED"); given != "" {
		var err error
		if seed, err = strconv.ParseUint(given, 10, 64); err != nil {
			t.Fatalf("SEED: %v", err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("SEED=%d repeats the choices of this run", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// killer kills control planes of an installation, each once.
type killer struct {
	*rig.Installation
	random *rand.Rand
	last   int // process that was killed last
	kills  atomic.Int64
}

// next waits for a control plane that was not killed yet, and a random while up to the given one, and kills it.
func (k *killer) next(ctx context.Context, upTo time.Duration) error {
	err := rig.Await(ctx, "a control plane to kill", 30*time.Second, func(context.Context) (string, error) {
		if pid := k.ServePID(); pid == 0 || pid == k.last {
			return "none has started since the last kill", nil
		}
		return "", nil
	})
	if err != nil {
		return err
	}
	select {
	case <-time.After(time.Duration(k.random.Int64N(int64(upTo)))):
	case <-ctx.Done():
		return ctx.Err()
	}
	pid := k.ServePID()
	if pid == 0 || ctx.Err() != nil {
		return ctx.Err() // one that ended by itself is not ours to count
	}
	k.last = pid
	k.kills.Add(1)
	return syscall.Kill(pid, syscall.SIGKILL)
}
