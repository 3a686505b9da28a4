package fleet

import (
	"context"
	"time"

	"powernode/platform/signal"
	"powernode/schema"
	"powernode/store"
)

// HoldInForce is an instance's hold, or nil: one whose time is over is none.
func HoldInForce(v *store.View, i store.Instance) *store.Hold {
	if h := i.Hold.V; h != nil && v.Now().Before(h.ExpiresAt.Time) {
		return h
	}
	return nil
}

// refuseHeld refuses operations on an instance that are held.
func refuseHeld(v *store.View, i store.Instance) error {
	h := HoldInForce(v, i)
	if h == nil {
		return nil
	}
	return schema.Errorf(schema.PreconditionFailed, "operations on instance %s are held until %s: %s", i.Name, h.ExpiresAt, h.Reason).
		WithDetail("hold", h).WithHint("system_release_instance_hold", "Lets operations proceed.")
}

func refuseEnded(i store.Instance) error {
	if i.Live() {
		return nil
	}
	return schema.Errorf(schema.PreconditionFailed, "instance %s is terminated", i.Name)
}

// CheckHold refuses a hold on what is held already.
func (s *Service) CheckHold(ctx context.Context, v *store.View, acct store.AccountID, id store.InstanceID) error {
	i, err := InstanceByID(ctx, v, acct, id)
	if err != nil {
		return err
	}
	if err := refuseEnded(i); err != nil {
		return err
	}
	if h := HoldInForce(v, i); h != nil {
		return schema.Errorf(schema.Conflict, "operations on instance %s are held already, until %s: %s", i.Name, h.ExpiresAt, h.Reason).
			WithDetail("hold", h)
	}
	return nil
}

// Hold holds operations on an instance for a time.
func (s *Service) Hold(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.InstanceID, reason, by string, ttl time.Duration) (store.Instance, error) {
	i, err := InstanceByID(ctx, &tx.View, acct, id)
	if err != nil {
		return i, err
	}
	if i.Hold.V != nil { // its time is over, and no tick has seen it yet
		if i, err = s.endHold(ctx, tx, i); err != nil {
			return i, err
		}
	}
	i.Hold.V = &store.Hold{Reason: reason, By: by, Since: store.At(tx.Now()), ExpiresAt: store.At(tx.Now().Add(ttl))}
	if i, err = store.UpdateInstance(ctx, tx, i); err != nil {
		return i, err
	}
	err = audit(ctx, tx, acct, "updated", resourceInstance, string(i.ID), store.Object{"hold": nil}, store.Object{"hold": holdValue(i)})
	if err != nil {
		return i, err
	}
	return i, signal.Open(ctx, tx, acct, string(i.ID), signal.Event{Kind: "system.instance.held", Subject: about(i),
		Payload: store.Object{"reason": reason, "expires_at": i.Hold.V.ExpiresAt}})
}

func holdValue(i store.Instance) any {
	if i.Hold.V == nil {
		return nil
	}
	return store.Object{"reason": i.Hold.V.Reason, "by": i.Hold.V.By, "since": i.Hold.V.Since, "expires_at": i.Hold.V.ExpiresAt}
}

// CheckRelease refuses to release what is not held.
func (s *Service) CheckRelease(ctx context.Context, v *store.View, acct store.AccountID, id store.InstanceID) error {
	i, err := InstanceByID(ctx, v, acct, id)
	if err != nil {
		return err
	}
	if HoldInForce(v, i) == nil {
		return schema.Errorf(schema.PreconditionFailed, "no operations hold on instance %s", i.Name)
	}
	return nil
}

// Release ends a hold before its time, and answers what it was.
func (s *Service) Release(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.InstanceID) (store.Hold, error) {
	i, err := InstanceByID(ctx, &tx.View, acct, id)
	if err != nil {
		return store.Hold{}, err
	}
	was := *i.Hold.V
	_, err = s.endHold(ctx, tx, i)
	return was, err
}

func (s *Service) endHold(ctx context.Context, tx *store.Tx, i store.Instance) (store.Instance, error) {
	was := *i.Hold.V
	old := store.Object{"hold": holdValue(i)}
	i.Hold.V = nil
	i, err := store.UpdateInstance(ctx, tx, i)
	if err != nil {
		return i, err
	}
	if err := audit(ctx, tx, i.AccountID, "updated", resourceInstance, string(i.ID), old, store.Object{"hold": nil}); err != nil {
		return i, err
	}
	return i, closeHold(ctx, tx, i, was)
}

func closeHold(ctx context.Context, tx *store.Tx, i store.Instance, was store.Hold) error {
	return signal.Close(ctx, tx, i.AccountID, string(i.ID), "system.instance.held", about(i),
		store.Object{"reason": was.Reason, "expires_at": was.ExpiresAt})
}

// expireHolds ends the holds whose time is over.
func (s *Service) expireHolds(ctx context.Context) error {
	var due []store.Instance
	err := s.DB.View(ctx, func(v *store.View) error {
		held, err := store.HeldInstances(ctx, v)
		for _, i := range held {
			if i.Hold.V != nil && HoldInForce(v, i) == nil {
				due = append(due, i)
			}
		}
		return err
	})
	if err != nil || len(due) == 0 {
		return err
	}
	return s.controller(ctx, func(tx *store.Tx) error {
		for _, i := range due {
			now, err := InstanceByID(ctx, &tx.View, i.AccountID, i.ID)
			if err != nil {
				return err
			}
			if now.Hold.V == nil || HoldInForce(&tx.View, now) != nil {
				continue
			}
			if _, err := s.endHold(ctx, tx, now); err != nil {
				return err
			}
		}
		return nil
	})
}
