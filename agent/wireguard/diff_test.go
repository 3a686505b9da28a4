package wireguard

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// key makes a key that is told by one letter: eight of it in a change's text.
func key(letter byte) wgtypes.Key {
	k, err := wgtypes.ParseKey(strings.Repeat(string(letter), 42) + "A=")
	if err != nil {
		panic(err)
	}
	return k
}

func prefixes(s string) []netip.Prefix {
	var out []netip.Prefix
	for f := range strings.FieldsSeq(s) {
		out = append(out, netip.MustParsePrefix(f))
	}
	return out
}

func TestDiffPeersMovesPrefixesByNamingTheNewOwner(t *testing.T) {
	t.Parallel()
	have := func(letter byte, allowed string) peer { return peer{Key: key(letter), AllowedIPs: prefixes(allowed)} }
	want := func(letter byte, allowed string) wantedPeer {
		return wantedPeer{Key: key(letter), AllowedIPs: prefixes(allowed)}
	}
	for _, tt := range []struct {
		name string
		have []peer
		want []wantedPeer
		text string
	}{
		{"nothing to do", []peer{have('a', "fd00::1/128")}, []wantedPeer{want('a', "fd00::1/128")}, ""},
		{"a new peer", nil, []wantedPeer{want('a', "fd00::1/128")}, " +peer aaaaaaaa +fd00::1/128"},
		{"a peer that went", []peer{have('a', "fd00::1/128")}, nil, " -peer aaaaaaaa"},
		{"a virtual IP moves from a to b",
			[]peer{have('a', "fd00::1/128 fd00::100/128"), have('b', "fd00::2/128")},
			[]wantedPeer{want('a', "fd00::1/128"), want('b', "fd00::2/128 fd00::100/128")},
			" peer bbbbbbbb +fd00::100/128"},
		{"two swap", []peer{have('a', "fd00::1/128"), have('b', "fd00::2/128")},
			[]wantedPeer{want('a', "fd00::2/128"), want('b', "fd00::1/128")},
			" peer aaaaaaaa +fd00::2/128 peer bbbbbbbb +fd00::1/128"},
		{"a prefix that nobody takes over", []peer{have('a', "fd00::1/128 fd00::9/128")}, []wantedPeer{want('a', "fd00::1/128")},
			" peer aaaaaaaa =fd00::1/128"},
		{"the last prefix goes", []peer{have('a', "fd00::1/128")}, []wantedPeer{want('a', "")}, " peer aaaaaaaa =nothing"},
		{"a new key takes over before the old one goes", []peer{have('a', "fd00::1/128")}, []wantedPeer{want('b', "fd00::1/128")},
			" +peer bbbbbbbb +fd00::1/128 -peer aaaaaaaa"},
		{"gains and losses of one peer", []peer{have('a', "fd00::1/128 fd00::9/128")}, []wantedPeer{want('a', "fd00::1/128 fd00::2/128")},
			" peer aaaaaaaa =fd00::1/128 =fd00::2/128"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got strings.Builder
			for _, c := range diffPeers(tt.have, tt.want) {
				got.WriteString(c.String())
			}
			if d := cmp.Diff(tt.text, got.String()); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

func TestDiffDevice(t *testing.T) {
	t.Parallel()
	want := wantedDevice{
		Name: "wg-sdwan-1", CIDR: testCIDR, PrivateKey: key('k'), ListenPort: testPort, MTU: 1420, Addresses: []netip.Prefix{overlay(1)},
		Routes: []route{{Prefix: testCIDR, Source: overlay(1).Addr(), Device: "wg-sdwan-1"}},
	}
	asWanted := func() device {
		return device{Name: want.Name, Alive: true, Up: true, MTU: 1420, PublicKey: key('k').PublicKey(), ListenPort: testPort,
			Addresses: []netip.Prefix{overlay(1)}, Routes: want.Routes}
	}
	vip := netip.MustParsePrefix("fd5e:8a21:c0de:1::100/128")
	for _, tt := range []struct {
		name   string
		change func(*device)
		want   string
	}{
		{"as wanted", func(*device) {}, ""},
		{"down", func(d *device) { d.Up, d.Addresses, d.Routes = false, nil, nil },
			"set wg-sdwan-1 up\nadd address fd5e:8a21:c0de:1::1:1/128 to wg-sdwan-1\n" +
				"add route fd5e:8a21:c0de:1::/64 dev wg-sdwan-1 src fd5e:8a21:c0de:1::1:1"},
		{"another MTU", func(d *device) { d.MTU = 1280 }, "set wg-sdwan-1 mtu 1420"},
		{"another port", func(d *device) { d.ListenPort = 1 }, "configure wg-sdwan-1 port 51820"},
		{"a virtual IP is another subsystem's", func(d *device) { d.Addresses = append(d.Addresses, vip) }, ""},
		{"an address that it no longer has goes last", func(d *device) { d.Addresses = []netip.Prefix{overlay(9)} },
			"add address fd5e:8a21:c0de:1::1:1/128 to wg-sdwan-1\nremove address fd5e:8a21:c0de:1::1:9/128 from wg-sdwan-1"},
		{"a route with another source is replaced", func(d *device) {
			d.Routes = []route{{Prefix: testCIDR, Source: overlay(9).Addr(), Device: d.Name}}
		}, "replace route fd5e:8a21:c0de:1::/64 dev wg-sdwan-1 src fd5e:8a21:c0de:1::1:1"},
		{"a route too many", func(d *device) {
			d.Routes = append([]route{{Prefix: netip.MustParsePrefix("fd00::/64"), Device: d.Name}}, d.Routes...)
		}, "remove route fd00::/64 dev wg-sdwan-1"},
		{"one that does not answer is left alone", func(d *device) { *d = device{Name: d.Name, Unreadable: errNoControl} }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := asWanted()
			tt.change(&d)
			have := machine{Devices: map[string]device{d.Name: d}}
			if diff := cmp.Diff(tt.want, diff(have, wanted{Devices: []wantedDevice{want}}, state{}).String()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestNothingIsConcludedFromANetworkThatWasNotUnderstood(t *testing.T) {
	t.Parallel()
	have := machine{
		Devices:     map[string]device{"wg-sdwan-1": {Name: "wg-sdwan-1", Alive: true}},
		Unreachable: []netip.Prefix{testAccount},
		Settings:    map[string]string{settingForward6: "1"},
	}
	ours := state{Devices: map[string]string{"wg-sdwan-1": "n"}, Settings: map[string]recorded{settingForward6: {"0", "1"}}}
	if p := diff(have, wanted{Partial: true}, ours); !p.empty() {
		t.Errorf("planned\n%s", p)
	}
	want := "remove wg-sdwan-1\nremove route unreachable fd5e:8a21:c0de::/48\nset net/ipv6/conf/all/forwarding to 0"
	if diff := cmp.Diff(want, diff(have, wanted{}, ours).String()); diff != "" {
		t.Errorf("a document that is understood: (-want +got)\n%s", diff)
	}
}

func TestForwardingKeepsRoutesThatWereLearned(t *testing.T) {
	t.Parallel()
	have := machine{Advertised: []string{"eth0", "eth1"}, Settings: map[string]string{
		settingForward6: "0", settingForward4: "0", settingAcceptRA("eth0"): "1", settingAcceptRA("eth1"): "2"}}
	want := "set net/ipv6/conf/eth0/accept_ra to 2\nset net/ipv6/conf/all/forwarding to 1"
	if diff := cmp.Diff(want, diff(have, wanted{Forward6: true}, state{}).String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	ours := state{Settings: map[string]recorded{}}.recording(have, wanted{Forward6: true})
	after := machine{Advertised: have.Advertised, Settings: map[string]string{
		settingForward6: "1", settingForward4: "0", settingAcceptRA("eth0"): "2", settingAcceptRA("eth1"): "2"}}
	back := "set net/ipv6/conf/all/forwarding to 0\nset net/ipv6/conf/eth0/accept_ra to 1"
	if diff := cmp.Diff(back, diff(after, wanted{}, ours).String()); diff != "" {
		t.Errorf("and back (-want +got)\n%s", diff)
	}
}

func TestNextEndpoint(t *testing.T) {
	t.Parallel()
	a, b, learned := netip.MustParseAddrPort("[fd00::a]:1"), netip.MustParseAddrPort("[fd00::b]:1"), netip.MustParseAddrPort("[fd00::c]:1")
	none := netip.AddrPort{}
	long := time.Unix(1000, 0)
	for _, tt := range []struct {
		name       string
		have       peer
		candidates []netip.AddrPort
		tries      int64
		want       netip.AddrPort
	}{
		{"tried twice", peer{Endpoint: a}, []netip.AddrPort{a, b}, 2, none},
		{"tried three times", peer{Endpoint: a}, []netip.AddrPort{a, b}, 3, b},
		{"after the last comes the first", peer{Endpoint: b}, []netip.AddrPort{a, b}, 3, a},
		{"there is one only", peer{Endpoint: a}, []netip.AddrPort{a}, 99, none},
		{"there is none", peer{Endpoint: learned}, nil, 99, none},
		{"never heard of, and the document names another", peer{Endpoint: learned}, []netip.AddrPort{a}, 0, a},
		{"a learned one that is idle stays", peer{Endpoint: learned, Handshake: long}, []netip.AddrPort{a}, 0, none},
		{"a learned one that is dead goes", peer{Endpoint: learned, Handshake: long}, []netip.AddrPort{a}, 3, a},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := nextEndpoint(tt.have, tt.candidates, tt.tries); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestALiveHandshakeKeepsTheLearnedEndpoint(t *testing.T) {
	t.Parallel()
	start := time.Unix(100000, 0)
	document, learned := netip.MustParseAddrPort("[fd00::a]:1"), netip.MustParseAddrPort("[fd00::c]:1")
	e := newEndpoints()
	choose := func(now time.Time, tx int64) netip.AddrPort {
		have := machine{Devices: map[string]device{"d": {Peers: []peer{{Key: key('a'), Endpoint: learned, Handshake: start, TX: tx}}}}}
		want := wanted{Devices: []wantedDevice{{Name: "d", Peers: []wantedPeer{{Key: key('a'), Candidates: []netip.AddrPort{document}}}}}}
		e.choose(now, have, &want)
		return want.Devices[0].Peers[0].Endpoint
	}
	for _, step := range []struct {
		after time.Duration
		tx    int64
		want  netip.AddrPort
	}{
		{time.Second, 1 << 20, netip.AddrPort{}},
		{181 * time.Second, 2 << 20, netip.AddrPort{}}, // what was sent so far was data
		{190 * time.Second, 2<<20 + 2*initiationBytes, netip.AddrPort{}},
		{200 * time.Second, 2<<20 + 3*initiationBytes, document},
	} {
		if got := choose(start.Add(step.after), step.tx); got != step.want {
			t.Errorf("after %v: endpoint %v, want %v", step.after, got, step.want)
		}
	}
}
