package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
)

// Requests of people's surface: what the operator's command line asks of a running platform. None is a verb. Reading
// needs what opens the control socket; whatever decides is signed by a human key, and verified here.
const (
	PeopleKey           = "key"            // → KeyState
	PeopleRecordKey     = "record_key"     // governance.KeyInput → KeyState
	PeopleOperations    = "operations"     // OperationsRequest → OperationsAnswer
	PeopleOperation     = "operation"      // OperationRequest → OperationAnswer
	PeopleDecide        = "decide"         // governance.Decision → OperationAnswer
	PeoplePolicies      = "policies"       // → PoliciesAnswer
	PeoplePreparePolicy = "prepare_policy" // PreparePolicyRequest → governance.PolicyStatement
	PeopleSetPolicy     = "set_policy"     // governance.PolicyInput → governance.PolicyView
	PeopleVerify        = "verify"         // VerifyRequest → governance.Proof
	PeopleAccount       = "account"        // → AccountAnswer
	PeopleUsers         = "users"          // → UsersAnswer
	PeoplePrepareUser   = "prepare_user"   // PrepareUserRequest → governance.UserStatement
	PeopleSetUser       = "set_user"       // governance.UserInput → governance.PersonView
	PeopleTokens        = "tokens"         // → TokensAnswer
	PeoplePrepareToken  = "prepare_token"  // PrepareTokenRequest → governance.TokenStatement
	PeopleSetToken      = "set_token"      // governance.TokenInput → governance.TokenView
	PeopleRevokeToken   = "revoke_token"   // governance.RevocationInput → governance.TokenView
)

// KeyState says whose human key stands.
type KeyState struct {
	AccountID store.AccountID `json:"account_id"`
	Account   string          `json:"account"`
	UserID    *store.UserID   `json:"user_id"` // null: nobody can approve yet
	Email     *string         `json:"email"`
	Name      *string         `json:"name"`
	PublicKey []byte          `json:"public_key"`
	Keys      []KeyHolder     `json:"keys"`  // all that stand, oldest first; the one above is the latest
	Chain     store.Head      `json:"chain"` // the end of the audit chain, which the statement of a new key signs
}

// KeyHolder is somebody who can sign.
type KeyHolder struct {
	UserID    store.UserID `json:"user_id"`
	Email     string       `json:"email"`
	PublicKey []byte       `json:"public_key"`
}

// OperationsRequest narrows a list of operations.
type OperationsRequest struct {
	Status string  `json:"status"` // empty: all
	Limit  int     `json:"limit"`  // 0: no pages
	Cursor *string `json:"cursor"`
}

// OperationsAnswer lists operations, latest first.
type OperationsAnswer struct {
	Operations []governance.OperationView `json:"operations"`
	Page
}

// OperationRequest names an operation. By is who is about to approve it; empty: somebody looks. What can't be approved any more is
// stale from then on.
type OperationRequest struct {
	ID string       `json:"id"`
	By store.UserID `json:"by"`
}

// OperationAnswer is an operation as the person who decides sees it. Statement is what they sign, with decision and
// comment left open; it is null where there is no human key.
type OperationAnswer struct {
	Operation    governance.OperationView      `json:"operation"`
	Effects      []governance.Effect           `json:"effects"`
	Irreversible []string                      `json:"irreversible"`
	Statement    *governance.DecisionStatement `json:"statement"`
	Failed       *schema.Error                 `json:"failed"` // why an approved one could not be done, or a pending one can't
	Releases     []Release                     `json:"releases"`
}

// Release is what a pending operation would let machines have: the content of a module's version, which the plan only names.
type Release struct {
	Module    string            `json:"module"`
	Version   string            `json:"version"`
	MadeBy    string            `json:"made_by"`
	Artifacts []versionArtifact `json:"artifacts"`
	Manifest  json.RawMessage   `json:"manifest"`
}

// PreparePolicyRequest asks for the statement that a person signs to set a policy; verdict "unset" takes one back.
type PreparePolicyRequest struct {
	ActionCategory string           `json:"action_category"`
	Verdict        string           `json:"verdict"`
	Scope          governance.Scope `json:"scope"`
}

// PoliciesAnswer lists all action categories with what applies.
type PoliciesAnswer struct {
	Policies []governance.PolicyView `json:"policies"`
}

// People answers a request of people's surface; the body is JSON of the request's type.
func (p *Platform) People(ctx context.Context, acct store.AccountID, request string, body json.RawMessage) (any, error) {
	switch request {
	case PeopleKey:
		return p.keyState(ctx, acct)
	case PeopleRecordKey:
		return asked(body, func(in governance.KeyInput) (any, error) { return p.recordKey(ctx, acct, in) })
	case PeopleOperations:
		return asked(body, func(in OperationsRequest) (any, error) { return p.operationsFor(ctx, acct, in) })
	case PeopleOperation:
		return asked(body, func(in OperationRequest) (any, error) { return p.operationFor(ctx, acct, in) })
	case PeopleDecide:
		return asked(body, func(in governance.Decision) (any, error) { return p.decideFor(ctx, acct, in) })
	case PeoplePolicies:
		return p.policiesFor(ctx, acct)
	case PeoplePreparePolicy:
		return asked(body, func(in PreparePolicyRequest) (any, error) { return p.preparePolicy(ctx, acct, in) })
	case PeopleSetPolicy:
		return asked(body, func(in governance.PolicyInput) (any, error) { return p.setPolicy(ctx, acct, in) })
	case PeopleVerify:
		return asked(body, func(in VerifyRequest) (any, error) { return p.verify(ctx, in) })
	}
	return p.identity(ctx, acct, request, body)
}

// identity answers what concerns people and credentials.
func (p *Platform) identity(ctx context.Context, acct store.AccountID, request string, body json.RawMessage) (any, error) {
	switch request {
	case PeopleAccount:
		return p.accountFor(ctx, acct)
	case PeopleUsers:
		return viewed(ctx, p, func(v *store.View) (a UsersAnswer, err error) {
			a.Users, err = p.Governance.PeopleOf(ctx, v, acct)
			return a, err
		})
	case PeoplePrepareUser:
		return asked(body, func(in PrepareUserRequest) (any, error) { return p.prepareUser(ctx, acct, in) })
	case PeopleSetUser:
		return asked(body, func(in governance.UserInput) (any, error) {
			return signed(ctx, p, in.User.SignedBy, "user", func(tx *store.Tx) (governance.PersonView, error) {
				return p.Governance.SetUser(ctx, tx, acct, in)
			})
		})
	case PeopleTokens:
		return viewed(ctx, p, func(v *store.View) (a TokensAnswer, err error) {
			a.Tokens, err = p.Governance.TokensOf(ctx, v, acct)
			return a, err
		})
	case PeoplePrepareToken:
		return asked(body, func(in PrepareTokenRequest) (any, error) { return p.prepareToken(ctx, acct, in) })
	case PeopleSetToken:
		return asked(body, func(in governance.TokenInput) (any, error) {
			return signed(ctx, p, in.Token.SignedBy, "token", func(tx *store.Tx) (governance.TokenView, error) {
				return p.Governance.SetToken(ctx, tx, acct, in)
			})
		})
	case PeopleRevokeToken:
		return asked(body, func(in governance.RevocationInput) (any, error) {
			return signed(ctx, p, in.Revocation.SignedBy, "token", func(tx *store.Tx) (governance.TokenView, error) {
				return p.Governance.RevokeToken(ctx, tx, acct, in)
			})
		})
	}
	return nil, schema.Errorf(schema.NotFound, "no such request: %s", shortQuote(request))
}

func asked[T any](body json.RawMessage, answer func(T) (any, error)) (any, error) {
	var in T
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, schema.Errorf(schema.InvalidArguments, "the request is not understood")
	}
	return answer(in)
}

func (p *Platform) keyState(ctx context.Context, acct store.AccountID) (s KeyState, err error) {
	err = p.DB.View(ctx, func(v *store.View) error {
		account, err := store.AccountByID(ctx, v, acct)
		if err != nil {
			return fmt.Errorf("read the account: %w", err)
		}
		s = KeyState{AccountID: acct, Account: account.Name, Keys: []KeyHolder{}}
		if s.Chain, err = store.AuditHead(ctx, v); err != nil {
			return err
		}
		k, err := p.Governance.StandingKey(ctx, v, acct)
		if errors.Is(err, &schema.Error{Code: schema.PreconditionFailed}) {
			return nil
		}
		if err != nil {
			return err
		}
		s.UserID, s.Email, s.PublicKey = &k.UserID, &k.Email, k.Public
		keys, err := p.Governance.Keys(ctx, v, acct)
		if err != nil {
			return err
		}
		for _, k := range keys {
			if k.Until == 0 {
				s.Keys = append(s.Keys, KeyHolder{k.UserID, k.Email, k.Public})
			}
		}
		u, err := store.UserByRef(ctx, v, acct, string(k.UserID))
		if errors.Is(err, store.ErrNoRow) {
			return nil
		}
		s.Name = &u.Name
		return err
	})
	return s, err
}

func (p *Platform) recordKey(ctx context.Context, acct store.AccountID, in governance.KeyInput) (KeyState, error) {
	err := p.DB.Update(ctx, func(tx *store.Tx) error {
		tx.Act(store.Actor{Kind: governance.KindPerson, ID: governance.Plain(in.Email, 200), Verb: "init", CorrelationID: tx.NewID()})
		_, err := p.Governance.RecordKey(ctx, tx, acct, in)
		return err
	})
	if err != nil {
		return KeyState{}, err
	}
	return p.keyState(ctx, acct)
}

func (p *Platform) operationsFor(ctx context.Context, acct store.AccountID, in OperationsRequest) (a OperationsAnswer, err error) {
	a.Operations = []governance.OperationView{}
	err = p.DB.View(ctx, func(v *store.View) error {
		all, err := store.Operations(ctx, v, acct, in.Status, "")
		if err != nil {
			return fmt.Errorf("list operations: %w", err)
		}
		all, a.Page, err = page("operations", in.Status, in.Limit, orEmpty(in.Cursor), all, func(o store.Operation) string { return string(o.ID) })
		if err != nil {
			return err
		}
		for _, o := range all {
			view, err := p.Governance.Seen(o, Caller{})
			if err != nil {
				return err
			}
			a.Operations = append(a.Operations, view)
		}
		return nil
	})
	return a, err
}

func (p *Platform) operationFor(ctx context.Context, acct store.AccountID, in OperationRequest) (a OperationAnswer, err error) {
	var o store.Operation
	err = p.DB.View(ctx, func(v *store.View) (err error) {
		if o, err = operationNamed(ctx, v, acct, in.ID); err != nil {
			return err
		}
		if a.Operation, err = p.Governance.Seen(o, Caller{}); err != nil {
			return err
		}
		a.Effects = governance.StoredEffects(o)
		k, err := p.Governance.StandingKey(ctx, v, acct)
		if errors.Is(err, &schema.Error{Code: schema.PreconditionFailed}) {
			return nil
		}
		if err != nil {
			return err
		}
		statement, err := p.Governance.Statement(o, "", "", k.UserID)
		a.Statement = &statement
		return err
	})
	if err == nil && o.Status == governance.Pending {
		err = p.asItIs(ctx, o, in.By, &a)
	}
	a.Irreversible = governance.Irreversible(a.Effects)
	return a, err
}

// asItIs has a person see the call that their approval would run: its sealed arguments, which the approval signs, its plan as it
// comes out now, and why an approval would fail. The columns that tell of them can be changed by whoever writes the database.
func (p *Platform) asItIs(ctx context.Context, o store.Operation, by store.UserID, a *OperationAnswer) error {
	arguments, err := p.Governance.Arguments(o)
	if err != nil {
		return err
	}
	a.Operation.Arguments, a.Effects = nil, []governance.Effect{}
	if d, there := p.Lookup(o.Verb); there {
		if a.Operation.Arguments, err = d.shown(arguments); err != nil {
			return err
		}
	}
	c, plan, err := p.planAgain(ctx, o)
	switch {
	case errors.As(err, &a.Failed):
	case err != nil:
		return err
	case plan != nil && governance.Digest(o.Verb, c.raw, plan) != o.PlanDigest:
		a.Failed, a.Effects = errStale, governance.Effects(plan) // not what an approval would stand for
	case plan != nil:
		a.Effects = governance.Effects(plan)
	}
	if a.Failed == errStale && by != "" {
		if err := p.holdsStill(ctx, o); !errors.As(err, new(*schema.Error)) {
			return err
		}
		a.Operation.Status = governance.Stale
	}
	if a.Failed == nil {
		if err := p.hindered(ctx, o, by); err != nil && !errors.As(err, &a.Failed) {
			return err
		}
	}
	a.Operation.Effects = a.Effects
	return p.DB.View(ctx, func(v *store.View) (err error) {
		a.Releases, err = releases(ctx, v, o.AccountID, a.Effects)
		return err
	})
}

// hindered refuses an approval that would fail whatever its plan: for who decides, or for who asked.
func (p *Platform) hindered(ctx context.Context, o store.Operation, by store.UserID) error {
	err := p.DB.View(ctx, func(v *store.View) error { return p.Governance.CheckApprovable(ctx, v, o, by) })
	if err != nil {
		return err
	}
	c, err := p.replayed(ctx, o)
	if err != nil {
		return err
	}
	if err := c.validate(); err != nil {
		return err
	}
	if err := c.authorise(); err != nil {
		return err
	}
	return p.DB.View(ctx, func(v *store.View) error {
		_, err := c.admitted(ctx, v)
		return err
	})
}

// releases are the versions that a plan moves on, for the person who decides whether machines get them.
func releases(ctx context.Context, v *store.View, acct store.AccountID, effects []governance.Effect) ([]Release, error) {
	out := []Release{}
	for _, e := range effects {
		if next, moves := e.After["promotion_state"]; e.ID == nil || e.ResourceType != "System::NodeModuleVersion" || !moves || next == "retired" {
			continue
		}
		version, err := store.ModuleVersionByID(ctx, v, acct, store.ModuleVersionID(*e.ID))
		if err != nil {
			return nil, fmt.Errorf("read the version to release: %w", err)
		}
		if version.EverLive {
			continue // machines have had it
		}
		m, err := store.ModuleByID(ctx, v, acct, version.ModuleID)
		if err != nil {
			return nil, fmt.Errorf("read the module to release: %w", err)
		}
		out = append(out, Release{Module: m.Name, Version: version.Version, MadeBy: version.MadeBy, Manifest: version.Manifest.V,
			Artifacts: mapped(version.Artifacts.V, versionArtifactOf)})
	}
	return out, nil
}

func operationNamed(ctx context.Context, v *store.View, acct store.AccountID, id string) (store.Operation, error) {
	o, err := store.OperationByID(ctx, v, acct, store.OperationID(id))
	if errors.Is(err, store.ErrNoRow) {
		return o, schema.Errorf(schema.NotFound, "operation not found")
	}
	return o, err
}

func (p *Platform) decideFor(ctx context.Context, acct store.AccountID, d governance.Decision) (OperationAnswer, error) {
	view, err := p.Decide(ctx, acct, d)
	if err != nil && view.ID == "" { // not taken
		return OperationAnswer{}, err
	}
	a, readErr := p.operationFor(ctx, acct, OperationRequest{ID: string(d.OperationID)})
	var failed *schema.Error
	if errors.As(err, &failed) {
		a.Failed = failed
		err = nil
	}
	return a, errors.Join(err, readErr)
}

func (p *Platform) policiesFor(ctx context.Context, acct store.AccountID) (a PoliciesAnswer, err error) {
	err = p.DB.View(ctx, func(v *store.View) (err error) {
		a.Policies, err = p.Governance.Policies(ctx, v, acct)
		return err
	})
	p.tellSuspects(ctx)
	return a, err
}

func (p *Platform) preparePolicy(ctx context.Context, acct store.AccountID, in PreparePolicyRequest) (s governance.PolicyStatement, err error) {
	err = p.DB.Update(ctx, func(tx *store.Tx) (err error) {
		s, err = p.Governance.PreparePolicy(ctx, tx, acct, in.ActionCategory, in.Verdict, in.Scope)
		return err
	})
	return s, err
}

func (p *Platform) setPolicy(ctx context.Context, acct store.AccountID, in governance.PolicyInput) (view governance.PolicyView, err error) {
	err = p.DB.Update(ctx, func(tx *store.Tx) (err error) {
		tx.Act(store.Actor{Kind: governance.KindPerson, ID: string(in.Policy.UserID), Verb: "policies", CorrelationID: tx.NewID()})
		view, err = p.Governance.SetPolicy(ctx, tx, acct, in)
		return err
	})
	p.tellSuspects(ctx)
	return view, err
}

// VerifyRequest asks for the proof of the record. Head is an end of the audit chain that a person has noted; null: none.
type VerifyRequest struct {
	Head *store.Head `json:"head"`
}

func (p *Platform) verify(ctx context.Context, in VerifyRequest) (proof governance.Proof, err error) {
	heads := []store.Head{p.DB.Head()}
	if in.Head != nil {
		heads = append(heads, *in.Head)
	}
	err = p.DB.View(ctx, func(v *store.View) (err error) {
		proof, err = p.Governance.Prove(ctx, v, heads...)
		return err
	})
	if err != nil || !slices.ContainsFunc(proof.Findings, func(f governance.Finding) bool { return f.Table == "audit" }) {
		return proof, err
	}
	return proof, p.tellBroken(ctx, proof)
}

// lookAtChain tells of an audit chain that lost rows under this control plane.
func (p *Platform) lookAtChain(ctx context.Context) error {
	held := p.DB.Head()
	var cut *governance.Finding
	err := p.DB.View(ctx, func(v *store.View) (err error) {
		cut, err = governance.Cut(ctx, v, held)
		return err
	})
	if err != nil || cut == nil {
		return err
	}
	p.Log.Error().Str("head", held.String()).Msg(cut.Reason)
	return p.tellBroken(ctx, governance.Proof{Findings: []governance.Finding{*cut}})
}

// tellBroken emits the signal of an audit chain that does not fit, once for a row.
func (p *Platform) tellBroken(ctx context.Context, proof governance.Proof) error {
	return p.eachAccount(ctx, func(acct store.AccountID) error {
		return p.DB.Update(ctx, func(tx *store.Tx) error {
			tx.Act(store.Actor{Kind: governance.KindPlatform, ID: "platform", CorrelationID: tx.NewID()})
			return p.Governance.TellBroken(ctx, tx, acct, proof)
		})
	})
}
