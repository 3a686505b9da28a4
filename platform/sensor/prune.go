package sensor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"powernode/platform/signal"
	"powernode/store"
)

const (
	// pruneBatch bounds what one transaction removes: nobody waits for long.
	pruneBatch = 1000
	// eventsKept is how long execution events are kept.
	eventsKept = 90 * day * time.Second
)

// signalsKept is how long signals are kept, by severity (contract 14). Those of an open condition stay.
var signalsKept = map[string]time.Duration{
	signal.Low: 90 * day * time.Second, signal.Medium: 90 * day * time.Second,
	signal.High: 365 * day * time.Second, signal.Critical: 365 * day * time.Second,
}

// Prune removes signals and execution events that are past their time. Where nothing is, nothing is written.
func (s *Service) Prune(ctx context.Context) error {
	for severity, kept := range signalsKept {
		if err := s.pruneSignals(ctx, severity, kept); err != nil {
			return err
		}
	}
	return s.pruneEvents(ctx)
}

func (s *Service) pruneSignals(ctx context.Context, severity string, kept time.Duration) error {
	for {
		due := false
		err := s.DB.View(ctx, func(v *store.View) (err error) {
			due, err = store.SignalsAreDue(ctx, v, severity, v.Now().Add(-kept))
			return err
		})
		if err != nil || !due {
			return err
		}
		err = s.DB.Update(ctx, func(tx *store.Tx) error {
			_, err := store.PruneSignals(ctx, tx, severity, tx.Now().Add(-kept), pruneBatch)
			return err
		})
		if err != nil {
			return fmt.Errorf("remove signals of severity %s: %w", severity, err)
		}
	}
}

func (s *Service) pruneEvents(ctx context.Context) error {
	for {
		due := false
		err := s.DB.View(ctx, func(v *store.View) error {
			oldest, err := store.OldestExecutionEvent(ctx, v)
			if errors.Is(err, store.ErrNoRow) {
				return nil
			}
			due = v.Now().Sub(oldest.Time) > eventsKept
			return err
		})
		if err != nil || !due {
			return err
		}
		err = s.DB.Update(ctx, func(tx *store.Tx) error {
			_, err := store.PruneExecutionEvents(ctx, tx, tx.Now().Add(-eventsKept), pruneBatch)
			return err
		})
		if err != nil {
			return fmt.Errorf("remove execution events: %w", err)
		}
	}
}
