package k3s

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"powernode/agent"
	"powernode/agent/atomicfile"
	"powernode/nodeapi"
)

// Files of K3s on a host, all of them. The last three are what its install script leaves.
var ownPaths = []string{
	"/etc/rancher/k3s", "/etc/rancher/node", dataDir, "/var/lib/kubelet", "/var/lib/cni", "/run/k3s", "/run/flannel",
	"/var/log/pods", "/var/log/containers", logPath, logPath + ".1", binaryPath,
	"/usr/local/bin/k3s-killall.sh", "/usr/local/bin/k3s-uninstall.sh", "/usr/local/bin/k3s-agent-uninstall.sh",
}

// sharedPaths are folders that go with K3s when nothing else is in them.
var sharedPaths = []string{"/etc/rancher", "/var/lib/rancher"}

// linkNames are commands that K3s' install script links to its binary.
var linkNames = []string{"/usr/local/bin/kubectl", "/usr/local/bin/crictl", "/usr/local/bin/ctr"}

// mountPrefixes are below which K3s and its containers mount.
var mountPrefixes = []string{"/run/k3s", "/var/lib/kubelet/pods", "/var/lib/kubelet/plugins", "/run/netns/cni-", dataDir}

// linkDevices are network links of K3s' making.
var linkDevices = []string{"cni0", "flannel.1", "flannel-v6.1", "flannel-wg", "flannel-wg-v6", "kube-ipvs0"}

// host is the part of the kernel's state that K3s leaves behind.
type host interface {
	// KillContainers ends what K3s' units left running: containers, their shims and all below them.
	KillContainers(ctx context.Context) error
	// Unmount takes away mounts below the prefixes, deepest first.
	Unmount(prefixes []string) error
	// RemoveLinks deletes the named links, and those that have one of them as their master.
	RemoveLinks(names []string) error
	// CleanFilter removes K3s' iptables rules one by one.
	CleanFilter(ctx context.Context) error
	// RemoveCgroups removes the kubelet's cgroups.
	RemoveCgroups() error
	// Left names what of all that is still there.
	Left(prefixes, links []string) ([]string, error)
}

// remove ends K3s, cleans the host, tells the platform once and forgets. Each part finds what an earlier pass left.
func (s *Subsystem) remove(ctx context.Context, t target, st *state) error {
	cluster := st.ClusterID
	if cluster == "" {
		cluster = t.clusterID
	}
	key := t.key() // as the document says it: our own knowledge goes with the state
	if st.Role == "" && s.told == key && !s.anyFiles() {
		return nil
	}
	if !st.Cleaned {
		if err := s.clean(ctx); err != nil {
			return err
		}
		if st.Role != "" {
			st.Cleaned = true
			if err := s.state.write(*st); err != nil {
				return err
			}
		}
	}
	if s.told != key {
		s.publish(target{}, state{}) // measured as absent from here on
		req := nodeapi.HandshakeRequest{Runtime: t.runtime, Phase: nodeapi.PhaseStopped, ClusterID: cluster, Reason: "uninstalled"}
		if err := s.tell(ctx, req); err != nil && !(t.leaving && forgotten(err)) {
			return err
		}
		s.told = key
		s.o.Log.Info().Str("cluster_id", cluster).Msg("k3s: removed")
	}
	*st = state{}
	return s.state.remove()
}

// forgotten says that the platform does not know this machine any more: it waits for no word of one that leaves.
func forgotten(err error) bool {
	var refused *nodeapi.Error
	return errors.As(err, &refused) && (refused.HTTPStatus == http.StatusUnauthorized || refused.HTTPStatus == http.StatusNotFound)
}

func (s *Subsystem) anyFiles() bool {
	for _, p := range ownPaths {
		if exists(s.root.path(p)) {
			return true
		}
	}
	return false
}

// clean makes the host as if K3s had never been there, then looks whether that is so.
func (s *Subsystem) clean(ctx context.Context) error {
	for _, unit := range []string{serverUnit, agentUnit} {
		if err := s.o.Services.Stop(ctx, unit); err != nil {
			return fmt.Errorf("stop %s: %w", unit, err)
		}
	}
	if err := s.cleanKernel(ctx); err != nil {
		return err
	}
	if err := s.cleanFiles(); err != nil {
		return err
	}
	left, err := s.host.Left(mountPrefixes, linkDevices)
	if err != nil {
		return err
	}
	for _, p := range ownPaths {
		if path := s.root.path(p); exists(path) && !emptyMount(path) {
			left = append(left, p)
		}
	}
	if len(left) > 0 {
		return &agent.Later{Err: fmt.Errorf("K3s is stopped, and this is left of it: %s", strings.Join(left, ", ")), After: quickEvery}
	}
	return nil
}

func (s *Subsystem) cleanKernel(ctx context.Context) error {
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"end K3s' containers", func() error { return s.host.KillContainers(ctx) }},
		{"unmount", func() error { return s.host.Unmount(mountPrefixes) }},
		{"remove K3s' links", func() error { return s.host.RemoveLinks(linkDevices) }},
		{"remove K3s' packet filter rules", func() error { return s.host.CleanFilter(ctx) }},
		{"remove K3s' cgroups", s.host.RemoveCgroups},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

func (s *Subsystem) cleanFiles() error {
	for _, link := range linkNames {
		path := s.root.path(link)
		if to, err := os.Readlink(path); err == nil && filepath.Base(to) == filepath.Base(binaryPath) {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove %s: %w", link, err)
			}
		}
	}
	if spaces, err := filepath.Glob(s.root.path("/run/netns/cni-*")); err == nil {
		for _, p := range spaces {
			if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove a network namespace: %w", err)
			}
		}
	}
	for _, p := range ownPaths {
		if err := removeAll(s.root.path(p)); err != nil {
			return err
		}
	}
	if err := atomicfile.RemoveLeftovers(s.root.path(binaryPath)); err != nil {
		return err
	}
	for _, p := range sharedPaths {
		err := os.Remove(s.root.path(p))
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("remove %s: %w", p, err)
		}
	}
	return nil
}

// removeAll removes a path; a folder that somebody else mounted there stays, empty.
func removeAll(path string) error {
	err := os.RemoveAll(path)
	if err != nil && errors.Is(err, unix.EBUSY) && emptyMount(path) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

// emptyMount says whether path is an empty folder on a file system of its own.
func emptyMount(path string) bool {
	var own, parent unix.Stat_t
	if unix.Lstat(path, &own) != nil || unix.Lstat(filepath.Dir(path), &parent) != nil || own.Dev == parent.Dev {
		return false
	}
	entries, err := os.ReadDir(path)
	return err == nil && len(entries) == 0
}
