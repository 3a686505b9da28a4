package governance

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
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
	Chain     *store.Head     `json:"chain,omitempty"`
}

// Bytes are the bytes that are signed.
func (k KeyStatement) Bytes() []byte {
	k.Statement = "powernode human key v1"
	return canonical(k)
}

// KeyInput makes an account's first person and key, or puts a new key in an old one's place.
type KeyInput struct {
	Email     string      `json:"email"`
	Name      string      `json:"name"`
	PublicKey []byte      `json:"public_key"`
	Proof     []byte      `json:"proof"`     // the statement, signed with the new key
	Authority []byte      `json:"authority"` // the statement, signed with the key that is replaced; nil: none yet, or root
	Chain     *store.Head `json:"chain,omitempty"`
}

// Statement is what is signed to make the key.
func (in KeyInput) Statement(acct store.AccountID) []byte {
	return KeyStatement{AccountID: acct, Email: in.Email, PublicKey: in.PublicKey, Chain: in.Chain}.Bytes()
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
	r, err := s.known(ctx, v, acct)
	if err != nil {
		return nil, err
	}
	return r.keys, nil
}

// known is the record of an account's people, without keys where the record of those does not count.
func (s *Service) known(ctx context.Context, v *store.View, acct store.AccountID) (*record, error) {
	r, err := s.people(ctx, v, acct)
	if err == nil && !s.counts(acct, r) {
		r.keys = nil
	}
	return r, err
}

// counts says whether the record of keys goes on where this process last saw it.
func (s *Service) counts(acct store.AccountID, r *record) bool {
	if s.anchored(acct, r.hashes) {
		return true
	}
	s.Log.Error().Str("account", string(acct)).Msg("the record of human keys is not the one that stood here before: no key counts")
	return false
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
	Email        string      `json:"email"`
	PublicKey    []byte      `json:"public_key"`
	Proof        []byte      `json:"proof"`
	AuthorisedBy string      `json:"authorised_by"`
	Authority    []byte      `json:"authority"`
	Chain        *store.Head `json:"chain,omitempty"`
}

func (s *Service) accept(r *record, row store.AuditEntry) (Key, bool) {
	var made keyRecord
	if !decode(row.New, &made) || len(made.PublicKey) != ed25519.PublicKeySize {
		return Key{}, false
	}
	k := Key{UserID: store.UserID(row.ResourceID), Email: made.Email, Public: made.PublicKey, From: row.Sequence}
	statement := KeyStatement{AccountID: row.AccountID, Email: made.Email, PublicKey: made.PublicKey, Chain: made.Chain}.Bytes()
	switch {
	case !s.memo.verify(k.Public, statement, made.Proof), r.had(k.Public):
		return k, false
	case len(r.keys) == 0:
		return k, true
	case r.people[k.UserID].Email != k.Email:
		return k, false
	case made.AuthorisedBy == byRoot:
		return k, s.rootNames(k.Public)
	}
	return k, s.authorises(r, k.UserID, statement, made.Authority)
}

// had says whether a key stands in the record already. A key is recorded once: what gave it to somebody, a signature or
// root's word, would give it back after it was replaced, or its owner was removed.
func (r *record) had(public ed25519.PublicKey) bool {
	return slices.ContainsFunc(r.keys, func(k Key) bool { return k.Public.Equal(public) })
}

// authorises says whether a signature gives a person a new key: one by the key that it replaces, or for somebody who has
// none, one by an administrator's.
func (s *Service) authorises(r *record, id store.UserID, statement, authority []byte) bool {
	has := false
	for _, k := range r.keys {
		has = has || k.UserID == id && k.Until == 0
	}
	by, ok := s.signer(r.keys, 0, statement, authority)
	return ok && (by.UserID == id || !has && r.people[by.UserID].Role == RoleAdmin)
}

func replace(keys []Key, k Key) []Key {
	for i := range keys {
		if keys[i].UserID == k.UserID && keys[i].Until == 0 {
			keys[i].Until = k.From
		}
	}
	return append(keys, k)
}

// rootNames says whether root has named the key, in a file that nobody but root can have made. What is looked at is the file
// that is read: whoever owns the directory can put another in its place in between.
func (s *Service) rootNames(public ed25519.PublicKey) bool {
	if s.StateDir == "" {
		return false
	}
	f, err := os.OpenFile(filepath.Join(s.StateDir, RootMark), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o022 != 0 {
		return false
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || owner.Uid != 0 {
		return false
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxMark))
	return err == nil && strings.TrimSpace(string(raw)) == base64.StdEncoding.EncodeToString(public)
}

// maxMark bounds what is read of root's mark: a key in Base64 and a line's end.
const maxMark = 128

// HasKey says whether anybody of the account can decide.
func (s *Service) HasKey(ctx context.Context, v *store.View, acct store.AccountID) (bool, error) {
	keys, err := s.Keys(ctx, v, acct)
	return len(keys) > 0, err
}

// signer finds the key that signed a statement: one that stands now, or one that stood at the given sequence of the
// audit chain where that is not 0.
func (s *Service) signer(keys []Key, at int64, statement, signature []byte) (Key, bool) {
	for _, k := range keys {
		stands := k.Until == 0 || (at != 0 && at > k.From && at < k.Until)
		if stands && s.memo.verify(k.Public, statement, signature) {
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
	known, err := s.people(ctx, &tx.View, acct)
	if err != nil {
		return store.User{}, err
	}
	if !s.counts(acct, known) {
		return store.User{}, errNotAuthorised
	}
	if known.had(in.PublicKey) {
		return store.User{}, schema.Errorf(schema.Conflict, "this key was recorded before: a key is used once")
	}
	authorisedBy, err := s.keyAuthority(known, known.named(in.Email), acct, in)
	if err == nil {
		err = standsOn(ctx, &tx.View, in.Chain)
	}
	if err != nil {
		return store.User{}, err
	}
	u, err := s.person(ctx, tx, acct, known, in)
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
	record := keyRecord{Email: u.Email, PublicKey: in.PublicKey, Proof: in.Proof, AuthorisedBy: authorisedBy, Authority: in.Authority, Chain: in.Chain}
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
	case !ed25519.Verify(in.PublicKey, in.Statement(acct), in.Proof):
		return schema.InvalidArgument("/proof", nil, "proof must be the statement, signed with the new key")
	}
	return nil
}

func isControl(r rune) bool { return r < 0x20 || r == 0x7f }

// errNotAuthorised refuses a key that nobody who may has signed.
var errNotAuthorised = schema.Errorf(schema.PermissionDenied, "there is a human key already: replacing it needs the old one, or root; "+
	"an administrator's gives one to somebody who has none")

func (s *Service) keyAuthority(known *record, id store.UserID, acct store.AccountID, in KeyInput) (string, error) {
	statement := in.Statement(acct)
	switch {
	case len(known.keys) == 0:
		return byFirst, nil
	case s.authorises(known, id, statement, in.Authority):
		return byKey, nil
	case s.rootNames(in.PublicKey):
		return byRoot, nil
	}
	return "", errNotAuthorised
}

// person finds whose key it is, or makes the account's first person.
func (s *Service) person(ctx context.Context, tx *store.Tx, acct store.AccountID, known *record, in KeyInput) (store.User, error) {
	u, err := store.UserByRef(ctx, &tx.View, acct, in.Email)
	if err != nil && !errors.Is(err, store.ErrNoRow) {
		return u, fmt.Errorf("look for the person: %w", err)
	}
	if len(known.keys) > 0 {
		if _, there := known.people[u.ID]; err != nil || !there {
			return u, schema.Errorf(schema.NotFound, "the account has nobody with this e-mail address")
		}
		return u, nil
	}
	if err == nil {
		return u, nil
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
