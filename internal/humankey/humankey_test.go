package humankey_test

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"powernode/internal/humankey"
)

func TestKeyOpensWithItsPassphraseAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "human.key")
	key, err := humankey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	if err := humankey.Write(path, "ada@example.org", key, []byte("correct horse")); err != nil {
		t.Fatal(err)
	}
	opened, err := humankey.Open(path, []byte("correct horse"))
	if err != nil || !opened.Equal(key) {
		t.Fatalf("opened: %v", err)
	}
	if _, err := humankey.Open(path, []byte("another")); !errors.Is(err, humankey.ErrPassphrase) {
		t.Errorf("with another passphrase: %v", err)
	}
	public, err := humankey.Public(path)
	if err != nil || !public.Equal(key.Public().(ed25519.PublicKey)) {
		t.Errorf("the public half: %v", err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(raw, key.Seed()) {
		t.Error("the file holds the key itself")
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestChangedOrOpenFileIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "human.key")
	key, err := humankey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	if err := humankey.Write(path, "ada@example.org", key, []byte("correct horse")); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, content []byte, mode os.FileMode) string {
		p := filepath.Join(filepath.Dir(path), name)
		if err := errors.Join(os.WriteFile(p, content, 0o600), os.Chmod(p, mode)); err != nil {
			t.Fatal(err)
		}
		return p
	}
	pipe := filepath.Join(filepath.Dir(path), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{
		pipe,
		write("other person", bytes.Replace(raw, []byte("ada@"), []byte("eve@"), 1), 0o600),
		write("open to others", raw, 0o640),
		write("greedy", bytes.Replace(raw, []byte("65536"), []byte("99999999"), 1), 0o600),
		write("nothing", nil, 0o600),
		filepath.Join(filepath.Dir(path), "absent"),
	} {
		if _, err := humankey.Open(p, []byte("correct horse")); err == nil {
			t.Errorf("%s opens", filepath.Base(p))
		}
	}
}
