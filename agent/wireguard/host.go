package wireguard

import (
	"context"
	"net/netip"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"powernode/sdwan"
)

// Marks of our routes. Only a route that carries protocol and metric is ours.
const (
	// RouteProtocol is the protocol number of every route that the agent installs.
	RouteProtocol = 151
	// RouteMetric is the metric of routes through an overlay interface.
	RouteMetric = 512
	// UnreachableMetric is the metric of routes that make a prefix fail: any other route of the same prefix wins.
	UnreachableMetric = 1 << 30
)

// host is what the subsystem needs of a machine: one read, and writes that each change one thing.
type host interface {
	Read(ctx context.Context, q query) (machine, error)
	CreateDevice(ctx context.Context, name string, mtu int) error
	RemoveDevice(ctx context.Context, name string) error
	Configure(ctx context.Context, name string, c configuration) error
	SetMTU(ctx context.Context, name string, mtu int) error
	SetUp(ctx context.Context, name string) error
	AddAddress(ctx context.Context, name string, p netip.Prefix) error
	RemoveAddress(ctx context.Context, name string, p netip.Prefix) error
	AddRoute(ctx context.Context, r route) error
	ReplaceRoute(ctx context.Context, r route) error
	RemoveRoute(ctx context.Context, r route) error
	WriteSetting(ctx context.Context, key, value string) error
	KernelWireGuard(ctx context.Context) bool
}

// query names what Read is to look at beside what it always reads.
type query struct {
	Devices  []string // interface names that may be ours
	Settings []string // below /proc/sys
}

// machine is what was read. What could not be read is an error of Read, never an empty field.
type machine struct {
	Devices     map[string]device // the asked ones that exist
	Unreachable []netip.Prefix    // unreachable routes of ours
	Settings    map[string]string
	Underlay    []underlayAddress // global addresses of interfaces that were not asked for
	Foreign     []sdwan.HostRoute // routes that are not ours
	Advertised  []string          // interfaces with a route learned from a router advertisement
}

// device is a WireGuard interface as it is.
type device struct {
	Name       string
	Alive      bool  // has a control socket, or is the kernel's; a link without one is of no use
	Unreadable error // its control did not answer in time: nothing is known, nothing is done
	Up         bool
	MTU        int
	PublicKey  wgtypes.Key
	ListenPort int
	Peers      []peer
	Addresses  []netip.Prefix // global ones
	Routes     []route        // ours
}

// peer is a peer of a device as it is.
type peer struct {
	Key        wgtypes.Key
	Endpoint   netip.AddrPort // invalid: none
	AllowedIPs []netip.Prefix
	Keepalive  time.Duration
	Handshake  time.Time // zero: never
	RX, TX     int64
}

// route is a route of ours. An empty Device makes it unreachable.
type route struct {
	Prefix netip.Prefix
	Source netip.Addr
	Device string
}

// underlayAddress is an address under which the machine may be reached from outside the overlay.
type underlayAddress struct {
	Interface string
	Prefix    netip.Prefix
	Usable    bool // neither tentative, deprecated nor temporary
}

// configuration is a change of a device in one transaction. Nil and absent leave alone.
type configuration struct {
	PrivateKey *wgtypes.Key
	ListenPort *int
	Peers      []peerChange // in this order
}

// peerChange changes one peer. An invalid Endpoint and a nil Keepalive leave alone.
type peerChange struct {
	Key        wgtypes.Key
	Add        bool
	Remove     bool
	Endpoint   netip.AddrPort
	Keepalive  *time.Duration
	AllowedIPs []netip.Prefix // added, which moves them from their owner
	Replace    bool           // AllowedIPs are all that stays
}

// Names below /proc/sys.
const (
	settingForward6 = "net/ipv6/conf/all/forwarding"
	settingForward4 = "net/ipv4/ip_forward"
)

func settingAcceptRA(ifc string) string    { return "net/ipv6/conf/" + ifc + "/accept_ra" }
func settingDisableIPv6(ifc string) string { return "net/ipv6/conf/" + ifc + "/disable_ipv6" }
func settingRPFilter(ifc string) string    { return "net/ipv4/conf/" + ifc + "/rp_filter" }
