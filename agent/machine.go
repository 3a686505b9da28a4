package agent

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"powernode/agent/atomicfile"
	"powernode/sdwan"
)

// Files that say which machine this is: the first is the same on a copy of it, the second is not.
const (
	machineIDFile    = "/etc/machine-id"
	kernelBootIDFile = "/proc/sys/kernel/random/boot_id"
)

// line is what such a file says; "" where it can't be read.
func line(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

var bootIDPattern = regexp.MustCompile(`^[0-9a-f]{32}$`)

// bootID answers the id of this start of the machine, and when it was. The kernel's own is the host's for a machine
// made of namespaces, so it is a file that lives as long as the machine's /run. Beside an error it answers a new one.
func bootID(runDir string) (string, time.Time, error) {
	path := filepath.Join(runDir, "boot_id")
	info, err := os.Stat(path)
	if err == nil {
		if id := line(path); bootIDPattern.MatchString(id) {
			return id, info.ModTime(), nil
		}
	}
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", time.Time{}, fmt.Errorf("make a boot id: %w", err)
	}
	id := hex.EncodeToString(b[:])
	if err := os.MkdirAll(runDir, 0o700); err != nil {
		return id, time.Now(), fmt.Errorf("make the run directory: %w", err)
	}
	return id, time.Now(), atomicfile.Write(path, []byte(id+"\n"), 0o600)
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

// capabilities are the machine's facts that need no subsystem; the others add theirs.
func capabilities() *sdwan.Capabilities {
	return &sdwan.Capabilities{
		KernelWireGuard: exists("/sys/module/wireguard"),
		NFTables:        exists("/proc/sys/net/netfilter"),
		Systemd:         exists("/run/systemd/system"),
		CgroupVersion:   CgroupVersion(),
	}
}

// CgroupVersion is 2 on a unified hierarchy, 1 where any version 1 controller is mounted, 0 without cgroups.
func CgroupVersion() int {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return 0
	}
	return cgroupVersionOf(string(b))
}

func cgroupVersionOf(mountinfo string) int {
	version := 0
	for line := range strings.Lines(mountinfo) {
		_, fsinfo, ok := strings.Cut(line, " - ")
		if !ok {
			continue
		}
		switch kind, _, _ := strings.Cut(fsinfo, " "); kind {
		case "cgroup":
			return 1
		case "cgroup2":
			version = 2
		}
	}
	return version
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
