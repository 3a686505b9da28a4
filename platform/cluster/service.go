package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"powernode/platform/network"
	"powernode/schema"
	"powernode/store"
)

// Service is the rules of Kubernetes clusters. Its methods take context, transaction and account, and open no
// transaction.
type Service struct {
	Network *network.Service
	Sealer  *store.Sealer
	// MayJoin says whether the account's policies let an agent's join proceed, by its action category; nil: they do.
	MayJoin func(ctx context.Context, v *store.View, acct store.AccountID, category string, id store.ClusterID, network store.NetworkID) (bool, error)

	listening listening
}

// listening knows since when this process hears agents: silence from before is its own, and nobody's fault.
type listening struct {
	mu   sync.Mutex
	from time.Time
}

// since answers the first instant that it was asked at. A clock that was set back begins anew.
func (l *listening) since(now time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.from.IsZero() || now.Before(l.from) {
		l.from = now
	}
	return l.from
}

// Action categories of the agents' handshake (contract 13).
const (
	categoryBootstrap = "system.runtime_k8s_cluster_bootstrap"
	categoryJoin      = "system.runtime_k8s_node_join"
)

// The modules that make an instance a member.
const (
	ModuleServer = "k3s-server"
	ModuleAgent  = "k3s-agent"
)

// Roles of members.
const (
	RoleServer = "server"
	RoleAgent  = "agent"
)

// Statuses of clusters (contract 11.3).
const (
	StatusPending       = "pending"
	StatusBootstrapping = "bootstrapping"
	StatusActive        = "active"
	StatusDegraded      = "degraded"
	StatusDisconnected  = "disconnected"
	StatusError         = "error"
)

// Statuses of members (contract 11.4).
const (
	NodeJoining      = "joining"
	NodeActive       = "active"
	NodeNotReady     = "not_ready"
	NodeDisconnected = "disconnected"
	NodeError        = "error"
)

// APIPort is where K3s' supervisor and API server listen.
const APIPort = 6443

// Warning is something that a caller should know of a change that was made.
type Warning struct{ Code, Text string }

// Find finds a cluster by id, slug or name, or refuses with near names.
func (s *Service) Find(ctx context.Context, v *store.View, acct store.AccountID, ref string) (store.Cluster, error) {
	c, err := store.ClusterByRef(ctx, v, acct, ref)
	if !errors.Is(err, store.ErrNoRow) {
		return c, err
	}
	all, err := store.Clusters(ctx, v, acct)
	if err != nil {
		return c, err
	}
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[i].Name
	}
	candidates := []string{}
	if near := schema.Nearest(ref, names); near != "" {
		candidates = append(candidates, near)
	}
	return c, schema.Errorf(schema.NotFound, "Kubernetes cluster not found: %s", schema.Printable(ref)).WithDetail("candidates", candidates)
}

// Endpoint is the address of a cluster's API: its virtual IP.
func (s *Service) Endpoint(ctx context.Context, v *store.View, c store.Cluster) (string, error) {
	vip, err := store.VirtualIPByID(ctx, v, c.AccountID, c.APIVIPID)
	if err != nil {
		return "", fmt.Errorf("find the API address of cluster %s: %w", c.Name, err)
	}
	return endpoint(vip.Address.Addr), nil
}

func endpoint(vip netip.Addr) string {
	return "https://" + netip.AddrPortFrom(vip, APIPort).String()
}

// candidates are the clusters that a join without a target could mean: all but those in error.
func candidates(ctx context.Context, v *store.View, acct store.AccountID) ([]store.Cluster, error) {
	all, err := store.Clusters(ctx, v, acct)
	if err != nil {
		return nil, err
	}
	usable := []store.Cluster{}
	for _, c := range all {
		if c.Status != StatusError {
			usable = append(usable, c)
		}
	}
	return usable, nil
}

// k3sAssignment is the enabled assignment of a node for a role, or nil.
func k3sAssignment(ctx context.Context, v *store.View, acct store.AccountID, node store.NodeID, role string) (*store.Assignment, error) {
	module, err := moduleOf(ctx, v, acct, role)
	if err != nil {
		return nil, err
	}
	all, err := store.AssignmentsByNode(ctx, v, acct, node)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].ModuleID == module.ID && all[i].Enabled {
			return &all[i], nil
		}
	}
	return nil, nil
}

func moduleOf(ctx context.Context, v *store.View, acct store.AccountID, role string) (store.Module, error) {
	name := ModuleAgent
	if role == RoleServer {
		name = ModuleServer
	}
	m, err := store.ModuleByName(ctx, v, acct, name)
	if err != nil {
		return m, fmt.Errorf("find the built-in module %s: %w", name, err)
	}
	return m, nil
}

// text reads a text of a free-form config; anything else is absent.
func text(config store.Object, key string) string {
	s, _ := config[key].(string)
	return s
}
