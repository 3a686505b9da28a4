package tools_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/governance"
	"powernode/platform/provider"
	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
	"powernode/tools"
	"powernode/tools/toolstest"
)

func TestProvisionAppliesTheTemplateAttachesAndMakesTheMachine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	network := s.network(t, "tenant-a")
	template := at(t, s.Call(t, "system_create_template", toolstest.Object{"name": "server", "node_platform_id": s.platform,
		"config": toolstest.Object{"sdwan_network_id": network}}), "template", "id").(string)
	s.join(t, template, s.server, nil)
	node := s.node(t, "k3s-server-a-1", template)

	got := s.Call(t, "system_provision_instance", s.provisionArgs(node))
	id := at(t, got, "instance", "id").(string)
	toolstest.Has(t, toolstest.Object{"provisioned": true, "cloud_instance_id": "local-" + id, "enrollment": nil,
		"applied":    toolstest.Object{"created": 1.0, "updated": 0.0, "skipped": 0.0},
		"instance":   toolstest.Object{"name": "k3s-server-a-1", "status": "provisioning", "variety": "local", "architecture": "amd64", "private_ip": "10.127.0.10"},
		"sdwan_peer": toolstest.Object{"network_id": network, "node_instance_id": id},
		"hint":       toolstest.Object{"verb": "system_get_instance"}}, got)
	toolstest.Has(t, toolstest.Object{"count": 0.0}, s.Call(t, "system_list_tasks", nil))

	// The machine is handed what it enrols with, and nothing of it is left in the row.
	asked := s.host.created[0]
	var handed struct {
		InstanceID   string   `json:"instance_id"`
		Token        string   `json:"token"`
		PlatformURLs []string `json:"platform_urls"`
		CAPEM        string   `json:"ca_pem"`
	}
	if err := json.Unmarshal(asked.Enrollment, &handed); err != nil {
		t.Fatal(err)
	}
	if handed.InstanceID != id || handed.Token == "" || handed.CAPEM != s.Platform.Fleet.Authority.CAPEM() || len(handed.PlatformURLs) != 1 {
		t.Errorf("handed %+v", handed)
	}
	if i := s.instance(t, id); i.EnrollmentToken != nil || i.Intent != "" {
		t.Errorf("the row keeps token %x and intent %q", i.EnrollmentToken, i.Intent)
	}
	// Its cluster was declared with it, and its document says so.
	toolstest.Has(t, toolstest.Object{"count": 1.0}, s.Call(t, "kubernetes_list_clusters", nil))
	d := s.document(t, id)
	if d.K3s.Server == nil || len(d.Networks) != 1 || len(d.Modules) != 1 || d.Modules[0].Artifact == nil {
		t.Errorf("document lacks k3s, network or module: %+v", d)
	}
	if n := len(s.Signals(t, "system.instance_provisioned")); n != 1 {
		t.Errorf("%d signals, want 1", n)
	}
}

func TestProvisionRefusesInOrder(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	template := s.template(t, "plain")
	node := s.node(t, "a", template)
	off := at(t, s.Call(t, "system_create_node", toolstest.Object{"name": "off", "template_id": template, "enabled": false}), "node", "id").(string)
	with := func(changes toolstest.Object) toolstest.Object {
		args := s.provisionArgs(node)
		for k, v := range changes {
			args[k] = v
		}
		return args
	}
	nowhere := "0198c0de-0000-7000-8000-000000000000"
	for _, tt := range []struct {
		name string
		args toolstest.Object
		code schema.Code
		text string
	}{
		{"a disabled node, before all else", with(toolstest.Object{"node_id": off, "provider_region_id": nowhere}), schema.PreconditionFailed, "Node is disabled"},
		{"no such region", with(toolstest.Object{"provider_region_id": nowhere, "provider_instance_type_id": nowhere}), schema.NotFound, "Provider region not found"},
		{"no such type", with(toolstest.Object{"provider_instance_type_id": nowhere}), schema.NotFound, "Instance type not found"},
		{"an address that the provider can't give", with(toolstest.Object{"options": toolstest.Object{"allocate_public_ip": true}}), schema.PreconditionFailed, "can't do allocate_public_ip"},
		{"a spot machine", with(toolstest.Object{"options": toolstest.Object{"spot": true}}), schema.PreconditionFailed, "can't do spot"},
		{"an option that is not declared", with(toolstest.Object{"options": toolstest.Object{"spott": true}}), schema.InvalidArguments, "options.spott (did you mean spot?)"},
	} {
		t.Run(tt.name, func(t *testing.T) { s.Refused(t, "system_provision_instance", tt.args, tt.code, tt.text) })
	}
	if n := s.host.count(); n != 0 {
		t.Errorf("%d machines, want none", n)
	}
}

func TestProvisionIsRepeatableUnderItsOperationID(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	node := s.node(t, "a", s.template(t, "plain"))
	args := s.provisionArgs(node)
	args["operation_id"] = "once"
	first := s.Call(t, "system_provision_instance", args)
	second := s.Call(t, "system_provision_instance", args)
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("the repetition answers something else (-first +second):\n%s", diff)
	}
	if n := s.host.count(); n != 1 {
		t.Errorf("%d machines, want 1", n)
	}
	other := s.provisionArgs(node)
	other["operation_id"], other["options"] = "once", toolstest.Object{"admin_user": "ada"}
	s.Refused(t, "system_provision_instance", other, schema.Conflict, "operation_id was used with other arguments")

	id := at(t, first, "instance", "id").(string)
	s.Approve(t, s.Parked(t, "system_terminate_instance", toolstest.Object{"instance_id": id}))
	again := at(t, s.Call(t, "system_provision_instance", args), "instance", "id")
	if again == id {
		t.Error("a terminated instance was answered again")
	}
}

func TestProvisionFailureLeavesARowThatSaysSoAndNoMachine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	node := s.node(t, "a", s.template(t, "plain"))
	s.host.fail = errors.New("no \x1b[31mroom\n")
	args := s.provisionArgs(node)
	args["operation_id"] = "x"
	_, err := s.Platform.Call(t.Context(), s.Caller, request("system_provision_instance", args))
	var refused *schema.Error
	if !errors.As(err, &refused) || refused.Code != schema.Unavailable || refused.Message != "provider local: no  [31mroom " {
		t.Fatalf("got %v, want unavailable with the provider's words", err)
	}
	id, _ := refused.Details["instance_id"].(store.InstanceID)
	toolstest.Has(t, toolstest.Object{"instance": toolstest.Object{"status": "error"}}, s.Call(t, "system_get_instance", toolstest.Object{"instance_id": id}))
	if n := s.host.count(); n != 0 {
		t.Errorf("%d machines are left, want none", n)
	}
	if n := len(s.Signals(t, "system.instance_provision_failed")); n != 1 {
		t.Errorf("%d signals, want 1", n)
	}
	s.host.fail = nil
	next := s.Call(t, "system_provision_instance", args)
	toolstest.Has(t, toolstest.Object{"instance": toolstest.Object{"name": "a-2"}}, next)
}

func TestTwoCallsOfOneOperationIDAskTheProviderOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	args := s.provisionArgs(s.node(t, "a", s.template(t, "plain")))
	args["operation_id"] = "once"
	s.host.fail = errors.New("no room")
	asked, answer := make(chan struct{}, 2), make(chan struct{})
	s.host.asked = func() { asked <- struct{}{}; <-answer }
	refusals := make(chan error, 2)
	var calls sync.WaitGroup
	call := func() {
		_, err := s.Platform.Call(t.Context(), s.Caller, request("system_provision_instance", args))
		refusals <- err
	}
	calls.Go(call)
	<-asked
	calls.Go(call)
	await(t, "the second call's intent", func() bool {
		var events []store.ExecutionEvent
		s.View(t, func(ctx context.Context, v *store.View) (err error) {
			events, err = store.ExecutionEvents(ctx, v, s.Account.ID, "", "pending", 10)
			return err
		})
		return len(events) == 2
	})
	close(answer)
	calls.Wait()
	ids := map[any]bool{}
	for range 2 {
		var refused *schema.Error
		if err := <-refusals; !errors.As(err, &refused) || refused.Code != schema.Unavailable || refused.Message != "provider local: no room" {
			t.Fatalf("got %v, want unavailable", err)
		}
		ids[refused.Details["instance_id"]] = true
	}
	if len(ids) != 1 || len(s.host.created) != 1 || s.host.count() != 0 {
		t.Errorf("instances %v, %d machines asked for, %d left, want one, one and none", ids, len(s.host.created), s.host.count())
	}
}

// await waits for a condition of the store.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick, limit := time.NewTicker(5*time.Millisecond), time.NewTimer(10*time.Second)
	defer tick.Stop()
	defer limit.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func request(verb string, args any) tools.Request {
	raw, err := json.Marshal(args)
	if err != nil {
		panic(err) // tests' own values encode
	}
	return tools.Request{Verb: verb, Arguments: raw}
}

// killed runs the intent of a provisioning and stops there, as a platform does that is killed before its act.
func (s *site) killed(t testing.TB, node, operation string) store.InstanceID {
	t.Helper()
	s.host.fail = errors.New("not reached")
	args := s.provisionArgs(node)
	args["operation_id"] = operation
	_, err := s.Platform.Call(t.Context(), s.Caller, request("system_provision_instance", args))
	var refused *schema.Error
	if !errors.As(err, &refused) {
		t.Fatalf("got %v, want a refusal", err)
	}
	s.host.fail = nil
	id := refused.Details["instance_id"].(store.InstanceID)
	s.Update(t, func(ctx context.Context, tx *store.Tx) error {
		i, err := store.InstanceByID(ctx, &tx.View, s.Account.ID, id)
		if err != nil {
			return err
		}
		token, err := s.Platform.Fleet.IssueEnrollmentToken(ctx, tx, i)
		if err != nil {
			return err
		}
		i.Status, i.Intent, i.ErrorMessage = store.InstancePending, store.IntentCreate, ""
		i.EnrollmentToken, err = s.Platform.Sealer.Seal(tx, "instances:"+string(id)+":enrollment_token", []byte(token.Reveal()))
		if err != nil {
			return err
		}
		_, err = store.UpdateInstance(ctx, tx, i)
		return err
	})
	return id
}

func TestKilledProvisioningIsFinishedByTheRepeatedCall(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	node := s.node(t, "a", s.template(t, "plain"))
	id := s.killed(t, node, "once")
	args := s.provisionArgs(node)
	args["operation_id"] = "once"
	got := s.Call(t, "system_provision_instance", args)
	toolstest.Has(t, toolstest.Object{"instance": toolstest.Object{"id": string(id), "status": "provisioning"}}, got)
	if n := s.host.count(); n != 1 {
		t.Errorf("%d machines, want 1", n)
	}
}

func TestKilledActsAreFinishedByTheNextStart(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	template := s.template(t, "plain")
	made := s.killed(t, s.node(t, "a", template), "once")
	failing := s.killed(t, s.node(t, "c", template), "twice")
	ending := s.provision(t, s.node(t, "b", template))
	s.Update(t, func(ctx context.Context, tx *store.Tx) error {
		i, err := store.InstanceByID(ctx, &tx.View, s.Account.ID, store.InstanceID(ending))
		if err != nil {
			return err
		}
		i.Intent = store.IntentTerminate
		_, err = store.UpdateInstance(ctx, tx, i)
		return err
	})
	if err := s.Platform.Fleet.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{string(made): "provisioning", string(failing): "provisioning", ending: "terminated"} {
		if i := s.instance(t, id); i.Status != want || i.Intent != "" {
			t.Errorf("instance %s is %s with intent %q, want %s", i.Name, i.Status, i.Intent, want)
		}
	}
	if n := s.host.count(); n != 2 {
		t.Errorf("%d machines, want 2", n)
	}
}

func TestInstanceRunsWithItsFirstReportAndSaysWhenItIsDone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.provision(t, s.node(t, "a", s.template(t, "plain")))
	read := func() toolstest.Object { return s.Call(t, "system_get_instance", toolstest.Object{"instance_id": id}) }
	toolstest.Has(t, toolstest.Object{"instance": toolstest.Object{"status": "provisioning", "converged": false, "applied_revision": nil,
		"last_heartbeat_at": nil, "certificate": nil, "subsystems": []any{}}}, read())

	desired := s.document(t, id).Revision
	s.report(t, id, converged("boot-1", desired-1))
	toolstest.Has(t, toolstest.Object{"instance": toolstest.Object{"status": "running", "converged": false, "applied_revision": float64(desired - 1),
		"desired_revision": float64(desired), "boot_id": "boot-1", "network_profile": "lightweight"}}, read())
	if n := len(s.Signals(t, "system.instance_running")); n != 1 {
		t.Errorf("%d signals, want 1", n)
	}
	s.report(t, id, converged("boot-1", desired))
	toolstest.Has(t, toolstest.Object{"instance": toolstest.Object{"converged": true}}, read())

	failed := converged("boot-1", desired)
	failed.Subsystems[3].State, failed.Subsystems[3].Message = "error", "no space\x00left"
	s.report(t, id, failed)
	s.report(t, id, failed)
	toolstest.Has(t, toolstest.Object{"instance": toolstest.Object{"converged": false}}, read())
	if open := s.Signals(t, "system.agent_subsystem_failed"); len(open) != 1 || open[0].Payload["message"] != "no space left" {
		t.Errorf("signals %v, want one with the agent's words", open)
	}
	s.report(t, id, converged("boot-1", desired))
	if n := len(s.Signals(t, "system.agent_subsystem_recovered")); n != 1 {
		t.Errorf("%d recoveries, want 1", n)
	}
}

func TestReportWithoutNewsRaisesNoRevision(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.provision(t, s.node(t, "a", s.template(t, "plain")))
	s.report(t, id, converged("boot-1", 1))
	before := s.Revision(t)
	s.report(t, id, converged("boot-1", 2))
	if after := s.Revision(t); after != before {
		t.Errorf("a heartbeat moved the revision from %d to %d", before, after)
	}
}

func TestUpdateInstanceChangesWhatItMay(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	template := s.template(t, "plain")
	id := s.provision(t, s.node(t, "a", template))
	s.provision(t, s.node(t, "b", template))
	got := s.Call(t, "system_update_instance", toolstest.Object{"instance_id": id, "name": "renamed", "public_ip_address": "2001:db8::1",
		"config": toolstest.Object{"rack": "r1", "row": 2}, "network_profile": "heavyweight"})
	toolstest.Has(t, toolstest.Object{"instance": toolstest.Object{"name": "renamed", "public_ip": "2001:db8::1", "network_profile": "heavyweight",
		"network_profile_source": "operator", "config": toolstest.Object{"rack": "r1", "row": 2.0}}}, got)
	got = s.Call(t, "system_update_instance", toolstest.Object{"instance_id": id, "config": toolstest.Object{"rack": nil, "shelf": "s"}})
	toolstest.Has(t, toolstest.Object{"instance": toolstest.Object{"config": toolstest.Object{"row": 2.0, "shelf": "s"}}}, got)

	with := func(key string, value any) toolstest.Object { return toolstest.Object{"instance_id": id, key: value} }
	s.Refused(t, "system_update_instance", toolstest.Object{"instance_id": id}, schema.InvalidArguments, "nothing to update")
	s.Refused(t, "system_update_instance", with("network_profile", "huge"), schema.InvalidArguments, "network_profile must be one of: lightweight, heavyweight")
	s.Refused(t, "system_update_instance", with("private_ip_address", "10.0.0"), schema.InvalidArguments, "must be an IP address")
	s.Refused(t, "system_update_instance", with("config", toolstest.Object{"operation_id": "x"}), schema.InvalidArguments, "config.operation_id is reserved")
	s.Refused(t, "system_update_instance", with("name", "b"), schema.Conflict, "already in use")
	refusal := s.Refused(t, "system_update_instance", with("node_template_id", template), schema.InvalidArguments, "Undeclared parameters: node_template_id")
	if refusal.Hint == nil || refusal.Hint.Verb != "system_update_node" {
		t.Errorf("hint %v, want system_update_node", refusal.Hint)
	}
}

func TestTerminateEndsTheMachineAndAnswersTheSameAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	network := s.network(t, "tenant-a")
	id := s.provision(t, s.node(t, "a", s.template(t, "plain")))
	s.Call(t, "system_sdwan_attach_peer", toolstest.Object{"network_id": network, "node_instance_id": id, "publicly_reachable": false})
	s.Call(t, "system_refresh_instance_modules", toolstest.Object{"instance_id": id})
	args := toolstest.Object{"instance_id": id}

	operation := s.Parked(t, "system_terminate_instance", args)
	if n := s.host.count(); n != 1 {
		t.Fatalf("a parked call ended the machine")
	}
	got := s.Approve(t, operation)
	toolstest.Has(t, toolstest.Object{"terminated": true, "detached_peer_count": 1.0, "removed_member": nil,
		"instance": toolstest.Object{"id": id, "status": "terminated"}}, got)
	if n := s.host.count(); n != 0 {
		t.Errorf("%d machines are left", n)
	}
	again := s.Call(t, "system_terminate_instance", args)
	if diff := cmp.Diff(got, again); diff != "" {
		t.Errorf("a second termination answers something else:\n%s", diff)
	}
	if n := len(s.Signals(t, "system.instance_terminated")); n != 1 {
		t.Errorf("%d signals, want 1", n)
	}
	toolstest.Has(t, toolstest.Object{"count": 1.0}, s.Call(t, "system_list_tasks", `{"status": "cancelled"}`))
	if rows := s.Audit(t, "System::Task"); len(rows) != 2 || rows[1].Action != "updated" || rows[1].New["status"] != "cancelled" {
		t.Errorf("audit rows of tasks %v, want its creation and its end", rows)
	}
	s.Refused(t, "system_update_instance", toolstest.Object{"instance_id": id, "name": "x"}, schema.PreconditionFailed, "is terminated")
	s.Refused(t, "system_refresh_instance_modules", args, schema.PreconditionFailed, "cannot queue a module reconcile: instance is terminated")
}

func TestTerminateThatTheProviderDoesNotAnswerCanBeRepeated(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.SetPolicy(t, "system.task.terminate", governance.NotifyAndProceed, governance.Scope{})
	id := s.provision(t, s.node(t, "a", s.template(t, "plain")))
	s.report(t, id, converged("boot-1", 1))
	s.host.deaf = context.DeadlineExceeded
	_, err := s.Platform.Call(t.Context(), s.Caller, request("system_terminate_instance", toolstest.Object{"instance_id": id}))
	if schema.CodeOf(err) != schema.Unavailable {
		t.Fatalf("got %v, want unavailable", err)
	}
	if i := s.instance(t, id); i.Status != "running" || i.Intent != "" {
		t.Errorf("the instance is %s with intent %q, want running", i.Status, i.Intent)
	}
	s.host.deaf = provider.ErrNotFound // the machine is gone by itself: that is success
	toolstest.Has(t, toolstest.Object{"terminated": true}, s.Call(t, "system_terminate_instance", toolstest.Object{"instance_id": id}))
}

func TestRefreshAsksTheAgentAndReadsNoTemplate(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	template := s.template(t, "plain")
	id := s.provision(t, s.node(t, "a", template))
	s.join(t, template, s.server, nil)
	args := toolstest.Object{"instance_id": id, "force_resync": true}
	got := s.Call(t, "system_refresh_instance_modules", args)
	toolstest.Has(t, toolstest.Object{"refreshed": true, "resync": true, "module_id": nil, "task_status": "pending", "assignments_stale": true,
		"hint": toolstest.Object{"verb": "system_apply_template"}}, got)
	task := got["task_id"].(string)
	if again := s.Call(t, "system_refresh_instance_modules", args)["task_id"]; again != task {
		t.Errorf("an equal request made task %v beside %v", again, task)
	}
	d := s.document(t, id)
	if len(d.Tasks) != 1 || d.Tasks[0].Command != "sync_modules" || len(d.Modules) != 0 {
		t.Errorf("document has tasks %v and modules %v, want the one task and no module", d.Tasks, d.Modules)
	}
	var asked sdwan.SyncModules // as the agent reads it
	if err := json.Unmarshal(d.Tasks[0].Parameters, &asked); err != nil || !asked.ForceResync || asked.ModuleID != nil {
		t.Errorf("the agent is asked %s, want a resync of all modules (%v)", d.Tasks[0].Parameters, err)
	}
	s.Refused(t, "system_refresh_instance_modules", toolstest.Object{"instance_id": id, "module_id": s.agent}, schema.PreconditionFailed, "is not assigned")

	s.report(t, id, sdwan.Report{BootID: "b", Tasks: []sdwan.TaskReport{{ID: task, State: "complete", Result: json.RawMessage(`{"checked": 3}`)}}})
	toolstest.Has(t, toolstest.Object{"task": toolstest.Object{"status": "complete", "progress": 100.0}, "timed_out": false},
		s.Call(t, "system_get_task", toolstest.Object{"id": task, "include_events": true, "wait_seconds": 45}))
	if d := s.document(t, id); len(d.Tasks) != 0 {
		t.Errorf("the document keeps the finished task %v", d.Tasks)
	}
}

func TestTaskThatIsNotOverTimesOut(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.provision(t, s.node(t, "a", s.template(t, "plain")))
	task := s.Call(t, "system_refresh_instance_modules", toolstest.Object{"instance_id": id})["task_id"]
	got := s.Call(t, "system_get_task", toolstest.Object{"id": task, "wait_seconds": 1})
	toolstest.Has(t, toolstest.Object{"task": toolstest.Object{"status": "pending"}, "timed_out": true}, got)
}

func TestListInstancesNarrows(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	template := s.template(t, "plain")
	node := s.node(t, "a", template)
	first, second := s.provision(t, node), s.provision(t, node)
	s.provision(t, s.node(t, "b", s.template(t, "other")))
	s.report(t, first, converged("x", 1))
	for name, tt := range map[string]struct {
		args toolstest.Object
		want float64
	}{
		"all": {toolstest.Object{}, 3}, "node": {toolstest.Object{"node_id": node}, 2}, "template": {toolstest.Object{"template_id": template}, 2},
		"status": {toolstest.Object{"status": "running"}, 1}, "none": {toolstest.Object{"status": "stopped"}, 0},
	} {
		if got := s.Call(t, "system_list_instances", tt.args)["count"]; got != tt.want {
			t.Errorf("%s: %v instances, want %v", name, got, tt.want)
		}
	}
	names := []any{}
	for _, row := range objects(t, s.Call(t, "system_list_instances", nil)["instances"]) {
		names = append(names, row["name"])
	}
	if diff := cmp.Diff([]any{"a", "a-2", "b"}, names); diff != "" {
		t.Errorf("instances are not by name (-want +got):\n%s", diff)
	}
	if name := s.instance(t, second).Name; name != "a-2" {
		t.Errorf("the node's second instance is named %s, want a-2", name)
	}
}

// member makes an instance a joined member of the only cluster.
func (s *site) member(t testing.TB, instance, role string) {
	t.Helper()
	i := s.instance(t, instance)
	s.Update(t, func(ctx context.Context, tx *store.Tx) error {
		all, err := store.Clusters(ctx, &tx.View, s.Account.ID)
		if err != nil {
			return err
		}
		return store.InsertClusterNode(ctx, tx, store.ClusterNode{ID: store.ClusterNodeID(tx.NewID()), AccountID: s.Account.ID, ClusterID: all[0].ID,
			InstanceID: i.ID, NodeID: i.NodeID, Name: i.Name, Role: role, Status: "active"})
	})
}

func TestMemberKeepsItsNameAndModuleAndLeavesWithItsMachine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	template := at(t, s.Call(t, "system_create_template", toolstest.Object{"name": "server", "node_platform_id": s.platform,
		"config": toolstest.Object{"sdwan_network_id": s.network(t, "tenant-a")}}), "template", "id").(string)
	s.join(t, template, s.server, nil)
	node := s.node(t, "a", template)
	id := s.provision(t, node)
	s.member(t, id, "server")

	s.Refused(t, "system_update_instance", toolstest.Object{"instance_id": id, "name": "other"}, schema.PreconditionFailed, "is a member of a cluster")
	assignment := s.assignment(t, node)["id"]
	s.Refused(t, "system_update_module_assignment", toolstest.Object{"assignment_id": assignment, "enabled": false}, schema.PreconditionFailed, "is a member of a cluster")
	s.Call(t, "system_update_node", toolstest.Object{"node_id": node, "node_template_id": s.template(t, "plain")})
	s.Refused(t, "system_apply_template", toolstest.Object{"node_id": node, "purge_stale": true}, schema.PreconditionFailed, "is a member of a cluster")

	got := s.Approve(t, s.Parked(t, "system_terminate_instance", toolstest.Object{"instance_id": id}))
	toolstest.Has(t, toolstest.Object{"terminated": true, "detached_peer_count": 1.0,
		"removed_member": toolstest.Object{"name": "a", "role": "server", "node_instance_id": id}}, got)
	s.View(t, func(ctx context.Context, v *store.View) error {
		_, err := store.ClusterNodeByInstance(ctx, v, s.Account.ID, store.InstanceID(id))
		if !errors.Is(err, store.ErrNoRow) {
			t.Errorf("the membership is still there: %v", err)
		}
		return nil
	})
}

func TestAutoAttachThatIsRefusedLeavesTheMachine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	network := s.network(t, "tenant-a")
	template := at(t, s.Call(t, "system_create_template", toolstest.Object{"name": "server", "node_platform_id": s.platform,
		"config": toolstest.Object{"sdwan_network_id": network}}), "template", "id").(string)
	s.Approve(t, s.Parked(t, "system_sdwan_delete_network", toolstest.Object{"network_id": network}))
	got := s.Call(t, "system_provision_instance", s.provisionArgs(s.node(t, "a", template)))
	toolstest.Has(t, toolstest.Object{"provisioned": true, "sdwan_peer": nil}, got)
	if diff := cmp.Diff([]any{"sdwan_auto_attach_failed"}, codes(got)); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	if n := len(s.Signals(t, "system.sdwan_auto_attach_failed")); n != 1 {
		t.Errorf("%d signals, want 1", n)
	}
}

func TestProvisioningThatIsPreviewedAsksForNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	node := s.node(t, "a", s.template(t, "plain"))
	asked := 0
	s.Platform.Fleet.PlatformURLs = func() []string { asked++; return []string{"https://10.127.0.1:7443"} }
	s.Call(t, "platform_preview", toolstest.Object{"verb": "system_provision_instance", "arguments": s.provisionArgs(node)})
	toolstest.Has(t, toolstest.Object{"count": 0.0}, s.Call(t, "system_list_instances", nil))
	if n := s.host.count(); n != 0 || asked != 0 {
		t.Errorf("a preview made %d machines and asked for the platform's addresses %d times", n, asked)
	}
}

func TestCallThatIsSentAgainAfterAKillMakesNoSecondMachine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	node := s.node(t, "a", s.template(t, "plain"))
	call := request("system_provision_instance", s.provisionArgs(node))
	call.CallID = "call-1"
	first, err := s.Platform.Call(t.Context(), s.Caller, call)
	if err != nil {
		t.Fatal(err)
	}
	// As a killed platform leaves it: the call's event is there, its result is not.
	s.Update(t, func(ctx context.Context, tx *store.Tx) error {
		e, err := store.ExecutionEventByCall(ctx, &tx.View, s.Account.ID, "call-1")
		if err != nil {
			return err
		}
		e.Status, e.Result, e.ResultExpiresAt = "pending", nil, nil
		return store.PutExecutionEvent(ctx, tx, e)
	})
	again, err := s.Platform.Call(t.Context(), s.Caller, call)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(first.JSON), string(again.JSON)); diff != "" {
		t.Errorf("sent again, it answers something else (-first +again):\n%s", diff)
	}
	if n := s.host.count(); n != 1 {
		t.Errorf("%d machines, want 1", n)
	}
	s.Call(t, "system_provision_instance", s.provisionArgs(node)) // another call is another machine
	if n := s.host.count(); n != 2 {
		t.Errorf("%d machines, want 2", n)
	}
}
