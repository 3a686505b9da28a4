package tools_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
	"powernode/tools"
	"powernode/tools/toolstest"
)

func again(env *toolstest.Env, c tools.Caller, id, arguments string) (string, error) {
	result, err := env.Platform.Call(context.Background(), c, tools.Request{Verb: "system_sdwan_create_network", Arguments: []byte(arguments), CallID: id})
	return string(result.JSON), err
}

func TestCallThatIsSentAgainRunsOnce(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	first, err := again(env, env.Caller, "call-1", `{"name": "tenant-a"}`)
	if err != nil {
		t.Fatal(err)
	}
	second, err := again(env, env.Caller, "call-1", `{"name": "tenant-a"}`)
	if err != nil || second != first {
		t.Errorf("sent again: %s, %v, want %s", second, err, first)
	}
	_, refused := again(env, env.Caller, "call-2", `{"name": "tenant-a"}`)
	_, refusedAgain := again(env, env.Caller, "call-2", `{"name": "tenant-a"}`)
	if schema.CodeOf(refused) != schema.Conflict || refusedAgain == nil || refusedAgain.Error() != refused.Error() {
		t.Errorf("a refusal sent again: %v, want %v", refusedAgain, refused)
	}
	if _, err := again(env, governance.PersonCaller(env.Person), "call-1", `{"name": "tenant-a"}`); schema.CodeOf(err) != schema.Conflict {
		t.Errorf("another caller's call id: %v, want a conflict", err)
	}
	if got := env.Call(t, "system_sdwan_list_networks", nil); got["count"] != 1.0 {
		t.Errorf("networks = %v, want one", got)
	}
}

// Whoever vouches for a call id that was used nevertheless gets no second effect: the event's id is the backstop.
func TestUsedCallIDThatIsCalledFreshHasNoEffect(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	for i, name := range []string{"tenant-a", "tenant-b"} {
		_, err := env.Platform.Call(t.Context(), env.Caller, tools.Request{Verb: "system_sdwan_create_network",
			Arguments: fmt.Appendf(nil, `{"name": %q}`, name), CallID: "call-1", Fresh: true})
		if (err == nil) != (i == 0) || i == 1 && schema.CodeOf(err) != schema.Conflict {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if got := env.Call(t, "system_sdwan_list_networks", nil); got["count"] != 1.0 {
		t.Errorf("networks = %v, want one", got)
	}
	if err := env.Platform.FlushReads(t.Context()); err != nil {
		t.Fatal(err)
	}
	env.View(t, func(ctx context.Context, v *store.View) error {
		events, err := store.ExecutionEvents(ctx, v, env.Account.ID, "", "refused", 10)
		if len(events) != 1 {
			t.Errorf("events of refused calls: %+v, want the second call's", events)
		}
		return err
	})
}

func TestCallThatIsSentTwiceAtOnceRunsOnce(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	answers := make([]string, 8)
	var group sync.WaitGroup
	for i := range answers {
		group.Go(func() {
			var err error
			if answers[i], err = again(env, env.Caller, "call-1", `{"name": "tenant-a"}`); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for _, a := range answers {
		if a != answers[0] {
			t.Errorf("answers differ: %s and %s", a, answers[0])
		}
	}
}

func TestReadsLeaveOneEventEachAlsoUnderACallID(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	for range 3 {
		if _, err := env.Platform.Call(t.Context(), env.Caller, tools.Request{Verb: "platform_whoami", CallID: "read-1"}); err != nil {
			t.Fatal(err)
		}
	}
	got := env.Call(t, "recent_events", nil)
	if got["count"] != 3.0 {
		t.Errorf("%v events, want 3", got["count"])
	}
}

func TestUnknownVerbIsNoCall(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	_, err := env.Platform.Call(t.Context(), env.Caller, tools.Request{Verb: "system_create_nod"})
	unknown, ok := err.(*tools.UnknownVerbError) // it is returned as it is
	if !ok || len(unknown.Candidates) != 1 || unknown.Candidates[0] != "system_create_node" {
		t.Errorf("got %v, want an unknown verb near system_create_node", err)
	}
}

func TestRolesAndTokensNarrowCalls(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	viewer := env.AddPerson(t, "vi@example.org", governance.RoleViewer)
	env.RefusedAs(t, viewer, "system_sdwan_create_network", `{"name": "a"}`, schema.PermissionDenied, "permission denied: sdwan.networks.manage required")
	reader := env.Caller
	reader.ReadOnly = true
	env.RefusedAs(t, reader, "system_sdwan_create_network", `{"name": "a"}`, schema.PermissionDenied, "read only")
	env.CallAs(t, viewer, "system_sdwan_list_networks", nil)
	env.CallAs(t, reader, "system_sdwan_list_networks", nil)
}

func TestCallThatRunsIsNotifiedAndAudited(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	before := env.Revision(t)
	got := env.Call(t, "system_sdwan_create_network", `{"name": "tenant-a"}`)
	if got["revision"] != float64(before+1) || env.Revision(t) != before+1 {
		t.Errorf("revision %v, store at %d, want %d", got["revision"], env.Revision(t), before+1)
	}
	notified := env.Signals(t, "system.operation_notified")
	if len(notified) != 1 || notified[0].Payload["action_category"] != "sdwan.network_create" {
		t.Errorf("notified = %v", notified)
	}
	rows := env.Audit(t, "Sdwan::Network")
	if len(rows) != 1 || rows[0].Action != "created" || rows[0].Actor != (store.Actor{Kind: "agent", ID: env.Caller.ID,
		Verb: "system_sdwan_create_network", CorrelationID: notified[0].CorrelationID}) {
		t.Errorf("audit = %+v, want one row of the caller with the signal's correlation id", rows)
	}
}
