package module

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"powernode/sdwan"
)

// shelf is a machine's package manager that can install what it has.
type shelf struct {
	has, installed []string
	calls          []string
}

func (s *shelf) Installed(_ context.Context, names []string) (map[string]bool, error) {
	out := map[string]bool{}
	for _, name := range names {
		out[name] = slices.Contains(s.installed, name)
	}
	return out, nil
}

func (s *shelf) Install(_ context.Context, names []string) error {
	s.calls = append(s.calls, "install "+strings.Join(names, " "))
	for _, name := range names {
		if !slices.Contains(s.has, name) {
			return fmt.Errorf("unable to locate package %s", name)
		}
	}
	s.installed = with(s.installed, names...)
	return nil
}

func (s *shelf) Remove(_ context.Context, names []string) error {
	s.calls = append(s.calls, "remove "+strings.Join(names, " "))
	s.installed = without(s.installed, names...)
	return nil
}

func TestOnlyPackagesThatTheAgentInstalledAreRemoved(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	s := &shelf{has: []string{"jq", "tree"}, installed: []string{"curl"}}
	h.packages = s
	h.restart()
	needs := func(name string, packages ...string) sdwan.Module {
		return module(name, object{"packages": packages, "files": []object{{"path": "/etc/" + name + "/x", "content": "x"}}})
	}
	step := func(want []string, modules ...sdwan.Module) {
		t.Helper()
		s.calls = nil
		h.reconcile(modules...)
		if diff := cmp.Diff(want, s.calls); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	}
	step([]string{"install jq tree"}, needs("a", "jq", "curl", "tree"))
	step(nil, needs("a", "jq", "curl", "tree"))
	h.restart()
	step([]string{"remove tree"}, needs("a", "jq", "curl"), needs("b", "jq"))
	step(nil, needs("b", "jq"))
	step([]string{"remove jq"})
	if diff := cmp.Diff([]string{"curl"}, s.installed); diff != "" {
		t.Errorf("installed (-want +got):\n%s", diff)
	}
	h.refused("module c: install the packages none: unable to locate package none", needs("c", "none"))
	if _, err := os.Stat(filepath.Join(h.root, "etc/c")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a module without its packages has files: %v", err)
	}
	h.reconcile()
	h.empty()
}

// script is a program of a fake apt that writes down how it was called.
func script(t *testing.T, dir, name, body string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	text := "#!/bin/sh\necho \"" + name + " $*\" >>" + filepath.Join(dir, "calls") + "\n" + body + "\n"
	syscall.ForkLock.RLock() // a child of another test that still holds it open would make its start fail
	err := os.WriteFile(path, []byte(text), 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAptIsAskedWithoutQuestions(t *testing.T) {
	t.Parallel()
	const install = "install -y -q --no-install-recommends --no-remove -o Dpkg::Options::=--force-confold -o DPkg::Lock::Timeout=120 -- jq"
	for _, tt := range []struct {
		name, get, dpkg string
		want            []string
		says            string
	}{
		{"it is there", `[ "$DEBIAN_FRONTEND" = noninteractive ]`, "", []string{"apt-get " + install}, ""},
		{"the lists are old", `[ "$1" = update ] || [ -e DIR/updated ] || { echo E: Unable to locate package jq >&2; exit 100; }; : >DIR/updated`, "",
			[]string{"apt-get " + install, "apt-get update -q", "apt-get " + install}, ""},
		{"nobody has it", `[ "$1" = update ] || { echo E: Unable to locate package jq >&2; exit 100; }`, "",
			[]string{"apt-get " + install, "apt-get update -q", "apt-get " + install}, "apt-get install: exit status 100: E: Unable to locate package jq"},
		{"an installation was cut off", `[ -e DIR/done ] || { echo "you must manually run 'dpkg --configure -a'" >&2; exit 100; }`, ": >DIR/done",
			[]string{"apt-get " + install, "dpkg --configure -a", "apt-get " + install}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			a := &apt{updateEvery: time.Hour, get: script(t, dir, "apt-get", strings.ReplaceAll(tt.get, "DIR", dir)),
				dpkg: script(t, dir, "dpkg", strings.ReplaceAll(tt.dpkg, "DIR", dir))}
			err := a.Install(t.Context(), []string{"jq"})
			if got := fmt.Sprint(err); (tt.says == "") != (err == nil) || !strings.Contains(got, tt.says) {
				t.Errorf("got %v, want %q", err, tt.says)
			}
			calls, err := os.ReadFile(filepath.Join(dir, "calls"))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, strings.Split(strings.TrimSpace(string(calls)), "\n")); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
	}
}

// This machine's own dpkg is asked, and changes nothing: on a machine without one there is no package manager either.
func TestDpkgSaysWhatIsInstalled(t *testing.T) {
	t.Parallel()
	query, err := exec.LookPath("dpkg-query")
	if err != nil {
		if FindPackages() != nil {
			t.Error("a package manager without its programs")
		}
		return
	}
	installed, err := (&apt{query: query}).Installed(t.Context(), []string{"dpkg", "no-such-package-at-all"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]bool{"dpkg": true}, installed); diff != "" {
		t.Errorf("installed (-want +got):\n%s", diff)
	}
}

func TestPackageThatOthersNeedIsLeftToThem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := &apt{query: script(t, dir, "dpkg-query", `echo jq installed; echo tree not-installed`),
		dpkg: script(t, dir, "dpkg", `echo "dependency problems - not removing" >&2; exit 1`), mark: script(t, dir, "apt-mark", "")}
	if err := a.Remove(t.Context(), []string{"jq", "tree"}); err != nil {
		t.Fatal(err)
	}
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil || !strings.Contains(string(calls), "dpkg --remove -- jq\napt-mark auto -- jq\n") {
		t.Errorf("calls %s, %v", calls, err)
	}
}
