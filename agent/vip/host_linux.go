package vip

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// linuxHost is the machine in whose namespace the agent runs.
type linuxHost struct{}

// dumpTries bounds how often a listing is read again that changed while it was read.
const dumpTries = 5

func (linuxHost) Read(ctx context.Context, devices []string) (map[string][]address, error) {
	out := map[string][]address{}
	if len(devices) == 0 {
		return out, ctx.Err()
	}
	links, err := dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		if a := l.Attrs(); slices.Contains(devices, a.Name) {
			names[a.Index], out[a.Name] = a.Name, nil
		}
	}
	list, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V6) })
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

func dump[T any](list func() ([]T, error)) ([]T, error) {
	for try := 1; ; try++ {
		out, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || try == dumpTries {
			return out, err
		}
	}
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
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err != nil {
		return err
	}
	err = netlink.AddrDel(link, &netlink.Addr{IPNet: single(a)})
	if errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.ENODEV) { // gone, or gone with its interface since
		return nil
	}
	return err
}

func single(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(128, 128)}
}
