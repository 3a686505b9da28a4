package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"powernode/platform/governance"
	"powernode/store"
	"powernode/tools"
)

// yes are the answers of whoever signs what a question names.
func yes(question string) []said {
	return []said{{question, "y"}, {"Passphrase: ", passphrase}}
}

// signedBy runs a command that a person signs on a terminal, and must succeed.
func signedBy(t *testing.T, dir, question string, args ...string) string {
	t.Helper()
	shown, code := onTerminal(t, dir, yes(question), args...)
	if code != 0 {
		t.Fatalf("powernode %v ends with %d:\n%s", args, code, shown)
	}
	return shown
}

// people speaks to the socket as the commands do.
func people(t *testing.T, dir, request string, in, out any) error {
	t.Helper()
	call(t, dir, "platform_whoami") // where none runs, this program must not start itself as one
	c, err := dialServe(t.Context(), stateDir(dir))
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer c.Close() // nothing hangs on it
	return c.People(t.Context(), request, in, out)
}

func TestAdministratorMakesPeopleAndTokens(t *testing.T) {
	t.Parallel()
	dir := initialised(t)
	if _, stderr, code := offTerminal(t, dir, "user", "add", "bob@example.org"); code == 0 || !strings.Contains(stderr, "no controlling terminal") {
		t.Errorf("user add without a terminal ends with %d: %s", code, stderr)
	}
	signedBy(t, dir, "Add \"bob@example.org\" as operator? [y/N] ", "user", "add", "bob@example.org", "--name", "Bob", "--role", "operator")
	if shown, code := onTerminal(t, dir, nil, "token", "create", "--user", "bob@example.org", "--role", "admin"); code == 0 || !strings.Contains(shown, "at most the role of its owner") {
		t.Errorf("a token above its owner ends with %d:\n%s", code, shown)
	}
	file := filepath.Join(t.TempDir(), "token")
	signedBy(t, dir, "[y/N] ", "token", "create", "--user", "bob@example.org", "--role", "operator", "--toolsets", "sdwan", "--ttl", "1h", "--out", file)
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the token's file: %v, %v", info, err)
	}
	secret, err := credentialFrom(file)
	if err != nil || !strings.HasPrefix(secret, governance.SecretPrefix) {
		t.Fatalf("the token's file holds %q, %v", secret, err)
	}
	var listed tools.TokensAnswer
	if err := people(t, dir, tools.PeopleTokens, nil, &listed); err != nil || len(listed.Tokens) != 1 || !listed.Tokens[0].Valid() ||
		listed.Tokens[0].Role != "operator" || len(listed.Tokens[0].Toolsets) != 1 {
		t.Fatalf("tokens %+v, %v, want the one", listed, err)
	}
	stdout, _, _ := offTerminal(t, dir, "token", "list")
	if strings.Contains(stdout, secret) || !strings.Contains(stdout, "bob@example.org") {
		t.Errorf("token list shows:\n%s", stdout)
	}
	id := string(listed.Tokens[0].ID)
	signedBy(t, dir, "Revoke token "+id+"? [y/N] ", "token", "revoke", id)
	if stdout, _, _ = offTerminal(t, dir, "token", "list"); !strings.Contains(stdout, "revoked") {
		t.Errorf("token list after the revocation shows:\n%s", stdout)
	}
	signedBy(t, dir, "Make \"bob@example.org\" viewer? [y/N] ", "user", "role", "bob@example.org", "viewer")
	signedBy(t, dir, "Remove \"bob@example.org\"? [y/N] ", "user", "remove", "bob@example.org")
	if stdout, _, _ = offTerminal(t, dir, "user", "list"); strings.Contains(stdout, "bob@example.org") || !strings.Contains(stdout, "ada@example.org") {
		t.Errorf("user list after the removal shows:\n%s", stdout)
	}
	if stdout, _, code := offTerminal(t, dir, "account", "show"); code != 0 || !strings.Contains(stdout, "signs     ada@example.org") {
		t.Errorf("account show ends with %d:\n%s", code, stdout)
	}
	if stdout, stderr, code := offTerminal(t, dir, "audit", "verify"); code != 0 {
		t.Errorf("audit verify ends with %d: %s%s", code, stdout, stderr)
	}
}

func TestAnotherProcessOfTheSameUserMakesNobody(t *testing.T) {
	t.Parallel()
	dir := initialised(t)
	var state tools.KeyState
	if err := people(t, dir, tools.PeopleKey, nil, &state); err != nil {
		t.Fatal(err)
	}
	user := governance.UserStatement{AccountID: state.AccountID, ChangeID: "x", Deed: governance.AddUser, UserID: "x", Email: "eve@example.org",
		Name: "Eve", Role: "admin", SignedBy: *state.UserID}
	token := governance.TokenStatement{AccountID: state.AccountID, TokenID: "x", UserID: *state.UserID, Email: *state.Email, Name: "x", Role: "admin",
		SHA256: store.Secret("pn_x").Hash(), SignedBy: *state.UserID}
	for what, err := range map[string]error{
		"a person": people(t, dir, tools.PeopleSetUser, governance.UserInput{User: user, Signature: make([]byte, 64)}, nil),
		"a token":  people(t, dir, tools.PeopleSetToken, governance.TokenInput{Token: token, Signature: make([]byte, 64)}, nil),
	} {
		if err == nil {
			t.Errorf("%s without a signature is taken", what)
		}
	}
	write(t, dir, `INSERT INTO tokens (id, account_id, user_id, hash, role, created_at, revision)
		VALUES ('hand', ?, ?, ?, 'admin', '2026-01-01T00:00:00.000Z', 1)`, state.AccountID, *state.UserID, store.Secret("pn_hand").Hash())
	verifyNames(t, dir, "tokens hand")
	var listed tools.TokensAnswer
	if err := people(t, dir, tools.PeopleTokens, nil, &listed); err != nil || len(listed.Tokens) != 1 || listed.Tokens[0].Valid() {
		t.Errorf("tokens %+v, %v, want the one that does not count", listed, err)
	}
}

func TestSecondPersonDecidesWhatTheFirstAskedFor(t *testing.T) {
	t.Parallel()
	dir := initialised(t)
	signedBy(t, dir, "[y/N] ", "user", "add", "bob@example.org", "--role", "operator")
	const bobs = "bob's own passphrase"
	shown, code := onTerminal(t, dir, append(yes("signed by \"ada@example.org\"? [y/N] "), said{"Passphrase: ", bobs}, said{"Passphrase again: ", bobs}),
		"user", "key", "bob@example.org")
	if code != 0 {
		t.Fatalf("user key ends with %d:\n%s", code, shown)
	}
	id := parked(t, dir)
	asBob := []said{{"Approve? [y/N] ", "y"}, {"Passphrase: ", bobs}}
	if shown, code = onTerminal(t, dir, asBob, "approvals", "approve", id, "--as", "bob@example.org"); code != 0 || !strings.Contains(shown, "completed") {
		t.Errorf("bob's approval ends with %d:\n%s", code, shown)
	}
	set := []string{"policies", "set", "sdwan.network_delete", "block", "--as", "bob@example.org"}
	if shown, code = onTerminal(t, dir, []said{{"Set it? [y/N] ", "y"}, {"Passphrase: ", bobs}}, set...); code == 0 || !strings.Contains(shown, "permission denied") {
		t.Errorf("an operator's policy ends with %d:\n%s", code, shown)
	}
	if stdout, stderr, code := offTerminal(t, dir, "audit", "verify"); code != 0 {
		t.Errorf("audit verify ends with %d: %s%s", code, stdout, stderr)
	}
}

func TestTokenFileIsItsUsersAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string, mode os.FileMode, content string) string {
		p := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(p, []byte(content), 0o600), os.Chmod(p, mode)); err != nil {
			t.Fatal(err)
		}
		return p
	}
	good := path("good", 0o600, "pn_a\n")
	if secret, err := credentialFrom(good); err != nil || secret != "pn_a" {
		t.Errorf("got %q, %v", secret, err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(good, link); err != nil {
		t.Fatal(err)
	}
	for what, p := range map[string]string{"one that others read": path("wide", 0o644, "pn_a"), "an empty one": path("empty", 0o600, "\n"),
		"a huge one": path("huge", 0o600, strings.Repeat("a", maxToken+1)), "a link": link, "a folder": dir, "none": filepath.Join(dir, "gone")} {
		if secret, err := credentialFrom(p); err == nil {
			t.Errorf("%s is taken: %q", what, secret)
		}
	}
}
