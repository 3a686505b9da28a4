package tools_test

import (
	"context"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rs/zerolog"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
	"powernode/store/storetest"
	"powernode/tools"
	"powernode/tools/toolstest"
)

// house is a platform on a file that others can write.
type house struct {
	*toolstest.Env
	path string
}

func newHouse(t *testing.T) *house {
	t.Helper()
	path := filepath.Join(t.TempDir(), "store.db")
	return &house{toolstest.NewOn(t, opened(t, path)), path}
}

func opened(t *testing.T, path string) *store.DB {
	t.Helper()
	db, err := store.Open(t.Context(), store.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close the store: %v", err)
		}
	})
	return db
}

// restarted is the proof of a control plane that has seen nothing of the record before.
func (h *house) restarted(t *testing.T, noted ...store.Head) (p governance.Proof) {
	t.Helper()
	fresh := &governance.Service{Sealer: h.Platform.Sealer, Log: zerolog.Nop()}
	err := opened(t, h.path).View(t.Context(), func(v *store.View) (err error) {
		p, err = fresh.Prove(t.Context(), v, noted...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (h *house) head(t *testing.T) (head store.Head) {
	t.Helper()
	h.View(t, func(ctx context.Context, v *store.View) (err error) {
		head, err = store.AuditHead(ctx, v)
		return err
	})
	return head
}

// ended writes that the emergency stop ended, as whoever can write the database does.
func ended(t *testing.T, env *toolstest.Env, operation store.OperationID) (id store.AuditEntryID) {
	t.Helper()
	env.Update(t, func(ctx context.Context, tx *store.Tx) (err error) {
		tx.Act(store.Actor{Kind: governance.KindPerson, ID: string(env.Person.ID), Verb: governance.VerbResume, OperationID: string(operation),
			CorrelationID: tx.NewID()})
		id, err = tx.Audit(ctx, store.AuditEntry{AccountID: env.Account.ID, Action: "resumed", ResourceType: "Governance::EmergencyStop",
			ResourceID: string(env.Account.ID), New: store.Object{"reason": "x"}})
		return err
	})
	return id
}

func stop(t *testing.T, env *toolstest.Env) toolstest.Object {
	t.Helper()
	return env.CallAs(t, governance.PersonCaller(env.Person), governance.VerbStop, toolstest.Object{"reason": "wrong"})
}

func TestEmergencyStopEndsWithASignatureAloneWhereAPolicyWantsIt(t *testing.T) {
	t.Parallel()
	asked := func(t *testing.T, env *toolstest.Env) store.OperationID {
		t.Helper()
		parked := env.CallAs(t, governance.PersonCaller(env.Person), governance.VerbResume, toolstest.Object{"reason": "right"})
		return store.OperationID(parked["deferred_operation_id"].(string))
	}
	for _, tt := range []struct {
		name  string
		forge func(t *testing.T, env *toolstest.Env) (operation store.OperationID)
	}{
		{"no operation", func(*testing.T, *toolstest.Env) store.OperationID { return "" }},
		{"one that is not there", func(*testing.T, *toolstest.Env) store.OperationID { return "gone" }},
		{"one that nobody has approved", asked},
		{"one whose approval nobody has signed", func(t *testing.T, env *toolstest.Env) store.OperationID {
			id := asked(t, env)
			decideByHand(t, env, id, env.Person.ID, personsKey("eve"))
			return id
		}},
		{"one that a person has approved for something else", func(t *testing.T, env *toolstest.Env) store.OperationID {
			id := env.CallAs(t, governance.PersonCaller(env.Person), "request_confirmation", toolstest.Object{"action_description": "x",
				"tool_name": "system_sdwan_create_network", "tool_arguments": toolstest.Object{"name": "a"}})["deferred_operation_id"].(string)
			decideByHand(t, env, store.OperationID(id), env.Person.ID, env.Key)
			return store.OperationID(id)
		}},
		{"the one that ended an earlier stop", func(t *testing.T, env *toolstest.Env) store.OperationID {
			id := asked(t, env)
			env.Approve(t, id)
			stop(t, env)
			return id
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			env := toolstest.New(t)
			env.SetPolicy(t, "platform.resume", governance.RequireApproval, governance.Scope{})
			stop(t, env)
			row := ended(t, env, tt.forge(t, env))
			create := toolstest.Object{"name": "a"}
			if err := env.Platform.LookAtOperations(t.Context()); err != nil {
				t.Fatal(err)
			}
			env.Refused(t, "system_sdwan_create_network", create, schema.BlockedByPolicy, "emergency stop since ")
			named(t, env, "audit", string(row))
			told := env.Signals(t, "system.signature_invalid")
			if !slices.ContainsFunc(told, func(s store.Signal) bool { return s.Payload["id"] == string(row) }) {
				t.Errorf("signals = %v, want one of the row", told)
			}
			env.Resume(t, "looked into")
			env.Call(t, "system_sdwan_create_network", create)
		})
	}
}

func TestPersonAloneEndsAStopWithoutAnother(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	env.AddPerson(t, "bob@example.org", governance.RoleAdmin)
	env.SetPolicy(t, "platform.resume", governance.RequireApproval, governance.Scope{})
	stop(t, env)
	env.SetPolicy(t, "platform.resume", governance.AutoApprove, governance.Scope{}) // a stop ends as was said when it began
	env.Refused(t, "system_sdwan_create_network", toolstest.Object{"name": "a"}, schema.BlockedByPolicy, "emergency stop since ")
	env.Approve(t, store.OperationID(env.CallAs(t, governance.PersonCaller(env.Person), governance.VerbResume,
		toolstest.Object{"reason": "right"})["deferred_operation_id"].(string)))
	env.Call(t, "system_sdwan_create_network", toolstest.Object{"name": "a"})
	proved(t, env)
}

func TestChainThatLostItsEndTakesNothingMore(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(t *testing.T, path string){
		"cut": func(t *testing.T, path string) {
			storetest.Write(t, path, `DELETE FROM audit WHERE sequence = (SELECT max(sequence) FROM audit)`)
		},
		"rewritten": func(t *testing.T, path string) {
			storetest.Rewrite(t, path, `DELETE FROM audit WHERE sequence = (SELECT max(sequence) - 1 FROM audit)`)
		},
		"rewritten to its length": func(t *testing.T, path string) {
			storetest.Rewrite(t, path, `UPDATE audit SET new_values = '{}' WHERE sequence = (SELECT max(sequence) - 1 FROM audit)`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			h.Call(t, "system_sdwan_create_network", toolstest.Object{"name": "a"})
			h.Call(t, "system_sdwan_create_network", toolstest.Object{"name": "c"})
			cut(t, h.path)
			h.Refused(t, "system_sdwan_create_network", toolstest.Object{"name": "b"}, schema.Unavailable, "lost rows under the control plane")
			h.Call(t, "system_sdwan_list_networks", nil)
			for range 2 {
				if err := h.Platform.LookAtOperations(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if told := h.Signals(t, "system.audit_chain_broken"); len(told) != 1 {
				t.Errorf("signals = %v, want one of the cut", told)
			}
			found, err := h.Platform.People(t.Context(), h.Account.ID, tools.PeopleVerify, []byte(`{}`))
			if p, _ := found.(governance.Proof); err != nil || len(p.Findings) == 0 || !strings.Contains(p.Findings[0].Reason, "is gone or another") {
				t.Errorf("audit verify: %+v, %v, want the cut named", found, err)
			}
		})
	}
}

// TestWhatIsSignedHoldsTheRecordBeforeIt takes a row away before each kind of statement, while no control plane runs, and
// hashes the chain anew.
func TestWhatIsSignedHoldsTheRecordBeforeIt(t *testing.T) {
	t.Parallel()
	for name, sign := range map[string]func(t *testing.T, env *toolstest.Env){
		"an approval": func(t *testing.T, env *toolstest.Env) {
			id := env.Call(t, "request_confirmation", toolstest.Object{"action_description": "x", "tool_name": "system_sdwan_create_network",
				"tool_arguments": toolstest.Object{"name": "b"}})["deferred_operation_id"].(string)
			env.Approve(t, store.OperationID(id))
		},
		"a policy": func(t *testing.T, env *toolstest.Env) {
			env.SetPolicy(t, createCategory, governance.Block, governance.Scope{})
		},
		"a person": func(t *testing.T, env *toolstest.Env) { env.AddPerson(t, "bob@example.org", governance.RoleViewer) },
		"a credential": func(t *testing.T, env *toolstest.Env) {
			env.Token(t, "", governance.TokenStatement{Role: governance.RoleAgent})
		},
		"the end of the stop": func(t *testing.T, env *toolstest.Env) {
			env.SetPolicy(t, "platform.resume", governance.RequireApproval, governance.Scope{})
			stop(t, env)
			env.Resume(t, "x")
		},
		"a key": func(t *testing.T, env *toolstest.Env) {
			in := keyInput(env, personsKey("new"), env.Person.Email, env.Key)
			head := (&house{Env: env}).head(t)
			in.Chain = &head
			in.Proof = governance.Sign(personsKey("new"), in.Statement(env.Account.ID))
			in.Authority = governance.Sign(env.Key, in.Statement(env.Account.ID))
			if err := recordKey(t, env, in); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			h.Call(t, "system_sdwan_create_network", toolstest.Object{"name": "a"})
			before := h.head(t)
			sign(t, h.Env)
			h.Call(t, "system_sdwan_create_network", toolstest.Object{"name": "c"})
			noted := h.head(t)
			if p := h.restarted(t, noted); len(p.Findings) > 0 || p.Head != noted {
				t.Fatalf("before the attack: %+v, want nothing and the head %s", p, noted)
			}
			storetest.Rewrite(t, h.path, `DELETE FROM audit WHERE resource_type = 'Sdwan::Network' AND sequence <= `+
				strings.SplitN(before.String(), ":", 2)[0])
			p := h.restarted(t)
			if !slices.ContainsFunc(p.Findings, func(f governance.Finding) bool {
				return f.Table == "audit" && strings.Contains(f.Reason, "it was signed over a record")
			}) {
				t.Errorf("findings = %v, want what was signed", p.Findings)
			}
			if p := h.restarted(t, noted); len(p.Findings) < 2 || !strings.Contains(p.Findings[0].Reason, "is gone or another") {
				t.Errorf("findings = %v, want the noted head", p.Findings)
			}
		})
	}
}

// TestStatementsThatWereNotUsedDoNotUndoLaterOnes sends, and writes by hand, what was signed and never sent.
func TestStatementsThatWereNotUsedDoNotUndoLaterOnes(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	var p governance.PolicyStatement
	env.Update(t, func(ctx context.Context, tx *store.Tx) (err error) {
		p, err = env.Platform.Governance.PreparePolicy(ctx, tx, env.Account.ID, "sdwan.network_create", "auto_approve", governance.Scope{})
		return err
	})
	env.SetPolicy(t, "sdwan.network_create", governance.RequireApproval, governance.Scope{})
	in := governance.PolicyInput{Policy: p, Signature: governance.Sign(env.Key, p.Bytes())}
	if _, err := env.Platform.People(t.Context(), env.Account.ID, tools.PeopleSetPolicy, encoded(t, in)); schema.CodeOf(err) != schema.Conflict {
		t.Errorf("sent late: %v, want a conflict", err)
	}
	var row store.AuditEntryID
	env.Update(t, func(ctx context.Context, tx *store.Tx) (err error) {
		row, err = tx.Audit(ctx, store.AuditEntry{AccountID: env.Account.ID, Action: "created", ResourceType: "Governance::Policy",
			ResourceID: string(p.PolicyID), New: store.Object{"policy": p, "signature": in.Signature}})
		return err
	})
	env.Parked(t, "system_sdwan_create_network", toolstest.Object{"name": "a"})
	named(t, env, "audit", string(row))

	bob := env.AddPerson(t, "bob@example.org", governance.RoleViewer)
	var u governance.UserStatement
	env.Update(t, func(ctx context.Context, tx *store.Tx) (err error) {
		u, err = env.Platform.Governance.PrepareUser(ctx, tx, env.Account.ID, string(bob.UserID), governance.UserStatement{Deed: governance.ChangeUser,
			Role: governance.RoleAdmin, SignedBy: env.Person.ID})
		return err
	})
	if _, err := env.SetUser(t, string(bob.UserID), governance.UserStatement{Deed: governance.ChangeUser, Role: governance.RoleOperator}); err != nil {
		t.Fatal(err)
	}
	late := governance.UserInput{User: u, Signature: governance.Sign(env.Key, u.Bytes())}
	if _, err := env.Platform.People(t.Context(), env.Account.ID, tools.PeopleSetUser, encoded(t, late)); schema.CodeOf(err) != schema.Conflict {
		t.Errorf("sent late: %v, want a conflict", err)
	}
	env.Update(t, func(ctx context.Context, tx *store.Tx) (err error) {
		row, err = tx.Audit(ctx, store.AuditEntry{AccountID: env.Account.ID, Action: "updated", ResourceType: "Governance::User",
			ResourceID: string(bob.UserID), New: store.Object{"user": u, "signature": late.Signature}})
		return err
	})
	named(t, env, "audit", string(row))
	env.View(t, func(ctx context.Context, v *store.View) error {
		now, err := env.Platform.Governance.PersonOf(ctx, v, env.Account.ID, bob.UserID)
		if now.Role != governance.RoleOperator {
			t.Errorf("the person is %s, want operator", now.Role)
		}
		return err
	})
}

// TestApprovalEndsWithItsOperation moves the end of an approved call that a crash has left, which the approval signs.
func TestApprovalEndsWithItsOperation(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	id, _ := parkedCreate(t, h.Env)
	approved(t, h.Env, id)
	storetest.Write(t, h.path, `UPDATE operations SET expires_at = '2099-01-01T00:00:00.000Z'`)
	if err := h.Platform.ResumeOperations(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := clusters(t, h.Env); n != 0 {
		t.Errorf("%d clusters: what was approved until another time has run", n)
	}
	named(t, h.Env, "operations", string(id))
}

func TestWordsBesideAParkedCallAreKeptOrRefusedPlainly(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	id, args := parkedCreate(t, env)
	ask := func(words string) toolstest.Object {
		t.Helper()
		got := env.Call(t, "request_confirmation", toolstest.Object{"action_description": words, "tool_name": "kubernetes_create_cluster", "tool_arguments": args})
		if got["deferred_operation_id"] != string(id) {
			t.Fatalf("asked again: %s, want operation %s", spelt(got), id)
		}
		return got
	}
	const notKept = "the new one was not kept"
	for _, tt := range []struct {
		words, want string
		refused     bool
	}{{"the first", "the first", false}, {"the first", "the first", false}, {"the second", "the first", true}} {
		if got := ask(tt.words)["message"].(string); strings.Contains(got, notKept) != tt.refused {
			t.Errorf("%q was answered %q", tt.words, got)
		}
		toolstest.Has(t, toolstest.Object{"description": tt.want}, operation(t, env, id))
	}
	if got := env.Call(t, "kubernetes_create_cluster", args); strings.Contains(got["message"].(string), notKept) {
		t.Errorf("without words it is answered %s", spelt(got))
	}
}

// TestOutcomeWrittenOverKeepsItsDecision has somebody write an approved status over operations that came to their end: what
// is put back still has the decision that it came to it by, and an emergency stop that was ended by one stays ended.
func TestOutcomeWrittenOverKeepsItsDecision(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.SetPolicy(t, "platform.resume", governance.RequireApproval, governance.Scope{})
	stop(t, h.Env)
	h.Resume(t, "right")
	storetest.Write(t, h.path, `UPDATE operations SET status = 'approved'`)
	if err := h.Platform.LookAtOperations(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.View(t, func(ctx context.Context, v *store.View) error {
		all, err := store.Operations(ctx, v, h.Account.ID, "", "")
		if len(all) != 1 || all[0].Status != governance.Completed || all[0].DecidedBy != string(h.Person.ID) {
			t.Errorf("operations = %+v, want one, completed and decided", all)
		}
		fresh := &governance.Service{Sealer: h.Platform.Sealer, Log: zerolog.Nop()}
		on, stopErr := fresh.Stopped(ctx, v, h.Account.ID)
		if on != nil {
			t.Error("the emergency stop is on again")
		}
		return errors.Join(err, stopErr)
	})
}

// TestRowOfAnOperationGivesItsCallerNothing: what a row says of an agent's role is not what it may do.
func TestRowOfAnOperationGivesItsCallerNothing(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	forged := governance.AgentCaller(env.Account.ID)
	forged.Role, forged.Granted, forged.ReadOnly = governance.RoleAdmin, []string{governance.AuditAll}, true
	env.View(t, func(ctx context.Context, v *store.View) error {
		now, err := env.Platform.Governance.Current(ctx, v, forged)
		if now.Role != governance.RoleAgent || now.Granted != nil || !now.ReadOnly {
			t.Errorf("the agent is %+v", now)
		}
		forged.Kind = "root"
		if _, err := env.Platform.Governance.Current(ctx, v, forged); schema.CodeOf(err) != schema.PermissionDenied {
			t.Errorf("a caller of no kind: %v, want it refused", err)
		}
		return err
	})
}

// TestRootsMarkIsAFileOfRootsAlone puts what names the new key where root's mark is looked for.
func TestRootsMarkIsAFileOfRootsAlone(t *testing.T) {
	t.Parallel()
	const other = 65534
	for _, tt := range []struct {
		name string
		put  func(path string, mark []byte) error
		root bool // it is root's, where the test is run by root
	}{
		{"a file", func(path string, mark []byte) error { return os.WriteFile(path, mark, 0o600) }, true},
		{"somebody else's", func(path string, mark []byte) error {
			err := os.WriteFile(path, mark, 0o600)
			if os.Geteuid() == 0 {
				err = errors.Join(err, os.Chown(path, other, other))
			}
			return err
		}, false},
		{"one that others can write", func(path string, mark []byte) error {
			return errors.Join(os.WriteFile(path, mark, 0o600), os.Chmod(path, 0o620))
		}, false},
		{"a link", func(path string, mark []byte) error {
			return errors.Join(os.WriteFile(path+".target", mark, 0o600), os.Symlink(path+".target", path))
		}, false},
		{"a pipe", func(path string, _ []byte) error { return syscall.Mkfifo(path, 0o600) }, false},
		{"another key", func(path string, _ []byte) error { return os.WriteFile(path, []byte("AAAA\n"), 0o600) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			env := toolstest.New(t)
			env.Platform.Governance.StateDir = t.TempDir()
			in := keyInput(env, personsKey("new"), env.Person.Email, personsKey("eve"))
			mark := []byte(base64.StdEncoding.EncodeToString(in.PublicKey) + "\n")
			if err := tt.put(filepath.Join(env.Platform.Governance.StateDir, governance.RootMark), mark); err != nil {
				t.Fatal(err)
			}
			err := recordKey(t, env, in)
			if want := tt.root && os.Geteuid() == 0; (err == nil) != want || (!want && schema.CodeOf(err) != schema.PermissionDenied) {
				t.Errorf("the key: %v, want it recorded: %t", err, want)
			}
		})
	}
}
