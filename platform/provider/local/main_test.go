package local_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"powernode/platform/provider"
	"powernode/platform/provider/local"
	"powernode/platform/provider/local/boot"
)

// TestMain is, besides the tests, the programs that they start: this binary is what machines get for an agent, and what
// plays a platform that is killed. The tests themselves run in network, mount and PID namespaces of their own, so that
// whole listings can be compared while other tests run on the host, and nothing is left whatever happens.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "init":
			exit(boot.Run(boot.Options{Idle: slices.Contains(os.Args, "--idle"), Entered: slices.Contains(os.Args, "--entered")}))
		case "run":
			exit(agent())
		}
	}
	switch os.Getenv("LOCAL_TEST_ROLE") {
	case "platform":
		exit(platform())
	case "enter":
		exit(enter())
	case "unprivileged":
		exit(unprivileged())
	case "world":
		exit(world1())
	case "tests":
		os.Exit(m.Run())
	}
	os.Exit(inOwnWorld())
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func inOwnWorld() int {
	folder, err := os.MkdirTemp("", "local")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer sweep(folder)
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(roleEnvironment("world"), "TMPDIR="+folder)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: unix.SIGKILL}
	err = cmd.Run()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		fmt.Fprintln(os.Stderr, "the tests of local machines need root:", err)
		return 1
	}
	return cmd.ProcessState.ExitCode()
}

// sweep removes what tests that were cut off left outside of their namespaces: files and control groups.
func sweep(folder string) {
	states, _ := filepath.Glob(filepath.Join(folder, "*/*/local/installation.json"))
	for _, state := range states {
		p := local.New(local.Options{StateDir: filepath.Dir(filepath.Dir(state)), Log: zerolog.Nop()})
		if err := p.Down(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "sweep:", err)
		}
	}
	if err := os.RemoveAll(folder); err != nil {
		fmt.Fprintln(os.Stderr, "sweep:", err)
	}
}

// world1 is the first process of the tests' namespaces: like a host's, it reaps whatever is left without a parent.
func world1() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	if err := run("ip", "link", "set", "lo", "up"); err != nil {
		return err
	}
	tests, err := syscall.ForkExec("/proc/self/exe", os.Args, &syscall.ProcAttr{Env: roleEnvironment("tests"), Files: []uintptr{0, 1, 2}})
	if err != nil {
		return err
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if pid == tests {
			os.Exit(status.ExitStatus())
		}
	}
}

func roleEnvironment(role string) []string {
	env := slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "LOCAL_TEST_ROLE=") })
	return append(env, "LOCAL_TEST_ROLE="+role)
}

func run(argv ...string) error {
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%v: %w: %s", argv, err, out)
	}
	return nil
}

// agent is what the first process starts here: it takes the enrolment as the real one does and stays.
func agent() error {
	text, err := os.ReadFile(boot.EnrollmentPath)
	if err == nil {
		var e struct {
			Wait bool `json:"wait"` // leave it
		}
		if err := json.Unmarshal(text, &e); err != nil {
			return err
		}
		if !e.Wait {
			if err := os.MkdirAll(boot.AgentStateDir, 0o700); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(boot.AgentStateDir, "received"), text, 0o600); err != nil {
				return err
			}
			if err := os.Remove(boot.EnrollmentPath); err != nil {
				return err
			}
		}
	}
	if err := os.WriteFile("/run/agent.pid", fmt.Append(nil, os.Getpid()), 0o600); err != nil {
		return err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM)
	<-signals
	return nil
}

// platform makes the machine that its environment names, says so, and waits to be killed.
func platform() error {
	p := local.New(local.Options{StateDir: os.Getenv("STATE"), AgentBinary: "/proc/self/exe", Log: zerolog.Nop()})
	var in provider.CreateInput
	if err := json.Unmarshal([]byte(os.Getenv("INPUT")), &in); err != nil {
		return err
	}
	m, err := p.Create(context.Background(), in)
	if err != nil {
		return err
	}
	fmt.Println(m.ID)
	select {}
}

func enter() error {
	p := local.New(local.Options{StateDir: os.Getenv("STATE"), Log: zerolog.Nop()})
	return p.Enter(context.Background(), os.Getenv("MACHINE"), "/bin/sh", "-c", os.Getenv("COMMAND"))
}

// unprivileged says what the provider answers to somebody who is not root.
func unprivileged() error {
	p := local.New(local.Options{StateDir: os.Getenv("STATE"), AgentBinary: "/proc/self/exe", Log: zerolog.Nop()})
	_, err := p.Create(context.Background(), provider.CreateInput{AccountID: "a", InstanceID: "i", Name: "n"})
	fmt.Println("create:", err)
	_, err = p.AgentAPIAddress(context.Background())
	fmt.Println("address:", err)
	machines, err := p.List(context.Background(), "a")
	fmt.Println("list:", machines, err)
	fmt.Println("terminate:", p.Terminate(context.Background(), "local-i"))
	fmt.Println("down:", p.Down(context.Background()))
	return nil
}
