package fleet

import (
	"context"
	"errors"
	"strings"

	"powernode/platform/signal"
	"powernode/schema"
	"powernode/store"
)

// Owners of cordons: an operator's names who, a drain's names its task.
const (
	ownerOperator = "operator:"
	ownerDrain    = "drain:"
)

// CheckCordon refuses to cordon what somebody else has cordoned.
func (s *Service) CheckCordon(ctx context.Context, v *store.View, acct store.AccountID, id store.InstanceID, by string) error {
	i, err := InstanceByID(ctx, v, acct, id)
	if err != nil {
		return err
	}
	if err := refuseEnded(i); err != nil {
		return err
	}
	if c := i.Cordon.V; c != nil && c.Owner != ownerOperator+by {
		return refuseCordoned(i)
	}
	return nil
}

func refuseCordoned(i store.Instance) error {
	return schema.Errorf(schema.Conflict, "cordoned by %s", i.Cordon.V.Owner).WithDetail("cordon", i.Cordon.V)
}

// Cordon keeps new work off an instance: pools pass it over, and so does Kubernetes where it is a member. by is whose the
// cordon is.
func (s *Service) Cordon(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.InstanceID, by, reason string) (store.Instance, []Warning, error) {
	i, err := InstanceByID(ctx, &tx.View, acct, id)
	if err != nil {
		return i, nil, err
	}
	cordon := store.Cordon{Owner: ownerOperator + by, Reason: reason, Since: store.At(tx.Now())}
	if c := i.Cordon.V; c != nil {
		if c.Reason == reason {
			return i, nil, nil
		}
		cordon.Since = c.Since
	}
	if i, err = s.setCordon(ctx, tx, i, &cordon); err != nil {
		return i, nil, err
	}
	warnings, err := s.cordonMember(ctx, tx, i, &cordon)
	return i, warnings, err
}

// CheckUncordon refuses to lift a cordon that is an upgrade's or a running drain's.
func (s *Service) CheckUncordon(ctx context.Context, v *store.View, acct store.AccountID, id store.InstanceID) error {
	i, err := InstanceByID(ctx, v, acct, id)
	if err != nil {
		return err
	}
	c := i.Cordon.V
	if c == nil || strings.HasPrefix(c.Owner, ownerOperator) {
		return nil
	}
	task, drain := strings.CutPrefix(c.Owner, ownerDrain)
	if !drain {
		return refuseCordoned(i)
	}
	t, err := store.TaskByID(ctx, v, acct, store.TaskID(task))
	if errors.Is(err, store.ErrNoRow) || (err == nil && !t.Open()) {
		return nil // the drain is over: what it leaves is the operators'
	}
	if err != nil {
		return err
	}
	return refuseCordoned(i)
}

// Uncordon lets work come back to an instance, and starts what a drain has stopped.
func (s *Service) Uncordon(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.InstanceID) (store.Instance, []Warning, error) {
	i, err := InstanceByID(ctx, &tx.View, acct, id)
	if err != nil || i.Cordon.V == nil {
		return i, nil, err
	}
	return s.uncordon(ctx, tx, i)
}

func (s *Service) uncordon(ctx context.Context, tx *store.Tx, i store.Instance) (store.Instance, []Warning, error) {
	i.DrainedAt = nil
	i, err := s.setCordon(ctx, tx, i, nil)
	if err != nil {
		return i, nil, err
	}
	warnings, err := s.cordonMember(ctx, tx, i, nil)
	return i, warnings, err
}

// setCordon writes an instance's cordon and tells it.
func (s *Service) setCordon(ctx context.Context, tx *store.Tx, i store.Instance, cordon *store.Cordon) (store.Instance, error) {
	was := i.Cordon.V
	i.Cordon.V = cordon
	i, err := store.UpdateInstance(ctx, tx, i)
	if err != nil {
		return i, err
	}
	tx.TouchInstance(i.ID) // what a drain has stopped
	err = audit(ctx, tx, i.AccountID, "updated", resourceInstance, string(i.ID), store.Object{"cordon": cordonValue(was)},
		store.Object{"cordon": cordonValue(cordon)})
	if err != nil {
		return i, err
	}
	if cordon == nil {
		return i, closeCordon(ctx, tx, i, was)
	}
	return i, signal.Open(ctx, tx, i.AccountID, string(i.ID), signal.Event{Kind: "system.instance.cordoned", Subject: about(i),
		Payload: store.Object{"owner": cordon.Owner, "reason": cordon.Reason}})
}

func closeCordon(ctx context.Context, tx *store.Tx, i store.Instance, was *store.Cordon) error {
	payload := store.Object{}
	if was != nil {
		payload = store.Object{"owner": was.Owner, "reason": was.Reason}
	}
	return signal.Close(ctx, tx, i.AccountID, string(i.ID), "system.instance.cordoned", about(i), payload)
}

func cordonValue(c *store.Cordon) any {
	if c == nil {
		return nil
	}
	return store.Object{"owner": c.Owner, "reason": c.Reason, "since": c.Since}
}

// cordonMember does with an instance's Kubernetes node what was done with the instance; nil uncordons.
func (s *Service) cordonMember(ctx context.Context, tx *store.Tx, i store.Instance, cordon *store.Cordon) ([]Warning, error) {
	n, err := store.ClusterNodeByInstance(ctx, &tx.View, i.AccountID, i.ID)
	if errors.Is(err, store.ErrNoRow) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	task, err := s.Cluster.Cordon(ctx, tx, n, cordon)
	if err != nil || task != nil {
		return nil, err
	}
	return []Warning{{"kubernetes_not_told", "no server of the cluster is ready: its Kubernetes node " + n.Name + " stays as it is"}}, nil
}
