package governance

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"powernode/schema"
	"powernode/store"
)

// RootMark is the file, in the state directory and made by root, that names a key which root put in another's place.
const RootMark = "human.key.root"

const (
	userType       = "Governance::User"
	keyCreated     = "human_key_created"
	byFirst        = "first"
	byKey          = "key"
	byRoot         = "root"
	maxNamesLength = 200
)

// Key is the public half of a person's human key as the audit chain records it.
type Key struct {
	UserID store.UserID
	Email  string
	Public ed25519.PublicKey
	From   int64 // the sequence of its record in the audit chain
	Until  int64 // the sequence of the record that replaced it; 0: it is the person's key now
}

// KeyStatement is what a person signs when a human key is made: with the new key, as proof that they have it, and with
// the key that it replaces.
type KeyStatement struct {
	Statement string          `json:"statement"`
	AccountID store.AccountID `json:"account_id"`
	Email     string          `json:"email"`
	PublicKey []byte          `json:"public_key"`
}

// Bytes are the bytes that are signed.
func (k KeyStatement) Bytes() []byte {
	k.Statement = "powernode human key v1"
	return canonical(k)
}

// KeyInput makes an account's first person and key, or puts a new key in an old one's place.
type KeyInput struct {
	Email     string `json:"email"`
	Name      string `json:"name"`
	PublicKey []byte `json:"public_key"`
	Proof     []byte `json:"proof"`     // the statement, signed with the new key
	Authority []byte `json:"authority"` // the statement, signed with the key that is replaced; nil: none yet, or root
}

// anchors are the key records that this process has seen: a chain that was rewritten under it has lost them.
type anchors struct {
	mu   sync.Mutex
	seen map[store.AccountID][]string // hashes of the records, in order
}

// Keys are all keys that the account's audit chain records validly, oldest first. The first record stands; a later
// one counts only when a key that stood then has signed it, or root has: who can write the database can append a row
// to the chain, but neither of these.
func (s *Service) Keys(ctx context.Context, v *store.View, acct store.AccountID) ([]Key, error) {
	rows, err := store.AuditOf(ctx, v, acct, userType, "")
	if err != nil {
		return nil, fmt.Errorf("read the record of human keys: %w", err)
	}
	var keys []Key
	var hashes []string
	for _, row := range rows {
		if row.Action != keyCreated {
			continue
		}
		k, ok := s.accept(keys, row)
		if !ok {
			continue
		}
		keys, hashes = replace(keys, k), append(hashes, row.Hash)
	}
	if !s.anchored(acct, hashes) {
		s.Log.Error().Str("account", string(acct)).Msg("the record of human keys is not the one that stood here before: no key counts")
		return nil, nil
	}
	return keys, nil
}

// anchored says whether the records go on where this process last saw them.
func (s *Service) anchored(acct store.AccountID, hashes []string) bool {
	a := &s.anchors
	a.mu.Lock()
	defer a.mu.Unlock()
	known := a.seen[acct]
	if len(hashes) < len(known) {
		return false
	}
	for i := range known {
		if known[i] != hashes[i] {
			return false
		}
	}
	if a.seen == nil {
		a.seen = map[store.AccountID][]string{}
	}
	a.seen[acct] = hashes
	return true
}

// keyRecord is a key's record as the audit row holds it.
type keyRecord struct {
	Email        string `json:"email"`
	PublicKey    []byte `json:"public_key"`
	Proof        []byte `json:"proof"`
	AuthorisedBy string `json:"authorised_by"`
	Authority    []byte `json:"authority"`
}

func (s *Service) accept(keys []Key, row store.AuditEntry) (Key, bool) {
	var r keyRecord
	if !decode(row.New, &r) || len(r.PublicKey) != ed25519.PublicKeySize {
		return Key{}, false
	}
	k := Key{UserID: store.UserID(row.ResourceID), Email: r.Email, Public: r.PublicKey, From: row.Sequence}
	statement := KeyStatement{AccountID: row.AccountID, Email: r.Email, PublicKey: r.PublicKey}.Bytes()
	if !ed25519.Verify(k.Public, statement, r.Proof) {
		return k, false
	}
	switch {
	case len(keys) == 0:
		return k, true
	case r.AuthorisedBy == byRoot:
		return k, s.rootNames(k.Public)
	}
	for _, standing := range keys {
		if standing.Until == 0 && ed25519.Verify(standing.Public, statement, r.Authority) {
			return k, true
		}
	}
	return k, false
}

func replace(keys []Key, k Key) []Key {
	for i := range keys {
		if keys[i].UserID == k.UserID && keys[i].Until == 0 {
			keys[i].Until = k.From
		}
	}
	return append(keys, k)
}

// rootNames says whether root has named the key, in a file that nobody but root can have made.
func (s *Service) rootNames(public ed25519.PublicKey) bool {
	if s.StateDir == "" {
		return false
	}
	path := filepath.Join(s.StateDir, RootMark)
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o022 != 0 {
		return false
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || owner.Uid != 0 {
		return false
	}
	raw, err := os.ReadFile(path)
	return err == nil && strings.TrimSpace(string(raw)) == base64.StdEncoding.EncodeToString(public)
}

// HasKey says whether anybody of the account can decide.
func (s *Service) HasKey(ctx context.Context, v *store.View, acct store.AccountID) (bool, error) {
	keys, err := s.Keys(ctx, v, acct)
	return len(keys) > 0, err
}

// signer finds the key that signed a statement: one that stands now, or one that stood at the given sequence of the
// audit chain where that is not 0.
func signer(keys []Key, at int64, statement, signature []byte) (Key, bool) {
	for _, k := range keys {
		stands := k.Until == 0 || (at != 0 && at > k.From && at < k.Until)
		if stands && ed25519.Verify(k.Public, statement, signature) {
			return k, true
		}
	}
	return Key{}, false
}

// RecordKey makes the account's first person with their human key, or puts a new key in the place of theirs.
func (s *Service) RecordKey(ctx context.Context, tx *store.Tx, acct store.AccountID, in KeyInput) (store.User, error) {
	if err := in.check(acct); err != nil {
		return store.User{}, err
	}
	keys, err := s.Keys(ctx, &tx.View, acct)
	if err != nil {
		return store.User{}, err
	}
	authorisedBy, err := s.keyAuthority(keys, acct, in)
	if err != nil {
		return store.User{}, err
	}
	u, err := s.person(ctx, tx, acct, keys, in)
	if err != nil {
		return u, err
	}
	old := store.Object{}
	if len(u.PublicKey) > 0 {
		old["public_key"] = base64.StdEncoding.EncodeToString(u.PublicKey)
	}
	u.PublicKey = in.PublicKey
	if err := store.SetUserKey(ctx, tx, acct, u.ID, in.PublicKey); err != nil {
		return u, fmt.Errorf("write the public key: %w", err)
	}
	record := keyRecord{Email: u.Email, PublicKey: in.PublicKey, Proof: in.Proof, AuthorisedBy: authorisedBy, Authority: in.Authority}
	_, err = tx.Audit(ctx, store.AuditEntry{AccountID: acct, Action: keyCreated, ResourceType: userType, ResourceID: string(u.ID),
		Old: old, New: object(record)})
	return u, err
}

func (in KeyInput) check(acct store.AccountID) error {
	switch {
	case !strings.Contains(in.Email, "@") || len(in.Email) > maxNamesLength || strings.ContainsFunc(in.Email, isControl):
		return schema.InvalidArgument("/email", in.Email, "email must be an e-mail address")
	case strings.TrimSpace(in.Name) == "" || len(in.Name) > maxNamesLength || strings.ContainsFunc(in.Name, isControl):
		return schema.InvalidArgument("/name", in.Name, "name must be 1 to %d characters", maxNamesLength)
	case len(in.PublicKey) != ed25519.PublicKeySize:
		return schema.InvalidArgument("/public_key", nil, "public_key must be an Ed25519 key")
	case !ed25519.Verify(in.PublicKey, KeyStatement{AccountID: acct, Email: in.Email, PublicKey: in.PublicKey}.Bytes(), in.Proof):
		return schema.InvalidArgument("/proof", nil, "proof must be the statement, signed with the new key")
	}
	return nil
}

func isControl(r rune) bool { return r < 0x20 || r == 0x7f }

func (s *Service) keyAuthority(keys []Key, acct store.AccountID, in KeyInput) (string, error) {
	statement := KeyStatement{AccountID: acct, Email: in.Email, PublicKey: in.PublicKey}.Bytes()
	if len(keys) == 0 {
		return byFirst, nil
	}
	if _, ok := signer(keys, 0, statement, in.Authority); ok {
		return byKey, nil
	}
	if s.rootNames(in.PublicKey) {
		return byRoot, nil
	}
	return "", schema.Errorf(schema.PermissionDenied, "there is a human key already: replacing it needs the old one, or root")
}

// person finds whose key it is, or makes the account's first person.
func (s *Service) person(ctx context.Context, tx *store.Tx, acct store.AccountID, keys []Key, in KeyInput) (store.User, error) {
	u, err := store.UserByRef(ctx, &tx.View, acct, in.Email)
	if err == nil {
		return u, nil
	}
	if !errors.Is(err, store.ErrNoRow) {
		return u, fmt.Errorf("look for the person: %w", err)
	}
	if len(keys) > 0 {
		return u, schema.Errorf(schema.NotFound, "the account has nobody with this e-mail address")
	}
	u = store.User{ID: store.UserID(tx.NewID()), AccountID: acct, Email: in.Email, Name: in.Name, Role: RoleAdmin}
	if err := store.InsertUser(ctx, tx, u); err != nil {
		return u, fmt.Errorf("make the account's first person: %w", err)
	}
	_, err = tx.Audit(ctx, store.AuditEntry{AccountID: acct, Action: "created", ResourceType: userType, ResourceID: string(u.ID),
		New: store.Object{"email": u.Email, "name": u.Name, "role": u.Role}})
	return u, err
}

// canonical is the one spelling of a value: what is hashed and signed.
func canonical(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("a value of ours does not encode: " + err.Error()) // strings, numbers and maps of them
	}
	return b
}

// object spells a value as an audit row holds it.
func object(v any) store.Object {
	var o store.Object
	decode(v, &o)
	return o
}

// decode reads what object made; a value of another shape is not what it says it is.
func decode(from any, into any) bool {
	b, err := json.Marshal(from)
	if err != nil {
		return false
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	return dec.Decode(into) == nil
}
