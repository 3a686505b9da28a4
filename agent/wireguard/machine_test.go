package wireguard

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"powernode/internal/netnstest"
	"powernode/sdwan"
)

const (
	testNetwork = "0190a000-0000-7000-8000-000000000001"
	testPort    = 51820
)

var (
	testAccount = netip.MustParsePrefix("fd5e:8a21:c0de::/48")
	testCIDR    = netip.MustParsePrefix("fd5e:8a21:c0de:1::/64")
)

func overlay(i int) netip.Prefix {
	return netip.PrefixFrom(netip.MustParseAddr(fmt.Sprintf("fd5e:8a21:c0de:1::1:%x", i)), 128)
}

// member is a document for the node with number i of a network; peers come with connect.
func member(i int) *sdwan.Document {
	return &sdwan.Document{Networks: []sdwan.Network{{
		NetworkID: testNetwork, PeerID: fmt.Sprintf("peer-%d", i), DeviceName: "wg-sdwan-1", CIDR: testCIDR,
		Addresses: []netip.Prefix{overlay(i)}, ListenPort: testPort, MTU: 1420, Key: sdwan.KeyState{State: "current"},
		Routes:  []sdwan.Route{{Prefix: testCIDR, Source: overlay(i).Addr()}, {Prefix: testAccount, Unreachable: true}},
		Forward: "off",
	}}}
}

// connect makes nodes peers of each other, in full mesh.
func connect(t *testing.T, nodes []*node, keepalive int) []*sdwan.Document {
	t.Helper()
	docs := introduce(t, nodes, keepalive)
	for i, n := range nodes {
		t.Logf("%s took %v to add its peers", n.Name, n.apply(docs[i]).Took)
	}
	return docs
}

// introduce lets nodes make their keys, and answers the documents that make them peers.
func introduce(t *testing.T, nodes []*node, keepalive int) []*sdwan.Document {
	t.Helper()
	docs := make([]*sdwan.Document, len(nodes))
	keys := make([]string, len(nodes))
	for i, n := range nodes {
		docs[i] = member(i)
		n.apply(docs[i])
		r := n.observe()
		if len(r.Keys) != 1 || r.Keys[0].NetworkID != testNetwork {
			t.Fatalf("%s reports keys %+v, want one of the network", n.Name, r.Keys)
		}
		keys[i] = r.Keys[0].PublicKey
	}
	for i := range nodes {
		for j, other := range nodes {
			if i == j {
				continue
			}
			docs[i].Networks[0].Peers = append(docs[i].Networks[0].Peers, sdwan.Peer{
				PeerID: fmt.Sprintf("peer-%d", j), Kind: "peer", PublicKey: keys[j],
				Endpoints:  []netip.AddrPort{netip.AddrPortFrom(other.Address, testPort)},
				AllowedIPs: []netip.Prefix{overlay(j)}, KeepaliveSeconds: keepalive,
			})
		}
	}
	return docs
}

func clone(t *testing.T, doc *sdwan.Document) *sdwan.Document {
	t.Helper()
	data, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	out := new(sdwan.Document)
	if err := json.Unmarshal(data, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func reaches(n *node, a netip.Addr) bool {
	_, err := n.Try("ping", "-c1", "-W1", a.String())
	return err == nil
}

func TestTwoNodesReachEachOtherThroughTheTunnel(t *testing.T) {
	t.Parallel()
	s := netnstest.NewSwitch(t)
	a, b := newNode(t, s, "a"), newNode(t, s, "b")
	docs := connect(t, []*node{a, b}, 0)

	netnstest.Await(t, "a reaches b's overlay address", func() bool { return reaches(a, overlay(1).Addr()) })
	if out := a.Run("ip", "-6", "route", "get", overlay(1).Addr().String()); !strings.Contains(out, "src "+overlay(0).Addr().String()) {
		t.Errorf("the route names no source: %s", out)
	}
	if out, err := a.Try("ping", "-c1", "-W1", "fd5e:8a21:c0de:2::1"); err == nil || !strings.Contains(out, "unreachable") && !strings.Contains(out, "No route") {
		t.Errorf("another network of the account does not fail at once: %s", out)
	}
	if got := a.apply(docs[0]).Writes; got != 0 {
		t.Errorf("a second Reconcile wrote %d times, want none", got)
	}
	r := a.observe()
	if len(r.Tunnels) != 1 || r.Tunnels[0].LastHandshakeAt.IsZero() || r.Tunnels[0].RXBytes == 0 || r.Tunnels[0].RemotePeerID != "peer-1" {
		t.Errorf("tunnels %+v, want one with a handshake and bytes", r.Tunnels)
	}
	want := map[string]bool{a.Address.String(): true, a.Address4.String(): true}
	for _, e := range r.Endpoints {
		if !want[e.Address.String()] || e.Port != testPort || e.Source != "interface" {
			t.Errorf("unexpected endpoint %+v", e)
		}
		delete(want, e.Address.String())
	}
	if len(want) > 0 {
		t.Errorf("endpoints %+v lack %v", r.Endpoints, want)
	}
}

// linkIndex tells whether an interface is still the one that it was.
func linkIndex(n *node) string {
	n.t.Helper()
	out, _, _ := strings.Cut(n.Run("ip", "-o", "link", "show", "wg-sdwan-1"), ":")
	return out
}

func deviceProcesses(n *node) string {
	out, _ := n.Try("pgrep", "-f", "device-run --name wg-sdwan-1 ")
	return out
}

func TestAnAgentRestartIsNoOutage(t *testing.T) {
	t.Parallel()
	s := netnstest.NewSwitch(t)
	a, b := newNode(t, s, "a"), newNode(t, s, "b")
	docs := connect(t, []*node{a, b}, 0)
	netnstest.Await(t, "a reaches b", func() bool { return reaches(a, overlay(1).Addr()) })
	index, process := linkIndex(a), deviceProcesses(a)

	// -W is how long the last answers are waited for: what is late on a busy host is not lost.
	ping := exec.Command("ping", "-i", "0.02", "-c", "50", "-W", "20", overlay(0).Addr().String())
	var out strings.Builder
	ping.Stdout = &out
	if err := b.Start(ping); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		a.restart()
		if got := a.apply(docs[0]).Writes; got != 0 {
			t.Errorf("the new agent wrote %d times, want none", got)
		}
	}
	_ = ping.Wait()
	if !strings.Contains(out.String(), " 0% packet loss") {
		t.Errorf("b's ping: %s", out.String())
	}
	if linkIndex(a) != index || deviceProcesses(a) != process || process == "" {
		t.Errorf("interface %s and process %q, want %s and %q", linkIndex(a), deviceProcesses(a), index, process)
	}
}

func TestADeviceThatDiedIsRebuilt(t *testing.T) {
	t.Parallel()
	s := netnstest.NewSwitch(t)
	a, b := newNode(t, s, "a"), newNode(t, s, "b")
	docs := connect(t, []*node{a, b}, 0)
	netnstest.Await(t, "a reaches b", func() bool { return reaches(a, overlay(1).Addr()) })
	a.Run("kill", "-9", deviceProcesses(a))
	netnstest.Await(t, "the interface goes with its process", func() bool {
		_, err := a.Try("ip", "link", "show", "wg-sdwan-1")
		return err != nil
	})
	if out := a.Run("ls", socketDir); !strings.Contains(out, "wg-sdwan-1.sock") {
		t.Fatalf("no stale socket is there to be met: %q", out)
	}
	a.apply(docs[0])
	netnstest.Await(t, "a reaches b again", func() bool { return reaches(a, overlay(1).Addr()) })
	netnstest.Await(t, "the machine's first process collects what has died", func() bool {
		_, err := a.Try("sh", "-c", "grep -l '^State:.Z' /proc/[0-9]*/status")
		return err != nil
	})
}

func TestWhatWasChangedByHandIsRepairedInPlace(t *testing.T) {
	t.Parallel()
	s := netnstest.NewSwitch(t)
	a, b := newNode(t, s, "a"), newNode(t, s, "b")
	docs := connect(t, []*node{a, b}, 0)
	netnstest.Await(t, "a reaches b", func() bool { return reaches(a, overlay(1).Addr()) })
	index := linkIndex(a)
	key := docs[0].Networks[0].Peers[0].PublicKey
	for _, hand := range []string{
		"ip link set wg-sdwan-1 down",
		"ip link set wg-sdwan-1 mtu 1200", // takes IPv6 away
		"ip -6 addr flush dev wg-sdwan-1 scope global",
		"ip -6 route flush dev wg-sdwan-1",
		"ip -6 route del unreachable " + testAccount.String() + " metric 1073741824",
		"wg set wg-sdwan-1 peer " + key + " remove",
		"wg set wg-sdwan-1 peer " + key + " allowed-ips ''",
		"wg set wg-sdwan-1 listen-port 7",
		"echo 1 > /proc/sys/net/ipv6/conf/wg-sdwan-1/disable_ipv6",
	} {
		a.Run("sh", "-c", hand)
		if got := a.apply(docs[0]).Writes; got == 0 {
			t.Errorf("%s: nothing was repaired", hand)
		}
		netnstest.Await(t, hand+": a reaches b", func() bool { return reaches(a, overlay(1).Addr()) })
		if got := a.apply(docs[0]).Writes; got != 0 {
			t.Errorf("%s: %d more writes", hand, got)
		}
	}
	if got := linkIndex(a); got != index {
		t.Errorf("the interface is %s, was %s", got, index)
	}
}

func TestALeftNetworkLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	s := netnstest.NewSwitch(t)
	a, b := newNode(t, s, "a"), newNode(t, s, "b")
	listing := func() string {
		return a.Run("sh", "-c", "ip -o link; ip -o addr | sed 's/.*inet/inet/; s/ tentative//'; ip -6 route; ip route; ls /run/wireguard 2>/dev/null; "+
			"pgrep -af [d]evice-run; cat /proc/sys/net/ipv6/conf/all/forwarding; ls "+a.state+"/keys 2>/dev/null; true")
	}
	before := listing()
	docs := connect(t, []*node{a, b}, 0)
	docs[0].Networks[0].Forward = "on"
	a.apply(docs[0])
	if listing() == before {
		t.Fatal("a network made no difference")
	}
	a.apply(&sdwan.Document{})
	if d := cmp.Diff(before, listing()); d != "" {
		t.Errorf("(-before +after)\n%s", d)
	}
	if got := a.apply(&sdwan.Document{}).Writes; got != 0 {
		t.Errorf("a second time: %d writes", got)
	}
}

func TestAnInterfaceOfSomebodyElseIsNotReaped(t *testing.T) {
	t.Parallel()
	a := newNode(t, netnstest.NewSwitch(t), "a")
	a.Run("ip", "link", "add", "wg-sdwan-7", "type", "bridge")
	a.Run("ip", "-6", "route", "add", "fd77::/64", "dev", netnstest.Uplink, "proto", "static")
	a.apply(member(0))
	a.apply(&sdwan.Document{})
	a.Run("ip", "link", "show", "wg-sdwan-7")
	if out := a.Run("ip", "-6", "route", "show", "fd77::/64"); out == "" {
		t.Error("a route of somebody else is gone")
	}
}

func TestALearnedEndpointIsNotReset(t *testing.T) {
	t.Parallel()
	s := netnstest.NewSwitch(t)
	a, b := newNode(t, s, "a"), newNode(t, s, "b")
	docs := connect(t, []*node{a, b}, 0)
	netnstest.Await(t, "a reaches b", func() bool { return reaches(a, overlay(1).Addr()) })
	a.Run("ip", "-6", "addr", "add", "fd00:99::aaaa/64", "dev", netnstest.Uplink, "nodad")
	a.Run("ip", "-6", "addr", "del", a.Address.String()+"/64", "dev", netnstest.Uplink)
	netnstest.Await(t, "b has learned a's new address", func() bool {
		return reaches(a, overlay(1).Addr()) && strings.Contains(b.Run("wg", "show", "wg-sdwan-1", "endpoints"), "fd00:99::aaaa")
	})
	if got := b.apply(docs[1]).Writes; got != 0 {
		t.Errorf("b wrote %d times", got)
	}
	if out := b.Run("wg", "show", "wg-sdwan-1", "endpoints"); !strings.Contains(out, "fd00:99::aaaa") {
		t.Errorf("b's endpoint for a is %s", out)
	}
}

func TestAFallbackIsTriedWhenHandshakesAreInVain(t *testing.T) {
	t.Parallel()
	s := netnstest.NewSwitch(t)
	a, b := newNode(t, s, "a"), newNode(t, s, "b")
	docs := introduce(t, []*node{a, b}, 1)
	docs[1].Networks[0].Peers[0].Endpoints = nil // b has to be found
	p := &docs[0].Networks[0].Peers[0]
	p.Endpoints = append([]netip.AddrPort{netip.MustParseAddrPort("[fd00:99::dead]:1")}, p.Endpoints...)
	b.apply(docs[1])
	netnstest.AwaitFor(t, 30*time.Second, "a tries the fallback", func() bool {
		a.apply(docs[0])
		return reaches(a, overlay(1).Addr())
	})
}

func TestAPortInUseIsReported(t *testing.T) {
	t.Parallel()
	a := newNode(t, netnstest.NewSwitch(t), "a")
	holder := a.Self(context.Background(), "hold-port", fmt.Sprint(testPort))
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(holder); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if got := a.ask(request{Document: member(0)}).Error; !strings.Contains(got, "port 51820 is in use") {
		t.Errorf("got %q", got)
	}
	_ = holder.Process.Kill()
	_ = holder.Wait()
	a.apply(member(0))
}

func TestManyPeersAndAMoveAmongThem(t *testing.T) {
	t.Parallel()
	a := newNode(t, netnstest.NewSwitch(t), "a")
	doc := member(0)
	vip := netip.MustParsePrefix("fd5e:8a21:c0de:1::100/128")
	for i := range 100 {
		k, err := wgtypes.GeneratePrivateKey()
		if err != nil {
			t.Fatal(err)
		}
		doc.Networks[0].Peers = append(doc.Networks[0].Peers, sdwan.Peer{PeerID: fmt.Sprint(i), PublicKey: k.PublicKey().String(),
			AllowedIPs: []netip.Prefix{overlay(1 + i)}})
	}
	for _, holder := range []int{0, 99, 50} {
		moved := clone(t, doc)
		p := &moved.Networks[0].Peers[holder]
		p.AllowedIPs = append(p.AllowedIPs, vip)
		t.Logf("100 peers took %v", a.apply(moved).Took)
		var owners []string
		for line := range strings.Lines(a.Run("wg", "show", "wg-sdwan-1", "allowed-ips")) {
			if strings.Contains(line, vip.String()) {
				owners = append(owners, strings.Fields(line)[0])
			}
		}
		if d := cmp.Diff([]string{p.PublicKey}, owners); d != "" {
			t.Errorf("owners of the virtual IP (-want +got)\n%s", d)
		}
	}
}

func TestRoutesOfOthersAreReported(t *testing.T) {
	t.Parallel()
	a := newNode(t, netnstest.NewSwitch(t), "a")
	a.apply(member(0))
	a.Run("ip", "-6", "route", "add", "fd5e:8a21:c0de:2::/64", "via", "fd00:99::99", "dev", netnstest.Uplink)
	a.Run("ip", "route", "add", "192.0.2.0/24", "dev", netnstest.Uplink, "proto", "static")
	a.Run("ip", "-6", "route", "add", "default", "via", "fd00:99::99")
	r := a.observe()
	want := []sdwan.HostRoute{
		{Prefix: netip.MustParsePrefix("fd00:99::/64"), Device: netnstest.Uplink, Source: "kernel"},
		{Prefix: netip.MustParsePrefix("fd5e:8a21:c0de:2::/64"), Device: netnstest.Uplink, Source: "static"},
		{Prefix: netip.MustParsePrefix("10.99.0.0/24"), Device: netnstest.Uplink, Source: "kernel"},
		{Prefix: netip.MustParsePrefix("192.0.2.0/24"), Device: netnstest.Uplink, Source: "static"},
	}
	if d := cmp.Diff(want, r.HostRoutes, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" || !r.HostRoutesRead {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestARouteThatWouldCutTheMachineOffIsRefused(t *testing.T) {
	t.Parallel()
	a := newNode(t, netnstest.NewSwitch(t), "a")
	doc := member(0)
	doc.Networks[0].Routes = append(doc.Networks[0].Routes,
		sdwan.Route{Prefix: netip.MustParsePrefix("::/0")}, sdwan.Route{Prefix: netip.MustParsePrefix("fd00:99::/48")},
		sdwan.Route{Prefix: netip.MustParsePrefix("fd33::/64"), Source: overlay(0).Addr()})
	got := a.ask(request{Document: doc}).Error
	for _, want := range []string{"it is the default route", "it covers fd00:99::1/64 of eth0"} {
		if !strings.Contains(got, want) {
			t.Errorf("error %q lacks %q", got, want)
		}
	}
	out := a.Run("ip", "-6", "route", "show", "dev", "wg-sdwan-1", "proto", fmt.Sprint(RouteProtocol))
	if !strings.Contains(out, "fd33::/64") || strings.Contains(out, "default") || strings.Contains(out, "fd00:99") {
		t.Errorf("routes of ours: %s", out)
	}
}

func TestWatchSignalsWhatSomebodyTookAway(t *testing.T) {
	t.Parallel()
	a := newNode(t, netnstest.NewSwitch(t), "a")
	a.apply(member(0))
	a.Run("nft", "add table inet powernode; add table inet other")
	watcher := a.Self(context.Background(), "watch")
	out, err := watcher.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(watcher); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = watcher.Process.Kill()
		_ = watcher.Wait()
	}()
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	next := func(within time.Duration) bool {
		select {
		case <-lines:
			return true
		case <-time.After(within):
			return false
		}
	}
	const soon = 20 * time.Second // on a busy host, too; a signal ends the wait
	if !next(soon) {              // it is there
		t.Fatal("the watcher does not start")
	}
	for _, hand := range []string{
		"ip -6 addr del " + overlay(0).String() + " dev wg-sdwan-1",
		"ip -6 route flush dev wg-sdwan-1",
		"nft add rule inet powernode missing accept || nft add chain inet powernode input",
		"nft delete table inet powernode",
		"ip link del wg-sdwan-1",
	} {
		start := time.Now()
		a.Run("sh", "-c", hand)
		if !next(soon) {
			t.Fatalf("%s: no signal", hand)
		}
		t.Logf("%s: signalled after %v", hand, time.Since(start))
		for next(2 * quiet) { // what the same change still causes
		}
	}
	a.Run("nft", "delete table inet other")
	if next(2 * quiet) {
		t.Error("a table of others signals")
	}
}

func TestWhatWentInBetweenIsRemoved(t *testing.T) {
	t.Parallel()
	m := netnstest.NewSwitch(t).Machine("a")
	h := newLinuxHost(Options{StateDir: t.TempDir()})
	ctx := t.Context()
	m.Run("ip", "link", "add", "wg-sdwan-7", "type", "bridge")
	for _, tt := range []struct {
		name   string
		remove func() error
	}{
		{"an address of an interface", func() error { return h.RemoveAddress(ctx, "wg-sdwan-7", overlay(1)) }},
		{"an address with its interface", func() error { return h.RemoveAddress(ctx, "wg-sdwan-8", overlay(1)) }},
		{"a route of an interface", func() error { return h.RemoveRoute(ctx, route{Prefix: testCIDR, Device: "wg-sdwan-7"}) }},
		{"a route with its interface", func() error { return h.RemoveRoute(ctx, route{Prefix: testCIDR, Device: "wg-sdwan-8"}) }},
		{"an unreachable route", func() error { return h.RemoveRoute(ctx, route{Prefix: testAccount}) }},
		{"an interface", func() error { return h.RemoveDevice(ctx, "wg-sdwan-8") }},
		{"a setting with its interface", func() error { return giveBack(settingAcceptRA("eth9"), "1").do(ctx, h) }},
	} {
		if err := m.Do(tt.remove); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if err := m.Do(func() error { return h.WriteSetting(ctx, settingAcceptRA("eth9"), "2") }); err == nil {
		t.Error("a setting that is needed and can't be written is no fault")
	}
}
