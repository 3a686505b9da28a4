package governance

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/mail"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"powernode/schema"
	"powernode/store"
)

// AuditAll is the permission to read the record of all accounts. No role holds it: it is given by name to an administrator.
const AuditAll = "admin.audit.read"

// byName are the permissions that are given by name.
var byName = []string{AuditAll}

// Deeds of administrators about people.
const (
	AddUser    = "add"
	ChangeUser = "change"
	RemoveUser = "remove"
)

// userActions are the actions of their audit rows.
var userActions = map[string]string{AddUser: "created", ChangeUser: "updated", RemoveUser: "deleted"}

// Person is somebody of an account as its audit chain records them: by a human key of the installation's first step, or by
// an administrator's signature. The row in the table of people is a copy, and can only take away.
type Person struct {
	ID     store.UserID
	Email  string
	Name   string
	Role   string
	Grants []string
}

// UserStatement is what an administrator signs to add a person, to change their role and grants, or to remove them.
type UserStatement struct {
	Statement string          `json:"statement"`
	AccountID store.AccountID `json:"account_id"`
	ChangeID  string          `json:"change_id"` // a statement is used once
	Deed      string          `json:"deed"`
	UserID    store.UserID    `json:"user_id"`
	Email     string          `json:"email"`
	Name      string          `json:"name"`
	Role      string          `json:"role"`
	Grants    []string        `json:"grants"`
	SignedBy  store.UserID    `json:"signed_by"`
	Chain     *store.Head     `json:"chain,omitempty"`
}

// Bytes are the bytes that are signed.
func (u UserStatement) Bytes() []byte {
	u.Statement = "powernode user v1"
	return canonical(u)
}

// UserInput adds, changes or removes a person; it is what the audit row of that holds, too.
type UserInput struct {
	User      UserStatement `json:"user"`
	Signature []byte        `json:"signature"`
}

// record is what an account's audit chain says of its people and their keys.
type record struct {
	people  map[store.UserID]Person
	roles   map[store.UserID][]roleFrom
	removed map[store.UserID]int64 // sequence of the row that removed them
	changed map[store.UserID]int64 // sequence of the last row that an administrator has signed about them
	keys    []Key
	hashes  []string         // of the rows that record keys
	changes map[string]bool  // change ids that were used
	odd     map[int64]string // rows that do not count, and why
	rows    []store.AuditEntry
}

// roleFrom is a role that somebody has from a row of the audit chain on; empty: they are gone.
type roleFrom struct {
	sequence int64
	role     string
}

// roleAt is the role that somebody had when a row was written.
func (r *record) roleAt(id store.UserID, sequence int64) string {
	role := ""
	for _, from := range r.roles[id] {
		if from.sequence < sequence {
			role = from.role
		}
	}
	return role
}

// could says whether somebody held a permission of people's surface when a row was written. A signature counts with the role
// of its time alone: the row itself may have been written by hand.
func (r *record) could(id store.UserID, permission string, sequence int64) bool {
	return slices.Contains(peoplesPermissions[permission], r.roleAt(id, sequence))
}

// alone says whether somebody was the account's only person when a row was written.
func (r *record) alone(id store.UserID, sequence int64) bool {
	for other := range r.roles {
		if other != id && r.roleAt(other, sequence) != "" {
			return false
		}
	}
	return true
}

// people walks the record of an account's people. The first human key makes the first administrator; from there on only
// what an administrator of that time has signed counts, and keys as accept says.
func (s *Service) people(ctx context.Context, v *store.View, acct store.AccountID) (*record, error) {
	rows, err := store.AuditOf(ctx, v, acct, userType, "")
	if err != nil {
		return nil, fmt.Errorf("read the record of people: %w", err)
	}
	r := &record{people: map[store.UserID]Person{}, roles: map[store.UserID][]roleFrom{}, removed: map[store.UserID]int64{},
		changed: map[store.UserID]int64{},
		changes: map[string]bool{}, odd: map[int64]string{}, rows: rows}
	for _, row := range rows {
		if row.Action == keyCreated {
			s.recordedKey(r, row)
			continue
		}
		s.recordedDeed(r, acct, row)
	}
	return r, nil
}

func (s *Service) recordedKey(r *record, row store.AuditEntry) {
	k, ok := s.accept(r, row)
	if !ok {
		r.odd[row.Sequence] = "it records a human key that no earlier key and not root has put there: the key does not count"
		return
	}
	if len(r.keys) == 0 {
		r.people[k.UserID] = Person{ID: k.UserID, Email: k.Email, Role: RoleAdmin}
		r.roles[k.UserID] = []roleFrom{{row.Sequence, RoleAdmin}}
	}
	r.keys, r.hashes = replace(r.keys, k), append(r.hashes, row.Hash)
}

func (s *Service) recordedDeed(r *record, acct store.AccountID, row store.AuditEntry) {
	var d UserInput
	u := &d.User
	signed := decode(row.New, &d) && u.AccountID == acct && string(u.UserID) == row.ResourceID && userActions[u.Deed] == row.Action
	if signed {
		k, ok := s.signer(r.keys, 0, u.Bytes(), d.Signature)
		signed = ok && k.UserID == u.SignedBy && r.people[k.UserID].Role == RoleAdmin
	}
	switch {
	case !signed && row.Action == "created" && len(r.keys) == 0: // the first person, whose key follows
		return
	case !signed:
		r.odd[row.Sequence] = "no administrator has signed it"
		return
	case r.changes[u.ChangeID]:
		r.odd[row.Sequence] = "it repeats an earlier record"
		return
	case r.outdated(*u):
		r.odd[row.Sequence] = "it was signed before the change that stands before it"
		return
	}
	r.changes[u.ChangeID], r.changed[u.UserID] = true, row.Sequence
	r.apply(*u, row.Sequence)
}

// outdated says whether a statement was signed before what was last done about the person: one that was never used must not
// undo that.
func (r *record) outdated(u UserStatement) bool {
	return u.Chain != nil && u.Chain.Rows < r.changed[u.UserID]
}

func (r *record) apply(u UserStatement, at int64) {
	if u.Deed == RemoveUser {
		delete(r.people, u.UserID)
		r.roles[u.UserID] = append(r.roles[u.UserID], roleFrom{sequence: at})
		r.removed[u.UserID] = at
		for i := range r.keys {
			if r.keys[i].UserID == u.UserID && r.keys[i].Until == 0 {
				r.keys[i].Until = at
			}
		}
		return
	}
	r.roles[u.UserID] = append(r.roles[u.UserID], roleFrom{at, u.Role})
	r.people[u.UserID] = Person{ID: u.UserID, Email: u.Email, Name: u.Name, Role: u.Role, Grants: u.Grants}
}

// named is who has an e-mail address; empty: nobody.
func (r *record) named(email string) store.UserID {
	for id, p := range r.people {
		if p.Email == email {
			return id
		}
	}
	return ""
}

// PersonOf is a person as they stand: recorded, and still there; what the table says can only take away. An error is
// store.ErrNoRow where nobody stands there.
func (s *Service) PersonOf(ctx context.Context, v *store.View, acct store.AccountID, id store.UserID) (Person, error) {
	r, err := s.people(ctx, v, acct)
	if err != nil {
		return Person{}, err
	}
	return r.standing(ctx, v, acct, id)
}

func (r *record) standing(ctx context.Context, v *store.View, acct store.AccountID, id store.UserID) (Person, error) {
	p, there := r.people[id]
	if !there {
		return p, store.ErrNoRow
	}
	u, err := store.UserByRef(ctx, v, acct, string(id))
	if err != nil {
		return p, err
	}
	p.Role = lower(p.Role, u.Role)
	if p.Name == "" {
		p.Name = u.Name
	}
	p.Grants = slices.DeleteFunc(slices.Clone(p.Grants), func(g string) bool { return p.Role != RoleAdmin || !slices.Contains(u.Grants, g) })
	return p, nil
}

// power orders the roles; an agent's is held by the account's agent alone.
var power = map[string]int{RoleViewer: 1, RoleAgent: 2, RoleOperator: 2, RoleAdmin: 3}

// lower is the lower of two roles. What is no role is below all.
func lower(role, than string) string {
	if power[than] < power[role] {
		return than
	}
	return role
}

// caller is a person as a caller, with the role that a token may narrow.
func (p Person) caller(acct store.AccountID) Caller {
	return Caller{AccountID: acct, Kind: KindPerson, Role: p.Role, ID: string(p.ID), UserID: p.ID, Granted: p.Grants}
}

// PersonView is a person as administrators see them.
type PersonView struct {
	ID        store.UserID `json:"id"`
	Email     string       `json:"email"`
	Name      string       `json:"name"`
	Role      string       `json:"role"`
	Grants    []string     `json:"grants"`
	HasKey    bool         `json:"has_key"`
	Note      *string      `json:"note"` // of a row that does not count
	CreatedAt store.Time   `json:"created_at"`
}

// PeopleOf lists an account's people. Rows that no administrator has signed are there, with a note: they do not count.
func (s *Service) PeopleOf(ctx context.Context, v *store.View, acct store.AccountID) ([]PersonView, error) {
	r, err := s.people(ctx, v, acct)
	if err != nil {
		return nil, err
	}
	rows, err := store.Users(ctx, v, acct)
	if err != nil {
		return nil, fmt.Errorf("list people: %w", err)
	}
	out := []PersonView{}
	for _, u := range rows {
		view := PersonView{ID: u.ID, Email: u.Email, Name: u.Name, Role: u.Role, Grants: []string{}, CreatedAt: u.CreatedAt}
		p, err := r.standing(ctx, v, acct, u.ID)
		switch {
		case errors.Is(err, store.ErrNoRow):
			note := "written by hand: it does not count"
			view.Note = &note
		case err != nil:
			return nil, err
		default:
			view.Role, view.Grants = p.Role, append(view.Grants, p.Grants...)
			view.HasKey = slices.ContainsFunc(r.keys, func(k Key) bool { return k.UserID == u.ID && k.Until == 0 })
		}
		out = append(out, view)
	}
	return out, nil
}

// PrepareUser makes the statement that an administrator is to sign. ref names the person of a change or removal, by id or
// e-mail address; Email names the one to add.
func (s *Service) PrepareUser(ctx context.Context, tx *store.Tx, acct store.AccountID, ref string, u UserStatement) (UserStatement, error) {
	r, err := s.people(ctx, &tx.View, acct)
	if err != nil {
		return u, err
	}
	u.AccountID, u.ChangeID, u.UserID = acct, tx.NewID(), store.UserID(tx.NewID())
	u.Grants = slices.Compact(slices.Sorted(slices.Values(u.Grants)))
	if u.Deed != AddUser {
		row, err := store.UserByRef(ctx, &tx.View, acct, ref)
		if errors.Is(err, store.ErrNoRow) || (err == nil && r.people[row.ID].ID == "") {
			return u, errNobody
		}
		if err != nil {
			return u, fmt.Errorf("look for the person: %w", err)
		}
		u.UserID, u.Email, u.Name = row.ID, row.Email, row.Name
	} else if row, err := store.UserEverByRef(ctx, &tx.View, acct, u.Email); err == nil && row.RemovedAt != nil {
		u.UserID = row.ID // who comes back is who they were
	}
	k, err := s.StandingKey(ctx, &tx.View, acct)
	if err != nil {
		return u, err
	}
	if u.SignedBy == "" {
		u.SignedBy = k.UserID
	}
	if u.Chain, err = headNow(ctx, &tx.View); err != nil {
		return u, err
	}
	return u, s.checkUser(ctx, &tx.View, r, u)
}

var errNobody = schema.Errorf(schema.NotFound, "the account has nobody with this id or e-mail address")

// checkUser refuses what can't be done about a person now.
func (s *Service) checkUser(ctx context.Context, v *store.View, r *record, u UserStatement) error {
	if err := checkPerson(u); err != nil {
		return err
	}
	row, err := store.UserEverByRef(ctx, v, u.AccountID, u.Email)
	gone := errors.Is(err, store.ErrNoRow)
	if err != nil && !gone {
		return fmt.Errorf("look for the person: %w", err)
	}
	_, stands := r.people[u.UserID]
	switch {
	case r.changes[u.ChangeID]:
		return schema.Errorf(schema.Conflict, "this was done before: a statement is used once")
	case r.outdated(u):
		return schema.Errorf(schema.Conflict, "the person was changed after this was signed")
	case u.Deed == AddUser && (stands || (!gone && row.RemovedAt == nil)):
		return schema.Errorf(schema.Conflict, "the account has somebody with this e-mail address already")
	case u.Deed == AddUser && !gone && row.ID != u.UserID:
		return errNobody
	case u.Deed == AddUser:
		return nil
	case !stands || gone || row.ID != u.UserID:
		return errNobody
	}
	if err := r.keepsAdmin(u); err != nil || u.Deed != RemoveUser {
		return err
	}
	return holdsNothing(ctx, v, u)
}

// CheckEmail refuses what is no e-mail address to know a person by.
func CheckEmail(email string) error {
	address, err := mail.ParseAddress(email)
	if err != nil || address.Address != email || len(email) > maxNamesLength {
		return schema.InvalidArgument("/email", Plain(email, 64), "email must be an e-mail address")
	}
	return nil
}

// CheckName refuses what is no name of a person.
func CheckName(name string) error {
	if strings.TrimSpace(name) == "" || utf8.RuneCountInString(name) > maxNamesLength || name != Plain(name, maxNamesLength) {
		return schema.InvalidArgument("/name", Plain(name, 64), "name must be 1 to %d characters, without control characters", maxNamesLength)
	}
	return nil
}

func checkPerson(u UserStatement) error {
	if userActions[u.Deed] == "" {
		return schema.InvalidArgument("/deed", Plain(u.Deed, 64), "deed must be one of: %s, %s, %s", AddUser, ChangeUser, RemoveUser)
	}
	if err := CheckEmail(u.Email); err != nil {
		return err
	}
	if err := CheckName(u.Name); err != nil {
		return err
	}
	switch {
	case u.Role != RoleViewer && u.Role != RoleOperator && u.Role != RoleAdmin && u.Deed != RemoveUser:
		return schema.InvalidArgument("/role", Plain(u.Role, 64), "role must be one of: viewer, operator, admin")
	case len(u.Grants) > 0 && u.Role != RoleAdmin:
		return schema.InvalidArgument("/grants", u.Grants, "a permission by name is given to an administrator alone")
	}
	for _, g := range u.Grants {
		if !slices.Contains(byName, g) {
			return schema.InvalidArgument("/grants", Plain(g, 64), "%s is given to nobody by name", Quote(g)).WithCandidates(byName)
		}
	}
	return nil
}

// keepsAdmin refuses to leave an account without an administrator who has a key: nobody could ever make another.
func (r *record) keepsAdmin(u UserStatement) error {
	if u.Deed == ChangeUser && u.Role == RoleAdmin {
		return nil
	}
	for _, k := range r.keys {
		if k.Until == 0 && k.UserID != u.UserID && r.people[k.UserID].Role == RoleAdmin {
			return nil
		}
	}
	return schema.Errorf(schema.PreconditionFailed, "this is the last administrator with a human key: nobody could make another")
}

func holdsNothing(ctx context.Context, v *store.View, u UserStatement) error {
	grants, err := store.ActiveAccessGrants(ctx, v, u.AccountID)
	if err != nil {
		return fmt.Errorf("list access grants: %w", err)
	}
	n := 0
	for _, g := range grants {
		if g.UserID == u.UserID {
			n++
		}
	}
	if n > 0 {
		return schema.Errorf(schema.PreconditionFailed, "the person holds %d access grants, and those end first: "+
			"for now by system_sdwan_delete_network of their networks alone", n).WithDetail("access_grants", n)
	}
	return nil
}

// SetUser does what an administrator has signed about a person.
func (s *Service) SetUser(ctx context.Context, tx *store.Tx, acct store.AccountID, in UserInput) (PersonView, error) {
	u := in.User
	r, err := s.people(ctx, &tx.View, acct)
	if err != nil {
		return PersonView{}, err
	}
	if u.AccountID != acct || u.ChangeID == "" || u.UserID == "" {
		return PersonView{}, errSignature
	}
	if _, err := s.administrator(ctx, &tx.View, acct, u.SignedBy, u.Bytes(), in.Signature); err != nil {
		return PersonView{}, s.unsigned(err, acct, "user", string(u.UserID))
	}
	if err := errors.Join(standsOn(ctx, &tx.View, u.Chain), s.checkUser(ctx, &tx.View, r, u)); err != nil {
		return PersonView{}, err
	}
	row, old, err := writePerson(ctx, tx, u)
	if err != nil {
		return PersonView{}, fmt.Errorf("write the person: %w", err)
	}
	if u.Deed == RemoveUser {
		if err := s.revokeAll(ctx, tx, acct, u.UserID); err != nil {
			return PersonView{}, err
		}
	}
	_, err = tx.Audit(ctx, store.AuditEntry{AccountID: acct, Action: userActions[u.Deed], ResourceType: userType, ResourceID: string(u.UserID),
		Old: old, New: object(UserInput{User: u, Signature: in.Signature})})
	return PersonView{ID: row.ID, Email: row.Email, Name: row.Name, Role: row.Role, Grants: append([]string{}, row.Grants...),
		HasKey: len(row.PublicKey) > 0, CreatedAt: row.CreatedAt}, err
}

func writePerson(ctx context.Context, tx *store.Tx, u UserStatement) (store.User, store.Object, error) {
	row, err := store.UserEverByRef(ctx, &tx.View, u.AccountID, string(u.UserID))
	if errors.Is(err, store.ErrNoRow) {
		row = store.User{ID: u.UserID, AccountID: u.AccountID, Email: u.Email, Name: u.Name, Role: u.Role, Grants: u.Grants, CreatedAt: store.At(tx.Now())}
		return row, store.Object{}, store.InsertUser(ctx, tx, row)
	}
	if err != nil {
		return row, nil, err
	}
	old := store.Object{"role": row.Role, "grants": row.Grants}
	if u.Deed == RemoveUser {
		now := store.At(tx.Now())
		row.RemovedAt, row.PublicKey, row.Grants = &now, nil, nil
		return row, old, store.UpdateUser(ctx, tx, row)
	}
	row.Name, row.Role, row.Grants, row.RemovedAt = u.Name, u.Role, u.Grants, nil
	return row, old, store.UpdateUser(ctx, tx, row)
}

// administrator finds the administrator who has signed a statement.
func (s *Service) administrator(ctx context.Context, v *store.View, acct store.AccountID, by store.UserID, statement, signature []byte) (store.User, error) {
	keys, err := s.Keys(ctx, v, acct)
	if err != nil {
		return store.User{}, err
	}
	if len(keys) == 0 {
		return store.User{}, errNoKey
	}
	k, ok := s.signer(keys, 0, statement, signature)
	if !ok || k.UserID != by {
		return store.User{}, errSignature
	}
	return s.keyHolder(ctx, v, acct, k, managePeople)
}

// unsigned suspects what was asked without a fitting signature.
func (s *Service) unsigned(err error, acct store.AccountID, subject, id string) error {
	if errors.Is(err, errSignature) {
		s.suspect(acct, subject, Plain(id, 64))
	}
	return err
}

// memo remembers signatures that were verified: the same few are asked for again and again.
type memo struct {
	mu    sync.Mutex
	valid map[[sha256.Size]byte]bool
}

const memoSize = 4096

func (m *memo) verify(public ed25519.PublicKey, statement, signature []byte) bool {
	h := sha256.New()
	for _, part := range [][]byte{public, signature, statement} {
		fmt.Fprintf(h, "%d:", len(part))
		h.Write(part) // a hash takes everything
	}
	name := [sha256.Size]byte(h.Sum(nil))
	m.mu.Lock()
	known := m.valid[name]
	m.mu.Unlock()
	if known {
		return true
	}
	if !ed25519.Verify(public, statement, signature) {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.valid) >= memoSize || m.valid == nil {
		m.valid = map[[sha256.Size]byte]bool{}
	}
	m.valid[name] = true
	return true
}
