package governance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"powernode/schema"
	"powernode/store"
)

// Scope narrows a policy: it speaks of calls by this role, person or token, or on this cluster or network alone. One of
// them is given, and the zero scope is everything.
type Scope struct {
	Role      string          `json:"role,omitempty"`
	UserID    store.UserID    `json:"user_id,omitempty"`
	TokenID   store.TokenID   `json:"token_id,omitempty"`
	ClusterID store.ClusterID `json:"cluster_id,omitempty"`
	NetworkID store.NetworkID `json:"network_id,omitempty"`
}

// roles are the roles that a policy can speak of.
var roles = []string{RoleViewer, RoleOperator, RoleAdmin, RoleAgent, RolePlatform}

// given names what the scope speaks of.
func (s Scope) given() []string {
	var out []string
	for _, one := range []struct{ name, value string }{{"role", s.Role}, {"user_id", string(s.UserID)}, {"token_id", string(s.TokenID)},
		{"cluster_id", string(s.ClusterID)}, {"network_id", string(s.NetworkID)}} {
		if one.value != "" {
			out = append(out, one.name)
		}
	}
	return out
}

// checkScope refuses a scope that no call of the category would ever fit: a policy that a person has signed does not stand
// without effect.
func (s *Service) checkScope(ctx context.Context, v *store.View, p PolicyStatement) error {
	if err := p.Scope.check(ctx, v, p.AccountID); err != nil {
		return err
	}
	if !p.Scope.placed() || slices.Contains(joins, p.ActionCategory) {
		return nil
	}
	var names []string
	if s.Gated != nil {
		for _, verb := range s.Gated(p.ActionCategory) {
			clusters, networks := reachable(verb)
			if (clusters && p.Scope.ClusterID != "") || (networks && p.Scope.NetworkID != "") {
				return nil
			}
			names = append(names, verb.Name)
		}
	}
	given, value := p.Scope.given()[0], string(p.Scope.ClusterID+store.ClusterID(p.Scope.NetworkID))
	place := strings.TrimSuffix(given, "_id")
	if len(names) == 0 {
		return schema.InvalidArgument("/scope/"+given, value, "no verb is gated by %s: its policy can't speak of one %s", p.ActionCategory, place)
	}
	return schema.InvalidArgument("/scope/"+given, value, "a policy of %s can't speak of one %s: %s names nothing that lies in one",
		p.ActionCategory, place, strings.Join(names, ", "))
}

// joins are the categories that gate the agent API, which says of which cluster and network.
var joins = []string{"system.runtime_k8s_cluster_bootstrap", "system.runtime_k8s_node_join"}

// check refuses a scope that names nothing.
func (s Scope) check(ctx context.Context, v *store.View, acct store.AccountID) error {
	given := s.given()
	if len(given) == 0 {
		return nil
	}
	if len(given) > 1 {
		return schema.InvalidArgument("/scope", nil, "a policy's scope must be one of: role, user_id, token_id, cluster_id, network_id")
	}
	var err error
	switch {
	case s.Role != "":
		if !slices.Contains(roles, s.Role) {
			return schema.InvalidArgument("/scope/role", Plain(s.Role, 64), "unknown role %s", Quote(s.Role)).WithCandidates(roles)
		}
	case s.UserID != "":
		var u store.User
		if u, err = store.UserByRef(ctx, v, acct, string(s.UserID)); err == nil && u.ID != s.UserID {
			err = store.ErrNoRow // an e-mail address names no caller
		}
	case s.TokenID != "":
		_, err = store.TokenByID(ctx, v, acct, s.TokenID)
	case s.ClusterID != "":
		_, err = store.ClusterByID(ctx, v, acct, s.ClusterID)
	case s.NetworkID != "":
		_, err = store.NetworkByID(ctx, v, acct, s.NetworkID)
	}
	if errors.Is(err, store.ErrNoRow) {
		return schema.Errorf(schema.NotFound, "the scope's %s names nothing of this account", given[0])
	}
	if err != nil {
		return fmt.Errorf("look for what the policy's scope names: %w", err)
	}
	return nil
}
