package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
)

// Caller is for whom a call runs.
type Caller = governance.Caller

// Warning is something that a caller should know of a call that was done.
type Warning struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

// Written is what every result of a mutating verb has beside its own keys; result types embed it. Revision is filled by
// the call path, where nothing was to change with the store's as it stands; it is null of a dry run alone.
type Written struct {
	Revision *int64       `json:"revision"`
	Warnings []Warning    `json:"warnings"`
	Hint     *schema.Hint `json:"hint"`

	dry bool // the caller asked for a dry run
}

func (w *Written) written() *Written { return w }

// Warn adds a warning to a result.
func (w *Written) Warn(code, format string, args ...any) {
	w.Warnings = append(w.Warnings, Warning{Code: code, Text: fmt.Sprintf(format, args...)})
}

// Page is what every list has beside its rows; result types embed it.
type Page struct {
	Count      int64   `json:"count"`
	HasMore    bool    `json:"has_more"`
	NextCursor *string `json:"next_cursor"`
}

// handler is a verb's behaviour. A reader has read; a writer has run, and act where it reaches outside.
type handler[A, R any] struct {
	// check refuses what the arguments, the account's rows or a floor forbid. It runs before the gate, inside the
	// transaction that run writes in, so run may rely on it. nil: nothing to check.
	check func(ctx context.Context, p *Platform, v *store.View, c Caller, a A) error
	// read answers a verb that writes nothing.
	read func(ctx context.Context, p *Platform, v *store.View, c Caller, a A) (R, error)
	// wait answers a reader that waits for something, or that writes what it hands out; it opens its own views.
	wait func(ctx context.Context, p *Platform, c Caller, a A) (R, error)
	// run writes the intent, all of it in one transaction, and speaks to nothing outside.
	run func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a A) (R, error)
	// act reaches outside after the commit of run, under a deadline and outside any transaction. What it learns is
	// written by the outcome that it returns, in a second transaction. It returns no error for what went wrong
	// outside: that is an outcome too.
	act func(ctx context.Context, p *Platform, c Caller, a A, intent R) outcome[R]
	// category moves a call to another action category by its arguments (force, purge, …); nil: the verb's own.
	category func(a A) string
	// categoryIn is category where the rows decide too.
	categoryIn func(ctx context.Context, p *Platform, v *store.View, c Caller, a A) (string, error)
	// carry names the call that a verb carries in its arguments, to be parked; preview names one that is only planned.
	carry   func(a A) carried
	preview func(a A) carried
	// call names the call that a verb makes in its own place.
	call func(a A) carried
	// hide takes secrets out of a parked call's arguments that their names alone don't tell; nil: they do.
	hide func(arguments store.Object) store.Object
	// credential is the audit row of handing out a result once more that is kept with an operation; false where that result has no
	// credential in it. nil: the verb's results never have.
	credential func(r R) (store.AuditEntry, bool)
}

// outcome writes what an act learned. A refusal beside a nil error is committed with the rows and then answered.
type outcome[R any] func(ctx context.Context, tx *store.Tx) (result R, refusal error, err error)

// Definition is a verb with its behaviour, its types erased.
type Definition struct {
	name      string
	arguments reflect.Type
	result    reflect.Type
	Verb      *schema.Verb // set by the registry, in a copy of its own, on a copy of its platform's own
	keyed     bool         // set by the registry: the call path keeps first results under their keys

	decode   func(raw json.RawMessage) (any, error)
	check    func(ctx context.Context, p *Platform, v *store.View, c Caller, a any) error
	read     func(ctx context.Context, p *Platform, v *store.View, c Caller, a any) (any, error)
	wait     func(ctx context.Context, p *Platform, c Caller, a any) (any, error)
	run      func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a any) (any, error)
	act      func(ctx context.Context, p *Platform, c Caller, a, intent any) outcome[any]
	category func(ctx context.Context, p *Platform, v *store.View, c Caller, a any) (string, error) // nil: the verb's own
	carry    func(a any) carried
	preview  func(a any) carried
	call     func(a any) carried
	hide     func(arguments store.Object) store.Object

	credential func(raw json.RawMessage) (store.AuditEntry, bool, error) // nil: its results have none
}

// define erases a handler's types. R is a struct; the call path hands it around as *R.
func define[A, R any](name string, h handler[A, R]) *Definition {
	d := &Definition{name: name, arguments: reflect.TypeFor[A](), result: reflect.TypeFor[R](), hide: h.hide}
	d.decode = func(raw json.RawMessage) (any, error) {
		var a A
		if err := json.Unmarshal(raw, &a); err != nil {
			return nil, fmt.Errorf("decode arguments of %s: %w", name, err)
		}
		return a, nil
	}
	if h.check != nil {
		d.check = func(ctx context.Context, p *Platform, v *store.View, c Caller, a any) error {
			return h.check(ctx, p, v, c, a.(A))
		}
	}
	if h.read != nil {
		d.read = func(ctx context.Context, p *Platform, v *store.View, c Caller, a any) (any, error) {
			return erased(h.read(ctx, p, v, c, a.(A)))
		}
	}
	if h.wait != nil {
		d.wait = func(ctx context.Context, p *Platform, c Caller, a any) (any, error) {
			return erased(h.wait(ctx, p, c, a.(A)))
		}
	}
	if h.run != nil {
		d.run = func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a any) (any, error) {
			return erased(h.run(ctx, p, tx, c, a.(A)))
		}
	}
	if h.act != nil {
		d.act = func(ctx context.Context, p *Platform, c Caller, a, intent any) outcome[any] {
			finish := h.act(ctx, p, c, a.(A), *intent.(*R))
			return func(ctx context.Context, tx *store.Tx) (any, error, error) {
				r, refusal, err := finish(ctx, tx)
				return &r, refusal, err
			}
		}
	}
	if h.carry != nil {
		d.carry = func(a any) carried { return h.carry(a.(A)) }
	}
	if h.preview != nil {
		d.preview = func(a any) carried { return h.preview(a.(A)) }
	}
	if h.call != nil {
		d.call = func(a any) carried { return h.call(a.(A)) }
	}
	if h.credential != nil {
		d.credential = func(raw json.RawMessage) (store.AuditEntry, bool, error) {
			var r R
			if err := json.Unmarshal(raw, &r); err != nil {
				return store.AuditEntry{}, false, fmt.Errorf("read a kept result of %s: %w", name, err)
			}
			row, holds := h.credential(r)
			return row, holds, nil
		}
	}
	switch {
	case h.categoryIn != nil:
		d.category = func(ctx context.Context, p *Platform, v *store.View, c Caller, a any) (string, error) {
			return h.categoryIn(ctx, p, v, c, a.(A))
		}
	case h.category != nil:
		d.category = func(_ context.Context, _ *Platform, _ *store.View, _ Caller, a any) (string, error) {
			return h.category(a.(A)), nil
		}
	}
	return d
}

func erased[R any](r R, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return &r, nil
}
