package boot

import "net/netip"

// Paths inside a machine.
const (
	AgentPath      = "/usr/local/libexec/powernode-agent"
	AgentStateDir  = "/var/lib/powernode-agent"
	EnrollmentPath = "/run/powernode-enrollment.json"
	// MarkerPath exists once the machine is up; whoever started it may then die without harm.
	MarkerPath = "/run/powernode-machine.json"
	InitLog    = "/var/log/powernode-init.log"
	AgentLog   = "/var/log/powernode-agent.log"
)

// Link is the machine's one interface beside lo.
const Link = "eth0"

// File descriptors of the first process: what its starter says, and what it answers.
const (
	OrdersFD  = 3
	AnswersFD = 4
)

// Spec is the machine's shape, sent first.
type Spec struct {
	MachineID string         `json:"machine_id"` // the provider's
	Hostname  string         `json:"hostname"`
	Root      string         `json:"root"`      // the machine's own files
	UsrLocal  string         `json:"usr_local"` // becomes /usr/local
	BootID    string         `json:"boot_id"`
	Addresses []netip.Prefix `json:"addresses"`
	Gateways  []netip.Addr   `json:"gateways"`
}

// Go is sent when the network is there and the machine is on record. Without it the machine ends.
type Go struct {
	Enrollment []byte `json:"enrollment"` // nil: none, or used already
}

// Answer ends the start: the machine is up, or why not.
type Answer struct {
	Error string `json:"error,omitempty"`
}
