package network

import (
	"context"
	"errors"
	"net/netip"
	"net/url"
	"slices"
	"strconv"

	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
)

// Service is the rules of SDWAN intent. Its methods take context, transaction and account, and open no transaction.
type Service struct {
	Clusters Clusters
	Sealer   *store.Sealer
	// PlatformURL is the first address of the agents' API, https://HOST:PORT; CAFingerprint is the SHA-256 of the CA's
	// certificate, in hex. Both go into the URL with which a person's device bootstraps.
	PlatformURL   func() string
	CAFingerprint func() string
	// AgentAPI are the addresses of the agents' API, to which no rule of ours ever cuts the flow. nil: PlatformURL's.
	AgentAPI func() []netip.AddrPort
}

// Clusters is what networks ask of the clusters that live in them; platform/cluster satisfies it.
type Clusters interface {
	// Networked answers the compiler's view of a network's clusters, by desired membership.
	Networked(ctx context.Context, v *store.View, acct store.AccountID, id store.NetworkID) ([]sdwan.Cluster, error)
	// PeerAttached tells that an instance has become a peer: a waiting k3s-server assignment may declare its cluster now.
	PeerAttached(ctx context.Context, tx *store.Tx, acct store.AccountID, peer store.PeerID) error
	// DetachForbidden refuses when the peer's instance is a member of a cluster over this network.
	DetachForbidden(ctx context.Context, v *store.View, acct store.AccountID, peer store.PeerID) error
	// FailoverReady refuses when a cluster's VIP can't move to the peer: its API server is not ready.
	FailoverReady(ctx context.Context, v *store.View, acct store.AccountID, cluster store.ClusterID, peer store.PeerID) error
}

// Warning is something that a caller should know of what was done.
type Warning struct {
	Code string
	Text string
}

// clusters are the compiler's clusters of a network; a service without clusters has none.
func (s *Service) clusters(ctx context.Context, v *store.View, acct store.AccountID, id store.NetworkID) ([]sdwan.Cluster, error) {
	if s.Clusters == nil {
		return nil, nil
	}
	return s.Clusters.Networked(ctx, v, acct, id)
}

// agentAPI are the addresses that agents reach the platform at.
func (s *Service) agentAPI() []netip.AddrPort {
	if s.AgentAPI != nil {
		return s.AgentAPI()
	}
	if s.PlatformURL == nil {
		return nil
	}
	u, err := url.Parse(s.PlatformURL())
	if err != nil {
		return nil
	}
	host, err := netip.ParseAddr(u.Hostname())
	if err != nil {
		return nil // a name: the flow to it is not named in the firewall, which leaves the underlay's output open
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	if err != nil {
		return nil
	}
	return []netip.AddrPort{netip.AddrPortFrom(host.Unmap(), uint16(port))}
}

// Find finds a network.
func (s *Service) Find(ctx context.Context, v *store.View, acct store.AccountID, id store.NetworkID) (store.Network, error) {
	n, err := store.NetworkByID(ctx, v, acct, id)
	return n, orNotFound(err, "network not found")
}

// FindPeer finds a peer.
func (s *Service) FindPeer(ctx context.Context, v *store.View, acct store.AccountID, id store.PeerID) (store.Peer, error) {
	p, err := store.PeerByID(ctx, v, acct, id)
	return p, orNotFound(err, "peer not found")
}

// FindVIP finds a virtual IP.
func (s *Service) FindVIP(ctx context.Context, v *store.View, acct store.AccountID, id store.VirtualIPID) (store.VirtualIP, error) {
	ip, err := store.VirtualIPByID(ctx, v, acct, id)
	return ip, orNotFound(err, "virtual IP not found")
}

// orNotFound gives a look-up that found nothing the contract's words.
func orNotFound(err error, text string) error {
	if errors.Is(err, store.ErrNoRow) {
		return schema.Errorf(schema.NotFound, "%s", text)
	}
	return err
}

// absent says whether a look-up found nothing; another error stays one.
func absent(err error) (bool, error) {
	if errors.Is(err, store.ErrNoRow) {
		return true, nil
	}
	return false, err
}

// notYet refuses what the contract declares and a later version builds.
func notYet(format string, args ...any) error {
	return schema.Errorf(schema.PreconditionFailed, "not available yet: "+format, args...)
}

func without[T comparable](list []T, gone T) []T {
	return slices.DeleteFunc(slices.Clone(list), func(x T) bool { return x == gone })
}
