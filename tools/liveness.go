package tools

import (
	"context"
	"time"

	"powernode/platform/fleet"
	"powernode/store"
)

func livenessVerbs() []*Definition { return []*Definition{getSilentInstances(), driftReport()} }

type silentArgs struct {
	ThresholdSeconds int    `json:"threshold_seconds"`
	Limit            int    `json:"limit"`
	Cursor           string `json:"cursor"`
}

type silentResult struct {
	SilentCount      int64             `json:"silent_count"`
	ThresholdSeconds int64             `json:"threshold_seconds"`
	Cutoff           store.Time        `json:"cutoff"`
	Instances        []instanceSummary `json:"instances"`
	Page
}

func getSilentInstances() *Definition {
	const verb = "system_get_silent_instances"
	return define(verb, handler[silentArgs, silentResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a silentArgs) (r silentResult, err error) {
			r.ThresholdSeconds, r.Cutoff = int64(a.ThresholdSeconds), store.At(v.Now().Add(-time.Duration(a.ThresholdSeconds)*time.Second))
			all, err := fleet.Silent(ctx, v, c.AccountID, r.Cutoff)
			if err != nil {
				return r, err
			}
			all, r.Page, err = page(verb, a.ThresholdSeconds, a.Limit, a.Cursor, all, func(i store.Instance) string { return string(i.ID) })
			if err != nil {
				return r, err
			}
			r.SilentCount, r.Instances = r.Count, []instanceSummary{}
			for _, i := range all {
				told, err := summariseInstance(ctx, v, i)
				if err != nil {
					return r, err
				}
				r.Instances = append(r.Instances, told)
			}
			return r, nil
		},
	})
}

type driftResult struct {
	Drift           bool                                `json:"drift"`
	MissingCount    int64                               `json:"missing_count"`
	ExtraCount      int64                               `json:"extra_count"`
	MismatchedCount int64                               `json:"mismatched_count"`
	Missing         []store.ModuleID                    `json:"missing"`
	Extra           []store.ModuleID                    `json:"extra"`
	Mismatched      map[store.ModuleID]fleet.DigestPair `json:"mismatched"`
	NotMeasured     []store.ModuleID                    `json:"not_measured"`
	LastHeartbeatAt *store.Time                         `json:"last_heartbeat_at"`
}

func driftReport() *Definition {
	return define("system_drift_report", handler[instanceArgs, driftResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a instanceArgs) (r driftResult, err error) {
			i, err := fleet.InstanceByID(ctx, v, c.AccountID, a.InstanceID)
			if err != nil {
				return r, err
			}
			report, err := lastReport(ctx, v, i.ID)
			if err != nil {
				return r, err
			}
			d, err := fleet.ModuleDriftOf(ctx, v, i, report)
			if report != nil {
				r.LastHeartbeatAt = &report.ReceivedAt
			}
			r.Drift, r.Missing, r.Extra, r.Mismatched, r.NotMeasured = d.Any(), d.Missing, d.Extra, d.Mismatched, d.NotMeasured
			r.MissingCount, r.ExtraCount, r.MismatchedCount = int64(len(d.Missing)), int64(len(d.Extra)), int64(len(d.Mismatched))
			return r, err
		},
	})
}
