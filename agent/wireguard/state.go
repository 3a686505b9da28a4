package wireguard

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"powernode/agent/atomicfile"
)

// state is what we made on this machine. A thing is recorded before it is made and forgotten after it is gone, so
// that an agent killed in between finds all of it.
type state struct {
	Devices  map[string]string   `json:"devices"`  // interface name → network id
	Settings map[string]recorded `json:"settings"` // below /proc/sys
}

// recorded is a setting of the machine that we changed.
type recorded struct {
	Before string `json:"before"`
	Set    string `json:"set"`
}

func (s state) names() []string { return slices.Sorted(maps.Keys(s.Devices)) }

// unneeded lists recorded settings that nothing wants any more; forwarding comes before what protects from it.
func (s state) unneeded(want wanted) []string {
	var out []string
	for key := range s.Settings {
		if key == settingForward4 && !want.Forward4 || key != settingForward4 && !want.Forward6 {
			out = append(out, key)
		}
	}
	slices.SortFunc(out, func(a, b string) int {
		ra, rb := strings.HasSuffix(a, "/accept_ra"), strings.HasSuffix(b, "/accept_ra")
		if ra != rb {
			if ra {
				return 1
			}
			return -1
		}
		return strings.Compare(a, b)
	})
	return out
}

// recording is the state with all that a plan from have to want will make.
func (s state) recording(have machine, want wanted) state {
	out := state{Devices: maps.Clone(s.Devices), Settings: maps.Clone(s.Settings)}
	for _, d := range want.Devices {
		out.Devices[d.Name] = d.NetworkID
	}
	for _, n := range neededSettings(have, want) {
		if _, known := out.Settings[n.key]; !known && have.Settings[n.key] != "" && have.Settings[n.key] != n.value {
			out.Settings[n.key] = recorded{Before: have.Settings[n.key], Set: n.value}
		}
	}
	return out
}

// settled is the state without what is no longer wanted, once it is gone from the machine.
func (s state) settled(want wanted) state {
	out := state{Devices: maps.Clone(s.Devices), Settings: maps.Clone(s.Settings)}
	if want.Partial {
		return out
	}
	maps.DeleteFunc(out.Devices, func(name, _ string) bool {
		return !slices.ContainsFunc(want.Devices, func(d wantedDevice) bool { return d.Name == name })
	})
	for _, key := range s.unneeded(want) {
		delete(out.Settings, key)
	}
	return out
}

func (s state) equal(o state) bool {
	return maps.Equal(s.Devices, o.Devices) && maps.Equal(s.Settings, o.Settings)
}

// stateFile keeps the state on disk.
type stateFile struct{ dir string }

func (f stateFile) path() string { return filepath.Join(f.dir, "wireguard.json") }

func (f stateFile) read() (state, error) {
	s := state{Devices: map[string]string{}, Settings: map[string]recorded{}}
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
	if s.Devices == nil {
		s.Devices = map[string]string{}
	}
	if s.Settings == nil {
		s.Settings = map[string]recorded{}
	}
	return s, nil
}

func (f stateFile) write(s state) error {
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	return atomicfile.Write(f.path(), data, 0o600)
}
