package tools

import (
	"context"

	"powernode/platform/network"
	"powernode/schema"
	"powernode/store"
)

func networkVerbs() []*Definition {
	return []*Definition{createNetwork(), listNetworks(), getNetwork(), updateNetwork(), deleteNetwork()}
}

// networkSummary is a network in a list.
type networkSummary struct {
	ID        store.NetworkID `json:"id"`
	Name      string          `json:"name"`
	Slug      string          `json:"slug"`
	Status    string          `json:"status"`
	CIDR64    string          `json:"cidr_64"`
	PeerCount int             `json:"peer_count"`
	CreatedAt store.Time      `json:"created_at"`
}

type networkSettings struct {
	MTU                   int    `json:"mtu"`
	TopologyStrategy      string `json:"topology_strategy"`
	FirewallDefaultPolicy string `json:"firewall_default_policy"`
}

// networkObject is a network (full).
type networkObject struct {
	networkSummary
	Description     string          `json:"description"`
	Settings        networkSettings `json:"settings"`
	RoutingProtocol string          `json:"routing_protocol"`
	PodSubnetPrefix *string         `json:"pod_subnet_prefix"`
	Tags            []string        `json:"tags"`
	HubCount        int             `json:"hub_count"`
	SpokeCount      int             `json:"spoke_count"`
	GatewayPeerID   *store.PeerID   `json:"gateway_peer_id"`
	ClusterIDs      []string        `json:"cluster_ids"`
	UserDeviceCount int             `json:"user_device_count"`
}

func summarise(n store.Network, peers int) networkSummary {
	return networkSummary{ID: n.ID, Name: n.Name, Slug: n.Slug, Status: n.Status, CIDR64: n.CIDR.String(), PeerCount: peers, CreatedAt: n.CreatedAt}
}

func viewNetwork(ctx context.Context, p *Platform, v *store.View, n store.Network) (networkObject, error) {
	d, err := p.Network.Detail(ctx, v, n)
	if err != nil {
		return networkObject{}, err
	}
	o := networkObject{networkSummary: summarise(n, d.PeerCount), Description: n.Description,
		Settings:        networkSettings{MTU: n.MTU, TopologyStrategy: n.TopologyStrategy, FirewallDefaultPolicy: n.FirewallDefaultPolicy},
		RoutingProtocol: n.RoutingProtocol, Tags: notNil(n.Tags), HubCount: d.HubCount, SpokeCount: d.PeerCount - d.HubCount,
		GatewayPeerID: orNull(d.GatewayPeerID), ClusterIDs: d.ClusterIDs, UserDeviceCount: d.UserDeviceCount}
	if n.PodSubnetPrefix.IsValid() {
		o.PodSubnetPrefix = orNull(n.PodSubnetPrefix.String())
	}
	return o, nil
}

// notNil makes a list that encodes as [] and not as null.
func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// warnOf adds the domain's warnings to a result's.
func (w *Written) warnOf(warnings []network.Warning) {
	for _, each := range warnings {
		w.Warn(each.Code, "%s", each.Text)
	}
}

type networkIDArgs struct {
	NetworkID store.NetworkID `json:"network_id"`
}

type createNetworkArgs struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Options     *struct {
		MTU                   *int   `json:"mtu"`
		TopologyStrategy      string `json:"topology_strategy"`
		FirewallDefaultPolicy string `json:"firewall_default_policy"`
	} `json:"options"`
}

func (a createNetworkArgs) input() network.CreateInput {
	in := network.CreateInput{Name: a.Name, Description: a.Description}
	if o := a.Options; o != nil {
		in.Strategy, in.DefaultPolicy = o.TopologyStrategy, o.FirewallDefaultPolicy
		if o.MTU != nil {
			in.MTU = *o.MTU
		}
	}
	return in
}

type networkResult struct {
	Written
	Network networkObject `json:"network"`
}

func createNetwork() *Definition {
	return define("system_sdwan_create_network", handler[createNetworkArgs, networkResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a createNetworkArgs) error {
			return p.Network.CheckCreate(ctx, v, c.AccountID, a.input())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a createNetworkArgs) (r networkResult, err error) {
			n, err := p.Network.Create(ctx, tx, c.AccountID, a.input())
			if err != nil {
				return r, err
			}
			r.Hint = &schema.Hint{Verb: "system_sdwan_attach_peer", Text: "Attach instances to the network."}
			r.Network, err = viewNetwork(ctx, p, &tx.View, n)
			return r, err
		},
	})
}

type listNetworksArgs struct {
	Limit  int    `json:"limit"`
	Cursor string `json:"cursor"`
}

type listNetworksResult struct {
	Networks []networkSummary `json:"networks"`
	Page
}

func listNetworks() *Definition {
	const verb = "system_sdwan_list_networks"
	return define(verb, handler[listNetworksArgs, listNetworksResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a listNetworksArgs) (r listNetworksResult, err error) {
			all, err := store.Networks(ctx, v, c.AccountID)
			if err != nil {
				return r, err
			}
			counts, err := store.PeerCounts(ctx, v, c.AccountID)
			if err != nil {
				return r, err
			}
			rows := make([]networkSummary, len(all))
			for i, n := range all {
				rows[i] = summarise(n, counts[n.ID])
			}
			r.Networks, r.Page, err = page(verb, nil, a.Limit, a.Cursor, rows, func(n networkSummary) string { return string(n.ID) })
			return r, err
		},
	})
}

type getNetworkResult struct {
	Network networkObject `json:"network"`
}

func getNetwork() *Definition {
	return define("system_sdwan_get_network", handler[networkIDArgs, getNetworkResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a networkIDArgs) (r getNetworkResult, err error) {
			n, err := p.Network.Find(ctx, v, c.AccountID, a.NetworkID)
			if err != nil {
				return r, err
			}
			r.Network, err = viewNetwork(ctx, p, v, n)
			return r, err
		},
	})
}

type updateNetworkArgs struct {
	NetworkID store.NetworkID `json:"network_id"`
	Options   *struct {
		Name        *string `json:"name"`
		Description *string `json:"description"`
		Status      *string `json:"status"`
		Settings    *struct {
			MTU                   *int    `json:"mtu"`
			TopologyStrategy      *string `json:"topology_strategy"`
			FirewallDefaultPolicy *string `json:"firewall_default_policy"`
		} `json:"settings"`
	} `json:"options"`
	PodSubnetPrefix schema.Nullable[string] `json:"pod_subnet_prefix"`
}

func (a updateNetworkArgs) input() network.UpdateInput {
	in := network.UpdateInput{PodSubnetPrefix: a.PodSubnetPrefix.Set}
	if o := a.Options; o != nil {
		in.Name, in.Description, in.Status = o.Name, o.Description, o.Status
		if s := o.Settings; s != nil {
			in.MTU, in.Strategy, in.DefaultPolicy = s.MTU, s.TopologyStrategy, s.FirewallDefaultPolicy
		}
	}
	return in
}

func updateNetwork() *Definition {
	return define("system_sdwan_update_network", handler[updateNetworkArgs, networkResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a updateNetworkArgs) error {
			return p.Network.CheckUpdate(ctx, v, c.AccountID, a.NetworkID, a.input())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a updateNetworkArgs) (r networkResult, err error) {
			n, err := p.Network.Update(ctx, tx, c.AccountID, a.NetworkID, a.input())
			if err != nil {
				return r, err
			}
			r.Network, err = viewNetwork(ctx, p, &tx.View, n)
			return r, err
		},
	})
}

type removedObject struct {
	Peers          int64 `json:"peers"`
	FirewallRules  int64 `json:"firewall_rules"`
	AccessGrants   int64 `json:"access_grants"`
	UserDevices    int64 `json:"user_devices"`
	VirtualIPs     int64 `json:"virtual_ips"`
	PortMappings   int64 `json:"port_mappings"`
	Advertisements int64 `json:"advertisements"`
}

type deleteNetworkResult struct {
	Written
	Deleted bool            `json:"deleted"`
	ID      store.NetworkID `json:"id"`
	Removed removedObject   `json:"removed"`
}

func deleteNetwork() *Definition {
	return define("system_sdwan_delete_network", handler[networkIDArgs, deleteNetworkResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a networkIDArgs) error {
			return p.Network.CheckDelete(ctx, v, c.AccountID, a.NetworkID)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a networkIDArgs) (deleteNetworkResult, error) {
			gone, err := p.Network.Delete(ctx, tx, c.AccountID, a.NetworkID)
			return deleteNetworkResult{Deleted: true, ID: a.NetworkID, Removed: removedObject{Peers: gone.Peers, FirewallRules: gone.FirewallRules,
				AccessGrants: gone.AccessGrants, UserDevices: gone.UserDevices, VirtualIPs: gone.VirtualIPs}}, err
		},
	})
}
