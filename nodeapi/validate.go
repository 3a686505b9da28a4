package nodeapi

import (
	"encoding/hex"
	"net/url"
	"slices"
	"strings"

	"powernode/sdwan"
)

func missing(key string) error { return &FieldError{"/" + key, "is missing"} }

// required answers an error for the first empty one of key, value, key, value….
func required(pairs ...string) error {
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			return missing(pairs[i])
		}
	}
	return nil
}

func (r EnrollRequest) validate() error {
	return required("token", r.Token, "csr_pem", r.CSRPEM, "agent_version", r.AgentVersion,
		"machine/hostname", r.Machine.Hostname, "machine/architecture", r.Machine.Architecture, "machine/os", r.Machine.OS)
}

func (r RefreshRequest) validate() error {
	return required("csr_pem", r.CSRPEM, "agent_version", r.AgentVersion)
}

func (e Enrollment) validate() error {
	if err := required("instance_id", e.InstanceID, "token", e.Token, "ca_pem", e.CAPEM); err != nil {
		return err
	}
	if len(e.PlatformURLs) == 0 {
		return missing("platform_urls")
	}
	for _, raw := range e.PlatformURLs {
		if u, err := url.Parse(raw); err != nil || u.Scheme != "https" || u.Host == "" {
			return &FieldError{"/platform_urls", "an address that is not https://HOST:PORT"}
		}
	}
	return nil
}

// validate checks what HTTP 422 stands for before any rule is asked: runtime, then phase, then fields.
func (r HandshakeRequest) validate() error {
	if r.Runtime != RuntimeK3sServer && r.Runtime != RuntimeK3sAgent {
		return &FieldError{"/runtime", "must be one of: k3s_server, k3s_agent"}
	}
	phases := []string{PhaseJoinRequest, PhaseBootstrap, PhaseReady, PhaseStopped}
	if r.Runtime == RuntimeK3sAgent {
		phases = []string{PhaseJoinRequest, PhaseReady, PhaseStopped}
	}
	if !slices.Contains(phases, r.Phase) {
		return &FieldError{"/phase", "must be one of: " + strings.Join(phases, ", ")}
	}
	return r.validateFields()
}

func (r HandshakeRequest) validateFields() error {
	type rule struct {
		name, value string
		need, may   []string // phases
	}
	for _, f := range []rule{
		{"target_cluster_id", r.TargetClusterID, nil, []string{PhaseJoinRequest}},
		{"kubeconfig", r.Kubeconfig, []string{PhaseBootstrap}, nil},
		{"k8s_version", r.K8sVersion, []string{PhaseBootstrap, PhaseReady}, nil},
		{"cluster_id", r.ClusterID, []string{PhaseReady}, []string{PhaseStopped}},
		{"role", r.Role, nil, []string{PhaseReady}},
		{"reason", r.Reason, nil, []string{PhaseStopped}},
	} {
		needed := slices.Contains(f.need, r.Phase)
		if needed && f.value == "" {
			return missing(f.name)
		}
		if f.value != "" && !needed && !slices.Contains(f.may, r.Phase) {
			return &FieldError{"/" + f.name, "is not taken in the phase " + r.Phase}
		}
	}
	if r.Role != "" && r.Role != "server" && r.Role != "agent" {
		return &FieldError{"/role", "must be one of: server, agent"}
	}
	if r.Reason != "" && !slices.Contains([]string{"unassigned", "uninstalled", "failed"}, r.Reason) {
		return &FieldError{"/reason", "must be one of: unassigned, uninstalled, failed"}
	}
	return nil
}

func validateDocument(d *sdwan.Document) error {
	if err := required("incarnation", d.Incarnation, "instance/id", d.Instance.ID); err != nil {
		return err
	}
	if d.Revision <= 0 {
		return &FieldError{"/revision", "must be above 0"}
	}
	return nil
}

func validateReport(r *sdwan.Report) error {
	for _, s := range r.Subsystems {
		if s.Name == "" {
			return missing("subsystems/name")
		}
		if s.State != "ok" && s.State != "error" && s.State != "not_measured" {
			return &FieldError{"/subsystems/state", "must be one of: ok, error, not_measured"}
		}
	}
	for _, k := range r.Keys {
		if err := required("keys/network_id", k.NetworkID, "keys/public_key", k.PublicKey); err != nil {
			return err
		}
		if k.Stage != "current" && k.Stage != "staged" {
			return &FieldError{"/keys/stage", "must be one of: current, staged"}
		}
	}
	for _, t := range r.Tunnels {
		if err := required("tunnels/network_id", t.NetworkID, "tunnels/remote_peer_id", t.RemotePeerID); err != nil {
			return err
		}
	}
	for _, t := range r.Tasks {
		if err := required("tasks/id", t.ID, "tasks/state", t.State); err != nil {
			return err
		}
	}
	for _, p := range r.Probes {
		if err := required("probes/id", p.ID); err != nil {
			return err
		}
		if p.Result != "reachable" && p.Result != "unreachable" && p.Result != "error" {
			return &FieldError{"/probes/result", "must be one of: reachable, unreachable, error"}
		}
	}
	return nil
}

// validSHA256 says whether s is a SHA-256 in lower-case hex.
func validSHA256(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 32 && strings.ToLower(s) == s
}
