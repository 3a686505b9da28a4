package local

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"powernode/platform/provider/local/boot"
)

// A machine's folder holds root (its files) and usr-local (its /usr/local, a folder beside because the host's programs
// are bound over root/usr).
func (p *Provider) rootDir(id string) string     { return filepath.Join(p.machineDir(id), "root") }
func (p *Provider) usrLocalDir(id string) string { return filepath.Join(p.machineDir(id), "usr-local") }

// folders that a machine starts with, beside mount points.
var folders = []struct {
	path string
	mode fs.FileMode
}{
	{"etc", 0o755}, {"etc/ssl", 0o755}, {"etc/ssl/certs", 0o755}, {"root", 0o700}, {"home", 0o755}, {"opt", 0o755}, {"srv", 0o755}, {"mnt", 0o755}, {"media", 0o755},
	{"var", 0o755}, {"var/lib", 0o755}, {"var/lib/misc", 0o755}, {"var/log", 0o755}, {"var/cache", 0o755}, {"var/spool", 0o755},
	{"var/tmp", 0o777 | fs.ModeSticky},
}

// settings are the host's that programs below /usr need. Not among them: keys, passwords, and what services are set to.
var settings = []string{
	"bash.bashrc", "ca-certificates.conf", "debian_version", "ethertypes", "gai.conf", "group", "host.conf", "iproute2",
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "login.defs", "nsswitch.conf", "os-release", "passwd", "profile",
	"protocols", "rpc", "services", "ssl/certs/ca-certificates.crt", "ssl/openssl.cnf", "terminfo", "xattr.conf",
}

// makeFiles makes the files of a new machine.
func (p *Provider) makeFiles(rec record) error {
	root := p.rootDir(rec.ID)
	if err := os.MkdirAll(root, 0o755); err != nil {
		return fmt.Errorf("make root of machine: %w", err)
	}
	for _, f := range folders {
		if err := makeDir(filepath.Join(root, f.path), f.mode); err != nil {
			return err
		}
	}
	for _, name := range []string{"bin", "etc", "games", "include", "lib", "libexec", "sbin", "share", "src"} {
		if err := makeDir(filepath.Join(p.usrLocalDir(rec.ID), name), 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		if err := copyLink(filepath.Join("/", name), filepath.Join(root, name)); err != nil {
			return err
		}
	}
	for link, to := range map[string]string{"var/run": "/run", "var/lock": "/run/lock", "etc/mtab": "../proc/self/mounts"} {
		if err := symlink(to, filepath.Join(root, link)); err != nil {
			return err
		}
	}
	for _, name := range settings {
		if err := copyTree(filepath.Join("/etc", name), filepath.Join(root, "etc", name)); err != nil {
			return fmt.Errorf("copy /etc/%s: %w", name, err)
		}
	}
	return writeNames(filepath.Join(root, "etc"), rec)
}

// writeNames writes who the machine is. It has no resolver: its underlay leads to none.
func writeNames(etc string, rec record) error {
	sum := sha256.Sum256([]byte(rec.ID))
	for name, text := range map[string]string{
		"hostname":    rec.Name + "\n",
		"hosts":       "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 " + rec.Name + "\n",
		"resolv.conf": "# a machine of the provider local reaches no resolver\n",
		"machine-id":  hex.EncodeToString(sum[:16]) + "\n",
	} {
		if err := os.WriteFile(filepath.Join(etc, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("write /etc/%s: %w", name, err)
		}
	}
	return nil
}

// placeAgent copies the agent into the machine: a build on the host changes no machine before its next start.
func (p *Provider) placeAgent(id string) (string, error) {
	in, err := os.Open(p.agent)
	if err != nil {
		return "", fmt.Errorf("open the agent's program: %w", err)
	}
	defer in.Close()
	// The machine's root wrote here: links of its making must not lead out.
	folder, err := os.OpenRoot(p.usrLocalDir(id))
	if err != nil {
		return "", fmt.Errorf("open files of machine: %w", err)
	}
	defer folder.Close()
	name := filepath.Join("libexec", filepath.Base(boot.AgentPath))
	if err := folder.MkdirAll("libexec", 0o755); err != nil {
		return "", fmt.Errorf("make folder of agent: %w", err)
	}
	if err := folder.RemoveAll(name + ".new"); err != nil {
		return "", fmt.Errorf("place agent: %w", err)
	}
	if err := writeProgram(folder, name+".new", in); err != nil {
		return "", fmt.Errorf("copy agent: %w", err)
	}
	if err := folder.Rename(name+".new", name); err != nil {
		return "", fmt.Errorf("place agent: %w", err)
	}
	return filepath.Join(p.usrLocalDir(id), name), nil
}

// writeProgram keeps this process from forking meanwhile: a child that holds the file open for writing, for the moment
// before its exec, would make the start of the program fail ("text file busy").
func writeProgram(folder *os.Root, name string, in io.Reader) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	out, err := folder.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(0o755), out.Close())
}

// readInside reads a small file of a running machine, of which its root may have made anything: links don't lead out,
// and nothing is waited for.
func readInside(pid int, path string) ([]byte, error) {
	root, err := os.OpenRoot(filepath.Join("/proc", strconv.Itoa(pid), "root"))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.OpenFile(strings.TrimPrefix(path, "/"), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 1<<20))
}

// listInside lists a folder of a running machine: the absolute paths of what ends so, sorted. A folder that is not
// there is empty.
func listInside(pid int, folder, suffix string) ([]string, error) {
	root, err := os.OpenRoot(filepath.Join("/proc", strconv.Itoa(pid), "root"))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), strings.TrimPrefix(folder, "/"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), suffix) {
			out = append(out, filepath.Join(folder, e.Name()))
		}
	}
	return out, nil
}

// makeDir sets the mode whatever the umask.
func makeDir(path string, mode fs.FileMode) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	if err := os.Chmod(path, mode); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	return nil
}

// copyTree copies folders, files and links; what the host has not is left out.
func copyTree(from, to string) error {
	info, err := os.Lstat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		return copyLink(from, to)
	case info.Mode().IsRegular():
		return copyFile(from, to, info.Mode().Perm())
	case !info.IsDir():
		return nil
	}
	if err := makeDir(to, info.Mode().Perm()); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := copyTree(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func copyLink(from, to string) error {
	target, err := os.Readlink(from)
	if err != nil {
		return nil // not a link, or not there
	}
	return symlink(target, to)
}

func symlink(target, path string) error {
	if err := os.Symlink(target, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make link: %w", err)
	}
	return nil
}

func copyFile(from, to string, mode fs.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(mode), out.Close())
}
