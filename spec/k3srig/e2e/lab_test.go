package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	envInner = "K3SRIG_E2E_INNER"
	iface    = "wg-sdwan-1"
	patience = 2 * time.Minute
	interval = 200 * time.Millisecond
)

// inNamespaces runs the calling test once more, in namespaces of its own.
// Everything it starts and makes ends with them, also when it is killed.
func inNamespaces(t *testing.T, binary string) {
	t.Helper()
	// Pdeathsig is about the thread that starts the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.v", "-test.timeout", "10m")
	cmd.Env = append(os.Environ(), envInner+"="+binary)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := cmd.Run(); err != nil {
		t.Fatalf("in namespaces: %v", err)
	}
}

// lab is a switch with machines on it.
type lab struct {
	t      *testing.T
	binary string
	dir    string
}

func newLab(t *testing.T, binary string) *lab {
	t.Helper()
	l := &lab{t: t, binary: binary, dir: t.TempDir()}
	l.must("mount", "--make-rprivate", "/")
	l.must("mount", "-t", "proc", "proc", "/proc")
	// Overlays need an upper folder that isn't itself on one.
	l.must("mount", "-t", "tmpfs", "tmpfs", l.dir)
	t.Cleanup(func() { l.must("umount", "-l", l.dir) })
	l.must("ip", "link", "set", "lo", "up")
	l.must("ip", "link", "add", "br0", "type", "bridge")
	l.must("ip", "link", "set", "br0", "up")
	return l
}

func (l *lab) must(args ...string) {
	l.t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		l.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// machine is a host: network, mounts and name of its own.
type machine struct {
	*lab
	name string
	ip   string
	pid  string
}

// setup gives a machine its own /etc, /var/lib and /run, and waits to be killed.
const setup = `set -e
mount --make-rprivate /
for d in etc var/lib; do
	mkdir -p "$1/$d.up" "$1/$d.work"
	mount -t overlay overlay -o "lowerdir=/$d,upperdir=$1/$d.up,workdir=$1/$d.work" "/$d"
done
mount -t tmpfs tmpfs /run
hostname "$2"
ip link set lo up
echo ready
exec sleep infinity`

func (l *lab) machine(name, ip string) *machine {
	l.t.Helper()
	cmd := exec.Command("sh", "-c", setup, "sh", filepath.Join(l.dir, name), name)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC}
	out, err := cmd.StdoutPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		l.t.Fatalf("machine %s: %q, %v", name, line, err)
	}
	m := &machine{lab: l, name: name, ip: ip, pid: strconv.Itoa(cmd.Process.Pid)}
	l.must("ip", "link", "add", "v-"+name, "type", "veth", "peer", "name", iface, "netns", m.pid)
	l.must("ip", "link", "set", "v-"+name, "master", "br0", "up")
	m.run("ip", "addr", "add", ip+"/64", "dev", iface, "nodad")
	m.run("ip", "link", "set", iface, "up")
	return m
}

func (m *machine) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"-t", m.pid, "-n", "-m", "-u", "-i", "--"}, args...)...)
	// What the machine gets is what a unit would give it.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/root"}
	return cmd
}

// try runs a command to its end.
func (m *machine) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := m.command(ctx, args...).CombinedOutput()
	return string(out), err
}

func (m *machine) run(args ...string) string {
	m.t.Helper()
	out, err := m.try(args...)
	if err != nil {
		m.t.Fatalf("%s: %s: %v\n%s", m.name, strings.Join(args, " "), err, out)
	}
	return out
}

func (m *machine) kubectl(args ...string) (string, error) {
	return m.try(append([]string{m.binary, "kubectl"}, args...)...)
}

func (m *machine) configure(content string) {
	m.t.Helper()
	cmd := m.command(context.Background(), "sh", "-c", "mkdir -p /etc/rancher/k3s && cat >/etc/rancher/k3s/config.yaml")
	cmd.Stdin = strings.NewReader(content)
	if out, err := cmd.CombinedOutput(); err != nil {
		m.t.Fatalf("%s: write configuration: %v\n%s", m.name, err, out)
	}
}

// service is a running k3s.
type service struct {
	m    *machine
	cmd  *exec.Cmd
	log  *safeBuffer
	done chan error
}

func (m *machine) start(role string) *service {
	m.t.Helper()
	s := &service{m: m, cmd: m.command(context.Background(), m.binary, role), log: &safeBuffer{}, done: make(chan error, 1)}
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	go func() { s.done <- s.cmd.Wait() }()
	m.t.Cleanup(func() {
		_ = s.cmd.Process.Kill() // it may have ended long ago
		if m.t.Failed() {
			m.t.Logf("the end of what %s on %s logged:\n%s", role, m.name, s.log.tail(60))
		}
	})
	return s
}

// wait waits for the end and answers the exit code.
func (s *service) wait(limit time.Duration) int {
	s.m.t.Helper()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-s.done:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			s.m.t.Fatal(err)
		}
		return s.cmd.ProcessState.ExitCode()
	case <-timer.C:
		s.m.t.Fatalf("k3s on %s did not end within %v", s.m.name, limit)
		return 0
	}
}

// stop ends a service as a service manager would.
func (s *service) stop() {
	s.m.t.Helper()
	begin := time.Now()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.m.t.Fatal(err)
	}
	if code := s.wait(10 * time.Second); code != 0 {
		s.m.t.Fatalf("k3s on %s ended with %d", s.m.name, code)
	}
	s.m.t.Logf("k3s on %s ended after %v", s.m.name, time.Since(begin).Round(time.Millisecond))
}

// logged waits for a text in the log.
func (s *service) logged(text string) {
	s.m.t.Helper()
	s.m.eventually(fmt.Sprintf("%q in the log of %s", text, s.m.name), func() error {
		if !strings.Contains(s.log.String(), text) {
			return errors.New("not there")
		}
		return nil
	})
}

func (l *lab) eventually(what string, check func() error) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	begin := time.Now()
	for {
		err := check()
		if err == nil {
			l.t.Logf("%s after %v", what, time.Since(begin).Round(time.Millisecond))
			return
		}
		select {
		case <-ctx.Done():
			l.t.Fatalf("%s: %v", what, err)
		case <-tick.C:
		}
	}
}

// safeBuffer is written by a process and read by the test.
type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (b *safeBuffer) tail(n int) string {
	lines := slices.DeleteFunc(strings.Split(b.String(), "\n"), func(l string) bool {
		return strings.Contains(l, "addrConn.createTransport") // gRPC's, a hundred for each stop
	})
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
