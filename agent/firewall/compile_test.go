package firewall

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/sdwan"
)

func TestMergeJoinsWhatOverlapsOrTouches(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		in   string
		want string
	}{
		{"nothing", "", ""},
		{"apart", "fd00::1/128 fd00::3/128", "fd00::1-fd00::1 fd00::3-fd00::3"},
		{"touching", "fd00::2/128 fd00::1/128", "fd00::1-fd00::2"},
		{"contained", "fd00::/64 fd00::1/128", "fd00::-fd00::ffff:ffff:ffff:ffff"},
		{"everything", "::/0 ffff::/16", "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
		{"up to the last address", "ffff::/16 fffe::/16", "fffe::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
		{"host bits", "10.0.0.7/8", "10.0.0.0-10.255.255.255"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var in []span
			for p := range strings.FieldsSeq(tt.in) {
				prefix := netip.MustParsePrefix(p)
				in = append(in, span{prefix.Masked().Addr(), last(prefix)})
			}
			var got []string
			for _, s := range merge(in) {
				got = append(got, s.From.String()+"-"+s.To.String())
			}
			if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestCompileRefusesWhatTheKernelWould(t *testing.T) {
	t.Parallel()
	sets := []sdwan.FirewallSet{{Name: "six", Family: "ip6"}, {Name: "four", Family: "ip"}}
	for _, tt := range []struct {
		name string
		rule sdwan.FirewallRule
		want string
	}{
		{"an unknown set", sdwan.FirewallRule{SourceSet: "none", Verdict: "drop"}, "there is no set"},
		{"sets of two families", sdwan.FirewallRule{SourceSet: "six", DestinationSet: "four", Verdict: "drop"}, "of family"},
		{"a set against the rule's family", sdwan.FirewallRule{SourceSet: "six", Family: "ip", Verdict: "drop"}, "of family"},
		{"a port without protocol", sdwan.FirewallRule{PortFrom: 80, PortTo: 80, Verdict: "drop"}, "a port needs"},
		{"a port of ICMP", sdwan.FirewallRule{PortFrom: 80, Protocol: "icmp6", Verdict: "drop"}, "a port needs"},
		{"ports backwards", sdwan.FirewallRule{PortFrom: 80, PortTo: 79, Protocol: "tcp", Verdict: "drop"}, "no range"},
		{"an ICMP type of TCP", sdwan.FirewallRule{ICMPTypes: []int{1}, Protocol: "tcp", Verdict: "drop"}, "needs protocol icmp6"},
		{"an unknown state", sdwan.FirewallRule{States: []string{"old"}, Verdict: "drop"}, "state"},
		{"no verdict", sdwan.FirewallRule{}, "verdict"},
		{"a star alone", sdwan.FirewallRule{InInterfaces: []string{"*"}, Verdict: "drop"}, "no interface's name"},
		{"a name too long", sdwan.FirewallRule{OutExcept: []string{"abcdefghijklmnop"}, Verdict: "drop"}, "no interface's name"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := compile(sdwan.Firewall{Table: tableName, Sets: sets, Input: []sdwan.FirewallRule{tt.rule}})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
}

func TestCompileRefusesSetsOfMixedFamily(t *testing.T) {
	t.Parallel()
	_, err := compile(sdwan.Firewall{Table: tableName, Sets: []sdwan.FirewallSet{
		{Name: "six", Family: "ip6", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}})
	if err == nil || !strings.Contains(err.Error(), "not of family ip6") {
		t.Errorf("got %v, want a refusal", err)
	}
}
