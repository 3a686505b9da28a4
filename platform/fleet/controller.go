package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"powernode/schema"
	"powernode/store"
)

// lookEvery is how often the controller looks without being woken: what time alone moves.
const lookEvery = 5 * time.Second

// RunTasks takes drains and replacements from step to step, and ends holds whose time is over, until ctx ends. After a
// restart it goes on where the rows say. It runs once a platform, after Recover.
func (s *Service) RunTasks(ctx context.Context) error {
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		changed := s.DB.Watch(store.TopicTasks) // before the look: nothing is missed in between
		if err := s.AdvanceTasks(ctx); err != nil && ctx.Err() == nil {
			s.Log.Error().Err(err).Msg("tasks not taken on")
		}
		select {
		case <-changed:
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// AdvanceTasks is one look of RunTasks. It reaches outside: call it in no transaction.
func (s *Service) AdvanceTasks(ctx context.Context) error {
	if err := s.expireHolds(ctx); err != nil {
		return fmt.Errorf("end holds: %w", err)
	}
	var open []store.Task
	err := s.DB.View(ctx, func(v *store.View) (err error) {
		if open, err = store.OpenStepTasks(ctx, v); err != nil {
			return err
		}
		open, err = s.released(ctx, v, open)
		return err
	})
	if err != nil {
		return err
	}
	for _, t := range open {
		err := s.advance(ctx, t)
		var refusal *schema.Error
		if errors.As(err, &refusal) { // a rule says no: it will again
			err = s.onTask(ctx, t, func(tx *store.Tx, t store.Task) error { return failTask(ctx, tx, t, refusal.Message) })
		}
		if err != nil {
			s.Log.Error().Err(err).Str("task", string(t.ID)).Str("step", t.Step).Msg("task not taken on") // the others are
		}
	}
	return nil
}

// released leaves out the tasks of accounts that are stopped: they stay at their step, and go on from it.
func (s *Service) released(ctx context.Context, v *store.View, open []store.Task) ([]store.Task, error) {
	if s.Stopped == nil {
		return open, nil
	}
	stopped := map[store.AccountID]bool{}
	var out []store.Task
	for _, t := range open {
		halt, asked := stopped[t.AccountID]
		if !asked {
			var err error
			if halt, err = s.Stopped(ctx, v, t.AccountID); err != nil {
				return nil, fmt.Errorf("ask for an emergency stop: %w", err)
			}
			stopped[t.AccountID] = halt
		}
		if !halt {
			out = append(out, t)
		}
	}
	return out, nil
}

func (s *Service) advance(ctx context.Context, t store.Task) error {
	if t.Command == commandReplace {
		return s.advanceReplace(ctx, t)
	}
	return s.onTask(ctx, t, func(tx *store.Tx, t store.Task) error { return s.advanceDrain(ctx, tx, t) })
}

// onTask writes to a task that is still open and at the step that was looked at. Nothing is written, and no revision
// taken, where fn writes nothing.
func (s *Service) onTask(ctx context.Context, seen store.Task, fn func(tx *store.Tx, t store.Task) error) error {
	return s.controller(ctx, func(tx *store.Tx) error {
		t, err := store.TaskByID(ctx, &tx.View, seen.AccountID, seen.ID)
		if err != nil || !t.Open() || t.Step != seen.Step {
			return err
		}
		return fn(tx, t)
	})
}

// controller writes as the platform itself.
func (s *Service) controller(ctx context.Context, write func(tx *store.Tx) error) error {
	return s.DB.Update(ctx, func(tx *store.Tx) error {
		tx.Act(store.Actor{Kind: "platform", ID: "platform", Verb: "task_controller", CorrelationID: tx.NewID()})
		return write(tx)
	})
}

// bounded runs an act of the controller under its deadline, to its end also when the controller is to end.
func (s *Service) bounded(ctx context.Context, act func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recoverDeadline)
	defer cancel()
	return act(ctx)
}
