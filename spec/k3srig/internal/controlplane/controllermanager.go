package controlplane

import (
	"context"
	"fmt"
	"strconv"

	kcmapp "k8s.io/kubernetes/cmd/kube-controller-manager/app"

	"powernode/spec/k3srig/internal/args"
)

func (c *ControlPlane) kcmArgs() []string {
	s, d := c.settings, c.data
	kubeconfig := d.Cred("controller.kubeconfig")
	own := map[string]string{
		"allocate-node-cidrs":              "true",
		"authentication-kubeconfig":        kubeconfig,
		"authorization-kubeconfig":         kubeconfig,
		"cluster-cidr":                     joinPrefixes(s.ClusterCIDRs),
		"cluster-signing-cert-file":        d.TLS("client-ca.crt"),
		"cluster-signing-key-file":         d.TLS("client-ca.key"),
		"configure-cloud-routes":           "false",
		"controllers":                      "*,bootstrapsigner,tokencleaner",
		"kubeconfig":                       kubeconfig,
		"profiling":                        "false",
		"root-ca-file":                     d.TLS("server-ca.crt"),
		"secure-port":                      "0",
		"service-account-private-key-file": d.TLS("service.key"),
		"service-cluster-ip-range":         joinPrefixes(s.ServiceCIDRs),
		"use-service-account-credentials":  "true",
		"v":                                strconv.Itoa(s.Verbosity),
	}
	return args.Render(own, s.ControllerManagerArgs)
}

// RunControllerManager runs until the process ends. As in K3s, a server that
// loses the lead of the controllers exits and is started again.
func (c *ControlPlane) RunControllerManager(ctx context.Context) error {
	if err := parse("kube-controller-manager", c.kcmFlags, c.kcmArgs()); err != nil {
		return err
	}
	if err := c.kcm.ComponentGlobalsRegistry.Set(); err != nil {
		return fmt.Errorf("kube-controller-manager feature gates: %w", err)
	}
	// Logging is set up by the API server's options, for the process as a whole.
	// A cancelled context would be taken for a lost lead and end the process with an error.
	ctx = context.WithoutCancel(ctx)
	cfg, err := c.kcm.Config(ctx, kcmapp.KnownControllers(), kcmapp.ControllersDisabledByDefault(), kcmapp.ControllerAliases())
	if err != nil {
		return fmt.Errorf("kube-controller-manager: %w", err)
	}
	if err := kcmapp.Run(ctx, cfg.Complete()); err != nil {
		return fmt.Errorf("kube-controller-manager: %w", err)
	}
	return nil
}
