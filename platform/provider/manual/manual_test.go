package manual_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"powernode/platform/provider"
	"powernode/platform/provider/manual"
	"powernode/platform/provider/providertest"
)

func TestContract(t *testing.T) {
	t.Parallel()
	providertest.Run(t, func(t *testing.T) provider.Provider {
		return manual.New(manual.Options{StateDir: t.TempDir(), Reachable: func() error { return nil }})
	})
}

func TestRecordsOutliveThePlatformAndHoldNoSecret(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := manual.New(manual.Options{StateDir: dir})
	in := provider.CreateInput{AccountID: "a", InstanceID: uuid.NewString(), Name: "node-1", Enrollment: []byte("pne_secret")}
	m, err := first.Create(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	again := manual.New(manual.Options{StateDir: dir})
	got, err := again.Get(t.Context(), m.ID)
	if err != nil || got.InstanceID != in.InstanceID || got.Status != provider.StatusUnknown {
		t.Errorf("after a restart: %+v, %v", got, err)
	}
	path := filepath.Join(dir, "manual", m.ID+".json")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the record is %#o", info.Mode().Perm())
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(raw), "pne_secret") {
		t.Errorf("the record holds the enrolment: %s", raw)
	}
}

func TestCheckSaysWhyNoMachineCouldEnrol(t *testing.T) {
	t.Parallel()
	why := errors.New("no address for machines elsewhere")
	p := manual.New(manual.Options{StateDir: t.TempDir(), Reachable: func() error { return why }})
	if err := p.Check(t.Context(), provider.Connection{}); !errors.Is(err, why) {
		t.Errorf("got %v, want %v", err, why)
	}
}
