package governance_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/governance"
	"powernode/store"
)

// aPlan is a run's plan as two runs of the same call make it: other ids, another instant.
func aPlan(made, second string, now time.Time, revision int64) *store.Plan {
	return &store.Plan{Now: now, Made: []string{"correlation-of-" + made, made, second},
		Seen: map[store.Seen]int64{{Table: "networks", ID: "n"}: revision, {Table: "accounts", ID: "a"}: 1},
		Effects: []store.AuditEntry{
			{Action: "created", ResourceType: "Sdwan::Peer", ResourceID: made, New: store.Object{"name": "p", "network_id": store.NetworkID("n"),
				"created_at": store.At(now), "expires_at": store.At(now.Add(time.Hour)), "config": store.Object{second: made, "path": "/x/" + made}}},
			{Action: "deleted", ResourceType: "Sdwan::VirtualIp", ResourceID: "v", Old: store.Object{"name": "vip", "since": "2020-01-01T00:00:00.000Z"}},
		}}
}

const (
	id1 = "01890a5d-ac96-774b-bcce-b302099a8001"
	id2 = "01890a5d-ac96-774b-bcce-b302099a8002"
	id3 = "01890a5d-ac96-774b-bcce-b302099a8003"
	id4 = "01890a5d-ac96-774b-bcce-b302099a8004"
)

func TestDigestIsTheCallsNotTheRuns(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	base := governance.Digest("v", []byte(`{"a": 1, "b": {"x": 1, "y": 2}}`), aPlan(id1, id2, now, 5))
	for _, tt := range []struct {
		name  string
		got   string
		equal bool
	}{
		{"other ids, later", governance.Digest("v", []byte(`{"a": 1, "b": {"x": 1, "y": 2}}`), aPlan(id4, id3, now.Add(time.Minute), 5)), true},
		{"keys in another order", governance.Digest("v", []byte(`{"b": {"y": 2, "x": 1}, "a": 1}`), aPlan(id1, id2, now, 5)), true},
		{"another revision of a row", governance.Digest("v", []byte(`{"a": 1, "b": {"x": 1, "y": 2}}`), aPlan(id1, id2, now, 6)), false},
		{"other arguments", governance.Digest("v", []byte(`{"a": 2, "b": {"x": 1, "y": 2}}`), aPlan(id1, id2, now, 5)), false},
		{"another verb", governance.Digest("w", []byte(`{"a": 1, "b": {"x": 1, "y": 2}}`), aPlan(id1, id2, now, 5)), false},
	} {
		if (tt.got == base) != tt.equal {
			t.Errorf("%s: digest equal is %t, want %t", tt.name, tt.got == base, tt.equal)
		}
	}
}

func TestEffectsHideWhatOnlyTheRunMade(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	effects := governance.Effects(aPlan(id1, id2, now, 5))
	got, err := json.Marshal(effects)
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"action":"created","resource_type":"Sdwan::Peer","id":null,"name":"p","before":{},"after":{"config":{"new:1":"new:2","path":"/x/new:2"},"created_at":"now","expires_at":"now","name":"p","network_id":"n"}},` +
		`{"action":"deleted","resource_type":"Sdwan::VirtualIp","id":"v","name":"vip","before":{"name":"vip","since":"2020-01-01T00:00:00.000Z"},"after":{}}]`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("effects (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{`Sdwan::VirtualIp "vip" deleted`}, governance.Irreversible(effects)); diff != "" {
		t.Errorf("irreversible (-want +got):\n%s", diff)
	}
}

func TestRolesHoldThePermissionsOfTheTable(t *testing.T) {
	t.Parallel()
	holders := func(permission string) string {
		var out []string
		for _, role := range []string{governance.RoleViewer, governance.RoleOperator, governance.RoleAdmin, governance.RoleAgent} {
			if governance.Permits(governance.Caller{Kind: governance.KindAgent, Role: role}, permission) {
				out = append(out, role)
			}
		}
		return strings.Join(out, " ")
	}
	for permission, want := range map[string]string{
		"any":                           "viewer operator admin agent",
		"system.nodes.read":             "viewer operator admin agent",
		"sdwan.firewall.manage":         "operator admin agent",
		"devops.kubernetes.credentials": "operator admin agent",
		"system.platforms.manage":       "admin",
		"system.providers.manage":       "admin",
		"system.fleet.manage":           "operator admin",
		"platform.emergency":            "operator admin",
		"platform.audit.read":           "operator admin agent",
		"approve":                       "",
		"":                              "",
		"made.up":                       "",
	} {
		if got := holders(permission); got != want {
			t.Errorf("%q is held by %q, want %q", permission, got, want)
		}
	}
	if !governance.Permits(governance.PlatformCaller("a"), "system.platforms.manage") {
		t.Error("the platform lacks a permission")
	}
}

func TestStricterVerdictWins(t *testing.T) {
	t.Parallel()
	order := []governance.Verdict{governance.AutoApprove, governance.NotifyAndProceed, governance.RequireApproval, governance.Block}
	for i, a := range order {
		for j, b := range order {
			if got := governance.Stricter(a, b); got != order[max(i, j)] {
				t.Errorf("of %s and %s: %s", a, b, got)
			}
		}
	}
	if got := governance.Stricter("bogus", governance.NotifyAndProceed); got != "bogus" {
		t.Errorf("a verdict that is none counts as %s, want as require_approval", got)
	}
	if governance.Default("made.up") != governance.RequireApproval {
		t.Error("an unknown category is not require_approval")
	}
}

func TestForeignTextsAreHarmless(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"plain":                    `"plain"`,
		"two\nlines\x1b[31m":       `"two lines` + "\ufffd" + `[31m"`,
		"turned \u202e around":     `"turned ` + "\ufffd" + ` around"`,
		`a "quoted" word`:          `"a \"quoted\" word"`,
		"bytes \xff":               `"bytes ` + "\ufffd" + `"`,
		strings.Repeat("long", 99): `"` + strings.Repeat("long", 63) + `lon…"`,
	} {
		if got := governance.Quote(given); got != want {
			t.Errorf("Quote(%q) = %s, want %s", given, got, want)
		}
	}
}

func TestSecretsAreMaskedByTheirNames(t *testing.T) {
	t.Parallel()
	var given any
	if err := json.Unmarshal([]byte(`{"name": "a", "config": {"api_key": "x", "Password": "y", "token": null, "list": [{"join_token": "z"}], "secret": {"value": "v", "size": 2}, "tokens": ["t"]}, "tokens": 3}`), &given); err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(governance.Mask(given))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"config":{"Password":"[secret]","api_key":"[secret]","list":[{"join_token":"[secret]"}],"secret":{"size":2,"value":"[secret]"},"token":null,"tokens":["[secret]"]},"name":"a","tokens":3}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("masked (-want +got):\n%s", diff)
	}
}
