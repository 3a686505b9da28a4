package network

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"powernode/platform/signal"
	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
)

// Statuses of a network.
const (
	StatusRegistered = "registered"
	StatusActive     = "active"
	StatusSuspended  = "suspended"
	StatusArchived   = "archived"
)

// transitions are the changes of status that a person can ask for; the first peer makes a network active by itself.
var transitions = map[string][]string{
	StatusRegistered: {},
	StatusActive:     {StatusSuspended, StatusArchived},
	StatusSuspended:  {StatusActive},
	StatusArchived:   {},
}

// CreateInput is a network to make. Zero values are the defaults.
type CreateInput struct {
	Name          string
	Description   string
	MTU           int
	Strategy      string
	DefaultPolicy string
}

// CheckCreate refuses what Create could not do.
func (s *Service) CheckCreate(ctx context.Context, v *store.View, acct store.AccountID, in CreateInput) error {
	if err := checkName("/name", in.Name, maxNetworkName); err != nil {
		return err
	}
	if in.Strategy == sdwan.StrategyHubAndSpoke {
		return notYet("topology_strategy hub_and_spoke")
	}
	return nameFree(ctx, v, acct, in.Name, "")
}

func nameFree(ctx context.Context, v *store.View, acct store.AccountID, name string, self store.NetworkID) error {
	other, err := store.NetworkByName(ctx, v, acct, name)
	free, err := absent(err)
	if err != nil || free || other.ID == self {
		return err
	}
	return schema.Errorf(schema.Conflict, "network name %q is already in use", name).WithDetail("network_id", string(other.ID))
}

// Create makes a network with the account's next free /64.
func (s *Service) Create(ctx context.Context, tx *store.Tx, acct store.AccountID, in CreateInput) (store.Network, error) {
	if err := s.CheckCreate(ctx, &tx.View, acct, in); err != nil {
		return store.Network{}, err
	}
	slug, err := freeSlug(ctx, &tx.View, acct, in.Name)
	if err != nil {
		return store.Network{}, err
	}
	n := store.Network{ID: store.NetworkID(tx.NewID()), AccountID: acct, Name: in.Name, Slug: slug, Description: in.Description,
		Status: StatusRegistered, MTU: orDefault(in.MTU, sdwan.DefaultMTU), TopologyStrategy: orDefault(in.Strategy, sdwan.StrategyAuto),
		FirewallDefaultPolicy: orDefault(in.DefaultPolicy, sdwan.ActionAccept), RoutingProtocol: "static"}
	taken, err := readRanges(ctx, &tx.View, acct)
	if err != nil {
		return store.Network{}, err
	}
	if n.CIDR.Prefix, err = taken.next(rangeNetwork); err != nil {
		return store.Network{}, err
	}
	err = store.TakeAddressRange(ctx, tx, store.AddressRange{AccountID: acct, Prefix: n.CIDR, Kind: rangeNetwork, OwnerID: string(n.ID), OwnerName: n.Name})
	if err != nil {
		return store.Network{}, fmt.Errorf("take a /64: %w", err)
	}
	if err := store.InsertNetwork(ctx, tx, n); err != nil {
		return store.Network{}, fmt.Errorf("make network %s: %w", n.Name, err)
	}
	_, err = tx.Audit(ctx, store.AuditEntry{AccountID: acct, Action: "created", ResourceType: "Sdwan::Network", ResourceID: string(n.ID),
		New: store.Object{"name": n.Name, "cidr_64": n.CIDR.String(), "status": n.Status, "mtu": n.MTU, "topology_strategy": n.TopologyStrategy,
			"firewall_default_policy": n.FirewallDefaultPolicy}})
	if err != nil {
		return store.Network{}, err
	}
	return store.NetworkByID(ctx, &tx.View, acct, n.ID)
}

func orDefault[T comparable](value, def T) T {
	var zero T
	if value == zero {
		return def
	}
	return value
}

// UpdateInput has the fields to change; nil leaves alone.
type UpdateInput struct {
	Name          *string
	Description   *string
	Status        *string
	MTU           *int
	Strategy      *string
	DefaultPolicy *string
	// PodSubnetPrefix says that a prefix, or its end, was asked for.
	PodSubnetPrefix bool
}

func (in UpdateInput) empty() bool {
	return in.Name == nil && in.Description == nil && in.Status == nil && in.MTU == nil && in.Strategy == nil && in.DefaultPolicy == nil && !in.PodSubnetPrefix
}

// CheckUpdate refuses what Update could not do.
func (s *Service) CheckUpdate(ctx context.Context, v *store.View, acct store.AccountID, id store.NetworkID, in UpdateInput) error {
	n, err := s.Find(ctx, v, acct, id)
	if err != nil {
		return err
	}
	if in.empty() {
		return schema.InvalidArgument("/options", nil, "no recognized fields to update — permitted: options.name, options.description, "+
			"options.status, options.settings.mtu, options.settings.topology_strategy, options.settings.firewall_default_policy, pod_subnet_prefix")
	}
	if in.PodSubnetPrefix {
		return notYet("pod_subnet_prefix")
	}
	if in.Strategy != nil && *in.Strategy == sdwan.StrategyHubAndSpoke {
		return notYet("topology_strategy hub_and_spoke")
	}
	if in.Name != nil {
		if err := checkName("/options/name", *in.Name, maxNetworkName); err != nil {
			return err
		}
		if err := nameFree(ctx, v, acct, *in.Name, n.ID); err != nil {
			return err
		}
	}
	return s.checkClustersAllow(ctx, v, n, in)
}

// checkClustersAllow refuses a status or an MTU that the network's clusters can't live with.
func (s *Service) checkClustersAllow(ctx context.Context, v *store.View, n store.Network, in UpdateInput) error {
	change := in.Status != nil && *in.Status != n.Status
	if change && !slices.Contains(transitions[n.Status], *in.Status) {
		verb := map[string]string{StatusActive: "activate", StatusSuspended: "suspend", StatusArchived: "archive"}[*in.Status]
		return schema.Errorf(schema.PreconditionFailed, "cannot %s from %s", verb, n.Status).WithDetail("allowed", transitions[n.Status])
	}
	if !change && in.MTU == nil {
		return nil
	}
	clusters, err := s.clusters(ctx, v, n.AccountID, n.ID)
	if err != nil {
		return err
	}
	if change && *in.Status != StatusActive && len(clusters) > 0 {
		return usedBy(clusters)
	}
	vxlan := slices.ContainsFunc(clusters, func(c sdwan.Cluster) bool { return c.FlannelBackend != sdwan.BackendHostGW })
	if in.MTU == nil {
		return nil
	}
	var small *sdwan.MTUError
	if err := sdwan.CheckMTU(*in.MTU, vxlan); errors.As(err, &small) {
		return schema.Errorf(schema.PreconditionFailed, "%s", small.Error()).WithDetail("needed", small.Needed)
	}
	return nil
}

func usedBy(clusters []sdwan.Cluster) error {
	names := make([]string, len(clusters))
	ids := make([]string, len(clusters))
	for i, c := range clusters {
		names[i], ids[i] = c.Name, c.ID
	}
	return schema.Errorf(schema.PreconditionFailed, "network is used by cluster(s) %s", strings.Join(names, ", ")).WithDetail("cluster_ids", ids).
		WithHint("kubernetes_decommission_cluster", "Decommission the cluster(s) first.")
}

// Update changes a network. What equals the row is no change.
func (s *Service) Update(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.NetworkID, in UpdateInput) (store.Network, error) {
	if err := s.CheckUpdate(ctx, &tx.View, acct, id, in); err != nil {
		return store.Network{}, err
	}
	n, err := s.Find(ctx, &tx.View, acct, id)
	if err != nil {
		return store.Network{}, err
	}
	was, now := store.Object{}, store.Object{}
	changeTo(&n.Name, in.Name, "name", was, now)
	changeTo(&n.Description, in.Description, "description", was, now)
	changeTo(&n.Status, in.Status, "status", was, now)
	changeTo(&n.MTU, in.MTU, "mtu", was, now)
	changeTo(&n.TopologyStrategy, in.Strategy, "topology_strategy", was, now)
	changeTo(&n.FirewallDefaultPolicy, in.DefaultPolicy, "firewall_default_policy", was, now)
	if len(now) == 0 {
		return n, nil
	}
	if err := store.UpdateNetwork(ctx, tx, n); err != nil {
		return store.Network{}, fmt.Errorf("change network %s: %w", n.Name, err)
	}
	if _, renamed := now["name"]; renamed {
		if err := store.RenameAddressRanges(ctx, tx, acct, string(n.ID), n.Name); err != nil {
			return store.Network{}, fmt.Errorf("rename the network's ranges: %w", err)
		}
	}
	_, err = tx.Audit(ctx, store.AuditEntry{AccountID: acct, Action: "updated", ResourceType: "Sdwan::Network", ResourceID: string(n.ID), Old: was, New: now})
	if err != nil {
		return store.Network{}, err
	}
	tx.TouchNetwork(n.ID)
	if err := s.deviceFilesChanged(ctx, tx, acct, n.ID); err != nil {
		return store.Network{}, err
	}
	return store.NetworkByID(ctx, &tx.View, acct, n.ID)
}

func changeTo[T comparable](field *T, to *T, name string, was, now store.Object) {
	if to == nil || *to == *field {
		return
	}
	was[name], now[name] = *field, *to
	*field = *to
}

// CheckRoutingMode refuses what the routing mode of a network can't become.
func (s *Service) CheckRoutingMode(ctx context.Context, v *store.View, acct store.AccountID, id store.NetworkID, protocol string) error {
	if _, err := s.Find(ctx, v, acct, id); err != nil {
		return err
	}
	if protocol != "static" {
		return notYet("routing_protocol %s", protocol)
	}
	return nil
}

// CheckDelete refuses to delete a network that something uses.
func (s *Service) CheckDelete(ctx context.Context, v *store.View, acct store.AccountID, id store.NetworkID) error {
	if _, err := s.Find(ctx, v, acct, id); err != nil {
		return err
	}
	clusters, err := s.clusters(ctx, v, acct, id)
	if err != nil {
		return err
	}
	if len(clusters) > 0 {
		return usedBy(clusters)
	}
	return nil
}

// Removed counts what went with a network.
type Removed struct {
	Peers, FirewallRules, AccessGrants, UserDevices, VirtualIPs int64
}

// Delete removes a network and everything in it. Its addresses rest.
func (s *Service) Delete(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.NetworkID) (Removed, error) {
	if err := s.CheckDelete(ctx, &tx.View, acct, id); err != nil {
		return Removed{}, err
	}
	n, err := s.Find(ctx, &tx.View, acct, id)
	if err != nil {
		return Removed{}, err
	}
	var gone Removed
	for _, remove := range []func(context.Context, *store.Tx, store.Network, *Removed) error{s.removeVIPs, s.removeRules, s.removeGrants, s.removePeers} {
		if err := remove(ctx, tx, n, &gone); err != nil {
			return Removed{}, fmt.Errorf("delete network %s: %w", n.Name, err)
		}
	}
	if err := store.ReleaseAddressRanges(ctx, tx, acct, string(n.ID)); err != nil {
		return Removed{}, fmt.Errorf("release the /64 of network %s: %w", n.Name, err)
	}
	if err := store.DeleteNetwork(ctx, tx, acct, n.ID); err != nil {
		return Removed{}, fmt.Errorf("delete network %s: %w", n.Name, err)
	}
	_, err = tx.Audit(ctx, store.AuditEntry{AccountID: acct, Action: "deleted", ResourceType: "Sdwan::Network", ResourceID: string(n.ID),
		Old: store.Object{"name": n.Name, "cidr_64": n.CIDR.String(), "status": n.Status}})
	return gone, err
}

func (s *Service) removeVIPs(ctx context.Context, tx *store.Tx, n store.Network, gone *Removed) error {
	vips, err := store.VirtualIPsByNetwork(ctx, &tx.View, n.AccountID, n.ID)
	if err != nil {
		return err
	}
	for _, ip := range vips {
		if err := s.release(ctx, tx, ip); err != nil {
			return err
		}
	}
	gone.VirtualIPs = int64(len(vips))
	return nil
}

func (s *Service) removeRules(ctx context.Context, tx *store.Tx, n store.Network, gone *Removed) error {
	rules, err := store.FirewallRulesByNetwork(ctx, &tx.View, n.AccountID, n.ID)
	if err != nil {
		return err
	}
	for _, r := range rules {
		_, err := tx.Audit(ctx, store.AuditEntry{AccountID: n.AccountID, Action: "deleted", ResourceType: "Sdwan::FirewallRule", ResourceID: string(r.ID),
			Old: store.Object{"name": r.Name, "network_id": string(n.ID)}})
		if err != nil {
			return err
		}
	}
	gone.FirewallRules, err = store.DeleteFirewallRules(ctx, tx, n.AccountID, n.ID)
	return err
}

func (s *Service) removeGrants(ctx context.Context, tx *store.Tx, n store.Network, gone *Removed) error {
	grants, err := store.AccessGrantsByNetwork(ctx, &tx.View, n.AccountID, n.ID)
	if err != nil {
		return err
	}
	for _, g := range grants {
		if err := s.removeDevices(ctx, tx, g); err != nil {
			return err
		}
		_, err := tx.Audit(ctx, store.AuditEntry{AccountID: n.AccountID, Action: "deleted", ResourceType: "Sdwan::AccessGrant", ResourceID: string(g.ID),
			Old: store.Object{"network_id": string(n.ID), "user_id": string(g.UserID), "status": g.Status}})
		if err != nil {
			return err
		}
	}
	if gone.UserDevices, err = store.DeleteUserDevices(ctx, tx, n.AccountID, n.ID); err != nil {
		return err
	}
	gone.AccessGrants, err = store.DeleteAccessGrants(ctx, tx, n.AccountID, n.ID)
	return err
}

// removeDevices writes the record of a grant's devices and lets their addresses rest; the rows go with the network's.
func (s *Service) removeDevices(ctx context.Context, tx *store.Tx, g store.AccessGrant) error {
	devices, err := store.UserDevicesByGrant(ctx, &tx.View, g.AccountID, g.ID)
	if err != nil {
		return err
	}
	for _, d := range devices {
		if err := store.ReleaseAddresses(ctx, tx, g.AccountID, string(d.ID)); err != nil {
			return err
		}
		err := signal.Close(ctx, tx, g.AccountID, string(d.ID), staleKind, signal.Subject{NetworkID: g.NetworkID}, store.Object{"user_device_id": string(d.ID)})
		if err != nil {
			return err
		}
		_, err = tx.Audit(ctx, store.AuditEntry{AccountID: g.AccountID, Action: "deleted", ResourceType: "Sdwan::UserDevice", ResourceID: string(d.ID),
			Old: store.Object{"label": d.Label, "network_id": string(d.NetworkID)}})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) removePeers(ctx context.Context, tx *store.Tx, n store.Network, gone *Removed) error {
	peers, err := store.PeersByNetwork(ctx, &tx.View, n.AccountID, n.ID)
	if err != nil {
		return err
	}
	for _, p := range peers {
		if err := s.removePeer(ctx, tx, p); err != nil {
			return err
		}
	}
	gone.Peers = int64(len(peers))
	return nil
}
