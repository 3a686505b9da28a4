package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain puts this program on the path as powernode: tests run it as a process of its own, as people do.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != "powernode" && len(os.Args) > 1 && os.Args[1] == "serve" { // dialServe starts the program that it is in, and this one would test again
		fmt.Fprintln(os.Stderr, "a test has connected to a control plane that does not run: start it with powernode first")
		os.Exit(exitFailure)
	}
	testscript.Main(m, map[string]func(){
		"powernode": func() { os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) },
	})
}

// TestScripts runs testdata/script. Each script has a state directory of its own at $STATE, which is the default one;
// the control plane that it may have started is ended.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{Dir: "testdata/script", RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(env *testscript.Env) error {
			base := filepath.Join(env.WorkDir, "xdg")
			env.Setenv("XDG_STATE_HOME", base)
			env.Setenv("STATE", filepath.Join(base, "powernode"))
			env.Defer(func() { endServe(t, filepath.Join(base, "powernode")) })
			return nil
		},
	})
}

// endServe ends the control plane of a state directory, if one runs.
func endServe(t testing.TB, dir string) {
	if _, err := os.Stat(filepath.Join(dir, "serve.pid")); err != nil {
		return
	}
	out, err := exec.Command("powernode", "stop", "--state-dir", dir).CombinedOutput()
	if err != nil {
		t.Errorf("powernode stop: %v\n%s", err, out)
	}
}
