package k3s

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"powernode/agent"
)

// A binary that has not the digest of its version is refused and reported, and nothing of it is installed or started.
func TestBinaryWithAnotherDigestIsNotInstalled(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	doc := l.server()
	doc.K3s.Server.Artifact.SHA256 = strings.Repeat("0", 64)
	var waits *agent.Pending
	if err := l.s.Reconcile(t.Context(), doc); err == nil || errors.As(err, &waits) {
		t.Fatalf("got %v, want an error that the report carries", err)
	}
	for _, path := range []string{binaryPath, configPath, serverTokenPath} {
		if _, err := os.Stat(l.path(path)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there (%v)", path, err)
		}
	}
	if len(l.units) != 0 || strings.Contains(l.phases(), "bootstrap") {
		t.Errorf("units %v, handshakes %q", l.units, l.phases())
	}
	l.must(l.server()) // the right one is
}
