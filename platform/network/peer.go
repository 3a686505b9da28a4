package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"powernode/platform/signal"
	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
)

// defaultListenPort is WireGuard's own.
const defaultListenPort = 51820

var hostName = regexp.MustCompile(`^([a-zA-Z0-9_]([a-zA-Z0-9_-]{0,61}[a-zA-Z0-9])?\.)*[a-zA-Z0-9_]([a-zA-Z0-9_-]{0,61}[a-zA-Z0-9])?\.?$`)

// AttachInput puts an instance on a network. Zero ports are absent.
type AttachInput struct {
	NetworkID         store.NetworkID
	InstanceID        store.InstanceID
	PubliclyReachable bool
	EndpointHost      string
	EndpointHostV6    string
	EndpointHostV4    string
	EndpointPort      int
	ListenPort        int
}

// CheckAttach refuses what Attach could not do.
func (s *Service) CheckAttach(ctx context.Context, v *store.View, acct store.AccountID, in AttachInput) error {
	if err := checkEndpoint(in); err != nil {
		return err
	}
	n, err := s.Find(ctx, v, acct, in.NetworkID)
	if err != nil {
		return err
	}
	i, err := store.InstanceByID(ctx, v, acct, in.InstanceID)
	if err != nil {
		return orNotFound(err, "instance not found")
	}
	if !i.Live() || i.Leaving() {
		return schema.Errorf(schema.PreconditionFailed, "instance %s is terminated", i.Name)
	}
	if n.Status == StatusSuspended || n.Status == StatusArchived {
		return schema.Errorf(schema.PreconditionFailed, "network %s is %s", n.Name, n.Status)
	}
	other, err := store.PeerOf(ctx, v, acct, n.ID, i.ID)
	if free, err := absent(err); err != nil || !free {
		if err != nil {
			return err
		}
		return schema.Errorf(schema.Conflict, "instance is already a peer of this network").WithDetail("peer_id", string(other.ID)).
			WithHint("system_sdwan_get_peer", "Read the peer it is.")
	}
	if in.ListenPort == 0 {
		return nil
	}
	taken, err := portsTaken(ctx, v, acct, i.ID)
	if err != nil {
		return err
	}
	if by, there := taken[in.ListenPort]; there {
		return schema.Errorf(schema.Conflict, "listen_port %d is taken on this host", in.ListenPort).WithDetail("peer_id", string(by))
	}
	return nil
}

// checkEndpoint holds endpoint parameters against each other.
func checkEndpoint(in AttachInput) error {
	for _, h := range []struct {
		pointer, host string
		wrong         func(netip.Addr) bool
		family        string
	}{
		{"/endpoint_host_v6", in.EndpointHostV6, func(a netip.Addr) bool { return !a.Is6() || a.Is4In6() }, "IPv6"},
		{"/endpoint_host_v4", in.EndpointHostV4, func(a netip.Addr) bool { return !a.Is4() }, "IPv4"},
		{"/endpoint_host", in.EndpointHost, func(netip.Addr) bool { return false }, ""},
	} {
		if h.host == "" {
			continue
		}
		name := strings.TrimPrefix(h.pointer, "/")
		a, err := netip.ParseAddr(h.host)
		switch {
		case err != nil && (!hostName.MatchString(h.host) || len(h.host) > 253):
			return schema.InvalidArgument(h.pointer, h.host, "%s must be a host name or an address (got %q)", name, h.host)
		case err == nil && h.wrong(a):
			return schema.InvalidArgument(h.pointer, h.host, "%s must be an %s literal or a host name (got %q)", name, h.family, h.host)
		case err == nil && a.Zone() != "":
			return schema.InvalidArgument(h.pointer, h.host, "%s must not have a zone (got %q)", name, h.host)
		}
	}
	named := in.EndpointHost != "" || in.EndpointHostV4 != "" || in.EndpointHostV6 != ""
	if in.PubliclyReachable && !named {
		return schema.InvalidArgument("/publicly_reachable", true, "a publicly reachable peer needs endpoint_host, endpoint_host_v6 or endpoint_host_v4")
	}
	if in.PubliclyReachable && in.EndpointPort == 0 {
		return schema.InvalidArgument("/endpoint_port", nil, "a publicly reachable peer needs endpoint_port")
	}
	return nil
}

// portsTaken are the ports that a host's memberships listen on.
func portsTaken(ctx context.Context, v *store.View, acct store.AccountID, instance store.InstanceID) (map[int]store.PeerID, error) {
	peers, err := store.PeersByInstance(ctx, v, acct, instance)
	if err != nil {
		return nil, err
	}
	taken := make(map[int]store.PeerID, len(peers))
	for _, p := range peers {
		taken[p.ListenPort] = p.ID
	}
	return taken, nil
}

// Attach puts an instance on a network and gives it the next free /128 of the peer range.
func (s *Service) Attach(ctx context.Context, tx *store.Tx, acct store.AccountID, in AttachInput) (store.Peer, []Warning, error) {
	if err := s.CheckAttach(ctx, &tx.View, acct, in); err != nil {
		return store.Peer{}, nil, err
	}
	n, err := s.Find(ctx, &tx.View, acct, in.NetworkID)
	if err != nil {
		return store.Peer{}, nil, err
	}
	p := store.Peer{ID: store.PeerID(tx.NewID()), AccountID: acct, NetworkID: n.ID, InstanceID: in.InstanceID,
		PubliclyReachable: in.PubliclyReachable, EndpointHost: in.EndpointHost, EndpointHostV6: in.EndpointHostV6,
		EndpointHostV4: in.EndpointHostV4, EndpointPort: in.EndpointPort, ListenPort: in.ListenPort}
	warnings, err := s.place(ctx, tx, n, &p)
	if err != nil {
		return store.Peer{}, nil, err
	}
	if err := store.InsertPeer(ctx, tx, p); err != nil {
		return store.Peer{}, nil, fmt.Errorf("attach instance to network %s: %w", n.Name, err)
	}
	_, err = tx.Audit(ctx, store.AuditEntry{AccountID: acct, Action: "created", ResourceType: "Sdwan::Peer", ResourceID: string(p.ID),
		New: store.Object{"network_id": string(n.ID), "node_instance_id": string(p.InstanceID), "assigned_address": p.Address.String(),
			"listen_port": p.ListenPort, "publicly_reachable": p.PubliclyReachable}})
	if err != nil {
		return store.Peer{}, nil, err
	}
	if err := s.activate(ctx, tx, n); err != nil {
		return store.Peer{}, nil, err
	}
	err = signal.Emit(ctx, tx, acct, signal.Event{Kind: "system.sdwan_peer_attached", Subject: signal.Subject{NetworkID: n.ID, InstanceID: p.InstanceID},
		Payload: store.Object{"network_id": string(n.ID), "peer_id": string(p.ID), "assigned_address": p.Address.String()}})
	if err != nil {
		return store.Peer{}, nil, err
	}
	tx.TouchNetwork(n.ID)
	if s.Clusters != nil {
		if err := s.Clusters.PeerAttached(ctx, tx, acct, p.ID); err != nil {
			return store.Peer{}, nil, err
		}
	}
	if err := s.deviceFilesChanged(ctx, tx, acct, n.ID); err != nil {
		return store.Peer{}, nil, err
	}
	p, err = store.PeerByID(ctx, &tx.View, acct, p.ID)
	return p, warnings, err
}

// place gives a new peer its address, interface number and port.
func (s *Service) place(ctx context.Context, tx *store.Tx, n store.Network, p *store.Peer) ([]Warning, error) {
	var err error
	if p.Address.Addr, err = takeAddress(ctx, tx, n, addressPeer, string(p.ID), netip.Addr{}); err != nil {
		return nil, err
	}
	numbers, err := store.ShortIDs(ctx, &tx.View, p.InstanceID)
	if err != nil {
		return nil, err
	}
	if p.ShortID = sdwan.NextShortID(func(i int) bool { return numbers[i] }); p.ShortID == 0 {
		return nil, exhausted("no interface number is left on this host")
	}
	if err := store.TakeShortID(ctx, tx, p.InstanceID, p.ShortID, p.ID); err != nil {
		return nil, fmt.Errorf("take an interface number: %w", err)
	}
	if p.ListenPort != 0 {
		return nil, nil
	}
	taken, err := portsTaken(ctx, &tx.View, p.AccountID, p.InstanceID)
	if err != nil {
		return nil, err
	}
	for port := defaultListenPort; port <= 65535; port++ {
		if _, there := taken[port]; !there {
			p.ListenPort = port
			break
		}
	}
	if p.ListenPort == defaultListenPort {
		return nil, nil
	}
	return []Warning{{"listen_port_moved", fmt.Sprintf("listen_port %d is taken on this host: this peer listens on %d", defaultListenPort, p.ListenPort)}}, nil
}

// activate makes a network active with its first peer.
func (s *Service) activate(ctx context.Context, tx *store.Tx, n store.Network) error {
	if n.Status != StatusRegistered {
		return nil
	}
	n.Status = StatusActive
	if err := store.UpdateNetwork(ctx, tx, n); err != nil {
		return fmt.Errorf("activate network %s: %w", n.Name, err)
	}
	_, err := tx.Audit(ctx, store.AuditEntry{AccountID: n.AccountID, Action: "updated", ResourceType: "Sdwan::Network", ResourceID: string(n.ID),
		Old: store.Object{"status": StatusRegistered}, New: store.Object{"status": StatusActive}})
	return err
}

// CheckDetach refuses to take a cluster's member off its network.
func (s *Service) CheckDetach(ctx context.Context, v *store.View, acct store.AccountID, id store.PeerID) error {
	if _, err := s.FindPeer(ctx, v, acct, id); err != nil {
		return err
	}
	if s.Clusters == nil {
		return nil
	}
	return s.Clusters.DetachForbidden(ctx, v, acct, id)
}

// Detach takes a peer off its network. Virtual IPs that it held move to their first candidate, or are held by nobody.
func (s *Service) Detach(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.PeerID) (released []store.VirtualIPID, err error) {
	if err := s.CheckDetach(ctx, &tx.View, acct, id); err != nil {
		return nil, err
	}
	p, err := s.FindPeer(ctx, &tx.View, acct, id)
	if err != nil {
		return nil, err
	}
	return s.detach(ctx, tx, p)
}

// DetachInstance takes an instance off all its networks; whoever calls has asked whether that may be.
func (s *Service) DetachInstance(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.InstanceID) (detached int, released []store.VirtualIPID, err error) {
	peers, err := store.PeersByInstance(ctx, &tx.View, acct, id)
	if err != nil {
		return 0, nil, err
	}
	released = []store.VirtualIPID{}
	for _, p := range peers {
		gone, err := s.detach(ctx, tx, p)
		if err != nil {
			return 0, nil, err
		}
		released = append(released, gone...)
	}
	return len(peers), released, nil
}

func (s *Service) detach(ctx context.Context, tx *store.Tx, p store.Peer) ([]store.VirtualIPID, error) {
	released, err := s.forgetHolder(ctx, tx, p)
	if err != nil {
		return nil, err
	}
	if err := s.removePeer(ctx, tx, p); err != nil {
		return nil, err
	}
	tx.TouchNetwork(p.NetworkID)
	return released, s.deviceFilesChanged(ctx, tx, p.AccountID, p.NetworkID)
}

// removePeer removes the row with what hangs on it. The instance's own document is touched, since it is no member any more.
func (s *Service) removePeer(ctx context.Context, tx *store.Tx, p store.Peer) error {
	err := errors.Join(
		store.ReleaseAddresses(ctx, tx, p.AccountID, string(p.ID)),
		store.ReleaseAddressRanges(ctx, tx, p.AccountID, string(p.ID)),
		store.ReleaseShortID(ctx, tx, p.ID),
		store.DeleteTunnels(ctx, tx, p.InstanceID, p.NetworkID),
		store.DeleteProbesOf(ctx, tx, p.ID),
		store.DeletePeer(ctx, tx, p.AccountID, p.ID))
	if err != nil {
		return fmt.Errorf("remove peer %s: %w", p.ID, err)
	}
	_, err = tx.Audit(ctx, store.AuditEntry{AccountID: p.AccountID, Action: "deleted", ResourceType: "Sdwan::Peer", ResourceID: string(p.ID),
		Old: store.Object{"network_id": string(p.NetworkID), "node_instance_id": string(p.InstanceID), "assigned_address": p.Address.String()}})
	if err != nil {
		return err
	}
	tx.TouchInstance(p.InstanceID)
	return signal.Emit(ctx, tx, p.AccountID, signal.Event{Kind: "system.sdwan_peer_detached", Subject: signal.Subject{NetworkID: p.NetworkID, InstanceID: p.InstanceID},
		Payload: store.Object{"network_id": string(p.NetworkID), "peer_id": string(p.ID), "assigned_address": p.Address.String()}})
}
