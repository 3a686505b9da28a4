package tools

import (
	"context"

	"powernode/platform/governance"
	"powernode/platform/network"
	"powernode/schema"
	"powernode/store"
)

func deviceVerbs() []*Definition {
	return []*Definition{issueUserDevice(), getDeviceConfig()}
}

type deviceObject struct {
	ID               store.UserDeviceID  `json:"id"`
	AccessGrantID    store.AccessGrantID `json:"access_grant_id"`
	Label            string              `json:"label"`
	PublicKey        *string             `json:"public_key"`
	AssignedAddress  string              `json:"assigned_address"`
	Downloadable     bool                `json:"downloadable"`
	LastDownloadedAt *store.Time         `json:"last_downloaded_at"`
	LastSeenAt       *store.Time         `json:"last_seen_at"`
	RevokedAt        *store.Time         `json:"revoked_at"`
}

type issueUserDeviceArgs struct {
	AccessGrantID store.AccessGrantID `json:"access_grant_id"`
	Label         string              `json:"label"`
	PublicKey     string              `json:"public_key"`
}

func (a issueUserDeviceArgs) input() network.DeviceInput {
	return network.DeviceInput{GrantID: a.AccessGrantID, Label: a.Label, PublicKey: a.PublicKey}
}

type issueUserDeviceResult struct {
	Written
	Device       deviceObject `json:"device"`
	BootstrapURL string       `json:"bootstrap_url"`
	ExpiresAt    store.Time   `json:"expires_at"`
}

func issueUserDevice() *Definition {
	return define("system_sdwan_issue_user_device", handler[issueUserDeviceArgs, issueUserDeviceResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a issueUserDeviceArgs) error {
			return p.Network.CheckDevice(ctx, v, c.AccountID, a.input())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a issueUserDeviceArgs) (r issueUserDeviceResult, err error) {
			issued, err := p.Network.IssueDevice(ctx, tx, c.AccountID, a.input())
			if err != nil {
				return r, err
			}
			d := issued.Device
			r.Device = deviceObject{ID: d.ID, AccessGrantID: d.GrantID, Label: d.Label, PublicKey: orNull(d.PublicKey),
				AssignedAddress: d.Address.String(), Downloadable: d.Downloadable, LastDownloadedAt: d.LastDownloadedAt, RevokedAt: d.RevokedAt}
			r.BootstrapURL, r.ExpiresAt = issued.BootstrapURL, issued.ExpiresAt
			r.warnOf(issued.Warnings)
			return r, nil
		},
		credential: func(r issueUserDeviceResult) (store.AuditEntry, bool) {
			return store.AuditEntry{Action: "read", ResourceType: "Sdwan::UserDevice", ResourceID: string(r.Device.ID),
				New: store.Object{"label": r.Device.Label}}, r.BootstrapURL != ""
		},
	})
}

type getDeviceConfigArgs struct {
	UserID string `json:"user_id"` // id or e-mail address
	Label  string `json:"label"`
}

type deviceNetwork struct {
	NetworkID     store.NetworkID `json:"network_id"`
	Name          string          `json:"name"`
	CIDR64        string          `json:"cidr_64"`
	GatewayPeerID *store.PeerID   `json:"gateway_peer_id"`
	AllowedIPs    []string        `json:"allowed_ips"`
}

type getDeviceConfigResult struct {
	Config     string          `json:"config"`
	Filename   string          `json:"filename"`
	Addresses  []string        `json:"addresses"`
	Networks   []deviceNetwork `json:"networks"`
	StaleSince *store.Time     `json:"stale_since"`
}

// getDeviceConfig declares nothing, and leaves an audit row before it answers: so it runs, and does not read.
func getDeviceConfig() *Definition {
	return define("system_sdwan_get_device_config", handler[getDeviceConfigArgs, getDeviceConfigResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a getDeviceConfigArgs) error {
			if err := ownDevice(ctx, v, c, a.UserID); err != nil {
				return err
			}
			_, err := p.Network.FindDeviceFile(ctx, v, c.AccountID, a.UserID, a.Label)
			return err
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a getDeviceConfigArgs) (r getDeviceConfigResult, err error) {
			f, err := p.Network.FindDeviceFile(ctx, &tx.View, c.AccountID, a.UserID, a.Label)
			if err != nil {
				return r, err
			}
			r = getDeviceConfigResult{Config: f.Config, Filename: f.Filename, Addresses: []string{}, Networks: []deviceNetwork{}, StaleSince: f.StaleSince}
			for _, e := range f.Entries {
				r.Addresses = append(r.Addresses, e.Address.String())
				r.Networks = append(r.Networks, deviceNetwork{NetworkID: store.NetworkID(e.NetworkID), Name: e.Name, CIDR64: e.CIDR.String(),
					GatewayPeerID: orNull(store.PeerID(e.GatewayPeerID)), AllowedIPs: spelt(e.AllowedIPs)})
			}
			return r, p.Network.HandOut(ctx, tx, f)
		},
	})
}

// ownDevice keeps a viewer, and an assistant, to the devices of its own person; the assistant's is the account's first.
func ownDevice(ctx context.Context, v *store.View, c Caller, ref string) error {
	if c.Role != governance.RoleViewer && c.Role != governance.RoleAgent {
		return nil
	}
	own := c.UserID
	if own == "" {
		people, err := store.Users(ctx, v, c.AccountID)
		if err != nil {
			return err
		}
		if len(people) > 0 {
			own = people[0].ID
		}
	}
	u, err := store.UserByRef(ctx, v, c.AccountID, ref)
	if err == nil && u.ID == own {
		return nil
	}
	return schema.Errorf(schema.PermissionDenied, "permission denied: sdwan.user_devices.config covers the caller's own devices alone")
}
