package tools_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
	"powernode/tools"
	"powernode/tools/toolstest"
)

// nobody fails unless a secret is no credential.
func nobody(t *testing.T, env *toolstest.Env, secret string) {
	t.Helper()
	if c, err := env.Platform.Authenticate(t.Context(), secret); !errors.Is(err, governance.ErrNoCredential) {
		t.Errorf("authenticated as %+v (%v), want no credential", c, err)
	}
}

func TestTokenIsItsOwnersAndNarrowed(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	bob := env.AddPerson(t, "bob@example.org", governance.RoleOperator)
	for _, tt := range []struct {
		name, user string
		token      governance.TokenStatement
		want       tools.Caller
	}{
		{"a person's", "bob@example.org", governance.TokenStatement{Role: governance.RoleOperator},
			tools.Caller{Kind: governance.KindPerson, Role: governance.RoleOperator, ID: bob.ID, UserID: bob.UserID}},
		{"a narrowed one", "bob@example.org", governance.TokenStatement{Role: governance.RoleViewer, ReadOnly: true, Toolsets: []string{"fleet"}},
			tools.Caller{Kind: governance.KindPerson, Role: governance.RoleViewer, ID: bob.ID, UserID: bob.UserID, ReadOnly: true, Toolsets: []string{"fleet"}}},
		{"the agent's", "", governance.TokenStatement{Role: governance.RoleAgent},
			tools.Caller{Kind: governance.KindAgent, Role: governance.RoleAgent, ID: env.Caller.ID}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			secret, made := env.Token(t, tt.user, tt.token)
			tt.want.AccountID, tt.want.TokenID = env.Account.ID, made.ID
			got := env.CallerBy(t, secret)
			if spelt(got) != spelt(tt.want) {
				t.Errorf("caller\n got %s\nwant %s", spelt(got), spelt(tt.want))
			}
			toolstest.Has(t, toolstest.Object{"caller": toolstest.Object{"id": tt.want.ID, "kind": tt.want.Kind, "role": tt.want.Role}},
				env.CallAs(t, got, "platform_whoami", nil))
		})
	}
	proved(t, env)
}

func TestTokenNeedsAnAdministratorsSignature(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	secret := governance.NewSecret()
	hash := store.Secret(secret).Hash()
	for _, forge := range []struct {
		name string
		do   func(ctx context.Context, tx *store.Tx) error
	}{
		{"a row by hand", func(ctx context.Context, tx *store.Tx) error {
			return store.PutToken(ctx, tx, store.Token{ID: "hand", AccountID: env.Account.ID, UserID: env.Person.ID, Hash: hash, Role: governance.RoleAdmin})
		}},
		{"a record at the end of the chain", func(ctx context.Context, tx *store.Tx) error {
			_, err := tx.Audit(ctx, store.AuditEntry{AccountID: env.Account.ID, Action: "created", ResourceType: "Governance::Token", ResourceID: "hand",
				New: store.Object{"signature": make([]byte, 64), "token": store.Object{"account_id": env.Account.ID, "token_id": "hand",
					"user_id": env.Person.ID, "role": "admin", "sha256": hash, "signed_by": env.Person.ID}}})
			return err
		}},
	} {
		env.Update(t, forge.do)
		nobody(t, env, secret)
	}
	named(t, env, "tokens", "hand")
	if n := len(env.Signals(t, "system.signature_invalid")); n != 1 {
		t.Errorf("%d signals system.signature_invalid, want 1", n)
	}
	// By a process that speaks to the socket: no signature, and one by a key that is nobody's.
	statement := governance.TokenStatement{AccountID: env.Account.ID, TokenID: "socket", UserID: env.Person.ID, Email: env.Person.Email, Name: "x",
		Role: governance.RoleAdmin, SHA256: store.Secret("pn_x").Hash(), SignedBy: env.Person.ID}
	other := ed25519.NewKeyFromSeed([]byte("another key of an attacker, 32 b"))
	for _, signature := range [][]byte{nil, make([]byte, 64), governance.Sign(other, statement.Bytes())} {
		body := encoded(t, governance.TokenInput{Token: statement, Signature: signature})
		if _, err := env.Platform.People(t.Context(), env.Account.ID, tools.PeopleSetToken, body); schema.CodeOf(err) != schema.PermissionDenied {
			t.Errorf("a token with signature %x: %v, want permission_denied", signature, err)
		}
	}
	nobody(t, env, "pn_x")
}

func TestTokenEnds(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	bob := env.AddPerson(t, "bob@example.org", governance.RoleAdmin)
	revoked, made := env.Token(t, "bob@example.org", governance.TokenStatement{Role: governance.RoleAdmin})
	removed, _ := env.Token(t, "bob@example.org", governance.TokenStatement{Role: governance.RoleOperator})
	short, expiring := env.Token(t, "", governance.TokenStatement{Role: governance.RoleAgent, ExpiresAt: in(time.Hour)})
	kept, _ := env.Token(t, "", governance.TokenStatement{Role: governance.RoleAgent})

	r := governance.RevocationStatement{AccountID: env.Account.ID, TokenID: made.ID, SignedBy: env.Person.ID}
	revoke := func(signature []byte) error {
		_, err := env.Platform.People(t.Context(), env.Account.ID, tools.PeopleRevokeToken, encoded(t, governance.RevocationInput{Revocation: r, Signature: signature}))
		return err
	}
	if err := revoke(make([]byte, 64)); schema.CodeOf(err) != schema.PermissionDenied {
		t.Errorf("revoked without a signature: %v", err)
	}
	env.CallerBy(t, revoked)
	if err := revoke(governance.Sign(env.Key, r.Bytes())); err != nil {
		t.Fatal(err)
	}
	nobody(t, env, revoked)
	env.Update(t, func(ctx context.Context, tx *store.Tx) error { // back by hand
		row, err := store.TokenByID(ctx, &tx.View, env.Account.ID, made.ID)
		row.RevokedAt = nil
		return errors.Join(err, store.PutToken(ctx, tx, row))
	})
	nobody(t, env, revoked)

	env.CallerBy(t, short)
	env.Update(t, func(ctx context.Context, tx *store.Tx) error { // earlier than signed: that only takes away
		row, err := store.TokenByID(ctx, &tx.View, env.Account.ID, expiring.ID)
		row.ExpiresAt = in(-time.Second)
		return errors.Join(err, store.PutToken(ctx, tx, row))
	})
	nobody(t, env, short)

	session := env.CallerBy(t, removed)
	if _, err := env.SetUser(t, "bob@example.org", governance.UserStatement{Deed: governance.RemoveUser}); err != nil {
		t.Fatal(err)
	}
	nobody(t, env, removed)
	env.RefusedAs(t, session, "platform_whoami", nil, schema.PermissionDenied, "the caller's token is no longer valid")
	if back := env.AddPerson(t, "bob@example.org", governance.RoleAdmin); back.UserID != bob.UserID {
		t.Errorf("who comes back is %s, want who they were, %s", back.UserID, bob.UserID)
	}
	nobody(t, env, removed)
	for _, secret := range []string{"", "pn_", "pn_unknown", "Bearer " + kept, strings.ToUpper(kept)} {
		nobody(t, env, secret)
	}
	env.CallerBy(t, kept)
}

func in(d time.Duration) *store.Time {
	at := store.At(time.Now().Add(d))
	return &at
}

func TestPeopleAreAddedByAdministratorsAlone(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	env.Update(t, func(ctx context.Context, tx *store.Tx) error {
		return store.InsertUser(ctx, tx, store.User{ID: "hand", AccountID: env.Account.ID, Email: "eve@example.org", Name: "Eve", Role: governance.RoleAdmin})
	})
	named(t, env, "users", "hand")
	statement := governance.TokenStatement{AccountID: env.Account.ID, UserID: "hand"}
	env.View(t, func(ctx context.Context, v *store.View) error {
		if _, err := env.Platform.Governance.PersonOf(ctx, v, env.Account.ID, statement.UserID); !errors.Is(err, store.ErrNoRow) {
			t.Errorf("a person by hand: %v, want nobody", err)
		}
		return nil
	})
	for _, tt := range []struct {
		name string
		ref  string
		user governance.UserStatement
		code schema.Code
	}{
		{"twice", "", governance.UserStatement{Deed: governance.AddUser, Email: "ada@example.org", Name: "Ada", Role: "viewer"}, schema.Conflict},
		{"a name for an address", "", governance.UserStatement{Deed: governance.AddUser, Email: "Bob <bob@example.org>", Name: "Bob", Role: "viewer"}, schema.InvalidArguments},
		{"no role", "", governance.UserStatement{Deed: governance.AddUser, Email: "bob@example.org", Name: "Bob", Role: "agent"}, schema.InvalidArguments},
		{"a grant below admin", "", governance.UserStatement{Deed: governance.AddUser, Email: "bob@example.org", Name: "Bob", Role: "operator",
			Grants: []string{governance.AuditAll}}, schema.InvalidArguments},
		{"an unknown grant", "", governance.UserStatement{Deed: governance.AddUser, Email: "bob@example.org", Name: "Bob", Role: "admin",
			Grants: []string{"system.nodes.read"}}, schema.InvalidArguments},
		{"the last administrator's demotion", "ada@example.org", governance.UserStatement{Deed: governance.ChangeUser, Role: "viewer"}, schema.PreconditionFailed},
		{"the last administrator's removal", "ada@example.org", governance.UserStatement{Deed: governance.RemoveUser}, schema.PreconditionFailed},
		{"nobody's change", "bob@example.org", governance.UserStatement{Deed: governance.ChangeUser, Role: "viewer"}, schema.NotFound},
		{"the change of who was written by hand", "eve@example.org", governance.UserStatement{Deed: governance.ChangeUser, Role: "admin"}, schema.NotFound},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := env.Revision(t)
			if _, err := env.SetUser(t, tt.ref, tt.user); schema.CodeOf(err) != tt.code {
				t.Errorf("%v, want %s", err, tt.code)
			}
			if env.Revision(t) != before {
				t.Error("the refusal moved the revision")
			}
		})
	}
}

// TestSignedChangeIsUsedOnce holds a copy of an old statement against the record: a demoted person stays demoted.
func TestSignedChangeIsUsedOnce(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	env.AddPerson(t, "bob@example.org", governance.RoleAdmin)
	secret, _ := env.Token(t, "bob@example.org", governance.TokenStatement{Role: governance.RoleAdmin})
	var first store.AuditEntry
	for _, row := range env.Audit(t, "Governance::User") {
		if row.Action == "created" && strings.Contains(spelt(row.New), "bob@example.org") {
			first = row
		}
	}
	if _, err := env.SetUser(t, "bob@example.org", governance.UserStatement{Deed: governance.ChangeUser, Role: governance.RoleViewer}); err != nil {
		t.Fatal(err)
	}
	var in governance.UserInput
	if err := json.Unmarshal(encoded(t, first.New), &in); err != nil {
		t.Fatal(err)
	}
	if _, err := env.Platform.People(t.Context(), env.Account.ID, tools.PeopleSetUser, encoded(t, in)); schema.CodeOf(err) != schema.Conflict {
		t.Errorf("the statement again: %v, want a conflict", err)
	}
	env.Update(t, func(ctx context.Context, tx *store.Tx) error { // at the end of the chain, and the row
		u, err := store.UserByRef(ctx, &tx.View, env.Account.ID, "bob@example.org")
		if err != nil {
			return err
		}
		u.Role = governance.RoleAdmin
		_, err = tx.Audit(ctx, store.AuditEntry{AccountID: env.Account.ID, Action: first.Action, ResourceType: first.ResourceType,
			ResourceID: first.ResourceID, New: first.New})
		return errors.Join(err, store.UpdateUser(ctx, tx, u))
	})
	if c := env.CallerBy(t, secret); c.Role != governance.RoleViewer {
		t.Errorf("the demoted person's token is %s, want viewer", c.Role)
	}
}

// personsKey is the key that a name makes.
func personsKey(name string) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed([]byte(name + strings.Repeat(".", ed25519.SeedSize-len(name))))
}

// keyInput gives a person a key, signed by another.
func keyInput(env *toolstest.Env, k ed25519.PrivateKey, email string, by ed25519.PrivateKey) governance.KeyInput {
	in := governance.KeyInput{Email: email, Name: email, PublicKey: k.Public().(ed25519.PublicKey)}
	statement := governance.KeyStatement{AccountID: env.Account.ID, Email: email, PublicKey: in.PublicKey}.Bytes()
	in.Proof, in.Authority = governance.Sign(k, statement), governance.Sign(by, statement)
	return in
}

func recordKey(t *testing.T, env *toolstest.Env, in governance.KeyInput) error {
	t.Helper()
	_, err := env.Platform.People(t.Context(), env.Account.ID, tools.PeopleRecordKey, encoded(t, in))
	return err
}

func TestFurtherPersonSignsWithTheirOwnKey(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	bob, eve := env.AddPerson(t, "bob@example.org", governance.RoleAdmin), env.AddPerson(t, "eve@example.org", governance.RoleViewer)
	key := func(name, email string, by ed25519.PrivateKey) (ed25519.PrivateKey, error) {
		return personsKey(name), recordKey(t, env, keyInput(env, personsKey(name), email, by))
	}
	bobs, err := key("bob", "bob@example.org", env.Key)
	if err != nil {
		t.Fatalf("bob's key, signed by ada: %v", err)
	}
	eves, err := key("eve", "eve@example.org", bobs)
	if err != nil {
		t.Fatalf("eve's key, signed by bob: %v", err)
	}
	for _, by := range []ed25519.PrivateKey{eves, bobs} {
		if _, err := key("forged", "ada@example.org", by); schema.CodeOf(err) != schema.PermissionDenied {
			t.Errorf("a new key in ada's place, signed by another: %v, want permission_denied", err)
		}
	}
	// Bob's token asks, and bob may not decide; ada may. Eve, a viewer with a key, may not.
	secret, _ := env.Token(t, "bob@example.org", governance.TokenStatement{Role: governance.RoleAdmin})
	agent := env.Caller
	env.Caller = env.CallerBy(t, secret)
	id, _ := parkedCreate(t, env)
	env.Caller = agent
	decide := func(k ed25519.PrivateKey, who store.UserID) error {
		d := governance.Decision{OperationID: id, Decision: governance.Approve}
		env.View(t, func(ctx context.Context, v *store.View) error {
			o, err := store.OperationByID(ctx, v, env.Account.ID, id)
			if err != nil {
				return err
			}
			statement, err := env.Platform.Governance.Statement(o, governance.Approve, "", who)
			d.PlanDigest, d.Signature = o.PlanDigest, governance.Sign(k, statement.Bytes())
			return err
		})
		_, err := env.Platform.Decide(t.Context(), env.Account.ID, d)
		return err
	}
	for who, err := range map[string]error{"bob": decide(bobs, bob.UserID), "eve": decide(eves, eve.UserID)} {
		if schema.CodeOf(err) != schema.PermissionDenied {
			t.Errorf("%s approves: %v, want permission_denied", who, err)
		}
	}
	if err := decide(env.Key, env.Person.ID); err != nil {
		t.Errorf("ada approves: %v", err)
	}
	if _, err := env.SetUser(t, "bob@example.org", governance.UserStatement{Deed: governance.RemoveUser}); err != nil {
		t.Fatal(err)
	}
	env.View(t, func(ctx context.Context, v *store.View) error {
		keys, err := env.Platform.Governance.Keys(ctx, v, env.Account.ID)
		for _, k := range keys {
			if k.UserID == bob.UserID && k.Until == 0 {
				t.Error("the key of who was removed stands")
			}
		}
		return err
	})
	proved(t, env)
}

func TestTokenAsksForNoMoreThanItsOwnerHas(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	env.AddPerson(t, "bob@example.org", governance.RoleOperator)
	hash := store.Secret(governance.NewSecret()).Hash()
	for _, tt := range []struct {
		name string
		in   tools.PrepareTokenRequest
		code schema.Code
	}{
		{"a role above the owner's", tools.PrepareTokenRequest{User: "bob@example.org", Role: "admin"}, schema.InvalidArguments},
		{"a person's agent token", tools.PrepareTokenRequest{User: "bob@example.org", Role: "agent"}, schema.InvalidArguments},
		{"the agent as admin", tools.PrepareTokenRequest{Role: "admin"}, schema.InvalidArguments},
		{"an unknown toolset", tools.PrepareTokenRequest{Role: "agent", Toolsets: []string{"sdwam"}}, schema.InvalidArguments},
		{"no toolset at all", tools.PrepareTokenRequest{Role: "agent", Toolsets: []string{}}, schema.InvalidArguments},
		{"in the past", tools.PrepareTokenRequest{Role: "agent", ExpiresAt: in(-time.Minute)}, schema.InvalidArguments},
		{"nobody's", tools.PrepareTokenRequest{User: "eve@example.org", Role: "viewer"}, schema.NotFound},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.in.Name, tt.in.SHA256 = "x", hash
			if _, err := env.Platform.People(t.Context(), env.Account.ID, tools.PeoplePrepareToken, encoded(t, tt.in)); schema.CodeOf(err) != tt.code {
				t.Errorf("%v, want %s", err, tt.code)
			}
		})
	}
}

func TestLastUseOfATokenIsNoted(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	secret, made := env.Token(t, "", governance.TokenStatement{Role: governance.RoleAgent})
	before := env.Revision(t)
	env.CallAs(t, env.CallerBy(t, secret), "platform_whoami", nil)
	if err := env.Platform.FlushReads(t.Context()); err != nil {
		t.Fatal(err)
	}
	env.View(t, func(ctx context.Context, v *store.View) error {
		row, err := store.TokenByID(ctx, v, env.Account.ID, made.ID)
		if err == nil && row.LastUsedAt == nil {
			t.Error("no last use")
		}
		return err
	})
	if after := env.Revision(t); after != before {
		t.Errorf("it moved the revision from %d to %d", before, after)
	}
}
