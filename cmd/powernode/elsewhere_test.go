package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"powernode/platform/fleet"
	"powernode/store"
)

func TestAddressesForMachinesElsewhereAreOnesThatTheyReach(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		given []string
		want  []string
		text  string // of the refusal
	}{
		{given: []string{"192.0.2.7", "[2001:db8::7]:7443"}, want: []string{"192.0.2.7:0", "[2001:db8::7]:7443"}},
		{given: []string{"2001:db8::7"}, want: []string{"[2001:db8::7]:0"}},
		{given: []string{"off"}},
		{given: []string{"off", "192.0.2.7"}, text: "stands alone"},
		{given: []string{"platform.example.com"}, text: "takes ADDRESS or ADDRESS:PORT"},
		{given: []string{"[::]:7443"}, text: "no address that a machine could reach"},
		{given: []string{"fe80::1%eth0"}, text: "no address that a machine could reach"},
	} {
		got, err := agentAddresses(tt.given)
		if tt.text != "" {
			if err == nil || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%v: %v, want %q", tt.given, err, tt.text)
			}
			continue
		}
		var spelt []string
		for _, a := range got {
			spelt = append(spelt, a.String())
		}
		if diff := cmp.Diff(tt.want, spelt); err != nil || diff != "" {
			t.Errorf("%v: %v (-want +got):\n%s", tt.given, err, diff)
		}
	}
}

// elsewhereListeners are listeners of a state directory, and how often all documents were compiled anew.
func elsewhereListeners(t *testing.T, dir string) (l *listeners, opened *int) {
	t.Helper()
	sealer, err := store.NewSealer(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	authority, err := fleet.OpenAuthority(dir, sealer, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	opened = new(int)
	l = &listeners{file: filepath.Join(dir, "listeners.json"), namedFile: filepath.Join(dir, "agents.json"), authority: authority,
		handler: http.NotFoundHandler(), log: zerolog.Nop(), opened: func(context.Context) error { *opened++; return nil }}
	t.Cleanup(func() {
		if err := l.close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return l, opened
}

func TestNamedAddressStaysAcrossRestarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	start := func(given ...string) (urls []string, compiled int) {
		l, opened := elsewhereListeners(t, dir)
		if err := l.openNamed(t.Context(), given); err != nil {
			t.Fatalf("open %v: %v", given, err)
		}
		urls, compiled = l.elsewhere(), *opened
		if err := l.close(); err != nil {
			t.Fatal(err)
		}
		return urls, compiled
	}
	first, compiled := start("127.0.0.1")
	if len(first) != 1 || !strings.HasPrefix(first[0], "https://127.0.0.1:") || compiled != 1 {
		t.Fatalf("first start: %v, documents compiled %d times", first, compiled)
	}
	for name, given := range map[string][]string{"a start without the flag": nil, "the same flag again": {"127.0.0.1"}} {
		if again, compiled := start(given...); !cmp.Equal(first, again) || compiled != 0 {
			t.Errorf("%s: %v, want %v; documents compiled %d times", name, again, first, compiled)
		}
	}
	if off, compiled := start("off"); len(off) != 0 || compiled != 1 {
		t.Errorf("off: %v, documents compiled %d times", off, compiled)
	}
	if after, _ := start(); len(after) != 0 {
		t.Errorf("after off: %v", after)
	}
}

func TestAddressThatIsNotThisHostsIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, _ := elsewhereListeners(t, dir)
	if err := l.openNamed(t.Context(), []string{"192.0.2.7:7443"}); err == nil {
		t.Error("an address of somebody else was opened")
	}
	if _, err := os.Stat(l.namedFile); err == nil {
		t.Error("it was recorded")
	}
	// One that was recorded may come later: a listener waits for it.
	recorded := netip.MustParseAddrPort("192.0.2.7:0")
	if err := os.WriteFile(l.namedFile, []byte(`["`+recorded.String()+`"]`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.openNamed(t.Context(), nil); err != nil || len(l.elsewhere()) != 1 {
		t.Errorf("a recorded address that is not there yet: %v, %v", l.elsewhere(), err)
	}
}

func TestAgentProgramIsWhatItsSHA256Says(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "powernode-agent")
	if err := os.WriteFile(path, []byte("one"), 0o755); err != nil {
		t.Fatal(err)
	}
	a := &agentProgram{path: path}
	for _, content := range []string{"one", "another one"} { // an upgrade of the platform while it runs
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
		p, err := a.describe()
		if err != nil {
			t.Fatal(err)
		}
		f, err := a.open(p.SHA256)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(f)
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if err != nil || string(got) != content {
			t.Errorf("served %q, %v; want %q", got, err, content)
		}
	}
	if _, err := a.open(strings.Repeat("0", 64)); err == nil {
		t.Error("another SHA-256 was served")
	}
}
