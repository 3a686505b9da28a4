package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/rs/zerolog"

	"powernode/platform/cluster"
	"powernode/platform/fleet"
	"powernode/platform/network"
	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
	"powernode/store/storetest"
)

// world is an account with networks and instances, and the services that rule them.
type world struct {
	t        *testing.T
	db       *store.DB
	acct     store.AccountID
	networks *network.Service
	clusters *cluster.Service
	fleet    *fleet.Service
	template store.TemplateID
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, db: storetest.New(t)}
	sealer, err := store.NewSealer(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	w.networks = &network.Service{Sealer: sealer}
	w.clusters = &cluster.Service{Network: w.networks, Sealer: sealer}
	w.networks.Clusters = w.clusters
	w.fleet = &fleet.Service{DB: w.db, Network: w.networks, Cluster: w.clusters, Sealer: sealer, Log: zerolog.Nop()}
	w.db.SetPublish(w.fleet.Publish)
	w.update(func(ctx context.Context, tx *store.Tx) error {
		w.acct = store.AccountID(tx.NewID())
		prefix, _ := sdwan.AccountPrefix([5]byte{1, 2, 3, 4, 5})
		if err := store.InsertAccount(ctx, tx, store.Account{ID: w.acct, Name: "test", Prefix: store.Prefix{Prefix: prefix}}); err != nil {
			return err
		}
		if err := w.fleet.Seed(ctx, tx, w.acct); err != nil {
			return err
		}
		platforms, err := store.Platforms(ctx, &tx.View, w.acct)
		if err != nil {
			return err
		}
		w.template = store.TemplateID(tx.NewID())
		_, err = store.InsertTemplate(ctx, tx, store.Template{ID: w.template, AccountID: w.acct, Name: "base", PlatformID: platforms[0].ID, Enabled: true})
		return err
	})
	return w
}

func (w *world) update(fn func(context.Context, *store.Tx) error) {
	w.t.Helper()
	ctx := w.t.Context()
	if err := w.db.Update(ctx, func(tx *store.Tx) error {
		tx.Act(store.Actor{Kind: "agent", ID: "tester", Verb: "test", CorrelationID: "test"})
		return fn(ctx, tx)
	}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) view(fn func(context.Context, *store.View) error) {
	w.t.Helper()
	if err := w.db.View(w.t.Context(), func(v *store.View) error { return fn(w.t.Context(), v) }); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) network(name string) store.Network {
	w.t.Helper()
	var n store.Network
	w.update(func(ctx context.Context, tx *store.Tx) (err error) {
		n, err = w.networks.Create(ctx, tx, w.acct, network.CreateInput{Name: name, Strategy: "auto", DefaultPolicy: "accept"})
		return err
	})
	return n
}

// instance makes a node with a running machine, attached to networks.
func (w *world) instance(name string, networks ...store.Network) store.Instance {
	w.t.Helper()
	var i store.Instance
	w.update(func(ctx context.Context, tx *store.Tx) error {
		node, err := store.InsertNode(ctx, tx, store.Node{ID: store.NodeID(tx.NewID()), AccountID: w.acct, Name: name, TemplateID: w.template, Enabled: true})
		if err != nil {
			return err
		}
		provider, err := store.Providers(ctx, &tx.View, w.acct)
		if err != nil {
			return err
		}
		i, err = store.InsertInstance(ctx, tx, store.Instance{ID: store.InstanceID(tx.NewID()), AccountID: w.acct, NodeID: node.ID, Name: name,
			Variety: "local", Status: store.InstanceRunning, Architecture: "amd64", NetworkProfile: "lightweight", ProviderID: provider[0].ID})
		if err != nil {
			return err
		}
		for _, n := range networks {
			if _, _, err := w.networks.Attach(ctx, tx, w.acct, network.AttachInput{NetworkID: n.ID, InstanceID: i.ID}); err != nil {
				return err
			}
		}
		return nil
	})
	return i
}

func (w *world) attach(i store.Instance, n store.Network) {
	w.t.Helper()
	w.update(func(ctx context.Context, tx *store.Tx) error {
		_, _, err := w.networks.Attach(ctx, tx, w.acct, network.AttachInput{NetworkID: n.ID, InstanceID: i.ID})
		return err
	})
}

// assign writes an enabled assignment of a K3s module as the fleet does.
func (w *world) assign(i store.Instance, module string, config store.Object) {
	w.t.Helper()
	w.update(func(ctx context.Context, tx *store.Tx) error {
		m, err := store.ModuleByName(ctx, &tx.View, w.acct, module)
		if err != nil {
			return err
		}
		config, _, err := w.clusters.CheckTarget(ctx, &tx.View, w.acct, i.NodeID, m, config)
		if err != nil {
			return err
		}
		_, err = store.InsertAssignment(ctx, tx, store.Assignment{ID: store.AssignmentID(tx.NewID()), AccountID: w.acct, NodeID: i.NodeID,
			ModuleID: m.ID, Enabled: true, Config: store.JSON[store.Object]{V: config}})
		if err != nil {
			return err
		}
		return w.clusters.AssignmentChanged(ctx, tx, w.acct, i.NodeID)
	})
}

func (w *world) clusterNames() map[string]store.Cluster {
	w.t.Helper()
	out := map[string]store.Cluster{}
	w.view(func(ctx context.Context, v *store.View) error {
		all, err := store.Clusters(ctx, v, w.acct)
		for _, c := range all {
			out[c.Name] = c
		}
		return err
	})
	return out
}

func (w *world) join(i store.Instance, role, field string) (m cluster.Material, r *cluster.Refusal) {
	w.t.Helper()
	w.update(func(ctx context.Context, tx *store.Tx) (err error) {
		m, r, err = w.clusters.JoinRequest(ctx, tx, i, role, field)
		return err
	})
	return m, r
}

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: default, cluster: {server: "https://127.0.0.1:6443", certificate-authority-data: Q0E=}}]
users: [{name: default, user: {client-certificate-data: Y2VydA==, client-key-data: a2V5}}]
`

// activate brings a cluster up as its first server's agent does: join, bootstrap, ready, a healthy report.
func (w *world) activate(first store.Instance) store.Cluster {
	w.t.Helper()
	m, refusal := w.join(first, cluster.RoleServer, "")
	if refusal != nil {
		w.t.Fatalf("the first server is refused: %+v", refusal)
	}
	yes := true
	w.update(func(ctx context.Context, tx *store.Tx) error {
		if _, _, refusal, err := w.clusters.Bootstrap(ctx, tx, first, kubeconfig, "v1.36.5+k3s1"); err != nil || refusal != nil {
			return errors.Join(err, refusedAs(refusal))
		}
		if _, refusal, err := w.clusters.Ready(ctx, tx, first, cluster.RoleServer, m.Cluster.ID, "v1.36.5+k3s1"); err != nil || refusal != nil {
			return errors.Join(err, refusedAs(refusal))
		}
		return w.clusters.Ingest(ctx, tx, first, sdwan.Report{K3s: &sdwan.K3sReport{Role: "server", Installed: true, NodeReady: &yes, APIReady: &yes,
			VIPReady: &yes, Etcd: &sdwan.EtcdReport{Member: first.Name, Healthy: true, Members: 1}, Nodes: []sdwan.K3sNodeReport{{Name: first.Name, Ready: true}}}})
	})
	return w.clusterNames()[m.Cluster.Name]
}

func refusedAs(r *cluster.Refusal) error {
	if r == nil {
		return nil
	}
	return errors.New(r.Message)
}

func (w *world) signals(kind string) []store.Signal {
	w.t.Helper()
	var out []store.Signal
	w.view(func(ctx context.Context, v *store.View) (err error) {
		out, err = store.LatestSignals(ctx, v, w.acct, kind, "", 100)
		return err
	})
	return out
}

func TestServerDeclaresItsClusterWithWhicheverConditionComesLast(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.network("tenant-a")
	attachedFirst, assignedFirst := w.instance("attached-first", a), w.instance("assigned-first")
	w.assign(attachedFirst, cluster.ModuleServer, store.Object{})
	w.assign(assignedFirst, cluster.ModuleServer, store.Object{})
	if got := len(w.clusterNames()); got != 1 {
		t.Fatalf("%d clusters, want the attached server's alone", got)
	}
	if len(w.signals("system.k3s_bootstrap_blocked")) != 1 {
		t.Error("the server without a network was not told of")
	}
	w.attach(assignedFirst, a)
	all := w.clusterNames()
	first, second := all["attached-first"], all["assigned-first"]
	if first.Status != cluster.StatusPending || second.Status != cluster.StatusPending {
		t.Fatalf("clusters %q and %q, want both pending", first.Status, second.Status)
	}
	if first.APIVIPID == second.APIVIPID || first.PodCIDR == second.PodCIDR || first.ServiceCIDR == second.ServiceCIDR {
		t.Error("two clusters share an address or a range")
	}
	if len(w.signals("system.k3s_bootstrap_unblocked")) != 1 {
		t.Error("the server that got its network was not told of")
	}
}

func TestFirstServerGetsBothTokensAndNoServerURL(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.instance("a-1", w.network("tenant-a"))
	w.assign(first, cluster.ModuleServer, store.Object{})
	m, refusal := w.join(first, cluster.RoleServer, "")
	if refusal != nil || m.Mode != "init" || m.ServerToken == "" || m.AgentToken == "" || m.ServerToken == m.AgentToken || m.Agent != nil {
		t.Fatalf("material %+v, refusal %+v", m.Mode, refusal)
	}
	if !m.Server.ClusterInit || m.Server.NodeName != "a-1" || len(m.Server.TLSSAN) != 1 {
		t.Errorf("configuration %+v", m.Server)
	}
	again, _ := w.join(first, cluster.RoleServer, "")
	if again.ServerToken != m.ServerToken || again.Cluster.ID != m.Cluster.ID {
		t.Error("asking again gives other material")
	}
}

func TestClusterBecomesActiveWhenItIsMeasured(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.instance("a-1", w.network("tenant-a"))
	w.assign(first, cluster.ModuleServer, store.Object{})
	c := w.activate(first)
	if c.Status != cluster.StatusActive {
		t.Fatalf("status %s, want active", c.Status)
	}
	if len(w.signals("system.k3s_cluster_bootstrapped")) != 1 || len(w.signals("system.k3s_node_joined")) != 1 {
		t.Error("the bootstrap was not told of, once")
	}
}

func TestAmbiguousJoinIsRefusedOnceWithItsSignal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.network("tenant-a"), w.network("tenant-b")
	sa, sb, worker := w.instance("a-1", a), w.instance("b-1", b), w.instance("w-1", b)
	w.assign(sa, cluster.ModuleServer, store.Object{})
	w.assign(sb, cluster.ModuleServer, store.Object{})
	w.activate(sa) // b stays pending, and counts
	w.assign(worker, cluster.ModuleAgent, store.Object{})
	for range 3 {
		_, refusal := w.join(worker, cluster.RoleAgent, "")
		if refusal == nil || refusal.Class != cluster.ClassAmbiguous || len(refusal.Candidates) != 2 {
			t.Fatalf("refusal %+v", refusal)
		}
	}
	told := w.signals("system.k3s_ambiguous_cluster_join_refused")
	if len(told) != 1 || told[0].Severity != "high" {
		t.Errorf("signals %+v, want one of severity high", told)
	}
}

func TestTargetedWorkerJoinsTheNamedClusterWithTheAgentTokenAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.network("tenant-a"), w.network("tenant-b")
	sa, sb, worker := w.instance("a-1", a), w.instance("b-1", b), w.instance("w-1", b)
	w.assign(sa, cluster.ModuleServer, store.Object{})
	w.assign(sb, cluster.ModuleServer, store.Object{})
	w.activate(sa)
	w.assign(worker, cluster.ModuleAgent, store.Object{"target_cluster_id": "b-1"}) // a name is stored as the id
	if _, refusal := w.join(worker, cluster.RoleAgent, ""); refusal == nil || !refusal.Wait {
		t.Fatalf("a worker of a cluster without a ready server must wait: %+v", refusal)
	}
	cb := w.activate(sb)
	m, refusal := w.join(worker, cluster.RoleAgent, "")
	if refusal != nil || m.Cluster.ID != cb.ID || m.ServerToken != "" || m.AgentToken == "" || m.Server != nil {
		t.Fatalf("joined %s, refusal %+v", m.Cluster.Name, refusal)
	}
	if _, refusal := w.join(worker, cluster.RoleServer, ""); refusal == nil || refusal.Class != cluster.ClassNotAssigned {
		t.Errorf("the worker's agent may ask for a server's material: %+v", refusal)
	}
}

func TestTargetsAreCheckedWhenTheyAreWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.network("tenant-a")
	sa, worker := w.instance("a-1", a), w.instance("w-1", a)
	w.assign(sa, cluster.ModuleServer, store.Object{})
	gone := w.instance("gone-1", a)
	w.assign(gone, cluster.ModuleServer, store.Object{})
	w.decommission("gone-1")
	broken := w.instance("broken-1", a)
	w.assign(broken, cluster.ModuleServer, store.Object{})
	w.update(func(ctx context.Context, tx *store.Tx) error {
		c, err := store.ClusterByRef(ctx, &tx.View, w.acct, "broken-1")
		if err != nil {
			return err
		}
		c.Status = cluster.StatusError
		return store.UpdateCluster(ctx, tx, c)
	})
	for _, tt := range []struct {
		name, module, target string
		want                 schema.Code
	}{
		{"pending", cluster.ModuleAgent, "a-1", ""},
		{"unknown", cluster.ModuleAgent, "nothing-like-it", schema.NotFound},
		{"decommissioned", cluster.ModuleAgent, "gone-1", schema.NotFound},
		{"in error", cluster.ModuleAgent, "broken-1", schema.PreconditionFailed},
		{"a further server", cluster.ModuleServer, "a-1", schema.PreconditionFailed},
	} {
		w.view(func(ctx context.Context, v *store.View) error {
			m, err := store.ModuleByName(ctx, v, w.acct, tt.module)
			if err != nil {
				return err
			}
			_, _, err = w.clusters.CheckTarget(ctx, v, w.acct, worker.NodeID, m, store.Object{"target_cluster_id": tt.target})
			if got := schema.CodeOf(err); got != tt.want {
				t.Errorf("%s: %q (%v), want %q", tt.name, got, err, tt.want)
			}
			return nil
		})
	}
}

func (w *world) decommission(ref string) store.Tombstone {
	w.t.Helper()
	var tomb store.Tombstone
	w.update(func(ctx context.Context, tx *store.Tx) error {
		c, err := w.clusters.Find(ctx, &tx.View, w.acct, ref)
		if err != nil {
			return err
		}
		tomb, _, err = w.clusters.Decommission(ctx, tx, c)
		return err
	})
	return tomb
}

func TestDecommissionFreesEverythingAndCleansHosts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.network("tenant-a")
	server, worker := w.instance("a-1", a), w.instance("w-1", a)
	w.assign(server, cluster.ModuleServer, store.Object{})
	w.activate(server)
	w.assign(worker, cluster.ModuleAgent, store.Object{})
	if _, refusal := w.join(worker, cluster.RoleAgent, ""); refusal != nil {
		t.Fatalf("the only cluster is joined without a target: %+v", refusal)
	}
	w.view(func(ctx context.Context, v *store.View) error {
		err := w.clusters.RemovalForbidden(ctx, v, w.acct, server.ID)
		var coded *schema.Error
		if !errors.As(err, &coded) || coded.Details["floor"] != "last_server" {
			t.Errorf("the last server of a cluster with workers may go: %v", err)
		}
		return nil
	})
	tomb := w.decommission("a-1")
	if tomb.NodeCount != 2 || len(w.clusterNames()) != 0 {
		t.Fatalf("tombstone %+v, clusters left %d", tomb, len(w.clusterNames()))
	}
	w.view(func(ctx context.Context, v *store.View) error {
		for _, i := range []store.Instance{server, worker} {
			section, err := w.clusters.Section(ctx, v, i)
			if err != nil {
				return err
			}
			if (section.Server == nil || section.Server.State != "absent") && (section.Agent == nil || section.Agent.State != "absent") {
				t.Errorf("%s is not asked to clean up: %+v", i.Name, section)
			}
		}
		state, err := w.clusters.CleanupOf(ctx, v, w.acct, tomb.ClusterID)
		if err == nil && (state.State != "cleaning" || state.Total != 2) {
			t.Errorf("cleanup %+v", state)
		}
		return err
	})
	for _, i := range []store.Instance{server, worker} {
		w.update(func(ctx context.Context, tx *store.Tx) error {
			_, err := w.clusters.Stopped(ctx, tx, i, "uninstalled")
			return err
		})
	}
	if len(w.signals("system.k3s_cluster_cleaned")) != 1 {
		t.Error("the clean-up's end was not told of, once")
	}
	w.view(func(ctx context.Context, v *store.View) error {
		section, err := w.clusters.Section(ctx, v, server)
		if section.Server != nil || section.Agent != nil {
			t.Errorf("a cleaned host has still a K3s section: %+v", section)
		}
		return err
	})
}

func TestRaisedPolicyHoldsFreshJoinsBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.network("tenant-a")
	server, worker := w.instance("a-1", a), w.instance("w-1", a)
	w.assign(server, cluster.ModuleServer, store.Object{})
	c := w.activate(server)
	w.assign(worker, cluster.ModuleAgent, store.Object{})
	may, asked := false, ""
	w.clusters.MayJoin = func(_ context.Context, _ *store.View, _ store.AccountID, category string, _ store.ClusterID, _ store.NetworkID) (bool, error) {
		asked = category
		return may, nil
	}
	if _, refusal := w.join(worker, cluster.RoleAgent, ""); refusal == nil || !refusal.Wait || refusal.Reason != cluster.ReasonApproval {
		t.Fatalf("a raised policy lets a join through: %+v", refusal)
	}
	if asked != "system.runtime_k8s_node_join" {
		t.Errorf("asked the policy of %q", asked)
	}
	if _, refusal := w.join(server, cluster.RoleServer, ""); refusal != nil {
		t.Errorf("a member is held back from its own cluster: %+v", refusal)
	}
	w.view(func(ctx context.Context, v *store.View) error {
		waiting, err := w.clusters.WaitingFor(ctx, v, c)
		if err == nil && (len(waiting) != 1 || waiting[0].Reason != cluster.ReasonApproval) {
			t.Errorf("waiting %+v, want the worker with reason approval_pending", waiting)
		}
		return err
	})
	may = true
	if _, refusal := w.join(worker, cluster.RoleAgent, ""); refusal != nil {
		t.Errorf("the lowered policy still holds the join back: %+v", refusal)
	}
}

func TestWhatIsOpenOfAClusterClosesWithIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.instance("a-1", w.network("tenant-a"))
	w.assign(server, cluster.ModuleServer, store.Object{})
	w.activate(server)
	no := false
	w.update(func(ctx context.Context, tx *store.Tx) error {
		return w.clusters.Ingest(ctx, tx, server, sdwan.Report{K3s: &sdwan.K3sReport{Role: "server", Installed: true, NodeReady: &no, APIReady: &no,
			VIPReady: &no, Etcd: &sdwan.EtcdReport{Member: server.Name, Healthy: false, Members: 1}}})
	})
	if len(w.signals("system.k3s_cluster_degraded")) != 1 {
		t.Fatal("an unhealthy cluster was not told of")
	}
	w.decommission("a-1")
	if len(w.signals("system.k3s_cluster_recovered")) != 1 {
		t.Error("a condition of a cluster that has ended is open for ever")
	}
}

func TestMemberIsAnsweredForItsOwnCluster(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.network("tenant-a")
	server, worker, other := w.instance("a-1", a), w.instance("w-1", a), w.instance("b-1", a)
	w.assign(server, cluster.ModuleServer, store.Object{})
	c := w.activate(server)
	w.assign(worker, cluster.ModuleAgent, store.Object{"target_cluster_id": string(c.ID)})
	if _, refusal := w.join(worker, cluster.RoleAgent, ""); refusal != nil {
		t.Fatal(refusal)
	}
	w.assign(other, cluster.ModuleServer, store.Object{})
	w.activate(other)
	w.update(func(ctx context.Context, tx *store.Tx) error {
		all, err := store.AssignmentsByNode(ctx, &tx.View, w.acct, worker.NodeID)
		if err != nil {
			return err
		}
		all[0].Config.V = store.Object{"target_cluster_id": string(w.clusterNames()["b-1"].ID)}
		if _, err := store.UpdateAssignment(ctx, tx, all[0]); err != nil {
			return err
		}
		return w.clusters.AssignmentChanged(ctx, tx, w.acct, worker.NodeID)
	})
	m, refusal := w.join(worker, cluster.RoleAgent, "")
	if refusal != nil || m.Cluster.ID != c.ID {
		t.Errorf("a member whose machine lost its state is answered for %s (%+v), want its own cluster", m.Cluster.Name, refusal)
	}
}
