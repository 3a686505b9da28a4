package tools_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
	"powernode/tools/toolstest"
)

func TestEveryCategoryIsListedOnceWithItsVerdict(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	got := env.Call(t, "platform_list_policies", toolstest.Object{"limit": 500})
	seen := map[string]bool{}
	for _, p := range objects(t, got["policies"]) {
		category := p["action_category"].(string)
		if seen[category] || p["verdict"] != string(governance.Defaults[category]) || p["source"] != "default" || p["scope"] != nil {
			t.Errorf("%s", spelt(p))
		}
		seen[category] = true
	}
	if len(seen) != len(governance.Defaults) {
		t.Errorf("%d categories, want %d", len(seen), len(governance.Defaults))
	}
	env.SetPolicy(t, createCategory, governance.Block, governance.Scope{Role: governance.RoleViewer})
	got = env.Call(t, "platform_list_policies", toolstest.Object{"action_category": createCategory})
	rows := objects(t, got["policies"])
	slices.SortFunc(rows, func(a, b toolstest.Object) int { return strings.Compare(b["source"].(string), a["source"].(string)) })
	if len(rows) != 2 || rows[1]["verdict"] != "block" || at(t, rows[1], "scope", "role") != "viewer" || rows[1]["source"] != "account" {
		t.Errorf("%s, want the default and the scoped policy", spelt(rows))
	}
	if verbs := rows[0]["verbs"].([]any); len(verbs) != 1 || verbs[0] != "kubernetes_create_cluster" {
		t.Errorf("verbs = %v", verbs)
	}
	force := objects(t, env.Call(t, "platform_list_policies", toolstest.Object{"action_category": "sdwan.firewall_rule_update_force"})["policies"])[0]
	if force["floor"] != "require_approval" {
		t.Errorf("%s, want its floor", spelt(force))
	}
	near := env.Refused(t, "platform_list_policies", toolstest.Object{"action_category": "sdwan.network_creat"}, schema.NotFound, "action category not found")
	if c, ok := near.Details["candidates"].([]string); !ok || len(c) != 1 || c[0] != "sdwan.network_create" {
		t.Errorf("candidates = %v", near.Details["candidates"])
	}
}

func TestAuditLogReadsTheAccountsRecord(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	a := env.Call(t, "system_sdwan_create_network", toolstest.Object{"name": "tenant-a"})["network"].(toolstest.Object)
	env.Call(t, "system_sdwan_create_network", toolstest.Object{"name": "tenant-b"})
	other := governance.AgentCaller(env.AddAccount(t, "other", "fd5e:8a21:c0df::/48").ID)
	env.CallAs(t, other, "system_sdwan_create_network", toolstest.Object{"name": "foreign"})

	bare := env.Call(t, "platform_audit_log", toolstest.Object{"resource_type": "Network"})
	full := env.Call(t, "platform_audit_log", toolstest.Object{"resource_type": "Sdwan::Network", "action": "created"})
	if spelt(bare["entries"]) != spelt(full["entries"]) || bare["count"] != 2.0 {
		t.Errorf("with and without its prefix:\n%s\n%s", spelt(bare), spelt(full))
	}
	last := objects(t, bare["entries"])[1]
	toolstest.Has(t, toolstest.Object{"action": "created", "resource_type": "Sdwan::Network", "resource_id": a["id"], "operation_id": nil,
		"verb": "system_sdwan_create_network", "actor": toolstest.Object{"kind": "agent", "id": env.Caller.ID}}, last)

	var walked []any
	args := toolstest.Object{"limit": 2}
	for {
		got := env.Call(t, "platform_audit_log", args)
		walked = append(walked, got["entries"].([]any)...)
		if got["has_more"] != true {
			break
		}
		args["cursor"] = got["next_cursor"]
	}
	whole := env.Call(t, "platform_audit_log", toolstest.Object{"limit": 500})
	if spelt(walked) != spelt(whole["entries"]) {
		t.Errorf("in pages %d rows, at once %v", len(walked), whole["count"])
	}
	args["action"] = "created"
	env.Refused(t, "platform_audit_log", args, schema.InvalidArguments, "cursor is not one that this verb issued")
	unknown := env.Refused(t, "platform_audit_log", toolstest.Object{"resource_type": "Networks"}, schema.InvalidArguments, "unknown resource type")
	if c, ok := unknown.Details["candidates"].([]string); !ok || len(c) != 1 || c[0] != "Sdwan::Network" {
		t.Errorf("candidates = %v", unknown.Details["candidates"])
	}
	viewer := env.AddPerson(t, "vi@example.org", governance.RoleViewer)
	env.RefusedAs(t, viewer, "platform_audit_log", nil, schema.PermissionDenied, "platform.audit.read required")
}

func TestHolderOfAuditAllReadsAllAccounts(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	other := env.AddAccount(t, "other", "fd5e:8a21:c0df::/48")
	env.CallAs(t, governance.AgentCaller(other.ID), "system_sdwan_create_network", toolstest.Object{"name": "foreign"})
	if _, err := env.SetUser(t, "", governance.UserStatement{Deed: governance.AddUser, Email: "root@example.org", Name: "Root", Role: governance.RoleAdmin,
		Grants: []string{governance.AuditAll}}); err != nil {
		t.Fatal(err)
	}
	networks := toolstest.Object{"resource_type": "Network"}
	for _, tt := range []struct {
		name, user string
		token      governance.TokenStatement
		rows       float64
	}{
		{"who holds it", "root@example.org", governance.TokenStatement{Role: governance.RoleAdmin}, 1},
		{"a narrowed token of theirs", "root@example.org", governance.TokenStatement{Role: governance.RoleOperator}, 0},
		{"another administrator", "ada@example.org", governance.TokenStatement{Role: governance.RoleAdmin}, 0},
		{"the agent", "", governance.TokenStatement{Role: governance.RoleAgent}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			secret, _ := env.Token(t, tt.user, tt.token)
			if got := env.CallAs(t, env.CallerBy(t, secret), "platform_audit_log", networks); got["count"] != tt.rows {
				t.Errorf("%v rows, want %v", got["count"], tt.rows)
			}
		})
	}
}

func TestEmergencyStopHaltsApprovals(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	id, _ := parkedCreate(t, env)
	rejected := env.Parked(t, "kubernetes_create_cluster", toolstest.Object{"name": "green", "network_id": aNetwork(t, env, "tenant-b").ID})
	person := governance.PersonCaller(env.Person)
	env.Refused(t, "platform_emergency_stop", toolstest.Object{"reason": "x"}, schema.PermissionDenied, "a human credential is required")
	env.RefusedAs(t, person, "platform_resume", toolstest.Object{"reason": "x"}, schema.PreconditionFailed, "there is no emergency stop")
	first := env.CallAs(t, person, "platform_emergency_stop", toolstest.Object{"reason": "wrong"})
	if again := env.CallAs(t, person, "platform_emergency_stop", toolstest.Object{"reason": "still wrong"}); again["since"] != first["since"] || again["stopped"] != true {
		t.Errorf("stopped again: %s, want since %s", spelt(again), first["since"])
	}
	if err := env.Decide(t, id, governance.Approve); schema.CodeOf(err) != schema.BlockedByPolicy {
		t.Errorf("approved under the stop: %v, want blocked_by_policy", err)
	}
	toolstest.Has(t, toolstest.Object{"status": "pending"}, operation(t, env, id))
	if err := env.Decide(t, rejected, governance.Reject); err != nil {
		t.Errorf("rejected under the stop: %v", err)
	}
	env.View(t, func(ctx context.Context, v *store.View) error {
		for category, want := range map[string]governance.Verdict{"system.runtime_k8s_cluster_bootstrap": governance.Block,
			"system.k3s_api_vip_failover": governance.NotifyAndProceed} {
			got, err := env.Platform.Governance.Decide(ctx, v, governance.PlatformCaller(env.Account.ID), category, nil)
			if err != nil || got != want {
				t.Errorf("the platform's own %s is %s (%v), want %s", category, got, err, want)
			}
		}
		return nil
	})
	opened := env.Signals(t, "system.emergency_stop")
	if len(opened) != 1 || opened[0].Payload["reason"] != "wrong" || opened[0].Payload["by"] != string(env.Person.ID) {
		t.Errorf("signals = %v, want one of the stop", opened)
	}
	if got := env.Resume(t, "right"); got["resumed"] != true {
		t.Errorf("resumed: %s", spelt(got))
	}
	if n := len(env.Signals(t, "system.emergency_resumed")); n != 1 {
		t.Errorf("%d signals system.emergency_resumed, want 1", n)
	}
	env.Approve(t, id)
	proved(t, env)
}

// TestResumeCanBeApprovedUnderTheStop: a policy that has resuming approved must not make it impossible.
func TestResumeCanBeApprovedUnderTheStop(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	env.SetPolicy(t, "platform.resume", governance.RequireApproval, governance.Scope{})
	agent := env.Caller
	env.Caller = governance.PersonCaller(env.Person)
	env.Call(t, "platform_emergency_stop", toolstest.Object{"reason": "x"})
	env.Approve(t, env.Parked(t, "platform_resume", toolstest.Object{"reason": "x"}))
	env.Caller = agent
	env.Call(t, "system_sdwan_create_network", toolstest.Object{"name": "a"})
}
