package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sort"

	"powernode/sdwan"
	"powernode/store"
)

// Section is the K3s part of an instance's document, and what the runtime configuration answers: one builder for both.
func (s *Service) Section(ctx context.Context, v *store.View, instance store.Instance) (sdwan.K3s, error) {
	var section sdwan.K3s
	server, err := k3sAssignment(ctx, v, instance.AccountID, instance.NodeID, RoleServer)
	if err != nil {
		return section, err
	}
	agent, err := k3sAssignment(ctx, v, instance.AccountID, instance.NodeID, RoleAgent)
	if err != nil {
		return section, err
	}
	if server != nil {
		if section.Server, err = s.serverConfig(ctx, v, instance, *server); err != nil {
			return section, err
		}
	}
	if agent != nil {
		if section.Agent, err = s.agentConfig(ctx, v, instance, *agent); err != nil {
			return section, err
		}
	}
	return section, s.absent(ctx, v, instance, &section)
}

// absent asks for the clean-up of a host whose membership ended. It comes before what the host is to be next: an agent
// leaves the K3s of another cluster alone.
func (s *Service) absent(ctx context.Context, v *store.View, instance store.Instance, section *sdwan.K3s) error {
	c, err := cleaning(ctx, v, instance)
	if err != nil || c == nil {
		return err
	}
	switch c.Role {
	case RoleServer:
		section.Server = &sdwan.K3sServer{State: "absent", Runtime: "k3s_server", ClusterID: string(c.ClusterID),
			Bootstrap: sdwan.BootstrapConfig{TLSSAN: []string{}, NodeLabels: []string{}, NodeTaints: []string{}}}
	case RoleAgent:
		section.Agent = &sdwan.K3sAgent{State: "absent", Runtime: "k3s_agent", TargetClusterID: string(c.ClusterID),
			Agent: sdwan.AgentConfig{NodeLabels: []string{}, NodeTaints: []string{}}}
	}
	return nil
}

// cleaning is the clean-up that an instance's host has still to do, or nil.
func cleaning(ctx context.Context, v *store.View, instance store.Instance) (*store.Cleanup, error) {
	c, err := store.CleanupByInstance(ctx, v, instance.AccountID, instance.ID)
	if errors.Is(err, store.ErrNoRow) || (err == nil && c.State != cleanupRequested) {
		return nil, nil
	}
	return &c, err
}

func (s *Service) serverConfig(ctx context.Context, v *store.View, instance store.Instance, a store.Assignment) (*sdwan.K3sServer, error) {
	r, err := resolve(ctx, v, instance, a, RoleServer, "")
	if err != nil {
		return nil, err
	}
	out := &sdwan.K3sServer{State: "present", Runtime: "k3s_server", Mode: "wait", Reason: r.reason,
		Bootstrap: sdwan.BootstrapConfig{TLSSAN: []string{}, NodeLabels: []string{}, NodeTaints: []string{}}}
	if r.cluster == nil {
		return out, hashed(out, &out.ContentHash)
	}
	c := *r.cluster
	if on, err := onNetwork(ctx, v, c, instance); err != nil || !on {
		out.Reason = ReasonOffNetwork
		return out, errors.Join(err, hashed(out, &out.ContentHash))
	}
	out.ClusterID, out.TokenGeneration = string(c.ID), c.ServerTokenGeneration
	switch {
	case c.BootstrapInstanceID == instance.ID:
		out.Mode = "init"
	case r.member != nil:
		out.Mode = "join"
	default:
		out.Reason = ReasonNotAvailableYet // a further server of a cluster is not built yet, and is refused when it is written
	}
	if out.Endpoint, err = s.Endpoint(ctx, v, c); err != nil {
		return nil, err
	}
	if out.Bootstrap, err = s.bootstrapConfig(ctx, v, instance, a, c); err != nil {
		return nil, err
	}
	version, err := store.ModuleVersionByID(ctx, v, c.AccountID, c.VersionID)
	if err != nil {
		return nil, err
	}
	out.Artifact = artifactFor(version, instance.Architecture)
	return out, hashed(out, &out.ContentHash)
}

// bootstrapConfig is a server's configuration; what must be equal on all servers comes from the cluster's row alone.
func (s *Service) bootstrapConfig(ctx context.Context, v *store.View, instance store.Instance, a store.Assignment, c store.Cluster) (sdwan.BootstrapConfig, error) {
	peer, err := store.PeerOf(ctx, v, c.AccountID, c.NetworkID, instance.ID)
	if err != nil {
		return sdwan.BootstrapConfig{}, fmt.Errorf("find the peer of instance %s: %w", instance.Name, err)
	}
	vip, err := store.VirtualIPByID(ctx, v, c.AccountID, c.APIVIPID)
	if err != nil {
		return sdwan.BootstrapConfig{}, fmt.Errorf("find the API address of cluster %s: %w", c.Name, err)
	}
	return sdwan.BootstrapConfig{CNIPlugin: c.CNIPlugin, FlannelIface: sdwan.DeviceName(peer.ShortID), FlannelBackend: c.FlannelBackend,
		ClusterCIDR: c.PodCIDR.Prefix, ServiceCIDR: c.ServiceCIDR.Prefix, ClusterInit: c.BootstrapInstanceID == instance.ID,
		TLSSAN: []string{vip.Address.String()}, NodeIP: peer.Address.Addr, NodeName: instance.Name,
		NodeLabels: labels(a.Config.V), NodeTaints: taints(a.Config.V)}, nil
}

func (s *Service) agentConfig(ctx context.Context, v *store.View, instance store.Instance, a store.Assignment) (*sdwan.K3sAgent, error) {
	r, err := resolve(ctx, v, instance, a, RoleAgent, "")
	if err != nil {
		return nil, err
	}
	out := &sdwan.K3sAgent{State: "present", Runtime: "k3s_agent", Reason: servedReason(r.reason),
		Agent: sdwan.AgentConfig{NodeName: instance.Name, NodeLabels: labels(a.Config.V), NodeTaints: taints(a.Config.V)}}
	if r.cluster == nil {
		return out, hashed(out, &out.ContentHash)
	}
	c := *r.cluster
	if on, err := onNetwork(ctx, v, c, instance); err != nil || !on {
		out.Reason = ReasonOffNetwork
		return out, errors.Join(err, hashed(out, &out.ContentHash))
	}
	if r.target != "" {
		out.TargetClusterID = string(c.ID)
	}
	out.TokenGeneration = c.AgentTokenGeneration
	peer, err := store.PeerOf(ctx, v, c.AccountID, c.NetworkID, instance.ID)
	if err != nil {
		return nil, fmt.Errorf("find the peer of instance %s: %w", instance.Name, err)
	}
	out.Agent.FlannelIface, out.Agent.NodeIP = sdwan.DeviceName(peer.ShortID), peer.Address.Addr
	version, err := agentVersion(ctx, v, c)
	if err == nil {
		out.Artifact = artifactFor(version, instance.Architecture)
	}
	return out, hashed(out, &out.ContentHash)
}

// servedReason is a resolution's reason in the words of the runtime configuration: one that has no target yet says so.
func servedReason(reason string) string {
	switch reason {
	case ReasonAmbiguous, ReasonNoCluster:
		return ReasonNoneSet
	}
	return reason
}

// artifactFor names the bytes of a version for an architecture; nil when it has none. Agents fetch it from the platform,
// which fetches a URL once and checks it.
func artifactFor(version store.ModuleVersion, architecture string) *sdwan.Artifact {
	a, ok := version.Artifact(architecture)
	if !ok {
		return nil
	}
	return &sdwan.Artifact{Version: version.Version, Path: "/artifacts/" + a.SHA256, SHA256: a.SHA256}
}

func labels(config store.Object) []string {
	out := []string{}
	given, _ := config["node_labels"].(map[string]any)
	for key, value := range given {
		if text, ok := value.(string); ok {
			out = append(out, key+"="+text)
		}
	}
	sort.Strings(out)
	return out
}

func taints(config store.Object) []string {
	out := []string{}
	given, _ := config["node_taints"].([]any)
	for _, value := range given {
		if text, ok := value.(string); ok {
			out = append(out, text)
		}
	}
	return out
}

// hashed fills a configuration's content hash: SHA-256 over all of it, the hash itself empty.
func hashed(config any, hash *string) error {
	*hash = ""
	b, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("encode a runtime configuration: %w", err)
	}
	sum := sha256.Sum256(b)
	*hash = hex.EncodeToString(sum[:])
	return nil
}

// Networked answers the compiler's view of a network's clusters, by desired membership.
func (s *Service) Networked(ctx context.Context, v *store.View, acct store.AccountID, id store.NetworkID) ([]sdwan.Cluster, error) {
	clusters, err := store.ClustersByNetwork(ctx, v, acct, id)
	if err != nil || len(clusters) == 0 {
		return nil, err
	}
	bound, err := s.boundPeers(ctx, v, acct, id)
	if err != nil {
		return nil, err
	}
	out := make([]sdwan.Cluster, 0, len(clusters))
	for _, c := range clusters {
		vip, err := store.VirtualIPByID(ctx, v, acct, c.APIVIPID)
		if err != nil {
			return nil, fmt.Errorf("find the API address of cluster %s: %w", c.Name, err)
		}
		out = append(out, sdwan.Cluster{ID: string(c.ID), Name: c.Name, VIP: vip.Address.Addr, FlannelBackend: c.FlannelBackend,
			PodCIDR: c.PodCIDR.Prefix, ServiceCIDR: c.ServiceCIDR.Prefix, ServerPeerIDs: bound[c.ID][RoleServer], AgentPeerIDs: bound[c.ID][RoleAgent]})
	}
	return out, nil
}

// boundPeers are the peers of a network by the cluster that their enabled k3s assignment resolves to, and by role.
func (s *Service) boundPeers(ctx context.Context, v *store.View, acct store.AccountID, id store.NetworkID) (map[store.ClusterID]map[string][]string, error) {
	peers, err := store.PeersByNetwork(ctx, v, acct, id)
	if err != nil {
		return nil, err
	}
	bound := map[store.ClusterID]map[string][]string{}
	for _, p := range peers {
		instance, err := store.InstanceByID(ctx, v, acct, p.InstanceID)
		if err != nil {
			return nil, err
		}
		for _, role := range []string{RoleServer, RoleAgent} {
			a, err := k3sAssignment(ctx, v, acct, instance.NodeID, role)
			if err != nil {
				return nil, err
			}
			if a == nil {
				continue
			}
			r, err := resolve(ctx, v, instance, *a, role, "")
			if err != nil {
				return nil, err
			}
			if r.cluster == nil || r.cluster.NetworkID != id {
				continue
			}
			if bound[r.cluster.ID] == nil {
				bound[r.cluster.ID] = map[string][]string{}
			}
			bound[r.cluster.ID][role] = append(bound[r.cluster.ID][role], string(p.ID))
		}
	}
	return bound, nil
}
