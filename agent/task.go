package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"powernode/sdwan"
)

// TaskRunner is a Subsystem that carries out tasks of the document. A task is work that may be repeated: an agent that
// was restarted in between runs it again. Its context ends when the document no longer names it, because somebody aborted
// it: it then stops at its next safe point.
type TaskRunner interface {
	Commands() []string
	RunTask(ctx context.Context, task sdwan.Task, want *sdwan.Document) (json.RawMessage, error)
}

// taskTimeout bounds a task; one that brings a bound of its own has that long in addition.
const taskTimeout = 10 * time.Minute

// maxOwnTimeout is the longest bound of its own that a task may bring.
const maxOwnTimeout = time.Hour

func timeoutOf(task sdwan.Task) time.Duration {
	var own struct {
		Seconds int64 `json:"timeout_seconds"`
	}
	if json.Unmarshal(task.Parameters, &own) != nil || own.Seconds <= 0 {
		return taskTimeout
	}
	return taskTimeout + min(time.Duration(min(own.Seconds, int64(maxOwnTimeout/time.Second)))*time.Second, maxOwnTimeout)
}

// tasks keeps what was done of the tasks that the document names, until it names them no more.
type tasks struct {
	changed func()
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	mu   sync.Mutex
	done map[string]*sdwan.TaskReport
	ends map[string]context.CancelFunc // of those that run
}

func newTasks(changed func()) *tasks {
	t := &tasks{changed: changed, done: map[string]*sdwan.TaskReport{}, ends: map[string]context.CancelFunc{}}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

// wait ends what runs once ctx has ended.
func (t *tasks) wait(ctx context.Context) {
	<-ctx.Done()
	t.cancel()
	t.wg.Wait()
}

// offer starts the tasks of a document that are new to us, and forgets and ends those that it names no more.
func (t *tasks) offer(doc *sdwan.Document, workers []*worker) {
	t.mu.Lock()
	defer t.mu.Unlock()
	named := map[string]bool{}
	for _, task := range doc.Tasks {
		named[task.ID] = true
		if t.done[task.ID] != nil {
			continue
		}
		report := &sdwan.TaskReport{ID: task.ID, State: "running", Step: task.Step}
		ctx, end := context.WithTimeout(t.ctx, timeoutOf(task))
		t.done[task.ID], t.ends[task.ID] = report, end
		t.wg.Go(func() {
			defer end()
			t.run(ctx, task, doc, runnerOf(task.Command, workers), report)
		})
	}
	for id := range t.done {
		if !named[id] {
			t.ends[id]()
			delete(t.done, id)
			delete(t.ends, id)
		}
	}
}

func runnerOf(command string, workers []*worker) TaskRunner {
	for _, w := range workers {
		if r, ok := w.sub.(TaskRunner); ok && slices.Contains(r.Commands(), command) {
			return r
		}
	}
	return nil
}

// run carries a task out. running is its report while it does: a task of the same id that was offered anew has another.
func (t *tasks) run(ctx context.Context, task sdwan.Task, doc *sdwan.Document, r TaskRunner, running *sdwan.TaskReport) {
	var result json.RawMessage
	err := guard(func() (err error) {
		if r == nil {
			return fmt.Errorf("this agent knows no command %q", cleanText(task.Command, 60))
		}
		result, err = r.RunTask(ctx, task, doc)
		return err
	})
	if t.ctx.Err() != nil {
		return // the agent ends; the next one runs it again
	}
	out := sdwan.TaskReport{ID: task.ID, State: "complete", Progress: 100, Result: result}
	if err != nil {
		out = sdwan.TaskReport{ID: task.ID, State: "failed", Message: cleanText(err.Error(), maxMessage)}
	}
	t.mu.Lock()
	if t.done[task.ID] == running {
		t.done[task.ID] = &out
	}
	t.mu.Unlock()
	t.changed()
}

func (t *tasks) reports() []sdwan.TaskReport {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]sdwan.TaskReport, 0, len(t.done))
	for _, r := range t.done {
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b sdwan.TaskReport) int { return strings.Compare(a.ID, b.ID) })
	return out
}
