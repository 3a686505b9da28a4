package network

import (
	"context"
	"fmt"
	"slices"

	"powernode/platform/signal"
	"powernode/schema"
	"powernode/store"
)

// Statuses of a grant.
const (
	GrantActive    = "active"
	GrantSuspended = "suspended"
	GrantRevoked   = "revoked"
)

// GrantInput lets a person into a network.
type GrantInput struct {
	NetworkID store.NetworkID
	User      string // id or e-mail address
	Tags      []string
}

// CheckGrant refuses what Grant could not do.
func (s *Service) CheckGrant(ctx context.Context, v *store.View, acct store.AccountID, in GrantInput) error {
	if _, err := NormalTags("/tags", in.Tags); err != nil {
		return err
	}
	n, err := s.Find(ctx, v, acct, in.NetworkID)
	if err != nil {
		return err
	}
	if n.Status == StatusArchived {
		return schema.Errorf(schema.PreconditionFailed, "network %s is %s", n.Name, n.Status)
	}
	_, err = findUser(ctx, v, acct, in.User)
	return err
}

func findUser(ctx context.Context, v *store.View, acct store.AccountID, ref string) (store.User, error) {
	u, err := store.UserByRef(ctx, v, acct, ref)
	return u, orNotFound(err, "user not found")
}

// Reactivates says whether a grant call would bring a revoked grant back: that is a category of its own.
func (s *Service) Reactivates(ctx context.Context, v *store.View, acct store.AccountID, in GrantInput) (bool, error) {
	u, err := findUser(ctx, v, acct, in.User)
	if err != nil {
		return false, err
	}
	g, err := store.AccessGrantOf(ctx, v, acct, in.NetworkID, u.ID)
	if none, err := absent(err); err != nil || none {
		return false, err
	}
	return g.Status == GrantRevoked, nil
}

// Grant lets a person into a network. An active grant with the same tags is answered unchanged, one with others gets
// these; a revoked one becomes active again.
func (s *Service) Grant(ctx context.Context, tx *store.Tx, acct store.AccountID, in GrantInput) (store.AccessGrant, store.User, error) {
	if err := s.CheckGrant(ctx, &tx.View, acct, in); err != nil {
		return store.AccessGrant{}, store.User{}, err
	}
	tags, err := NormalTags("/tags", in.Tags)
	if err != nil {
		return store.AccessGrant{}, store.User{}, err
	}
	u, err := findUser(ctx, &tx.View, acct, in.User)
	if err != nil {
		return store.AccessGrant{}, u, err
	}
	g, err := store.AccessGrantOf(ctx, &tx.View, acct, in.NetworkID, u.ID)
	none, err := absent(err)
	if err != nil {
		return g, u, err
	}
	if none {
		g, err = s.newGrant(ctx, tx, acct, in.NetworkID, u.ID, tags)
	} else {
		g, err = s.changeGrant(ctx, tx, g, tags)
	}
	return g, u, err
}

func (s *Service) newGrant(ctx context.Context, tx *store.Tx, acct store.AccountID, network store.NetworkID, user store.UserID, tags []string) (store.AccessGrant, error) {
	g := store.AccessGrant{ID: store.AccessGrantID(tx.NewID()), AccountID: acct, NetworkID: network, UserID: user, Status: GrantActive,
		Tags: tags, GrantedAt: store.At(tx.Now())}
	if err := store.InsertAccessGrant(ctx, tx, g); err != nil {
		return g, fmt.Errorf("make access grant: %w", err)
	}
	_, err := tx.Audit(ctx, store.AuditEntry{AccountID: acct, Action: "created", ResourceType: "Sdwan::AccessGrant", ResourceID: string(g.ID),
		New: store.Object{"network_id": string(network), "user_id": string(user), "status": g.Status, "tags": tags}})
	if err != nil {
		return g, err
	}
	return s.granted(ctx, tx, g)
}

func (s *Service) changeGrant(ctx context.Context, tx *store.Tx, g store.AccessGrant, tags []string) (store.AccessGrant, error) {
	back := g.Status == GrantRevoked
	if !back && slices.Equal(g.Tags, tags) {
		return g, nil
	}
	was := store.Object{"status": g.Status, "tags": g.Tags}
	g.Tags = tags
	if back {
		g.Status, g.GrantedAt, g.RevokedAt = GrantActive, store.At(tx.Now()), nil
	}
	if err := store.UpdateAccessGrant(ctx, tx, g); err != nil {
		return g, fmt.Errorf("change access grant: %w", err)
	}
	_, err := tx.Audit(ctx, store.AuditEntry{AccountID: g.AccountID, Action: "updated", ResourceType: "Sdwan::AccessGrant", ResourceID: string(g.ID),
		Old: was, New: store.Object{"status": g.Status, "tags": tags}})
	if err != nil {
		return g, err
	}
	tx.TouchNetwork(g.NetworkID)
	if back {
		return s.granted(ctx, tx, g)
	}
	return store.AccessGrantByID(ctx, &tx.View, g.AccountID, g.ID)
}

func (s *Service) granted(ctx context.Context, tx *store.Tx, g store.AccessGrant) (store.AccessGrant, error) {
	err := signal.Emit(ctx, tx, g.AccountID, signal.Event{Kind: "system.sdwan_access_granted", Subject: signal.Subject{NetworkID: g.NetworkID},
		Payload: store.Object{"network_id": string(g.NetworkID), "user_id": string(g.UserID)}})
	if err != nil {
		return g, err
	}
	return store.AccessGrantByID(ctx, &tx.View, g.AccountID, g.ID)
}

// DeviceCount is how many devices of a grant are not revoked.
func (s *Service) DeviceCount(ctx context.Context, v *store.View, g store.AccessGrant) (int, error) {
	devices, err := store.UserDevicesByGrant(ctx, v, g.AccountID, g.ID)
	n := 0
	for _, d := range devices {
		if d.RevokedAt == nil {
			n++
		}
	}
	return n, err
}
