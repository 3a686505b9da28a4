package k3s

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"powernode/sdwan"
)

// commandRemoveNode deletes what the API server keeps of a member that ended.
const commandRemoveNode = "k8s_remove_node"

// removeEvery is how often it is tried again while the API server doesn't do it.
const removeEvery = 2 * time.Second

// Commands are the tasks that a server's agent carries out.
func (s *Subsystem) Commands() []string { return []string{commandRemoveNode, commandDrain} }

// RunTask carries out a task. What is done already is done, so it may be repeated.
func (s *Subsystem) RunTask(ctx context.Context, task sdwan.Task, want *sdwan.Document) (json.RawMessage, error) {
	if task.Command == commandDrain {
		return s.runDrain(ctx, task, want)
	}
	return s.runRemoval(ctx, task, want)
}

// runRemoval deletes a Node and its node password: with the password left, a machine that takes the name could not join.
// It goes on trying until ctx ends.
func (s *Subsystem) runRemoval(ctx context.Context, task sdwan.Task, want *sdwan.Document) (json.RawMessage, error) {
	var in struct {
		Node string `json:"node"`
	}
	if err := json.Unmarshal(task.Parameters, &in); err != nil || in.Node == "" {
		return nil, fmt.Errorf("%s names no node", task.Command)
	}
	if t := wanted(want.K3s); t.role != roleServer || t.absent || t.nodeName == in.Node {
		return nil, fmt.Errorf("%s of %q is for another member, which is a server", task.Command, in.Node)
	}
	tick := time.NewTicker(removeEvery)
	defer tick.Stop()
	for {
		err := s.removeNode(ctx, in.Node)
		if err == nil {
			return json.Marshal(map[string]string{"removed": in.Node})
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("remove Node %s: %w", in.Node, err)
		}
	}
}

func (s *Subsystem) removeNode(ctx context.Context, name string) error {
	k, err := openKube(s.root, kubeconfigPath)
	if err != nil {
		return err
	}
	defer k.close()
	// The Node first: a name without its password is the safer half, should the second call fail for good.
	return errors.Join(k.remove(ctx, "/api/v1/nodes/"+url.PathEscape(name)),
		k.remove(ctx, "/api/v1/namespaces/kube-system/secrets/"+url.PathEscape(name+".node-password.k3s")))
}

// remove deletes one object; one that is not there is deleted.
func (k *kube) remove(ctx context.Context, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, k.server+path, nil)
	if err != nil {
		return err
	}
	res, err := k.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusOK, http.StatusAccepted, http.StatusNotFound:
		return nil
	default:
		return fmt.Errorf("DELETE %s: HTTP %d", path, res.StatusCode)
	}
}
