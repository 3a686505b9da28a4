// Package membership does for server nodes what K3s' controllers do: it marks
// their roles, takes the etcd member of a node that goes out of the cluster, and
// drops the node's password.
package membership

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"powernode/spec/k3srig/internal/datastore"
	"powernode/spec/k3srig/internal/nodepassword"
)

// Labels, annotations and the finalizer of server nodes, as in K3s.
const (
	labelControlPlane = "node-role.kubernetes.io/control-plane"
	labelEtcd         = "node-role.kubernetes.io/etcd"
	annotationAddress = "etcd.k3s.cattle.io/node-address"
	annotationName    = "etcd.k3s.cattle.io/node-name"
	annotationRemove  = "etcd.k3s.cattle.io/remove"
	annotationRemoved = "etcd.k3s.cattle.io/removed-node-name"
	finalizer         = "wrangler.cattle.io/managed-etcd-controller"
)

const (
	every         = 2 * time.Second
	registerLimit = time.Minute
)

// Options describe the server.
type Options struct {
	Client  kubernetes.Interface
	Etcd    *datastore.Member
	Node    string
	Address string
}

// Run works until ctx ends.
func Run(ctx context.Context, o Options) {
	t := time.NewTicker(every)
	defer t.Stop()
	c := &controller{Options: o}
	var last string
	for {
		if err := c.once(ctx); err != nil && ctx.Err() == nil && err.Error() != last {
			last = err.Error()
			slog.Warn("etcd membership", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

type controller struct {
	Options
	seen map[string]bool
}

func (o *controller) once(ctx context.Context) error {
	nodes, err := o.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	if err := o.forget(ctx, nodes.Items); err != nil {
		return err
	}
	servers := 0
	for _, n := range nodes.Items {
		if n.Labels[labelEtcd] == "true" || n.Name == o.Node {
			servers++
		}
	}
	for _, n := range nodes.Items {
		switch {
		case n.DeletionTimestamp != nil:
			err = o.release(ctx, n, servers)
		case n.Annotations[annotationRemove] == "true":
			err = o.remove(ctx, n)
		case n.Name == o.Node:
			err = o.mark(ctx, n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// forget drops the passwords of nodes that are gone, so that another machine
// may take the name: at once when the node was seen before, else after a
// while, because a machine has its password checked before it registers.
func (o *controller) forget(ctx context.Context, nodes []corev1.Node) error {
	now := map[string]bool{}
	for _, n := range nodes {
		now[n.Name] = true
	}
	passwords, err := nodepassword.List(ctx, o.Client)
	if err != nil {
		return err
	}
	for name, made := range passwords {
		if now[name] || (!o.seen[name] && time.Since(made) < registerLimit) {
			continue
		}
		slog.Info("Dropping the password of a node that is gone", "node", name)
		if err := nodepassword.Delete(ctx, o.Client, name); err != nil {
			return err
		}
	}
	o.seen = now
	return nil
}

// mark sets what tells a server from a worker.
func (o *controller) mark(ctx context.Context, n corev1.Node) error {
	labels := map[string]string{labelControlPlane: "true", labelEtcd: "true"}
	annotations := map[string]string{annotationAddress: o.Address, annotationName: o.Etcd.Name()}
	if has(n.Labels, labels) && has(n.Annotations, annotations) && slices.Contains(n.Finalizers, finalizer) {
		return nil
	}
	finalizers := n.Finalizers
	if !slices.Contains(finalizers, finalizer) {
		finalizers = append(slices.Clone(finalizers), finalizer)
	}
	return o.patch(ctx, n, map[string]any{"labels": labels, "annotations": annotations, "finalizers": finalizers})
}

// remove is K3s' way to take a server out while its Node stays.
func (o *controller) remove(ctx context.Context, n corev1.Node) error {
	name := n.Annotations[annotationName]
	if name == "" || n.Annotations[annotationRemoved] == name {
		return nil
	}
	if n.Name == o.Node {
		return nil // the other servers do it
	}
	if err := o.Etcd.Remove(ctx, name); err != nil {
		return err
	}
	return o.patch(ctx, n, map[string]any{"annotations": map[string]string{annotationRemoved: name}})
}

// release lets a deleted Node go once its member is out of the cluster.
func (o *controller) release(ctx context.Context, n corev1.Node, servers int) error {
	if !slices.Contains(n.Finalizers, finalizer) {
		return nil
	}
	alone := servers == 1
	if n.Name == o.Node && !alone {
		return nil // the other servers do it
	}
	if name := n.Annotations[annotationName]; name != "" && !alone {
		if err := o.Etcd.Remove(ctx, name); err != nil {
			return err
		}
	}
	rest := slices.DeleteFunc(slices.Clone(n.Finalizers), func(f string) bool { return f == finalizer })
	return o.patch(ctx, n, map[string]any{"finalizers": rest})
}

// patch names the version it has seen, since it replaces the list of finalizers.
func (o *controller) patch(ctx context.Context, n corev1.Node, meta map[string]any) error {
	meta["resourceVersion"] = n.ResourceVersion
	raw, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	if _, err := o.Client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, raw, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("patch node %s: %w", n.Name, err)
	}
	return nil
}

func has(all, some map[string]string) bool {
	for k, v := range some {
		if all[k] != v {
			return false
		}
	}
	return true
}

// APIServers lists host:port of every server, from what the API servers say of themselves.
func APIServers(ctx context.Context, client kubernetes.Interface) ([]string, error) {
	slices, err := client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("list API servers: %w", err)
	}
	var out []string
	for _, p := range slices.Ports {
		for _, e := range slices.Endpoints {
			for _, a := range e.Addresses {
				if p.Port != nil {
					out = append(out, net.JoinHostPort(a, strconv.Itoa(int(*p.Port))))
				}
			}
		}
	}
	return out, nil
}
