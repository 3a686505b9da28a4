package tools

import (
	"context"
	"strings"

	"powernode/platform/fleet"
	"powernode/schema"
	"powernode/store"
)

func nodeVerbs() []*Definition {
	return []*Definition{createNode(), updateNode(), listNodes(), getNode(), deleteNode()}
}

type nodeSummary struct {
	ID         store.NodeID     `json:"id"`
	Name       string           `json:"name"`
	TemplateID store.TemplateID `json:"template_id"`
	WorkerID   *string          `json:"worker_id"`
	Enabled    bool             `json:"enabled"`
	CreatedAt  store.Time       `json:"created_at"`
}

type nodeFull struct {
	nodeSummary
	Description       string            `json:"description"`
	TemplateName      string            `json:"template_name"`
	PublicAddress     *string           `json:"public_address"`
	AllocatePublicIP  bool              `json:"allocate_public_ip"`
	Config            store.Object      `json:"config"`
	InstanceCount     int               `json:"instance_count"`
	ModuleCount       int               `json:"module_count"`
	AppliedTemplateID *store.TemplateID `json:"applied_template_id"`
	UpdatedAt         store.Time        `json:"updated_at"`
}

func nodeSummaryOf(n store.Node) nodeSummary {
	return nodeSummary{ID: n.ID, Name: n.Name, TemplateID: n.TemplateID, WorkerID: orNull(n.WorkerID), Enabled: n.Enabled, CreatedAt: n.CreatedAt}
}

func nodeFullOf(ctx context.Context, v *store.View, n store.Node) (nodeFull, error) {
	t, err := store.TemplateByID(ctx, v, n.AccountID, n.TemplateID)
	if err != nil {
		return nodeFull{}, err
	}
	live, err := fleet.LiveInstances(ctx, v, n.AccountID, n.ID)
	if err != nil {
		return nodeFull{}, err
	}
	assigned, err := store.AssignmentsByNode(ctx, v, n.AccountID, n.ID)
	return nodeFull{nodeSummary: nodeSummaryOf(n), Description: n.Description, TemplateName: t.Name, PublicAddress: orNull(n.PublicAddress),
		AllocatePublicIP: n.AllocatePublicIP, Config: n.Config.V, InstanceCount: len(live), ModuleCount: len(assigned),
		AppliedTemplateID: orNull(n.AppliedTemplateID), UpdatedAt: n.UpdatedAt}, err
}

// applyHint is what a caller does when a node's assignments are not what its template says.
func applyHint() *schema.Hint {
	return &schema.Hint{Verb: "system_apply_template", Text: "Makes the node's assignments what its template says; machines follow at once."}
}

// warned adds what the domain warned of to a result.
func (w *Written) warned(warnings []fleet.Warning) {
	for _, x := range warnings {
		w.Warnings = append(w.Warnings, Warning(x))
	}
}

// nothingToUpdate refuses an update without a field.
func nothingToUpdate(fields ...string) error {
	return schema.InvalidCombination("", "nothing to update — pass at least one of %s", strings.Join(fields, ", "))
}

type createNodeArgs struct {
	Name             string           `json:"name"`
	TemplateID       store.TemplateID `json:"template_id"`
	Description      string           `json:"description"`
	Enabled          bool             `json:"enabled"`
	WorkerID         string           `json:"worker_id"`
	PublicAddress    string           `json:"public_address"`
	AllocatePublicIP bool             `json:"allocate_public_ip"`
	Config           store.Object     `json:"config"`
}

func (a createNodeArgs) input() fleet.NodeInput {
	return fleet.NodeInput{Name: a.Name, TemplateID: a.TemplateID, Description: a.Description, Enabled: a.Enabled, WorkerID: a.WorkerID,
		PublicAddress: a.PublicAddress, AllocatePublicIP: a.AllocatePublicIP, Config: a.Config}
}

type nodeResult struct {
	Node nodeFull `json:"node"`
	Written
}

func createNode() *Definition {
	return define("system_create_node", handler[createNodeArgs, nodeResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a createNodeArgs) error {
			return p.Fleet.CheckCreateNode(ctx, v, c.AccountID, a.input())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a createNodeArgs) (r nodeResult, err error) {
			n, err := p.Fleet.CreateNode(ctx, tx, c.AccountID, a.input())
			if err != nil {
				return r, err
			}
			r.Hint = &schema.Hint{Verb: "system_provision_instance", Text: "Makes a machine for the node."}
			r.Node, err = nodeFullOf(ctx, &tx.View, n)
			return r, err
		},
	})
}

type updateNodeArgs struct {
	NodeID           store.NodeID            `json:"node_id"`
	Name             *string                 `json:"name"`
	Description      *string                 `json:"description"`
	Enabled          *bool                   `json:"enabled"`
	NodeTemplateID   *store.TemplateID       `json:"node_template_id"`
	WorkerID         schema.Nullable[string] `json:"worker_id"`
	PublicAddress    schema.Nullable[string] `json:"public_address"`
	AllocatePublicIP *bool                   `json:"allocate_public_ip"`
	Config           store.Object            `json:"config"`
}

func (a updateNodeArgs) change() fleet.NodeChange {
	return fleet.NodeChange{Name: a.Name, Description: a.Description, Enabled: a.Enabled, TemplateID: a.NodeTemplateID, WorkerID: cleared(a.WorkerID),
		PublicAddress: cleared(a.PublicAddress), AllocatePublicIP: a.AllocatePublicIP, Config: a.Config}
}

func (a updateNodeArgs) empty() bool {
	return a.Name == nil && a.Description == nil && a.Enabled == nil && a.NodeTemplateID == nil && !a.WorkerID.Set && !a.PublicAddress.Set &&
		a.AllocatePublicIP == nil && a.Config == nil
}

// cleared is a text that null clears: "" then, nil where it was not given.
func cleared(n schema.Nullable[string]) *string {
	if !n.Set {
		return nil
	}
	if n.Value == nil {
		return new(string)
	}
	return n.Value
}

type updateNodeResult struct {
	Node             nodeFull `json:"node"`
	AssignmentsStale bool     `json:"assignments_stale"`
	Written
}

func updateNode() *Definition {
	return define("system_update_node", handler[updateNodeArgs, updateNodeResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a updateNodeArgs) error {
			if a.empty() {
				return nothingToUpdate("name", "description", "enabled", "node_template_id", "worker_id", "public_address", "allocate_public_ip", "config")
			}
			return p.Fleet.CheckUpdateNode(ctx, v, c.AccountID, a.NodeID, a.change())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a updateNodeArgs) (r updateNodeResult, err error) {
			n, stale, err := p.Fleet.UpdateNode(ctx, tx, c.AccountID, a.NodeID, a.change())
			if err != nil {
				return r, err
			}
			if r.AssignmentsStale = stale; stale {
				r.Hint = applyHint()
			}
			warnings, err := fleet.Misfits(ctx, &tx.View, n)
			if err != nil {
				return r, err
			}
			r.warned(warnings)
			r.Node, err = nodeFullOf(ctx, &tx.View, n)
			return r, err
		},
	})
}

type listNodesArgs struct {
	TemplateID store.TemplateID `json:"template_id"`
	Limit      int              `json:"limit"`
	Cursor     string           `json:"cursor"`
}

type listNodesResult struct {
	Nodes []nodeSummary `json:"nodes"`
	Page
}

func listNodes() *Definition {
	return define("system_list_nodes", handler[listNodesArgs, listNodesResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a listNodesArgs) error {
			return found(ctx, v, c, a.TemplateID, fleet.TemplateByID)
		},
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a listNodesArgs) (r listNodesResult, err error) {
			all, err := store.Nodes(ctx, v, c.AccountID, a.TemplateID)
			if err != nil {
				return r, err
			}
			all, r.Page, err = page("system_list_nodes", a.TemplateID, a.Limit, a.Cursor, all, func(n store.Node) string { return string(n.ID) })
			r.Nodes = mapped(all, nodeSummaryOf)
			return r, err
		},
	})
}

// mapped is a list as its answer tells it; it is never nil.
func mapped[T, R any](rows []T, tell func(T) R) []R {
	out := make([]R, len(rows))
	for i := range rows {
		out[i] = tell(rows[i])
	}
	return out
}

type nodeArgs struct {
	NodeID store.NodeID `json:"node_id"`
}

type getNodeResult struct {
	Node             nodeFull `json:"node"`
	AssignmentsStale bool     `json:"assignments_stale"`
}

func getNode() *Definition {
	return define("system_get_node", handler[nodeArgs, getNodeResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a nodeArgs) (r getNodeResult, err error) {
			n, err := fleet.NodeByID(ctx, v, c.AccountID, a.NodeID)
			if err != nil {
				return r, err
			}
			if r.AssignmentsStale, err = p.Fleet.AssignmentsStale(ctx, v, n); err != nil {
				return r, err
			}
			r.Node, err = nodeFullOf(ctx, v, n)
			return r, err
		},
	})
}

type deleteNodeResult struct {
	Deleted           bool         `json:"deleted"`
	NodeID            store.NodeID `json:"node_id"`
	Name              string       `json:"name"`
	InstancesCascaded int64        `json:"instances_cascaded"`
	Written
}

func deleteNode() *Definition {
	return define("system_delete_node", handler[nodeArgs, deleteNodeResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a nodeArgs) error {
			return p.Fleet.CheckDeleteNode(ctx, v, c.AccountID, a.NodeID)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a nodeArgs) (r deleteNodeResult, err error) {
			d, err := p.Fleet.DeleteNode(ctx, tx, c.AccountID, a.NodeID)
			r = deleteNodeResult{Deleted: true, NodeID: d.Node.ID, Name: d.Node.Name, InstancesCascaded: d.Instances}
			r.warned(d.Warnings)
			return r, err
		},
	})
}
