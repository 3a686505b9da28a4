package k3s

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/sdwan"
)

// deletions makes the lab's API server take DELETE: it answers the statuses in turn, then 404, and notes the paths.
func (l *lab) deletions(statuses ...int) func() []string {
	var mu sync.Mutex
	var paths []string
	inner := l.api.Config.Handler
	l.api.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodDelete {
			inner.ServeHTTP(w, r)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		paths = append(paths, r.URL.Path)
		status := http.StatusNotFound
		if len(statuses) > 0 {
			status, statuses = statuses[0], statuses[1:]
		}
		w.WriteHeader(status)
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return paths
	}
}

func removal(node string) sdwan.Task {
	parameters, _ := json.Marshal(map[string]string{"node": node}) // a map of texts always encodes
	return sdwan.Task{ID: "task-1", Command: "k8s_remove_node", Parameters: parameters}
}

func TestRemoveNodeDeletesNodeAndItsPassword(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	paths := l.deletions(http.StatusOK, http.StatusOK)
	l.must(l.server())
	for _, when := range []string{"there", "gone"} { // a restarted agent does it again
		result, err := l.s.RunTask(t.Context(), removal("a-worker"), l.server())
		if err != nil || string(result) != `{"removed":"a-worker"}` {
			t.Errorf("%s: %s, %v", when, result, err)
		}
	}
	once := []string{"/api/v1/nodes/a-worker", "/api/v1/namespaces/kube-system/secrets/a-worker.node-password.k3s"}
	if diff := cmp.Diff(append(once, once...), paths()); diff != "" {
		t.Errorf("deleted (-want +got):\n%s", diff)
	}
}

func TestRemoveNodeSaysWhatStoodInItsWayWhenTimeIsUp(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.deletions(http.StatusInternalServerError, http.StatusInternalServerError)
	l.must(l.server())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.s.RunTask(ctx, removal("a-worker"), l.server()); err == nil || !strings.Contains(err.Error(), "remove Node a-worker") {
		t.Errorf("got %v, want what stood in its way", err)
	}
}

func TestRemoveNodeIsForAServerAndNeverForItself(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	paths := l.deletions()
	l.must(l.server())
	for name, of := range map[string]struct {
		node string
		doc  *sdwan.Document
	}{"itself": {"a-1", l.server()}, "a worker": {"b-1", l.worker()}, "no name": {"", l.server()}} {
		if _, err := l.s.RunTask(t.Context(), removal(of.node), of.doc); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if got := paths(); len(got) != 0 {
		t.Errorf("deleted %v", got)
	}
}
