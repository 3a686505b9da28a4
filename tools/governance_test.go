package tools_test

import (
	"context"
	"crypto/ed25519"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/governance"
	"powernode/platform/network"
	"powernode/schema"
	"powernode/store"
	"powernode/tools"
	"powernode/tools/toolstest"
)

func TestWhoamiNamesCallerAccountAndPeople(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	for _, tt := range []struct {
		name   string
		caller tools.Caller
		want   toolstest.Object
	}{
		{"the assistant", env.Caller, toolstest.Object{"kind": "agent", "role": "agent"}},
		{"an admin", governance.PersonCaller(env.Person), toolstest.Object{"kind": "person", "role": "admin", "id": string(env.Person.ID)}},
		{"a viewer", env.AddPerson(t, "vi@example.org", governance.RoleViewer), toolstest.Object{"kind": "person", "role": "viewer"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := env.CallAs(t, tt.caller, "platform_whoami", nil)
			toolstest.Has(t, toolstest.Object{"account": toolstest.Object{"id": string(env.Account.ID), "name": "home"}, "caller": tt.want}, got)
			if people := got["users"].([]any); len(people) == 0 || people[0].(toolstest.Object)["email"] != "ada@example.org" {
				t.Errorf("users = %v, want ada first", people)
			}
		})
	}
}

func TestUndeclaredParameterIsRefused(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	env.Refused(t, "platform_whoami", `{"verbose": true}`, schema.InvalidArguments, "Undeclared parameters: verbose")
}

// aNetwork makes a network beside the call path.
func aNetwork(t *testing.T, env *toolstest.Env, name string) store.Network {
	t.Helper()
	var n store.Network
	env.Update(t, func(ctx context.Context, tx *store.Tx) (err error) {
		n, err = env.Platform.Network.Create(ctx, tx, env.Account.ID, network.CreateInput{Name: name})
		return err
	})
	return n
}

const createCategory = "system.runtime_k8s_cluster_create"

// parkedCreate raises the policy of creating clusters and parks a call.
func parkedCreate(t *testing.T, env *toolstest.Env) (store.OperationID, toolstest.Object) {
	t.Helper()
	args := toolstest.Object{"name": "blue", "network_id": aNetwork(t, env, "tenant-a").ID}
	env.SetPolicy(t, createCategory, governance.RequireApproval, governance.Scope{})
	return env.Parked(t, "kubernetes_create_cluster", args), args
}

func clusters(t *testing.T, env *toolstest.Env) int {
	t.Helper()
	return len(env.Call(t, "kubernetes_list_clusters", nil)["clusters"].([]any))
}

func operation(t *testing.T, env *toolstest.Env, id store.OperationID) toolstest.Object {
	t.Helper()
	return env.Call(t, "platform_get_operation", toolstest.Object{"deferred_operation_id": id})["operation"].(toolstest.Object)
}

func TestParkedCallWritesNothingButItsOperation(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	id, args := parkedCreate(t, env)
	if n := clusters(t, env); n != 0 {
		t.Errorf("%d clusters after parking, want none", n)
	}
	toolstest.Has(t, toolstest.Object{"status": "pending", "verb": "kubernetes_create_cluster", "action_category": createCategory,
		"decided_by": nil, "result": nil, "requested_by": toolstest.Object{"id": env.Caller.ID, "kind": "agent", "role": "agent"}}, operation(t, env, id))
	if again := env.Parked(t, "kubernetes_create_cluster", args); again != id {
		t.Errorf("the same call parked as %s, want the pending %s", again, id)
	}
	if n := len(env.Signals(t, "system.operation_pending")); n != 1 {
		t.Errorf("%d signals system.operation_pending, want 1", n)
	}
}

func TestParkedAnswerSaysWhatItNeeds(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	env.SetPolicy(t, createCategory, governance.RequireApproval, governance.Scope{})
	got := env.Call(t, "kubernetes_create_cluster", toolstest.Object{"name": "blue", "network_id": aNetwork(t, env, "tenant-a").ID})
	want := []string{"action_category", "deferred_operation_id", "expires_at", "message", "pending", "plan_digest"}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(got))); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	toolstest.Has(t, toolstest.Object{"pending": true, "message": "Approval required: " + createCategory}, got)
}

func TestParkedAnswerSaysThatThereIsNoHumanKey(t *testing.T) {
	t.Parallel()
	env := toolstest.NewWithoutKey(t)
	env.Update(t, func(ctx context.Context, tx *store.Tx) error { // by hand, and stricter: it holds
		return store.PutPolicy(ctx, tx, store.Policy{ID: "hand", AccountID: env.Account.ID, ActionCategory: createCategory,
			Verdict: "require_approval", Scope: "{}"})
	})
	got := env.Call(t, "kubernetes_create_cluster", toolstest.Object{"name": "blue", "network_id": aNetwork(t, env, "tenant-a").ID})
	if message := got["message"].(string); !strings.HasSuffix(message, "no human key yet: run powernode init") {
		t.Errorf("message = %q, want it to end with the missing key", message)
	}
}

func TestApprovedCallRunsOnceAsItsCaller(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	id, _ := parkedCreate(t, env)
	result := env.Approve(t, id)
	if result["cluster"].(toolstest.Object)["name"] != "blue" {
		t.Errorf("result = %v, want the cluster", result)
	}
	if n := clusters(t, env); n != 1 {
		t.Fatalf("%d clusters after the approval, want 1", n)
	}
	toolstest.Has(t, toolstest.Object{"status": "completed", "decided_by": string(env.Person.ID)}, operation(t, env, id))
	if err := env.Decide(t, id, governance.Approve); schema.CodeOf(err) != schema.Conflict {
		t.Errorf("a second approval: %v, want a conflict", err)
	}
	for _, row := range env.Audit(t, "Devops::KubernetesCluster") {
		if row.Actor.ID != env.Caller.ID || row.Actor.OperationID != string(id) {
			t.Errorf("audit row by %+v, want the assistant's with the operation", row.Actor)
		}
	}
	closing := env.Signals(t, "system.operation_decided")
	if len(closing) != 1 || closing[0].Payload["decision"] != "approved" {
		t.Errorf("closing signals = %v, want one that says approved", closing)
	}
	env.Call(t, "recent_events", toolstest.Object{"source_type": "approval_execution"})
	proved(t, env)
}

func TestRejectedCallNeverRuns(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	id, _ := parkedCreate(t, env)
	if err := env.Decide(t, id, governance.Reject); err != nil {
		t.Fatalf("reject: %v", err)
	}
	if err := env.Decide(t, id, governance.Approve); schema.CodeOf(err) != schema.Conflict {
		t.Errorf("approval after the rejection: %v, want a conflict", err)
	}
	if n := clusters(t, env); n != 0 {
		t.Errorf("%d clusters, want none", n)
	}
	toolstest.Has(t, toolstest.Object{"status": "rejected", "executed_at": nil}, operation(t, env, id))
	proved(t, env)
}

func TestPlanThatChangedIsStale(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	id, args := parkedCreate(t, env)
	env.SetPolicy(t, createCategory, governance.NotifyAndProceed, governance.Scope{})
	env.Call(t, "kubernetes_create_cluster", args) // takes the name, and the addresses
	err := env.Decide(t, id, governance.Approve)
	if schema.CodeOf(err) != schema.Conflict || !strings.Contains(err.Error(), "plan is stale") {
		t.Errorf("approval of a stale plan: %v, want conflict plan is stale", err)
	}
	toolstest.Has(t, toolstest.Object{"status": "stale"}, operation(t, env, id))
	proved(t, env)
}

func TestDemotedCallerIsRefusedAtTheReplay(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	bob := env.AddPerson(t, "bob@example.org", governance.RoleOperator)
	secret, _ := env.Token(t, "bob@example.org", governance.TokenStatement{Role: governance.RoleOperator})
	agent := env.Caller
	env.Caller = env.CallerBy(t, secret)
	id, _ := parkedCreate(t, env)
	if _, err := env.SetUser(t, string(bob.UserID), governance.UserStatement{Deed: governance.ChangeUser, Role: governance.RoleViewer}); err != nil {
		t.Fatal(err)
	}
	if err := env.Decide(t, id, governance.Approve); schema.CodeOf(err) != schema.PermissionDenied {
		t.Errorf("replay of a demoted caller: %v, want permission_denied", err)
	}
	if n := clusters(t, env); n != 0 {
		t.Errorf("%d clusters, want none", n)
	}
	env.Caller = agent
	env.View(t, func(ctx context.Context, v *store.View) error {
		o, err := store.OperationByID(ctx, v, env.Account.ID, id)
		if err == nil && o.Status != governance.Failed {
			t.Errorf("the operation is %s, want failed", o.Status)
		}
		return err
	})
	events := env.Call(t, "recent_events", toolstest.Object{"source_type": "approval_execution", "status": "refused"})
	if events["count"] != 1.0 {
		t.Errorf("recent_events = %v, want the refused execution", events)
	}
	if n := len(env.Signals(t, "system.operation_failed")); n != 1 {
		t.Errorf("%d signals system.operation_failed, want 1", n)
	}
	proved(t, env)
}

func TestHandWrittenApprovalIsNone(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	id, _ := parkedCreate(t, env)
	env.Update(t, func(ctx context.Context, tx *store.Tx) error {
		o, err := store.OperationByID(ctx, &tx.View, env.Account.ID, id)
		if err != nil {
			return err
		}
		o.Status, o.DecidedBy, o.Signature = governance.Approved, string(env.Person.ID), []byte("forged")
		return store.UpdateOperation(ctx, tx, o)
	})
	named(t, env, "operations", string(id))
	if err := env.Platform.ResumeOperations(t.Context()); err != nil {
		t.Fatalf("resume: %v", err)
	}
	if n := clusters(t, env); n != 0 {
		t.Errorf("%d clusters, want none", n)
	}
	toolstest.Has(t, toolstest.Object{"status": "pending"}, operation(t, env, id))
	invalid := env.Signals(t, "system.signature_invalid")
	if len(invalid) != 1 || invalid[0].Payload["subject"] != "approval" || invalid[0].Payload["id"] != string(id) {
		t.Errorf("signals = %v, want one of the approval", invalid)
	}
}

func TestCopiedApprovalIsNone(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	id, _ := parkedCreate(t, env)
	d := env.Decision(t, id, governance.Reject)
	d.Decision = governance.Approve // the signature is one of a rejection
	_, err := env.Platform.Decide(t.Context(), env.Account.ID, d)
	if schema.CodeOf(err) != schema.PermissionDenied {
		t.Errorf("approval with another signature: %v, want permission_denied", err)
	}
	if n := len(env.Signals(t, "system.signature_invalid")); n != 1 {
		t.Errorf("%d signals system.signature_invalid, want 1", n)
	}
	if n := clusters(t, env); n != 0 {
		t.Errorf("%d clusters, want none", n)
	}
}

func TestOperationThatRanDoesNotRunAgain(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	id, _ := parkedCreate(t, env)
	env.Approve(t, id)
	env.Update(t, func(ctx context.Context, tx *store.Tx) error { // its row back to approved, signature and all
		o, err := store.OperationByID(ctx, &tx.View, env.Account.ID, id)
		if err != nil {
			return err
		}
		o.Status = governance.Approved
		return store.UpdateOperation(ctx, tx, o)
	})
	if err := env.Platform.ResumeOperations(t.Context()); err != nil {
		t.Fatalf("resume: %v", err)
	}
	if n := clusters(t, env); n != 1 {
		t.Errorf("%d clusters, want the one", n)
	}
}

func TestApprovalBeforeACrashIsCarriedOut(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	id, _ := parkedCreate(t, env)
	approved(t, env, id)
	if err := env.Platform.ResumeOperations(t.Context()); err != nil {
		t.Fatalf("resume: %v", err)
	}
	if n := clusters(t, env); n != 1 {
		t.Errorf("%d clusters, want 1", n)
	}
	toolstest.Has(t, toolstest.Object{"status": "completed"}, operation(t, env, id))
	proved(t, env)
}

func TestHandWrittenPolicyThatLoosensHasNoEffect(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	env.SetPolicy(t, createCategory, governance.RequireApproval, governance.Scope{})
	args := toolstest.Object{"name": "blue", "network_id": aNetwork(t, env, "tenant-a").ID}
	env.Update(t, func(ctx context.Context, tx *store.Tx) error {
		return store.PutPolicy(ctx, tx, store.Policy{ID: "hand", AccountID: env.Account.ID, ActionCategory: createCategory,
			Verdict: "auto_approve", Scope: "{}", MadeBy: env.Person.ID, Signature: []byte("forged")})
	})
	env.Parked(t, "kubernetes_create_cluster", args)
	invalid := env.Signals(t, "system.signature_invalid")
	if len(invalid) != 1 || invalid[0].Payload["subject"] != "policy" {
		t.Errorf("signals = %v, want one of the policy", invalid)
	}
	named(t, env, "policies", "hand")
}

func TestRemovedPolicyRowStillStands(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	env.SetPolicy(t, createCategory, governance.RequireApproval, governance.Scope{})
	env.Update(t, func(ctx context.Context, tx *store.Tx) error {
		_, err := store.DeletePolicy(ctx, tx, env.Account.ID, createCategory, "{}")
		return err
	})
	env.Parked(t, "kubernetes_create_cluster", toolstest.Object{"name": "blue", "network_id": aNetwork(t, env, "tenant-a").ID})
	if len(proof(t, env).Findings) == 0 {
		t.Error("the missing row is not named")
	}
}

func TestPolicyByScope(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	env.SetPolicy(t, createCategory, governance.Block, governance.Scope{Role: governance.RoleAgent})
	args := toolstest.Object{"name": "blue", "network_id": aNetwork(t, env, "tenant-a").ID}
	env.Refused(t, "kubernetes_create_cluster", args, schema.BlockedByPolicy, "Action "+createCategory+" is blocked by policy")
	env.CallAs(t, governance.PersonCaller(env.Person), "kubernetes_create_cluster", args)
	if n := len(env.Signals(t, "system.policy_changed")); n != 1 {
		t.Errorf("%d signals system.policy_changed, want 1", n)
	}
	env.SetPolicy(t, createCategory, governance.Unset, governance.Scope{Role: governance.RoleAgent})
	args["name"] = "green"
	env.Call(t, "kubernetes_create_cluster", args)
	proved(t, env)
}

func TestSecondKeyNeedsTheFirst(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	other := ed25519.NewKeyFromSeed([]byte("another key of an attacker, 32 b"))
	in := governance.KeyInput{Email: env.Person.Email, Name: "Mallory", PublicKey: other.Public().(ed25519.PublicKey)}
	statement := governance.KeyStatement{AccountID: env.Account.ID, Email: in.Email, PublicKey: in.PublicKey}.Bytes()
	in.Proof = governance.Sign(other, statement)
	record := func() error {
		return env.Platform.DB.Update(t.Context(), func(tx *store.Tx) error {
			_, err := env.Platform.Governance.RecordKey(t.Context(), tx, env.Account.ID, in)
			return err
		})
	}
	if err := record(); schema.CodeOf(err) != schema.PermissionDenied {
		t.Fatalf("a second key without the first: %v, want permission_denied", err)
	}
	id, _ := parkedCreate(t, env)
	// As somebody who can write the database: the person's row, and a record at the end of the chain.
	env.Update(t, func(ctx context.Context, tx *store.Tx) error {
		if err := store.SetUserKey(ctx, tx, env.Account.ID, env.Person.ID, in.PublicKey); err != nil {
			return err
		}
		_, err := tx.Audit(ctx, store.AuditEntry{AccountID: env.Account.ID, Action: "human_key_created", ResourceType: "Governance::User",
			ResourceID: string(env.Person.ID), New: store.Object{"email": in.Email, "public_key": in.PublicKey, "proof": in.Proof,
				"authorised_by": "first", "authority": nil}})
		return err
	})
	named(t, env, "users", string(env.Person.ID))
	own := env.Key
	env.Key = other
	if err := env.Decide(t, id, governance.Approve); schema.CodeOf(err) != schema.PermissionDenied {
		t.Errorf("approval by the forged key: %v, want permission_denied", err)
	}
	env.Key = own
	env.Approve(t, id)
	in.Authority = governance.Sign(own, statement)
	if err := record(); err != nil {
		t.Errorf("a second key, signed by the first: %v", err)
	}
}

func TestRequesterDoesNotDecide(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	env.SetPolicy(t, createCategory, governance.RequireApproval, governance.Scope{})
	env.Caller = governance.PersonCaller(env.Person)
	args := toolstest.Object{"name": "blue", "network_id": aNetwork(t, env, "tenant-a").ID}
	id := env.Parked(t, "kubernetes_create_cluster", args)
	env.AddPerson(t, "bob@example.org", governance.RoleAdmin)
	if err := env.Decide(t, id, governance.Approve); schema.CodeOf(err) != schema.PermissionDenied {
		t.Errorf("approval of what one asked for oneself: %v, want permission_denied", err)
	}
}

func TestOperationsAreTheirRequesters(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	id, _ := parkedCreate(t, env)
	args := toolstest.Object{"deferred_operation_id": id}
	viewer := env.AddPerson(t, "vi@example.org", governance.RoleViewer)
	env.RefusedAs(t, viewer, "platform_get_operation", args, schema.NotFound, "operation not found")
	if got := env.CallAs(t, viewer, "platform_list_operations", nil); got["count"] != 0.0 {
		t.Errorf("a viewer lists %v, want none", got)
	}
	admin := governance.PersonCaller(env.Person)
	env.Approve(t, id)
	got := env.CallAs(t, admin, "platform_get_operation", args)["operation"].(toolstest.Object)
	toolstest.Has(t, toolstest.Object{"status": "completed", "result": nil}, got)
	if got := operation(t, env, id); got["result"] == nil {
		t.Error("the requester doesn't see the result")
	}
}

func TestExpiredOperationCanNotBeApproved(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	id, _ := parkedCreate(t, env)
	env.Update(t, func(ctx context.Context, tx *store.Tx) error {
		o, err := store.OperationByID(ctx, &tx.View, env.Account.ID, id)
		if err != nil {
			return err
		}
		return store.SetOperationExpiry(ctx, tx, o.ID, store.At(tx.Now().Add(-time.Second)))
	})
	if err := env.Decide(t, id, governance.Approve); schema.CodeOf(err) != schema.Conflict {
		t.Errorf("approval of an expired operation: %v, want a conflict", err)
	}
	if err := env.Platform.LookAtOperations(t.Context()); err != nil {
		t.Fatalf("look at operations: %v", err)
	}
	toolstest.Has(t, toolstest.Object{"status": "expired"}, operation(t, env, id))
}

func TestPreviewHasTheDigestOfTheParkedCall(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	id, args := parkedCreate(t, env)
	got := env.Call(t, "platform_preview", toolstest.Object{"verb": "kubernetes_create_cluster", "arguments": args})
	toolstest.Has(t, toolstest.Object{"plan_digest": operation(t, env, id)["plan_digest"], "refusals": []any{},
		"policy": toolstest.Object{"action_category": createCategory, "verdict": "require_approval"}}, got)
	var kinds []string
	for _, e := range got["effects"].([]any) {
		effect := e.(toolstest.Object)
		kinds = append(kinds, effect["action"].(string)+" "+effect["resource_type"].(string))
	}
	if !slices.Contains(kinds, "created Devops::KubernetesCluster") {
		t.Errorf("effects = %v, want the cluster's creation", kinds)
	}
	if n := clusters(t, env); n != 0 {
		t.Errorf("%d clusters after a preview, want none", n)
	}
}

func TestPreviewTellsRefusals(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	got := env.Call(t, "platform_preview", toolstest.Object{"verb": "kubernetes_decommission_cluster", "arguments": toolstest.Object{"cluster_id": "gone"}})
	refusals := got["refusals"].([]any)
	if len(refusals) != 1 || refusals[0].(toolstest.Object)["code"] != "not_found" || got["plan_digest"] != nil {
		t.Errorf("preview = %v, want one refusal not_found and no digest", got)
	}
	refused := env.Refused(t, "platform_preview", `{"verb": "kubernetes_decommission_cluster", "arguments": {"clusterid": "a"}}`,
		schema.InvalidArguments, "Undeclared parameters: clusterid")
	if refused.Details["pointer"] != "/arguments/cluster_id" && refused.Details["pointer"] != "/arguments/clusterid" {
		t.Errorf("pointer = %v, want one below /arguments", refused.Details["pointer"])
	}
	env.Refused(t, "platform_preview", `{"verb": "kubernetes_list_nodes", "arguments": {}}`, schema.InvalidArguments, "no action category")
	unknown := env.Refused(t, "platform_preview", `{"verb": "kubernetes_decomission_cluster", "arguments": {}}`, schema.InvalidArguments, "unknown verb")
	if diff := cmp.Diff([]string{"kubernetes_decommission_cluster"}, unknown.Details["candidates"]); diff != "" {
		t.Errorf("candidates (-want +got):\n%s", diff)
	}
}

func TestConfirmationParksWhateverThePolicySays(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	args := toolstest.Object{"action_description": "make the cluster\u202e of tenant a", "tool_name": "platform.kubernetes_create_cluster",
		"tool_arguments": toolstest.Object{"name": "blue", "network_id": aNetwork(t, env, "tenant-a").ID}}
	got := env.Call(t, "request_confirmation", args)
	want := []string{"action_category", "deferred_operation_id", "expires_at", "message", "plan_digest", "status"}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(got))); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	toolstest.Has(t, toolstest.Object{"status": "confirmation_requested", "action_category": createCategory}, got)
	if n := clusters(t, env); n != 0 {
		t.Errorf("%d clusters before the approval, want none", n)
	}
	env.Approve(t, store.OperationID(got["deferred_operation_id"].(string)))
	if n := clusters(t, env); n != 1 {
		t.Errorf("%d clusters after the approval, want 1", n)
	}
}

func TestConfirmationRefusesWhatTheVerbWould(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	for _, tt := range []struct {
		name, args string
		code       schema.Code
		text       string
	}{
		{"an unknown cluster", `{"action_description": "x", "tool_name": "kubernetes_decommission_cluster", "tool_arguments": {"cluster_id": "gone"}}`, schema.NotFound, "gone"},
		{"a reader", `{"action_description": "x", "tool_name": "kubernetes_list_nodes", "tool_arguments": {}}`, schema.InvalidArguments, "no action category"},
		{"itself", `{"action_description": "x", "tool_name": "request_confirmation", "tool_arguments": {}}`, schema.InvalidArguments, "no action category"},
		{"no verb", `{"action_description": "x", "tool_name": "launch", "tool_arguments": {}}`, schema.InvalidArguments, "unknown verb"},
		{"no words", `{"action_description": " ", "tool_name": "launch", "tool_arguments": {}}`, schema.InvalidArguments, "Missing required parameters: action_description"},
		{"wrong arguments", `{"action_description": "x", "tool_name": "kubernetes_create_cluster", "tool_arguments": {"nam": "x"}}`, schema.InvalidArguments, "nam (did you mean name?)"},
	} {
		t.Run(tt.name, func(t *testing.T) { env.Refused(t, "request_confirmation", tt.args, tt.code, tt.text) })
	}
}

func proof(t *testing.T, env *toolstest.Env) (p governance.Proof) {
	t.Helper()
	env.View(t, func(ctx context.Context, v *store.View) (err error) {
		p, err = env.Platform.Governance.Prove(ctx, v)
		return err
	})
	return p
}

func proved(t *testing.T, env *toolstest.Env) {
	t.Helper()
	if p := proof(t, env); len(p.Findings) > 0 {
		t.Errorf("the record does not fit: %v", p.Findings)
	}
}

// named fails unless the proof names the row.
func named(t *testing.T, env *toolstest.Env, table, id string) {
	t.Helper()
	p := proof(t, env)
	if !slices.ContainsFunc(p.Findings, func(f governance.Finding) bool { return f.Table == table && f.ID == id }) {
		t.Errorf("findings = %v, want %s %s named", p.Findings, table, id)
	}
}

// approved writes the person's approval of an operation without running it: what a crash leaves.
func approved(t *testing.T, env *toolstest.Env, id store.OperationID) {
	t.Helper()
	d := env.Decision(t, id, governance.Approve)
	env.Update(t, func(ctx context.Context, tx *store.Tx) error {
		o, u, err := env.Platform.Governance.CheckDecision(ctx, &tx.View, env.Account.ID, d)
		if err != nil {
			return err
		}
		_, err = env.Platform.Governance.WriteDecision(ctx, tx, o, u, d)
		return err
	})
}

// authorised asks, as a replay does inside its transaction.
func authorised(t *testing.T, env *toolstest.Env, id store.OperationID) (refusal error) {
	t.Helper()
	env.Update(t, func(ctx context.Context, tx *store.Tx) error {
		refusal = env.Platform.Governance.Authorised(ctx, tx, id, env.Account.ID)
		return nil
	})
	return refusal
}

func TestReplayIsAuthorisedByTheSignatureAlone(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	id, _ := parkedCreate(t, env)
	if err := authorised(t, env, id); schema.CodeOf(err) != schema.PermissionDenied {
		t.Errorf("a pending operation: %v, want permission_denied", err)
	}
	change := func(with func(*store.Operation)) {
		env.Update(t, func(ctx context.Context, tx *store.Tx) error {
			o, err := store.OperationByID(ctx, &tx.View, env.Account.ID, id)
			if err != nil {
				return err
			}
			with(&o)
			return store.UpdateOperation(ctx, tx, o)
		})
	}
	approved(t, env, id)
	if err := authorised(t, env, id); err != nil {
		t.Fatalf("an approved operation: %v", err)
	}
	change(func(o *store.Operation) { o.Comment = "another comment" })
	if err := authorised(t, env, id); schema.CodeOf(err) != schema.PermissionDenied {
		t.Errorf("a changed comment: %v, want permission_denied", err)
	}
	change(func(o *store.Operation) { o.Comment = "" })
	env.Update(t, func(ctx context.Context, tx *store.Tx) error {
		return store.SetOperationExpiry(ctx, tx, id, store.At(tx.Now().Add(-time.Second)))
	})
	if err := authorised(t, env, id); schema.CodeOf(err) != schema.Conflict {
		t.Errorf("an approval past its time: %v, want a conflict", err)
	}
}

func TestApprovalIsSingleUse(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	id, _ := parkedCreate(t, env)
	env.Approve(t, id)
	if err := authorised(t, env, id); schema.CodeOf(err) != schema.Conflict {
		t.Errorf("an operation that ran: %v, want a conflict", err)
	}
}

func TestPlanThatChangedAfterTheApprovalIsStale(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	id, args := parkedCreate(t, env)
	approved(t, env, id)
	env.SetPolicy(t, createCategory, governance.NotifyAndProceed, governance.Scope{})
	env.Call(t, "kubernetes_create_cluster", toolstest.Object{"name": "green", "network_id": args["network_id"]}) // takes the addresses
	if err := env.Platform.ResumeOperations(t.Context()); err != nil {
		t.Fatalf("resume: %v", err)
	}
	toolstest.Has(t, toolstest.Object{"status": "stale"}, operation(t, env, id))
	if n := clusters(t, env); n != 1 {
		t.Errorf("%d clusters, want green alone", n)
	}
	proved(t, env)
}

func TestForgedPolicyRecordHasNoEffect(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	env.SetPolicy(t, createCategory, governance.RequireApproval, governance.Scope{})
	args := toolstest.Object{"name": "blue", "network_id": aNetwork(t, env, "tenant-a").ID}
	forged := governance.PolicyStatement{AccountID: env.Account.ID, PolicyID: "hand", ActionCategory: createCategory, Verdict: "auto_approve", UserID: env.Person.ID}
	env.Update(t, func(ctx context.Context, tx *store.Tx) error {
		err := store.PutPolicy(ctx, tx, store.Policy{ID: "hand", AccountID: env.Account.ID, ActionCategory: createCategory,
			Verdict: "auto_approve", Scope: "{}", MadeBy: env.Person.ID, Signature: []byte("forged")})
		if err != nil {
			return err
		}
		_, err = tx.Audit(ctx, store.AuditEntry{AccountID: env.Account.ID, Action: "created", ResourceType: "Governance::Policy", ResourceID: "hand",
			New: store.Object{"policy": forged, "signature": []byte("forged")}})
		return err
	})
	env.Parked(t, "kubernetes_create_cluster", args)
	named(t, env, "policies", "hand")
}

func TestPolicyThatWasTakenBackDoesNotComeBack(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	env.SetPolicy(t, "sdwan.network_delete", governance.AutoApprove, governance.Scope{})
	var old store.Policy
	env.View(t, func(ctx context.Context, v *store.View) error {
		rows, err := store.Policies(ctx, v, env.Account.ID, "sdwan.network_delete")
		old = rows[0]
		return err
	})
	record := env.Audit(t, "Governance::Policy")[0]
	env.SetPolicy(t, "sdwan.network_delete", governance.Unset, governance.Scope{})
	env.Update(t, func(ctx context.Context, tx *store.Tx) error { // row and record again, genuine signature and all
		if err := store.PutPolicy(ctx, tx, old); err != nil {
			return err
		}
		_, err := tx.Audit(ctx, store.AuditEntry{AccountID: env.Account.ID, Action: record.Action, ResourceType: record.ResourceType,
			ResourceID: record.ResourceID, Old: record.Old, New: record.New})
		return err
	})
	env.Parked(t, "system_sdwan_delete_network", toolstest.Object{"network_id": aNetwork(t, env, "tenant-a").ID})
}

func TestResultIsSealedAndItsRequesters(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	env.SetPolicy(t, "sdwan.network_create", governance.RequireApproval, governance.Scope{})
	id := env.Parked(t, "system_sdwan_create_network", `{"name": "tenant-a"}`)
	env.Approve(t, id)
	other := env.Caller
	other.ID = "agent:another"
	env.RefusedAs(t, other, "platform_get_operation", toolstest.Object{"deferred_operation_id": id}, schema.NotFound, "operation not found")
	person := env.CallAs(t, governance.PersonCaller(env.Person), "platform_list_operations", nil)["operations"].([]any)
	if got := person[0].(toolstest.Object)["result"]; got != nil {
		t.Errorf("another person reads the result: %v", got)
	}
	var sealed []byte
	env.View(t, func(ctx context.Context, v *store.View) error {
		o, err := store.OperationByID(ctx, v, env.Account.ID, id)
		sealed = o.Result
		return err
	})
	if len(sealed) == 0 || strings.Contains(string(sealed), "tenant-a") {
		t.Error("the stored result is not sealed")
	}
}

// TestResumptionLeavesAloneWhatIsApprovedMeanwhile: calls run before a start has settled what was under way.
func TestResumptionLeavesAloneWhatIsApprovedMeanwhile(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	args := s.provisionArgs(s.node(t, "n", s.template(t, "t")))
	s.SetPolicy(t, "system.instance_provision", governance.RequireApproval, governance.Scope{})
	id := s.Parked(t, "system_provision_instance", args)
	s.host.asked = func() {
		if err := s.Platform.ResumeOperations(t.Context()); err != nil {
			t.Error(err)
		}
	}
	s.Approve(t, id)
	if n := len(s.Signals(t, "system.operation_failed")); n > 0 {
		t.Errorf("%d signals system.operation_failed of an operation that ran", n)
	}
	proved(t, s.Env)
}
