package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

// patience is how long a check waits for what is going away by itself: the kernel takes namespaces down one after the
// other, on a busy host long after their last process.
const patience = time.Minute

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) != 2 {
		fmt.Fprintln(stderr, "usage: leftovers snapshot FILE | leftovers check FILE")
		return 2
	}
	var err error
	switch args[0] {
	case "snapshot":
		err = snapshot(args[1])
	case "check":
		err = check(args[1], patience, stdout)
	default:
		err = fmt.Errorf("no such command: %s", args[0])
	}
	if err != nil {
		fmt.Fprintln(stderr, "leftovers:", err)
		return 1
	}
	return 0
}

// inventory is what a host has, by kind: each thing in one line that names it for as long as it lives.
type inventory map[string][]string

func snapshot(file string) error {
	have, err := look()
	if err != nil {
		return err
	}
	raw, err := json.MarshalIndent(have, "", " ")
	if err != nil {
		return fmt.Errorf("encode the snapshot: %w", err)
	}
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		return fmt.Errorf("write the snapshot: %w", err)
	}
	return nil
}

// check looks until nothing is left, or patience is over.
func check(file string, patience time.Duration, stdout io.Writer) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the snapshot: %w", err)
	}
	var before inventory
	if err := json.Unmarshal(raw, &before); err != nil {
		return fmt.Errorf("read the snapshot: %w", err)
	}
	end := time.NewTimer(patience)
	defer end.Stop()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		now, err := look()
		if err != nil {
			return err
		}
		left := left(before, now)
		if len(left) == 0 {
			fmt.Fprintln(stdout, "leftovers: none")
			return nil
		}
		select {
		case <-tick.C:
		case <-end.C:
			for _, line := range left {
				fmt.Fprintln(stdout, "left:", line)
			}
			return fmt.Errorf("%d things are left that were not there before", len(left))
		}
	}
}

// left are the things of now that were not there before, in order.
func left(before, now inventory) []string {
	var out []string
	for kind, things := range now {
		for _, thing := range things {
			if !slices.Contains(before[kind], thing) {
				out = append(out, kind+": "+thing)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// look takes the inventory of this host.
func look() (inventory, error) {
	have := inventory{}
	for _, kind := range []struct {
		name string
		list func() ([]string, error)
	}{
		{"process", processes},
		{"named namespace", namedNamespaces},
		{"link", links},
		{"address", addresses},
		{"route", routes},
		{"nft table", tables},
		{"mount", mounts},
		{"control group", controlGroups},
		{"socket", sockets},
		{"file", files},
	} {
		things, err := kind.list()
		if err != nil {
			return nil, fmt.Errorf("list each %s: %w", kind.name, err)
		}
		have[kind.name] = things
	}
	return have, nil
}
