package sdwan_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"powernode/sdwan"
)

var account = netip.MustParsePrefix("fd5e:8a21:c0de::/48")

// drawIntent draws a network that keeps the address plan; number tells networks of one account apart.
func drawIntent(rt *rapid.T, number int) sdwan.Intent {
	cidr, ok := sdwan.NetworkPrefix(account, number)
	if !ok {
		rt.Fatalf("no network %d", number)
	}
	in := sdwan.Intent{
		NetworkID: fmt.Sprintf("net-%d", number), Name: fmt.Sprintf("net-%d", number), CIDR: cidr, AccountPrefix: account,
		Strategy:      rapid.SampledFrom([]string{"", "auto", "full_mesh", "hub_and_spoke"}).Draw(rt, "strategy"),
		DefaultPolicy: rapid.SampledFrom([]string{"accept", "drop"}).Draw(rt, "policy"),
	}
	peers, vips, devices := sdwan.PeerRange(cidr).First, sdwan.VIPRange(cidr).First, sdwan.DeviceRange(cidr).First
	for i := range rapid.IntRange(1, 9).Draw(rt, "members") {
		in.Members = append(in.Members, drawMember(rt, number, i, peers))
		peers = peers.Next()
	}
	for i := range rapid.IntRange(0, 4).Draw(rt, "vips") {
		v := sdwan.VIPIntent{ID: fmt.Sprintf("vip-%d", i), Address: vips, Epoch: 1}
		if rapid.Bool().Draw(rt, "held") {
			v.HolderPeerID = rapid.SampledFrom(in.Members).Draw(rt, "holder").PeerID
		}
		in.VIPs = append(in.VIPs, v)
		vips = vips.Next()
	}
	for i := range rapid.IntRange(0, 3).Draw(rt, "devices") {
		in.Devices = append(in.Devices, sdwan.Device{ID: fmt.Sprintf("dev-%d", i), Label: "d", Address: devices,
			PublicKey: key(fmt.Sprintf("%d/dev-%d", number, i)), Tags: drawTags(rt)})
		devices = devices.Next()
	}
	for i := range rapid.IntRange(0, 5).Draw(rt, "rules") {
		in.Rules = append(in.Rules, drawRule(rt, in, i))
	}
	if rapid.Bool().Draw(rt, "cluster") {
		in.Clusters = append(in.Clusters, drawCluster(rt, in, number))
	}
	return in
}

func drawMember(rt *rapid.T, number, i int, address netip.Addr) sdwan.Member {
	id := fmt.Sprintf("peer-%d", i)
	m := sdwan.Member{
		PeerID: id, InstanceID: fmt.Sprintf("inst-%d", i), Address: address, ShortID: number, ListenPort: 51820 + number,
		RegionID:  rapid.SampledFrom([]string{"", "east", "west"}).Draw(rt, "region"),
		PublicKey: key(fmt.Sprintf("%d/%s", number, id)), Tags: drawTags(rt),
	}
	if rapid.IntRange(0, 3).Draw(rt, "keyless") == 0 {
		m.PublicKey = ""
	}
	if rapid.Bool().Draw(rt, "reported") {
		m.ReportedEndpoints = []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 51820)}
	}
	switch rapid.SampledFrom([]string{"none", "none", "address", "name", "hub"}).Draw(rt, "endpoint") {
	case "address":
		m.EndpointHost = fmt.Sprintf("203.0.113.%d", i+1)
	case "name":
		m.EndpointHost, m.EndpointPort = id+".example.net", 4500
	case "hub":
		m.EndpointHostV6, m.EndpointPort, m.PubliclyReachable = fmt.Sprintf("2001:db8::%d", i+1), 51820, true
	}
	if rapid.Bool().Draw(rt, "lan") {
		m.LANSubnets = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, byte(number*16 + i), 0}), 24)}
	}
	if rapid.Bool().Draw(rt, "pods") {
		pods, _ := sdwan.PodPrefix(account, number)
		a := pods.Addr().As16()
		a[7] = byte(i)
		m.PodCIDRs = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom16(a), 64)}
	}
	if rapid.Bool().Draw(rt, "v4") {
		m.AddressV4 = netip.AddrFrom4([4]byte{100, 64, byte(number), byte(i + 1)})
	}
	return m
}

func drawTags(rt *rapid.T) []string {
	return rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), 0, 2, rapid.ID).Draw(rt, "tags")
}

func drawRule(rt *rapid.T, in sdwan.Intent, i int) sdwan.Rule {
	side := func(name string) *sdwan.Selector {
		switch rapid.SampledFrom([]string{"any", "tag", "peer", "cidr", "all"}).Draw(rt, name) {
		case "tag":
			return &sdwan.Selector{Tag: rapid.SampledFrom([]string{"a", "b", "nobody"}).Draw(rt, "tag")}
		case "peer":
			return &sdwan.Selector{PeerID: rapid.SampledFrom(in.Members).Draw(rt, "peer").PeerID}
		case "cidr":
			return &sdwan.Selector{CIDR: netip.PrefixFrom(rapid.SampledFrom(in.Members).Draw(rt, "peer").Address, rapid.IntRange(40, 128).Draw(rt, "bits")).Masked()}
		case "all":
			return &sdwan.Selector{All: true}
		}
		return nil
	}
	r := sdwan.Rule{
		ID: fmt.Sprintf("rule-%d", i), Name: fmt.Sprintf("rule-%d", i), Priority: rapid.IntRange(0, 2).Draw(rt, "priority"),
		Action:    rapid.SampledFrom([]string{"accept", "drop", "reject"}).Draw(rt, "action"),
		Direction: rapid.SampledFrom([]string{"ingress", "egress", "both"}).Draw(rt, "direction"),
		Protocol:  rapid.SampledFrom([]string{"any", "tcp", "udp", "icmp6"}).Draw(rt, "protocol"),
		Source:    side("source"), Destination: side("destination"), Enabled: true, Force: rapid.Bool().Draw(rt, "force"),
	}
	if r.Protocol == "tcp" || r.Protocol == "udp" {
		r.PortFrom, r.PortTo = 6000, rapid.IntRange(6000, 7000).Draw(rt, "port")
	}
	return r
}

func drawCluster(rt *rapid.T, in sdwan.Intent, number int) sdwan.Cluster {
	pods, _ := sdwan.PodPrefix(account, number)
	services, _ := sdwan.ServicePrefix(account, number)
	c := sdwan.Cluster{ID: "k", Name: "k", PodCIDR: pods, ServiceCIDR: services,
		FlannelBackend: rapid.SampledFrom([]string{"vxlan", "host-gw"}).Draw(rt, "backend")}
	for _, m := range in.Members {
		switch rapid.SampledFrom([]string{"server", "agent", "none"}).Draw(rt, "role") {
		case "server":
			c.ServerPeerIDs = append(c.ServerPeerIDs, m.PeerID)
		case "agent":
			c.AgentPeerIDs = append(c.AgentPeerIDs, m.PeerID)
		}
	}
	if len(in.VIPs) > 0 {
		c.VIP = in.VIPs[0].Address
	}
	return c
}

func compiled(rt *rapid.T, in sdwan.Intent) []sdwan.Network {
	docs, err := sdwan.Compile(in)
	if err != nil {
		rt.Fatal(err)
	}
	return docs
}

func text(rt *rapid.T, v any) string {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		rt.Fatal(err)
	}
	return string(b)
}

// owner is the peer of a section that owns an address after longest match.
func owner(n sdwan.Network, a netip.Addr) string {
	best, bits := "", -1
	for _, p := range n.Peers {
		for _, ip := range p.AllowedIPs {
			if ip.Contains(a) && ip.Bits() > bits {
				best, bits = p.PeerID, ip.Bits()
			}
		}
	}
	return best
}

func TestAnAddressHasOneOwnerAfterLongestMatch(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		for _, d := range compiled(rt, drawIntent(rt, 1)) {
			owned := map[netip.Prefix]string{}
			for _, p := range d.Peers {
				for _, ip := range p.AllowedIPs {
					if other, ok := owned[ip]; ok {
						rt.Fatalf("in %s's document %s is of %s and %s", d.PeerID, ip, other, p.PeerID)
					}
					owned[ip] = p.PeerID
				}
			}
			for _, own := range d.Addresses {
				if o := owner(d, own.Addr()); o != "" {
					rt.Fatalf("%s's own address is behind %s", d.PeerID, o)
				}
			}
		}
	})
}

func TestShuffledIntentGivesTheSameBytes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		in := drawIntent(rt, 1)
		mixed := in
		mixed.Members = rapid.Permutation(in.Members).Draw(rt, "members")
		mixed.VIPs = rapid.Permutation(in.VIPs).Draw(rt, "vips")
		mixed.Devices = rapid.Permutation(in.Devices).Draw(rt, "devices")
		mixed.Rules = rapid.Permutation(in.Rules).Draw(rt, "rules")
		for _, c := range in.Clusters {
			c.ServerPeerIDs = rapid.Permutation(c.ServerPeerIDs).Draw(rt, "servers")
			c.AgentPeerIDs = rapid.Permutation(c.AgentPeerIDs).Draw(rt, "agents")
			mixed.Clusters = []sdwan.Cluster{c}
		}
		if diff := cmp.Diff(text(rt, compiled(rt, in)), text(rt, compiled(rt, mixed))); diff != "" {
			rt.Fatalf("documents (-first +shuffled):\n%s", diff)
		}
		id := in.Members[0].PeerID
		if diff := cmp.Diff(text(rt, firewall(rt, id, in)), text(rt, firewall(rt, id, mixed))); diff != "" {
			rt.Fatalf("firewall (-first +shuffled):\n%s", diff)
		}
	})
}

func firewall(rt *rapid.T, peer string, intents ...sdwan.Intent) sdwan.Firewall {
	h := sdwan.Host{InstanceID: peer}
	for _, in := range intents {
		h.Memberships = append(h.Memberships, sdwan.Membership{Intent: in, PeerID: peer})
	}
	fw, err := sdwan.HostFirewall(h)
	if err != nil {
		rt.Fatal(err)
	}
	return fw
}

func TestCompilingOnePeerGivesWhatCompilingAllGives(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		in := drawIntent(rt, 1)
		for _, d := range compiled(rt, in) {
			one, err := sdwan.CompilePeer(in, d.PeerID)
			if err != nil {
				rt.Fatal(err)
			}
			if diff := cmp.Diff(text(rt, d), text(rt, one)); diff != "" {
				rt.Fatalf("(-all +one):\n%s", diff)
			}
		}
	})
}

func TestCompilingLeavesTheIntentAlone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		in := drawIntent(rt, 1)
		before := text(rt, in)
		docs := compiled(rt, in)
		firewall(rt, in.Members[0].PeerID, in)
		for _, d := range docs {
			for _, p := range d.Peers {
				clear(p.AllowedIPs)
				clear(p.Endpoints)
			}
		}
		if diff := cmp.Diff(before, text(rt, in)); diff != "" {
			rt.Fatalf("(-before +after):\n%s", diff)
		}
		if diff := cmp.Diff(text(rt, compiled(rt, in)), text(rt, compiled(rt, in))); diff != "" {
			rt.Fatal(diff)
		}
	})
}

// Every packet that a member can send arrives, hop by hop over what WireGuard would do: each hop chooses by the
// destination and checks that the source belongs to whom it came from.
func TestWhatLeavesArrivesAndComesFromWhereItsAnswerGoes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		in := drawIntent(rt, 1)
		docs := map[string]sdwan.Network{}
		for _, d := range compiled(rt, in) {
			docs[d.PeerID] = d
		}
		for _, a := range in.Members {
			for _, b := range in.Members {
				if a.PeerID == b.PeerID || a.PublicKey == "" || b.PublicKey == "" {
					continue
				}
				for _, r := range sdwan.Routes(in) {
					if r.ViaPeerID == b.PeerID && owner(docs[a.PeerID], r.Prefix.Addr()) != "" {
						follow(rt, docs, a, b, r.Prefix.Addr())
					}
				}
			}
		}
	})
}

func follow(rt *rapid.T, docs map[string]sdwan.Network, from, to sdwan.Member, destination netip.Addr) {
	at := from.PeerID
	for range 3 {
		next := owner(docs[at], destination)
		if next == "" {
			rt.Fatalf("%s from %s ends at %s", destination, from.PeerID, at)
		}
		if back := owner(docs[next], from.Address); back != at {
			rt.Fatalf("%s got a packet of %s by %s, but its answer goes to %q", next, from.PeerID, at, back)
		}
		if at = next; at == to.PeerID {
			return
		}
	}
	rt.Fatalf("%s from %s runs in a circle", destination, from.PeerID)
}

func TestMissingTunnelsAreSaidOnBothSides(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		in := drawIntent(rt, 1)
		docs := compiled(rt, in)
		slices.SortFunc(in.Members, func(a, b sdwan.Member) int { return a.Address.Compare(b.Address) })
		for i, d := range docs {
			for j, m := range in.Members {
				if i == j || owner(d, m.Address) != "" {
					continue
				}
				said := slices.ContainsFunc(d.NotReady, func(n sdwan.NotReady) bool {
					return (n.What == "peer" || n.What == "tunnel") && len(n.Reason) > len(m.PeerID)+5 && n.Reason[5:5+len(m.PeerID)] == m.PeerID
				})
				if !said {
					rt.Fatalf("%s has no way to %s and does not say so: %v", d.PeerID, m.PeerID, d.NotReady)
				}
			}
		}
	})
}

func TestNoPathCrossesNetworks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		a, b := drawIntent(rt, 1), drawIntent(rt, 2)
		sections := slices.Concat(compiled(rt, a), compiled(rt, b))
		byInstance := map[string]*sdwan.Document{}
		for _, s := range sections {
			d := byInstance[s.PeerID]
			if d == nil {
				d = &sdwan.Document{Instance: sdwan.Instance{ID: s.PeerID}}
				byInstance[s.PeerID] = d
			}
			d.Networks = append(d.Networks, s)
		}
		var docs []sdwan.Document
		for id, d := range byInstance {
			var intents []sdwan.Intent
			for _, in := range []sdwan.Intent{a, b} {
				if slices.ContainsFunc(in.Members, func(m sdwan.Member) bool { return m.PeerID == id }) {
					intents = append(intents, in)
				}
			}
			d.Firewall = firewall(rt, id, intents...)
			docs = append(docs, *d)
			if len(intents) == 2 {
				tryToCross(rt, d.Firewall, a, b)
			}
		}
		for _, r := range sdwan.Reachability(docs) {
			if r.FromNetworkID != r.ToNetworkID && r.Reachable {
				rt.Fatalf("%s reaches %s: %v", r.FromNetworkID, r.ToNetworkID, r.Passages)
			}
		}
	})
}

func tryToCross(rt *rapid.T, fw sdwan.Firewall, a, b sdwan.Intent) {
	source := rapid.SampledFrom(sdwan.Routes(a)).Draw(rt, "source").Prefix.Addr()
	destination := rapid.SampledFrom(sdwan.Routes(b)).Draw(rt, "destination").Prefix.Addr()
	if source.Is6() != destination.Is6() {
		return
	}
	p := sdwan.Packet{InInterface: sdwan.DeviceName(1), Source: source, Destination: destination,
		Protocol: rapid.SampledFrom([]string{"tcp", "udp", "icmp6"}).Draw(rt, "protocol"), DestinationPort: 6443, ICMPType: 128,
		State: rapid.SampledFrom([]string{"new", "established", "related"}).Draw(rt, "state")}
	if fw.Decide(p, sdwan.HookInput).Accepted() {
		rt.Fatalf("in: %+v", p)
	}
	p.OutInterface = sdwan.DeviceName(2)
	if fw.Decide(p, sdwan.HookForward).Accepted() {
		rt.Fatalf("through: %+v", p)
	}
	p.InInterface, p.OutInterface = "eth0", ""
	if destination.Is6() && account.Contains(destination) && fw.Decide(p, sdwan.HookInput).Accepted() {
		rt.Fatalf("from the underlay: %+v", p)
	}
	p.InInterface, p.OutInterface = "", "eth0"
	if destination.Is6() && account.Contains(destination) && fw.Decide(p, sdwan.HookOutput).Accepted() {
		rt.Fatalf("in clear: %+v", p)
	}
}

func TestTheClustersFlowsPassWhateverUsersRulesSay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		in := drawIntent(rt, 1)
		for i := range in.Rules {
			in.Rules[i].Force = false
		}
		for _, c := range in.Clusters {
			for _, b := range sdwan.BuiltInRules(c) {
				for _, s := range b.Source.PeerIDs {
					for _, d := range b.Destination.PeerIDs {
						if s != d {
							passes(rt, in, b, s, d)
						}
					}
				}
			}
		}
	})
}

func passes(rt *rapid.T, in sdwan.Intent, b sdwan.BuiltInRule, from, to string) {
	address := func(id string) netip.Addr {
		return in.Members[slices.IndexFunc(in.Members, func(m sdwan.Member) bool { return m.PeerID == id })].Address
	}
	p := sdwan.Packet{Source: address(from), Destination: address(to), Protocol: b.Protocol, DestinationPort: b.PortTo}
	p.OutInterface = sdwan.DeviceName(1)
	if d := firewall(rt, from, in).Decide(p, sdwan.HookOutput); !d.Accepted() {
		rt.Fatalf("%s does not leave %s: %q", b.Name, from, d.Rule.Comment)
	}
	p.InInterface, p.OutInterface = sdwan.DeviceName(1), ""
	if d := firewall(rt, to, in).Decide(p, sdwan.HookInput); !d.Accepted() {
		rt.Fatalf("%s does not enter %s: %q", b.Name, to, d.Rule.Comment)
	}
}

func TestAnAddressThatTwoWouldHoldIsRefused(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		in := drawIntent(rt, 1)
		m := rapid.SampledFrom(in.Members).Draw(rt, "member")
		switch rapid.SampledFrom([]string{"vip", "device", "peer"}).Draw(rt, "thief") {
		case "vip":
			in.VIPs = append(in.VIPs, sdwan.VIPIntent{ID: "thief", Address: m.Address})
		case "device":
			in.Devices = append(in.Devices, sdwan.Device{ID: "thief", Address: m.Address})
		case "peer":
			in.Members = append(in.Members, sdwan.Member{PeerID: "thief", Address: m.Address, ShortID: 1, ListenPort: 1})
		}
		var overlap *sdwan.OverlapError
		if _, err := sdwan.Compile(in); !errors.As(err, &overlap) || overlap.Prefix.Addr() != m.Address {
			rt.Fatalf("not refused: %v", err)
		}
	})
}

func TestTheAddressPlanNeverOverlaps(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		var random [5]byte
		copy(random[:], rapid.SliceOfN(rapid.Byte(), 5, 5).Draw(rt, "account"))
		acct, ok := sdwan.AccountPrefix(random)
		if !ok {
			return
		}
		kinds := []struct {
			name  string
			first int
			last  int
			make  func(netip.Prefix, int) (netip.Prefix, bool)
		}{
			{"network", 1, sdwan.MaxNetworks, sdwan.NetworkPrefix},
			{"pods", 0, sdwan.MaxPods - 1, sdwan.PodPrefix},
			{"services", 0, sdwan.MaxServices - 1, sdwan.ServicePrefix},
		}
		a, b := rapid.SampledFrom(kinds).Draw(rt, "kind"), rapid.SampledFrom(kinds).Draw(rt, "other kind")
		n, m := rapid.IntRange(a.first, a.last).Draw(rt, "n"), rapid.IntRange(b.first, b.last).Draw(rt, "m")
		p, okP := a.make(acct, n)
		q, okQ := b.make(acct, m)
		same := a.name == b.name && n == m
		if !okP || !okQ || !acct.Overlaps(p) || p.Masked() != p || sdwan.ReservedByK3s(p) || sdwan.Overlaps(p, q) != same {
			rt.Fatalf("%s %d is %s, %s %d is %s", a.name, n, p, b.name, m, q)
		}
		if _, beyond := a.make(acct, a.last+1); beyond {
			rt.Fatalf("%s goes beyond %d", a.name, a.last)
		}
	})
}
