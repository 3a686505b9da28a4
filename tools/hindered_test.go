package tools_test

import (
	"context"
	"strings"
	"testing"

	"powernode/platform/governance"
	"powernode/store"
	"powernode/tools"
	"powernode/tools/toolstest"
)

// TestApprovalThatCanNotSucceedIsToldBeforehand: whoever is to approve a call reads what would come of it before they sign.
func TestApprovalThatCanNotSucceedIsToldBeforehand(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		by   func(env *toolstest.Env, bob tools.Caller) store.UserID
		meet func(t *testing.T, env *toolstest.Env)
		want string
	}{
		{"nothing is in its way", ada, func(*testing.T, *toolstest.Env) {}, ""},
		{"the requester was demoted", ada, func(t *testing.T, env *toolstest.Env) {
			if _, err := env.SetUser(t, "bob@example.org", governance.UserStatement{Deed: governance.ChangeUser, Role: governance.RoleViewer}); err != nil {
				t.Fatal(err)
			}
		}, "required"},
		{"the requester is gone", ada, func(t *testing.T, env *toolstest.Env) {
			if _, err := env.SetUser(t, "bob@example.org", governance.UserStatement{Deed: governance.RemoveUser}); err != nil {
				t.Fatal(err)
			}
		}, "the caller is gone"},
		{"policy has come to forbid it", ada, func(t *testing.T, env *toolstest.Env) {
			env.SetPolicy(t, createCategory, governance.Block, governance.Scope{})
		}, "is blocked by policy"},
		{"an emergency stop is on", ada, func(t *testing.T, env *toolstest.Env) {
			env.Update(t, func(ctx context.Context, tx *store.Tx) error {
				_, err := env.Platform.Governance.Stop(ctx, tx, env.Account.ID, "x")
				return err
			})
		}, "emergency stop since"},
		{"who asked would decide", func(_ *toolstest.Env, bob tools.Caller) store.UserID { return bob.UserID },
			func(*testing.T, *toolstest.Env) {}, "another person must decide"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			env := toolstest.New(t)
			agent, bob := env.Caller, env.AddPerson(t, "bob@example.org", governance.RoleOperator)
			if tt.by(env, bob) == bob.UserID {
				if err := recordKey(t, env, keyInput(env, personsKey("bob"), "bob@example.org", env.Key)); err != nil {
					t.Fatal(err)
				}
			}
			env.Caller = bob
			id, _ := parkedCreate(t, env)
			env.Caller = agent
			tt.meet(t, env)
			answer, err := env.Platform.People(t.Context(), env.Account.ID, tools.PeopleOperation,
				encoded(t, tools.OperationRequest{ID: string(id), By: tt.by(env, bob)}))
			if err != nil {
				t.Fatal(err)
			}
			failed := answer.(tools.OperationAnswer).Failed
			if (failed == nil) != (tt.want == "") || failed != nil && !strings.Contains(failed.Message, tt.want) {
				t.Errorf("it says %v, want %q", failed, tt.want)
			}
		})
	}
}

func ada(env *toolstest.Env, _ tools.Caller) store.UserID { return env.Person.ID }
