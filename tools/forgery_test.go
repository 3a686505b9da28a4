package tools_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
	"powernode/tools"
	"powernode/tools/toolstest"
)

// decideByHand writes an approval that somebody has really signed, row and record, as whoever can write the database would.
func decideByHand(t *testing.T, env *toolstest.Env, id store.OperationID, who store.UserID, key ed25519.PrivateKey) {
	t.Helper()
	env.Update(t, func(ctx context.Context, tx *store.Tx) error {
		o, err := store.OperationByID(ctx, &tx.View, env.Account.ID, id)
		if err != nil {
			return err
		}
		statement, err := env.Platform.Governance.Statement(o, governance.Approve, "", who)
		if err != nil {
			return err
		}
		d := governance.Decision{OperationID: id, PlanDigest: o.PlanDigest, Decision: governance.Approve, Signature: governance.Sign(key, statement.Bytes())}
		_, err = env.Platform.Governance.WriteDecision(ctx, tx, o, store.User{ID: who, PublicKey: key.Public().(ed25519.PublicKey)}, d)
		return err
	})
}

// TestApprovalCountsOfThoseAloneWhoMayDecide puts genuine signatures behind the check of a decision.
func TestApprovalCountsOfThoseAloneWhoMayDecide(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, role string
		asks       bool
		want       string
	}{
		{"a viewer", governance.RoleViewer, false, "pending"},
		{"who asked", governance.RoleOperator, true, "pending"},
		{"an operator", governance.RoleOperator, false, "completed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			env := toolstest.New(t)
			bob := env.AddPerson(t, "bob@example.org", tt.role)
			if err := recordKey(t, env, keyInput(env, personsKey("bob"), "bob@example.org", env.Key)); err != nil {
				t.Fatal(err)
			}
			agent := env.Caller
			if tt.asks {
				env.Caller = bob
			}
			id, _ := parkedCreate(t, env)
			decideByHand(t, env, id, bob.UserID, personsKey("bob"))
			env.Caller = agent
			if tt.want == "pending" {
				named(t, env, "operations", string(id))
			}
			if err := env.Platform.ResumeOperations(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := env.CallAs(t, governance.PersonCaller(env.Person), "platform_get_operation", toolstest.Object{"deferred_operation_id": id})
			toolstest.Has(t, toolstest.Object{"operation": toolstest.Object{"status": tt.want}}, got)
			if n := clusters(t, env); (n == 1) != (tt.want == "completed") {
				t.Errorf("%d clusters", n)
			}
			written := len(env.Audit(t, "Governance::Operation"))
			if err := env.Platform.LookAtOperations(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := len(env.Audit(t, "Governance::Operation")); n != written {
				t.Errorf("a further look wrote %d audit rows", n-written)
			}
		})
	}
}

// TestPolicyCountsOfAdministratorsAlone has an operator sign with their own key, and somebody write it to the database.
func TestPolicyCountsOfAdministratorsAlone(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	bob := env.AddPerson(t, "bob@example.org", governance.RoleOperator)
	if err := recordKey(t, env, keyInput(env, personsKey("bob"), "bob@example.org", env.Key)); err != nil {
		t.Fatal(err)
	}
	p := governance.PolicyStatement{AccountID: env.Account.ID, PolicyID: "bobs", ActionCategory: "sdwan.network_delete", Verdict: "auto_approve",
		UserID: bob.UserID}
	signature := governance.Sign(personsKey("bob"), p.Bytes())
	env.Update(t, func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.Audit(ctx, store.AuditEntry{AccountID: env.Account.ID, Action: "created", ResourceType: "Governance::Policy", ResourceID: "bobs",
			New: store.Object{"policy": p, "signature": signature}})
		return errors.Join(err, store.PutPolicy(ctx, tx, store.Policy{ID: "bobs", AccountID: env.Account.ID, ActionCategory: p.ActionCategory,
			Verdict: p.Verdict, Scope: "{}", MadeBy: bob.UserID, Signature: signature}))
	})
	env.Parked(t, "system_sdwan_delete_network", toolstest.Object{"network_id": aNetwork(t, env, "tenant-a").ID})
	named(t, env, "policies", "bobs")
}

// TestKeyIsRecordedOnce holds copies of what gave a removed person their key against the record, once they are back.
func TestKeyIsRecordedOnce(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	bob := env.AddPerson(t, "bob@example.org", governance.RoleAdmin)
	in := keyInput(env, personsKey("bob"), "bob@example.org", env.Key)
	if err := recordKey(t, env, in); err != nil {
		t.Fatal(err)
	}
	rows := env.Audit(t, "Governance::User")
	given := rows[len(rows)-1]
	if _, err := env.SetUser(t, "bob@example.org", governance.UserStatement{Deed: governance.RemoveUser}); err != nil {
		t.Fatal(err)
	}
	env.AddPerson(t, "bob@example.org", governance.RoleAdmin)
	if err := recordKey(t, env, in); schema.CodeOf(err) != schema.Conflict {
		t.Errorf("the key again: %v, want a conflict", err)
	}
	env.Update(t, func(ctx context.Context, tx *store.Tx) error { // at the end of the chain
		_, err := tx.Audit(ctx, store.AuditEntry{AccountID: env.Account.ID, Action: given.Action, ResourceType: given.ResourceType,
			ResourceID: given.ResourceID, New: given.New})
		return err
	})
	env.View(t, func(ctx context.Context, v *store.View) error {
		keys, err := env.Platform.Governance.Keys(ctx, v, env.Account.ID)
		for _, k := range keys {
			if k.UserID == bob.UserID && k.Until == 0 {
				t.Error("the key that ended with its owner stands again")
			}
		}
		return err
	})
	if err := recordKey(t, env, keyInput(env, personsKey("bob's second"), "bob@example.org", env.Key)); err != nil {
		t.Errorf("a new key: %v", err)
	}
}

func TestCallIDAnswersTheSameCallAlone(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	first, _ := env.Token(t, "", governance.TokenStatement{Role: governance.RoleAgent})
	narrow, _ := env.Token(t, "", governance.TokenStatement{Role: governance.RoleAgent, Toolsets: []string{"fleet"}})
	call := func(secret, verb, args string) (tools.Result, error) {
		return env.Platform.Call(t.Context(), env.CallerBy(t, secret), tools.Request{Verb: verb, Arguments: []byte(args), CallID: "1"})
	}
	made, err := call(first, "system_sdwan_create_network", `{"name": "tenant-a"}`)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := call(first, "platform.system_sdwan_create_network", `{"name": "tenant-a"}`); err != nil || string(again.JSON) != string(made.JSON) {
		t.Errorf("sent again: %s, %v", again.JSON, err)
	}
	for _, other := range [][3]string{
		{first, "system_sdwan_create_network", `{"name": "tenant-b"}`},
		{first, "platform_call_verb", `{"verb": "system_sdwan_create_network", "arguments": {"name": "tenant-a"}}`},
		{first, "platform_whoami", `{}`},
		{narrow, "system_sdwan_create_network", `{"name": "tenant-a"}`},
	} {
		if got, err := call(other[0], other[1], other[2]); schema.CodeOf(err) != schema.Conflict {
			t.Errorf("%s %s under the same id: %s, %v, want a conflict", other[1], other[2], got.JSON, err)
		}
	}
}

// TestNarrowedTokenReadsNoResultOfWhatItCanNotCall parks a call whose result is a credential.
func TestNarrowedTokenReadsNoResultOfWhatItCanNotCall(t *testing.T) {
	t.Parallel()
	w := newLab(t)
	cluster := w.readyCluster(t, w.network(t, "tenant-a"))
	w.AddPerson(t, "bob@example.org", governance.RoleOperator)
	full, _ := w.Token(t, "bob@example.org", governance.TokenStatement{Role: governance.RoleOperator})
	viewer, _ := w.Token(t, "bob@example.org", governance.TokenStatement{Role: governance.RoleViewer})
	other, _ := w.Token(t, "bob@example.org", governance.TokenStatement{Role: governance.RoleOperator, Toolsets: []string{"governance"}})
	w.SetPolicy(t, "system.runtime_k8s_kubeconfig_read", governance.RequireApproval, governance.Scope{})
	w.Caller = w.CallerBy(t, full)
	id := w.Parked(t, "kubernetes_get_kubeconfig", toolstest.Object{"cluster_id": cluster})
	w.Approve(t, id)
	for secret, want := range map[string]bool{full: true, viewer: false, other: false} {
		c := w.CallerBy(t, secret)
		one := w.CallAs(t, c, "platform_get_operation", toolstest.Object{"deferred_operation_id": id})["operation"]
		all := w.CallAs(t, c, "platform_list_operations", nil)["operations"].([]any)
		if got := strings.Contains(spelt(one), "apiVersion"); got != want {
			t.Errorf("role %s, toolsets %v: the kubeconfig shows: %t, want %t", c.Role, c.Toolsets, got, want)
		}
		if strings.Contains(spelt(all[0]), "apiVersion") {
			t.Errorf("role %s, toolsets %v: a list shows the kubeconfig", c.Role, c.Toolsets)
		}
	}
}

func TestParkedConnectionShowsNoSecret(t *testing.T) {
	t.Parallel()
	s := asAdmin(t)
	config := toolstest.Object{"pwd": "hunter2", "auth": "Basic hunter2", "ssh_private": "hunter2", "token_of_vendor": "hunter2", "zone": "z1",
		"url": "https://u:hunter2@p.example"}
	args := toolstest.Object{"provider_id": s.first(t, "system_list_providers", "providers", "name", "local"), "name": "main", "config": config}
	call := toolstest.Object{"action_description": "x", "tool_name": "system_create_provider_connection", "tool_arguments": args}
	parked := s.Call(t, "request_confirmation", call)
	id, _ := parked["deferred_operation_id"].(string)
	shown, err := s.Platform.People(t.Context(), s.Account.ID, tools.PeopleOperation, encoded(t, tools.OperationRequest{ID: id}))
	if err != nil {
		t.Fatal(err)
	}
	preview := s.Call(t, "platform_preview", toolstest.Object{"verb": "system_create_provider_connection", "arguments": args})
	for _, text := range []string{spelt(operation(t, s.Env, store.OperationID(id))), spelt(shown), spelt(preview)} {
		if strings.Contains(text, "hunter2") || !strings.Contains(text, `"zone":"z1"`) {
			t.Errorf("shown %s, want the secrets hidden and the rest there", text)
		}
	}
}

// TestPolicyThatNobodySignedIsListedOnlyWhereItBinds writes rows to the table by hand: what loosens counts as absent.
func TestPolicyThatNobodySignedIsListedOnlyWhereItBinds(t *testing.T) {
	t.Parallel()
	const category = "sdwan.network_delete"
	for _, tt := range []struct {
		name, verdict, scope string
		signature            []byte
		listed               []string
	}{
		{"one that loosens", "auto_approve", `{}`, nil, []string{"require_approval"}},
		{"one that loosens, with a signature that is none", "notify_and_proceed", `{}`, []byte("x"), []string{"require_approval"}},
		{"one that says what the default says", "require_approval", `{}`, nil, []string{"require_approval"}},
		{"one that loosens for a role", "auto_approve", `{"role": "agent"}`, nil, []string{"require_approval"}},
		{"one of two kinds", "block", `{"role": "agent", "user_id": "x"}`, nil, []string{"require_approval"}},
		{"one that tightens", "block", `{}`, nil, []string{"block", "require_approval"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			env := toolstest.New(t)
			env.Update(t, func(ctx context.Context, tx *store.Tx) error {
				return store.PutPolicy(ctx, tx, store.Policy{ID: store.PolicyID(tx.NewID()), AccountID: env.Account.ID, ActionCategory: category,
					Verdict: tt.verdict, Scope: tt.scope, MadeBy: env.Person.ID, Signature: tt.signature})
			})
			var verdicts []string
			for _, row := range objects(t, env.Call(t, "platform_list_policies", toolstest.Object{"action_category": category})["policies"]) {
				verdicts = append(verdicts, row["verdict"].(string))
			}
			answer, err := env.Platform.People(t.Context(), env.Account.ID, tools.PeoplePolicies, nil)
			if err != nil {
				t.Fatal(err)
			}
			var shown []string
			for _, p := range answer.(tools.PoliciesAnswer).Policies {
				if p.ActionCategory == category {
					shown = append(shown, p.Verdict)
				}
			}
			slices.Sort(verdicts)
			slices.Sort(shown)
			if diff := cmp.Diff(tt.listed, verdicts); diff != "" {
				t.Errorf("the verb lists (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.listed, shown); diff != "" {
				t.Errorf("people see (-want +got):\n%s", diff)
			}
		})
	}
}

// What a process remembers until it is written is remembered on where the transaction that writes it is rolled back.
func TestWhatWaitsToBeToldOutlivesATransactionThatIsRolledBack(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	secret, made := env.Token(t, "", governance.TokenStatement{Role: governance.RoleAgent})
	env.CallerBy(t, secret)
	env.Update(t, func(ctx context.Context, tx *store.Tx) error {
		return store.PutPolicy(ctx, tx, store.Policy{ID: "hand", AccountID: env.Account.ID, ActionCategory: "system.task.terminate",
			Verdict: string(governance.AutoApprove), Scope: "{}", MadeBy: env.Person.ID})
	})
	rules := env.Platform.Governance
	env.View(t, func(ctx context.Context, v *store.View) error {
		_, err := rules.Decide(ctx, v, env.Caller, "system.task.terminate", nil)
		return err
	})
	boom := errors.New("boom")
	for _, outcome := range []error{boom, nil} {
		err := env.Platform.DB.Update(t.Context(), func(tx *store.Tx) error {
			return errors.Join(rules.Tell(t.Context(), tx), rules.WriteUses(t.Context(), tx), outcome)
		})
		if !errors.Is(err, outcome) {
			t.Fatal(err)
		}
		if rules.Suspected() != (outcome != nil) {
			t.Errorf("after a transaction that ended with %v, something waits to be told: %v", outcome, rules.Suspected())
		}
	}
	if told := env.Signals(t, "system.signature_invalid"); len(told) != 1 {
		t.Errorf("signals of the policy that nobody has signed: %v, want one", told)
	}
	env.View(t, func(ctx context.Context, v *store.View) error {
		row, err := store.TokenByID(ctx, v, env.Account.ID, made.ID)
		if err == nil && row.LastUsedAt == nil {
			t.Error("the token's use is lost")
		}
		return err
	})
}
