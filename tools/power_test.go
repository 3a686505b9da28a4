package tools_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/cluster"
	"powernode/platform/fleet"
	"powernode/platform/governance"
	"powernode/platform/provider"
	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
	"powernode/tools/toolstest"
)

// resting makes what verbs on machines and tasks need: an instance that is stopped and cordoned, one that runs, one that is
// held, and a task that runs.
func (w *world) resting(t *testing.T) (asleep, awake, held store.InstanceID, task store.TaskID) {
	t.Helper()
	asleep, awake, held = w.machine(t, "asleep"), w.machine(t, "awake"), w.machine(t, "held")
	w.Update(t, func(ctx context.Context, tx *store.Tx) error {
		for _, id := range []store.InstanceID{asleep, awake, held} {
			i, err := store.InstanceByID(ctx, &tx.View, w.Account.ID, id)
			if err != nil {
				return err
			}
			i.CloudInstanceID = "local-" + string(id)
			w.host.machines[i.CloudInstanceID] = provider.Machine{ID: i.CloudInstanceID, InstanceID: string(id)}
			now := store.At(tx.Now())
			switch id {
			case asleep:
				i.Status, i.Cordon.V = store.InstanceStopped, &store.Cordon{Owner: "operator:x", Reason: "x", Since: now}
			case held:
				i.Hold.V = &store.Hold{Reason: "x", By: "x", Since: now, ExpiresAt: store.At(tx.Now().Add(time.Hour))}
			}
			if _, err := store.UpdateInstance(ctx, tx, i); err != nil {
				return err
			}
		}
		made, err := store.InsertTask(ctx, tx, store.Task{ID: store.TaskID(tx.NewID()), AccountID: w.Account.ID, Command: "sync_modules",
			Status: store.TaskRunning, OperableType: "System::NodeInstance", OperableID: string(held), Parameters: store.JSON[store.Object]{V: store.Object{}}})
		task = made.ID
		return err
	})
	return asleep, awake, held, task
}

// running provisions an instance whose agent has reported.
func (s *site) running(t testing.TB, name string) string {
	t.Helper()
	id := s.provision(t, s.node(t, name, s.plain(t)))
	s.report(t, id, converged("boot-1", 1))
	return id
}

func (s *site) plain(t testing.TB) string {
	t.Helper()
	for _, row := range s.Call(t, "system_list_templates", nil)["templates"].([]any) {
		if row := row.(toolstest.Object); row["name"] == "plain" {
			return row["id"].(string)
		}
	}
	return s.template(t, "plain")
}

// age makes an instance's last heartbeat old.
func (s *site) age(t testing.TB, id string, by time.Duration) {
	t.Helper()
	s.Update(t, func(ctx context.Context, tx *store.Tx) error {
		r, err := store.InstanceReportOf(ctx, &tx.View, store.InstanceID(id))
		if err != nil {
			return err
		}
		r.ReceivedAt = store.At(tx.Now().Add(-by))
		return store.PutInstanceReport(ctx, tx, r)
	})
}

func on(id string, more ...any) toolstest.Object {
	args := toolstest.Object{"instance_id": id}
	for i := 0; i+1 < len(more); i += 2 {
		args[more[i].(string)] = more[i+1]
	}
	return args
}

func (s *site) advance(t testing.TB) {
	t.Helper()
	if err := s.Platform.Fleet.AdvanceTasks(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestMachinesAreStoppedStartedAndRebootedByTheirProvider(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.running(t, "a")
	s.Refused(t, "system_start_instance", on(id), schema.PreconditionFailed, "cannot start from running")
	got := s.Call(t, "system_stop_instance", on(id))
	toolstest.Has(t, toolstest.Object{"action": "stop", "instance": toolstest.Object{"id": id, "status": "stopped"}}, got)
	s.Refused(t, "system_stop_instance", on(id), schema.PreconditionFailed, "cannot stop from stopped")
	s.Refused(t, "system_reboot_instance", on(id), schema.PreconditionFailed, "cannot reboot from stopped")
	toolstest.Has(t, toolstest.Object{"action": "start", "instance": toolstest.Object{"status": "starting"}}, s.Call(t, "system_start_instance", on(id)))
	s.report(t, id, converged("boot-2", 1))
	if i := s.instance(t, id); i.Status != "running" {
		t.Errorf("after the first report it is %s", i.Status)
	}
	toolstest.Has(t, toolstest.Object{"instance": toolstest.Object{"status": "rebooting"}}, s.Call(t, "system_reboot_instance", on(id)))
	s.report(t, id, converged("boot-2", 1))
	if i := s.instance(t, id); i.Status != "rebooting" {
		t.Errorf("a report of the old boot made it %s", i.Status)
	}
	s.report(t, id, converged("boot-3", 1))
	if i := s.instance(t, id); i.Status != "running" {
		t.Errorf("a report of the new boot left it %s", i.Status)
	}
	for _, verb := range []string{"system_stop_instance", "system_reboot_instance"} {
		operation := s.Parked(t, verb, on(id, "force", true))
		s.Approve(t, operation)
		s.report(t, id, converged("boot-"+verb, 1))
	}
	if diff := cmp.Diff([]string{"stop", "start", "reboot", "stop hard", "reboot hard"}, s.host.acted); diff != "" {
		t.Errorf("asked of the provider (-want +got):\n%s", diff)
	}
	tasks := s.Call(t, "system_list_tasks", on(id))
	toolstest.Has(t, toolstest.Object{"count": 5.0}, tasks)
	for _, row := range tasks["tasks"].([]any) {
		toolstest.Has(t, toolstest.Object{"status": "complete", "progress": 100.0}, row.(toolstest.Object))
	}
	if d := s.document(t, id); len(d.Tasks) != 0 {
		t.Errorf("its agent is told of %v", d.Tasks)
	}
}

func TestStopIsRepeatableUnderItsOperationID(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.running(t, "a")
	first := s.Call(t, "system_stop_instance", on(id, "operation_id", "once"))
	if diff := cmp.Diff(first, s.Call(t, "system_stop_instance", on(id, "operation_id", "once"))); diff != "" {
		t.Errorf("the repetition (-first +second):\n%s", diff)
	}
	s.Refused(t, "system_stop_instance", on(s.running(t, "b"), "operation_id", "once"), schema.Conflict, "operation_id was used with other arguments")
	if diff := cmp.Diff([]string{"stop"}, s.host.acted); diff != "" {
		t.Errorf("asked of the provider (-want +got):\n%s", diff)
	}
}

func TestFailedStopIsAnOutcomeThatTheRowsTell(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.running(t, "a")
	s.host.deaf = errors.New("no answer")
	_, err := s.Platform.Call(t.Context(), s.Caller, request("system_stop_instance", on(id, "operation_id", "once")))
	var refused *schema.Error
	if !errors.As(err, &refused) || refused.Code != schema.Unavailable || refused.Message != "provider local: no answer" {
		t.Fatalf("got %v, want unavailable with the provider's words", err)
	}
	if i := s.instance(t, id); i.Status != "error" || i.Intent != "" || i.ErrorMessage != "no answer" {
		t.Errorf("the row says %s, %q, %q", i.Status, i.Intent, i.ErrorMessage)
	}
	if n := len(s.Signals(t, "system.task_failed")); n != 1 {
		t.Errorf("%d signals, want 1", n)
	}
	s.report(t, id, converged("boot-1", 1)) // it runs after all
	s.host.deaf = nil
	toolstest.Has(t, toolstest.Object{"instance": toolstest.Object{"status": "stopped"}}, s.Call(t, "system_stop_instance", on(id, "operation_id", "once")))
}

func TestKilledStopIsFinishedByTheNextStart(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.running(t, "a")
	s.Call(t, "system_stop_instance", on(id, "operation_id", "once"))
	s.Update(t, func(ctx context.Context, tx *store.Tx) error { // as a platform leaves it that is killed before the outcome
		i, err := store.InstanceByID(ctx, &tx.View, s.Account.ID, store.InstanceID(id))
		if err != nil {
			return err
		}
		i.Status, i.Intent = store.InstanceStopping, store.IntentStop
		if _, err := store.UpdateInstance(ctx, tx, i); err != nil {
			return err
		}
		tasks, err := store.Tasks(ctx, &tx.View, s.Account.ID, "", i.ID, "")
		if err != nil {
			return err
		}
		tasks[0].Status, tasks[0].CompletedAt = store.TaskRunning, nil
		_, err = store.UpdateTask(ctx, tx, tasks[0])
		return err
	})
	if err := s.Platform.Fleet.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if i := s.instance(t, id); i.Status != "stopped" || i.Intent != "" {
		t.Errorf("it is %s with intent %q", i.Status, i.Intent)
	}
	toolstest.Has(t, toolstest.Object{"count": 1.0}, s.Call(t, "system_list_tasks", toolstest.Object{"status": "complete"}))
}

// Another has written an outcome between a call's act and its own: what the call answers is what the rows say.
func TestOutcomeThatAnotherHasWrittenIsTheAnswer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	f, acct := s.Platform.Fleet, s.Account.ID
	t.Run("a stop that failed at the next start", func(t *testing.T) {
		id := store.InstanceID(s.running(t, "a"))
		var asked fleet.Powered
		s.Update(t, func(ctx context.Context, tx *store.Tx) (err error) {
			asked, err = f.Power(ctx, tx, acct, fleet.PowerInput{InstanceID: id, Action: fleet.ActionStop})
			return err
		})
		s.host.deaf = errors.New("no answer")
		if err := f.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.host.deaf = nil
		s.Update(t, func(ctx context.Context, tx *store.Tx) error {
			_, refusal, err := f.FinishPower(ctx, tx, asked, nil)
			if schema.CodeOf(refusal) != schema.Unavailable {
				t.Errorf("answered %v, want unavailable", refusal)
			}
			return err
		})
	})
	t.Run("a termination beside one that failed", func(t *testing.T) {
		id := store.InstanceID(s.running(t, "b"))
		s.Update(t, func(ctx context.Context, tx *store.Tx) error {
			first, err := f.Terminate(ctx, tx, acct, id)
			if err != nil {
				return err
			}
			second, err := f.Terminate(ctx, tx, acct, id)
			if err != nil {
				return err
			}
			if _, refusal, err := f.FinishTerminate(ctx, tx, first, errors.New("no answer")); err != nil || refusal == nil {
				t.Errorf("the first: %v, %v", refusal, err)
			}
			i, refusal, err := f.FinishTerminate(ctx, tx, second, nil)
			if refusal != nil || i.Status != store.InstanceTerminated {
				t.Errorf("the second, whose machine has ended: %s, %v", i.Status, refusal)
			}
			return err
		})
	})
	t.Run("an agent that reports while its instance is being forgotten", func(t *testing.T) {
		id := s.running(t, "c")
		s.age(t, id, time.Hour)
		delete(s.host.machines, "local-"+id)
		var forgotten fleet.Destroyed
		s.Update(t, func(ctx context.Context, tx *store.Tx) (err error) {
			forgotten, err = f.Destroy(ctx, tx, acct, store.InstanceID(id))
			return err
		})
		s.report(t, id, converged("boot-1", 1))
		for _, want := range []schema.Code{schema.PreconditionFailed, schema.Unavailable} { // the second: another has found that it stays
			s.Update(t, func(ctx context.Context, tx *store.Tx) error {
				_, refusal, err := f.FinishDestroy(ctx, tx, forgotten, nil)
				if schema.CodeOf(refusal) != want {
					t.Errorf("answered %v, want %s", refusal, want)
				}
				return err
			})
		}
		if i := s.instance(t, id); i.Status != "running" || i.Intent != "" {
			t.Errorf("it is %s with intent %q", i.Status, i.Intent)
		}
	})
}

func TestProviderWithoutPowerIsNotAskedForIt(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.running(t, "a")
	s.host.can = nil
	s.Refused(t, "system_stop_instance", on(id), schema.PreconditionFailed, "can't do stop")
}

func TestHoldForbidsWhatEndsOrStopsAMachineUntilItsTimeIsOver(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id, asleep := s.running(t, "a"), s.running(t, "b")
	s.Call(t, "system_stop_instance", on(asleep))
	toolstest.Has(t, toolstest.Object{"held": false, "hold": nil}, s.Call(t, "system_instance_hold_status", on(id)))
	s.Refused(t, "system_release_instance_hold", on(id), schema.PreconditionFailed, "no operations hold")
	for _, held := range []string{id, asleep} {
		got := s.Call(t, "system_instance_hold", on(held, "reason", "disk is imaged"))
		toolstest.Has(t, toolstest.Object{"hold": toolstest.Object{"instance_id": held, "reason": "disk is imaged"}}, got)
	}
	s.Refused(t, "system_instance_hold", on(id, "reason", "too"), schema.Conflict, "are held already")
	text := "are held until"
	s.Refused(t, "system_start_instance", on(asleep), schema.PreconditionFailed, text)
	for _, verb := range []string{"system_stop_instance", "system_reboot_instance", "system_terminate_instance", "system_drain_instance"} {
		s.Refused(t, verb, on(id), schema.PreconditionFailed, text)
	}
	s.age(t, id, time.Hour)
	s.Refused(t, "system_destroy_instance", on(id), schema.PreconditionFailed, text)
	s.Refused(t, "system_reap_instance", on(id, "operation_id", "x"), schema.PreconditionFailed, text)
	s.Refused(t, "system_replace_instance", on(id, "operation_id", "x"), schema.PreconditionFailed, text)
	toolstest.Has(t, toolstest.Object{"released": true, "hold": toolstest.Object{"reason": "disk is imaged"}}, s.Call(t, "system_release_instance_hold", on(asleep)))
	s.Call(t, "system_start_instance", on(asleep))

	s.Update(t, func(ctx context.Context, tx *store.Tx) error {
		i, err := store.InstanceByID(ctx, &tx.View, s.Account.ID, store.InstanceID(id))
		if err != nil {
			return err
		}
		i.Hold.V.ExpiresAt = store.At(tx.Now().Add(-time.Second))
		_, err = store.UpdateInstance(ctx, tx, i)
		return err
	})
	toolstest.Has(t, toolstest.Object{"held": false}, s.Call(t, "system_instance_hold_status", on(id)))
	s.advance(t)
	s.advance(t)
	if i := s.instance(t, id); i.Hold.V != nil {
		t.Errorf("its time is over, and the row keeps %+v", i.Hold.V)
	}
	if opened, closed := len(s.Signals(t, "system.instance.held")), len(s.Signals(t, "system.instance.released")); opened != 2 || closed != 2 {
		t.Errorf("%d signals of holds and %d of their ends, want 2 and 2", opened, closed)
	}
}

func TestCordonHasAnOwnerAndAPairOfSignals(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.running(t, "a")
	args := on(id, "reason", "noisy fan")
	got := s.Approve(t, s.Parked(t, "system_cordon_instance", args))
	owner := "operator:" + s.Caller.ID
	toolstest.Has(t, toolstest.Object{"instance_id": id, "cordoned": true, "cordon": toolstest.Object{"owner": owner, "reason": "noisy fan"}, "status": "running"}, got)
	toolstest.Has(t, toolstest.Object{"instance": toolstest.Object{"cordoned": true, "cordon": toolstest.Object{"owner": owner}}}, s.Call(t, "system_get_instance", on(id)))
	bob := s.AddPerson(t, "bob@example.org", "operator")
	s.RefusedAs(t, bob, "system_cordon_instance", on(id, "reason", "mine"), schema.Conflict, "cordoned by "+owner)
	for range 2 {
		toolstest.Has(t, toolstest.Object{"cordoned": false, "cordon": nil}, s.Call(t, "system_uncordon_instance", on(id)))
	}
	if opened, closed := len(s.Signals(t, "system.instance.cordoned")), len(s.Signals(t, "system.instance.uncordoned")); opened != 1 || closed != 1 {
		t.Errorf("%d signals of cordons and %d of their ends, want 1 and 1", opened, closed)
	}
	s.Update(t, func(ctx context.Context, tx *store.Tx) error {
		i, err := store.InstanceByID(ctx, &tx.View, s.Account.ID, store.InstanceID(id))
		if err != nil {
			return err
		}
		i.Cordon.V = &store.Cordon{Owner: "upgrade:1", Reason: "upgrade", Since: store.At(tx.Now())}
		_, err = store.UpdateInstance(ctx, tx, i)
		return err
	})
	s.Refused(t, "system_uncordon_instance", on(id), schema.Conflict, "cordoned by upgrade:1")
	s.Refused(t, "system_drain_instance", on(id), schema.Conflict, "cordoned by upgrade:1")
}

func TestDestroyForgetsWhatIsGoneAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.running(t, "a")
	network := s.network(t, "tenant-a")
	s.Call(t, "system_sdwan_attach_peer", toolstest.Object{"network_id": network, "node_instance_id": id})
	s.Refused(t, "system_destroy_instance", on(id), schema.PreconditionFailed, "has sent a heartbeat within 10 minutes")
	s.age(t, id, time.Hour)

	listed := s.Parked(t, "system_destroy_instance", on(id))
	var refused *schema.Error
	if err := s.Decide(t, listed, "approve"); !errors.As(err, &refused) || refused.Code != schema.PreconditionFailed || refused.Hint.Verb != "system_terminate_instance" {
		t.Fatalf("got %v, want a refusal: the provider lists the machine", err)
	}
	if i := s.instance(t, id); i.Status != "running" || i.Intent != "" {
		t.Errorf("the refusal left it %s with intent %q", i.Status, i.Intent)
	}
	delete(s.host.machines, "local-"+id)
	got := s.Approve(t, s.Parked(t, "system_destroy_instance", on(id)))
	toolstest.Has(t, toolstest.Object{"destroyed": true, "instance_id": id, "name": "a", "sdwan_peers_destroyed": 1.0,
		"dependent_rows_deleted": toolstest.Object{"instance_reports": 1.0, "documents": 1.0}}, got)
	s.Refused(t, "system_get_instance", on(id), schema.NotFound, "instance not found")

	ended := s.running(t, "b")
	s.Approve(t, s.Parked(t, "system_terminate_instance", on(ended)))
	toolstest.Has(t, toolstest.Object{"destroyed": true, "sdwan_peers_destroyed": 0.0}, s.Approve(t, s.Parked(t, "system_destroy_instance", on(ended))))
}

func TestReapEndsTheLostAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.running(t, "a")
	s.Refused(t, "system_reap_instance", on(id, "operation_id", "x"), schema.PreconditionFailed, "runs; pass accept_running")
	s.age(t, id, 10*time.Minute)
	args := on(id, "operation_id", "x", "reason", "dead")
	first := s.Approve(t, s.Parked(t, "system_reap_instance", args))
	toolstest.Has(t, toolstest.Object{"reaped": true, "instance": toolstest.Object{"status": "terminated"}}, first)
	if n := s.host.count(); n != 0 {
		t.Errorf("%d machines, want none", n)
	}
	if diff := cmp.Diff(first, s.Call(t, "system_reap_instance", args)); diff != "" {
		t.Errorf("the repetition (-first +second):\n%s", diff)
	}
}

func TestSilentInstancesAreThoseThatRunAndSayNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	loud, silent, asleep := s.running(t, "loud"), s.running(t, "silent"), s.running(t, "asleep")
	s.Call(t, "system_stop_instance", on(asleep))
	for _, id := range []string{silent, asleep} {
		s.age(t, id, 5*time.Minute)
	}
	got := s.Call(t, "system_get_silent_instances", nil)
	toolstest.Has(t, toolstest.Object{"silent_count": 1.0, "threshold_seconds": 180.0, "count": 1.0, "has_more": false}, got)
	toolstest.Has(t, toolstest.Object{"id": silent, "status": "running"}, objects(t, got["instances"])[0])
	toolstest.Has(t, toolstest.Object{"silent_count": 0.0}, s.Call(t, "system_get_silent_instances", toolstest.Object{"threshold_seconds": 600}))
	_ = loud
	s.Refused(t, "system_get_silent_instances", toolstest.Object{"threshold_seconds": 29}, schema.InvalidArguments, "threshold_seconds")
}

func TestDriftIsMeasuredOrNotMeasured(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	template := s.template(t, "server")
	s.join(t, template, s.server, nil)
	id := s.provision(t, s.node(t, "a", template))
	read := func() toolstest.Object { return s.Call(t, "system_drift_report", on(id)) }
	toolstest.Has(t, toolstest.Object{"drift": false, "not_measured": []any{s.server}, "last_heartbeat_at": nil}, read())
	want := s.document(t, id).Modules[0].Digest
	report := func(modules map[string]string) {
		r := converged("boot-1", 1)
		r.Modules = modules
		s.report(t, id, r)
	}
	report(map[string]string{})
	toolstest.Has(t, toolstest.Object{"drift": true, "missing_count": 1.0, "missing": []any{s.server}, "not_measured": []any{}}, read())
	report(map[string]string{s.server: "sha256:0", s.agent: "sha256:1"})
	toolstest.Has(t, toolstest.Object{"drift": true, "missing_count": 0.0, "extra": []any{s.agent}, "extra_count": 1.0, "mismatched_count": 1.0,
		"mismatched": toolstest.Object{s.server: toolstest.Object{"want": want, "have": "sha256:0"}}}, read())
	report(map[string]string{s.server: want})
	toolstest.Has(t, toolstest.Object{"drift": false, "missing_count": 0.0, "extra_count": 0.0, "mismatched_count": 0.0, "not_measured": []any{}}, read())
}

func TestTasksAreCancelledBeforeAndAbortedAfterTheyBegin(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.running(t, "a")
	task := func() string { return s.Call(t, "system_refresh_instance_modules", on(id))["task_id"].(string) }
	named := func(id string) toolstest.Object { return toolstest.Object{"id": id} }
	first := task()
	s.Refused(t, "system_abort_task", named(first), schema.PreconditionFailed, "cannot abort from pending")
	toolstest.Has(t, toolstest.Object{"cancelled": true, "task": toolstest.Object{"status": "cancelled"}}, s.Call(t, "system_cancel_task", named(first)))
	if d := s.document(t, id); len(d.Tasks) != 0 {
		t.Errorf("its agent is still told of %v", d.Tasks)
	}
	s.Refused(t, "system_cancel_task", named(first), schema.PreconditionFailed, "Task cannot be cancelled from cancelled")
	second := task()
	progress := converged("boot-1", 1)
	progress.Tasks = []sdwan.TaskReport{{ID: second, State: "running"}}
	s.report(t, id, progress)
	s.Refused(t, "system_cancel_task", named(second), schema.PreconditionFailed, "Task cannot be cancelled from running")
	got := s.Approve(t, s.Parked(t, "system_abort_task", toolstest.Object{"id": second, "reason": "wrong one"}))
	toolstest.Has(t, toolstest.Object{"aborted": true, "task": toolstest.Object{"status": "aborted"}}, got)
	if d := s.document(t, id); len(d.Tasks) != 0 {
		t.Errorf("its agent is still told of %v", d.Tasks)
	}
	done := converged("boot-1", 1)
	done.Tasks = []sdwan.TaskReport{{ID: second, State: "complete"}}
	s.report(t, id, done)
	read := s.Call(t, "system_get_task", toolstest.Object{"id": second, "include_events": true, "wait_seconds": 45})
	toolstest.Has(t, toolstest.Object{"task": toolstest.Object{"status": "aborted"}, "timed_out": false}, read)
	events := objects(t, read["events"])
	toolstest.Has(t, toolstest.Object{"type": "aborted", "message": "aborted: wrong one"}, events[len(events)-1])
	toolstest.Has(t, toolstest.Object{"events": []any{}}, s.Call(t, "system_get_task", named(second)))
}

func TestWaitForATaskEndsWithItOrWithItsTime(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.running(t, "a")
	task := s.Call(t, "system_refresh_instance_modules", on(id))["task_id"].(string)
	toolstest.Has(t, toolstest.Object{"timed_out": true, "task": toolstest.Object{"status": "pending"}},
		s.Call(t, "system_get_task", toolstest.Object{"id": task, "wait_seconds": 1}))
	ended := make(chan toolstest.Object)
	go func() {
		defer close(ended)
		ended <- s.Call(t, "system_get_task", toolstest.Object{"id": task, "wait_seconds": 45})
	}()
	s.Call(t, "system_cancel_task", toolstest.Object{"id": task})
	toolstest.Has(t, toolstest.Object{"timed_out": false, "task": toolstest.Object{"status": "cancelled"}}, <-ended)
}

func TestModuleIsAssignedToANodeByHand(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	node := s.node(t, "a", s.plain(t))
	args := toolstest.Object{"node_id": node, "module_id": s.server, "priority": 7, "config": toolstest.Object{"node_labels": toolstest.Object{"tier": "a"}}}
	got := s.Call(t, "system_assign_module_to_node", args)
	toolstest.Has(t, toolstest.Object{"assigned": true, "assignment": toolstest.Object{"node_id": node, "node_module_id": s.server, "module_name": "k3s-server",
		"enabled": true, "priority": 7.0, "source_template_id": nil, "auto_resolved": false, "disabled_by": nil}}, got)
	id := at(t, got, "assignment", "id")
	e := s.Refused(t, "system_assign_module_to_node", args, schema.Conflict, "node already has this module")
	if e.Details["assignment_id"] != store.AssignmentID(id.(string)) || e.Hint.Verb != "system_update_module_assignment" {
		t.Errorf("details %v, hint %v", e.Details, e.Hint)
	}
	s.Refused(t, "system_assign_module_to_node", toolstest.Object{"node_id": node, "module_id": s.agent}, schema.PreconditionFailed,
		"Module assignment refused: it would introduce 1 composition conflict(s)")
	off := s.Call(t, "system_assign_module_to_node", toolstest.Object{"node_id": node, "module_id": s.agent, "enabled": false})
	toolstest.Has(t, toolstest.Object{"assignment": toolstest.Object{"enabled": false, "disabled_by": "operator:" + s.Caller.ID}}, off)
	s.Refused(t, "system_assign_module_to_node", toolstest.Object{"node_id": s.node(t, "b", s.plain(t)), "module_id": s.agent,
		"config": toolstest.Object{"target_cluster_id": "0198c0de-0000-7000-8000-000000000000"}}, schema.NotFound, "target_cluster_id names no cluster of this account")
}

// joined makes an active cluster with one server and one worker.
func (l *lab) joined(t *testing.T) (server, worker store.InstanceID) {
	t.Helper()
	network := l.network(t, "tenant-a")
	server, worker = l.server(t, network, "s-1"), l.machine(t, "w-1")
	l.activate(t, server, "s-1")
	l.attach(t, network, worker)
	l.assign(t, worker, cluster.ModuleAgent, l.cluster(t, "s-1")["id"])
	l.joinAgent(t, server, worker, "w-1")
	return server, worker
}

// joinAgent lets an instance join as a worker, and its server's agent see its Node.
func (l *lab) joinAgent(t *testing.T, server, worker store.InstanceID, name string) {
	t.Helper()
	if r := l.join(t, worker, cluster.RoleAgent); r != nil {
		t.Fatalf("the worker's join: %+v", r)
	}
	yes := true
	c := store.ClusterID(l.cluster(t, "s-1")["id"].(string))
	l.asAgent(t, worker, func(ctx context.Context, tx *store.Tx, i store.Instance) error {
		_, refusal, err := l.Platform.Cluster.Ready(ctx, tx, i, cluster.RoleAgent, c, "v1.36.5+k3s1")
		return refusedAs(refusal, err)
	})
	l.asAgent(t, server, func(ctx context.Context, tx *store.Tx, i store.Instance) error {
		return l.Platform.Cluster.Ingest(ctx, tx, i, sdwan.Report{K3s: &sdwan.K3sReport{Role: "server", ClusterID: string(c), Installed: true, NodeReady: &yes,
			APIReady: &yes, VIPReady: &yes, Etcd: &sdwan.EtcdReport{Member: "s-1", Healthy: true, Members: 1},
			Nodes: []sdwan.K3sNodeReport{{Name: "s-1", Ready: true}, {Name: name, Ready: true}}}})
	})
}

// told are the commands and parameters of the tasks that an instance's agent is told of.
func (l *lab) told(t *testing.T, id store.InstanceID) (tasks []sdwan.Task) {
	t.Helper()
	l.View(t, func(ctx context.Context, v *store.View) error {
		i, err := store.InstanceByID(ctx, v, l.Account.ID, id)
		if err != nil {
			return err
		}
		d, err := l.Platform.Fleet.Document(ctx, v, i)
		tasks = d.Tasks
		return err
	})
	return tasks
}

// ends lets an instance's agent report the end of its only task.
func (l *lab) ends(t *testing.T, id store.InstanceID, state, message string) {
	t.Helper()
	tasks := l.told(t, id)
	if len(tasks) != 1 {
		t.Fatalf("%d tasks, want 1: %v", len(tasks), tasks)
	}
	r := converged("boot-1", 1)
	r.Tasks = []sdwan.TaskReport{{ID: tasks[0].ID, State: state, Message: message}}
	l.asAgent(t, id, func(ctx context.Context, tx *store.Tx, i store.Instance) error {
		return l.Platform.Fleet.Ingest(ctx, tx, i, r)
	})
	if err := l.Platform.Fleet.AdvanceTasks(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (l *lab) machineAt(t *testing.T, h *host, id store.InstanceID) {
	t.Helper()
	l.Update(t, func(ctx context.Context, tx *store.Tx) error {
		i, err := store.InstanceByID(ctx, &tx.View, l.Account.ID, id)
		if err != nil {
			return err
		}
		i.CloudInstanceID = "local-" + string(id)
		h.machines[i.CloudInstanceID] = provider.Machine{ID: i.CloudInstanceID, InstanceID: string(id), Status: provider.StatusRunning}
		_, err = store.UpdateInstance(ctx, tx, i)
		return err
	})
	l.asAgent(t, id, func(ctx context.Context, tx *store.Tx, i store.Instance) error {
		return l.Platform.Fleet.Ingest(ctx, tx, i, converged("boot-1", 1))
	})
}

func (l *lab) withHost(t *testing.T) *host {
	t.Helper()
	h := newHost()
	f := l.Platform.Fleet
	f.Providers["local"] = h
	f.PlatformURLs = func() []string { return []string{"https://10.127.0.1:7443"} }
	return h
}

func TestFloorsGuardTheLastServer(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	h := l.withHost(t)
	server, _ := l.joined(t)
	l.machineAt(t, h, server)
	id := string(server)
	for verb, args := range map[string]toolstest.Object{"system_stop_instance": on(id), "system_drain_instance": on(id), "system_reboot_instance": on(id, "force", true),
		"system_terminate_instance": on(id), "system_reap_instance": on(id, "operation_id", "x", "accept_running", true),
		"system_replace_instance": on(id, "operation_id", "x", "accept_running", true)} {
		e := l.Refused(t, verb, args, schema.PreconditionFailed, "this is the last healthy server of cluster s-1, which has 1 workers")
		if e.Details["floor"] != "last_server" {
			t.Errorf("%s: details %v", verb, e.Details)
		}
	}
}

func TestCordonOfAMemberReachesKubernetesByAServersAgent(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server, worker := l.joined(t)
	l.Approve(t, l.Parked(t, "system_cordon_instance", on(string(worker), "reason", "noisy fan")))
	tasks := l.told(t, server)
	if len(tasks) != 1 || tasks[0].Command != "k8s_drain" || string(tasks[0].Parameters) != `{"mode":"cordon","node":"w-1"}` {
		t.Fatalf("the server is told %s", spelt(tasks))
	}
	nodes := objects(t, l.Call(t, "kubernetes_list_nodes", toolstest.Object{"cluster_id": "s-1"})["nodes"])
	toolstest.Has(t, toolstest.Object{"name": "w-1", "cordon": toolstest.Object{"owner": "operator:" + l.Caller.ID, "reason": "noisy fan",
		"since": nodes[1]["cordon"].(toolstest.Object)["since"]}}, nodes[1])
	l.Call(t, "system_uncordon_instance", on(string(worker))) // what was not begun is superseded
	if tasks := l.told(t, server); len(tasks) != 1 || string(tasks[0].Parameters) != `{"mode":"uncordon","node":"w-1"}` {
		t.Errorf("the server is told %s", spelt(tasks))
	}
}

func TestDrainMovesPodsThenEndsWhatModulesRun(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server, worker := l.joined(t)
	got := l.Approve(t, l.Parked(t, "system_drain_instance", on(string(worker), "timeout_seconds", 60)))
	task := at(t, got, "task", "id").(string)
	toolstest.Has(t, toolstest.Object{"instance_id": string(worker), "task": toolstest.Object{"command": "drain", "status": "running", "step": "drain", "resumable": true},
		"cordon": toolstest.Object{"owner": "drain:" + task}}, narrow(t, got, "cordon", "owner"))
	if tasks := l.told(t, server); len(tasks) != 1 || string(tasks[0].Parameters) != `{"mode":"drain","node":"w-1","timeout_seconds":60}` {
		t.Fatalf("the server is told %s", spelt(tasks))
	}
	l.Refused(t, "system_uncordon_instance", on(string(worker)), schema.Conflict, "cordoned by drain:"+task)
	toolstest.Has(t, toolstest.Object{"task": toolstest.Object{"id": task}}, l.Call(t, "system_drain_instance", on(string(worker))))
	l.ends(t, server, "complete", "")
	toolstest.Has(t, toolstest.Object{"task": toolstest.Object{"status": "complete", "progress": 100.0}}, l.Call(t, "system_get_task", toolstest.Object{"id": task}))
	if n := len(l.Signals(t, "system.k3s_node_drained")); n != 1 {
		t.Errorf("%d signals, want 1", n)
	}
	drained := func() (at *store.Time) {
		l.View(t, func(ctx context.Context, v *store.View) error {
			i, err := store.InstanceByID(ctx, v, l.Account.ID, worker)
			at = i.DrainedAt
			return err
		})
		return at
	}
	if drained() == nil {
		t.Error("the row does not say that it is drained")
	}
	toolstest.Has(t, toolstest.Object{"cordoned": false}, l.Call(t, "system_uncordon_instance", on(string(worker))))
	if drained() != nil {
		t.Error("after the uncordon the row says that it is drained")
	}
}

func narrow(t *testing.T, o toolstest.Object, object, key string) toolstest.Object {
	t.Helper()
	out := toolstest.Object{}
	for k, v := range o {
		out[k] = v
	}
	out[object] = toolstest.Object{key: at(t, o, object, key)}
	return out
}

func TestAbortedDrainIsTakenBack(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server, worker := l.joined(t)
	got := l.Approve(t, l.Parked(t, "system_drain_instance", on(string(worker))))
	task := at(t, got, "task", "id")
	l.Approve(t, l.Parked(t, "system_abort_task", toolstest.Object{"id": task}))
	if tasks := l.told(t, server); len(tasks) != 1 || string(tasks[0].Parameters) != `{"mode":"uncordon","node":"w-1"}` {
		t.Errorf("the server is told %s", spelt(tasks))
	}
	toolstest.Has(t, toolstest.Object{"instance": toolstest.Object{"cordoned": false}}, l.Call(t, "system_get_instance", on(string(worker))))
}

func TestAbortedDrainLeavesTheCordonThatWasThereBefore(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server, worker := l.joined(t)
	l.Approve(t, l.Parked(t, "system_cordon_instance", on(string(worker), "reason", "noisy fan")))
	task := at(t, l.Approve(t, l.Parked(t, "system_drain_instance", on(string(worker)))), "task", "id")
	l.Approve(t, l.Parked(t, "system_abort_task", toolstest.Object{"id": task}))
	toolstest.Has(t, toolstest.Object{"instance": toolstest.Object{"cordoned": true, "cordon": toolstest.Object{"owner": "operator:" + l.Caller.ID, "reason": "noisy fan"}}},
		l.Call(t, "system_get_instance", on(string(worker))))
	if tasks := l.told(t, server); len(tasks) != 1 || string(tasks[0].Parameters) != `{"mode":"cordon","node":"w-1"}` {
		t.Errorf("the server is told %s", spelt(tasks))
	}
}

func TestFailedDrainLeavesTheCordonToTheOperator(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server, worker := l.joined(t)
	task := at(t, l.Approve(t, l.Parked(t, "system_drain_instance", on(string(worker)))), "task", "id")
	l.ends(t, server, "failed", "drain Node w-1: pods are left: default/web (a disruption budget forbids it)")
	toolstest.Has(t, toolstest.Object{"task": toolstest.Object{"status": "failed", "error_message": "drain Node w-1: pods are left: default/web (a disruption budget forbids it)"}},
		l.Call(t, "system_get_task", toolstest.Object{"id": task}))
	toolstest.Has(t, toolstest.Object{"instance": toolstest.Object{"cordoned": true}}, l.Call(t, "system_get_instance", on(string(worker))))
	l.Call(t, "system_uncordon_instance", on(string(worker)))
}

func TestReplacementOfAWorkerGoesFromStepToStep(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	h := l.withHost(t)
	server, worker := l.joined(t)
	l.machineAt(t, h, worker)
	args := on(string(worker), "operation_id", "swap", "accept_running", true, "reason", "bad disk")
	l.Refused(t, "system_replace_instance", on(string(worker), "operation_id", "swap"), schema.PreconditionFailed, "runs; pass accept_running")
	l.Refused(t, "system_replace_instance", on(string(worker), "operation_id", "swap", "pool_name", "spare"), schema.PreconditionFailed, "not available yet: pools")
	first := l.Approve(t, l.Parked(t, "system_replace_instance", args))
	task := at(t, first, "task", "id")
	toolstest.Has(t, toolstest.Object{"replacement_instance": nil, "task": toolstest.Object{"command": "replace", "step": "drain", "status": "running"},
		"plan": toolstest.Object{"name": "w-1", "cluster_id": l.cluster(t, "s-1")["id"], "steps": []any{"drain", "end_machine", "remove_node", "provision", "rejoin"}}}, first)
	if diff := cmp.Diff(first, l.Call(t, "system_replace_instance", args)); diff != "" {
		t.Errorf("the repetition (-first +second):\n%s", diff)
	}
	step := func() string {
		return at(t, l.Call(t, "system_get_task", toolstest.Object{"id": task}), "task", "step").(string)
	}
	look := func() {
		t.Helper()
		if err := l.Platform.Fleet.AdvanceTasks(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	l.Refused(t, "system_terminate_instance", on(string(worker)), schema.PreconditionFailed, "is being replaced")
	look()
	if got := step(); got != "drain" {
		t.Fatalf("before the agent's word it is at %s", got)
	}
	l.ends(t, server, "complete", "") // pods have moved
	if got := step(); got != "end_machine" {
		t.Fatalf("after the drain it is at %s", got)
	}
	h.deaf = errors.New("no answer")
	look()
	if got := step(); got != "end_machine" {
		t.Fatalf("a provider that does not answer: %s", got)
	}
	h.deaf = nil
	l.Refused(t, "system_abort_task", toolstest.Object{"id": task}, schema.PreconditionFailed, "past its last safe point")
	l.backdate(t, store.TaskID(task.(string)))
	look()
	if got := step(); got != "remove_node" {
		t.Fatalf("after the end of the machine it is at %s", got)
	}
	look()
	if got := step(); got != "remove_node" {
		t.Fatalf("before the Node is removed it is at %s", got)
	}
	if n := h.count(); n != 0 {
		t.Errorf("%d machines, want none", n)
	}
	l.ends(t, server, "complete", "") // the Node is gone
	look()
	if got := step(); got != "rejoin" {
		t.Fatalf("after the Node's removal it is at %s", got)
	}
	var fresh store.Instance
	l.View(t, func(ctx context.Context, v *store.View) (err error) {
		fresh, err = store.InstanceByName(ctx, v, l.Account.ID, "w-1")
		return err
	})
	if fresh.ID == worker || fresh.Status != "provisioning" || h.count() != 1 {
		t.Fatalf("new instance %s is %s, %d machines", fresh.ID, fresh.Status, h.count())
	}
	l.asAgent(t, fresh.ID, func(ctx context.Context, tx *store.Tx, i store.Instance) error {
		return l.Platform.Fleet.Ingest(ctx, tx, i, converged("boot-9", 1))
	})
	look()
	if got := step(); got != "rejoin" {
		t.Fatalf("before the rejoin it is at %s", got)
	}
	l.joinAgent(t, server, fresh.ID, "w-1")
	look()
	toolstest.Has(t, toolstest.Object{"task": toolstest.Object{"status": "complete", "progress": 100.0}}, l.Call(t, "system_get_task", toolstest.Object{"id": task}))
	replaced := l.Signals(t, "system.instance_replaced")
	if len(replaced) != 1 || replaced[0].Payload["old_instance_id"] != string(worker) || replaced[0].Payload["new_instance_id"] != string(fresh.ID) {
		t.Errorf("signals %s", spelt(replaced))
	}
}

// backdate makes a task's events old, so that what waits before it tries again tries now.
func (l *lab) backdate(t *testing.T, id store.TaskID) {
	t.Helper()
	l.Update(t, func(ctx context.Context, tx *store.Tx) error {
		task, err := store.TaskByID(ctx, &tx.View, l.Account.ID, id)
		if err != nil {
			return err
		}
		for i := range task.Events.V {
			task.Events.V[i].At = store.At(task.Events.V[i].At.Add(-time.Minute))
		}
		_, err = store.UpdateTask(ctx, tx, task)
		return err
	})
}

func TestReplacementOfADeadWorkerAsksNobodyForItsPods(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	h := l.withHost(t)
	server, worker := l.joined(t)
	l.machineAt(t, h, worker)
	l.Update(t, func(ctx context.Context, tx *store.Tx) error {
		r, err := store.InstanceReportOf(ctx, &tx.View, worker)
		if err != nil {
			return err
		}
		r.ReceivedAt = store.At(tx.Now().Add(-time.Hour))
		return store.PutInstanceReport(ctx, tx, r)
	})
	got := l.Approve(t, l.Parked(t, "system_replace_instance", on(string(worker), "operation_id", "swap")))
	toolstest.Has(t, toolstest.Object{"task": toolstest.Object{"step": "end_machine"}}, got)
	if err := l.Platform.Fleet.AdvanceTasks(t.Context()); err != nil {
		t.Fatal(err)
	}
	if tasks := l.told(t, server); len(tasks) != 1 || tasks[0].Command != "k8s_remove_node" {
		t.Errorf("the server is told %s", spelt(tasks))
	}
}

func TestStopOfAServerKeepsEtcdsQuorum(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	h := l.withHost(t)
	first := l.server(t, l.network(t, "tenant-a"), "s-1")
	l.activate(t, first, "s-1")
	l.machineAt(t, h, first)
	further := map[string]store.ClusterNode{}
	l.Update(t, func(ctx context.Context, tx *store.Tx) error {
		own, err := store.ClusterNodeByInstance(ctx, &tx.View, l.Account.ID, first)
		if err != nil {
			return err
		}
		for _, name := range []string{"s-2", "s-3"} {
			n := own
			n.ID, n.Name = store.ClusterNodeID(tx.NewID()), name
			further[name] = n
		}
		return nil
	})
	for name, n := range further {
		n.InstanceID = l.machine(t, name)
		further[name] = n
		l.Update(t, func(ctx context.Context, tx *store.Tx) error { return store.InsertClusterNode(ctx, tx, n) })
	}
	preview := l.Call(t, "platform_preview", toolstest.Object{"verb": "system_stop_instance", "arguments": on(string(first))})
	if refusals := objects(t, preview["refusals"]); len(refusals) != 0 {
		t.Errorf("with two others it is refused: %s", spelt(refusals))
	}
	down := further["s-3"]
	down.Status, down.StatusSince = cluster.NodeNotReady, down.CreatedAt
	l.Update(t, func(ctx context.Context, tx *store.Tx) error { return store.UpdateClusterNode(ctx, tx, down) })
	for _, verb := range []string{"system_stop_instance", "system_reboot_instance"} {
		if e := l.Refused(t, verb, on(string(first)), schema.PreconditionFailed, "cluster s-1 would lose etcd quorum"); e.Details["floor"] != "quorum" {
			t.Errorf("%s: details %v", verb, e.Details)
		}
	}
}

func TestReplacementGoesOnAfterARestart(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.running(t, "a")
	network := s.network(t, "tenant-a")
	s.Call(t, "system_sdwan_attach_peer", toolstest.Object{"network_id": network, "node_instance_id": id})
	s.Call(t, "system_update_instance", on(id, "description", "the old one"))
	got := s.Approve(t, s.Parked(t, "system_replace_instance", on(id, "operation_id", "swap", "accept_running", true)))
	toolstest.Has(t, toolstest.Object{"plan": toolstest.Object{"steps": []any{"end_machine", "provision", "rejoin"}, "network_ids": []any{network}, "cluster_id": nil}}, got)
	s.host.deaf = errors.New("no answer")
	s.advance(t)
	s.Update(t, func(ctx context.Context, tx *store.Tx) error { // as a platform leaves it that is killed before the outcome
		i, err := store.InstanceByID(ctx, &tx.View, s.Account.ID, store.InstanceID(id))
		if err != nil {
			return err
		}
		i.Intent = store.IntentTerminate
		_, err = store.UpdateInstance(ctx, tx, i)
		return err
	})
	s.host.deaf = nil
	if err := s.Platform.Fleet.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	task := at(t, got, "task", "id").(string)
	lab := &lab{Env: s.Env}
	lab.backdate(t, store.TaskID(task))
	for range 3 {
		s.advance(t)
	}
	fresh := at(t, s.Call(t, "system_list_instances", toolstest.Object{"status": "provisioning"}), "instances").([]any)
	if len(fresh) != 1 {
		t.Fatalf("new instances %v", fresh)
	}
	row := fresh[0].(toolstest.Object)
	if row["name"] != "a" || row["id"] == id || s.host.count() != 1 {
		t.Errorf("new instance %v, %d machines", row, s.host.count())
	}
	full := s.Call(t, "system_get_instance", on(row["id"].(string)))["instance"].(toolstest.Object)
	if peers := objects(t, full["sdwan_peers"]); len(peers) != 1 || peers[0]["network_id"] != network || full["description"] != "the old one" {
		t.Errorf("it inherits %v and %q", peers, full["description"])
	}
	s.report(t, row["id"].(string), converged("boot-9", 1))
	s.advance(t)
	toolstest.Has(t, toolstest.Object{"task": toolstest.Object{"status": "complete"}}, s.Call(t, "system_get_task", toolstest.Object{"id": task}))
}

func TestReplacementWaitsForTheEndOfAHold(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.running(t, "a")
	task := at(t, s.Approve(t, s.Parked(t, "system_replace_instance", on(id, "operation_id", "swap", "accept_running", true))), "task", "id")
	s.Call(t, "system_instance_hold", on(id, "reason", "disk is imaged"))
	for range 2 {
		s.advance(t)
	}
	if i := s.instance(t, id); i.Status != "running" || s.host.count() != 1 {
		t.Errorf("under a hold it is %s, %d machines", i.Status, s.host.count())
	}
	told := s.Call(t, "system_get_task", toolstest.Object{"id": task, "include_events": true})
	toolstest.Has(t, toolstest.Object{"task": toolstest.Object{"status": "running", "step": "end_machine"}}, told)
	if events := objects(t, told["events"]); len(events) != 1 || events[0]["type"] != "held" {
		t.Errorf("events %s, want the hold told once", spelt(events))
	}
	s.Call(t, "system_release_instance_hold", on(id))
	s.advance(t)
	if i := s.instance(t, id); i.Status != "terminated" {
		t.Errorf("after the hold it is %s", i.Status)
	}
}

func TestReplacementWaitsForTheEndOfAnEmergencyStop(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.running(t, "a")
	s.Approve(t, s.Parked(t, "system_replace_instance", on(id, "operation_id", "swap", "accept_running", true)))
	person := governance.PersonCaller(s.Person)
	s.CallAs(t, person, "platform_emergency_stop", toolstest.Object{"reason": "look first"})
	for range 2 {
		s.advance(t)
	}
	if i := s.instance(t, id); i.Status != "running" || s.host.count() != 1 {
		t.Errorf("under an emergency stop it is %s, %d machines", i.Status, s.host.count())
	}
	s.Resume(t, "looked")
	for range 2 {
		s.advance(t)
	}
	if i := s.instance(t, id); i.Status != "terminated" {
		t.Errorf("after the resume it is %s", i.Status)
	}
}

func TestReplacementFailsWhereTheNewMachineCannotBeMade(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.running(t, "a")
	got := s.Approve(t, s.Parked(t, "system_replace_instance", on(id, "operation_id", "swap", "accept_running", true)))
	s.host.fail = errors.New("no room")
	for range 4 {
		s.advance(t)
	}
	toolstest.Has(t, toolstest.Object{"task": toolstest.Object{"status": "failed", "step": "provision", "error_message": "provider local: no room"}},
		s.Call(t, "system_get_task", toolstest.Object{"id": at(t, got, "task", "id")}))
	if n := len(s.Signals(t, "system.task_failed")); n != 1 {
		t.Errorf("%d signals, want 1", n)
	}
}
