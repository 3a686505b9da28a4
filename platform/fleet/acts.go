package fleet

import (
	"context"
	"sync"

	"powernode/store"
)

// acts are the machines that are being made: two calls of one intent ask the provider one after the other, and the second
// finds what came of the first.
type acts struct {
	mu   sync.Mutex
	busy map[store.InstanceID]chan struct{}
}

// enter waits until nobody else acts on an instance. The act lasts until the context ends, which is after its outcome was
// written.
func (a *acts) enter(ctx context.Context, id store.InstanceID) error {
	for {
		earlier := a.take(ctx, id)
		if earlier == nil {
			return nil
		}
		select {
		case <-earlier:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take begins an act, or answers what to wait for.
func (a *acts) take(ctx context.Context, id store.InstanceID) chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if earlier, busy := a.busy[id]; busy {
		return earlier
	}
	if a.busy == nil {
		a.busy = map[store.InstanceID]chan struct{}{}
	}
	over := make(chan struct{})
	a.busy[id] = over
	context.AfterFunc(ctx, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.busy, id)
		close(over)
	})
	return nil
}
