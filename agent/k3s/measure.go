package k3s

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"sync"
	"time"

	"powernode/agent/service"
	"powernode/sdwan"
)

const (
	// quickEvery is how often this machine's own API is asked, and everything else until all is well.
	quickEvery = 2 * time.Second
	// steadyEvery is how often everything is asked once all is well.
	steadyEvery = 10 * time.Second
	// fewNodes is up to how many Nodes they are listed each time: a worker that joins is seen at once.
	fewNodes = 20
)

// measurer keeps connections between two measurements.
type measurer struct {
	s    *Subsystem
	kube *kube
	etcd *etcd
	full time.Time // of the last whole measurement
}

// Run measures K3s for as long as the agent lives.
func (s *Subsystem) Run(ctx context.Context) error {
	m := &measurer{s: s}
	defer m.close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.look:
		case <-timer.C:
		}
		s.keep(m.measure(ctx))
		timer.Reset(quickEvery)
	}
}

// keep publishes a measurement, and says so when there is news in it.
func (s *Subsystem) keep(r *sdwan.K3sReport) {
	if r == nil {
		return
	}
	s.mu.Lock()
	news := !equalReports(s.measured, r)
	s.measured = r
	s.mu.Unlock()
	if news {
		wake(s.changed)
	}
}

func equalReports(a, b *sdwan.K3sReport) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// Observe reports the last measurement and the findings of the last pass.
func (s *Subsystem) Observe(_ context.Context, report *sdwan.Report) error {
	report.Findings = append(report.Findings, s.findings.get()...)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.measured != nil {
		r := *s.measured
		report.K3s = &r
	}
	return nil
}

func (m *measurer) close() {
	if m.kube != nil {
		m.kube.close()
	}
	if m.etcd != nil {
		m.etcd.close()
	}
}

// measure answers nil while nothing is known: no document yet, or the context has ended.
func (m *measurer) measure(ctx context.Context) *sdwan.K3sReport {
	s := m.s
	s.mu.Lock()
	t, st, seen, last := s.want, s.have, s.seen, s.measured
	s.mu.Unlock()
	if !seen {
		return nil
	}
	r := &sdwan.K3sReport{Role: st.Role, ClusterID: st.ClusterID, TokenGeneration: st.TokenGeneration, UnitState: "absent"}
	if st.Role != "" {
		m.unit(ctx, st.Role, r)
	}
	switch {
	case !r.Installed:
	case st.Role == roleServer:
		m.server(ctx, t, r, last)
	default:
		m.worker(ctx, t.nodeName, r)
	}
	if ctx.Err() != nil {
		return nil
	}
	return r
}

func (m *measurer) unit(ctx context.Context, role string, r *sdwan.K3sReport) {
	st, err := m.s.o.Services.Status(ctx, unitOf(role))
	if err != nil {
		r.UnitState, r.Message = "", err.Error()
		return
	}
	r.UnitState = string(st.State)
	r.Installed = st.State != service.Absent
	r.Message = st.Message
}

// server asks the own API each time, and the rest less often once all is well.
func (m *measurer) server(ctx context.Context, t target, r, last *sdwan.K3sReport) {
	if !m.openKube(kubeconfigPath) {
		no := false
		r.APIReady = &no
		return
	}
	own := m.kube.ready(ctx, m.kube.server)
	r.APIReady = &own
	if last != nil && last.Role == r.Role && last.UnitState == r.UnitState && steady(last) && own && time.Since(m.full) < steadyEvery {
		carry(r, last)
		if len(last.Nodes) <= fewNodes {
			m.nodes(ctx, t.nodeName, r)
		}
		return
	}
	m.full = time.Now()
	var wg sync.WaitGroup
	wg.Go(func() {
		if t.endpoint != "" {
			vip := m.kube.ready(ctx, t.endpoint)
			r.VIPReady = &vip
		}
	})
	var nodes []node
	if own {
		nodes = m.nodes(ctx, t.nodeName, r)
	}
	wg.Wait()
	if m.openEtcd() {
		r.Etcd = m.etcd.report(ctx, m.s.root, m.kube.server, countEtcd(nodes))
	}
}

// nodes reports all Nodes; where they can't be read, what r has of them stays.
func (m *measurer) nodes(ctx context.Context, own string, r *sdwan.K3sReport) []node {
	nodes, err := m.kube.nodes(ctx)
	if err != nil {
		r.Message = err.Error()
		return nil
	}
	fillNodes(r, nodes, own)
	return nodes
}

// steady says that there is nothing that is about to change.
func steady(r *sdwan.K3sReport) bool {
	yes := func(b *bool) bool { return b != nil && *b }
	return r.UnitState == "running" && yes(r.APIReady) && yes(r.VIPReady) && yes(r.NodeReady) && r.Etcd != nil && r.Etcd.Healthy
}

// carry takes over what wasn't asked again.
func carry(r, last *sdwan.K3sReport) {
	r.VIPReady, r.NodeReady, r.Conditions, r.PodCIDRs = last.VIPReady, last.NodeReady, last.Conditions, last.PodCIDRs
	r.Etcd, r.Nodes, r.Version = last.Etcd, last.Nodes, last.Version
}

// fillNodes reports all Nodes, and the own one once more.
func fillNodes(r *sdwan.K3sReport, nodes []node, own string) {
	r.NodeReady, r.Conditions, r.PodCIDRs, r.Nodes = nil, nil, nil, []sdwan.K3sNodeReport{}
	for _, n := range nodes {
		r.Nodes = append(r.Nodes, n.report())
		if n.Metadata.Name == own {
			fillOwn(r, n)
		}
	}
}

func fillOwn(r *sdwan.K3sReport, n node) {
	ready := n.ready()
	r.NodeReady, r.Conditions, r.PodCIDRs, r.Version = &ready, n.conditions(), n.podCIDRs(), n.Status.NodeInfo.KubeletVersion
}

// countEtcd counts the Nodes that K3s marks as members: the fallback where etcd itself doesn't tell.
func countEtcd(nodes []node) int {
	n := 0
	for _, nd := range nodes {
		if nd.Metadata.Labels["node-role.kubernetes.io/etcd"] == "true" {
			n++
		}
	}
	return n
}

// worker reads its own Node as the kubelet does, through K3s' load balancer.
func (m *measurer) worker(ctx context.Context, name string, r *sdwan.K3sReport) {
	if !m.openKube(kubeletConfigPath) {
		return
	}
	n, err := m.kube.node(ctx, name)
	if err != nil {
		r.Message = err.Error()
		return
	}
	fillOwn(r, n)
}

// openKube takes the kubeconfig as it is now; false when there is none yet.
func (m *measurer) openKube(path string) bool {
	k, err := openKube(m.s.root, path)
	if err != nil {
		return false
	}
	if m.kube != nil && m.kube.hash == k.hash {
		return true
	}
	if m.kube != nil {
		m.kube.close()
	}
	m.kube = k
	return true
}

func (m *measurer) openEtcd() bool {
	e, err := openEtcd(m.s.root)
	if err != nil {
		return false
	}
	if m.etcd != nil && m.etcd.hash == e.hash {
		return true
	}
	if m.etcd != nil {
		m.etcd.close()
	}
	m.etcd = e
	return true
}

// exists says whether there is something of that name.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
