package wireguard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"powernode/internal/rtnl"
	"powernode/sdwan"
)

// linuxHost is the machine in whose namespaces the agent runs.
type linuxHost struct {
	control *control
	process deviceProcess
}

func newLinuxHost(o Options) *linuxHost {
	return &linuxHost{control: newControl(), process: newDeviceProcess(o)}
}

// Read reads the machine. The parts are no snapshot; what changed in between shows at the next look.
func (h *linuxHost) Read(ctx context.Context, q query) (machine, error) {
	m := machine{Devices: map[string]device{}, Settings: map[string]string{}}
	links, err := rtnl.List(netlink.LinkList)
	if err != nil {
		return m, fmt.Errorf("list links: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		a := l.Attrs()
		names[a.Index] = a.Name
		if slices.Contains(q.Devices, a.Name) {
			m.Devices[a.Name] = h.readDevice(ctx, l)
		}
	}
	if err := readAddresses(&m, names); err != nil {
		return m, err
	}
	if err := readRoutes(&m, names); err != nil {
		return m, err
	}
	keys := slices.Clone(q.Settings)
	for _, ifc := range m.Advertised {
		keys = append(keys, settingAcceptRA(ifc))
	}
	for _, key := range keys {
		v, err := os.ReadFile(filepath.Join("/proc/sys", key))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the interface is not there yet, or the kernel has no such family
		}
		if err != nil {
			return m, fmt.Errorf("read setting: %w", err)
		}
		m.Settings[key] = strings.TrimSpace(string(v))
	}
	return m, nil
}

func (h *linuxHost) readDevice(ctx context.Context, l netlink.Link) device {
	a := l.Attrs()
	d, err := h.control.read(ctx, a.Name)
	switch {
	case errors.Is(err, errNoControl):
		d = device{}
	case err != nil:
		d = device{Unreadable: err}
	default:
		d.Alive = true
	}
	d.Name, d.MTU, d.Up = a.Name, a.MTU, a.Flags&net.FlagUp != 0
	return d
}

func readAddresses(m *machine, names map[int]string) error {
	list, err := rtnl.List(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range list {
		p, ok := toPrefix(a.IPNet)
		if !ok || !p.Addr().IsGlobalUnicast() {
			continue
		}
		name := names[a.LinkIndex]
		if d, ours := m.Devices[name]; ours {
			d.Addresses = append(d.Addresses, p)
			m.Devices[name] = d
			continue
		}
		const unusable = unix.IFA_F_TENTATIVE | unix.IFA_F_DEPRECATED | unix.IFA_F_DADFAILED
		usable := a.Flags&unusable == 0 && (a.Flags&unix.IFA_F_TEMPORARY == 0 || p.Addr().Is4()) // the bit is SECONDARY there
		m.Underlay = append(m.Underlay, underlayAddress{Interface: name, Prefix: p, Usable: usable})
	}
	return nil
}

func readRoutes(m *machine, names map[int]string) error {
	for _, family := range []int{netlink.FAMILY_V6, netlink.FAMILY_V4} {
		list, err := rtnl.List(func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
		if err != nil {
			return fmt.Errorf("list routes: %w", err)
		}
		for _, r := range list {
			readRoute(m, names, family, r)
		}
	}
	return nil
}

func readRoute(m *machine, names map[int]string, family int, r netlink.Route) {
	name := names[r.LinkIndex]
	p, ok := toPrefix(r.Dst)
	if !ok { // the default route is listed without a destination
		p = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if family == netlink.FAMILY_V6 {
			p = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
	}
	const learned = unix.RTPROT_RA
	if r.Protocol == learned && name != "" && !slices.Contains(m.Advertised, name) {
		m.Advertised = append(m.Advertised, name)
	}
	d, onOurs := m.Devices[name]
	switch {
	case r.Protocol == RouteProtocol && r.Type == unix.RTN_UNREACHABLE:
		if r.Priority == UnreachableMetric {
			m.Unreachable = append(m.Unreachable, p)
		}
	case r.Protocol == RouteProtocol && onOurs && r.Priority == RouteMetric:
		source, _ := netip.AddrFromSlice(r.Src)
		d.Routes = append(d.Routes, route{Prefix: p, Source: source.Unmap(), Device: name})
		m.Devices[name] = d
	case r.Protocol == RouteProtocol, onOurs && r.Protocol == unix.RTPROT_KERNEL:
	case p.Bits() == 0, p.Addr().IsMulticast(), p.Addr().IsLinkLocalUnicast(), p.Addr().IsLoopback():
		// The default route overlaps with everything, which says nothing; the others are no traffic of anybody's.
	default:
		m.Foreign = append(m.Foreign, sdwan.HostRoute{Prefix: p, Device: name, Source: routeSource(int(r.Protocol))})
	}
}

func routeSource(protocol int) string {
	switch protocol {
	case unix.RTPROT_KERNEL, unix.RTPROT_RA, unix.RTPROT_REDIRECT:
		return "kernel"
	case unix.RTPROT_STATIC, unix.RTPROT_BOOT, unix.RTPROT_DHCP:
		return "static"
	}
	return "other"
}

// CreateDevice makes a kernel device where the kernel has WireGuard, otherwise starts a process that is one.
func (h *linuxHost) CreateDevice(ctx context.Context, name string, mtu int) error {
	err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu}})
	if err == nil || !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EPROTONOSUPPORT) {
		return err
	}
	if err := h.process.start(ctx, name, mtu); err != nil {
		return err
	}
	return await(ctx, "the control socket of "+name, func() (bool, error) {
		if _, err := h.control.read(ctx, name); err != nil {
			return false, ignore(err, errNoControl)
		}
		_, err := netlink.LinkByName(name)
		return err == nil, nil
	})
}

func (h *linuxHost) RemoveDevice(ctx context.Context, name string) error {
	link, err := netlink.LinkByName(name)
	if rtnl.Gone(err) {
		return h.process.end(ctx, name)
	}
	if err != nil {
		return err
	}
	owner, err := h.process.owner(name)
	if err != nil {
		return err
	}
	if err := rtnl.UnlessGone(netlink.LinkDel(link)); err != nil {
		return err
	}
	return h.process.ended(ctx, name, owner)
}

func (h *linuxHost) Configure(ctx context.Context, name string, c configuration) error {
	if c.ListenPort != nil {
		if err := portFree(ctx, *c.ListenPort); err != nil {
			return err
		}
	}
	return h.control.configure(ctx, name, c)
}

// portFree finds out before the device does: a userspace device that comes up binds its port on its own, and nobody
// hears of the failure.
func portFree(ctx context.Context, port int) error {
	var l net.ListenConfig
	for _, network := range []string{"udp4", "udp6"} {
		c, err := l.ListenPacket(ctx, network, fmt.Sprintf(":%d", port))
		if errors.Is(err, unix.EADDRINUSE) {
			return fmt.Errorf("port %d is in use by another program: %w", port, unix.EADDRINUSE)
		}
		if err == nil {
			_ = c.Close()
		}
	}
	return nil
}

func (h *linuxHost) SetMTU(_ context.Context, name string, mtu int) error {
	return onLink(name, func(l netlink.Link) error { return netlink.LinkSetMTU(l, mtu) })
}

func (h *linuxHost) SetUp(_ context.Context, name string) error {
	return onLink(name, netlink.LinkSetUp)
}

func (h *linuxHost) AddAddress(_ context.Context, name string, p netip.Prefix) error {
	return onLink(name, func(l netlink.Link) error {
		err := netlink.AddrAdd(l, &netlink.Addr{IPNet: toIPNet(p), Flags: unix.IFA_F_NODAD})
		if errors.Is(err, unix.EEXIST) {
			return nil
		}
		if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
			return fmt.Errorf("%w (is net.ipv6.conf.%s.disable_ipv6 or net.ipv6.conf.all.disable_ipv6 set?)", err, name)
		}
		return err
	})
}

func (h *linuxHost) RemoveAddress(_ context.Context, name string, p netip.Prefix) error {
	return rtnl.UnlessGone(onLink(name, func(l netlink.Link) error {
		return netlink.AddrDel(l, &netlink.Addr{IPNet: toIPNet(p)})
	}))
}

func (h *linuxHost) AddRoute(_ context.Context, r route) error {
	k, err := kernelRoute(r)
	if err != nil {
		return err
	}
	if err := netlink.RouteAdd(k); errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("a route of somebody else has this prefix and metric: %w", err)
	} else if err != nil {
		return err
	}
	return nil
}

func (h *linuxHost) ReplaceRoute(_ context.Context, r route) error {
	k, err := kernelRoute(r)
	if err != nil {
		return err
	}
	return netlink.RouteReplace(k)
}

func (h *linuxHost) RemoveRoute(_ context.Context, r route) error {
	k, err := kernelRoute(r)
	if err == nil {
		err = netlink.RouteDel(k)
	}
	return rtnl.UnlessGone(err) // with its interface, where that is gone
}

func kernelRoute(r route) (*netlink.Route, error) {
	k := &netlink.Route{Dst: toIPNet(r.Prefix), Protocol: RouteProtocol, Priority: RouteMetric, Table: unix.RT_TABLE_MAIN}
	if r.Device == "" {
		k.Type, k.Priority = unix.RTN_UNREACHABLE, UnreachableMetric
		return k, nil
	}
	link, err := netlink.LinkByName(r.Device)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.Device, err)
	}
	k.LinkIndex = link.Attrs().Index
	if r.Source.IsValid() {
		k.Src = r.Source.AsSlice()
	}
	if r.Prefix.Addr().Is4() {
		k.Scope = netlink.SCOPE_LINK
	}
	return k, nil
}

// WriteSetting writes and reads back: some settings take a value and keep another.
func (h *linuxHost) WriteSetting(_ context.Context, key, value string) error {
	path := filepath.Join("/proc/sys", key)
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		return err
	}
	got, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if v := strings.TrimSpace(string(got)); v != value {
		return fmt.Errorf("it is %s afterwards", v)
	}
	return nil
}

// KernelWireGuard says whether the kernel has a driver loaded; a device that is made loads it where there is one.
func (h *linuxHost) KernelWireGuard(context.Context) bool {
	_, err := netlink.GenlFamilyGet("wireguard")
	return err == nil
}

func onLink(name string, do func(netlink.Link) error) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return do(link)
}

func ignore(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

// awaitLimit is how long a process of ours may take to appear or go.
const awaitLimit = 5 * time.Second

// await asks until the answer is yes, an error, or the time is up.
func await(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, awaitLimit)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
}

func toPrefix(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	ones, bits := n.Mask.Size()
	if a.Is4In6() && bits == 32 {
		a = a.Unmap()
	}
	p := netip.PrefixFrom(a, ones)
	return p, p.IsValid()
}

func toIPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
