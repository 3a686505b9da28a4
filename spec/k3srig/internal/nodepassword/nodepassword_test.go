package nodepassword

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestEnsure(t *testing.T) {
	ctx := context.Background()
	client := fake.NewClientset()
	if err := Ensure(ctx, client, "N1", "first"); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Secrets("kube-system").Get(ctx, "n1.node-password.k3s", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := Ensure(ctx, client, "n1", "first"); err != nil {
		t.Errorf("the same machine again: %v", err)
	}
	if err := Ensure(ctx, client, "n1", "second"); !errors.Is(err, ErrRejected) {
		t.Errorf("another machine: %v", err)
	}
	if err := Ensure(ctx, client, "n2", "second"); err != nil {
		t.Errorf("another name: %v", err)
	}
	if list, err := List(ctx, client); err != nil || len(list) != 2 {
		t.Errorf("list: %v, %v", list, err)
	}
	for range 2 {
		if err := Delete(ctx, client, "n1"); err != nil {
			t.Error(err)
		}
	}
	if err := Ensure(ctx, client, "n1", "second"); err != nil {
		t.Errorf("a successor under the name: %v", err)
	}
}

func TestEnsureFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node", "password")
	a, err := EnsureFile(file)
	if err != nil || a == "" {
		t.Fatal(a, err)
	}
	if b, err := EnsureFile(file); err != nil || a != b {
		t.Errorf("the password changed: %q, %q, %v", a, b, err)
	}
}
