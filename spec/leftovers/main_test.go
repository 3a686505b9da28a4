package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestMain is also the program that a test leaves running: with the variable set it waits for the end of its input.
func TestMain(m *testing.M) {
	if os.Getenv("LEFTOVERS_WAIT") != "" {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestLeftNamesWhatIsNewOfEachKind(t *testing.T) {
	t.Parallel()
	before := inventory{"link": {"lo (device)"}, "file": {"/tmp/powernode-1"}}
	now := inventory{"link": {"lo (device)", "pn-1 (bridge)"}, "file": {}, "mount": {"/mnt (tmpfs)"}}
	want := []string{"link: pn-1 (bridge)", "mount: /mnt (tmpfs)"}
	if diff := cmp.Diff(want, left(before, now)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

func TestParseStatTakesNamesWithBrackets(t *testing.T) {
	t.Parallel()
	name, state, start, err := parseStat("42 (power) node (1)) S 1 42 42 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 777 1 1")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := []string{name, state, start}, []string{"power) node (1)", "S", "777"}; cmp.Diff(want, got) != "" {
		t.Errorf("name, state and start are %q, want %q", got, want)
	}
}

// Not in parallel: it moves the folder of temporary files.
func TestCheckNamesATemporaryFileThatIsLeft(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	file := filepath.Join(t.TempDir(), "before.json")
	if err := snapshot(file); err != nil {
		t.Fatal(err)
	}
	left, err := os.MkdirTemp("", "powernode-left-")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = check(file, time.Millisecond, &out)
	if err == nil || !strings.Contains(out.String(), "left: file: "+left+"\n") {
		t.Errorf("check is %v and prints %q, want %s named", err, &out, left)
	}
}

func TestCheckNamesAProcessThatIsLeft(t *testing.T) {
	t.Parallel()
	file, program := filepath.Join(t.TempDir(), "before.json"), filepath.Join(t.TempDir(), "powernode-agent")
	if err := snapshot(file); err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	syscall.ForkLock.RLock() // a child of another test that still holds it open would make its start fail
	err = os.WriteFile(program, self, 0o700)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), "LEFTOVERS_WAIT=1")
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = check(file, time.Millisecond, &out)
	if err == nil || !strings.Contains(out.String(), "powernode-agent") {
		t.Errorf("check is %v and prints %q, want the process named", err, &out)
	}
	if err := input.Close(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestRunRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"snapshot"}, {"remove", "x"}, {"check", filepath.Join(t.TempDir(), "missing")}} {
		if code := run(args, io.Discard, io.Discard); code == 0 {
			t.Errorf("run %q succeeds", args)
		}
	}
}
