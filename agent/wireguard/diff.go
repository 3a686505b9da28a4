package wireguard

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"powernode/internal/rtnl"
	"powernode/sdwan"
)

// change is one write; what says it in a log line, without a secret.
type change struct {
	what string
	do   func(ctx context.Context, h host) error
}

// plan is what makes a machine as wanted. The steps of one device depend on each other, devices do not: a port in use
// on one is no reason to leave the other.
type plan struct {
	first   []change // what must be there before a device, or in its way
	devices []devicePlan
	last    []change // what is no longer wanted
}

type devicePlan struct {
	name    string
	changes []change
}

func (p plan) empty() bool {
	return len(p.first) == 0 && len(p.last) == 0 &&
		!slices.ContainsFunc(p.devices, func(d devicePlan) bool { return len(d.changes) > 0 })
}

func (p plan) String() string {
	var lines []string
	for _, c := range p.first {
		lines = append(lines, c.what)
	}
	for _, d := range p.devices {
		for _, c := range d.changes {
			lines = append(lines, c.what)
		}
	}
	for _, c := range p.last {
		lines = append(lines, c.what)
	}
	return strings.Join(lines, "\n")
}

// diff is pure: what is there, what is wanted and what we have recorded as ours, to what is to be done.
func diff(have machine, want wanted, ours state) plan {
	var p plan
	reap, freed := reaped(have, want, ours)
	for _, name := range freed {
		p.first = append(p.first, removeDevice(name))
	}
	for _, u := range want.Unreachable {
		if !slices.Contains(have.Unreachable, u) {
			p.first = append(p.first, addRoute(route{Prefix: u}))
		}
	}
	p.first = append(p.first, turnOn(have, want)...)
	for _, d := range want.Devices {
		if c := diffDevice(have, d); len(c) > 0 {
			p.devices = append(p.devices, devicePlan{d.Name, c})
		}
	}
	for _, name := range reap {
		p.last = append(p.last, removeDevice(name))
	}
	if want.Partial {
		return p
	}
	for _, u := range have.Unreachable {
		if !slices.Contains(want.Unreachable, u) {
			p.last = append(p.last, removeRoute(route{Prefix: u}))
		}
	}
	p.last = append(p.last, turnBack(have, want, ours)...)
	return p
}

// reaped lists recorded devices that no network has any more, and those of them that hold a port which a wanted
// device is to get.
func reaped(have machine, want wanted, ours state) (reap, freed []string) {
	if want.Partial {
		return nil, nil
	}
	for _, name := range ours.names() {
		d, exists := have.Devices[name]
		if !exists || slices.ContainsFunc(want.Devices, func(w wantedDevice) bool { return w.Name == name }) {
			continue
		}
		if slices.ContainsFunc(want.Devices, func(w wantedDevice) bool { return w.ListenPort == d.ListenPort }) {
			freed = append(freed, name)
			continue
		}
		reap = append(reap, name)
	}
	return reap, freed
}

// setting is a value below /proc/sys that something of ours needs.
type setting struct{ key, value string }

// neededSettings is what forwarding needs. Forwarding turns router advertisements off, so interfaces that live from
// them are told to keep them, first.
func neededSettings(have machine, want wanted) []setting {
	var out []setting
	if want.Forward6 {
		for _, ifc := range have.Advertised {
			if have.Settings[settingAcceptRA(ifc)] == "1" {
				out = append(out, setting{settingAcceptRA(ifc), "2"})
			}
		}
		out = append(out, setting{settingForward6, "1"})
	}
	if want.Forward4 {
		out = append(out, setting{settingForward4, "1"})
	}
	return out
}

func turnOn(have machine, want wanted) []change {
	var out []change
	for _, s := range neededSettings(have, want) {
		if v, known := have.Settings[s.key]; known && v != s.value {
			out = append(out, writeSetting(s.key, s.value))
		}
	}
	return out
}

// turnBack gives recorded settings their old value once nothing needs ours, unless somebody changed them since.
func turnBack(have machine, want wanted, ours state) []change {
	var out []change
	for _, key := range ours.unneeded(want) {
		if r := ours.Settings[key]; have.Settings[key] == r.Set {
			out = append(out, giveBack(key, r.Before))
		}
	}
	return out
}

func diffDevice(have machine, want wantedDevice) []change {
	d, exists := have.Devices[want.Name]
	var out []change
	if d.Unreadable != nil {
		return nil
	}
	if exists && !d.Alive {
		out = append(out, removeDevice(want.Name))
		exists = false
	}
	if !exists {
		out = append(out, change{fmt.Sprintf("create %s mtu %d", want.Name, want.MTU), func(ctx context.Context, h host) error {
			return h.CreateDevice(ctx, want.Name, want.MTU)
		}})
		d = device{Name: want.Name, MTU: want.MTU}
	}
	if d.MTU != want.MTU {
		out = append(out, change{fmt.Sprintf("set %s mtu %d", want.Name, want.MTU), func(ctx context.Context, h host) error {
			return h.SetMTU(ctx, want.Name, want.MTU)
		}})
	}
	if c, what := diffConfiguration(d, want); what != "" {
		out = append(out, change{fmt.Sprintf("configure %s%s", want.Name, what), func(ctx context.Context, h host) error {
			return h.Configure(ctx, want.Name, c)
		}})
	}
	out = append(out, diffSettings(have, want)...)
	if !d.Up {
		out = append(out, change{"set " + want.Name + " up", func(ctx context.Context, h host) error { return h.SetUp(ctx, want.Name) }})
	}
	return append(out, diffAddressing(d, want)...)
}

// diffSettings are the settings of our own interface: IPv6 on, and loose reverse path filtering where it carries IPv4.
func diffSettings(have machine, want wantedDevice) []change {
	var out []change
	if key := settingDisableIPv6(want.Name); have.Settings[key] == "1" {
		out = append(out, writeSetting(key, "0"))
	}
	v4 := slices.ContainsFunc(want.Addresses, func(p netip.Prefix) bool { return p.Addr().Is4() })
	if key := settingRPFilter(want.Name); v4 && have.Settings[key] != "" && have.Settings[key] != "2" {
		out = append(out, writeSetting(key, "2"))
	}
	return out
}

// diffAddressing adds addresses, then routes, whose source must be there; then removes routes, then addresses.
func diffAddressing(have device, want wantedDevice) []change {
	var out []change
	for _, a := range want.Addresses {
		if !slices.Contains(have.Addresses, a) {
			out = append(out, change{fmt.Sprintf("add address %s to %s", a, want.Name), func(ctx context.Context, h host) error {
				return h.AddAddress(ctx, want.Name, a)
			}})
		}
	}
	for _, r := range want.Routes {
		i := slices.IndexFunc(have.Routes, func(o route) bool { return o.Prefix == r.Prefix })
		switch {
		case i < 0:
			out = append(out, addRoute(r))
		case have.Routes[i] != r:
			out = append(out, change{"replace route " + r.String(), func(ctx context.Context, h host) error { return h.ReplaceRoute(ctx, r) }})
		}
	}
	for _, r := range have.Routes {
		if !slices.ContainsFunc(want.Routes, func(o route) bool { return o.Prefix == r.Prefix }) {
			out = append(out, removeRoute(r))
		}
	}
	for _, a := range have.Addresses {
		if slices.Contains(want.Addresses, a) || sdwan.VIPRange(want.CIDR).Contains(a.Addr()) {
			continue
		}
		out = append(out, change{fmt.Sprintf("remove address %s from %s", a, want.Name), func(ctx context.Context, h host) error {
			return h.RemoveAddress(ctx, want.Name, a)
		}})
	}
	return out
}

// diffConfiguration is the device's change in one transaction, and what it is; "" is none.
func diffConfiguration(have device, want wantedDevice) (configuration, string) {
	var c configuration
	var what strings.Builder
	if own := want.PrivateKey.PublicKey(); have.PublicKey != own {
		c.PrivateKey = &want.PrivateKey
		fmt.Fprintf(&what, " key %s", short(own))
	}
	if have.ListenPort != want.ListenPort {
		c.ListenPort = &want.ListenPort
		fmt.Fprintf(&what, " port %d", want.ListenPort)
	}
	c.Peers = diffPeers(have.Peers, want.Peers)
	for _, p := range c.Peers {
		what.WriteString(p.String())
	}
	return c, what.String()
}

// diffPeers changes and adds before it removes. A prefix moves by naming its new owner; only a prefix that nobody
// takes over makes its peer's list be replaced.
func diffPeers(have []peer, want []wantedPeer) []peerChange {
	owner := map[netip.Prefix]wgtypes.Key{}
	known := map[wgtypes.Key]peer{}
	for _, p := range have {
		known[p.Key] = p
		for _, a := range p.AllowedIPs {
			owner[a] = p.Key
		}
	}
	var out []peerChange
	for _, w := range want {
		h, exists := known[w.Key]
		c := peerChange{Key: w.Key, Add: !exists}
		if w.Endpoint.IsValid() && w.Endpoint != h.Endpoint {
			c.Endpoint = w.Endpoint
		}
		if w.Keepalive != h.Keepalive {
			c.Keepalive = &w.Keepalive
		}
		for _, a := range w.AllowedIPs {
			if owner[a] != w.Key {
				c.AllowedIPs = append(c.AllowedIPs, a)
				owner[a] = w.Key
			}
		}
		out = append(out, c)
	}
	wantedKeys := map[wgtypes.Key]bool{}
	for i, w := range want {
		wantedKeys[w.Key] = true
		for _, a := range known[w.Key].AllowedIPs {
			if owner[a] == w.Key && !slices.Contains(w.AllowedIPs, a) {
				out[i].AllowedIPs, out[i].Replace = w.AllowedIPs, true
			}
		}
	}
	out = slices.DeleteFunc(out, func(c peerChange) bool {
		return !c.Add && !c.Replace && !c.Endpoint.IsValid() && c.Keepalive == nil && len(c.AllowedIPs) == 0
	})
	for _, h := range have {
		if !wantedKeys[h.Key] {
			out = append(out, peerChange{Key: h.Key, Remove: true})
		}
	}
	return out
}

func (c peerChange) String() string {
	var b strings.Builder
	switch {
	case c.Remove:
		return " -peer " + short(c.Key)
	case c.Add:
		b.WriteString(" +peer " + short(c.Key))
	default:
		b.WriteString(" peer " + short(c.Key))
	}
	if c.Endpoint.IsValid() {
		b.WriteString(" endpoint " + c.Endpoint.String())
	}
	if c.Keepalive != nil {
		b.WriteString(" keepalive " + (*c.Keepalive).Round(time.Second).String())
	}
	sign := "+"
	if c.Replace {
		sign = "="
		if len(c.AllowedIPs) == 0 {
			b.WriteString(" =nothing")
		}
	}
	for _, a := range c.AllowedIPs {
		b.WriteString(" " + sign + a.String())
	}
	return b.String()
}

func short(k wgtypes.Key) string { return k.String()[:8] }

func (r route) String() string {
	if r.Device == "" {
		return "unreachable " + r.Prefix.String()
	}
	s := r.Prefix.String() + " dev " + r.Device
	if r.Source.IsValid() {
		s += " src " + r.Source.String()
	}
	return s
}

func addRoute(r route) change {
	return change{"add route " + r.String(), func(ctx context.Context, h host) error { return h.AddRoute(ctx, r) }}
}

func removeRoute(r route) change {
	return change{"remove route " + r.String(), func(ctx context.Context, h host) error { return h.RemoveRoute(ctx, r) }}
}

func removeDevice(name string) change {
	return change{"remove " + name, func(ctx context.Context, h host) error { return h.RemoveDevice(ctx, name) }}
}

func writeSetting(key, value string) change {
	return change{fmt.Sprintf("set %s to %s", key, value), func(ctx context.Context, h host) error {
		return h.WriteSetting(ctx, key, value)
	}}
}

// giveBack is for a setting that nothing of ours needs: one that went with its interface needs it no more.
func giveBack(key, value string) change {
	c := writeSetting(key, value)
	write := c.do
	c.do = func(ctx context.Context, h host) error { return rtnl.UnlessGone(write(ctx, h)) }
	return c
}
