package tools

import (
	"context"

	"powernode/platform/fleet"
	"powernode/store"
)

func powerVerbs() []*Definition {
	return []*Definition{startInstance(), stopInstance(), rebootInstance(), reapInstance(), destroyInstance()}
}

type powerResult struct {
	Action   string          `json:"action"`
	Instance instanceSummary `json:"instance"`
	Written

	intent fleet.Powered
}

// powered is the behaviour of a verb that lets the provider act on a machine.
func powered[A any](asks func(A) fleet.PowerInput) handler[A, powerResult] {
	return handler[A, powerResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a A) error {
			return p.Fleet.CheckPower(ctx, v, c.AccountID, asks(a))
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a A) (r powerResult, err error) {
			r.intent, err = p.Fleet.Power(ctx, tx, c.AccountID, asks(a))
			return r, err
		},
		act: func(ctx context.Context, p *Platform, c Caller, a A, r powerResult) outcome[powerResult] {
			outside := p.Fleet.PowerMachine(ctx, r.intent)
			return func(ctx context.Context, tx *store.Tx) (powerResult, error, error) {
				i, refusal, err := p.Fleet.FinishPower(ctx, tx, r.intent, outside)
				if err != nil || refusal != nil {
					return r, refusal, err
				}
				r.Action = asks(a).Action
				r.Instance, err = summariseInstance(ctx, &tx.View, i)
				return r, nil, err
			}
		},
	}
}

type startArgs struct {
	InstanceID  store.InstanceID `json:"instance_id"`
	OperationID string           `json:"operation_id"`
}

func startInstance() *Definition {
	return define("system_start_instance", powered(func(a startArgs) fleet.PowerInput {
		return fleet.PowerInput{InstanceID: a.InstanceID, Action: fleet.ActionStart, OperationID: a.OperationID}
	}))
}

type stopArgs struct {
	InstanceID  store.InstanceID `json:"instance_id"`
	OperationID string           `json:"operation_id"`
	Force       bool             `json:"force"`
}

func stopInstance() *Definition {
	h := powered(func(a stopArgs) fleet.PowerInput {
		return fleet.PowerInput{InstanceID: a.InstanceID, Action: fleet.ActionStop, Force: a.Force, OperationID: a.OperationID}
	})
	h.category = func(a stopArgs) string { return forced("system.task.stop", a) }
	return define("system_stop_instance", h)
}

func rebootInstance() *Definition {
	h := powered(func(a stopArgs) fleet.PowerInput {
		return fleet.PowerInput{InstanceID: a.InstanceID, Action: fleet.ActionReboot, Force: a.Force, OperationID: a.OperationID}
	})
	h.category = func(a stopArgs) string { return forced("system.task.reboot", a) }
	return define("system_reboot_instance", h)
}

// forced is the category of a call, which force moves to one of its own.
func forced(category string, a stopArgs) string {
	if a.Force {
		return category + "_force"
	}
	return category
}

type reapArgs struct {
	InstanceID    store.InstanceID `json:"instance_id"`
	OperationID   string           `json:"operation_id"`
	Reason        string           `json:"reason"`
	AcceptRunning bool             `json:"accept_running"`
}

func (a reapArgs) input() fleet.ReapInput {
	return fleet.ReapInput{InstanceID: a.InstanceID, Reason: a.Reason, AcceptRunning: a.AcceptRunning}
}

type reapResult struct {
	Reaped   bool            `json:"reaped"`
	Instance instanceSummary `json:"instance"`
	Written

	intent fleet.Ending
}

func reapInstance() *Definition {
	return define("system_reap_instance", handler[reapArgs, reapResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a reapArgs) error {
			return p.Fleet.CheckReap(ctx, v, c.AccountID, a.input())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a reapArgs) (r reapResult, err error) {
			r.intent, err = p.Fleet.Reap(ctx, tx, c.AccountID, a.input())
			return r, err
		},
		act: func(ctx context.Context, p *Platform, c Caller, a reapArgs, r reapResult) outcome[reapResult] {
			outside := p.Fleet.EndMachine(ctx, r.intent)
			return func(ctx context.Context, tx *store.Tx) (reapResult, error, error) {
				i, refusal, err := p.Fleet.FinishTerminate(ctx, tx, r.intent, outside)
				if err != nil || refusal != nil {
					return r, refusal, err
				}
				r.Reaped, r.Revision = true, &i.Revision
				r.Instance, err = summariseInstance(ctx, &tx.View, i)
				return r, nil, err
			}
		},
	})
}

type destroyResult struct {
	Destroyed            bool             `json:"destroyed"`
	InstanceID           store.InstanceID `json:"instance_id"`
	Name                 string           `json:"name"`
	SDWANPeersDestroyed  int64            `json:"sdwan_peers_destroyed"`
	DependentRowsDeleted map[string]int64 `json:"dependent_rows_deleted"`
	Written

	intent fleet.Destroyed
}

func destroyInstance() *Definition {
	return define("system_destroy_instance", handler[instanceArgs, destroyResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a instanceArgs) error {
			return p.Fleet.CheckDestroy(ctx, v, c.AccountID, a.InstanceID)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a instanceArgs) (r destroyResult, err error) {
			r.intent, err = p.Fleet.Destroy(ctx, tx, c.AccountID, a.InstanceID)
			return r, err
		},
		act: func(ctx context.Context, p *Platform, c Caller, a instanceArgs, r destroyResult) outcome[destroyResult] {
			outside := p.Fleet.LookForMachine(ctx, r.intent)
			return func(ctx context.Context, tx *store.Tx) (destroyResult, error, error) {
				d, refusal, err := p.Fleet.FinishDestroy(ctx, tx, r.intent, outside)
				if err != nil || refusal != nil {
					return r, refusal, err
				}
				r.Destroyed, r.InstanceID, r.Name = true, d.Instance.ID, d.Instance.Name
				r.SDWANPeersDestroyed, r.DependentRowsDeleted = d.Peers, d.DependentRows
				r.warned(d.Warnings)
				return r, nil, nil
			}
		},
	})
}
