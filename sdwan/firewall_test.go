package sdwan_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"powernode/sdwan"
)

// nft checks a script inside a network namespace that goes with the process.
func nft(t *testing.T, script string) (string, error) {
	t.Helper()
	args := []string{"-n"}
	if os.Geteuid() != 0 {
		args = []string{"-rn"}
	}
	cmd := exec.CommandContext(t.Context(), "unshare", append(args, "nft", "-c", "-f", "-")...)
	cmd.Stdin = strings.NewReader(script)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

func TestEveryFirewallOfTheFixturesPassesNft(t *testing.T) {
	t.Parallel()
	files, _ := filepath.Glob("testdata/*.txtar")
	checked := 0
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range archive.Files {
			if !strings.HasPrefix(f.Name, "firewall ") {
				continue
			}
			checked++
			if out, err := nft(t, string(f.Data)); err != nil {
				t.Errorf("%s, %s: %v\n%s", file, f.Name, err, out)
			}
		}
	}
	if checked < 5 {
		t.Errorf("only %d firewalls in the fixtures", checked)
	}
}

func TestNftRefusesAWrongScript(t *testing.T) {
	t.Parallel()
	if out, err := nft(t, "table inet x { chain c { ip6 saddr 10.0.0.0/8 drop; } }"); err == nil {
		t.Errorf("nft took it: %s", out)
	}
}

func fixtureIntents(t *testing.T, name string) []sdwan.Intent {
	t.Helper()
	archive, err := txtar.ParseFile(filepath.Join("testdata", name+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	return parseIntents(t, string(section(archive, "intent")))
}

func firewallOf(t *testing.T, intents []sdwan.Intent, peer string) sdwan.Firewall {
	t.Helper()
	fw, err := sdwan.HostFirewall(hostOf(intents, peer))
	if err != nil {
		t.Fatal(err)
	}
	return fw
}

// packet reads `in>out source -> destination protocol[/port] [state]`.
func packet(t *testing.T, text string) sdwan.Packet {
	t.Helper()
	var ifaces, source, destination, protocol, state string
	words := strings.Fields(strings.Replace(text, " -> ", " ", 1))
	switch len(words) {
	case 5:
		state = words[4]
		fallthrough
	case 4:
		ifaces, source, destination, protocol = words[0], words[1], words[2], words[3]
	default:
		t.Fatalf("no packet: %q", text)
	}
	p := sdwan.Packet{Source: netip.MustParseAddr(source), Destination: netip.MustParseAddr(destination), State: state}
	p.InInterface, p.OutInterface, _ = strings.Cut(ifaces, ">")
	name, port, _ := strings.Cut(protocol, "/")
	p.Protocol = name
	number := 0
	if port != "" {
		if _, err := fmt.Sscan(port, &number); err != nil {
			t.Fatal(err)
		}
	}
	if strings.HasPrefix(name, "icmp") {
		p.ICMPType = number
	} else {
		p.SourcePort, p.DestinationPort = 40000, number
	}
	return p
}

func TestFirewallOfTheTutorialDecides(t *testing.T) {
	t.Parallel()
	intents := fixtureIntents(t, "tutorial")
	const (
		server = "fd00:abcd:ef01:2::1:0"
		worker = "fd00:abcd:ef01:2::1:1"
		other  = "fd00:abcd:ef01:2::1:2"
		vip    = "fd00:abcd:ef01:2::100"
		ws     = "fd00:abcd:ef01:2::1:0:0"
		guest  = "fd00:abcd:ef01:2::1:0:1"
	)
	for _, tt := range []struct {
		name, host, hook, packet, want string
	}{
		{"the workstation passes the gateway", "other", "forward", "wg-sdwan-1>wg-sdwan-1 " + ws + " -> " + vip + " tcp/6443", "accept"},
		{"a guest's device does not", "other", "forward", "wg-sdwan-1>wg-sdwan-1 " + guest + " -> " + vip + " tcp/6443", "drop"},
		{"the answer to the workstation comes back", "other", "forward", "wg-sdwan-1>wg-sdwan-1 " + vip + " -> " + ws + " tcp/40000 established", "accept"},
		{"a gateway forwards for devices alone", "other", "forward", "wg-sdwan-1>wg-sdwan-1 " + worker + " -> " + server + " tcp/22", "drop"},
		{"the holder lets the workstation in", "worker", "input", "wg-sdwan-1> " + ws + " -> " + vip + " tcp/6443", "accept"},
		{"the holder shuts a device out", "worker", "input", "wg-sdwan-1> " + guest + " -> " + vip + " tcp/6443", "drop"},
		{"the holder shuts a peer out", "worker", "input", "wg-sdwan-1> " + other + " -> " + vip + " tcp/6443", "drop"},
		{"a cluster node passes by the built-in rule", "worker", "input", "wg-sdwan-1> " + server + " -> " + vip + " tcp/6443", "accept"},
		{"the rule is about the VIP, not the node's address", "server", "input", "wg-sdwan-1> " + other + " -> " + server + " tcp/6443", "accept"},
		{"another port of the VIP is open", "worker", "input", "wg-sdwan-1> " + other + " -> " + vip + " tcp/22", "accept"},
		{"ping always passes", "worker", "input", "wg-sdwan-1> " + other + " -> " + vip + " icmp6/128", "accept"},
		{"a neighbour reaches the VIP by no underlay", "worker", "input", "eth0> 2001:db8::9 -> " + vip + " tcp/6443", "drop"},
		{"not even as an answer", "worker", "input", "eth0> 2001:db8::9 -> " + vip + " tcp/6443 established", "drop"},
		{"an overlay source on the underlay is forged", "worker", "input", "eth0> " + server + " -> 2001:db8::2 tcp/6443 established", "drop"},
		{"the underlay is locked for 6443", "worker", "input", "eth0> 10.0.0.9 -> 10.0.0.2 tcp/6443", "drop"},
		{"the underlay is locked for vxlan", "worker", "input", "eth0> 10.0.0.9 -> 10.0.0.2 udp/8472", "drop"},
		{"the underlay is locked for echo", "worker", "input", "eth0> 10.0.0.9 -> 10.0.0.2 icmp/8", "drop"},
		{"and for echo of IPv6", "worker", "input", "eth0> fe80::9 -> fe80::2 icmp6/128", "drop"},
		{"discovery passes", "worker", "input", "eth0> fe80::9 -> ff02::1:ff00:2 icmp6/135 untracked", "accept"},
		{"ICMP errors pass", "worker", "input", "eth0> 10.0.0.9 -> 10.0.0.2 icmp/3", "accept"},
		{"WireGuard passes", "worker", "input", "eth0> 10.0.0.9 -> 10.0.0.2 udp/51820", "accept"},
		{"answers from outside pass", "worker", "input", "eth0> 192.0.2.7 -> 10.0.0.2 tcp/40000 established", "accept"},
		{"invalid does not", "worker", "input", "eth0> 192.0.2.7 -> 10.0.0.2 tcp/40000 invalid", "drop"},
		{"the host talks to itself", "worker", "input", "lo> " + vip + " -> " + vip + " tcp/6443", "accept"},
		{"and so it sends", "worker", "output", ">lo " + worker + " -> " + vip + " tcp/6443", "accept"},
		{"an overlay address never leaves in clear", "worker", "output", ">eth0 10.0.0.2 -> 10.0.0.9 udp/51820", "accept"},
		{"not as destination", "worker", "output", ">eth0 2001:db8::2 -> fd00:abcd:ef01:1::1:0 tcp/6443", "drop"},
		{"not as source", "worker", "output", ">eth0 " + worker + " -> 2001:db8::9 tcp/443", "drop"},
		{"the platform is always reached", "worker", "output", ">eth0 10.0.0.2 -> 192.0.2.1 tcp/7443", "accept"},
		{"a pod reaches the API", "worker", "forward", "cni0>wg-sdwan-1 fd00:abcd:ef01:8000::5 -> " + server + " tcp/6443", "accept"},
		{"a pod reaches the world", "worker", "forward", "cni0>eth0 fd00:abcd:ef01:8000::5 -> 2001:db8::9 tcp/443", "accept"},
		{"and gets its answer", "worker", "forward", "eth0>cni0 2001:db8::9 -> fd00:abcd:ef01:8000::5 tcp/40000 established", "accept"},
		{"nobody outside begins with a pod", "worker", "forward", "eth0>cni0 2001:db8::9 -> fd00:abcd:ef01:8000::5 tcp/80", "drop"},
		{"a pod reaches no other network in clear", "worker", "forward", "cni0>eth0 fd00:abcd:ef01:8000::5 -> fd00:abcd:ef01:1::1:0 tcp/80", "drop"},
		{"nobody outside gets into the tunnel", "worker", "forward", "eth0>wg-sdwan-1 2001:db8::9 -> " + server + " tcp/80", "drop"},
		{"pods meet through flannel", "worker", "forward", "flannel.1>cni0 fd00:abcd:ef01:8000:1::5 -> fd00:abcd:ef01:8000::5 tcp/80", "accept"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := firewallOf(t, intents, tt.host).Decide(packet(t, tt.packet), tt.hook)
			if d.Verdict != tt.want {
				t.Errorf("%s at %s of %s: %s by rule %d %q, want %s", tt.packet, tt.hook, tt.host, d.Verdict, d.Index, d.Rule.Comment, tt.want)
			}
		})
	}
}

func TestFirewallOfAHostInTwoNetworksDecides(t *testing.T) {
	t.Parallel()
	fw := firewallOf(t, fixtureIntents(t, "two_networks"), "both")
	const (
		a, far  = "fd00:abcd:ef01:1::1:0", "fd00:abcd:ef01:1::1:1"
		b, near = "fd00:abcd:ef01:2::1:0", "fd00:abcd:ef01:2::1:1"
		pod     = "fd00:abcd:ef01:8000::5"
		device  = "fd00:abcd:ef01:2::1:0:0"
	)
	for _, tt := range []struct {
		name, hook, packet, want string
	}{
		{"nothing is forwarded between networks", "forward", "wg-sdwan-2>wg-sdwan-1 " + near + " -> " + far + " tcp/80", "drop"},
		{"nor as an answer", "forward", "wg-sdwan-2>wg-sdwan-1 " + near + " -> " + far + " tcp/80 established", "drop"},
		{"nor as ping", "forward", "wg-sdwan-1>wg-sdwan-2 " + far + " -> " + near + " icmp6/128", "drop"},
		{"the host's address in a is not reached through b", "input", "wg-sdwan-2> " + near + " -> " + a + " tcp/80", "drop"},
		{"a source of a does not come through b", "input", "wg-sdwan-2> " + far + " -> " + b + " tcp/80", "drop"},
		{"a pod of a does not reach the host in b", "input", "cni0> " + pod + " -> " + b + " tcp/80", "drop"},
		{"a pod of a does not reach b", "forward", "cni0>wg-sdwan-2 " + pod + " -> " + near + " tcp/80", "drop"},
		{"the host sends into b as itself in b", "output", ">wg-sdwan-2 " + b + " -> " + near + " tcp/80", "accept"},
		{"and never as itself in a", "output", ">wg-sdwan-2 " + a + " -> " + near + " tcp/80", "drop"},
		{"b accepts by default", "input", "wg-sdwan-2> " + near + " -> " + b + " tcp/80", "accept"},
		{"a drops by default", "input", "wg-sdwan-1> " + far + " -> " + a + " tcp/80", "drop"},
		{"default drop is about what comes in", "output", ">wg-sdwan-1 " + a + " -> " + far + " tcp/80", "accept"},
		{"an egress rule rejects at its source", "output", ">wg-sdwan-1 " + a + " -> " + far + " udp/5005", "reject"},
		{"outside its ports it does not", "output", ">wg-sdwan-1 " + a + " -> " + far + " udp/5011", "accept"},
		{"the gateway of b forwards for the device", "forward", "wg-sdwan-2>wg-sdwan-2 " + device + " -> " + near + " tcp/80", "accept"},
		{"and back", "forward", "wg-sdwan-2>wg-sdwan-2 " + near + " -> " + device + " tcp/80", "accept"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := fw.Decide(packet(t, tt.packet), tt.hook)
			if d.Verdict != tt.want {
				t.Errorf("%s at %s: %s by rule %d %q, want %s", tt.packet, tt.hook, d.Verdict, d.Index, d.Rule.Comment, tt.want)
			}
		})
	}
}

func TestForcedRuleComesBeforeTheBuiltInOnes(t *testing.T) {
	t.Parallel()
	in := fixtureIntents(t, "tutorial")[0]
	for i := range in.Rules {
		in.Rules[i].Force = in.Rules[i].Action == sdwan.ActionDrop
	}
	fw := firewallOf(t, []sdwan.Intent{in}, "worker")
	d := fw.Decide(packet(t, "wg-sdwan-1> fd00:abcd:ef01:2::1:0 -> fd00:abcd:ef01:2::100 tcp/6443"), "input")
	if d.Verdict != sdwan.ActionDrop || d.Rule.RuleID != "tenant-b-apiserver-default-deny" {
		t.Errorf("%s by %q", d.Verdict, d.Rule.Comment)
	}
	if s := sdwan.ShadowedBy(in, in.Rules[0]); len(s) != 0 {
		t.Errorf("a forced rule is shadowed by %v", s)
	}
}

func TestHostWithoutNetworksHasAnEmptyTable(t *testing.T) {
	t.Parallel()
	fw, err := sdwan.HostFirewall(sdwan.Host{InstanceID: "i"})
	if err != nil {
		t.Fatal(err)
	}
	if len(fw.Input)+len(fw.Forward)+len(fw.Output)+len(fw.Sets) != 0 || fw.Hash != fw.ContentHash() {
		t.Errorf("%+v", fw)
	}
}

func TestHashChangesWithTheContentAlone(t *testing.T) {
	t.Parallel()
	intents := fixtureIntents(t, "tutorial")
	before := firewallOf(t, intents, "worker")
	if again := firewallOf(t, intents, "worker"); again.Hash != before.Hash {
		t.Error("the same content has another hash")
	}
	intents[0].Rules[0].Priority = 9
	if swapped := firewallOf(t, intents, "worker"); swapped.Hash == before.Hash {
		t.Error("swapped rules have the same hash")
	}
}

func TestHostileNamesStayInsideTheirComment(t *testing.T) {
	t.Parallel()
	intents := fixtureIntents(t, "tutorial")
	intents[0].Rules[0].Name = "x\" drop; }\n\\ tüte " + strings.Repeat("y", 80)
	intents[0].Devices[0].Tags, intents[0].Rules[1].Source.Tag = []string{"a;b"}, "a;b"
	if out, err := nft(t, firewallOf(t, intents, "worker").Script()); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestHostFirewallRefusesWhatNoChainKnows(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*sdwan.Intent)
		want   string
	}{
		{"an action", func(in *sdwan.Intent) { in.Rules[0].Action = "allow" }, `unknown action "allow"`},
		{"a direction", func(in *sdwan.Intent) { in.Rules[0].Direction = "in" }, `unknown direction "in"`},
		{"a protocol", func(in *sdwan.Intent) { in.Rules[0].Protocol = "sctp" }, `unknown protocol "sctp"`},
		{"ports without a protocol", func(in *sdwan.Intent) { in.Rules[0].Protocol = "any" }, "ports need protocol tcp or udp"},
		{"no listen port", func(in *sdwan.Intent) { in.Members[0].ListenPort = 0 }, "listen port 0"},
		{"no such peer", func(in *sdwan.Intent) { in.Members = in.Members[1:] }, "peer server: is no member of the network"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := fixtureIntents(t, "tutorial")[0]
			tt.change(&in)
			_, err := sdwan.HostFirewall(sdwan.Host{Memberships: []sdwan.Membership{{Intent: in, PeerID: "server"}}})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}

// A connection to the platform that is older than the table has no conntrack entry: its next segment counts as new.
func TestPlatformsAnswersPassWithoutConnectionTracking(t *testing.T) {
	t.Parallel()
	platform := netip.MustParseAddrPort("192.0.2.10:7443")
	in := sdwan.Intent{NetworkID: "n", Name: "n", CIDR: netip.MustParsePrefix("fd00:0:0:1::/64"), AccountPrefix: netip.MustParsePrefix("fd00::/48"),
		Strategy: "auto", DefaultPolicy: "accept", Members: []sdwan.Member{{PeerID: "p", InstanceID: "i", Address: netip.MustParseAddr("fd00:0:0:1::1:0"),
			ShortID: 1, ListenPort: 51820}}}
	fw, err := sdwan.HostFirewall(sdwan.Host{InstanceID: "i", Memberships: []sdwan.Membership{{Intent: in, PeerID: "p"}}, Platform: []netip.AddrPort{platform}})
	if err != nil {
		t.Fatal(err)
	}
	answer := sdwan.Packet{InInterface: "eth0", Source: platform.Addr(), Destination: netip.MustParseAddr("192.0.2.20"), Protocol: "tcp",
		SourcePort: 7443, DestinationPort: 40000, MidStream: true}
	for _, tt := range []struct {
		name   string
		change func(*sdwan.Packet)
		want   bool
	}{
		{"an answer of the platform", func(*sdwan.Packet) {}, true},
		{"a segment that opens a connection from there", func(p *sdwan.Packet) { p.MidStream = false }, false},
		{"another port of the platform", func(p *sdwan.Packet) { p.SourcePort = 22 }, false},
		{"another host", func(p *sdwan.Packet) { p.Source = netip.MustParseAddr("192.0.2.11") }, false},
	} {
		p := answer
		tt.change(&p)
		if got := fw.Decide(p, "input").Accepted(); got != tt.want {
			t.Errorf("%s: accepted %t, want %t", tt.name, got, tt.want)
		}
	}
}
