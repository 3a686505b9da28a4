package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"powernode/store"
)

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func yes() *bool { b := true; return &b }
func no() *bool  { b := false; return &b }

func ago(d time.Duration) store.Time { return store.At(noon.Add(-d)) }

func since(d time.Duration) *store.Time { t := ago(d); return &t }

func TestNodeStatusFollowsItsTable(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		node store.ClusterNode
		h    store.ClusterNodeHealth
		want string
		from time.Time // since when the platform listens
	}{
		{"a join that is not ready stays one", store.ClusterNode{Status: NodeJoining, StatusSince: ago(time.Minute)}, store.ClusterNodeHealth{}, NodeJoining, time.Time{}},
		{"Ready without the phase ready is not yet a member at work", store.ClusterNode{Status: NodeJoining, StatusSince: ago(0)},
			store.ClusterNodeHealth{ReportedAt: ago(0), NodeReady: yes()}, NodeJoining, time.Time{}},
		{"both make it active", store.ClusterNode{Status: NodeJoining, StatusSince: ago(0), JoinedAt: since(0)},
			store.ClusterNodeHealth{ReportedAt: ago(0), NodeReady: yes()}, NodeActive, time.Time{}},
		{"ten minutes are too long", store.ClusterNode{Status: NodeJoining, StatusSince: ago(11 * time.Minute)}, store.ClusterNodeHealth{}, NodeError, time.Time{}},
		{"a moment of not ready is none", store.ClusterNode{Status: NodeActive},
			store.ClusterNodeHealth{ReportedAt: ago(0), NodeReady: no(), NotReadySince: since(39 * time.Second)}, NodeActive, time.Time{}},
		{"forty seconds are", store.ClusterNode{Status: NodeActive},
			store.ClusterNodeHealth{ReportedAt: ago(0), NodeReady: no(), NotReadySince: since(40 * time.Second)}, NodeNotReady, time.Time{}},
		{"silence is disconnected, whatever was measured last", store.ClusterNode{Status: NodeActive},
			store.ClusterNodeHealth{ReportedAt: ago(4 * time.Minute), NodeReady: yes()}, NodeDisconnected, time.Time{}},
		{"and back", store.ClusterNode{Status: NodeDisconnected, JoinedAt: since(time.Hour)},
			store.ClusterNodeHealth{ReportedAt: ago(0), NodeReady: yes()}, NodeActive, time.Time{}},
		{"what was never measured is not silent", store.ClusterNode{Status: NodeActive}, store.ClusterNodeHealth{}, NodeActive, time.Time{}},
		{"silence from before the platform listened is its own", store.ClusterNode{Status: NodeActive},
			store.ClusterNodeHealth{ReportedAt: ago(time.Hour), NodeReady: yes()}, NodeActive, noon.Add(-time.Minute)},
		{"and counts from there", store.ClusterNode{Status: NodeActive},
			store.ClusterNodeHealth{ReportedAt: ago(time.Hour), NodeReady: yes()}, NodeDisconnected, noon.Add(-4 * time.Minute)},
		{"who was lost is not back by that", store.ClusterNode{Status: NodeDisconnected, JoinedAt: since(time.Hour)},
			store.ClusterNodeHealth{ReportedAt: ago(time.Hour), NodeReady: yes()}, NodeDisconnected, noon.Add(-time.Minute)},
		{"a join is not too long while nobody listened", store.ClusterNode{Status: NodeJoining, StatusSince: ago(time.Hour)}, store.ClusterNodeHealth{},
			NodeJoining, noon.Add(-time.Minute)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := nodeStatus(tt.node, nodeHealth{tt.h}, noon, tt.from); got != tt.want {
				t.Errorf("status %s, want %s", got, tt.want)
			}
		})
	}
}

func TestClusterStatusFollowsItsTable(t *testing.T) {
	t.Parallel()
	healthy := measured{now: noon, servers: 1, serversActive: 1, serversReporting: 1, firstReady: true, clusterMeasured: true,
		cluster: store.ClusterHealth{MeasuredAt: ago(0), VIPReady: yes()}}
	with := func(change func(*measured)) measured { m := healthy; change(&m); return m }
	for _, tt := range []struct {
		name string
		c    store.Cluster
		m    measured
		want string
	}{
		{"active takes ready, Ready, the kubeconfig and the virtual IP", store.Cluster{Status: StatusBootstrapping, StatusSince: ago(0), Kubeconfig: []byte{1}}, healthy, StatusActive},
		{"without the virtual IP it is not", store.Cluster{Status: StatusBootstrapping, StatusSince: ago(0), Kubeconfig: []byte{1}},
			with(func(m *measured) { m.cluster.VIPReady = no() }), StatusBootstrapping},
		{"what is not measured is not healthy", store.Cluster{Status: StatusBootstrapping, StatusSince: ago(0), Kubeconfig: []byte{1}},
			with(func(m *measured) { m.cluster.VIPReady = nil }), StatusBootstrapping},
		{"without the kubeconfig it is not", store.Cluster{Status: StatusBootstrapping, StatusSince: ago(0)}, healthy, StatusBootstrapping},
		{"fifteen minutes are too long", store.Cluster{Status: StatusBootstrapping, StatusSince: ago(16 * time.Minute)}, measured{now: noon}, StatusError},
		{"a third of the agents degrades", store.Cluster{Status: StatusActive, StatusSince: ago(0), Kubeconfig: []byte{1}},
			with(func(m *measured) { m.agents, m.agentsActive = 3, 2 }), StatusDegraded},
		{"a quarter does not", store.Cluster{Status: StatusActive, StatusSince: ago(0), Kubeconfig: []byte{1}},
			with(func(m *measured) { m.agents, m.agentsActive = 4, 3 }), StatusActive},
		{"an unhealthy etcd member degrades", store.Cluster{Status: StatusActive, StatusSince: ago(0), Kubeconfig: []byte{1}},
			with(func(m *measured) { m.etcdUnhealthy = true }), StatusDegraded},
		{"silent servers are disconnected", store.Cluster{Status: StatusActive, StatusSince: ago(0), Kubeconfig: []byte{1}},
			with(func(m *measured) { m.serversReporting = 0 }), StatusDisconnected},
		{"a dead API is an error after five minutes", store.Cluster{Status: StatusDegraded, StatusSince: ago(6 * time.Minute), Kubeconfig: []byte{1}},
			with(func(m *measured) { m.cluster.VIPReady, m.cluster.Detail.V.VIPDownSince = no(), since(6*time.Minute) }), StatusError},
		{"a cluster that is degraded for long is not in error the moment its API dies", store.Cluster{Status: StatusDegraded, StatusSince: ago(time.Hour), Kubeconfig: []byte{1}},
			with(func(m *measured) { m.cluster.VIPReady, m.cluster.Detail.V.VIPDownSince = no(), since(time.Second) }), StatusDegraded},
		{"silence from before the platform listened is its own", store.Cluster{Status: StatusActive, StatusSince: ago(0), Kubeconfig: []byte{1}},
			with(func(m *measured) {
				m.serversReporting, m.from, m.cluster.MeasuredAt = 0, noon.Add(-time.Minute), ago(time.Hour)
			}), StatusActive},
		{"and counts from there", store.Cluster{Status: StatusActive, StatusSince: ago(0), Kubeconfig: []byte{1}},
			with(func(m *measured) {
				m.serversReporting, m.from, m.cluster.MeasuredAt = 0, noon.Add(-4*time.Minute), ago(time.Hour)
			}), StatusDisconnected},
		{"a cluster that was lost is not back by that", store.Cluster{Status: StatusDisconnected, StatusSince: ago(time.Hour), Kubeconfig: []byte{1}},
			with(func(m *measured) {
				m.serversReporting, m.from, m.cluster.MeasuredAt = 0, noon.Add(-time.Minute), ago(time.Hour)
			}), StatusDisconnected},
		{"a bootstrap is not too long while nobody listened", store.Cluster{Status: StatusBootstrapping, StatusSince: ago(time.Hour)},
			measured{now: noon, from: noon.Add(-time.Minute)}, StatusBootstrapping},
		{"nor is an API down for that time", store.Cluster{Status: StatusDegraded, StatusSince: ago(time.Hour), Kubeconfig: []byte{1}},
			with(func(m *measured) {
				m.from, m.cluster.VIPReady, m.cluster.Detail.V.VIPDownSince = noon.Add(-time.Minute), no(), since(time.Hour)
			}), StatusDegraded},
		{"and back", store.Cluster{Status: StatusError, StatusSince: ago(time.Hour), Kubeconfig: []byte{1}}, healthy, StatusActive},
		{"a failed bootstrap has nothing to come back to", store.Cluster{Status: StatusError, StatusSince: ago(time.Hour)}, measured{now: noon}, StatusError},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := clusterStatus(tt.c, tt.m); got != tt.want {
				t.Errorf("status %s, want %s", got, tt.want)
			}
		})
	}
}

const serverKubeconfig = `apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: Q0E=
    server: https://127.0.0.1:6443
  name: default
contexts:
- context: {cluster: default, user: default}
  name: default
current-context: default
kind: Config
users:
- name: default
  user: {client-certificate-data: Y2VydA==, client-key-data: a2V5}
`

func TestKubeconfigIsRewrittenToTheClusterAndItsAddress(t *testing.T) {
	t.Parallel()
	got, ca, err := rewriteKubeconfig(serverKubeconfig, "prod", "https://[fd00::100]:6443")
	if err != nil {
		t.Fatal(err)
	}
	want := `apiVersion: v1
kind: Config
clusters:
    - name: prod
      cluster:
        server: https://[fd00::100]:6443
        certificate-authority-data: Q0E=
users:
    - name: prod
      user:
        client-certificate-data: Y2VydA==
        client-key-data: a2V5
contexts:
    - name: prod
      context:
        cluster: prod
        user: prod
current-context: prod
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kubeconfig (-want +got):\n%s", diff)
	}
	if ca != "CA" {
		t.Errorf("certificate authority %q, want CA", ca)
	}
}

func TestKubeconfigWithoutWhatVerifiesIsRefused(t *testing.T) {
	t.Parallel()
	for _, broken := range []string{"", "[]", "apiVersion: v1", strings.Replace(serverKubeconfig, "certificate-authority-data: Q0E=", "insecure-skip-tls-verify: true", 1),
		strings.Replace(serverKubeconfig, "client-key-data", "token", 1)} {
		if got, _, err := rewriteKubeconfig(broken, "prod", "https://[fd00::100]:6443"); err == nil {
			t.Errorf("kubeconfig %q was taken: %s", broken, got)
		}
	}
}

func FuzzRewriteKubeconfig(f *testing.F) {
	f.Add(serverKubeconfig)
	f.Fuzz(func(t *testing.T, given string) {
		got, ca, err := rewriteKubeconfig(given, "prod", "https://[fd00::100]:6443")
		if err == nil && (ca == "" || strings.Contains(got, "insecure-skip-tls-verify")) {
			t.Errorf("%q became an unverified kubeconfig: %q", given, got)
		}
	})
}

func TestSecureTokenBindsTheCA(t *testing.T) {
	t.Parallel()
	const want = "K104b650e5c4785025dee7bd65e3c5c527356717d7a1c0bfef5b4ada8ca1e9cbe17::node:secret" // SHA-256 of "CA"
	if got := secureToken("CA", "node", "secret"); got != want {
		t.Errorf("token %s, want %s", got, want)
	}
	if secureToken("other CA", "node", "secret") == want {
		t.Error("another CA has the same token")
	}
}

func TestNumberedStaysADNSLabel(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 62) + "b"
	for _, tt := range []struct {
		name string
		n    int
		want string
	}{{"prod", 1, "prod"}, {"prod", 2, "prod-2"}, {long, 12, strings.Repeat("a", 60) + "-12"}, {strings.Repeat("a", 60) + "---", 2, strings.Repeat("a", 60) + "-2"}} {
		if got := numbered(tt.name, tt.n); got != tt.want {
			t.Errorf("numbered(%q, %d) = %q, want %q", tt.name, tt.n, got, tt.want)
		}
	}
}
