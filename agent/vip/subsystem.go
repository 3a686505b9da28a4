package vip

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"powernode/agent"
	"powernode/internal/rtnl"
	"powernode/sdwan"
)

// Options are what a Subsystem needs. StateDir is the agent's own, 0700.
type Options struct {
	StateDir string
	Log      zerolog.Logger
}

// Subsystem is the agent's vip subsystem.
type Subsystem struct {
	log   zerolog.Logger
	host  host
	state stateFile
	mu    sync.Mutex // one Reconcile at a time
}

// host is what the subsystem needs of a machine.
type host interface {
	// Read lists the global IPv6 addresses of interfaces; one that does not exist is missing from the answer.
	Read(ctx context.Context, devices []string) (map[string][]address, error)
	// Put adds an address, or makes one that is there as it must be.
	Put(ctx context.Context, device string, a netip.Addr) error
	Remove(ctx context.Context, device string, a netip.Addr) error
}

// address is an address on an interface; only a deprecated one is as a virtual IP must be.
type address struct {
	Addr       netip.Addr
	Deprecated bool
}

// New makes the subsystem; nothing is touched before the first Reconcile.
func New(o Options) *Subsystem {
	return &Subsystem{log: o.Log, host: linuxHost{}, state: stateFile{o.StateDir}}
}

// Name is the subsystem's name in reports.
func (s *Subsystem) Name() string { return "vip" }

// retryAfter is how soon to look again for an interface that another subsystem is about to make.
const retryAfter = 100 * time.Millisecond

// Reconcile makes the addresses what the document says. What is to be held is recorded before it is added.
func (s *Subsystem) Reconcile(ctx context.Context, doc *sdwan.Document) error {
	if doc == nil {
		return errors.New("there is no document")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	was, err := s.state.read()
	if err != nil {
		return err
	}
	want, wantErr := fromDocument(doc)
	ours := was.merged(want)
	have, err := s.host.Read(ctx, ours.devices())
	if err != nil {
		return fmt.Errorf("observe: %w", err)
	}
	if err := s.state.replace(was, ours); err != nil {
		return err
	}
	p := diff(have, ours)
	for _, c := range p.changes {
		err := s.run(ctx, c)
		if !c.remove && rtnl.Gone(err) { // since it was read: as one that was not there
			p.missing = append(p.missing, c.device)
			continue
		}
		if err != nil {
			return errors.Join(wantErr, err)
		}
	}
	if err := s.state.replace(ours, ours.settled(want)); err != nil {
		return err
	}
	if wantErr == nil && len(p.missing) > 0 {
		return &agent.Pending{Reason: "no interface " + strings.Join(p.missing, ", ") + " yet", After: retryAfter}
	}
	return wantErr
}

func (s *Subsystem) run(ctx context.Context, c change) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	do, what := s.host.Put, "hold"
	if c.remove {
		do, what = s.host.Remove, "release"
	}
	if err := do(ctx, c.device, c.addr); err != nil {
		return fmt.Errorf("%s %s on %s: %w", what, c.addr, c.device, err)
	}
	s.log.Info().Str("address", c.addr.String()).Str("device", c.device).Msg("vip: " + what)
	return nil
}
