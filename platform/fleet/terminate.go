package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"powernode/platform/provider"
	"powernode/platform/signal"
	"powernode/schema"
	"powernode/store"
)

// Ending is an instance that is to end, or has ended.
type Ending struct {
	Instance store.Instance
	done     bool // it had ended already
	machine  string
	by       string
}

// CheckTerminate refuses what a floor or a hold forbids.
func (s *Service) CheckTerminate(ctx context.Context, v *store.View, acct store.AccountID, id store.InstanceID) error {
	i, err := InstanceByID(ctx, v, acct, id)
	if err != nil || !i.Live() {
		return err
	}
	if _, ok := after(eventTerminate, i.Status); !ok {
		return refuseTransition("terminate", eventTerminate, i.Status)
	}
	if err := refuseHeld(v, i); err != nil {
		return err
	}
	if err := refuseReplaced(ctx, v, i); err != nil {
		return err
	}
	return s.endForbidden(ctx, v, i)
}

// endForbidden refuses what a floor forbids, or an act that has no outcome yet.
func (s *Service) endForbidden(ctx context.Context, v *store.View, i store.Instance) error {
	if i.Intent == store.IntentCreate {
		return schema.Errorf(schema.Unavailable, "the machine of instance %s is being made", i.Name)
	}
	if _, powering := powerIntents[i.Intent]; powering {
		return refuseBusy(i)
	}
	hosts, err := s.hostsPlatform(ctx, v, i)
	if err != nil {
		return err
	}
	if hosts {
		return schema.Errorf(schema.PreconditionFailed, "self_management_violation: instance %s hosts the platform itself: move that first. "+
			"A copy of the platform's machine, which has the same machine id, is told apart once its agent reports from a kernel of its own: "+
			"start it, or reboot it where it was copied running. Of one that is gone, system_destroy_instance ends the record", i.Name)
	}
	return s.Cluster.RemovalForbidden(ctx, v, i.AccountID, i.ID)
}

// hostsPlatform says whether an instance is the machine that the platform runs on, as far as anybody knows. The machine id says
// so, at enrolment or in the last report; a copy of that machine has it too, and is known by what only a copy can do: report
// from another kernel while the platform's runs. A report that came before the platform's machine was rebooted proves nothing.
func (s *Service) hostsPlatform(ctx context.Context, v *store.View, i store.Instance) (bool, error) {
	report, err := store.InstanceReportOf(ctx, v, i.ID)
	if err != nil && !noRow(err) {
		return false, err
	}
	enrolled, facts := i.Provisioning.V, report.Facts.V
	if enrolled.MachineID == "" && facts.MachineID == "" {
		return enrolled.HostsPlatform, nil
	}
	if s.MachineID == "" || (s.MachineID != enrolled.MachineID && s.MachineID != facts.MachineID) {
		return false, nil
	}
	elsewhere := s.KernelBootID != "" && facts.HeardBy == s.KernelBootID && facts.KernelBootID != "" && facts.KernelBootID != s.KernelBootID
	return !elsewhere, nil
}

// Terminate writes the intent: member and peers of the instance leave, and its machine is to end.
func (s *Service) Terminate(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.InstanceID) (Ending, error) {
	return s.end(ctx, tx, acct, id, "terminated")
}

// end is Terminate, and says why a membership ended.
func (s *Service) end(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.InstanceID, why string) (Ending, error) {
	i, err := InstanceByID(ctx, &tx.View, acct, id)
	if err != nil || !i.Live() {
		return Ending{Instance: i, done: true}, err
	}
	member, err := s.Cluster.RemoveInstance(ctx, tx, acct, id, why)
	if err != nil {
		return Ending{}, fmt.Errorf("end the membership: %w", err)
	}
	detached, _, err := s.Network.DetachInstance(ctx, tx, acct, id)
	if err != nil {
		return Ending{}, fmt.Errorf("detach: %w", err)
	}
	if err := cancelTasks(ctx, tx, i); err != nil {
		return Ending{}, err
	}
	leaving := store.Leaving{}
	if i.Provisioning.V.Leaving != nil {
		leaving = *i.Provisioning.V.Leaving // of a termination that the provider did not answer
	}
	leaving.DetachedPeers += int64(detached)
	if member != nil {
		leaving.RemovedMember = memberValues(*member)
	}
	i.Provisioning.V.Leaving, i.Intent = &leaving, store.IntentTerminate
	if i, err = store.UpdateInstance(ctx, tx, i); err != nil {
		return Ending{}, err
	}
	fate, err := s.fateOf(ctx, &tx.View, i)
	if err != nil {
		return Ending{}, err
	}
	err = audit(ctx, tx, acct, "updated", resourceInstance, string(id), store.Object{"intent": nil}, store.Object{"intent": i.Intent, "machine": fate})
	if err != nil {
		return Ending{}, err
	}
	return s.resumeEnding(ctx, &tx.View, i)
}

// fateOf is what the end of an instance comes to for its machine, for who reads the plan: whoever decides must know whether it is
// destroyed.
func (s *Service) fateOf(ctx context.Context, v *store.View, i store.Instance) (string, error) {
	if i.CloudInstanceID == "" {
		return store.MachineNone, nil
	}
	p, err := store.ProviderByID(ctx, v, i.AccountID, i.ProviderID)
	if err == nil && s.byHand(p.ProviderType) {
		return store.MachineStays, nil
	}
	return store.MachineDestroyed, err
}

// memberValues is a member that ended as the answer tells it: its keys are the contract's.
func memberValues(n store.ClusterNode) store.Object {
	return store.Object{"id": n.ID, "kubernetes_cluster_id": n.ClusterID, "node_instance_id": n.InstanceID, "node_id": n.NodeID, "name": n.Name,
		"role": n.Role, "status": "removing", "k8s_version": orNull(n.K8sVersion), "cordon": nil, "api_ready": nil, "etcd_member": nil,
		"pod_cidr": nil, "last_heartbeat_at": nil}
}

// cancelTasks ends the work that an instance's agent will not do any more. A replacement goes on: it is what ends it.
func cancelTasks(ctx context.Context, tx *store.Tx, i store.Instance) error {
	open, err := store.OpenTasksOf(ctx, &tx.View, i.AccountID, string(i.ID))
	if err != nil {
		return err
	}
	for _, t := range open {
		if t.Command == commandReplace {
			continue
		}
		if err := endTask(ctx, tx, t, withdrawn(t), "the instance ends", nil); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) resumeEnding(ctx context.Context, v *store.View, i store.Instance) (Ending, error) {
	p, err := store.ProviderByID(ctx, v, i.AccountID, i.ProviderID)
	return Ending{Instance: i, machine: i.CloudInstanceID, by: p.ProviderType}, err
}

// EndMachine asks the provider to end the machine of an intent. One that it no longer knows has ended. It reaches outside:
// call it in no transaction.
func (s *Service) EndMachine(ctx context.Context, e Ending) error {
	if e.done || e.machine == "" {
		return nil
	}
	adapter, err := s.adapter(e.by)
	if err != nil {
		return err
	}
	err = adapter.Terminate(ctx, e.machine)
	if errors.Is(err, provider.ErrNotFound) {
		return nil
	}
	if err != nil {
		s.Log.Warn().Err(err).Str("instance", string(e.Instance.ID)).Msg("machine not ended")
	}
	return err
}

// FinishTerminate writes what came of an intent. A refusal beside a nil error is committed with the rows, and answered.
func (s *Service) FinishTerminate(ctx context.Context, tx *store.Tx, e Ending, outside error) (store.Instance, error, error) {
	i, err := InstanceByID(ctx, &tx.View, e.Instance.AccountID, e.Instance.ID)
	switch {
	case err != nil || !i.Live():
		return i, nil, err
	case outside != nil:
		return s.endFailed(ctx, tx, i, e, outside)
	case i.Intent != "" && i.Intent != store.IntentTerminate:
		return i, refuseBusy(i), nil
	}
	was := i.Status // the machine has ended: also where another call has written meanwhile that its own attempt failed
	i.Intent = ""
	at := store.At(tx.Now())
	i.Status, _ = after(eventTerminate, i.Status)
	i.TerminatedAt = &at
	cordon, hold := i.Cordon.V, i.Hold.V
	i.Cordon.V, i.Hold.V = nil, nil
	if i, err = store.UpdateInstance(ctx, tx, i); err != nil {
		return i, nil, err
	}
	if err := s.endIdentity(ctx, tx, i, at); err != nil {
		return i, nil, err
	}
	if err := store.DeleteEnrollmentTokens(ctx, tx, i.ID); err != nil {
		return i, nil, err
	}
	err = audit(ctx, tx, i.AccountID, "updated", resourceInstance, string(i.ID), store.Object{"status": was}, store.Object{"status": i.Status})
	if err != nil {
		return i, nil, err
	}
	if cordon != nil {
		if err := closeCordon(ctx, tx, i, cordon); err != nil {
			return i, nil, err
		}
	}
	if hold != nil {
		if err := closeHold(ctx, tx, i, *hold); err != nil {
			return i, nil, err
		}
	}
	detached := int64(0)
	if l := i.Provisioning.V.Leaving; l != nil {
		detached = l.DetachedPeers
	}
	return i, nil, signal.Emit(ctx, tx, i.AccountID, signal.Event{Kind: "system.instance_terminated", Subject: about(i),
		Payload: store.Object{"detached_peer_count": detached}})
}

// endFailed writes that a machine was not ended, where the intent stands still.
func (s *Service) endFailed(ctx context.Context, tx *store.Tx, i store.Instance, e Ending, outside error) (store.Instance, error, error) {
	refusal := schema.Errorf(schema.Unavailable, "provider %s: %s", e.by, failureText(outside)).WithDetail("instance_id", i.ID).
		WithDetail("step", "end_machine")
	if i.Intent != store.IntentTerminate {
		return i, refusal, nil
	}
	i.Intent = ""
	i, err := store.UpdateInstance(ctx, tx, i)
	if err != nil {
		return i, nil, err
	}
	return i, refusal, audit(ctx, tx, i.AccountID, "updated", resourceInstance, string(i.ID), store.Object{"intent": store.IntentTerminate},
		store.Object{"intent": nil})
}

// recoverDeadline bounds one act that a start finishes.
const recoverDeadline = 45 * time.Second

// Recover finishes or fails the acts that a killed platform left without an outcome. It runs once, at the start; calls may come
// beside it, and find what it has written.
func (s *Service) Recover(ctx context.Context) error {
	var left []store.Instance
	err := s.DB.View(ctx, func(v *store.View) error {
		var err error
		left, err = store.InstancesWithIntent(ctx, v)
		return err
	})
	if err != nil {
		return fmt.Errorf("look for acts without an outcome: %w", err)
	}
	var faults []error
	for _, i := range left {
		s.Log.Info().Str("instance", string(i.ID)).Str("intent", i.Intent).Msg("finishing an act that has no outcome")
		finish := s.recoverPower
		switch i.Intent {
		case store.IntentCreate:
			finish = s.recoverCreate
		case store.IntentTerminate:
			finish = s.recoverTerminate
		case store.IntentDestroy:
			finish = s.recoverDestroy
		}
		bounded, cancel := context.WithTimeout(ctx, recoverDeadline)
		err := finish(bounded, i)
		cancel()
		if err != nil {
			faults = append(faults, fmt.Errorf("finish the act on instance %s: %w", i.ID, err)) // the others are finished all the same
		}
	}
	return errors.Join(append(faults, s.recoverConnections(ctx))...)
}

func (s *Service) recoverCreate(ctx context.Context, i store.Instance) error {
	var p Provisioned
	err := s.DB.View(ctx, func(v *store.View) error {
		var err error
		p, err = s.resume(ctx, v, i)
		return err
	})
	if err != nil {
		return err
	}
	made := s.Create(ctx, p)
	return s.outcome(ctx, func(tx *store.Tx) error {
		_, _, err := s.FinishCreate(ctx, tx, p, made)
		return err
	})
}

func (s *Service) recoverTerminate(ctx context.Context, i store.Instance) error {
	var e Ending
	err := s.DB.View(ctx, func(v *store.View) error {
		var err error
		e, err = s.resumeEnding(ctx, v, i)
		return err
	})
	if err != nil {
		return err
	}
	outside := s.EndMachine(ctx, e)
	return s.outcome(ctx, func(tx *store.Tx) error {
		_, _, err := s.FinishTerminate(ctx, tx, e, outside)
		return err
	})
}

// outcome writes as the platform itself, also when the act's deadline has passed.
func (s *Service) outcome(ctx context.Context, write func(tx *store.Tx) error) error {
	return s.DB.Update(context.WithoutCancel(ctx), func(tx *store.Tx) error {
		tx.Act(store.Actor{Kind: "platform", ID: "platform", Verb: "recover", CorrelationID: tx.NewID()})
		return write(tx)
	})
}
