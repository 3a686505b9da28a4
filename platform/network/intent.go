package network

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"powernode/sdwan"
	"powernode/store"
)

// Intent is everything that a network's documents depend on, read from rows. It compiles the same for everybody.
func (s *Service) Intent(ctx context.Context, v *store.View, acct store.AccountID, id store.NetworkID) (sdwan.Intent, error) {
	n, err := s.Find(ctx, v, acct, id)
	if err != nil {
		return sdwan.Intent{}, err
	}
	account, err := store.AccountByID(ctx, v, acct)
	if err != nil {
		return sdwan.Intent{}, fmt.Errorf("find the account's prefix: %w", err)
	}
	in := sdwan.Intent{NetworkID: string(n.ID), Name: n.Name, CIDR: n.CIDR.Prefix, AccountPrefix: account.Prefix.Prefix, MTU: n.MTU,
		Strategy: n.TopologyStrategy, DefaultPolicy: n.FirewallDefaultPolicy, Suspended: n.Status == StatusSuspended}
	for _, fill := range []func(context.Context, *store.View, store.Network, *sdwan.Intent) error{s.fillMembers, s.fillVIPs, s.fillDevices, s.fillRules} {
		if err := fill(ctx, v, n, &in); err != nil {
			return sdwan.Intent{}, fmt.Errorf("read the intent of network %s: %w", n.Name, err)
		}
	}
	if in.Clusters, err = s.clusters(ctx, v, acct, id); err != nil {
		return sdwan.Intent{}, fmt.Errorf("read the clusters of network %s: %w", n.Name, err)
	}
	return in, nil
}

func (s *Service) fillMembers(ctx context.Context, v *store.View, n store.Network, in *sdwan.Intent) error {
	peers, err := store.PeersByNetwork(ctx, v, n.AccountID, n.ID)
	if err != nil {
		return err
	}
	hosts, err := store.PeerHosts(ctx, v, n.AccountID, n.ID)
	if err != nil {
		return err
	}
	endpoints, err := store.EndpointsByNetwork(ctx, v, n.AccountID, n.ID)
	if err != nil {
		return err
	}
	reported := map[store.PeerID][]netip.AddrPort{}
	for _, e := range endpoints {
		reported[e.PeerID] = append(reported[e.PeerID], netip.AddrPortFrom(e.Address.Addr, uint16(e.Port)))
	}
	for _, p := range peers {
		host := hosts[p.ID]
		p = proposed(p, host)
		for _, given := range givenEndpoints(p, host) {
			if !slices.Contains(reported[p.ID], given) {
				reported[p.ID] = append(reported[p.ID], given)
			}
		}
		in.Members = append(in.Members, sdwan.Member{PeerID: string(p.ID), Name: host.Name, InstanceID: string(p.InstanceID),
			RegionID: string(host.RegionID), Address: p.Address.Addr, AddressV4: p.AddressV4.Addr, ShortID: p.ShortID, ListenPort: p.ListenPort,
			PublicKey: p.PublicKey, NextPublicKey: p.NextPublicKey, PubliclyReachable: p.PubliclyReachable, EndpointHost: p.EndpointHost,
			EndpointHostV6: p.EndpointHostV6, EndpointHostV4: p.EndpointHostV4, EndpointPort: p.EndpointPort, ReportedEndpoints: reported[p.ID],
			LANSubnets: p.LANSubnets, PodCIDRs: p.PodCIDRs, Tags: p.Tags})
	}
	return nil
}

// proposed is a peer that names no endpoint of its own with the one that its node's operator names for it.
func proposed(p store.Peer, h store.PeerHost) store.Peer {
	if p.EndpointHost == "" && p.EndpointHostV4 == "" && p.EndpointHostV6 == "" {
		p.EndpointHost = h.PublicAddress
	}
	return p
}

// givenEndpoints are those of a peer's machine as the platform has them: its public and its private address.
func givenEndpoints(p store.Peer, h store.PeerHost) (out []netip.AddrPort) {
	for _, a := range []store.Addr{h.PublicIP, h.PrivateIP} {
		if e := netip.AddrPortFrom(a.Addr, uint16(p.ListenPort)); e.IsValid() {
			out = append(out, e)
		}
	}
	return out
}

func (s *Service) fillVIPs(ctx context.Context, v *store.View, n store.Network, in *sdwan.Intent) error {
	vips, err := store.VirtualIPsByNetwork(ctx, v, n.AccountID, n.ID)
	if err != nil {
		return err
	}
	for _, ip := range vips {
		in.VIPs = append(in.VIPs, sdwan.VIPIntent{ID: string(ip.ID), Address: ip.Address.Addr, HolderPeerID: string(ip.Holder()), Epoch: ip.Epoch})
	}
	return nil
}

// fillDevices takes the devices of active grants.
func (s *Service) fillDevices(ctx context.Context, v *store.View, n store.Network, in *sdwan.Intent) error {
	grants, err := store.AccessGrantsByNetwork(ctx, v, n.AccountID, n.ID)
	if err != nil {
		return err
	}
	active := map[store.AccessGrantID]store.AccessGrant{}
	for _, g := range grants {
		if g.Status == GrantActive {
			active[g.ID] = g
		}
	}
	devices, err := store.UserDevicesByNetwork(ctx, v, n.AccountID, n.ID)
	if err != nil {
		return err
	}
	for _, d := range devices {
		if g, ok := active[d.GrantID]; ok {
			in.Devices = append(in.Devices, sdwan.Device{ID: string(d.ID), Label: d.Label, PublicKey: d.PublicKey, Address: d.Address.Addr, Tags: g.Tags})
		}
	}
	return nil
}

func (s *Service) fillRules(ctx context.Context, v *store.View, n store.Network, in *sdwan.Intent) error {
	rules, err := store.FirewallRulesByNetwork(ctx, v, n.AccountID, n.ID)
	if err != nil {
		return err
	}
	for _, r := range rules {
		in.Rules = append(in.Rules, compiled(r))
	}
	return nil
}

// Members are the instances whose documents depend on a network.
func (s *Service) Members(ctx context.Context, v *store.View, id store.NetworkID) ([]store.InstanceID, error) {
	return store.NetworkMembers(ctx, v, id)
}

// Compiler composes the sections of several instances' documents and reads each network's intent once.
type Compiler struct {
	s        *Service
	intents  map[store.NetworkID]sdwan.Intent
	sections map[store.NetworkID]map[string]sdwan.Network
}

// Compiler makes a compiler for one transaction: it must not outlive it.
func (s *Service) Compiler() *Compiler {
	return &Compiler{s: s, intents: map[store.NetworkID]sdwan.Intent{}, sections: map[store.NetworkID]map[string]sdwan.Network{}}
}

// Sections are what an instance's document says of its networks, firewall and probes. For many instances in one
// transaction a Compiler reads less.
func (s *Service) Sections(ctx context.Context, v *store.View, instance store.Instance) ([]sdwan.Network, sdwan.Firewall, []sdwan.Probe, error) {
	return s.Compiler().Sections(ctx, v, instance)
}

// Sections are what an instance's document says of its networks, firewall and probes. An archived network is removed
// from hosts.
func (c *Compiler) Sections(ctx context.Context, v *store.View, instance store.Instance) ([]sdwan.Network, sdwan.Firewall, []sdwan.Probe, error) {
	peers, err := store.PeersByInstance(ctx, v, instance.AccountID, instance.ID)
	if err != nil {
		return nil, sdwan.Firewall{}, nil, err
	}
	networks := []sdwan.Network{}
	host := sdwan.Host{InstanceID: string(instance.ID), Platform: c.s.agentAPI()}
	for _, p := range peers {
		n, err := store.NetworkByID(ctx, v, p.AccountID, p.NetworkID)
		if err != nil {
			return nil, sdwan.Firewall{}, nil, fmt.Errorf("find the network of peer %s: %w", p.ID, err)
		}
		if n.Status == StatusArchived {
			continue
		}
		in, err := c.intent(ctx, v, p.AccountID, p.NetworkID)
		if err != nil {
			return nil, sdwan.Firewall{}, nil, err
		}
		section, err := c.section(in, p)
		if err != nil {
			return nil, sdwan.Firewall{}, nil, fmt.Errorf("compile network %s: %w", n.Name, err)
		}
		networks = append(networks, section)
		host.Memberships = append(host.Memberships, sdwan.Membership{Intent: in, PeerID: string(p.ID)})
	}
	slices.SortFunc(networks, func(a, b sdwan.Network) int { return compareText(a.NetworkID, b.NetworkID) })
	firewall, err := sdwan.HostFirewall(host)
	if err != nil {
		return nil, sdwan.Firewall{}, nil, fmt.Errorf("compile the firewall of %s: %w", instance.Name, err)
	}
	probes, err := probesOf(ctx, v, instance.ID)
	return networks, firewall, probes, err
}

func (c *Compiler) intent(ctx context.Context, v *store.View, acct store.AccountID, id store.NetworkID) (sdwan.Intent, error) {
	if in, ok := c.intents[id]; ok {
		return in, nil
	}
	in, err := c.s.Intent(ctx, v, acct, id)
	if err == nil {
		c.intents[id] = in
	}
	return in, err
}

// section compiles a network for all its peers the second time that it is asked for: then others will ask too.
func (c *Compiler) section(in sdwan.Intent, p store.Peer) (sdwan.Network, error) {
	known, asked := c.sections[p.NetworkID]
	if !asked {
		c.sections[p.NetworkID] = nil
		return sdwan.CompilePeer(in, string(p.ID))
	}
	if known == nil {
		all, err := sdwan.Compile(in)
		if err != nil {
			return sdwan.Network{}, err
		}
		known = make(map[string]sdwan.Network, len(all))
		for _, section := range all {
			known[section.PeerID] = section
		}
		c.sections[p.NetworkID] = known
	}
	return known[string(p.ID)], nil
}

func probesOf(ctx context.Context, v *store.View, id store.InstanceID) ([]sdwan.Probe, error) {
	rows, err := store.ProbesByInstance(ctx, v, id)
	if err != nil {
		return nil, err
	}
	probes := []sdwan.Probe{}
	for _, p := range rows {
		probes = append(probes, sdwan.Probe{ID: string(p.ID), FromPeerID: string(p.FromPeerID), Source: p.Source.Addr, Target: p.Target.Addr,
			Protocol: p.Protocol, Port: p.Port, DeadlineMS: p.DeadlineMS})
	}
	return probes, nil
}

// hostRoutes are the routes of a machine that are not ours, as its agent read them last; not read is not empty.
func hostRoutes(r store.InstanceReport) (routes []sdwan.HostRoute, measured bool, err error) {
	raw := r.HostRoutes.V
	if len(raw) == 0 || string(raw) == "null" {
		return nil, false, nil
	}
	if err := json.Unmarshal(raw, &routes); err != nil {
		return nil, false, fmt.Errorf("read the routes of instance %s: %w", r.InstanceID, err)
	}
	return routes, true, nil
}

func compareText(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func sortedIDs[K ~string, T any](m map[K]T) []K { return slices.Sorted(maps.Keys(m)) }

// Ages of the last handshake at which a peer's status changes.
const (
	activeFor   = 3 * time.Minute
	degradedFor = 5 * time.Minute
)

// Statuses of a peer.
const (
	PeerPending      = "pending"
	PeerActive       = "active"
	PeerDegraded     = "degraded"
	PeerDisconnected = "disconnected"
)

// PeerStatus is what the age of the last handshake says of a peer; no handshake is pending.
func PeerStatus(last *store.Time, now time.Time) string {
	if last == nil {
		return PeerPending
	}
	switch age := now.Sub(last.Time); {
	case age < activeFor:
		return PeerActive
	case age < degradedFor:
		return PeerDegraded
	}
	return PeerDisconnected
}
