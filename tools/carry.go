package tools

import (
	"context"
	"encoding/json"
	"errors"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
)

// carried is a call that stands in the arguments of another.
type carried struct {
	verb        string
	verbAt      string // pointer of its name
	arguments   json.RawMessage
	argumentsAt string
	description string                      // the assistant's words beside a call that is to be parked
	answer      func(governance.Parked) any // of one that was parked
}

// carry runs the call that this one carries: one call, one execution event.
func (c *call) carry(ctx context.Context) (Result, error) {
	inner, err := c.inner(c.d.carry(c.args))
	if err != nil {
		return Result{}, err
	}
	result, err := inner.path(ctx)
	c.event, c.correlation = inner.event, inner.correlation
	if err != nil {
		return Result{}, inner.told(err)
	}
	return result, nil
}

// hand runs the call that this one makes in its own place, as if it had been called itself: its result, its permission,
// its gate, and its execution event.
func (c *call) hand(ctx context.Context) (Result, error) {
	from := c.d.call(c.args)
	d, err := c.carried(from)
	if err != nil {
		return Result{}, err
	}
	if d.name == c.d.name {
		return Result{}, schema.InvalidArgument(from.verbAt, from.verb, "%s does not call itself", d.name)
	}
	inner := &call{p: c.p, d: d, caller: c.caller, request: Request{Verb: d.name, Arguments: from.arguments, CallID: c.request.CallID},
		under: from.argumentsAt, started: c.started, event: c.event, correlation: c.correlation}
	c.eventType = d.name
	result, err := inner.path(ctx)
	c.event, c.correlation = inner.event, inner.correlation
	if err != nil {
		return Result{}, inner.told(err)
	}
	return result, nil
}

// preview plans the call that this one carries, and writes nothing of it.
func (c *call) preview(ctx context.Context) (Result, error) {
	inner, err := c.inner(c.d.preview(c.args))
	if err != nil {
		return Result{}, err
	}
	if err := inner.validate(); err != nil {
		return Result{}, inner.told(err)
	}
	r := previewResult{Verb: inner.d.name, Effects: []governance.Effect{}, Irreversible: []string{}, Refusals: []*schema.Error{},
		Touched: governance.Touches(&store.Plan{}), Policy: previewPolicy{ActionCategory: inner.d.Verb.Category}}
	plan, err := inner.previewed(ctx, &r)
	var refused *schema.Error
	switch {
	case errors.As(err, &refused):
		r.Refusals = append(r.Refusals, inner.explained(refused))
		return c.answerRead(ctx, &r)
	case err != nil:
		return Result{}, err
	}
	digest := governance.Digest(inner.d.name, inner.raw, plan)
	r.Effects, r.Touched, r.PlanDigest = governance.Effects(plan), governance.Touches(plan), &digest
	r.Irreversible = governance.Irreversible(r.Effects)
	expires := governance.ExpiryAt(plan.Now)
	r.ExpiresAt = &expires
	return c.answerRead(ctx, &r)
}

func (c *call) previewed(ctx context.Context, r *previewResult) (*store.Plan, error) {
	if err := c.authorise(); err != nil {
		return nil, err
	}
	err := c.p.DB.View(ctx, func(v *store.View) error {
		if err := c.check(ctx, v); err != nil {
			return err
		}
		if err := c.halted(ctx, v); err != nil {
			return err
		}
		verdict, err := c.gate(ctx, v)
		if err == nil {
			r.Policy = previewPolicy{ActionCategory: c.category, Verdict: &verdict}
		}
		if verdict == governance.Block {
			return c.blocked()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return c.plan(ctx)
}

// inner makes the call that another carries, or refuses what can't be carried.
func (c *call) inner(from carried) (*call, error) {
	d, err := c.carried(from)
	if err != nil {
		return nil, err
	}
	if !d.Verb.Gated() {
		return nil, schema.InvalidArgument(from.verbAt, from.verb, "%s has no action category: there is nothing to decide", d.name)
	}
	return &call{p: c.p, d: d, caller: c.caller, request: Request{Verb: d.name, Arguments: from.arguments, CallID: c.request.CallID},
		confirm: from.description, eventType: c.d.name, under: from.argumentsAt, started: c.started, event: c.event,
		answerParked: from.answer}, nil
}

// carried finds the verb that a call names in its arguments.
func (c *call) carried(from carried) (*Definition, error) {
	d, ok := c.p.Lookup(from.verb)
	if !ok {
		return nil, schema.InvalidArgument(from.verbAt, from.verb, "unknown verb %s", shortQuote(from.verb)).
			WithCandidates(c.p.near(from.verb)).WithHint("platform_search_verbs", "Finds verbs by what they do.")
	}
	return d, nil
}

// told is a refusal of a call that another carries, its pointers where its arguments stand in the other's.
func (c *call) told(err error) error {
	var coded *schema.Error
	if errors.As(err, &coded) {
		return c.explained(coded).Under(c.under)
	}
	return err
}
