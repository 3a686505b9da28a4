package store

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/mattn/go-sqlite3"

	"powernode/schema"
)

// Fault is a store that can't do its work: no space, no right to write, a file that is damaged. To a caller it is
// unavailable, with what the operator does about it; its own text is the chain, for the log.
type Fault struct {
	what, advice string
	passes       bool // once the operator has acted, the same call does
	cause        error
}

func (f *Fault) Error() string { return f.cause.Error() }

// Unwrap gives callers the coded error, and the log's readers the cause.
func (f *Fault) Unwrap() []error { return []error{f.coded("nothing was changed"), f.cause} }

// Unrecorded is the fault as the caller of a verb is told it whose act outside is done and whose outcome can't be written.
func (f *Fault) Unrecorded() *schema.Error {
	e := f.coded("what was begun is not recorded as done")
	e.Message += "; what has no outcome yet is finished when the control plane is started again"
	return e
}

func (f *Fault) coded(changed string) *schema.Error {
	return &schema.Error{Code: schema.Unavailable, Retryable: f.passes, Message: fmt.Sprintf("%s: %s; %s", f.what, changed, f.advice)}
}

// told gives what the driver or the system says of the store's disk or file its code. What has a code keeps it, and what
// is neither stays as it is.
func told(err error) error {
	if err == nil || schema.CodeOf(err) != schema.Internal || errors.As(err, new(*schema.Error)) {
		return err
	}
	var driver sqlite3.Error
	errors.As(err, &driver) // the zero value is no error of SQLite's
	for _, k := range []struct {
		holds  bool
		what   string
		advice string
		passes bool
	}{
		{driver.Code == sqlite3.ErrFull || is(err, driver, syscall.ENOSPC, syscall.EDQUOT),
			"the disk of the platform's store is full", "the operator frees space in the state directory's file system, then the call can be made again", true},
		{driver.Code == sqlite3.ErrReadonly || is(err, driver, syscall.EROFS),
			"the platform's store can't be written", "the operator makes the state directory's file system writable, then the call can be made again", true},
		{driver.Code == sqlite3.ErrCorrupt || driver.Code == sqlite3.ErrNotADB,
			"the platform's store is damaged", "the operator stops the control plane and puts a backup of the state directory in its place", false},
		{driver.Code == sqlite3.ErrCantOpen || driver.Code == sqlite3.ErrPerm,
			"the platform's store can't be opened", "the operator looks at the state directory's files and who may use them, then the call can be made again", true},
		{driver.Code == sqlite3.ErrIoErr,
			"the disk of the platform's store has failed", "the operator looks at the disk and at the system's log, then the call can be made again", true},
	} {
		if k.holds {
			return &Fault{k.what, k.advice, k.passes, err}
		}
	}
	return err
}

// is says whether the system gave one of the reasons, by itself or through SQLite.
func is(err error, driver sqlite3.Error, reasons ...syscall.Errno) bool {
	for _, reason := range reasons {
		if driver.SystemErrno == reason || errors.Is(err, reason) {
			return true
		}
	}
	return false
}
