package sdwan

import (
	"encoding/json"
	"net/netip"
)

// Document is what one agent is to be: the desired document of the agent API. A document gets smaller only because
// a row went away. Lists are sorted and never nil, so that equal intent gives equal bytes.
type Document struct {
	// Incarnation names the store that the revision belongs to; a restored store has another one, and an agent that
	// sees another one asks for everything.
	Incarnation  string        `json:"incarnation"`
	Revision     int64         `json:"revision"`
	Instance     Instance      `json:"instance"`
	Networks     []Network     `json:"networks"`
	Firewall     Firewall      `json:"firewall"`
	PortMappings []PortMapping `json:"port_mappings"`
	Modules      []Module      `json:"modules"`
	K3s          K3s           `json:"k3s"`
	Tasks        []Task        `json:"tasks"`
	Probes       []Probe       `json:"probes"`
}

// Instance says whom a document is for.
type Instance struct {
	ID       string `json:"id"`
	NodeID   string `json:"node_id"`
	NodeName string `json:"node_name"`
	Name     string `json:"name"`
	// Leave asks the agent to take away all that it has made, and then itself: the instance has ended and the machine lives on.
	Leave bool `json:"leave,omitempty"`
}

// Network is one membership of the instance: one WireGuard interface.
type Network struct {
	NetworkID  string         `json:"network_id"`
	PeerID     string         `json:"peer_id"`
	DeviceName string         `json:"device_name"`
	CIDR       netip.Prefix   `json:"cidr"`      // the network's /64
	Addresses  []netip.Prefix `json:"addresses"` // the peer's own, /128 and, where it has one, /32
	ListenPort int            `json:"listen_port"`
	MTU        int            `json:"mtu"`
	Key        KeyState       `json:"key"`
	Peers      []Peer         `json:"peers"`
	Routes     []Route        `json:"routes"`
	Forward    string         `json:"forward"` // off, devices, on
	VIPs       []VIP          `json:"vips"`    // held by this peer
	NotReady   []NotReady     `json:"not_ready"`
	Suspended  bool           `json:"suspended"`
}

// KeyState says which stage of its key the peer is to use; keys are made on the node.
type KeyState struct {
	State string `json:"state"` // current, staged
}

// Peer is a WireGuard peer of a network's interface.
type Peer struct {
	PeerID           string           `json:"peer_id"`
	Kind             string           `json:"kind"`       // peer, user_device
	PublicKey        string           `json:"public_key"` // base64
	NextPublicKey    string           `json:"next_public_key"`
	Endpoints        []netip.AddrPort `json:"endpoints"` // in order of preference; start values, a learned one stays
	EndpointHost     string           `json:"endpoint_host"`
	EndpointPort     int              `json:"endpoint_port"`
	AllowedIPs       []netip.Prefix   `json:"allowed_ips"`
	KeepaliveSeconds int              `json:"keepalive_seconds"`
}

// Route is a kernel route of a network's interface. Source is the node's own address, or invalid where the family
// has none. Unreachable makes the prefix fail at once instead of leaving through another interface.
type Route struct {
	Prefix      netip.Prefix `json:"prefix"`
	Source      netip.Addr   `json:"source"`
	Unreachable bool         `json:"unreachable"`
}

// VIP is a virtual IP that the peer holds. A lower epoch than the one applied is ignored by the agent.
type VIP struct {
	VirtualIPID string       `json:"virtual_ip_id"`
	Address     netip.Prefix `json:"address"`
	Epoch       int64        `json:"epoch"`
}

// NotReady names what a document lacks, and why: a producer that is missing is loud.
type NotReady struct {
	What   string `json:"what"`
	Reason string `json:"reason"`
}

// Firewall is the content of the one nftables table of ours on a host, `inet powernode`.
// Rules match in order; base chains have policy accept, what is to be dropped is dropped by a rule.
type Firewall struct {
	Table   string         `json:"table"` // powernode
	Hash    string         `json:"hash"`  // SHA-256 of the rest, hex
	Sets    []FirewallSet  `json:"sets"`
	Input   []FirewallRule `json:"input"`
	Forward []FirewallRule `json:"forward"`
	Output  []FirewallRule `json:"output"`
}

// FirewallSet is a named set of prefixes of one family, merged and sorted.
type FirewallSet struct {
	Name     string         `json:"name"`
	Family   string         `json:"family"` // ip6, ip
	Prefixes []netip.Prefix `json:"prefixes"`
}

// FirewallRule is one rule of a chain. An empty field matches everything. An interface name may end in `*`.
type FirewallRule struct {
	Comment        string   `json:"comment"`          // at most 64 characters; who made it
	RuleID         string   `json:"rule_id"`          // firewall rule of the store, or empty
	InInterfaces   []string `json:"in_interfaces"`    // any of these
	InExcept       []string `json:"in_except"`        // none of these
	OutInterfaces  []string `json:"out_interfaces"`   // any of these
	OutExcept      []string `json:"out_except"`       // none of these
	SourceSet      string   `json:"source_set"`       // name of a set; gives the rule its family
	DestinationSet string   `json:"destination_set"`  // name of a set; gives the rule its family
	Family         string   `json:"family"`           // ip6, ip or empty
	Protocol       string   `json:"protocol"`         // tcp, udp, icmp6, icmp or empty
	PortFrom       int      `json:"port_from"`        // destination port, 0 is any
	PortTo         int      `json:"port_to"`          //
	SourcePortFrom int      `json:"source_port_from"` // 0 is any
	SourcePortTo   int      `json:"source_port_to"`   //
	ICMPTypes      []int    `json:"icmp_types"`       // with icmp6 or icmp
	NotOpening     bool     `json:"not_opening"`      // with tcp: no segment that opens a connection (RFC 9293: SYN without ACK)
	States         []string `json:"states"`           // established, related, invalid, new
	Verdict        string   `json:"verdict"`          // accept, drop, reject
}

// PortMapping publishes a service of the overlay on a hub.
type PortMapping struct {
	ListenPort    int        `json:"listen_port"`
	Protocol      string     `json:"protocol"`
	TargetAddress netip.Addr `json:"target_address"`
	TargetPort    int        `json:"target_port"`
}

// Module is a module version that the agent carries.
type Module struct {
	ModuleID string          `json:"module_id"`
	Name     string          `json:"name"`
	Version  string          `json:"version"`
	Artifact *Artifact       `json:"artifact"`
	Manifest json.RawMessage `json:"manifest"`
	Config   json.RawMessage `json:"config"`
	Digest   string          `json:"digest"` // SHA-256 over version, artefact and canonical manifest
}

// Artifact names bytes by their SHA-256. Path is below the agent API; URL is where the operator said that it is.
type Artifact struct {
	Version string `json:"version"`
	URL     string `json:"url"`
	Path    string `json:"path"`
	SHA256  string `json:"sha256"`
}

// K3s has the two roles; null is no opinion, state absent asks for clean-up.
type K3s struct {
	Server *K3sServer `json:"server"`
	Agent  *K3sAgent  `json:"agent"`
}

// K3sServer is the runtime configuration of a k3s-server.
type K3sServer struct {
	State           string          `json:"state"` // present, absent
	Runtime         string          `json:"runtime"`
	ClusterID       string          `json:"cluster_id"`
	Mode            string          `json:"mode"` // init, join, wait
	Reason          string          `json:"reason"`
	Bootstrap       BootstrapConfig `json:"bootstrap_config"`
	Artifact        *Artifact       `json:"artifact"`
	TokenGeneration int64           `json:"token_generation"`
	ContentHash     string          `json:"content_hash"`
	Endpoint        string          `json:"endpoint"` // https://[VIP]:6443, where health is measured
}

// BootstrapConfig is what a server's K3s is configured with; secrets come by handshake alone.
type BootstrapConfig struct {
	CNIPlugin      string       `json:"cni_plugin"`
	FlannelIface   string       `json:"flannel_iface"`
	FlannelBackend string       `json:"flannel_backend"`
	ClusterCIDR    netip.Prefix `json:"cluster_cidr"`
	ServiceCIDR    netip.Prefix `json:"service_cidr"`
	ClusterInit    bool         `json:"cluster_init"`
	TLSSAN         []string     `json:"tls_san"`
	NodeIP         netip.Addr   `json:"node_ip"`
	NodeName       string       `json:"node_name"`
	NodeLabels     []string     `json:"node_labels"` // key=value
	NodeTaints     []string     `json:"node_taints"` // key=value:effect
}

// K3sAgent is the runtime configuration of a k3s-agent.
type K3sAgent struct {
	State           string      `json:"state"` // present, absent
	Runtime         string      `json:"runtime"`
	TargetClusterID string      `json:"target_cluster_id"` // "" when there is none or it is unusable
	Reason          string      `json:"reason"`
	Agent           AgentConfig `json:"agent_config"`
	Artifact        *Artifact   `json:"artifact"`
	TokenGeneration int64       `json:"token_generation"`
	ContentHash     string      `json:"content_hash"`
}

// AgentConfig is what a worker's K3s is configured with.
type AgentConfig struct {
	FlannelIface string     `json:"flannel_iface"`
	NodeIP       netip.Addr `json:"node_ip"`
	NodeName     string     `json:"node_name"`
	NodeLabels   []string   `json:"node_labels"`
	NodeTaints   []string   `json:"node_taints"`
}

// Task is work for an agent, with a lease.
type Task struct {
	ID         string          `json:"id"`
	Command    string          `json:"command"`
	Parameters json.RawMessage `json:"parameters"`
	Step       string          `json:"step"`
}

// SyncModules are the parameters of the task sync_modules: both sides mean the same by them.
type SyncModules struct {
	ModuleID    *string `json:"module_id"`    // nil: all modules
	ForceResync bool    `json:"force_resync"` // every file is read again, and what was changed by hand is put right at once
}

// Probe is one measurement that an agent is asked for.
type Probe struct {
	ID         string     `json:"id"`
	FromPeerID string     `json:"from_peer_id"`
	Source     netip.Addr `json:"source"`
	Target     netip.Addr `json:"target"`
	Protocol   string     `json:"protocol"` // icmp6, tcp
	Port       int        `json:"port"`
	DeadlineMS int        `json:"deadline_ms"`
}
