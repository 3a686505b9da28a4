package netnstest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Switch joins machines by a bridge in a namespace of its own.
type Switch struct {
	t       testing.TB
	machine *Machine
	ports   int
}

// Machine is a set of namespaces, reached from the test by a thread that lives in them.
type Machine struct {
	Name     string
	Address  netip.Addr // on the switch, fd00:99::N
	Address4 netip.Addr // on the switch, 10.99.0.N
	t        testing.TB
	init     *exec.Cmd
	requests chan func()
	mu       sync.Mutex
	started  []*exec.Cmd
}

// Uplink is the name of a machine's interface on the switch.
const Uplink = "eth0"

// NewSwitch makes a switch without machines.
func NewSwitch(t testing.TB) *Switch {
	t.Helper()
	s := &Switch{t: t, machine: newMachine(t, "switch")}
	s.machine.must(func() error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
		if err := netlink.LinkAdd(bridge); err != nil {
			return err
		}
		return netlink.LinkSetUp(bridge)
	})
	return s
}

// Host is the switch's own namespace, for captures on br0.
func (s *Switch) Host() *Machine { return s.machine }

// Machine makes a machine and plugs it in.
func (s *Switch) Machine(name string) *Machine {
	s.t.Helper()
	s.ports++
	m := newMachine(s.t, name)
	m.Address = netip.MustParseAddr(fmt.Sprintf("fd00:99::%x", s.ports))
	m.Address4 = netip.AddrFrom4([4]byte{10, 99, 0, byte(s.ports)})
	port := fmt.Sprintf("port%d", s.ports)
	s.machine.must(func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: port}, PeerName: Uplink, PeerNamespace: netlink.NsPid(m.PID())}
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("add %s: %w", port, err)
		}
		bridge, err := netlink.LinkByName("br0")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMaster(veth, bridge); err != nil {
			return err
		}
		return netlink.LinkSetUp(veth)
	})
	m.must(func() error {
		link, err := netlink.LinkByName(Uplink)
		if err != nil {
			return err
		}
		for _, p := range []netip.Prefix{netip.PrefixFrom(m.Address, 64), netip.PrefixFrom(m.Address4, 24)} {
			addr, err := netlink.ParseAddr(p.String())
			if err != nil {
				return err
			}
			if p.Addr().Is6() {
				addr.Flags = unix.IFA_F_NODAD
			}
			if err := netlink.AddrAdd(link, addr); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(link)
	})
	return m
}

// newMachine starts a machine's first process and a thread in its namespaces.
func newMachine(t testing.TB, name string) *Machine {
	t.Helper()
	m := &Machine{Name: name, t: t, requests: make(chan func())}
	started := make(chan error)
	stopped := make(chan struct{})
	go m.thread(started, stopped)
	err := <-started
	t.Cleanup(func() {
		if m.init != nil && m.init.Process != nil {
			_ = m.init.Process.Kill() // and the kernel every other process of the namespace
			m.collect()
			_ = m.init.Wait()
		}
		close(m.requests)
		<-stopped
	})
	if err != nil {
		t.Fatalf("machine %s: %v", name, err)
	}
	return m
}

// thread starts the machine, since a child that is to die with its parent dies with the thread that made it, and then
// serves requests from within. It is never unlocked, so the runtime throws it away.
func (m *Machine) thread(started chan<- error, stopped chan<- struct{}) {
	defer close(stopped)
	runtime.LockOSThread()
	err := m.boot()
	if err == nil {
		err = m.enter()
	}
	started <- err
	for do := range m.requests {
		do()
	}
}

func (m *Machine) boot() error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	m.init = exec.Command("/proc/self/exe", initCommand)
	m.init.Stderr = os.Stderr
	m.init.ExtraFiles = []*os.File{write}
	m.init.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	err = m.init.Start()
	_ = write.Close()
	if err != nil {
		return fmt.Errorf("start the first process (tests that make machines need root): %w", err)
	}
	if said, err := io.ReadAll(read); err != nil || string(said) != "ready\n" {
		return fmt.Errorf("the first process did not get ready: %q %w", said, err)
	}
	return nil
}

// enter moves the thread into the machine's namespaces; of PIDs its children only.
func (m *Machine) enter() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare the file system's attributes: %w", err)
	}
	kinds := []struct {
		name string
		flag int
	}{{"uts", unix.CLONE_NEWUTS}, {"ipc", unix.CLONE_NEWIPC}, {"net", unix.CLONE_NEWNET}, {"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS}}
	var fds []int
	for _, k := range kinds { // opened first: afterwards /proc is the machine's
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/%s", m.PID(), k.name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open the %s namespace: %w", k.name, err)
		}
		defer unix.Close(fd)
		fds = append(fds, fd)
	}
	for i, k := range kinds {
		if err := unix.Setns(fds[i], k.flag); err != nil {
			return fmt.Errorf("enter the %s namespace: %w", k.name, err)
		}
	}
	return nil
}

// PID is that of the machine's first process, in the test's namespace.
func (m *Machine) PID() int { return m.init.Process.Pid }

// Do runs a function on the thread in the machine. What it starts as a goroutine is not in the machine.
func (m *Machine) Do(do func() error) error {
	result := make(chan error, 1)
	m.requests <- func() { result <- do() }
	return <-result
}

func (m *Machine) must(do func() error) {
	m.t.Helper()
	if err := m.Do(do); err != nil {
		m.t.Fatalf("machine %s: %v", m.Name, err)
	}
}

// Start starts a command in the machine. It dies with the machine; who wants it to end earlier kills it, and who
// waits for it does so before the test ends.
func (m *Machine) Start(cmd *exec.Cmd) error {
	if err := m.Do(cmd.Start); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.started = append(m.started, cmd)
	return nil
}

// collect waits for what nobody waited for: a machine's first process does not end before its last one was collected.
func (m *Machine) collect() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, cmd := range m.started {
		if cmd.ProcessState == nil {
			_ = cmd.Wait()
		}
	}
}

// Self is a command that calls the test binary as one of Main's commands.
func (m *Machine) Self(ctx context.Context, name string, args ...string) *exec.Cmd {
	program, err := os.Executable()
	if err != nil {
		m.t.Fatalf("find the test binary: %v", err)
	}
	return exec.CommandContext(ctx, program, append([]string{name}, args...)...)
}

// Try runs a command in the machine and returns what it printed.
func (m *Machine) Try(argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second // what it left behind may hold its output open
	if err := m.Start(cmd); err != nil {
		return "", err
	}
	err := cmd.Wait()
	return strings.TrimRight(out.String(), "\n"), err
}

// Run is Try for what must succeed.
func (m *Machine) Run(argv ...string) string {
	m.t.Helper()
	out, err := m.Try(argv...)
	if err != nil {
		m.t.Fatalf("%s: %s: %v\n%s", m.Name, strings.Join(argv, " "), err, out)
	}
	return out
}

// Netlink opens a handle in the machine's network namespace.
func (m *Machine) Netlink() *netlink.Handle {
	m.t.Helper()
	ns, err := netns.GetFromPid(m.PID())
	if err != nil {
		m.t.Fatalf("machine %s: %v", m.Name, err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		m.t.Fatalf("machine %s: %v", m.Name, err)
	}
	m.t.Cleanup(h.Close)
	return h
}

// Await asks every few milliseconds until the answer is yes, and fails the test after ten seconds.
func Await(t testing.TB, what string, done func() bool) {
	t.Helper()
	AwaitFor(t, 10*time.Second, what, done)
}

// AwaitFor is Await with a limit of the caller's.
func AwaitFor(t testing.TB, limit time.Duration, what string, done func() bool) {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-deadline.C:
			t.Fatalf("waited %v in vain: %s", limit, what)
		case <-tick.C:
		}
	}
}
