// Package humankey keeps a person's Ed25519 key in a file, sealed with a passphrase.
//
// It is not what makes a key count: that is the audit chain, which records the public half (platform/governance). It
// asks nobody for a passphrase; the command does, on the controlling terminal.
//
// Invariants: the private half is on disk sealed alone; the file is 0600 and written whole; a file that was changed
// anywhere does not open.
package humankey

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/crypto/argon2"
	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/sys/unix"

	"powernode/agent/atomicfile"
)

// MinPassphrase is the fewest characters that a passphrase has.
const MinPassphrase = 8

// ErrPassphrase says that the passphrase is not the one the key was sealed with, or that the file was changed.
var ErrPassphrase = errors.New("the passphrase does not fit")

// The second recommended choice of RFC 9106 §4.
const (
	argonTime    = 3
	argonMemory  = 64 << 10 // KiB
	argonThreads = 4
	maxMemory    = 1 << 20 // KiB: more is not asked of this machine by a file
	maxTime      = 16
	saltSize     = 16
)

// file is a key as it lies on disk.
type file struct {
	Version   int    `json:"version"`
	Email     string `json:"email"`
	PublicKey []byte `json:"public_key"`
	Salt      []byte `json:"argon2id_salt"`
	Time      uint32 `json:"argon2id_time"`
	Memory    uint32 `json:"argon2id_memory_kib"`
	Threads   uint8  `json:"argon2id_threads"`
	Nonce     []byte `json:"xchacha20poly1305_nonce"`
	Sealed    []byte `json:"sealed,omitempty"`
}

// Generate makes a key.
func Generate() (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return key, nil
}

// Write seals a key into a file.
func Write(path, email string, key ed25519.PrivateKey, passphrase []byte) error {
	f := file{Version: 1, Email: email, PublicKey: key.Public().(ed25519.PublicKey), Salt: make([]byte, saltSize),
		Time: argonTime, Memory: argonMemory, Threads: argonThreads, Nonce: make([]byte, chacha20poly1305.NonceSizeX)}
	for _, b := range [][]byte{f.Salt, f.Nonce} {
		if _, err := io.ReadFull(rand.Reader, b); err != nil {
			return fmt.Errorf("seal the key: %w", err)
		}
	}
	sealed, err := f.seal(key.Seed(), passphrase)
	if err != nil {
		return err
	}
	f.Sealed = sealed
	raw, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the key file: %w", err)
	}
	return atomicfile.Write(path, append(raw, '\n'), 0o600)
}

// Public reads the public half of a key file.
func Public(path string) (ed25519.PublicKey, error) {
	f, err := read(path)
	return f.PublicKey, err
}

// Open opens a key file with its passphrase.
func Open(path string, passphrase []byte) (ed25519.PrivateKey, error) {
	f, err := read(path)
	if err != nil {
		return nil, err
	}
	aead, err := chacha20poly1305.NewX(f.derive(passphrase))
	if err != nil {
		return nil, fmt.Errorf("open the key: %w", err)
	}
	seed, err := aead.Open(nil, f.Nonce, f.Sealed, f.bound())
	if err != nil || len(seed) != ed25519.SeedSize {
		return nil, ErrPassphrase
	}
	key := ed25519.NewKeyFromSeed(seed)
	if !key.Public().(ed25519.PublicKey).Equal(ed25519.PublicKey(f.PublicKey)) {
		return nil, ErrPassphrase
	}
	return key, nil
}

func (f file) seal(seed, passphrase []byte) ([]byte, error) {
	aead, err := chacha20poly1305.NewX(f.derive(passphrase))
	if err != nil {
		return nil, fmt.Errorf("seal the key: %w", err)
	}
	return aead.Seal(nil, f.Nonce, seed, f.bound()), nil
}

func (f file) derive(passphrase []byte) []byte {
	return argon2.IDKey(passphrase, f.Salt, f.Time, f.Memory, f.Threads, chacha20poly1305.KeySize)
}

// bound is everything in the file but the sealed half: it is authenticated with it.
func (f file) bound() []byte {
	f.Sealed = nil
	b, _ := json.Marshal(f) // texts, numbers and bytes always encode
	return b
}

func read(path string) (file, error) {
	var f file
	opened, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0) // a pipe is waited for by nobody
	if err != nil {
		return f, fmt.Errorf("read the key file: %w", err)
	}
	defer opened.Close() // nothing was written
	info, err := opened.Stat()
	if err != nil {
		return f, fmt.Errorf("read the key file: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return f, fmt.Errorf("the key file %s is refused: it must be a plain file of mode 0600", path)
	}
	raw, err := io.ReadAll(io.LimitReader(opened, 64<<10))
	if err != nil {
		return f, fmt.Errorf("read the key file: %w", err)
	}
	if err := json.Unmarshal(raw, &f); err != nil {
		return f, fmt.Errorf("the key file %s is no key file: %w", path, err)
	}
	if f.Version != 1 || len(f.PublicKey) != ed25519.PublicKeySize || len(f.Nonce) != chacha20poly1305.NonceSizeX || len(f.Salt) < saltSize ||
		f.Time < 1 || f.Time > maxTime || f.Memory < 8 || f.Memory > maxMemory || f.Threads < 1 {
		return f, fmt.Errorf("the key file %s is no key file of ours", path)
	}
	return f, nil
}
