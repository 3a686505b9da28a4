package atomicfile_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/agent/atomicfile"
)

func TestWriteReplacesWhollyAndLeftoversOfKilledWritersGo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "key")
	for _, name := range []string{".key.123", ".key.old.1", ".key", "key.123", ".other.123"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("left"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{"long before", "new"} {
		if err := atomicfile.Write(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := atomicfile.RemoveLeftovers(path); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		got[e.Name()] = string(text)
	}
	want := map[string]string{"key": "new", ".key": "left", "key.123": "left", ".other.123": "left"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := atomicfile.RemoveLeftovers(filepath.Join(dir, "no", "folder")); err != nil {
		t.Errorf("where there is no folder: %v", err)
	}
}

// Its writer starts other programs meanwhile, as the agent does.
func TestProgramCanBeStartedAsSoonAsItIsWritten(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	var forking sync.WaitGroup
	for range 4 {
		forking.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := exec.Command("/bin/true").Run(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	dir := t.TempDir()
	for n := range 50 {
		program := filepath.Join(dir, strconv.Itoa(n))
		if err := atomicfile.Write(program, []byte("#!/bin/true\n"), 0o700); err != nil {
			t.Error(err)
		}
		if err := exec.Command(program).Run(); err != nil {
			t.Errorf("start what was just written: %v", err)
		}
	}
	close(stop)
	forking.Wait()
}

// observed is a content that looks at its writer.
type observed struct{ look func() }

func (o observed) Read([]byte) (int, error) {
	o.look()
	return 0, io.EOF
}

func TestNoChildIsForkedWhileAProgramIsOpenForWriting(t *testing.T) {
	t.Parallel()
	forks := true
	from := observed{func() {
		if forks = syscall.ForkLock.TryLock(); forks {
			syscall.ForkLock.Unlock()
		}
	}}
	if err := atomicfile.Copy(filepath.Join(t.TempDir(), "program"), from, 0o755); err != nil {
		t.Fatal(err)
	}
	if forks {
		t.Error("a child could have held the program open for writing")
	}
}
