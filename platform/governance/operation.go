package governance

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"powernode/platform/signal"
	"powernode/schema"
	"powernode/store"
)

const (
	operationType = "Governance::Operation"

	// operationLifetime is how long a parked call waits for a person.
	operationLifetime = 4 * time.Hour
)

// Statuses of operations (contract 11.9).
const (
	Pending   = "pending"
	Approved  = "approved"
	Executing = "executing"
	Completed = "completed"
	Failed    = "failed"
	Rejected  = "rejected"
	Expired   = "expired"
	Cancelled = "cancelled"
	Stale     = "stale"
)

// Decisions of people.
const (
	Approve = "approve"
	Reject  = "reject"
)

var (
	errNoKey     = schema.Errorf(schema.PreconditionFailed, "no human key yet: run powernode init")
	errSignature = schema.Errorf(schema.PermissionDenied, "the signature is not one by a human key of this account")
	errStale     = schema.Errorf(schema.Conflict, "plan is stale")
)

// ParkInput is a call that a person is to decide.
type ParkInput struct {
	Caller      Caller
	Verb        string
	Arguments   json.RawMessage // normalised
	Shown       any             // the arguments without secrets
	Category    string
	Description string // the assistant's words, with request_confirmation
	Plan        *store.Plan
}

// Parked is the answer to a parked call.
type Parked struct {
	Pending             bool              `json:"pending"`
	DeferredOperationID store.OperationID `json:"deferred_operation_id"`
	ActionCategory      string            `json:"action_category"`
	PlanDigest          string            `json:"plan_digest"`
	ExpiresAt           store.Time        `json:"expires_at"`
	Message             string            `json:"message"`
}

// ExpiryAt is when a call that is parked at an instant would expire.
func ExpiryAt(parked time.Time) store.Time { return store.At(parked.Add(operationLifetime)) }

// Park writes a call that waits for a person. The same call of the same caller, with the same plan, is the same
// operation; one whose plan has changed meanwhile can't be approved any more and makes room for a new one.
func (s *Service) Park(ctx context.Context, tx *store.Tx, in ParkInput) (Parked, error) {
	hash, digest := ArgumentsHash(in.Arguments), Digest(in.Verb, in.Arguments, in.Plan)
	o, err := store.PendingOperation(ctx, &tx.View, in.Caller.AccountID, in.Verb, hash, in.Caller.ID)
	if err != nil && !errors.Is(err, store.ErrNoRow) {
		return Parked{}, fmt.Errorf("look for the same call: %w", err)
	}
	if err == nil && o.PlanDigest == digest && o.Head.Rows > 0 {
		return s.again(ctx, tx, o, in.Description)
	}
	if err == nil {
		if err := s.end(ctx, tx, o, Stale, nil); err != nil {
			return Parked{}, err
		}
	}
	o = store.Operation{ID: store.OperationID(tx.NewID()), AccountID: in.Caller.AccountID, Verb: in.Verb, ArgumentsHash: hash,
		Status: Pending, ActionCategory: in.Category, Description: in.Description, PlanDigest: digest,
		CreatedAt: store.At(tx.Now()), ExpiresAt: ExpiryAt(tx.Now())}
	o.RequestedBy.V, o.Effects.V = object(in.Caller), Effects(in.Plan)
	o.ArgumentsShown.V = in.Shown
	if o.Head, err = store.AuditHead(ctx, &tx.View); err != nil {
		return Parked{}, err
	}
	if o.Arguments, err = s.Sealer.Seal(tx, argumentsPurpose(o.ID), in.Arguments); err != nil {
		return Parked{}, err
	}
	if err := store.InsertOperation(ctx, tx, o); err != nil {
		return Parked{}, fmt.Errorf("park the call: %w", err)
	}
	err = signal.Open(ctx, tx, o.AccountID, string(o.ID), signal.Event{Kind: "system.operation_pending",
		Payload: store.Object{"deferred_operation_id": o.ID, "verb": o.Verb, "action_category": o.ActionCategory, "decision": nil}})
	if err != nil {
		return Parked{}, err
	}
	return s.parked(ctx, tx, o)
}

// again answers a call that waits already. Words that come with it are kept where the call had none; those that a person may
// have read by now stay, and the answer says so.
func (s *Service) again(ctx context.Context, tx *store.Tx, o store.Operation, description string) (Parked, error) {
	kept := description == "" || description == o.Description
	if !kept && o.Description == "" {
		if err := store.DescribeOperation(ctx, tx, o.AccountID, o.ID, description); err != nil {
			return Parked{}, fmt.Errorf("keep the words beside operation %s: %w", o.ID, err)
		}
		kept = true
	}
	p, err := s.parked(ctx, tx, o)
	if !kept {
		p.Message += "; this call waits already, with the description that came first: the new one was not kept"
	}
	return p, err
}

func (s *Service) parked(ctx context.Context, tx *store.Tx, o store.Operation) (Parked, error) {
	p := Parked{Pending: true, DeferredOperationID: o.ID, ActionCategory: o.ActionCategory, PlanDigest: o.PlanDigest,
		ExpiresAt: o.ExpiresAt, Message: "Approval required: " + o.ActionCategory}
	has, err := s.HasKey(ctx, &tx.View, o.AccountID)
	if !has {
		p.Message += "; " + errNoKey.Message
	}
	return p, err
}

func argumentsPurpose(id store.OperationID) string { return "operations.arguments:" + string(id) }
func resultPurpose(id store.OperationID) string    { return "operations.result:" + string(id) }

// Arguments are the arguments of a parked call.
func (s *Service) Arguments(o store.Operation) (json.RawMessage, error) {
	return s.Sealer.Open(argumentsPurpose(o.ID), o.Arguments)
}

// Requester is the caller who asked for an operation. It is always one of the operation's own account: the person who
// decides is shown who asked, and not for which account.
func Requester(o store.Operation) Caller {
	var c Caller
	decode(o.RequestedBy.V, &c)
	c.AccountID = o.AccountID
	return c
}

// DecisionStatement is what a person signs to decide an operation: the call, by whom, its plan, and the decision.
type DecisionStatement struct {
	Statement       string            `json:"statement"`
	AccountID       store.AccountID   `json:"account_id"`
	OperationID     store.OperationID `json:"operation_id"`
	Verb            string            `json:"verb"`
	ArgumentsSHA256 string            `json:"arguments_sha256"`
	ActionCategory  string            `json:"action_category"`
	RequestedBy     store.Object      `json:"requested_by"`
	PlanDigest      string            `json:"plan_digest"`
	Decision        string            `json:"decision"`
	Comment         string            `json:"comment"`
	UserID          store.UserID      `json:"user_id"`
	ExpiresAt       *store.Time       `json:"expires_at,omitempty"`
	Chain           *store.Head       `json:"chain,omitempty"` // when the call was parked; nil, and no expiry: before heads were kept
}

// Bytes are the bytes that are signed.
func (d DecisionStatement) Bytes() []byte {
	d.Statement = "powernode decision v1"
	return canonical(d)
}

// Statement is what a decision of an operation signs, from the operation as it is stored.
func (s *Service) Statement(o store.Operation, decision, comment string, by store.UserID) (DecisionStatement, error) {
	arguments, err := s.Arguments(o)
	if err != nil {
		return DecisionStatement{}, fmt.Errorf("open the arguments of operation %s: %w", o.ID, err)
	}
	sum := sha256.Sum256(arguments)
	d := DecisionStatement{AccountID: o.AccountID, OperationID: o.ID, Verb: o.Verb, ArgumentsSHA256: hex.EncodeToString(sum[:]),
		ActionCategory: o.ActionCategory, RequestedBy: o.RequestedBy.V, PlanDigest: o.PlanDigest, Decision: decision,
		Comment: comment, UserID: by}
	if d.Chain = headIn(o); d.Chain != nil {
		d.ExpiresAt = &o.ExpiresAt
	}
	return d, nil
}

// end writes that an operation came to its end without having run, and closes its signal.
func (s *Service) end(ctx context.Context, tx *store.Tx, o store.Operation, status string, cause any) error {
	before := o.Status
	o.Status = status
	if cause != nil {
		o.Error.V = cause
	}
	if err := store.UpdateOperation(ctx, tx, o); err != nil {
		return fmt.Errorf("write operation %s: %w", o.ID, err)
	}
	_, err := tx.Audit(ctx, store.AuditEntry{AccountID: o.AccountID, Action: status, ResourceType: operationType, ResourceID: string(o.ID),
		Old: store.Object{"status": before}, New: store.Object{"status": status}})
	if err != nil {
		return err
	}
	return s.closeSignal(ctx, tx, o, status)
}

func (s *Service) closeSignal(ctx context.Context, tx *store.Tx, o store.Operation, decision string) error {
	return signal.Close(ctx, tx, o.AccountID, string(o.ID), "system.operation_pending", signal.Subject{},
		store.Object{"deferred_operation_id": o.ID, "verb": o.Verb, "action_category": o.ActionCategory, "decision": decision})
}

// MarkStale writes that a pending operation can't be approved any more.
func (s *Service) MarkStale(ctx context.Context, tx *store.Tx, o store.Operation) error {
	return s.end(ctx, tx, o, Stale, errStale)
}

// Expire ends the operations that nobody has answered in time.
func (s *Service) Expire(ctx context.Context, tx *store.Tx, acct store.AccountID) error {
	pending, err := store.Operations(ctx, &tx.View, acct, Pending, "")
	if err != nil {
		return fmt.Errorf("list pending operations: %w", err)
	}
	for _, o := range pending {
		if o.ExpiresAt.After(tx.Now()) {
			continue
		}
		if err := s.end(ctx, tx, o, Expired, nil); err != nil {
			return err
		}
	}
	return nil
}

// Started writes, in the transaction that begins its run, that an operation is running.
func (s *Service) Started(ctx context.Context, tx *store.Tx, id store.OperationID, acct store.AccountID) error {
	return s.step(ctx, tx, acct, id, Executing, nil, nil)
}

// Finished writes, in the transaction of its last effect, that an operation has run, with its result for the requester.
func (s *Service) Finished(ctx context.Context, tx *store.Tx, id store.OperationID, acct store.AccountID, result json.RawMessage) error {
	sealed, err := s.Sealer.Seal(tx, resultPurpose(id), result)
	if err != nil {
		return err
	}
	return s.step(ctx, tx, acct, id, Completed, sealed, nil)
}

// FailedWith writes that an operation was approved and could not be done.
func (s *Service) FailedWith(ctx context.Context, tx *store.Tx, id store.OperationID, acct store.AccountID, cause *schema.Error) error {
	if err := s.step(ctx, tx, acct, id, Failed, nil, cause); err != nil {
		return err
	}
	return signal.Emit(ctx, tx, acct, signal.Event{Kind: "system.operation_failed",
		Payload: store.Object{"deferred_operation_id": id, "error": cause.Message}})
}

func (s *Service) step(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.OperationID, status string, result []byte, cause *schema.Error) error {
	o, err := store.OperationByID(ctx, &tx.View, acct, id)
	if err != nil {
		return fmt.Errorf("read operation %s: %w", id, err)
	}
	before := o.Status
	o.Status = status
	if status != Executing {
		now := store.At(tx.Now())
		o.ExecutedAt, o.Result = &now, result
	}
	if cause != nil {
		o.Error.V = cause
	}
	if err := store.UpdateOperation(ctx, tx, o); err != nil {
		return fmt.Errorf("write operation %s: %w", id, err)
	}
	_, err = tx.Audit(ctx, store.AuditEntry{AccountID: acct, Action: status, ResourceType: operationType, ResourceID: string(id),
		Old: store.Object{"status": before}, New: store.Object{"status": status}})
	return err
}

// OperationView is an operation as a reader sees it.
type OperationView struct {
	ID             store.OperationID `json:"id"`
	Verb           string            `json:"verb"`
	Arguments      any               `json:"arguments"`
	Status         string            `json:"status"`
	ActionCategory string            `json:"action_category"`
	Description    *string           `json:"description"`
	PlanDigest     string            `json:"plan_digest"`
	Effects        any               `json:"effects"`
	RequestedBy    store.Object      `json:"requested_by"`
	DecidedBy      *string           `json:"decided_by"`
	Comment        *string           `json:"comment"`
	Result         json.RawMessage   `json:"result"`
	Error          any               `json:"error"`
	CreatedAt      store.Time        `json:"created_at"`
	ExpiresAt      store.Time        `json:"expires_at"`
	ExecutedAt     *store.Time       `json:"executed_at"`
}

// Seen is an operation as the reader may see it: its result, which may hold a credential, is its requester's alone.
func (s *Service) Seen(o store.Operation, reader Caller) (OperationView, error) {
	v := OperationView{ID: o.ID, Verb: o.Verb, Arguments: o.ArgumentsShown.V, Status: o.Status, ActionCategory: o.ActionCategory,
		Description: orNil(o.Description), PlanDigest: o.PlanDigest, Effects: o.Effects.V, RequestedBy: shownCaller(o.RequestedBy.V),
		DecidedBy: orNil(o.DecidedBy), Comment: orNil(o.Comment), Error: o.Error.V, CreatedAt: o.CreatedAt, ExpiresAt: o.ExpiresAt,
		ExecutedAt: o.ExecutedAt}
	if v.Effects == nil {
		v.Effects = []any{}
	}
	if len(o.Result) == 0 || reader.ID == "" || reader.ID != o.RequesterID {
		return v, nil
	}
	result, err := s.Sealer.Open(resultPurpose(o.ID), o.Result)
	v.Result = result
	return v, err
}

func shownCaller(o store.Object) store.Object {
	return store.Object{"id": o["id"], "kind": o["kind"], "role": o["role"]}
}

// Readable says whether the caller may read an operation: who asked for it, and people with the operator role or above.
func Readable(o store.Operation, c Caller) bool {
	return o.RequesterID == c.ID || (c.Human() && (c.Role == RoleOperator || c.Role == RoleAdmin))
}

func orNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// StoredEffects are the changes of an operation's plan as they were shown when it was parked.
func StoredEffects(o store.Operation) []Effect {
	effects := []Effect{}
	decode(o.Effects.V, &effects)
	return effects
}
