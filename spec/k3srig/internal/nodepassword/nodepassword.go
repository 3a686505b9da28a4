// Package nodepassword ties a node's name to the machine that used it first.
package nodepassword

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/crypto/pbkdf2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"powernode/spec/k3srig/internal/pki"
)

// ErrRejected means that another machine owns the node's name.
var ErrRejected = errors.New("Node password rejected, duplicate hostname or contents of '/etc/rancher/node/password' may not match server node-passwd entry, try enabling a unique node name with the --with-node-id flag") // K3s' own words

const (
	version    = "$1"
	saltLength = 8
	iterations = 4096
)

// SecretName is where the counterpart of a node's password is kept, in kube-system.
func SecretName(node string) string { return strings.ToLower(node) + suffix }

const suffix = ".node-password.k3s"

// EnsureFile reads the machine's password, or makes one.
func EnsureFile(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if err == nil {
		if pw := strings.TrimSpace(string(raw)); pw != "" {
			return pw, nil
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read node password: %w", err)
	}
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		return "", fmt.Errorf("make node password: %w", err)
	}
	pw := hex.EncodeToString(b)
	return pw, pki.WriteFile(file, []byte(pw+"\n"), 0o600)
}

// Ensure checks a node's password against its secret, or makes the secret for a new node.
func Ensure(ctx context.Context, client kubernetes.Interface, node, password string) error {
	secrets := client.CoreV1().Secrets(metav1.NamespaceSystem)
	name := SecretName(node)
	secret, err := secrets.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		h, err := hash(password)
		if err != nil {
			return err
		}
		immutable := true
		_, err = secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceSystem},
			Immutable:  &immutable,
			Data:       map[string][]byte{"hash": []byte(h)},
		}, metav1.CreateOptions{})
		if err == nil || !apierrors.IsAlreadyExists(err) {
			return err
		}
		secret, err = secrets.Get(ctx, name, metav1.GetOptions{}) // somebody was faster
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	if !verify(string(secret.Data["hash"]), password) {
		return ErrRejected
	}
	return nil
}

// List tells which nodes have a password, and since when.
func List(ctx context.Context, client kubernetes.Interface) (map[string]time.Time, error) {
	secrets, err := client.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list node passwords: %w", err)
	}
	out := map[string]time.Time{}
	for _, s := range secrets.Items {
		if node, ok := strings.CutSuffix(s.Name, suffix); ok {
			out[node] = s.CreationTimestamp.Time
		}
	}
	return out, nil
}

// Delete drops a node's password; one that isn't there is no error.
func Delete(ctx context.Context, client kubernetes.Interface, node string) error {
	err := client.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, SecretName(node), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete password of node %s: %w", node, err)
	}
	return nil
}

func hash(password string) (string, error) {
	salt := make([]byte, saltLength)
	if _, err := rand.Read(salt); err != nil {
		return "", fmt.Errorf("make salt: %w", err)
	}
	return strings.Join([]string{version, hex.EncodeToString(salt), derive(password, salt)}, ":"), nil
}

func verify(stored, password string) bool {
	parts := strings.Split(stored, ":")
	if len(parts) != 3 || parts[0] != version {
		return false
	}
	salt, err := hex.DecodeString(parts[1])
	if err != nil {
		return false
	}
	return subtle.ConstantTimeCompare([]byte(parts[2]), []byte(derive(password, salt))) == 1
}

func derive(password string, salt []byte) string {
	return hex.EncodeToString(pbkdf2.Key([]byte(password), salt, iterations, sha256.Size, sha256.New))
}
