package fleet

import (
	"context"
	"errors"
	"time"

	"powernode/platform/provider"
	"powernode/schema"
	"powernode/store"
)

// heardLately is how young a heartbeat must be for its instance to count as one that runs.
const heardLately = 180 * time.Second

// destroyAfter is how old a live instance's heartbeat must be before its record may go.
const destroyAfter = 10 * time.Minute

// lastHeard is when an instance's agent reported last; the zero time is never.
func lastHeard(ctx context.Context, v *store.View, id store.InstanceID) (time.Time, error) {
	r, err := store.InstanceReportOf(ctx, v, id)
	if errors.Is(err, store.ErrNoRow) {
		return time.Time{}, nil
	}
	return r.ReceivedAt.Time, err
}

// runs says whether an instance runs, as far as anybody knows: its status says so, and its agent was heard lately.
func runs(ctx context.Context, v *store.View, i store.Instance) (bool, error) {
	heard, err := lastHeard(ctx, v, i.ID)
	if i.Status != store.InstanceRunning && i.Status != store.InstanceRebooting {
		return false, err
	}
	return v.Now().Sub(heard) <= heardLately, err
}

// CheckDestroy refuses to forget an instance that somebody has heard of lately, or that a floor guards.
func (s *Service) CheckDestroy(ctx context.Context, v *store.View, acct store.AccountID, id store.InstanceID) error {
	i, err := InstanceByID(ctx, v, acct, id)
	if err != nil || !i.Live() {
		return err
	}
	if err := refuseHeld(v, i); err != nil {
		return err
	}
	if err := refuseReplaced(ctx, v, i); err != nil {
		return err
	}
	if i.Intent != store.IntentDestroy {
		if err := refuseBusy(i); err != nil {
			return err
		}
	}
	return s.forgetForbidden(ctx, v, i)
}

// forgetForbidden refuses to forget a live instance that was heard of lately, or that a floor guards.
func (s *Service) forgetForbidden(ctx context.Context, v *store.View, i store.Instance) error {
	heard, err := lastHeard(ctx, v, i.ID)
	if err != nil {
		return err
	}
	if v.Now().Sub(heard) <= destroyAfter {
		return schema.Errorf(schema.PreconditionFailed, "instance %s has sent a heartbeat within 10 minutes", i.Name).
			WithDetail("last_heartbeat_at", store.At(heard)).WithHint("system_terminate_instance", "Ends the machine too.")
	}
	return s.Cluster.RemovalForbidden(ctx, v, i.AccountID, i.ID)
}

// Destroyed is an instance whose record is to go, or has gone.
type Destroyed struct {
	Instance      store.Instance
	Peers         int64
	DependentRows map[string]int64
	Warnings      []Warning
	by            string
}

// Destroy writes the intent: the instance's record is to go, once its provider knows no such machine.
func (s *Service) Destroy(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.InstanceID) (Destroyed, error) {
	i, err := InstanceByID(ctx, &tx.View, acct, id)
	if err != nil {
		return Destroyed{}, err
	}
	was := i.Intent
	i.Intent = store.IntentDestroy
	if i, err = store.UpdateInstance(ctx, tx, i); err != nil {
		return Destroyed{}, err
	}
	err = audit(ctx, tx, acct, "updated", resourceInstance, string(id), store.Object{"name": i.Name, "intent": orNull(was)},
		store.Object{"name": i.Name, "intent": i.Intent})
	if err != nil {
		return Destroyed{}, err
	}
	p, err := store.ProviderByID(ctx, &tx.View, acct, i.ProviderID)
	return Destroyed{Instance: i, by: p.ProviderType}, err
}

// errListed says that a provider still has the machine of an instance that is to be forgotten.
var errListed = errors.New("the provider still lists the machine")

// LookForMachine asks the provider whether it still has an instance's machine. It reaches outside: call it in no
// transaction.
func (s *Service) LookForMachine(ctx context.Context, d Destroyed) error {
	if d.Instance.CloudInstanceID == "" {
		return nil
	}
	adapter, err := s.adapter(d.by)
	if err != nil {
		return err
	}
	if !provider.Can(adapter, provider.CapabilitySync) {
		return nil // it knows nothing of its machines; the agent's silence has to do
	}
	m, err := adapter.Get(ctx, d.Instance.CloudInstanceID)
	switch {
	case errors.Is(err, provider.ErrNotFound):
		return nil
	case err != nil:
		return err
	case m.Status == provider.StatusTerminated:
		return nil
	}
	return errListed
}

// FinishDestroy removes an instance's record, or says why it stays. A refusal beside a nil error is committed with the
// rows, and answered.
func (s *Service) FinishDestroy(ctx context.Context, tx *store.Tx, d Destroyed, outside error) (Destroyed, error, error) {
	i, err := InstanceByID(ctx, &tx.View, d.Instance.AccountID, d.Instance.ID)
	if err != nil {
		return d, nil, err
	}
	if i.Intent != store.IntentDestroy { // another call has found that it has to stay
		return d, schema.Errorf(schema.Unavailable, "another call has looked at instance %s meanwhile", i.Name).AsRetryable(), nil
	}
	refusal, err := s.staysBecause(ctx, tx, d, i, outside)
	if err != nil {
		return d, nil, err
	}
	if refusal != nil {
		i.Intent = ""
		if _, err := store.UpdateInstance(ctx, tx, i); err != nil {
			return d, nil, err
		}
		return d, refusal, audit(ctx, tx, i.AccountID, "updated", resourceInstance, string(i.ID), store.Object{"intent": store.IntentDestroy},
			store.Object{"intent": nil})
	}
	if i.Live() {
		if d.Peers, i, err = s.endForgotten(ctx, tx, i); err != nil {
			return d, nil, err
		}
	}
	if d.DependentRows, err = store.RowsOfInstance(ctx, &tx.View, i.ID); err != nil {
		return d, nil, err
	}
	if d.Warnings, err = Uncleaned(ctx, &tx.View, i); err != nil {
		return d, nil, err
	}
	if err := forgetInstance(ctx, tx, i); err != nil {
		return d, nil, err
	}
	d.Instance = i
	return d, nil, audit(ctx, tx, i.AccountID, "deleted", resourceInstance, string(i.ID), store.Object{"name": i.Name, "status": i.Status}, nil)
}

// staysBecause is why a record is not removed, or nil: what the provider said, and what the rules say by now.
func (s *Service) staysBecause(ctx context.Context, tx *store.Tx, d Destroyed, i store.Instance, outside error) (refusal, err error) {
	switch {
	case errors.Is(outside, errListed):
		return schema.Errorf(schema.PreconditionFailed, "provider %s still lists the machine of instance %s", d.by, i.Name).
			WithDetail("cloud_instance_id", i.CloudInstanceID).WithHint("system_terminate_instance", "Ends the machine too."), nil
	case outside != nil:
		return schema.Errorf(schema.Unavailable, "provider %s: %s", d.by, failureText(outside)).WithDetail("instance_id", i.ID), nil
	case !i.Live():
		return nil, nil
	}
	err = s.forgetForbidden(ctx, &tx.View, i)
	var coded *schema.Error
	if errors.As(err, &coded) {
		return coded, nil
	}
	return nil, err
}

// endForgotten ends a live instance whose machine is gone, and answers how many peers left with it.
func (s *Service) endForgotten(ctx context.Context, tx *store.Tx, i store.Instance) (int64, store.Instance, error) {
	ending, err := s.end(ctx, tx, i.AccountID, i.ID, "destroyed")
	if err != nil {
		return 0, i, err
	}
	peers := int64(0)
	if l := ending.Instance.Provisioning.V.Leaving; l != nil {
		peers = l.DetachedPeers
	}
	i, _, err = s.FinishTerminate(ctx, tx, ending, nil)
	return peers, i, err
}

func (s *Service) recoverDestroy(ctx context.Context, i store.Instance) error {
	d := Destroyed{Instance: i}
	err := s.DB.View(ctx, func(v *store.View) error {
		p, err := store.ProviderByID(ctx, v, i.AccountID, i.ProviderID)
		d.by = p.ProviderType
		return err
	})
	if err != nil {
		return err
	}
	outside := s.LookForMachine(ctx, d)
	return s.outcome(ctx, func(tx *store.Tx) error {
		_, _, err := s.FinishDestroy(ctx, tx, d, outside)
		return err
	})
}

// ReapInput asks for the end of a machine that is lost.
type ReapInput struct {
	InstanceID    store.InstanceID
	Reason        string // told in the record
	AcceptRunning bool
}

// CheckReap refuses to reap what runs, unless that is accepted, and what a floor or a hold guards.
func (s *Service) CheckReap(ctx context.Context, v *store.View, acct store.AccountID, in ReapInput) error {
	i, err := InstanceByID(ctx, v, acct, in.InstanceID)
	if err != nil || !i.Live() {
		return err
	}
	if err := in.refuseRunning(ctx, v, i); err != nil {
		return err
	}
	return s.CheckTerminate(ctx, v, acct, in.InstanceID)
}

// Reap writes the intent to end a machine without asking its agent, as Terminate does.
func (s *Service) Reap(ctx context.Context, tx *store.Tx, acct store.AccountID, in ReapInput) (Ending, error) {
	e, err := s.end(ctx, tx, acct, in.InstanceID, "reaped")
	if err != nil || e.done {
		return e, err
	}
	return e, audit(ctx, tx, acct, "updated", resourceInstance, string(in.InstanceID), store.Object{"name": e.Instance.Name, "reaped": nil},
		store.Object{"name": e.Instance.Name, "reaped": store.Object{"reason": printed(in.Reason)}})
}

func (in ReapInput) refuseRunning(ctx context.Context, v *store.View, i store.Instance) error {
	running, err := runs(ctx, v, i)
	if err != nil || !running || in.AcceptRunning {
		return err
	}
	return schema.Errorf(schema.PreconditionFailed, "instance %s runs; pass accept_running to end it all the same", i.Name).
		WithDetail("status", i.Status)
}
