package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"powernode/spec/k3srig/internal/datastore"
	"powernode/spec/k3srig/internal/pki"
	"powernode/spec/k3srig/internal/token"
)

// readSecrets takes the passwords from the configuration, or those of an
// earlier start, or makes new ones.
func (srv *server) readSecrets() (token.Secrets, error) {
	s := srv.settings
	own, err := srv.readToken("token", s.Token)
	if err != nil {
		return token.Secrets{}, err
	}
	if own == "" {
		if own, err = token.Random(); err != nil {
			return token.Secrets{}, err
		}
	}
	out := token.Secrets{Server: own, Agent: own}
	if s.AgentToken != "" {
		t, err := token.Parse(s.AgentToken)
		if err != nil {
			return token.Secrets{}, fmt.Errorf("agent-token: %w", err)
		}
		out.Agent = t.Password
	}
	return out, nil
}

func (srv *server) readToken(file, configured string) (string, error) {
	var stored string
	if raw, err := os.ReadFile(srv.data.Server(file)); err == nil {
		t, err := token.Parse(string(raw))
		if err != nil {
			return "", fmt.Errorf("stored token: %w", err)
		}
		stored = t.Password
	} else if !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read token: %w", err)
	}
	if configured == "" {
		return stored, nil
	}
	t, err := token.Parse(configured)
	if err != nil {
		return "", fmt.Errorf("failed to normalize server token; must be in format K10<CA-HASH>::<USERNAME>:<PASSWORD> or <PASSWORD>: %w", err)
	}
	if stored != "" && stored != t.Password && datastore.Exists(srv.data) {
		return "", errors.New("bootstrap data already found and encrypted with different token")
	}
	return t.Password, nil
}

// checkTokenCA refuses a full token that is of another cluster. A new
// cluster's first server has no CA yet, so it takes the short form only.
func (srv *server) checkTokenCA() error {
	if srv.settings.Token == "" {
		return nil
	}
	t, err := token.Parse(srv.settings.Token)
	if err != nil {
		return err
	}
	return t.CheckCA(srv.cluster.Server.PEM)
}

func (srv *server) writeTokens() error {
	d, ca := srv.data, srv.cluster.Server.PEM
	full := token.Format(ca, token.UserServer, srv.secrets.Server)
	if err := pki.WriteFile(d.Server("token"), []byte(full+"\n"), 0o600); err != nil {
		return err
	}
	if err := link("token", d.Server("node-token")); err != nil {
		return err
	}
	if srv.secrets.Agent == srv.secrets.Server {
		return link("token", d.Server("agent-token"))
	}
	agent := token.Format(ca, token.UserNode, srv.secrets.Agent)
	if err := os.Remove(d.Server("agent-token")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("write agent token: %w", err)
	}
	if err := pki.WriteFile(d.Server("agent-token"), []byte(agent+"\n"), 0o600); err != nil {
		return err
	}
	passwd := strings.Join([]string{
		srv.secrets.Server + ",server,server,k3s:server",
		srv.secrets.Agent + ",node,node,k3s:agent",
	}, "\n")
	return pki.WriteFile(d.Cred("passwd"), []byte(passwd+"\n"), 0o600)
}

func link(target, name string) error {
	if got, err := os.Readlink(name); err == nil && got == target {
		return nil
	}
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("link %s: %w", name, err)
	}
	if err := os.Symlink(target, name); err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	return nil
}
