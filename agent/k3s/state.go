package k3s

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"powernode/agent/atomicfile"
)

const stateVersion = 1

// state is what can't be read off the host: which cluster this member is in and what the platform has been told. It
// holds no secret; lost, everything is found again from host and platform.
type state struct {
	Version         int    `json:"version"`
	Role            string `json:"role"`
	ClusterID       string `json:"cluster_id"`
	Mode            string `json:"mode"` // init, join
	TokenGeneration int64  `json:"token_generation"`
	APIEndpoint     string `json:"api_endpoint"`
	ServerURL       string `json:"server_url"`
	ServerTokenHash string `json:"server_token_hash"`
	AgentTokenHash  string `json:"agent_token_hash"`
	BinarySHA256    string `json:"binary_sha256"` // of the running process
	Bootstrapped    string `json:"bootstrapped"`  // hash of what bootstrap told
	Ready           string `json:"ready"`         // cluster, version and boot of the last ready
	Cleaned         bool   `json:"cleaned"`       // the host is clean, the platform doesn't know yet
}

// stateFile keeps the state; zero is none.
type stateFile struct{ dir string }

func (f stateFile) path() string { return filepath.Join(f.dir, "state.json") }

func (f stateFile) read() (state, error) {
	var s state
	b, err := os.ReadFile(f.path())
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("read K3s' state: %w", err)
	}
	if err := json.Unmarshal(b, &s); err != nil || s.Version != stateVersion {
		return state{}, nil // as good as lost
	}
	return s, nil
}

func (f stateFile) write(s state) error {
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return fmt.Errorf("make the state's directory: %w", err)
	}
	s.Version = stateVersion
	b, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode K3s' state: %w", err)
	}
	return atomicfile.Write(f.path(), b, 0o600)
}

func (f stateFile) remove() error {
	if err := os.RemoveAll(f.dir); err != nil {
		return fmt.Errorf("remove K3s' state: %w", err)
	}
	return nil
}

func hashOf(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])
}
