package nodeapi

import (
	"context"
	"crypto/x509"
	"io"
	"time"

	"powernode/sdwan"
)

// ProtocolHeader names the version of the protocol; an unknown one is HTTP 426.
const (
	ProtocolHeader  = "Powernode-Protocol"
	ProtocolVersion = "1"
	// BasePath is where the agent API lives.
	BasePath = "/api/v1/system/node_api"
	// DeviceBootstrapPath is where devices of persons redeem their token.
	DeviceBootstrapPath = "/api/v1/system/sdwan/bootstrap/"
	// AgentProgramPath is where machines that have no agent yet fetch its program, by its SHA-256.
	AgentProgramPath = "/api/v1/system/agent/"
)

// Identity is who presented a certificate.
type Identity struct {
	InstanceID    string
	CertificateID string // "" where the platform's record of it has gone
	Serial        string
	Standing      Standing
}

// Standing is what a certificate is good for. Everything but what is said here is refused.
type Standing int

const (
	// StandingCurrent may do all that an agent does.
	StandingCurrent Standing = iota
	// StandingReplaced may repeat the renewal that ended it.
	StandingReplaced
	// StandingEnded is of an instance that has ended: it may read its last document, which says so, report, and tell that K3s has
	// stopped.
	StandingEnded
)

// Machine is what a machine says of itself when it enrols.
type Machine struct {
	Hostname     string `json:"hostname"`
	Architecture string `json:"architecture"` // amd64, arm64
	OS           string `json:"os"`
	MachineID    string `json:"machine_id"`
}

// EnrollRequest trades a one-time token for a certificate; the key of the CSR never leaves the node.
type EnrollRequest struct {
	Token        string  `json:"token"`
	CSRPEM       string  `json:"csr_pem"`
	AgentVersion string  `json:"agent_version"`
	Machine      Machine `json:"machine"`
}

// EnrollAnswer is the node's identity.
type EnrollAnswer struct {
	InstanceID    string    `json:"instance_id"`
	NodeID        string    `json:"node_id"`
	CertificateID string    `json:"certificate_id"`
	CertPEM       string    `json:"cert_pem"`
	CAChainPEM    string    `json:"ca_chain_pem"`
	NotAfter      time.Time `json:"not_after"`
	RenewAfter    time.Time `json:"renew_after"`
	PlatformURLs  []string  `json:"platform_urls"`
}

// RefreshRequest renews a certificate with a new key.
type RefreshRequest struct {
	CSRPEM       string `json:"csr_pem"`
	AgentVersion string `json:"agent_version"`
}

// RefreshAnswer is the renewed certificate.
type RefreshAnswer struct {
	CertificateID string    `json:"certificate_id"`
	CertPEM       string    `json:"cert_pem"`
	CAChainPEM    string    `json:"ca_chain_pem"`
	NotAfter      time.Time `json:"not_after"`
	RenewAfter    time.Time `json:"renew_after"`
}

// ReportAnswer acknowledges a report.
type ReportAnswer struct {
	Acknowledged      bool      `json:"acknowledged"`
	ServerTime        time.Time `json:"server_time"`
	NextReportSeconds int       `json:"next_report_seconds"`
}

// Runtimes and phases of the handshake.
const (
	RuntimeK3sServer = "k3s_server"
	RuntimeK3sAgent  = "k3s_agent"

	PhaseJoinRequest = "join_request"
	PhaseBootstrap   = "bootstrap"
	PhaseReady       = "ready"
	PhaseStopped     = "stopped"
)

// HandshakeRequest is one phase of a runtime's life. Fields that a phase does not take are refused.
type HandshakeRequest struct {
	Runtime         string `json:"runtime"`
	Phase           string `json:"phase"`
	TargetClusterID string `json:"target_cluster_id,omitempty"` // join_request
	Kubeconfig      string `json:"kubeconfig,omitempty"`        // bootstrap
	K8sVersion      string `json:"k8s_version,omitempty"`       // bootstrap, ready
	ClusterID       string `json:"cluster_id,omitempty"`        // ready, stopped
	Role            string `json:"role,omitempty"`              // ready: server, agent
	Reason          string `json:"reason,omitempty"`            // stopped: unassigned, uninstalled, failed
}

// HandshakeAnswer answers every phase; which fields are set is the phase's. Null is absent.
type HandshakeAnswer struct {
	// join_request
	Mode            string                 `json:"mode"` // init, join
	ClusterID       string                 `json:"cluster_id"`
	APIEndpoint     string                 `json:"api_endpoint"`
	ServerURL       string                 `json:"server_url"`   // mode join
	ServerToken     string                 `json:"server_token"` // servers alone
	AgentToken      string                 `json:"agent_token"`
	CAPEM           string                 `json:"ca_pem"` // mode join
	NodeName        string                 `json:"node_name"`
	NodeIP          string                 `json:"node_ip"`
	TokenGeneration int64                  `json:"token_generation"`
	Server          *sdwan.BootstrapConfig `json:"configuration"`       // k3s_server
	Agent           *sdwan.AgentConfig     `json:"agent_configuration"` // k3s_agent
	// bootstrap
	ClusterStatus string `json:"cluster_status"`
	// ready, stopped
	NodeID       string `json:"node_id"`
	NodeStatus   string `json:"node_status"`
	Role         string `json:"role"`
	Acknowledged bool   `json:"acknowledged"`
}

// RuntimeConfig is the answer of GET /runtime/{k3s_server,k3s_agent}/config: one of the two.
type RuntimeConfig struct {
	Server *sdwan.K3sServer
	Agent  *sdwan.K3sAgent
}

// DeviceBootstrapRequest redeems a device's token. PublicKey is absent when it was given at issue.
type DeviceBootstrapRequest struct {
	PublicKey string `json:"public_key,omitempty"`
}

// DeviceBootstrapAnswer is a WireGuard configuration with the line PrivateKey left to fill.
type DeviceBootstrapAnswer struct {
	Config   string `json:"config"`
	Filename string `json:"filename"`
}

// Error is an error of the agent API. Class names the platform's own error where there is one.
type Error struct {
	HTTPStatus int         `json:"-"`
	Code       string      `json:"code"`
	Class      string      `json:"class"`
	Message    string      `json:"message"`
	Reason     string      `json:"reason"`
	Retryable  bool        `json:"retryable"`
	RetryAfter int         `json:"-"` // seconds, with 503
	Candidates []Candidate `json:"candidates,omitempty"`
}

// Candidate is a cluster that an ambiguous join could have meant.
type Candidate struct {
	ClusterID string `json:"cluster_id"`
	Name      string `json:"name"`
	Status    string `json:"status"`
}

func (e *Error) Error() string { return e.Message }

// Backend is what the server needs of a platform. Errors are *Error, or become HTTP 500.
type Backend interface {
	// Authenticate checks a presented certificate (ServerTLS has verified who signed it, not its time): serial known, validity,
	// not revoked, subject.
	Authenticate(ctx context.Context, cert *x509.Certificate) (Identity, error)
	Enroll(ctx context.Context, in EnrollRequest) (EnrollAnswer, error)
	Refresh(ctx context.Context, id Identity, in RefreshRequest) (RefreshAnswer, error)
	// Desired waits until there is a document above after, or the wait ends: nil then. An incarnation that is not
	// the store's gets the document at once.
	Desired(ctx context.Context, id Identity, after int64, incarnation string, wait time.Duration) (*sdwan.Document, error)
	Report(ctx context.Context, id Identity, in sdwan.Report) (ReportAnswer, error)
	Handshake(ctx context.Context, id Identity, in HandshakeRequest) (HandshakeAnswer, error)
	RuntimeConfig(ctx context.Context, id Identity, runtime string) (RuntimeConfig, error)
	// Artifact opens the bytes of an artefact that the caller's document names.
	Artifact(ctx context.Context, id Identity, sha256 string) (io.ReadSeekCloser, error)
	// DeviceBootstrap redeems; DeviceBootstrapInfo tells what to do and uses nothing up.
	DeviceBootstrap(ctx context.Context, token string, in DeviceBootstrapRequest) (DeviceBootstrapAnswer, error)
	DeviceBootstrapInfo(ctx context.Context, token string) (string, error)
	// AgentProgram opens the agent's own program; one of another SHA-256 is not found. Everybody may ask.
	AgentProgram(ctx context.Context, sha256 string) (io.ReadSeekCloser, error)
}

// Enrollment is what a machine is handed to enrol with: by file descriptor, or a 0600 file removed after use.
type Enrollment struct {
	InstanceID   string   `json:"instance_id"`
	Token        string   `json:"token"`
	PlatformURLs []string `json:"platform_urls"` // https://HOST:PORT, the agent API's
	CAPEM        string   `json:"ca_pem"`        // the one CA that the agent trusts
}
