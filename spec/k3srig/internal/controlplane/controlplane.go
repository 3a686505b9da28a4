// Package controlplane runs Kubernetes' own API server and controller manager in this process.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
	apioptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	kcmapp "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kcmoptions "k8s.io/kubernetes/cmd/kube-controller-manager/app/options"

	"powernode/spec/k3srig/internal/config"
	"powernode/spec/k3srig/internal/layout"
)

const (
	readyEvery   = 100 * time.Millisecond
	readyTimeout = 3 * time.Minute
	probeTimeout = 5 * time.Second
)

// ControlPlane is the pair of components, not yet started.
type ControlPlane struct {
	data     layout.Data
	settings *config.Settings
	etcdURL  string
	kcm      *kcmoptions.KubeControllerManagerOptions
	kcmFlags cliflag.NamedFlagSets
	api      *apioptions.ServerRunOptions
	apiDone  chan struct{}
}

// New prepares the components. The order matters: the controller manager's
// options change the default of a feature gate, which is refused once the API
// server's have bound the gates to flags.
func New(s *config.Settings, etcdURL string) (*ControlPlane, error) {
	// Two components in one process configure the same logging.
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged

	c := &ControlPlane{data: layout.Data(s.DataDir), settings: s, etcdURL: etcdURL, apiDone: make(chan struct{})}
	kcm, err := kcmoptions.NewKubeControllerManagerOptions()
	if err != nil {
		return nil, fmt.Errorf("prepare kube-controller-manager: %w", err)
	}
	c.kcm = kcm
	c.kcmFlags = kcm.Flags(kcmapp.KnownControllers(), kcmapp.ControllersDisabledByDefault(), kcmapp.ControllerAliases())
	kcm.ParsedFlags = &c.kcmFlags
	c.api = apioptions.NewServerRunOptions()
	return c, nil
}

// SurviveStop keeps the components from ending the process once ctx has ended.
// They call it fatal when their start or their lead is cut short, which is just
// what a stop does; the process is about to end by itself, with its own code.
func SurviveStop(ctx context.Context) {
	klog.OsExit = func(code int) {
		if ctx.Err() != nil {
			select {} // this goroutine has nothing left to do
		}
		os.Exit(code)
	}
}

// LocalURL is where the components and the node of a server reach its API.
func LocalURL(s *config.Settings) string {
	return "https://" + net.JoinHostPort(Loopback(s), strconv.Itoa(s.HTTPSPort))
}

// Loopback is the loopback address that K3s uses: IPv6 only where nothing else is.
func Loopback(s *config.Settings) string {
	if a, err := netip.ParseAddr(s.BindAddress); err == nil && !a.IsUnspecified() {
		return a.String() // nothing answers on the loopback address
	}
	if !config.PrefixFamilies(s.ServiceCIDRs).IPv4 {
		return "::1"
	}
	return "127.0.0.1"
}

// AdminClient is a client with an administrator's certificate.
func AdminClient(s *config.Settings) (kubernetes.Interface, error) {
	d := layout.Data(s.DataDir)
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: LocalURL(s),
		TLSClientConfig: rest.TLSClientConfig{
			CAFile: d.TLS("server-ca.crt"), CertFile: d.TLS("client-supervisor.crt"), KeyFile: d.TLS("client-supervisor.key"),
		},
		QPS: 50, Burst: 100,
	})
	if err != nil {
		return nil, fmt.Errorf("make API client: %w", err)
	}
	return client, nil
}

// WaitReady waits until the API server answers that it is ready.
func WaitReady(ctx context.Context, client kubernetes.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	t := time.NewTicker(readyEvery)
	defer t.Stop()
	var last error
	for {
		pctx, pcancel := context.WithTimeout(ctx, probeTimeout)
		last = client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(pctx).Error()
		pcancel()
		if last == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for kube-apiserver: %w", errors.Join(ctx.Err(), last))
		case <-t.C:
		}
	}
}

func parse(component string, sets cliflag.NamedFlagSets, line []string) error {
	fs := pflag.NewFlagSet(component, pflag.ContinueOnError)
	fs.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	for _, set := range sets.FlagSets {
		fs.AddFlagSet(set)
	}
	if err := fs.Parse(line); err != nil {
		return fmt.Errorf("%s: %w", component, err)
	}
	slog.Info("Running "+component, "args", strings.Join(line, " "))
	return nil
}

func joinPrefixes(ps []netip.Prefix) string {
	var out []string
	for _, p := range ps {
		out = append(out, p.String())
	}
	return strings.Join(out, ",")
}

// Middleware wraps the API server's handler.
type Middleware func(http.Handler) http.Handler
