package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
)

// Statuses of a task.
const (
	TaskPending   = "pending"
	TaskRunning   = "running"
	TaskComplete  = "complete"
	TaskFailed    = "failed"
	TaskAborted   = "aborted"
	TaskCancelled = "cancelled"
)

// TaskEvent is something that happened to a task.
type TaskEvent struct {
	At      Time            `json:"at"`
	Type    string          `json:"type"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
}

// Task is work that outlasts the call that asked for it.
type Task struct {
	ID           TaskID
	AccountID    AccountID
	Command      string
	Status       string
	Progress     int64
	Step         string
	OperableType string // Instance, …
	OperableID   string
	Parameters   JSON[Object]
	ErrorMessage string
	Resumable    bool
	Events       JSON[[]TaskEvent]
	CreatedAt    Time
	CompletedAt  *Time
	Revision     int64
}

// Open says that the task has not ended.
func (t Task) Open() bool { return t.Status == TaskPending || t.Status == TaskRunning }

// TopicTask is what a call that waits for a task watches.
func TopicTask(id TaskID) string { return "task:" + string(id) }

const taskColumns = `id, account_id, command, status, progress, step, operable_type, operable_id, parameters, error_message, resumable,
	events, created_at, completed_at, revision`

func scanTask(v *View, s scanner) (Task, error) {
	var t Task
	err := s.Scan(&t.ID, &t.AccountID, &t.Command, &t.Status, &t.Progress, &t.Step, &t.OperableType, &t.OperableID, &t.Parameters,
		&t.ErrorMessage, &t.Resumable, &t.Events, &t.CreatedAt, &t.CompletedAt, &t.Revision)
	if err != nil {
		return t, fmt.Errorf("read task: %w", err)
	}
	v.noteRow("tasks", string(t.ID), t.Revision)
	return t, nil
}

// TaskByID finds a task.
func TaskByID(ctx context.Context, v *View, acct AccountID, id TaskID) (Task, error) {
	return scanTask(v, v.queryRow(ctx, `SELECT `+taskColumns+` FROM tasks WHERE account_id = ? AND id = ?`, acct, id))
}

// OpenTasksOf lists what is not done yet of an object's tasks, oldest first.
func OpenTasksOf(ctx context.Context, v *View, acct AccountID, operableID string) ([]Task, error) {
	return collect(v, ctx, scanTask, `SELECT `+taskColumns+` FROM tasks WHERE account_id = ? AND operable_id = ?
		AND status IN ('pending', 'running') ORDER BY created_at, id`, acct, operableID)
}

// ControllerCommands are the tasks that the platform itself carries out; agents are not told of them.
var ControllerCommands = []string{"start", "stop", "reboot", "drain", "replace"}

// ByController says that the platform itself carries the task out.
func (t Task) ByController() bool { return slices.Contains(ControllerCommands, t.Command) }

// TopicTasks is what a controller watches that looks after all tasks.
const TopicTasks = "tasks"

// OpenStepTasks lists the open tasks of all accounts that the platform carries out step by step, oldest first.
func OpenStepTasks(ctx context.Context, v *View) ([]Task, error) {
	return collect(v, ctx, scanTask, `SELECT `+taskColumns+` FROM tasks WHERE command IN ('drain', 'replace')
		AND status IN ('pending', 'running') ORDER BY created_at, id`)
}

// TaskOfOperation finds the latest task of a command on an object that was asked for under an operation id, or ErrNoRow. A
// key that is kept no longer names none.
func TaskOfOperation(ctx context.Context, v *View, acct AccountID, operableID, command, operationID string) (Task, error) {
	return scanTask(v, v.queryRow(ctx, `SELECT `+taskColumns+` FROM tasks WHERE account_id = ? AND operable_id = ? AND command = ?
		AND json_extract(parameters, '$.operation_id') = ? AND created_at > ? ORDER BY created_at DESC, id DESC LIMIT 1`,
		acct, operableID, command, operationID, At(v.now.AddDate(0, 0, -keysKept))))
}

// TasksOnKubernetesNode lists the tasks of a command about a Kubernetes Node, latest first.
func TasksOnKubernetesNode(ctx context.Context, v *View, acct AccountID, command, node string) ([]Task, error) {
	return collect(v, ctx, scanTask, `SELECT `+taskColumns+` FROM tasks WHERE account_id = ? AND command = ?
		AND json_extract(parameters, '$.node') = ? ORDER BY created_at DESC, id DESC`, acct, command, node)
}

// Tasks lists an account's tasks, latest first; node, instance and status narrow where not empty.
func Tasks(ctx context.Context, v *View, acct AccountID, node NodeID, instance InstanceID, status string) ([]Task, error) {
	return collect(v, ctx, scanTask, `SELECT `+taskColumns+` FROM tasks WHERE account_id = ?1
		AND (?2 = '' OR operable_id = ?2 OR operable_id IN (SELECT i.id FROM instances i WHERE i.node_id = ?2))
		AND (?3 = '' OR operable_id = ?3) AND (?4 = '' OR status = ?4) ORDER BY created_at DESC, id DESC`, acct, node, instance, status)
}

// InsertTask makes a task.
func InsertTask(ctx context.Context, tx *Tx, t Task) (Task, error) {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return t, err
	}
	if t.Events.V == nil {
		t.Events.V = []TaskEvent{}
	}
	t.CreatedAt, t.Revision = At(tx.now), revision
	err = tx.exec(ctx, `INSERT INTO tasks (`+taskColumns+`) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`,
		t.ID, t.AccountID, t.Command, t.Status, t.Progress, t.Step, t.OperableType, t.OperableID, t.Parameters, t.ErrorMessage,
		t.Resumable, t.Events, t.CreatedAt, t.CompletedAt, t.Revision)
	if err != nil {
		return t, fmt.Errorf("write task: %w", err)
	}
	tx.Wake(TopicTasks)
	return t, nil
}

// UpdateTask writes a task's row and wakes who waits for it.
func UpdateTask(ctx context.Context, tx *Tx, t Task) (Task, error) {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return t, err
	}
	t.Revision = revision
	err = tx.exec(ctx, `UPDATE tasks SET status = ?, progress = ?, step = ?, parameters = ?, error_message = ?, events = ?,
		completed_at = ?, revision = ? WHERE account_id = ? AND id = ?`,
		t.Status, t.Progress, t.Step, t.Parameters, t.ErrorMessage, t.Events, t.CompletedAt, t.Revision, t.AccountID, t.ID)
	if err != nil {
		return t, fmt.Errorf("write task: %w", err)
	}
	tx.Wake(TopicTask(t.ID))
	tx.Wake(TopicTasks)
	return t, nil
}
