package k3s

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"powernode/sdwan"
)

// commandDrain keeps new work away from a Node, moves its pods elsewhere, or lets work come back.
const commandDrain = "k8s_drain"

// What a drain task may ask for.
const (
	modeCordon   = "cordon"
	modeDrain    = "drain"
	modeUncordon = "uncordon"
)

// cordonMark is on Nodes that we have cordoned; a cordon without it is somebody else's, and stays.
const cordonMark = "powernode.io/cordon"

const (
	drainEvery   = 2 * time.Second
	drainTimeout = 10 * time.Minute
	// maxBlocking is how many pods a refusal names.
	maxBlocking = 5
)

type drainParameters struct {
	Node           string `json:"node"`
	Mode           string `json:"mode"`
	TimeoutSeconds int    `json:"timeout_seconds"`
}

// runDrain carries a drain task out. Between two looks it may be ended: what was evicted stays so, and so does the cordon.
func (s *Subsystem) runDrain(ctx context.Context, task sdwan.Task, want *sdwan.Document) (json.RawMessage, error) {
	var in drainParameters
	if err := json.Unmarshal(task.Parameters, &in); err != nil || in.Node == "" {
		return nil, fmt.Errorf("%s names no node", task.Command)
	}
	if t := wanted(want.K3s); t.role != roleServer || t.absent {
		return nil, fmt.Errorf("%s is for a server", task.Command)
	}
	leave, err := s.drains.enter(ctx, in.Node)
	if err != nil {
		return nil, fmt.Errorf("wait for the task before: %w", err)
	}
	defer leave()
	k, err := openKube(s.root, kubeconfigPath)
	if err != nil {
		return nil, err
	}
	defer k.close()
	switch in.Mode {
	case modeCordon, modeUncordon:
		return s.mark(ctx, k, in)
	case modeDrain:
		return s.drain(ctx, k, in)
	}
	return nil, fmt.Errorf("%s: unknown mode %q", task.Command, in.Mode)
}

// oneByOne lets one task a Node act: an uncordon that follows an aborted drain waits for its end.
type oneByOne struct {
	mu   sync.Mutex
	busy map[string]chan struct{}
}

func (o *oneByOne) enter(ctx context.Context, node string) (leave func(), err error) {
	for {
		o.mu.Lock()
		before, busy := o.busy[node]
		if !busy && ctx.Err() == nil {
			if o.busy == nil {
				o.busy = map[string]chan struct{}{}
			}
			mine := make(chan struct{})
			o.busy[node] = mine
			o.mu.Unlock()
			return func() {
				o.mu.Lock()
				defer o.mu.Unlock()
				delete(o.busy, node)
				close(mine)
			}, nil
		}
		o.mu.Unlock()
		if !busy {
			return nil, ctx.Err()
		}
		select {
		case <-before:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// mark sets or lifts our cordon, and tries again while the API server doesn't answer. A Node that is gone needs neither.
func (s *Subsystem) mark(ctx context.Context, k *kube, in drainParameters) (json.RawMessage, error) {
	set := k.uncordon
	if in.Mode == modeCordon {
		set = k.cordon
	}
	var foreign bool
	err := patiently(ctx, func() (err error) {
		foreign, err = set(ctx, in.Node)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s Node %s: %w", in.Mode, in.Node, err)
	}
	return json.Marshal(map[string]any{"node": in.Node, "mode": in.Mode, "foreign_cordon": foreign})
}

// patiently tries until it works or ctx ends; then it answers what stood in the way before.
func patiently(ctx context.Context, try func() error) error {
	tick := time.NewTicker(drainEvery)
	defer tick.Stop()
	var last error
	for {
		err := try()
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return last
		}
	}
}

// drain cordons a Node and evicts its pods until none is left that could run elsewhere. Budgets of disruption are kept: a
// pod that one protects is asked for again until the time is over.
func (s *Subsystem) drain(ctx context.Context, k *kube, in drainParameters) (json.RawMessage, error) {
	limit := drainTimeout
	if in.TimeoutSeconds > 0 {
		limit = time.Duration(in.TimeoutSeconds) * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	evicted := map[string]bool{}
	var foreign bool
	err := patiently(ctx, func() (err error) {
		if foreign, err = k.cordon(ctx, in.Node); err != nil {
			return err
		}
		pods, err := k.podsOn(ctx, in.Node)
		if err != nil {
			return err
		}
		left := []string{}
		for _, p := range pods {
			if !p.movable() {
				continue
			}
			left = append(left, p.name())
			if p.Metadata.DeletionTimestamp != "" {
				continue
			}
			if err := k.evict(ctx, p); err != nil {
				left[len(left)-1] += " (" + err.Error() + ")"
				continue
			}
			evicted[p.Metadata.UID] = true
		}
		return stillThere(left)
	})
	if err != nil {
		return nil, fmt.Errorf("drain Node %s: %w", in.Node, err)
	}
	return json.Marshal(map[string]any{"node": in.Node, "mode": modeDrain, "evicted": len(evicted), "foreign_cordon": foreign})
}

// stillThere names the pods that are left, or is nil.
func stillThere(pods []string) error {
	if len(pods) == 0 {
		return nil
	}
	more := ""
	if n := len(pods) - maxBlocking; n > 0 {
		pods, more = pods[:maxBlocking], fmt.Sprintf(" and %d more", n)
	}
	return errors.New("pods are left: " + strings.Join(pods, ", ") + more)
}

// cordon keeps new pods off a Node. foreign says that somebody else had done so before: that cordon is not made ours.
func (k *kube) cordon(ctx context.Context, name string) (foreign bool, err error) {
	n, there, err := k.marked(ctx, name)
	if err != nil || !there || n.Spec.Unschedulable {
		return err == nil && there && n.Metadata.Annotations[cordonMark] == "", err
	}
	return false, k.patchNode(ctx, name, `{"metadata":{"annotations":{"`+cordonMark+`":"platform"}},"spec":{"unschedulable":true}}`)
}

// uncordon lifts our cordon. foreign says that there is one that is not ours, which stays.
func (k *kube) uncordon(ctx context.Context, name string) (foreign bool, err error) {
	n, there, err := k.marked(ctx, name)
	if err != nil || !there || n.Metadata.Annotations[cordonMark] == "" {
		return err == nil && there && n.Spec.Unschedulable, err
	}
	return false, k.patchNode(ctx, name, `{"metadata":{"annotations":{"`+cordonMark+`":null}},"spec":{"unschedulable":null}}`)
}

// markedNode is what we read of a Node to know whose its cordon is.
type markedNode struct {
	Metadata struct {
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		Unschedulable bool `json:"unschedulable"`
	} `json:"spec"`
}

func (k *kube) marked(ctx context.Context, name string) (n markedNode, there bool, err error) {
	status, body, err := k.do(ctx, http.MethodGet, "/api/v1/nodes/"+url.PathEscape(name), "", "")
	switch {
	case err != nil:
		return n, false, err
	case status == http.StatusNotFound:
		return n, false, nil
	case status != http.StatusOK:
		return n, false, fmt.Errorf("read the Node: HTTP %d", status)
	}
	return n, true, json.Unmarshal(body, &n)
}

func (k *kube) patchNode(ctx context.Context, name, patch string) error {
	status, _, err := k.do(ctx, http.MethodPatch, "/api/v1/nodes/"+url.PathEscape(name), "application/merge-patch+json", patch)
	if err == nil && status != http.StatusOK && status != http.StatusNotFound {
		return fmt.Errorf("patch the Node: HTTP %d", status)
	}
	return err
}

// pod is what we read of a Pod.
type pod struct {
	Metadata struct {
		Name              string            `json:"name"`
		Namespace         string            `json:"namespace"`
		UID               string            `json:"uid"`
		DeletionTimestamp string            `json:"deletionTimestamp"`
		Annotations       map[string]string `json:"annotations"`
		OwnerReferences   []struct {
			Kind       string `json:"kind"`
			Controller bool   `json:"controller"`
		} `json:"ownerReferences"`
	} `json:"metadata"`
	Status struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

func (p pod) name() string { return p.Metadata.Namespace + "/" + p.Metadata.Name }

// movable says whether a drain is about the pod: not what a DaemonSet or the kubelet itself brings back, and not what has
// ended.
func (p pod) movable() bool {
	if _, mirror := p.Metadata.Annotations["kubernetes.io/config.mirror"]; mirror {
		return false
	}
	for _, o := range p.Metadata.OwnerReferences {
		if o.Controller && o.Kind == "DaemonSet" {
			return false
		}
	}
	return p.Status.Phase != "Succeeded" && p.Status.Phase != "Failed"
}

func (k *kube) podsOn(ctx context.Context, name string) ([]pod, error) {
	status, body, err := k.do(ctx, http.MethodGet, "/api/v1/pods?fieldSelector="+url.QueryEscape("spec.nodeName="+name), "", "")
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("list pods: HTTP %d", status)
	}
	var list struct {
		Items []pod `json:"items"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return list.Items, nil
}

// evict asks for a pod's eviction; one that is gone is evicted.
func (k *kube) evict(ctx context.Context, p pod) error {
	body, err := json.Marshal(map[string]any{"apiVersion": "policy/v1", "kind": "Eviction",
		"metadata": map[string]string{"name": p.Metadata.Name, "namespace": p.Metadata.Namespace}})
	if err != nil {
		return err
	}
	path := "/api/v1/namespaces/" + url.PathEscape(p.Metadata.Namespace) + "/pods/" + url.PathEscape(p.Metadata.Name) + "/eviction"
	status, _, err := k.do(ctx, http.MethodPost, path, "application/json", string(body))
	switch {
	case err != nil:
		return errors.New("no answer")
	case status == http.StatusTooManyRequests:
		return errors.New("a disruption budget forbids it")
	case status >= 300 && status != http.StatusNotFound:
		return fmt.Errorf("HTTP %d", status)
	}
	return nil
}

// do asks the API server, and answers whatever it says.
func (k *kube) do(ctx context.Context, method, path, contentType, body string) (status int, answer []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, method, k.server+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, nil, err
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	res, err := k.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(res.Body, maxKubeAnswer))
	return res.StatusCode, answer, err
}
