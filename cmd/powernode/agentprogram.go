package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"sync"
	"time"

	"powernode/nodeapi"
	"powernode/platform/fleet"
	"powernode/schema"
)

// agentProgram is the agent's program on this host, which machines elsewhere fetch by its SHA-256.
type agentProgram struct {
	path string

	mu      sync.Mutex
	sum     string
	size    int64
	changed time.Time
}

// describe answers its SHA-256; the file is read again when it has changed.
func (a *agentProgram) describe() (fleet.AgentProgram, error) {
	f, err := os.Open(a.path)
	if err != nil {
		return fleet.AgentProgram{}, fmt.Errorf("open the agent's program: %w", err)
	}
	defer f.Close()
	sum, err := a.sumOf(f)
	return fleet.AgentProgram{SHA256: sum, Architecture: runtime.GOARCH, Path: nodeapi.AgentProgramPath}, err
}

func (a *agentProgram) sumOf(f *os.File) (string, error) {
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("look at the agent's program: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sum != "" && a.size == info.Size() && a.changed.Equal(info.ModTime()) {
		return a.sum, nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read the agent's program: %w", err)
	}
	a.sum, a.size, a.changed = hex.EncodeToString(h.Sum(nil)), info.Size(), info.ModTime()
	_, err = f.Seek(0, io.SeekStart)
	return a.sum, err
}

// open answers the program if that is its SHA-256. Anybody may have it: it holds no secret.
func (a *agentProgram) open(sum string) (io.ReadSeekCloser, error) {
	f, err := os.Open(a.path)
	if err != nil {
		return nil, fmt.Errorf("open the agent's program: %w", err)
	}
	have, err := a.sumOf(f)
	if err == nil && have != sum {
		err = &nodeapi.Error{HTTPStatus: http.StatusNotFound, Code: string(schema.NotFound), Message: "no agent of that SHA-256"}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
