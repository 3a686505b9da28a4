package vip

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	"powernode/agent/atomicfile"
)

// state is what we hold, and the epochs of what we held: a released entry stays so that a late document with an old
// epoch doesn't bring it back.
type state struct {
	// Incarnation is the store's that the epochs belong to; another one's start anew.
	Incarnation string            `json:"incarnation"`
	VIPs        map[string]record `json:"vips"` // by virtual IP id
	// Moved are places where a virtual IP was before it got another address or interface.
	Moved []record `json:"moved"`
}

type record struct {
	Network string     `json:"network_id"`
	Device  string     `json:"device"`
	Address netip.Addr `json:"address"`
	Epoch   int64      `json:"epoch"`
	Held    bool       `json:"held"`
}

func (s state) ids() []string { return slices.Sorted(maps.Keys(s.VIPs)) }

func (s state) devices() []string {
	var out []string
	for _, r := range s.VIPs {
		out = append(out, r.Device)
	}
	for _, r := range s.Moved {
		out = append(out, r.Device)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// merged is what is to be recorded before anything is done: the wanted ones held, others released, and nothing
// changed by a document whose epoch is lower than the applied one.
func (s state) merged(want wanted) state {
	out := state{Incarnation: want.Incarnation, VIPs: maps.Clone(s.VIPs), Moved: slices.Clone(s.Moved)}
	sameStore := s.Incarnation == want.Incarnation
	for id, w := range want.VIPs {
		old, known := s.VIPs[id]
		if known && sameStore && w.Epoch < old.Epoch {
			continue
		}
		if known && (old.Device != w.Device || old.Address != w.Address) {
			out.Moved = append(out.Moved, old)
		}
		out.VIPs[id] = w
	}
	if want.Partial {
		return out
	}
	for id, r := range out.VIPs {
		if _, wanted := want.VIPs[id]; !wanted && r.Held {
			r.Held = false
			out.VIPs[id] = r
		}
	}
	return out
}

// settled is the state after its plan was carried out: moves are done, and released entries of networks that are gone
// are forgotten.
func (s state) settled(want wanted) state {
	out := state{Incarnation: s.Incarnation, VIPs: maps.Clone(s.VIPs)}
	if !want.Partial {
		maps.DeleteFunc(out.VIPs, func(_ string, r record) bool { return !r.Held && !want.Networks[r.Network] })
	}
	return out
}

// stateFile keeps the state on disk.
type stateFile struct{ dir string }

func (f stateFile) path() string { return filepath.Join(f.dir, "vip.json") }

func (f stateFile) read() (state, error) {
	s := state{VIPs: map[string]record{}}
	data, err := os.ReadFile(f.path())
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("read state: %w", err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("read state %s: %w", f.path(), err)
	}
	if s.VIPs == nil {
		s.VIPs = map[string]record{}
	}
	return s, nil
}

// replace writes the new state where it differs from the old one.
func (f stateFile) replace(old, new state) error {
	if old.Incarnation == new.Incarnation && maps.Equal(old.VIPs, new.VIPs) &&
		(len(old.Moved)+len(new.Moved) == 0 || reflect.DeepEqual(old.Moved, new.Moved)) {
		return nil
	}
	data, err := json.Marshal(new)
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	return atomicfile.Write(f.path(), data, 0o600)
}
