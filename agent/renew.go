package agent

import (
	"context"
	"math/rand/v2"
	"time"
)

// renewLoop renews the certificate once its time has come: looked at hourly, with jitter; a failure is tried again
// sooner and leaves the old certificate. By a clock that runs far ahead of the platform's a new certificate is due at once: it
// is used for a while all the same.
func (a *Agent) renewLoop(ctx context.Context) {
	b := backoff{low: time.Minute, high: time.Hour}
	for ctx.Err() == nil {
		id := a.conn.id.Load()
		if time.Now().Before(id.RenewAfter) {
			spread := max(id.NotAfter.Sub(id.RenewAfter)/10, time.Millisecond)
			pause(ctx, min(time.Until(id.RenewAfter)+rand.N(spread), time.Hour-rand.N(10*time.Minute)))
			continue
		}
		client, err := a.conn.Client()
		if err == nil {
			id, err = a.state.refresh(ctx, client, *id, a.o.Version)
		}
		if err == nil {
			err = a.conn.use(id)
		}
		if err == nil {
			b.reset()
			a.o.Log.Info().Time("not_after", id.NotAfter).Msg("certificate renewed")
			pause(ctx, max(min(id.NotAfter.Sub(id.RenewAfter), time.Hour), time.Second))
			continue
		}
		if ctx.Err() == nil {
			a.o.Log.Error().Err(err).Msg("certificate")
		}
		pause(ctx, b.next())
	}
}
