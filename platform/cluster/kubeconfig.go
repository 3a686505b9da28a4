package cluster

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"

	"powernode/schema"
	"powernode/store"
)

// kubeconfigFile is the part of a kubeconfig that K3s writes (kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig).
type kubeconfigFile struct {
	APIVersion     string         `yaml:"apiVersion"`
	Kind           string         `yaml:"kind"`
	Clusters       []namedCluster `yaml:"clusters"`
	Users          []namedUser    `yaml:"users"`
	Contexts       []namedContext `yaml:"contexts"`
	CurrentContext string         `yaml:"current-context"`
}

type namedCluster struct {
	Name    string `yaml:"name"`
	Cluster struct {
		Server string `yaml:"server"`
		CA     string `yaml:"certificate-authority-data"`
	} `yaml:"cluster"`
}

type namedUser struct {
	Name string `yaml:"name"`
	User struct {
		Certificate string `yaml:"client-certificate-data"`
		Key         string `yaml:"client-key-data"`
	} `yaml:"user"`
}

type namedContext struct {
	Name    string `yaml:"name"`
	Context struct {
		Cluster string `yaml:"cluster"`
		User    string `yaml:"user"`
	} `yaml:"context"`
}

// rewriteKubeconfig makes a server's own kubeconfig the cluster's: the API at its virtual IP, everything named after
// the cluster so that files merge, nothing insecure. It answers the certificate authority too.
func rewriteKubeconfig(given, cluster, address string) (rewritten, caPEM string, err error) {
	var in kubeconfigFile
	if err := yaml.Unmarshal([]byte(given), &in); err != nil {
		return "", "", errors.New("kubeconfig is no YAML")
	}
	if len(in.Clusters) != 1 || len(in.Users) != 1 {
		return "", "", errors.New("kubeconfig must have one cluster and one user")
	}
	ca, err := base64.StdEncoding.DecodeString(in.Clusters[0].Cluster.CA)
	if err != nil || len(ca) == 0 {
		return "", "", errors.New("kubeconfig has no certificate-authority-data")
	}
	if in.Users[0].User.Certificate == "" || in.Users[0].User.Key == "" {
		return "", "", errors.New("kubeconfig has no client certificate")
	}
	out := kubeconfigFile{APIVersion: "v1", Kind: "Config", Clusters: in.Clusters, Users: in.Users, Contexts: make([]namedContext, 1)}
	out.Clusters[0].Cluster.Server = address
	out.rename(cluster)
	b, err := yaml.Marshal(out)
	if err != nil {
		return "", "", fmt.Errorf("encode the kubeconfig: %w", err)
	}
	return string(b), string(ca), nil
}

func (k *kubeconfigFile) rename(cluster string) {
	k.Clusters[0].Name, k.Users[0].Name, k.Contexts[0].Name, k.CurrentContext = cluster, cluster, cluster, cluster
	k.Contexts[0].Context.Cluster, k.Contexts[0].Context.User = cluster, cluster
}

// CheckKubeconfig refuses while a cluster has none.
func (s *Service) CheckKubeconfig(c store.Cluster) error {
	if c.Kubeconfig != nil && c.Status != StatusPending && c.Status != StatusBootstrapping {
		return nil
	}
	return schema.Errorf(schema.PreconditionFailed, "kubeconfig not yet available — cluster is still bootstrapping (status=%s)", c.Status).
		WithHint("kubernetes_get_cluster", "Shows when the cluster is active.").AsRetryable()
}

// Kubeconfig hands out a cluster's administrator credential. The audit row is written first; it has no material.
func (s *Service) Kubeconfig(ctx context.Context, tx *store.Tx, c store.Cluster) (kubeconfig, address string, err error) {
	_, err = tx.Audit(ctx, store.AuditEntry{AccountID: c.AccountID, Action: "kubernetes.kubeconfig_read", ResourceType: "Devops::KubernetesCluster",
		ResourceID: string(c.ID), New: store.Object{"cluster": c.Name}})
	if err != nil {
		return "", "", err
	}
	opened, err := s.Sealer.Open(kubeconfigPurpose(c.ID), c.Kubeconfig)
	if err != nil {
		return "", "", err
	}
	var file kubeconfigFile
	if err := yaml.Unmarshal(opened, &file); err != nil {
		return "", "", fmt.Errorf("read the kept kubeconfig of cluster %s: %w", c.Name, err)
	}
	file.rename(c.Name) // the cluster may have been renamed since
	b, err := yaml.Marshal(file)
	if err != nil {
		return "", "", fmt.Errorf("encode the kubeconfig: %w", err)
	}
	address, err = s.Endpoint(ctx, &tx.View, c)
	return string(b), address, err
}
