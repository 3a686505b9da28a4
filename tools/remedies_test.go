package tools_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"powernode/platform/governance"
	"powernode/platform/signal"
	"powernode/store"
	"powernode/tools/toolstest"
)

// operations are the account's operations of a verb, latest first.
func (w *watched) operations(t *testing.T, verb string) (out []store.Operation) {
	t.Helper()
	w.View(t, func(ctx context.Context, v *store.View) error {
		all, err := store.Operations(ctx, v, w.Account.ID, "", "")
		for _, o := range all {
			if o.Verb == verb {
				out = append(out, o)
			}
		}
		return err
	})
	return out
}

// silentVIP is a virtual IP whose holder nobody has shaken hands with for minutes, and whose candidate does not help either.
type silentVIP struct {
	*watched
	network  string
	observer store.InstanceID
	holders  map[string]store.InstanceID // by peer: the holder and the candidate
	lost     []string
}

func newSilentVIP(t *testing.T) *silentVIP {
	t.Helper()
	s := &silentVIP{watched: newWatched(t), holders: map[string]store.InstanceID{}}
	s.network = s.watched.network(t, "a")
	for _, name := range []string{"m-1", "m-2"} {
		id, p := s.member(t, s.network, name)
		s.lost = append(s.lost, p["id"].(string))
		s.holders[p["id"].(string)] = id
	}
	s.observer, _ = s.member(t, s.network, "m-3")
	s.Call(t, "system_sdwan_create_virtual_ip", toolstest.Object{"network_id": s.network, "name": "web", "cidr": "auto",
		"holder_peer_ids": []any{s.lost[0]}, "failover_holder_peer_ids": []any{s.lost[1]}})
	return s
}

// minutes lets time pass with agents that report: the holders' agents live, and the observer can't reach their tunnels.
func (s *silentVIP) minutes(t *testing.T, n int) {
	t.Helper()
	s.pass(t, n, map[string]time.Duration{s.lost[0]: 6 * time.Minute, s.lost[1]: 6 * time.Minute})
}

func (s *silentVIP) pass(t *testing.T, n int, ages map[string]time.Duration) {
	t.Helper()
	for range n * 2 {
		for _, id := range s.holders {
			s.report(t, id, nil)
		}
		s.shaken(t, s.observer, s.network, ages)
		s.after(t, 30*time.Second)
	}
}

func TestRemedyOfAVIPIsAPersonsAndIsNotRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	s := newSilentVIP(t)
	const verb = "system_sdwan_failover_virtual_ip"
	s.minutes(t, 1)
	s.expect(t, "system.sdwan_vip_unreachable", signal.Medium)
	asked := s.operations(t, verb)
	if len(asked) != 1 || asked[0].ActionCategory != "system.sdwan_vip_failover" || asked[0].RequesterID != "platform" || asked[0].RequestedBy.V["kind"] != "platform" {
		t.Fatalf("operations %+v, want one by the platform", asked)
	}
	finding := s.Signals(t, "system.sdwan_vip_unreachable")[0]
	if words := asked[0].Description; !strings.Contains(words, finding.Kind) || !strings.Contains(words, finding.Fingerprint) || !strings.Contains(words, "It tells: ") {
		t.Errorf("the operation does not say which finding it answers: %q", words)
	}
	if parked := s.Signals(t, "system.operation_pending")[0]; parked.CorrelationID != s.Signals(t, "system.sdwan_vip_unreachable")[0].CorrelationID {
		t.Error("the operation has not the condition's correlation")
	}
	s.minutes(t, 15) // nobody answers: it is asked once
	if n := len(s.operations(t, verb)); n != 1 {
		t.Fatalf("%d operations while one is pending", n)
	}
	for attempt := 1; attempt <= 3; attempt++ {
		s.Approve(t, s.operations(t, verb)[0].ID)
		s.minutes(t, 8)
		if n := len(s.operations(t, verb)); n != attempt {
			t.Fatalf("%d operations within 600 s of attempt %d", n, attempt)
		}
		stuck := []string{}
		if attempt == 3 {
			stuck = append(stuck, signal.High)
		}
		s.expect(t, "fleet.remediation_stuck", stuck...)
		s.minutes(t, 4)
	}
	told := s.Signals(t, "fleet.remediation_stuck")[0]
	toolstest.Has(t, toolstest.Object{"attempts": 3.0, "fingerprint": s.Signals(t, "system.sdwan_vip_unreachable")[0].Fingerprint}, told.Payload)
	toolstest.Has(t, toolstest.Object{"reason": "sensor_failover"}, s.Signals(t, "system.sdwan_vip_failed_over")[0].Payload)

	s.SetPolicy(t, "system.sdwan_vip_failover", governance.AutoApprove, governance.Scope{}) // it requires approval all the same
	last := s.operations(t, verb)[0]
	if len(s.operations(t, verb)) != 4 || last.Status != governance.Pending {
		t.Fatalf("after three attempts in vain the latest of %d operations is %s", len(s.operations(t, verb)), last.Status)
	}
	if err := s.Decide(t, last.ID, governance.Reject); err != nil {
		t.Fatal(err)
	}
	s.minutes(t, 58) // the cooldown of a rejection
	if n := len(s.operations(t, verb)); n != 4 {
		t.Fatalf("%d operations within the cooldown", n)
	}
	s.minutes(t, 3)
	if all := s.operations(t, verb); len(all) != 5 || all[0].Status != governance.Pending || all[0].Description == "" {
		t.Fatalf("after the cooldown there are %d operations, want a further one that says why", len(all))
	}
	s.pass(t, 1, map[string]time.Duration{s.lost[0]: time.Minute, s.lost[1]: time.Minute})
	s.expect(t, "system.sdwan_vip_reachable", signal.Low)
	s.expect(t, "fleet.remediation_unstuck", signal.Low)
}

func TestRemedyDoesNothingWhileNothingIsMeasured(t *testing.T) {
	t.Parallel()
	s := newSilentVIP(t)
	s.minutes(t, 1)
	const verb = "system_sdwan_failover_virtual_ip"
	s.Approve(t, s.operations(t, verb)[0].ID)
	for range 60 { // the observer is silent now
		s.after(t, time.Minute)
	}
	if n := len(s.operations(t, verb)); n != 1 {
		t.Errorf("%d operations, want none for what nobody measures", n)
	}
	s.expect(t, "fleet.remediation_stuck")
	s.expect(t, "system.sdwan_vip_reachable")
}

func TestAutomaticRemediesHaveABudgetAndObeyTheStop(t *testing.T) {
	t.Parallel()
	s := newSilentVIP(t)
	const verb, category = "system_sdwan_failover_virtual_ip", "system.sdwan_vip_failover"
	s.SetPolicy(t, category, governance.AutoApprove, governance.Scope{})
	s.minutes(t, 1)
	failovers := len(s.Signals(t, "system.sdwan_vip_failed_over"))
	if failovers != 1 || len(s.operations(t, verb)) != 0 {
		t.Fatalf("%d failovers, %d operations, want it done without a person", failovers, len(s.operations(t, verb)))
	}
	s.Update(t, func(ctx context.Context, tx *store.Tx) error {
		for range 20 {
			err := store.InsertRemedyAttempt(ctx, tx, store.RemedyAttempt{AccountID: s.Account.ID, Fingerprint: "vip:another", Verb: verb, ActionCategory: category,
				Outcome: store.RemedyRan})
			if err != nil {
				return err
			}
		}
		return nil
	})
	s.minutes(t, 11)
	if asked := s.operations(t, verb); len(asked) != 1 || len(s.Signals(t, "system.sdwan_vip_failed_over")) != failovers {
		t.Fatalf("%d operations, want a person asked once the day's decisions are used up", len(asked))
	}
}

func TestBudgetHoldsWithinOneRoundToo(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	w.SetPolicy(t, "system.template_apply_drift", governance.AutoApprove, governance.Scope{})
	platform := objects(t, w.Call(t, "system_list_platforms", nil)["platforms"])[0]["id"]
	module := objects(t, w.Call(t, "system_list_modules", nil)["modules"])[0]["id"]
	template := at(t, w.Call(t, "system_create_template", toolstest.Object{"name": "role", "node_platform_id": platform}), "template", "id").(string)
	w.template = store.TemplateID(template)
	for i := range 23 {
		w.report(t, w.machine(t, fmt.Sprintf("m-%d", i)), nil)
	}
	w.Call(t, "system_assign_module_to_template", toolstest.Object{"template_id": template, "module_id": module})
	w.after(t, 10*time.Second)
	if applied, asked := len(w.Signals(t, "system.template_applied")), len(w.operations(t, "system_apply_template")); applied != 20 || asked != 3 {
		t.Errorf("%d applied without a person and %d asked for, want 20 and 3", applied, asked)
	}
}

func TestEmergencyStopHoldsRemediesBack(t *testing.T) {
	t.Parallel()
	s := newSilentVIP(t)
	s.CallAs(t, governance.PersonCaller(s.Person), "platform_emergency_stop", toolstest.Object{"reason": "x"})
	s.minutes(t, 2)
	s.expect(t, "system.sdwan_vip_unreachable", signal.Medium)
	if n := len(s.operations(t, "system_sdwan_failover_virtual_ip")); n != 0 {
		t.Errorf("%d operations in an emergency", n)
	}
	s.Resume(t, "x")
	s.minutes(t, 1)
	if n := len(s.operations(t, "system_sdwan_failover_virtual_ip")); n != 1 {
		t.Errorf("%d operations after the emergency, want one", n)
	}
}

func TestRemedyOfATemplatesDriftAppliesIt(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	platform := objects(t, w.Call(t, "system_list_platforms", nil)["platforms"])[0]["id"]
	module := objects(t, w.Call(t, "system_list_modules", nil)["modules"])[0]
	template := at(t, w.Call(t, "system_create_template", toolstest.Object{"name": "role", "node_platform_id": platform}), "template", "id").(string)
	w.template = store.TemplateID(template)
	id := w.machine(t, "m-1")
	node := w.nodeOf(t, id)
	w.report(t, id, nil)
	w.after(t, 10*time.Second)
	w.expect(t, "system.template_closure_drift")
	w.Call(t, "system_assign_module_to_template", toolstest.Object{"template_id": template, "module_id": module["id"]})
	w.after(t, 10*time.Second)
	w.expect(t, "system.template_closure_drift", signal.Medium)
	toolstest.Has(t, toolstest.Object{"template_id": template, "missing": []any{module["name"]}, "changed": []any{}}, w.Signals(t, "system.template_closure_drift")[0].Payload)
	asked := w.operations(t, "system_apply_template")
	if len(asked) != 1 || asked[0].ActionCategory != "system.template_apply_drift" || asked[0].RequesterID != "platform" {
		t.Fatalf("operations %+v, want one by the platform", asked)
	}
	w.Approve(t, asked[0].ID)
	w.after(t, 10*time.Second)
	w.expect(t, "system.template_closure_converged", signal.Low)
	assignments := objects(t, w.Call(t, "system_list_node_module_assignments", toolstest.Object{"node_id": node})["assignments"])
	if len(assignments) != 1 || assignments[0]["module_name"] != module["name"] {
		t.Errorf("assignments %s, want what the template says", spelt(assignments))
	}
	w.after(t, time.Hour)
	if n := len(w.operations(t, "system_apply_template")); n != 1 {
		t.Errorf("%d operations after the drift is over", n)
	}
}

func TestRemedyThatIsRefusedChangesNothing(t *testing.T) {
	t.Parallel()
	s := newSilentVIP(t)
	delete(s.holders, s.lost[1]) // the candidate's agent is silent: it can't take over
	s.after(t, 2*time.Minute)
	s.minutes(t, 40)
	if n := len(s.operations(t, "system_sdwan_failover_virtual_ip")); n != 0 {
		t.Errorf("%d operations for a call that is refused", n)
	}
	s.expect(t, "fleet.remediation_stuck", signal.High)
	var refused int
	s.View(t, func(ctx context.Context, v *store.View) error {
		events, err := store.ExecutionEvents(ctx, v, s.Account.ID, "controller", "refused", 100)
		refused = len(events)
		return err
	})
	if refused < 3 || refused > 5 {
		t.Errorf("%d refused calls of the platform in 42 minutes, want one each 600 s", refused)
	}
}
