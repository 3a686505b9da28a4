package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Mount is where hierarchies are looked for.
const Mount = "/sys/fs/cgroup"

// Hierarchy is one mounted hierarchy of the host.
type Hierarchy struct {
	Path    string // mount point
	Version int    // 1 or 2
	Options string // of version 1, as mount takes them: "cpu,cpuacct", "none,name=systemd"
}

// Hierarchies reads the writable hierarchies of the caller's mount namespace.
func Hierarchies() ([]Hierarchy, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	return parse(string(text)), nil
}

func parse(mountinfo string) []Hierarchy {
	var out []Hierarchy
	seen := map[string]bool{}
	for line := range strings.Lines(mountinfo) {
		left, right, ok := strings.Cut(strings.TrimSpace(line), " - ")
		mount, source := strings.Fields(left), strings.Fields(right)
		if !ok || len(mount) < 6 || len(source) < 3 || seen[mount[2]] {
			continue
		}
		path, readOnly := mount[4], strings.HasPrefix(mount[5]+",", "ro,")
		if readOnly || (path != Mount && !strings.HasPrefix(path, Mount+"/")) {
			continue
		}
		switch source[0] {
		case "cgroup2":
			out = append(out, Hierarchy{Path: path, Version: 2})
		case "cgroup":
			out = append(out, Hierarchy{Path: path, Version: 1, Options: mountOptions(source[2])})
		default:
			continue
		}
		seen[mount[2]] = true
	}
	return out
}

// mountOptions keeps of a version 1 hierarchy's options those that name it.
func mountOptions(super string) string {
	var names []string
	for option := range strings.SplitSeq(super, ",") {
		switch {
		case strings.HasPrefix(option, "name="):
			names = append(names, "none", option)
		case option == "rw", option == "ro", option == "xattr", option == "noprefix", option == "clone_children",
			option == "cpuset_v2_mode", option == "favordynmods", strings.Contains(option, "="):
		default:
			names = append(names, option)
		}
	}
	return strings.Join(names, ",")
}

// Make makes the group in every hierarchy. On version 2 the controllers are handed down to it.
func Make(hs []Hierarchy, group string) error {
	for _, h := range hs {
		dir := h.Path
		for part := range strings.SplitSeq(group, "/") {
			if h.Version == 2 {
				handDown(dir)
			}
			parent := dir
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("make control group: %w", err)
			}
			if err := inheritCPUs(parent, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// handDown enables what the kernel lets it: a controller that is bound elsewhere is no error for a lab's machine.
func handDown(dir string) {
	names, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return
	}
	for _, name := range strings.Fields(string(names)) {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+name), 0)
	}
}

// inheritCPUs fills the two masks without which a group of a version 1 cpuset takes no process.
func inheritCPUs(parent, dir string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		have, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) || (err == nil && strings.TrimSpace(string(have)) != "") {
			continue
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		mask, err := os.ReadFile(filepath.Join(parent, name))
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		if strings.TrimSpace(string(mask)) == "" {
			continue // version 2 without masks of its own
		}
		if err := os.WriteFile(filepath.Join(dir, name), mask, 0); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}

// Leaf is the group below a machine's own in which its processes live: on version 2 a group with processes hands no
// controllers down, and K3s wants them handed down.
const Leaf = "init"

// Join puts a process into the group: into the leaf of a version 2 hierarchy where there is one.
func Join(hs []Hierarchy, group string, pid int) error {
	for _, h := range hs {
		dir := filepath.Join(h.Path, group)
		if leaf := filepath.Join(dir, Leaf); h.Version == 2 && exists(leaf) {
			dir = leaf
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return fmt.Errorf("join control group: %w", err)
		}
	}
	return nil
}

// Enter is for a machine's first process, which sits at the root of its own version 2 hierarchy: it moves into the
// leaf and hands the controllers down.
func Enter(h Hierarchy) error {
	leaf := filepath.Join(h.Path, Leaf)
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make control group: %w", err)
	}
	if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte("0"), 0); err != nil {
		return fmt.Errorf("join control group: %w", err)
	}
	handDown(h.Path)
	return nil
}

// Kill ends every process in the group, at once where the kernel has cgroup.kill.
func Kill(hs []Hierarchy, group string) error {
	for _, h := range hs {
		if h.Version != 2 {
			continue
		}
		err := os.WriteFile(filepath.Join(h.Path, group, "cgroup.kill"), []byte("1"), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("kill control group: %w", err)
		}
	}
	return nil
}

// Remove removes the group and all below it, waiting for processes that are dying.
func Remove(ctx context.Context, hs []Hierarchy, group string) error {
	for _, h := range hs {
		dir := filepath.Join(h.Path, group)
		if err := await(ctx, func() (bool, error) { return removeTree(dir) }); err != nil {
			return fmt.Errorf("remove control group %s: %w", dir, err)
		}
	}
	return nil
}

// removeTree says whether the group is gone; false is "still busy".
func removeTree(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if gone, err := removeTree(filepath.Join(dir, e.Name())); err != nil || !gone {
			return false, err
		}
	}
	err = unix.Rmdir(dir)
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return true, nil
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.ENOTEMPTY):
		return false, nil
	}
	return false, err
}

func await(ctx context.Context, done func() (bool, error)) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := done()
		if err != nil || ok {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
