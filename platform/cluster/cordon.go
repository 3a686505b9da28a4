package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"powernode/schema"
	"powernode/store"
)

// CommandDrain is the task of a server's agent that keeps new work off a Node, moves its pods, or lets work come back.
const CommandDrain = "k8s_drain"

// CommandRemoveNode is the task of a server's agent that deletes a Node and its node password.
const CommandRemoveNode = "k8s_remove_node"

// What a drain task may ask for.
const (
	modeCordon   = "cordon"
	modeDrain    = "drain"
	modeUncordon = "uncordon"
)

// StopForbidden refuses what no policy lifts for a server whose machine is to stand still: the cluster's last healthy
// server while it has workers, and etcd's quorum. Unlike a removal, a stop leaves its etcd member counted.
func (s *Service) StopForbidden(ctx context.Context, v *store.View, acct store.AccountID, id store.InstanceID) error {
	if err := s.RemovalForbidden(ctx, v, acct, id); err != nil {
		return err
	}
	n, err := store.ClusterNodeByInstance(ctx, v, acct, id)
	if errors.Is(err, store.ErrNoRow) || (err == nil && n.Role != RoleServer) {
		return nil
	}
	if err != nil {
		return err
	}
	members, err := store.ClusterNodes(ctx, v, acct, n.ClusterID)
	if err != nil {
		return err
	}
	servers, others, err := serversBeside(ctx, v, n, members)
	if err != nil {
		return err
	}
	if servers == 1 || others >= servers/2+1 || n.Status == NodeDisconnected || n.Status == NodeError {
		return nil
	}
	c, err := store.ClusterByID(ctx, v, acct, n.ClusterID)
	if err != nil {
		return err
	}
	return schema.Errorf(schema.PreconditionFailed, "cluster %s would lose etcd quorum", c.Name).WithDetail("floor", "quorum")
}

// Cordon keeps new work off a member, or with nil lets it come back. It answers the task of the server's agent that does
// so in Kubernetes, or nil where no server is left that could.
func (s *Service) Cordon(ctx context.Context, tx *store.Tx, n store.ClusterNode, cordon *store.Cordon) (*store.TaskID, error) {
	mode := modeCordon
	if cordon == nil {
		mode = modeUncordon
	}
	if err := s.setCordon(ctx, tx, n, cordon); err != nil {
		return nil, err
	}
	return s.askServer(ctx, tx, n, store.Object{"node": n.Name, "mode": mode})
}

// Drain cordons a member and moves its pods elsewhere. It answers the task of the server's agent, or nil where no server
// is left that could.
func (s *Service) Drain(ctx context.Context, tx *store.Tx, n store.ClusterNode, cordon *store.Cordon, timeoutSeconds int64) (*store.TaskID, error) {
	if err := s.setCordon(ctx, tx, n, cordon); err != nil {
		return nil, err
	}
	return s.askServer(ctx, tx, n, store.Object{"node": n.Name, "mode": modeDrain, "timeout_seconds": timeoutSeconds})
}

// CheckDrain refuses to drain a member whose cluster has no server that could, and a server that a floor keeps: a drained one is
// to be free to go.
func (s *Service) CheckDrain(ctx context.Context, v *store.View, acct store.AccountID, id store.InstanceID) error {
	n, err := store.ClusterNodeByInstance(ctx, v, acct, id)
	if errors.Is(err, store.ErrNoRow) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := s.RemovalForbidden(ctx, v, acct, id); err != nil {
		return err
	}
	by, err := readyServer(ctx, v, n)
	if err != nil || by != nil {
		return err
	}
	return schema.Errorf(schema.PreconditionFailed, "no server of the cluster of node %s is ready to move its pods", n.Name).
		WithDetail("cluster_id", n.ClusterID).WithHint("kubernetes_get_cluster", "Tells what is wrong with it.").AsRetryable()
}

// readyServer is an active server of a member's cluster, another one where there is one, or nil.
func readyServer(ctx context.Context, v *store.View, n store.ClusterNode) (*store.ClusterNode, error) {
	members, err := store.ClusterNodes(ctx, v, n.AccountID, n.ClusterID)
	if err != nil {
		return nil, err
	}
	var by *store.ClusterNode
	for i, m := range members {
		if m.Role == RoleServer && m.Status == NodeActive && (by == nil || by.ID == n.ID) {
			by = &members[i]
		}
	}
	return by, nil
}

// supersede ends what was asked for a Node before and is not done: only the last word counts.
func (s *Service) supersede(ctx context.Context, tx *store.Tx, n store.ClusterNode) error {
	asked, err := store.TasksOnKubernetesNode(ctx, &tx.View, n.AccountID, CommandDrain, n.Name)
	if err != nil {
		return err
	}
	at := store.At(tx.Now())
	for _, t := range asked {
		if !t.Open() {
			continue
		}
		was := t.Status
		t.CompletedAt, t.Status = &at, store.TaskCancelled
		if was == store.TaskRunning {
			t.Status = store.TaskAborted
		}
		t.Events.V = append(t.Events.V, store.TaskEvent{At: at, Type: t.Status, Message: "superseded", Data: json.RawMessage("null")})
		if _, err := store.UpdateTask(ctx, tx, t); err != nil {
			return err
		}
		tx.TouchInstance(store.InstanceID(t.OperableID))
		_, err := tx.Audit(ctx, store.AuditEntry{AccountID: n.AccountID, Action: "updated", ResourceType: "System::Task", ResourceID: string(t.ID),
			Old: store.Object{"status": was}, New: store.Object{"status": t.Status}})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) setCordon(ctx context.Context, tx *store.Tx, n store.ClusterNode, cordon *store.Cordon) error {
	before := n.Cordon.V
	n.Cordon.V = cordon
	if err := store.UpdateClusterNode(ctx, tx, n); err != nil {
		return fmt.Errorf("write a cordon: %w", err)
	}
	_, err := tx.Audit(ctx, store.AuditEntry{AccountID: n.AccountID, Action: "updated", ResourceType: "Devops::KubernetesNode", ResourceID: string(n.ID),
		Old: store.Object{"cordon": before}, New: store.Object{"cordon": cordon}})
	return err
}

// askServer gives a task about a member to the agent of an active server: another one where there is one.
func (s *Service) askServer(ctx context.Context, tx *store.Tx, n store.ClusterNode, parameters store.Object) (*store.TaskID, error) {
	if err := s.supersede(ctx, tx, n); err != nil {
		return nil, err
	}
	by, err := readyServer(ctx, &tx.View, n)
	if err != nil {
		return nil, err
	}
	if by == nil {
		return nil, nil
	}
	t, err := store.InsertTask(ctx, tx, store.Task{ID: store.TaskID(tx.NewID()), AccountID: n.AccountID, Command: CommandDrain,
		Status: store.TaskPending, OperableType: "System::NodeInstance", OperableID: string(by.InstanceID), Resumable: true,
		Parameters: store.JSON[store.Object]{V: parameters}})
	if err != nil {
		return nil, err
	}
	tx.TouchInstance(by.InstanceID)
	_, err = tx.Audit(ctx, store.AuditEntry{AccountID: n.AccountID, Action: "created", ResourceType: "System::Task", ResourceID: string(t.ID),
		New: store.Object{"command": t.Command, "node": n.Name, "node_instance_id": by.InstanceID}})
	return &t.ID, err
}
