package k3s

import (
	"net/netip"

	"powernode/nodeapi"
	"powernode/sdwan"
)

// target is what a document wants of K3s on this machine, the same words for both roles.
type target struct {
	role       string // "" is no opinion
	absent     bool
	leaving    bool   // the whole machine leaves the platform
	document   string // names the document that wants it
	runtime    string // of the handshake
	clusterID  string // servers
	mode       string // servers: init, join, wait
	reason     string
	nodeName   string
	nodeIP     netip.Addr
	iface      string
	endpoint   string // https://[VIP]:6443; "" for workers
	artifact   *sdwan.Artifact
	generation int64
	server     *sdwan.BootstrapConfig
	agent      *sdwan.AgentConfig
}

// wanted reads a document. A role that is to be present wins over one that is to be absent: that is a change of role.
func wanted(k sdwan.K3s) target {
	s, a := k.Server, k.Agent
	switch {
	case s != nil && s.State == "present":
		return target{role: roleServer, runtime: nodeapi.RuntimeK3sServer, clusterID: s.ClusterID, mode: s.Mode, reason: s.Reason,
			nodeName: s.Bootstrap.NodeName, nodeIP: s.Bootstrap.NodeIP, iface: s.Bootstrap.FlannelIface, endpoint: s.Endpoint,
			artifact: s.Artifact, generation: s.TokenGeneration, server: &s.Bootstrap}
	case a != nil && a.State == "present":
		return target{role: roleAgent, runtime: nodeapi.RuntimeK3sAgent, reason: a.Reason, nodeName: a.Agent.NodeName, nodeIP: a.Agent.NodeIP,
			iface: a.Agent.FlannelIface, artifact: a.Artifact, generation: a.TokenGeneration, agent: &a.Agent}
	case s != nil && s.State == "absent":
		return target{role: roleServer, runtime: nodeapi.RuntimeK3sServer, absent: true, clusterID: s.ClusterID}
	case a != nil && a.State == "absent":
		return target{role: roleAgent, runtime: nodeapi.RuntimeK3sAgent, absent: true}
	}
	return target{}
}

// before is the removal of what the machine was before it becomes this.
func (t target) before(role, clusterID string) target {
	t.role, t.runtime, t.clusterID = role, runtimeOf(role), clusterID
	return t
}

// key names a removal that was asked for. The same one may be asked for again by a later document.
func (t target) key() string { return t.role + " " + t.clusterID + " " + t.document }

// leaves says whether the document takes a role away from this machine.
func leaves(k sdwan.K3s, role string) bool {
	if role == roleServer {
		return k.Server != nil && k.Server.State == "absent"
	}
	return k.Agent != nil && k.Agent.State == "absent"
}
