package governance

import (
	"context"
	"errors"
	"fmt"
	"unicode/utf8"

	"powernode/schema"
	"powernode/store"
)

const maxComment = 500

// Decision is a person's decision of an operation.
type Decision struct {
	OperationID store.OperationID `json:"operation_id"`
	PlanDigest  string            `json:"plan_digest"` // as it was shown
	Decision    string            `json:"decision"`    // approve or reject
	Comment     string            `json:"comment"`
	Signature   []byte            `json:"signature"`
}

// CheckDecision holds a decision against its operation and the account's keys; it answers whose decision it is.
func (s *Service) CheckDecision(ctx context.Context, v *store.View, acct store.AccountID, d Decision) (store.Operation, store.User, error) {
	o, err := store.OperationByID(ctx, v, acct, d.OperationID)
	switch {
	case errors.Is(err, store.ErrNoRow):
		return o, store.User{}, schema.Errorf(schema.NotFound, "operation not found")
	case err != nil:
		return o, store.User{}, fmt.Errorf("look for the operation: %w", err)
	case utf8.RuneCountInString(d.Comment) > maxComment:
		return o, store.User{}, schema.InvalidArgument("/comment", nil, "comment must have at most %d characters", maxComment)
	case d.Decision != Approve && d.Decision != Reject:
		return o, store.User{}, schema.InvalidArgument("/decision", Plain(d.Decision, 64), "decision must be one of: approve, reject")
	case o.Status != Pending:
		return o, store.User{}, schema.Errorf(schema.Conflict, "the operation is %s", o.Status)
	case !o.ExpiresAt.After(v.Now()):
		return o, store.User{}, schema.Errorf(schema.Conflict, "the operation is %s", Expired)
	case d.PlanDigest != o.PlanDigest:
		return o, store.User{}, errStale
	}
	if err := s.haltsApproval(ctx, v, o, d); err != nil {
		return o, store.User{}, err
	}
	if d.Decision == Approve {
		if o.Head.Rows == 0 { // parked by a control plane that kept no heads; asked again, it is parked anew
			return o, store.User{}, errStale
		}
		if err := standsOn(ctx, v, &o.Head); err != nil {
			return o, store.User{}, err
		}
	}
	keys, err := s.Keys(ctx, v, acct)
	if err != nil {
		return o, store.User{}, err
	}
	if len(keys) == 0 {
		return o, store.User{}, errNoKey
	}
	k, err := s.decidedBy(keys, 0, o, d.Decision, d.Comment, d.Signature)
	if err != nil {
		return o, store.User{}, err
	}
	u, err := s.keyHolder(ctx, v, acct, k, decideOperations)
	if err != nil {
		return o, u, err
	}
	return o, u, s.mayDecide(ctx, v, o, u)
}

// haltsApproval refuses an approval under an emergency stop, but for what ends it.
func (s *Service) haltsApproval(ctx context.Context, v *store.View, o store.Operation, d Decision) error {
	if d.Decision != Approve || o.Verb == VerbResume {
		return nil
	}
	e, err := s.Stopped(ctx, v, o.AccountID)
	if err != nil || e == nil {
		return err
	}
	return e.refusal()
}

// CheckApprovable refuses what no approval of a pending operation could come to now, whoever gives it, and what this person may not
// approve; by is empty where somebody only looks.
func (s *Service) CheckApprovable(ctx context.Context, v *store.View, o store.Operation, by store.UserID) error {
	if !o.ExpiresAt.After(v.Now()) {
		return schema.Errorf(schema.Conflict, "the operation is %s", Expired)
	}
	if err := s.haltsApproval(ctx, v, o, Decision{Decision: Approve}); err != nil || by == "" {
		return err
	}
	u, err := s.keyHolder(ctx, v, o.AccountID, Key{UserID: by}, decideOperations)
	if err != nil {
		return err
	}
	return s.mayDecide(ctx, v, o, u)
}

// decidedBy finds the key that signed a decision.
func (s *Service) decidedBy(keys []Key, at int64, o store.Operation, decision, comment string, signature []byte) (Key, error) {
	for _, k := range keys {
		statement, err := s.Statement(o, decision, comment, k.UserID)
		if err != nil {
			return Key{}, err
		}
		if found, ok := s.signer([]Key{k}, at, statement.Bytes(), signature); ok {
			return found, nil
		}
	}
	s.suspect(o.AccountID, "approval", string(o.ID))
	return Key{}, errSignature
}

// mayDecide refuses a person who asked for the operation themselves, unless the account has nobody else. The end of an
// emergency stop is one person's statement: whoever asked may sign it.
func (s *Service) mayDecide(ctx context.Context, v *store.View, o store.Operation, u store.User) error {
	if o.RequesterID != string(u.ID) || o.Verb == VerbResume {
		return nil
	}
	r, err := s.people(ctx, v, o.AccountID)
	if err != nil {
		return err
	}
	if len(r.people) > 1 {
		return schema.Errorf(schema.PermissionDenied, "permission denied: another person must decide what you asked for")
	}
	return nil
}

// WriteDecision writes a decision that CheckDecision has taken, in the transaction that it was checked in.
func (s *Service) WriteDecision(ctx context.Context, tx *store.Tx, o store.Operation, u store.User, d Decision) (store.Operation, error) {
	now := store.At(tx.Now())
	status := Approved
	if d.Decision == Reject {
		status = Rejected
	}
	o.Status, o.DecidedBy, o.Comment, o.Signature, o.DecidedAt = status, string(u.ID), d.Comment, d.Signature, &now
	o.DecisionKey = u.PublicKey
	if err := store.UpdateOperation(ctx, tx, o); err != nil {
		return o, fmt.Errorf("write the decision: %w", err)
	}
	_, err := tx.Audit(ctx, store.AuditEntry{AccountID: o.AccountID, Action: status, ResourceType: operationType, ResourceID: string(o.ID),
		Old: store.Object{"status": Pending}, New: object(decisionRecord{Status: status, UserID: u.ID, PlanDigest: o.PlanDigest,
			Comment: d.Comment, Signature: d.Signature, Chain: headIn(o)})})
	if err != nil {
		return o, err
	}
	return o, s.closeSignal(ctx, tx, o, status)
}

// decisionRecord is a decision as the audit row holds it.
type decisionRecord struct {
	Status     string       `json:"status"`
	UserID     store.UserID `json:"user_id"`
	PlanDigest string       `json:"plan_digest"`
	Comment    string       `json:"comment"`
	Signature  []byte       `json:"signature"`
	Chain      *store.Head  `json:"chain,omitempty"`
}

// headIn is the head that a decision of the operation signs; nil: none.
func headIn(o store.Operation) *store.Head {
	if o.Head.Rows == 0 {
		return nil
	}
	return &o.Head
}

// Authorised refuses to run an operation that no person has approved, or that has run before. It asks the audit chain
// and the signature, not the operation's status, which anybody who can write the database can set.
func (s *Service) Authorised(ctx context.Context, tx *store.Tx, id store.OperationID, acct store.AccountID) error {
	o, err := store.OperationByID(ctx, &tx.View, acct, id)
	if err != nil {
		return fmt.Errorf("read operation %s: %w", id, err)
	}
	if !o.ExpiresAt.After(tx.Now()) {
		return schema.Errorf(schema.Conflict, "the operation is %s: what is approved runs at once or not at all", Expired)
	}
	return s.approvedOnce(ctx, &tx.View, o)
}

func (s *Service) approvedOnce(ctx context.Context, v *store.View, o store.Operation) error {
	known, err := s.known(ctx, v, o.AccountID)
	if err != nil {
		return err
	}
	rows, err := store.AuditOf(ctx, v, o.AccountID, operationType, string(o.ID))
	if err != nil {
		return fmt.Errorf("read the record of operation %s: %w", o.ID, err)
	}
	recorded := int64(0)
	for _, row := range rows {
		var r decisionRecord
		switch {
		case row.Action == disregarded:
		case row.Action != Approved:
			return schema.Errorf(schema.Conflict, "the operation was %s before", row.Action)
		case decode(row.New, &r) && string(r.Signature) == string(o.Signature):
			recorded = row.Sequence
		}
	}
	k := Key{}
	if recorded > 0 {
		if k, err = s.decidedBy(known.keys, 0, o, Approve, o.Comment, o.Signature); err != nil {
			return err
		}
	}
	// Who may not decide can have signed all the same, and written the rows by hand.
	if recorded == 0 || !known.couldDecide(o, k.UserID, recorded) {
		s.suspect(o.AccountID, "approval", string(o.ID))
		return errSignature
	}
	return nil
}

// couldDecide says whether somebody could decide an operation when a row was written: what they asked for themselves only
// while the account had nobody else.
func (r *record) couldDecide(o store.Operation, id store.UserID, sequence int64) bool {
	return r.could(id, decideOperations, sequence) && (o.RequesterID != string(id) || o.Verb == VerbResume || r.alone(id, sequence))
}

// Doubtful finds approved operations and reports whether each has an approval behind it: what a restart resumes, and
// what was written by hand.
func (s *Service) Doubtful(ctx context.Context, v *store.View, acct store.AccountID) (resumable, forged []store.Operation, err error) {
	approved, err := store.Operations(ctx, v, acct, Approved, "")
	if err != nil {
		return nil, nil, fmt.Errorf("list approved operations: %w", err)
	}
	for _, o := range approved {
		err := s.approvedOnce(ctx, v, o)
		var refused *schema.Error
		switch {
		case err == nil:
			resumable = append(resumable, o)
		case errors.As(err, &refused):
			forged = append(forged, o)
		default: // a failed read is no forged approval
			return nil, nil, err
		}
	}
	return resumable, forged, nil
}

// disregarded is the action of the record that an approval was found which nobody has signed.
const disregarded = "disregarded"

// Disregard puts an operation whose approval does not count back to where a person left it, and records what was found:
// the proof of the record names it until the operation goes on.
func (s *Service) Disregard(ctx context.Context, tx *store.Tx, o store.Operation) error {
	rows, err := store.AuditOf(ctx, &tx.View, o.AccountID, operationType, string(o.ID))
	if err != nil {
		return fmt.Errorf("read the record of operation %s: %w", o.ID, err)
	}
	found := store.Object{"status": o.Status, "decided_by": Plain(o.DecidedBy, 64)}
	o.Status = Pending
	for _, row := range rows {
		if row.Action != disregarded && row.Action != Approved { // a recorded approval that counted would not be here
			o.Status = row.Action
		}
	}
	if o.Status == Pending { // what came to its end keeps the decision that it came to it by
		o.DecidedBy, o.DecisionKey, o.Comment, o.Signature, o.DecidedAt = "", nil, "", nil, nil
	}
	if err := store.UpdateOperation(ctx, tx, o); err != nil {
		return fmt.Errorf("put operation %s back: %w", o.ID, err)
	}
	_, err = tx.Audit(ctx, store.AuditEntry{AccountID: o.AccountID, Action: disregarded, ResourceType: operationType, ResourceID: string(o.ID),
		Old: found, New: store.Object{"status": o.Status}})
	return err
}

// Due says whether something has to be written that nobody has called for: an operation that expired, or an approval, a policy
// or an end of an emergency stop that does not count.
func (s *Service) Due(ctx context.Context, v *store.View, acct store.AccountID) (bool, error) {
	pending, err := store.Operations(ctx, v, acct, Pending, "")
	if err != nil {
		return false, fmt.Errorf("list pending operations: %w", err)
	}
	for _, o := range pending {
		if !o.ExpiresAt.After(v.Now()) {
			return true, nil
		}
	}
	if _, err := s.Policies(ctx, v, acct); err != nil {
		return false, err
	}
	if _, err := s.Stopped(ctx, v, acct); err != nil {
		return false, err
	}
	_, forged, err := s.Doubtful(ctx, v, acct)
	return len(forged) > 0 || s.Suspected(), err
}
