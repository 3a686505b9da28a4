package sdwan

import (
	"encoding/json"
	"net/netip"
	"time"
)

// Report is what an agent says it is. Every section is optional; what is missing is not measured.
type Report struct {
	BootID         string            `json:"boot_id"`
	MachineID      string            `json:"machine_id"`     // the operating system's; a copy of a machine has it too
	KernelBootID   string            `json:"kernel_boot_id"` // of the running kernel, which a copy does not share
	SentAt         time.Time         `json:"sent_at"`
	AgentVersion   string            `json:"agent_version"`
	Architecture   string            `json:"architecture"`
	UptimeSeconds  int64             `json:"uptime_seconds"`
	Load           float64           `json:"load"`
	MemoryFreeKB   int64             `json:"memory_free_kb"`
	MemoryTotalKB  int64             `json:"memory_total_kb"`
	Capabilities   *Capabilities     `json:"capabilities"`
	Findings       []Finding         `json:"findings"`
	Subsystems     []SubsystemReport `json:"subsystems"`
	Keys           []KeyReport       `json:"keys"`
	Tunnels        []TunnelReport    `json:"tunnels"`
	Endpoints      []EndpointReport  `json:"endpoints"`
	HostRoutes     []HostRoute       `json:"host_routes"`
	HostRoutesRead bool              `json:"host_routes_read"` // false: the routes were not measured
	K3s            *K3sReport        `json:"k3s"`
	Modules        map[string]string `json:"modules"` // module id → digest
	Tasks          []TaskReport      `json:"tasks"`
	Probes         []ProbeReport     `json:"probes"`
}

// Capabilities are facts of the machine.
type Capabilities struct {
	KernelWireGuard bool `json:"kernel_wireguard"`
	NFTables        bool `json:"nftables"`
	Systemd         bool `json:"systemd"`
	CgroupVersion   int  `json:"cgroup_version"`
}

// Finding is something wrong on a host that no document explains.
type Finding struct {
	Finding  string    `json:"finding"`
	Evidence string    `json:"evidence"`
	Since    time.Time `json:"since"`
}

// SubsystemReport is a subsystem's own word: ok, error or not_measured at a revision.
type SubsystemReport struct {
	Name            string    `json:"name"` // wireguard, firewall, vip, k3s, modules
	AppliedRevision int64     `json:"applied_revision"`
	State           string    `json:"state"`
	Message         string    `json:"message"`
	ObservedAt      time.Time `json:"observed_at"`
}

// KeyReport is the public key that the node made for a network.
type KeyReport struct {
	NetworkID string `json:"network_id"`
	PublicKey string `json:"public_key"`
	Stage     string `json:"stage"` // current, staged
}

// TunnelReport is what the device counts for one of its peers. A zero handshake time is none.
type TunnelReport struct {
	NetworkID       string    `json:"network_id"`
	RemotePeerID    string    `json:"remote_peer_id"`
	LastHandshakeAt time.Time `json:"last_handshake_at"`
	RXBytes         int64     `json:"rx_bytes"`
	TXBytes         int64     `json:"tx_bytes"`
	Endpoint        string    `json:"endpoint"`
}

// EndpointReport is an address under which the node thinks it can be reached.
type EndpointReport struct {
	NetworkID string     `json:"network_id"`
	Address   netip.Addr `json:"address"`
	Port      int        `json:"port"`
	Source    string     `json:"source"` // interface, learned
}

// HostRoute is a route of the machine that is not ours.
type HostRoute struct {
	Prefix netip.Prefix `json:"prefix"`
	Device string       `json:"device"`
	Source string       `json:"source"` // kernel, static, other
}

// K3sReport is what the agent measured of K3s on its machine, and through the VIP.
type K3sReport struct {
	Role            string          `json:"role"` // server, agent, "" when none is installed
	ClusterID       string          `json:"cluster_id"`
	UnitState       string          `json:"unit_state"` // running, stopped, failed, absent
	Version         string          `json:"version"`
	NodeReady       *bool           `json:"node_ready"`
	Conditions      json.RawMessage `json:"conditions"`
	PodCIDRs        []netip.Prefix  `json:"pod_cidrs"`
	APIReady        *bool           `json:"api_ready"` // this server's own API
	VIPReady        *bool           `json:"vip_ready"` // /readyz through the VIP with the cluster's CA
	Etcd            *EtcdReport     `json:"etcd"`
	Nodes           []K3sNodeReport `json:"nodes"` // servers: the Nodes as the API tells them
	TokenGeneration int64           `json:"token_generation"`
	Installed       bool            `json:"installed"`
	Message         string          `json:"message"`
}

// EtcdReport is the state of a server's etcd member.
type EtcdReport struct {
	Member  string `json:"member"`
	Healthy bool   `json:"healthy"`
	Members int    `json:"members"`
}

// K3sNodeReport is a Kubernetes Node's state as a server's agent reads it.
type K3sNodeReport struct {
	Name          string         `json:"name"`
	Ready         bool           `json:"ready"`
	Unschedulable bool           `json:"unschedulable"`
	Version       string         `json:"version"`
	PodCIDRs      []netip.Prefix `json:"pod_cidrs"`
}

// TaskReport is a task's progress.
type TaskReport struct {
	ID       string          `json:"id"`
	State    string          `json:"state"` // running, complete, failed
	Step     string          `json:"step"`
	Progress int             `json:"progress"`
	Message  string          `json:"message"`
	Result   json.RawMessage `json:"result"`
}

// ProbeReport is a probe's outcome.
type ProbeReport struct {
	ID         string    `json:"id"`
	Result     string    `json:"result"` // reachable, unreachable, error
	RTTMS      float64   `json:"rtt_ms"`
	MeasuredAt time.Time `json:"measured_at"`
}
