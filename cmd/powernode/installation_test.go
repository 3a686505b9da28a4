package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// makers are the commands that make an installation where there is none.
var makers = []string{"powernode serve", "powernode init", "powernode mcp", "powernode call"}

// leaves are the commands that do something, each as a command line with a word for each of its arguments.
func leaves(cmd *cobra.Command) (lines [][]string) {
	for _, sub := range cmd.Commands() {
		lines = append(lines, leaves(sub)...)
	}
	if !cmd.Runnable() || cmd.HasSubCommands() {
		return lines
	}
	line := strings.Fields(cmd.CommandPath())
	for _, word := range strings.Fields(cmd.Use)[1:] {
		if strings.Trim(strings.Trim(word, "."), "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == "" {
			line = append(line, "x")
		}
	}
	return append(lines, line)
}

// A path that was mistyped is no installation, and whoever looks for one is not told that all is well there.
func TestCommandsThatOnlyLookMakeNoInstallation(t *testing.T) {
	t.Parallel()
	refused := 0
	for _, line := range leaves(rootCommand()) {
		dir := filepath.Join(t.TempDir(), "typo")
		if slices.ContainsFunc(makers, func(m string) bool { return strings.HasPrefix(strings.Join(line, " "), m) }) {
			continue
		}
		var out, problems bytes.Buffer
		code := run(t.Context(), append(line[1:], "--state-dir", dir), strings.NewReader(""), &out, &problems)
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%v makes %s", line, dir)
		}
		if code == 0 {
			continue // it needs none
		}
		said := problems.String()
		if strings.Contains(said, "there is no installation in "+dir) || strings.Contains(said, "there are no machines of "+dir) {
			refused++
		} else if code == exitFailure {
			t.Errorf("%v ends with %d: %s", line, code, said)
		}
	}
	if refused < 20 {
		t.Errorf("%d commands say that there is no installation", refused)
	}
}

func TestNoInstallationIsMadeInAFolderThatIsNotThere(t *testing.T) {
	t.Parallel()
	parent := filepath.Join(t.TempDir(), "nope")
	for _, line := range [][]string{{"serve"}, {"init"}, {"mcp"}, {"call", "platform_whoami"}} {
		var problems bytes.Buffer
		code := run(t.Context(), append(line, "--state-dir", filepath.Join(parent, "x")), strings.NewReader(""), io.Discard, &problems)
		if code != exitFailure || !strings.Contains(problems.String(), "there is no folder "+parent) {
			t.Errorf("%v ends with %d: %s", line, code, problems.String())
		}
		if _, err := os.Stat(parent); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("%v made %s", line, parent)
		}
	}
}

func TestCallSaysThatItMakesAnInstallation(t *testing.T) {
	t.Parallel()
	dir := stateDirOf(t)
	for _, want := range []string{"there was no installation in " + dir + ": one is made", ""} {
		_, stderr, code := offTerminal(t, dir, "call", "platform_whoami")
		if code != 0 || strings.TrimPrefix(strings.TrimSpace(stderr), "powernode: ") != want {
			t.Errorf("call ends with %d: %q, want %q", code, stderr, want)
		}
	}
}

// The control plane that init needs is its own where none ran, so that powernode serve can be typed next.
func TestInitEndsTheControlPlaneThatItStarted(t *testing.T) {
	t.Parallel()
	dir := initialised(t)
	if serveHolds(stateDir(dir)) {
		t.Error("a control plane runs after init, and none before")
	}
	call(t, dir, "platform_whoami")
	before := servePID(dir)
	if shown, code := onTerminal(t, dir, nil, "init"); code != exitFailure || !strings.Contains(shown, "there is a human key already") {
		t.Errorf("a second init ends with %d:\n%s", code, shown)
	}
	if !serveHolds(stateDir(dir)) || servePID(dir) != before {
		t.Error("init ended a control plane that ran before it")
	}
}

func TestInitAsksAgainForWhatIsNoAddress(t *testing.T) {
	t.Parallel()
	dir := stateDirOf(t)
	shown, code := onTerminal(t, dir, []said{{"E-mail address: ", "notmail"}, {"must be an e-mail address", ""},
		{"E-mail address: ", "ada@example.org"}, {"Name: ", "Ada"}, {"Passphrase: ", passphrase}, {"Passphrase again: ", passphrase}}, "init")
	if code != 0 {
		t.Errorf("init ends with %d:\n%s", code, shown)
	}
	for _, wrong := range [][]string{{"--email", "notmail", "--name", "Ada"}, {"--email", "ada@example.org", "--name", " "}} {
		dir := stateDirOf(t)
		if shown, code := onTerminal(t, dir, nil, append([]string{"init"}, wrong...)...); code != 3 || strings.Contains(shown, "Passphrase") {
			t.Errorf("init %v ends with %d:\n%s", wrong, code, shown)
		}
	}
}

func TestPolicyIsSetForWhatHasAName(t *testing.T) {
	t.Parallel()
	dir := initialised(t)
	network := call(t, dir, "system_sdwan_create_network", "--name", "tenant-a")["network"].(map[string]any)["id"].(string)
	ada := call(t, dir, "platform_whoami")["users"].([]any)[0].(map[string]any)["id"].(string)
	for _, tt := range []struct{ flag, name, category, want string }{
		{"--network-id", "tenant-a", "sdwan.firewall_rule_create", `"network_id":"` + network + `"`},
		{"--user-id", "ada@example.org", "sdwan.network_create", `"user_id":"` + ada + `"`},
	} {
		shown := signedBy(t, dir, "Set it? [y/N] ", "policies", "set", tt.category, "block", tt.flag, tt.name)
		if !strings.Contains(shown, tt.want) || !strings.Contains(shown, tt.name) {
			t.Errorf("what was signed is shown as\n%s", shown)
		}
		if list, _, _ := offTerminal(t, dir, "policies", "list"); !strings.Contains(list, tt.want) {
			t.Errorf("policies of %s:\n%s", tt.name, list)
		}
	}
	slug := call(t, dir, "system_sdwan_create_network", "--name", "Tenant C")["network"].(map[string]any)["slug"].(string)
	call(t, dir, "system_sdwan_create_network", "--name", slug)
	for _, tt := range []struct {
		flag, name string
		code       int
	}{
		{"--network-id", "tenant-b", 4},
		{"--user-id", "bob@example.org", 4},
		{"--network-id", slug, 3}, // the name of one, the slug of another
	} {
		if shown, code := onTerminal(t, dir, nil, "policies", "set", "sdwan.firewall_rule_create", "block", tt.flag, tt.name); code != tt.code {
			t.Errorf("%s %s ends with %d, want %d:\n%s", tt.flag, tt.name, code, tt.code, shown)
		}
	}
}

func TestSessionWithATokenThatHasExpiredIsToldSo(t *testing.T) {
	t.Parallel()
	dir := initialised(t)
	file := filepath.Join(t.TempDir(), "token")
	signedBy(t, dir, "[y/N] ", "token", "create", "--ttl", "1h", "--out", file)
	write(t, dir, `UPDATE tokens SET expires_at = '2001-01-01T00:00:00.000Z'`) // the row can take away
	if out, _, code := offTerminal(t, dir, "call", "platform_whoami", "--token-file", file); code != 7 || !strings.Contains(out, "it has expired") {
		t.Errorf("a call with it ends with %d: %s", code, out)
	}
	b := startBridge(t, dir, "--token-file", file)
	if _, err := io.WriteString(b.in, createLine(0)); err != nil {
		t.Fatal(err)
	}
	a, _ := b.answer(t)
	want := `{"code":-32001,"message":"The control plane refused the session: the token is not valid: it has expired ` +
		`(powernode token create makes another). Nothing was done."}`
	if got := string(a.Error); got != want {
		t.Errorf("answer %s, want %s", got, want)
	}
	if err := b.in.Close(); err != nil {
		t.Error(err)
	}
	b.wait(t)
}

func TestVersionIsWhatTheBuildHasRecorded(t *testing.T) {
	t.Parallel()
	commit := []debug.BuildSetting{{Key: "vcs.revision", Value: "2c92e13d0c34aaaaaaaa"}, {Key: "vcs.time", Value: "2025-11-30T15:46:00Z"}}
	for _, tt := range []struct {
		name, module, want string
		settings           []debug.BuildSetting
	}{
		{"nothing", "(devel)", "unknown (the build has recorded no commit)", nil},
		{"no module", "", "unknown (the build has recorded no commit)", nil},
		{"a commit", "(devel)", "commit 2c92e13d0c34 of 2025-11-30T15:46:00Z", commit},
		{"what Go makes of a commit", "v0.0.0-20251130154600-2c92e13d0c34+dirty", "commit 2c92e13d0c34 of 2025-11-30T15:46:00Z with changes",
			append(slices.Clone(commit), debug.BuildSetting{Key: "vcs.modified", Value: "true"})},
		{"a release", "v1.2.3", "v1.2.3 commit 2c92e13d0c34 of 2025-11-30T15:46:00Z", commit},
	} {
		if got := versionOf(&debug.BuildInfo{Main: debug.Module{Version: tt.module}, Settings: tt.settings}); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
