package membership

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func password(node string, age time.Duration) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: "kube-system", Name: node + ".node-password.k3s", CreationTimestamp: metav1.NewTime(time.Now().Add(-age)),
	}}
}

func TestForget(t *testing.T) {
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	ctx := context.Background()
	client := fake.NewClientset(password("here", time.Hour), password("gone", time.Hour), password("seen", 0), password("new", 0))
	c := &controller{Options: Options{Client: client}, seen: map[string]bool{"seen": true, "here": true}}
	here := []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "here"}}}
	if err := c.forget(ctx, here); err != nil {
		t.Fatal(err)
	}
	list, err := client.CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, s := range list.Items {
		left = append(left, s.Name)
	}
	slices.Sort(left)
	if want := []string{"here.node-password.k3s", "new.node-password.k3s"}; !slices.Equal(left, want) {
		t.Errorf("%v, want %v", left, want)
	}
}

func TestAPIServers(t *testing.T) {
	port := int32(6443)
	client := fake.NewClientset(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"},
		Ports:      []discoveryv1.EndpointPort{{Port: &port}},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"fd00::1"}}, {Addresses: []string{"10.0.0.1"}}},
	})
	got, err := APIServers(context.Background(), client)
	if want := []string{"[fd00::1]:6443", "10.0.0.1:6443"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}
