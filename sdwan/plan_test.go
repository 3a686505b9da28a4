package sdwan_test

import (
	"net/netip"
	"slices"
	"testing"

	"powernode/sdwan"
)

func TestRangesOfANetworkAreTheContracts(t *testing.T) {
	t.Parallel()
	network := netip.MustParsePrefix("fd12:3456:789a:1::/64")
	for _, tt := range []struct {
		name        string
		r           sdwan.Range
		first, last string
	}{
		{"virtual IPs", sdwan.VIPRange(network), "fd12:3456:789a:1::100", "fd12:3456:789a:1::fff"},
		{"peers", sdwan.PeerRange(network), "fd12:3456:789a:1::1:0", "fd12:3456:789a:1::ffff:ffff"},
		{"devices", sdwan.DeviceRange(network), "fd12:3456:789a:1::1:0:0", "fd12:3456:789a:1:0:1:ffff:ffff"},
	} {
		if got := tt.r; got.First != netip.MustParseAddr(tt.first) || got.Last != netip.MustParseAddr(tt.last) {
			t.Errorf("%s: %s to %s", tt.name, got.First, got.Last)
		}
		if !tt.r.Contains(tt.r.First) || !tt.r.Contains(tt.r.Last) || tt.r.Contains(tt.r.Last.Next()) || tt.r.Contains(tt.r.First.Prev()) {
			t.Errorf("%s: its ends are not its ends", tt.name)
		}
	}
}

func TestNextAddressIsTheLowestFreeOne(t *testing.T) {
	t.Parallel()
	r := sdwan.Range{First: netip.MustParseAddr("fd00::1"), Last: netip.MustParseAddr("fd00::3")}
	taken := []netip.Addr{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::3")}
	isTaken := func(a netip.Addr) bool { return slices.Contains(taken, a) }
	if a, ok := r.Next(isTaken); !ok || a != netip.MustParseAddr("fd00::2") {
		t.Errorf("%s %t", a, ok)
	}
	taken = append(taken, netip.MustParseAddr("fd00::2"))
	if a, ok := r.Next(isTaken); ok {
		t.Errorf("a full range gave %s", a)
	}
}

func TestNextShortIDIsTheLowestFreeOne(t *testing.T) {
	t.Parallel()
	if n := sdwan.NextShortID(func(n int) bool { return n < 3 }); n != 3 {
		t.Error(n)
	}
	if n := sdwan.NextShortID(func(int) bool { return true }); n != 0 {
		t.Error(n)
	}
	if name := sdwan.DeviceName(sdwan.MaxShortID); len(name) > 15 {
		t.Errorf("%s is too long for a kernel", name)
	}
}

func TestAccountPrefixRefusesK3sDefaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		random [5]byte
		want   string
		ok     bool
	}{
		{[5]byte{0x12, 0x34, 0x56, 0x78, 0x9a}, "fd12:3456:789a::/48", true},
		{[5]byte{0, 0, 0x42, 0, 0}, "fd00:42::/48", false},
		{[5]byte{0, 0, 0x43, 0, 0}, "fd00:43::/48", false},
		{[5]byte{0, 0, 0x42, 0, 1}, "fd00:42:1::/48", true},
	} {
		if p, ok := sdwan.AccountPrefix(tt.random); p.String() != tt.want || ok != tt.ok {
			t.Errorf("%x: %s %t, want %s %t", tt.random, p, ok, tt.want, tt.ok)
		}
	}
}

func TestNextPrefixSkipsWhatIsNotFree(t *testing.T) {
	t.Parallel()
	acct := netip.MustParsePrefix("fd12:3456:789a::/48")
	busy := netip.MustParsePrefix("fd12:3456:789a:8000::/55")
	p, ok := sdwan.NextPrefix(sdwan.MaxPods, func(n int) (netip.Prefix, bool) { return sdwan.PodPrefix(acct, n) },
		func(p netip.Prefix) bool { return !sdwan.Overlaps(p, busy) })
	if !ok || p != netip.MustParsePrefix("fd12:3456:789a:8200::/56") {
		t.Errorf("%s %t", p, ok)
	}
}

// The table of MTUs that the design's reference gives.
func TestMTUFollowsTheTable(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		underlay, overV6, overV4, vxlanV6, vxlanV4 int
		vxlanOK, hostGWOK                          bool // over IPv6
	}{
		{9001, 8921, 8941, 8851, 8871, true, true},
		{1500, sdwan.DefaultMTU, 1440, 1350, 1370, true, true},
		{1492, 1412, 1432, 1342, 1362, true, true},
		{1460, 1380, 1400, 1310, 1330, true, true},
		{1450, 1370, 1390, 1300, 1320, true, true},
		{1430, 1350, 1370, 1280, 1300, true, true},
		{1420, 1340, 1360, 1270, 1290, false, true},
		{1410, 1330, 1350, 1260, 1280, false, true},
		{1360, 1280, 1300, 1210, 1230, false, true},
		{1340, 1260, 1280, 1190, 1210, false, false},
		{1280, 1200, 1220, 1130, 1150, false, false},
	} {
		v6, v4 := sdwan.OverlayMTU(tt.underlay, false), sdwan.OverlayMTU(tt.underlay, true)
		if v6 != tt.overV6 || v4 != tt.overV4 {
			t.Errorf("%d: %d and %d", tt.underlay, v6, v4)
		}
		if a, b := sdwan.PodMTU(v6, "vxlan"), sdwan.PodMTU(v4, "vxlan"); a != tt.vxlanV6 || b != tt.vxlanV4 {
			t.Errorf("%d: pods %d and %d", tt.underlay, a, b)
		}
		if sdwan.PodMTU(v6, "host-gw") != v6 {
			t.Errorf("%d: host-gw costs something", tt.underlay)
		}
		if (sdwan.CheckMTU(v6, true) == nil) != tt.vxlanOK || (sdwan.CheckMTU(v6, false) == nil) != tt.hostGWOK {
			t.Errorf("%d: %v and %v", tt.underlay, sdwan.CheckMTU(v6, true), sdwan.CheckMTU(v6, false))
		}
	}
	const want = "mtu 1340 is too small for vxlan: 1340 - 70 = 1270 for pods, and IPv6 needs 1280; at least 1350"
	if err := sdwan.CheckMTU(1340, true); err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
}
