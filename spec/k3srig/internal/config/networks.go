package config

import (
	"fmt"
	"net/netip"
	"slices"
)

// Families is the set of address families that something uses.
type Families struct{ IPv4, IPv6 bool }

func (f Families) String() string {
	switch {
	case f.IPv4 && f.IPv6:
		return "dual-stack"
	case f.IPv6:
		return "IPv6"
	}
	return "IPv4"
}

// PrefixFamilies tells the families of ranges.
func PrefixFamilies(ps []netip.Prefix) Families {
	var f Families
	for _, p := range ps {
		f = f.with(p.Addr())
	}
	return f
}

// AddrFamilies tells the families of addresses.
func AddrFamilies(as []netip.Addr) Families {
	var f Families
	for _, a := range as {
		f = f.with(a)
	}
	return f
}

func (f Families) with(a netip.Addr) Families {
	if a.Is4() {
		f.IPv4 = true
	} else {
		f.IPv6 = true
	}
	return f
}

func (s *Settings) networks(v Values) error {
	if s.Role != RoleServer {
		return nil
	}
	v6first := len(s.NodeIPs) > 0 && s.NodeIPs[0].Is6()
	cluster, service := v["cluster-cidr"], v["service-cidr"]
	if len(cluster) == 0 {
		cluster = pick(v6first, "fd00:42::/56", "10.42.0.0/16")
	}
	if len(service) == 0 {
		service = pick(v6first, "fd00:43::/112", "10.43.0.0/16")
	}
	var err error
	if s.ClusterCIDRs, err = prefixes("cluster-cidr", cluster); err != nil {
		return err
	}
	if s.ServiceCIDRs, err = prefixes("service-cidr", service); err != nil {
		return err
	}
	if err := s.sameFamilies(); err != nil {
		return err
	}
	for _, p := range s.ServiceCIDRs {
		if (p.Addr().Is4() && p.Bits() < 12) || (p.Addr().Is6() && p.Bits() < 108) {
			return fmt.Errorf("specified service-cidr %s is too large; for 128-bit addresses, the mask must be >= 108; for 32-bit ones >= 12", p)
		}
	}
	if s.AdvertiseAddress.IsValid() && s.AdvertiseAddress.Is4() != s.ServiceCIDRs[0].Addr().Is4() {
		return fmt.Errorf("advertise-address %s must be of the same IP version as the first service-cidr %s", s.AdvertiseAddress, s.ServiceCIDRs[0])
	}
	if len(s.ClusterDNS) == 0 {
		s.ClusterDNS = []netip.Addr{nth(s.ServiceCIDRs[0], 10)}
	}
	if !slices.Contains([]string{"none", "vxlan", "host-gw", "wireguard-native"}, s.FlannelBackend) {
		return fmt.Errorf("unknown flannel-backend %q", s.FlannelBackend)
	}
	if !slices.Contains([]string{"agent", "cluster", "pod", "disabled"}, s.EgressSelectorMode) {
		return fmt.Errorf("invalid egress-selector-mode %s", s.EgressSelectorMode)
	}
	return nil
}

func (s *Settings) sameFamilies() error {
	const msg = "cluster-cidr: %v and %s: %v, must share the same IP version (IPv4, IPv6 or dual-stack)"
	if PrefixFamilies(s.ClusterCIDRs) != PrefixFamilies(s.ServiceCIDRs) {
		return fmt.Errorf(msg, s.ClusterCIDRs, "service-cidr", s.ServiceCIDRs)
	}
	if len(s.NodeIPs) > 0 && PrefixFamilies(s.ClusterCIDRs) != AddrFamilies(s.NodeIPs) {
		return fmt.Errorf(msg, s.ClusterCIDRs, "node-ip", s.NodeIPs)
	}
	return nil
}

// FirstServiceIP is the address of the kubernetes service.
func (s *Settings) FirstServiceIP() netip.Addr { return nth(s.ServiceCIDRs[0], 1) }

func nth(p netip.Prefix, n int) netip.Addr {
	a := p.Masked().Addr()
	for range n {
		a = a.Next()
	}
	return a
}

func pick(v6 bool, six, four string) []string {
	if v6 {
		return []string{six}
	}
	return []string{four}
}

func prefixes(name string, values []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, p := range values {
		prefix, err := netip.ParsePrefix(p)
		if err != nil {
			return nil, fmt.Errorf("invalid %s %q: %w", name, p, err)
		}
		out = append(out, prefix.Masked())
	}
	return out, nil
}
