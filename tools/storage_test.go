package tools_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/schema"
	"powernode/store"
	"powernode/tools"
	"powernode/tools/toolstest"
)

// smallDisk names a folder on a small disk of its own for the test binary that is run again there.
const smallDisk = "SMALL_DISK"

func TestAFullDiskIsUnavailableAndPasses(t *testing.T) {
	t.Parallel()
	if dir := os.Getenv(smallDisk); dir != "" {
		fullDisk(t, dir)
		return
	}
	args := []string{"-m", "sh", "-ec", `mount -t tmpfs -o size=16m tmpfs "$1"; exec "$2" -test.run "^$3\$"`, "sh", t.TempDir(), os.Args[0], t.Name()}
	if os.Geteuid() != 0 {
		args[0] = "-rm"
	}
	cmd := exec.CommandContext(t.Context(), "unshare", args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+args[5], smallDisk+"="+args[5])
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("on a small disk: %v\n%s", err, out)
	}
}

// fullDisk fills the disk that a platform's store is on, calls, and makes room again.
func fullDisk(t *testing.T, dir string) {
	env := toolstest.New(t)
	filler := filepath.Join(dir, "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if err = errors.Join(f.Close(), err); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	var coded *schema.Error
	made := 0
	for coded == nil { // the store's log has some room left
		_, err := env.Platform.Call(t.Context(), env.Caller, tools.Request{Verb: "system_sdwan_create_network",
			Arguments: fmt.Appendf(nil, `{"name": "net-%d", "description": %q}`, made, strings.Repeat("x", 1000))})
		if err != nil && !errors.As(err, &coded) {
			t.Fatal(err)
		}
		made++
	}
	if coded.Code != schema.Unavailable || !coded.Retryable || !strings.Contains(coded.Message, "is full: nothing was changed; the operator frees space") {
		t.Errorf("got %+v, want unavailable, retryable, and what the operator does", coded)
	}
	list := env.Call(t, "system_sdwan_list_networks", nil) // a read needs no room
	if got := int(list["count"].(float64)); got != made-1 {
		t.Errorf("there are %d networks, want the %d that were answered", got, made-1)
	}
	read := 1
	for env.Platform.FlushReads(t.Context()) == nil { // until its event can't be written
		env.Call(t, "system_sdwan_list_networks", nil)
		read++
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	env.Call(t, "system_sdwan_create_network", fmt.Sprintf(`{"name": "net-%d"}`, made-1))
	if err := env.Platform.FlushReads(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	env.View(t, func(ctx context.Context, v *store.View) error {
		events, err := store.ExecutionEvents(ctx, v, env.Account.ID, "", "", 100_000)
		for _, e := range events {
			got[e.EventType+" "+e.Status]++
		}
		return err
	})
	want := map[string]int{"system_sdwan_create_network ok": made, "system_sdwan_create_network failed": 1, "system_sdwan_list_networks ok": read}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events of what was called on the full disk (-want +got):\n%s", diff)
	}
}
