package k3s

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"powernode/sdwan"
)

// apiNode is a Node of the lab's API server with its pods; it notes what is asked of it.
type apiNode struct {
	mu            sync.Mutex
	unschedulable bool
	mark          string
	pods          map[string]string // namespace/name → JSON
	protected     map[string]int    // how often an eviction is refused
	asked         []string
}

// holding makes the lab's API server have a Node a-worker.
func (l *lab) holding(n *apiNode) {
	inner := l.api.Config.Handler
	l.api.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.mu.Lock()
		defer n.mu.Unlock()
		if !n.serve(w, r) {
			inner.ServeHTTP(w, r)
		}
	})
}

func (n *apiNode) serve(w http.ResponseWriter, r *http.Request) bool {
	eviction, evicts := strings.CutSuffix(r.URL.Path, "/eviction")
	switch {
	case r.URL.Path == "/api/v1/nodes/gone":
		w.WriteHeader(http.StatusNotFound)
	case r.URL.Path == "/api/v1/nodes/a-worker" && r.Method == http.MethodGet:
		annotations := map[string]string{}
		if n.mark != "" {
			annotations[cordonMark] = n.mark
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]any{"annotations": annotations}, "spec": map[string]any{"unschedulable": n.unschedulable}})
	case r.URL.Path == "/api/v1/nodes/a-worker" && r.Method == http.MethodPatch:
		body, _ := io.ReadAll(r.Body) // a short body of ours
		n.asked = append(n.asked, r.Header.Get("Content-Type")+" "+string(body))
		n.unschedulable = strings.Contains(string(body), `"unschedulable":true`)
		n.mark = map[bool]string{true: "platform"}[n.unschedulable]
		_, _ = io.WriteString(w, `{}`)
	case r.URL.Path == "/api/v1/pods":
		items := []json.RawMessage{}
		for _, p := range n.pods {
			if r.URL.Query().Get("fieldSelector") == "spec.nodeName=a-worker" {
				items = append(items, json.RawMessage(p))
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"items": items})
	case evicts && r.Method == http.MethodPost:
		parts := strings.Split(strings.TrimPrefix(eviction, "/api/v1/namespaces/"), "/pods/")
		name := strings.Join(parts, "/")
		n.asked = append(n.asked, "evict "+name)
		if n.protected[name] > 0 {
			n.protected[name]--
			w.WriteHeader(http.StatusTooManyRequests)
			return true
		}
		delete(n.pods, name)
		w.WriteHeader(http.StatusCreated)
	default:
		return false
	}
	return true
}

func drainTask(node, mode string, seconds int) sdwan.Task {
	parameters, _ := json.Marshal(map[string]any{"node": node, "mode": mode, "timeout_seconds": seconds}) // plain values always encode
	return sdwan.Task{ID: "task-1", Command: "k8s_drain", Parameters: parameters}
}

func aPod(namespace, name, more string) string {
	return `{"metadata":{"namespace":"` + namespace + `","name":"` + name + `","uid":"` + name + `"` + more + `}}`
}

func TestDrainEvictsWhatCanRunElsewhere(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	n := &apiNode{protected: map[string]int{"default/web": 1}, pods: map[string]string{
		"default/web":        aPod("default", "web", ""),
		"kube-system/agent":  aPod("kube-system", "agent", `,"ownerReferences":[{"kind":"DaemonSet","controller":true}]`),
		"kube-system/static": aPod("kube-system", "static", `,"annotations":{"kubernetes.io/config.mirror":"x"}`),
		"default/job":        `{"metadata":{"namespace":"default","name":"job","uid":"job"},"status":{"phase":"Succeeded"}}`}}
	l.holding(n)
	l.must(l.server())
	result, err := l.s.RunTask(t.Context(), drainTask("a-worker", "drain", 60), l.server())
	if err != nil || string(result) != `{"evicted":1,"foreign_cordon":false,"mode":"drain","node":"a-worker"}` {
		t.Fatalf("%s, %v", result, err)
	}
	want := []string{`application/merge-patch+json {"metadata":{"annotations":{"powernode.io/cordon":"platform"}},"spec":{"unschedulable":true}}`,
		"evict default/web", "evict default/web"}
	if diff := cmp.Diff(want, n.asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	if len(n.pods) != 3 {
		t.Errorf("left %v", n.pods)
	}
}

func TestDrainNamesThePodsThatStayWhenTimeIsUp(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.holding(&apiNode{protected: map[string]int{"default/web": 1000}, pods: map[string]string{"default/web": aPod("default", "web", "")}})
	l.must(l.server())
	_, err := l.s.RunTask(t.Context(), drainTask("a-worker", "drain", 1), l.server())
	if want := "drain Node a-worker: pods are left: default/web (a disruption budget forbids it)"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestCordonOfSomebodyElseIsNeitherTakenNorLifted(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	n := &apiNode{unschedulable: true}
	l.holding(n)
	l.must(l.server())
	for _, mode := range []string{"cordon", "uncordon"} {
		result, err := l.s.RunTask(t.Context(), drainTask("a-worker", mode, 0), l.server())
		if err != nil || !strings.Contains(string(result), `"foreign_cordon":true`) {
			t.Errorf("%s: %s, %v", mode, result, err)
		}
	}
	if !n.unschedulable || len(n.asked) != 0 {
		t.Errorf("the Node was changed: %v", n.asked)
	}
}

func TestOurCordonIsLiftedOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	n := &apiNode{}
	l.holding(n)
	l.must(l.server())
	for _, mode := range []string{"cordon", "cordon", "uncordon", "uncordon"} {
		if _, err := l.s.RunTask(t.Context(), drainTask("a-worker", mode, 0), l.server()); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
		if n.unschedulable != (mode == "cordon") {
			t.Errorf("after %s: unschedulable %t", mode, n.unschedulable)
		}
	}
	if len(n.asked) != 2 {
		t.Errorf("asked %v", n.asked)
	}
	for _, mode := range []string{"cordon", "uncordon", "drain"} { // a Node that is gone needs none of it
		if _, err := l.s.RunTask(t.Context(), drainTask("gone", mode, 5), l.server()); err != nil {
			t.Errorf("%s of a Node that is gone: %v", mode, err)
		}
	}
}

func TestUncordonWaitsForTheEndOfAnAbortedDrain(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	n := &apiNode{protected: map[string]int{"default/web": 1000}, pods: map[string]string{"default/web": aPod("default", "web", "")}}
	l.holding(n)
	l.must(l.server())
	aborted, abort := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := l.s.RunTask(aborted, drainTask("a-worker", "drain", 600), l.server()); err == nil {
			t.Error("the aborted drain says that it is done")
		}
	})
	begun := func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.asked) > 1
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !begun() {
		<-tick.C
	}
	wg.Go(func() {
		if _, err := l.s.RunTask(t.Context(), drainTask("a-worker", "uncordon", 0), l.server()); err != nil {
			t.Error(err)
		}
	})
	abort()
	wg.Wait()
	if n.unschedulable {
		t.Error("after the uncordon it is cordoned")
	}
}

func TestDrainIsForAServerAndNamesANode(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.must(l.server())
	for name, of := range map[string]struct {
		task sdwan.Task
		doc  *sdwan.Document
	}{"a worker": {drainTask("a-worker", "drain", 0), l.worker()}, "no name": {drainTask("", "drain", 0), l.server()},
		"no mode": {drainTask("a-worker", "", 0), l.server()}} {
		if _, err := l.s.RunTask(t.Context(), of.task, of.doc); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
