package module

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"powernode/agent"
	"powernode/agent/artifact"
	"powernode/sdwan"
)

// hello is the one artefact that the platform has.
const (
	hello    = "hello"
	helloSum = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
)

type platform struct{ fetched int }

func (p *platform) Artifact(_ context.Context, sum string, _ int64, w io.Writer) (int64, error) {
	if sum != helloSum {
		return 0, errors.New("no such artefact")
	}
	p.fetched++
	n, err := io.WriteString(w, hello)
	return int64(n), err
}

func TestDigestsAreThoseOfModulesInPlace(t *testing.T) {
	t.Parallel()
	p := &platform{}
	dir := filepath.Join(t.TempDir(), "modules")
	k3sIn := false
	s := New(Options{Log: zerolog.Nop(), Elsewhere: func(string) bool { return k3sIn },
		Store: artifact.NewStore(dir, func() (artifact.Platform, error) { return p, nil })})
	digests := func() map[string]string {
		var r sdwan.Report
		if err := s.Observe(t.Context(), &r); err != nil {
			t.Fatal(err)
		}
		return r.Modules
	}
	if digests() != nil {
		t.Error("before the first look nothing is measured")
	}
	doc := &sdwan.Document{Modules: []sdwan.Module{
		{ModuleID: "config", Name: "tuning", Digest: "d1"},
		{ModuleID: "file", Name: "tool", Digest: "d2", Artifact: &sdwan.Artifact{SHA256: helloSum}},
		{ModuleID: "k3s", Name: "k3s-server", Digest: "d3", Artifact: &sdwan.Artifact{SHA256: strings.Repeat("a", 64)}},
	}}
	var pending *agent.Pending
	if err := s.Reconcile(t.Context(), doc); !errors.As(err, &pending) || !strings.Contains(err.Error(), "k3s-server") {
		t.Fatalf("got %v", err)
	}
	if diff := cmp.Diff(map[string]string{"config": "d1", "file": "d2"}, digests()); diff != "" {
		t.Errorf("digests (-want +got):\n%s", diff)
	}
	k3sIn = true
	if err := s.Reconcile(t.Context(), doc); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"config": "d1", "file": "d2", "k3s": "d3"}, digests()); diff != "" {
		t.Errorf("digests (-want +got):\n%s", diff)
	}
	if p.fetched != 1 {
		t.Errorf("fetched %d times", p.fetched)
	}
	if err := os.WriteFile(filepath.Join(dir, helloSum), []byte("jello"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := s.RunTask(t.Context(), sdwan.Task{Parameters: json.RawMessage(`{"force_resync":true,"module_id":"file"}`)}, doc)
	if err != nil || string(got) != `{"digests":{"file":"d2"}}` || p.fetched != 2 {
		t.Errorf("%s, %v, fetched %d times", got, err, p.fetched)
	}
	if err := s.Reconcile(t.Context(), &sdwan.Document{}); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 || len(digests()) != 0 {
		t.Errorf("left %v %v", left, err)
	}
}

func TestOneModulesTroubleHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	s := New(Options{Log: zerolog.Nop(), Elsewhere: func(string) bool { return false },
		Store: artifact.NewStore(filepath.Join(t.TempDir(), "m"), func() (artifact.Platform, error) { return &platform{}, nil })})
	err := s.Reconcile(t.Context(), &sdwan.Document{Modules: []sdwan.Module{
		{ModuleID: "bad", Name: "bad", Digest: "d1", Artifact: &sdwan.Artifact{SHA256: strings.Repeat("b", 64)}},
		{ModuleID: "good", Name: "good", Digest: "d2", Artifact: &sdwan.Artifact{SHA256: helloSum}},
	}})
	if err == nil || !strings.Contains(err.Error(), "module bad: fetch the artefact bbbbbbbbbbbb: no such artefact") {
		t.Errorf("got %v", err)
	}
	var r sdwan.Report
	if err := s.Observe(t.Context(), &r); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"good": "d2"}, r.Modules); diff != "" {
		t.Errorf("digests (-want +got):\n%s", diff)
	}
}
