package local

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"powernode/internal/rtnl"
	"powernode/platform/provider/local/boot"
)

const underlayMTU = 1500

// collides says whether this host has the bridge's name, or an address or route within the prefixes.
func (i installation) collides() (bool, error) {
	if _, err := netlink.LinkByName(i.bridge()); err == nil {
		return true, nil
	}
	used, err := usedPrefixes()
	if err != nil {
		return false, err
	}
	for _, u := range used {
		if u.Overlaps(i.Prefix4) || u.Overlaps(i.Prefix6) {
			return true, nil
		}
	}
	return false, nil
}

// usedPrefixes are the host's addresses and routes of all tables but its default routes.
func usedPrefixes() ([]netip.Prefix, error) {
	var out []netip.Prefix
	addresses, err := rtnl.List(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addresses {
		out = appendPrefix(out, a.IPNet)
	}
	routes, err := rtnl.List(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		out = appendPrefix(out, r.Dst)
	}
	return out, nil
}

func appendPrefix(out []netip.Prefix, n *net.IPNet) []netip.Prefix {
	if n == nil {
		return out
	}
	ones, _ := n.Mask.Size()
	a, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return out
	}
	p := netip.PrefixFrom(a.Unmap(), ones).Masked()
	if a.IsMulticast() || !p.IsValid() || p.Bits() < 9 { // fe80::/10 and defaults aside, nothing that wide is anybody's own
		return out
	}
	return append(out, p)
}

// bridgeStands says whether the platform can listen on the bridge's address.
func (i installation) bridgeStands() bool {
	link, err := netlink.LinkByName(i.bridge())
	if err != nil || link.Attrs().Flags&net.FlagUp == 0 {
		return false
	}
	addresses, err := rtnl.List(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_V6) })
	if err != nil {
		return false
	}
	for _, a := range addresses {
		if have, ok := netip.AddrFromSlice(a.IP); ok && have == i.host6() {
			return true
		}
	}
	return false
}

// ensureBridge makes the bridge with the host's addresses on it, or leaves it as it is.
func (i installation) ensureBridge() error {
	if i.bridgeStands() {
		return nil
	}
	snooping := false // neighbour discovery must not depend on a querier that nobody is
	bridge := &netlink.Bridge{
		LinkAttrs:         netlink.LinkAttrs{Name: i.bridge(), MTU: underlayMTU, HardwareAddr: i.hardware(1)},
		MulticastSnooping: &snooping,
	}
	if err := netlink.LinkAdd(bridge); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make bridge %s: %w", i.bridge(), err)
	}
	for key, value := range map[string]string{"accept_ra": "0", "accept_dad": "0", "autoconf": "0", "disable_ipv6": "0"} {
		path := filepath.Join("/proc/sys/net/ipv6/conf", i.bridge(), key)
		if err := os.WriteFile(path, []byte(value), 0); err != nil {
			return fmt.Errorf("set %s of bridge: %w", key, err)
		}
	}
	link, err := netlink.LinkByName(i.bridge())
	if err != nil {
		return fmt.Errorf("find bridge: %w", err)
	}
	for _, p := range i.prefixes(1) {
		a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
		if p.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrReplace(link, a); err != nil {
			return fmt.Errorf("add address %s to bridge: %w", p, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set bridge up: %w", err)
	}
	return nil
}

// plug gives the process's network namespace its link to the underlay, both ends at once.
func (i installation) plug(place, pid int) error {
	bridge, err := netlink.LinkByName(i.bridge())
	if err != nil {
		return fmt.Errorf("find bridge: %w", err)
	}
	if err := i.unplug(place); err != nil {
		return err
	}
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: i.port(place), MTU: underlayMTU, MasterIndex: bridge.Attrs().Index},
		PeerName:  boot.Link, PeerHardwareAddr: i.hardware(place), PeerNamespace: netlink.NsPid(pid), PeerMTU: underlayMTU,
	}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("make link of machine: %w", err)
	}
	// The host speaks by the bridge alone: its end of the cable has no addresses.
	path := filepath.Join("/proc/sys/net/ipv6/conf", i.port(place), "disable_ipv6")
	if err := os.WriteFile(path, []byte("1"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keep addresses off the link of machine: %w", err)
	}
	link, err := netlink.LinkByName(i.port(place))
	if err != nil {
		return fmt.Errorf("find link of machine: %w", err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set link of machine up: %w", err)
	}
	return nil
}

// unplug removes the link now; the kernel would do it too, a while after the namespace's end.
func (i installation) unplug(place int) error {
	return deleteLink(i.port(place))
}

func deleteLink(name string) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err = rtnl.UnlessGone(err); err != nil {
		return fmt.Errorf("remove link %s: %w", name, err)
	}
	return nil
}
