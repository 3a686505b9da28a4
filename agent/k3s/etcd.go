package k3s

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"powernode/sdwan"
)

// etcdPorts are where a member answers HTTP: newer K3s has a port of its own for it, older ones mix it with gRPC.
var etcdPorts = []string{"2382", "2379"}

// etcd asks this server's member with K3s' own client certificate.
type etcd struct {
	hash string
	http *http.Client
}

func openEtcd(r root) (*etcd, error) {
	var parts [3][]byte
	for i, name := range []string{"server-ca.crt", "client.crt", "client.key"} {
		b, err := os.ReadFile(r.path(filepath.Join(etcdTLSDir, name)))
		if err != nil {
			return nil, err
		}
		parts[i] = b
	}
	c, err := mutual(parts[0], parts[1], parts[2])
	if err != nil {
		return nil, err
	}
	return &etcd{hash: hashOf(string(parts[0]), string(parts[1]), string(parts[2])), http: c}, nil
}

func (e *etcd) close() { e.http.CloseIdleConnections() }

// report measures the member; nil when it can't be asked. server is the local API's URL, whose loopback address is the
// member's too; members counts the cluster's where the member itself doesn't tell.
func (e *etcd) report(ctx context.Context, r root, server string, members int) *sdwan.EtcdReport {
	u, err := url.Parse(server)
	if err != nil {
		return nil
	}
	out := sdwan.EtcdReport{Members: members}
	if name, err := os.ReadFile(r.path(etcdNamePath)); err == nil {
		out.Member = strings.TrimSpace(string(name))
	}
	for _, port := range etcdPorts {
		base := "https://" + net.JoinHostPort(u.Hostname(), port)
		healthy, err := e.healthy(ctx, base)
		if err != nil {
			continue
		}
		out.Healthy = healthy
		if n, err := e.members(ctx, base); err == nil {
			out.Members = n
		}
		return &out
	}
	return &out // it runs K3s and doesn't answer: not healthy
}

// healthy reads /health, which says no with HTTP 503.
func (e *etcd) healthy(ctx context.Context, base string) (bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/health", nil)
	if err != nil {
		return false, err
	}
	res, err := e.http.Do(req)
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	var h struct {
		Health string `json:"health"`
	}
	if err := json.NewDecoder(res.Body).Decode(&h); err != nil || h.Health == "" {
		return false, errors.New("no answer of etcd's /health")
	}
	return h.Health == "true", nil
}

func (e *etcd) members(ctx context.Context, base string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v3/cluster/member/list", bytes.NewReader([]byte("{}")))
	if err != nil {
		return 0, err
	}
	body, err := ask(e.http, req)
	if err != nil {
		return 0, err
	}
	var list struct {
		Members []struct {
			ID string `json:"ID"`
		} `json:"members"`
	}
	if err := json.Unmarshal(body, &list); err != nil || len(list.Members) == 0 {
		return 0, errors.New("no list of etcd's members")
	}
	return len(list.Members), nil
}
