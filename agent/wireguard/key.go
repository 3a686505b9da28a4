package wireguard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"powernode/agent/atomicfile"
)

// keyStore keeps one private key a network. They are made here and leave the machine by no way.
type keyStore struct{ dir string }

// networkID is what an id must look like before it becomes a file's name.
var networkID = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z_-]{0,63}$`)

func (k keyStore) path(network string) (string, error) {
	if !networkID.MatchString(network) {
		return "", fmt.Errorf("network id %q can't name a key", network)
	}
	return filepath.Join(k.dir, network), nil
}

// ensure reads a network's key and makes it where there is none.
func (k keyStore) ensure(network string) (wgtypes.Key, error) {
	key, err := k.read(network)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	path, err := k.path(network)
	if err != nil {
		return wgtypes.Key{}, err
	}
	if key, err = wgtypes.GeneratePrivateKey(); err != nil {
		return wgtypes.Key{}, fmt.Errorf("make a key: %w", err)
	}
	if err := os.MkdirAll(k.dir, 0o700); err != nil {
		return wgtypes.Key{}, fmt.Errorf("make the key directory: %w", err)
	}
	return key, atomicfile.Write(path, []byte(key.String()+"\n"), 0o600)
}

// read refuses a key that others may read: it has to be taken for known.
func (k keyStore) read(network string) (wgtypes.Key, error) {
	path, err := k.path(network)
	if err != nil {
		return wgtypes.Key{}, err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("read key: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return wgtypes.Key{}, fmt.Errorf("key %s is %v, not a file with mode 0600", path, info.Mode())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("read key: %w", err)
	}
	key, err := wgtypes.ParseKey(strings.TrimSpace(string(data)))
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("key %s is damaged", path) // the error would quote it
	}
	return key, nil
}

func (k keyStore) remove(network string) error {
	path, err := k.path(network)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove key: %w", err)
	}
	return atomicfile.RemoveLeftovers(path)
}
