package k3s

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"powernode/internal/rtnl"
)

// linuxHost is the machine itself.
type linuxHost struct{ root root }

func newHost(r root) host { return linuxHost{r} }

// KillContainers ends processes whose program is K3s' own, all below them, and what is in the kubelet's cgroups.
func (h linuxHost) KillContainers(ctx context.Context) error {
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		pids, err := h.containers()
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes don't end", len(pids))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// containers lists them. What has ended and waits to be reaped doesn't count.
func (h linuxHost) containers() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	data := h.root.path(dataDir) + "/"
	children := map[int][]int{}
	found := map[int]bool{}
	var queue []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if parent, ok := parentOf(pid); ok {
			children[parent] = append(children[parent], pid)
		} else {
			continue
		}
		exe, err := os.Readlink("/proc/" + e.Name() + "/exe")
		exe = strings.TrimSuffix(exe, " (deleted)")
		ours := err == nil && (strings.HasPrefix(exe, data) || exe == h.root.path(binaryPath))
		if ours || inKubepods(pid) {
			queue = append(queue, pid)
		}
	}
	for len(queue) > 0 {
		pid := queue[0]
		queue = queue[1:]
		if !found[pid] && pid > 1 {
			found[pid] = true
			queue = append(queue, children[pid]...)
		}
	}
	var out []int
	for pid := range found {
		out = append(out, pid)
	}
	slices.Sort(out)
	return out, nil
}

// parentOf answers false for a process that is gone, or as good as.
func parentOf(pid int) (int, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 2 || f[0] == "Z" || f[0] == "X" {
		return 0, false
	}
	parent, err := strconv.Atoi(f[1])
	return parent, err == nil
}

func inKubepods(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && strings.Contains(string(b), "/kubepods")
}

// mounts answers mount points below the prefixes, deepest first.
func (h linuxHost) mounts(prefixes []string) ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		at := unescapeMount(f[4])
		for _, p := range prefixes {
			if p = h.root.path(p); strings.HasPrefix(at, p) && (strings.HasSuffix(p, "-") || strings.HasPrefix(at, p+"/")) {
				out = append(out, at)
				break
			}
		}
	}
	slices.Reverse(out) // later ones lie on top
	return out, nil
}

// unescapeMount reads the kernel's octal escapes of blanks in paths.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

func (h linuxHost) Unmount(prefixes []string) error {
	list, err := h.mounts(prefixes)
	if err != nil {
		return err
	}
	for _, at := range list {
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
	}
	return nil
}

func (h linuxHost) RemoveLinks(names []string) error {
	links, err := h.links(names)
	if err != nil {
		return err
	}
	for _, l := range links {
		if err := rtnl.UnlessGone(netlink.LinkDel(l)); err != nil {
			return fmt.Errorf("delete the link %s: %w", l.Attrs().Name, err)
		}
	}
	return nil
}

// links are the named ones, and before each those that hang on it.
func (h linuxHost) links(names []string) ([]netlink.Link, error) {
	all, err := rtnl.List(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	masters := map[int]bool{}
	var named, hanging []netlink.Link
	for _, l := range all {
		if slices.Contains(names, l.Attrs().Name) {
			masters[l.Attrs().Index] = true
			named = append(named, l)
		}
	}
	for _, l := range all {
		if masters[l.Attrs().MasterIndex] {
			hanging = append(hanging, l)
		}
	}
	return append(hanging, named...), nil
}

// k3sRule is a line of a saved packet filter that is K3s': chains, and rules in them or to them.
var k3sRule = regexp.MustCompile(`KUBE-|CNI-|(?i:flannel)`)

// CleanFilter saves the filter, leaves K3s' lines out and restores the rest, for both families. A host without these
// programs has no such rules of K3s: it brings its own, which are asked before its data goes.
func (h linuxHost) CleanFilter(ctx context.Context) error {
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, dir := range h.filterDirs() {
			save := filepath.Join(dir, name+"-save")
			if !exists(save) {
				continue
			}
			if err := cleanFilter(ctx, save, filepath.Join(dir, name+"-restore")); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h linuxHost) filterDirs() []string {
	dirs, err := filepath.Glob(h.root.path(dataDir + "/data/*/bin/aux"))
	if err != nil {
		dirs = nil
	}
	return append(dirs, "/usr/sbin", "/sbin")
}

func cleanFilter(ctx context.Context, save, restore string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	saved, err := exec.CommandContext(ctx, save).Output()
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", filepath.Base(save), ctx.Err())
	}
	if err != nil {
		return nil // no such filter in this kernel: nothing of K3s' is in it
	}
	rest, found := withoutK3s(string(saved))
	if !found {
		return nil
	}
	cmd := exec.CommandContext(ctx, restore)
	cmd.Stdin = strings.NewReader(rest)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(restore), err, strings.TrimSpace(string(out)))
	}
	return nil
}

func withoutK3s(saved string) (rest string, found bool) {
	var b strings.Builder
	for line := range strings.Lines(saved) {
		if k3sRule.MatchString(line) {
			found = true
			continue
		}
		b.WriteString(line)
	}
	return b.String(), found
}

// RemoveCgroups removes kubepods below every hierarchy.
func (h linuxHost) RemoveCgroups() error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		before, after, ok := strings.Cut(line, " - ")
		f := strings.Fields(before)
		if !ok || len(f) < 5 || !strings.HasPrefix(after, "cgroup") || strings.Contains(f[3], "..") {
			continue
		}
		groups, err := filepath.Glob(filepath.Join(unescapeMount(f[4]), "kubepods*"))
		if err != nil {
			return err
		}
		for _, g := range groups {
			if err := removeGroup(g); err != nil {
				return fmt.Errorf("remove the cgroup %s: %w", g, err)
			}
		}
	}
	return nil
}

func removeGroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return rtnl.UnlessGone(err) // a cgroup that goes while it is read says ENODEV
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeGroup(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return rtnl.UnlessGone(os.Remove(dir))
}

func (h linuxHost) Left(prefixes, names []string) ([]string, error) {
	left, err := h.mounts(prefixes)
	if err != nil {
		return nil, err
	}
	links, err := h.links(names)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		left = append(left, "link "+l.Attrs().Name)
	}
	pids, err := h.containers()
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		left = append(left, fmt.Sprintf("process %d", pid))
	}
	return left, nil
}
