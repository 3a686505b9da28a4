// Package rtnl is what everybody needs who reads or removes links, addresses and routes by package netlink: a listing that
// was not torn, and whether what could not be touched is gone.
//
// It is no wrapper of that package: what is asked for and what an answer means is the caller's.
//
// Invariant: a listing that changed while it was read is read again, and is an error in the end, never a shorter one.
package rtnl

import (
	"errors"
	"io/fs"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tries bounds how often a listing is read again that changed while it was read.
const tries = 5

// List reads a listing as a whole.
func List[T any](list func() ([]T, error)) ([]T, error) {
	for try := 1; ; try++ {
		out, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || try == tries {
			return out, err
		}
	}
}

// Gone says whether an error means that the link, the address, the route, or the setting of a link is not there (any more).
func Gone(err error) bool {
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return true
	}
	for _, each := range []error{unix.ENODEV, unix.ENXIO, unix.EADDRNOTAVAIL, unix.ESRCH, fs.ErrNotExist} {
		if errors.Is(err, each) {
			return true
		}
	}
	return false
}

// UnlessGone is the outcome of a removal: what is gone is removed.
func UnlessGone(err error) error {
	if Gone(err) {
		return nil
	}
	return err
}
