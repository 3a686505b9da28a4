// Package preflight looks at the machine before anything is started.
package preflight

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"powernode/spec/k3srig/internal/config"
)

// Interface is a network interface with its addresses.
type Interface struct {
	Name     string
	Loopback bool
	Addrs    []netip.Addr
}

// Interfaces lists the machine's interfaces.
func Interfaces() ([]Interface, error) {
	list, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var out []Interface
	for _, i := range list {
		addrs, err := i.Addrs()
		if err != nil {
			return nil, fmt.Errorf("list addresses of %s: %w", i.Name, err)
		}
		iface := Interface{Name: i.Name, Loopback: i.Flags&net.FlagLoopback != 0}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok {
					iface.Addrs = append(iface.Addrs, ip.Unmap())
				}
			}
		}
		out = append(out, iface)
	}
	return out, nil
}

// NodeIPs checks that the configured addresses are on the machine, or
// chooses one of each wanted family where none is configured.
func NodeIPs(list []Interface, s *config.Settings, want config.Families) ([]netip.Addr, error) {
	if len(s.NodeIPs) == 0 {
		return choose(list, s.FlannelIface, want)
	}
	for _, ip := range s.NodeIPs {
		if !onMachine(list, ip) {
			return nil, fmt.Errorf("failed to validate nodeIP: node IP: %q not found in the host's network interfaces", ip)
		}
	}
	return s.NodeIPs, nil
}

func onMachine(list []Interface, ip netip.Addr) bool {
	for _, i := range list {
		for _, a := range i.Addrs {
			if a.WithZone("") == ip {
				return true
			}
		}
	}
	return false
}

func choose(list []Interface, name string, want config.Families) ([]netip.Addr, error) {
	var out []netip.Addr
	var got config.Families
	for _, i := range list {
		if i.Loopback || (name != "" && i.Name != name) {
			continue
		}
		for _, a := range i.Addrs {
			if !a.IsGlobalUnicast() {
				continue
			}
			if a.Is4() && want.IPv4 && !got.IPv4 {
				got.IPv4 = true
				out = append(out, a)
			} else if a.Is6() && want.IPv6 && !got.IPv6 {
				got.IPv6 = true
				out = append(out, a)
			}
		}
	}
	if got != want {
		return nil, errors.New("unable to select an IP from default routes: set node-ip")
	}
	return out, nil
}

// Flannel checks that the interface exists and has an address of every
// family that the pods use: without one flannel can't reach other nodes.
func Flannel(list []Interface, name string, want config.Families) error {
	if name == "" {
		return nil
	}
	for _, i := range list {
		if i.Name != name {
			continue
		}
		var have config.Families
		for _, a := range i.Addrs {
			if !a.IsGlobalUnicast() {
				continue
			}
			have.IPv4 = have.IPv4 || a.Is4()
			have.IPv6 = have.IPv6 || a.Is6()
		}
		if want.IPv4 && !have.IPv4 {
			return fmt.Errorf("flannel exited: failed to find IPv4 address for interface %s", name)
		}
		if want.IPv6 && !have.IPv6 {
			return fmt.Errorf("flannel exited: failed to find IPv6 address for interface %s", name)
		}
		return nil
	}
	return fmt.Errorf("unable to find interface %s: route ip+net: no such network interface", name)
}
