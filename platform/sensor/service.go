package sensor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"powernode/platform/fleet"
	"powernode/platform/network"
	"powernode/platform/signal"
	"powernode/store"
)

const (
	// lookDeadline bounds one sensor's look.
	lookDeadline = 10 * time.Second
	// rowsAnew is how soon rows are looked at again that have not changed: what was measured stays fresh.
	rowsAnew = time.Minute
)

// Service looks at accounts with every sensor. It remembers between looks what no row tells: since when something has been
// so, and what was measured last.
type Service struct {
	DB      *store.DB
	Fleet   *fleet.Service
	Network *network.Service

	sensors []Sensor
	marks   marks

	mu     sync.Mutex
	from   time.Time // of the first look: since when this process hears agents
	looked map[lookKey]looked
	last   map[string]measured // by account and fingerprint
	carry  map[store.AccountID]map[store.InstanceID]carried
	told   map[toldKey]told
}

type lookKey struct {
	account store.AccountID
	sensor  string
}

type looked struct {
	at       time.Time
	revision int64
}

type measured struct {
	state State
	at    time.Time
}

// New makes a service with the sensors of this package and further ones, which look at what this package does not know.
func New(db *store.DB, fleets *fleet.Service, networks *network.Service, further ...Sensor) *Service {
	s := &Service{DB: db, Fleet: fleets, Network: networks, looked: map[lookKey]looked{}, last: map[string]measured{},
		carry: map[store.AccountID]map[store.InstanceID]carried{}, told: map[toldKey]told{}}
	s.sensors = append(s.own(), further...)
	slices.SortFunc(s.sensors, func(a, b Sensor) int { return strings.Compare(a.Name, b.Name) })
	return s
}

// own are the sensors of this package.
func (s *Service) own() []Sensor {
	return slices.Concat(s.agentSensors(), s.networkSensors(), s.clusterSensors(), s.rowSensors())
}

// Sensors are all sensors, by name.
func (s *Service) Sensors() []Sensor { return s.sensors }

// Tick looks at an account with every sensor that is due, side by side, and writes what changed in one transaction a sensor.
// A sensor that fails or is too slow keeps no other from looking.
func (s *Service) Tick(ctx context.Context, acct store.AccountID) error {
	var configs []Config
	err := s.DB.View(ctx, func(v *store.View) error {
		all, err := s.Configs(ctx, v, acct)
		if err != nil {
			return err
		}
		revision, err := v.CurrentRevision(ctx)
		if err != nil {
			return err
		}
		for _, c := range all {
			if c.Enabled && s.due(acct, c.Sensor, v.Now(), revision) {
				configs = append(configs, c)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read which sensors are due: %w", err)
	}
	var group errgroup.Group
	faults := make([]error, len(configs))
	for i, c := range configs {
		group.Go(func() error {
			if err := s.look(ctx, acct, c); err != nil {
				faults[i] = fmt.Errorf("sensor %s: %w", c.Sensor.Name, err)
			}
			return nil
		})
	}
	return errors.Join(append(faults, group.Wait(), s.sweep(ctx, acct))...)
}

// due says whether a sensor is to look now.
func (s *Service) due(acct store.AccountID, one Sensor, now time.Time, revision int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, there := s.looked[lookKey{acct, one.Name}]
	switch {
	case !there || now.Before(before.at):
		return true
	case now.Sub(before.at) < one.Every:
		return false
	}
	return !one.ByRows || revision != before.revision || now.Sub(before.at) >= rowsAnew
}

func (s *Service) lookedAt(acct store.AccountID, one Sensor, now time.Time, revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked[lookKey{acct, one.Name}] = looked{now, revision}
}

// look looks with one sensor, and where that would change something looks at it again in the transaction that writes it.
func (s *Service) look(ctx context.Context, acct store.AccountID, c Config) error {
	ctx, cancel := context.WithTimeout(ctx, lookDeadline)
	defer cancel()
	var found []change
	err := s.DB.View(ctx, func(v *store.View) error {
		in, err := s.input(ctx, v, acct, c)
		if err != nil {
			return err
		}
		seen, err := c.Sensor.Look(ctx, v, in)
		if err != nil {
			return err
		}
		revision, err := v.CurrentRevision(ctx)
		if err != nil {
			return err
		}
		in.marks.end()
		s.remember(acct, in, seen, v.Now())
		found = c.Sensor.changes(in, seen)
		s.lookedAt(acct, c.Sensor, v.Now(), revision)
		return nil
	})
	if err != nil || len(found) == 0 {
		return err
	}
	return s.DB.Update(ctx, func(tx *store.Tx) error { return s.write(ctx, tx, acct, c, found) })
}

// listening is since when the service looks: what nobody could tell it before is nobody's silence. A clock that was set back
// begins anew.
func (s *Service) listening(now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.from.IsZero() || now.Before(s.from) {
		s.from = now
	}
	return s.from
}

func (s *Service) input(ctx context.Context, v *store.View, acct store.AccountID, c Config) (Input, error) {
	in := Input{Account: acct, Values: c.Values, Open: map[Key]store.Condition{}, from: s.listening(v.Now()),
		marks: s.marks.round(string(acct) + "/" + c.Sensor.Name)}
	open, err := store.Conditions(ctx, v, acct)
	if err != nil {
		return in, fmt.Errorf("read open conditions: %w", err)
	}
	for _, o := range open {
		if subject := SubjectOf(o.Fingerprint); slices.Contains(c.Sensor.Kinds, o.Kind) && c.Sensor.owns(subject) {
			in.Open[Key{o.Kind, subject}] = o
		}
	}
	return in, nil
}

// write looks again, at what the first look would change, and writes what still holds.
func (s *Service) write(ctx context.Context, tx *store.Tx, acct store.AccountID, c Config, found []change) error {
	in, err := s.input(ctx, &tx.View, acct, c)
	if err != nil {
		return err
	}
	in.only = map[string]bool{}
	for _, ch := range found {
		in.only[ch.subject] = true
	}
	seen, err := c.Sensor.Look(ctx, &tx.View, in)
	if err != nil {
		return err
	}
	for _, ch := range c.Sensor.changes(in, seen) {
		if !in.only[ch.subject] {
			continue
		}
		if err := ch.write(ctx, tx, acct, c.Sensor.Name); err != nil {
			return err
		}
	}
	return nil
}

// write opens, raises or closes a condition. All signals of one condition carry the correlation of its first one.
func (c change) write(ctx context.Context, tx *store.Tx, acct store.AccountID, sensor string) error {
	actor := store.Actor{Kind: "platform", ID: "platform", Verb: sensor, CorrelationID: tx.NewID()}
	last, err := store.LastSignalOf(ctx, &tx.View, acct, Fingerprint(c.kind, c.subject))
	switch {
	case err != nil && !errors.Is(err, store.ErrNoRow):
		return fmt.Errorf("read the condition's last signal: %w", err)
	case err == nil && last.Kind == c.kind:
		actor.CorrelationID = last.CorrelationID
	}
	tx.Act(actor)
	switch o := c.seen; {
	case o == nil:
		about := signal.Subject{NodeID: last.NodeID, InstanceID: last.NodeInstanceID, ModuleID: last.ModuleID, ClusterID: last.ClusterID,
			NetworkID: last.NetworkID}
		return signal.Close(ctx, tx, acct, c.subject, c.kind, about, last.Payload)
	case o.State == Wrong:
		return signal.Open(ctx, tx, acct, c.subject, signal.Event{Kind: c.kind, Severity: o.Severity, Subject: o.About, Payload: o.Payload})
	default:
		return signal.Close(ctx, tx, acct, c.subject, c.kind, o.About, o.Payload)
	}
}

// remember keeps what was measured of open conditions.
func (s *Service) remember(acct store.AccountID, in Input, seen []Observation, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range seen {
		key := string(acct) + "/" + Fingerprint(o.Kind, o.Subject)
		if o.State == Wrong {
			s.last[key] = measured{Wrong, now}
			continue
		}
		delete(s.last, key)
	}
	for open := range in.Open {
		if m := s.last[string(acct)+"/"+Fingerprint(open.Kind, open.Subject)]; !m.at.Equal(now) {
			delete(s.last, string(acct)+"/"+Fingerprint(open.Kind, open.Subject)) // its subject is gone
		}
	}
}

// WrongAt says whether the last look measured that a condition holds, and when it looked.
func (s *Service) WrongAt(acct store.AccountID, fingerprint string) (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, there := s.last[string(acct)+"/"+fingerprint]
	return m.at, there
}

// marks are the instants since which something has been seen, by sensor.
type marks struct {
	mu    sync.Mutex
	since map[string]map[string]time.Time
}

// round is one look's use of them: what it does not ask for is over.
type round struct {
	m     *marks
	of    string
	asked map[string]time.Time
}

func (m *marks) round(of string) *round { return &round{m: m, of: of, asked: map[string]time.Time{}} }

func (r *round) since(key string, now time.Time) time.Time {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	at, seen := r.m.since[r.of][key]
	if !seen {
		at = now
	}
	r.asked[key] = at
	return at
}

// end keeps what this look has asked for.
func (r *round) end() {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	if r.m.since == nil {
		r.m.since = map[string]map[string]time.Time{}
	}
	r.m.since[r.of] = r.asked
}
