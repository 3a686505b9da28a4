package store

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

	"github.com/mattn/go-sqlite3"

	"powernode/schema"
)

func TestWhatTheDiskRefusesHasACode(t *testing.T) {
	t.Parallel()
	taken := schema.Errorf(schema.Conflict, "taken")
	for name, tt := range map[string]struct {
		err       error
		says      string // empty: the error stays as it is
		retryable bool
	}{
		"no space, SQLite's word": {sqlite3.Error{Code: sqlite3.ErrFull}, "disk of the platform's store is full: nothing was changed", true},
		"no space, the system's":  {sqlite3.Error{Code: sqlite3.ErrIoErr, SystemErrno: syscall.ENOSPC}, "is full: nothing was changed", true},
		"a quota":                 {fmt.Errorf("write: %w", syscall.EDQUOT), "is full: nothing was changed", true},
		"read only":               {sqlite3.Error{Code: sqlite3.ErrReadonly}, "can't be written: nothing was changed", true},
		"read only, the system's": {&os.PathError{Op: "open", Path: "x", Err: syscall.EROFS}, "can't be written: nothing was changed", true},
		"no file":                 {sqlite3.Error{Code: sqlite3.ErrCantOpen}, "can't be opened: nothing was changed", true},
		"a damaged file":          {sqlite3.Error{Code: sqlite3.ErrCorrupt}, "is damaged: nothing was changed", false},
		"no database":             {sqlite3.Error{Code: sqlite3.ErrNotADB}, "is damaged: nothing was changed", false},
		"a disk that fails":       {sqlite3.Error{Code: sqlite3.ErrIoErr, SystemErrno: syscall.EIO}, "has failed: nothing was changed", true},
		"a broken constraint":     {sqlite3.Error{Code: sqlite3.ErrConstraint}, "", false},
		"no row":                  {ErrNoRow, "", false},
		"a refusal":               {taken, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := told(fmt.Errorf("write a row: %w", tt.err))
			fault, is := errors.AsType[*Fault](got)
			if is != (tt.says != "") || !errors.Is(got, tt.err) {
				t.Fatalf("got %v (%T), want a fault: %t", got, got, tt.says != "")
			}
			if !is {
				return
			}
			coded, _ := errors.AsType[*schema.Error](got)
			if coded.Code != schema.Unavailable || coded.Retryable != tt.retryable || !strings.Contains(coded.Message, tt.says) {
				t.Errorf("got %+v, want unavailable, retryable %t, with %q", coded, tt.retryable, tt.says)
			}
			if coded := fault.Unrecorded(); strings.Contains(coded.Message, "nothing was changed") {
				t.Errorf("what was begun outside is told as nothing: %s", coded.Message)
			}
		})
	}
}

func TestADamagedFileIsToldAtTheStart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "powernode.db")
	if err := os.WriteFile(path, []byte(strings.Repeat("this is no database ", 500)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), Options{Path: path})
	if coded, is := errors.AsType[*schema.Error](err); !is || coded.Code != schema.Unavailable || coded.Retryable {
		t.Errorf("got %v, want unavailable, and no advice to try again", err)
	}
}

// readOnlyStore names the file of a store for the test binary, run again on a file system that can't be written.
const readOnlyStore = "READ_ONLY_STORE"

func TestAStoreOnAReadOnlyFileSystemIsToldAtTheStart(t *testing.T) {
	t.Parallel()
	if path := os.Getenv(readOnlyStore); path != "" {
		_, err := Open(t.Context(), Options{Path: path})
		if coded, is := errors.AsType[*schema.Error](err); !is || coded.Code != schema.Unavailable || !coded.Retryable {
			t.Errorf("got %v (%[1]T), want unavailable, retryable", err)
		}
		return
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "powernode.db")
	db, err := Open(context.Background(), Options{Path: path})
	if err == nil {
		err = db.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-m", "sh", "-ec", `mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"; exec "$2" -test.run "^$3\$"`, "sh", dir, os.Args[0], t.Name()}
	if os.Geteuid() != 0 {
		args[0] = "-rm"
	}
	cmd := exec.CommandContext(t.Context(), "unshare", args...)
	cmd.Env = append(os.Environ(), readOnlyStore+"="+path)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("on a read-only file system: %v\n%s", err, out)
	}
}
