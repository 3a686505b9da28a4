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
	Toolsets  []string        `json:"toolsets,omitempty"` // that a token is narrowed to; nil: all
	Granted   []string        `json:"granted,omitempty"`  // permissions held by name
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
		return s.tokenNow(ctx, v, c)
	}
	switch c.Kind {
	case KindPerson:
	case KindAgent: // with an agent's permissions, whatever the row of its operation says
		now := AgentCaller(c.AccountID)
		now.ReadOnly, now.Toolsets = c.ReadOnly, c.Toolsets
		return now, nil
	case KindPlatform:
		return PlatformCaller(c.AccountID), nil
	default:
		return c, schema.Errorf(schema.PermissionDenied, "permission denied: the caller is nobody")
	}
	p, err := s.PersonOf(ctx, v, c.AccountID, c.UserID)
	if errors.Is(err, store.ErrNoRow) {
		return c, schema.Errorf(schema.PermissionDenied, "permission denied: the caller is gone")
	}
	if err != nil {
		return c, fmt.Errorf("look for the caller: %w", err)
	}
	return p.caller(c.AccountID), nil
}

// tokenNow is the caller of a credential as it counts now.
func (s *Service) tokenNow(ctx context.Context, v *store.View, c Caller) (Caller, error) {
	t, err := store.TokenByID(ctx, v, c.AccountID, c.TokenID)
	if err != nil && !errors.Is(err, store.ErrNoRow) {
		return c, fmt.Errorf("look for the caller's token: %w", err)
	}
	var now Caller
	var state string
	if err == nil {
		now, state, err = s.tokenCaller(ctx, v, t)
	}
	switch {
	case state == tokenExpired && errors.Is(err, ErrNoCredential):
		return c, schema.Errorf(schema.PermissionDenied, "permission denied: the caller's token has expired")
	case errors.Is(err, store.ErrNoRow), errors.Is(err, ErrNoCredential), err == nil && now.ID != c.ID:
		return c, schema.Errorf(schema.PermissionDenied, "permission denied: the caller's token is no longer valid")
	}
	now.ReadOnly = now.ReadOnly || c.ReadOnly // a session may be narrower than its token
	return now, err
}
