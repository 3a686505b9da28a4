package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"powernode/platform/provider/local/cgroup"
)

// programs are the host's folders that a machine has too, read-only; links are made with the machine's files.
// Debian's alternatives are links into /usr.
var programs = []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc/alternatives"}

// devices are the host's nodes that a machine has too.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty", "kmsg", "fuse", "net/tun"}

// mountAll makes the machine's files and leaves the host's behind. /etc, /var, /usr/local, /root, /home, /opt and /srv
// are the machine's own and stay; /run, /tmp and /dev are made anew; of the host there are the programs below /usr.
func mountAll(spec Spec) error {
	hierarchies, err := cgroup.Hierarchies()
	if err != nil {
		return err
	}
	root := spec.Root
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := mount(root, root, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return mountPrograms(root, spec.UsrLocal) },
		func() error { return mountKernel(root) },
		func() error { return mountControlGroups(root, hierarchies) },
		func() error { return mountDevices(root) },
		func() error { return mountMemory(root, spec.BootID) },
		func() error { return changeRoot(root) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return enterControlGroup(hierarchies)
}

func mountPrograms(root, usrLocal string) error {
	for _, name := range programs {
		host := "/" + name
		info, err := os.Lstat(host)
		if err != nil || !info.IsDir() {
			continue // a link, or not there on this architecture
		}
		target := filepath.Join(root, name)
		if err := os.MkdirAll(target, 0o755); err != nil {
			return fmt.Errorf("make /%s: %w", name, err)
		}
		if err := mount(host, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return err
		}
		if err := mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return err
		}
	}
	return mount(usrLocal, filepath.Join(root, "usr/local"), "", unix.MS_BIND, "")
}

func mountKernel(root string) error {
	const quiet = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := mountNew("proc", filepath.Join(root, "proc"), "proc", quiet, ""); err != nil {
		return err
	}
	return mountNew("sysfs", filepath.Join(root, "sys"), "sysfs", quiet, "")
}

// mountControlGroups shows the host's hierarchies, each from this machine's group downwards.
func mountControlGroups(root string, hs []cgroup.Hierarchy) error {
	const quiet = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	top := filepath.Join(root, cgroup.Mount)
	if len(hs) == 1 && hs[0].Version == 2 && hs[0].Path == cgroup.Mount {
		return mount("cgroup2", top, "cgroup2", quiet, "")
	}
	if err := mount("tmpfs", top, "tmpfs", quiet, "mode=755"); err != nil {
		return err
	}
	for _, h := range hs {
		target := filepath.Join(root, h.Path)
		kind, options := "cgroup2", ""
		if h.Version == 1 {
			kind, options = "cgroup", h.Options
		}
		if err := mountNew(kind, target, kind, quiet, options); err != nil {
			return err
		}
		if err := linkControllers(target, options); err != nil {
			return err
		}
	}
	return nil
}

// linkControllers gives controllers that share a hierarchy a name each ("cpu" beside "cpu,cpuacct").
func linkControllers(target, options string) error {
	name := filepath.Base(target)
	if !strings.Contains(name, ",") {
		return nil
	}
	for controller := range strings.SplitSeq(options, ",") {
		err := os.Symlink(name, filepath.Join(filepath.Dir(target), controller))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("name controller %s: %w", controller, err)
		}
	}
	return nil
}

func mountDevices(root string) error {
	dev := filepath.Join(root, "dev")
	if err := mountNew("tmpfs", dev, "tmpfs", unix.MS_NOSUID, "mode=755,size=4m"); err != nil {
		return err
	}
	for _, name := range devices {
		if err := bindDevice(filepath.Join("/dev", name), filepath.Join(dev, name)); err != nil {
			return err
		}
	}
	if err := mountNew("devpts", filepath.Join(dev, "pts"), "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620,gid=5"); err != nil {
		return err
	}
	if err := mountNew("tmpfs", filepath.Join(dev, "shm"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
		return err
	}
	for name, to := range map[string]string{
		"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(to, filepath.Join(dev, name)); err != nil {
			return fmt.Errorf("make /dev/%s: %w", name, err)
		}
	}
	return nil
}

func bindDevice(host, target string) error {
	if _, err := os.Stat(host); errors.Is(err, fs.ErrNotExist) {
		return nil // the host has none; whoever needs it says so
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return fmt.Errorf("make folder of %s: %w", host, err)
	}
	f, err := os.OpenFile(target, os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("make %s: %w", host, err)
	}
	_ = f.Close()
	return mount(host, target, "", unix.MS_BIND, "")
}

// mountMemory makes what a boot starts empty, and this boot's id, which agents report.
func mountMemory(root, bootID string) error {
	if err := mountNew("tmpfs", filepath.Join(root, "run"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(root, "run/lock"), 0o1777); err != nil {
		return fmt.Errorf("make /run/lock: %w", err)
	}
	if err := mountNew("tmpfs", filepath.Join(root, "tmp"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
		return err
	}
	id := filepath.Join(root, "run/powernode-boot-id")
	if err := os.WriteFile(id, []byte(bootID+"\n"), 0o444); err != nil {
		return fmt.Errorf("write boot id: %w", err)
	}
	return mount(id, filepath.Join(root, "proc/sys/kernel/random/boot_id"), "", unix.MS_BIND, "")
}

// changeRoot leaves the host's files. What is mounted from here on is shared inside the machine, as kubelet wants it.
func changeRoot(root string) error {
	if err := unix.Chdir(root); err != nil {
		return fmt.Errorf("enter %s: %w", root, err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the host's files: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("enter root: %w", err)
	}
	return mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

func enterControlGroup(hs []cgroup.Hierarchy) error {
	for _, h := range hs {
		if h.Version != 2 {
			continue
		}
		if err := cgroup.Enter(h); err != nil {
			return err
		}
	}
	return nil
}

func mountNew(source, target, kind string, flags uintptr, data string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	return mount(source, target, kind, flags, data)
}

func mount(source, target, kind string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, target, err)
	}
	return nil
}
