package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Open makes an installation in a folder of its own, with its person, and connects. Remove ends it.
func Open(ctx context.Context, bin string) (*Installation, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("making machines on this host needs root")
	}
	bin, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "powernode-spec-")
	if err != nil {
		return nil, err
	}
	i := New(bin, dir)
	if err := errors.Join(i.Init(ctx), i.Connect(ctx)); err != nil {
		return nil, errors.Join(err, i.Remove(ctx))
	}
	return i, nil
}

// Given reads a path from the environment; otherwise is what make builds.
func Given(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

// Describe reads what a K3s binary says of itself.
func Describe(ctx context.Context, path string) (K3s, error) {
	return describe(ctx, path, "K3s as given")
}

// Remove ends session, platform and machines, and removes the folder.
func (i *Installation) Remove(ctx context.Context) error {
	return errors.Join(i.Close(ctx), os.RemoveAll(i.Dir))
}

// Log is the end of the control plane's log, for a failure's message.
func (i *Installation) Log() string {
	b, err := os.ReadFile(filepath.Join(i.Dir, "serve.log"))
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4000):])
}

// Template makes a template of this host's platform and answers its id.
func (i *Installation) Template(ctx context.Context, name string) (string, error) {
	platforms, err := i.Call(ctx, "system_list_platforms", Object{})
	if err != nil {
		return "", err
	}
	out, err := i.Call(ctx, "system_create_template", Object{"name": name, "node_platform_id": Find(List(platforms, "platforms"), "name", "linux-amd64")["id"]})
	return Text(out, "template", "id"), err
}

// KillServe kills the control plane as a crash would, and waits until its process is gone. The next call starts another.
func (i *Installation) KillServe(ctx context.Context) error {
	text, err := os.ReadFile(filepath.Join(i.Dir, "serve.pid"))
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("read serve.pid: %w", err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill serve: %w", err)
	}
	return Await(ctx, "serve to be gone", 10*time.Second, func(context.Context) (string, error) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return "", nil // gone, or dead and not collected yet, is what is awaited
		}
		return "it is still there", nil
	})
}

// Signal sends a signal to the agent of a machine, such as STOP, CONT or KILL.
func (i *Installation) Signal(ctx context.Context, machine, signal string) error {
	_, err := i.Exec(ctx, machine, "pkill", "-"+signal, "-f", "^powernode-agent run")
	return err
}

// KillAgent kills the agent of a machine as a crash would, and waits until the machine's first process has started another.
func (i *Installation) KillAgent(ctx context.Context, machine string) error {
	was, err := i.agentPID(ctx, machine)
	if err != nil {
		return err
	}
	if err := i.Signal(ctx, machine, "KILL"); err != nil {
		return err
	}
	return Await(ctx, "another agent on "+machine, 30*time.Second, func(ctx context.Context) (string, error) {
		now, err := i.agentPID(ctx, machine)
		if err != nil && !Exited(err) {
			return "", err
		}
		if now == "" || now == was {
			return fmt.Sprintf("the agent's process was %s and is %q", was, now), nil
		}
		return "", nil
	})
}

// agentPID is the agent's process number inside its machine.
func (i *Installation) agentPID(ctx context.Context, machine string) (string, error) {
	out, err := i.Exec(ctx, machine, "pgrep", "-f", "^powernode-agent run")
	return strings.TrimSpace(string(out)), err
}

// Bridge is the name of the underlay's bridge on this host.
func (i *Installation) Bridge() (string, error) {
	var inst struct{ ID string }
	if err := readJSON(filepath.Join(i.Dir, "local", "installation.json"), &inst); err != nil {
		return "", err
	}
	return "pn-" + inst.ID, nil
}

// AgentsPort is the port on which machines reach the platform.
func (i *Installation) AgentsPort() (int, error) {
	var inst struct{ Ports []int }
	if err := readJSON(filepath.Join(i.Dir, "local", "installation.json"), &inst); err != nil {
		return 0, err
	}
	if len(inst.Ports) != 1 {
		return 0, fmt.Errorf("the platform listens on %d ports for machines, want one", len(inst.Ports))
	}
	return inst.Ports[0], nil
}

// InstallProbe puts the running program into a machine: its main hands over to Probe.
func (i *Installation) InstallProbe(ctx context.Context, machine string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return i.Install(ctx, machine, self, probePath)
}

// Dial has a machine try addresses by TCP and UDP side by side ("tcp [fd00::1]:80"); it answers what came of each:
// reached, refused, silence, or the error.
func (i *Installation) Dial(ctx context.Context, machine string, targets ...string) (map[string]string, error) {
	out, err := i.Exec(ctx, machine, append([]string{probePath, probeWord, "dial"}, targets...)...)
	if err != nil {
		return nil, err
	}
	results := map[string]string{}
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		target, result, _ := strings.Cut(line, " = ")
		results[target] = result
	}
	return results, nil
}

// Listen has a machine listen ("tcp 80", "udp 53") on all of its addresses until the stream is closed; each line of the
// stream after the first is one arrival: protocol, port and who it came from.
func (i *Installation) Listen(ctx context.Context, machine string, ports ...string) (*Stream, error) {
	s, err := i.Stream(ctx, machine, append([]string{probePath, probeWord, "listen"}, ports...)...)
	if err != nil {
		return nil, err
	}
	return s, s.Await(ctx, "the listeners of "+machine, 20*time.Second, func(lines []string) string {
		if len(lines) == 0 {
			return "they are not up"
		}
		return ""
	})
}

// Exited says whether an error of Exec is the exit code of the program itself, so that it ran in the machine and said no.
func Exited(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !exit.Exited() {
		return false
	}
	_, said, _ := strings.Cut(err.Error(), exit.Error()+": ")
	for line := range strings.Lines(said) {
		for _, way := range []string{"powernode: ", "nsenter: ", "setpriv: "} { // what never came as far as the program
			if strings.HasPrefix(line, way) {
				return false
			}
		}
	}
	return true
}

// Readyz has a machine ask an API server's /readyz again and again, as a kubeconfig there says; each line of the stream is
// an answer: ok, or why not.
func (i *Installation) Readyz(ctx context.Context, machine, kubeconfig string) (*Stream, error) {
	return i.Stream(ctx, machine, probePath, probeWord, "readyz", kubeconfig)
}
