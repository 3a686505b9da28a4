package rtnl_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"powernode/internal/rtnl"
)

func TestTornListingIsReadAgainAndNeverAnswered(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		torn  int
		want  []int
		fault error
	}{
		{"whole at once", 0, []int{1, 2}, nil},
		{"whole at last", 4, []int{1, 2}, nil},
		{"never whole", 99, []int{1}, netlink.ErrDumpInterrupted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			asked := 0
			got, err := rtnl.List(func() ([]int, error) {
				if asked++; asked <= tt.torn {
					return []int{1}, fmt.Errorf("list: %w", netlink.ErrDumpInterrupted)
				}
				return []int{1, 2}, nil
			})
			if diff := cmp.Diff(tt.want, got); diff != "" || !errors.Is(err, tt.fault) {
				t.Errorf("error %v, listing (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestWhatIsGoneIsRemoved(t *testing.T) {
	t.Parallel()
	_, missing := netlink.LinkByName("no-such-link-0")
	for _, tt := range []struct {
		name string
		err  error
		gone bool
	}{
		{"nothing was wrong", nil, false},
		{"a link that is not found", missing, true},
		{"a link that went in between", fmt.Errorf("delete: %w", unix.ENODEV), true},
		{"an address that went", unix.EADDRNOTAVAIL, true},
		{"a route that went", unix.ESRCH, true},
		{"a setting that went with its link", unix.ENOENT, true},
		{"what is not allowed", unix.EPERM, false},
		{"what is in use", unix.EBUSY, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := rtnl.Gone(tt.err); got != tt.gone {
				t.Errorf("%v is gone: %v, want %v", tt.err, got, tt.gone)
			}
			if err := rtnl.UnlessGone(tt.err); (err == nil) != (tt.gone || tt.err == nil) {
				t.Errorf("removal ends with %v", err)
			}
		})
	}
}
