package tools

import (
	"context"
	"sort"

	"powernode/platform/cluster"
	"powernode/platform/fleet"
	"powernode/platform/governance"
	"powernode/store"
)

func assignmentVerbs() []*Definition {
	return []*Definition{listNodeModuleAssignments(), assignModuleToNode(), updateModuleAssignment(), applyTemplate()}
}

type assignmentObject struct {
	ID                     store.AssignmentID      `json:"id"`
	NodeID                 store.NodeID            `json:"node_id"`
	NodeModuleID           store.ModuleID          `json:"node_module_id"`
	ModuleName             string                  `json:"module_name"`
	Enabled                bool                    `json:"enabled"`
	Priority               int64                   `json:"priority"`
	Config                 store.Object            `json:"config"`
	SourceTemplateModuleID *store.TemplateModuleID `json:"source_template_module_id"`
	SourceTemplateID       *store.TemplateID       `json:"source_template_id"`
	AutoResolved           bool                    `json:"auto_resolved"`
	Target                 *cluster.Target         `json:"target"`
	DisabledBy             *string                 `json:"disabled_by"`
	CreatedAt              store.Time              `json:"created_at"`
	UpdatedAt              store.Time              `json:"updated_at"`
}

func assignmentOf(ctx context.Context, p *Platform, v *store.View, a store.Assignment) (assignmentObject, error) {
	target, err := p.Cluster.AssignmentTarget(ctx, v, a.AccountID, a)
	return assignmentObject{ID: a.ID, NodeID: a.NodeID, NodeModuleID: a.ModuleID, ModuleName: a.ModuleName, Enabled: a.Enabled,
		Priority: a.Priority, Config: a.Config.V, SourceTemplateModuleID: orNull(a.SourceTemplateModuleID),
		SourceTemplateID: orNull(a.SourceTemplateID), AutoResolved: a.AutoResolved, Target: target, DisabledBy: orNull(a.DisabledBy),
		CreatedAt: a.CreatedAt, UpdatedAt: a.UpdatedAt}, err
}

type listAssignmentsArgs struct {
	NodeID store.NodeID `json:"node_id"`
	Limit  int          `json:"limit"`
	Cursor string       `json:"cursor"`
}

type listAssignmentsResult struct {
	Assignments []assignmentObject `json:"assignments"`
	Page
}

func listNodeModuleAssignments() *Definition {
	const verb = "system_list_node_module_assignments"
	return define(verb, handler[listAssignmentsArgs, listAssignmentsResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a listAssignmentsArgs) (r listAssignmentsResult, err error) {
			n, err := fleet.NodeByID(ctx, v, c.AccountID, a.NodeID)
			if err != nil {
				return r, err
			}
			all, err := store.AssignmentsByNode(ctx, v, c.AccountID, n.ID)
			if err != nil {
				return r, err
			}
			sort.Slice(all, func(i, j int) bool { return all[i].ModuleName < all[j].ModuleName })
			all, r.Page, err = page(verb, n.ID, a.Limit, a.Cursor, all, func(a store.Assignment) string { return string(a.ID) })
			if err != nil {
				return r, err
			}
			r.Assignments = []assignmentObject{}
			for _, assignment := range all {
				told, err := assignmentOf(ctx, p, v, assignment)
				if err != nil {
					return r, err
				}
				r.Assignments = append(r.Assignments, told)
			}
			return r, nil
		},
	})
}

type assignToNodeArgs struct {
	NodeID   store.NodeID   `json:"node_id"`
	ModuleID store.ModuleID `json:"module_id"`
	Enabled  bool           `json:"enabled"`
	Priority *int64         `json:"priority"`
	Config   store.Object   `json:"config"`
}

func (a assignToNodeArgs) input() fleet.AssignmentInput {
	return fleet.AssignmentInput{NodeID: a.NodeID, ModuleID: a.ModuleID, Enabled: a.Enabled, Priority: a.Priority, Config: a.Config}
}

type assignToNodeResult struct {
	Assigned   bool             `json:"assigned"`
	Assignment assignmentObject `json:"assignment"`
	Written
}

func assignModuleToNode() *Definition {
	return define("system_assign_module_to_node", handler[assignToNodeArgs, assignToNodeResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a assignToNodeArgs) error {
			return p.Fleet.CheckAssignToNode(ctx, v, c.AccountID, a.input())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a assignToNodeArgs) (r assignToNodeResult, err error) {
			written, warnings, err := p.Fleet.AssignToNode(ctx, tx, c.AccountID, a.input(), c.ID)
			if err != nil {
				return r, err
			}
			r.Assigned = true
			r.warned(warnings)
			r.Assignment, err = assignmentOf(ctx, p, &tx.View, written)
			return r, err
		},
	})
}

type updateAssignmentArgs struct {
	AssignmentID store.AssignmentID `json:"assignment_id"`
	Enabled      *bool              `json:"enabled"`
	Priority     *int64             `json:"priority"`
	Config       store.Object       `json:"config"`
}

func (a updateAssignmentArgs) change() fleet.AssignmentChange {
	return fleet.AssignmentChange{Enabled: a.Enabled, Priority: a.Priority, Config: a.Config}
}

type updateAssignmentResult struct {
	Updated    bool             `json:"updated"`
	Assignment assignmentObject `json:"assignment"`
	Written
}

func updateModuleAssignment() *Definition {
	return define("system_update_module_assignment", handler[updateAssignmentArgs, updateAssignmentResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a updateAssignmentArgs) error {
			if a.Enabled == nil && a.Priority == nil && a.Config == nil {
				return nothingToUpdate("enabled", "priority", "config")
			}
			return p.Fleet.CheckUpdateAssignment(ctx, v, c.AccountID, a.AssignmentID, a.change())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a updateAssignmentArgs) (r updateAssignmentResult, err error) {
			written, warnings, err := p.Fleet.UpdateAssignment(ctx, tx, c.AccountID, a.AssignmentID, a.change(), c.ID)
			if err != nil {
				return r, err
			}
			r.Updated = true
			r.warned(warnings)
			r.Assignment, err = assignmentOf(ctx, p, &tx.View, written)
			return r, err
		},
	})
}

type applyTemplateArgs struct {
	NodeID     store.NodeID `json:"node_id"`
	DryRun     bool         `json:"dry_run"`
	PurgeStale bool         `json:"purge_stale"`
}

type appliedItem struct {
	AssignmentID *store.AssignmentID      `json:"assignment_id"`
	ModuleID     store.ModuleID           `json:"module_id"`
	ModuleName   string                   `json:"module_name"`
	Reason       *string                  `json:"reason"`
	Changes      map[string]fleet.Changed `json:"changes"`
}

func appliedItemOf(i fleet.AppliedItem) appliedItem {
	return appliedItem{AssignmentID: orNull(i.AssignmentID), ModuleID: i.ModuleID, ModuleName: i.ModuleName, Reason: orNull(i.Reason), Changes: i.Changes}
}

type applyTemplateResult struct {
	NodeID           store.NodeID       `json:"node_id"`
	TemplateID       store.TemplateID   `json:"template_id"`
	DryRun           bool               `json:"dry_run"`
	Created          []appliedItem      `json:"created"`
	Updated          []appliedItem      `json:"updated"`
	Skipped          []appliedItem      `json:"skipped"`
	Purged           []appliedItem      `json:"purged"`
	WokenInstanceIDs []store.InstanceID `json:"woken_instance_ids"`
	Written
}

func applyTemplateResultOf(a fleet.Applied, dry bool) applyTemplateResult {
	r := applyTemplateResult{NodeID: a.NodeID, TemplateID: a.TemplateID, DryRun: dry, Created: mapped(a.Created, appliedItemOf),
		Updated: mapped(a.Updated, appliedItemOf), Skipped: mapped(a.Skipped, appliedItemOf), Purged: mapped(a.Purged, appliedItemOf),
		WokenInstanceIDs: a.Woken, Written: Written{dry: dry}}
	r.warned(a.Warnings)
	return r
}

func applyTemplate() *Definition {
	return define("system_apply_template", handler[applyTemplateArgs, applyTemplateResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a applyTemplateArgs) error {
			_, err := p.Fleet.PlanApply(ctx, v, c.AccountID, a.NodeID, a.PurgeStale)
			return err
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a applyTemplateArgs) (applyTemplateResult, error) {
			if a.DryRun {
				planned, err := p.Fleet.PlanApply(ctx, &tx.View, c.AccountID, a.NodeID, a.PurgeStale)
				return applyTemplateResultOf(planned, true), err
			}
			applied, err := p.Fleet.Apply(ctx, tx, c.AccountID, a.NodeID, a.PurgeStale)
			return applyTemplateResultOf(applied, false), err
		},
		categoryIn: func(_ context.Context, _ *Platform, _ *store.View, c Caller, a applyTemplateArgs) (string, error) {
			switch {
			case a.DryRun:
				return "", nil // nothing is written, gated or woken
			case a.PurgeStale:
				return "system.template_apply_purge", nil
			case c.Kind == governance.KindPlatform:
				return "system.template_apply_drift", nil // the remedy of a drift that a sensor has found
			}
			return "system.template_apply", nil
		},
	})
}
