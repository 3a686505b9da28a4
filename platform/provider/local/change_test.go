package local_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"powernode/platform/provider"
	"powernode/platform/provider/local"
)

func TestMachineThatEndedByItselfLeavesItsNextBootNothing(t *testing.T) {
	t.Parallel()
	p, _ := newProvider(t)
	m := create(t, p, "node-1", nil)
	const folder = "for d in /sys/fs/cgroup /sys/fs/cgroup/*; do [ -e $d/cgroup.procs ] && echo $d; done | head -1"
	group := filepath.Join(sh(t, p, m, folder), "left")
	sh(t, p, m, "mkdir "+group)
	if err := unix.Kill(entries(t, p)[0].PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, func() (string, bool) {
		got, err := p.Get(t.Context(), m.ID)
		return string(got.Status), err == nil && got.Status == provider.StatusStopped
	})
	if err := p.Start(t.Context(), m.ID); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, p, m, "ls -d "+group+" 2>/dev/null; true"); got != "" {
		t.Errorf("the machine boots with %s of its life before", got)
	}
}

// Two platforms that change one machine at once: each change is whole, and the last one counts.
func TestChangesOfOneMachineAtOnceComeOneAfterAnother(t *testing.T) {
	t.Parallel()
	p, state := newProvider(t)
	other := local.New(local.Options{StateDir: state, AgentBinary: self(t), Log: zerolog.New(zerolog.NewTestWriter(t))})
	m := create(t, p, "node-1", nil)
	chance := rand.New(rand.NewPCG(1, 2))
	var group errgroup.Group
	for i := range 12 {
		by, what := []*local.Provider{p, other}[i%2], chance.IntN(3)
		group.Go(func() error { return change(t.Context(), by, m.ID, what) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(t.Context(), m.ID); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, p, m, "cat /etc/hostname"); got != "node-1" {
		t.Errorf("the machine calls itself %q", got)
	}
	for i := range 12 {
		by, what := []*local.Provider{p, other}[i%2], chance.IntN(4)
		if i == 5 {
			what = 3
		}
		group.Go(func() error {
			if err := change(t.Context(), by, m.ID, what); !errors.Is(err, provider.ErrNotFound) {
				return err
			}
			return nil // the end came first
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if got, err := p.Get(t.Context(), m.ID); !errors.Is(err, provider.ErrNotFound) {
		t.Errorf("after its end the machine is %+v, %v", got, err)
	}
	if got := listing(t, state); got.processes != "" || strings.Contains(got.links, "pn"+installationID(state)+"-2@") {
		t.Errorf("left: %s%s", got.processes, got.links)
	}
}

func change(ctx context.Context, p *local.Provider, id string, what int) error {
	switch what {
	case 0:
		return p.Start(ctx, id)
	case 1:
		return p.Stop(ctx, id, provider.PowerOff)
	case 2:
		return p.Reboot(ctx, id, provider.PowerOff)
	}
	return p.Terminate(ctx, id)
}
