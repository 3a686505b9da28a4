package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"powernode/platform/signal"
	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
)

// States of a virtual IP.
const (
	VIPPending     = "pending"
	VIPActive      = "active"
	VIPFailingOver = "failing_over"
	VIPUnassigned  = "unassigned"
	VIPError       = "error"
)

// Reasons of an assignment.
const (
	ReasonInitial           = "initial"
	ReasonManualFailover    = "manual_failover"
	ReasonAutomaticFailover = "automatic_failover"
	ReasonSensorFailover    = "sensor_failover"
	ReasonHolderChanged     = "holder_changed"
	ReasonRevoked           = "revoked"
)

// heardOf is how old an agent's last word may be for its peer to count as live: it reports at least each 30 s.
const heardOf = 90 * time.Second

// defaultLocalPref is what a route has that nobody preferred.
const defaultLocalPref = 100

const unassignedKind = "system.sdwan_vip_unassigned"

// VIPInput is a virtual IP to make. An invalid Address is the next free one.
type VIPInput struct {
	NetworkID   store.NetworkID
	Name        string
	Address     netip.Addr
	Holder      []store.PeerID // none or one
	Candidates  []store.PeerID
	ClusterID   store.ClusterID
	Anycast     bool
	Description string
	Tags        []string
	MED         int64
	LocalPref   *int64 // nil: 100
}

// ParseVIP reads the cidr of a virtual IP: a /128, or `auto`, which is an invalid address.
func ParseVIP(cidr string) (netip.Addr, error) {
	if cidr == "auto" {
		return netip.Addr{}, nil
	}
	p, err := netip.ParsePrefix(cidr)
	if err != nil || !p.IsSingleIP() || !p.Addr().Is6() || p.Addr().Is4In6() {
		return netip.Addr{}, schema.InvalidArgument("/cidr", cidr, "cidr must be a /128 in the network's range of virtual IPs, or auto (got %q)", cidr)
	}
	return p.Addr(), nil
}

// CheckCreateVIP refuses what CreateVIP could not do.
func (s *Service) CheckCreateVIP(ctx context.Context, v *store.View, acct store.AccountID, in VIPInput) error {
	if in.Anycast {
		return notYet("anycast virtual IPs")
	}
	if err := checkName("/name", in.Name, maxVIPName); err != nil {
		return err
	}
	n, err := s.Find(ctx, v, acct, in.NetworkID)
	if err != nil {
		return err
	}
	if n.Status == StatusArchived {
		return schema.Errorf(schema.PreconditionFailed, "network %s is %s", n.Name, n.Status)
	}
	if r := sdwan.VIPRange(n.CIDR.Prefix); in.Address.IsValid() && !r.Contains(in.Address) {
		return schema.InvalidArgument("/cidr", in.Address.String()+"/128", "cidr must be in the network's range of virtual IPs, %s to %s", r.First, r.Last)
	}
	if err := s.checkHolders(ctx, v, n, in.Holder, in.Candidates); err != nil {
		return err
	}
	other, err := store.VirtualIPByName(ctx, v, acct, n.ID, in.Name)
	if free, err := absent(err); err != nil || free {
		return err
	}
	return schema.Errorf(schema.Conflict, "virtual IP name %q is already in use", in.Name).WithDetail("virtual_ip_id", string(other.ID))
}

// checkHolders refuses holders and candidates that a virtual IP of the network can't have.
func (s *Service) checkHolders(ctx context.Context, v *store.View, n store.Network, holders, candidates []store.PeerID) error {
	if len(holders) > 1 {
		return schema.InvalidArgument("/holder_peer_ids", nil, "a virtual IP has at most one holder (got %d)", len(holders))
	}
	var foreign []string
	seen := map[store.PeerID]bool{}
	for i, id := range slices.Concat(holders, candidates) {
		if seen[id] {
			pointer := "/failover_holder_peer_ids"
			if i < len(holders) {
				pointer = "/holder_peer_ids"
			}
			return schema.InvalidArgument(pointer, string(id), "peer %s is named twice: a peer is not holder and candidate at once", id)
		}
		seen[id] = true
		p, err := store.PeerByID(ctx, v, n.AccountID, id)
		missing, err := absent(err)
		if err != nil {
			return err
		}
		if missing || p.NetworkID != n.ID {
			foreign = append(foreign, string(id))
		}
	}
	if len(foreign) == 0 {
		return nil
	}
	shown := foreign[:min(3, len(foreign))]
	return schema.InvalidArgument("/holder_peer_ids", shown, "no peer of this network: %s", strings.Join(shown, ", "))
}

// CreateVIP makes a virtual IP.
func (s *Service) CreateVIP(ctx context.Context, tx *store.Tx, acct store.AccountID, in VIPInput) (store.VirtualIP, error) {
	if err := s.CheckCreateVIP(ctx, &tx.View, acct, in); err != nil {
		return store.VirtualIP{}, err
	}
	n, err := s.Find(ctx, &tx.View, acct, in.NetworkID)
	if err != nil {
		return store.VirtualIP{}, err
	}
	ip := store.VirtualIP{ID: store.VirtualIPID(tx.NewID()), AccountID: acct, NetworkID: n.ID, Name: in.Name, State: VIPPending,
		HolderPeerIDs: in.Holder, FailoverHolderPeerIDs: in.Candidates, AdvertisedMED: in.MED, AdvertisedLocalPref: defaultLocalPref,
		Tags: in.Tags, Description: in.Description, ClusterID: in.ClusterID}
	if in.LocalPref != nil {
		ip.AdvertisedLocalPref = *in.LocalPref
	}
	if ip.Address.Addr, err = takeAddress(ctx, tx, n, addressVIP, string(ip.ID), in.Address); err != nil {
		return store.VirtualIP{}, err
	}
	if ip.Holder() != "" {
		ip.State, ip.Epoch = VIPActive, 1
	}
	if err := store.InsertVirtualIP(ctx, tx, ip); err != nil {
		return store.VirtualIP{}, fmt.Errorf("make virtual IP %s: %w", ip.Name, err)
	}
	if ip.Holder() != "" {
		err := store.OpenVirtualIPAssignment(ctx, tx, store.VirtualIPAssignment{VirtualIPID: ip.ID, PeerID: ip.Holder(), Reason: ReasonInitial})
		if err != nil {
			return store.VirtualIP{}, fmt.Errorf("open the assignment of %s: %w", ip.Name, err)
		}
	}
	_, err = tx.Audit(ctx, store.AuditEntry{AccountID: acct, Action: "created", ResourceType: "Sdwan::VirtualIp", ResourceID: string(ip.ID),
		New: store.Object{"name": ip.Name, "network_id": string(n.ID), "cidr": ip.Address.String() + "/128", "holder_peer_ids": in.Holder,
			"failover_holder_peer_ids": in.Candidates, "cluster_id": string(in.ClusterID)}})
	if err != nil {
		return store.VirtualIP{}, err
	}
	tx.TouchNetwork(n.ID)
	return store.VirtualIPByID(ctx, &tx.View, acct, ip.ID)
}

// CheckFailover refuses a failover that could not take effect.
func (s *Service) CheckFailover(ctx context.Context, v *store.View, acct store.AccountID, id store.VirtualIPID) error {
	ip, err := s.FindVIP(ctx, v, acct, id)
	if err != nil {
		return err
	}
	if ip.Anycast {
		return schema.Errorf(schema.PreconditionFailed, "anycast VIPs don't fail over (all holders active simultaneously)")
	}
	if len(ip.FailoverHolderPeerIDs) == 0 {
		e := schema.Errorf(schema.PreconditionFailed, "no failover candidates configured")
		if ip.ClusterID != "" {
			return e.WithHint("kubernetes_list_nodes", "A cluster's candidates are its other servers.")
		}
		return e.WithHint("system_sdwan_get_virtual_ip", "Candidates are named when the virtual IP is made.")
	}
	first := ip.FailoverHolderPeerIDs[0]
	live, err := s.live(ctx, v, ip, first)
	if err != nil {
		return err
	}
	if !live {
		return schema.Errorf(schema.PreconditionFailed, "the first candidate is not a live peer of the network").WithDetail("peer_id", string(first))
	}
	if ip.ClusterID == "" || s.Clusters == nil {
		return nil
	}
	return s.Clusters.FailoverReady(ctx, v, acct, ip.ClusterID, first)
}

// live says whether a peer can take over: it is a member with a key, its machine has not ended and its agent was heard
// of a moment ago. Without an agent nothing would be applied.
func (s *Service) live(ctx context.Context, v *store.View, ip store.VirtualIP, id store.PeerID) (bool, error) {
	p, err := store.PeerByID(ctx, v, ip.AccountID, id)
	if gone, err := absent(err); err != nil || gone {
		return false, err
	}
	if p.NetworkID != ip.NetworkID || p.PublicKey == "" {
		return false, nil
	}
	i, err := store.InstanceByID(ctx, v, ip.AccountID, p.InstanceID)
	if gone, err := absent(err); err != nil || gone || !i.Live() {
		return false, err
	}
	r, err := store.InstanceReportOf(ctx, v, p.InstanceID)
	if silent, err := absent(err); err != nil || silent {
		return false, err
	}
	return v.Now().Sub(r.ReceivedAt.Time) < heardOf, nil
}

// Failover promotes the first candidate.
func (s *Service) Failover(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.VirtualIPID, user store.UserID) (ip store.VirtualIP, previous store.PeerID, err error) {
	if err := s.CheckFailover(ctx, &tx.View, acct, id); err != nil {
		return store.VirtualIP{}, "", err
	}
	if ip, err = s.FindVIP(ctx, &tx.View, acct, id); err != nil {
		return store.VirtualIP{}, "", err
	}
	previous = ip.Holder()
	reason := ReasonManualFailover
	if tx.Actor().Kind == "platform" { // its sensor has asked
		reason = ReasonSensorFailover
	}
	ip, err = s.move(ctx, tx, ip, ip.FailoverHolderPeerIDs[0], reason, user)
	return ip, previous, err
}

// move gives a virtual IP to another peer. The old holder goes to the end of the candidates and is no holder any more.
func (s *Service) move(ctx context.Context, tx *store.Tx, ip store.VirtualIP, to store.PeerID, reason string, user store.UserID) (store.VirtualIP, error) {
	from := ip.Holder()
	if from == to {
		return ip, nil
	}
	candidates := without(ip.FailoverHolderPeerIDs, to)
	if from != "" {
		candidates = append(candidates, from)
	}
	ip, err := s.hold(ctx, tx, ip, []store.PeerID{to}, candidates, reason, user)
	if err != nil {
		return store.VirtualIP{}, err
	}
	err = signal.Emit(ctx, tx, ip.AccountID, signal.Event{Kind: "system.sdwan_vip_failed_over", Subject: signal.Subject{NetworkID: ip.NetworkID, ClusterID: ip.ClusterID},
		Payload: store.Object{"virtual_ip_id": string(ip.ID), "from_peer_id": string(from), "to_peer_id": string(to), "epoch": ip.Epoch, "reason": reason}})
	return ip, err
}

// SetVIPHolders says who holds a virtual IP and who may take over. What equals the row is no change.
func (s *Service) SetVIPHolders(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.VirtualIPID, holders, candidates []store.PeerID, reason string) error {
	ip, err := s.FindVIP(ctx, &tx.View, acct, id)
	if err != nil {
		return err
	}
	if slices.Equal(ip.HolderPeerIDs, holders) && slices.Equal(ip.FailoverHolderPeerIDs, candidates) {
		return nil
	}
	n, err := s.Find(ctx, &tx.View, acct, ip.NetworkID)
	if err != nil {
		return err
	}
	if err := s.checkHolders(ctx, &tx.View, n, holders, candidates); err != nil {
		return err
	}
	_, err = s.hold(ctx, tx, ip, holders, candidates, reason, "")
	return err
}

// hold writes holders and candidates. A change of holder raises the epoch, closes the old assignment and opens a new one.
func (s *Service) hold(ctx context.Context, tx *store.Tx, ip store.VirtualIP, holders, candidates []store.PeerID, reason string, user store.UserID) (store.VirtualIP, error) {
	was := store.Object{"holder_peer_ids": ip.HolderPeerIDs, "failover_holder_peer_ids": ip.FailoverHolderPeerIDs, "epoch": ip.Epoch, "state": ip.State}
	from := ip.Holder()
	ip.HolderPeerIDs, ip.FailoverHolderPeerIDs = holders, candidates
	to := ip.Holder()
	if from != to {
		ip.Epoch++
		ip.State = heldState(from, to)
		if err := s.reassign(ctx, tx, ip, from, reason, user); err != nil {
			return store.VirtualIP{}, err
		}
	}
	if err := store.UpdateVirtualIP(ctx, tx, ip); err != nil {
		return store.VirtualIP{}, fmt.Errorf("change virtual IP %s: %w", ip.Name, err)
	}
	_, err := tx.Audit(ctx, store.AuditEntry{AccountID: ip.AccountID, Action: "updated", ResourceType: "Sdwan::VirtualIp", ResourceID: string(ip.ID), Old: was,
		New: store.Object{"holder_peer_ids": holders, "failover_holder_peer_ids": candidates, "epoch": ip.Epoch, "state": ip.State, "reason": reason}})
	if err != nil {
		return store.VirtualIP{}, err
	}
	tx.TouchNetwork(ip.NetworkID)
	return store.VirtualIPByID(ctx, &tx.View, ip.AccountID, ip.ID)
}

// heldState is the state after a change of holder. A move is failing_over until the new holder's agent has applied it.
func heldState(from, to store.PeerID) string {
	switch {
	case to == "":
		return VIPUnassigned
	case from == "":
		return VIPActive
	}
	return VIPFailingOver
}

func (s *Service) reassign(ctx context.Context, tx *store.Tx, ip store.VirtualIP, from store.PeerID, reason string, user store.UserID) error {
	if from != "" {
		if err := store.CloseVirtualIPAssignment(ctx, tx, ip.ID, from); err != nil {
			return fmt.Errorf("close the assignment of %s: %w", ip.Name, err)
		}
	}
	about := signal.Subject{NetworkID: ip.NetworkID, ClusterID: ip.ClusterID}
	payload := store.Object{"virtual_ip_id": string(ip.ID)}
	if ip.Holder() == "" {
		return signal.Open(ctx, tx, ip.AccountID, string(ip.ID), signal.Event{Kind: unassignedKind, Subject: about, Payload: payload})
	}
	err := store.OpenVirtualIPAssignment(ctx, tx, store.VirtualIPAssignment{VirtualIPID: ip.ID, PeerID: ip.Holder(), Reason: reason, TriggeredByUserID: user})
	if err != nil {
		return fmt.Errorf("open the assignment of %s: %w", ip.Name, err)
	}
	return signal.Close(ctx, tx, ip.AccountID, string(ip.ID), unassignedKind, about, payload)
}

// ReleaseVIP removes a virtual IP; its address rests.
func (s *Service) ReleaseVIP(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.VirtualIPID) error {
	ip, err := s.FindVIP(ctx, &tx.View, acct, id)
	if err != nil {
		return err
	}
	tx.TouchNetwork(ip.NetworkID)
	return s.release(ctx, tx, ip)
}

func (s *Service) release(ctx context.Context, tx *store.Tx, ip store.VirtualIP) error {
	about := signal.Subject{NetworkID: ip.NetworkID, ClusterID: ip.ClusterID}
	if err := signal.Close(ctx, tx, ip.AccountID, string(ip.ID), unassignedKind, about, store.Object{"virtual_ip_id": string(ip.ID)}); err != nil {
		return err
	}
	err := errors.Join(store.ReleaseAddresses(ctx, tx, ip.AccountID, string(ip.ID)), store.DeleteVirtualIP(ctx, tx, ip.AccountID, ip.ID))
	if err != nil {
		return fmt.Errorf("release virtual IP %s: %w", ip.Name, err)
	}
	_, err = tx.Audit(ctx, store.AuditEntry{AccountID: ip.AccountID, Action: "deleted", ResourceType: "Sdwan::VirtualIp", ResourceID: string(ip.ID),
		Old: store.Object{"name": ip.Name, "network_id": string(ip.NetworkID), "cidr": ip.Address.String() + "/128"}})
	return err
}

// forgetHolder takes a peer out of the virtual IPs of its network. What it held moves to the first candidate, or is
// unassigned.
func (s *Service) forgetHolder(ctx context.Context, tx *store.Tx, p store.Peer) ([]store.VirtualIPID, error) {
	vips, err := store.VirtualIPsByNetwork(ctx, &tx.View, p.AccountID, p.NetworkID)
	if err != nil {
		return nil, err
	}
	released := []store.VirtualIPID{}
	for _, ip := range vips {
		candidates := without(ip.FailoverHolderPeerIDs, p.ID)
		holders := without(ip.HolderPeerIDs, p.ID)
		if len(candidates) == len(ip.FailoverHolderPeerIDs) && len(holders) == len(ip.HolderPeerIDs) {
			continue
		}
		if ip.Holder() == p.ID {
			released = append(released, ip.ID)
			if len(candidates) > 0 && ip.ClusterID == "" { // a cluster chooses its own, ready ones first
				holders, candidates = candidates[:1], candidates[1:]
			}
		}
		if _, err := s.hold(ctx, tx, ip, holders, candidates, ReasonHolderChanged, ""); err != nil {
			return nil, err
		}
	}
	return released, nil
}

// settleVIPs ends failovers whose new holder's agent says what came of them: it holds the address once it has applied
// the document as it is now.
func (s *Service) settleVIPs(ctx context.Context, tx *store.Tx, peers []store.Peer, report sdwan.Report) error {
	i := slices.IndexFunc(report.Subsystems, func(r sdwan.SubsystemReport) bool { return r.Name == "vip" })
	if i < 0 {
		return nil
	}
	said := report.Subsystems[i]
	state := map[string]string{"ok": VIPActive, "error": VIPError}[said.State]
	if state == "" {
		return nil
	}
	for _, p := range peers {
		vips, err := store.UnsettledVirtualIPs(ctx, &tx.View, p.AccountID, p.NetworkID)
		if err != nil {
			return err
		}
		for _, ip := range vips {
			if ip.Holder() != p.ID || ip.State == state {
				continue
			}
			due, _, err := store.DocumentHead(ctx, &tx.View, p.InstanceID)
			if err != nil {
				return err
			}
			if state == VIPActive && said.AppliedRevision < due {
				continue
			}
			if err := s.settle(ctx, tx, ip, state); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Service) settle(ctx context.Context, tx *store.Tx, ip store.VirtualIP, state string) error {
	was := ip.State
	ip.State = state
	if err := store.UpdateVirtualIP(ctx, tx, ip); err != nil {
		return fmt.Errorf("change virtual IP %s: %w", ip.Name, err)
	}
	_, err := tx.Audit(ctx, store.AuditEntry{AccountID: ip.AccountID, Action: "updated", ResourceType: "Sdwan::VirtualIp", ResourceID: string(ip.ID),
		Old: store.Object{"state": was}, New: store.Object{"state": state}})
	return err
}
