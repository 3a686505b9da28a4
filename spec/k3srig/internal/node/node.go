// Package node makes a machine a node of its cluster: it has certificates
// signed, opens the ports of a node, registers a Node object and keeps it
// Ready. It runs no pods.
package node

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"powernode/spec/k3srig/internal/kubeconfig"
	"powernode/spec/k3srig/internal/layout"
	"powernode/spec/k3srig/internal/nodepassword"
	"powernode/spec/k3srig/internal/pki"
	"powernode/spec/k3srig/internal/supervisor"
	"powernode/spec/k3srig/internal/token"
)

const (
	connectRetry  = 2 * time.Second
	configRetry   = 5 * time.Second
	registerRetry = time.Second
)

// Options describe a node.
type Options struct {
	Data        layout.Data
	Name        string
	IPs         []netip.Addr
	ExternalIPs []netip.Addr
	Labels      []string
	Taints      []string
	Version     string
	// ServerURL is where supervisor and API are reached, ShownURL what messages name.
	ServerURL string
	ShownURL  string
	Token     token.Token
	// Check looks at the machine with what the cluster is configured for.
	Check func(supervisor.Config) error
	// Conditions are reported beside the usual ones.
	Conditions []corev1.NodeCondition
	// Registered is called once the node is registered.
	Registered func(context.Context, *supervisor.Client)
}

// Run joins and then keeps the node Ready until ctx ends. It retries what a
// server may grant later, and returns an error for what the machine lacks.
func Run(ctx context.Context, o Options) error {
	password, err := nodepassword.EnsureFile(layout.NodePasswordFile)
	if err != nil {
		return err
	}
	sup, cfg, err := o.connect(ctx)
	if err != nil {
		return stopped(ctx, err)
	}
	if err := o.Check(cfg); err != nil {
		return err
	}
	if err := o.certificates(ctx, sup, password); err != nil {
		return stopped(ctx, err)
	}
	if err := listenKubelet(ctx, o.IPs, o.Data.Agent("serving-kubelet.crt"), o.Data.Agent("serving-kubelet.key")); err != nil {
		return err
	}
	if cfg.FlannelBackend == "vxlan" {
		if err := holdVXLANPort(ctx, o.IPs); err != nil {
			return err
		}
	}
	client, err := o.client()
	if err != nil {
		return err
	}
	r := &registration{Options: o, client: client, cluster: cfg}
	if err := insist(ctx, registerRetry, "Unable to register node with API server", r.register); err != nil {
		return stopped(ctx, err)
	}
	slog.Info("Successfully registered node", "node", o.Name)
	if o.Registered != nil {
		o.Registered(ctx, sup)
	}
	r.keepReady(ctx)
	return nil
}

// connect waits for a server that accepts the token. Like K3s' agent it never
// gives up: a server may be down, and a token may be made valid.
func (o Options) connect(ctx context.Context) (*supervisor.Client, supervisor.Config, error) {
	var client *supervisor.Client
	err := insist(ctx, connectRetry, "Failed to validate connection to cluster at "+o.ShownURL, func(ctx context.Context) (err error) {
		client, err = supervisor.Connect(ctx, o.ServerURL, o.Token, token.UserNode)
		return err
	})
	if err != nil {
		return nil, supervisor.Config{}, err
	}
	var cfg supervisor.Config
	err = insist(ctx, configRetry, "Waiting to retrieve agent configuration; server is not ready", func(ctx context.Context) (err error) {
		cfg, err = client.Config(ctx)
		return err
	})
	return client, cfg, err
}

func (o Options) certificates(ctx context.Context, sup *supervisor.Client, password string) error {
	self := supervisor.Node{Name: o.Name, Password: password, IPs: o.IPs}
	for _, c := range []struct{ path, name string }{
		{supervisor.PathClientKubelet, "client-kubelet"},
		{supervisor.PathServeKubelet, "serving-kubelet"},
	} {
		csr, err := pki.NewRequest(o.Data.Agent(c.name+".key"), o.Name)
		if err != nil {
			return err
		}
		var cert []byte
		err = insist(ctx, configRetry, "Waiting to retrieve kubelet certificate; server is not ready", func(ctx context.Context) (err error) {
			cert, err = sup.Certificate(ctx, c.path, self, csr)
			return err
		})
		if err != nil {
			return err
		}
		if err := pki.WriteFile(o.Data.Agent(c.name+".crt"), cert, 0o600); err != nil {
			return err
		}
	}
	clientCA, err := sup.ClientCA(ctx)
	if err != nil {
		return err
	}
	if err := pki.WriteFile(o.Data.Agent("client-ca.crt"), clientCA, 0o600); err != nil {
		return err
	}
	if err := pki.WriteFile(o.Data.Agent("server-ca.crt"), sup.CA, 0o600); err != nil {
		return err
	}
	return kubeconfig.Write(o.kubeconfig(), o.ServerURL, kubeconfig.Files{
		CA: o.Data.Agent("server-ca.crt"), Cert: o.Data.Agent("client-kubelet.crt"), Key: o.Data.Agent("client-kubelet.key"),
	})
}

func (o Options) kubeconfig() string { return o.Data.Agent("kubelet.kubeconfig") }

func (o Options) client() (kubernetes.Interface, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("read kubelet's kubeconfig: %w", err)
	}
	// A server that vanished without a word must not hold the heartbeat up.
	cfg.Timeout = heartbeatTimeout
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make API client: %w", err)
	}
	return client, nil
}

// stopped hides the error of an operation that ctx ended.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// insist repeats f until it succeeds or ctx ends.
func insist(ctx context.Context, every time.Duration, what string, f func(context.Context) error) error {
	for {
		err := f(ctx)
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if supervisor.Refused(err) {
			slog.Error(what, "err", err)
		} else {
			slog.Warn(what, "err", err)
		}
		t := time.NewTimer(every)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
		}
	}
}
