package wireguard

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"powernode/sdwan"
)

// minMTU is IPv6's: below it the kernel takes addresses and routes off an interface without a word.
const minMTU = 1280

// wanted is a document in the words of this package.
type wanted struct {
	Devices     []wantedDevice
	Unreachable []netip.Prefix
	Forward6    bool
	Forward4    bool
	// Partial: a network was not understood, so nothing may be concluded from what is missing.
	Partial bool
}

type wantedDevice struct {
	Name       string
	NetworkID  string
	CIDR       netip.Prefix
	PrivateKey wgtypes.Key
	ListenPort int
	MTU        int
	Addresses  []netip.Prefix
	Routes     []route
	Peers      []wantedPeer
}

type wantedPeer struct {
	PeerID     string
	Key        wgtypes.Key
	AllowedIPs []netip.Prefix
	Keepalive  time.Duration
	Candidates []netip.AddrPort // in order of preference
	Name       string           // a host name still to be resolved, with NamePort
	NamePort   int
	Endpoint   netip.AddrPort // what it must be now; invalid leaves the endpoint alone
}

// fromDocument translates a document. A network that is not understood is left out, named in the error and makes the
// result partial.
func fromDocument(doc *sdwan.Document, key func(networkID string) (wgtypes.Key, error)) (wanted, error) {
	var w wanted
	var errs []error
	names, ports := map[string]bool{}, map[int]bool{}
	for _, n := range doc.Networks {
		d, unreachable, err := fromNetwork(n, key)
		if err == nil && names[d.Name] {
			err = fmt.Errorf("interface %s has another network already", d.Name)
		}
		if err == nil && ports[d.ListenPort] {
			err = fmt.Errorf("port %d has another network already", d.ListenPort)
		}
		if err != nil {
			w.Partial = true
			errs = append(errs, fmt.Errorf("network %s: %w", n.NetworkID, err))
			continue
		}
		names[d.Name], ports[d.ListenPort] = true, true
		w.Devices = append(w.Devices, d)
		w.Unreachable = append(w.Unreachable, unreachable...)
		if n.Forward != "" && n.Forward != "off" {
			w.Forward6 = true
			w.Forward4 = w.Forward4 || slices.ContainsFunc(n.Addresses, func(p netip.Prefix) bool { return p.Addr().Is4() })
		}
	}
	if runsK3s(doc.K3s) {
		w.Forward6, w.Forward4 = true, true
	}
	slices.SortFunc(w.Devices, func(a, b wantedDevice) int { return cmp.Compare(a.Name, b.Name) })
	w.Unreachable = sortedPrefixes(w.Unreachable)
	return w, errors.Join(errs...)
}

func runsK3s(k sdwan.K3s) bool {
	return k.Server != nil && k.Server.State == "present" || k.Agent != nil && k.Agent.State == "present"
}

var deviceName = regexp.MustCompile(`^wg-sdwan-[1-9][0-9]{0,3}$`)

func fromNetwork(n sdwan.Network, key func(string) (wgtypes.Key, error)) (wantedDevice, []netip.Prefix, error) {
	d := wantedDevice{Name: n.DeviceName, NetworkID: n.NetworkID, CIDR: n.CIDR.Masked(), ListenPort: n.ListenPort, MTU: n.MTU}
	switch {
	case !deviceName.MatchString(n.DeviceName):
		return d, nil, fmt.Errorf("interface name %q is not wg-sdwan-1 to wg-sdwan-9999", n.DeviceName)
	case n.MTU < minMTU || n.MTU > 65535:
		return d, nil, fmt.Errorf("MTU %d: IPv6 needs at least %d, and an interface takes at most 65535", n.MTU, minMTU)
	case n.ListenPort < 1 || n.ListenPort > 65535:
		return d, nil, fmt.Errorf("listen port %d is none", n.ListenPort)
	case !n.CIDR.IsValid() || !n.CIDR.Addr().Is6() || n.CIDR.Bits() != 64:
		return d, nil, fmt.Errorf("cidr %s is no /64", n.CIDR)
	case n.Key.State != "" && n.Key.State != "current":
		return d, nil, fmt.Errorf("key state %q is not available yet", n.Key.State)
	}
	for _, a := range n.Addresses {
		if !a.IsValid() || !a.IsSingleIP() {
			return d, nil, fmt.Errorf("address %s is no single address", a)
		}
		d.Addresses = append(d.Addresses, a)
	}
	d.Addresses = sortedPrefixes(d.Addresses)
	var unreachable []netip.Prefix
	for _, r := range n.Routes {
		switch {
		case !r.Prefix.IsValid():
			return d, nil, errors.New("a route has no prefix")
		case r.Unreachable:
			unreachable = append(unreachable, r.Prefix.Masked())
		default:
			d.Routes = append(d.Routes, route{Prefix: r.Prefix.Masked(), Source: r.Source, Device: n.DeviceName})
		}
	}
	slices.SortFunc(d.Routes, compareRoutes)
	private, err := key(n.NetworkID)
	if err != nil {
		return d, nil, err
	}
	d.PrivateKey = private
	if d.Peers, err = fromPeers(n.Peers, private.PublicKey()); err != nil {
		return d, nil, err
	}
	return d, unreachable, nil
}

func fromPeers(in []sdwan.Peer, own wgtypes.Key) ([]wantedPeer, error) {
	var out []wantedPeer
	seen, owner := map[wgtypes.Key]string{}, map[netip.Prefix]string{}
	for _, p := range in {
		if p.PublicKey == "" {
			continue // its node has made no key yet; the document names it under not_ready
		}
		key, err := wgtypes.ParseKey(p.PublicKey)
		switch {
		case err != nil:
			return nil, fmt.Errorf("peer %s: public key: %w", p.PeerID, err)
		case key == own:
			return nil, fmt.Errorf("peer %s has this node's own key", p.PeerID)
		case seen[key] != "":
			return nil, fmt.Errorf("peers %s and %s have one key", seen[key], p.PeerID)
		case p.NextPublicKey != "":
			return nil, fmt.Errorf("peer %s: a successor key is not available yet", p.PeerID)
		}
		seen[key] = p.PeerID
		w := wantedPeer{PeerID: p.PeerID, Key: key, Keepalive: time.Duration(p.KeepaliveSeconds) * time.Second}
		for _, a := range p.AllowedIPs {
			a = netip.PrefixFrom(a.Addr().Unmap(), a.Bits()).Masked()
			if !a.IsValid() {
				return nil, fmt.Errorf("peer %s: an allowed prefix is none", p.PeerID)
			}
			if o := owner[a]; o != "" && o != p.PeerID {
				return nil, fmt.Errorf("peers %s and %s both own %s", o, p.PeerID, a)
			}
			owner[a] = p.PeerID
			w.AllowedIPs = append(w.AllowedIPs, a)
		}
		w.AllowedIPs = sortedPrefixes(w.AllowedIPs)
		for _, e := range p.Endpoints {
			if e.IsValid() {
				w.Candidates = append(w.Candidates, netip.AddrPortFrom(e.Addr().Unmap(), e.Port()))
			}
		}
		if p.EndpointHost != "" {
			if addr, err := netip.ParseAddr(p.EndpointHost); err == nil {
				w.Candidates = append(w.Candidates, netip.AddrPortFrom(addr.Unmap(), uint16(p.EndpointPort)))
			} else {
				w.Name, w.NamePort = p.EndpointHost, p.EndpointPort
			}
		}
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b wantedPeer) int { return slices.Compare(a.Key[:], b.Key[:]) })
	return out, nil
}

// refuseRoutes takes out what would lead traffic of the machine itself into a tunnel: the default route, and prefixes
// that hold an address or the link of another interface. The compiler refuses them too.
func refuseRoutes(w *wanted, have machine) error {
	var errs []error
	for i := range w.Devices {
		d := &w.Devices[i]
		d.Routes = slices.DeleteFunc(d.Routes, func(r route) bool {
			if r.Prefix.Bits() == 0 {
				errs = append(errs, fmt.Errorf("%s: route %s refused: it is the default route", d.Name, r.Prefix))
				return true
			}
			for _, a := range have.Underlay {
				if r.Prefix.Contains(a.Prefix.Addr()) {
					errs = append(errs, fmt.Errorf("%s: route %s refused: it covers %s of %s", d.Name, r.Prefix, a.Prefix, a.Interface))
					return true
				}
			}
			return false
		})
	}
	return errors.Join(errs...)
}

func sortedPrefixes(in []netip.Prefix) []netip.Prefix {
	out := slices.Clone(in)
	slices.SortFunc(out, comparePrefixes)
	return slices.Compact(out)
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

func compareRoutes(a, b route) int {
	return cmp.Or(comparePrefixes(a.Prefix, b.Prefix), cmp.Compare(a.Device, b.Device))
}
