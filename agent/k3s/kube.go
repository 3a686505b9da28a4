package k3s

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"powernode/sdwan"
)

const (
	kubeTimeout   = 3 * time.Second
	maxKubeAnswer = 64 << 20
)

// kubeconfig is the part of the file that a single cluster's has.
type kubeconfig struct {
	Clusters []struct {
		Cluster struct {
			Server string `yaml:"server"`
			CAData string `yaml:"certificate-authority-data"`
			CAFile string `yaml:"certificate-authority"`
		} `yaml:"cluster"`
	} `yaml:"clusters"`
	Users []struct {
		User struct {
			CertData string `yaml:"client-certificate-data"`
			CertFile string `yaml:"client-certificate"`
			KeyData  string `yaml:"client-key-data"`
			KeyFile  string `yaml:"client-key"`
		} `yaml:"user"`
	} `yaml:"users"`
}

// kube asks API servers as whom a kubeconfig says. It lives as long as the file has the same content.
type kube struct {
	hash   string
	server string
	http   *http.Client
}

// openKube reads a kubeconfig, and the files that it names, which are below root.
func openKube(r root, path string) (*kube, error) {
	text, err := os.ReadFile(r.path(path))
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	var c kubeconfig
	if err := yaml.Unmarshal(text, &c); err != nil || len(c.Clusters) != 1 || len(c.Users) != 1 {
		return nil, fmt.Errorf("%s is no kubeconfig of one cluster and one user", path)
	}
	cluster, user := c.Clusters[0].Cluster, c.Users[0].User
	var parts [3][]byte
	for i, p := range []struct{ data, file string }{{cluster.CAData, cluster.CAFile}, {user.CertData, user.CertFile}, {user.KeyData, user.KeyFile}} {
		if parts[i], err = inline(r, p.data, p.file); err != nil {
			return nil, fmt.Errorf("read the kubeconfig %s: %w", path, err)
		}
	}
	k := &kube{hash: hashOf(string(text), string(parts[0]), string(parts[1]), string(parts[2])), server: strings.TrimSuffix(cluster.Server, "/")}
	if _, err := url.Parse(k.server); err != nil || !strings.HasPrefix(k.server, "https://") {
		return nil, fmt.Errorf("%s names no https server", path)
	}
	k.http, err = mutual(parts[0], parts[1], parts[2])
	return k, err
}

func inline(r root, data, file string) ([]byte, error) {
	if data != "" {
		return base64.StdEncoding.DecodeString(data)
	}
	if file == "" {
		return nil, errors.New("neither data nor a file")
	}
	return os.ReadFile(r.path(file))
}

// mutual is a client that trusts one CA and shows one certificate.
func mutual(ca, cert, key []byte) (*http.Client, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, errors.New("no CA certificate")
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("client certificate: %w", err)
	}
	t := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
		MaxIdleConnsPerHost: 2, IdleConnTimeout: 30 * time.Second, TLSHandshakeTimeout: kubeTimeout}
	return &http.Client{Transport: t, Timeout: kubeTimeout}, nil
}

func (k *kube) close() { k.http.CloseIdleConnections() }

// get answers the body of a 200.
func get(ctx context.Context, c *http.Client, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return ask(c, req)
}

func ask(c *http.Client, req *http.Request) ([]byte, error) {
	res, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxKubeAnswer))
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("HTTP %d", res.StatusCode)
	}
	return body, nil
}

// ready asks /readyz of an API server. An answer that says no is false; no answer too: the API isn't ready for anybody.
func (k *kube) ready(ctx context.Context, server string) bool {
	body, err := get(ctx, k.http, server+"/readyz")
	return err == nil && strings.TrimSpace(string(body)) == "ok"
}

// version is the API server's, such as v1.36.5+k3s1.
func (k *kube) version(ctx context.Context) (string, error) {
	body, err := get(ctx, k.http, k.server+"/version")
	if err != nil {
		return "", fmt.Errorf("ask for the version: %w", err)
	}
	var v struct {
		GitVersion string `json:"gitVersion"`
	}
	if err := json.Unmarshal(body, &v); err != nil || v.GitVersion == "" {
		return "", errors.New("the API server names no version")
	}
	return v.GitVersion, nil
}

// node is what we read of a Node.
type node struct {
	Metadata struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		Unschedulable bool     `json:"unschedulable"`
		PodCIDRs      []string `json:"podCIDRs"`
	} `json:"spec"`
	Status struct {
		Conditions []condition `json:"conditions"`
		NodeInfo   struct {
			KubeletVersion string `json:"kubeletVersion"`
		} `json:"nodeInfo"`
	} `json:"status"`
}

// condition leaves the heartbeat out: it changes without news.
type condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Since   string `json:"lastTransitionTime"`
}

func (n node) ready() bool {
	for _, c := range n.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}

func (n node) podCIDRs() []netip.Prefix {
	out := []netip.Prefix{}
	for _, s := range n.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(s); err == nil {
			out = append(out, p)
		}
	}
	return out
}

func (n node) report() sdwan.K3sNodeReport {
	return sdwan.K3sNodeReport{Name: n.Metadata.Name, Ready: n.ready(), Unschedulable: n.Spec.Unschedulable,
		Version: n.Status.NodeInfo.KubeletVersion, PodCIDRs: n.podCIDRs()}
}

// conditions are the Node's, as JSON.
func (n node) conditions() json.RawMessage {
	b, err := json.Marshal(n.Status.Conditions)
	if err != nil {
		return nil
	}
	return b
}

// nodes lists the cluster's Nodes, from the API server's cache.
func (k *kube) nodes(ctx context.Context) ([]node, error) {
	body, err := get(ctx, k.http, k.server+"/api/v1/nodes?resourceVersion=0")
	if err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	var list struct {
		Items []node `json:"items"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	return list.Items, nil
}

// node reads one Node.
func (k *kube) node(ctx context.Context, name string) (node, error) {
	var n node
	body, err := get(ctx, k.http, k.server+"/api/v1/nodes/"+url.PathEscape(name))
	if err != nil {
		return n, fmt.Errorf("read the Node: %w", err)
	}
	if err := json.Unmarshal(body, &n); err != nil {
		return n, fmt.Errorf("read the Node: %w", err)
	}
	return n, nil
}
