package governance

import "powernode/store"

// Scope narrows a policy: it speaks of calls by this role, person or token, or on this cluster or network alone.
// The zero scope is everything.
type Scope struct {
	Role      string          `json:"role,omitempty"`
	UserID    store.UserID    `json:"user_id,omitempty"`
	TokenID   store.TokenID   `json:"token_id,omitempty"`
	ClusterID store.ClusterID `json:"cluster_id,omitempty"`
	NetworkID store.NetworkID `json:"network_id,omitempty"`
}
