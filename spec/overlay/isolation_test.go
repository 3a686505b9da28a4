package overlay

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"powernode/spec/rig"
)

func TestMachinesReachInsideTheirNetworkAndNotAcross(t *testing.T) {
	l := shared
	a1, a2, b1, b2 := l.a.machines[0], l.a.machines[1], l.b.machines[0], l.b.machines[1]
	for _, each := range [][2]*machine{{a1, a2}, {a2, a1}, {b1, b2}, {b2, b1}} {
		l.reachable(t, each[0].Name, each[1].address)
	}
	for _, each := range [][2]*machine{{a1, b1}, {b1, a1}, {a2, b2}} {
		if l.pings(t, each[0].Name, each[1].address) {
			t.Errorf("%s reaches %s of the other tenant", each[0].Name, each[1].Name)
		}
	}
}

// wireGuardPorts are the peers' listen ports: 51820 and the next free ones.
var udpPacket = regexp.MustCompile(`^IP6? \S+\.(\d+) > \S+\.(\d+): UDP`)

func TestBridgeCarriesWireGuardAndThePlatformAlone(t *testing.T) {
	l := shared
	a1, a2 := l.a.machines[0], l.a.machines[1]
	l.reachable(t, a1.Name, a2.address)
	bridge, err := l.Bridge()
	ok(t, err)
	port, err := l.AgentsPort()
	ok(t, err)
	before := transfer(t, a1, a2)
	capture, err := rig.StartCapture(t.Context(), bridge, t.TempDir())
	ok(t, err)
	// 50 × 1,000 bytes of a pattern that is nowhere else.
	pattern := "506f7765724e6f646521506179" // PowerNode!Pay
	l.exec(t, a1.Name, "ping", "-n", "-q", "-c", "50", "-i", "0.01", "-s", "1000", "-p", pattern, a2.address)
	// A report and its answer pass, too.
	l.must(t, "system_refresh_instance_modules", rig.Object{"instance_id": a1.Instance})
	lines, raw, err := capture.Stop(t.Context())
	ok(t, err)
	wireGuard := 0
	for _, line := range lines {
		switch what := classify(line, port); what {
		case "wireguard":
			wireGuard++
		case "platform", "neighbours":
		default:
			t.Errorf("the bridge carries %s", line)
		}
	}
	if wireGuard < 100 {
		t.Errorf("%d packets of WireGuard, want the 50 requests and 50 answers at least", wireGuard)
	}
	plain, err := hex.DecodeString(pattern)
	ok(t, err)
	if bytes.Contains(raw, plain) {
		t.Error("the payload passes the bridge in plain text")
	}
	if grown := transfer(t, a1, a2) - before; grown < 50*1000 {
		t.Errorf("wg show counts %d bytes more to the peer, want the 50,000 of the payload at least", grown)
	}
}

func classify(line string, platform int) string {
	if m := udpPacket.FindStringSubmatch(line); m != nil {
		from, _ := strconv.Atoi(m[1])
		to, _ := strconv.Atoi(m[2])
		if from >= 51820 && from < 52000 && to >= 51820 && to < 52000 {
			return "wireguard"
		}
	}
	for _, word := range []string{"ICMP6, neighbor", "ICMP6, router solicitation", "multicast listener"} {
		if strings.Contains(line, word) {
			return "neighbours"
		}
	}
	if strings.HasPrefix(line, "ARP") {
		return "neighbours"
	}
	if tcp := fmt.Sprintf(".%d", platform); strings.Contains(line, ": tcp ") && (strings.Contains(line, tcp+": ") || strings.Contains(line, tcp+" > ")) {
		return "platform"
	}
	return "other"
}

// transfer is what wg show says was sent from one machine to another.
func transfer(t *testing.T, from, to *machine) int {
	t.Helper()
	for _, line := range strings.Split(shared.exec(t, from.Name, "wg", "show", from.device, "transfer"), "\n") {
		words := strings.Fields(line)
		if len(words) == 3 && words[0] == to.key {
			sent, err := strconv.Atoi(words[2])
			ok(t, err)
			return sent
		}
	}
	t.Fatalf("%s has no peer %s", from.Name, to.Name)
	return 0
}

func TestRemovedAllowedIPStopsExactlyThatAddress(t *testing.T) {
	l := shared
	a1, a2, a3 := l.a.machines[0], l.a.machines[1], l.a.machines[2]
	vip := l.virtualIP(t, "allowed-ip", a2)
	l.converged(t, a1, a2)
	for _, address := range []string{vip.address, a2.address, a3.address} {
		l.reachable(t, a1.Name, address)
	}
	resume := l.stopAgent(t, a1)
	whole := a2.address + "/128," + vip.address + "/128"
	setAllowed := func(ips string) { l.exec(t, a1.Name, "wg", "set", a1.device, "peer", a2.key, "allowed-ips", ips) }
	was := allowedIPs(t, a1, a2)
	setAllowed(strings.Join(without(was, vip.address+"/128"), ","))
	t.Cleanup(func() {
		if _, err := l.Exec(context.WithoutCancel(t.Context()), a1.Name, "wg", "set", a1.device, "peer", a2.key, "allowed-ips", strings.Join(was, ",")); err != nil {
			t.Error(err)
		}
		resume()
	})
	if l.pings(t, a1.Name, vip.address) {
		t.Errorf("%s is still reached", vip.address)
	}
	for _, address := range []string{a2.address, a3.address} {
		if !l.pings(t, a1.Name, address) {
			t.Errorf("%s is not reached any more, AllowedIPs were %s", address, whole)
		}
	}
	setAllowed(strings.Join(was, ","))
	l.reachable(t, a1.Name, vip.address)
}

func without(list []string, out string) []string {
	var kept []string
	for _, each := range list {
		if each != out {
			kept = append(kept, each)
		}
	}
	return kept
}

// allowedIPs are those that wg show has on one machine for another.
func allowedIPs(t *testing.T, on, of *machine) []string {
	t.Helper()
	for _, line := range strings.Split(shared.exec(t, on.Name, "wg", "show", on.device, "allowed-ips"), "\n") {
		if words := strings.Fields(line); len(words) > 0 && words[0] == of.key {
			return words[1:]
		}
	}
	t.Fatalf("%s has no peer %s", on.Name, of.Name)
	return nil
}

// TestAttackerOnTheUnderlayGetsNothing has root on tenant A's machine, its agent stopped and our table there deleted, go
// for tenant B's machine by the underlay that both share.
func TestAttackerOnTheUnderlayGetsNothing(t *testing.T) {
	l := shared
	attacker, victim, friend := l.a.machines[0], l.b.machines[0], l.b.machines[1]
	vip := l.virtualIP(t, "target", victim)
	l.converged(t, victim, friend)
	ports := []string{"tcp 6443", "tcp 10250", "tcp 2379", "udp 8472"}
	listener, err := l.Listen(t.Context(), victim.Name, ports...)
	ok(t, err)
	defer func() { ok(t, listener.Close()) }()
	l.reachable(t, friend.Name, vip.address)

	resume := l.stopAgent(t, attacker)
	l.exec(t, attacker.Name, "nft", "delete", "table", "inet", "powernode")
	for _, overlay := range []string{victim.address, vip.address} {
		l.exec(t, attacker.Name, "ip", "-6", "route", "replace", overlay, "via", victim.underlay[0], "dev", "eth0", "metric", "1")
	}
	defer func() {
		for _, overlay := range []string{victim.address, vip.address} {
			l.exec(t, attacker.Name, "ip", "-6", "route", "del", overlay)
		}
		resume()
		l.tableReturns(t, attacker)
	}()

	bridge, err := l.Bridge()
	ok(t, err)
	capture, err := rig.StartCapture(t.Context(), bridge, t.TempDir())
	ok(t, err)
	goals := append([]string{victim.address, vip.address}, victim.underlay...)
	var attacks, uses []string
	for _, port := range ports {
		protocol, number, _ := strings.Cut(port, " ")
		for _, goal := range goals {
			attacks = append(attacks, spell(protocol, goal, number))
		}
		uses = append(uses, spell(protocol, victim.address, number))
		if protocol == "tcp" { // a listener on all addresses answers UDP from its first one
			uses = append(uses, spell(protocol, vip.address, number))
		}
	}
	friendly := make(chan map[string]string, 1)
	begin := time.Now()
	go func() {
		got, err := l.Dial(t.Context(), friend.Name, uses...)
		if err != nil {
			t.Error(err)
		}
		friendly <- got
	}()
	for target, result := range l.dial(t, attacker.Name, attacks...) {
		if result != "silence" {
			t.Errorf("the attacker's %s: %s, want silence", target, result)
		}
	}
	got := <-friendly
	for _, target := range uses {
		if got[target] != "reached" {
			t.Errorf("a peer of the victim, in the same moment, %s: %q, want reached", target, got[target])
		}
	}
	t.Logf("attack and use side by side took %s", time.Since(begin).Round(time.Millisecond))
	for _, goal := range goals {
		if l.pings(t, attacker.Name, goal) {
			t.Errorf("the attacker's ping of %s is answered", goal)
		}
	}
	for _, line := range listener.Lines()[1:] {
		from, err := netip.ParseAddrPort(strings.Fields(line)[2])
		if err != nil || from.Addr().Unmap().String() != friend.address {
			t.Errorf("the victim's listeners had a visitor: %s", line)
		}
	}
	lines, _, err := capture.Stop(t.Context())
	ok(t, err)
	arrived, answers := betweenHosts(lines, attacker, victim)
	if len(answers) > 0 {
		t.Errorf("the victim answers the attacker: %s", answers)
	}
	if want := len(attacks) + len(goals); arrived < want {
		t.Errorf("%d of the attacker's packets passed the bridge, want %d at least: the attack was none", arrived, want)
	}
}

func spell(protocol, address, port string) string {
	n, _ := strconv.Atoi(port) // from the test's own list
	return protocol + " " + netip.AddrPortFrom(netip.MustParseAddr(address), uint16(n)).String()
}

// betweenHosts counts the attacker's packets to the victim, and lists what the victim sent back; neighbour discovery
// aside, which they need to meet at all.
func betweenHosts(lines []string, attacker, victim *machine) (arrived int, answers []string) {
	for _, line := range lines {
		words := strings.Fields(line)
		if len(words) < 4 || classify(line, 0) == "neighbours" || classify(line, 0) == "wireguard" {
			continue
		}
		from, to := words[1], strings.TrimSuffix(words[3], ":")
		switch {
		case belongs(from, attacker):
			arrived++
		case belongs(from, victim) && belongs(to, attacker):
			answers = append(answers, line)
		}
	}
	return arrived, answers
}

func belongs(spelt string, m *machine) bool {
	for _, a := range append([]string{m.address}, m.underlay...) {
		if spelt == a || strings.HasPrefix(spelt, a+".") {
			return true
		}
	}
	return false
}

// tableReturns waits until the agent has put our table back.
func (l *lab) tableReturns(t *testing.T, m *machine) {
	t.Helper()
	ok(t, rig.Await(t.Context(), "our table on "+m.Name, 30*time.Second, func(context.Context) (string, error) {
		if !l.says(t, m.Name, "nft", "list", "table", "inet", "powernode") {
			return "it is not there", nil
		}
		return "", nil
	}))
}

func TestVerifyIsolationMeasures(t *testing.T) {
	l := shared
	a1, b1 := l.a.machines[0], l.b.machines[0]
	both := rig.Object{"network_ids": []string{l.a.network, l.b.network}}
	l.converged(t, l.all()...)
	l.verdict(t, both, "isolated")

	l.exec(t, a1.Name, "ip", "-6", "route", "add", l.b.cidr, "via", b1.underlay[0], "dev", "eth0")
	leak := l.verdict(t, both, "leak")
	found := false
	for _, each := range rig.List(leak, "leaks") {
		found = found || each["from_peer_id"] == a1.Peer && strings.Contains(rig.Text(each, "why"), "route") && strings.Contains(rig.Text(each, "why"), l.b.cidr)
	}
	if !found {
		t.Errorf("leaks %v, want the route to %s as evidence", rig.At(leak, "leaks"), l.b.cidr)
	}
	l.exec(t, a1.Name, "ip", "-6", "route", "del", l.b.cidr)

	resume := l.stopAgent(t, b1)
	stale := rig.List(l.verdict(t, both, "not_measured"), "stale_agents")
	if len(stale) != 1 || stale[0]["node_instance_id"] != b1.Instance && stale[0]["instance_id"] != b1.Instance {
		t.Errorf("stale agents %v, want that of %s", stale, b1.Name)
	}
	resume()
	l.verdict(t, both, "isolated")
}

func (l *lab) verdict(t *testing.T, networks rig.Object, want string) rig.Object {
	t.Helper()
	out, err := l.Isolation(t.Context(), networks, want)
	if err != nil {
		t.Error(err)
	}
	return out
}
