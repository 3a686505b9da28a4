package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"

	"powernode/platform/signal"
	"powernode/schema"
	"powernode/store"
)

// NodeByID finds a node, or refuses.
func NodeByID(ctx context.Context, v *store.View, acct store.AccountID, id store.NodeID) (store.Node, error) {
	n, err := store.NodeByID(ctx, v, acct, id)
	return n, orNotFound(err, "node not found")
}

// orNotFound gives a look-up that found nothing the words of the contract.
func orNotFound(err error, text string) error {
	if errors.Is(err, store.ErrNoRow) {
		return schema.Errorf(schema.NotFound, "%s", text)
	}
	return err
}

// holder is the row that has a name which another asks for; key is what verbs call its id.
type holder struct{ key, id string }

// free refuses when a look-up by name found another row than the one that may have the name, and names that row.
func free(err error, mine bool, by holder, text string, args ...any) error {
	switch {
	case errors.Is(err, store.ErrNoRow):
		return nil
	case err != nil:
		return err
	case mine:
		return nil
	}
	return schema.Errorf(schema.Conflict, text, args...).WithDetail(by.key, by.id)
}

// NodeInput makes a node.
type NodeInput struct {
	Name             string
	TemplateID       store.TemplateID
	Description      string
	Enabled          bool
	WorkerID         string
	PublicAddress    string
	AllocatePublicIP bool
	Config           store.Object
}

var hostPattern = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)

func checkPublicAddress(address string) error {
	if address == "" {
		return nil
	}
	if _, err := netip.ParseAddr(address); err == nil {
		return nil
	}
	if len(address) <= 253 && hostPattern.MatchString(address) {
		return nil
	}
	return schema.InvalidArgument("/public_address", schema.Printable(address), "public_address must be an address or a host name (got %q)",
		schema.Printable(address))
}

// CheckCreateNode refuses what CreateNode could not do.
func (s *Service) CheckCreateNode(ctx context.Context, v *store.View, acct store.AccountID, in NodeInput) error {
	if err := checkPublicAddress(in.PublicAddress); err != nil {
		return err
	}
	t, err := TemplateByID(ctx, v, acct, in.TemplateID)
	if err != nil {
		return err
	}
	other, err := store.NodeByName(ctx, v, acct, in.Name)
	if err := free(err, false, holder{"node_id", string(other.ID)}, "node name %q is already in use", in.Name); err != nil {
		return err
	}
	if !t.Enabled {
		return schema.Errorf(schema.PreconditionFailed, "template '%s' is disabled", t.Name)
	}
	return nil
}

// CreateNode makes a node. No machine starts.
func (s *Service) CreateNode(ctx context.Context, tx *store.Tx, acct store.AccountID, in NodeInput) (store.Node, error) {
	n := store.Node{ID: store.NodeID(tx.NewID()), AccountID: acct, Name: in.Name, TemplateID: in.TemplateID, Description: in.Description,
		Enabled: in.Enabled, WorkerID: in.WorkerID, PublicAddress: in.PublicAddress, AllocatePublicIP: in.AllocatePublicIP}
	n.Config.V = object(in.Config)
	n, err := store.InsertNode(ctx, tx, n)
	if err != nil {
		return n, err
	}
	return n, audit(ctx, tx, acct, "created", resourceNode, string(n.ID), nil, nodeValues(n))
}

func nodeValues(n store.Node) store.Object {
	return store.Object{"name": n.Name, "template_id": n.TemplateID, "description": n.Description, "enabled": n.Enabled,
		"worker_id": orNull(n.WorkerID), "public_address": orNull(n.PublicAddress), "allocate_public_ip": n.AllocatePublicIP, "config": n.Config.V}
}

// orNull is a text as an audit row tells it: what is empty is null.
func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// object is a free-form object that is never nil.
func object(o store.Object) store.Object {
	if o == nil {
		return store.Object{}
	}
	return o
}

// changed keeps of two value sets what differs.
func changed(before, after store.Object) (old, now store.Object) {
	old, now = store.Object{}, store.Object{}
	for k, v := range after {
		if string(mustJSON(before[k])) != string(mustJSON(v)) {
			old[k], now[k] = before[k], v
		}
	}
	return old, now
}

// NodeChange is what an update of a node gives; nil is not given.
type NodeChange struct {
	Name             *string
	Description      *string
	Enabled          *bool
	TemplateID       *store.TemplateID
	WorkerID         *string // "" clears
	PublicAddress    *string // "" clears
	AllocatePublicIP *bool
	Config           store.Object // nil is not given
}

func (c NodeChange) apply(n store.Node) store.Node {
	set(&n.Name, c.Name)
	set(&n.Description, c.Description)
	set(&n.Enabled, c.Enabled)
	set(&n.TemplateID, c.TemplateID)
	set(&n.WorkerID, c.WorkerID)
	set(&n.PublicAddress, c.PublicAddress)
	set(&n.AllocatePublicIP, c.AllocatePublicIP)
	if c.Config != nil {
		n.Config.V = c.Config
	}
	return n
}

func set[T any](field *T, given *T) {
	if given != nil {
		*field = *given
	}
}

// CheckUpdateNode refuses what UpdateNode could not do.
func (s *Service) CheckUpdateNode(ctx context.Context, v *store.View, acct store.AccountID, id store.NodeID, c NodeChange) error {
	n, err := NodeByID(ctx, v, acct, id)
	if err != nil {
		return err
	}
	if c.PublicAddress != nil {
		if err := checkPublicAddress(*c.PublicAddress); err != nil {
			return err
		}
	}
	if c.TemplateID != nil {
		if _, err := TemplateByID(ctx, v, acct, *c.TemplateID); err != nil {
			return err
		}
	}
	if c.Name == nil {
		return nil
	}
	other, err := store.NodeByName(ctx, v, acct, *c.Name)
	return free(err, other.ID == n.ID, holder{"node_id", string(other.ID)}, "node name %q is already in use", *c.Name)
}

// UpdateNode changes fields of a node. Another template is a pointer alone: assignments and machines stay.
func (s *Service) UpdateNode(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.NodeID, c NodeChange) (n store.Node, stale bool, err error) {
	before, err := NodeByID(ctx, &tx.View, acct, id)
	if err != nil {
		return before, false, err
	}
	n = c.apply(before)
	old, now := changed(nodeValues(before), nodeValues(n))
	if len(now) > 0 {
		if n, err = store.UpdateNode(ctx, tx, n); err != nil {
			return n, false, err
		}
		if err := audit(ctx, tx, acct, "updated", resourceNode, string(n.ID), old, now); err != nil {
			return n, false, err
		}
		if err := s.touchNode(ctx, tx, n, n.PublicAddress != before.PublicAddress); err != nil {
			return n, false, err
		}
	}
	if stale, err = s.AssignmentsStale(ctx, &tx.View, n); err != nil || n.TemplateID == before.TemplateID {
		return n, stale, err
	}
	return n, stale, signal.Emit(ctx, tx, acct, signal.Event{Kind: "system.node_template_changed", Subject: signal.Subject{NodeID: n.ID},
		Payload: store.Object{"old_template_id": before.TemplateID, "new_template_id": n.TemplateID, "assignments_stale": stale}})
}

// touchNode compiles anew for a node's live instances, and for their peers where an endpoint changed.
func (s *Service) touchNode(ctx context.Context, tx *store.Tx, n store.Node, endpoint bool) error {
	instances, err := LiveInstances(ctx, &tx.View, n.AccountID, n.ID)
	if err != nil {
		return err
	}
	for _, i := range instances {
		tx.TouchInstance(i.ID)
		if endpoint {
			if err := touchPeers(ctx, tx, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// touchPeers compiles anew for all that tunnel to an instance.
func touchPeers(ctx context.Context, tx *store.Tx, i store.Instance) error {
	peers, err := store.PeersByInstance(ctx, &tx.View, i.AccountID, i.ID)
	if err != nil {
		return err
	}
	for _, p := range peers {
		tx.TouchNetwork(p.NetworkID)
	}
	return nil
}

// LiveInstances are a node's instances that have not ended.
func LiveInstances(ctx context.Context, v *store.View, acct store.AccountID, node store.NodeID) ([]store.Instance, error) {
	all, err := store.InstancesByNode(ctx, v, acct, node)
	if err != nil {
		return nil, err
	}
	var live []store.Instance
	for _, i := range all {
		if i.Live() {
			live = append(live, i)
		}
	}
	return live, nil
}

// CheckDeleteNode refuses to remove a node that has a machine.
func (s *Service) CheckDeleteNode(ctx context.Context, v *store.View, acct store.AccountID, id store.NodeID) error {
	n, err := NodeByID(ctx, v, acct, id)
	if err != nil {
		return err
	}
	live, err := LiveInstances(ctx, v, acct, id)
	if err != nil || len(live) == 0 {
		return err
	}
	ids := make([]store.InstanceID, len(live))
	for i := range live {
		ids[i] = live[i].ID
	}
	return schema.Errorf(schema.PreconditionFailed, "node '%s' has %d live instance(s)", n.Name, len(live)).WithDetail("instance_ids", ids).
		WithHint("system_terminate_instance", "Terminate the node's instances first.")
}

// DeletedNode is a node that was removed, with how many ended instances went along.
type DeletedNode struct {
	Node      store.Node
	Instances int64
	Warnings  []Warning
}

// DeleteNode removes a node, its assignments and what is left of its ended instances.
func (s *Service) DeleteNode(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.NodeID) (d DeletedNode, err error) {
	n, err := NodeByID(ctx, &tx.View, acct, id)
	if err != nil {
		return d, err
	}
	d.Node = n
	ended, err := store.InstancesByNode(ctx, &tx.View, acct, id)
	if err != nil {
		return d, err
	}
	assigned, err := store.AssignmentsByNode(ctx, &tx.View, acct, id)
	if err != nil {
		return d, err
	}
	for _, a := range assigned {
		if err := audit(ctx, tx, acct, "deleted", resourceAssignment, string(a.ID), assignmentValues(a), nil); err != nil {
			return d, err
		}
	}
	for _, i := range ended {
		warnings, err := Uncleaned(ctx, &tx.View, i)
		if err != nil {
			return d, err
		}
		d.Instances, d.Warnings = d.Instances+1, append(d.Warnings, warnings...)
		if err := forgetInstance(ctx, tx, i); err != nil {
			return d, err
		}
		if err := audit(ctx, tx, acct, "deleted", resourceInstance, string(i.ID), store.Object{"name": i.Name, "status": i.Status}, nil); err != nil {
			return d, err
		}
	}
	if err := store.DeleteNode(ctx, tx, acct, id); err != nil {
		return d, fmt.Errorf("remove a node: %w", err)
	}
	return d, audit(ctx, tx, acct, "deleted", resourceNode, string(id), nodeValues(n), nil)
}
