package tools

import (
	"context"

	"powernode/platform/network"
	"powernode/store"
)

func accessGrantVerbs() []*Definition {
	return []*Definition{createAccessGrant()}
}

type grantObject struct {
	ID          store.AccessGrantID `json:"id"`
	NetworkID   store.NetworkID     `json:"network_id"`
	UserID      store.UserID        `json:"user_id"`
	UserEmail   string              `json:"user_email"`
	Status      string              `json:"status"`
	Tags        []string            `json:"tags"`
	DeviceCount int                 `json:"device_count"`
	GrantedAt   store.Time          `json:"granted_at"`
	RevokedAt   *store.Time         `json:"revoked_at"`
}

type createAccessGrantArgs struct {
	NetworkID store.NetworkID `json:"network_id"`
	UserID    string          `json:"user_id"` // id or e-mail address
	Tags      []string        `json:"tags"`
}

func (a createAccessGrantArgs) input() network.GrantInput {
	return network.GrantInput{NetworkID: a.NetworkID, User: a.UserID, Tags: a.Tags}
}

type grantResult struct {
	Written
	Grant grantObject `json:"grant"`
}

func createAccessGrant() *Definition {
	return define("system_sdwan_create_access_grant", handler[createAccessGrantArgs, grantResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a createAccessGrantArgs) error {
			return p.Network.CheckGrant(ctx, v, c.AccountID, a.input())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a createAccessGrantArgs) (r grantResult, err error) {
			g, user, err := p.Network.Grant(ctx, tx, c.AccountID, a.input())
			if err != nil {
				return r, err
			}
			r.Grant = grantObject{ID: g.ID, NetworkID: g.NetworkID, UserID: g.UserID, UserEmail: user.Email, Status: g.Status, Tags: notNil(g.Tags),
				GrantedAt: g.GrantedAt, RevokedAt: g.RevokedAt}
			r.Grant.DeviceCount, err = p.Network.DeviceCount(ctx, &tx.View, g)
			return r, err
		},
		categoryIn: func(ctx context.Context, p *Platform, v *store.View, c Caller, a createAccessGrantArgs) (string, error) {
			back, err := p.Network.Reactivates(ctx, v, c.AccountID, a.input())
			if back {
				return "sdwan.access_grant_reactivate", err
			}
			return "sdwan.access_grant_create", err
		},
	})
}
