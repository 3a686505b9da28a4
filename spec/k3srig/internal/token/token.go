// Package token reads, writes and compares the secrets that join machines to a cluster.
package token

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

const prefix = "K10"

// Users of tokens. A server token opens everything, a node's only what agents need.
const (
	UserServer = "server"
	UserNode   = "node"
)

// Token is a join token. CAHash and User are empty in the short form.
type Token struct {
	CAHash   string
	User     string
	Password string
}

// Parse reads a bare password or K10<sha256 of the CA>::<user>:<password>.
func Parse(s string) (Token, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return Token{}, errors.New("token must not be empty")
	}
	rest, full := strings.CutPrefix(s, prefix)
	if !full {
		return Token{Password: s}, nil
	}
	hash, creds, ok := strings.Cut(rest, "::")
	if !ok {
		return Token{}, errors.New("invalid token format")
	}
	if len(hash) != 0 && len(hash) != sha256.Size*2 {
		return Token{}, errors.New("invalid token CA hash length")
	}
	user, pw, ok := strings.Cut(creds, ":")
	if !ok || pw == "" {
		return Token{}, errors.New("invalid token format")
	}
	return Token{CAHash: hash, User: user, Password: pw}, nil
}

// Format writes the full form for the CA in caPEM.
func Format(caPEM []byte, user, password string) string {
	return prefix + HashCA(caPEM) + "::" + user + ":" + password
}

// HashCA is the hash in a token: that of the certificate file's bytes.
func HashCA(caPEM []byte) string {
	sum := sha256.Sum256(caPEM)
	return hex.EncodeToString(sum[:])
}

// CheckCA compares the token's hash, if it has one, with a server's CA.
func (t Token) CheckCA(caPEM []byte) error {
	if t.CAHash == "" {
		return nil
	}
	if got := HashCA(caPEM); got != t.CAHash {
		return fmt.Errorf("token CA hash does not match the Cluster CA certificate hash: %s != %s", t.CAHash, got)
	}
	return nil
}

// Random makes a password.
func Random() (string, error) {
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		return "", fmt.Errorf("make a random token: %w", err)
	}
	return hex.EncodeToString(b), nil
}

// Access is what a caller may use.
type Access int

// Levels of access, each including the one before.
const (
	None Access = iota
	Agent
	Server
)

// Secrets are the passwords of a cluster.
type Secrets struct {
	Server string
	Agent  string // equal to Server unless the cluster has an agent token
}

// Authorize tells what a password opens. The server token opens everything
// under either name; the agent token opens nothing of a server's.
func (s Secrets) Authorize(user, password string) Access {
	if user != UserServer && user != UserNode {
		return None
	}
	if same(password, s.Server) && s.Server != "" {
		if user == UserServer {
			return Server
		}
		return Agent
	}
	if same(password, s.Agent) && s.Agent != "" && user == UserNode {
		return Agent
	}
	return None
}

func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}
