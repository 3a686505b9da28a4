package tools

import (
	"context"
	"time"

	"powernode/platform/fleet"
	"powernode/platform/sensor"
	"powernode/store"
)

type inspectCorrelationArgs struct {
	CorrelationID string `json:"correlation_id"`
}

type inspectCorrelationResult struct {
	CorrelationID   string       `json:"correlation_id"`
	Events          []signalView `json:"events"`
	Count           int          `json:"count"`
	DurationSeconds *float64     `json:"duration_seconds"` // from the first to the last; null: there is none
}

func inspectCorrelation() *Definition {
	return define("system_inspect_correlation", handler[inspectCorrelationArgs, inspectCorrelationResult]{
		read: func(ctx context.Context, _ *Platform, v *store.View, c Caller, a inspectCorrelationArgs) (inspectCorrelationResult, error) {
			signals, err := store.SignalsByCorrelation(ctx, v, c.AccountID, a.CorrelationID)
			r := inspectCorrelationResult{CorrelationID: a.CorrelationID, Events: viewSignals(signals), Count: len(signals)}
			if len(signals) > 0 {
				lasted := signals[len(signals)-1].EmittedAt.Sub(signals[0].EmittedAt.Time).Seconds()
				r.DurationSeconds = &lasted
			}
			return r, err
		},
	})
}

type attributeFailureArgs struct {
	InstanceID    store.InstanceID `json:"instance_id"`
	LookbackHours int              `json:"lookback_hours"`
}

type attributeFailureResult struct {
	InstanceID store.InstanceID `json:"instance_id"`
	Causes     []causeView      `json:"causes"`
	Verdict    string           `json:"verdict"`
}

type causeView struct {
	Rank          int            `json:"rank"`
	Kind          string         `json:"kind"`
	Score         float64        `json:"score"`
	Evidence      []evidenceView `json:"evidence"`
	CorrelationID string         `json:"correlation_id"`
}

// evidenceView is a signal as evidence of a cause.
type evidenceView struct {
	SignalID  store.SignalID `json:"signal_id"`
	Severity  string         `json:"severity"`
	EmittedAt store.Time     `json:"emitted_at"`
	Open      bool           `json:"open"`
	Payload   store.Object   `json:"payload"`
}

func attributeFailure() *Definition {
	return define("system_attribute_failure", handler[attributeFailureArgs, attributeFailureResult]{
		check: func(ctx context.Context, _ *Platform, v *store.View, c Caller, a attributeFailureArgs) error {
			_, err := fleet.InstanceByID(ctx, v, c.AccountID, a.InstanceID)
			return err
		},
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a attributeFailureArgs) (r attributeFailureResult, err error) {
			found, err := p.Sensors().Attribute(ctx, v, c.AccountID, a.InstanceID, time.Duration(a.LookbackHours)*time.Hour)
			r.InstanceID, r.Verdict, r.Causes = a.InstanceID, found.Verdict, []causeView{}
			for i, cause := range found.Causes {
				r.Causes = append(r.Causes, viewCause(i+1, cause))
			}
			return r, err
		},
	})
}

func viewCause(rank int, c sensor.Cause) causeView {
	out := causeView{Rank: rank, Kind: c.Kind, Score: c.Score, CorrelationID: c.CorrelationID, Evidence: []evidenceView{}}
	for _, e := range c.Evidence {
		out.Evidence = append(out.Evidence, evidenceView{SignalID: e.Signal.ID, Severity: e.Signal.Severity, EmittedAt: e.Signal.EmittedAt,
			Open: e.Open, Payload: e.Signal.Payload})
	}
	return out
}
