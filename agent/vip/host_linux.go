package vip

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"powernode/internal/rtnl"
)

// linuxHost is the machine in whose namespace the agent runs.
type linuxHost struct{}

func (linuxHost) Read(ctx context.Context, devices []string) (map[string][]address, error) {
	out := map[string][]address{}
	if len(devices) == 0 {
		return out, ctx.Err()
	}
	links, err := rtnl.List(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		if a := l.Attrs(); slices.Contains(devices, a.Name) {
			names[a.Index], out[a.Name] = a.Name, nil
		}
	}
	list, err := rtnl.List(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V6) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range list {
		name, asked := names[a.LinkIndex]
		addr, ok := netip.AddrFromSlice(a.IP)
		if asked && ok && addr.IsGlobalUnicast() {
			out[name] = append(out[name], address{addr, a.Flags&unix.IFA_F_DEPRECATED != 0})
		}
	}
	return out, nil
}

// Put adds the address deprecated from the start: valid for ever, preferred for no time.
func (linuxHost) Put(_ context.Context, device string, a netip.Addr) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	return netlink.AddrReplace(link, &netlink.Addr{
		IPNet: single(a), Flags: unix.IFA_F_NODAD, ValidLft: math.MaxUint32, PreferedLft: 0,
	})
}

func (linuxHost) Remove(_ context.Context, device string, a netip.Addr) error {
	link, err := netlink.LinkByName(device)
	if err == nil {
		err = netlink.AddrDel(link, &netlink.Addr{IPNet: single(a)})
	}
	return rtnl.UnlessGone(err) // with its interface, where that is gone
}

func single(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(128, 128)}
}
