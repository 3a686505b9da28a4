package cluster_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/cluster"
	"powernode/platform/network"
	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
)

func (w *world) ready(i store.Instance, role string, id store.ClusterID) (n store.ClusterNode, r *cluster.Refusal) {
	w.t.Helper()
	w.update(func(ctx context.Context, tx *store.Tx) (err error) {
		n, r, err = w.clusters.Ready(ctx, tx, i, role, id, "v1.36.5+k3s1")
		return err
	})
	return n, r
}

func (w *world) bootstrap(i store.Instance) (c store.Cluster, r *cluster.Refusal) {
	w.t.Helper()
	w.update(func(ctx context.Context, tx *store.Tx) (err error) {
		c, _, r, err = w.clusters.Bootstrap(ctx, tx, i, kubeconfig, "v1.36.5+k3s1")
		return err
	})
	return c, r
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func (w *world) stopped(i store.Instance, reason string) (id store.ClusterNodeID) {
	w.t.Helper()
	w.update(func(ctx context.Context, tx *store.Tx) (err error) {
		id, err = w.clusters.Stopped(ctx, tx, i, reason)
		return err
	})
	return id
}

func (w *world) tick() {
	w.t.Helper()
	w.update(func(ctx context.Context, tx *store.Tx) error { return w.clusters.Tick(ctx, tx, w.acct) })
}

func (w *world) member(i store.Instance) (n store.ClusterNode) {
	w.t.Helper()
	w.view(func(ctx context.Context, v *store.View) (err error) {
		n, err = store.ClusterNodeByInstance(ctx, v, w.acct, i.ID)
		return err
	})
	return n
}

func (w *world) revision() (r int64) {
	w.t.Helper()
	w.view(func(ctx context.Context, v *store.View) (err error) {
		r, err = v.CurrentRevision(ctx)
		return err
	})
	return r
}

// pair is an active cluster with one worker that has joined.
func (w *world) pair() (server, worker store.Instance, c store.Cluster) {
	w.t.Helper()
	a := w.network("tenant-a")
	server, worker = w.instance("a-1", a), w.instance("w-1", a)
	w.assign(server, cluster.ModuleServer, store.Object{})
	c = w.activate(server)
	w.assign(worker, cluster.ModuleAgent, store.Object{"target_cluster_id": "a-1"})
	if _, refusal := w.join(worker, cluster.RoleAgent, ""); refusal != nil {
		w.t.Fatal(refusal.Message)
	}
	return server, worker, c
}

func TestPhasesRepeatedWriteNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server, _, c := w.pair()
	before := w.revision()
	if again, refusal := w.bootstrap(server); refusal != nil || again.ID != c.ID {
		t.Fatalf("bootstrap again: %s, %+v", again.ID, refusal)
	}
	if n, refusal := w.ready(server, cluster.RoleServer, c.ID); refusal != nil || n.Status != cluster.NodeActive {
		t.Fatalf("ready again: %+v, %+v", n, refusal)
	}
	if m, refusal := w.join(server, cluster.RoleServer, ""); refusal != nil || m.Cluster.ID != c.ID {
		t.Fatalf("join_request again: %+v", refusal)
	}
	if after := w.revision(); after != before {
		t.Errorf("phases that were told again moved the revision from %d to %d", before, after)
	}
}

func TestReadyIsRefusedWhereTheInstanceIsNoMember(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server, worker, c := w.pair()
	other := w.instance("b-1", w.network("tenant-b"))
	w.assign(other, cluster.ModuleServer, store.Object{})
	w.join(other, cluster.RoleServer, "")
	gone := w.instance("gone-1", w.network("tenant-c"))
	w.assign(gone, cluster.ModuleServer, store.Object{})
	w.join(gone, cluster.RoleServer, "")
	tomb := w.decommission("gone-1")
	for _, tt := range []struct {
		name, role string
		from       store.Instance
		id         store.ClusterID
		class      string
		text       string
	}{
		{"another cluster's member", cluster.RoleServer, other, c.ID, cluster.ClassOtherCluster, ""},
		{"a decommissioned cluster", cluster.RoleServer, gone, tomb.ClusterID, cluster.ClassUnknown, "cluster " + string(tomb.ClusterID) + " was decommissioned"},
		{"a cluster that never was", cluster.RoleServer, server, "00000000-0000-7000-8000-000000000000", cluster.ClassUnknown, "no cluster"},
		{"a worker as a server", cluster.RoleServer, worker, c.ID, cluster.ClassField, "as agent, not as server"},
	} {
		_, refusal := w.ready(tt.from, tt.role, tt.id)
		if refusal == nil || refusal.Class != tt.class || !strings.Contains(refusal.Message, tt.text) {
			t.Errorf("%s: %+v, want %s with %q", tt.name, refusal, tt.class, tt.text)
		}
	}
}

func TestMemberCanNotJoinInAnotherRole(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server, _, _ := w.pair()
	w.assign(server, cluster.ModuleAgent, store.Object{})
	if _, refusal := w.join(server, cluster.RoleAgent, ""); refusal == nil || refusal.Class != cluster.ClassField {
		t.Errorf("a server's join as a worker: %+v", refusal)
	}
}

func TestBootstrapNeedsTheServersModule(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, worker, _ := w.pair()
	if _, refusal := w.bootstrap(worker); refusal == nil || refusal.Class != cluster.ClassNotAssigned {
		t.Errorf("a worker's bootstrap: %+v, want %s", refusal, cluster.ClassNotAssigned)
	}
}

func TestStoppedMemberIsDisconnectedUntilItIsMeasuredAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server, _, c := w.pair()
	if id := w.stopped(server, "failed"); id != w.member(server).ID {
		t.Errorf("stopped answers %q, want the member's id", id)
	}
	w.tick()
	if n := w.member(server); n.Status != cluster.NodeDisconnected {
		t.Errorf("a stopped member is %s", n.Status)
	}
	yes := true
	w.update(func(ctx context.Context, tx *store.Tx) error {
		return w.clusters.Ingest(ctx, tx, server, sdwan.Report{K3s: &sdwan.K3sReport{Role: "server", ClusterID: string(c.ID), Installed: true, NodeReady: &yes, VIPReady: &yes}})
	})
	if n := w.member(server); n.Status != cluster.NodeActive {
		t.Errorf("measured again it is %s", n.Status)
	}
	stranger := w.instance("x-1")
	if id := w.stopped(stranger, "failed"); id != "" {
		t.Errorf("stopped of no member answers %q", id)
	}
}

func TestInstanceThatIsToEndJoinsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server, _, _ := w.pair()
	server.Status = store.InstanceTerminated
	if _, refusal := w.join(server, cluster.RoleServer, ""); refusal == nil || refusal.Class != cluster.ClassUnknown {
		t.Errorf("a terminated instance's join: %+v", refusal)
	}
}

func TestFirstServerThatComesBackToTheNetworkHoldsTheAPIAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.network("tenant-a")
	server := w.instance("a-1", a)
	w.assign(server, cluster.ModuleServer, store.Object{})
	vip := func() (ip store.VirtualIP) {
		c := w.clusterNames()["a-1"]
		w.view(func(ctx context.Context, v *store.View) (err error) {
			ip, err = store.VirtualIPByID(ctx, v, w.acct, c.APIVIPID)
			return err
		})
		return ip
	}
	w.update(func(ctx context.Context, tx *store.Tx) error {
		_, err := w.networks.Detach(ctx, tx, w.acct, vip().Holder())
		return err
	})
	if vip().Holder() != "" {
		t.Fatal("a peer that left holds the API's address")
	}
	w.attach(server, a)
	if ip := vip(); ip.Holder() == "" || ip.State != "active" {
		t.Errorf("the API's address is held by %q, state %s", ip.Holder(), ip.State)
	}
	if len(w.clusterNames()) != 1 {
		t.Error("coming back declared another cluster")
	}
}

func TestClusterWhoseServerIsTerminatedIsDisconnectedAndCompiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.network("tenant-a")
	server, plain := w.instance("a-1", a), w.instance("p-1", a)
	w.assign(server, cluster.ModuleServer, store.Object{})
	w.activate(server)
	w.update(func(ctx context.Context, tx *store.Tx) error {
		if _, err := w.clusters.RemoveInstance(ctx, tx, w.acct, server.ID, "terminated"); err != nil {
			return err
		}
		_, _, err := w.networks.DetachInstance(ctx, tx, w.acct, server.ID)
		return err
	})
	w.tick()
	c := w.clusterNames()["a-1"]
	if c.Status != cluster.StatusDisconnected {
		t.Errorf("status %s, want disconnected", c.Status)
	}
	w.view(func(ctx context.Context, v *store.View) error {
		_, err := w.clusters.Endpoint(ctx, v, c)
		_, err2 := w.clusters.Networked(ctx, v, w.acct, a.ID)
		_, err3 := w.clusters.Section(ctx, v, server)
		_, _, _, err4 := w.networks.Sections(ctx, v, plain)
		return errors.Join(err, err2, err3, err4)
	})
	if len(w.signals("system.sdwan_vip_unassigned")) != 1 {
		t.Error("that nobody holds the API's address was not told, once")
	}
}

func TestSecondServerBoundToAClusterIsSeenWaiting(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.network("tenant-a")
	w.update(func(ctx context.Context, tx *store.Tx) error {
		_, err := w.clusters.Create(ctx, tx, w.acct, cluster.CreateInput{Name: "alpha", NetworkID: a.ID})
		return err
	})
	one, two := w.instance("s-1"), w.instance("s-2")
	w.assign(one, cluster.ModuleServer, store.Object{"target_cluster_id": "alpha"})
	w.assign(two, cluster.ModuleServer, store.Object{"target_cluster_id": "alpha"}) // neither is on the network yet
	w.attach(two, a)
	w.attach(one, a)
	w.view(func(ctx context.Context, v *store.View) error {
		waiting, err := w.clusters.WaitingFor(ctx, v, w.clusterNames()["alpha"])
		if err == nil && (len(waiting) != 1 || waiting[0].NodeInstanceID != one.ID || waiting[0].Role != cluster.RoleServer) {
			t.Errorf("waiting %+v, want the server that came second", waiting)
		}
		return err
	})
}

func TestCleanupOfASilentHostIsStuckUntilTheHostEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server, worker, _ := w.pair()
	tomb := w.decommission("a-1")
	w.stopped(server, "uninstalled")
	w.update(func(ctx context.Context, tx *store.Tx) error {
		return store.PutInstanceReport(ctx, tx, store.InstanceReport{InstanceID: worker.ID, ReceivedAt: store.At(tx.Now().Add(-25 * time.Hour))})
	})
	w.tick()
	w.tick()
	state := func() (s cluster.Cleanup) {
		w.view(func(ctx context.Context, v *store.View) (err error) {
			s, err = w.clusters.CleanupOf(ctx, v, w.acct, tomb.ClusterID)
			return err
		})
		return s
	}
	if s := state(); s.State != "stuck" || s.Total != 2 || s.Cleaned != 1 || len(s.PendingInstanceIDs) != 1 {
		t.Errorf("cleanup %+v, want stuck for the silent worker", s)
	}
	if told := w.signals("system.k3s_cleanup_stuck"); len(told) != 1 || told[0].Severity != "high" {
		t.Errorf("signals %+v, want one of severity high", told)
	}
	w.update(func(ctx context.Context, tx *store.Tx) error {
		i, err := store.InstanceByID(ctx, &tx.View, w.acct, worker.ID)
		if err != nil {
			return err
		}
		i.Status = store.InstanceTerminated
		_, err = store.UpdateInstance(ctx, tx, i)
		return err
	})
	w.tick()
	w.tick()
	if s := state(); s.State != "cleaned" || s.Cleaned != 2 {
		t.Errorf("cleanup %+v, want cleaned: its host has ended", s)
	}
	if told := w.signals("system.k3s_cluster_cleaned"); len(told) != 1 {
		t.Errorf("%d signals that the hosts are clean, want one", len(told))
	}
}

func TestDecommissionWarnsOfTemplatesThatNameTheCluster(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, _, c := w.pair()
	w.update(func(ctx context.Context, tx *store.Tx) error {
		m, err := store.ModuleByName(ctx, &tx.View, w.acct, cluster.ModuleAgent)
		if err != nil {
			return err
		}
		j := store.TemplateModule{ID: store.TemplateModuleID(tx.NewID()), AccountID: w.acct, TemplateID: w.template, ModuleID: m.ID, Enabled: true}
		j.Config.V = store.Object{"target_cluster_id": string(c.ID)}
		if _, err := store.InsertTemplateModule(ctx, tx, j); err != nil {
			return err
		}
		_, warnings, err := w.clusters.Decommission(ctx, tx, c)
		if err == nil && (len(warnings) != 1 || warnings[0].Code != "target_decommissioned" || !strings.Contains(warnings[0].Text, "base")) {
			t.Errorf("warnings %+v", warnings)
		}
		return err
	})
}

func TestUnassignedModuleClosesWhatBlockedIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.instance("s-1")
	w.assign(i, cluster.ModuleServer, store.Object{})
	if len(w.signals("system.k3s_bootstrap_blocked")) != 1 {
		t.Fatal("a server without a network is not told of")
	}
	w.update(func(ctx context.Context, tx *store.Tx) error {
		all, err := store.AssignmentsByNode(ctx, &tx.View, w.acct, i.NodeID)
		if err != nil {
			return err
		}
		all[0].Enabled = false
		if _, err := store.UpdateAssignment(ctx, tx, all[0]); err != nil {
			return err
		}
		return w.clusters.AssignmentChanged(ctx, tx, w.acct, i.NodeID)
	})
	if len(w.signals("system.k3s_bootstrap_unblocked")) != 1 {
		t.Error("what was told of the assignment is open for ever")
	}
}

func TestRangesThatK3sCantStartWithAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.network("tenant-a")
	for _, tt := range []struct {
		in   cluster.CreateInput
		want schema.Code
	}{
		{cluster.CreateInput{PodCIDR: prefix("10.42.0.0/16")}, schema.PreconditionFailed},
		{cluster.CreateInput{ServiceCIDR: prefix("10.43.0.0/16")}, schema.PreconditionFailed},
		{cluster.CreateInput{PodCIDR: prefix("fd12:3456:789a::/64")}, schema.InvalidArguments},
		{cluster.CreateInput{ServiceCIDR: prefix("fd12:3456:789a::/64")}, schema.InvalidArguments},
		{cluster.CreateInput{PodCIDR: prefix("fd12:3456:789a::/56"), ServiceCIDR: prefix("fd12:3456:789a:ff00::/112")}, ""},
	} {
		tt.in.Name, tt.in.NetworkID = "alpha", a.ID
		w.view(func(ctx context.Context, v *store.View) error {
			if err := w.clusters.CheckCreate(ctx, v, w.acct, tt.in); schema.CodeOf(err) != tt.want {
				t.Errorf("%s, %s: %v, want %q", tt.in.PodCIDR, tt.in.ServiceCIDR, err, tt.want)
			}
			return nil
		})
	}
}

func TestLostServerIsGuardedByNoFloor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server, _, _ := w.pair()
	w.stopped(server, "failed")
	w.view(func(ctx context.Context, v *store.View) error {
		if err := w.clusters.RemovalForbidden(ctx, v, w.acct, server.ID); err != nil {
			t.Errorf("a lost server may not go: %v", err)
		}
		return nil
	})
}

// The platform starts again after a while: until it has listened for long enough, statuses stand still, and prove nothing.
func TestServerThatNobodyHasHeardOfIsNoHealthyOne(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		heard time.Duration // ago
		floor any
	}{"heard lately": {time.Second, nil}, "heard before the platform was away": {time.Hour, "last_server"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			server, _, c := w.pair()
			other := w.instance("a-2")
			w.update(func(ctx context.Context, tx *store.Tx) error {
				now := store.At(tx.Now())
				n := store.ClusterNode{ID: store.ClusterNodeID(tx.NewID()), AccountID: w.acct, ClusterID: c.ID, InstanceID: other.ID, NodeID: other.NodeID,
					Name: other.Name, Role: cluster.RoleServer, Status: cluster.NodeActive, JoinedAt: &now}
				if err := store.InsertClusterNode(ctx, tx, n); err != nil {
					return err
				}
				return store.PutClusterNodeHealth(ctx, tx, store.ClusterNodeHealth{ClusterNodeID: n.ID, ReportedAt: store.At(now.Add(-tt.heard))})
			})
			w.tick()
			if n := w.member(other); n.Status != cluster.NodeActive {
				t.Fatalf("the other server is %s, so the test shows nothing", n.Status)
			}
			for what, forbidden := range map[string]func(context.Context, *store.View, store.AccountID, store.InstanceID) error{
				"removed": w.clusters.RemovalForbidden, "drained": w.clusters.CheckDrain} {
				w.view(func(ctx context.Context, v *store.View) error {
					var coded *schema.Error
					err := forbidden(ctx, v, w.acct, server.ID)
					if errors.As(err, &coded); coded == nil && tt.floor != nil || coded != nil && coded.Details["floor"] != tt.floor {
						t.Errorf("%s: %v, want floor %v", what, err, tt.floor)
					}
					return nil
				})
			}
		})
	}
}

func TestMembersEndNamesTheTaskThatDeletesItsNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, worker, _ := w.pair()
	w.update(func(ctx context.Context, tx *store.Tx) error {
		_, err := w.clusters.RemoveInstance(ctx, tx, w.acct, worker.ID, "terminated")
		return err
	})
	told := w.signals("system.k3s_node_removed")
	if len(told) != 1 || told[0].Payload["node"] != "w-1" || told[0].Payload["task_id"] == nil {
		t.Errorf("signals %+v", told)
	}
}

func TestClusterNeedsRoomForItsPodsPackets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var narrow store.Network
	w.update(func(ctx context.Context, tx *store.Tx) (err error) {
		narrow, err = w.networks.Create(ctx, tx, w.acct, network.CreateInput{Name: "narrow", MTU: 1280})
		return err
	})
	w.view(func(ctx context.Context, v *store.View) error {
		err := w.clusters.CheckCreate(ctx, v, w.acct, cluster.CreateInput{Name: "alpha", NetworkID: narrow.ID})
		if schema.CodeOf(err) != schema.PreconditionFailed || !strings.Contains(err.Error(), "too small for vxlan") {
			t.Errorf("a cluster in a network of MTU 1280: %v", err)
		}
		return nil
	})
}

func TestClusterOfAServerLeavesTakenVirtualIPNamesAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.network("tenant-a")
	w.update(func(ctx context.Context, tx *store.Tx) error {
		_, err := w.networks.CreateVIP(ctx, tx, w.acct, network.VIPInput{NetworkID: a.ID, Name: "a-1-api"})
		return err
	})
	w.assign(w.instance("a-1", a), cluster.ModuleServer, store.Object{})
	if _, there := w.clusterNames()["a-1-2"]; !there {
		t.Errorf("clusters %v, want a-1-2", w.clusterNames())
	}
}

func TestAnotherClustersChangeConcernsNobodyWhoHasJoined(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server, worker, _ := w.pair()
	b := w.network("tenant-b")
	other, idle := w.instance("b-1", b), w.instance("w-2", b)
	w.assign(other, cluster.ModuleServer, store.Object{})
	w.activate(other)
	w.assign(idle, cluster.ModuleAgent, store.Object{})
	plan, err := w.db.DryRun(t.Context(), func(tx *store.Tx) error {
		c, err := w.clusters.Find(t.Context(), &tx.View, w.acct, "b-1")
		if err != nil {
			return err
		}
		_, _, err = w.clusters.Decommission(t.Context(), tx, c)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []store.Instance{server, worker} {
		if slices.Contains(plan.Instances, i.ID) {
			t.Errorf("the end of b-1 touches %s, a member of a-1", i.Name)
		}
	}
	if !slices.Contains(plan.Instances, idle.ID) {
		t.Error("the end of b-1 does not touch w-2, which could now mean a-1 alone")
	}
}

func TestAnAssignmentWithoutATargetComesToWhatItsMachineHasJoined(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.network("tenant-a")
	server, worker, idle := w.instance("a-1", a), w.instance("w-1", a), w.instance("w-2", a)
	w.assign(server, cluster.ModuleServer, store.Object{})
	c := w.activate(server)
	w.assign(worker, cluster.ModuleAgent, store.Object{})
	if _, refusal := w.join(worker, cluster.RoleAgent, ""); refusal != nil {
		t.Fatal(refusal.Message)
	}
	other := w.instance("b-1", a)
	w.assign(other, cluster.ModuleServer, store.Object{})
	w.activate(other)
	w.assign(idle, cluster.ModuleAgent, store.Object{})
	none := cluster.ReasonNoneSet
	for _, tt := range []struct {
		of   store.Instance
		want cluster.Target
	}{
		{server, cluster.Target{ClusterID: &c.ID, Usable: true}},
		{worker, cluster.Target{ClusterID: &c.ID, Usable: true}},
		{idle, cluster.Target{Reason: &none}},
	} {
		w.view(func(ctx context.Context, v *store.View) error {
			all, err := store.AssignmentsByNode(ctx, v, w.acct, tt.of.NodeID)
			if err != nil {
				return err
			}
			got, err := w.clusters.AssignmentTarget(ctx, v, w.acct, all[0])
			if err != nil {
				return err
			}
			if diff := cmp.Diff(&tt.want, got); diff != "" {
				t.Errorf("target of %s (-want +got):\n%s", tt.of.Name, diff)
			}
			return nil
		})
	}
}
