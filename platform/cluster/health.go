package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"powernode/platform/signal"
	"powernode/sdwan"
	"powernode/store"
)

// Thresholds of the states of clusters and members (contract 11.3, 11.4).
const (
	bootstrapLimit = 15 * time.Minute
	joinLimit      = 10 * time.Minute
	notReadyAfter  = 40 * time.Second
	silentAfter    = 3 * time.Minute
	apiDownAfter   = 5 * time.Minute
)

// Ingest takes what an agent measured of K3s. It writes telemetry, and rows only where a state changes.
func (s *Service) Ingest(ctx context.Context, tx *store.Tx, instance store.Instance, r sdwan.Report) error {
	member, err := store.ClusterNodeByInstance(ctx, &tx.View, instance.AccountID, instance.ID)
	if errors.Is(err, store.ErrNoRow) {
		return nil // that its host is clean is told by a phase of its own: a report may be older than what it is asked for
	}
	if err != nil {
		return err
	}
	c, err := store.ClusterByID(ctx, &tx.View, instance.AccountID, member.ClusterID)
	if err != nil {
		return err
	}
	k := r.K3s
	if k != nil && k.ClusterID != "" && k.ClusterID != string(c.ID) {
		k = nil // of the cluster that it was in before: nothing is said of this one
	}
	if err := s.keepOwn(ctx, tx, member, k); err != nil {
		return err
	}
	if member.Role == RoleServer && k != nil {
		if err := s.keepCluster(ctx, tx, instance, c, *k); err != nil {
			return err
		}
	}
	return s.evaluate(ctx, tx, c)
}

// keepOwn keeps what a member's agent measured of its own machine. A missing section is not measured: what was
// measured before ages.
func (s *Service) keepOwn(ctx context.Context, tx *store.Tx, member store.ClusterNode, k *sdwan.K3sReport) error {
	h, err := healthOf(ctx, &tx.View, member.ID)
	if err != nil {
		return err
	}
	h.ReportedAt = store.At(tx.Now())
	if k != nil {
		h.APIReady, h.EtcdHealthy = k.APIReady, nil
		if k.Etcd != nil {
			healthy := k.Etcd.Healthy
			h.EtcdHealthy, h.Detail.V.EtcdMember = &healthy, k.Etcd.Member
		}
		h.Detail.V.Message, h.Detail.V.UnitState = k.Message, k.UnitState
		if member.Role == RoleServer && k.NodeReady != nil {
			h.markReady(*k.NodeReady, tx.Now())
		}
	}
	return store.PutClusterNodeHealth(ctx, tx, h.ClusterNodeHealth)
}

// nodeHealth adds the rules of readiness to the row.
type nodeHealth struct{ store.ClusterNodeHealth }

func healthOf(ctx context.Context, v *store.View, id store.ClusterNodeID) (nodeHealth, error) {
	h, err := store.HealthOfClusterNode(ctx, v, id)
	if errors.Is(err, store.ErrNoRow) {
		return nodeHealth{store.ClusterNodeHealth{ClusterNodeID: id}}, nil
	}
	return nodeHealth{h}, err
}

// silent says that a member's agent was heard once, and not lately.
func (h *nodeHealth) silent(now time.Time) bool {
	return !h.ReportedAt.IsZero() && now.Sub(h.ReportedAt.Time) > silentAfter
}

func (h *nodeHealth) markReady(ready bool, now time.Time) {
	switch {
	case ready:
		h.NotReadySince = nil
	case h.NotReadySince == nil:
		since := store.At(now)
		h.NotReadySince = &since
	}
	h.NodeReady = &ready
}

// keepCluster keeps what a server's agent reads from the API: the Nodes, and whether the API answers at its address.
func (s *Service) keepCluster(ctx context.Context, tx *store.Tx, instance store.Instance, c store.Cluster, k sdwan.K3sReport) error {
	h := store.ClusterHealth{ClusterID: c.ID, MeasuredAt: store.At(tx.Now()), MeasuredBy: instance.ID, VIPReady: k.VIPReady}
	h.Detail.V.Nodes = map[string]bool{}
	if h.VIPReady == nil || !*h.VIPReady {
		before, err := store.HealthOfCluster(ctx, &tx.View, c.ID)
		if err != nil && !errors.Is(err, store.ErrNoRow) {
			return err
		}
		if h.Detail.V.VIPDownSince = before.Detail.V.VIPDownSince; h.Detail.V.VIPDownSince == nil {
			h.Detail.V.VIPDownSince = &h.MeasuredAt
		}
	}
	if k.Etcd != nil {
		members := k.Etcd.Members
		h.Detail.V.EtcdMembers = &members
	}
	members, err := store.ClusterNodes(ctx, &tx.View, c.AccountID, c.ID)
	if err != nil {
		return err
	}
	told := map[string]sdwan.K3sNodeReport{}
	for _, reported := range k.Nodes {
		h.Detail.V.Nodes[reported.Name] = reported.Ready
		told[reported.Name] = reported
	}
	for _, m := range members {
		reported, there := told[m.Name]
		if !there && (k.Nodes == nil || m.JoinedAt == nil) {
			continue // not measured, or not there yet
		}
		if err := keepNode(ctx, tx, m, reported); err != nil { // one whose Node was deleted is not ready
			return err
		}
	}
	return store.PutClusterHealth(ctx, tx, h)
}

func keepNode(ctx context.Context, tx *store.Tx, m store.ClusterNode, reported sdwan.K3sNodeReport) error {
	own, err := healthOf(ctx, &tx.View, m.ID)
	if err != nil {
		return err
	}
	if own.ReportedAt.IsZero() {
		own.ReportedAt = store.At(tx.Now())
	}
	own.markReady(reported.Ready, tx.Now())
	own.Detail.V.PodCIDRs = []string{}
	for _, p := range reported.PodCIDRs {
		own.Detail.V.PodCIDRs = append(own.Detail.V.PodCIDRs, p.String())
	}
	return store.PutClusterNodeHealth(ctx, tx, own.ClusterNodeHealth)
}

// Tick moves what time moves: joins and bootstraps that took too long, members whose agents are silent.
func (s *Service) Tick(ctx context.Context, tx *store.Tx, acct store.AccountID) error {
	all, err := store.Clusters(ctx, &tx.View, acct)
	if err != nil {
		return err
	}
	for _, c := range all {
		if err := s.evaluate(ctx, tx, c); err != nil {
			return err
		}
	}
	return s.tickCleanups(ctx, tx, acct)
}

// evaluate brings a cluster's and its members' statuses to what was measured.
func (s *Service) evaluate(ctx context.Context, tx *store.Tx, c store.Cluster) error {
	members, err := store.ClusterNodes(ctx, &tx.View, c.AccountID, c.ID)
	if err != nil {
		return err
	}
	m := measured{now: tx.Now(), from: s.listening.since(tx.Now())}
	for i := range members {
		h, err := healthOf(ctx, &tx.View, members[i].ID)
		if err != nil {
			return err
		}
		next := nodeStatus(members[i], h, m.now, m.from)
		if next != members[i].Status {
			if err := s.setNodeStatus(ctx, tx, c, &members[i], next); err != nil {
				return err
			}
		}
		m.add(members[i], h)
	}
	health, err := store.HealthOfCluster(ctx, &tx.View, c.ID)
	if err != nil && !errors.Is(err, store.ErrNoRow) {
		return err
	}
	m.cluster, m.clusterMeasured = health, err == nil
	next := clusterStatus(c, m)
	if next == c.Status {
		return nil
	}
	return s.changeStatus(ctx, tx, c, next, m)
}

// heard is how long something has been so while the platform listened, which it does from an instant on.
func heard(now, from time.Time, since store.Time) time.Duration {
	if since.Before(from) {
		return now.Sub(from)
	}
	return now.Sub(since.Time)
}

// nodeStatus is the table of a member's states. The platform has listened from an instant on: nothing gets worse by what
// nobody could tell it before.
func nodeStatus(n store.ClusterNode, h nodeHealth, now, from time.Time) string {
	silent := h.silent(now)
	ready := h.NodeReady != nil && *h.NodeReady
	switch n.Status {
	case NodeJoining:
		if n.JoinedAt != nil && ready {
			return NodeActive
		}
		if heard(now, from, n.StatusSince) > joinLimit {
			return NodeError
		}
	case NodeActive, NodeNotReady:
		if silent && heard(now, from, h.ReportedAt) > silentAfter {
			return NodeDisconnected
		}
		if h.NotReadySince != nil && heard(now, from, *h.NotReadySince) >= notReadyAfter {
			return NodeNotReady
		}
		if ready {
			return NodeActive
		}
	case NodeDisconnected, NodeError:
		if ready && !silent && n.JoinedAt != nil {
			return NodeActive
		}
	}
	return n.Status
}

// measured is what a cluster's status rests on.
type measured struct {
	now, from              time.Time // from: since when the platform has listened
	servers, serversActive int
	serversReporting       int
	agents, agentsActive   int
	etcdUnhealthy          bool
	firstReady             bool
	cluster                store.ClusterHealth
	clusterMeasured        bool
}

func (m *measured) add(n store.ClusterNode, h nodeHealth) {
	if n.Role == RoleAgent {
		m.agents++
		if n.Status == NodeActive {
			m.agentsActive++
		}
		return
	}
	m.servers++
	if n.Status == NodeActive {
		m.serversActive++
	}
	if n.JoinedAt != nil && n.Status == NodeActive {
		m.firstReady = true
	}
	if m.now.Sub(h.ReportedAt.Time) <= silentAfter {
		m.serversReporting++
	}
	if h.EtcdHealthy != nil && !*h.EtcdHealthy {
		m.etcdUnhealthy = true
	}
}

// fresh says whether a server's agent has told of the cluster lately.
func (m *measured) fresh() bool {
	return m.clusterMeasured && m.now.Sub(m.cluster.MeasuredAt.Time) <= silentAfter
}

func (m *measured) vipReady() bool {
	return m.fresh() && m.cluster.VIPReady != nil && *m.cluster.VIPReady
}

// reasons names what is not as it should be.
func (m *measured) reasons() []string {
	out := []string{}
	if m.serversReporting == 0 {
		out = append(out, "no server's agent has reported for 3 minutes")
	}
	if m.serversActive < m.servers {
		out = append(out, fmt.Sprintf("%d of %d servers ready", m.serversActive, m.servers))
	}
	if m.agentsActive < m.agents {
		out = append(out, fmt.Sprintf("%d of %d agents ready", m.agentsActive, m.agents))
	}
	if m.etcdUnhealthy {
		out = append(out, "an etcd member is unhealthy")
	}
	if !m.vipReady() {
		out = append(out, "the API does not answer at its virtual IP")
	}
	return out
}

// clusterStatus is the table of a cluster's states.
func clusterStatus(c store.Cluster, m measured) string {
	impaired := m.serversActive < m.servers || m.etcdUnhealthy || (m.agents > 0 && (m.agents-m.agentsActive)*3 >= m.agents)
	switch c.Status {
	case StatusBootstrapping:
		if m.firstReady && m.vipReady() && c.Kubeconfig != nil {
			return StatusActive
		}
		if heard(m.now, m.from, c.StatusSince) > bootstrapLimit {
			return StatusError
		}
	case StatusActive, StatusDegraded:
		if m.clusterMeasured && !m.fresh() && heard(m.now, m.from, m.cluster.MeasuredAt) <= silentAfter {
			return c.Status // the platform has just begun to listen: nobody could have told it
		}
		if m.serversReporting == 0 {
			return StatusDisconnected
		}
		if down := m.cluster.Detail.V.VIPDownSince; m.clusterMeasured && down != nil && heard(m.now, m.from, *down) > apiDownAfter {
			return StatusError
		}
		if impaired || !m.vipReady() {
			return StatusDegraded
		}
		return StatusActive
	case StatusDisconnected, StatusError:
		if c.Kubeconfig == nil || m.serversReporting == 0 || !m.vipReady() {
			return c.Status
		}
		if impaired {
			return StatusDegraded
		}
		return StatusActive
	}
	return c.Status
}

func (s *Service) setNodeStatus(ctx context.Context, tx *store.Tx, c store.Cluster, n *store.ClusterNode, next string) error {
	old := n.Status
	n.Status, n.StatusSince = next, store.At(tx.Now())
	if err := store.UpdateClusterNode(ctx, tx, *n); err != nil {
		return err
	}
	_, err := tx.Audit(ctx, store.AuditEntry{AccountID: n.AccountID, Action: "updated", ResourceType: "Devops::KubernetesNode", ResourceID: string(n.ID),
		Old: store.Object{"status": old}, New: store.Object{"status": next}})
	if err != nil {
		return err
	}
	about := signal.Subject{ClusterID: c.ID, InstanceID: n.InstanceID, NodeID: n.NodeID, NetworkID: c.NetworkID}
	switch {
	case next == NodeActive && old == NodeJoining:
		return signal.Emit(ctx, tx, n.AccountID, signal.Event{Kind: "system.k3s_node_joined", Subject: about,
			Payload: store.Object{"cluster_id": c.ID, "node": n.Name, "role": n.Role, "seconds": int64(tx.Now().Sub(n.CreatedAt.Time).Seconds())}})
	case next == NodeActive:
		return signal.Close(ctx, tx, n.AccountID, string(n.ID), "system.k3s_node_not_ready", about, store.Object{"cluster_id": c.ID, "node": n.Name})
	default:
		return signal.Open(ctx, tx, n.AccountID, string(n.ID), signal.Event{Kind: "system.k3s_node_not_ready", Subject: about,
			Payload: store.Object{"cluster_id": c.ID, "node": n.Name, "conditions": []string{next}}})
	}
}

// setStatus writes a cluster's status.
func (s *Service) setStatus(ctx context.Context, tx *store.Tx, c *store.Cluster, next string) error {
	old := c.Status
	c.Status, c.StatusSince = next, store.At(tx.Now())
	if err := store.UpdateCluster(ctx, tx, *c); err != nil {
		return err
	}
	if err := s.audit(ctx, tx, *c, store.Object{"status": old}, store.Object{"status": next}); err != nil {
		return err
	}
	tx.TouchNetwork(c.NetworkID)
	return touchJoiners(ctx, tx, c.AccountID)
}

// changeStatus writes a measured status and tells it.
func (s *Service) changeStatus(ctx context.Context, tx *store.Tx, c store.Cluster, next string, m measured) error {
	old := c.Status
	if err := s.setStatus(ctx, tx, &c, next); err != nil {
		return err
	}
	about := signal.Subject{ClusterID: c.ID, NetworkID: c.NetworkID}
	switch next {
	case StatusActive:
		if old != StatusBootstrapping {
			return s.recovered(ctx, tx, c)
		}
		address, err := s.Endpoint(ctx, &tx.View, c)
		if err != nil {
			return err
		}
		return signal.Emit(ctx, tx, c.AccountID, signal.Event{Kind: "system.k3s_cluster_bootstrapped", Subject: about,
			Payload: store.Object{"api_endpoint": address, "k8s_version": c.K8sVersion, "seconds": int64(tx.Now().Sub(c.CreatedAt.Time).Seconds())}})
	case StatusDisconnected:
		payload := store.Object{"last_measured_at": nil}
		if m.clusterMeasured {
			payload["last_measured_at"] = m.cluster.MeasuredAt
		}
		return signal.Open(ctx, tx, c.AccountID, string(c.ID), signal.Event{Kind: "system.k3s_cluster_disconnected", Subject: about, Payload: payload})
	case StatusDegraded:
		return signal.Open(ctx, tx, c.AccountID, string(c.ID), signal.Event{Kind: "system.k3s_cluster_degraded", Subject: about,
			Payload: store.Object{"reasons": m.reasons(), "evidence": m.evidence()}})
	}
	if old == StatusBootstrapping {
		return signal.Emit(ctx, tx, c.AccountID, signal.Event{Kind: "system.k3s_bootstrap_failed", Subject: about,
			Payload: store.Object{"step": "ready", "evidence": m.reasons()}})
	}
	return signal.Open(ctx, tx, c.AccountID, string(c.ID), signal.Event{Kind: "system.k3s_cluster_error", Subject: about,
		Payload: store.Object{"reasons": m.reasons(), "evidence": m.evidence()}})
}

func (m *measured) evidence() store.Object {
	return store.Object{"servers": m.servers, "servers_active": m.serversActive, "agents": m.agents, "agents_active": m.agentsActive}
}

// recovered closes whichever of the health conditions is open; they share a fingerprint.
func (s *Service) recovered(ctx context.Context, tx *store.Tx, c store.Cluster) error {
	return signal.Close(ctx, tx, c.AccountID, string(c.ID), "system.k3s_cluster_degraded", signal.Subject{ClusterID: c.ID, NetworkID: c.NetworkID}, nil)
}

// NotMeasured is the verdict where nobody measured, or nobody lately. It never counts as healthy.
const NotMeasured = "not_measured"

// Health is a cluster's measured health, for its full object.
type Health struct {
	Verdict string     `json:"verdict"` // healthy, unhealthy, not_measured
	Since   store.Time `json:"since"`
	Reasons []string   `json:"reasons"`
}

// HealthOf says how a cluster is. Older than three minutes is not measured.
func (s *Service) HealthOf(ctx context.Context, v *store.View, c store.Cluster) (Health, *store.ClusterHealth, error) {
	h := Health{Verdict: NotMeasured, Since: c.StatusSince, Reasons: []string{}}
	row, err := store.HealthOfCluster(ctx, v, c.ID)
	if errors.Is(err, store.ErrNoRow) {
		return h, nil, nil
	}
	if err != nil {
		return h, nil, err
	}
	if v.Now().Sub(row.MeasuredAt.Time) > silentAfter {
		h.Reasons = append(h.Reasons, "last measured at "+row.MeasuredAt.String())
		return h, &row, nil
	}
	m := measured{now: v.Now(), cluster: row, clusterMeasured: true}
	members, err := store.ClusterNodes(ctx, v, c.AccountID, c.ID)
	if err != nil {
		return h, nil, err
	}
	for _, n := range members {
		own, err := healthOf(ctx, v, n.ID)
		if err != nil {
			return h, nil, err
		}
		m.add(n, own)
	}
	h.Reasons = m.reasons()
	h.Verdict = "unhealthy"
	if c.Status == StatusActive && len(h.Reasons) == 0 {
		h.Verdict = "healthy"
	}
	return h, &row, nil
}
