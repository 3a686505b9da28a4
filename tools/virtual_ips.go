package tools

import (
	"context"

	"powernode/platform/network"
	"powernode/store"
)

func virtualIPVerbs() []*Definition {
	return []*Definition{createVirtualIP(), getVirtualIP(), failoverVirtualIP()}
}

// shownAssignments is how many of the latest assignments a virtual IP shows.
const shownAssignments = 20

type assignmentOfVIP struct {
	ID                string        `json:"id"`
	PeerID            store.PeerID  `json:"peer_id"`
	AssumedAt         store.Time    `json:"assumed_at"`
	ReleasedAt        *store.Time   `json:"released_at"`
	Reason            string        `json:"reason"`
	TriggeredByUserID *store.UserID `json:"triggered_by_user_id"`
	Active            bool          `json:"active"`
}

type virtualIPObject struct {
	ID                    store.VirtualIPID `json:"id"`
	NetworkID             store.NetworkID   `json:"network_id"`
	Name                  string            `json:"name"`
	CIDR                  string            `json:"cidr"`
	Anycast               bool              `json:"anycast"`
	State                 string            `json:"state"`
	Epoch                 int64             `json:"epoch"`
	HolderPeerIDs         []store.PeerID    `json:"holder_peer_ids"`
	FailoverHolderPeerIDs []store.PeerID    `json:"failover_holder_peer_ids"`
	PrimaryHolderPeerID   *store.PeerID     `json:"primary_holder_peer_id"`
	PrimaryHolderAddress  *string           `json:"primary_holder_address"`
	AdvertisedMED         int64             `json:"advertised_med"`
	AdvertisedLocalPref   int64             `json:"advertised_local_pref"`
	Tags                  []string          `json:"tags"`
	Description           string            `json:"description"`
	ClusterID             *store.ClusterID  `json:"cluster_id"`
	CreatedAt             store.Time        `json:"created_at"`
	Assignments           []assignmentOfVIP `json:"assignments"`
}

func viewVirtualIP(ctx context.Context, v *store.View, ip store.VirtualIP) (virtualIPObject, error) {
	o := virtualIPObject{ID: ip.ID, NetworkID: ip.NetworkID, Name: ip.Name, CIDR: ip.Address.String() + "/128", Anycast: ip.Anycast,
		State: ip.State, Epoch: ip.Epoch, HolderPeerIDs: notNil(ip.HolderPeerIDs), FailoverHolderPeerIDs: notNil(ip.FailoverHolderPeerIDs),
		PrimaryHolderPeerID: orNull(ip.Holder()), AdvertisedMED: ip.AdvertisedMED, AdvertisedLocalPref: ip.AdvertisedLocalPref,
		Tags: notNil(ip.Tags), Description: ip.Description, ClusterID: orNull(ip.ClusterID), CreatedAt: ip.CreatedAt, Assignments: []assignmentOfVIP{}}
	if ip.Holder() != "" {
		holder, err := store.PeerByID(ctx, v, ip.AccountID, ip.Holder())
		if err != nil {
			return o, err
		}
		o.PrimaryHolderAddress = orNull(holder.Address.String())
	}
	rows, err := store.VirtualIPAssignments(ctx, v, ip.ID, shownAssignments)
	for _, a := range rows {
		o.Assignments = append(o.Assignments, assignmentOfVIP{ID: a.ID, PeerID: a.PeerID, AssumedAt: a.AssumedAt, ReleasedAt: a.ReleasedAt,
			Reason: a.Reason, TriggeredByUserID: orNull(a.TriggeredByUserID), Active: a.ReleasedAt == nil})
	}
	return o, err
}

type createVirtualIPArgs struct {
	NetworkID             store.NetworkID `json:"network_id"`
	Name                  string          `json:"name"`
	CIDR                  string          `json:"cidr"`
	HolderPeerIDs         []store.PeerID  `json:"holder_peer_ids"`
	FailoverHolderPeerIDs []store.PeerID  `json:"failover_holder_peer_ids"`
	Anycast               bool            `json:"anycast"`
	Description           string          `json:"description"`
	Tags                  []string        `json:"tags"`
	AdvertisedMED         int64           `json:"advertised_med"`
	AdvertisedLocalPref   int64           `json:"advertised_local_pref"`
}

func (a createVirtualIPArgs) input() (network.VIPInput, error) {
	in := network.VIPInput{NetworkID: a.NetworkID, Name: a.Name, Holder: notNil(a.HolderPeerIDs), Candidates: notNil(a.FailoverHolderPeerIDs),
		Anycast: a.Anycast, Description: a.Description, MED: a.AdvertisedMED, LocalPref: &a.AdvertisedLocalPref}
	var err error
	if in.Tags, err = network.NormalTags("/tags", a.Tags); err != nil {
		return in, err
	}
	in.Address, err = network.ParseVIP(a.CIDR)
	return in, err
}

type virtualIPResult struct {
	Written
	VirtualIP virtualIPObject `json:"virtual_ip"`
}

func createVirtualIP() *Definition {
	return define("system_sdwan_create_virtual_ip", handler[createVirtualIPArgs, virtualIPResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a createVirtualIPArgs) error {
			in, err := a.input()
			if err != nil {
				return err
			}
			return p.Network.CheckCreateVIP(ctx, v, c.AccountID, in)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a createVirtualIPArgs) (r virtualIPResult, err error) {
			in, err := a.input()
			if err != nil {
				return r, err
			}
			ip, err := p.Network.CreateVIP(ctx, tx, c.AccountID, in)
			if err != nil {
				return r, err
			}
			r.VirtualIP, err = viewVirtualIP(ctx, &tx.View, ip)
			return r, err
		},
	})
}

type virtualIPIDArgs struct {
	VirtualIPID store.VirtualIPID `json:"virtual_ip_id"`
}

type getVirtualIPResult struct {
	VirtualIP virtualIPObject `json:"virtual_ip"`
}

func getVirtualIP() *Definition {
	return define("system_sdwan_get_virtual_ip", handler[virtualIPIDArgs, getVirtualIPResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a virtualIPIDArgs) (r getVirtualIPResult, err error) {
			ip, err := p.Network.FindVIP(ctx, v, c.AccountID, a.VirtualIPID)
			if err != nil {
				return r, err
			}
			r.VirtualIP, err = viewVirtualIP(ctx, v, ip)
			return r, err
		},
	})
}

type failoverResult struct {
	Written
	FailedOver           bool            `json:"failed_over"`
	VirtualIP            virtualIPObject `json:"virtual_ip"`
	PreviousHolderPeerID *store.PeerID   `json:"previous_holder_peer_id"`
	Epoch                int64           `json:"epoch"`
}

func failoverVirtualIP() *Definition {
	return define("system_sdwan_failover_virtual_ip", handler[virtualIPIDArgs, failoverResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a virtualIPIDArgs) error {
			return p.Network.CheckFailover(ctx, v, c.AccountID, a.VirtualIPID)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a virtualIPIDArgs) (r failoverResult, err error) {
			ip, previous, err := p.Network.Failover(ctx, tx, c.AccountID, a.VirtualIPID, c.UserID)
			if err != nil {
				return r, err
			}
			r.FailedOver, r.PreviousHolderPeerID, r.Epoch = true, orNull(previous), ip.Epoch
			r.VirtualIP, err = viewVirtualIP(ctx, &tx.View, ip)
			return r, err
		},
	})
}
