package approval_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"powernode/spec/rig"
)

// One after the other: each attack has a control plane of its own.
func TestAssistantWithAShellCanNotApprove(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), rig.TestsLimit()) // some thirty attacks, each with processes of its own
	defer cancel()
	first := build(ctx, t)
	const own = "the assistant's own passphrase"
	copies := 0

	// Each answers the row that it wrote, as audit verify names it; "" where it wrote none.
	for _, tt := range []struct {
		name   string
		attack func(t *testing.T, h *house) (written string)
	}{
		{"without the passphrase", func(t *testing.T, h *house) string {
			h.fails(ctx, t, h.approving(ctx), "the passphrase does not fit", yes, passphrase(""))
			return ""
		}},
		{"with a wrong passphrase", func(t *testing.T, h *house) string {
			h.fails(ctx, t, h.approving(ctx), "the passphrase does not fit", yes, passphrase(own))
			return ""
		}},
		{"with the passphrase as an argument", func(t *testing.T, h *house) string {
			h.fails(ctx, t, h.Command(ctx, "approvals", "approve", h.operation, "--passphrase", h.Passphrase), "unknown flag: --passphrase")
			h.fails(ctx, t, h.Command(ctx, "approvals", "approve", h.operation, h.Passphrase), "got 2 arguments")
			return ""
		}},
		{"with the passphrase in the environment", func(t *testing.T, h *house) string {
			cmd := h.approving(ctx)
			cmd.Env = append(cmd.Environ(), "POWERNODE_PASSPHRASE="+h.Passphrase, "PASSPHRASE="+h.Passphrase)
			h.fails(ctx, t, cmd, "the passphrase does not fit", yes, passphrase(""))
			return ""
		}},
		{"with the passphrase on a pipe and no terminal", func(t *testing.T, h *house) string {
			cmd := h.approving(ctx)
			if cmd.SysProcAttr == nil {
				cmd.SysProcAttr = &syscall.SysProcAttr{}
			}
			cmd.SysProcAttr.Setsid = true
			cmd.Stdin = strings.NewReader("yes\n" + h.Passphrase + "\n")
			if out, err := cmd.CombinedOutput(); exitCode(err) != 1 || !strings.Contains(string(out), "no controlling terminal") {
				t.Errorf("%v: %s, want a refusal for want of a terminal", err, out)
			}
			return ""
		}},
		{"with the passphrase on a pipe beside the terminal", func(t *testing.T, h *house) string {
			cmd := h.approving(ctx)
			if cmd.SysProcAttr == nil {
				cmd.SysProcAttr = &syscall.SysProcAttr{}
			}
			cmd.SysProcAttr.Ctty = 1 // the terminal is its stdout
			cmd.Stdin = strings.NewReader("yes\n" + h.Passphrase + "\n")
			h.fails(ctx, t, cmd, "the passphrase does not fit", yes, passphrase(""))
			return ""
		}},
		{"with a person of its own", func(t *testing.T, h *house) string {
			h.fails(ctx, t, h.Command(ctx, "init"), "there is a human key already")
			return ""
		}},
		{"with a new passphrase", func(t *testing.T, h *house) string {
			h.fails(ctx, t, h.Command(ctx, "init", "--replace"), "the passphrase does not fit", rig.Exchange{Asked: "old passphrase:", Typed: own})
			h.fails(ctx, t, h.Command(ctx, "init", "--replace"), "the passphrase does not fit", rig.Exchange{Asked: "old passphrase:", Typed: ""})
			return ""
		}},
		{"with the key file gone", func(t *testing.T, h *house) string {
			must(t, os.Remove(filepath.Join(h.Dir, "human.key")))
			h.fails(ctx, t, h.Command(ctx, "init"), "there is a human key already")
			h.fails(ctx, t, h.Command(ctx, "init", "--replace"), "no usable human key")
			return ""
		}},
		{"with a key file of its own", func(t *testing.T, h *house) string {
			for _, name := range []string{"human.key", "human.key.new"} {
				h.deed(ctx, t, "key-file", name, rig.Email, own)
			}
			h.fails(ctx, t, h.approving(ctx), "no usable human key", yes)
			h.fails(ctx, t, h.Command(ctx, "init", "--replace"), "no usable human key")
			return ""
		}},
		{"with its own key under the person's public one", func(t *testing.T, h *house) string {
			h.deed(ctx, t, "doctored-key-file", rig.Email, own)
			h.fails(ctx, t, h.approving(ctx), "the passphrase does not fit", yes, passphrase(own))
			return ""
		}},
		{"over the socket, unsigned and with a signature of its own", func(t *testing.T, h *house) string {
			h.denied(ctx, t, "decide-unsigned", h.operation)
			h.denied(ctx, t, "decide", h.operation)
			return ""
		}},
		{"over the socket, with its own key or policy recorded", func(t *testing.T, h *house) string {
			h.denied(ctx, t, "record-key", rig.Email)
			h.denied(ctx, t, "record-key", "assistant@example.com")
			h.denied(ctx, t, "set-policy", "sdwan.network_delete", "auto_approve")
			h.denied(ctx, t, "decide", h.operation)
			h.stillParks(ctx, t)
			return ""
		}},
		{"over the socket, where the person's requests would be verbs", func(t *testing.T, h *house) string {
			for _, verb := range []string{"approve", "decide", "platform_approve_operation", "people", "record_key"} {
				got := h.deed(ctx, t, "post", "/v1/verbs/"+verb, `{"id":"`+h.operation+`"}`)
				if !strings.HasPrefix(got, "404 ") {
					t.Errorf("verb %s was answered %s, want 404", verb, got)
				}
			}
			return ""
		}},
		{"by the operation's row", func(t *testing.T, h *house) string {
			h.deed(ctx, t, "sql", approvedRow+` WHERE id = '`+h.operation+`'`)
			return "operations " + h.operation
		}},
		{"by the operation's row, looked at by the control plane", func(t *testing.T, h *house) string {
			h.deed(ctx, t, "sql", approvedRow+` WHERE id = '`+h.operation+`'`)
			h.putBack(ctx, t, h.operation)
			return "operations " + h.operation
		}},
		{"by the operation's row as if it were running", func(t *testing.T, h *house) string {
			h.deed(ctx, t, "sql", `UPDATE operations SET status = 'executing' WHERE id = '`+h.operation+`'`)
			return "operations " + h.operation
		}},
		{"by the operation's row and its record", func(t *testing.T, h *house) string {
			h.deed(ctx, t, "sql", approvedRow+` WHERE id = '`+h.operation+`'`)
			h.deed(ctx, t, "audit", `{"Action":"approved","ResourceType":"Governance::Operation","ResourceID":"`+h.operation+`",`+
				`"Old":{"status":"pending"},"New":{"status":"approved","comment":"","signature":"Zm9yZ2Vk"}}`)
			return "operations " + h.operation
		}},
		{"by a row for another operation", func(t *testing.T, h *house) string {
			const id = "01900000-0000-7000-8000-000000000001"
			h.deed(ctx, t, "sql", `INSERT INTO operations SELECT '`+id+`', `+restOfRow+` FROM operations WHERE id = '`+h.operation+`'`,
				approvedRow+` WHERE id = '`+id+`'`)
			return "operations " + id
		}},
		{"by a policy's row", func(t *testing.T, h *house) string {
			const id = "01900000-0000-7000-8000-000000000002"
			h.deed(ctx, t, "sql", `INSERT INTO policies (id, account_id, action_category, verdict, scope, made_by, signature, created_at, revision)
				SELECT '`+id+`', account_id, 'sdwan.network_delete', 'auto_approve', '{}', id, randomblob(64), created_at, revision FROM users`)
			h.stillParks(ctx, t)
			return "policies " + id
		}},
		{"by a policy's row and its record, signed with its own key", func(t *testing.T, h *house) string {
			id := h.deed(ctx, t, "own-policy-row", "sdwan.network_delete", "auto_approve")
			h.stillParks(ctx, t)
			return "audit " + id
		}},
		{"by the person's public key", func(t *testing.T, h *house) string {
			h.deed(ctx, t, "own-public-key")
			h.denied(ctx, t, "decide", h.operation)
			return "users " + h.user(ctx, t)
		}},
		{"by a record of its own key", func(t *testing.T, h *house) string {
			id := h.deed(ctx, t, "own-key-row", "first")
			h.denied(ctx, t, "decide", h.operation)
			return "audit " + id
		}},
		{"by a record of its own key that says that it is root's", func(t *testing.T, h *house) string {
			id := h.deed(ctx, t, "own-key-row", "root")
			h.deed(ctx, t, "root-mark", "a key")
			h.denied(ctx, t, "decide", h.operation)
			return "audit " + id
		}},
		{"by a changed record", func(t *testing.T, h *house) string {
			h.deed(ctx, t, "sql", `UPDATE audit SET new_values = '{"name":"another"}' WHERE resource_type = 'Sdwan::Network'`)
			return "audit " + h.row(ctx, t, `resource_type = 'Sdwan::Network'`)
		}},
		{"by a record that is gone", func(t *testing.T, h *house) string {
			after := h.row(ctx, t, `sequence = (SELECT sequence + 1 FROM audit WHERE action = 'human_key_created')`)
			h.deed(ctx, t, "sql", `DELETE FROM audit WHERE action = 'human_key_created'`)
			return "audit " + after
		}},
	} {
		copies++
		t.Run(tt.name, func(t *testing.T) {
			h := first.copy(ctx, t, fmt.Sprintf("copy-%d", copies))
			h.proof(ctx, t, "before the attack", "")
			written := tt.attack(t, h)
			h.stands(ctx, t, "after the attack", written)
			h.stop(ctx, t)
			h.stands(ctx, t, "after a restart", written)
		})
	}
}

// approvedRow writes what an approval writes, but for the signature.
const approvedRow = `UPDATE operations SET status = 'approved', decided_by = (SELECT id FROM users), decision_key = (SELECT public_key FROM users),
	signature = randomblob(64), decided_at = created_at`

// restOfRow are the columns of operations behind the id.
const restOfRow = `account_id, verb, arguments, arguments_shown, arguments_hash, status, action_category, description, plan_digest,
	effects, requested_by, decided_by, decision_key, comment, signature, result, error, created_at, expires_at, decided_at, executed_at, revision,
	chain_rows, chain_hash`

// stillParks asserts that the deletion of another network parks.
func (h *house) stillParks(ctx context.Context, t *testing.T) {
	t.Helper()
	h.park(ctx, t, h.create(ctx, t, "another"))
}

func (h *house) user(ctx context.Context, t *testing.T) string {
	t.Helper()
	return rig.Text(h.call(ctx, t, "platform_whoami", rig.Object{}), "users", 0, "id")
}

// row is the id of the first audit row that fits a condition.
func (h *house) row(ctx context.Context, t *testing.T, where string) string {
	t.Helper()
	return h.deed(ctx, t, "query", `SELECT id FROM audit WHERE `+where+` ORDER BY sequence LIMIT 1`)
}

// The chain's beginning can't be told from a true one after a restart (the documentation says so); while the control
// plane runs that has seen it, a rewritten one is told and gives nobody a key.
func TestRecordRewrittenUnderTheControlPlaneGivesNoKey(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	h := build(ctx, t)
	h.proof(ctx, t, "before the attack", "")
	id := h.deed(ctx, t, "rewrite")
	cmd := h.Program(ctx, attacker, "decide", h.Dir, h.operation)
	if out, err := cmd.CombinedOutput(); exitCode(err) != 1 || !strings.Contains(string(out), "no key counts") {
		t.Errorf("an approval by the key in the rewritten record: %v: %s", err, out)
	}
	h.stands(ctx, t, "after the attack", "audit "+id)
}

// A record that lost its end under the control plane is told, and nothing is written behind the cut.
func TestRecordCutUnderTheControlPlaneTakesNothingMore(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	h := build(ctx, t)
	h.proof(ctx, t, "before the attack", "")
	h.deed(ctx, t, "sql", `DELETE FROM audit WHERE sequence = (SELECT max(sequence) FROM audit)`)
	out, err := h.Run(ctx, "call", "system_sdwan_create_network", "--name", "behind-the-cut")
	if err == nil || !strings.Contains(string(out), "lost rows under the control plane") {
		t.Errorf("a call behind the cut: %v: %s, want it refused", err, out)
	}
	h.stands(ctx, t, "after the attack", "audit "+h.row(ctx, t, `sequence = (SELECT max(sequence) FROM audit)`))
	h.stop(ctx, t)
	h.create(ctx, t, "after-a-restart")
}

// What the person sees is what runs: a call that was put behind what is shown of another is seen, or does not run.
func TestCallBehindAnothersDescriptionDoesNotRun(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	h := build(ctx, t)
	bait := h.park(ctx, t, h.create(ctx, t, "bait"))
	h.deed(ctx, t, "sql", h.deed(ctx, t, "swap", bait, h.operation))
	said, err := rig.Converse(ctx, h.Command(ctx, "approvals", "approve", bait), []rig.Exchange{yes, passphrase(h.Passphrase)})
	if h.present(ctx, t, "prize") && err != nil {
		return
	}
	if !strings.Contains(said, h.network) || strings.Contains(said, `"bait"`) {
		t.Errorf("the person approved what was shown as:\n%s\nand networks %v are left", said, h.networks(ctx, t))
	}
}

func (h *house) present(ctx context.Context, t *testing.T, name string) bool {
	t.Helper()
	return slices.Contains(h.networks(ctx, t), name)
}

// The person's signature is good for one decision of one operation.
func TestPersonsApprovalRunsTheCallAndNoOther(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	h := build(ctx, t)
	h.deed(ctx, t, "sql", approvedRow+` WHERE id = '`+h.operation+`'`)
	h.putBack(ctx, t, h.operation) // a forged approval keeps nobody from the true one
	must(t, h.Approve(ctx, h.operation))
	if got := h.networks(ctx, t); len(got) != 0 {
		t.Errorf("networks after the approval: %v", got)
	}
	h.proof(ctx, t, "after the approval", "")

	network := h.create(ctx, t, "prize")
	other := h.park(ctx, t, network)
	for _, column := range []string{"signature", "decided_by", "decision_key", "decided_at"} {
		h.deed(ctx, t, "sql", `UPDATE operations SET status = 'approved', `+column+` = (SELECT `+column+` FROM operations WHERE id = '`+h.operation+`')
			WHERE id = '`+other+`'`)
	}
	signature := h.deed(ctx, t, "query", `SELECT json_extract(new_values, '$.signature') FROM audit WHERE action = 'approved'`)
	digest := h.deed(ctx, t, "query", `SELECT plan_digest FROM operations WHERE id = '`+other+`'`)
	h.putBack(ctx, t, other)
	body, err := json.Marshal(rig.Object{"operation_id": other, "plan_digest": digest, "decision": "approve", "comment": "", "signature": signature})
	must(t, err)
	if got := h.deed(ctx, t, "post", "/v1/people/decide", string(body)); !strings.HasPrefix(got, "403 ") {
		t.Errorf("the signature of another operation was answered %s, want 403", got)
	}
	h.operation = other
	h.stands(ctx, t, "after a copied approval", "operations "+other)
	h.stop(ctx, t)
	h.stands(ctx, t, "after a copied approval and a restart", "operations "+other)
}

// What decides is in the hands of people alone: no tool approves, and none that takes any other verb reaches a thing that does.
func TestNoToolApproves(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	h := build(ctx, t)
	must(t, h.Connect(ctx))
	tools, err := h.Tools(ctx)
	must(t, err)
	decides := regexp.MustCompile(`approv|reject|decide|grant_operation|policy|set_pol|human_key`)
	for _, tool := range tools {
		if decides.MatchString(tool) {
			t.Errorf("tool %s sounds as if it decided", tool)
		}
	}
	if len(tools) < 60 {
		t.Errorf("%d tools are listed, want all", len(tools))
	}
	for verb, arguments := range map[string]rig.Object{
		"platform_get_operation":      {"deferred_operation_id": h.operation, "status": "approved"},
		"request_confirmation":        {"action_description": "approve it", "tool_name": "approvals", "tool_arguments": rig.Object{"id": h.operation}},
		"platform_preview":            {"verb": "decide", "arguments": rig.Object{"operation_id": h.operation}},
		"system_sdwan_delete_network": {"network_id": h.network, "approved": true},
	} {
		if out, err := h.Installation.Call(ctx, verb, arguments); err == nil {
			t.Errorf("%s took %v: %v", verb, arguments, out)
		}
	}
	// The call again is the same parked call, not its approval.
	out, err := h.Installation.Call(ctx, "system_sdwan_delete_network", rig.Object{"network_id": h.network})
	must(t, err)
	if diff := cmp.Diff(h.operation, rig.Text(out, "deferred_operation_id")); diff != "" {
		t.Errorf("the repeated call's operation (-want +got):\n%s", diff)
	}
	must(t, h.Close(ctx))
	h.stands(ctx, t, "after all that", "")
}

func TestWiderStateDirectoryIsRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	h := build(ctx, t)
	for _, tt := range []struct {
		path string
		mode os.FileMode
		was  os.FileMode
	}{
		{h.Dir, 0o750, 0o700}, {h.Dir, 0o705, 0o700}, {"store.db", 0o640, 0o600}, {"human.key", 0o604, 0o600}, {"seal.key", 0o620, 0o600},
	} {
		path := tt.path
		if !filepath.IsAbs(path) {
			path = filepath.Join(h.Dir, path)
		}
		must(t, os.Chmod(path, tt.mode))
		for _, args := range [][]string{{"serve"}, {"mcp"}, {"approvals", "list"}, {"audit", "verify"}} {
			cmd := h.Command(ctx, args...)
			out, err := cmd.CombinedOutput()
			if exitCode(err) != 1 || !strings.Contains(string(out), path+" is refused: others may use it") {
				t.Errorf("powernode %s with %s %o: %v: %s", strings.Join(args, " "), path, tt.mode, err, out)
			}
		}
		must(t, os.Chmod(path, tt.was))
	}
	h.proof(ctx, t, "with the modes put right", "")
	if h.User == nil {
		return
	}
	other := *h.Installation
	other.User = &syscall.Credential{Uid: unused + 1, Gid: unused + 1}
	other.Home = "/"
	must(t, os.Chmod(h.Home, 0o711))
	if out, err := other.Command(ctx, "approvals", "list").CombinedOutput(); exitCode(err) != 1 {
		t.Errorf("another user's approvals list: %v: %s, want a refusal", err, out)
	}
}
