package tools

import (
	"context"

	"powernode/store"
)

func routingVerbs() []*Definition {
	return []*Definition{updateRoutingMode(), getRoutingSummary()}
}

type updateRoutingModeArgs struct {
	NetworkID       store.NetworkID `json:"network_id"`
	RoutingProtocol string          `json:"routing_protocol"`
}

type updateRoutingModeResult struct {
	Written
	NetworkID       store.NetworkID `json:"network_id"`
	RoutingProtocol string          `json:"routing_protocol"`
	Note            *string         `json:"note"`
}

func updateRoutingMode() *Definition {
	return define("system_sdwan_update_network_routing_mode", handler[updateRoutingModeArgs, updateRoutingModeResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a updateRoutingModeArgs) error {
			return p.Network.CheckRoutingMode(ctx, v, c.AccountID, a.NetworkID, a.RoutingProtocol)
		},
		// Every network is static until iBGP is available, so there is nothing to write.
		run: func(_ context.Context, _ *Platform, _ *store.Tx, _ Caller, a updateRoutingModeArgs) (updateRoutingModeResult, error) {
			return updateRoutingModeResult{NetworkID: a.NetworkID, RoutingProtocol: a.RoutingProtocol}, nil
		},
	})
}

type routeObject struct {
	Prefix          string           `json:"prefix"`
	ViaPeerID       *store.PeerID    `json:"via_peer_id"`
	ViaAddress      *string          `json:"via_address"`
	Kind            string           `json:"kind"`
	OriginNetworkID *store.NetworkID `json:"origin_network_id"`
}

type routingSummaryResult struct {
	NetworkID                store.NetworkID `json:"network_id"`
	RoutingProtocol          string          `json:"routing_protocol"`
	StaticRoutes             []routeObject   `json:"static_routes"`
	BGPRoutes                []routeObject   `json:"bgp_routes"`
	AdvertiseOverlaySubnet   bool            `json:"advertise_overlay_subnet"`
	RouteReflectorRedundancy int             `json:"route_reflector_redundancy"`
	PeerCount                int             `json:"peer_count"`
	HubCount                 int             `json:"hub_count"`
	RRCount                  int             `json:"rr_count"`
	AdvertisedPrefixCount    int             `json:"advertised_prefix_count"`
	DeclaredSubnetCount      int             `json:"declared_subnet_count"`
	VIPCount                 int             `json:"vip_count"`
	LearnedCount             int             `json:"learned_count"`
}

func getRoutingSummary() *Definition {
	return define("system_sdwan_get_routing_summary", handler[networkIDArgs, routingSummaryResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a networkIDArgs) (r routingSummaryResult, err error) {
			n, err := p.Network.Find(ctx, v, c.AccountID, a.NetworkID)
			if err != nil {
				return r, err
			}
			known, err := p.Network.Routes(ctx, v, n)
			if err != nil {
				return r, err
			}
			r = routingSummaryResult{NetworkID: n.ID, RoutingProtocol: n.RoutingProtocol, StaticRoutes: []routeObject{}, BGPRoutes: []routeObject{},
				PeerCount: known.PeerCount, HubCount: known.HubCount, AdvertisedPrefixCount: known.AdvertisedCount,
				DeclaredSubnetCount: known.DeclaredSubnetCount, VIPCount: known.VIPCount}
			for _, e := range known.Routes {
				route := routeObject{Prefix: e.Prefix.String(), ViaPeerID: orNull(store.PeerID(e.ViaPeerID)), Kind: e.Kind, OriginNetworkID: &n.ID}
				if e.ViaAddress.IsValid() {
					route.ViaAddress = orNull(e.ViaAddress.String())
				}
				r.StaticRoutes = append(r.StaticRoutes, route)
			}
			return r, nil
		},
	})
}
