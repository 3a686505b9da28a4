package tools

import (
	"context"
	"encoding/json"
	"time"

	"powernode/platform/fleet"
	"powernode/schema"
	"powernode/store"
)

func taskVerbs() []*Definition {
	return []*Definition{listTasks(), getTask(), cancelTask(), abortTask()}
}

type taskObject struct {
	ID           store.TaskID `json:"id"`
	Command      string       `json:"command"`
	Status       string       `json:"status"`
	Progress     int64        `json:"progress"`
	Step         *string      `json:"step"`
	OperableType string       `json:"operable_type"`
	OperableID   string       `json:"operable_id"`
	ErrorMessage *string      `json:"error_message"`
	Resumable    bool         `json:"resumable"`
	CreatedAt    store.Time   `json:"created_at"`
	CompletedAt  *store.Time  `json:"completed_at"`
}

func taskOf(t store.Task) taskObject {
	return taskObject{ID: t.ID, Command: t.Command, Status: t.Status, Progress: t.Progress, Step: orNull(t.Step), OperableType: t.OperableType,
		OperableID: t.OperableID, ErrorMessage: orNull(t.ErrorMessage), Resumable: t.Resumable, CreatedAt: t.CreatedAt, CompletedAt: t.CompletedAt}
}

type listTasksArgs struct {
	NodeID     store.NodeID     `json:"node_id"`
	InstanceID store.InstanceID `json:"instance_id"`
	Status     string           `json:"status"`
	Limit      int              `json:"limit"`
	Cursor     string           `json:"cursor"`
}

type listTasksResult struct {
	Tasks []taskObject `json:"tasks"`
	Page
}

func listTasks() *Definition {
	return define("system_list_tasks", handler[listTasksArgs, listTasksResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a listTasksArgs) error {
			if err := found(ctx, v, c, a.NodeID, fleet.NodeByID); err != nil {
				return err
			}
			return found(ctx, v, c, a.InstanceID, fleet.InstanceByID)
		},
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a listTasksArgs) (r listTasksResult, err error) {
			all, err := store.Tasks(ctx, v, c.AccountID, a.NodeID, a.InstanceID, a.Status)
			if err != nil {
				return r, err
			}
			filter := []string{string(a.NodeID), string(a.InstanceID), a.Status}
			all, r.Page, err = page("system_list_tasks", filter, a.Limit, a.Cursor, all, func(t store.Task) string { return string(t.ID) })
			r.Tasks = mapped(all, taskOf)
			return r, err
		},
	})
}

type getTaskArgs struct {
	ID            store.TaskID `json:"id"`
	IncludeEvents bool         `json:"include_events"`
	WaitSeconds   int          `json:"wait_seconds"`
}

type taskEvent struct {
	At      store.Time      `json:"at"`
	Type    string          `json:"type"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
}

type getTaskResult struct {
	Task     taskObject  `json:"task"`
	Events   []taskEvent `json:"events"`
	TimedOut bool        `json:"timed_out"`
}

func getTask() *Definition {
	return define("system_get_task", handler[getTaskArgs, getTaskResult]{wait: awaitTask})
}

// awaitTask answers when the task is over, or when the wait is.
func awaitTask(ctx context.Context, p *Platform, c Caller, a getTaskArgs) (getTaskResult, error) {
	limit := time.NewTimer(time.Duration(a.WaitSeconds) * time.Second)
	defer limit.Stop()
	for {
		changed := p.DB.Watch(store.TopicTask(a.ID)) // before the read: nothing is missed in between
		t, err := readTask(ctx, p, c, a.ID)
		if err != nil {
			return getTaskResult{}, err
		}
		r := getTaskResult{Task: taskOf(t), Events: []taskEvent{}}
		if a.IncludeEvents {
			r.Events = mapped(t.Events.V, func(e store.TaskEvent) taskEvent { return taskEvent(e) })
		}
		if !t.Open() || a.WaitSeconds == 0 {
			return r, nil
		}
		select {
		case <-changed:
		case <-limit.C:
			r.TimedOut = true
			return r, nil
		case <-ctx.Done():
			return r, schema.Errorf(schema.Unavailable, "the wait was ended")
		}
	}
}

func readTask(ctx context.Context, p *Platform, c Caller, id store.TaskID) (t store.Task, err error) {
	err = p.DB.View(ctx, func(v *store.View) error {
		t, err = fleet.TaskByID(ctx, v, c.AccountID, id)
		return err
	})
	return t, err
}

type taskIDArgs struct {
	ID store.TaskID `json:"id"`
}

type cancelTaskResult struct {
	Cancelled bool       `json:"cancelled"`
	Task      taskObject `json:"task"`
	Written
}

func cancelTask() *Definition {
	return define("system_cancel_task", handler[taskIDArgs, cancelTaskResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a taskIDArgs) error {
			return p.Fleet.CheckCancel(ctx, v, c.AccountID, a.ID)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a taskIDArgs) (cancelTaskResult, error) {
			t, err := p.Fleet.Cancel(ctx, tx, c.AccountID, a.ID)
			return cancelTaskResult{Cancelled: err == nil, Task: taskOf(t)}, err
		},
	})
}

type abortTaskArgs struct {
	ID     store.TaskID `json:"id"`
	Reason string       `json:"reason"`
}

type abortTaskResult struct {
	Aborted bool       `json:"aborted"`
	Task    taskObject `json:"task"`
	Written
}

func abortTask() *Definition {
	return define("system_abort_task", handler[abortTaskArgs, abortTaskResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a abortTaskArgs) error {
			return p.Fleet.CheckAbort(ctx, v, c.AccountID, a.ID)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a abortTaskArgs) (abortTaskResult, error) {
			t, err := p.Fleet.Abort(ctx, tx, c.AccountID, a.ID, a.Reason)
			return abortTaskResult{Aborted: err == nil, Task: taskOf(t)}, err
		},
	})
}
