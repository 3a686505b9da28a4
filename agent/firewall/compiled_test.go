package firewall

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"powernode/sdwan"
)

// intent is a network with a cluster, a person's device, users' rules of each kind and a policy of dropping.
func intent(i int) sdwan.Intent {
	cidr := netip.MustParsePrefix(fmt.Sprintf("fd5e:8a21:c0de:%x::/64", i))
	at := func(suffix string) netip.Addr {
		return netip.MustParseAddr(fmt.Sprintf("fd5e:8a21:c0de:%x::%s", i, suffix))
	}
	member := func(id, suffix string, tags ...string) sdwan.Member {
		return sdwan.Member{PeerID: id, InstanceID: id, RegionID: "r", Address: at(suffix), ShortID: i, ListenPort: 51820 + i, Tags: tags,
			PublicKey: strings.Repeat("a", 42) + "A=", ReportedEndpoints: []netip.AddrPort{netip.MustParseAddrPort("[fd00:99::1]:51820")}}
	}
	in := sdwan.Intent{
		NetworkID: fmt.Sprint("network-", i), Name: fmt.Sprint("network-", i), CIDR: cidr, AccountPrefix: netip.MustParsePrefix("fd5e:8a21:c0de::/48"),
		DefaultPolicy: "drop", Members: []sdwan.Member{member("a", "1:0", "server"), member("b", "1:1", "worker"), member("c", "1:2", "operator")},
		VIPs:    []sdwan.VIPIntent{{ID: "v", Address: at("100"), HolderPeerID: "a", Epoch: 1}},
		Devices: []sdwan.Device{{ID: "d", Label: "d", Address: at("1:0:0"), PublicKey: strings.Repeat("b", 42) + "A="}},
		Clusters: []sdwan.Cluster{{ID: "k", Name: "k", VIP: at("100"), ServerPeerIDs: []string{"a"}, AgentPeerIDs: []string{"b"}, FlannelBackend: sdwan.BackendVXLAN,
			PodCIDR:     netip.MustParsePrefix(fmt.Sprintf("fd5e:8a21:c0de:%x00::/56", i+10)),
			ServiceCIDR: netip.MustParsePrefix(fmt.Sprintf("fd5e:8a21:c0de:ff0%x::/112", i))}},
	}
	for j, action := range []string{"accept", "drop", "reject"} {
		for _, protocol := range []string{"any", "tcp", "udp", "icmp6"} {
			for _, direction := range []string{"ingress", "egress", "both"} {
				r := sdwan.Rule{ID: fmt.Sprint(action, protocol, direction), Name: action + protocol + direction, Priority: j, Action: action,
					Direction: direction, Protocol: protocol, Enabled: true, Force: j == 0, Source: &sdwan.Selector{Tag: "operator"}, Destination: &sdwan.Selector{CIDR: netip.PrefixFrom(at("100"), 128)}}
				if protocol == "tcp" || protocol == "udp" {
					r.PortFrom, r.PortTo = 6443, 6443+j
				}
				in.Rules = append(in.Rules, r)
			}
		}
	}
	return in
}

func TestTheKernelTakesWhatTheCompilerMakes(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for _, peer := range []string{"a", "b", "c"} {
		host := sdwan.Host{InstanceID: peer, Platform: []netip.AddrPort{netip.MustParseAddrPort("[fd00:99::99]:8443"), netip.MustParseAddrPort("10.99.0.99:8443")}}
		for i := range 2 {
			host.Memberships = append(host.Memberships, sdwan.Membership{Intent: intent(i + 1), PeerID: peer})
		}
		f, err := sdwan.HostFirewall(host)
		if err != nil {
			t.Fatal(err)
		}
		if writes, err := n.reconcile(f); err != nil || writes != 1 {
			t.Errorf("host %s: %d writes, %v; want one", peer, writes, err)
		}
		if writes, err := n.reconcile(f); err != nil || writes != 0 {
			t.Errorf("host %s again: %d writes, %v; want none", peer, writes, err)
		}
		if rules := strings.Count(n.list(), "counter packets"); rules < len(f.Input)+len(f.Forward)+len(f.Output) {
			t.Errorf("host %s: %d rules are listed of at least %d", peer, rules, len(f.Input)+len(f.Forward)+len(f.Output))
		}
	}
}
