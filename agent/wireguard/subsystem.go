package wireguard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"powernode/sdwan"
)

// Options are what a Subsystem needs. StateDir is the agent's own, 0700.
type Options struct {
	StateDir    string
	AgentBinary string // what runs `device-run`; empty is the running program
	Log         zerolog.Logger
	// Spawn starts argv, the process of a userspace device, so that it outlives the agent. Nil starts it detached, in
	// a session of its own.
	Spawn func(ctx context.Context, name string, argv []string) error
}

// Subsystem is the agent's wireguard subsystem.
type Subsystem struct {
	log    zerolog.Logger
	host   host
	keys   keyStore
	state  stateFile
	lookup lookup
	now    func() time.Time

	mu        sync.Mutex // one Reconcile at a time
	endpoints *endpoints
	doc       *sdwan.Document // the last one

	networks atomic.Pointer[[]sdwan.Network] // of the last document, for Observe
}

// New makes the subsystem; nothing is touched before the first Reconcile.
func New(o Options) *Subsystem {
	return newSubsystem(o, newLinuxHost(o))
}

func newSubsystem(o Options, h host) *Subsystem {
	return &Subsystem{
		log: o.Log, host: h, lookup: systemLookup, now: time.Now, endpoints: newEndpoints(),
		keys: keyStore{filepath.Join(o.StateDir, "keys")}, state: stateFile{o.StateDir},
	}
}

// Name is the subsystem's name in reports.
func (s *Subsystem) Name() string { return "wireguard" }

// rounds bounds how often one Reconcile looks again at what it did. The second look finds nothing to do, unless a
// write had another effect than it says.
const rounds = 3

// Reconcile makes the machine what the document says. What fails on one interface doesn't hold up another.
func (s *Subsystem) Reconcile(ctx context.Context, doc *sdwan.Document) error {
	if doc == nil {
		return errors.New("there is no document")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doc = doc
	s.networks.Store(&doc.Networks)
	return s.reconcile(ctx, doc)
}

// tendEvery is how often peers without a tunnel are looked at: about as often as WireGuard tries a handshake.
const tendEvery = 5 * time.Second

// Run gives peers whose handshakes are in vain their next endpoint, which no document and no change of the machine
// would be an occasion for.
func (s *Subsystem) Run(ctx context.Context) error {
	tick := time.NewTicker(tendEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := s.tend(ctx); err != nil {
			s.log.Debug().Err(err).Msg("wireguard: no other endpoint tried") // Reconcile reports what is wrong
		}
	}
}

func (s *Subsystem) tend(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.doc == nil || !s.endpoints.choice {
		return nil
	}
	return s.reconcile(ctx, s.doc)
}

func (s *Subsystem) reconcile(ctx context.Context, doc *sdwan.Document) error {
	want, wantErr := fromDocument(doc, s.keys.ensure)
	ours, err := s.state.read()
	if err != nil {
		return err
	}
	have, applyErr := s.settle(ctx, want, &ours)
	if names := s.endpoints.unresolved(s.now(), have, want); applyErr == nil && len(names) > 0 {
		if s.endpoints.resolve(ctx, s.now(), names, s.lookup) {
			_, applyErr = s.settle(ctx, want, &ours)
		}
	}
	if applyErr == nil {
		applyErr = s.forget(ours, want)
	}
	return errors.Join(wantErr, applyErr)
}

// settle observes, plans and applies until there is nothing to do, and returns what was there at the last look.
func (s *Subsystem) settle(ctx context.Context, want wanted, ours *state) (machine, error) {
	for round := range rounds {
		have, err := s.host.Read(ctx, s.query(want, *ours))
		if err != nil {
			return machine{}, fmt.Errorf("observe: %w", err) // a failed read is not an empty machine
		}
		now := wanted{Unreachable: want.Unreachable, Forward6: want.Forward6, Forward4: want.Forward4, Partial: want.Partial}
		for _, d := range want.Devices {
			d.Peers, d.Routes = slices.Clone(d.Peers), slices.Clone(d.Routes)
			now.Devices = append(now.Devices, d)
		}
		refused := errors.Join(refuseRoutes(&now, have), unreadable(have))
		if round == 0 {
			s.endpoints.choose(s.now(), have, &now)
		}
		p := diff(have, now, *ours)
		if p.empty() {
			return have, refused
		}
		if round == rounds-1 {
			return have, errors.Join(refused, fmt.Errorf("does not settle: %s", p))
		}
		if next := ours.recording(have, now); !next.equal(*ours) {
			if err := s.state.write(next); err != nil {
				return have, err
			}
			*ours = next
		}
		if err := s.apply(ctx, p); err != nil {
			return have, errors.Join(refused, err)
		}
	}
	return machine{}, nil
}

func unreadable(have machine) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(have.Devices)) {
		if err := have.Devices[name].Unreadable; err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func (s *Subsystem) query(want wanted, ours state) query {
	q := query{Devices: ours.names()}
	for _, d := range want.Devices {
		if !slices.Contains(q.Devices, d.Name) {
			q.Devices = append(q.Devices, d.Name)
		}
	}
	q.Settings = append(slices.Sorted(maps.Keys(ours.Settings)), settingForward6, settingForward4)
	for _, name := range q.Devices {
		q.Settings = append(q.Settings, settingDisableIPv6(name), settingRPFilter(name))
	}
	return q
}

// apply runs a plan: what must come first, the devices side by side, then what goes. What goes stays when something
// before it failed.
func (s *Subsystem) apply(ctx context.Context, p plan) error {
	if err := s.run(ctx, p.first); err != nil {
		return err
	}
	errs := make([]error, len(p.devices))
	var g errgroup.Group
	for i, d := range p.devices {
		g.Go(func() error {
			errs[i] = s.run(ctx, d.changes)
			return nil
		})
	}
	_ = g.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.run(ctx, p.last)
}

func (s *Subsystem) run(ctx context.Context, changes []change) error {
	for _, c := range changes {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%s: %w", c.what, err)
		}
		if err := c.do(ctx, s.host); err != nil {
			return fmt.Errorf("%s: %w", c.what, err)
		}
		s.log.Info().Str("change", c.what).Msg("wireguard: applied")
	}
	return nil
}

// forget drops the record and the keys of what is gone.
func (s *Subsystem) forget(ours state, want wanted) error {
	next := ours.settled(want)
	if next.equal(ours) {
		return nil
	}
	live := map[string]bool{}
	for _, network := range next.Devices {
		live[network] = true
	}
	for _, network := range ours.Devices {
		if !live[network] {
			if err := s.keys.remove(network); err != nil {
				return err
			}
		}
	}
	return s.state.write(next)
}
