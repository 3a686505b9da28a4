package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process is a process that can be told from a later one with the same number.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // ticks since the kernel's start
}

// look answers the process that has the number now.
func look(pid int) (process, error) {
	st, err := readStat(pid)
	return process{pid, st.start}, err
}

type stat struct {
	state  byte
	parent int
	start  uint64
}

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	return parseStat(string(b))
}

// parseStat reads fields 3, 4 and 22; the name in field 2 may hold anything, so it is skipped from its last bracket.
func parseStat(s string) (stat, error) {
	i := strings.LastIndexByte(s, ')')
	if i < 0 {
		return stat{}, errors.New("no name in a process's stat")
	}
	f := strings.Fields(s[i+1:])
	if len(f) < 20 {
		return stat{}, errors.New("a process's stat is too short")
	}
	parent, err := strconv.Atoi(f[1])
	if err != nil {
		return stat{}, fmt.Errorf("a process's parent: %w", err)
	}
	start, err := strconv.ParseUint(f[19], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("a process's start: %w", err)
	}
	return stat{state: f[0][0], parent: parent, start: start}, nil
}

// alive says whether the very process runs; a zombie doesn't.
func (p process) alive() bool {
	if p.PID <= 1 {
		return false
	}
	st, err := readStat(p.PID)
	return err == nil && st.start == p.Start && st.state != 'Z' && st.state != 'X'
}

// signal reaches the very process; one that is gone is success.
func (p process) signal(s unix.Signal) error {
	if p.PID <= 1 {
		return nil
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if !p.alive() { // after the open: from here on the descriptor is the process
		return nil
	}
	if err := unix.PidfdSendSignal(fd, s, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", p.PID, err)
	}
	return nil
}

// tree is what a service has started: below root by parentage, in the cgroup by membership. Both are needed: a
// process that has moved itself to another cgroup is found by its parents, and the other way round.
type tree struct {
	root   process // the supervisor, which adopts orphans
	main   process
	cgroup string
}

// kill ends all of it, but for root, and removes the cgroup.
func (t tree) kill(ctx context.Context) error {
	var told []process // a child of one that is dead already is below nobody, and may yet be ending
	return await(ctx, 10*time.Second, "the end of a service's processes", func() (bool, error) {
		gone, err := killCgroup(t.cgroup)
		if err != nil {
			return false, err
		}
		left, err := t.descendants()
		if err != nil {
			return false, err
		}
		for _, p := range left {
			if err := p.signal(unix.SIGKILL); err != nil {
				return false, err
			}
		}
		told = slices.DeleteFunc(append(told, left...), func(p process) bool { return !p.alive() })
		return gone && len(left)+len(told) == 0, nil
	})
}

// descendants are the living processes below root, and main with those below it.
func (t tree) descendants() ([]process, error) {
	all, err := readProcesses()
	if err != nil {
		return nil, err
	}
	var out []process
	queue := []int{}
	if t.root.alive() || t.root.PID == os.Getpid() {
		queue = append(queue, t.root.PID)
	}
	if t.main.alive() {
		out = append(out, t.main)
		queue = append(queue, t.main.PID)
	}
	seen := map[int]bool{}
	for len(queue) > 0 {
		parent := queue[0]
		queue = queue[1:]
		if seen[parent] {
			continue
		}
		seen[parent] = true
		for pid, st := range all {
			if st.parent == parent && st.state != 'Z' && st.state != 'X' {
				out = append(out, process{pid, st.start})
				queue = append(queue, pid)
			}
		}
	}
	return out, nil
}

func readProcesses() (map[int]stat, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	all := map[int]stat{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if st, err := readStat(pid); err == nil { // gone in between otherwise
			all[pid] = st
		}
	}
	return all, nil
}

// makeCgroup makes a fresh cgroup2 for a service below the one that this process is in. Empty where there is none that
// can be written.
func makeCgroup(name string) string {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	base := cgroupBase(string(mounts), string(own))
	if base == "" {
		return ""
	}
	dir, err := os.MkdirTemp(base, "powernode-"+name+"-")
	if err != nil {
		return ""
	}
	if _, err := os.Stat(filepath.Join(dir, "cgroup.kill")); err != nil {
		_ = os.Remove(dir) // a kernel before 5.14
		return ""
	}
	return dir
}

// cgroupBase is where this process's own cgroup2 is in the file system. A mount from outside our cgroup namespace
// (its root leads upwards) belongs to somebody else.
func cgroupBase(mountinfo, own string) string {
	path := ""
	for line := range strings.Lines(own) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			path = p
		}
	}
	if path == "" || strings.Contains(path, "..") {
		return ""
	}
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		f := strings.Fields(before)
		if !ok || len(f) < 5 || !strings.HasPrefix(after, "cgroup2 ") || strings.Contains(f[3], "..") {
			continue
		}
		rel, ok := strings.CutPrefix(path, strings.TrimSuffix(f[3], "/"))
		if ok {
			return filepath.Join(f[4], rel)
		}
	}
	return ""
}

// killCgroup kills all in a cgroup and below, and removes it; true once it is gone.
func killCgroup(dir string) (bool, error) {
	if dir == "" {
		return true, nil
	}
	err := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("kill a cgroup: %w", err)
	}
	return removeCgroup(dir) == nil, nil
}

// removeCgroup removes a cgroup with those below it, deepest first; they must be empty of processes.
func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeCgroup(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(dir)
}
