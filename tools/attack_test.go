package tools_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
	"powernode/tools"
	"powernode/tools/toolstest"
)

// setPolicy sets a policy as the person, and answers why it was refused.
func setPolicy(t *testing.T, env *toolstest.Env, category string, verdict governance.Verdict, scope governance.Scope) error {
	t.Helper()
	return env.Platform.DB.Update(t.Context(), func(tx *store.Tx) error {
		statement := governance.PolicyStatement{AccountID: env.Account.ID, PolicyID: store.PolicyID(tx.NewID()), ActionCategory: category,
			Verdict: string(verdict), Scope: scope, UserID: env.Person.ID}
		_, err := env.Platform.Governance.SetPolicy(t.Context(), tx, env.Account.ID,
			governance.PolicyInput{Policy: statement, Signature: governance.Sign(env.Key, statement.Bytes())})
		return err
	})
}

func TestPolicyThatCouldNeverFitIsRefused(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	n := aNetwork(t, env, "tenant-a")
	for _, tt := range []struct {
		name  string
		scope governance.Scope
		code  schema.Code
		text  string
	}{
		{"two kinds at once", governance.Scope{Role: governance.RoleAgent, NetworkID: n.ID}, schema.InvalidArguments, "scope must be one of"},
		{"no role", governance.Scope{Role: "agnet"}, schema.InvalidArguments, "unknown role"},
		{"no network", governance.Scope{NetworkID: "gone"}, schema.NotFound, "network_id names nothing"},
		{"no cluster", governance.Scope{ClusterID: store.ClusterID(n.ID)}, schema.NotFound, "cluster_id names nothing"},
		{"no token", governance.Scope{TokenID: "gone"}, schema.NotFound, "token_id names nothing"},
		{"an e-mail address for a person", governance.Scope{UserID: "ada@example.org"}, schema.NotFound, "user_id names nothing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := setPolicy(t, env, "sdwan.network_delete", governance.AutoApprove, tt.scope)
			if schema.CodeOf(err) != tt.code || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %s with %q", err, tt.code, tt.text)
			}
		})
	}
	if err := setPolicy(t, env, "sdwan.network_delete", governance.Block, governance.Scope{NetworkID: n.ID}); err != nil {
		t.Errorf("a network of the account: %v", err)
	}
	env.Refused(t, "system_sdwan_delete_network", toolstest.Object{"network_id": n.ID}, schema.BlockedByPolicy, "sdwan.network_delete")
	env.Parked(t, "system_sdwan_delete_network", toolstest.Object{"network_id": aNetwork(t, env, "tenant-b").ID})
}

func TestPolicyOfOneClusterStopsCallsOnIt(t *testing.T) {
	t.Parallel()
	w := newLab(t)
	network := w.network(t, "tenant-a")
	blue := w.readyCluster(t, network)
	green := at(t, w.Call(t, "kubernetes_create_cluster", toolstest.Object{"name": "green", "network_id": network}), "cluster", "id").(string)
	w.SetPolicy(t, "system.runtime_k8s_cluster_decommission", governance.Block, governance.Scope{ClusterID: store.ClusterID(blue)})
	w.SetPolicy(t, "system.runtime_k8s_kubeconfig_read", governance.Block, governance.Scope{ClusterID: store.ClusterID(blue)})
	w.SetPolicy(t, "system.runtime_k8s_cluster_create", governance.Block, governance.Scope{NetworkID: store.NetworkID(network)})
	w.Refused(t, "kubernetes_decommission_cluster", toolstest.Object{"cluster_id": "blue"}, schema.BlockedByPolicy, "is blocked by policy")
	w.Refused(t, "kubernetes_get_kubeconfig", toolstest.Object{"cluster_id": blue}, schema.BlockedByPolicy, "is blocked by policy")
	w.Refused(t, "kubernetes_create_cluster", toolstest.Object{"name": "red", "network_id": network}, schema.BlockedByPolicy, "is blocked by policy")
	w.Parked(t, "kubernetes_decommission_cluster", toolstest.Object{"cluster_id": green})
}

func TestPolicyStatementIsUsedOnce(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	statement := governance.PolicyStatement{AccountID: env.Account.ID, PolicyID: "01a22c27-657f-78f4-8fe8-370659363ec5",
		ActionCategory: "sdwan.network_delete", Verdict: "auto_approve", UserID: env.Person.ID}
	send := func() error {
		body, err := json.Marshal(governance.PolicyInput{Policy: statement, Signature: governance.Sign(env.Key, statement.Bytes())})
		if err != nil {
			t.Fatal(err)
		}
		_, err = env.Platform.People(t.Context(), env.Account.ID, tools.PeopleSetPolicy, body)
		return err
	}
	if err := send(); err != nil {
		t.Fatalf("a signed policy: %v", err)
	}
	env.SetPolicy(t, "sdwan.network_delete", governance.RequireApproval, governance.Scope{})
	if err := send(); schema.CodeOf(err) != schema.Conflict {
		t.Errorf("the same statement again: %v, want a conflict", err)
	}
	env.Parked(t, "system_sdwan_delete_network", toolstest.Object{"network_id": aNetwork(t, env, "tenant-a").ID})
	proved(t, env)
}

func TestOperationRunsInItsOwnAccount(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	other := env.AddAccount(t, "other", "fd5e:8a21:c0df::/48")
	o := store.Operation{AccountID: env.Account.ID}
	o.RequestedBy.V = store.Object{"account_id": string(other.ID), "kind": "agent", "role": "agent", "id": "agent:x"}
	if got := governance.Requester(o); got.AccountID != env.Account.ID || got.ID != "agent:x" {
		t.Errorf("the requester is %+v, want one of the operation's account", got)
	}
}

func TestPersonIsToldOfAStalePlanBeforeTheyDecide(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	n := aNetwork(t, env, "tenant-a")
	id := env.Parked(t, "system_sdwan_delete_network", toolstest.Object{"network_id": n.ID})
	shown := func() tools.OperationAnswer {
		body, err := json.Marshal(tools.OperationRequest{ID: string(id)})
		if err != nil {
			t.Fatal(err)
		}
		answer, err := env.Platform.People(t.Context(), env.Account.ID, tools.PeopleOperation, body)
		if err != nil {
			t.Fatalf("show the operation: %v", err)
		}
		return answer.(tools.OperationAnswer)
	}
	if a := shown(); a.Failed != nil || len(a.Effects) == 0 {
		t.Errorf("shown %+v, want the plan and nothing against it", a)
	}
	env.Call(t, "system_sdwan_update_network", toolstest.Object{"network_id": n.ID, "options": toolstest.Object{"description": "other"}})
	if a := shown(); a.Failed == nil || a.Failed.Message != "plan is stale" {
		t.Errorf("shown %+v, want that the plan is stale", a)
	}
}

func TestBlockHoldsAgainstAnApproval(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	n := aNetwork(t, env, "tenant-a")
	id := env.Parked(t, "system_sdwan_delete_network", toolstest.Object{"network_id": n.ID})
	env.SetPolicy(t, "sdwan.network_delete", governance.Block, governance.Scope{})
	if err := env.Decide(t, id, governance.Approve); schema.CodeOf(err) != schema.BlockedByPolicy {
		t.Errorf("approved under block: %v, want blocked_by_policy", err)
	}
	toolstest.Has(t, toolstest.Object{"status": "failed"}, operation(t, env, id))
	env.Call(t, "system_sdwan_get_network", toolstest.Object{"network_id": n.ID})
	proved(t, env)
}

func TestTokenNeverHoldsMoreThanItsPerson(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	person := env.AddPerson(t, "vi@example.org", governance.RoleViewer)
	secret, made := env.Token(t, "vi@example.org", governance.TokenStatement{Role: governance.RoleViewer})
	env.Update(t, func(ctx context.Context, tx *store.Tx) error { // as somebody who can write the database
		u, err := store.UserByRef(ctx, &tx.View, env.Account.ID, "vi@example.org")
		if err != nil {
			return err
		}
		u.Role, u.Grants = governance.RoleAdmin, []string{governance.AuditAll}
		return errors.Join(store.UpdateUser(ctx, tx, u), store.PutToken(ctx, tx, store.Token{ID: made.ID, AccountID: env.Account.ID,
			UserID: person.UserID, Hash: store.Secret(secret).Hash(), Role: governance.RoleAdmin}))
	})
	if c := env.CallerBy(t, secret); c.Role != governance.RoleViewer || len(c.Granted) > 0 {
		t.Errorf("a viewer's token is %s with %v now, want viewer", c.Role, c.Granted)
	}
	person.TokenID, person.Role = made.ID, governance.RoleAdmin
	env.View(t, func(ctx context.Context, v *store.View) error {
		now, err := env.Platform.Governance.Current(ctx, v, person)
		if err != nil || now.Role != governance.RoleViewer {
			t.Errorf("a viewer's token is %s now (%v), want viewer", now.Role, err)
		}
		gone := person
		gone.ID, gone.UserID = "gone", "gone"
		if _, err := env.Platform.Governance.Current(ctx, v, gone); schema.CodeOf(err) != schema.PermissionDenied {
			t.Errorf("a token of nobody: %v, want permission_denied", err)
		}
		return nil
	})
}

func TestEffectsShowNoSecretsThatArgumentsMask(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	template := s.template(t, "w")
	args := func(secret string) toolstest.Object {
		return toolstest.Object{"verb": "system_create_node", "arguments": toolstest.Object{"name": "a", "template_id": template,
			"config": toolstest.Object{"api_token": secret, "tenant": "b"}}}
	}
	got := s.Call(t, "platform_preview", args("hunter2"))
	if text := spelt(got); strings.Contains(text, "hunter2") || !strings.Contains(text, `"tenant":"b"`) {
		t.Errorf("preview %s, want the secret masked and the rest shown", text)
	}
	if other := s.Call(t, "platform_preview", args("hunter3")); other["plan_digest"] == got["plan_digest"] {
		t.Error("another secret has the same digest")
	}
}
