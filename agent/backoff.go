package agent

import (
	"math/rand/v2"
	"time"
)

// backoff doubles from low to high; each wait is drawn from the upper half, so that many agents don't come back in
// step. The zero count is the first failure.
type backoff struct {
	low, high time.Duration
	failures  int
}

func (b *backoff) next() time.Duration {
	d := b.low
	for range b.failures {
		if d *= 2; d >= b.high {
			d = b.high
			break
		}
	}
	b.failures++
	return d/2 + rand.N(d/2+1)
}

func (b *backoff) reset() { b.failures = 0 }
