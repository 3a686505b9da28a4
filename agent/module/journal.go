package module

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"powernode/agent/atomicfile"
)

// journal is what this agent has put on the machine, or was about to: what is taken away is taken from here alone. It
// outlives the agent and the document.
type journal struct {
	Modules  []*entry `json:"modules"`  // in the order in which they came
	Packages []string `json:"packages"` // that this agent installed
	Folders  []string `json:"folders"`  // that this agent made
}

// entry is a module's part. While it is unsettled, files and services are those of the old version and of the new one.
type entry struct {
	ModuleID string            `json:"module_id"`
	Name     string            `json:"name"`
	Version  string            `json:"version"`
	Key      string            `json:"key"` // of all that was wanted
	Settled  bool              `json:"settled"`
	Files    []string          `json:"files"`
	Services map[string]string `json:"services"` // unit → SHA-256 of what it was made of, "" where it was not made yet
	Restart  []string          `json:"restart"`  // units that run with files of before
}

func (j *journal) of(id string) *entry {
	i := slices.IndexFunc(j.Modules, func(e *entry) bool { return e.ModuleID == id })
	if i < 0 {
		return nil
	}
	return j.Modules[i]
}

func (j *journal) drop(id string) {
	j.Modules = slices.DeleteFunc(j.Modules, func(e *entry) bool { return e.ModuleID == id })
}

// readJournal answers an empty one where there is no file. One that can't be read is an error: nothing is done then.
func readJournal(path string) (*journal, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &journal{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what was placed: %w", err)
	}
	var j journal
	if err := json.Unmarshal(b, &j); err != nil {
		return nil, fmt.Errorf("read what was placed: %w", err)
	}
	return &j, nil
}

func (j *journal) write(path string) error {
	b, err := json.Marshal(j)
	if err != nil {
		return fmt.Errorf("encode what was placed: %w", err)
	}
	return atomicfile.Write(path, b, 0o600)
}

// with is a list with more of the same, each once, sorted.
func with(list []string, more ...string) []string {
	out := append(append([]string{}, list...), more...)
	slices.Sort(out)
	return slices.Compact(out)
}

// without is a list without some.
func without(list []string, those ...string) []string {
	return slices.DeleteFunc(append([]string{}, list...), func(s string) bool { return slices.Contains(those, s) })
}
