package wireguard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"powernode/sdwan"
)

var errCutOff = errors.New("cut off")

// fakeHost is a machine in memory that prints itself, counts writes and can fail after some.
type fakeHost struct {
	mu      sync.Mutex
	devices map[string]*device
	unreach []netip.Prefix
	sysctl  map[string]string
	writes  int
	cutOff  int // writes until they fail; negative: never
}

func newFakeHost() *fakeHost {
	return &fakeHost{devices: map[string]*device{}, cutOff: -1, sysctl: map[string]string{settingForward6: "0", settingForward4: "0"}}
}

// write counts, and does what follows unless the machine is cut off.
func (h *fakeHost) write(do func() error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cutOff == 0 {
		return errCutOff
	}
	h.cutOff--
	h.writes++
	return do()
}

func (h *fakeHost) onDevice(name string, do func(*device) error) error {
	return h.write(func() error {
		d := h.devices[name]
		if d == nil {
			return fmt.Errorf("no link %s", name)
		}
		return do(d)
	})
}

func (h *fakeHost) Read(_ context.Context, q query) (machine, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := machine{Devices: map[string]device{}, Settings: maps.Clone(h.sysctl), Unreachable: slices.Clone(h.unreach)}
	for name, d := range h.devices {
		if slices.Contains(q.Devices, name) {
			c := *d
			c.Peers = nil
			for _, p := range d.Peers {
				p.AllowedIPs = slices.Clone(p.AllowedIPs)
				c.Peers = append(c.Peers, p)
			}
			c.Addresses, c.Routes = slices.Clone(d.Addresses), slices.Clone(d.Routes)
			m.Devices[name] = c
		}
	}
	return m, nil
}

func (h *fakeHost) CreateDevice(_ context.Context, name string, mtu int) error {
	return h.write(func() error {
		if h.devices[name] != nil {
			return fmt.Errorf("link %s exists", name)
		}
		h.devices[name] = &device{Name: name, Alive: true, MTU: mtu}
		return nil
	})
}

func (h *fakeHost) RemoveDevice(_ context.Context, name string) error {
	return h.write(func() error { delete(h.devices, name); return nil })
}

func (h *fakeHost) Configure(_ context.Context, name string, c configuration) error {
	return h.onDevice(name, func(d *device) error {
		if c.PrivateKey != nil {
			d.PublicKey = c.PrivateKey.PublicKey()
		}
		if c.ListenPort != nil {
			for _, o := range h.devices {
				if o != d && o.ListenPort == *c.ListenPort {
					return fmt.Errorf("port %d is in use", *c.ListenPort)
				}
			}
			d.ListenPort = *c.ListenPort
		}
		for _, p := range c.Peers {
			if err := d.change(p); err != nil {
				return err
			}
		}
		slices.SortFunc(d.Peers, func(a, b peer) int { return cmp.Compare(string(a.Key[:]), string(b.Key[:])) })
		return nil
	})
}

// change does what WireGuard does: a prefix has one owner, and naming another moves it.
func (d *device) change(c peerChange) error {
	at := slices.IndexFunc(d.Peers, func(p peer) bool { return p.Key == c.Key })
	if c.Remove {
		d.Peers = slices.DeleteFunc(d.Peers, func(p peer) bool { return p.Key == c.Key })
		return nil
	}
	if at < 0 {
		if !c.Add {
			return errors.New("no such peer")
		}
		d.Peers = append(d.Peers, peer{Key: c.Key})
		at = len(d.Peers) - 1
	}
	for i := range d.Peers {
		d.Peers[i].AllowedIPs = slices.DeleteFunc(d.Peers[i].AllowedIPs, func(a netip.Prefix) bool {
			return slices.Contains(c.AllowedIPs, a) || i == at && c.Replace
		})
	}
	p := &d.Peers[at]
	p.AllowedIPs = sortedPrefixes(append(p.AllowedIPs, c.AllowedIPs...))
	if c.Endpoint.IsValid() {
		p.Endpoint = c.Endpoint
	}
	if c.Keepalive != nil {
		p.Keepalive = *c.Keepalive
	}
	return nil
}

func (h *fakeHost) SetMTU(_ context.Context, name string, mtu int) error {
	return h.onDevice(name, func(d *device) error { d.MTU = mtu; return nil })
}

func (h *fakeHost) SetUp(_ context.Context, name string) error {
	return h.onDevice(name, func(d *device) error { d.Up = true; return nil })
}

func (h *fakeHost) AddAddress(_ context.Context, name string, p netip.Prefix) error {
	return h.onDevice(name, func(d *device) error { d.Addresses = append(d.Addresses, p); return nil })
}

func (h *fakeHost) RemoveAddress(_ context.Context, name string, p netip.Prefix) error {
	return h.onDevice(name, func(d *device) error {
		d.Addresses = slices.DeleteFunc(d.Addresses, func(a netip.Prefix) bool { return a == p })
		return nil
	})
}

func (h *fakeHost) AddRoute(_ context.Context, r route) error {
	if r.Device == "" {
		return h.write(func() error { h.unreach = append(h.unreach, r.Prefix); return nil })
	}
	return h.onDevice(r.Device, func(d *device) error {
		switch {
		case !d.Up:
			return errors.New("network is down")
		case r.Source.IsValid() && !slices.Contains(d.Addresses, netip.PrefixFrom(r.Source, r.Source.BitLen())):
			return errors.New("the source is no address of ours")
		case slices.ContainsFunc(d.Routes, func(o route) bool { return o.Prefix == r.Prefix }):
			return errors.New("the route exists")
		}
		d.Routes = append(d.Routes, r)
		return nil
	})
}

func (h *fakeHost) ReplaceRoute(_ context.Context, r route) error {
	return h.onDevice(r.Device, func(d *device) error {
		d.Routes = append(slices.DeleteFunc(d.Routes, func(o route) bool { return o.Prefix == r.Prefix }), r)
		return nil
	})
}

func (h *fakeHost) RemoveRoute(_ context.Context, r route) error {
	if r.Device == "" {
		return h.write(func() error {
			h.unreach = slices.DeleteFunc(h.unreach, func(p netip.Prefix) bool { return p == r.Prefix })
			return nil
		})
	}
	return h.onDevice(r.Device, func(d *device) error {
		d.Routes = slices.DeleteFunc(d.Routes, func(o route) bool { return o.Prefix == r.Prefix })
		return nil
	})
}

func (h *fakeHost) WriteSetting(_ context.Context, key, value string) error {
	return h.write(func() error { h.sysctl[key] = value; return nil })
}

func (h *fakeHost) KernelWireGuard(context.Context) bool { return false }

// print is the machine as text; names gives peers their names.
func (h *fakeHost) print(names map[wgtypes.Key]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(h.devices)) {
		d := h.devices[name]
		fmt.Fprintf(&b, "%s mtu %d port %d up %v\n", name, d.MTU, d.ListenPort, d.Up)
		for _, a := range sortedPrefixes(d.Addresses) {
			fmt.Fprintf(&b, "  address %s\n", a)
		}
		slices.SortFunc(d.Routes, compareRoutes)
		for _, r := range d.Routes {
			fmt.Fprintf(&b, "  route %s\n", r)
		}
		for _, p := range d.Peers {
			fmt.Fprintf(&b, "  peer %s %s %s %v\n", names[p.Key], p.Endpoint, p.Keepalive, p.AllowedIPs)
		}
	}
	for _, u := range sortedPrefixes(h.unreach) {
		fmt.Fprintf(&b, "unreachable %s\n", u)
	}
	for _, k := range slices.Sorted(maps.Keys(h.sysctl)) {
		fmt.Fprintf(&b, "%s %s\n", k, h.sysctl[k])
	}
	return b.String()
}

// situation is a document and the machine that it makes, as text.
type situation struct {
	name string
	doc  *sdwan.Document
	want string
}

const off = "net/ipv4/ip_forward 0\nnet/ipv6/conf/all/forwarding 0\n"

// situations are all reachable from one another.
func situations() (all []situation, names map[wgtypes.Key]string) {
	names = map[wgtypes.Key]string{}
	member := func(short, port int, change func(*sdwan.Network)) sdwan.Network {
		n := member(1).Networks[0]
		n.DeviceName, n.ListenPort = fmt.Sprintf("wg-sdwan-%d", short), port
		n.Peers = []sdwan.Peer{}
		for i, letter := range []byte{'a', 'b'} {
			names[key(letter)] = string(letter)
			n.Peers = append(n.Peers, sdwan.Peer{PeerID: string(letter), PublicKey: key(letter).String(), KeepaliveSeconds: 25,
				Endpoints:  []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr("fd00::1"), uint16(i+1))},
				AllowedIPs: []netip.Prefix{overlay(10 + i)}})
		}
		if change != nil {
			change(&n)
		}
		return n
	}
	vip := netip.MustParsePrefix("fd5e:8a21:c0de:1::100/128")
	one := member(1, 1000, nil)
	const peerA, peerB = "  peer a [fd00::1]:1 25s [fd5e:8a21:c0de:1::1:a/128]\n", "  peer b [fd00::1]:2 25s [fd5e:8a21:c0de:1::1:b/128]\n"
	const addressing = "  address fd5e:8a21:c0de:1::1:1/128\n  route fd5e:8a21:c0de:1::/64 dev wg-sdwan-1 src fd5e:8a21:c0de:1::1:1\n"
	const head, unreachable = "wg-sdwan-1 mtu 1420 port 1000 up true\n" + addressing, "unreachable fd5e:8a21:c0de::/48\n"
	return []situation{
		{"no network", &sdwan.Document{}, off},
		{"two peers", &sdwan.Document{Networks: []sdwan.Network{one}}, head + peerA + peerB + unreachable + off},
		{"one peer", &sdwan.Document{Networks: []sdwan.Network{member(1, 1000, func(n *sdwan.Network) { n.Peers = n.Peers[:1] })}},
			head + peerA + unreachable + off},
		{"a virtual IP at a", &sdwan.Document{Networks: []sdwan.Network{member(1, 1000, func(n *sdwan.Network) {
			n.Peers[0].AllowedIPs = append(n.Peers[0].AllowedIPs, vip)
		})}}, head + "  peer a [fd00::1]:1 25s [fd5e:8a21:c0de:1::100/128 fd5e:8a21:c0de:1::1:a/128]\n" + peerB + unreachable + off},
		{"a virtual IP at b", &sdwan.Document{Networks: []sdwan.Network{member(1, 1000, func(n *sdwan.Network) {
			n.Peers[1].AllowedIPs = append(n.Peers[1].AllowedIPs, vip)
		})}}, head + peerA + "  peer b [fd00::1]:2 25s [fd5e:8a21:c0de:1::100/128 fd5e:8a21:c0de:1::1:b/128]\n" + unreachable + off},
		{"forwarding, another MTU and port", &sdwan.Document{Networks: []sdwan.Network{member(1, 1001, func(n *sdwan.Network) {
			n.MTU, n.Forward, n.Peers = 1380, "on", nil
		})}}, "wg-sdwan-1 mtu 1380 port 1001 up true\n" + addressing + unreachable +
			"net/ipv4/ip_forward 0\nnet/ipv6/conf/all/forwarding 1\n"},
		{"K3s", &sdwan.Document{Networks: []sdwan.Network{member(1, 1000, func(n *sdwan.Network) { n.Peers = nil })},
			K3s: sdwan.K3s{Agent: &sdwan.K3sAgent{State: "present"}}}, head + unreachable +
			"net/ipv4/ip_forward 1\nnet/ipv6/conf/all/forwarding 1\n"},
		{"another interface takes over the port", &sdwan.Document{Networks: []sdwan.Network{member(2, 1000, func(n *sdwan.Network) {
			n.NetworkID, n.Peers, n.Routes = "other", nil, nil
		})}}, "wg-sdwan-2 mtu 1420 port 1000 up true\n  address fd5e:8a21:c0de:1::1:1/128\n" + off},
		{"another address", &sdwan.Document{Networks: []sdwan.Network{member(1, 1000, func(n *sdwan.Network) {
			n.Addresses, n.Peers = []netip.Prefix{overlay(7)}, nil
			n.Routes = []sdwan.Route{{Prefix: testCIDR, Source: overlay(7).Addr()}}
		})}}, "wg-sdwan-1 mtu 1420 port 1000 up true\n  address fd5e:8a21:c0de:1::1:7/128\n" +
			"  route fd5e:8a21:c0de:1::/64 dev wg-sdwan-1 src fd5e:8a21:c0de:1::1:7\n" + off},
	}, names
}

func newFakeSubsystem(t *testing.T, dir string, h *fakeHost) *Subsystem {
	t.Helper()
	return newSubsystem(Options{StateDir: dir, Log: zerolog.Nop()}, h)
}

func TestEveryOrderOfDocumentsEndsAsTheLastOne(t *testing.T) {
	t.Parallel()
	all, names := situations()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	dir, h := t.TempDir(), newFakeHost()
	s := newFakeSubsystem(t, dir, h)
	for range 300 {
		c := all[rng.IntN(len(all))]
		if rng.IntN(4) == 0 {
			s = newFakeSubsystem(t, dir, h) // the agent restarts
		}
		if err := s.Reconcile(t.Context(), c.doc); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if d := gocmp.Diff(c.want, h.print(names)); d != "" {
			t.Fatalf("%s (-want +got)\n%s", c.name, d)
		}
		before := h.writes
		if err := s.Reconcile(t.Context(), c.doc); err != nil || h.writes != before {
			t.Fatalf("%s again: %d writes, %v; want none", c.name, h.writes-before, err)
		}
	}
}

func TestAnAgentCutOffAfterAnyWriteIsContinued(t *testing.T) {
	t.Parallel()
	all, names := situations()
	for i, from := range all {
		to := all[(i*2+1)%len(all)]
		for cut := 0; ; cut++ {
			dir, h := t.TempDir(), newFakeHost()
			if err := newFakeSubsystem(t, dir, h).Reconcile(t.Context(), from.doc); err != nil {
				t.Fatal(err)
			}
			h.cutOff = cut
			err := newFakeSubsystem(t, dir, h).Reconcile(t.Context(), to.doc)
			if err != nil && !errors.Is(err, errCutOff) {
				t.Fatalf("%s → %s cut off after %d writes: %v", from.name, to.name, cut, err)
			}
			h.cutOff = -1
			if err := newFakeSubsystem(t, dir, h).Reconcile(t.Context(), to.doc); err != nil {
				t.Fatal(err)
			}
			if d := gocmp.Diff(to.want, h.print(names)); d != "" {
				t.Fatalf("%s → %s cut off after %d writes (-want +got)\n%s", from.name, to.name, cut, d)
			}
			if err == nil {
				break // it was not cut off any more
			}
		}
	}
}

func TestANetworkThatIsNotUnderstoodIsLeftAsItIs(t *testing.T) {
	t.Parallel()
	all, names := situations()
	h := newFakeHost()
	s := newFakeSubsystem(t, t.TempDir(), h)
	if err := s.Reconcile(t.Context(), all[1].doc); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		change func(*sdwan.Network)
	}{
		{"MTU", func(n *sdwan.Network) { n.MTU = 1279 }},
		{"name", func(n *sdwan.Network) { n.DeviceName = "eth0" }},
		{"port", func(n *sdwan.Network) { n.ListenPort = 0 }},
		{"peer's key", func(n *sdwan.Network) { n.Peers[0].PublicKey = "?" }},
		{"two owners", func(n *sdwan.Network) { n.Peers[0].AllowedIPs = n.Peers[1].AllowedIPs }},
		{"id", func(n *sdwan.Network) { n.NetworkID = "../x" }},
	} {
		doc := clone(t, all[1].doc)
		tt.change(&doc.Networks[0])
		if err := s.Reconcile(t.Context(), doc); err == nil {
			t.Errorf("%s: no error", tt.name)
		}
		if d := gocmp.Diff(all[1].want, h.print(names)); d != "" {
			t.Fatalf("%s (-want +got)\n%s", tt.name, d)
		}
	}
}
