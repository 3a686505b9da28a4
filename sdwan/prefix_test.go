package sdwan

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// drawPrefixes draws from a /120, small enough to look at each address.
func drawPrefixes(rt *rapid.T, name string) []netip.Prefix {
	return rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) netip.Prefix {
		a := netip.MustParseAddr("fd00::").As16()
		a[15] = rapid.Byte().Draw(rt, "last")
		return netip.PrefixFrom(netip.AddrFrom16(a), rapid.IntRange(121, 128).Draw(rt, "bits"))
	}), 0, 12).Draw(rt, name)
}

func inAny(prefixes []netip.Prefix, a netip.Addr) bool {
	for _, p := range prefixes {
		if p.Masked().Contains(a) {
			return true
		}
	}
	return false
}

func eachAddress(do func(netip.Addr)) {
	a := netip.MustParseAddr("fd00::").As16()
	for i := range 256 {
		a[15] = byte(i)
		do(netip.AddrFrom16(a))
	}
}

func TestMergedKeepsEveryAddressAndOverlapsNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		in := drawPrefixes(rt, "in")
		out := merged(in)
		eachAddress(func(a netip.Addr) {
			if inAny(in, a) != inAny(out, a) {
				rt.Fatalf("%s: %v became %v", a, in, out)
			}
		})
		for i := 1; i < len(out); i++ {
			if out[i-1].Overlaps(out[i]) || comparePrefix(out[i-1], out[i]) >= 0 || siblings(out[i-1], out[i]) {
				rt.Fatalf("not merged: %v", out)
			}
		}
	})
}

func TestIntersectionHasWhatBothHave(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		a, b := merged(drawPrefixes(rt, "a")), merged(drawPrefixes(rt, "b"))
		both := intersection(a, b)
		eachAddress(func(x netip.Addr) {
			if (inAny(a, x) && inAny(b, x)) != inAny(both, x) {
				rt.Fatalf("%s: %v and %v give %v", x, a, b, both)
			}
		})
		if intersects(a, b) != (len(both) > 0) {
			rt.Fatal("intersects differs from intersection")
		}
	})
}
