// Package kubeconfig writes client configurations.
package kubeconfig

import (
	"fmt"
	"os"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"powernode/spec/k3srig/internal/pki"
)

// Files names what a client configuration is made of.
type Files struct{ CA, Cert, Key string }

// Write makes a client configuration that names files beside it.
func Write(path, server string, f Files) error {
	return write(path, 0o600, &api.Cluster{Server: server, CertificateAuthority: f.CA},
		&api.AuthInfo{ClientCertificate: f.Cert, ClientKey: f.Key})
}

// WriteEmbedded makes a client configuration that can be carried to another machine.
func WriteEmbedded(path, server string, f Files, mode os.FileMode) error {
	var data [3][]byte
	for i, file := range []string{f.CA, f.Cert, f.Key} {
		raw, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("write kubeconfig: %w", err)
		}
		data[i] = raw
	}
	return write(path, mode, &api.Cluster{Server: server, CertificateAuthorityData: data[0]},
		&api.AuthInfo{ClientCertificateData: data[1], ClientKeyData: data[2]})
}

func write(path string, mode os.FileMode, cluster *api.Cluster, user *api.AuthInfo) error {
	const name = "default" // K3s' name for all three
	cfg := api.NewConfig()
	cfg.Clusters[name] = cluster
	cfg.AuthInfos[name] = user
	cfg.Contexts[name] = &api.Context{Cluster: name, AuthInfo: name}
	cfg.CurrentContext = name
	raw, err := clientcmd.Write(*cfg)
	if err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return pki.WriteFile(path, raw, mode)
}
