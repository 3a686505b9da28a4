package wireguard

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"powernode/internal/netnstest"
	"powernode/sdwan"
)

func TestMain(m *testing.M) {
	os.Exit(netnstest.Main(m, map[string]netnstest.Command{
		"device-run": deviceRun, "agent": agentMain, "hold-port": holdPort, "watch": watchMain,
	}))
}

// holdPort binds a UDP port until it is killed.
func holdPort(args []string) int {
	c, err := net.ListenPacket("udp", ":"+args[0])
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("bound")
	_, _, _ = c.ReadFrom(make([]byte, 1))
	return 0
}

// watchMain prints a line when it watches, and one for each signal.
func watchMain([]string) int {
	signals, err := Watch(context.Background(), zerolog.New(os.Stderr))
	if err != nil {
		return 1
	}
	fmt.Println("watching")
	for range signals {
		fmt.Println("changed")
	}
	return 0
}

// deviceRun is the agent's subcommand of that name, for a test binary.
func deviceRun(args []string) int {
	f := flag.NewFlagSet("device-run", flag.ExitOnError)
	name, mtu, log := f.String("name", "", ""), f.Int("mtu", 0, ""), f.String("log", "", "")
	detach, tell := f.Bool("detach", false, ""), f.Bool("tell-ready", false, "")
	_ = f.Parse(args)
	err := func() error {
		if *detach {
			program, err := os.Executable()
			if err != nil {
				return err
			}
			return Detach(context.Background(), []string{program, "device-run", "--name", *name, "--mtu", fmt.Sprint(*mtu), "--tell-ready"}, *log)
		}
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		d := Device{Name: *name, MTU: *mtu, Log: zerolog.New(os.Stderr)}
		if *tell {
			d.Ready = ReadyPipe()
		}
		return RunDevice(ctx, d)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// request and answer are what a test and its agents say to each other, a line each.
type request struct {
	Document *sdwan.Document
	Observe  bool
}

type answer struct {
	Error  string
	Writes int64
	Took   time.Duration
	Report sdwan.Report
}

// countedHost counts writes on their way to the machine.
type countedHost struct {
	*linuxHost
	writes atomic.Int64
}

func (h *countedHost) CreateDevice(ctx context.Context, name string, mtu int) error {
	h.writes.Add(1)
	return h.linuxHost.CreateDevice(ctx, name, mtu)
}

func (h *countedHost) RemoveDevice(ctx context.Context, name string) error {
	h.writes.Add(1)
	return h.linuxHost.RemoveDevice(ctx, name)
}

func (h *countedHost) Configure(ctx context.Context, name string, c configuration) error {
	h.writes.Add(1)
	return h.linuxHost.Configure(ctx, name, c)
}

func (h *countedHost) SetMTU(ctx context.Context, name string, mtu int) error {
	h.writes.Add(1)
	return h.linuxHost.SetMTU(ctx, name, mtu)
}

func (h *countedHost) SetUp(ctx context.Context, name string) error {
	h.writes.Add(1)
	return h.linuxHost.SetUp(ctx, name)
}

func (h *countedHost) AddAddress(ctx context.Context, name string, p netip.Prefix) error {
	h.writes.Add(1)
	return h.linuxHost.AddAddress(ctx, name, p)
}

func (h *countedHost) RemoveAddress(ctx context.Context, name string, p netip.Prefix) error {
	h.writes.Add(1)
	return h.linuxHost.RemoveAddress(ctx, name, p)
}

func (h *countedHost) AddRoute(ctx context.Context, r route) error {
	h.writes.Add(1)
	return h.linuxHost.AddRoute(ctx, r)
}

func (h *countedHost) ReplaceRoute(ctx context.Context, r route) error {
	h.writes.Add(1)
	return h.linuxHost.ReplaceRoute(ctx, r)
}

func (h *countedHost) RemoveRoute(ctx context.Context, r route) error {
	h.writes.Add(1)
	return h.linuxHost.RemoveRoute(ctx, r)
}

func (h *countedHost) WriteSetting(ctx context.Context, key, value string) error {
	h.writes.Add(1)
	return h.linuxHost.WriteSetting(ctx, key, value)
}

// agentMain answers requests with one Subsystem until its input ends. Its one argument is the state directory.
func agentMain(args []string) int {
	o := Options{StateDir: args[0], Log: zerolog.New(os.Stderr)}
	h := &countedHost{linuxHost: newLinuxHost(o)}
	s := newSubsystem(o, h)
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	for {
		var r request
		if err := in.Decode(&r); err != nil {
			return 0
		}
		var a answer
		before, start := h.writes.Load(), time.Now()
		if r.Document != nil {
			if err := s.Reconcile(context.Background(), r.Document); err != nil {
				a.Error = err.Error()
			}
		}
		a.Took, a.Writes = time.Since(start), h.writes.Load()-before
		if r.Observe {
			if err := s.Observe(context.Background(), &a.Report); err != nil {
				a.Error += err.Error()
			}
		}
		if err := out.Encode(a); err != nil {
			return 1
		}
	}
}

// node is a machine with an agent that has the one subsystem.
type node struct {
	*netnstest.Machine
	t     *testing.T
	state string
	cmd   *exec.Cmd
	in    *json.Encoder
	out   *json.Decoder
}

func newNode(t *testing.T, s *netnstest.Switch, name string) *node {
	n := &node{Machine: s.Machine(name), t: t, state: t.TempDir()}
	n.start()
	return n
}

func (n *node) start() {
	n.t.Helper()
	n.cmd = n.Self(context.Background(), "agent", n.state)
	stdin, err := n.cmd.StdinPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	stdout, err := n.cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	n.cmd.Stderr = testLog{n.t, n.Name}
	n.in, n.out = json.NewEncoder(stdin), json.NewDecoder(stdout)
	if err := n.Start(n.cmd); err != nil {
		n.t.Fatal(err)
	}
	cmd := n.cmd
	n.t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// restart kills the agent, as a crash would, and starts another on the same state.
func (n *node) restart() {
	n.t.Helper()
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait()
	n.start()
}

func (n *node) ask(r request) answer {
	n.t.Helper()
	if err := n.in.Encode(r); err != nil {
		n.t.Fatalf("%s: ask the agent: %v", n.Name, err)
	}
	var a answer
	if err := n.out.Decode(&a); err != nil {
		n.t.Fatalf("%s: the agent's answer: %v", n.Name, err)
	}
	return a
}

// apply reconciles and fails the test on an error.
func (n *node) apply(doc *sdwan.Document) answer {
	n.t.Helper()
	a := n.ask(request{Document: doc})
	if a.Error != "" {
		n.t.Fatalf("%s: %s", n.Name, a.Error)
	}
	return a
}

func (n *node) observe() sdwan.Report {
	n.t.Helper()
	a := n.ask(request{Observe: true})
	if a.Error != "" {
		n.t.Fatalf("%s: %s", n.Name, a.Error)
	}
	return a.Report
}

// testLog passes an agent's log on to the test's.
type testLog struct {
	t    *testing.T
	name string
}

func (l testLog) Write(p []byte) (int, error) {
	l.t.Logf("%s: %s", l.name, p)
	return len(p), nil
}
