package store

import (
	"context"
	"fmt"
)

// Cluster is a Kubernetes cluster. Its row exists before K3s is installed anywhere.
type Cluster struct {
	ID                    ClusterID
	AccountID             AccountID
	Name                  string
	Slug                  string
	NetworkID             NetworkID
	Description           string
	Flavor                string
	Environment           string
	Status                string
	StatusSince           Time
	K8sVersion            string
	VersionID             ModuleVersionID
	CNIPlugin             string
	FlannelBackend        string
	PodCIDR               Prefix
	ServiceCIDR           Prefix
	Datastore             string
	APIVIPID              VirtualIPID
	BootstrapInstanceID   InstanceID // the first server; "" while there is none
	Kubeconfig            []byte     // sealed; nil: not reported yet
	CAPEM                 string
	ServerToken           []byte // sealed
	AgentToken            []byte // sealed
	ServerTokenGeneration int64
	AgentTokenGeneration  int64
	CreatedAt             Time
	UpdatedAt             Time
	Revision              int64
}

const clusterColumns = `id, account_id, name, slug, network_id, description, flavor, environment, status, status_since, k8s_version,
	version_id, cni_plugin, flannel_backend, pod_cidr, service_cidr, datastore, api_vip_id, coalesce(bootstrap_instance_id, ''),
	kubeconfig, ca_pem, server_token, agent_token, server_token_generation, agent_token_generation, created_at, updated_at, revision`

func scanCluster(v *View, s scanner) (Cluster, error) {
	var c Cluster
	err := s.Scan(&c.ID, &c.AccountID, &c.Name, &c.Slug, &c.NetworkID, &c.Description, &c.Flavor, &c.Environment, &c.Status,
		&c.StatusSince, &c.K8sVersion, &c.VersionID, &c.CNIPlugin, &c.FlannelBackend, &c.PodCIDR, &c.ServiceCIDR, &c.Datastore,
		&c.APIVIPID, &c.BootstrapInstanceID, &c.Kubeconfig, &c.CAPEM, &c.ServerToken, &c.AgentToken, &c.ServerTokenGeneration,
		&c.AgentTokenGeneration, &c.CreatedAt, &c.UpdatedAt, &c.Revision)
	if err != nil {
		return c, fmt.Errorf("read cluster: %w", err)
	}
	v.noteRow("clusters", string(c.ID), c.Revision)
	return c, nil
}

// Clusters lists an account's clusters by name.
func Clusters(ctx context.Context, v *View, acct AccountID) ([]Cluster, error) {
	return collect(v, ctx, scanCluster, `SELECT `+clusterColumns+` FROM clusters WHERE account_id = ? ORDER BY name`, acct)
}

// ClustersByNetwork lists the clusters that live in a network.
func ClustersByNetwork(ctx context.Context, v *View, acct AccountID, network NetworkID) ([]Cluster, error) {
	return collect(v, ctx, scanCluster, `SELECT `+clusterColumns+` FROM clusters WHERE account_id = ? AND network_id = ? ORDER BY name`, acct, network)
}

// ClusterByID finds a cluster.
func ClusterByID(ctx context.Context, v *View, acct AccountID, id ClusterID) (Cluster, error) {
	return scanCluster(v, v.queryRow(ctx, `SELECT `+clusterColumns+` FROM clusters WHERE account_id = ? AND id = ?`, acct, id))
}

// ClusterByRef finds a cluster by id, slug or name, in that order.
func ClusterByRef(ctx context.Context, v *View, acct AccountID, ref string) (Cluster, error) {
	return scanCluster(v, v.queryRow(ctx, `SELECT `+clusterColumns+` FROM clusters WHERE account_id = ?1 AND (id = ?2 OR slug = ?2 OR name = ?2)
		ORDER BY CASE ?2 WHEN id THEN 0 WHEN slug THEN 1 ELSE 2 END LIMIT 1`, acct, ref))
}

// ClusterSlugTaken says whether a slug is in use in the installation.
func ClusterSlugTaken(ctx context.Context, v *View, slug string) (bool, error) {
	var taken bool
	err := v.queryRow(ctx, `SELECT EXISTS (SELECT 1 FROM clusters WHERE slug = ?)`, slug).Scan(&taken)
	return taken, err
}

// InsertCluster declares a cluster.
func InsertCluster(ctx context.Context, tx *Tx, c Cluster) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	now := At(tx.now)
	return tx.exec(ctx, `INSERT INTO clusters (id, account_id, name, slug, network_id, description, flavor, environment, status,
		status_since, k8s_version, version_id, cni_plugin, flannel_backend, pod_cidr, service_cidr, datastore, api_vip_id,
		bootstrap_instance_id, kubeconfig, ca_pem, server_token, agent_token, server_token_generation, agent_token_generation,
		created_at, updated_at, revision) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`,
		c.ID, c.AccountID, c.Name, c.Slug, c.NetworkID, c.Description, c.Flavor, c.Environment, c.Status, now, c.K8sVersion,
		c.VersionID, c.CNIPlugin, c.FlannelBackend, c.PodCIDR, c.ServiceCIDR, c.Datastore, c.APIVIPID, nullable(c.BootstrapInstanceID),
		c.Kubeconfig, c.CAPEM, c.ServerToken, c.AgentToken, c.ServerTokenGeneration, c.AgentTokenGeneration, now, now, revision)
}

// UpdateCluster writes what has changed of a cluster.
func UpdateCluster(ctx context.Context, tx *Tx, c Cluster) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `UPDATE clusters SET name = ?, description = ?, environment = ?, status = ?, status_since = ?, k8s_version = ?,
		version_id = ?, cni_plugin = ?, bootstrap_instance_id = ?, kubeconfig = ?, ca_pem = ?, updated_at = ?, revision = ?
		WHERE account_id = ? AND id = ?`,
		c.Name, c.Description, c.Environment, c.Status, c.StatusSince, c.K8sVersion, c.VersionID, c.CNIPlugin,
		nullable(c.BootstrapInstanceID), c.Kubeconfig, c.CAPEM, At(tx.now), revision, c.AccountID, c.ID)
}

// DeleteCluster ends a cluster's row; its members' rows are gone by then.
func DeleteCluster(ctx context.Context, tx *Tx, acct AccountID, id ClusterID) error {
	if _, err := tx.Revision(ctx); err != nil {
		return err
	}
	return tx.exec(ctx, `DELETE FROM clusters WHERE account_id = ? AND id = ?`, acct, id)
}

// ClusterNode is a member of a cluster.
type ClusterNode struct {
	ID          ClusterNodeID
	AccountID   AccountID
	ClusterID   ClusterID
	InstanceID  InstanceID
	NodeID      NodeID
	Name        string
	Role        string // server, agent
	Status      string // joining, active, not_ready, disconnected, error, removing
	StatusSince Time
	K8sVersion  string
	Cordon      JSON[*Cordon]
	JoinedAt    *Time
	CreatedAt   Time
	UpdatedAt   Time
	Revision    int64
}

// Cordon says who keeps new work away from a node or instance, and why.
type Cordon struct {
	Owner  string `json:"owner"`
	Reason string `json:"reason"`
	Since  Time   `json:"since"`
}

const clusterNodeColumns = `id, account_id, cluster_id, instance_id, node_id, name, role, status, status_since, k8s_version, cordon,
	joined_at, created_at, updated_at, revision`

func scanClusterNode(v *View, s scanner) (ClusterNode, error) {
	var n ClusterNode
	err := s.Scan(&n.ID, &n.AccountID, &n.ClusterID, &n.InstanceID, &n.NodeID, &n.Name, &n.Role, &n.Status, &n.StatusSince,
		&n.K8sVersion, &n.Cordon, &n.JoinedAt, &n.CreatedAt, &n.UpdatedAt, &n.Revision)
	if err != nil {
		return n, fmt.Errorf("read cluster node: %w", err)
	}
	v.noteRow("cluster_nodes", string(n.ID), n.Revision)
	return n, nil
}

// ClusterNodes lists a cluster's members: servers first, then by name.
func ClusterNodes(ctx context.Context, v *View, acct AccountID, cluster ClusterID) ([]ClusterNode, error) {
	return collect(v, ctx, scanClusterNode, `SELECT `+clusterNodeColumns+` FROM cluster_nodes WHERE account_id = ? AND cluster_id = ?
		ORDER BY role DESC, name`, acct, cluster)
}

// ClusterNodeByInstance finds the membership of an instance, or ErrNoRow.
func ClusterNodeByInstance(ctx context.Context, v *View, acct AccountID, instance InstanceID) (ClusterNode, error) {
	return scanClusterNode(v, v.queryRow(ctx, `SELECT `+clusterNodeColumns+` FROM cluster_nodes WHERE account_id = ? AND instance_id = ?`, acct, instance))
}

// InsertClusterNode makes a membership.
func InsertClusterNode(ctx context.Context, tx *Tx, n ClusterNode) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	now := At(tx.now)
	return tx.exec(ctx, `INSERT INTO cluster_nodes (`+clusterNodeColumns+`) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`,
		n.ID, n.AccountID, n.ClusterID, n.InstanceID, n.NodeID, n.Name, n.Role, n.Status, now, n.K8sVersion, n.Cordon, n.JoinedAt, now, now, revision)
}

// UpdateClusterNode writes what has changed of a membership.
func UpdateClusterNode(ctx context.Context, tx *Tx, n ClusterNode) error {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `UPDATE cluster_nodes SET status = ?, status_since = ?, k8s_version = ?, cordon = ?, joined_at = ?, updated_at = ?,
		revision = ? WHERE account_id = ? AND id = ?`,
		n.Status, n.StatusSince, n.K8sVersion, n.Cordon, n.JoinedAt, At(tx.now), revision, n.AccountID, n.ID)
}

// DeleteClusterNode ends a membership.
func DeleteClusterNode(ctx context.Context, tx *Tx, acct AccountID, id ClusterNodeID) error {
	if _, err := tx.Revision(ctx); err != nil {
		return err
	}
	return tx.exec(ctx, `DELETE FROM cluster_nodes WHERE account_id = ? AND id = ?`, acct, id)
}

// ClusterHealth is what a server's agent measured last of its cluster. Telemetry: it raises no revision.
type ClusterHealth struct {
	ClusterID  ClusterID
	MeasuredAt Time
	MeasuredBy InstanceID
	VIPReady   *bool // nil: not measured
	Detail     JSON[ClusterDetail]
}

// ClusterDetail is the rest of a measurement.
type ClusterDetail struct {
	Nodes       map[string]bool `json:"nodes"` // Node name → Ready, as the API tells
	EtcdMembers *int            `json:"etcd_members"`
	// VIPDownSince is when the API stopped answering at its virtual IP; nil while it answers.
	VIPDownSince *Time `json:"vip_down_since"`
}

// HealthOfCluster finds the last measurement, or ErrNoRow.
func HealthOfCluster(ctx context.Context, v *View, id ClusterID) (ClusterHealth, error) {
	h := ClusterHealth{ClusterID: id}
	err := v.queryRow(ctx, `SELECT measured_at, measured_by, vip_ready, detail FROM cluster_health WHERE cluster_id = ?`, id).
		Scan(&h.MeasuredAt, &h.MeasuredBy, &h.VIPReady, &h.Detail)
	return h, err
}

// PutClusterHealth keeps a measurement.
func PutClusterHealth(ctx context.Context, tx *Tx, h ClusterHealth) error {
	return tx.exec(ctx, `INSERT INTO cluster_health (cluster_id, measured_at, measured_by, vip_ready, detail) VALUES (?,?,?,?,?)
		ON CONFLICT (cluster_id) DO UPDATE SET measured_at = excluded.measured_at, measured_by = excluded.measured_by,
		vip_ready = excluded.vip_ready, detail = excluded.detail`, h.ClusterID, h.MeasuredAt, h.MeasuredBy, h.VIPReady, h.Detail)
}

// ClusterNodeHealth is what a member's agent, and for readiness a server's, measured last. Nil is not measured.
type ClusterNodeHealth struct {
	ClusterNodeID ClusterNodeID
	ReportedAt    Time
	NodeReady     *bool
	APIReady      *bool
	EtcdHealthy   *bool
	NotReadySince *Time
	Detail        JSON[NodeDetail]
}

// NodeDetail is the rest of a member's measurement.
type NodeDetail struct {
	EtcdMember string   `json:"etcd_member"`
	PodCIDRs   []string `json:"pod_cidrs"`
	Message    string   `json:"message"`
	UnitState  string   `json:"unit_state"`
}

// HealthOfClusterNode finds the last measurement, or ErrNoRow.
func HealthOfClusterNode(ctx context.Context, v *View, id ClusterNodeID) (ClusterNodeHealth, error) {
	h := ClusterNodeHealth{ClusterNodeID: id}
	err := v.queryRow(ctx, `SELECT reported_at, node_ready, api_ready, etcd_healthy, not_ready_since, detail FROM cluster_node_health
		WHERE cluster_node_id = ?`, id).Scan(&h.ReportedAt, &h.NodeReady, &h.APIReady, &h.EtcdHealthy, &h.NotReadySince, &h.Detail)
	return h, err
}

// PutClusterNodeHealth keeps a measurement.
func PutClusterNodeHealth(ctx context.Context, tx *Tx, h ClusterNodeHealth) error {
	return tx.exec(ctx, `INSERT INTO cluster_node_health (cluster_node_id, reported_at, node_ready, api_ready, etcd_healthy, not_ready_since, detail)
		VALUES (?,?,?,?,?,?,?) ON CONFLICT (cluster_node_id) DO UPDATE SET reported_at = excluded.reported_at, node_ready = excluded.node_ready,
		api_ready = excluded.api_ready, etcd_healthy = excluded.etcd_healthy, not_ready_since = excluded.not_ready_since, detail = excluded.detail`,
		h.ClusterNodeID, h.ReportedAt, h.NodeReady, h.APIReady, h.EtcdHealthy, h.NotReadySince, h.Detail)
}
