package tools

import (
	"context"
	"fmt"
	"slices"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
)

// AccountAnswer tells of the account.
type AccountAnswer struct {
	ID        store.AccountID `json:"id"`
	Name      string          `json:"name"`
	Prefix    string          `json:"prefix"` // the /48 of its networks
	CreatedAt store.Time      `json:"created_at"`
	People    int             `json:"people"`
	Tokens    int             `json:"tokens"` // that are valid
	KeyHolder []string        `json:"key_holders"`
	Stopped   *store.Time     `json:"emergency_stop_since"`
}

// UsersAnswer lists an account's people, oldest first.
type UsersAnswer struct {
	Users []governance.PersonView `json:"users"`
}

// PrepareUserRequest asks for the statement that an administrator signs to add, change or remove a person.
type PrepareUserRequest struct {
	Deed     string       `json:"deed"`
	User     string       `json:"user"`  // id or e-mail address, of a change or removal
	Email    string       `json:"email"` // of somebody new
	Name     string       `json:"name"`
	Role     string       `json:"role"`
	Grants   []string     `json:"grants"`
	SignedBy store.UserID `json:"signed_by"`
}

// TokensAnswer lists an account's credentials, latest first.
type TokensAnswer struct {
	Tokens []governance.TokenView `json:"tokens"`
}

// PrepareTokenRequest asks for the statement that an administrator signs to make a credential.
type PrepareTokenRequest struct {
	User      string       `json:"user"` // id or e-mail address; empty: the account's agent
	Name      string       `json:"name"`
	Role      string       `json:"role"`
	ReadOnly  bool         `json:"read_only"`
	Toolsets  []string     `json:"toolsets"` // null: all
	SHA256    string       `json:"sha256"`   // of the secret
	ExpiresAt *store.Time  `json:"expires_at"`
	SignedBy  store.UserID `json:"signed_by"`
}

func viewed[T any](ctx context.Context, p *Platform, read func(v *store.View) (T, error)) (out T, err error) {
	err = p.DB.View(ctx, func(v *store.View) (err error) {
		out, err = read(v)
		return err
	})
	p.tellSuspects(ctx)
	return out, err
}

// signed does what an administrator has signed.
func signed[T any](ctx context.Context, p *Platform, by store.UserID, what string, do func(tx *store.Tx) (T, error)) (out T, err error) {
	err = p.DB.Update(ctx, func(tx *store.Tx) (err error) {
		tx.Act(store.Actor{Kind: governance.KindPerson, ID: governance.Plain(string(by), 64), Verb: what, CorrelationID: tx.NewID()})
		out, err = do(tx)
		return err
	})
	p.tellSuspects(ctx)
	return out, err
}

func (p *Platform) accountFor(ctx context.Context, acct store.AccountID) (AccountAnswer, error) {
	return viewed(ctx, p, func(v *store.View) (a AccountAnswer, err error) {
		account, err := store.AccountByID(ctx, v, acct)
		if err != nil {
			return a, fmt.Errorf("read the account: %w", err)
		}
		a = AccountAnswer{ID: acct, Name: account.Name, Prefix: account.Prefix.String(), CreatedAt: account.CreatedAt, KeyHolder: []string{}}
		people, err := p.Governance.PeopleOf(ctx, v, acct)
		if err != nil {
			return a, err
		}
		for _, u := range people {
			if u.Note == nil {
				a.People++
			}
			if u.HasKey {
				a.KeyHolder = append(a.KeyHolder, u.Email)
			}
		}
		tokens, err := p.Governance.TokensOf(ctx, v, acct)
		if err != nil {
			return a, err
		}
		for _, t := range tokens {
			if t.Valid() {
				a.Tokens++
			}
		}
		stop, err := p.Governance.Stopped(ctx, v, acct)
		if stop != nil {
			a.Stopped = &stop.Since
		}
		return a, err
	})
}

func (p *Platform) prepareUser(ctx context.Context, acct store.AccountID, in PrepareUserRequest) (s governance.UserStatement, err error) {
	err = p.DB.Update(ctx, func(tx *store.Tx) (err error) {
		s, err = p.Governance.PrepareUser(ctx, tx, acct, in.User, governance.UserStatement{Deed: in.Deed, Email: in.Email, Name: in.Name,
			Role: in.Role, Grants: in.Grants, SignedBy: in.SignedBy})
		return err
	})
	return s, err
}

func (p *Platform) prepareToken(ctx context.Context, acct store.AccountID, in PrepareTokenRequest) (s governance.TokenStatement, err error) {
	known := p.toolsets()
	for _, name := range in.Toolsets {
		if !slices.Contains(known, name) {
			return s, schema.InvalidArgument("/toolsets", governance.Plain(name, 64), "unknown toolset %s", shortQuote(name)).WithCandidates(known)
		}
	}
	err = p.DB.Update(ctx, func(tx *store.Tx) (err error) {
		s, err = p.Governance.PrepareToken(ctx, tx, acct, in.User, governance.TokenStatement{Name: in.Name, Role: in.Role,
			ReadOnly: in.ReadOnly, Toolsets: in.Toolsets, SHA256: in.SHA256, ExpiresAt: in.ExpiresAt, SignedBy: in.SignedBy})
		return err
	})
	return s, err
}

// toolsets are the names of the toolsets that have verbs, sorted.
func (p *Platform) toolsets() []string {
	var known []string
	for _, d := range p.order {
		if !slices.Contains(known, d.Verb.Toolset) {
			known = append(known, d.Verb.Toolset)
		}
	}
	slices.Sort(known)
	return known
}

// Authenticate is for whom a call with a secret runs: a person, or the account's agent. governance.ErrNoCredential says
// that it is no credential.
func (p *Platform) Authenticate(ctx context.Context, secret string) (Caller, error) {
	return viewed(ctx, p, func(v *store.View) (Caller, error) { return p.Governance.CallerByToken(ctx, v, secret) })
}
