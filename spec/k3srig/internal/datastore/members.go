package datastore

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"powernode/spec/k3srig/internal/layout"
	"powernode/spec/k3srig/internal/supervisor"
)

// addLearner announces this member to the cluster. As a learner it has no
// vote until it has caught up, so a join that stops half way costs no quorum.
func (o Options) addLearner(ctx context.Context, cfg *embed.Config) error {
	var endpoints []string
	for _, m := range o.Join {
		endpoints = append(endpoints, m.ClientURLs...)
	}
	c, err := client(o.Data, endpoints)
	if err != nil {
		return err
	}
	defer c.Close()

	own := cfg.AdvertisePeerUrls[0].String()
	for {
		list, err := tryAdd(ctx, c, own)
		if err == nil {
			var parts []string
			for _, m := range list {
				name := m.Name
				if contains(m.PeerURLs, own) {
					name = cfg.Name
				}
				for _, u := range m.PeerURLs {
					parts = append(parts, name+"="+u)
				}
			}
			cfg.InitialCluster, cfg.ClusterState = strings.Join(parts, ","), embed.ClusterStateFlagExisting
			slog.Info("Adding member to etcd cluster", "member", cfg.Name, "cluster", cfg.InitialCluster)
			return nil
		}
		if strings.Contains(err.Error(), "already exists") {
			return fmt.Errorf("etcd cluster join failed: %w", err)
		}
		// Another server joins at the moment, or the cluster isn't healthy yet.
		slog.Info("Waiting for other members to finish joining etcd cluster", "err", err)
		if err := pause(ctx, time.Second); err != nil {
			return fmt.Errorf("etcd cluster join failed: %w", err)
		}
	}
}

type listed struct {
	Name     string
	PeerURLs []string
}

func tryAdd(ctx context.Context, c *clientv3.Client, own string) ([]listed, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	have, err := c.MemberList(ctx)
	if err != nil {
		return nil, err
	}
	members := have.Members
	announced := false
	for _, m := range members {
		// Without a name it is what an earlier, interrupted start has announced.
		announced = announced || (m.Name == "" && contains(m.PeerURLs, own))
	}
	if !announced {
		added, err := c.MemberAddAsLearner(ctx, []string{own})
		if err != nil {
			return nil, err
		}
		members = added.Members
	}
	var out []listed
	for _, m := range members {
		out = append(out, listed{m.Name, m.PeerURLs})
	}
	return out, nil
}

// Members lists the members of the cluster.
func (m *Member) Members(ctx context.Context) ([]supervisor.Member, error) {
	c, err := client(m.data, []string{m.url})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := c.MemberList(ctx)
	if err != nil {
		return nil, fmt.Errorf("list etcd members: %w", err)
	}
	var out []supervisor.Member
	for _, x := range list.Members {
		out = append(out, supervisor.Member{Name: x.Name, PeerURLs: x.PeerURLs, ClientURLs: x.ClientURLs})
	}
	return out, nil
}

// Remove takes a member out of the cluster; one that isn't there is no error.
func (m *Member) Remove(ctx context.Context, name string) error {
	c, err := client(m.data, []string{m.url})
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := c.MemberList(ctx)
	if err != nil {
		return fmt.Errorf("list etcd members: %w", err)
	}
	for _, x := range list.Members {
		if x.Name != name {
			continue
		}
		slog.Info("Removing etcd member", "member", name)
		if _, err := c.MemberRemove(ctx, x.ID); err != nil {
			return fmt.Errorf("remove etcd member %s: %w", name, err)
		}
	}
	return nil
}

func client(d layout.Data, endpoints []string) (*clientv3.Client, error) {
	info := transport.TLSInfo{
		CertFile: d.EtcdTLS("client.crt"), KeyFile: d.EtcdTLS("client.key"), TrustedCAFile: d.EtcdTLS("server-ca.crt"),
	}
	tls, err := info.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("etcd client certificates: %w", err)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, TLS: tls, DialTimeout: requestTimeout})
	if err != nil {
		return nil, fmt.Errorf("etcd client: %w", err)
	}
	return c, nil
}
