package live_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pages "powernode/docs"
	"powernode/spec/docs"
	"powernode/spec/rig"
)

// Not in parallel: two clusters at a time are what a small host carries.
func TestTutorialPageRunsAsItStands(t *testing.T) {
	r := newReader(t)
	r.read(t, "tutorial.md")
}

// Not in parallel: see above.
func TestRunbookPageRunsAsItStands(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel) // after the installation's end, which needs the session
	r := newReader(t)
	for _, prepare := range []func(context.Context) error{r.Init, r.Connect, func(ctx context.Context) error { return r.Provide(ctx, r.k3s) }} {
		if err := prepare(ctx); err != nil {
			t.Fatal(err)
		}
	}
	r.read(t, "runbook.md")
}

// Not in parallel: see above.
func TestOperatingPageRunsAsItStands(t *testing.T) {
	r := newReader(t)
	if err := r.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.read(t, "operate.md")
}

// reader is somebody who types a page's shell blocks in one root shell, in their order.
type reader struct {
	*rig.Installation
	k3s  rig.K3s
	home string
	root string // of the project: where the reader stands
}

func newReader(t *testing.T) *reader {
	t.Helper()
	root := moduleRoot(t)
	k3s, err := rig.ChooseK3s(t.Context(), os.Getenv("K3S"), filepath.Join(root, ".cache"), filepath.Join(root, "spec"), logWriter{t})
	if err != nil {
		t.Fatal(err)
	}
	home, err := os.MkdirTemp("", "pn-page-") // short: a unix socket's path is
	if err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(home, "powernode")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	r := &reader{Installation: rig.New(filepath.Join(root, "bin"), state), k3s: k3s, home: home, root: root}
	t.Cleanup(func() { r.leave(t) })
	return r
}

func (r *reader) leave(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if t.Failed() {
		log, err := os.ReadFile(filepath.Join(r.Dir, "serve.log"))
		t.Logf("the control plane's log, its end (%v):\n%s", err, log[max(0, len(log)-6000):])
	}
	if err := errors.Join(r.Close(ctx), os.RemoveAll(r.home)); err != nil {
		t.Error(err)
	}
}

func (r *reader) read(t *testing.T, name string) {
	text, err := fs.ReadFile(pages.Files, name)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-c", script(name, string(text)))
	shell.Dir = r.root
	shell.Env = append(os.Environ(), "HOME="+r.home, "XDG_STATE_HOME="+r.home, "K3S="+r.k3s.Path, "HTTP="+freeAddress(t))
	printed, err := rig.Attend(ctx, shell, []rig.Exchange{{Asked: "e-mail address:", Typed: rig.Email}, {Asked: "name:", Typed: "The Operator"},
		{Asked: "passphrase:", Typed: r.Passphrase}, {Asked: "passphrase again:", Typed: r.Passphrase}, {Asked: "[y/n]", Typed: "yes"}})
	t.Log(printed)
	if err != nil {
		t.Fatalf("%s does not run as it stands: %v", name, err)
	}
}

// script is a page's shell blocks as one script that ends at the first command that fails.
func script(name, text string) string {
	var b strings.Builder
	b.WriteString("set -eo pipefail\n")
	for _, block := range docs.FencedBlocks(text) {
		if block.Language == "sh" {
			fmt.Fprintf(&b, "echo '=== %s:%d'\n%s", name, block.Line, block.Text)
		}
	}
	return b.String()
}

// freeAddress is one that nobody listens at now, nor later, when the page's command does: of the loopback's sixteen million
// addresses it is one that no other program takes a port of.
func freeAddress(t *testing.T) string {
	t.Helper()
	own := netip.AddrFrom4([4]byte{127, byte(1 + rand.N(254)), byte(rand.N(256)), byte(1 + rand.N(254))})
	listener, err := net.Listen("tcp", netip.AddrPortFrom(own, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
