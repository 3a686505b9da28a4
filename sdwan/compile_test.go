package sdwan_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"powernode/sdwan"
)

func TestCompileRefusesAnIntentThatContradictsItself(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*sdwan.Intent)
		want   string
	}{
		{"a holder of another network", func(in *sdwan.Intent) { in.VIPs[0].HolderPeerID = "nobody" }, "virtual_ip api: holder nobody is no member of the network"},
		{"a peer twice", func(in *sdwan.Intent) { in.Members[1].PeerID = in.Members[0].PeerID }, "is a member twice"},
		{"a key twice", func(in *sdwan.Intent) { in.Members[1].PublicKey = in.Members[0].PublicKey }, "has the public key of peer a"},
		{"no interface number", func(in *sdwan.Intent) { in.Members[0].ShortID = 0 }, "interface number 0 is not in 1..9999"},
		{"no listen port", func(in *sdwan.Intent) { in.Members[0].ListenPort = 0 }, "listen port 0 is not in 1..65535"},
		{"an address of another network", func(in *sdwan.Intent) { in.Members[0].Address = netip.MustParseAddr("fd00::1") }, "fd00::1 is not in fd5e:8a21:c0de:1::/64"},
		{"a default route", func(in *sdwan.Intent) {
			in.Members[0].LANSubnets = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
		}, "0.0.0.0/0 covers the default route"},
		{"a LAN inside the network", func(in *sdwan.Intent) {
			in.Members[0].LANSubnets = []netip.Prefix{netip.MustParsePrefix("fd5e:8a21:c0de:1:8000::/65")}
		}, "overlaps fd5e:8a21:c0de:1::/64 of network tenant-a"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := fixtureIntents(t, "vip")[0]
			tt.change(&in)
			if _, err := sdwan.Compile(in); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

func TestCompilePeerRefusesAStranger(t *testing.T) {
	t.Parallel()
	var contradiction *sdwan.IntentError
	if _, err := sdwan.CompilePeer(fixtureIntents(t, "vip")[0], "stranger"); !errors.As(err, &contradiction) {
		t.Errorf("%v", err)
	}
}

func TestARouteNeverCoversTheMachinesOwnUnderlay(t *testing.T) {
	t.Parallel()
	in := fixtureIntents(t, "vip")[0]
	in.Members[2].LANSubnets = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}
	n, err := sdwan.CompilePeer(in, "b") // b is 10.0.0.2
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(n.Routes, func(r sdwan.Route) bool { return !r.Prefix.Addr().Is6() }) {
		t.Errorf("routed: %v", n.Routes)
	}
	if !slices.ContainsFunc(n.NotReady, func(r sdwan.NotReady) bool { return r.What == "route" }) {
		t.Errorf("not said: %v", n.NotReady)
	}
}

func TestGatewayIsAHubElseTheLowestWithAnEndpoint(t *testing.T) {
	t.Parallel()
	member := func(id string, change func(*sdwan.Member)) sdwan.Member {
		m := sdwan.Member{PeerID: id, ListenPort: 51820}
		if change != nil {
			change(&m)
		}
		return m
	}
	reported := func(m *sdwan.Member) {
		m.ReportedEndpoints = []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:51820")}
	}
	hub := func(m *sdwan.Member) { m.PubliclyReachable, m.EndpointHost = true, "hub.example.net" }
	for _, tt := range []struct {
		name    string
		members []sdwan.Member
		want    string
	}{
		{"none", []sdwan.Member{member("a", nil)}, ""},
		{"reported counts", []sdwan.Member{member("a", nil), member("c", reported), member("b", reported)}, "b"},
		{"a hub before a lower id", []sdwan.Member{member("a", reported), member("z", hub), member("y", hub)}, "y"},
		{"reachable without an endpoint is no hub", []sdwan.Member{
			member("b", reported), member("c", func(m *sdwan.Member) { m.PubliclyReachable = true })}, "b"},
	} {
		if g, _ := sdwan.GatewayOf(sdwan.Intent{Members: tt.members}); g.PeerID != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, g.PeerID, tt.want)
		}
	}
}

func TestSelectorsResolve(t *testing.T) {
	t.Parallel()
	in := fixtureIntents(t, "tutorial")[0]
	in.Members[0].Tags = []string{"operator-ws"}
	for _, tt := range []struct {
		name string
		s    *sdwan.Selector
		want string
	}{
		{"any", nil, "fd00:abcd:ef01:2::/64 fd00:abcd:ef01:8000::/56"},
		{"all", &sdwan.Selector{All: true}, "fd00:abcd:ef01:2::/64 fd00:abcd:ef01:8000::/56"},
		{"a tag is peers and devices", &sdwan.Selector{Tag: "operator-ws"}, "fd00:abcd:ef01:2::1:0/128 fd00:abcd:ef01:2:0:1::/128"},
		{"a peer is not its VIPs", &sdwan.Selector{PeerID: "worker"}, "fd00:abcd:ef01:2::1:1/128"},
		{"a cidr is masked", &sdwan.Selector{CIDR: netip.MustParsePrefix("10.1.2.3/8")}, "10.0.0.0/8"},
		{"an unknown tag is nobody", &sdwan.Selector{Tag: "none"}, ""},
		{"an unknown peer is nobody", &sdwan.Selector{PeerID: "none"}, ""},
		{"nothing is nobody", &sdwan.Selector{}, ""},
	} {
		if got := joined(sdwan.ResolveSelector(in, tt.s)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestReachabilityNamesWhatAHandMadeDocumentOpens(t *testing.T) {
	t.Parallel()
	intents := fixtureIntents(t, "two_networks")
	for i := range intents {
		intents[i].Members = slices.Clone(intents[i].Members)
	}
	both := sdwan.Document{Instance: sdwan.Instance{ID: "both"}, Firewall: firewallOf(t, intents, "both")}
	far := sdwan.Document{Instance: sdwan.Instance{ID: "far"}}
	for _, in := range intents {
		docs, err := sdwan.Compile(in)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range docs {
			switch d.PeerID {
			case "both":
				both.Networks = append(both.Networks, d)
			case "far":
				far.Networks = append(far.Networks, d)
			}
		}
	}
	cell := func(docs []sdwan.Document, from, to string) sdwan.Reach {
		m := sdwan.Reachability(docs)
		return m[slices.IndexFunc(m, func(r sdwan.Reach) bool { return r.FromNetworkID == from && r.ToNetworkID == to })]
	}
	docs := []sdwan.Document{both, far}
	if c := cell(docs, "a", "b"); c.Reachable {
		t.Errorf("clean: %+v", c)
	}
	if c := cell(docs, "a", "a"); !c.Reachable {
		t.Errorf("inside: %+v", c)
	}
	far.Networks = slices.Clone(far.Networks)
	far.Networks[0].Routes = append(slices.Clone(far.Networks[0].Routes), sdwan.Route{Prefix: intents[1].CIDR})
	if c := cell([]sdwan.Document{both, far}, "a", "b"); !c.Reachable || c.Passages[0].InstanceID != "far" {
		t.Errorf("a route to b: %+v", c)
	}
	both.Firewall.Forward = nil
	if c := cell([]sdwan.Document{both}, "b", "a"); !c.Reachable || len(c.Passages) != 1 {
		t.Errorf("without a forward chain: %+v", c)
	}
	far.Networks[0].Peers = nil
	if c := cell([]sdwan.Document{both, far}, "a", "a"); c.Reachable || c.Missing[0].PeerID != "far" {
		t.Errorf("without peers: %+v", c)
	}
}

func TestDeviceFileKeepsNamesInTheirComment(t *testing.T) {
	t.Parallel()
	config := sdwan.DeviceConfig("x\nPostUp = rm", []sdwan.DeviceEntry{{
		Name: "n\r\nPostUp = rm", GatewayReason: "none", Address: netip.MustParsePrefix("fd00::1/128"), MTU: 1420}})
	for line := range strings.Lines(config) {
		if strings.HasPrefix(line, "PostUp") {
			t.Errorf("a name became a setting:\n%s", config)
		}
	}
}

func TestPrivateKeyIsFilledIn(t *testing.T) {
	t.Parallel()
	in := fixtureIntents(t, "tutorial")
	entries, err := sdwan.DeviceEntries([]sdwan.DeviceNetwork{{Intent: in[0], DeviceID: "ws"}})
	if err != nil {
		t.Fatal(err)
	}
	filled, err := sdwan.WithPrivateKey(sdwan.DeviceConfig("PrivateKey = label", entries), "secret=")
	if err != nil || strings.Count(filled, "\nPrivateKey = secret=\n") != 1 {
		t.Errorf("%v:\n%s", err, filled)
	}
	if _, err := sdwan.WithPrivateKey(filled, "other="); err == nil {
		t.Error("filled twice")
	}
}

func bigIntent(n int) sdwan.Intent {
	cidr := netip.MustParsePrefix("fd5e:8a21:c0de:1::/64")
	in := sdwan.Intent{NetworkID: "big", CIDR: cidr, AccountPrefix: account}
	address := sdwan.PeerRange(cidr).First
	for i := range n {
		id := fmt.Sprintf("peer-%05d", i)
		m := sdwan.Member{PeerID: id, Address: address, ShortID: 1, ListenPort: 51820, RegionID: "r", PublicKey: key(id),
			ReportedEndpoints: []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 51820)}}
		if i%2 == 0 {
			m.Tags = []string{"even"}
		}
		in.Members = append(in.Members, m)
		address = address.Next()
	}
	for i := range 50 {
		in.Rules = append(in.Rules, sdwan.Rule{ID: fmt.Sprint(i), Name: fmt.Sprint(i), Action: "drop", Direction: "both", Protocol: "tcp",
			PortFrom: 1000 + i, PortTo: 1000 + i, Source: &sdwan.Selector{Tag: "even"}, Enabled: true})
	}
	return in
}

func BenchmarkCompile(b *testing.B) {
	for _, n := range []int{50, 1000} {
		in := bigIntent(n)
		b.Run(fmt.Sprintf("all/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := sdwan.Compile(in); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/document")
		})
		b.Run(fmt.Sprintf("one/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := sdwan.CompilePeer(in, in.Members[0].PeerID); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("firewall/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := sdwan.HostFirewall(sdwan.Host{Memberships: []sdwan.Membership{{Intent: in, PeerID: in.Members[0].PeerID}}}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
