package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// programs are the names that processes of ours have: the product's, those that it runs on machines, and test binaries.
var programs = regexp.MustCompile(`^(powernode|k3s|kubectl|demo$|bench$)|\.test$`)

// temporary are the names that the product, its tests and the demo give to temporary files.
var temporary = regexp.MustCompile(`^(powernode|pn|local-test-|local[0-9]|k3s|Test[A-Z].*[0-9]$)`)

// groups are the names of control groups of ours.
var groups = regexp.MustCompile(`powernode|kubepods|k3s`)

// places are folders that only our programs fill; each entry counts.
var places = []string{
	"/run/wireguard", "/run/powernode*", "/run/k3s", "/run/flannel", "/etc/rancher", "/etc/wireguard", "/var/lib/rancher",
	"/var/lib/kubelet", "/var/lib/cni", "/var/lib/powernode*", "/etc/powernode*", "/var/log/powernode*", "/var/log/k3s*",
}

// processes are those of ours in every PID namespace below this one: name, id and start tell one from the next that gets its id.
func processes() ([]string, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		line, err := process(pid)
		if err != nil {
			return nil, err
		}
		if line != "" {
			out = append(out, line)
		}
	}
	return out, nil
}

// process describes a process of ours; "" is one that is not, or is gone.
func process(pid int) (string, error) {
	folder := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(folder, "stat"))
	if gone(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	name, state, start, err := parseStat(string(stat))
	if err != nil {
		return "", err
	}
	// A machine's process may have changed its name, and a kernel name ends after 15 characters: the program's file tells.
	exe, err := os.Readlink(filepath.Join(folder, "exe"))
	if err == nil {
		exe = filepath.Base(strings.TrimSuffix(exe, " (deleted)"))
	}
	if !programs.MatchString(name) && !programs.MatchString(exe) {
		return "", nil
	}
	namespace, _ := os.Readlink(filepath.Join(folder, "ns/net")) // of a zombie there is none
	return fmt.Sprintf("%d %s (%s, state %s, started at %s, %s)", pid, name, exe, state, start, namespace), nil
}

// parseStat reads name, state and start of /proc/PID/stat. The name is in brackets and may hold brackets and blanks.
func parseStat(stat string) (name, state, start string, err error) {
	open, closed := strings.IndexByte(stat, '('), strings.LastIndexByte(stat, ')')
	if open < 0 || closed < open {
		return "", "", "", fmt.Errorf("a process' state is %q", stat)
	}
	rest := strings.Fields(stat[closed+1:])
	if len(rest) < 20 {
		return "", "", "", fmt.Errorf("a process' state is %q", stat)
	}
	return stat[open+1 : closed], rest[0], rest[19], nil
}

func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || (err != nil && strings.Contains(err.Error(), "no such process"))
}

// mounts are those of the namespace that this program runs in.
func mounts() ([]string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		left, right, _ := strings.Cut(line, " - ")
		mount, source := strings.Fields(left), strings.Fields(right)
		if len(mount) < 5 || len(source) < 1 {
			return nil, fmt.Errorf("a mount is %q", line)
		}
		if strings.HasPrefix(mount[4], "/run/user/") || strings.HasPrefix(mount[4], "/run/credentials/") || source[0] == "autofs" {
			continue // come and go with sessions and with the host's own services
		}
		out = append(out, fmt.Sprintf("%s (%s)", mount[4], source[0]))
	}
	return out, nil
}

// controlGroups are those of ours in every hierarchy.
func controlGroups() ([]string, error) {
	var out []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		switch {
		case gone(err):
			return nil
		case err != nil:
			return err
		case d.IsDir() && groups.MatchString(d.Name()):
			out = append(out, path)
		}
		return nil
	})
	if gone(err) {
		err = nil
	}
	return out, err
}

// sockets are the unix sockets with a name of ours.
func sockets() ([]string, error) {
	text, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) > 7 && strings.Contains(fields[7], "powernode") {
			out = append(out, fields[7])
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// files are those in places of ours, and temporary ones with a name of ours.
func files() ([]string, error) {
	var out []string
	for _, place := range places {
		found, err := filepath.Glob(place)
		if err != nil {
			return nil, err
		}
		for _, path := range found {
			inside, err := list(path, nil)
			if err != nil {
				return nil, err
			}
			out = append(append(out, path), inside...)
		}
	}
	for _, folder := range slices.Compact([]string{os.TempDir(), "/tmp", "/var/tmp"}) {
		inside, err := list(folder, temporary)
		if err != nil {
			return nil, err
		}
		out = append(out, inside...)
	}
	return out, nil
}

// list lists a folder's entries whose name fits; a file has none.
func list(folder string, fits *regexp.Regexp) ([]string, error) {
	info, err := os.Stat(folder)
	if gone(err) || (err == nil && !info.IsDir()) {
		return nil, nil
	}
	entries, err := os.ReadDir(folder)
	if gone(err) {
		return nil, nil
	}
	var out []string
	for _, e := range entries {
		if fits == nil || fits.MatchString(e.Name()) {
			out = append(out, filepath.Join(folder, e.Name()))
		}
	}
	return out, err
}
