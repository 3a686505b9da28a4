package sdwan

import (
	"net/netip"
	"slices"
)

// Overlaps reports whether one of two prefixes contains the other, or they are equal.
func Overlaps(a, b netip.Prefix) bool {
	return a.IsValid() && b.IsValid() && a.Overlaps(b)
}

// host is the prefix that holds one address.
func host(a netip.Addr) netip.Prefix {
	return netip.PrefixFrom(a, a.BitLen())
}

// contains reports whether all of inner lies in outer.
func contains(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Overlaps(inner)
}

// comparePrefix orders by family, address and length, so that what contains comes before what it contains.
func comparePrefix(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return a.Bits() - b.Bits()
}

// merged returns the smallest sorted list of prefixes with the same addresses: nothing twice, nothing contained in
// another, and two halves joined. nft refuses interval sets that overlap.
func merged(in []netip.Prefix) []netip.Prefix {
	sorted := make([]netip.Prefix, 0, len(in))
	for _, p := range in {
		if p.IsValid() {
			sorted = append(sorted, p.Masked())
		}
	}
	slices.SortFunc(sorted, comparePrefix)
	out := sorted[:0]
	for _, p := range sorted {
		if n := len(out); n > 0 && contains(out[n-1], p) {
			continue
		}
		out = append(out, p)
		for n := len(out); n > 1 && siblings(out[n-2], out[n-1]); n = len(out) {
			parent := netip.PrefixFrom(out[n-2].Addr(), out[n-2].Bits()-1)
			out = append(out[:n-2], parent)
		}
	}
	return out
}

// siblings reports whether a and b, in this order, are the two halves of one prefix.
func siblings(a, b netip.Prefix) bool {
	if a.Bits() != b.Bits() || a.Bits() == 0 || a.Addr().BitLen() != b.Addr().BitLen() {
		return false
	}
	parent := netip.PrefixFrom(a.Addr(), a.Bits()-1).Masked()
	return parent.Addr() == a.Addr() && a != b && parent.Contains(b.Addr())
}

// intersection returns the addresses that are in both lists. Both are merged; so is the result.
func intersection(a, b []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for i, j := 0, 0; i < len(a) && j < len(b); {
		switch {
		case contains(a[i], b[j]):
			out = append(out, b[j])
			j++
		case contains(b[j], a[i]):
			out = append(out, a[i])
			i++
		case comparePrefix(a[i], b[j]) < 0:
			i++
		default:
			j++
		}
	}
	return out
}

// intersects reports whether two merged lists have an address in common.
func intersects(a, b []netip.Prefix) bool {
	return len(intersection(a, b)) > 0
}

// ofFamily keeps the prefixes of one family, `ip6` or `ip`.
func ofFamily(family string, in []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range in {
		if p.Addr().Is6() == (family == familyIPv6) {
			out = append(out, p)
		}
	}
	return out
}

// holds reports whether a list contains the address.
func holds(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}
