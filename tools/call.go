package tools

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"powernode/platform/governance"
	"powernode/platform/signal"
	"powernode/schema"
	"powernode/store"
)

// actDeadline bounds what a verb does outside.
const actDeadline = 45 * time.Second

// resultKept is how long the result of a call is kept for its repetition under the same call id.
const resultKept = time.Hour

// Request is one call.
type Request struct {
	Verb      string
	Arguments json.RawMessage
	CallID    string        // of a bridge that may send the call again; empty: none
	Fresh     bool          // whoever made the call id vouches that it was never sent before: nothing is looked for under it
	Refusal   *schema.Error // the surface's own, of what it can't take for a call: it is recorded and answered; nil: none
}

// Result is a call's answer: the JSON object that every surface hands on. Pending is true for a parked call.
type Result struct {
	JSON    json.RawMessage
	Pending bool
}

// UnknownVerbError says that the called name is no verb; it is no verb call, and a surface answers it in its own way.
type UnknownVerbError struct {
	Name       string
	Candidates []string
}

func (e *UnknownVerbError) Error() string { return "unknown verb " + e.Name }

// call is one call on its way through the path.
type call struct {
	p            *Platform
	d            *Definition
	caller       Caller
	request      Request
	raw          json.RawMessage // normalised
	args         any
	category     string
	correlation  string
	started      time.Time
	event        store.ExecutionEvent
	operation    *store.Operation            // an approved operation that is replayed; nil: a plain call
	confirm      string                      // request_confirmation's description: park whatever the policy says
	because      string                      // why the platform calls: for the person who decides it, where it is parked
	eventType    string                      // of the execution event; empty: the verb's name
	answerParked func(governance.Parked) any // nil: the parked answer as it is
	under        string                      // pointer of this call's arguments in those of the call that carries it
	idle         bool                        // nobody was asked: it must change nothing
	key          store.IdempotencyKey        // the zero value: the call can't be repeated under one
}

// calls are the calls in flight that carry a call id or an idempotency key, and the operations that are carried out: a
// repetition waits for the first.
type calls struct {
	mu     sync.Mutex
	flying map[string]chan struct{}
}

// Call is the one path of a call, whatever surface it came from. An error is a *schema.Error, or *UnknownVerbError.
func (p *Platform) Call(ctx context.Context, caller Caller, request Request) (Result, error) {
	d, ok := p.Lookup(request.Verb)
	if !ok {
		return Result{}, &UnknownVerbError{Name: request.Verb, Candidates: p.near(request.Verb)}
	}
	c := &call{p: p, d: d, caller: caller, request: request}
	if request.CallID != "" {
		c.event.CallHash = sentHash(d, caller, request)
		release, earlier, err := p.once(ctx, caller, request, c.event.CallHash)
		if err != nil {
			return c.finish(ctx, func(context.Context) (Result, error) { return Result{}, err })
		}
		defer release()
		if earlier.Result != nil {
			return answerOf(earlier)
		}
		if earlier.Status == "ok" && !d.Verb.Annotations.ReadOnly {
			return Result{}, schema.Errorf(schema.Conflict, "the call was done before, and its result is kept no longer")
		}
		// Of a call that was cut off before it had a result; empty for a first one. By its correlation the domain finds
		// what the first sending began.
		c.event.ID, c.correlation = earlier.ID, earlier.CorrelationID
	}
	return c.finish(ctx, func(ctx context.Context) (Result, error) {
		if err := c.asNow(ctx); err != nil {
			return Result{}, err
		}
		if request.Refusal != nil {
			return Result{}, request.Refusal
		}
		return c.path(ctx)
	})
}

// asNow looks at a token's role and owner again: the session that carries it may be older than their last change.
func (c *call) asNow(ctx context.Context) error {
	if c.caller.TokenID == "" {
		return nil
	}
	return c.p.DB.View(ctx, func(v *store.View) (err error) {
		c.caller, err = c.p.Governance.Current(ctx, v, c.caller)
		return err
	})
}

// finish runs the path, turns what has no code into internal, and leaves the execution event of what did not run.
func (c *call) finish(ctx context.Context, path func(context.Context) (Result, error)) (Result, error) {
	c.started = time.Now()
	result, err := c.guarded(ctx, path)
	c.p.tellSuspects(ctx)
	if err == nil {
		return result, nil
	}
	var coded *schema.Error
	if !errors.As(err, &coded) {
		coded = &schema.Error{Code: schema.Internal, Retryable: false}
	}
	coded = c.explained(coded)
	if errors.As(err, new(*store.Fault)) { // the operator reads of the disk, the caller of what to do
		c.p.Log.Error().Err(err).Str("verb", c.d.name).Msg("store can't do its work")
	}
	if recordErr := c.recordFailure(context.WithoutCancel(ctx), coded); recordErr != nil {
		c.p.Log.Error().Err(recordErr).Str("verb", c.d.name).Msg("execution event not written")
		if errors.As(recordErr, new(*store.Fault)) || errors.Is(recordErr, store.ErrCallIDUsed) {
			c.p.recordLater(*c)
		}
	}
	if coded.Code == schema.Internal {
		c.p.Log.Error().Err(err).Str("verb", c.d.name).Str("event", string(c.event.ID)).Msg("verb failed")
		coded.Message = fmt.Sprintf("internal error (event %s)", c.event.ID)
		coded.Details = map[string]any{"event_id": c.event.ID}
	}
	return Result{}, coded
}

// guarded keeps a panic in one verb from ending the others.
func (c *call) guarded(ctx context.Context, path func(context.Context) (Result, error)) (result Result, err error) {
	defer func() {
		if r := recover(); r != nil {
			c.p.Log.Error().Str("verb", c.d.name).Bytes("stack", debug.Stack()).Msg("verb panicked")
			err = fmt.Errorf("verb panicked: %v", r)
		}
	}()
	return path(ctx)
}

// path is the order of every call: validate, authorise, check, gate, run, act, wake.
func (c *call) path(ctx context.Context) (Result, error) {
	if err := c.validate(); err != nil {
		return Result{}, err
	}
	if err := c.authorise(); err != nil {
		return Result{}, err
	}
	switch {
	case c.d.carry != nil:
		return c.carry(ctx)
	case c.d.call != nil:
		return c.hand(ctx)
	case c.d.preview != nil:
		return c.preview(ctx)
	}
	if c.d.wait != nil {
		return c.await(ctx)
	}
	if c.d.keyed {
		release, first, err := c.firstResult(ctx)
		defer release()
		if err != nil || first != nil {
			return valueOf(first), err
		}
	}
	return c.decided(ctx)
}

func valueOf(r *Result) Result {
	if r == nil {
		return Result{}
	}
	return *r
}

// decided is the path from the check on. A writer's is one transaction: what it was let through by holds where it writes.
func (c *call) decided(ctx context.Context) (Result, error) {
	if c.d.read != nil {
		return c.answerReader(ctx)
	}
	result, err := c.execute(ctx)
	if errors.Is(err, errAsk) {
		return c.park(ctx)
	}
	return result, err
}

func (c *call) answerReader(ctx context.Context) (Result, error) {
	var read any
	err := c.p.DB.View(ctx, func(v *store.View) (err error) {
		if err := c.check(ctx, v); err != nil {
			return err
		}
		read, err = c.d.read(ctx, c.p, v, c.caller, c.args)
		return err
	})
	if err != nil {
		return Result{}, err
	}
	return c.answerRead(ctx, read)
}

// errAsk rolls back a call that a person decides: it is parked.
var errAsk = errors.New("the call needs an approval")

// admitted checks the call and asks its gate.
func (c *call) admitted(ctx context.Context, v *store.View) (governance.Verdict, error) {
	if err := c.check(ctx, v); err != nil {
		return "", err
	}
	if c.idle { // its gate was asked before it was planned
		return governance.AutoApprove, nil
	}
	verdict, err := c.gate(ctx, v)
	switch {
	case err != nil:
		return "", err
	case verdict == governance.Block:
		if err := c.halted(ctx, v); err != nil { // the stop's word before the policy's
			return "", err
		}
		return "", c.blocked()
	case c.operation == nil && (verdict == governance.RequireApproval || c.confirm != ""):
		return "", errAsk
	}
	return verdict, nil
}

func (c *call) validate() error {
	raw, err := c.d.Verb.Validate(c.request.Arguments)
	if err != nil {
		return err
	}
	c.raw = raw
	c.args, err = c.d.decode(raw)
	return err
}

func (c *call) authorise() error {
	switch {
	case c.d.Verb.HumanOnly && !c.caller.Human():
		return schema.Errorf(schema.PermissionDenied, "a human credential is required")
	case !governance.Permits(c.caller, c.d.Verb.Permission):
		return schema.Errorf(schema.PermissionDenied, "permission denied: %s required", c.d.Verb.Permission)
	case c.caller.ReadOnly && !c.d.Verb.Annotations.ReadOnly && c.d.call == nil: // what is called through it is looked at itself
		return schema.Errorf(schema.PermissionDenied, "permission denied: this credential or session is read only")
	case c.caller.Toolsets != nil && !slices.Contains(c.caller.Toolsets, c.d.Verb.Toolset) && !slices.Contains(everywhere, c.d.name):
		return schema.Errorf(schema.PermissionDenied, "permission denied: the token does not reach toolset %s", c.d.Verb.Toolset)
	}
	return nil
}

// everywhere are the verbs that a token reaches whatever toolsets it is narrowed to: what they find, plan or call is held
// to the token's toolsets itself.
var everywhere = []string{"platform_call_verb", "platform_get_operation", "platform_preview", "platform_search_verbs", "platform_whoami"}

// halted refuses what an emergency stop forbids the caller.
func (c *call) halted(ctx context.Context, v *store.View) error {
	if c.d.Verb.Annotations.ReadOnly {
		return nil
	}
	return c.p.Governance.Refuses(ctx, v, c.caller)
}

func (c *call) haltedNow(ctx context.Context) error {
	return c.p.DB.View(ctx, func(v *store.View) error { return c.halted(ctx, v) })
}

func (c *call) check(ctx context.Context, v *store.View) error {
	if c.d.check == nil {
		return nil
	}
	return c.d.check(ctx, c.p, v, c.caller, c.args)
}

// explained is a refusal as the caller is told it: on one line, with the verb that gives the id that was wrong, and with the
// verb's parameters, which a domain that refuses one of them doesn't know.
func (c *call) explained(refused *schema.Error) *schema.Error {
	out := *refused // the domain's own may be shared
	out.Message = schema.Message(out.Message)
	if out.Hint == nil {
		out.Hint = c.lister(&out)
	}
	known, ok := out.Details["declared"].([]string)
	if at, _ := out.Details["pointer"].(string); !ok || len(known) > 0 || strings.Count(at, "/") > 1 {
		return &out // inside a parameter, other keys are declared
	}
	return out.WithDetail("declared", c.d.Verb.Parameters())
}

// gate asks the policy of the call's category. A verb without one is not gated.
func (c *call) gate(ctx context.Context, v *store.View) (governance.Verdict, error) {
	category, err := c.d.Verb.Category, error(nil)
	if c.d.category != nil {
		category, err = c.d.category(ctx, c.p, v, c.caller, c.args)
	}
	if err != nil || category == "" {
		return governance.AutoApprove, err
	}
	c.category = category
	return c.p.Governance.Decide(ctx, v, c.caller, category, func(ctx context.Context, v *store.View) (governance.Reach, error) {
		return governance.ReachOfCall(ctx, v, c.caller.AccountID, c.d.Verb, c.raw)
	})
}

func (c *call) blocked() error {
	return schema.Errorf(schema.BlockedByPolicy, "Action %s is blocked by policy", c.category)
}

// park writes the operation, its event and its signal, and nothing of the call.
func (c *call) park(ctx context.Context) (Result, error) {
	if c.category == "" {
		return Result{}, schema.Errorf(schema.InvalidArguments, "%s has no action category: it can't be confirmed", c.d.name)
	}
	if err := c.haltedNow(ctx); err != nil {
		return Result{}, err
	}
	plan, err := c.plan(ctx)
	if err != nil {
		return Result{}, err
	}
	if c.confirm == "" && plan.Idle() {
		return c.answerIdle(ctx)
	}
	shown, err := c.d.shown(c.raw)
	if err != nil {
		return Result{}, err
	}
	var answer json.RawMessage
	err = c.p.DB.Update(ctx, func(tx *store.Tx) error {
		c.begin(tx)
		parked, err := c.p.Governance.Park(ctx, tx, governance.ParkInput{Caller: c.caller, Verb: c.d.name, Arguments: c.raw, Shown: shown,
			Category: c.category, Description: cmp.Or(c.confirm, c.because), Plan: plan})
		if err != nil {
			return err
		}
		var said any = parked
		if c.answerParked != nil {
			said = c.answerParked(parked)
		}
		if answer, err = json.Marshal(said); err != nil {
			return err
		}
		return c.record(ctx, tx, "pending", answer)
	})
	return Result{JSON: answer, Pending: true}, err
}

// answerIdle answers a call whose effect is there already: it runs and nobody is asked, for there is nothing to decide. What
// has an effect after all, because something changed meanwhile, is rolled back and parked.
func (c *call) answerIdle(ctx context.Context) (Result, error) {
	c.idle = true
	result, err := c.execute(ctx)
	c.idle = false
	if errors.Is(err, errNotIdle) {
		return c.park(ctx)
	}
	return result, err
}

// errNotIdle rolls back a run that was to change nothing, and would.
var errNotIdle = errors.New("the run has an effect")

// shown are a parked call's arguments as people and assistants see them, without secrets.
func (d *Definition) shown(raw json.RawMessage) (any, error) {
	var arguments store.Object
	if err := json.Unmarshal(raw, &arguments); err != nil {
		return nil, fmt.Errorf("read the arguments of %s to show them: %w", d.name, err)
	}
	if d.hide != nil {
		arguments = d.hide(arguments)
	}
	return governance.Mask(arguments), nil
}

// plan is the run itself inside a transaction that is rolled back.
func (c *call) plan(ctx context.Context) (*store.Plan, error) {
	return c.p.DB.DryRun(ctx, func(tx *store.Tx) error {
		c.begin(tx)
		if err := c.check(ctx, &tx.View); err != nil {
			return err
		}
		_, err := c.d.run(ctx, c.p, tx, c.caller, c.args)
		return err
	})
}

// execute lets the call through and runs it, in one transaction, then acts where the verb reaches outside.
func (c *call) execute(ctx context.Context) (Result, error) {
	var result any
	var answer json.RawMessage
	err := c.p.DB.Update(ctx, func(tx *store.Tx) error {
		c.begin(tx)
		verdict, err := c.admitted(ctx, &tx.View)
		if err != nil {
			return err
		}
		if err := c.halted(ctx, &tx.View); err != nil {
			return err
		}
		if err := c.authorised(ctx, tx); err != nil {
			return err
		}
		if result, err = c.d.run(ctx, c.p, tx, c.caller, c.args); err != nil {
			return err
		}
		if err := c.asPlanned(tx); err != nil {
			return err
		}
		if c.idle && !tx.Plan().Idle() {
			return errNotIdle
		}
		if verdict == governance.NotifyAndProceed && c.operation == nil {
			if err := c.notify(ctx, tx); err != nil {
				return err
			}
		}
		if c.d.act != nil {
			if c.operation != nil {
				if err := c.p.Governance.Started(ctx, tx, c.operation.ID, c.operation.AccountID); err != nil {
					return err
				}
			}
			if err := c.claimKey(ctx, tx); err != nil {
				return err
			}
			return c.record(ctx, tx, "pending", nil)
		}
		answer, err = c.render(ctx, tx, result)
		if err != nil {
			return err
		}
		return c.settle(ctx, tx, answer)
	})
	if err != nil || answer != nil {
		return Result{JSON: answer}, err
	}
	return c.actOutside(ctx, result)
}

// actOutside does what the verb does outside, and writes what came of it.
func (c *call) actOutside(ctx context.Context, intent any) (Result, error) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), actDeadline)
	defer cancel()
	finish := c.d.act(bounded, c.p, c.caller, c.args, intent)
	var answer json.RawMessage
	var refusal error
	err := c.p.DB.Update(ctx, func(tx *store.Tx) error {
		c.begin(tx)
		result, refused, err := finish(ctx, tx)
		if err != nil {
			return err
		}
		if refusal = refused; refused != nil {
			return c.freeKey(ctx, tx)
		}
		if answer, err = c.render(ctx, tx, result); err != nil {
			return err
		}
		return c.settle(ctx, tx, answer)
	})
	if fault, is := errors.AsType[*store.Fault](err); is {
		return Result{}, errors.Join(fault.Unrecorded(), err)
	}
	if err == nil {
		err = refusal
	}
	return Result{JSON: answer}, err
}

// begin names who the transaction is for.
func (c *call) begin(tx *store.Tx) {
	if c.correlation == "" {
		c.correlation = tx.NewID()
	}
	a := store.Actor{Kind: c.caller.Kind, ID: c.caller.ID, Verb: c.d.name, CorrelationID: c.correlation}
	if c.operation != nil {
		a.OperationID = string(c.operation.ID)
	}
	tx.Act(a)
}

// authorised verifies, for a replayed operation, that a person's approval stands behind it, inside the transaction.
// From there on, the check again, the transaction notes what it rests on, as the dry run did whose plan the person has seen.
func (c *call) authorised(ctx context.Context, tx *store.Tx) error {
	if c.operation == nil {
		return nil
	}
	if err := c.p.Governance.Authorised(ctx, tx, c.operation.ID, c.operation.AccountID); err != nil {
		return err
	}
	tx.Note()
	return c.check(ctx, &tx.View)
}

// asPlanned refuses a replay that came out different from what was approved.
func (c *call) asPlanned(tx *store.Tx) error {
	if c.operation == nil || governance.Digest(c.d.name, c.raw, tx.Plan()) == c.operation.PlanDigest {
		return nil
	}
	return errStale
}

func (c *call) notify(ctx context.Context, tx *store.Tx) error {
	return signal.Emit(ctx, tx, c.caller.AccountID, signal.Event{Kind: "system.operation_notified",
		Payload: store.Object{"verb": c.d.name, "action_category": c.category, "caller": c.caller.ID}})
}

// render encodes a result: the revision filled in, no list nil.
func (c *call) render(ctx context.Context, tx *store.Tx, result any) (json.RawMessage, error) {
	if w, ok := result.(interface{ written() *Written }); ok {
		w := w.written()
		if w.Revision == nil && !w.dry {
			revision, err := tx.StandingRevision(ctx)
			if err != nil {
				return nil, err
			}
			w.Revision = &revision
		}
		if w.Warnings == nil {
			w.Warnings = []Warning{}
		}
		for i := range w.Warnings {
			w.Warnings[i].Text = schema.Message(w.Warnings[i].Text)
		}
	}
	out, err := json.Marshal(result)
	if err != nil {
		return nil, fmt.Errorf("encode the result of %s: %w", c.d.name, err)
	}
	return out, nil
}

// settle writes the event of a call that ran, with the result for its repetition.
func (c *call) settle(ctx context.Context, tx *store.Tx, answer json.RawMessage) error {
	if c.operation != nil {
		if err := c.p.Governance.Finished(ctx, tx, c.operation.ID, c.operation.AccountID, answer); err != nil {
			return err
		}
	}
	if err := c.keepResult(ctx, tx, answer); err != nil {
		return err
	}
	return c.record(ctx, tx, "ok", answer)
}

func (c *call) record(ctx context.Context, tx *store.Tx, status string, answer json.RawMessage) error {
	c.fillEvent(tx, status)
	if c.request.CallID != "" && answer != nil {
		sealed, err := c.p.Sealer.Seal(tx, resultPurpose(c.event.ID), answer)
		if err != nil {
			return err
		}
		expires := store.At(tx.Now().Add(resultKept))
		c.event.Result, c.event.ResultExpiresAt = sealed, &expires
	}
	return store.PutExecutionEvent(ctx, tx, c.event)
}

func (c *call) fillEvent(tx *store.Tx, status string) {
	if c.event.ID == "" {
		c.event.ID = store.ExecutionEventID(tx.NewID())
	}
	if c.correlation == "" {
		c.correlation = tx.NewID()
	}
	source, sourceID := "verb_call", c.caller.ID
	if c.operation != nil {
		source, sourceID = "approval_execution", string(c.operation.ID)
	} else if c.caller.Kind == governance.KindPlatform {
		source = "controller"
	}
	c.event.AccountID, c.event.SourceType, c.event.SourceID = c.caller.AccountID, source, sourceID
	c.event.EventType, c.event.Status = c.d.name, status
	if c.eventType != "" {
		c.event.EventType = c.eventType
	}
	c.event.CallID, c.event.CallerID = c.request.CallID, c.caller.ID
	if c.event.CallID == "" {
		c.event.CallHash = ""
	}
	c.event.CorrelationID, c.event.DurationMS = c.correlation, time.Since(c.started).Milliseconds()
}

// recordFailure leaves the event of a call that was refused or failed.
func (c *call) recordFailure(ctx context.Context, coded *schema.Error) error {
	return c.p.DB.Update(ctx, func(tx *store.Tx) error {
		status := "refused"
		if coded.Code == schema.Internal || coded.Code == schema.Unavailable {
			status = "failed"
		}
		c.fillEvent(tx, status)
		c.event.ErrorClass, c.event.ErrorMessage = string(coded.Code), coded.Message
		if coded.Code == schema.Internal {
			c.event.ErrorMessage = "internal error"
		}
		if c.request.CallID != "" {
			// A refusal is answered again as it was.
			kept, err := json.Marshal(coded)
			if err != nil {
				return err
			}
			if c.event.Result, err = c.p.Sealer.Seal(tx, resultPurpose(c.event.ID), kept); err != nil {
				return err
			}
			expires := store.At(tx.Now().Add(resultKept))
			c.event.ResultExpiresAt = &expires
		}
		return store.PutExecutionEvent(ctx, tx, c.event)
	})
}

// answerRead answers a reader and leaves its event.
func (c *call) answerRead(ctx context.Context, read any) (Result, error) {
	out, err := json.Marshal(read)
	if err != nil {
		return Result{}, fmt.Errorf("encode the result of %s: %w", c.d.name, err)
	}
	c.request.CallID = "" // a read that is sent again is read again
	c.p.recordRead(c)
	return Result{JSON: out}, nil
}

func (c *call) await(ctx context.Context) (Result, error) {
	if c.d.check != nil {
		if err := c.p.DB.View(ctx, func(v *store.View) error { return c.check(ctx, v) }); err != nil {
			return Result{}, err
		}
	}
	read, err := c.d.wait(ctx, c.p, c.caller, c.args)
	if err != nil {
		return Result{}, err
	}
	return c.answerRead(ctx, read)
}

// sentHash names a call as it was sent: only the same one is answered with what is kept under its call id. The credential
// counts, for one that is narrowed reads no result of another.
func sentHash(d *Definition, caller Caller, request Request) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%t\n", d.name, caller.TokenID, caller.ReadOnly)
	h.Write(request.Arguments) // a hash takes everything
	return hex.EncodeToString(h.Sum(nil))
}

// once lets a call id through one call at a time, and finds the event that a call under it has left before.
func (p *Platform) once(ctx context.Context, caller Caller, request Request, hash string) (release func(), earlier store.ExecutionEvent, err error) {
	release, err = p.alone(ctx, "call/"+string(caller.AccountID)+"/"+request.CallID)
	if err != nil || request.Fresh {
		return release, earlier, err
	}
	earlier, err = p.kept(ctx, caller, request.CallID, hash)
	if err != nil {
		release()
	}
	return release, earlier, err
}

// alone waits until no other call is in flight under a name, and keeps others from it until it is released.
func (p *Platform) alone(ctx context.Context, name string) (release func(), err error) {
	done := make(chan struct{})
	for {
		first := p.calls.enter(name, done)
		if first == nil {
			return func() { p.calls.leave(name, done) }, nil
		}
		select {
		case <-first:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the call's first sending: %w", ctx.Err())
		}
	}
}

// enter registers a call; it answers the one that is in flight under the key, if there is one.
func (f *calls) enter(key string, done chan struct{}) (first chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if first, busy := f.flying[key]; busy {
		return first
	}
	if f.flying == nil {
		f.flying = map[string]chan struct{}{}
	}
	f.flying[key] = done
	return nil
}

// busy says whether a call is in flight under the key.
func (f *calls) busy(key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, is := f.flying[key]
	return is
}

func (f *calls) leave(key string, done chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.flying, key)
	close(done)
}

// kept finds the event of a call that was sent before, with its result opened where there is one.
func (p *Platform) kept(ctx context.Context, caller Caller, callID, hash string) (store.ExecutionEvent, error) {
	var e store.ExecutionEvent
	err := p.DB.View(ctx, func(v *store.View) error {
		var err error
		e, err = store.ExecutionEventByCall(ctx, v, caller.AccountID, callID)
		return err
	})
	switch {
	case errors.Is(err, store.ErrNoRow):
		return store.ExecutionEvent{}, nil
	case err != nil:
		return e, err
	case e.CallerID != caller.ID:
		return e, schema.Errorf(schema.Conflict, "the call id was used by another caller")
	case e.CallHash != hash:
		return e, schema.Errorf(schema.Conflict, "the call id was used for another call")
	case e.Result == nil:
		return e, nil
	}
	e.Result, err = p.Sealer.Open(resultPurpose(e.ID), e.Result)
	return e, err
}

func resultPurpose(id store.ExecutionEventID) string { return "execution_events:" + string(id) }

func answerOf(e store.ExecutionEvent) (Result, error) {
	if e.ErrorClass == "" {
		return Result{JSON: e.Result, Pending: e.Status == "pending"}, nil
	}
	var kept schema.Error
	if err := json.Unmarshal(e.Result, &kept); err != nil {
		return Result{}, fmt.Errorf("read a kept refusal: %w", err)
	}
	return Result{}, &kept
}

// near are verbs that a misspelt name may have meant.
func (p *Platform) near(name string) []string {
	names := make([]string, len(p.order))
	for i, d := range p.order {
		names[i] = d.name
	}
	if best := schema.Nearest(bareName(name), names); best != "" {
		return []string{best}
	}
	return []string{}
}
