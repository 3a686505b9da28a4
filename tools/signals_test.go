package tools_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/signal"
	"powernode/schema"
	"powernode/store"
	"powernode/tools"
	"powernode/tools/toolstest"
)

// emit emits a signal of a kind, with a number to tell it by.
func emit(t *testing.T, env *toolstest.Env, kind string, number int) {
	t.Helper()
	env.Update(t, func(ctx context.Context, tx *store.Tx) error {
		return signal.Emit(ctx, tx, env.Account.ID, signal.Event{Kind: kind, Payload: store.Object{"number": number}})
	})
}

// numbers are what emit told the events by.
func numbers(answer toolstest.Object) []float64 {
	var out []float64
	for _, e := range answer["events"].([]any) {
		if n, ok := e.(toolstest.Object)["payload"].(toolstest.Object)["number"].(float64); ok {
			out = append(out, n)
		}
	}
	return out
}

func TestReadersOfSignalsAndEventsReadOneEach(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	emit(t, env, "system.k3s_node_joined", 1)
	env.Call(t, "platform_whoami", nil)
	env.Refused(t, "platform_whoami", `{"x": 1}`, schema.InvalidArguments, "Undeclared")

	events := env.Call(t, "recent_events", nil)
	for _, e := range events["events"].([]any) {
		if kind := e.(toolstest.Object)["event_type"]; kind != "platform_whoami" {
			t.Errorf("recent_events has %v, want calls of platform_whoami alone", kind)
		}
	}
	if events["count"] != 2.0 {
		t.Errorf("recent_events counts %v, want the call and the refused call", events["count"])
	}
	refused := env.Call(t, "recent_events", toolstest.Object{"status": "refused"})["events"].([]any)
	toolstest.Has(t, toolstest.Object{"status": "refused", "error_class": "invalid_arguments", "cost_usd": nil, "source_id": env.Caller.ID},
		refused[0].(toolstest.Object))

	signals := env.Call(t, "system_recent_signals", toolstest.Object{"kind": "system.k3s_node_joined"})
	if diff := cmp.Diff([]float64{1}, numbers(signals)); diff != "" {
		t.Errorf("signals (-want +got):\n%s", diff)
	}
	toolstest.Has(t, toolstest.Object{"channel": "system_fleet:" + string(env.Account.ID), "count": 1.0}, signals)
}

func TestSignalReadersRefuseUnknownKinds(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	refused := env.Refused(t, "system_recent_signals", `{"kind": "system.k3s"}`, schema.InvalidArguments, `unknown signal kind "system.k3s"`)
	if candidates := refused.Details["candidates"].([]string); len(candidates) == 0 || candidates[0] != "system.k3s_ambiguous_cluster_join_refused" {
		t.Errorf("candidates = %v, want kinds that begin so", candidates)
	}
	for _, prefix := range []string{"system.k3", "system.k8s", "sytem.k3s"} {
		refused := env.Refused(t, "system_watch_signals", toolstest.Object{"kind_prefix": prefix}, schema.InvalidArguments, "unknown signal kind")
		if candidates := refused.Details["candidates"].([]string); len(candidates) == 0 || !strings.HasPrefix(candidates[0], "system.k3s_") {
			t.Errorf("candidates for %s = %v, want kinds of system.k3s", prefix, candidates)
		}
	}
	env.Refused(t, "system_watch_signals", `{"after": "bogus"}`, schema.InvalidArguments, "cursor is not one that this verb issued")
	hinted := env.Refused(t, "recent_events", `{"kind_prefix": "system.k3s"}`, schema.InvalidArguments, "Undeclared parameters: kind_prefix")
	if hinted.Hint == nil || hinted.Hint.Verb != "system_watch_signals" {
		t.Errorf("hint = %v, want system_watch_signals", hinted.Hint)
	}
}

func TestCorrelationWinsOverKind(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	emit(t, env, "system.k3s_node_joined", 1)
	correlation := env.Signals(t, "system.k3s_node_joined")[0].CorrelationID
	got := env.Call(t, "system_recent_signals", toolstest.Object{"kind": "system.k3s_node_drained", "correlation_id": correlation})
	if diff := cmp.Diff([]float64{1}, numbers(got)); diff != "" {
		t.Errorf("signals (-want +got):\n%s", diff)
	}
	if w := got["warnings"].([]any); len(w) != 1 || w[0].(toolstest.Object)["code"] != "kind_ignored" {
		t.Errorf("warnings = %v, want kind_ignored", w)
	}
}

func TestWatchingMissesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	filter := func(after any) toolstest.Object {
		args := toolstest.Object{"kind_prefix": "system.k3s", "limit": 2}
		if after != nil {
			args["after"] = after
		}
		return args
	}
	first := env.Call(t, "system_watch_signals", filter(nil))
	toolstest.Has(t, toolstest.Object{"events": []any{}, "count": 0.0, "timed_out": true}, first)
	for n := range 5 {
		emit(t, env, "system.k3s_node_joined", n)
		emit(t, env, "system.instance_running", 100+n)
	}
	var got []float64
	after := first["next_after"]
	for range 4 {
		answer := env.Call(t, "system_watch_signals", filter(after))
		got, after = append(got, numbers(answer)...), answer["next_after"]
	}
	if diff := cmp.Diff([]float64{0, 1, 2, 3, 4}, got); diff != "" {
		t.Errorf("watched (-want +got):\n%s", diff)
	}
	env.Refused(t, "system_watch_signals", toolstest.Object{"after": after}, schema.InvalidArguments, "cursor is not one that this verb issued")
}

func TestWatchingEndsWhenSomethingComes(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	place := env.Call(t, "system_watch_signals", toolstest.Object{"kind_prefix": "system.k3s"})["next_after"]
	type answer struct {
		got tools.Result
		err error
	}
	answers := make(chan answer)
	go func() {
		got, err := env.Platform.Call(context.Background(), env.Caller, tools.Request{Verb: "system_watch_signals",
			Arguments: fmt.Appendf(nil, `{"kind_prefix": "system.k3s", "wait_seconds": 45, "after": %q}`, place)})
		answers <- answer{got, err}
	}()
	emit(t, env, "system.instance_running", 1) // wakes it, and is not what it waits for
	emit(t, env, "system.k3s_cluster_bootstrapped", 7)
	select {
	case a := <-answers:
		if a.err != nil {
			t.Fatalf("watch: %v", a.err)
		}
		want := `"number":7`
		if !strings.Contains(string(a.got.JSON), want) {
			t.Errorf("answer %s, want the signal", a.got.JSON)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the watcher was not woken")
	}
}

func TestSeveritiesAreOrdered(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	place := env.Call(t, "system_watch_signals", toolstest.Object{"severity_min": "high"})["next_after"]
	emit(t, env, "system.instance_running", 1)
	emit(t, env, "system.task_failed", 2)
	emit(t, env, "system.k3s_upgrade_failed", 3)
	got := env.Call(t, "system_watch_signals", toolstest.Object{"severity_min": "high", "after": place})
	if diff := cmp.Diff([]float64{2, 3}, numbers(got)); diff != "" {
		t.Errorf("watched (-want +got):\n%s", diff)
	}
}

func TestWatchingTimesOut(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	started := time.Now()
	got := env.Call(t, "system_watch_signals", toolstest.Object{"wait_seconds": 1})
	toolstest.Has(t, toolstest.Object{"timed_out": true, "count": 0.0}, got)
	if waited := time.Since(started); waited < time.Second {
		t.Errorf("answered after %s, want a wait of a second", waited)
	}
}
