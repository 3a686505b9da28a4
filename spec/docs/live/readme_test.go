package live_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"powernode/spec/docs"
	"powernode/spec/rig"
)

// The block of the README that one types first comes out as typed, in its order. What was built is taken as it is: the block's
// make builds nothing.
func TestReadmesFirstStepsRunAsTyped(t *testing.T) {
	t.Parallel()
	root := moduleRoot(t)
	bin, err := filepath.Abs(rig.Given("BIN", filepath.Join(root, "bin")))
	if err != nil {
		t.Fatal(err)
	}
	home, err := os.MkdirTemp("", "pn-readme-") // short: a unix socket's path is
	if err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"bin": bin, "Makefile": filepath.Join(root, "Makefile")} {
		if err := os.Symlink(target, filepath.Join(home, name)); err != nil {
			t.Fatal(err)
		}
	}
	i := rig.New(bin, filepath.Join(home, "state", "powernode"))
	t.Cleanup(func() {
		if _, err := os.Stat(filepath.Join(i.Dir, "serve.pid")); err == nil {
			if _, err := i.Run(context.Background(), "stop"); err != nil {
				t.Error(err)
			}
		}
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-c", "set -e\nmake() { command make -o build \"$@\"; }\n"+firstSteps(t, root))
	shell.Dir = home
	shell.Env = append(os.Environ(), "HOME="+home, "XDG_STATE_HOME="+filepath.Dir(i.Dir))
	ended := make(chan error, 1)
	go func() { ended <- endForeground(ctx, i) }()
	printed, err := rig.Attend(ctx, shell, []rig.Exchange{{Asked: "e-mail address:", Typed: rig.Email}, {Asked: "name:", Typed: "The Operator"},
		{Asked: "passphrase:", Typed: i.Passphrase}, {Asked: "passphrase again:", Typed: i.Passphrase}})
	t.Log(printed)
	if err != nil || !strings.Contains(printed, "control plane started") {
		t.Fatalf("the README's first steps do not run as typed: %v", err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// firstSteps is the block that ends with the control plane in the foreground.
func firstSteps(t *testing.T, root string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range docs.FencedBlocks(string(text)) {
		if block.Language == "sh" && strings.Contains(block.Text, "make run") {
			return block.Text
		}
	}
	t.Fatal("no block of the README runs the control plane")
	return ""
}

// endForeground ends the control plane that somebody has started in the foreground, once it answers.
func endForeground(ctx context.Context, i *rig.Installation) error {
	err := rig.Await(ctx, "the control plane in the foreground", 90*time.Second, func(context.Context) (string, error) {
		pid, err := os.ReadFile(filepath.Join(i.Dir, "serve.pid"))
		if err != nil {
			return "none has been started", nil
		}
		line, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(pid)), "cmdline"))
		if err != nil || strings.Contains(string(line), "--state-dir") {
			return "the one that runs, if one does, was started by another command", nil
		}
		if _, err := os.Stat(filepath.Join(i.Dir, "control.sock")); err != nil {
			return "it does not listen yet", nil
		}
		return "", nil
	})
	if err != nil {
		return err
	}
	_, err = i.Run(ctx, "stop")
	return err
}
