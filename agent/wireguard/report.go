package wireguard

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"powernode/sdwan"
)

// Observe adds keys, tunnels, endpoints, the machine's other routes and whether the kernel has WireGuard. It runs
// beside Reconcile; what can't be read is left out.
func (s *Subsystem) Observe(ctx context.Context, report *sdwan.Report) error {
	var networks []sdwan.Network
	if p := s.networks.Load(); p != nil {
		networks = *p
	}
	if report.Capabilities == nil {
		report.Capabilities = &sdwan.Capabilities{}
	}
	report.Capabilities.KernelWireGuard = s.host.KernelWireGuard(ctx)
	for _, n := range networks {
		if key, err := s.keys.read(n.NetworkID); err == nil {
			report.Keys = append(report.Keys, sdwan.KeyReport{
				NetworkID: n.NetworkID, PublicKey: key.PublicKey().String(), Stage: "current"})
		}
	}
	var q query
	for _, n := range networks {
		q.Devices = append(q.Devices, n.DeviceName)
	}
	have, err := s.host.Read(ctx, q)
	if err != nil {
		return fmt.Errorf("observe: %w", err)
	}
	for _, n := range networks {
		report.Tunnels = append(report.Tunnels, tunnels(n, have.Devices[n.DeviceName])...)
		report.Endpoints = append(report.Endpoints, reachable(networks, n, have.Underlay)...)
	}
	report.HostRoutes, report.HostRoutesRead = have.Foreign, true
	return nil
}

func tunnels(n sdwan.Network, d device) []sdwan.TunnelReport {
	var out []sdwan.TunnelReport
	for _, p := range d.Peers {
		i := slices.IndexFunc(n.Peers, func(w sdwan.Peer) bool { return w.PublicKey == p.Key.String() })
		if i < 0 {
			continue // about to be removed
		}
		t := sdwan.TunnelReport{
			NetworkID: n.NetworkID, RemotePeerID: n.Peers[i].PeerID,
			LastHandshakeAt: p.Handshake, RXBytes: p.RX, TXBytes: p.TX,
		}
		if p.Endpoint.IsValid() {
			t.Endpoint = p.Endpoint.String()
		}
		out = append(out, t)
	}
	return out
}

// reachable are the addresses at which a network's port can be reached: those of interfaces that are no overlay's
// and no pods'.
func reachable(networks []sdwan.Network, n sdwan.Network, underlay []underlayAddress) []sdwan.EndpointReport {
	var out []sdwan.EndpointReport
	for _, a := range underlay {
		addr := a.Prefix.Addr()
		if !a.Usable || podInterface(a.Interface) || inOverlay(networks, addr) {
			continue
		}
		out = append(out, sdwan.EndpointReport{NetworkID: n.NetworkID, Address: addr, Port: n.ListenPort, Source: "interface"})
	}
	return out
}

// inOverlay covers pods and services too: they are numbered from the account's prefix, which is unreachable by route.
func inOverlay(networks []sdwan.Network, a netip.Addr) bool {
	for _, n := range networks {
		if n.CIDR.Contains(a) {
			return true
		}
		for _, r := range n.Routes {
			if r.Unreachable && r.Prefix.Contains(a) {
				return true
			}
		}
	}
	return false
}

func podInterface(name string) bool {
	for _, p := range []string{"wg-sdwan-", "cni", "flannel", "kube-", "cali", "docker", "virbr"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}
