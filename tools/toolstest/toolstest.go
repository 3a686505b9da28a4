// Package toolstest is a platform for tests: a real store, the real call path, an account with one person who holds a
// human key, and what a first start seeds.
//
// It is for tests only. It serves nothing and makes no machine: a test that provisions puts a provider in.
//
// Invariants: calls go through Platform.Call; a refusal leaves the revision as it was and exactly one execution event.
package toolstest

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"powernode/platform/cluster"
	"powernode/platform/fleet"
	"powernode/platform/governance"
	"powernode/platform/network"
	"powernode/platform/provider"
	"powernode/schema"
	"powernode/store"
	"powernode/store/storetest"
	"powernode/tools"
)

// Env is a platform with an account. Tests may change Caller and what stands in Platform before they call.
type Env struct {
	Platform *tools.Platform
	Account  store.Account
	Person   store.User
	Caller   tools.Caller // for whom Call and Refused call: the account's agent
	Key      ed25519.PrivateKey
}

// New makes a platform with a person and a human key.
func New(t testing.TB) *Env {
	t.Helper()
	e := NewWithoutKey(t)
	e.Init(t)
	return e
}

// NewWithoutKey makes a platform as a first start leaves it: an account, and nobody who could approve.
func NewWithoutKey(t testing.TB) *Env {
	t.Helper()
	return on(t, storetest.New(t))
}

// NewAt is New with a clock that the test moves.
func NewAt(t testing.TB, c *storetest.Clock) *Env {
	t.Helper()
	return NewOn(t, storetest.NewAt(t, c))
}

// NewOn is New on a store that the test has opened.
func NewOn(t testing.TB, db *store.DB) *Env {
	t.Helper()
	e := on(t, db)
	e.Init(t)
	return e
}

func on(t testing.TB, db *store.DB) *Env {
	t.Helper()
	sealer, err := store.NewSealer(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatalf("make a sealer: %v", err)
	}
	p := &tools.Platform{DB: db, Sealer: sealer, Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel)}
	p.Governance = &governance.Service{Sealer: sealer, Log: p.Log}
	p.Network = &network.Service{Sealer: sealer}
	p.Cluster = &cluster.Service{Network: p.Network, Sealer: sealer}
	p.Fleet = &fleet.Service{Network: p.Network, Cluster: p.Cluster, Providers: map[string]provider.Provider{}, Sealer: sealer, Log: p.Log}
	join(p)
	if err := p.Register(); err != nil {
		t.Logf("verbs that are not whole: %v", err) // TestEveryVerbIsWhole fails for them; the others work
	}
	e := &Env{Platform: p}
	e.Account = e.AddAccount(t, "home", "fd5e:8a21:c0de::/48")
	e.Caller = governance.AgentCaller(e.Account.ID)
	return e
}

// join closes the circle of networks and clusters, and lets the store compile documents.
func join(p *tools.Platform) {
	if clusters, ok := any(p.Cluster).(network.Clusters); ok {
		p.Network.Clusters = clusters
	}
	if f, ok := any(p.Fleet).(interface {
		Publish(context.Context, *store.Tx) error
	}); ok {
		p.DB.SetPublish(f.Publish)
	}
}

// AddAccount makes an account as a first start does, with what is built in.
func (e *Env) AddAccount(t testing.TB, name, prefix string) store.Account {
	t.Helper()
	var a store.Account
	e.Update(t, func(ctx context.Context, tx *store.Tx) error {
		a = store.Account{ID: store.AccountID(tx.NewID()), Name: name, Prefix: store.Prefix{Prefix: netip.MustParsePrefix(prefix)}}
		if err := store.InsertAccount(ctx, tx, a); err != nil {
			return err
		}
		if f, ok := any(e.Platform.Fleet).(interface {
			Seed(context.Context, *store.Tx, store.AccountID) error
		}); ok {
			return f.Seed(ctx, tx, a.ID)
		}
		return nil
	})
	return a
}

// Init makes the account's first person with a human key, as powernode init does.
func (e *Env) Init(t testing.TB) {
	t.Helper()
	seed := rand.NewChaCha8([32]byte{'k', 'e', 'y'})
	secret := make([]byte, ed25519.SeedSize)
	seed.Read(secret) // a ChaCha8 never fails
	e.Key = ed25519.NewKeyFromSeed(secret)
	in := governance.KeyInput{Email: "ada@example.org", Name: "Ada", PublicKey: e.Key.Public().(ed25519.PublicKey)}
	in.Proof = governance.Sign(e.Key, governance.KeyStatement{AccountID: e.Account.ID, Email: in.Email, PublicKey: in.PublicKey}.Bytes())
	e.Update(t, func(ctx context.Context, tx *store.Tx) error {
		var err error
		e.Person, err = e.Platform.Governance.RecordKey(ctx, tx, e.Account.ID, in)
		return err
	})
}

// AddPerson makes a further person of the account, without a key, and answers them as a caller.
func (e *Env) AddPerson(t testing.TB, email, role string) tools.Caller {
	t.Helper()
	if e.Key != nil {
		return e.addSigned(t, governance.UserStatement{Deed: governance.AddUser, Email: email, Name: email, Role: role})
	}
	var u store.User
	e.Update(t, func(ctx context.Context, tx *store.Tx) error {
		u = store.User{ID: store.UserID(tx.NewID()), AccountID: e.Account.ID, Email: email, Name: email, Role: role}
		return store.InsertUser(ctx, tx, u)
	})
	return governance.PersonCaller(u)
}

func (e *Env) addSigned(t testing.TB, u governance.UserStatement) (c tools.Caller) {
	t.Helper()
	view, err := e.SetUser(t, "", u)
	if err != nil {
		t.Fatalf("add %s: %s", u.Email, describe(err))
	}
	return tools.Caller{AccountID: e.Account.ID, Kind: governance.KindPerson, Role: view.Role, ID: string(view.ID), UserID: view.ID,
		Granted: u.Grants}
}

// SetUser adds, changes or removes a person, signed with the first person's key; ref names the one to change or remove.
func (e *Env) SetUser(t testing.TB, ref string, u governance.UserStatement) (view governance.PersonView, err error) {
	t.Helper()
	err = e.Platform.DB.Update(t.Context(), func(tx *store.Tx) error {
		tx.Act(store.Actor{Kind: governance.KindPerson, ID: string(e.Person.ID), CorrelationID: tx.NewID()})
		u.SignedBy = e.Person.ID
		statement, err := e.Platform.Governance.PrepareUser(t.Context(), tx, e.Account.ID, ref, u)
		if err != nil {
			return err
		}
		view, err = e.Platform.Governance.SetUser(t.Context(), tx, e.Account.ID,
			governance.UserInput{User: statement, Signature: governance.Sign(e.Key, statement.Bytes())})
		return err
	})
	return view, err
}

// Token makes a credential, signed with the first person's key; user names whose, by id or e-mail address, and empty is
// the account's agent. It answers the secret.
func (e *Env) Token(t testing.TB, user string, s governance.TokenStatement) (secret string, made governance.TokenView) {
	t.Helper()
	secret = governance.NewSecret()
	if s.Name == "" {
		s.Name = "test"
	}
	s.SHA256, s.SignedBy = store.Secret(secret).Hash(), e.Person.ID
	e.Update(t, func(ctx context.Context, tx *store.Tx) error {
		statement, err := e.Platform.Governance.PrepareToken(ctx, tx, e.Account.ID, user, s)
		if err != nil {
			return err
		}
		made, err = e.Platform.Governance.SetToken(ctx, tx, e.Account.ID,
			governance.TokenInput{Token: statement, Signature: governance.Sign(e.Key, statement.Bytes())})
		return err
	})
	return secret, made
}

// CallerBy is for whom calls with a secret run.
func (e *Env) CallerBy(t testing.TB, secret string) tools.Caller {
	t.Helper()
	c, err := e.Platform.Authenticate(t.Context(), secret)
	if err != nil {
		t.Fatalf("authenticate: %v", err)
	}
	return c
}

// Update writes to the store as the platform.
func (e *Env) Update(t testing.TB, fn func(ctx context.Context, tx *store.Tx) error) {
	t.Helper()
	err := e.Platform.DB.Update(t.Context(), func(tx *store.Tx) error {
		tx.Act(store.Actor{Kind: governance.KindPlatform, ID: "test", CorrelationID: tx.NewID()})
		return fn(t.Context(), tx)
	})
	if err != nil {
		t.Fatalf("write to the store: %v", err)
	}
}

// View reads the store.
func (e *Env) View(t testing.TB, fn func(ctx context.Context, v *store.View) error) {
	t.Helper()
	if err := e.Platform.DB.View(t.Context(), func(v *store.View) error { return fn(t.Context(), v) }); err != nil {
		t.Fatalf("read the store: %v", err)
	}
}

// Object is a decoded result.
type Object = map[string]any

// Call calls a verb that must succeed or park, and answers its result. args is JSON text, or a value that encodes.
// The result is held against the verb's output schema.
func (e *Env) Call(t testing.TB, verb string, args any) Object {
	t.Helper()
	return e.CallAs(t, e.Caller, verb, args)
}

// CallAs is Call for another caller.
func (e *Env) CallAs(t testing.TB, c tools.Caller, verb string, args any) Object {
	t.Helper()
	result, err := e.Platform.Call(t.Context(), c, tools.Request{Verb: verb, Arguments: raw(t, args)})
	if err != nil {
		t.Fatalf("%s %s: %s", verb, raw(t, args), describe(err))
	}
	d, _ := e.Platform.Lookup(verb)
	if err := d.Contract().ValidateOutput(result.JSON); err != nil {
		t.Errorf("%s answers what its output schema doesn't know: %s\n%s", verb, describe(err), result.JSON)
	}
	return object(t, result.JSON)
}

// Refused calls a verb that must be refused with the code and a message that contains text, and holds the platform to
// what a refusal leaves: the old revision, and exactly one execution event.
func (e *Env) Refused(t testing.TB, verb string, args any, code schema.Code, text string) *schema.Error {
	t.Helper()
	return e.RefusedAs(t, e.Caller, verb, args, code, text)
}

// RefusedAs is Refused for another caller.
func (e *Env) RefusedAs(t testing.TB, c tools.Caller, verb string, args any, code schema.Code, text string) *schema.Error {
	t.Helper()
	before, events := e.Revision(t), e.events(t, c.AccountID)
	result, err := e.Platform.Call(t.Context(), c, tools.Request{Verb: verb, Arguments: raw(t, args)})
	if err == nil {
		t.Fatalf("%s %s: answered %s, want %s", verb, raw(t, args), result.JSON, code)
	}
	var refused *schema.Error
	if !errors.As(err, &refused) {
		t.Fatalf("%s %s: %v, want %s", verb, raw(t, args), err, code)
	}
	if refused.Code != code || !strings.Contains(refused.Message, text) {
		t.Fatalf("%s %s:\n got %s\nwant %s with %q", verb, raw(t, args), describe(err), code, text)
	}
	if after := e.Revision(t); after != before {
		t.Errorf("%s: the refusal moved the revision from %d to %d", verb, before, after)
	}
	if n := e.events(t, c.AccountID) - events; n != 1 {
		t.Errorf("%s: the refusal left %d execution events, want 1", verb, n)
	}
	return refused
}

// Parked calls a verb that must park, and answers the operation's id.
func (e *Env) Parked(t testing.TB, verb string, args any) store.OperationID {
	t.Helper()
	answer := e.Call(t, verb, args)
	id, _ := answer["deferred_operation_id"].(string)
	if answer["pending"] != true || id == "" {
		t.Fatalf("%s: answered %v, want a parked call", verb, answer)
	}
	return store.OperationID(id)
}

// Approve approves an operation as the person, and answers the result as its requester reads it.
func (e *Env) Approve(t testing.TB, id store.OperationID) Object {
	t.Helper()
	if err := e.Decide(t, id, governance.Approve); err != nil {
		t.Fatalf("approve: %s", describe(err))
	}
	var o store.Operation
	var view governance.OperationView
	e.View(t, func(ctx context.Context, v *store.View) (err error) {
		if o, err = store.OperationByID(ctx, v, e.Account.ID, id); err != nil {
			return err
		}
		view, err = e.Platform.Governance.Seen(o, governance.Requester(o))
		return err
	})
	if view.Status != governance.Completed {
		t.Fatalf("the approved operation is %s: %v", view.Status, view.Error)
	}
	return object(t, view.Result)
}

// Resume ends the emergency stop as a person does: they ask for it, and sign it where that waits.
func (e *Env) Resume(t testing.TB, reason string) Object {
	t.Helper()
	answer := e.CallAs(t, governance.PersonCaller(e.Person), governance.VerbResume, Object{"reason": reason})
	if id, waits := answer["deferred_operation_id"].(string); waits {
		return e.Approve(t, store.OperationID(id))
	}
	return answer
}

// Decide decides an operation as the person, and answers why it was refused or failed.
func (e *Env) Decide(t testing.TB, id store.OperationID, decision string) error {
	t.Helper()
	_, err := e.Platform.Decide(t.Context(), e.Account.ID, e.Decision(t, id, decision))
	return err
}

// Decision is a decision of an operation as it stands, signed with the person's key.
func (e *Env) Decision(t testing.TB, id store.OperationID, decision string) governance.Decision {
	t.Helper()
	d := governance.Decision{OperationID: id, Decision: decision}
	e.View(t, func(ctx context.Context, v *store.View) error {
		o, err := store.OperationByID(ctx, v, e.Account.ID, id)
		if err != nil {
			return err
		}
		statement, err := e.Platform.Governance.Statement(o, decision, "", e.Person.ID)
		if err != nil {
			return err
		}
		d.PlanDigest, d.Signature = o.PlanDigest, governance.Sign(e.Key, statement.Bytes())
		return nil
	})
	return d
}

// SetPolicy sets a policy of the account as the person.
func (e *Env) SetPolicy(t testing.TB, category string, verdict governance.Verdict, scope governance.Scope) {
	t.Helper()
	e.Update(t, func(ctx context.Context, tx *store.Tx) error {
		statement, err := e.Platform.Governance.PreparePolicy(ctx, tx, e.Account.ID, category, string(verdict), scope)
		if err != nil {
			return err
		}
		statement.UserID = e.Person.ID
		_, err = e.Platform.Governance.SetPolicy(ctx, tx, e.Account.ID,
			governance.PolicyInput{Policy: statement, Signature: governance.Sign(e.Key, statement.Bytes())})
		return err
	})
}

// Revision is the store's revision.
func (e *Env) Revision(t testing.TB) (revision int64) {
	t.Helper()
	e.View(t, func(ctx context.Context, v *store.View) (err error) {
		revision, err = v.CurrentRevision(ctx)
		return err
	})
	return revision
}

// Signals are the account's signals of a kind, latest first.
func (e *Env) Signals(t testing.TB, kind string) (signals []store.Signal) {
	t.Helper()
	e.View(t, func(ctx context.Context, v *store.View) (err error) {
		signals, err = store.LatestSignals(ctx, v, e.Account.ID, kind, "", 1000)
		return err
	})
	return signals
}

// Audit are the account's audit rows about a type of resource, oldest first.
func (e *Env) Audit(t testing.TB, resourceType string) (rows []store.AuditEntry) {
	t.Helper()
	e.View(t, func(ctx context.Context, v *store.View) (err error) {
		rows, err = store.AuditOf(ctx, v, e.Account.ID, resourceType, "")
		return err
	})
	return rows
}

func (e *Env) events(t testing.TB, acct store.AccountID) int {
	t.Helper()
	if err := e.Platform.FlushReads(t.Context()); err != nil {
		t.Fatalf("write the events of reads: %v", err)
	}
	var events []store.ExecutionEvent
	e.View(t, func(ctx context.Context, v *store.View) (err error) {
		events, err = store.ExecutionEvents(ctx, v, acct, "", "", 1_000_000)
		return err
	})
	return len(events)
}

// Has fails unless got has all that want names, at every depth; other keys don't matter.
func Has(t testing.TB, want, got Object) {
	t.Helper()
	if diff := cmp.Diff(want, narrowed(want, got)); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}

func narrowed(want, got Object) Object {
	out := Object{}
	for key, value := range want {
		there, ok := got[key]
		if !ok {
			continue
		}
		out[key] = there
		if w, nested := value.(Object); nested {
			if g, same := there.(Object); same {
				out[key] = narrowed(w, g)
			}
		}
	}
	return out
}

func raw(t testing.TB, args any) json.RawMessage {
	t.Helper()
	switch args := args.(type) {
	case nil:
		return nil
	case string:
		return json.RawMessage(args)
	case json.RawMessage:
		return args
	}
	b, err := json.Marshal(args)
	if err != nil {
		t.Fatalf("encode arguments: %v", err)
	}
	return b
}

func object(t testing.TB, b []byte) Object {
	t.Helper()
	var o Object
	if err := json.Unmarshal(b, &o); err != nil {
		t.Fatalf("result %s: %v", b, err)
	}
	return o
}

func describe(err error) string {
	var coded *schema.Error
	if !errors.As(err, &coded) {
		return err.Error()
	}
	b, encodeErr := json.Marshal(coded)
	if encodeErr != nil {
		return coded.Message
	}
	return string(b)
}
