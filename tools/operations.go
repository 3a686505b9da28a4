package tools

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
)

// operationsLooked is how often operations are looked at: expired ones end, forged approvals are told.
const operationsLooked = 2 * time.Second

var errStale = schema.Errorf(schema.Conflict, "plan is stale")

// Decide takes a person's signed decision of an operation. An approved one is replayed at once, as its original
// caller; the answer is the operation as it stands then, and why it failed, if it did.
func (p *Platform) Decide(ctx context.Context, acct store.AccountID, d governance.Decision) (governance.OperationView, error) {
	var o store.Operation
	var u store.User
	err := p.DB.View(ctx, func(v *store.View) error {
		var err error
		o, u, err = p.Governance.CheckDecision(ctx, v, acct, d)
		return err
	})
	p.tellSuspects(ctx)
	if err != nil {
		return governance.OperationView{}, err
	}
	ctx = context.WithoutCancel(ctx) // a decision that was taken is carried out, whoever waits for it
	if d.Decision == governance.Approve {
		if err := p.holdsStill(ctx, o); err != nil {
			return governance.OperationView{}, err
		}
	}
	release, err := p.alone(ctx, runsAs(o.ID)) // from before the approval until its outcome: a resumption leaves it to this
	if err != nil {
		return governance.OperationView{}, err
	}
	defer release()
	err = p.DB.Update(ctx, func(tx *store.Tx) error {
		var err error
		if o, u, err = p.Governance.CheckDecision(ctx, &tx.View, acct, d); err != nil { // of two at once, one wins
			return err
		}
		tx.Act(store.Actor{Kind: governance.KindPerson, ID: string(u.ID), OperationID: string(o.ID), CorrelationID: tx.NewID()})
		o, err = p.Governance.WriteDecision(ctx, tx, o, u, d)
		return err
	})
	if err != nil {
		return governance.OperationView{}, err
	}
	var failed error
	if d.Decision == governance.Approve {
		failed = p.replay(ctx, o)
	}
	view, err := p.operation(ctx, governance.PersonCaller(u), o.ID)
	return view, errors.Join(err, failed)
}

// runsAs names an operation that is being decided and carried out.
func runsAs(id store.OperationID) string { return "operation/" + string(id) }

// holdsStill computes an operation's plan again: one that comes out different, or not at all, is stale. What the caller
// may no longer do is no matter of the plan; the replay refuses it.
func (p *Platform) holdsStill(ctx context.Context, o store.Operation) error {
	c, plan, err := p.planAgain(ctx, o)
	var refused *schema.Error
	switch {
	case plan == nil && err == nil:
		return nil
	case err == nil && governance.Digest(o.Verb, c.raw, plan) == o.PlanDigest:
		return nil
	case err != nil && !errors.As(err, &refused):
		return fmt.Errorf("plan operation %s again: %w", o.ID, err)
	}
	stale := errStale
	if refused != nil {
		stale = stale.WithDetail("cause", refused)
	}
	return errors.Join(stale, p.DB.Update(ctx, func(tx *store.Tx) error {
		now, err := store.OperationByID(ctx, &tx.View, o.AccountID, o.ID)
		if err != nil || now.Status != governance.Pending {
			return err
		}
		tx.Act(store.Actor{Kind: governance.KindPlatform, ID: "platform", OperationID: string(o.ID), CorrelationID: tx.NewID()})
		return p.Governance.MarkStale(ctx, tx, now)
	}))
}

// planAgain computes an operation's plan as it comes out now. It is nil, without an error, where the caller may no longer
// make the call.
func (p *Platform) planAgain(ctx context.Context, o store.Operation) (*call, *store.Plan, error) {
	c, err := p.replayed(ctx, o)
	if err != nil || c.validate() != nil || c.authorise() != nil {
		return c, nil, nil // the replay refuses it
	}
	plan, err := c.plan(ctx)
	return c, plan, err
}

// replayed is an operation's call as its original caller would make it now.
func (p *Platform) replayed(ctx context.Context, o store.Operation) (*call, error) {
	c, err := p.called(o, governance.Requester(o))
	if err != nil {
		return nil, err
	}
	c.operation = &o
	return c, p.DB.View(ctx, func(v *store.View) error {
		var err error
		c.caller, err = p.Governance.Current(ctx, v, c.caller)
		return err
	})
}

// called is an operation's call as somebody would make it.
func (p *Platform) called(o store.Operation, by Caller) (*call, error) {
	d, ok := p.Lookup(o.Verb)
	if !ok {
		return nil, schema.Errorf(schema.PreconditionFailed, "not available yet: %s", o.Verb)
	}
	arguments, err := p.Governance.Arguments(o)
	if err != nil {
		return nil, err
	}
	return &call{p: p, d: d, caller: by, request: Request{Verb: o.Verb, Arguments: arguments}}, nil
}

// replay runs an approved operation through the call path, and writes what came of it.
func (p *Platform) replay(ctx context.Context, o store.Operation) error {
	c, gone := p.replayed(ctx, o)
	if c == nil {
		return gone
	}
	_, err := c.finish(ctx, func(ctx context.Context) (Result, error) {
		if gone != nil {
			return Result{}, gone
		}
		return c.path(ctx)
	})
	if err == nil {
		return nil
	}
	var coded *schema.Error
	if !errors.As(err, &coded) {
		return err
	}
	return errors.Join(coded, p.DB.Update(ctx, func(tx *store.Tx) error {
		tx.Act(store.Actor{Kind: governance.KindPlatform, ID: "platform", Verb: o.Verb, OperationID: string(o.ID), CorrelationID: tx.NewID()})
		now, err := store.OperationByID(ctx, &tx.View, o.AccountID, o.ID)
		switch {
		case err != nil:
			return fmt.Errorf("read operation %s: %w", o.ID, err)
		case now.Status != governance.Approved && now.Status != governance.Executing:
			return nil
		case coded.Code == schema.Conflict && coded.Message == errStale.Message:
			return p.Governance.MarkStale(ctx, tx, now)
		}
		return p.Governance.FailedWith(ctx, tx, o.ID, o.AccountID, coded)
	}))
}

// operation reads an operation for a reader.
func (p *Platform) operation(ctx context.Context, reader Caller, id store.OperationID) (view governance.OperationView, err error) {
	err = p.DB.View(ctx, func(v *store.View) error {
		o, err := store.OperationByID(ctx, v, reader.AccountID, id)
		if err != nil {
			return err
		}
		view, err = p.Governance.Seen(o, reader)
		return err
	})
	return view, err
}

// ResumeOperations carries out, at a start, what was approved and not begun, and fails what was cut off. Calls may run by
// then: what is decided meanwhile is left alone.
func (p *Platform) ResumeOperations(ctx context.Context) error {
	return p.eachAccount(ctx, func(acct store.AccountID) error {
		var resumable []store.Operation
		err := p.DB.Update(ctx, func(tx *store.Tx) error {
			tx.Act(store.Actor{Kind: governance.KindPlatform, ID: "platform", CorrelationID: tx.NewID()})
			if _, err := p.Governance.HasKey(ctx, &tx.View, acct); err != nil { // from here on the record of keys is known
				return err
			}
			cut, err := store.Operations(ctx, &tx.View, acct, governance.Executing, "")
			if err != nil {
				return fmt.Errorf("list running operations: %w", err)
			}
			for _, o := range cut {
				if p.calls.busy(runsAs(o.ID)) { // approved since the start
					continue
				}
				cause := schema.Errorf(schema.Unavailable, "the platform ended while it ran: its target says what was done")
				if err := p.Governance.FailedWith(ctx, tx, o.ID, acct, cause); err != nil {
					return err
				}
			}
			resumable, err = p.disregardForged(ctx, tx, acct)
			resumable = slices.DeleteFunc(resumable, func(o store.Operation) bool { return p.calls.busy(runsAs(o.ID)) })
			return err
		})
		if err != nil {
			return err
		}
		for _, o := range resumable {
			if err := p.replay(ctx, o); err != nil {
				p.Log.Warn().Err(err).Str("operation", string(o.ID)).Msg("resumed operation failed")
			}
		}
		return nil
	})
}

func (p *Platform) disregardForged(ctx context.Context, tx *store.Tx, acct store.AccountID) ([]store.Operation, error) {
	resumable, forged, err := p.Governance.Doubtful(ctx, &tx.View, acct)
	if err != nil {
		return nil, err
	}
	for _, o := range forged {
		if err := p.Governance.Disregard(ctx, tx, o); err != nil {
			return nil, err
		}
	}
	return resumable, p.Governance.Tell(ctx, tx)
}

// RunOperations ends operations that nobody answered in time and tells of approvals without a valid signature, until
// the context ends.
func (p *Platform) RunOperations(ctx context.Context) error {
	tick := time.NewTicker(operationsLooked)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := p.LookAtOperations(ctx); err != nil && ctx.Err() == nil {
				p.Log.Error().Err(err).Msg("operations not looked at")
			}
		}
	}
}

// LookAtOperations is one round of RunOperations. It writes only when there is something to write.
func (p *Platform) LookAtOperations(ctx context.Context) error {
	if err := p.lookAtChain(ctx); err != nil {
		return err
	}
	return p.eachAccount(ctx, func(acct store.AccountID) error {
		due := false
		err := p.DB.View(ctx, func(v *store.View) error {
			var err error
			due, err = p.Governance.Due(ctx, v, acct)
			return err
		})
		if err != nil || !due {
			return err
		}
		return p.DB.Update(ctx, func(tx *store.Tx) error {
			tx.Act(store.Actor{Kind: governance.KindPlatform, ID: "platform", CorrelationID: tx.NewID()})
			if err := p.Governance.Expire(ctx, tx, acct); err != nil {
				return err
			}
			_, err := p.disregardForged(ctx, tx, acct)
			return err
		})
	})
}

func (p *Platform) eachAccount(ctx context.Context, do func(store.AccountID) error) error {
	var accounts []store.Account
	err := p.DB.View(ctx, func(v *store.View) error {
		var err error
		accounts, err = store.Accounts(ctx, v)
		return err
	})
	if err != nil {
		return fmt.Errorf("list accounts: %w", err)
	}
	for _, a := range accounts {
		if err := do(a.ID); err != nil {
			return err
		}
	}
	return nil
}

// tellSuspects emits what the gate found while it could not write.
func (p *Platform) tellSuspects(ctx context.Context) {
	if !p.Governance.Suspected() {
		return
	}
	ctx = context.WithoutCancel(ctx)
	err := p.DB.Update(ctx, func(tx *store.Tx) error {
		tx.Act(store.Actor{Kind: governance.KindPlatform, ID: "platform", CorrelationID: tx.NewID()})
		return p.Governance.Tell(ctx, tx)
	})
	if err != nil {
		p.Log.Error().Err(err).Msg("signals of invalid signatures not written")
	}
}

func shortQuote(s string) string { return governance.Quote(governance.Plain(s, 64)) }
