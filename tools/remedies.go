package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"powernode/platform/governance"
	"powernode/platform/sensor"
	"powernode/platform/signal"
	"powernode/schema"
	"powernode/store"
)

const (
	remedyRepeated = 600 * time.Second // the same fingerprint is not acted on again before
	remedyEffect   = 90 * time.Second  // after which a remedy's condition is looked at again
	remedyCooldown = time.Hour         // after a rejection
	remedyMeasured = 2 * time.Minute   // how old the measurement may be that is acted on
	remedyAttempts = 3                 // in a row without effect: a person decides from then on
	remedyBudget   = 20                // automatic decisions of a category a day
	findingLength  = 600               // of what a finding tells, as the person who decides its remedy reads it

	kindRemediationStuck = "fleet.remediation_stuck"
)

// remedy is a verb that may end a condition. It runs through the call path as the platform's own principal.
type remedy struct {
	kind     string // the opening kind of the condition
	verb     string
	category string
	// arguments are the verb's for the condition's subject.
	arguments func(subject string) store.Object
}

// remedies are compiled in: a remedy without a verb behind it does not exist.
var remedies = []remedy{
	{"system.sdwan_vip_unreachable", "system_sdwan_failover_virtual_ip", "system.sdwan_vip_failover",
		func(subject string) store.Object { return store.Object{"virtual_ip_id": subject} }},
	{"system.template_closure_drift", "system_apply_template", "system.template_apply_drift",
		func(subject string) store.Object { return store.Object{"node_id": subject} }},
}

func remedyOf(kind string) (remedy, bool) {
	for _, r := range remedies {
		if r.kind == kind {
			return r, true
		}
	}
	return remedy{}, false
}

type remedyView struct {
	Verb            string `json:"verb"`
	ActionCategory  string `json:"action_category"`
	RepeatedSeconds int64  `json:"repeated_seconds"`
	LookedAtSeconds int64  `json:"looked_at_seconds"`
	AttemptsInARow  int    `json:"attempts_in_a_row"`
	AutomaticADay   int    `json:"automatic_a_day"`
	CooldownSeconds int64  `json:"cooldown_seconds"`
}

func (r remedy) view() *remedyView {
	return &remedyView{Verb: r.verb, ActionCategory: r.category, RepeatedSeconds: int64(remedyRepeated.Seconds()),
		LookedAtSeconds: int64(remedyEffect.Seconds()), AttemptsInARow: remedyAttempts, AutomaticADay: remedyBudget,
		CooldownSeconds: int64(remedyCooldown.Seconds())}
}

// plight is an open condition with a remedy, and how its remedy stands.
type plight struct {
	remedy
	condition store.Condition
	due       bool // it may be acted on now
	vain      int  // attempts in a row that changed nothing
}

// remedy looks at an account's open conditions and acts on those whose remedy is due. What a remedy left as it was often enough
// is told, and is a person's from then on.
func (p *Platform) remedy(ctx context.Context, acct store.AccountID) error {
	var due []plight
	told := false
	err := p.DB.View(ctx, func(v *store.View) error {
		stopped, err := p.Governance.Stopped(ctx, v, acct)
		if err != nil {
			return err
		}
		all, err := p.plights(ctx, v, acct)
		if err != nil {
			return err
		}
		for _, one := range all {
			if one.due && stopped == nil { // in an emergency the platform starts nothing
				due = append(due, one)
			}
		}
		told, err = p.stuckTold(ctx, v, acct, all)
		return err
	})
	if err != nil {
		return fmt.Errorf("look for remedies: %w", err)
	}
	if !told {
		if err := p.tellStuck(ctx, acct); err != nil {
			return fmt.Errorf("tell what remedies don't help: %w", err)
		}
	}
	var faults []error
	for _, one := range due {
		if err := p.apply(ctx, acct, one); err != nil {
			faults = append(faults, fmt.Errorf("remedy of %s: %w", one.condition.Fingerprint, err))
		}
	}
	return errors.Join(faults...)
}

// plights are the open conditions with a remedy whose sensor is on.
func (p *Platform) plights(ctx context.Context, v *store.View, acct store.AccountID) ([]plight, error) {
	open, err := store.Conditions(ctx, v, acct)
	if err != nil {
		return nil, err
	}
	var out []plight
	for _, c := range open {
		r, has := remedyOf(c.Kind)
		if !has {
			continue
		}
		one := plight{remedy: r, condition: c}
		if err := p.judge(ctx, v, acct, &one); err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	return out, nil
}

// judge reads what was attempted about a condition: whether its remedy is due, and how often it was in vain.
func (p *Platform) judge(ctx context.Context, v *store.View, acct store.AccountID, one *plight) error {
	measured, wrong := p.Sensors().WrongAt(acct, one.condition.Fingerprint)
	wrong = wrong && v.Now().Sub(measured) <= remedyMeasured
	from := one.condition.OpenedAt.Time
	if early := v.Now().Add(-remedyCooldown - 4*time.Hour); early.Before(from) { // a rejection counts longer than its condition is open
		from = early
	}
	attempts, err := store.RemedyAttempts(ctx, v, acct, one.condition.Fingerprint, from)
	if err != nil {
		return err
	}
	one.due = wrong
	for _, a := range attempts {
		at, ran, rests, err := outcomeOf(ctx, v, a)
		if err != nil {
			return err
		}
		one.due = one.due && !v.Now().Before(rests)
		if ran && !a.At.Before(one.condition.OpenedAt.Time) && wrong && !measured.Before(at.Add(remedyEffect)) {
			one.vain++
		}
	}
	return nil
}

// overspent says whether the day's automatic decisions of a category are used up, or can't be counted.
func (p *Platform) overspent(ctx context.Context, v *store.View, acct store.AccountID, category string) bool {
	spent, err := store.AutomaticRemedies(ctx, v, acct, category, v.Now().Add(-24*time.Hour))
	if err != nil {
		p.Log.Error().Err(err).Str("category", category).Msg("automatic decisions not counted: a person decides")
	}
	return err != nil || spent >= remedyBudget
}

// outcomeOf says what became of an attempt: when it took effect, whether anything was done or refused at all, and until when
// its condition is left alone.
func outcomeOf(ctx context.Context, v *store.View, a store.RemedyAttempt) (at time.Time, ran bool, rests time.Time, err error) {
	at = a.At.Time
	if a.Outcome != store.RemedyParked {
		return at, true, at.Add(remedyRepeated), nil
	}
	o, err := store.OperationByID(ctx, v, a.AccountID, a.OperationID)
	if errors.Is(err, store.ErrNoRow) {
		return at, false, at.Add(remedyRepeated), nil
	}
	if err != nil {
		return at, false, at, err
	}
	switch o.Status {
	case governance.Pending, governance.Approved, governance.Executing:
		return at, false, v.Now().Add(time.Second), nil // somebody is at it
	case governance.Rejected:
		if o.DecidedAt != nil {
			at = o.DecidedAt.Time
		}
		return at, false, at.Add(remedyCooldown), nil
	case governance.Completed, governance.Failed:
		if o.ExecutedAt != nil {
			at = o.ExecutedAt.Time
		}
		return at, true, at.Add(remedyRepeated), nil
	}
	return at, false, at.Add(remedyRepeated), nil // expired, cancelled, stale
}

// stuckTold says whether what remedies don't help is told as it is: nothing is to be opened or closed.
func (p *Platform) stuckTold(ctx context.Context, v *store.View, acct store.AccountID, all []plight) (bool, error) {
	vain := map[string]int{}
	for _, one := range all {
		vain[one.condition.Fingerprint] = one.vain
	}
	open, err := store.Conditions(ctx, v, acct)
	if err != nil {
		return false, err
	}
	told := map[string]bool{}
	for _, c := range open {
		if c.Kind != kindRemediationStuck {
			continue
		}
		told[sensor.SubjectOf(c.Fingerprint)] = true
		if _, still := vain[sensor.SubjectOf(c.Fingerprint)]; !still {
			return false, nil
		}
	}
	for fingerprint, attempts := range vain {
		if attempts >= remedyAttempts && !told[fingerprint] {
			return false, nil
		}
	}
	return true, nil
}

// tellStuck opens and closes what stuckTold has found to be told.
func (p *Platform) tellStuck(ctx context.Context, acct store.AccountID) error {
	return p.DB.Update(ctx, func(tx *store.Tx) error {
		tx.Act(store.Actor{Kind: governance.KindPlatform, ID: "platform", Verb: "remedies", CorrelationID: tx.NewID()})
		all, err := p.plights(ctx, &tx.View, acct)
		if err != nil {
			return err
		}
		still := map[string]bool{}
		for _, one := range all {
			still[one.condition.Fingerprint] = true
			if one.vain < remedyAttempts {
				continue
			}
			about, correlation, err := aboutOf(ctx, &tx.View, acct, one.condition.Fingerprint)
			if err != nil {
				return err
			}
			err = signal.Open(ctx, tx, acct, one.condition.Fingerprint, signal.Event{Kind: kindRemediationStuck, Subject: about, CorrelationID: correlation,
				Payload: store.Object{"fingerprint": one.condition.Fingerprint, "attempts": one.vain}})
			if err != nil {
				return err
			}
		}
		open, err := store.Conditions(ctx, &tx.View, acct)
		if err != nil {
			return err
		}
		for _, c := range open {
			fingerprint := sensor.SubjectOf(c.Fingerprint)
			if c.Kind != kindRemediationStuck || still[fingerprint] {
				continue
			}
			err := signal.Close(ctx, tx, acct, fingerprint, kindRemediationStuck, signal.Subject{}, store.Object{"fingerprint": fingerprint, "attempts": nil})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// aboutOf is what a condition's signals are about, and their correlation.
func aboutOf(ctx context.Context, v *store.View, acct store.AccountID, fingerprint string) (signal.Subject, string, error) {
	last, err := store.LastSignalOf(ctx, v, acct, fingerprint)
	if errors.Is(err, store.ErrNoRow) {
		return signal.Subject{}, "", nil
	}
	return signal.Subject{NodeID: last.NodeID, InstanceID: last.NodeInstanceID, ModuleID: last.ModuleID, ClusterID: last.ClusterID,
		NetworkID: last.NetworkID}, last.CorrelationID, err
}

// finding says in words what a remedy answers: the open condition, as its last signal tells it.
func (one plight) finding(last store.Signal) string {
	words := fmt.Sprintf("The platform's remedy of %s (%s), open since %s.", one.condition.Kind, one.condition.Fingerprint, one.condition.OpenedAt)
	if told, err := json.Marshal(last.Payload); err == nil && len(last.Payload) > 0 {
		words += " It tells: " + governance.Plain(string(told), findingLength)
	}
	return words
}

// apply calls a remedy's verb as the platform and records what came of it.
func (p *Platform) apply(ctx context.Context, acct store.AccountID, one plight) error {
	d, there := p.Lookup(one.verb)
	if !there {
		return fmt.Errorf("no verb %s", one.verb)
	}
	subject := sensor.SubjectOf(one.condition.Fingerprint)
	arguments, err := json.Marshal(one.arguments(subject))
	if err != nil {
		return fmt.Errorf("encode its arguments: %w", err)
	}
	c := &call{p: p, d: d, caller: governance.PlatformCaller(acct), request: Request{Verb: one.verb, Arguments: arguments}}
	err = p.DB.View(ctx, func(v *store.View) error {
		last, err := store.LastSignalOf(ctx, v, acct, one.condition.Fingerprint)
		if err != nil && !errors.Is(err, store.ErrNoRow) {
			return err
		}
		c.correlation, c.because = last.CorrelationID, one.finding(last)
		switch {
		case one.vain >= remedyAttempts:
			c.confirm = fmt.Sprintf("%s It changed nothing %d times in a row.", c.because, one.vain)
		case p.overspent(ctx, v, acct, one.category): // counted anew for each: a round may have many
			c.confirm = fmt.Sprintf("%s The %d automatic decisions of the day are used up.", c.because, remedyBudget)
		}
		return nil
	})
	if err != nil {
		return err
	}
	attempt := store.RemedyAttempt{AccountID: acct, Fingerprint: one.condition.Fingerprint, Verb: one.verb, ActionCategory: one.category, Outcome: store.RemedyRan}
	result, err := c.finish(ctx, c.path)
	var refused *schema.Error
	switch {
	case errors.As(err, &refused):
		attempt.Outcome = store.RemedyRefused
	case err != nil:
		return err
	case result.Pending:
		var parked governance.Parked
		if err := json.Unmarshal(result.JSON, &parked); err != nil {
			return fmt.Errorf("read the parked answer: %w", err)
		}
		attempt.Outcome, attempt.OperationID = store.RemedyParked, parked.DeferredOperationID
	}
	return p.DB.Update(context.WithoutCancel(ctx), func(tx *store.Tx) error { return store.InsertRemedyAttempt(ctx, tx, attempt) })
}
