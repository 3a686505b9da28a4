package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/version"

	"powernode/spec/k3srig/internal/config"
	"powernode/spec/k3srig/internal/controlplane"
	"powernode/spec/k3srig/internal/datastore"
	"powernode/spec/k3srig/internal/kubeconfig"
	"powernode/spec/k3srig/internal/layout"
	"powernode/spec/k3srig/internal/membership"
	"powernode/spec/k3srig/internal/node"
	"powernode/spec/k3srig/internal/pki"
	"powernode/spec/k3srig/internal/preflight"
	"powernode/spec/k3srig/internal/supervisor"
	"powernode/spec/k3srig/internal/token"
)

const (
	apiStopLimit  = 2 * time.Second
	etcdStopLimit = 2 * time.Second
)

// server is `k3s server` while it runs.
type server struct {
	settings *config.Settings
	data     layout.Data
	secrets  token.Secrets
	cluster  *pki.Cluster
	join     []supervisor.Member
	etcd     *datastore.Member
	plane    *controlplane.ControlPlane
	client   kubernetes.Interface
}

// runServer runs `k3s server`.
func runServer(ctx context.Context, s *config.Settings) error {
	srv := &server{settings: s, data: layout.Data(s.DataDir)}
	if err := srv.check(); err != nil {
		return err
	}
	if err := srv.prepare(ctx); err != nil {
		return fmt.Errorf("starting kubernetes: preparing server: %w", err)
	}
	return srv.run(ctx)
}

// check looks at the machine, before anything is written.
func (srv *server) check() error {
	s := srv.settings
	var err error
	if s.NodeName, err = nodeName(s); err != nil {
		return err
	}
	list, err := preflight.Interfaces()
	if err != nil {
		return err
	}
	if s.NodeIPs, err = preflight.NodeIPs(list, s, config.PrefixFamilies(s.ClusterCIDRs)); err != nil {
		return err
	}
	return checkFlannel(s, s.FlannelBackend, config.PrefixFamilies(s.ClusterCIDRs))
}

// prepare finds out which cluster this is, and writes certificates and tokens.
func (srv *server) prepare(ctx context.Context) error {
	s := srv.settings
	if err := datastore.Exhume(srv.data); err != nil {
		return err
	}
	switch {
	case datastore.Exists(srv.data):
		// As in K3s, cluster-init and server are ignored once there is data.
	case s.ServerURL != "" && !s.ClusterInit:
		if err := srv.fetchCluster(ctx); err != nil {
			return err
		}
	case s.ServerURL != "" && s.ClusterInit:
		return errors.New("cannot use both --cluster-init and --server on a new server")
	default:
		if !s.ClusterInit {
			slog.Warn("the stand-in has no SQLite: it uses embedded etcd as if cluster-init were set")
		}
	}
	var err error
	if srv.secrets, err = srv.readSecrets(); err != nil {
		return err
	}
	if srv.cluster, err = pki.EnsureCluster(srv.data); err != nil {
		return err
	}
	if err := srv.checkTokenCA(); err != nil {
		return err
	}
	if err := srv.cluster.IssueServer(srv.data, pki.Identity{
		NodeName: s.NodeName, NodeIPs: append(s.NodeIPs, s.NodeExternalIPs...), ServiceIP: s.FirstServiceIP(),
		Domain: s.ClusterDomain, SANs: srv.sans(),
	}); err != nil {
		return err
	}
	if err := srv.writeTokens(); err != nil {
		return err
	}
	return srv.writeKubeconfigs()
}

func (srv *server) sans() []string {
	out := srv.settings.TLSSANs
	if srv.settings.AdvertiseAddress.IsValid() {
		out = append(out, srv.settings.AdvertiseAddress.String())
	}
	return out
}

// fetchCluster takes over the authorities of the cluster to join.
func (srv *server) fetchCluster(ctx context.Context) error {
	t, err := token.Parse(srv.settings.Token)
	if err != nil {
		return err
	}
	c, err := supervisor.Connect(ctx, srv.settings.ServerURL, t, token.UserServer)
	if err != nil {
		return err
	}
	b, err := c.Bootstrap(ctx)
	if err != nil {
		return err
	}
	cfg, err := c.Config(ctx)
	if err != nil {
		return err
	}
	if err := cfg.CheckCritical(supervisor.ConfigOf(srv.settings)); err != nil {
		return err
	}
	if srv.join, err = c.Members(ctx); err != nil {
		return err
	}
	return b.Write(srv.data)
}

func (srv *server) writeKubeconfigs() error {
	s, d := srv.settings, srv.data
	ca := d.TLS("server-ca.crt")
	for _, k := range []struct{ name, cert string }{
		{"admin", "client-admin"}, {"controller", "client-controller"}, {"scheduler", "client-scheduler"}, {"supervisor", "client-supervisor"},
	} {
		err := kubeconfig.Write(d.Cred(k.name+".kubeconfig"), controlplane.LocalURL(s),
			kubeconfig.Files{CA: ca, Cert: d.TLS(k.cert + ".crt"), Key: d.TLS(k.cert + ".key")})
		if err != nil {
			return err
		}
	}
	return nil
}

func (srv *server) run(parent context.Context) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	controlplane.SurviveStop(ctx)
	s := srv.settings

	var err error
	srv.etcd, err = datastore.Start(ctx, datastore.Options{
		Data: srv.data, NodeName: s.NodeName, Address: s.NodeIPs[0], ExposeMetrics: s.EtcdExposeMetrics,
		ExtraArgs: s.EtcdArgs, Join: srv.join, IPv6Only: controlplane.Loopback(s) == "::1",
	})
	if err != nil {
		return err
	}
	defer srv.etcd.Close(etcdStopLimit)
	slog.Info("etcd data store connection OK", "member", srv.etcd.Name())
	go func() {
		if err := srv.etcd.Wait(ctx); err != nil {
			cancel(err)
		}
	}()

	if srv.client, err = controlplane.AdminClient(s); err != nil {
		return err
	}
	if srv.plane, err = controlplane.New(s, srv.etcd.ClientURL()); err != nil {
		return err
	}
	handler, err := srv.handler()
	if err != nil {
		return err
	}
	apiEnded, err := srv.plane.StartAPI(ctx, handler.Wrap)
	if err != nil {
		return err
	}
	go func() { cancel(fmt.Errorf("apiserver exited: %w", errOr(<-apiEnded, "without an error"))) }()
	defer srv.plane.WaitStopped(apiStopLimit)

	if err := controlplane.WaitReady(ctx, srv.client); err != nil {
		return ended(parent, ctx, err)
	}
	slog.Info("Kube API server is now running")
	go func() {
		if err := srv.plane.RunControllerManager(ctx); err != nil {
			cancel(err)
		}
	}()
	if err := srv.publishKubeconfig(); err != nil {
		return err
	}
	if !s.DisableAgent {
		go func() {
			if err := srv.runNode(ctx); err != nil {
				cancel(err)
			}
		}()
		go membership.Run(ctx, membership.Options{Client: srv.client, Etcd: srv.etcd, Node: s.NodeName, Address: s.NodeIPs[0].String()})
	} else {
		notifyReady()
	}
	slog.Info("k3s is up and running")
	<-ctx.Done()
	return ended(parent, ctx, nil)
}

// ended tells why a server stops: it was asked to, or something in it failed.
func ended(parent, ctx context.Context, err error) error {
	if parent.Err() != nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func errOr(err error, text string) error {
	if err == nil {
		return errors.New(text)
	}
	return err
}

func (srv *server) handler() (*supervisor.Handler, error) {
	bootstrap, err := pki.ReadBootstrap(srv.data)
	if err != nil {
		return nil, err
	}
	return &supervisor.Handler{
		Secrets: srv.secrets, Cluster: srv.cluster, Config: supervisor.ConfigOf(srv.settings), Bootstrap: bootstrap,
		Members: srv.etcd.Members, Client: srv.client,
		APIServers: func(ctx context.Context) ([]string, error) { return membership.APIServers(ctx, srv.client) },
	}, nil
}

// publishKubeconfig writes the administrator's configuration once the API answers.
func (srv *server) publishKubeconfig() error {
	s, d := srv.settings, srv.data
	f := kubeconfig.Files{CA: d.TLS("server-ca.crt"), Cert: d.TLS("client-admin.crt"), Key: d.TLS("client-admin.key")}
	if err := kubeconfig.WriteEmbedded(s.WriteKubeconfig, controlplane.LocalURL(s), f, s.WriteKubeconfigMode); err != nil {
		return err
	}
	if g := s.WriteKubeconfigGroup; g != "" {
		gid, err := strconv.Atoi(g)
		if err != nil {
			return fmt.Errorf("write-kubeconfig-group: the stand-in takes a number: %w", err)
		}
		if err := os.Chown(s.WriteKubeconfig, -1, gid); err != nil {
			return fmt.Errorf("write kubeconfig: %w", err)
		}
	}
	slog.Info("Wrote kubeconfig " + s.WriteKubeconfig)
	slog.Info("Run: k3s kubectl")
	slog.Info("To join server node to cluster: k3s server -s https://" +
		net.JoinHostPort(s.NodeIPs[0].String(), strconv.Itoa(s.HTTPSPort)) + " -t ${SERVER_NODE_TOKEN}")
	return nil
}

// runNode makes the server a node of its own cluster, as K3s does.
func (srv *server) runNode(ctx context.Context) error {
	s := srv.settings
	return node.Run(ctx, node.Options{
		Data: srv.data, Name: s.NodeName, IPs: s.NodeIPs, ExternalIPs: s.NodeExternalIPs,
		Labels: s.NodeLabels, Taints: s.NodeTaints, Version: version.Get().GitVersion,
		ServerURL: controlplane.LocalURL(s), ShownURL: controlplane.LocalURL(s),
		Token: token.Token{Password: srv.secrets.Agent},
		Check: func(supervisor.Config) error { return nil }, // the server has checked itself
		Conditions: []corev1.NodeCondition{{
			Type: "EtcdIsVoter", Status: corev1.ConditionTrue, Reason: "MemberNotLearner",
			Message: "Node is a voting member of the etcd cluster",
		}},
		Registered: func(context.Context, *supervisor.Client) { notifyReady() },
	})
}
