package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"powernode/agent"
	"powernode/agent/install"
	"powernode/nodeapi/nodeapitest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"powernode-agent": main})
}

func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{Dir: "testdata/script", RequireExplicitExec: true, RequireUniqueNames: true})
}

// invoke runs a command line in this process.
func invoke(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(context.Background(), args, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestEnrollWithOneFileRemovesIt(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	dir := t.TempDir()
	data, err := json.Marshal(p.Enrollment())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "enrollment.json")
	write(t, file, string(data))
	code, out, errs := invoke("enroll", "--state-dir", filepath.Join(dir, "state"), "--enrollment", file)
	if code != 0 || out != "enrolled as instance instance-1\n" {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file with the token: %v", err)
	}
}

func TestEnrollInOneLineAndOnce(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	dir := t.TempDir()
	token, ca := filepath.Join(dir, "token"), filepath.Join(dir, "ca.pem")
	write(t, token, p.Token+"\n")
	write(t, ca, p.CAPEM)
	line := func(state string) []string {
		return []string{"enroll", "--state-dir", filepath.Join(dir, state), "--instance", p.InstanceID, "--url", p.URL, "--token-file", token, "--ca-file", ca}
	}
	if code, out, errs := invoke(line("one")...); code != 0 {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	code, _, errs := invoke(line("two")...)
	if code != 1 || !strings.Contains(errs, "token already used") || strings.Contains(errs, p.Token) {
		t.Errorf("exit %d: %s", code, errs)
	}
}

func TestTokenIsTakenFromAFileThatOthersCannotReadAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	wide, empty := filepath.Join(dir, "wide"), filepath.Join(dir, "empty")
	write(t, wide, "pne_secret")
	write(t, empty, " \n")
	if err := os.Chmod(wide, 0o644); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{wide: "is 0644, not 0600", empty: "is empty", filepath.Join(dir, "none"): "no such file"} {
		for _, command := range [][]string{{"install", "--ca-sha256", strings.Repeat("0", 64)}, {"enroll", "--ca-file", wide}} {
			code, _, errs := invoke(append(command, "--instance", "i", "--url", "https://127.0.0.1:1", "--token-file", file, "--state-dir", filepath.Join(dir, "state"))...)
			if code != 1 || !strings.Contains(errs, want) || strings.Contains(errs, "pne_") {
				t.Errorf("%s with %s: exit %d: %s", command[0], filepath.Base(file), code, errs)
			}
		}
	}
}

// A removal that was cut off would take away, at the next start, what the machine was enrolled as since.
func TestEnrollingEndsTheRemovalOfAnAgentThatHasLeft(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	dir := t.TempDir()
	state, file := filepath.Join(dir, "state"), filepath.Join(dir, "enrollment.json")
	data, err := json.Marshal(p.Enrollment())
	if err := errors.Join(err, os.Mkdir(state, 0o700)); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(state, "left"), "")
	write(t, file, string(data))
	if !install.Left(state) {
		t.Fatal("the file says nothing, so the test shows nothing")
	}
	if code, out, errs := invoke("enroll", "--state-dir", state, "--enrollment", file); code != 0 {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	if is, err := agent.EnrolledAs(state); install.Left(state) || is != p.InstanceID || err != nil {
		t.Errorf("the machine is instance %q (%v), and has left: %v", is, err, install.Left(state))
	}
}
