// Package datastore runs the etcd member inside a server.
package datastore

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"

	"powernode/spec/k3srig/internal/layout"
	"powernode/spec/k3srig/internal/pki"
	"powernode/spec/k3srig/internal/supervisor"
	"powernode/spec/k3srig/internal/token"
)

// Ports of a member.
const (
	ClientPort     = "2379"
	PeerPort       = "2380"
	metricsPort    = "2381"
	clientHTTPPort = "2382"
)

const (
	// Shorter than K3s' 500 and 5000 ms, so that tests don't wait for elections,
	// and long enough for several members on one busy machine.
	heartbeatMs = 150
	electionMs  = 1500

	readyTimeout   = 2 * time.Minute
	promoteEvery   = 300 * time.Millisecond
	requestTimeout = 10 * time.Second
)

// ErrRemoved means that the member was taken out of the cluster.
var ErrRemoved = errors.New("this node has been removed from the cluster please restart k3s to rejoin the cluster")

// Options describe a member.
type Options struct {
	Data          layout.Data
	NodeName      string
	Address       netip.Addr
	ExposeMetrics bool
	ExtraArgs     []string
	// Join lists the members of the cluster to join; nil starts a new cluster.
	Join []supervisor.Member
	// IPv6Only leaves the IPv4 loopback out, as K3s does.
	IPv6Only bool
}

// Member is a running member.
type Member struct {
	etcd *embed.Etcd
	data layout.Data
	name string
	url  string
}

// Exists tells whether the data directory holds a member already.
func Exists(d layout.Data) bool {
	_, err := os.Stat(d.Etcd("member"))
	return err == nil
}

// Start starts the member and waits until it takes part in the cluster.
func Start(ctx context.Context, o Options) (*Member, error) {
	name, err := memberName(o.Data, o.NodeName)
	if err != nil {
		return nil, err
	}
	cfg, err := o.config(name)
	if err != nil {
		return nil, err
	}
	if !Exists(o.Data) && o.Join != nil {
		if err := o.addLearner(ctx, cfg); err != nil {
			return nil, err
		}
	}
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	m := &Member{etcd: e, data: o.Data, name: name, url: clientURL(loopback(o.IPv6Only))}
	if err := m.waitReady(ctx); err != nil {
		e.Close()
		return nil, err
	}
	return m, nil
}

// memberName is the node's name with something random behind it: a node that
// lost its data must not come back as the member it was.
func memberName(d layout.Data, node string) (string, error) {
	file := d.Etcd("name")
	if raw, err := os.ReadFile(file); err == nil {
		return strings.TrimSpace(string(raw)), nil
	}
	suffix, err := token.Random()
	if err != nil {
		return "", err
	}
	name := node + "-" + suffix[:8]
	return name, pki.WriteFile(file, []byte(name), 0o600)
}

func (o Options) config(name string) (*embed.Config, error) {
	cfg := embed.NewConfig()
	cfg.TickMs, cfg.ElectionMs = heartbeatMs, electionMs
	fs := flag.NewFlagSet("etcd", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	cfg.AddFlags(fs)
	cfg.LogLevel = "warn" // AddFlags has put etcd's own default there
	cfg.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration
	var args []string
	for _, a := range o.ExtraArgs {
		args = append(args, "--"+strings.TrimLeft(a, "-"))
	}
	if err := fs.Parse(args); err != nil {
		return nil, fmt.Errorf("parse etcd-arg: %w", err)
	}

	local := loopback(o.IPv6Only)
	cfg.Name = name
	cfg.Dir = o.Data.Etcd()
	cfg.ListenClientUrls = urls("https", ClientPort, local, o.Address.String())
	cfg.AdvertiseClientUrls = urls("https", ClientPort, o.Address.String())
	cfg.ListenPeerUrls = urls("https", PeerPort, o.Address.String())
	cfg.AdvertisePeerUrls = cfg.ListenPeerUrls
	// As in K3s, HTTP has ports of its own and 2379 speaks gRPC only.
	cfg.ListenClientHttpUrls = urls("https", clientHTTPPort, local)
	cfg.ListenMetricsUrls = urls("http", metricsPort, local)
	if o.ExposeMetrics {
		cfg.ListenMetricsUrls = append(cfg.ListenMetricsUrls, urls("http", metricsPort, o.Address.String())...)
	}
	tls := func(cert, ca string) transport.TLSInfo {
		return transport.TLSInfo{
			CertFile: o.Data.EtcdTLS(cert + ".crt"), KeyFile: o.Data.EtcdTLS(cert + ".key"),
			TrustedCAFile: o.Data.EtcdTLS(ca + ".crt"), ClientCertAuth: true,
		}
	}
	cfg.ClientTLSInfo = tls("server-client", "server-ca")
	cfg.PeerTLSInfo = tls("peer-server-client", "peer-ca")
	cfg.InitialCluster = name + "=" + cfg.AdvertisePeerUrls[0].String()
	cfg.ClusterState = embed.ClusterStateFlagNew
	cfg.LogOutputs = []string{"stderr"}
	// A test machine's disk may be slow, and its data need not survive a power loss.
	cfg.UnsafeNoFsync = true
	return cfg, nil
}

func (m *Member) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	select {
	case <-m.etcd.Server.ReadyNotify():
	case <-m.etcd.Server.StopNotify():
		m.bury()
		return ErrRemoved
	case err := <-m.etcd.Err():
		return fmt.Errorf("etcd: %w", err)
	case <-ctx.Done():
		return fmt.Errorf("wait for etcd: %w", ctx.Err())
	}
	for m.etcd.Server.IsLearner() {
		pctx, pcancel := context.WithTimeout(ctx, requestTimeout)
		_, err := m.etcd.Server.PromoteMember(pctx, uint64(m.etcd.Server.MemberID()))
		pcancel()
		if err == nil {
			slog.Info("etcd member is promoted to a voter", "member", m.name)
			continue
		}
		slog.Debug("etcd member can't be promoted yet", "err", err)
		if err := pause(ctx, promoteEvery); err != nil {
			return fmt.Errorf("wait for etcd promotion: %w", err)
		}
	}
	return nil
}

// Wait blocks until the member stops by itself or ctx ends.
func (m *Member) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-m.etcd.Err():
		return fmt.Errorf("etcd: %w", err)
	case <-m.etcd.Server.StopNotify():
		if ctx.Err() != nil {
			return nil
		}
		m.bury()
		return ErrRemoved
	}
}

// bury marks the data as that of a removed member; see Exhume.
func (m *Member) bury() {
	if err := pki.WriteFile(m.data.Etcd("tombstone"), nil, 0o600); err != nil {
		slog.Warn("mark etcd data as removed", "err", err)
	}
}

// Exhume puts the data of a removed member aside, so that the server can join anew.
func Exhume(d layout.Data) error {
	if _, err := os.Stat(d.Etcd("tombstone")); err != nil {
		return nil
	}
	old := fmt.Sprintf("%s-old-%d", d.Etcd(), time.Now().Unix())
	slog.Info("etcd disabled, tombstone found: moving the data of the removed member aside", "to", old)
	if err := os.Rename(d.Etcd(), old); err != nil {
		return fmt.Errorf("move etcd data aside: %w", err)
	}
	return nil
}

// Name is the member's name.
func (m *Member) Name() string { return m.name }

// ClientURL is where this member answers on the loopback interface.
func (m *Member) ClientURL() string { return m.url }

// Close stops the member. It hands the lead over first, so that the others
// need no election; both take no longer than limit together. What hasn't ended
// by then ends with the process.
func (m *Member) Close(limit time.Duration) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := m.etcd.Server.TryTransferLeadershipOnShutdown(); err != nil {
			slog.Debug("hand over etcd's lead", "err", err)
		}
		m.etcd.Close()
	}()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		slog.Debug("etcd did not close in time")
	}
}

func loopback(v6only bool) string {
	if v6only {
		return "::1"
	}
	return "127.0.0.1"
}

func clientURL(host string) string { return "https://" + net.JoinHostPort(host, ClientPort) }

func urls(scheme, port string, hosts ...string) []url.URL {
	var out []url.URL
	for _, h := range hosts {
		out = append(out, url.URL{Scheme: scheme, Host: net.JoinHostPort(h, port)})
	}
	return out
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
