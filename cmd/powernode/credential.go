package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"

	"powernode/platform/governance"
	"powernode/tools"
)

const (
	// tokenHeader carries a credential over the control socket.
	tokenHeader = "Powernode-Token"
	// tokenVariable is the environment variable that may hold one.
	tokenVariable = "POWERNODE_TOKEN"
	// maxToken bounds the file of one.
	maxToken = 4096
)

// callerOf is for whom a request runs: whose token it carries, else the account's one agent. governance.ErrNoCredential
// says that the token is none: it never becomes the agent's.
func (c *control) callerOf(r *http.Request) (tools.Caller, error) {
	secrets := r.Header.Values(tokenHeader)
	switch len(secrets) {
	case 0:
		return governance.AgentCaller(c.account), nil
	case 1:
		return c.platform.Authenticate(context.WithoutCancel(r.Context()), secrets[0])
	}
	return tools.Caller{}, governance.ErrNoCredential
}

// withoutCredential is an environment for a process that outlives this one: a token in it is this one's.
func withoutCredential(environment []string) []string {
	return slices.DeleteFunc(environment, func(v string) bool { return strings.HasPrefix(v, tokenVariable+"=") })
}

// credentialFrom is the token that a command runs with: of a file, else of the environment, else none. The file is
// this user's and nobody else can read it.
func credentialFrom(path string) (string, error) {
	if path == "" {
		return strings.TrimSpace(os.Getenv(tokenVariable)), nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("open the token file: %w", err)
	}
	defer f.Close() // it was read
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("look at the token file: %w", err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 || !ok || int(owner.Uid) != os.Geteuid() {
		return "", fmt.Errorf("the token file %s must be a plain file of this user's with mode 0600", path)
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxToken+1))
	secret := strings.TrimSpace(string(raw))
	if err == nil && (secret == "" || len(raw) > maxToken) {
		err = errors.New("it holds no token")
	}
	if err != nil {
		return "", fmt.Errorf("read the token file %s: %w", path, err)
	}
	return secret, nil
}
