package tools

import (
	"context"
	"time"

	"powernode/platform/fleet"
	"powernode/schema"
	"powernode/store"
)

func cordonVerbs() []*Definition {
	return []*Definition{cordonInstance(), uncordonInstance(), drainInstance(), replaceInstance(), holdInstance(), releaseInstanceHold(),
		instanceHoldStatus()}
}

type cordonArgs struct {
	InstanceID store.InstanceID `json:"instance_id"`
	Reason     string           `json:"reason"`
}

type cordonResult struct {
	InstanceID store.InstanceID `json:"instance_id"`
	Cordoned   bool             `json:"cordoned"`
	Cordon     *store.Cordon    `json:"cordon"`
	Status     string           `json:"status"`
	Written
}

func (r *cordonResult) tell(i store.Instance, warnings []fleet.Warning) {
	r.InstanceID, r.Cordoned, r.Cordon, r.Status = i.ID, i.Cordon.V != nil, i.Cordon.V, i.Status
	r.warned(warnings)
}

func cordonInstance() *Definition {
	return define("system_cordon_instance", handler[cordonArgs, cordonResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a cordonArgs) error {
			return p.Fleet.CheckCordon(ctx, v, c.AccountID, a.InstanceID, c.ID)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a cordonArgs) (r cordonResult, err error) {
			i, warnings, err := p.Fleet.Cordon(ctx, tx, c.AccountID, a.InstanceID, c.ID, a.Reason)
			r.tell(i, warnings)
			return r, err
		},
	})
}

func uncordonInstance() *Definition {
	return define("system_uncordon_instance", handler[instanceArgs, cordonResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a instanceArgs) error {
			return p.Fleet.CheckUncordon(ctx, v, c.AccountID, a.InstanceID)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a instanceArgs) (r cordonResult, err error) {
			i, warnings, err := p.Fleet.Uncordon(ctx, tx, c.AccountID, a.InstanceID)
			r.tell(i, warnings)
			return r, err
		},
	})
}

type drainArgs struct {
	InstanceID     store.InstanceID `json:"instance_id"`
	TimeoutSeconds int64            `json:"timeout_seconds"`
}

type drainResult struct {
	InstanceID store.InstanceID `json:"instance_id"`
	Task       taskObject       `json:"task"`
	Cordon     *store.Cordon    `json:"cordon"`
	Written
}

func drainInstance() *Definition {
	return define("system_drain_instance", handler[drainArgs, drainResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a drainArgs) error {
			return p.Fleet.CheckDrain(ctx, v, c.AccountID, a.InstanceID)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a drainArgs) (r drainResult, err error) {
			t, i, err := p.Fleet.Drain(ctx, tx, c.AccountID, a.InstanceID, a.TimeoutSeconds)
			r.InstanceID, r.Task, r.Cordon, r.Hint = i.ID, taskOf(t), i.Cordon.V, taskHint(t)
			return r, err
		},
	})
}

// taskHint tells where to look for the end of what an answer has only begun.
func taskHint(t store.Task) *schema.Hint {
	if !t.Open() {
		return nil
	}
	return &schema.Hint{Verb: "system_get_task", Text: "Pass the task's id and wait_seconds to wait for its end."}
}

type replaceArgs struct {
	InstanceID    store.InstanceID `json:"instance_id"`
	OperationID   string           `json:"operation_id"`
	PoolID        string           `json:"pool_id"`
	PoolName      string           `json:"pool_name"`
	Reason        string           `json:"reason"`
	Reap          bool             `json:"reap"`
	AcceptRunning bool             `json:"accept_running"`
}

func (a replaceArgs) input() fleet.ReplaceInput {
	return fleet.ReplaceInput{InstanceID: a.InstanceID, OperationID: a.OperationID, Reason: a.Reason, Reap: a.Reap, AcceptRunning: a.AcceptRunning}
}

type replacePlan struct {
	Steps                  []string             `json:"steps"`
	Name                   string               `json:"name"`
	NodeID                 store.NodeID         `json:"node_id"`
	ProviderRegionID       store.RegionID       `json:"provider_region_id"`
	ProviderInstanceTypeID store.InstanceTypeID `json:"provider_instance_type_id"`
	ClusterID              *store.ClusterID     `json:"cluster_id"`
	NetworkIDs             []store.NetworkID    `json:"network_ids"`
}

type replaceResult struct {
	Plan                replacePlan      `json:"plan"`
	Task                taskObject       `json:"task"`
	ReplacementInstance *instanceSummary `json:"replacement_instance"`
	Written
}

func replaceInstance() *Definition {
	return define("system_replace_instance", handler[replaceArgs, replaceResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a replaceArgs) error {
			if a.PoolID != "" || a.PoolName != "" {
				return schema.Errorf(schema.PreconditionFailed, "not available yet: pools")
			}
			return p.Fleet.CheckReplace(ctx, v, c.AccountID, a.input())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a replaceArgs) (r replaceResult, err error) {
			plan, t, err := p.Fleet.Replace(ctx, tx, c.AccountID, a.input())
			if err != nil {
				return r, err
			}
			i := plan.Instance
			r.Plan = replacePlan{Steps: plan.Steps, Name: i.Name, NodeID: i.NodeID, ProviderRegionID: i.RegionID,
				ProviderInstanceTypeID: i.InstanceTypeID, ClusterID: orNull(plan.ClusterID), NetworkIDs: plan.Networks}
			r.Task, r.Hint = taskOf(t), taskHint(t)
			fresh, err := fleet.Replacement(ctx, &tx.View, t)
			if err != nil || fresh == nil {
				return r, err
			}
			told, err := summariseInstance(ctx, &tx.View, *fresh)
			r.ReplacementInstance = &told
			return r, err
		},
	})
}

func holdOf(id store.InstanceID, h store.Hold) instanceHold {
	return instanceHold{InstanceID: id, Reason: h.Reason, By: h.By, Since: h.Since, ExpiresAt: h.ExpiresAt}
}

type holdArgs struct {
	InstanceID store.InstanceID `json:"instance_id"`
	Reason     string           `json:"reason"`
	TTLHours   int              `json:"ttl_hours"`
}

type holdResult struct {
	Hold instanceHold `json:"hold"`
	Written
}

func holdInstance() *Definition {
	return define("system_instance_hold", handler[holdArgs, holdResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a holdArgs) error {
			return p.Fleet.CheckHold(ctx, v, c.AccountID, a.InstanceID)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a holdArgs) (r holdResult, err error) {
			i, err := p.Fleet.Hold(ctx, tx, c.AccountID, a.InstanceID, a.Reason, c.ID, time.Duration(a.TTLHours)*time.Hour)
			if err != nil {
				return r, err
			}
			r.Hold = holdOf(i.ID, *i.Hold.V)
			return r, nil
		},
	})
}

type releaseHoldResult struct {
	Released bool         `json:"released"`
	Hold     instanceHold `json:"hold"`
	Written
}

func releaseInstanceHold() *Definition {
	return define("system_release_instance_hold", handler[instanceArgs, releaseHoldResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a instanceArgs) error {
			return p.Fleet.CheckRelease(ctx, v, c.AccountID, a.InstanceID)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a instanceArgs) (r releaseHoldResult, err error) {
			was, err := p.Fleet.Release(ctx, tx, c.AccountID, a.InstanceID)
			return releaseHoldResult{Released: err == nil, Hold: holdOf(a.InstanceID, was)}, err
		},
	})
}

type holdStatusResult struct {
	Held bool          `json:"held"`
	Hold *instanceHold `json:"hold"`
}

func instanceHoldStatus() *Definition {
	return define("system_instance_hold_status", handler[instanceArgs, holdStatusResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a instanceArgs) (r holdStatusResult, err error) {
			i, err := fleet.InstanceByID(ctx, v, c.AccountID, a.InstanceID)
			if err != nil {
				return r, err
			}
			if h := fleet.HoldInForce(v, i); h != nil {
				told := holdOf(i.ID, *h)
				r.Held, r.Hold = true, &told
			}
			return r, nil
		},
	})
}
