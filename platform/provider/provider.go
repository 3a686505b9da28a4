package provider

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"
)

// ErrNotFound says that the provider knows no such machine; for Terminate that is success.
var ErrNotFound = errors.New("provider knows no such machine")

// Status is a machine's state as the provider tells it, normalised.
type Status string

// Statuses. A vendor's word that is none of these is StatusUnknown, never a guess.
const (
	StatusPending     Status = "pending"
	StatusStarting    Status = "starting"
	StatusRunning     Status = "running"
	StatusStopping    Status = "stopping"
	StatusStopped     Status = "stopped"
	StatusRebooting   Status = "rebooting"
	StatusTerminating Status = "terminating"
	StatusTerminated  Status = "terminated"
	StatusFailed      Status = "failed"
	StatusUnknown     Status = "unknown"
)

// Machine is a provider's normalised answer. An ID is always set: a success without one is a failure.
type Machine struct {
	ID             string // the provider's own
	InstanceID     string // the tag powernode:instance_id
	Name           string
	Status         Status
	PrivateAddress netip.Addr
	PublicAddress  netip.Addr
	SyncedAt       time.Time
}

// CreateInput asks for a machine. InstanceID is the tag by which a create that lost its answer is found again.
type CreateInput struct {
	AccountID        string
	NodeID           string
	InstanceID       string
	Name             string // DNS label, at most 63 characters
	RegionCode       string
	InstanceTypeCode string
	MachineImage     string
	MemoryMB         int
	VCPUs            int
	AdminUser        string
	SSHKeyIDs        []string
	AllocatePublicIP bool
	Spot             bool
	InitScript       string
	// Enrollment is the JSON of nodeapi.Enrollment; it reaches the machine by file descriptor or a 0600 file.
	Enrollment []byte
}

// Capability is what a provider can do beside making machines; callers ask first, what is not declared is refused.
type Capability string

// Capabilities.
const (
	CapabilityPublicIP   Capability = "addresses"
	CapabilitySpot       Capability = "spot"
	CapabilityImages     Capability = "images"
	CapabilitySSHKeys    Capability = "ssh_keys"
	CapabilityPower      Capability = "power"     // Start, Stop and Reboot
	CapabilitySync       Capability = "sync"      // Get tells the machine's status; without it the status is unknown
	CapabilityEnrollment Capability = "enrolment" // machines that are there already: whoever runs them enrols them by a command
)

// Can says whether a provider declares a capability.
func Can(p Provider, c Capability) bool { return slices.Contains(p.Capabilities(), c) }

// Connection is how a vendor is reached. Config has the credentials in the clear: it is for the call's time alone.
type Connection struct {
	EndpointURL string
	Config      map[string]any
}

// Region is a place where a provider makes machines.
type Region struct{ Name, Code, Description string }

// InstanceType is a size of machines. Zero is not known.
type InstanceType struct {
	Name, Code, Description    string
	VCPUs, MemoryMB, StorageGB int64
}

// Provider is where machines come from. Every method is bounded by its context; Create is idempotent by InstanceID;
// Terminate of a machine that is gone is success. Start, Stop and Reboot are idempotent too: what runs is started, what is
// stopped is stopped, and a reboot of what is stopped starts it.
type Provider interface {
	Type() string
	Capabilities() []Capability
	// Architectures are those of the machines that Create makes (amd64, arm64); none: the machines are what they are.
	Architectures() []string
	// ConfigKeys are the keys that a provider's config may have.
	ConfigKeys() []string
	// Regions and InstanceTypes are what a new provider of this type starts with.
	Regions(ctx context.Context) ([]Region, error)
	InstanceTypes(ctx context.Context) ([]InstanceType, error)
	// Check tells whether machines could be made over a connection: that its credentials are good, say.
	Check(ctx context.Context, c Connection) error
	Create(ctx context.Context, in CreateInput) (Machine, error)
	// Get answers ErrNotFound for a machine that is gone.
	Get(ctx context.Context, id string) (Machine, error)
	// List answers all machines of the account, found by their tags.
	List(ctx context.Context, accountID string) ([]Machine, error)
	Start(ctx context.Context, id string) error
	Stop(ctx context.Context, id string, mode StopMode) error
	Reboot(ctx context.Context, id string, mode StopMode) error
	Terminate(ctx context.Context, id string) error
}

// StopMode says whether the operating system is asked.
type StopMode int

// Stop modes.
const (
	Graceful StopMode = iota
	PowerOff          // the hard way, without asking
)
