package tools

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"powernode/store"
)

// Events of reads are written in batches: a read never costs a transaction of its own.
const (
	readsFlushed = 200 * time.Millisecond
	readsHeld    = 1000
	readsKept    = 10 * readsHeld // while the store can't write them
	forgetEvery  = time.Minute    // how often results that are past their time are looked for
)

// reads are the events of reads that are not written yet, and of calls that failed while the store could not write.
type reads struct {
	mu   sync.Mutex
	held []*call
}

func (p *Platform) recordRead(c *call) {
	c.event.DurationMS = time.Since(c.started).Milliseconds()
	p.reads.mu.Lock()
	p.reads.held = append(p.reads.held, c)
	full := len(p.reads.held)%readsHeld == 0 // where they can't be written, not each read tries anew
	p.reads.mu.Unlock()
	if full {
		if err := p.FlushReads(context.Background()); err != nil {
			p.Log.Error().Err(err).Msg("execution events of reads not written")
		}
	}
}

// FlushReads writes the events of reads that are held.
func (p *Platform) FlushReads(ctx context.Context) error {
	p.reads.mu.Lock()
	held := p.reads.held
	p.reads.held = nil
	p.reads.mu.Unlock()
	if len(held) == 0 {
		return nil
	}
	err := p.DB.Update(ctx, func(tx *store.Tx) error {
		if err := p.Governance.WriteUses(ctx, tx); err != nil {
			return err
		}
		for _, c := range held {
			took := c.event.DurationMS // as it was answered
			c.fillEvent(tx, cmp.Or(c.event.Status, "ok"))
			c.event.DurationMS = took
			if err := store.PutExecutionEvent(ctx, tx, c.event); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.As(err, new(*store.Fault)) || ctx.Err() != nil { // of the disk or of who asked, not of an event
		p.keepReads(held)
	}
	return err
}

// recordLater holds the event of a failed call that the store can't take now. What it answered is not kept for a repetition.
func (p *Platform) recordLater(c call) {
	c.request.CallID, c.event.Result, c.event.ResultExpiresAt = "", nil, nil
	p.keepReads([]*call{&c})
}

// keepReads holds events that could not be written until they can, the latest of them.
func (p *Platform) keepReads(held []*call) {
	p.reads.mu.Lock()
	defer p.reads.mu.Unlock()
	held = append(held, p.reads.held...)
	p.reads.held = held[max(0, len(held)-readsKept):]
}

// ForgetResults drops the results and keys of calls that were kept for their repetition and are past their time.
func (p *Platform) ForgetResults(ctx context.Context) error {
	return p.DB.Update(ctx, func(tx *store.Tx) error {
		return errors.Join(store.ForgetResults(ctx, tx), store.ForgetKeys(ctx, tx))
	})
}

// RunEvents forgets results that are past their time, and writes the events of reads until the context ends, and what is held then.
func (p *Platform) RunEvents(ctx context.Context) error {
	tick, forget := time.NewTicker(readsFlushed), time.NewTicker(forgetEvery)
	defer tick.Stop()
	defer forget.Stop()
	for {
		select {
		case <-forget.C:
			if err := p.ForgetResults(ctx); err != nil {
				p.Log.Error().Err(err).Msg("results that are past their time not forgotten")
			}
		case <-tick.C:
			if err := p.FlushReads(ctx); err != nil {
				p.Log.Error().Err(err).Msg("execution events of reads not written")
			}
		case <-ctx.Done():
			return p.FlushReads(context.WithoutCancel(ctx))
		}
	}
}
