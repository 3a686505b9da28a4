package cluster_test

import (
	"context"
	"strings"
	"testing"

	"powernode/platform/cluster"
	"powernode/store"
)

// setStatus puts a cluster into a status, as measurements would.
func (w *world) setStatus(name, status string) {
	w.t.Helper()
	w.update(func(ctx context.Context, tx *store.Tx) error {
		c, err := store.ClusterByRef(ctx, &tx.View, w.acct, name)
		if err != nil {
			return err
		}
		c.Status = status
		return store.UpdateCluster(ctx, tx, c)
	})
}

// check judges a config of a module as a call does, and answers the codes of its warnings.
func (w *world) check(i store.Instance, module string, config store.Object) (codes []string, texts string) {
	w.t.Helper()
	w.view(func(ctx context.Context, v *store.View) error {
		m, err := store.ModuleByName(ctx, v, w.acct, module)
		if err != nil {
			return err
		}
		_, warnings, err := w.clusters.CheckTarget(ctx, v, w.acct, i.NodeID, m, config)
		for _, each := range warnings {
			codes, texts = append(codes, each.Code), texts+each.Text
		}
		return err
	})
	return codes, texts
}

// servedAgent is a worker's runtime configuration.
func (w *world) servedAgent(i store.Instance) (target, reason string) {
	w.t.Helper()
	w.view(func(ctx context.Context, v *store.View) error {
		section, err := w.clusters.Section(ctx, v, i)
		if err == nil {
			target, reason = section.Agent.TargetClusterID, section.Agent.Reason
		}
		return err
	})
	return target, reason
}

// three are active clusters on one network, and a worker whose assignment names the first.
func (w *world) three() (worker store.Instance) {
	w.t.Helper()
	n := w.network("tenant")
	for _, name := range []string{"a-1", "b-1", "c-1"} {
		i := w.instance(name, n)
		w.assign(i, cluster.ModuleServer, store.Object{})
		w.activate(i)
	}
	worker = w.instance("w-1", n)
	w.assign(worker, cluster.ModuleAgent, store.Object{"target_cluster_id": "a-1"})
	return worker
}

func TestTargetThatBrokeIsServedAsNoneAndNeverReplaced(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		end       func(*world)
		class     string
		reason    string
		ambiguous int
	}{
		{"in error, two others", func(w *world) { w.setStatus("a-1", cluster.StatusError) }, cluster.ClassAmbiguous, "error", 1},
		{"in error, one other", func(w *world) { w.setStatus("a-1", cluster.StatusError); w.decommission("c-1") }, cluster.ClassNoCluster, "error", 0},
		{"decommissioned, one other", func(w *world) { w.decommission("a-1"); w.setStatus("c-1", cluster.StatusError) }, cluster.ClassNoCluster, "decommissioned", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			worker := w.three()
			tt.end(w)
			if target, reason := w.servedAgent(worker); target != "" || reason != tt.reason {
				t.Errorf("served target %q, reason %q; want none, %q", target, reason, tt.reason)
			}
			for range 2 {
				if _, refusal := w.join(worker, cluster.RoleAgent, ""); refusal == nil || refusal.Class != tt.class || refusal.Reason != tt.reason {
					t.Errorf("refusal %+v, want %s with %s", refusal, tt.class, tt.reason)
				}
			}
			if n := len(w.signals("system.k3s_ambiguous_cluster_join_refused")); n != tt.ambiguous {
				t.Errorf("%d signals of ambiguity, want %d", n, tt.ambiguous)
			}
			w.view(func(ctx context.Context, v *store.View) error {
				if _, err := store.ClusterNodeByInstance(ctx, v, w.acct, worker.ID); err == nil {
					t.Error("the refused worker is a member")
				}
				return nil
			})
		})
	}
}

func TestJoinWithoutATargetGoesToTheOnlyClusterThatIsNotInError(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.network("tenant")
	for _, name := range []string{"a-1", "b-1"} {
		i := w.instance(name, n)
		w.assign(i, cluster.ModuleServer, store.Object{})
		w.activate(i)
	}
	worker := w.instance("w-1", n)
	codes, texts := w.check(worker, cluster.ModuleAgent, store.Object{})
	if len(codes) != 1 || codes[0] != "target_ambiguous" || !strings.Contains(texts, "a-1, b-1") {
		t.Errorf("warnings %v: %s", codes, texts)
	}
	w.assign(worker, cluster.ModuleAgent, store.Object{})
	if _, refusal := w.join(worker, cluster.RoleAgent, ""); refusal == nil || refusal.Class != cluster.ClassAmbiguous {
		t.Fatalf("refusal %+v", refusal)
	}
	w.setStatus("a-1", cluster.StatusError)
	m, refusal := w.join(worker, cluster.RoleAgent, "")
	if refusal != nil || m.Cluster.Name != "b-1" {
		t.Fatalf("joined %q, refusal %+v", m.Cluster.Name, refusal)
	}
	if len(w.signals("system.k3s_ambiguous_cluster_join_resolved")) != 1 {
		t.Error("that the join is no longer ambiguous was not told, once")
	}
}

func TestTargetIsNotConsultedForAMember(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	worker := w.three()
	if _, refusal := w.join(worker, cluster.RoleAgent, ""); refusal != nil {
		t.Fatal(refusal.Message)
	}
	codes, _ := w.check(worker, cluster.ModuleAgent, store.Object{"target_cluster_id": "b-1"})
	if len(codes) != 1 || codes[0] != "target_not_consulted" {
		t.Errorf("warnings %v", codes)
	}
	stranger := w.instance("x-1", w.network("elsewhere"))
	if codes, _ := w.check(stranger, cluster.ModuleAgent, store.Object{"target_cluster_id": "b-1"}); len(codes) != 1 || codes[0] != "not_on_cluster_network" {
		t.Errorf("warnings %v", codes)
	}
}
