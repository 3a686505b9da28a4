package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
)

// The kubelet's own intervals.
const (
	heartbeatEvery   = 10 * time.Second
	heartbeatTimeout = 10 * time.Second
	heartbeatRetry   = time.Second
	leaseSeconds     = 40
	statusMaxAge     = 5 * time.Minute
)

// keepReady renews the node's lease and repairs its status until ctx ends.
func (r *registration) keepReady(ctx context.Context) {
	failing := false
	for {
		err := errors.Join(r.renewLease(ctx), r.checkStatus(ctx))
		wait := heartbeatEvery
		switch {
		case err == nil && failing:
			slog.Info("Node heartbeat works again", "node", r.Name)
			failing = false
		case err != nil && ctx.Err() == nil:
			if !failing {
				slog.Warn("Node heartbeat fails", "node", r.Name, "err", err)
			}
			failing, wait = true, heartbeatRetry
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}

func (r *registration) checkStatus(ctx context.Context) error {
	n, err := r.client.CoreV1().Nodes().Get(ctx, r.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read node: %w", err)
	}
	if !r.statusDue(n) {
		return nil
	}
	return r.updateStatus(ctx)
}

// updateStatus retries on conflict: the node controllers write the same object.
func (r *registration) updateStatus(ctx context.Context) error {
	nodes := r.client.CoreV1().Nodes()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		n, err := nodes.Get(ctx, r.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		r.fill(n)
		_, err = nodes.UpdateStatus(ctx, n, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("update node status: %w", err)
	}
	return nil
}

func (r *registration) renewLease(ctx context.Context) error {
	leases := r.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	now := metav1.NowMicro()
	seconds := int32(leaseSeconds)
	lease, err := leases.Get(ctx, r.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: r.Name, OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Node", Name: r.Name, UID: r.uid},
			}},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &r.Name, LeaseDurationSeconds: &seconds, RenewTime: &now},
		}, metav1.CreateOptions{})
	} else if err == nil {
		lease.Spec.RenewTime = &now
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("renew node lease: %w", err)
	}
	return nil
}
