package governance

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"strings"

	"powernode/platform/signal"
	"powernode/schema"
	"powernode/store"
)

const policyType = "Governance::Policy"

// PolicyStatement is what a person signs to set a policy, or to take one back: then Verdict is "unset".
type PolicyStatement struct {
	Statement      string          `json:"statement"`
	AccountID      store.AccountID `json:"account_id"`
	PolicyID       store.PolicyID  `json:"policy_id"`
	ActionCategory string          `json:"action_category"`
	Verdict        string          `json:"verdict"`
	Scope          Scope           `json:"scope"`
	UserID         store.UserID    `json:"user_id"`
	Chain          *store.Head     `json:"chain,omitempty"`
}

// Unset is the verdict of a statement that takes a policy back.
const Unset = "unset"

// Bytes are the bytes that are signed.
func (p PolicyStatement) Bytes() []byte {
	p.Statement = "powernode policy v1"
	return canonical(p)
}

// key is what an account has one policy for.
func (p PolicyStatement) key() string { return p.ActionCategory + " " + string(canonical(p.Scope)) }

// policyRecord is a policy's record as the audit row holds it.
type policyRecord struct {
	Policy    PolicyStatement `json:"policy"`
	Signature []byte          `json:"signature"`
}

// policyHistory is what an account's audit chain says of its policies.
type policyHistory struct {
	stand map[string]policyRecord // that a person has signed, and none has taken back
	last  map[string]int64        // sequence of the last record that counts of a category and scope
	used  map[store.PolicyID]bool // a record that is copied to the end of the chain says nothing new
	odd   []Finding               // rows that do not count, and why
}

// standing are the account's policies by its audit chain. The table of policies is a copy of it: a row that somebody writes
// there by hand can only make things stricter, and one that somebody removes there still stands.
func (s *Service) standing(ctx context.Context, v *store.View, acct store.AccountID) (map[string]policyRecord, error) {
	h, err := s.policyHistory(ctx, v, acct)
	return h.stand, err
}

func (s *Service) policyHistory(ctx context.Context, v *store.View, acct store.AccountID) (policyHistory, error) {
	h := policyHistory{stand: map[string]policyRecord{}, last: map[string]int64{}, used: map[store.PolicyID]bool{}}
	rows, err := store.AuditOf(ctx, v, acct, policyType, "")
	if err != nil || len(rows) == 0 {
		return h, err
	}
	known, err := s.known(ctx, v, acct)
	if err != nil {
		return h, err
	}
	for _, row := range rows {
		var r policyRecord
		switch {
		case !decode(row.New, &r) || r.Policy.AccountID != acct || string(r.Policy.PolicyID) != row.ResourceID:
			h.odds(row, "it is no record of a policy")
		case !s.policyFits(known, row.Sequence, r):
			h.odds(row, "the policy's signature is not by an administrator's human key")
		case h.outdated(r.Policy):
			h.odds(row, "it was signed before the policy that stands before it")
		case r.Policy.Verdict != Unset && h.used[r.Policy.PolicyID]:
			h.odds(row, "it repeats an earlier record of the policy")
		default:
			h.apply(r, row.Sequence)
		}
	}
	return h, nil
}

func (h *policyHistory) odds(row store.AuditEntry, reason string) {
	h.odd = append(h.odd, Finding{"audit", string(row.ID), reason})
}

// outdated says whether a statement was signed before what was last said of the same category and scope: one that was never
// used must not undo that.
func (h *policyHistory) outdated(p PolicyStatement) bool {
	return p.Chain != nil && p.Chain.Rows < h.last[p.key()]
}

func (h *policyHistory) apply(r policyRecord, sequence int64) {
	key := r.Policy.key()
	if r.Policy.Verdict != Unset {
		h.stand[key], h.used[r.Policy.PolicyID], h.last[key] = r, true, sequence
		return
	}
	if now, there := h.stand[key]; there && now.Policy.PolicyID == r.Policy.PolicyID {
		delete(h.stand, key)
		h.last[key] = sequence
	}
}

// policyFits says whether somebody has signed a record who could then.
func (s *Service) policyFits(known *record, sequence int64, r policyRecord) bool {
	k, signed := s.signer(known.keys, sequence, r.Policy.Bytes(), r.Signature)
	return signed && k.UserID == r.Policy.UserID && known.could(k.UserID, managePolicies, sequence)
}

// copied says whether a row of the table is what the chain says.
func copied(stand map[string]policyRecord, row store.Policy, scope Scope) bool {
	r, there := stand[PolicyStatement{ActionCategory: row.ActionCategory, Scope: scope}.key()]
	return there && r.Policy.PolicyID == row.ID && r.Policy.Verdict == row.Verdict && string(r.Signature) == string(row.Signature)
}

// PolicyView is a policy as people see it.
type PolicyView struct {
	ActionCategory string          `json:"action_category"`
	Verdict        string          `json:"verdict"`
	Source         string          `json:"source"` // default, account
	Scope          Scope           `json:"scope"`
	PolicyID       *store.PolicyID `json:"policy_id"`
	SetBy          *string         `json:"set_by"`
	Note           *string         `json:"note"` // of a row that does not count
}

// tightens says whether a row that nobody has signed makes anything stricter than what people have signed of its category, or the
// default, says without it.
func tightens(row handRow, stand map[string]policyRecord) bool {
	loosest := Default(row.ActionCategory)
	if r, there := stand[PolicyStatement{ActionCategory: row.ActionCategory}.key()]; there {
		loosest = Verdict(r.Policy.Verdict)
	}
	for _, r := range stand {
		if r.Policy.ActionCategory == row.ActionCategory && rankOf(Verdict(r.Policy.Verdict)) < rankOf(loosest) {
			loosest = Verdict(r.Policy.Verdict)
		}
	}
	return len(row.scope.given()) <= 1 && rankOf(Verdict(row.Verdict)) > rankOf(loosest)
}

// Policies are all categories with what applies to them.
func (s *Service) Policies(ctx context.Context, v *store.View, acct store.AccountID) ([]PolicyView, error) {
	stand, err := s.standing(ctx, v, acct)
	if err != nil {
		return nil, err
	}
	out := []PolicyView{}
	overridden := map[string]bool{}
	for _, r := range stand {
		by := string(r.Policy.UserID)
		out = append(out, PolicyView{ActionCategory: r.Policy.ActionCategory, Verdict: r.Policy.Verdict, Source: "account",
			Scope: r.Policy.Scope, PolicyID: &r.Policy.PolicyID, SetBy: &by})
		overridden[r.Policy.ActionCategory] = overridden[r.Policy.ActionCategory] || r.Policy.Scope == Scope{}
	}
	rows, err := s.byHand(ctx, v, acct, "", stand)
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		if !tightens(row, stand) {
			continue // it counts as absent; audit verify names it
		}
		note, by, id := "written by hand: it can only make things stricter", string(row.MadeBy), row.ID
		out = append(out, PolicyView{ActionCategory: row.ActionCategory, Verdict: row.Verdict, Source: "account", Scope: row.scope,
			PolicyID: &id, SetBy: &by, Note: &note})
	}
	for category, verdict := range Defaults {
		if !overridden[category] {
			out = append(out, PolicyView{ActionCategory: category, Verdict: string(verdict), Source: "default"})
		}
	}
	slices.SortFunc(out, func(a, b PolicyView) int {
		if c := strings.Compare(a.ActionCategory, b.ActionCategory); c != 0 {
			return c
		}
		return strings.Compare(string(canonical(a.Scope)), string(canonical(b.Scope)))
	})
	return out, nil
}

// PolicyInput sets a policy, or takes it back.
type PolicyInput struct {
	Policy    PolicyStatement `json:"policy"`
	Signature []byte          `json:"signature"`
}

// SetPolicy writes a policy that a person has signed, or takes one back.
func (s *Service) SetPolicy(ctx context.Context, tx *store.Tx, acct store.AccountID, in PolicyInput) (PolicyView, error) {
	p := in.Policy
	if err := s.checkNew(ctx, &tx.View, acct, p); err != nil {
		return PolicyView{}, err
	}
	u, err := s.signedBy(ctx, &tx.View, acct, p, in.Signature)
	if err != nil {
		return PolicyView{}, err
	}
	if err := standsOn(ctx, &tx.View, p.Chain); err != nil {
		return PolicyView{}, err
	}
	h, err := s.policyHistory(ctx, &tx.View, acct)
	if err != nil {
		return PolicyView{}, err
	}
	if h.outdated(p) {
		return PolicyView{}, schema.Errorf(schema.Conflict, "the policy of %s was changed after this was signed", p.ActionCategory)
	}
	before, there := h.stand[p.key()]
	if p.Verdict == Unset && (!there || before.Policy.PolicyID != p.PolicyID) {
		return PolicyView{}, schema.Errorf(schema.NotFound, "no policy of the account for %s in this scope", p.ActionCategory)
	}
	from, to := string(Default(p.ActionCategory)), p.Verdict
	if there {
		from = before.Policy.Verdict
	}
	if err := s.writePolicy(ctx, tx, in, from); err != nil {
		return PolicyView{}, err
	}
	view := PolicyView{ActionCategory: p.ActionCategory, Verdict: p.Verdict, Source: "account", Scope: p.Scope, PolicyID: &p.PolicyID}
	if p.Verdict == Unset {
		to = string(Default(p.ActionCategory))
		view = PolicyView{ActionCategory: p.ActionCategory, Verdict: to, Source: "default", Scope: p.Scope}
	}
	by := string(u.ID)
	view.SetBy = &by
	return view, signal.Emit(ctx, tx, acct, signal.Event{Kind: "system.policy_changed",
		Payload: store.Object{"action_category": p.ActionCategory, "from": from, "to": to, "by": u.Email}})
}

func (s *Service) writePolicy(ctx context.Context, tx *store.Tx, in PolicyInput, from string) error {
	p, scope := in.Policy, string(canonical(in.Policy.Scope))
	action := "created"
	if p.Verdict == Unset {
		action = "deleted"
		if _, err := store.DeletePolicy(ctx, tx, p.AccountID, p.ActionCategory, scope); err != nil {
			return fmt.Errorf("take back the policy of %s: %w", p.ActionCategory, err)
		}
	} else if err := store.PutPolicy(ctx, tx, store.Policy{ID: p.PolicyID, AccountID: p.AccountID, ActionCategory: p.ActionCategory,
		Verdict: p.Verdict, Scope: scope, MadeBy: p.UserID, Signature: in.Signature}); err != nil {
		return fmt.Errorf("write the policy of %s: %w", p.ActionCategory, err)
	}
	_, err := tx.Audit(ctx, store.AuditEntry{AccountID: p.AccountID, Action: action, ResourceType: policyType, ResourceID: string(p.PolicyID),
		Old: store.Object{"verdict": from}, New: object(policyRecord{Policy: p, Signature: in.Signature})})
	return err
}

// PreparePolicy makes the statement that a person is to sign.
func (s *Service) PreparePolicy(ctx context.Context, tx *store.Tx, acct store.AccountID, category, verdict string, scope Scope) (PolicyStatement, error) {
	p := PolicyStatement{AccountID: acct, ActionCategory: category, Verdict: verdict, Scope: scope}
	if verdict == Unset {
		stand, err := s.standing(ctx, &tx.View, acct)
		if err != nil {
			return p, err
		}
		now, there := stand[p.key()]
		if !there {
			return p, schema.Errorf(schema.NotFound, "no policy of the account for %s in this scope", category)
		}
		p.PolicyID = now.Policy.PolicyID
	} else {
		p.PolicyID = store.PolicyID(tx.NewID())
	}
	if err := s.checkNew(ctx, &tx.View, acct, p); err != nil {
		return p, err
	}
	k, err := s.StandingKey(ctx, &tx.View, acct)
	if err != nil {
		return p, err
	}
	p.UserID = k.UserID
	p.Chain, err = headNow(ctx, &tx.View)
	return p, err
}

// StandingKey is the key that signs now, the account's latest; precondition_failed where there is none.
func (s *Service) StandingKey(ctx context.Context, v *store.View, acct store.AccountID) (Key, error) {
	keys, err := s.Keys(ctx, v, acct)
	if err != nil {
		return Key{}, err
	}
	for _, k := range slices.Backward(keys) {
		if k.Until == 0 {
			return k, nil
		}
	}
	return Key{}, errNoKey
}

// checkNew refuses a statement that can't be set now: also one that was set before, which anybody who reads the record
// could send again.
func (s *Service) checkNew(ctx context.Context, v *store.View, acct store.AccountID, p PolicyStatement) error {
	if err := checkPolicy(p); err != nil || p.Verdict == Unset {
		return err
	}
	if err := s.checkScope(ctx, v, p); err != nil {
		return err
	}
	before, err := store.AuditOf(ctx, v, acct, policyType, string(p.PolicyID))
	if err != nil {
		return fmt.Errorf("read the record of policy %s: %w", p.PolicyID, err)
	}
	if len(before) > 0 {
		return schema.Errorf(schema.Conflict, "this policy was set before: a statement is used once")
	}
	return nil
}

func checkPolicy(p PolicyStatement) error {
	if _, known := Defaults[p.ActionCategory]; !known {
		return schema.InvalidArgument("/action_category", Plain(p.ActionCategory, 64), "unknown action category %s",
			Quote(p.ActionCategory)).WithCandidates(NearCategories(p.ActionCategory))
	}
	if p.Verdict == Unset {
		return nil
	}
	rank, known := strictness[Verdict(p.Verdict)]
	if !known {
		return schema.InvalidArgument("/verdict", Plain(p.Verdict, 64),
			"verdict must be one of: auto_approve, notify_and_proceed, require_approval, block")
	}
	if alwaysDecided(p.ActionCategory) && rank < strictness[RequireApproval] {
		return schema.InvalidArgument("/verdict", p.Verdict, "%s can't be lowered: a person's human key decides each such call", p.ActionCategory)
	}
	return nil
}

// signedBy finds the person behind a policy's signature, who must be allowed to manage policies.
func (s *Service) signedBy(ctx context.Context, v *store.View, acct store.AccountID, p PolicyStatement, signature []byte) (store.User, error) {
	keys, err := s.Keys(ctx, v, acct)
	if err != nil {
		return store.User{}, err
	}
	if len(keys) == 0 {
		return store.User{}, errNoKey
	}
	k, ok := s.signer(keys, 0, p.Bytes(), signature)
	if !ok || p.AccountID != acct || k.UserID != p.UserID {
		s.suspect(acct, "policy", string(p.PolicyID))
		return store.User{}, errSignature
	}
	return s.keyHolder(ctx, v, acct, k, managePolicies)
}

// keyHolder is the person whose key it is, with the permission that the deed needs.
func (s *Service) keyHolder(ctx context.Context, v *store.View, acct store.AccountID, k Key, permission string) (store.User, error) {
	p, err := s.PersonOf(ctx, v, acct, k.UserID)
	if errors.Is(err, store.ErrNoRow) {
		return store.User{}, schema.Errorf(schema.PermissionDenied, "permission denied: the key's owner is gone")
	}
	if err != nil {
		return store.User{}, fmt.Errorf("look for the key's owner: %w", err)
	}
	if !slices.Contains(peoplesPermissions[permission], p.Role) {
		return store.User{}, schema.Errorf(schema.PermissionDenied, "permission denied: %s required", permission)
	}
	return store.UserByRef(ctx, v, acct, string(k.UserID))
}

// Sign signs a statement; it is here so that signing and verifying stay beside each other.
func Sign(key ed25519.PrivateKey, statement []byte) []byte { return ed25519.Sign(key, statement) }
