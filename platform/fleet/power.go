package fleet

import (
	"context"
	"errors"
	"fmt"

	"powernode/platform/provider"
	"powernode/schema"
	"powernode/store"
)

// Actions on an instance's machine that its provider carries out.
const (
	ActionStart  = "start"
	ActionStop   = "stop"
	ActionReboot = "reboot"
)

// PowerInput asks for such an action.
type PowerInput struct {
	InstanceID  store.InstanceID
	Action      string
	Force       bool   // the hard way, without asking the operating system
	OperationID string // "" is none
}

// event is what the action is in an instance's life; actions and events of the table have the same names.
func (in PowerInput) event() string { return in.Action }

func (in PowerInput) intent() string {
	if in.Force {
		return in.Action + "_force"
	}
	return in.Action
}

// powerIntents are the intents of such actions, with what the provider is asked for.
var powerIntents = map[string]struct {
	action string
	mode   provider.StopMode
}{
	store.IntentStart:       {ActionStart, provider.Graceful},
	store.IntentStop:        {ActionStop, provider.Graceful},
	store.IntentStopForce:   {ActionStop, provider.PowerOff},
	store.IntentReboot:      {ActionReboot, provider.Graceful},
	store.IntentRebootForce: {ActionReboot, provider.PowerOff},
}

// Powered is an action that was asked for.
type Powered struct {
	Instance store.Instance
	Task     store.Task
	intent   string
	by       string // type of the provider
}

// CheckPower refuses what the table of states, a hold or a floor forbids.
func (s *Service) CheckPower(ctx context.Context, v *store.View, acct store.AccountID, in PowerInput) error {
	i, err := InstanceByID(ctx, v, acct, in.InstanceID)
	if err != nil {
		return err
	}
	if before, err := operationTask(ctx, v, i, in.Action, in.OperationID); err != nil || before != nil {
		return err
	}
	if _, ok := after(in.event(), i.Status); !ok {
		return refuseTransition(in.Action, in.event(), i.Status)
	}
	if err := refuseHeld(v, i); err != nil {
		return err
	}
	if err := refuseReplaced(ctx, v, i); err != nil {
		return err
	}
	if err := refuseBusy(i); err != nil {
		return err
	}
	if i.CloudInstanceID == "" {
		return schema.Errorf(schema.PreconditionFailed, "instance %s has no machine", i.Name)
	}
	if err := s.canPower(ctx, v, i, in.Action); err != nil {
		return err
	}
	if in.Action == ActionStart {
		return nil
	}
	return s.Cluster.StopForbidden(ctx, v, acct, i.ID)
}

// refuseBusy refuses a second act on a machine before the first has its outcome.
func refuseBusy(i store.Instance) error {
	if i.Intent == "" {
		return nil
	}
	return schema.Errorf(schema.Unavailable, "the machine of instance %s is being worked on: %s", i.Name, i.Intent).AsRetryable()
}

// canPower refuses an action that an instance's provider can't do.
func (s *Service) canPower(ctx context.Context, v *store.View, i store.Instance, action string) error {
	p, err := store.ProviderByID(ctx, v, i.AccountID, i.ProviderID)
	if err != nil {
		return err
	}
	adapter, err := s.adapter(p.ProviderType)
	if err != nil {
		return err
	}
	if !provider.Can(adapter, provider.CapabilityPower) {
		return schema.Errorf(schema.PreconditionFailed, "provider %s can't do %s", p.Name, action).
			WithDetail("capability", provider.CapabilityPower)
	}
	return nil
}

// operationTask is the task on an instance that a call under an operation id has made, or nil; one that failed does not count.
func operationTask(ctx context.Context, v *store.View, i store.Instance, command, operationID string) (*store.Task, error) {
	if operationID == "" {
		return nil, nil
	}
	t, err := store.TaskOfOperation(ctx, v, i.AccountID, string(i.ID), command, operationID)
	if errors.Is(err, store.ErrNoRow) || (err == nil && t.Status == store.TaskFailed) {
		return nil, nil
	}
	return &t, err
}

// Power writes the intent of an action: the instance's status, and the task that tells of it.
func (s *Service) Power(ctx context.Context, tx *store.Tx, acct store.AccountID, in PowerInput) (Powered, error) {
	i, err := InstanceByID(ctx, &tx.View, acct, in.InstanceID)
	if err != nil {
		return Powered{}, err
	}
	before, err := operationTask(ctx, &tx.View, i, in.Action, in.OperationID)
	if err != nil {
		return Powered{}, err
	}
	if before != nil {
		return s.resumePower(ctx, &tx.View, i, *before)
	}
	t := newTask(tx, i, in.Action, store.Object{"force": in.Force, "operation_id": orNull(in.OperationID)})
	t.Status, t.Step = store.TaskRunning, "provider"
	if t, err = insertTask(ctx, tx, t); err != nil {
		return Powered{}, err
	}
	was := i.Status
	i.Status, _ = after(in.event(), i.Status)
	i.Intent, i.ErrorMessage = in.intent(), ""
	if i, err = store.UpdateInstance(ctx, tx, i); err != nil {
		return Powered{}, err
	}
	err = audit(ctx, tx, acct, "updated", resourceInstance, string(i.ID), store.Object{"status": was, "intent": nil},
		store.Object{"status": i.Status, "intent": i.Intent})
	if err != nil {
		return Powered{}, err
	}
	return s.resumePower(ctx, &tx.View, i, t)
}

func (s *Service) resumePower(ctx context.Context, v *store.View, i store.Instance, t store.Task) (Powered, error) {
	p, err := store.ProviderByID(ctx, v, i.AccountID, i.ProviderID)
	out := Powered{Instance: i, Task: t, by: p.ProviderType}
	if t.Open() {
		out.intent = i.Intent
	}
	return out, err
}

// PowerMachine asks the provider for the action of an intent. It reaches outside: call it in no transaction.
func (s *Service) PowerMachine(ctx context.Context, p Powered) error {
	asked, ok := powerIntents[p.intent]
	if !ok {
		return nil // it has its outcome
	}
	if err := s.acts.enter(ctx, p.Instance.ID); err != nil {
		return err
	}
	var now store.Instance
	err := s.DB.View(ctx, func(v *store.View) (err error) {
		now, err = store.InstanceByID(ctx, v, p.Instance.AccountID, p.Instance.ID)
		return err
	})
	if err != nil || now.Intent != p.intent || (asked.action == ActionReboot && now.Status != store.InstanceRebooting) {
		return err // another has written the outcome, or the machine has come back already
	}
	adapter, err := s.adapter(p.by)
	if err != nil {
		return err
	}
	switch asked.action {
	case ActionStart:
		err = adapter.Start(ctx, now.CloudInstanceID)
	case ActionStop:
		err = adapter.Stop(ctx, now.CloudInstanceID, asked.mode)
	default:
		err = adapter.Reboot(ctx, now.CloudInstanceID, asked.mode)
	}
	if err != nil {
		s.Log.Warn().Err(err).Str("instance", string(now.ID)).Str("action", asked.action).Msg("machine not acted on")
	}
	return err
}

// FinishPower writes what came of an action. A refusal beside a nil error is committed with the rows, and answered.
func (s *Service) FinishPower(ctx context.Context, tx *store.Tx, p Powered, outside error) (store.Instance, error, error) {
	i, err := InstanceByID(ctx, &tx.View, p.Instance.AccountID, p.Instance.ID)
	if err != nil || p.intent == "" {
		return i, nil, err
	}
	t, err := store.TaskByID(ctx, &tx.View, i.AccountID, p.Task.ID)
	if err != nil {
		return i, nil, err
	}
	if i.Intent != p.intent || !t.Open() { // a platform that was started anew has written the outcome
		if t.Status == store.TaskFailed {
			return i, p.refusal(t.ErrorMessage), nil
		}
		return i, nil, nil
	}
	was := i.Status
	i.Intent = ""
	if outside != nil {
		i.ErrorMessage = failureText(outside)
		i.Status, _ = after(eventFailed, i.Status)
	} else if powerIntents[p.intent].action == ActionStop && i.Status == store.InstanceStopping {
		i.Status, _ = after(eventStopped, i.Status)
	}
	if i, err = store.UpdateInstance(ctx, tx, i); err != nil {
		return i, nil, err
	}
	err = audit(ctx, tx, i.AccountID, "updated", resourceInstance, string(i.ID), store.Object{"status": was, "intent": p.intent},
		store.Object{"status": i.Status, "intent": nil})
	if err != nil {
		return i, nil, err
	}
	if outside != nil {
		return i, p.refusal(failureText(outside)), failTask(ctx, tx, t, failureText(outside))
	}
	return i, nil, completeTask(ctx, tx, t, "done by the provider", nil)
}

// refusal is what the call of an action that failed is answered.
func (p Powered) refusal(why string) error {
	return schema.Errorf(schema.Unavailable, "provider %s: %s", p.by, why).WithDetail("instance_id", p.Instance.ID)
}

// recoverPower finishes an action that a killed platform left without an outcome.
func (s *Service) recoverPower(ctx context.Context, i store.Instance) error {
	var p Powered
	err := s.DB.View(ctx, func(v *store.View) error {
		open, err := store.OpenTasksOf(ctx, v, i.AccountID, string(i.ID))
		if err != nil {
			return err
		}
		for _, t := range open {
			if t.Command == powerIntents[i.Intent].action {
				p, err = s.resumePower(ctx, v, i, t)
				return err
			}
		}
		return fmt.Errorf("no task tells of the act %s", i.Intent)
	})
	if err != nil {
		return err
	}
	outside := s.PowerMachine(ctx, p)
	return s.outcome(ctx, func(tx *store.Tx) error {
		_, _, err := s.FinishPower(ctx, tx, p, outside)
		return err
	})
}
