package atomicfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Write replaces the file at path by data, with mode.
func Write(path string, data []byte, mode fs.FileMode) error {
	return Copy(path, bytes.NewReader(data), mode)
}

// Copy is Write for what is too large to be held. As with Fill, from must be quick.
func Copy(path string, from io.Reader, mode fs.FileMode) (err error) {
	dir, temp := filepath.Dir(path), ""
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, err)
			_ = os.Remove(temp)
		}
	}()
	create := func() (*os.File, error) {
		f, err := os.CreateTemp(dir, tempPrefix(path)+"*") // 0600
		if err == nil {
			temp = f.Name()
		}
		return f, err
	}
	fill := func(f *os.File) error {
		_, err := io.Copy(f, from)
		return err
	}
	if err := Fill(create, fill, mode); err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		return err
	}
	return syncDir(dir)
}

// Fill has a file created, filled, given its mode and written to disk. A program is open for writing only while this process
// doesn't fork: a child has all descriptors until its exec is over, and while one that writes is open anywhere a program can't
// be started ("text file busy"). So create and fill must be quick; what takes long, the way to the disk, comes after.
func Fill(create func() (*os.File, error), fill func(*os.File) error, mode fs.FileMode) error {
	f, err := filled(create, fill, mode)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// filled answers the closed file, opened again for reading.
func filled(create func() (*os.File, error), fill func(*os.File) error, mode fs.FileMode) (*os.File, error) {
	if mode&0o111 != 0 {
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
	}
	f, err := create()
	if err != nil {
		return nil, err
	}
	err = errors.Join(fill(f), f.Chmod(mode))
	again, openErr := os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd())) // this very file, whatever its name is by now
	if err := errors.Join(err, openErr, f.Close()); err != nil {
		_ = again.Close() // nil where it isn't open
		return nil, err
	}
	return again, nil
}

func tempPrefix(path string) string { return "." + filepath.Base(path) + "." }

// RemoveLeftovers removes what writers of the file at path left that were killed. No other may be at work.
func RemoveLeftovers(path string) error {
	dir := filepath.Dir(path)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look for leftovers of %s: %w", path, err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), tempPrefix(path)) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove a leftover of %s: %w", path, err)
		}
	}
	return nil
}

// syncDir makes a rename in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
