package controlplane

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/rest"
	basecompatibility "k8s.io/component-base/compatibility"
	logsapi "k8s.io/component-base/logs/api/v1"
	apiapp "k8s.io/kubernetes/cmd/kube-apiserver/app"

	"powernode/spec/k3srig/internal/args"
)

func (c *ControlPlane) apiArgs() []string {
	s, d := c.settings, c.data
	advertise := s.AdvertiseAddress
	if !advertise.IsValid() {
		advertise = s.NodeIPs[0]
	}
	own := map[string]string{
		"advertise-address":                  advertise.String(),
		"allow-privileged":                   "true",
		"anonymous-auth":                     "true",
		"api-audiences":                      c.issuer() + ",k3s",
		"authorization-mode":                 "Node,RBAC",
		"bind-address":                       c.bindAddress(),
		"cert-dir":                           d.TLS("temporary-certs"),
		"client-ca-file":                     d.TLS("client-ca.crt"),
		"enable-admission-plugins":           "NodeRestriction",
		"enable-bootstrap-token-auth":        "true",
		"etcd-cafile":                        d.EtcdTLS("server-ca.crt"),
		"etcd-certfile":                      d.EtcdTLS("client.crt"),
		"etcd-keyfile":                       d.EtcdTLS("client.key"),
		"etcd-servers":                       c.etcdURL,
		"kubelet-certificate-authority":      d.TLS("server-ca.crt"),
		"kubelet-client-certificate":         d.TLS("client-kube-apiserver.crt"),
		"kubelet-client-key":                 d.TLS("client-kube-apiserver.key"),
		"kubelet-preferred-address-types":    "InternalIP,ExternalIP,Hostname",
		"profiling":                          "false",
		"proxy-client-cert-file":             d.TLS("client-auth-proxy.crt"),
		"proxy-client-key-file":              d.TLS("client-auth-proxy.key"),
		"requestheader-allowed-names":        "system:auth-proxy",
		"requestheader-client-ca-file":       d.TLS("request-header-ca.crt"),
		"requestheader-extra-headers-prefix": "X-Remote-Extra-",
		"requestheader-group-headers":        "X-Remote-Group",
		"requestheader-username-headers":     "X-Remote-User",
		"secure-port":                        strconv.Itoa(s.HTTPSPort),
		"service-account-issuer":             c.issuer(),
		"service-account-key-file":           d.TLS("service.key"),
		"service-account-signing-key-file":   d.TLS("service.key"),
		"service-cluster-ip-range":           joinPrefixes(s.ServiceCIDRs),
		"service-node-port-range":            s.ServiceNodePortRange,
		"storage-backend":                    "etcd3",
		"tls-cert-file":                      d.TLS("serving-kube-apiserver.crt"),
		"tls-private-key-file":               d.TLS("serving-kube-apiserver.key"),
		"v":                                  strconv.Itoa(s.Verbosity),
	}
	return args.Render(own, s.APIServerArgs)
}

func (c *ControlPlane) issuer() string {
	return "https://kubernetes.default.svc." + c.settings.ClusterDomain
}

// bindAddress is every address unless configured otherwise: a virtual address
// may come to this server at any time, and must be answered then.
func (c *ControlPlane) bindAddress() string {
	if c.settings.BindAddress != "" {
		return c.settings.BindAddress
	}
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		return "0.0.0.0" // a machine without IPv6
	}
	l.Close()
	return "::"
}

// StartAPI starts the API server, with around answering first on its port.
// The channel yields the reason for which it ended.
func (c *ControlPlane) StartAPI(ctx context.Context, around Middleware) (<-chan error, error) {
	sets := c.api.Flags()
	if err := parse("kube-apiserver", sets, c.apiArgs()); err != nil {
		return nil, err
	}
	if err := c.api.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return nil, fmt.Errorf("kube-apiserver feature gates: %w", err)
	}
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	gates := c.api.GenericServerRunOptions.ComponentGlobalsRegistry.FeatureGateFor(basecompatibility.DefaultKubeComponent)
	ours := slog.Default()
	err := logsapi.ValidateAndApply(c.api.Logs, gates)
	slog.SetDefault(ours) // Kubernetes' logging has put its own there
	if err != nil {
		return nil, fmt.Errorf("kube-apiserver logging: %w", err)
	}
	completed, err := c.api.Complete(ctx)
	if err != nil {
		return nil, fmt.Errorf("kube-apiserver options: %w", err)
	}
	if errs := completed.Validate(); len(errs) != 0 {
		return nil, fmt.Errorf("kube-apiserver options: %w", utilerrors.NewAggregate(errs))
	}
	cfg, err := apiapp.NewConfig(completed)
	if err != nil {
		return nil, fmt.Errorf("kube-apiserver: %w", err)
	}
	// The aggregator is the outermost of the three servers in kube-apiserver;
	// what wraps its whole chain comes before authentication.
	generic := cfg.Aggregator.GenericConfig
	build := generic.BuildHandlerChainFunc
	generic.BuildHandlerChainFunc = func(h http.Handler, gc *genericapiserver.Config) http.Handler {
		return around(build(h, gc))
	}
	full, err := cfg.Complete()
	if err != nil {
		return nil, fmt.Errorf("kube-apiserver: %w", err)
	}
	chain, err := apiapp.CreateServerChain(full)
	if err != nil {
		return nil, fmt.Errorf("kube-apiserver: %w", err)
	}
	prepared, err := chain.PrepareRun()
	if err != nil {
		return nil, fmt.Errorf("kube-apiserver: %w", err)
	}
	ended := make(chan error, 1)
	go func() {
		defer close(c.apiDone)
		ended <- prepared.Run(ctx)
	}()
	return ended, nil
}

// WaitStopped gives a cancelled API server some time to finish its requests.
func (c *ControlPlane) WaitStopped(limit time.Duration) {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-c.apiDone:
	case <-t.C:
		slog.Debug("kube-apiserver did not finish in time")
	}
}
