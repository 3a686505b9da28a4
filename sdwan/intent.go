package sdwan

import (
	"fmt"
	"net/netip"
)

// Topology strategies of a network. An empty strategy is StrategyAuto.
const (
	StrategyAuto        = "auto"
	StrategyFullMesh    = "full_mesh"
	StrategyHubAndSpoke = "hub_and_spoke"
)

// Actions of a rule and default policies of a network.
const (
	ActionAccept = "accept"
	ActionDrop   = "drop"
	ActionReject = "reject"
)

// Directions of a rule, seen from the peer: ingress is where the destination is, egress where the source is.
const (
	DirectionIngress = "ingress"
	DirectionEgress  = "egress"
	DirectionBoth    = "both"
)

// Protocols of a rule. An empty protocol is ProtocolAny.
const (
	ProtocolAny   = "any"
	ProtocolTCP   = "tcp"
	ProtocolUDP   = "udp"
	ProtocolICMP6 = "icmp6"
)

// Flannel backends of a cluster. With host-gw pod addresses travel bare, so they are in AllowedIPs and routes.
const (
	BackendVXLAN  = "vxlan"
	BackendHostGW = "host-gw"
)

// Intent is one network's intent, everything that its documents depend on. Compiling does not change it, and the
// order of its lists means nothing.
type Intent struct {
	NetworkID     string
	Name          string
	CIDR          netip.Prefix // the network's /64
	AccountPrefix netip.Prefix // the account's /48
	MTU           int          // 0 is DefaultMTU
	Strategy      string       // auto, full_mesh, hub_and_spoke
	DefaultPolicy string       // accept, drop: what enters peers through the network and no rule names
	Suspended     bool
	Members       []Member
	VIPs          []VIPIntent
	Devices       []Device
	Rules         []Rule
	Clusters      []Cluster
}

// Member is a peer of the network: an instance with an address and an interface.
type Member struct {
	PeerID            string
	Name              string // for people, in reasons; empty is the peer id
	InstanceID        string
	RegionID          string // reported endpoints count inside one region; an empty one is no region
	Address           netip.Addr
	AddressV4         netip.Addr // invalid: none
	ShortID           int        // 1..9999, numbers the interface on its host
	ListenPort        int
	PublicKey         string // base64; empty: not reported yet
	NextPublicKey     string // the successor during a rotation
	PubliclyReachable bool   // a hub, if it has an endpoint host and port too
	EndpointHost      string // host name or address, named by the operator: usable for everybody
	EndpointHostV6    string // preferred
	EndpointHostV4    string // then this, then EndpointHost
	EndpointPort      int    // 0: the listen port
	ReportedEndpoints []netip.AddrPort
	LANSubnets        []netip.Prefix
	PodCIDRs          []netip.Prefix // of the instance's Kubernetes node, as reported
	Tags              []string
}

// VIPIntent is a virtual IP. An empty holder is nobody: then the address is nowhere.
type VIPIntent struct {
	ID           string
	Address      netip.Addr
	HolderPeerID string
	Epoch        int64
}

// Device is a person's device. One without a public key has an address, but no tunnel yet.
type Device struct {
	ID        string
	Label     string
	PublicKey string
	Address   netip.Addr
	Tags      []string // those of its grant
}

// Rule is a user's firewall rule. Lower priority comes first, then the name. A nil selector is any.
type Rule struct {
	ID          string
	Name        string
	Priority    int
	Action      string // accept, drop, reject
	Direction   string // ingress, egress, both
	Protocol    string // any, tcp, udp, icmp6
	Source      *Selector
	Destination *Selector
	PortFrom    int // destination port, 0 is any
	PortTo      int
	Enabled     bool
	Force       bool // stands before the clusters' built-in rules
}

// Selector names one side of a rule; exactly one field is set.
type Selector struct {
	PeerID string
	Tag    string
	CIDR   netip.Prefix
	All    bool
}

// Cluster is a Kubernetes cluster of the network, by desired membership: who joins is in it before it has joined.
type Cluster struct {
	ID             string
	Name           string
	VIP            netip.Addr // of the API; invalid: none yet
	ServerPeerIDs  []string
	AgentPeerIDs   []string
	FlannelBackend string       // vxlan, host-gw
	PodCIDR        netip.Prefix // of the whole cluster
	ServiceCIDR    netip.Prefix // of the whole cluster
}

// Host is what the one firewall table of an instance depends on: all its memberships.
type Host struct {
	InstanceID  string
	Memberships []Membership
	// Platform has the addresses of the platform's agent API; no rule of ours ever cuts the flow to them.
	Platform []netip.AddrPort
	// PodInterfaces are the interfaces of pods, which are no underlay; a name may end in `*`. Empty is
	// DefaultPodInterfaces on a host that is in a cluster, and none elsewhere.
	PodInterfaces []string
}

// Membership is one network of a host, and which of its peers the host is.
type Membership struct {
	Intent Intent
	PeerID string
}

// OverlapError says that one address would have two owners. Compile never chooses.
type OverlapError struct {
	NetworkID   string
	Prefix      netip.Prefix
	Owner       string // for example `peer 0198…`, `virtual_ip 0198…`, `device 0198…`
	OtherPrefix netip.Prefix
	Other       string
}

func (e *OverlapError) Error() string {
	return fmt.Sprintf("%s of %s overlaps %s of %s", e.Prefix, e.Owner, e.OtherPrefix, e.Other)
}

// IntentError says that an intent contradicts itself, for example a virtual IP held by nobody of the network.
type IntentError struct {
	NetworkID string
	Object    string // for example `peer 0198…`
	Reason    string
}

func (e *IntentError) Error() string {
	return fmt.Sprintf("%s: %s", e.Object, e.Reason)
}

// DeviceName is the name of the interface with that number on its host. All code asks this one function.
func DeviceName(shortID int) string {
	return fmt.Sprintf("wg-sdwan-%d", shortID)
}

// MaxShortID is the highest interface number; names then have at most 13 of 15 characters.
const MaxShortID = 9999

func (m Member) label() string {
	if m.Name != "" {
		return m.Name
	}
	return m.PeerID
}
