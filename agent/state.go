package agent

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"powernode/agent/atomicfile"
	"powernode/nodeapi"
	"powernode/sdwan"
)

// state is the agent's directory: identity, last good document, a lock that keeps a second agent out.
type state struct {
	dir  string
	lock *os.File
}

// openState makes the directory where there is none and takes its lock. A directory that others may read is refused.
func openState(dir string) (*state, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("look at the state directory: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("state directory %s is %#o, not 0700: chmod it", dir, info.Mode().Perm())
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("state directory %s belongs to user %d", dir, st.Uid)
	}
	f, err := os.OpenFile(filepath.Join(dir, "agent.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the agent's lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("another agent uses %s: %w", dir, err)
	}
	return &state{dir: dir, lock: f}, nil
}

func (s *state) close() error { return s.lock.Close() }

func (s *state) path(name string) string { return filepath.Join(s.dir, name) }

// readJSON answers false when there is no such file.
func (s *state) readJSON(name string, v any) (bool, error) {
	data, err := os.ReadFile(s.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %s: %w", name, err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return false, fmt.Errorf("read %s: %w", name, err)
	}
	return true, nil
}

func (s *state) writeJSON(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	return atomicfile.Write(s.path(name), data, 0o600)
}

func (s *state) remove(name string) error {
	if err := os.Remove(s.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}

// Names in the state directory.
const (
	identityFile  = "identity.json"
	enrollingFile = "enrolling.json"
	renewingFile  = "renewing.json"
	documentFile  = "document.json"
)

// identity is who this node is. Certificate and key stand in one file, so that a renewal changes both or neither.
type identity struct {
	InstanceID   string    `json:"instance_id"`
	NodeID       string    `json:"node_id"`
	PlatformURLs []string  `json:"platform_urls"`
	CAPEM        string    `json:"ca_pem"` // pinned at enrolment
	CertPEM      string    `json:"cert_pem"`
	KeyPEM       string    `json:"key_pem"`
	NotAfter     time.Time `json:"not_after"`
	RenewAfter   time.Time `json:"renew_after"`
}

// certificate parses the pair; an identity whose halves don't fit is unreadable.
func (id *identity) certificate() (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair([]byte(id.CertPEM), []byte(id.KeyPEM))
	if err != nil {
		return nil, fmt.Errorf("the node's certificate: %w", err)
	}
	return &pair, nil
}

func (s *state) readIdentity() (*identity, error) {
	var id identity
	found, err := s.readJSON(identityFile, &id)
	if err != nil || !found {
		return nil, err
	}
	if _, err := id.certificate(); err != nil {
		return nil, err
	}
	return &id, nil
}

// readDocument answers nil when there is none yet.
func (s *state) readDocument() (*sdwan.Document, error) {
	data, err := os.ReadFile(s.path(documentFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the last document: %w", err)
	}
	doc, err := nodeapi.DecodeDocument(data)
	if err != nil {
		return nil, fmt.Errorf("read the last document: %w", err)
	}
	return doc, nil
}

func (s *state) writeDocument(doc *sdwan.Document) error {
	data, err := nodeapi.EncodeDocument(doc)
	if err != nil {
		return err
	}
	return atomicfile.Write(s.path(documentFile), data, 0o600)
}
