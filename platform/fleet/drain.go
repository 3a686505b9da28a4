package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"powernode/platform/signal"
	"powernode/schema"
	"powernode/store"
)

// stepDrain is the step of a drain, and the first of a replacement, in which pods are moved.
const stepDrain = "drain"

// drainGrace is how long after its own bound a server's agent may report the end of a drain.
const drainGrace = 11 * time.Minute

// defaultDrainSeconds is how long a replacement lets pods be moved.
const defaultDrainSeconds = 600

// CheckDrain refuses to drain what does not run, or what somebody else has cordoned.
func (s *Service) CheckDrain(ctx context.Context, v *store.View, acct store.AccountID, id store.InstanceID) error {
	i, err := InstanceByID(ctx, v, acct, id)
	if err != nil {
		return err
	}
	if standing, err := standingDrain(ctx, v, i); err != nil || standing != nil {
		return err
	}
	if i.Status != store.InstanceRunning {
		return schema.Errorf(schema.PreconditionFailed, "cannot drain from %s", i.Status).WithDetail("allowed", []string{store.InstanceRunning})
	}
	if err := refuseHeld(v, i); err != nil {
		return err
	}
	if err := refuseReplaced(ctx, v, i); err != nil {
		return err
	}
	if err := s.CheckUncordon(ctx, v, acct, id); err != nil { // whose cordon can be lifted can be taken over
		return err
	}
	return s.Cluster.CheckDrain(ctx, v, acct, id)
}

// openTask is an instance's open task of a command, or nil.
func openTask(ctx context.Context, v *store.View, i store.Instance, command string) (*store.Task, error) {
	open, err := store.OpenTasksOf(ctx, v, i.AccountID, string(i.ID))
	if err != nil {
		return nil, err
	}
	for _, t := range open {
		if t.Command == command {
			return &t, nil
		}
	}
	return nil, nil
}

// refuseReplaced refuses what would come between the steps of a replacement.
func refuseReplaced(ctx context.Context, v *store.View, i store.Instance) error {
	t, err := openTask(ctx, v, i, commandReplace)
	if err != nil || t == nil {
		return err
	}
	return schema.Errorf(schema.PreconditionFailed, "instance %s is being replaced", i.Name).WithDetail("task_id", t.ID).
		WithHint("system_get_task", "Tells how far it is.")
}

// standingDrain is the drain that is under way, or that has left the instance as it is: cordoned in its name. nil: there is
// something to drain.
func standingDrain(ctx context.Context, v *store.View, i store.Instance) (*store.Task, error) {
	open, err := openTask(ctx, v, i, commandDrain)
	if err != nil || open != nil || i.Cordon.V == nil {
		return open, err
	}
	id, drained := strings.CutPrefix(i.Cordon.V.Owner, ownerDrain)
	if !drained {
		return nil, nil
	}
	t, err := store.TaskByID(ctx, v, i.AccountID, store.TaskID(id))
	if noRow(err) || err == nil && (t.Status != store.TaskComplete || t.Command != commandDrain) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	n, err := store.ClusterNodeByInstance(ctx, v, i.AccountID, i.ID)
	if err != nil && !noRow(err) {
		return nil, err
	}
	if n.Name != stepsOf(t).Node || n.Name != "" && n.Cordon.V == nil { // it has joined since, or work has come back to it
		return nil, nil
	}
	return &t, nil
}

// Drain cordons an instance, lets its Kubernetes pods be moved and then ends its modules' services, but for K3s itself. A drain that is under
// way, or done with nothing changed since, is the answer.
func (s *Service) Drain(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.InstanceID, timeoutSeconds int64) (store.Task, store.Instance, error) {
	i, err := InstanceByID(ctx, &tx.View, acct, id)
	if err != nil {
		return store.Task{}, i, err
	}
	standing, err := standingDrain(ctx, &tx.View, i)
	if err != nil {
		return store.Task{}, i, err
	}
	if standing != nil {
		return *standing, i, nil
	}
	t := newTask(tx, i, commandDrain, nil)
	steps{TimeoutSeconds: timeoutSeconds}.keep(&t)
	t.Status, t.Resumable, t.Step = store.TaskRunning, true, stepDrain
	if t, err = insertTask(ctx, tx, t); err != nil {
		return t, i, err
	}
	if t, err = s.beginDrain(ctx, tx, i, t, "draining"); err != nil {
		return t, i, err
	}
	if i, err = InstanceByID(ctx, &tx.View, acct, id); err != nil {
		return t, i, err
	}
	if stepsOf(t).Node == "" {
		if err := completeTask(ctx, tx, t, "it has no Kubernetes node: it was cordoned", nil); err != nil {
			return t, i, err
		}
	}
	t, err = TaskByID(ctx, &tx.View, acct, t.ID)
	return t, i, err
}

// beginDrain cordons in a task's name, and asks a server's agent to move the pods of a member.
func (s *Service) beginDrain(ctx context.Context, tx *store.Tx, i store.Instance, t store.Task, reason string) (store.Task, error) {
	cordon := store.Cordon{Owner: ownerDrain + string(t.ID), Reason: reason, Since: store.At(tx.Now())}
	st := stepsOf(t)
	st.CordonBefore = i.Cordon.V
	i, err := s.setCordon(ctx, tx, i, &cordon)
	if err != nil {
		return t, err
	}
	n, err := store.ClusterNodeByInstance(ctx, &tx.View, i.AccountID, i.ID)
	if errors.Is(err, store.ErrNoRow) {
		return t, nil
	}
	if err != nil {
		return t, err
	}
	by, err := s.Cluster.Drain(ctx, tx, n, &cordon, st.TimeoutSeconds)
	if err != nil {
		return t, err
	}
	st.Node, st.ClusterID = n.Name, n.ClusterID
	if by == nil {
		st.keep(&t)
		return t, failTask(ctx, tx, t, "no server of the cluster is ready to move the pods of node "+n.Name)
	}
	st.DrainTaskID = *by
	st.keep(&t)
	t.Progress = 10
	tell(tx, &t, "progress", "pods of node "+n.Name+" are being moved", store.Object{"task_id": *by})
	return store.UpdateTask(ctx, tx, t)
}

// steps is what a drain or a replacement keeps of its way, in its task's parameters: who goes on after a restart finds
// everything there.
type steps struct {
	OperationID    string            `json:"operation_id,omitempty"`
	Reason         string            `json:"reason,omitempty"`
	TimeoutSeconds int64             `json:"timeout_seconds,omitempty"`
	Node           string            `json:"node,omitempty"` // of Kubernetes; "" is no member
	ClusterID      store.ClusterID   `json:"cluster_id,omitempty"`
	DrainTaskID    store.TaskID      `json:"drain_task_id,omitempty"`
	CordonBefore   *store.Cordon     `json:"cordon_before,omitempty"` // that the drain took over; nil: there was none
	SkipDrain      bool              `json:"skip_drain,omitempty"`
	Name           string            `json:"name,omitempty"` // of the machine, old and new
	Networks       []store.NetworkID `json:"networks,omitempty"`
	Replacement    store.InstanceID  `json:"replacement_instance_id,omitempty"`
}

func stepsOf(t store.Task) (st steps) {
	_ = json.Unmarshal(mustJSON(t.Parameters.V), &st) // the platform's own writing
	return st
}

// keep writes them into a task's row, which is still to be stored.
func (st steps) keep(t *store.Task) {
	t.Parameters.V = objectOf(st)
}

// drained says how the agent's part of a drain stands: "" while it goes on.
func (s *Service) drained(ctx context.Context, tx *store.Tx, t store.Task) (ended bool, trouble string, err error) {
	child, err := store.TaskByID(ctx, &tx.View, t.AccountID, stepsOf(t).DrainTaskID)
	if errors.Is(err, store.ErrNoRow) {
		return true, "the task of moving pods is gone", nil
	}
	if err != nil {
		return false, "", err
	}
	limit := time.Duration(stepsOf(t).TimeoutSeconds)*time.Second + drainGrace
	switch {
	case child.Status == store.TaskComplete:
		return true, "", nil
	case !child.Open() && child.ErrorMessage != "":
		return true, child.ErrorMessage, nil
	case !child.Open():
		return true, "moving its pods was " + child.Status, nil
	case tx.Now().Sub(child.CreatedAt.Time) > limit:
		_, err := s.withdraw(ctx, tx, t.AccountID, child.ID, store.TaskCancelled, "the time is over")
		return true, "no server's agent has reported in time", err
	}
	return false, "", nil
}

// advanceDrain takes a drain as far as it goes.
func (s *Service) advanceDrain(ctx context.Context, tx *store.Tx, t store.Task) error {
	ended, trouble, err := s.drained(ctx, tx, t)
	if err != nil || !ended {
		return err
	}
	if trouble != "" {
		return failTask(ctx, tx, t, trouble) // the cordon stays: nothing new is placed until somebody decides
	}
	i, err := InstanceByID(ctx, &tx.View, t.AccountID, store.InstanceID(t.OperableID))
	if err != nil {
		return err
	}
	at := store.At(tx.Now())
	i.DrainedAt = &at
	if i, err = store.UpdateInstance(ctx, tx, i); err != nil {
		return err
	}
	tx.TouchInstance(i.ID)
	err = audit(ctx, tx, i.AccountID, "updated", resourceInstance, string(i.ID), store.Object{"drained_at": nil}, store.Object{"drained_at": at})
	if err != nil {
		return err
	}
	if err := s.tellDrained(ctx, tx, i, t); err != nil {
		return err
	}
	return completeTask(ctx, tx, t, "its pods have left it, and the services of its modules end; its K3s goes on", nil)
}

func (s *Service) tellDrained(ctx context.Context, tx *store.Tx, i store.Instance, t store.Task) error {
	st, subject := stepsOf(t), about(i)
	subject.ClusterID = st.ClusterID
	return signal.Emit(ctx, tx, i.AccountID, signal.Event{Kind: "system.k3s_node_drained", Subject: subject,
		Payload: store.Object{"cluster_id": subject.ClusterID, "node": st.Node, "task_id": t.ID}})
}

// undoDrain takes back what a drain has begun: the agent's task, and its own cordon. One that was there before is there again.
func (s *Service) undoDrain(ctx context.Context, tx *store.Tx, t store.Task) error {
	st := stepsOf(t)
	child, err := store.TaskByID(ctx, &tx.View, t.AccountID, st.DrainTaskID)
	if err == nil && child.Open() {
		_, err = s.withdraw(ctx, tx, t.AccountID, child.ID, withdrawn(child), "the drain was given up")
	}
	if err != nil && !errors.Is(err, store.ErrNoRow) {
		return err
	}
	i, err := InstanceByID(ctx, &tx.View, t.AccountID, store.InstanceID(t.OperableID))
	if err != nil || i.Cordon.V == nil || i.Cordon.V.Owner != ownerDrain+string(t.ID) {
		return err
	}
	if st.CordonBefore == nil {
		_, _, err = s.uncordon(ctx, tx, i)
		return err
	}
	if i, err = s.setCordon(ctx, tx, i, st.CordonBefore); err != nil {
		return err
	}
	_, err = s.cordonMember(ctx, tx, i, st.CordonBefore)
	return err
}

// manifestFor is a module's manifest as an instance's agent is told it: once the instance is drained, without services, so
// that the agent ends them. K3s itself goes on, empty, as after a drain of its node.
func manifestFor(i store.Instance, manifest json.RawMessage) json.RawMessage {
	var keys map[string]json.RawMessage
	if i.DrainedAt == nil || json.Unmarshal(manifest, &keys) != nil || keys["services"] == nil {
		return manifest
	}
	delete(keys, "services")
	return mustJSON(keys)
}
