package cluster_test

import (
	"context"
	"testing"

	"powernode/platform/cluster"
	"powernode/sdwan"
	"powernode/store"
)

// reassign enables an instance's assignment of a K3s module anew, as the fleet does.
func (w *world) reassign(i store.Instance, module string, config store.Object) {
	w.t.Helper()
	w.update(func(ctx context.Context, tx *store.Tx) error {
		m, err := store.ModuleByName(ctx, &tx.View, w.acct, module)
		if err != nil {
			return err
		}
		if config, _, err = w.clusters.CheckTarget(ctx, &tx.View, w.acct, i.NodeID, m, config); err != nil {
			return err
		}
		all, err := store.AssignmentsByNode(ctx, &tx.View, w.acct, i.NodeID)
		if err != nil {
			return err
		}
		for _, a := range all {
			if a.ModuleID == m.ID {
				a.Enabled, a.DisabledBy, a.Config.V = true, "", config
				if _, err := store.UpdateAssignment(ctx, tx, a); err != nil {
					return err
				}
			}
		}
		return w.clusters.AssignmentChanged(ctx, tx, w.acct, i.NodeID)
	})
}

func (w *world) section(i store.Instance) (section sdwan.K3s) {
	w.t.Helper()
	w.view(func(ctx context.Context, v *store.View) (err error) {
		section, err = w.clusters.Section(ctx, v, i)
		return err
	})
	return section
}

func (w *world) cleanup(id store.ClusterID) (c cluster.Cleanup) {
	w.t.Helper()
	w.view(func(ctx context.Context, v *store.View) (err error) {
		c, err = w.clusters.CleanupOf(ctx, v, w.acct, id)
		return err
	})
	return c
}

func TestHostIsCleanBeforeItCarriesAnotherClustersK3s(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server, worker, old := w.pair()
	b := w.network("tenant-b")
	other := w.instance("b-1", b)
	w.assign(other, cluster.ModuleServer, store.Object{})
	w.activate(other)
	w.attach(worker, b)
	w.decommission("a-1")
	w.reassign(server, cluster.ModuleServer, store.Object{})
	w.reassign(worker, cluster.ModuleAgent, store.Object{"target_cluster_id": "b-1"})

	if s := w.section(server).Server; s == nil || s.State != "absent" || s.ClusterID != string(old.ID) {
		t.Errorf("the server is served %+v, want the removal of its old cluster's K3s first", s)
	}
	if a := w.section(worker).Agent; a == nil || a.State != "absent" {
		t.Errorf("the worker is served %+v, want the removal of its old cluster's K3s first", a)
	}
	for _, join := range []struct {
		i    store.Instance
		role string
	}{{server, cluster.RoleServer}, {worker, cluster.RoleAgent}} {
		if _, refusal := w.join(join.i, join.role, ""); refusal == nil || !refusal.Wait || refusal.Reason != cluster.ReasonCleaning {
			t.Errorf("the join of %s before its clean-up is answered %+v, want to wait", join.i.Name, refusal)
		}
	}
	w.view(func(ctx context.Context, v *store.View) error {
		waiting, err := w.clusters.WaitingFor(ctx, v, w.clusterNames()["b-1"])
		if err == nil && (len(waiting) != 1 || waiting[0].Reason != cluster.ReasonCleaning) {
			t.Errorf("waiting %+v, want the worker, which cleans up", waiting)
		}
		return err
	})

	w.stopped(server, "uninstalled")
	w.stopped(worker, "uninstalled")
	if c := w.cleanup(old.ID); c.State != "cleaned" {
		t.Errorf("clean-up %+v", c)
	}
	if s := w.section(server).Server; s == nil || s.State != "present" || s.Mode != "init" {
		t.Errorf("the clean server is served %+v", s)
	}
	for _, join := range []struct {
		i    store.Instance
		role string
	}{{server, cluster.RoleServer}, {worker, cluster.RoleAgent}} {
		if _, refusal := w.join(join.i, join.role, ""); refusal != nil {
			t.Errorf("the join of %s after its clean-up is refused: %+v", join.i.Name, refusal)
		}
	}
}

func TestCleanupEndsWithAnInstanceThatWasDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, worker, _ := w.pair()
	alone := w.instance("c-1", w.network("tenant-c"))
	w.assign(alone, cluster.ModuleServer, store.Object{})
	w.activate(alone)
	tomb := w.decommission("c-1")
	w.update(func(ctx context.Context, tx *store.Tx) error { // as the fleet does, before the next tick
		if _, _, err := w.networks.DetachInstance(ctx, tx, w.acct, alone.ID); err != nil {
			return err
		}
		return store.DeleteInstance(ctx, tx, w.acct, alone.ID)
	})
	w.tick()
	if c := w.cleanup(tomb.ClusterID); c.State != "cleaned" || len(w.signals("system.k3s_cluster_cleaned")) != 1 {
		t.Errorf("clean-up %+v, want cleaned and told: its host is gone", c)
	}
	if n := w.member(worker); n.ClusterID == "" {
		t.Error("the other cluster's worker is lost")
	}
}

func TestReportFromBeforeTheEndIsNoCleanHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server, worker, _ := w.pair() // the worker has its tokens, and K3s is not installed yet
	tomb := w.decommission("a-1")
	w.update(func(ctx context.Context, tx *store.Tx) error {
		return w.clusters.Ingest(ctx, tx, worker, sdwan.Report{K3s: &sdwan.K3sReport{Role: "agent", ClusterID: string(tomb.ClusterID), UnitState: "absent"}})
	})
	w.stopped(server, "uninstalled")
	if c := w.cleanup(tomb.ClusterID); c.State != "cleaning" || len(c.PendingInstanceIDs) != 1 {
		t.Errorf("clean-up %+v, want the worker's to be waited for", c)
	}
	if a := w.section(worker).Agent; a == nil || a.State != "absent" {
		t.Errorf("the worker is served %+v, want absent until it says that it has cleaned up", a)
	}
}

func (w *world) health(i store.Instance) (h store.ClusterNodeHealth) {
	w.t.Helper()
	n := w.member(i)
	w.view(func(ctx context.Context, v *store.View) (err error) {
		h, err = store.HealthOfClusterNode(ctx, v, n.ID)
		return err
	})
	return h
}

func TestMemberWhoseNodeWasDeletedIsNotReady(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server, worker, c := w.pair()
	yes := true
	report := func(nodes []sdwan.K3sNodeReport) {
		w.update(func(ctx context.Context, tx *store.Tx) error {
			return w.clusters.Ingest(ctx, tx, server, sdwan.Report{K3s: &sdwan.K3sReport{Role: "server", ClusterID: string(c.ID), Installed: true,
				NodeReady: &yes, APIReady: &yes, VIPReady: &yes, Nodes: nodes}})
		})
	}
	own := sdwan.K3sNodeReport{Name: server.Name, Ready: true}
	report([]sdwan.K3sNodeReport{own})
	if w.health(server).NodeReady == nil || w.member(worker).Status != cluster.NodeJoining {
		t.Fatal("a worker that is on its way is judged by the Node that it does not have yet")
	}
	w.ready(worker, cluster.RoleAgent, c.ID)
	report([]sdwan.K3sNodeReport{own, {Name: worker.Name, Ready: true}})
	if n := w.member(worker); n.Status != cluster.NodeActive {
		t.Fatalf("the worker is %s", n.Status)
	}
	report(nil)
	if h := w.health(worker); h.NodeReady == nil || !*h.NodeReady {
		t.Error("Nodes that were not measured say something of a member")
	}
	report([]sdwan.K3sNodeReport{own})
	if h := w.health(worker); h.NodeReady == nil || *h.NodeReady || h.NotReadySince == nil {
		t.Errorf("a member without a Node is as it was measured last: %+v", h)
	}
}

func TestReportOfAnotherClusterSaysNothingOfThisOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.instance("a-1", w.network("tenant-a"))
	w.assign(server, cluster.ModuleServer, store.Object{})
	c := w.activate(server)
	no := false
	w.update(func(ctx context.Context, tx *store.Tx) error {
		return w.clusters.Ingest(ctx, tx, server, sdwan.Report{K3s: &sdwan.K3sReport{Role: "server", ClusterID: "another", Installed: true,
			NodeReady: &no, APIReady: &no, VIPReady: &no, Nodes: []sdwan.K3sNodeReport{{Name: server.Name}}}})
	})
	if h := w.health(server); h.NodeReady == nil || !*h.NodeReady {
		t.Errorf("the member is judged by another cluster's K3s: %+v", h)
	}
	if now := w.clusterNames()[c.Name]; now.Status != cluster.StatusActive {
		t.Errorf("cluster %s by another cluster's measurement", now.Status)
	}
}
