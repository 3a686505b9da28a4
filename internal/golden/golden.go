// Package golden compares what a test made with a file under testdata.
//
// It is for tests only, and it owns the flag -update. It does not know what is compared: bytes are.
//
// Invariants: a missing golden fails and is never made on the side; only -update writes.
package golden

import (
	"bytes"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write goldens instead of comparing with them")

// Equal compares got with testdata/NAME.
func Equal(t testing.TB, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", filepath.FromSlash(name))
	if *update {
		write(t, path, got)
		return
	}
	want, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		t.Errorf("golden %s is missing: make it with -update and read it", path)
	case err != nil:
		t.Fatalf("read golden: %v", err)
	case !bytes.Equal(want, got):
		t.Errorf("%s (-want +got):\n%s", path, cmp.Diff(string(want), string(got)))
	}
}

// Only holds the goldens below testdata/FOLDER to the given names: one that nothing compares with is a leftover.
func Only(t testing.TB, folder string, names map[string]bool) {
	t.Helper()
	dir := filepath.Join("testdata", filepath.FromSlash(folder))
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatalf("list goldens: %v", err)
	}
	for _, e := range entries {
		if names[e.Name()] {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if !*update {
			t.Errorf("golden %s belongs to nothing", path)
			continue
		}
		if err := os.Remove(path); err != nil {
			t.Fatalf("remove a leftover golden: %v", err)
		}
	}
}

func write(t testing.TB, path string, got []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatalf("make the folder of goldens: %v", err)
	}
	if err := os.WriteFile(path, got, 0o644); err != nil {
		t.Fatalf("write golden: %v", err)
	}
}
