package probe

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"powernode/internal/netnstest"
	"powernode/sdwan"
)

func TestMain(m *testing.M) {
	os.Exit(netnstest.Main(m, map[string]netnstest.Command{"measure": measureMain, "listen": listenMain}))
}

// measureMain carries out the probes of one document from its input.
func measureMain([]string) int {
	var doc sdwan.Document
	if err := json.NewDecoder(os.Stdin).Decode(&doc); err != nil {
		return 1
	}
	s := New(Options{Log: zerolog.New(os.Stderr)})
	var r sdwan.Report
	if err := s.Reconcile(context.Background(), &doc); err != nil {
		return 1
	}
	if err := s.Observe(context.Background(), &r); err != nil {
		return 1
	}
	if err := json.NewEncoder(os.Stdout).Encode(r.Probes); err != nil {
		return 1
	}
	return 0
}

// listenMain accepts connections until it is killed.
func listenMain(args []string) int {
	l, err := net.Listen("tcp", args[0])
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(l.Addr().(*net.TCPAddr).Port)
	for {
		c, err := l.Accept()
		if err != nil {
			return 1
		}
		_ = c.Close()
	}
}

// run measures in a machine and answers results by id.
func run(t *testing.T, m *netnstest.Machine, probes []sdwan.Probe) map[string]string {
	t.Helper()
	cmd := m.Self(t.Context(), "measure")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := json.NewEncoder(stdin).Encode(sdwan.Document{Probes: probes}); err != nil {
		t.Fatal(err)
	}
	var got []sdwan.ProbeReport
	if err := json.NewDecoder(stdout).Decode(&got); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	results := map[string]string{}
	for _, r := range got {
		results[r.ID] = r.Result
		if (r.Result == Reachable) != (r.RTTMS > 0) || r.MeasuredAt.IsZero() {
			t.Errorf("%+v: a round trip belongs to what is reachable, a time to all", r)
		}
	}
	return results
}

func TestProbesTellWhatAnswersFromWhatDoesNot(t *testing.T) {
	t.Parallel()
	s := netnstest.NewSwitch(t)
	a, b := s.Machine("a"), s.Machine("b")
	listener := b.Self(t.Context(), "listen", "[::]:0")
	stdout, err := listener.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Start(listener); err != nil {
		t.Fatal(err)
	}
	var port int
	if _, err := fmt.Fscan(bufio.NewReader(stdout), &port); err != nil {
		t.Fatal(err)
	}
	b.Run("nft", "add table inet t; add chain inet t input { type filter hook input priority 0; }; add rule inet t input tcp dport 7 drop")
	a.Run("ip", "-6", "route", "add", "unreachable", "fd66::/64")
	a.Run("nft", "add table inet t; add chain inet t output { type filter hook output priority 0; }; add rule inet t output ip6 daddr fd67::1 drop")
	a.Run("ip", "-6", "route", "add", "fd67::/64", "via", b.Address.String())
	silent := netip.MustParseAddr("fd00:99::dead")
	foreign := netip.MustParseAddr("fd00:98::1")

	want := map[string]string{}
	var probes []sdwan.Probe
	probe := func(id, protocol string, source, target netip.Addr, port int, result string) {
		deadline := 600 // for silence, which is waited for whole
		if result == Reachable {
			deadline = 20_000 // an answer is late on a busy host, and ends the wait
		}
		probes = append(probes, sdwan.Probe{ID: id, Protocol: protocol, Source: source, Target: target, Port: port, DeadlineMS: deadline})
		want[id] = result
	}
	probe("echo", "icmp6", a.Address, b.Address, 0, Reachable)
	probe("echo without source", "icmp6", netip.Addr{}, b.Address, 0, Reachable)
	probe("echo to nobody", "icmp6", a.Address, silent, 0, Unreachable)
	probe("echo without a way", "icmp6", a.Address, netip.MustParseAddr("fd66::1"), 0, Unreachable)
	probe("echo dropped here", "icmp6", a.Address, netip.MustParseAddr("fd67::1"), 0, Unreachable)
	probe("echo from an address of others", "icmp6", foreign, b.Address, 0, Failed)
	probe("echo to IPv4", "icmp6", a.Address, b.Address4, 0, Failed)
	probe("tcp", "tcp", a.Address, b.Address, port, Reachable)
	probe("tcp over IPv4", "tcp", a.Address4, b.Address4, port, Reachable)
	probe("tcp refused is an answer", "tcp", a.Address, b.Address, 9, Reachable)
	probe("tcp dropped", "tcp", a.Address, b.Address, 7, Unreachable)
	probe("tcp to nobody", "tcp", a.Address, silent, port, Unreachable)
	probe("tcp without a way", "tcp", a.Address, netip.MustParseAddr("fd66::1"), port, Unreachable)
	probe("tcp dropped here", "tcp", a.Address, netip.MustParseAddr("fd67::1"), port, Unreachable)
	probe("tcp from an address of others", "tcp", foreign, b.Address, port, Failed)
	probe("tcp without port", "tcp", a.Address, b.Address, 0, Failed)
	probe("another protocol", "sctp", a.Address, b.Address, 1, Failed)
	if d := cmp.Diff(want, run(t, a, probes)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestAnIDIsMeasuredOnceAndToldWhileItIsAsked(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	target := l.Addr().(*net.TCPAddr).AddrPort()
	p := sdwan.Probe{ID: "1", Protocol: "tcp", Target: target.Addr(), Port: int(target.Port())}
	s := New(Options{Log: zerolog.Nop()})
	told := func() []sdwan.ProbeReport {
		t.Helper()
		var r sdwan.Report
		if err := s.Observe(t.Context(), &r); err != nil {
			t.Fatal(err)
		}
		return r.Probes
	}
	reconcile := func(probes ...sdwan.Probe) {
		t.Helper()
		if err := s.Reconcile(t.Context(), &sdwan.Document{Probes: probes}); err != nil {
			t.Fatal(err)
		}
	}
	reconcile(p, p)
	first := told()
	if len(first) != 1 || first[0].Result != Reachable {
		t.Fatalf("told %+v, want one outcome", first)
	}
	select {
	case <-s.Changes():
	default:
		t.Error("nobody is woken")
	}
	_ = l.Close()
	reconcile(p)
	if d := cmp.Diff(first, told()); d != "" {
		t.Errorf("the outcome changed (-first +second)\n%s", d)
	}
	reconcile()
	if got := told(); len(got) != 0 {
		t.Errorf("told %+v that nobody asks for", got)
	}
}

func TestACancelledProbeIsNotMeasured(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := New(Options{Log: zerolog.Nop()})
	if err := s.Reconcile(ctx, &sdwan.Document{Probes: []sdwan.Probe{{ID: "1", Protocol: "tcp", Target: netip.MustParseAddr("127.0.0.1"), Port: 1}}}); err == nil {
		t.Error("no error")
	}
	var r sdwan.Report
	if err := s.Observe(t.Context(), &r); err != nil || len(r.Probes) != 0 {
		t.Errorf("told %+v, %v; want nothing", r.Probes, err)
	}
}
