package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"powernode/platform/signal"
	"powernode/sdwan"
	"powernode/store"
)

// Classes of refusals of the handshake (contract 15.1).
const (
	ClassAmbiguous    = "AmbiguousClusterError"
	ClassMissingPeer  = "MissingSdwanPeerError"
	ClassNoCluster    = "NoClusterAvailableError"
	ClassNotAssigned  = "ModuleNotAssignedError"
	ClassUnknown      = "ClusterGoneError"
	ClassOtherServer  = "OtherFirstServerError"
	ClassOtherCluster = "OtherClusterError"
	ClassField        = "FieldError"
)

// Refusal is what a handshake answers instead. It is a value beside a nil error: what it tells (a signal) is committed.
type Refusal struct {
	Class      string // "" with Wait
	Reason     string
	Message    string
	Wait       bool // ask again
	Candidates []store.Cluster
}

// Material is what a member needs to start K3s. Tokens are in it alone.
type Material struct {
	Mode            string // init, join
	Cluster         store.Cluster
	Endpoint        string
	ServerToken     string // servers alone
	AgentToken      string
	TokenGeneration int64
	Server          *sdwan.BootstrapConfig
	Agent           *sdwan.AgentConfig
}

// JoinRequest resolves which cluster an instance is to join, makes it a member and hands out what it needs. A member is
// answered for the cluster that it is in, whatever the field or its assignment names.
func (s *Service) JoinRequest(ctx context.Context, tx *store.Tx, instance store.Instance, role, field string) (Material, *Refusal, error) {
	if !instance.Live() || instance.Leaving() {
		return Material{}, &Refusal{Class: ClassUnknown, Message: "the instance is terminated, or about to be"}, nil
	}
	a, err := k3sAssignment(ctx, &tx.View, instance.AccountID, instance.NodeID, role)
	if err != nil {
		return Material{}, nil, err
	}
	if a == nil {
		return Material{}, notAssigned(role), nil
	}
	assigned := text(a.Config.V, "target_cluster_id")
	r, err := resolve(ctx, &tx.View, instance, *a, role, field)
	if err != nil {
		return Material{}, nil, err
	}
	if r.member != nil && r.member.Role != role {
		return Material{}, otherRole(r, role), nil
	}
	if r.member == nil && field != "" && assigned != "" && field != assigned {
		return Material{}, &Refusal{Class: ClassField, Reason: ReasonTargetMismatch, Message: "target_cluster_id differs from the assignment's target"}, nil
	}
	if r.cluster == nil {
		refusal, err := s.refuseJoin(ctx, tx, instance, r)
		return Material{}, refusal, err
	}
	if err := s.joinUnblocked(ctx, tx, instance); err != nil {
		return Material{}, nil, err
	}
	if c, err := cleaning(ctx, &tx.View, instance); err != nil || c != nil {
		return Material{}, &Refusal{Wait: true, Reason: ReasonCleaning, Message: "the machine has still to remove the K3s of a cluster that was decommissioned"}, err
	}
	if role == RoleServer {
		return s.serverMaterial(ctx, tx, instance, *a, r)
	}
	return s.agentMaterial(ctx, tx, instance, *a, r)
}

func notAssigned(role string) *Refusal {
	return &Refusal{Class: ClassNotAssigned, Message: "the k3s-" + role + " module is not assigned and enabled"}
}

// refuseJoin says why there is no cluster to join, and tells it once.
func (s *Service) refuseJoin(ctx context.Context, tx *store.Tx, instance store.Instance, r resolution) (*Refusal, error) {
	about := signal.Subject{InstanceID: instance.ID, NodeID: instance.NodeID}
	switch {
	case r.reason == ReasonMissingPeer || r.reason == ReasonManyNetworks:
		return &Refusal{Class: ClassMissingPeer, Reason: r.reason, Message: "the instance is a peer of no network, or of several and none is named"}, nil
	case len(r.candidates) > 1 && r.reason != ReasonOffNetwork:
		named := []store.Object{}
		for _, c := range r.candidates {
			named = append(named, store.Object{"cluster_id": c.ID, "name": c.Name, "status": c.Status})
		}
		err := signal.Open(ctx, tx, instance.AccountID, string(instance.ID), signal.Event{Kind: "system.k3s_ambiguous_cluster_join_refused",
			Severity: signal.High, Subject: about, Payload: store.Object{"candidate_count": len(named), "candidates": named, "reason": r.reason}})
		return &Refusal{Class: ClassAmbiguous, Reason: r.reason, Candidates: r.candidates,
			Message: "several clusters could be meant: " + namesOf(r.candidates) + "; set target_cluster_id"}, err
	case r.reason == ReasonOffNetwork:
		event := signal.Event{Kind: "system.k3s_join_blocked", Subject: about, Payload: store.Object{"cluster_id": string(r.target), "reason": r.reason}}
		err := signal.Open(ctx, tx, instance.AccountID, string(instance.ID), event)
		return &Refusal{Class: ClassNoCluster, Reason: r.reason, Message: "the instance is no peer of the cluster's network"}, err
	}
	return &Refusal{Class: ClassNoCluster, Reason: r.reason, Message: "there is no cluster that this instance could join (" + r.reason + ")"}, nil
}

func (s *Service) joinUnblocked(ctx context.Context, tx *store.Tx, instance store.Instance) error {
	about := signal.Subject{InstanceID: instance.ID, NodeID: instance.NodeID}
	for _, kind := range []string{"system.k3s_ambiguous_cluster_join_refused", "system.k3s_join_blocked"} {
		if err := signal.Close(ctx, tx, instance.AccountID, string(instance.ID), kind, about, nil); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) serverMaterial(ctx context.Context, tx *store.Tx, instance store.Instance, a store.Assignment, r resolution) (Material, *Refusal, error) {
	c := *r.cluster
	if c.BootstrapInstanceID != instance.ID {
		return Material{}, &Refusal{Wait: true, Reason: ReasonNotAvailableYet, Message: "not available yet: a further server of a cluster"}, nil
	}
	if refusal, err := s.held(ctx, &tx.View, c, r, categoryBootstrap); err != nil || refusal != nil {
		return Material{}, refusal, err
	}
	if err := s.join(ctx, tx, instance, c, RoleServer, r.member); err != nil {
		return Material{}, nil, err
	}
	if c.Status == StatusPending {
		if err := s.setStatus(ctx, tx, &c, StatusBootstrapping); err != nil {
			return Material{}, nil, err
		}
		err := signal.Emit(ctx, tx, c.AccountID, signal.Event{Kind: "system.k3s_cluster_bootstrapping",
			Subject: signal.Subject{ClusterID: c.ID, NetworkID: c.NetworkID, InstanceID: instance.ID}, Payload: store.Object{"node_instance_id": instance.ID}})
		if err != nil {
			return Material{}, nil, err
		}
	}
	m := Material{Mode: "init", Cluster: c, TokenGeneration: c.ServerTokenGeneration}
	config, err := s.bootstrapConfig(ctx, &tx.View, instance, a, c)
	if err != nil {
		return Material{}, nil, err
	}
	m.Server = &config
	if m.Endpoint, err = s.Endpoint(ctx, &tx.View, c); err != nil {
		return Material{}, nil, err
	}
	if m.ServerToken, err = s.token(c, RoleServer); err != nil {
		return Material{}, nil, err
	}
	m.AgentToken, err = s.token(c, RoleAgent)
	return m, nil, err
}

func (s *Service) agentMaterial(ctx context.Context, tx *store.Tx, instance store.Instance, a store.Assignment, r resolution) (Material, *Refusal, error) {
	c := *r.cluster
	switch {
	case r.member == nil && c.Status != StatusActive && c.Status != StatusDegraded:
		return Material{}, &Refusal{Wait: true, Reason: ReasonNoReadyServer, Message: fmt.Sprintf("cluster %s has no ready server yet (status=%s)", c.Name, c.Status)}, nil
	case c.CAPEM == "":
		return Material{}, &Refusal{Wait: true, Reason: ReasonNoReadyServer, Message: "cluster " + c.Name + " has not reported its certificate authority yet"}, nil
	}
	if _, err := agentVersion(ctx, &tx.View, c); err != nil {
		return Material{}, &Refusal{Wait: true, Reason: ReasonNoAgentVersion, Message: err.Error()}, nil
	}
	if refusal, err := s.held(ctx, &tx.View, c, r, categoryJoin); err != nil || refusal != nil {
		return Material{}, refusal, err
	}
	if err := s.join(ctx, tx, instance, c, RoleAgent, r.member); err != nil {
		return Material{}, nil, err
	}
	peer, err := store.PeerOf(ctx, &tx.View, c.AccountID, c.NetworkID, instance.ID)
	if err != nil {
		return Material{}, nil, err
	}
	m := Material{Mode: "join", Cluster: c, TokenGeneration: c.AgentTokenGeneration}
	m.Agent = &sdwan.AgentConfig{FlannelIface: sdwan.DeviceName(peer.ShortID), NodeIP: peer.Address.Addr, NodeName: instance.Name,
		NodeLabels: labels(a.Config.V), NodeTaints: taints(a.Config.V)}
	if m.Endpoint, err = s.Endpoint(ctx, &tx.View, c); err != nil {
		return Material{}, nil, err
	}
	token, err := s.token(c, RoleAgent)
	m.AgentToken = secureToken(c.CAPEM, "node", token)
	return m, nil, err
}

// held makes a fresh join wait where a policy of the account was raised above "proceed": a person lets it in by the policy.
func (s *Service) held(ctx context.Context, v *store.View, c store.Cluster, r resolution, category string) (*Refusal, error) {
	if r.member != nil || s.MayJoin == nil {
		return nil, nil
	}
	may, err := s.MayJoin(ctx, v, c.AccountID, category, c.ID, c.NetworkID)
	if err != nil || may {
		return nil, err
	}
	return &Refusal{Wait: true, Reason: ReasonApproval, Message: "the policy of " + category + " holds joins of cluster " + c.Name + " back for a person"}, nil
}

// secureToken is K3s' secure form: it binds the token to the cluster's certificate authority, so that it is sent to
// nobody else (docs.k3s.io/cli/token).
func secureToken(caPEM, user, token string) string {
	sum := sha256.Sum256([]byte(caPEM))
	return "K10" + hex.EncodeToString(sum[:]) + "::" + user + ":" + token
}

// join makes the membership, once.
func (s *Service) join(ctx context.Context, tx *store.Tx, instance store.Instance, c store.Cluster, role string, member *store.ClusterNode) error {
	if member != nil {
		return nil
	}
	n := store.ClusterNode{ID: store.ClusterNodeID(tx.NewID()), AccountID: c.AccountID, ClusterID: c.ID, InstanceID: instance.ID,
		NodeID: instance.NodeID, Name: instance.Name, Role: role, Status: NodeJoining}
	if err := store.InsertClusterNode(ctx, tx, n); err != nil {
		return fmt.Errorf("make %s a member of cluster %s: %w", instance.Name, c.Name, err)
	}
	if err := store.DeleteCleanup(ctx, tx, c.AccountID, instance.ID); err != nil {
		return err
	}
	tx.TouchInstance(instance.ID)
	_, err := tx.Audit(ctx, store.AuditEntry{AccountID: c.AccountID, Action: "created", ResourceType: "Devops::KubernetesNode", ResourceID: string(n.ID),
		New: store.Object{"name": n.Name, "role": role, "cluster_id": c.ID, "node_instance_id": instance.ID}})
	return err
}

// Bootstrap takes the first server's kubeconfig and version. Repeated by the same instance it refreshes both.
func (s *Service) Bootstrap(ctx context.Context, tx *store.Tx, instance store.Instance, kubeconfig, version string) (store.Cluster, string, *Refusal, error) {
	a, err := k3sAssignment(ctx, &tx.View, instance.AccountID, instance.NodeID, RoleServer)
	if err != nil {
		return store.Cluster{}, "", nil, err
	}
	if a == nil {
		return store.Cluster{}, "", notAssigned(RoleServer), nil
	}
	r, member, err := membership(ctx, &tx.View, instance)
	if err != nil {
		return store.Cluster{}, "", nil, err
	}
	if !member {
		return store.Cluster{}, "", &Refusal{Class: ClassMissingPeer, Reason: ReasonMissingPeer, Message: "the instance has not asked to join a cluster"}, nil
	}
	c := *r.cluster
	if c.BootstrapInstanceID != instance.ID {
		return c, "", &Refusal{Class: ClassOtherServer, Message: "cluster " + c.Name + " has another first server"}, nil
	}
	address, err := s.Endpoint(ctx, &tx.View, c)
	if err != nil {
		return c, "", nil, err
	}
	own, ca, err := rewriteKubeconfig(kubeconfig, c.Name, address)
	if err != nil {
		return c, "", &Refusal{Class: ClassField, Reason: "kubeconfig", Message: err.Error()}, nil
	}
	if c.CAPEM != "" && c.CAPEM != ca {
		return c, "", &Refusal{Class: ClassOtherServer, Message: "the certificate authority is not the one that cluster " + c.Name + " has"}, nil
	}
	if c.Kubeconfig != nil && c.K8sVersion == version {
		kept, err := s.Sealer.Open(kubeconfigPurpose(c.ID), c.Kubeconfig)
		if err != nil || string(kept) == own {
			return c, address, nil, err // told again: nothing changes, no plan becomes stale
		}
	}
	sealed, err := s.Sealer.Seal(tx, kubeconfigPurpose(c.ID), []byte(own))
	if err != nil {
		return c, "", nil, err
	}
	c.Kubeconfig, c.CAPEM, c.K8sVersion = sealed, ca, version
	if err := store.UpdateCluster(ctx, tx, c); err != nil {
		return c, "", nil, err
	}
	return c, address, nil, s.audit(ctx, tx, c, store.Object{}, store.Object{"has_kubeconfig": true, "k8s_version": version})
}

func kubeconfigPurpose(id store.ClusterID) string { return "clusters:" + string(id) + ":kubeconfig" }

// Ready notes that a member's K3s is up in the role that it has. It never moves a member.
func (s *Service) Ready(ctx context.Context, tx *store.Tx, instance store.Instance, role string, id store.ClusterID, version string) (store.ClusterNode, *Refusal, error) {
	r, member, err := membership(ctx, &tx.View, instance)
	if err != nil {
		return store.ClusterNode{}, nil, err
	}
	if !member || r.cluster.ID != id {
		refusal, err := refuseReady(ctx, &tx.View, instance, id)
		return store.ClusterNode{}, refusal, err
	}
	n := *r.member
	if n.Role != role {
		return n, otherRole(r, role), nil
	}
	if n.JoinedAt != nil && n.K8sVersion == version {
		return n, nil, nil
	}
	old := n.K8sVersion
	if n.JoinedAt == nil {
		now := store.At(tx.Now())
		n.JoinedAt = &now
	}
	n.K8sVersion = version
	if err := store.UpdateClusterNode(ctx, tx, n); err != nil {
		return n, nil, err
	}
	_, err = tx.Audit(ctx, store.AuditEntry{AccountID: n.AccountID, Action: "updated", ResourceType: "Devops::KubernetesNode", ResourceID: string(n.ID),
		Old: store.Object{"k8s_version": old}, New: store.Object{"k8s_version": version}})
	if err != nil {
		return n, nil, err
	}
	if err := s.evaluate(ctx, tx, *r.cluster); err != nil {
		return n, nil, err
	}
	n, err = store.ClusterNodeByInstance(ctx, &tx.View, instance.AccountID, instance.ID)
	return n, nil, err
}

// otherRole refuses a member that speaks in a role that is not its own: an instance is in one cluster, as one of both.
func otherRole(r resolution, role string) *Refusal {
	return &Refusal{Class: ClassField, Reason: "role", Message: "the instance is a member of cluster " + r.cluster.Name + " as " + r.member.Role + ", not as " + role}
}

// refuseReady says why an instance can't be ready in a cluster: there is none (any more), or it is no member of it.
func refuseReady(ctx context.Context, v *store.View, instance store.Instance, id store.ClusterID) (*Refusal, error) {
	_, reason, err := usable(ctx, v, instance.AccountID, id)
	if err != nil {
		return nil, err
	}
	switch reason {
	case ReasonDecommissioned:
		return &Refusal{Class: ClassUnknown, Reason: reason, Message: "cluster " + string(id) + " was decommissioned"}, nil
	case ReasonUnknown:
		return &Refusal{Class: ClassUnknown, Reason: reason, Message: "cluster_id names no cluster of this account"}, nil
	}
	return &Refusal{Class: ClassOtherCluster, Message: "the instance is a member of another cluster, or of none"}, nil
}

// Stopped notes that an agent's K3s is gone from its machine, or has failed: a member counts as disconnected until it is
// measured again. It is acknowledged whatever is known, and answers the member's id, "" for none.
func (s *Service) Stopped(ctx context.Context, tx *store.Tx, instance store.Instance, reason string) (store.ClusterNodeID, error) {
	if reason == "uninstalled" || reason == "unassigned" {
		if err := s.cleaned(ctx, tx, instance); err != nil {
			return "", err
		}
	}
	r, member, err := membership(ctx, &tx.View, instance)
	if err != nil || !member {
		return "", err
	}
	n := *r.member
	if n.Status != NodeActive && n.Status != NodeNotReady {
		return n.ID, nil
	}
	h, err := healthOf(ctx, &tx.View, n.ID)
	if err != nil {
		return "", err
	}
	h.markReady(false, tx.Now()) // else what was measured before would make it active at once
	if err := store.PutClusterNodeHealth(ctx, tx, h.ClusterNodeHealth); err != nil {
		return "", err
	}
	if err := s.setNodeStatus(ctx, tx, *r.cluster, &n, NodeDisconnected); err != nil {
		return "", err
	}
	return n.ID, s.evaluate(ctx, tx, *r.cluster)
}
