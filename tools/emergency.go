package tools

import (
	"context"

	"powernode/platform/governance"
	"powernode/store"
)

type emergencyArgs struct {
	Reason string `json:"reason"`
}

type emergencyStopResult struct {
	Written
	Stopped          bool       `json:"stopped"`
	Since            store.Time `json:"since"`
	PausedUpgradeIDs []string   `json:"paused_upgrade_ids"`
}

func platformEmergencyStop() *Definition {
	return define(governance.VerbStop, handler[emergencyArgs, emergencyStopResult]{
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a emergencyArgs) (emergencyStopResult, error) {
			e, err := p.Governance.Stop(ctx, tx, c.AccountID, a.Reason)
			return emergencyStopResult{Stopped: true, Since: e.Since, PausedUpgradeIDs: []string{}}, err
		},
	})
}

type resumeResult struct {
	Written
	Resumed           bool  `json:"resumed"`
	StoppedForSeconds int64 `json:"stopped_for_seconds"`
}

func platformResume() *Definition {
	return define(governance.VerbResume, handler[emergencyArgs, resumeResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, _ emergencyArgs) error {
			return p.Governance.CheckResume(ctx, v, c.AccountID)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a emergencyArgs) (resumeResult, error) {
			seconds, err := p.Governance.Resume(ctx, tx, c.AccountID, a.Reason)
			return resumeResult{Resumed: true, StoppedForSeconds: seconds}, err
		},
	})
}

// stopped says whether an account's emergency stop is on.
func (p *Platform) stopped(ctx context.Context, v *store.View, acct store.AccountID) (bool, error) {
	e, err := p.Governance.Stopped(ctx, v, acct)
	return e != nil, err
}
