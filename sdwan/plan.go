package sdwan

import (
	"net/netip"
	"slices"
)

// The 16 bits between an account's /48 and a network's /64 are divided once and for all: networks take the lower
// half, the /56 of clusters' pods the upper one, without its last /56, from which the /112 of services come. So a
// network never meets a pod or service range of its account, in whatever order they are taken.
const (
	MaxNetworks = 0x7fff // numbers 1..MaxNetworks
	MaxPods     = 0x7f   // numbers 0..MaxPods-1
	MaxServices = 0xff   // numbers 0..MaxServices-1

	firstPodSubnet     = 0x8000
	firstServiceSubnet = 0xff01
)

// AccountPrefix makes an account's /48, a ULA of RFC 4193, of 40 random bits. It is not ok for the few that contain
// the ranges that K3s takes when it is not told: every cluster would have those.
func AccountPrefix(random [5]byte) (prefix netip.Prefix, ok bool) {
	a := [16]byte{0: 0xfd}
	copy(a[1:6], random[:])
	p := netip.PrefixFrom(netip.AddrFrom16(a), 48)
	return p, !ReservedByK3s(p)
}

// ReservedByK3s reports whether a prefix touches K3s' own defaults for pods and services, of either family.
func ReservedByK3s(p netip.Prefix) bool {
	return slices.ContainsFunc(k3sDefaults(), func(d netip.Prefix) bool { return Overlaps(d, p) })
}

func k3sDefaults() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("fd00:42::/56"), netip.MustParsePrefix("fd00:43::/112"),
		netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("10.43.0.0/16"),
	}
}

// NetworkPrefix is the account's n-th network /64, n in 1..MaxNetworks.
func NetworkPrefix(account netip.Prefix, n int) (prefix netip.Prefix, ok bool) {
	if n < 1 || n > MaxNetworks {
		return netip.Prefix{}, false
	}
	return subnet(account, n, 64)
}

// PodPrefix is the account's n-th /56 for the pods of a cluster, n in 0..MaxPods-1. It is good for 256 nodes.
func PodPrefix(account netip.Prefix, n int) (prefix netip.Prefix, ok bool) {
	if n < 0 || n >= MaxPods {
		return netip.Prefix{}, false
	}
	return subnet(account, firstPodSubnet+n<<8, 56)
}

// ServicePrefix is the account's n-th /112 for the services of a cluster, n in 0..MaxServices-1.
func ServicePrefix(account netip.Prefix, n int) (prefix netip.Prefix, ok bool) {
	if n < 0 || n >= MaxServices {
		return netip.Prefix{}, false
	}
	return subnet(account, firstServiceSubnet+n, 112)
}

func subnet(account netip.Prefix, id, bits int) (netip.Prefix, bool) {
	if !account.IsValid() || account.Bits() != 48 || !account.Addr().Is6() {
		return netip.Prefix{}, false
	}
	a := account.Masked().Addr().As16()
	a[6], a[7] = byte(id>>8), byte(id)
	return netip.PrefixFrom(netip.AddrFrom16(a), bits), true
}

// Range is the addresses from First to Last, both included.
type Range struct {
	First netip.Addr
	Last  netip.Addr
}

// Contains reports whether an address is in the range.
func (r Range) Contains(a netip.Addr) bool {
	return r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// Next is the lowest address of the range that is not taken; false when the range is used up.
func (r Range) Next(taken func(netip.Addr) bool) (netip.Addr, bool) {
	for a := r.First; a.IsValid() && a.Compare(r.Last) <= 0; a = a.Next() {
		if !taken(a) {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// VIPRange is a network's ::100 to ::fff.
func VIPRange(network netip.Prefix) Range {
	return hostRange(network, 0x100, 0xfff)
}

// PeerRange is a network's ::1:0 to ::ffff:ffff.
func PeerRange(network netip.Prefix) Range {
	return hostRange(network, 0x1_0000, 0xffff_ffff)
}

// DeviceRange is a network's ::1:0:0 to ::1:ffff:ffff.
func DeviceRange(network netip.Prefix) Range {
	return hostRange(network, 0x1_0000_0000, 0x1_ffff_ffff)
}

func hostRange(network netip.Prefix, first, last uint64) Range {
	base := network.Masked().Addr().As16()
	at := func(n uint64) netip.Addr {
		a := base
		for i := 15; i >= 8; i-- {
			a[i] = byte(n)
			n >>= 8
		}
		return netip.AddrFrom16(a)
	}
	return Range{First: at(first), Last: at(last)}
}

// NextPrefix is the first number of 0..count-1 whose prefix is made and free; free is asked in order.
func NextPrefix(count int, prefix func(n int) (netip.Prefix, bool), free func(netip.Prefix) bool) (netip.Prefix, bool) {
	for n := range count {
		if p, ok := prefix(n); ok && free(p) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// NextShortID is the lowest interface number that is not taken on a host; 0 when there is none.
func NextShortID(taken func(int) bool) int {
	for n := 1; n <= MaxShortID; n++ {
		if !taken(n) {
			return n
		}
	}
	return 0
}
