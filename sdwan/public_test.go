package sdwan_test

import (
	"net/netip"
	"testing"

	"powernode/sdwan"
)

func TestAddressesThatLeadInsideAreNotPublic(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		list   []string
		public bool
	}{
		{"own networks", []string{"10.0.0.1", "192.168.1.1", "fd00::1", "fec0::1", "100.64.0.1", "198.18.0.1"}, false},
		{"the machine and its link", []string{"127.0.0.1", "::1", "0.0.0.0", "0.1.2.3", "169.254.169.254", "fe80::1"}, false},
		{"nobody's", []string{"224.0.0.1", "ff02::1", "240.0.0.1", "192.0.0.8"}, false},
		{"IPv4 in IPv6's clothes", []string{"::ffff:10.0.0.1", "::7f00:1", "64:ff9b::7f00:1", "64:ff9b:1::a00:1", "2002:7f00:1::1", "2001::1"}, false},
		{"the Internet", []string{"1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1"}, true},
	} {
		for _, a := range tt.list {
			if got := sdwan.PublicAddress(netip.MustParseAddr(a)); got != tt.public {
				t.Errorf("%s: %s is public: %v", tt.name, a, got)
			}
		}
	}
}
