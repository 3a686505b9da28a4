package fleet

import (
	"context"
	"encoding/json"
	"slices"

	"powernode/platform/cluster"
	"powernode/platform/signal"
	"powernode/schema"
	"powernode/store"
)

// operableInstance is the type of object that the tasks of instances are about.
const operableInstance = "System::NodeInstance"

// Commands of tasks that the platform carries out step by step.
const (
	commandDrain   = "drain"
	commandReplace = "replace"
)

// TaskByID finds a task, or refuses.
func TaskByID(ctx context.Context, v *store.View, acct store.AccountID, id store.TaskID) (store.Task, error) {
	t, err := store.TaskByID(ctx, v, acct, id)
	return t, orNotFound(err, "task not found")
}

// objectOf is a struct of ours as a task keeps it.
func objectOf(parameters any) store.Object {
	out := store.Object{}
	_ = json.Unmarshal(mustJSON(parameters), &out) // an object of ours always decodes
	return out
}

func newTask(tx *store.Tx, i store.Instance, command string, parameters store.Object) store.Task {
	t := store.Task{ID: store.TaskID(tx.NewID()), AccountID: i.AccountID, Command: command, Status: store.TaskPending,
		OperableType: operableInstance, OperableID: string(i.ID)}
	t.Parameters.V = parameters
	return t
}

func insertTask(ctx context.Context, tx *store.Tx, t store.Task) (store.Task, error) {
	t, err := store.InsertTask(ctx, tx, t)
	if err != nil {
		return t, err
	}
	return t, audit(ctx, tx, t.AccountID, "created", resourceTask, string(t.ID), nil, store.Object{"command": t.Command,
		"node_instance_id": t.OperableID, "parameters": t.Parameters.V})
}

// tell adds an event to a task.
func tell(tx *store.Tx, t *store.Task, kind, message string, data store.Object) {
	t.Events.V = append(t.Events.V, store.TaskEvent{At: store.At(tx.Now()), Type: kind, Message: message, Data: taskData(data)})
}

// taskData is what a task's event tells beside its text.
func taskData(data store.Object) json.RawMessage {
	if data == nil {
		return json.RawMessage("null")
	}
	return mustJSON(data)
}

// endTask writes a task's end, whatever it is.
func endTask(ctx context.Context, tx *store.Tx, t store.Task, status, message string, data store.Object) error {
	was, at := t.Status, store.At(tx.Now())
	t.Status, t.CompletedAt = status, &at
	tell(tx, &t, status, message, data)
	if _, err := store.UpdateTask(ctx, tx, t); err != nil {
		return err
	}
	return audit(ctx, tx, t.AccountID, "updated", resourceTask, string(t.ID), store.Object{"status": was}, store.Object{"status": status})
}

// withdrawn is what becomes of an open task that is ended from outside.
func withdrawn(t store.Task) string {
	if t.Status == store.TaskRunning {
		return store.TaskAborted
	}
	return store.TaskCancelled
}

func completeTask(ctx context.Context, tx *store.Tx, t store.Task, message string, data store.Object) error {
	t.Progress = 100
	return endTask(ctx, tx, t, store.TaskComplete, message, data)
}

func failTask(ctx context.Context, tx *store.Tx, t store.Task, text string) error {
	t.ErrorMessage = printed(text)
	if err := endTask(ctx, tx, t, store.TaskFailed, t.ErrorMessage, nil); err != nil {
		return err
	}
	return signal.Emit(ctx, tx, t.AccountID, signal.Event{Kind: "system.task_failed",
		Subject: signal.Subject{InstanceID: store.InstanceID(t.OperableID)},
		Payload: store.Object{"task_id": t.ID, "command": t.Command, "step": t.Step, "error": t.ErrorMessage}})
}

// CheckCancel refuses to cancel what has begun or is over.
func (s *Service) CheckCancel(ctx context.Context, v *store.View, acct store.AccountID, id store.TaskID) error {
	t, err := TaskByID(ctx, v, acct, id)
	if err != nil || t.Status == store.TaskPending {
		return err
	}
	refusal := schema.Errorf(schema.PreconditionFailed, "Task cannot be cancelled from %s", t.Status).
		WithDetail("allowed", []string{store.TaskPending})
	if t.Status == store.TaskRunning {
		refusal = refusal.WithHint("system_abort_task", "Ends a running task at its next safe point.")
	}
	return refusal
}

// Cancel takes back a task that nobody has begun.
func (s *Service) Cancel(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.TaskID) (store.Task, error) {
	return s.withdraw(ctx, tx, acct, id, store.TaskCancelled, "cancelled before it began")
}

// withdraw ends a task from outside. Its agent reads from the next document that it is no more.
func (s *Service) withdraw(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.TaskID, status, message string) (store.Task, error) {
	t, err := TaskByID(ctx, &tx.View, acct, id)
	if err != nil {
		return t, err
	}
	if err := endTask(ctx, tx, t, status, message, nil); err != nil {
		return t, err
	}
	if !t.ByController() {
		tx.TouchInstance(store.InstanceID(t.OperableID))
	}
	return TaskByID(ctx, &tx.View, acct, id)
}

// CheckAbort refuses to abort what does not run, or can't stop any more.
func (s *Service) CheckAbort(ctx context.Context, v *store.View, acct store.AccountID, id store.TaskID) error {
	t, err := TaskByID(ctx, v, acct, id)
	if err != nil {
		return err
	}
	if t.Status != store.TaskRunning {
		refusal := schema.Errorf(schema.PreconditionFailed, "cannot abort from %s", t.Status).WithDetail("allowed", []string{store.TaskRunning})
		if t.Status == store.TaskPending {
			refusal = refusal.WithHint("system_cancel_task", "Takes back a task that has not begun.")
		}
		return refusal
	}
	if pastSafePoint(t) {
		return schema.Errorf(schema.PreconditionFailed, "the task is past its last safe point: %s", t.Step).WithDetail("step", t.Step)
	}
	return nil
}

// pastSafePoint says whether a running task can only go on: what a provider was asked for can't be called back, a
// replacement has no way back once the old machine is ending, and a Node that is being removed is no member any more.
func pastSafePoint(t store.Task) bool {
	switch t.Command {
	case ActionStart, ActionStop, ActionReboot, cluster.CommandRemoveNode:
		return true
	case commandReplace:
		return t.Step != stepDrain
	}
	return false
}

// Abort ends a running task at its next safe point.
func (s *Service) Abort(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.TaskID, reason string) (store.Task, error) {
	t, err := TaskByID(ctx, &tx.View, acct, id)
	if err != nil {
		return t, err
	}
	if slices.Contains([]string{commandDrain, commandReplace}, t.Command) {
		if err := s.undoDrain(ctx, tx, t); err != nil {
			return t, err
		}
	}
	message := "aborted"
	if reason != "" {
		message += ": " + printed(reason)
	}
	return s.withdraw(ctx, tx, acct, id, store.TaskAborted, message)
}
