package module

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"powernode/agent/atomicfile"
	"powernode/sdwan"
)

// disk writes and reads below a root without following a link: every step of a path is opened by itself.
type disk struct {
	root string
	uid  int // whom the files belong to
	sums map[string]summed
}

// summed is a sum that holds for as long as the file is the same. Its change time can't be set back.
type summed struct {
	stat imprint
	sum  string
}

// imprint tells one state of a file from another.
type imprint struct {
	size         int64
	inode        uint64
	mode         uint32
	uid, gid     uint32
	mtime, ctime unix.Timespec
}

// file is a file as it is to be: its content, or the path of a checked file with that content.
type file struct {
	path    string
	mode    uint32
	size    int64 // of content; -1 where source has it
	content []byte
	source  string
	sum     string // SHA-256, hex
}

// errInTheWay is something on a path that is no folder, a link among others.
var errInTheWay = errors.New("a link, or what is no folder, is in the way: links are not followed")

func newDisk(root string) *disk {
	return &disk{root: root, uid: os.Geteuid(), sums: map[string]summed{}}
}

// folder opens a folder of the machine. With mode not 0 it makes what is missing.
func (d *disk) folder(name string, mode uint32) (int, error) {
	fd, err := unix.Open(d.root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", d.root, err)
	}
	for part := range strings.SplitSeq(strings.TrimPrefix(name, "/"), "/") {
		if part == "" {
			continue
		}
		next, err := step(fd, part, mode)
		_ = unix.Close(fd)
		if err != nil {
			return -1, fmt.Errorf("open %s at %q: %w", name, part, err)
		}
		fd = next
	}
	return fd, nil
}

func step(fd int, part string, mode uint32) (int, error) {
	const how = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	next, err := unix.Openat(fd, part, how, 0)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return -1, errInTheWay
	case !errors.Is(err, unix.ENOENT) || mode == 0:
		return next, err
	}
	if err := unix.Mkdirat(fd, part, mode); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	if next, err = unix.Openat(fd, part, how, 0); err != nil {
		return -1, err
	}
	if err := unix.Fchmod(next, mode); err != nil { // whatever our umask is
		return -1, errors.Join(err, unix.Close(next))
	}
	return next, nil
}

// missing are the folders above a file that are not there, the outermost first.
func (d *disk) missing(file string) ([]string, error) {
	var out []string
	for dir := path.Dir(file); len(dir) > 1; dir = path.Dir(dir) {
		fd, err := d.folder(dir, 0)
		if err == nil {
			return out, unix.Close(fd)
		}
		if !errors.Is(err, unix.ENOENT) {
			return nil, err
		}
		out = append([]string{dir}, out...)
	}
	return out, nil
}

// look says what is at a file's place: "" where it is as wanted, otherwise what it is instead.
func (d *disk) look(f file) (string, error) {
	dir, err := d.folder(path.Dir(f.path), 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return "absent", nil
	case errors.Is(err, errInTheWay):
		return "behind a link", nil
	case err != nil:
		return "", err
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	err = unix.Fstatat(dir, path.Base(f.path), &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		return "absent", nil
	case err != nil:
		return "", fmt.Errorf("look at %s: %w", f.path, err)
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return "no plain file", nil
	case st.Mode&0o7777 != f.mode:
		return fmt.Sprintf("mode %#o", st.Mode&0o7777), nil
	case int(st.Uid) != d.uid:
		return fmt.Sprintf("owner %d", st.Uid), nil
	case f.size >= 0 && st.Size != f.size:
		return fmt.Sprintf("%d bytes", st.Size), nil
	}
	sum, err := d.sum(dir, f.path, st)
	if err != nil || sum == f.sum {
		return "", err
	}
	return "content " + sum, nil
}

func (d *disk) sum(dir int, name string, st unix.Stat_t) (string, error) {
	now := imprint{st.Size, st.Ino, st.Mode, st.Uid, st.Gid, st.Mtim, st.Ctim}
	if k, known := d.sums[name]; known && k.stat == now {
		return k.sum, nil
	}
	fd, err := unix.Openat(dir, path.Base(name), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open %s: %w", name, err)
	}
	in := os.NewFile(uintptr(fd), name)
	defer in.Close()
	h := sha256.New()
	if _, err := io.Copy(h, in); err != nil {
		return "", fmt.Errorf("read %s: %w", name, err)
	}
	sum := hex.EncodeToString(h.Sum(nil))
	d.sums[name] = summed{now, sum}
	return sum, nil
}

// forget makes the next look at every file read it again.
func (d *disk) forget() { clear(d.sums) }

// write puts a file in its place: under another name first, and under its own only when it is whole.
func (d *disk) write(f file) (err error) {
	dir, err := d.folder(path.Dir(f.path), 0o755)
	if err != nil {
		return fmt.Errorf("write %s: %w", f.path, err)
	}
	defer unix.Close(dir)
	base, temp := path.Base(f.path), tempName(f.path)
	if err := unlink(dir, temp); err != nil { // left by an agent that was killed
		return fmt.Errorf("write %s: %w", f.path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write %s: %w", f.path, err), unlink(dir, temp))
		}
	}()
	if err := d.fill(dir, temp, f); err != nil {
		return err
	}
	if err := unix.Renameat(dir, temp, dir, base); err != nil {
		return err
	}
	return unix.Fsync(dir)
}

func (d *disk) fill(dir int, temp string, f file) error {
	create := func() (*os.File, error) {
		fd, err := unix.Openat(dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), temp), nil
	}
	return atomicfile.Fill(create, func(out *os.File) error { return copyInto(out, f) }, os.FileMode(f.mode))
}

func copyInto(out *os.File, f file) error {
	if f.source == "" {
		_, err := out.Write(f.content)
		return err
	}
	in, err := os.Open(f.source)
	if err != nil {
		return err
	}
	defer in.Close()
	h := sha256.New()
	if _, err := io.Copy(io.MultiWriter(out, h), in); err != nil {
		return err
	}
	if sum := hex.EncodeToString(h.Sum(nil)); sum != f.sum {
		return fmt.Errorf("the artefact has SHA-256 %s, pinned is %s", sum, f.sum)
	}
	return nil
}

// remove takes a file away. What is not there, is a folder, or lies behind a link by now is not ours.
func (d *disk) remove(name string) error {
	delete(d.sums, name)
	dir, err := d.folder(path.Dir(name), 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, errInTheWay) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	defer unix.Close(dir)
	for _, each := range []string{path.Base(name), tempName(name)} {
		if err := unlink(dir, each); err != nil && !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("remove %s: %w", name, err)
		}
	}
	return nil
}

// removeFolders takes away those that are empty, the innermost first, and answers those that are not.
func (d *disk) removeFolders(names []string) ([]string, error) {
	names = append([]string{}, names...)
	sort.Sort(sort.Reverse(sort.StringSlice(names))) // a folder's name is a prefix of those inside
	var left []string
	for i, name := range names {
		dir, err := d.folder(path.Dir(name), 0)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, errInTheWay) {
			continue
		}
		if err != nil {
			return append(left, names[i:]...), fmt.Errorf("remove %s: %w", name, err)
		}
		err = errors.Join(unix.Unlinkat(dir, path.Base(name), unix.AT_REMOVEDIR), unix.Close(dir))
		switch {
		case err == nil, errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST), errors.Is(err, unix.EBUSY):
			left = append(left, name)
		default:
			return append(left, names[i:]...), fmt.Errorf("remove %s: %w", name, err)
		}
	}
	sort.Strings(left)
	return left, nil
}

func unlink(dir int, name string) error {
	if err := unix.Unlinkat(dir, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

func tempName(file string) string { return "." + path.Base(file) + sdwan.TempSuffix }
