package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"powernode/internal/rtnl"
)

// namedNamespaces are those that `ip netns` shows.
func namedNamespaces() ([]string, error) {
	entries, err := os.ReadDir("/run/netns")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []string
	for _, e := range entries {
		out = append(out, filepath.Join("/run/netns", e.Name()))
	}
	return out, err
}

func links() ([]string, error) {
	list, err := rtnl.List(netlink.LinkList)
	var out []string
	for _, l := range list {
		out = append(out, fmt.Sprintf("%s (%s)", l.Attrs().Name, l.Type()))
	}
	return out, err
}

// addresses leaves out those that a router hands out: they change by themselves.
func addresses() ([]string, error) {
	list, err := rtnl.List(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	var out []string
	for _, a := range list {
		if a.Flags&unix.IFA_F_PERMANENT != 0 {
			out = append(out, fmt.Sprintf("%s on link %d", a.IPNet, a.LinkIndex))
		}
	}
	return out, err
}

// routes are those that somebody set: not the kernel's own, a router's or a DHCP server's.
func routes() ([]string, error) {
	list, err := rtnl.List(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	})
	var out []string
	for _, r := range list {
		switch r.Protocol {
		case unix.RTPROT_KERNEL, unix.RTPROT_RA, unix.RTPROT_DHCP, unix.RTPROT_REDIRECT:
		default:
			out = append(out, fmt.Sprintf("%s via %s, link %d, table %d", r.Dst, r.Gw, r.LinkIndex, r.Table))
		}
	}
	return out, err
}

// tables need root. Without it no test can make one.
func tables() ([]string, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	list, err := conn.ListTables()
	if os.Geteuid() != 0 && errors.Is(err, unix.EPERM) {
		return []string{"not looked at: that needs root"}, nil
	}
	var out []string
	for _, t := range list {
		out = append(out, fmt.Sprintf("%s (family %d)", t.Name, t.Family))
	}
	return out, err
}
