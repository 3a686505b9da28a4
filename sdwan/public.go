package sdwan

import "net/netip"

// PublicAddress says whether an address is one of the open Internet: where an artefact's URL may lead without the operator's
// word. Platform and agents ask the same.
func PublicAddress(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsGlobalUnicast() && !a.IsPrivate() && !holds(leadInside(), a)
}

// leadInside are ranges that are neither private nor link-local by name: shared address space, what is reserved, and
// translations of IPv4 into IPv6, behind which any IPv4 address may be.
func leadInside() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
		netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("240.0.0.0/4"),
		netip.MustParsePrefix("::/96"), netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"),
		netip.MustParsePrefix("2001::/32"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("fec0::/10"),
	}
}
