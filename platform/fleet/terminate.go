package fleet

import (
	"context"
	"encoding/json"
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
	if h := i.Hold.V; h != nil && v.Now().Before(h.ExpiresAt.Time) {
		return schema.Errorf(schema.PreconditionFailed, "operations on instance %s are held until %s: %s", i.Name, h.ExpiresAt, h.Reason).
			WithDetail("hold", h)
	}
	if i.Intent == store.IntentCreate {
		return schema.Errorf(schema.Unavailable, "the machine of instance %s is being made", i.Name)
	}
	return s.Cluster.RemovalForbidden(ctx, v, acct, id)
}

// Terminate writes the intent: member and peers of the instance leave, and its machine is to end.
func (s *Service) Terminate(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.InstanceID) (Ending, error) {
	i, err := InstanceByID(ctx, &tx.View, acct, id)
	if err != nil || !i.Live() {
		return Ending{Instance: i, done: true}, err
	}
	member, err := s.Cluster.RemoveInstance(ctx, tx, acct, id, "terminated")
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
	err = audit(ctx, tx, acct, "updated", resourceInstance, string(id), store.Object{"intent": nil}, store.Object{"intent": i.Intent})
	if err != nil {
		return Ending{}, err
	}
	return s.resumeEnding(ctx, &tx.View, i)
}

// memberValues is a member that ended as the answer tells it: its keys are the contract's.
func memberValues(n store.ClusterNode) store.Object {
	return store.Object{"id": n.ID, "kubernetes_cluster_id": n.ClusterID, "node_instance_id": n.InstanceID, "node_id": n.NodeID, "name": n.Name,
		"role": n.Role, "status": "removing", "k8s_version": orNull(n.K8sVersion), "cordon": nil, "api_ready": nil, "etcd_member": nil,
		"pod_cidr": nil, "last_heartbeat_at": nil}
}

// cancelTasks ends the work that an instance's agent will not do any more.
func cancelTasks(ctx context.Context, tx *store.Tx, i store.Instance) error {
	open, err := store.OpenTasksOf(ctx, &tx.View, i.AccountID, string(i.ID))
	if err != nil {
		return err
	}
	at := store.At(tx.Now())
	for _, t := range open {
		was := t.Status
		t.CompletedAt = &at
		t.Status = store.TaskCancelled
		if was == store.TaskRunning {
			t.Status = store.TaskAborted
		}
		t.Events.V = append(t.Events.V, store.TaskEvent{At: at, Type: t.Status, Message: "the instance ends", Data: json.RawMessage("null")})
		if _, err := store.UpdateTask(ctx, tx, t); err != nil {
			return err
		}
		err := audit(ctx, tx, i.AccountID, "updated", resourceTask, string(t.ID), store.Object{"status": was}, store.Object{"status": t.Status})
		if err != nil {
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
	adapter := s.Providers[e.by]
	if adapter == nil {
		return fmt.Errorf("this platform has no adapter for providers of type %s", e.by)
	}
	err := adapter.Terminate(ctx, e.machine)
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
	if err != nil || i.Intent != store.IntentTerminate {
		return i, nil, err
	}
	was := i.Status
	i.Intent = ""
	if outside != nil {
		if i, err = store.UpdateInstance(ctx, tx, i); err != nil {
			return i, nil, err
		}
		err := audit(ctx, tx, i.AccountID, "updated", resourceInstance, string(i.ID), store.Object{"intent": store.IntentTerminate}, store.Object{"intent": nil})
		return i, schema.Errorf(schema.Unavailable, "provider %s: %s", e.by, failureText(outside)).WithDetail("instance_id", i.ID).
			WithDetail("step", "end_machine"), err
	}
	at := store.At(tx.Now())
	i.Status, _ = after(eventTerminate, i.Status)
	i.TerminatedAt = &at
	if i, err = store.UpdateInstance(ctx, tx, i); err != nil {
		return i, nil, err
	}
	if err := store.EndCertificates(ctx, tx, i.ID, "", at); err != nil {
		return i, nil, err
	}
	if err := store.DeleteEnrollmentTokens(ctx, tx, i.ID); err != nil {
		return i, nil, err
	}
	err = audit(ctx, tx, i.AccountID, "updated", resourceInstance, string(i.ID), store.Object{"status": was}, store.Object{"status": i.Status})
	if err != nil {
		return i, nil, err
	}
	detached := int64(0)
	if l := i.Provisioning.V.Leaving; l != nil {
		detached = l.DetachedPeers
	}
	return i, nil, signal.Emit(ctx, tx, i.AccountID, signal.Event{Kind: "system.instance_terminated", Subject: about(i),
		Payload: store.Object{"detached_peer_count": detached}})
}

// recoverDeadline bounds one act that a start finishes.
const recoverDeadline = 45 * time.Second

// Recover finishes or fails the acts that a killed platform left without an outcome. It runs at the start, before calls
// are served.
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
	for _, i := range left {
		s.Log.Info().Str("instance", string(i.ID)).Str("intent", i.Intent).Msg("finishing an act that has no outcome")
		finish := s.recoverCreate
		if i.Intent == store.IntentTerminate {
			finish = s.recoverTerminate
		}
		bounded, cancel := context.WithTimeout(ctx, recoverDeadline)
		err := finish(bounded, i)
		cancel()
		if err != nil {
			return fmt.Errorf("finish the act on instance %s: %w", i.ID, err)
		}
	}
	return nil
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
