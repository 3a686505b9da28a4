package tools

import (
	"context"
	"errors"
	"net/netip"

	"powernode/platform/cluster"
	"powernode/schema"
	"powernode/store"
)

func kubernetesVerbs() []*Definition {
	return []*Definition{listClusters, getCluster, listClusterNodes, getKubeconfig, decommissionCluster, createCluster, listDecommissioned}
}

type clusterRow struct {
	ID           store.ClusterID `json:"id"`
	Name         string          `json:"name"`
	Slug         string          `json:"slug"`
	APIEndpoint  string          `json:"api_endpoint"`
	Flavor       string          `json:"flavor"`
	Environment  string          `json:"environment"`
	Status       string          `json:"status"`
	K8sVersion   string          `json:"k8s_version"`
	NodeCount    int             `json:"node_count"`
	PodCount     *int            `json:"pod_count"` // not measured
	NetworkID    store.NetworkID `json:"network_id"`
	HasKube      bool            `json:"has_kubeconfig"`
	LastSyncedAt *store.Time     `json:"last_synced_at"`
}

type etcdState struct {
	Members *int `json:"members"`
	Healthy *int `json:"healthy"`
	Quorum  *int `json:"quorum"`
}

type tokenGenerations struct {
	Agent  int64 `json:"agent"`
	Server int64 `json:"server"`
}

type clusterFull struct {
	clusterRow
	Description             string                `json:"description"`
	CNIPlugin               string                `json:"cni_plugin"`
	PodCIDR                 string                `json:"pod_cidr"`
	ServiceCIDR             string                `json:"service_cidr"`
	Datastore               string                `json:"datastore"`
	APIVIPID                store.VirtualIPID     `json:"api_vip_id"`
	BootstrapNodeInstanceID *store.InstanceID     `json:"bootstrap_node_instance_id"`
	ServerCount             int                   `json:"server_count"`
	AgentCount              int                   `json:"agent_count"`
	Etcd                    etcdState             `json:"etcd"`
	Health                  cluster.Health        `json:"health"`
	VersionID               store.ModuleVersionID `json:"version_id"`
	ActiveUpgradeID         *string               `json:"active_upgrade_id"`
	TokenGeneration         tokenGenerations      `json:"token_generation"`
	LastSnapshotAt          *store.Time           `json:"last_snapshot_at"`
	CreatedAt               store.Time            `json:"created_at"`
	UpdatedAt               store.Time            `json:"updated_at"`
}

type clusterNodeObject struct {
	ID                  store.ClusterNodeID `json:"id"`
	KubernetesClusterID store.ClusterID     `json:"kubernetes_cluster_id"`
	NodeInstanceID      store.InstanceID    `json:"node_instance_id"`
	NodeID              store.NodeID        `json:"node_id"`
	Name                string              `json:"name"`
	Role                string              `json:"role"`
	Status              string              `json:"status"`
	K8sVersion          *string             `json:"k8s_version"`
	Cordon              *store.Cordon       `json:"cordon"`
	APIReady            *bool               `json:"api_ready"`
	EtcdMember          *string             `json:"etcd_member"`
	PodCIDR             *string             `json:"pod_cidr"`
	LastHeartbeatAt     *store.Time         `json:"last_heartbeat_at"`
}

type tombstoneObject struct {
	ClusterID        store.ClusterID    `json:"cluster_id"`
	Name             string             `json:"name"`
	Slug             string             `json:"slug"`
	Environment      string             `json:"environment"`
	K8sVersion       string             `json:"k8s_version"`
	NodeCount        int64              `json:"node_count"`
	DecommissionedAt store.Time         `json:"decommissioned_at"`
	DecommissionedBy string             `json:"decommissioned_by"`
	OperationID      *store.OperationID `json:"operation_id"`
	Cleanup          cluster.Cleanup    `json:"cleanup"`
	AuditEntryID     store.AuditEntryID `json:"audit_entry_id"`
}

func clusterRowOf(ctx context.Context, p *Platform, v *store.View, c store.Cluster) (clusterRow, error) {
	address, err := p.Cluster.Endpoint(ctx, v, c)
	if err != nil {
		return clusterRow{}, err
	}
	members, err := store.ClusterNodes(ctx, v, c.AccountID, c.ID)
	if err != nil {
		return clusterRow{}, err
	}
	row := clusterRow{ID: c.ID, Name: c.Name, Slug: c.Slug, APIEndpoint: address, Flavor: c.Flavor, Environment: c.Environment, Status: c.Status,
		K8sVersion: c.K8sVersion, NodeCount: len(members), NetworkID: c.NetworkID, HasKube: c.Kubeconfig != nil}
	health, err := store.HealthOfCluster(ctx, v, c.ID)
	if err == nil {
		row.LastSyncedAt = &health.MeasuredAt
	} else if !errors.Is(err, store.ErrNoRow) {
		return row, err
	}
	return row, nil
}

func clusterFullOf(ctx context.Context, p *Platform, v *store.View, c store.Cluster) (clusterFull, error) {
	row, err := clusterRowOf(ctx, p, v, c)
	if err != nil {
		return clusterFull{}, err
	}
	full := clusterFull{clusterRow: row, Description: c.Description, CNIPlugin: c.CNIPlugin, PodCIDR: c.PodCIDR.String(),
		ServiceCIDR: c.ServiceCIDR.String(), Datastore: c.Datastore, APIVIPID: c.APIVIPID, VersionID: c.VersionID,
		TokenGeneration: tokenGenerations{Agent: c.AgentTokenGeneration, Server: c.ServerTokenGeneration}, CreatedAt: c.CreatedAt, UpdatedAt: c.UpdatedAt}
	if c.BootstrapInstanceID != "" {
		full.BootstrapNodeInstanceID = &c.BootstrapInstanceID
	}
	health, measured, err := p.Cluster.HealthOf(ctx, v, c)
	if err != nil {
		return full, err
	}
	full.Health = health
	if health.Verdict != cluster.NotMeasured && measured.Detail.V.EtcdMembers != nil {
		members := *measured.Detail.V.EtcdMembers
		quorum := members/2 + 1
		full.Etcd.Members, full.Etcd.Quorum = &members, &quorum
	}
	return full, full.count(ctx, v, c)
}

func (f *clusterFull) count(ctx context.Context, v *store.View, c store.Cluster) error {
	members, err := store.ClusterNodes(ctx, v, c.AccountID, c.ID)
	if err != nil {
		return err
	}
	for _, n := range members {
		if n.Role == cluster.RoleAgent {
			f.AgentCount++
			continue
		}
		f.ServerCount++
		if n.Status == cluster.NodeDisconnected {
			continue // what was measured before says nothing now
		}
		h, err := store.HealthOfClusterNode(ctx, v, n.ID)
		if errors.Is(err, store.ErrNoRow) || (err == nil && h.EtcdHealthy == nil) {
			continue
		}
		if err != nil {
			return err
		}
		if f.Etcd.Healthy == nil {
			f.Etcd.Healthy = new(int)
		}
		if *h.EtcdHealthy {
			*f.Etcd.Healthy++
		}
	}
	return nil
}

type noArgs struct{}

type listClustersResult struct {
	Clusters []clusterRow `json:"clusters"`
	Count    int          `json:"count"`
	HasMore  bool         `json:"has_more"`
}

var listClusters = define("kubernetes_list_clusters", handler[noArgs, listClustersResult]{
	read: func(ctx context.Context, p *Platform, v *store.View, c Caller, _ noArgs) (listClustersResult, error) {
		out := listClustersResult{Clusters: []clusterRow{}}
		all, err := store.Clusters(ctx, v, c.AccountID)
		if err != nil {
			return out, err
		}
		for _, each := range all {
			row, err := clusterRowOf(ctx, p, v, each)
			if err != nil {
				return out, err
			}
			out.Clusters = append(out.Clusters, row)
		}
		out.Count = len(out.Clusters)
		return out, nil
	},
})

type clusterRefArgs struct {
	ClusterID string `json:"cluster_id"` // id, slug or name
}

type getClusterResult struct {
	Cluster clusterFull `json:"cluster"`
}

var getCluster = define("kubernetes_get_cluster", handler[clusterRefArgs, getClusterResult]{
	read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a clusterRefArgs) (getClusterResult, error) {
		found, err := p.Cluster.Find(ctx, v, c.AccountID, a.ClusterID)
		if err != nil {
			return getClusterResult{}, err
		}
		full, err := clusterFullOf(ctx, p, v, found)
		return getClusterResult{Cluster: full}, err
	},
})

type listClusterNodesResult struct {
	ClusterID store.ClusterID     `json:"cluster_id"`
	Nodes     []clusterNodeObject `json:"nodes"`
	Count     int                 `json:"count"`
	HasMore   bool                `json:"has_more"`
	Waiting   []cluster.Waiting   `json:"waiting"`
}

var listClusterNodes = define("kubernetes_list_nodes", handler[clusterRefArgs, listClusterNodesResult]{
	read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a clusterRefArgs) (listClusterNodesResult, error) {
		found, err := p.Cluster.Find(ctx, v, c.AccountID, a.ClusterID)
		if err != nil {
			return listClusterNodesResult{}, err
		}
		out := listClusterNodesResult{ClusterID: found.ID, Nodes: []clusterNodeObject{}}
		members, err := store.ClusterNodes(ctx, v, c.AccountID, found.ID)
		if err != nil {
			return out, err
		}
		for _, n := range members {
			object, err := clusterNodeOf(ctx, v, n)
			if err != nil {
				return out, err
			}
			out.Nodes = append(out.Nodes, object)
		}
		out.Count = len(out.Nodes)
		out.Waiting, err = p.Cluster.WaitingFor(ctx, v, found)
		return out, err
	},
})

func clusterNodeOf(ctx context.Context, v *store.View, n store.ClusterNode) (clusterNodeObject, error) {
	out := clusterNodeObject{ID: n.ID, KubernetesClusterID: n.ClusterID, NodeInstanceID: n.InstanceID, NodeID: n.NodeID, Name: n.Name,
		Role: n.Role, Status: n.Status, Cordon: n.Cordon.V}
	if n.K8sVersion != "" {
		out.K8sVersion = &n.K8sVersion
	}
	h, err := store.HealthOfClusterNode(ctx, v, n.ID)
	if errors.Is(err, store.ErrNoRow) {
		return out, nil
	}
	if err != nil {
		return out, err
	}
	out.LastHeartbeatAt = &h.ReportedAt
	if n.Status != cluster.NodeDisconnected { // else what was measured before says nothing now
		out.APIReady = h.APIReady
	}
	if h.Detail.V.EtcdMember != "" {
		out.EtcdMember = &h.Detail.V.EtcdMember
	}
	if len(h.Detail.V.PodCIDRs) > 0 {
		out.PodCIDR = &h.Detail.V.PodCIDRs[0]
	}
	return out, nil
}

type getKubeconfigResult struct {
	ClusterID   store.ClusterID `json:"cluster_id"`
	Kubeconfig  string          `json:"kubeconfig"`
	APIEndpoint string          `json:"api_endpoint"`
}

// A credential is handed out by a writer: its audit row is written first, and its category can park it.
var getKubeconfig = define("kubernetes_get_kubeconfig", handler[clusterRefArgs, getKubeconfigResult]{
	check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a clusterRefArgs) error {
		found, err := p.Cluster.Find(ctx, v, c.AccountID, a.ClusterID)
		if err != nil {
			return err
		}
		return p.Cluster.CheckKubeconfig(found)
	},
	run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a clusterRefArgs) (getKubeconfigResult, error) {
		found, err := p.Cluster.Find(ctx, &tx.View, c.AccountID, a.ClusterID)
		if err != nil {
			return getKubeconfigResult{}, err
		}
		text, address, err := p.Cluster.Kubeconfig(ctx, tx, found)
		return getKubeconfigResult{ClusterID: found.ID, Kubeconfig: text, APIEndpoint: address}, err
	},
	credential: func(r getKubeconfigResult) (store.AuditEntry, bool) {
		return store.AuditEntry{Action: "kubernetes.kubeconfig_read", ResourceType: "Devops::KubernetesCluster", ResourceID: string(r.ClusterID)}, true
	},
})

type decommissionResult struct {
	Decommissioned bool            `json:"decommissioned"`
	ClusterID      store.ClusterID `json:"cluster_id"`
	FreedNodeCount int64           `json:"freed_node_count"`
	Tombstone      tombstoneObject `json:"tombstone"`
	Written
}

var decommissionCluster = define("kubernetes_decommission_cluster", handler[clusterRefArgs, decommissionResult]{
	check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a clusterRefArgs) error {
		_, err := p.Cluster.Find(ctx, v, c.AccountID, a.ClusterID)
		return err
	},
	run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a clusterRefArgs) (decommissionResult, error) {
		found, err := p.Cluster.Find(ctx, &tx.View, c.AccountID, a.ClusterID)
		if err != nil {
			return decommissionResult{}, err
		}
		t, warnings, err := p.Cluster.Decommission(ctx, tx, found)
		if err != nil {
			return decommissionResult{}, err
		}
		object, err := tombstoneOf(ctx, p, &tx.View, t)
		out := decommissionResult{Decommissioned: true, ClusterID: found.ID, FreedNodeCount: t.NodeCount, Tombstone: object}
		for _, w := range warnings {
			out.Warnings = append(out.Warnings, Warning{Code: w.Code, Text: w.Text})
		}
		return out, err
	},
})

func tombstoneOf(ctx context.Context, p *Platform, v *store.View, t store.Tombstone) (tombstoneObject, error) {
	state, err := p.Cluster.CleanupOf(ctx, v, t.AccountID, t.ClusterID)
	out := tombstoneObject{ClusterID: t.ClusterID, Name: t.Name, Slug: t.Slug, Environment: t.Environment, K8sVersion: t.K8sVersion,
		NodeCount: t.NodeCount, DecommissionedAt: t.DecommissionedAt, DecommissionedBy: t.DecommissionedBy, Cleanup: state, AuditEntryID: t.AuditEntryID}
	if t.OperationID != "" {
		out.OperationID = &t.OperationID
	}
	return out, err
}

type createClusterArgs struct {
	Name        string          `json:"name"`
	NetworkID   store.NetworkID `json:"network_id"`
	CNIPlugin   *string         `json:"cni_plugin"`
	PodCIDR     *netip.Prefix   `json:"pod_cidr"`
	ServiceCIDR *netip.Prefix   `json:"service_cidr"`
	K8sVersion  *string         `json:"k8s_version"`
	Datastore   string          `json:"datastore"`
}

func (a createClusterArgs) input() cluster.CreateInput {
	in := cluster.CreateInput{Name: a.Name, NetworkID: a.NetworkID}
	if a.CNIPlugin != nil {
		in.CNIPlugin = *a.CNIPlugin
	}
	if a.PodCIDR != nil {
		in.PodCIDR = *a.PodCIDR
	}
	if a.ServiceCIDR != nil {
		in.ServiceCIDR = *a.ServiceCIDR
	}
	if a.K8sVersion != nil {
		in.Version = *a.K8sVersion
	}
	return in
}

type createClusterResult struct {
	Cluster clusterFull `json:"cluster"`
	Written
}

var createCluster = define("kubernetes_create_cluster", handler[createClusterArgs, createClusterResult]{
	check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a createClusterArgs) error {
		return p.Cluster.CheckCreate(ctx, v, c.AccountID, a.input())
	},
	run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a createClusterArgs) (createClusterResult, error) {
		made, err := p.Cluster.Create(ctx, tx, c.AccountID, a.input())
		if err != nil {
			return createClusterResult{}, err
		}
		full, err := clusterFullOf(ctx, p, &tx.View, made)
		out := createClusterResult{Cluster: full}
		out.Hint = &schema.Hint{Verb: "system_assign_module_to_template",
			Text: "Bind the first server: module k3s-server with config {\"target_cluster_id\": \"" + string(made.ID) + "\"}."}
		return out, err
	},
})

type listArgs struct {
	Limit  int     `json:"limit"`
	Cursor *string `json:"cursor"`
}

type listDecommissionedResult struct {
	Clusters []tombstoneObject `json:"clusters"`
	Page
}

var listDecommissioned = define("kubernetes_list_decommissioned_clusters", handler[listArgs, listDecommissionedResult]{
	read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a listArgs) (listDecommissionedResult, error) {
		out := listDecommissionedResult{Clusters: []tombstoneObject{}}
		all, err := store.Tombstones(ctx, v, c.AccountID)
		if err != nil {
			return out, err
		}
		cursor := ""
		if a.Cursor != nil {
			cursor = *a.Cursor
		}
		rows, answer, err := page("kubernetes_list_decommissioned_clusters", nil, a.Limit, cursor, all,
			func(t store.Tombstone) string { return string(t.ClusterID) })
		if err != nil {
			return out, err
		}
		out.Page = answer
		for _, t := range rows {
			object, err := tombstoneOf(ctx, p, v, t)
			if err != nil {
				return out, err
			}
			out.Clusters = append(out.Clusters, object)
		}
		return out, nil
	},
})
