package governance

import (
	"context"
	"errors"
	"fmt"

	"powernode/schema"
	"powernode/store"
)

// Kinds of callers.
const (
	KindPerson   = "person"
	KindAgent    = "agent"
	KindPlatform = "platform"
)

// Roles of callers.
const (
	RoleViewer   = "viewer"
	RoleOperator = "operator"
	RoleAdmin    = "admin"
	RoleAgent    = "agent"
	RolePlatform = "platform"
)

// Caller is for whom a call runs.
type Caller struct {
	AccountID store.AccountID `json:"account_id"`
	Kind      string          `json:"kind"`
	Role      string          `json:"role"`
	ID        string          `json:"id"` // stable: the person, the account's agent, or "platform"
	UserID    store.UserID    `json:"user_id"`
	TokenID   store.TokenID   `json:"token_id"`
	ReadOnly  bool            `json:"read_only"`
}

// Human says whether the caller presented a person's credential.
func (c Caller) Human() bool { return c.Kind == KindPerson }

// AgentCaller is the account's one agent: what `powernode mcp` and `powernode call` are without a person's token.
func AgentCaller(acct store.AccountID) Caller {
	return Caller{AccountID: acct, Kind: KindAgent, Role: RoleAgent, ID: "agent:" + string(acct)}
}

// PersonCaller is a person who has presented a credential.
func PersonCaller(u store.User) Caller {
	return Caller{AccountID: u.AccountID, Kind: KindPerson, Role: u.Role, ID: string(u.ID), UserID: u.ID}
}

// PlatformCaller is the platform itself: its controllers and remedies.
func PlatformCaller(acct store.AccountID) Caller {
	return Caller{AccountID: acct, Kind: KindPlatform, Role: RolePlatform, ID: "platform"}
}

// Current is a caller as it stands now: its role is looked at again when its operation runs. One that is gone is
// refused.
func (s *Service) Current(ctx context.Context, v *store.View, c Caller) (Caller, error) {
	if c.TokenID != "" {
		var err error
		if c, err = s.tokenNow(ctx, v, c); err != nil {
			return c, err
		}
	}
	if c.UserID == "" && c.Kind != KindPerson {
		return c, nil
	}
	u, err := store.UserByRef(ctx, v, c.AccountID, string(c.UserID))
	if errors.Is(err, store.ErrNoRow) {
		return c, schema.Errorf(schema.PermissionDenied, "permission denied: the caller is gone")
	}
	if err != nil {
		return c, fmt.Errorf("look for the caller: %w", err)
	}
	if c.Kind == KindPerson && (c.TokenID == "" || power[u.Role] < power[c.Role]) {
		c.Role = u.Role // a token never holds more than whose it is
	}
	return c, nil
}

// power orders the roles of people.
var power = map[string]int{RoleViewer: 0, RoleOperator: 1, RoleAdmin: 2}

func (s *Service) tokenNow(ctx context.Context, v *store.View, c Caller) (Caller, error) {
	t, err := store.TokenByID(ctx, v, c.AccountID, c.TokenID)
	if err != nil && !errors.Is(err, store.ErrNoRow) {
		return c, fmt.Errorf("look for the caller's token: %w", err)
	}
	if err != nil || t.RevokedAt != nil || (t.ExpiresAt != nil && !t.ExpiresAt.After(v.Now())) {
		return c, schema.Errorf(schema.PermissionDenied, "permission denied: the caller's token is no longer valid")
	}
	c.Role, c.ReadOnly = t.Role, t.ReadOnly
	return c, nil
}
