package tools

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"powernode/platform/signal"
	"powernode/schema"
	"powernode/store"
)

func signalVerbs() []*Definition {
	return []*Definition{recentEvents(), recentSignals(), watchSignals(), inspectCorrelation(), attributeFailure()}
}

type recentEventsArgs struct {
	SourceType *string `json:"source_type"`
	Status     *string `json:"status"`
	Limit      int     `json:"limit"`
}

type recentEventsResult struct {
	Events []executionEvent `json:"events"`
	Count  int              `json:"count"`
}

type executionEvent struct {
	ID           store.ExecutionEventID `json:"id"`
	SourceType   string                 `json:"source_type"`
	SourceID     string                 `json:"source_id"`
	EventType    string                 `json:"event_type"`
	Status       string                 `json:"status"`
	DurationMS   int64                  `json:"duration_ms"`
	CostUSD      *float64               `json:"cost_usd"`
	ErrorClass   *string                `json:"error_class"`
	ErrorMessage *string                `json:"error_message"`
	CreatedAt    store.Time             `json:"created_at"`
}

func recentEvents() *Definition {
	return define("recent_events", handler[recentEventsArgs, recentEventsResult]{
		wait: func(ctx context.Context, p *Platform, c Caller, a recentEventsArgs) (recentEventsResult, error) {
			r := recentEventsResult{Events: []executionEvent{}}
			if err := p.FlushReads(ctx); err != nil { // reads are written in batches: what was called before is told
				return r, fmt.Errorf("write the events of reads: %w", err)
			}
			err := p.DB.View(ctx, func(v *store.View) error {
				events, err := store.ExecutionEvents(ctx, v, c.AccountID, orEmpty(a.SourceType), orEmpty(a.Status), a.Limit)
				if err != nil {
					return fmt.Errorf("list execution events: %w", err)
				}
				for _, e := range events {
					r.Events = append(r.Events, executionEvent{ID: e.ID, SourceType: e.SourceType, SourceID: e.SourceID, EventType: e.EventType,
						Status: e.Status, DurationMS: e.DurationMS, ErrorClass: orNull(e.ErrorClass), ErrorMessage: orNull(e.ErrorMessage),
						CreatedAt: e.CreatedAt})
				}
				return nil
			})
			r.Count = len(r.Events)
			return r, err
		},
	})
}

type signalView struct {
	ID             store.SignalID    `json:"id"`
	Kind           string            `json:"kind"`
	Severity       string            `json:"severity"`
	NodeID         *store.NodeID     `json:"node_id"`
	NodeInstanceID *store.InstanceID `json:"node_instance_id"`
	ModuleID       *store.ModuleID   `json:"module_id"`
	ClusterID      *store.ClusterID  `json:"cluster_id"`
	NetworkID      *store.NetworkID  `json:"network_id"`
	Payload        store.Object      `json:"payload"`
	Fingerprint    *string           `json:"fingerprint"`
	CorrelationID  string            `json:"correlation_id"`
	Source         string            `json:"source"`
	Revision       int64             `json:"revision"`
	EmittedAt      store.Time        `json:"emitted_at"`
	AccountID      store.AccountID   `json:"account_id"`
}

func viewSignals(signals []store.Signal) []signalView {
	out := make([]signalView, len(signals))
	for i, s := range signals {
		out[i] = signalView{ID: s.ID, Kind: s.Kind, Severity: s.Severity, NodeID: orNull(s.NodeID), NodeInstanceID: orNull(s.NodeInstanceID),
			ModuleID: orNull(s.ModuleID), ClusterID: orNull(s.ClusterID), NetworkID: orNull(s.NetworkID), Payload: s.Payload,
			Fingerprint: orNull(s.Fingerprint), CorrelationID: s.CorrelationID, Source: s.Source, Revision: s.Revision,
			EmittedAt: s.EmittedAt, AccountID: s.AccountID}
	}
	return out
}

type recentSignalsArgs struct {
	Limit         int     `json:"limit"`
	Kind          *string `json:"kind"`
	CorrelationID *string `json:"correlation_id"`
}

type recentSignalsResult struct {
	Events   []signalView `json:"events"`
	Count    int          `json:"count"`
	Channel  string       `json:"channel"`
	Warnings []Warning    `json:"warnings"`
}

func recentSignals() *Definition {
	return define("system_recent_signals", handler[recentSignalsArgs, recentSignalsResult]{
		check: func(_ context.Context, _ *Platform, _ *store.View, _ Caller, a recentSignalsArgs) error {
			if a.Kind == nil || signal.Known(*a.Kind) {
				return nil
			}
			return schema.InvalidArgument("/kind", *a.Kind, "unknown signal kind %s", shortQuote(*a.Kind)).
				WithCandidates(signal.Near(*a.Kind))
		},
		read: func(ctx context.Context, _ *Platform, v *store.View, c Caller, a recentSignalsArgs) (recentSignalsResult, error) {
			r := recentSignalsResult{Channel: "system_fleet:" + string(c.AccountID), Warnings: []Warning{}}
			kind := orEmpty(a.Kind)
			if a.CorrelationID != nil && kind != "" {
				kind = ""
				r.Warnings = append(r.Warnings, Warning{Code: "kind_ignored", Text: "correlation_id wins over kind"})
			}
			signals, err := store.LatestSignals(ctx, v, c.AccountID, kind, orEmpty(a.CorrelationID), a.Limit)
			r.Events, r.Count = viewSignals(signals), len(signals)
			return r, err
		},
	})
}

type watchArgs struct {
	After       *string `json:"after"`
	KindPrefix  *string `json:"kind_prefix"`
	SeverityMin *string `json:"severity_min"`
	Limit       int     `json:"limit"`
	WaitSeconds int     `json:"wait_seconds"`
}

type watchResult struct {
	Events    []signalView `json:"events"`
	Count     int          `json:"count"`
	NextAfter string       `json:"next_after"`
	TimedOut  bool         `json:"timed_out"`
}

// watched is where a watcher goes on: after a signal's number, of this account and with this filter.
type watched struct {
	After   int64           `json:"a"`
	Account store.AccountID `json:"c"`
	Prefix  string          `json:"p"`
	Min     string          `json:"m"`
}

func (w watched) String() string {
	b, _ := json.Marshal(w) // three texts and a number always encode
	return base64.RawURLEncoding.EncodeToString(b)
}

// watchedFrom reads where a watcher goes on; one of another filter or account is not ours.
func watchedFrom(c Caller, a watchArgs) (watched, bool) {
	here := watched{Account: c.AccountID, Prefix: orEmpty(a.KindPrefix), Min: orEmpty(a.SeverityMin)}
	if a.After == nil {
		return here, true
	}
	var given watched
	b, err := base64.RawURLEncoding.DecodeString(*a.After)
	if err != nil || json.Unmarshal(b, &given) != nil || given.After < 0 {
		return here, false
	}
	here.After = given.After
	return here, here == given
}

func watchSignals() *Definition {
	return define("system_watch_signals", handler[watchArgs, watchResult]{
		check: func(ctx context.Context, _ *Platform, v *store.View, c Caller, a watchArgs) error {
			at, ours := watchedFrom(c, a)
			if !ours {
				return schema.InvalidArgument("/after", *a.After, "cursor is not one that this verb issued")
			}
			if a.KindPrefix != nil && len(signal.WithPrefix(*a.KindPrefix)) == 0 {
				return schema.InvalidArgument("/kind_prefix", *a.KindPrefix, "unknown signal kind %s: no kind begins so at a dot or word border",
					shortQuote(*a.KindPrefix)).WithCandidates(signal.Near(*a.KindPrefix))
			}
			if a.After == nil {
				return nil
			}
			return retained(ctx, v, at)
		},
		wait: awaitSignals,
	})
}

// retained refuses a place below which retention has removed signals: one of them may be missed from there on.
func retained(ctx context.Context, v *store.View, at watched) error {
	horizon, err := store.SignalHorizon(ctx, v, at.Account)
	if err != nil || at.After >= horizon {
		return err
	}
	at.After = horizon
	return schema.Errorf(schema.PreconditionFailed, "the cursor is older than what is kept: signals after it may be gone").
		WithDetail("oldest", at.String()).WithHint("system_watch_signals", "Pass details.oldest as after, or no after to go on from now.")
}

func awaitSignals(ctx context.Context, p *Platform, c Caller, a watchArgs) (watchResult, error) {
	at, _ := watchedFrom(c, a)
	var kinds []string
	if a.KindPrefix != nil {
		kinds = signal.WithPrefix(*a.KindPrefix)
	}
	severities := signal.AtLeast(orEmpty(a.SeverityMin))
	timeout := time.NewTimer(time.Duration(a.WaitSeconds) * time.Second)
	defer timeout.Stop()
	fromNow := a.After == nil
	for {
		changed := p.DB.Watch(store.TopicSignals(c.AccountID)) // first watch, then read: nothing is missed in between
		r := watchResult{Events: []signalView{}}
		err := p.DB.View(ctx, func(v *store.View) error {
			return readWatched(ctx, v, c, a.Limit, kinds, severities, &at, &fromNow, &r)
		})
		if err != nil || r.Count > 0 {
			return r, err
		}
		if a.WaitSeconds == 0 {
			r.TimedOut = true
			return r, nil
		}
		select {
		case <-changed:
		case <-timeout.C:
			r.TimedOut = true
			return r, nil
		case <-ctx.Done():
			return r, schema.Errorf(schema.Unavailable, "the wait was ended")
		}
	}
}

// readWatched reads what has come after the watcher's place, and moves the place on.
func readWatched(ctx context.Context, v *store.View, c Caller, limit int, kinds, severities []string, at *watched, fromNow *bool, r *watchResult) error {
	last, err := store.LastSignal(ctx, v)
	if err != nil {
		return fmt.Errorf("read the last signal: %w", err)
	}
	if *fromNow {
		at.After, *fromNow = last, false
	}
	signals, err := store.SignalsAfter(ctx, v, c.AccountID, at.After, kinds, severities, limit)
	if err != nil {
		return fmt.Errorf("read signals: %w", err)
	}
	switch {
	case len(signals) == limit:
		at.After = signals[len(signals)-1].Sequence
	case last > at.After:
		at.After = last // nothing up to here fits the filter
	}
	r.Events, r.Count, r.NextAfter = viewSignals(signals), len(signals), at.String()
	return nil
}

func orNull[T ~string](s T) *T {
	if s == "" {
		return nil
	}
	return &s
}
