package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"k8s.io/component-base/version"

	"powernode/spec/k3srig/internal/balancer"
	"powernode/spec/k3srig/internal/config"
	"powernode/spec/k3srig/internal/layout"
	"powernode/spec/k3srig/internal/node"
	"powernode/spec/k3srig/internal/pki"
	"powernode/spec/k3srig/internal/preflight"
	"powernode/spec/k3srig/internal/supervisor"
	"powernode/spec/k3srig/internal/token"
)

const (
	nodeIDFile     = "/etc/rancher/node/id"
	serversRefresh = 10 * time.Second
)

// runAgent runs `k3s agent`.
func runAgent(ctx context.Context, s *config.Settings) error {
	t, err := token.Parse(s.Token)
	if err != nil {
		return err
	}
	if s.NodeName, err = nodeName(s); err != nil {
		return err
	}
	list, err := preflight.Interfaces()
	if err != nil {
		return err
	}
	want := config.AddrFamilies(s.NodeIPs)
	if len(s.NodeIPs) == 0 {
		want = config.Families{IPv4: true}
	}
	ips, err := preflight.NodeIPs(list, s, want)
	if err != nil {
		return err
	}
	data := layout.Data(s.DataDir)
	serverURL := strings.TrimRight(s.ServerURL, "/")
	var lb *balancer.Balancer
	if !s.DisableAPIServerLB {
		if lb, err = startBalancer(ctx, s, data, ips[0].Is6()); err != nil {
			return err
		}
		serverURL = lb.URL()
	}
	slog.Info("Starting k3s agent", "node", s.NodeName, "server", s.ServerURL)
	return node.Run(ctx, node.Options{
		Data:        data,
		Name:        s.NodeName,
		IPs:         ips,
		ExternalIPs: s.NodeExternalIPs,
		Labels:      s.NodeLabels,
		Taints:      s.NodeTaints,
		Version:     version.Get().GitVersion,
		ServerURL:   serverURL,
		ShownURL:    s.ServerURL,
		Token:       t,
		Check: func(c supervisor.Config) error {
			pods := config.PrefixFamilies(c.ClusterCIDRs)
			if pods != config.AddrFamilies(ips) {
				return fmt.Errorf("cluster-cidr: %v and node-ip: %v, must share the same IP version (IPv4, IPv6 or dual-stack)", c.ClusterCIDRs, ips)
			}
			return checkFlannel(s, c.FlannelBackend, pods)
		},
		Registered: func(ctx context.Context, sup *supervisor.Client) {
			notifyReady()
			slog.Info("k3s agent is up and running")
			if lb != nil {
				go follow(ctx, lb, sup)
			}
		},
	})
}

// checkFlannel looks at the interface as late as flannel would.
func checkFlannel(s *config.Settings, backend string, pods config.Families) error {
	if backend == "none" {
		return nil
	}
	list, err := preflight.Interfaces()
	if err != nil {
		return err
	}
	return preflight.Flannel(list, s.FlannelIface, pods)
}

func startBalancer(ctx context.Context, s *config.Settings, data layout.Data, v6 bool) (*balancer.Balancer, error) {
	u, err := url.Parse(s.ServerURL)
	if err != nil {
		return nil, fmt.Errorf("parse server URL: %w", err)
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	local := "127.0.0.1"
	if v6 {
		local = "::1"
	}
	return balancer.Start(ctx, net.JoinHostPort(local, strconv.Itoa(s.LBServerPort)),
		net.JoinHostPort(u.Hostname(), port), data.Agent("etc", "k3s-agent-load-balancer.json"))
}

// follow keeps the balancer's list of servers that of the cluster.
func follow(ctx context.Context, lb *balancer.Balancer, sup *supervisor.Client) {
	t := time.NewTicker(serversRefresh)
	defer t.Stop()
	for {
		servers, err := sup.APIServers(ctx)
		if err == nil {
			err = lb.Update(servers)
		}
		if err != nil && ctx.Err() == nil {
			slog.Debug("list of servers", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// nodeName adds the machine's id to the name where that is wanted.
func nodeName(s *config.Settings) (string, error) {
	if !s.WithNodeID {
		return s.NodeName, nil
	}
	raw, err := os.ReadFile(nodeIDFile)
	id := strings.TrimSpace(string(raw))
	if err != nil || id == "" {
		b := make([]byte, 4)
		if _, err := rand.Read(b); err != nil {
			return "", fmt.Errorf("make node id: %w", err)
		}
		id = hex.EncodeToString(b)
		if err := pki.WriteFile(nodeIDFile, []byte(id+"\n"), 0o644); err != nil {
			return "", err
		}
	}
	return s.NodeName + "-" + id, nil
}
