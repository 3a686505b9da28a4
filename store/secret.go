package store

import (
	"crypto/cipher"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"golang.org/x/crypto/chacha20poly1305"
)

// Secret is a value that never prints and never marshals.
type Secret string

// String hides the secret.
func (Secret) String() string { return "[secret]" }

// GoString hides the secret.
func (Secret) GoString() string { return "[secret]" }

// MarshalJSON refuses: a secret has no place in a result by accident.
func (Secret) MarshalJSON() ([]byte, error) { return nil, errors.New("a secret does not marshal") }

// Reveal is the secret itself.
func (s Secret) Reveal() string { return string(s) }

// Hash is how tokens are stored.
func (s Secret) Hash() string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// Sealer seals secrets with a key that lives outside the database (XChaCha20-Poly1305).
type Sealer struct {
	aead cipher.AEAD
}

// NewSealer takes a key of 32 bytes.
func NewSealer(key []byte) (*Sealer, error) {
	aead, err := chacha20poly1305.NewX(key)
	if err != nil {
		return nil, fmt.Errorf("use the sealing key: %w", err)
	}
	return &Sealer{aead: aead}, nil
}

// Seal seals a secret; purpose binds it to its place, so that a sealed value can't be moved to another column or row.
func (s *Sealer) Seal(tx *Tx, purpose string, secret []byte) ([]byte, error) {
	return s.SealFrom(tx.db.opt.Rand, purpose, secret)
}

// SealFrom is Seal for what is kept outside the database, with randomness of its own.
func (s *Sealer) SealFrom(random io.Reader, purpose string, secret []byte) ([]byte, error) {
	nonce := make([]byte, s.aead.NonceSize())
	if _, err := io.ReadFull(random, nonce); err != nil {
		return nil, fmt.Errorf("seal a secret: %w", err)
	}
	return s.aead.Seal(nonce, nonce, secret, []byte(purpose)), nil
}

// Open opens what Seal sealed for the same purpose.
func (s *Sealer) Open(purpose string, sealed []byte) ([]byte, error) {
	n := s.aead.NonceSize()
	if len(sealed) < n {
		return nil, errors.New("open a sealed value: too short")
	}
	secret, err := s.aead.Open(nil, sealed[:n], sealed[n:], []byte(purpose))
	if err != nil {
		return nil, fmt.Errorf("open a sealed value: %w", err)
	}
	return secret, nil
}
