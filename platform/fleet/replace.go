package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"powernode/platform/cluster"
	"powernode/platform/network"
	"powernode/platform/signal"
	"powernode/schema"
	"powernode/store"
)

// Steps of a replacement, in order; the first is drain. Each asks first whether it is done already.
const (
	stepEndMachine = "end_machine" // no way back from here
	stepRemoveNode = "remove_node"
	stepProvision  = "provision"
	stepRejoin     = "rejoin"
)

// replaceSteps are what a plan tells.
var replaceSteps = []string{stepDrain, stepEndMachine, stepRemoveNode, stepProvision, stepRejoin}

// rejoinLimit is how long a new machine has to boot, and to join where the old one was a member.
const rejoinLimit = 20 * time.Minute

// ReplaceInput asks for a new machine under an old one's name.
type ReplaceInput struct {
	InstanceID    store.InstanceID
	OperationID   string
	Reason        string
	Reap          bool // end the old machine without asking anybody for its pods
	AcceptRunning bool
}

// ReplacePlan is what a replacement comes to.
type ReplacePlan struct {
	Steps     []string
	Instance  store.Instance
	ClusterID store.ClusterID // "" is no member
	Role      string
	Networks  []store.NetworkID
}

// CheckReplace refuses a replacement that could not end well.
func (s *Service) CheckReplace(ctx context.Context, v *store.View, acct store.AccountID, in ReplaceInput) error {
	i, err := InstanceByID(ctx, v, acct, in.InstanceID)
	if err != nil {
		return err
	}
	if before, err := operationTask(ctx, v, i, commandReplace, in.OperationID); err != nil || before != nil {
		return err
	}
	if err := refuseEnded(i); err != nil {
		return err
	}
	if err := refuseReplaced(ctx, v, i); err != nil {
		return err
	}
	if err := (ReapInput{AcceptRunning: in.AcceptRunning}).refuseRunning(ctx, v, i); err != nil {
		return err
	}
	if err := refuseHeld(v, i); err != nil {
		return err
	}
	if err := refuseBusy(i); err != nil {
		return err
	}
	if err := s.CheckUncordon(ctx, v, acct, i.ID); err != nil {
		return err
	}
	if err := s.endForbidden(ctx, v, i); err != nil {
		return err
	}
	plan, err := replacePlan(ctx, v, i)
	if err != nil {
		return err
	}
	if running, err := runs(ctx, v, i); err != nil {
		return err
	} else if running && !in.Reap {
		if err := s.Cluster.CheckDrain(ctx, v, acct, i.ID); err != nil {
			return err
		}
	}
	if plan.Role == cluster.RoleServer {
		return schema.Errorf(schema.PreconditionFailed, "not available yet: replacing a server of a cluster").WithDetail("cluster_id", plan.ClusterID)
	}
	return s.CheckProvision(ctx, v, acct, provisionOf(i, ""))
}

func replacePlan(ctx context.Context, v *store.View, i store.Instance) (ReplacePlan, error) {
	p := ReplacePlan{Steps: replaceSteps, Instance: i, Networks: []store.NetworkID{}}
	peers, err := store.PeersByInstance(ctx, v, i.AccountID, i.ID)
	if err != nil {
		return p, err
	}
	for _, peer := range peers {
		p.Networks = append(p.Networks, peer.NetworkID)
	}
	n, err := store.ClusterNodeByInstance(ctx, v, i.AccountID, i.ID)
	if errors.Is(err, store.ErrNoRow) {
		p.Steps = slices.DeleteFunc(slices.Clone(replaceSteps), func(step string) bool { return step == stepDrain || step == stepRemoveNode })
		return p, nil
	}
	p.ClusterID, p.Role = n.ClusterID, n.Role
	return p, err
}

// provisionOf asks for a machine like an instance's own, under a key of the replacement's.
func provisionOf(i store.Instance, key string) ProvisionInput {
	asked := i.Provisioning.V
	in := ProvisionInput{NodeID: i.NodeID, RegionID: i.RegionID, TypeID: i.InstanceTypeID, SSHKeyIDs: asked.SSHKeyIDs, AdminUser: &asked.AdminUser,
		AllocatePublicIP: &asked.AllocatePublicIP, Spot: asked.Spot, OperationID: key, Name: i.Name}
	if asked.AdminUser == "" {
		in.AdminUser = nil
	}
	return in
}

// Replace begins a replacement: the task, and the drain of a member that runs.
func (s *Service) Replace(ctx context.Context, tx *store.Tx, acct store.AccountID, in ReplaceInput) (ReplacePlan, store.Task, error) {
	i, err := InstanceByID(ctx, &tx.View, acct, in.InstanceID)
	if err != nil {
		return ReplacePlan{}, store.Task{}, err
	}
	plan, err := replacePlan(ctx, &tx.View, i)
	if err != nil {
		return plan, store.Task{}, err
	}
	if before, err := operationTask(ctx, &tx.View, i, commandReplace, in.OperationID); err != nil || before != nil {
		if before == nil {
			return plan, store.Task{}, err
		}
		return plan, *before, err
	}
	running, err := runs(ctx, &tx.View, i)
	if err != nil {
		return plan, store.Task{}, err
	}
	t := newTask(tx, i, commandReplace, nil)
	t.Status, t.Resumable, t.Step = store.TaskRunning, true, stepEndMachine
	st := steps{OperationID: in.OperationID, Reason: in.Reason, Name: i.Name, Networks: plan.Networks, ClusterID: plan.ClusterID,
		SkipDrain: in.Reap || !running, TimeoutSeconds: defaultDrainSeconds}
	if plan.ClusterID != "" {
		st.Node = i.Name
	}
	if plan.ClusterID != "" && !st.SkipDrain {
		t.Step = stepDrain
	}
	st.keep(&t)
	if t, err = insertTask(ctx, tx, t); err != nil {
		return plan, t, err
	}
	// What the steps will come to, for who reads the plan.
	fate, err := s.fateOf(ctx, &tx.View, i)
	if err != nil {
		return plan, t, err
	}
	err = audit(ctx, tx, acct, "updated", resourceInstance, string(i.ID), store.Object{"name": i.Name, "replacement": nil},
		store.Object{"name": i.Name, "replacement": store.Object{"steps": plan.Steps, "cluster_id": orNull(string(plan.ClusterID)),
			"networks": plan.Networks}, "machine": fate})
	if err != nil || t.Step != stepDrain {
		return plan, t, err
	}
	t, err = s.beginDrain(ctx, tx, i, t, "replaced")
	return plan, t, err
}

// advanceReplace takes a replacement as far as it goes without waiting for a machine. It reaches outside: call it in no
// transaction.
func (s *Service) advanceReplace(ctx context.Context, t store.Task) error {
	do := map[string]func(context.Context, store.Task) error{stepDrain: s.replaceDrained, stepEndMachine: s.replaceEnd,
		stepRemoveNode: s.replaceRemoved, stepProvision: s.replaceProvision, stepRejoin: s.replaceRejoined}[t.Step]
	if do == nil {
		return fmt.Errorf("task %s is at an unknown step %q", t.ID, t.Step)
	}
	return do(ctx, t)
}

// toStep writes that a replacement goes on with its next step.
func toStep(ctx context.Context, tx *store.Tx, t store.Task, step string) (store.Task, error) {
	t.Step, t.Progress = step, int64(20*slices.Index(replaceSteps, step))
	tell(tx, &t, "progress", step, nil)
	return store.UpdateTask(ctx, tx, t)
}

func (s *Service) replaceDrained(ctx context.Context, t store.Task) error {
	return s.onTask(ctx, t, func(tx *store.Tx, t store.Task) error {
		ended, trouble, err := s.drained(ctx, tx, t)
		if err != nil || !ended {
			return err
		}
		if trouble != "" {
			if err := s.undoDrain(ctx, tx, t); err != nil {
				return err
			}
			return failTask(ctx, tx, t, trouble) // the old machine stays, and works
		}
		i, err := InstanceByID(ctx, &tx.View, t.AccountID, store.InstanceID(t.OperableID))
		if err != nil {
			return err
		}
		if err := s.tellDrained(ctx, tx, i, t); err != nil {
			return err
		}
		_, err = toStep(ctx, tx, t, stepEndMachine)
		return err
	})
}

// replaceEnd ends the old machine as a termination does, membership first.
func (s *Service) replaceEnd(ctx context.Context, t store.Task) error {
	var e Ending
	err := s.onTask(ctx, t, func(tx *store.Tx, t store.Task) error {
		i, err := InstanceByID(ctx, &tx.View, t.AccountID, store.InstanceID(t.OperableID))
		if err != nil || triedLately(tx, t) {
			return err
		}
		if i.Live() && i.Intent == "" {
			if HoldInForce(&tx.View, i) != nil {
				return tellHeld(ctx, tx, t) // it goes on when the hold is over
			}
			var refusal *schema.Error
			if err := s.endForbidden(ctx, &tx.View, i); errors.As(err, &refusal) { // the floors, as they are now
				return s.giveUp(ctx, tx, t, refusal)
			} else if err != nil {
				return err
			}
		}
		e, err = s.end(ctx, tx, t.AccountID, i.ID, "replaced")
		return err
	})
	if err != nil || e.Instance.ID == "" {
		return err
	}
	outside := s.bounded(ctx, func(ctx context.Context) error { return s.EndMachine(ctx, e) })
	return s.onTask(ctx, t, func(tx *store.Tx, t store.Task) error {
		i, refusal, err := s.FinishTerminate(ctx, tx, e, outside)
		switch {
		case err != nil:
			return err
		case refusal != nil:
			return s.retryLater(ctx, tx, t, refusal)
		case i.Live():
			return nil // another has written an outcome that was none; the next look asks again
		}
		_, err = toStep(ctx, tx, t, stepRemoveNode)
		return err
	})
}

const eventHeld = "held" // of a task

// tellHeld says, once a hold, that a replacement waits for its end.
func tellHeld(ctx context.Context, tx *store.Tx, t store.Task) error {
	if n := len(t.Events.V); n > 0 && t.Events.V[n-1].Type == eventHeld {
		return nil
	}
	tell(tx, &t, eventHeld, "operations on the instance are held", nil)
	_, err := store.UpdateTask(ctx, tx, t)
	return err
}

// giveUp fails a replacement whose old machine still works.
func (s *Service) giveUp(ctx context.Context, tx *store.Tx, t store.Task, why error) error {
	if err := s.undoDrain(ctx, tx, t); err != nil {
		return err
	}
	return failTask(ctx, tx, t, failureText(why))
}

// How often a provider is asked to end a machine before a replacement fails, and how soon again.
const (
	endTries   = 5
	retryAfter = 10 * time.Second
)

const eventRetry = "retry" // of a task

func triedLately(tx *store.Tx, t store.Task) bool {
	n := len(t.Events.V)
	return n > 0 && t.Events.V[n-1].Type == eventRetry && tx.Now().Sub(t.Events.V[n-1].At.Time) < retryAfter
}

func (s *Service) retryLater(ctx context.Context, tx *store.Tx, t store.Task, why error) error {
	tries := 0
	for _, e := range t.Events.V {
		if e.Type == eventRetry {
			tries++
		}
	}
	if tries+1 >= endTries {
		return failTask(ctx, tx, t, failureText(why))
	}
	tell(tx, &t, eventRetry, failureText(why), nil)
	_, err := store.UpdateTask(ctx, tx, t)
	return err
}

// replaceRemoved waits until a server's agent has deleted the old Node and its password: the name can't join before.
func (s *Service) replaceRemoved(ctx context.Context, t store.Task) error {
	return s.onTask(ctx, t, func(tx *store.Tx, t store.Task) error {
		st := stepsOf(t)
		removals, err := store.TasksOnKubernetesNode(ctx, &tx.View, t.AccountID, cluster.CommandRemoveNode, st.Node)
		if err != nil {
			return err
		}
		if st.Node != "" && len(removals) > 0 {
			switch last := removals[0]; {
			case last.Open():
				return nil
			case last.Status != store.TaskComplete:
				return failTask(ctx, tx, t, "Node "+st.Node+" was not removed: "+last.ErrorMessage)
			}
		}
		_, err = toStep(ctx, tx, t, stepProvision)
		return err
	})
}

// replaceProvision makes the new machine, by the way that every machine is made.
func (s *Service) replaceProvision(ctx context.Context, t store.Task) error {
	var made Provisioned
	err := s.onTask(ctx, t, func(tx *store.Tx, t store.Task) error {
		old, err := InstanceByID(ctx, &tx.View, t.AccountID, store.InstanceID(t.OperableID))
		if err != nil {
			return err
		}
		in := provisionOf(old, "replace:"+string(t.ID))
		var refusal *schema.Error
		if err := s.CheckProvision(ctx, &tx.View, t.AccountID, in); errors.As(err, &refusal) {
			return failTask(ctx, tx, t, failureText(refusal))
		} else if err != nil {
			return err
		}
		st := stepsOf(t)
		taken, err := store.InstanceByName(ctx, &tx.View, t.AccountID, old.Name)
		if err == nil && taken.ID != st.Replacement {
			return failTask(ctx, tx, t, "the name "+old.Name+" was taken by another instance meanwhile")
		}
		if err != nil && !errors.Is(err, store.ErrNoRow) {
			return err
		}
		if err == nil && taken.Status == store.InstanceError { // its creation failed while nobody waited for it
			return failTask(ctx, tx, t, taken.ErrorMessage)
		}
		if made, err = s.Provision(ctx, tx, t.AccountID, in); err != nil {
			return err
		}
		if st.Replacement == made.Instance.ID {
			return nil
		}
		st.Replacement = made.Instance.ID
		st.keep(&t)
		if err := s.inherit(ctx, tx, old, made.Instance, st.Networks, &t); err != nil {
			return err
		}
		_, err = store.UpdateTask(ctx, tx, t)
		return err
	})
	if err != nil || made.Instance.ID == "" {
		return err
	}
	var outside Made
	_ = s.bounded(ctx, func(ctx context.Context) error { outside = s.Create(ctx, made); return nil })
	return s.onTask(ctx, t, func(tx *store.Tx, t store.Task) error {
		_, refusal, err := s.FinishCreate(ctx, tx, made, outside)
		if err != nil {
			return err
		}
		if refusal != nil {
			return failTask(ctx, tx, t, failureText(refusal))
		}
		_, err = toStep(ctx, tx, t, stepRejoin)
		return err
	})
}

// inherit gives a new instance what was the old one's: its description and config, and its networks.
func (s *Service) inherit(ctx context.Context, tx *store.Tx, old, fresh store.Instance, networks []store.NetworkID, t *store.Task) error {
	fresh.Description, fresh.Config = old.Description, old.Config
	if old.NetworkProfileSource == "operator" {
		fresh.NetworkProfile, fresh.NetworkProfileSource = old.NetworkProfile, old.NetworkProfileSource
	}
	if _, err := store.UpdateInstance(ctx, tx, fresh); err != nil {
		return err
	}
	for _, id := range networks {
		_, err := store.PeerOf(ctx, &tx.View, t.AccountID, id, fresh.ID)
		if err == nil {
			continue
		}
		if !errors.Is(err, store.ErrNoRow) {
			return err
		}
		in := network.AttachInput{NetworkID: id, InstanceID: fresh.ID}
		var refusal *schema.Error
		if err := s.Network.CheckAttach(ctx, &tx.View, t.AccountID, in); errors.As(err, &refusal) {
			tell(tx, t, "warning", "not attached to network "+string(id)+": "+refusal.Message, nil)
			continue
		} else if err != nil {
			return err
		}
		if _, _, err := s.Network.Attach(ctx, tx, t.AccountID, in); err != nil {
			return err
		}
	}
	return nil
}

// replaceRejoined waits until the new machine runs, and is a member where the old one was.
func (s *Service) replaceRejoined(ctx context.Context, t store.Task) error {
	return s.onTask(ctx, t, func(tx *store.Tx, t store.Task) error {
		st := stepsOf(t)
		fresh, err := InstanceByID(ctx, &tx.View, t.AccountID, st.Replacement)
		if err != nil {
			return err
		}
		there, err := s.backAgain(ctx, &tx.View, fresh, st)
		switch {
		case err != nil:
			return err
		case !there && (!fresh.Live() || tx.Now().Sub(fresh.CreatedAt.Time) > rejoinLimit):
			return failTask(ctx, tx, t, "the new machine of "+st.Name+" has not come back: "+fresh.Status)
		case !there:
			return nil
		}
		err = signal.Emit(ctx, tx, t.AccountID, signal.Event{Kind: "system.instance_replaced", Subject: about(fresh),
			Payload: store.Object{"old_instance_id": t.OperableID, "new_instance_id": fresh.ID}})
		if err != nil {
			return err
		}
		return completeTask(ctx, tx, t, "replaced", store.Object{"replacement_instance_id": fresh.ID})
	})
}

func (s *Service) backAgain(ctx context.Context, v *store.View, fresh store.Instance, st steps) (bool, error) {
	if fresh.Status != store.InstanceRunning || st.ClusterID == "" {
		return fresh.Status == store.InstanceRunning, nil
	}
	n, err := store.ClusterNodeByInstance(ctx, v, fresh.AccountID, fresh.ID)
	if errors.Is(err, store.ErrNoRow) {
		// A cluster that ended meanwhile can't be joined again.
		_, gone := store.ClusterByID(ctx, v, fresh.AccountID, st.ClusterID)
		return errors.Is(gone, store.ErrNoRow), nil
	}
	return n.ClusterID == st.ClusterID && n.Status == cluster.NodeActive, err
}

// Replacement is the instance that a replacement has made, or nil.
func Replacement(ctx context.Context, v *store.View, t store.Task) (*store.Instance, error) {
	id := stepsOf(t).Replacement
	if id == "" {
		return nil, nil
	}
	i, err := store.InstanceByID(ctx, v, t.AccountID, id)
	if errors.Is(err, store.ErrNoRow) {
		return nil, nil
	}
	return &i, err
}
