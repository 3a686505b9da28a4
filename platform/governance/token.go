package governance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"powernode/schema"
	"powernode/store"
)

const (
	tokenType = "Governance::Token"

	// SecretPrefix is what every credential begins with.
	SecretPrefix = "pn_"

	maxTokenName = 80
	usedNoted    = time.Minute // a token's last use is written at most this often
)

// ErrNoCredential says that a secret is no credential: unknown, revoked, expired, or of somebody who is gone. A call with
// it is no verb call: HTTP answers 401, MCP with a protocol error.
var ErrNoCredential = errors.New("no valid credential")

// ErrExpired says of a credential that is none any more that it has expired.
var ErrExpired = fmt.Errorf("%w: it has expired", ErrNoCredential)

// TokenStatement is what an administrator signs to make a credential. The secret is made where they sign; its hash alone
// leaves there.
type TokenStatement struct {
	Statement string          `json:"statement"`
	AccountID store.AccountID `json:"account_id"`
	TokenID   store.TokenID   `json:"token_id"`
	UserID    store.UserID    `json:"user_id"` // whose it is; empty: the account's agent
	Email     string          `json:"email"`   // theirs
	Name      string          `json:"name"`
	Role      string          `json:"role"`
	ReadOnly  bool            `json:"read_only"`
	Toolsets  []string        `json:"toolsets"` // null: all
	SHA256    string          `json:"sha256"`   // of the secret
	ExpiresAt *store.Time     `json:"expires_at"`
	SignedBy  store.UserID    `json:"signed_by"`
	Chain     *store.Head     `json:"chain,omitempty"`
}

// Bytes are the bytes that are signed.
func (t TokenStatement) Bytes() []byte {
	t.Statement = "powernode token v1"
	return canonical(t)
}

// TokenInput makes a credential; it is what the audit row of that holds, too.
type TokenInput struct {
	Token     TokenStatement `json:"token"`
	Signature []byte         `json:"signature"`
}

// RevocationStatement is what an administrator signs to end a credential.
type RevocationStatement struct {
	Statement string          `json:"statement"`
	AccountID store.AccountID `json:"account_id"`
	TokenID   store.TokenID   `json:"token_id"`
	SignedBy  store.UserID    `json:"signed_by"`
}

// Bytes are the bytes that are signed.
func (r RevocationStatement) Bytes() []byte {
	r.Statement = "powernode token revocation v1"
	return canonical(r)
}

// RevocationInput ends a credential.
type RevocationInput struct {
	Revocation RevocationStatement `json:"revocation"`
	Signature  []byte              `json:"signature"`
}

const (
	tokenCreated = "created"
	tokenRevoked = "revoked"
)

// TokenView is a credential as administrators see it.
type TokenView struct {
	ID         store.TokenID `json:"id"`
	Name       string        `json:"name"`
	UserID     *store.UserID `json:"user_id"` // null: the account's agent
	Email      *string       `json:"email"`
	Role       string        `json:"role"` // as it counts now
	ReadOnly   bool          `json:"read_only"`
	Toolsets   []string      `json:"toolsets"` // null: all
	State      string        `json:"state"`    // valid, expired, revoked, not_recorded, owner_gone
	CreatedAt  store.Time    `json:"created_at"`
	ExpiresAt  *store.Time   `json:"expires_at"`
	LastUsedAt *store.Time   `json:"last_used_at"`
}

// NewSecret makes the secret of a credential.
func NewSecret() string { return SecretPrefix + rand.Text() }

// CallerByToken is for whom a call with a secret runs. Role and owner are looked at anew each time.
func (s *Service) CallerByToken(ctx context.Context, v *store.View, secret string) (Caller, error) {
	if !strings.HasPrefix(secret, SecretPrefix) {
		return Caller{}, ErrNoCredential
	}
	t, err := store.TokenByHash(ctx, v, store.Secret(secret).Hash())
	if errors.Is(err, store.ErrNoRow) {
		return Caller{}, ErrNoCredential
	}
	if err != nil {
		return Caller{}, fmt.Errorf("look for the credential: %w", err)
	}
	c, state, err := s.tokenCaller(ctx, v, t)
	switch {
	case err == nil:
		s.used.note(t.ID, v.Now())
	case state == tokenExpired && errors.Is(err, ErrNoCredential):
		err = ErrExpired
	}
	return c, err
}

// States of credentials.
const (
	tokenValid       = "valid"
	tokenExpired     = "expired"
	tokenEnded       = "revoked"
	tokenNotRecorded = "not_recorded"
	tokenOwnerGone   = "owner_gone"
)

// tokenCaller is for whom a credential's calls run, or ErrNoCredential and why. What counts is the record that an
// administrator has signed; the row can only take away.
func (s *Service) tokenCaller(ctx context.Context, v *store.View, t store.Token) (Caller, string, error) {
	r, err := s.people(ctx, v, t.AccountID)
	if err != nil {
		return Caller{}, "", err
	}
	signed, state, err := s.signedToken(ctx, v, r, t)
	if err != nil || state != tokenValid {
		return Caller{}, state, errors.Join(err, ErrNoCredential)
	}
	var c Caller
	if signed.UserID == "" {
		c = AgentCaller(t.AccountID)
	} else {
		p, err := r.standing(ctx, v, t.AccountID, signed.UserID)
		switch {
		case errors.Is(err, store.ErrNoRow):
			return Caller{}, tokenOwnerGone, ErrNoCredential
		case err != nil:
			return Caller{}, "", fmt.Errorf("look for the credential's owner: %w", err)
		}
		c = p.caller(t.AccountID)
	}
	c.Role = lower(lower(c.Role, signed.Role), t.Role)
	if c.Role != RoleAdmin {
		c.Granted = nil
	}
	c.TokenID, c.ReadOnly, c.Toolsets = t.ID, signed.ReadOnly || t.ReadOnly, signed.Toolsets
	return c, tokenValid, nil
}

// signedToken is a credential as an administrator has signed it, and whether it counts.
func (s *Service) signedToken(ctx context.Context, v *store.View, known *record, t store.Token) (TokenStatement, string, error) {
	rows, err := store.AuditOf(ctx, v, t.AccountID, tokenType, string(t.ID))
	if err != nil {
		return TokenStatement{}, "", fmt.Errorf("read the record of the credential: %w", err)
	}
	var signed TokenStatement
	recorded, revoked := false, t.RevokedAt != nil
	for _, row := range rows {
		var r TokenInput
		switch {
		case row.Action == tokenRevoked: // whoever wrote it: it only takes away
			revoked = true
		case recorded || row.Action != tokenCreated || !s.tokenFits(known, row, &r):
		default:
			signed, recorded = r.Token, r.Token.SHA256 == t.Hash && r.Token.UserID == t.UserID
			if known.removed[signed.UserID] > row.Sequence {
				return signed, tokenOwnerGone, nil
			}
		}
	}
	ends := func(at *store.Time) bool { return at != nil && !at.After(v.Now()) }
	switch {
	case !recorded || !s.counts(t.AccountID, known):
		s.suspect(t.AccountID, "token", string(t.ID))
		return signed, tokenNotRecorded, nil
	case revoked:
		return signed, tokenEnded, nil
	case ends(signed.ExpiresAt) || ends(t.ExpiresAt):
		return signed, tokenExpired, nil
	}
	return signed, tokenValid, nil
}

// tokenFits says whether a row records a credential that an administrator has signed. Who was demoted since has signed
// it all the same: what they made is revoked, where it is to end.
func (s *Service) tokenFits(known *record, row store.AuditEntry, r *TokenInput) bool {
	if !decode(row.New, r) || r.Token.AccountID != row.AccountID || string(r.Token.TokenID) != row.ResourceID {
		return false
	}
	k, ok := s.signer(known.keys, row.Sequence, r.Token.Bytes(), r.Signature)
	return ok && k.UserID == r.Token.SignedBy && known.roleAt(k.UserID, row.Sequence) == RoleAdmin
}

// PrepareToken makes the statement that an administrator is to sign. ref names whose the credential is to be, by id or
// e-mail address; empty is the account's agent.
func (s *Service) PrepareToken(ctx context.Context, tx *store.Tx, acct store.AccountID, ref string, t TokenStatement) (TokenStatement, error) {
	t.AccountID, t.TokenID = acct, store.TokenID(tx.NewID())
	if ref != "" {
		u, err := store.UserByRef(ctx, &tx.View, acct, ref)
		if errors.Is(err, store.ErrNoRow) {
			return t, errNobody
		}
		if err != nil {
			return t, fmt.Errorf("look for the person: %w", err)
		}
		t.UserID, t.Email = u.ID, u.Email
	}
	if t.SignedBy == "" {
		k, err := s.StandingKey(ctx, &tx.View, acct)
		if err != nil {
			return t, err
		}
		t.SignedBy = k.UserID
	}
	var err error
	if t.Chain, err = headNow(ctx, &tx.View); err != nil {
		return t, err
	}
	return t, s.checkToken(ctx, &tx.View, t)
}

var sha256Hex = regexp.MustCompile(`^[0-9a-f]{64}$`)

func (s *Service) checkToken(ctx context.Context, v *store.View, t TokenStatement) error {
	switch {
	case t.Name == "" || utf8.RuneCountInString(t.Name) > maxTokenName || t.Name != Plain(t.Name, maxTokenName):
		return schema.InvalidArgument("/name", Plain(t.Name, 64), "name must be 1 to %d characters, without control characters", maxTokenName)
	case !sha256Hex.MatchString(t.SHA256):
		return schema.InvalidArgument("/sha256", nil, "sha256 must be the hash of the secret")
	case t.ExpiresAt != nil && !t.ExpiresAt.After(v.Now()):
		return schema.InvalidArgument("/expires_at", t.ExpiresAt, "the token would be expired")
	case t.Toolsets != nil && len(t.Toolsets) == 0:
		return schema.InvalidArgument("/toolsets", t.Toolsets, "toolsets must name at least one")
	}
	if err := s.checkTokenRole(ctx, v, t); err != nil {
		return err
	}
	rows, err := store.AuditOf(ctx, v, t.AccountID, tokenType, string(t.TokenID))
	if err != nil {
		return fmt.Errorf("read the record of the credential: %w", err)
	}
	_, err = store.TokenByHash(ctx, v, t.SHA256)
	if len(rows) > 0 || err == nil {
		return schema.Errorf(schema.Conflict, "this token was made before: a statement is used once")
	}
	if !errors.Is(err, store.ErrNoRow) {
		return fmt.Errorf("look for the credential: %w", err)
	}
	return nil
}

// checkTokenRole refuses a role that the owner doesn't hold.
func (s *Service) checkTokenRole(ctx context.Context, v *store.View, t TokenStatement) error {
	if t.UserID == "" {
		if t.Role != RoleAgent {
			return schema.InvalidArgument("/role", Plain(t.Role, 64), "a token of the account's agent has the role agent; a person's names the person")
		}
		return nil
	}
	p, err := s.PersonOf(ctx, v, t.AccountID, t.UserID)
	switch {
	case errors.Is(err, store.ErrNoRow) || (err == nil && p.Email != t.Email):
		return errNobody
	case err != nil:
		return fmt.Errorf("look for the person: %w", err)
	case !slices.Contains([]string{RoleViewer, RoleOperator, RoleAdmin}, t.Role):
		return schema.InvalidArgument("/role", Plain(t.Role, 64), "role must be one of: viewer, operator, admin")
	case power[t.Role] > power[p.Role]:
		return schema.InvalidArgument("/role", t.Role, "a token has at most the role of its owner, who is %s", p.Role)
	}
	return nil
}

// SetToken makes a credential that an administrator has signed.
func (s *Service) SetToken(ctx context.Context, tx *store.Tx, acct store.AccountID, in TokenInput) (TokenView, error) {
	t := in.Token
	if t.AccountID != acct || t.TokenID == "" {
		return TokenView{}, errSignature
	}
	if _, err := s.administrator(ctx, &tx.View, acct, t.SignedBy, t.Bytes(), in.Signature); err != nil {
		return TokenView{}, s.unsigned(err, acct, "token", string(t.TokenID))
	}
	if err := errors.Join(standsOn(ctx, &tx.View, t.Chain), s.checkToken(ctx, &tx.View, t)); err != nil {
		return TokenView{}, err
	}
	row := store.Token{ID: t.TokenID, AccountID: acct, UserID: t.UserID, Name: t.Name, Hash: t.SHA256, Role: t.Role, ReadOnly: t.ReadOnly,
		Toolsets: t.Toolsets, ExpiresAt: t.ExpiresAt}
	if err := store.PutToken(ctx, tx, row); err != nil {
		return TokenView{}, fmt.Errorf("write the credential: %w", err)
	}
	_, err := tx.Audit(ctx, store.AuditEntry{AccountID: acct, Action: tokenCreated, ResourceType: tokenType, ResourceID: string(t.TokenID),
		New: object(TokenInput{Token: t, Signature: in.Signature})})
	if err != nil {
		return TokenView{}, err
	}
	if row, err = store.TokenByID(ctx, &tx.View, acct, t.TokenID); err != nil {
		return TokenView{}, fmt.Errorf("read the credential: %w", err)
	}
	return s.seenToken(ctx, &tx.View, row)
}

// RevokeToken ends a credential.
func (s *Service) RevokeToken(ctx context.Context, tx *store.Tx, acct store.AccountID, in RevocationInput) (TokenView, error) {
	r := in.Revocation
	if r.AccountID != acct {
		return TokenView{}, errSignature
	}
	if _, err := s.administrator(ctx, &tx.View, acct, r.SignedBy, r.Bytes(), in.Signature); err != nil {
		return TokenView{}, s.unsigned(err, acct, "token", string(r.TokenID))
	}
	t, err := store.TokenByID(ctx, &tx.View, acct, r.TokenID)
	if errors.Is(err, store.ErrNoRow) {
		return TokenView{}, schema.Errorf(schema.NotFound, "token not found")
	}
	if err != nil {
		return TokenView{}, fmt.Errorf("look for the credential: %w", err)
	}
	if t, err = revoke(ctx, tx, t); err != nil {
		return TokenView{}, err
	}
	return s.seenToken(ctx, &tx.View, t)
}

// revoke ends a credential; one that has ended stays as it is.
func revoke(ctx context.Context, tx *store.Tx, t store.Token) (store.Token, error) {
	if t.RevokedAt != nil {
		return t, nil
	}
	now := store.At(tx.Now())
	t.RevokedAt = &now
	if err := store.PutToken(ctx, tx, t); err != nil {
		return t, fmt.Errorf("end the credential: %w", err)
	}
	_, err := tx.Audit(ctx, store.AuditEntry{AccountID: t.AccountID, Action: tokenRevoked, ResourceType: tokenType, ResourceID: string(t.ID),
		Old: store.Object{"name": t.Name}, New: store.Object{"revoked_at": now}})
	return t, err
}

// revokeAll ends a person's credentials.
func (s *Service) revokeAll(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.UserID) error {
	all, err := store.Tokens(ctx, &tx.View, acct)
	if err != nil {
		return fmt.Errorf("list credentials: %w", err)
	}
	for _, t := range all {
		if t.UserID != id {
			continue
		}
		if _, err := revoke(ctx, tx, t); err != nil {
			return err
		}
	}
	return nil
}

// TokensOf lists an account's credentials, latest first.
func (s *Service) TokensOf(ctx context.Context, v *store.View, acct store.AccountID) ([]TokenView, error) {
	all, err := store.Tokens(ctx, v, acct)
	if err != nil {
		return nil, fmt.Errorf("list credentials: %w", err)
	}
	out := []TokenView{}
	for _, t := range all {
		view, err := s.seenToken(ctx, v, t)
		if err != nil {
			return nil, err
		}
		out = append(out, view)
	}
	return out, nil
}

func (s *Service) seenToken(ctx context.Context, v *store.View, t store.Token) (TokenView, error) {
	view := TokenView{ID: t.ID, Name: t.Name, Role: t.Role, ReadOnly: t.ReadOnly, Toolsets: t.Toolsets, CreatedAt: t.CreatedAt,
		ExpiresAt: t.ExpiresAt, LastUsedAt: t.LastUsedAt}
	if t.UserID != "" {
		u, err := store.UserEverByRef(ctx, v, t.AccountID, string(t.UserID))
		if err != nil {
			return view, fmt.Errorf("look for the credential's owner: %w", err)
		}
		view.UserID, view.Email = &u.ID, &u.Email
	}
	c, state, err := s.tokenCaller(ctx, v, t)
	view.State = state
	switch {
	case err == nil:
		view.Role, view.ReadOnly, view.Toolsets = c.Role, c.ReadOnly, c.Toolsets
	case errors.Is(err, ErrNoCredential) && state != "":
		err = nil
	}
	return view, err
}

// used are the last uses of credentials that are not written yet.
type used struct {
	mu      sync.Mutex
	waiting map[store.TokenID]time.Time
	written map[store.TokenID]time.Time
}

func (u *used) note(id store.TokenID, at time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if at.Sub(u.written[id]) < usedNoted {
		return
	}
	if u.waiting == nil {
		u.waiting, u.written = map[store.TokenID]time.Time{}, map[store.TokenID]time.Time{}
	}
	u.waiting[id] = at
}

func (u *used) due() map[store.TokenID]time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.waiting)
}

func (u *used) done(written map[store.TokenID]time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for id, at := range written {
		u.written[id] = at
		if u.waiting[id].Equal(at) { // no later use came meanwhile
			delete(u.waiting, id)
		}
	}
}

// WriteUses writes when credentials were last used; it is called with the batch of events of reads.
func (s *Service) WriteUses(ctx context.Context, tx *store.Tx) error {
	due := s.used.due()
	tx.Committed(func() { s.used.done(due) })
	for id, at := range due {
		if err := store.MarkTokenUsed(ctx, tx, id, store.At(at)); err != nil {
			return fmt.Errorf("write the last use of a credential: %w", err)
		}
	}
	return nil
}

// proveTokens holds the table of credentials against its record.
func (s *Service) proveTokens(ctx context.Context, v *store.View, acct store.AccountID, p *Proof) error {
	known, err := s.people(ctx, v, acct)
	if err != nil {
		return err
	}
	all, err := store.Tokens(ctx, v, acct)
	if err != nil {
		return fmt.Errorf("list credentials: %w", err)
	}
	present := map[string]bool{}
	for _, t := range all {
		present[string(t.ID)] = true
		signed, state, err := s.signedToken(ctx, v, known, t)
		switch {
		case err != nil:
			return err
		case state == tokenNotRecorded:
			p.add("tokens", string(t.ID), "no audit row with an administrator's signature stands behind it")
		case signed.Role != t.Role || signed.ReadOnly != t.ReadOnly || !slices.Equal(signed.Toolsets, t.Toolsets):
			p.add("tokens", string(t.ID), "it is not as an administrator has signed it")
		}
	}
	rows, err := store.AuditOf(ctx, v, acct, tokenType, "")
	if err != nil {
		return fmt.Errorf("read the record of credentials: %w", err)
	}
	for _, row := range rows {
		var r TokenInput
		if row.Action == tokenCreated && !s.tokenFits(known, row, &r) {
			p.add("audit", string(row.ID), "the credential that it records is signed by no administrator")
		}
		if !present[row.ResourceID] {
			p.add("tokens", row.ResourceID, "it is recorded, and its row is gone")
			present[row.ResourceID] = true
		}
	}
	return nil
}

// Valid says whether the credential opens anything now.
func (t TokenView) Valid() bool { return t.State == tokenValid }
