package boot

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
)

// configureNetwork sets lo and the link to the underlay up. The link is there already.
func configureNetwork(spec Spec) error {
	for _, name := range []string{"lo", Link} {
		if err := quietLink(name); err != nil {
			return err
		}
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find %s: %w", name, err)
		}
		if name == Link {
			if err := address(link, spec.Addresses); err != nil {
				return err
			}
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("set %s up: %w", name, err)
		}
		if name == Link {
			if err := route(link, spec.Gateways); err != nil {
				return err
			}
		}
	}
	return nil
}

// quietLink keeps the link from asking for routers and from waiting for duplicates: the provider gave the addresses.
func quietLink(name string) error {
	for key, value := range map[string]string{"accept_ra": "0", "accept_dad": "0", "router_solicitations": "0", "disable_ipv6": "0"} {
		path := filepath.Join("/proc/sys/net/ipv6/conf", name, key)
		if err := os.WriteFile(path, []byte(value), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("set %s of %s: %w", key, name, err)
		}
	}
	return nil
}

func address(link netlink.Link, prefixes []netip.Prefix) error {
	for _, p := range prefixes {
		a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
		if p.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrReplace(link, a); err != nil {
			return fmt.Errorf("add address %s: %w", p, err)
		}
	}
	return nil
}

func route(link netlink.Link, gateways []netip.Addr) error {
	for _, gw := range gateways {
		r := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: gw.AsSlice(), Dst: &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}}
		if gw.Is6() {
			r.Dst = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
		}
		if err := netlink.RouteReplace(r); err != nil {
			return fmt.Errorf("add route by %s: %w", gw, err)
		}
	}
	return nil
}
