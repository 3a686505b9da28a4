package tools_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/governance"
	"powernode/platform/network"
	"powernode/schema"
	"powernode/store"
	"powernode/tools/toolstest"
)

func TestAccessGrantIsOnePerPersonAndNetwork(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := l.network(t, "tenant-a")
	first := l.Call(t, "system_sdwan_create_access_grant", toolstest.Object{"network_id": a, "user_id": "ada@example.org", "tags": []string{"operator-ws"}})["grant"].(toolstest.Object)
	toolstest.Has(t, toolstest.Object{"network_id": a, "user_id": string(l.Person.ID), "user_email": "ada@example.org", "status": "active", "tags": []any{"operator-ws"}, "device_count": 0.0, "revoked_at": nil}, first)
	again := l.Call(t, "system_sdwan_create_access_grant", toolstest.Object{"network_id": a, "user_id": string(l.Person.ID), "tags": []string{"operator-ws"}})["grant"]
	if diff := cmp.Diff(first, again.(toolstest.Object)); diff != "" {
		t.Errorf("the same call again (-first +again):\n%s", diff)
	}
	if rows := l.Audit(t, "Sdwan::AccessGrant"); len(rows) != 1 {
		t.Errorf("%d audit rows, want 1", len(rows))
	}
	other := l.Call(t, "system_sdwan_create_access_grant", toolstest.Object{"network_id": a, "user_id": "ada@example.org", "tags": []string{"b", "c"}})["grant"].(toolstest.Object)
	if diff := cmp.Diff([]any{"b", "c"}, other["tags"]); diff != "" || other["id"] != first["id"] {
		t.Errorf("with other tags (-want +got):\n%s", diff)
	}
	l.Refused(t, "system_sdwan_create_access_grant", toolstest.Object{"network_id": a, "user_id": "eve@example.org"}, schema.NotFound, "user not found")
	l.Refused(t, "system_sdwan_create_access_grant", toolstest.Object{"network_id": a, "user_id": "ada@example.org", "tags": []string{"Über"}}, schema.InvalidArguments, "a tag has 1..64 characters of a-z 0-9 - _ .")

	l.Update(t, func(ctx context.Context, tx *store.Tx) error {
		g, err := store.AccessGrantByID(ctx, &tx.View, l.Account.ID, store.AccessGrantID(first["id"].(string)))
		if err != nil {
			return err
		}
		now := store.At(tx.Now())
		g.Status, g.RevokedAt = "revoked", &now
		return store.UpdateAccessGrant(ctx, tx, g)
	})
	parked := l.Call(t, "system_sdwan_create_access_grant", toolstest.Object{"network_id": a, "user_id": "ada@example.org"})
	if parked["action_category"] != "sdwan.access_grant_reactivate" {
		t.Errorf("bringing a revoked grant back answered %v", parked)
	}
	toolstest.Has(t, toolstest.Object{"grant": toolstest.Object{"status": "active", "revoked_at": nil}}, l.Approve(t, store.OperationID(parked["deferred_operation_id"].(string))))
}

// tokenOf is the token in a device's bootstrap URL.
func tokenOf(t *testing.T, issued toolstest.Object) string {
	t.Helper()
	u, err := url.Parse(issued["bootstrap_url"].(string))
	if err != nil {
		t.Fatal(err)
	}
	if u.Scheme != "https" || u.Host != "192.0.2.1:7443" || u.Fragment != "c0ffee" {
		t.Fatalf("bootstrap URL %s", u)
	}
	token, ok := strings.CutPrefix(u.Path, "/api/v1/system/sdwan/bootstrap/")
	if !ok {
		t.Fatalf("bootstrap path %s", u.Path)
	}
	return token
}

func (l *lab) redeem(t *testing.T, token, key string) (config string, err error) {
	t.Helper()
	err = l.Platform.DB.Update(t.Context(), func(tx *store.Tx) error {
		var err error
		config, _, err = l.Platform.Network.RedeemDevice(t.Context(), tx, token, key)
		return err
	})
	return config, err
}

func (l *lab) device(t *testing.T, network, label string) toolstest.Object {
	t.Helper()
	grant := l.Call(t, "system_sdwan_create_access_grant", toolstest.Object{"network_id": network, "user_id": "ada@example.org"})["grant"].(toolstest.Object)
	return l.Call(t, "system_sdwan_issue_user_device", toolstest.Object{"access_grant_id": grant["id"], "label": label})
}

// One label in two networks is one device: one key, one file, one [Peer] for each network.
func TestDeviceOfTwoNetworksHasOneFile(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a, b := l.network(t, "tenant-a"), l.network(t, "tenant-b")
	m1, p1 := l.member(t, a, "m-1")
	m2, p2 := l.member(t, b, "m-2")
	inA, inB := l.device(t, a, "laptop"), l.device(t, b, "laptop")
	toolstest.Has(t, toolstest.Object{"warnings": []any{}, "device": toolstest.Object{"label": "laptop", "public_key": nil, "downloadable": true}}, inA)
	l.Refused(t, "system_sdwan_get_device_config", toolstest.Object{"user_id": "ada@example.org", "label": "laptop"}, schema.PreconditionFailed, "not yet made")

	key := keyOf("laptop", "")
	if _, err := l.redeem(t, tokenOf(t, inA), ""); !errors.Is(err, network.ErrKeyMissing) {
		t.Errorf("no key: %v", err)
	}
	config, err := l.redeem(t, tokenOf(t, inA), key)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"PublicKey = " + keyOf(m1, a), "PublicKey = " + keyOf(m2, b), "Endpoint = 192.0.2.11:51820", "# PrivateKey ="} {
		if !strings.Contains(config, want) {
			t.Errorf("the file has no %q:\n%s", want, config)
		}
	}
	if n := strings.Count(config, "[Peer]"); n != 2 {
		t.Errorf("%d [Peer]s, want 2:\n%s", n, config)
	}
	if _, err := l.redeem(t, tokenOf(t, inA), key); !errors.Is(err, network.ErrTokenUsed) {
		t.Errorf("redeemed twice: %v", err)
	}
	if _, err := l.redeem(t, tokenOf(t, inB), keyOf("other", "")); !errors.Is(err, network.ErrKeyDiffers) {
		t.Errorf("another key for the same label: %v", err)
	}
	second, err := l.redeem(t, tokenOf(t, inB), key)
	if err != nil || second != config {
		t.Errorf("the second network's URL: %v, file\n%s\nwant\n%s", err, second, config)
	}
	if s := l.section(t, m1, a); len(s.Peers) != 1 || s.Peers[0].Kind != "user_device" || s.Peers[0].PublicKey != key {
		t.Errorf("the gateway has peers %s", spelt(s.Peers))
	}

	got := l.Call(t, "system_sdwan_get_device_config", toolstest.Object{"user_id": string(l.Person.ID), "label": "laptop"})
	toolstest.Has(t, toolstest.Object{"config": config, "filename": "laptop.conf", "stale_since": nil}, got)
	gateways := []any{}
	for _, n := range objects(t, got["networks"]) {
		gateways = append(gateways, n["gateway_peer_id"])
	}
	if diff := cmp.Diff([]any{p1["id"], p2["id"]}, gateways); diff != "" {
		t.Errorf("gateways (-want +got):\n%s", diff)
	}
	if rows := l.Audit(t, "Sdwan::UserDevice"); rows[len(rows)-1].Action != "read" {
		t.Errorf("the last audit row is %s, want read", rows[len(rows)-1].Action)
	}
}

func TestDeviceBootstrapRefusals(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := l.network(t, "tenant-a")
	issued := l.device(t, a, "laptop")
	if warnings := objects(t, issued["warnings"]); len(warnings) != 1 || warnings[0]["code"] != "no_gateway" {
		t.Errorf("warnings %v, want no_gateway", warnings)
	}
	l.View(t, func(ctx context.Context, v *store.View) error {
		text, err := l.Platform.Network.DeviceInfo(ctx, v, tokenOf(t, issued))
		if !strings.Contains(text, "powernode-agent device join") {
			t.Errorf("info %q", text)
		}
		return err
	})
	for name, tt := range map[string]struct {
		token string
		want  *network.DeviceError
	}{
		"a malformed token": {"nonsense", network.ErrTokenInvalid},
		"an unknown token":  {strings.Repeat("0", 64), network.ErrTokenUnknown},
	} {
		if _, err := l.redeem(t, tt.token, keyOf("x", "")); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
	l.Update(t, func(ctx context.Context, tx *store.Tx) error {
		d, err := store.UserDeviceByTokenHash(ctx, &tx.View, store.Secret(tokenOf(t, issued)).Hash())
		if err != nil {
			return err
		}
		past := store.At(tx.Now().Add(-1))
		d.TokenExpiresAt = &past
		return store.UpdateUserDevice(ctx, tx, d)
	})
	if _, err := l.redeem(t, tokenOf(t, issued), keyOf("x", "")); !errors.Is(err, network.ErrTokenInvalid) {
		t.Errorf("an expired token: %v", err)
	}
}

func TestIssueDeviceRefuses(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := l.network(t, "tenant-a")
	machine, _ := l.member(t, a, "m-1")
	issued := l.device(t, a, "laptop")
	grant := issued["device"].(toolstest.Object)["access_grant_id"]
	for _, tt := range []struct {
		name string
		more toolstest.Object
		code schema.Code
		text string
	}{
		{"a label in use", toolstest.Object{"label": "laptop"}, schema.Conflict, `device label "laptop" is already in use in this grant`},
		{"no key", toolstest.Object{"public_key": "c2hvcnQ="}, schema.InvalidArguments, "public_key must be 44 characters of base64"},
		{"a peer's key", toolstest.Object{"public_key": keyOf(machine, a)}, schema.Conflict, "public key is already in use in this network"},
		{"an unknown grant", toolstest.Object{"access_grant_id": a}, schema.NotFound, "access grant not found"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := toolstest.Object{"access_grant_id": grant, "label": "phone"}
			for key, value := range tt.more {
				args[key] = value
			}
			l.Refused(t, "system_sdwan_issue_user_device", args, tt.code, tt.text)
		})
	}
	l.Refused(t, "system_sdwan_get_device_config", toolstest.Object{"user_id": "ada@example.org", "label": "none"}, schema.NotFound, "no device of label")
	l.RefusedAs(t, l.AddPerson(t, "vi@example.org", governance.RoleViewer), "system_sdwan_get_device_config", toolstest.Object{"user_id": "ada@example.org", "label": "laptop"},
		schema.PermissionDenied, "permission denied: sdwan.user_devices.config")
}

// A hub becomes the gateway, and the files that name the old one are stale until they are read again.
func TestNewGatewayMakesFilesStale(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := l.network(t, "tenant-a")
	l.member(t, a, "m-1")
	issued := l.device(t, a, "laptop")
	if _, err := l.redeem(t, tokenOf(t, issued), keyOf("laptop", "")); err != nil {
		t.Fatal(err)
	}
	hub := l.machine(t, "hub")
	attached := l.Call(t, "system_sdwan_attach_peer", toolstest.Object{"network_id": a, "node_instance_id": hub, "publicly_reachable": true,
		"endpoint_host": "hub.example.org", "endpoint_port": 51820})["peer"].(toolstest.Object)
	l.report(t, hub, nil)
	if signals := l.Signals(t, "system.sdwan_user_device_config_stale"); len(signals) != 1 || signals[0].Severity != "high" {
		t.Fatalf("signals %v, want one of severity high", signals)
	}
	got := l.Call(t, "system_sdwan_get_device_config", toolstest.Object{"user_id": "ada@example.org", "label": "laptop"})
	if got["stale_since"] == nil || !strings.Contains(got["config"].(string), "Endpoint = hub.example.org:51820") ||
		objects(t, got["networks"])[0]["gateway_peer_id"] != attached["id"] {
		t.Errorf("the new file %v", got)
	}
	if signals := l.Signals(t, "system.sdwan_user_device_config_fresh"); len(signals) != 1 {
		t.Errorf("%d signals of a fresh file, want 1", len(signals))
	}
	if again := l.Call(t, "system_sdwan_get_device_config", toolstest.Object{"user_id": "ada@example.org", "label": "laptop"}); again["stale_since"] != nil {
		t.Errorf("stale since %v after the download", again["stale_since"])
	}
}
