package tools_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/governance"
	"powernode/platform/provider"
	"powernode/platform/sensor"
	"powernode/platform/signal"
	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
	"powernode/store/storetest"
	"powernode/tools/toolstest"
)

// watched is a lab with a clock, at which sensors look.
type watched struct {
	*lab
	clock *storetest.Clock
}

func newWatched(t *testing.T) *watched {
	t.Helper()
	clock := storetest.NewClock()
	w := &watched{lab: labIn(t, toolstest.NewAt(t, clock)), clock: clock}
	w.after(t, 0) // the platform listens from here on
	return w
}

// after moves the clock, and looks with every sensor that is due.
func (w *watched) after(t *testing.T, d time.Duration) {
	t.Helper()
	w.clock.Advance(d)
	if err := w.Platform.LookWithSensors(t.Context()); err != nil {
		t.Fatalf("look with the sensors: %v", err)
	}
}

// severities are those of the account's signals of a kind, oldest first.
func (w *watched) severities(t *testing.T, kind string) []string {
	t.Helper()
	out := []string{}
	for _, e := range w.Signals(t, kind) {
		out = append([]string{e.Severity}, out...)
	}
	return out
}

// expect holds the signals of a kind against the severities that they are to have.
func (w *watched) expect(t *testing.T, kind string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(append([]string{}, want...), w.severities(t, kind)); diff != "" {
		t.Errorf("signals of %s (-want +got):\n%s", kind, diff)
	}
}

func TestSilenceOpensRisesAndCloses(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	id := w.machine(t, "m-1")
	w.report(t, id, nil)
	w.after(t, 170*time.Second)
	w.expect(t, "system.instance_silent")
	w.after(t, 20*time.Second)
	w.after(t, 20*time.Second)
	w.expect(t, "system.instance_silent", signal.Medium)
	opened := w.Signals(t, "system.instance_silent")[0]
	toolstest.Has(t, toolstest.Object{"threshold_seconds": 180.0}, opened.Payload)
	before := w.Revision(t)
	w.after(t, 20*time.Second)
	if after := w.Revision(t); after != before {
		t.Errorf("a look at which nothing changed moved the revision from %d to %d", before, after)
	}
	w.Update(t, func(ctx context.Context, tx *store.Tx) error { // a machine that does not come back from its reboot is not well
		i, err := store.InstanceByID(ctx, &tx.View, w.Account.ID, id)
		if err != nil {
			return err
		}
		i.Status = store.InstanceRebooting
		_, err = store.UpdateInstance(ctx, tx, i)
		return err
	})
	w.after(t, 30*time.Minute)
	w.expect(t, "system.instance_silent", signal.Medium, signal.Critical)
	w.report(t, id, nil)
	w.after(t, 5*time.Second)
	w.expect(t, "system.instance_recovered", signal.Low)
	closed := w.Signals(t, "system.instance_recovered")[0]
	if closed.Payload["opened_at"] == nil || closed.Payload["duration_seconds"].(float64) < 1800 {
		t.Errorf("closing payload %v, want when it opened and how long it was open", closed.Payload)
	}
	if closed.CorrelationID != opened.CorrelationID || closed.Source != "instance_liveness" {
		t.Errorf("it closes with correlation %s of %s, want %s of its sensor", closed.CorrelationID, closed.Source, opened.CorrelationID)
	}
	story := w.Call(t, "system_inspect_correlation", toolstest.Object{"correlation_id": opened.CorrelationID})
	if story["count"] != 3.0 || story["duration_seconds"].(float64) < 1800 {
		t.Errorf("the correlation tells %v signals over %v s", story["count"], story["duration_seconds"])
	}
}

func TestThresholdsArePerAccountAndRangesHold(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	id := w.machine(t, "m-1")
	w.report(t, id, nil)
	person := governance.PersonCaller(w.Person)
	update := func(config toolstest.Object) toolstest.Object {
		return toolstest.Object{"sensor": "instance_liveness", "config": config}
	}
	for name, tt := range map[string]struct {
		config  toolstest.Object
		pointer string
	}{
		"misspelt":     {toolstest.Object{"treshold_seconds": 60}, "/config/treshold_seconds"},
		"not positive": {toolstest.Object{"threshold_seconds": 0}, "/config/threshold_seconds"},
		"out of range": {toolstest.Object{"threshold_seconds": 1 << 40}, "/config/threshold_seconds"},
		"no integer":   {toolstest.Object{"threshold_seconds": "60"}, "/config/threshold_seconds"},
		"upside down":  {toolstest.Object{"threshold_seconds": 3600, "critical_seconds": 60}, "/config/critical_seconds"},
	} {
		refused := w.RefusedAs(t, person, "system_update_sensor_config", update(tt.config), schema.InvalidArguments, "")
		if refused.Details["pointer"] != tt.pointer {
			t.Errorf("%s: refused at %v, want %s", name, refused.Details["pointer"], tt.pointer)
		}
	}
	for _, nothing := range []toolstest.Object{{}, {"threshold_seconds": nil}} {
		w.RefusedAs(t, person, "system_update_sensor_config", update(nothing), schema.InvalidArguments, "nothing to update")
	}
	unknown := w.RefusedAs(t, person, "system_update_sensor_config", toolstest.Object{"sensor": "instance_livenes", "config": toolstest.Object{}}, schema.NotFound, "sensor not found")
	if diff := cmp.Diff([]string{"instance_liveness"}, unknown.Details["candidates"]); diff != "" {
		t.Errorf("candidates (-want +got):\n%s", diff)
	}
	w.Refused(t, "system_update_sensor_config", update(toolstest.Object{"threshold_seconds": 60}), schema.PermissionDenied, "system.fleet.manage required")

	got := w.CallAs(t, person, "system_update_sensor_config", update(toolstest.Object{"threshold_seconds": 60}))
	toolstest.Has(t, toolstest.Object{"thresholds": toolstest.Object{"threshold_seconds": 60.0, "critical_seconds": 1800.0},
		"defaults": toolstest.Object{"threshold_seconds": 180.0}, "enabled": true, "remedy": nil}, got["sensor"].(toolstest.Object))
	if rows := w.Audit(t, "System::SensorConfig"); len(rows) != 1 || rows[0].New["threshold_seconds"] != 60.0 {
		t.Errorf("audit rows %v, want the change", rows)
	}
	w.after(t, 70*time.Second)
	w.expect(t, "system.instance_silent", signal.Medium)

	w.CallAs(t, person, "system_update_sensor_config", update(toolstest.Object{"enabled": false}))
	w.after(t, time.Hour)
	w.expect(t, "system.instance_silent", signal.Medium)
	other := governance.AgentCaller(w.AddAccount(t, "other", "fd5e:8a21:c0df::/48").ID)
	sensors := w.CallAs(t, other, "system_get_sensor_config", toolstest.Object{"sensor": "instance_liveness"})["sensors"].([]any)
	toolstest.Has(t, toolstest.Object{"enabled": true, "thresholds": toolstest.Object{"threshold_seconds": 180.0}}, sensors[0].(toolstest.Object))
}

func TestEverySensorIsShownWithItsRemedy(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	want := map[string]string{sensor.VIPReachability: "system.sdwan_vip_failover", sensor.TemplateDrift: "system.template_apply_drift"}
	sensors := objects(t, env.Call(t, "system_get_sensor_config", nil)["sensors"])
	if len(sensors) != len(env.Platform.Sensors().Sensors()) {
		t.Errorf("%d sensors are shown", len(sensors))
	}
	for _, one := range sensors {
		category := ""
		if r, has := one["remedy"].(toolstest.Object); has {
			category = r["action_category"].(string)
		}
		if category != want[one["name"].(string)] {
			t.Errorf("remedy of %s is gated by %q, want %q", one["name"], category, want[one["name"].(string)])
		}
		for name, value := range one["thresholds"].(toolstest.Object) {
			r := one["ranges"].(toolstest.Object)[name].(toolstest.Object)
			if value.(float64) < r["minimum"].(float64) || value.(float64) > r["maximum"].(float64) || r["minimum"].(float64) < 1 {
				t.Errorf("%s: %s is %v by default, and its range is %v", one["name"], name, value, r)
			}
		}
	}
}

func TestAgentBehindCountsFromTheFirstSign(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	network := w.network(t, "a")
	id, _ := w.member(t, network, "m-1")
	w.report(t, id, nil)
	w.after(t, 5*time.Second)
	behind := func(r *sdwan.Report) {
		for i := range r.Subsystems {
			r.Subsystems[i].AppliedRevision--
		}
	}
	for _, name := range []string{"x-1", "x-2", "x-3"} { // its document changes again and again, and it reports, and never gets there
		w.report(t, id, behind)
		w.after(t, 30*time.Second)
		w.report(t, id, behind)
		w.member(t, network, name)
	}
	w.after(t, 5*time.Second)
	w.expect(t, "system.agent_behind", signal.Medium)
	w.after(t, 15*time.Minute) // it is silent: nothing is measured, nothing rises and nothing closes
	w.expect(t, "system.agent_behind", signal.Medium)
	w.expect(t, "system.agent_caught_up")
	w.report(t, id, behind)
	w.after(t, 5*time.Second)
	w.expect(t, "system.agent_behind", signal.Medium, signal.High)
	w.report(t, id, nil)
	w.after(t, 5*time.Second)
	w.expect(t, "system.agent_caught_up", signal.Low)
}

func TestModulesDriftAfterTheGrace(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	id := w.machine(t, "m-1")
	w.Update(t, func(ctx context.Context, tx *store.Tx) error {
		body, err := json.Marshal(sdwan.Document{Modules: []sdwan.Module{{ModuleID: "a", Digest: "1"}, {ModuleID: "b", Digest: "2"}}})
		if err != nil {
			return err
		}
		return store.PutDocument(ctx, tx, store.StoredDocument{InstanceID: id, Hash: "h", Body: body})
	})
	says := func(modules map[string]string) {
		w.report(t, id, func(r *sdwan.Report) {
			r.Modules = modules
			r.Subsystems = append(r.Subsystems, sdwan.SubsystemReport{Name: "modules", State: "ok"})
		})
	}
	says(map[string]string{"a": "1", "b": "old", "c": "3"})
	w.after(t, 60*time.Second)
	w.expect(t, "system.module_drift")
	says(map[string]string{"a": "1", "b": "old", "c": "3"})
	w.after(t, 70*time.Second)
	w.expect(t, "system.module_drift", signal.Medium)
	toolstest.Has(t, toolstest.Object{"missing": []any{}, "extra": []any{"c"}, "mismatched": []any{"b"}}, w.Signals(t, "system.module_drift")[0].Payload)
	says(map[string]string{"c": "3"})
	w.after(t, 10*time.Second)
	w.expect(t, "system.module_drift", signal.Medium, signal.High)
	says(map[string]string{"a": "1", "b": "2"})
	w.after(t, 10*time.Second)
	w.expect(t, "system.module_converged", signal.Low)
}

func TestFindingsCloseWhenAllHaveSaid(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	id := w.machine(t, "m-1")
	says := func(found []sdwan.Finding) {
		w.report(t, id, func(r *sdwan.Report) { r.Findings = found })
		w.after(t, 10*time.Second)
	}
	says([]sdwan.Finding{{Finding: "clock_behind", Evidence: "by\x00 90 s"}, {Finding: "k3s_setting_drift", Evidence: "cluster-cidr: desired a, actual b"},
		{Finding: "made_up"}, {Finding: "k3s_setting_drift", Evidence: "no key: desired a, actual b"}})
	w.expect(t, "system.host_finding", signal.Medium)
	toolstest.Has(t, toolstest.Object{"finding": "clock_behind", "evidence": "by  90 s"}, w.Signals(t, "system.host_finding")[0].Payload)
	toolstest.Has(t, toolstest.Object{"key": "cluster-cidr", "desired": "a", "actual": "b"}, w.Signals(t, "system.k3s_setting_drift")[0].Payload)
	says(nil)
	w.expect(t, "system.host_finding_cleared")
	says([]sdwan.Finding{})
	w.expect(t, "system.host_finding_cleared", signal.Low)
	w.expect(t, "system.k3s_setting_converged", signal.Low)
}

func TestCertificatesExpireAndAreRenewed(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	id := w.machine(t, "m-1")
	issue := func(serial string, days int) {
		w.Update(t, func(ctx context.Context, tx *store.Tx) error {
			c := store.Certificate{ID: store.CertificateID(tx.NewID()), AccountID: w.Account.ID, InstanceID: id, Serial: serial, Subject: "x",
				NotBefore: store.At(tx.Now()), NotAfter: store.At(tx.Now().AddDate(0, 0, days))}
			if err := store.InsertCertificate(ctx, tx, c); err != nil {
				return err
			}
			return store.EndCertificates(ctx, tx, id, c.ID, store.At(tx.Now().Add(time.Hour)))
		})
	}
	issue("1", 10)
	w.after(t, time.Minute)
	w.expect(t, "system.certificate_expiring")
	w.after(t, 4*24*time.Hour)
	w.after(t, 6*24*time.Hour)
	w.expect(t, "system.certificate_expiring", signal.Medium, signal.High)
	issue("2", 90)
	w.after(t, time.Minute)
	w.expect(t, "system.certificate_renewed", signal.Low)
}

func TestTasksThatWaitAreABacklog(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	var task store.Task
	w.Update(t, func(ctx context.Context, tx *store.Tx) (err error) {
		task, err = store.InsertTask(ctx, tx, store.Task{ID: store.TaskID(tx.NewID()), AccountID: w.Account.ID, Command: "sync_modules", Status: store.TaskPending,
			OperableType: "Instance", OperableID: "x", Parameters: store.JSON[store.Object]{V: store.Object{}}})
		return err
	})
	w.after(t, 70*time.Hour)
	w.expect(t, "system.task_backlog_stuck")
	w.after(t, 3*time.Hour)
	w.after(t, 5*24*time.Hour)
	w.after(t, 7*24*time.Hour)
	w.expect(t, "system.task_backlog_stuck", signal.Medium, signal.High, signal.Critical)
	toolstest.Has(t, toolstest.Object{"count": 1.0, "oldest_task_id": string(task.ID)}, w.Signals(t, "system.task_backlog_stuck")[0].Payload)
	w.Update(t, func(ctx context.Context, tx *store.Tx) error {
		task.Status = store.TaskComplete
		_, err := store.UpdateTask(ctx, tx, task)
		return err
	})
	w.after(t, time.Minute)
	w.expect(t, "system.task_backlog_cleared", signal.Low)
}

func TestEmptySelectorsAreTold(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	network := w.network(t, "a")
	w.Call(t, "system_sdwan_create_firewall_rule", toolstest.Object{"network_id": network, "name": "web", "dst_selector": toolstest.Object{"tag": "web"}})
	w.after(t, 10*time.Second)
	w.expect(t, "system.sdwan_selector_empty", signal.Medium)
	id, peer := w.member(t, network, "m-1")
	w.Update(t, func(ctx context.Context, tx *store.Tx) error {
		p, err := store.PeerByID(ctx, &tx.View, w.Account.ID, store.PeerID(peer["id"].(string)))
		if err != nil {
			return err
		}
		p.Tags = []string{"web"}
		return store.UpdatePeer(ctx, tx, p)
	})
	w.report(t, id, nil)
	w.after(t, 10*time.Second)
	w.expect(t, "system.sdwan_selector_resolved", signal.Low)
}

// shaken lets a machine report its tunnels: the age of the last handshake by remote peer.
func (w *watched) shaken(t *testing.T, id store.InstanceID, network string, ages map[string]time.Duration) {
	t.Helper()
	w.report(t, id, func(r *sdwan.Report) {
		for remote, age := range ages {
			r.Tunnels = append(r.Tunnels, sdwan.TunnelReport{NetworkID: network, RemotePeerID: remote, LastHandshakeAt: w.clock.Now().Add(-age)})
		}
	})
}

func TestPeersDriftAsAWholeOrByPairs(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	network := w.network(t, "a")
	var ids []store.InstanceID
	var peers []string
	for _, name := range []string{"m-1", "m-2", "m-3"} {
		id, p := w.member(t, network, name)
		ids, peers = append(ids, id), append(peers, p["id"].(string))
	}
	w.after(t, 6*time.Minute) // nobody reported: nothing is measured
	w.expect(t, "system.sdwan_peer_drift")
	m := time.Minute
	say := func(one, two, three map[string]time.Duration) {
		for i, ages := range []map[string]time.Duration{one, two, three} {
			if ages != nil {
				w.shaken(t, ids[i], network, ages)
			}
		}
		w.after(t, 10*time.Second)
	}
	say(map[string]time.Duration{peers[1]: 6 * m, peers[2]: m}, map[string]time.Duration{peers[0]: 6 * m, peers[2]: m},
		map[string]time.Duration{peers[0]: m, peers[1]: m})
	w.expect(t, "system.sdwan_peer_drift", signal.Medium) // one tunnel, seen from both ends
	say(map[string]time.Duration{peers[1]: m, peers[2]: 16 * m}, map[string]time.Duration{peers[0]: m, peers[2]: 16 * m}, nil)
	w.expect(t, "system.sdwan_peer_recovered", signal.Low)
	w.after(t, 100*time.Second)
	say(map[string]time.Duration{peers[1]: m, peers[2]: 18 * m}, map[string]time.Duration{peers[0]: m, peers[2]: 18 * m}, nil)
	w.expect(t, "system.sdwan_peer_drift", signal.Medium, signal.High)
	toolstest.Has(t, toolstest.Object{"peer_id": peers[2], "remote_peer_id": nil}, w.Signals(t, "system.sdwan_peer_drift")[0].Payload)
	w.Approve(t, w.Parked(t, "system_sdwan_detach_peer", toolstest.Object{"peer_id": peers[2]}))
	w.after(t, 10*time.Second)
	w.expect(t, "system.sdwan_peer_recovered", signal.Low, signal.Low)
}

func TestAPeerThatIsOnItsWayOutIsOneCondition(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	network := w.network(t, "a")
	var ids []store.InstanceID
	var peers []string
	for _, name := range []string{"m-1", "m-2", "m-3"} {
		id, p := w.member(t, network, name)
		ids, peers = append(ids, id), append(peers, p["id"].(string))
	}
	gone := func(one, two time.Duration) { // of the handshakes that m-1 and m-2 had with m-3, which says nothing any more
		w.shaken(t, ids[0], network, map[string]time.Duration{peers[1]: time.Minute, peers[2]: one})
		w.shaken(t, ids[1], network, map[string]time.Duration{peers[0]: time.Minute, peers[2]: two})
		w.after(t, 10*time.Second)
	}
	gone(305*time.Second, 200*time.Second)
	w.expect(t, "system.sdwan_peer_drift") // the first tunnel passed the threshold, the peer has not
	gone(425*time.Second, 320*time.Second)
	w.expect(t, "system.sdwan_peer_drift", signal.Medium)
	toolstest.Has(t, toolstest.Object{"peer_id": peers[2], "remote_peer_id": nil}, w.Signals(t, "system.sdwan_peer_drift")[0].Payload)

	w.Update(t, func(ctx context.Context, tx *store.Tx) error { // somebody stopped it: nothing is wrong
		i, err := store.InstanceByID(ctx, &tx.View, w.Account.ID, ids[2])
		if err != nil {
			return err
		}
		i.Status = store.InstanceStopped
		_, err = store.UpdateInstance(ctx, tx, i)
		return err
	})
	gone(800*time.Second, 700*time.Second)
	w.expect(t, "system.sdwan_peer_recovered", signal.Low)
	gone(2000*time.Second, 1900*time.Second)
	w.expect(t, "system.sdwan_peer_drift", signal.Medium)
}

func TestWhatWasNotAppliedIsTold(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	network := w.network(t, "a")
	id, _ := w.member(t, network, "m-1")
	w.report(t, id, func(r *sdwan.Report) { r.Subsystems[1].State, r.Subsystems[1].Message = "error", "no nft" })
	w.after(t, 5*time.Second)
	w.expect(t, "system.sdwan_apply_failed", signal.High)
	toolstest.Has(t, toolstest.Object{"network_id": network, "subsystem": "firewall", "message": "no nft"}, w.Signals(t, "system.sdwan_apply_failed")[0].Payload)
	w.after(t, 2*time.Minute)
	w.expect(t, "system.sdwan_apply_recovered")
	w.report(t, id, nil)
	w.after(t, 5*time.Second)
	w.expect(t, "system.sdwan_apply_recovered", signal.Low)

	w.member(t, network, "m-2") // a document that m-1 says nothing of
	w.after(t, 5*time.Minute)
	w.expect(t, "system.sdwan_apply_not_measured")
	w.after(t, 6*time.Minute)
	w.expect(t, "system.sdwan_apply_not_measured", signal.Medium)
	w.report(t, id, nil)
	w.after(t, 10*time.Second)
	w.expect(t, "system.sdwan_apply_measured", signal.Low)
}

func TestConditionsOfAnEndedInstanceClose(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	id := w.machine(t, "m-1")
	w.report(t, id, func(r *sdwan.Report) { r.Subsystems[0].State = "error" })
	w.after(t, 10*time.Minute)
	w.expect(t, "system.agent_subsystem_failed", signal.High)
	w.expect(t, "system.instance_silent", signal.Medium)
	w.Update(t, func(ctx context.Context, tx *store.Tx) error {
		i, err := store.InstanceByID(ctx, &tx.View, w.Account.ID, id)
		if err != nil {
			return err
		}
		i.Status = store.InstanceTerminated
		_, err = store.UpdateInstance(ctx, tx, i)
		return err
	})
	w.after(t, 10*time.Second)
	w.expect(t, "system.agent_subsystem_recovered", signal.Low)
	w.expect(t, "system.instance_recovered", signal.Low)
	if about := w.Signals(t, "system.instance_recovered")[0].NodeInstanceID; about != id {
		t.Errorf("the closing signal is about %q, want the instance", about)
	}
}

func TestGovernanceGapsAreTold(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	w.after(t, time.Minute)
	w.expect(t, "system.governance_gap")
	row := store.Policy{ID: "p", AccountID: w.Account.ID, ActionCategory: "made.up", Verdict: "block", Scope: "{}", MadeBy: w.Person.ID}
	w.Update(t, func(ctx context.Context, tx *store.Tx) error { return store.PutPolicy(ctx, tx, row) })
	w.after(t, time.Minute)
	w.expect(t, "system.governance_gap", signal.Medium)
	w.Update(t, func(ctx context.Context, tx *store.Tx) error {
		_, err := store.DeletePolicy(ctx, tx, w.Account.ID, row.ActionCategory, row.Scope)
		return err
	})
	w.after(t, time.Minute)
	w.expect(t, "system.governance_gap_closed", signal.Low)
}

func TestEtcdMembersAndQuorum(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	network := w.network(t, "a")
	cluster := store.ClusterID(at(t, w.Call(t, "kubernetes_create_cluster", toolstest.Object{"name": "blue", "network_id": network}), "cluster", "id").(string))
	var servers []store.ClusterNodeID
	for _, name := range []string{"s-1", "s-2", "s-3"} {
		id, _ := w.member(t, network, name)
		node := w.nodeOf(t, id)
		w.Update(t, func(ctx context.Context, tx *store.Tx) error {
			joined := store.At(tx.Now())
			n := store.ClusterNode{ID: store.ClusterNodeID(tx.NewID()), AccountID: w.Account.ID, ClusterID: cluster, InstanceID: id, NodeID: node, Name: name,
				Role: "server", Status: "active", JoinedAt: &joined}
			servers = append(servers, n.ID)
			return store.InsertClusterNode(ctx, tx, n)
		})
	}
	says := func(members int, healthy ...bool) {
		w.Update(t, func(ctx context.Context, tx *store.Tx) error {
			h := store.ClusterHealth{ClusterID: cluster, MeasuredAt: store.At(tx.Now())}
			h.Detail.V.EtcdMembers = &members
			for i := range healthy {
				one := store.ClusterNodeHealth{ClusterNodeID: servers[i], ReportedAt: store.At(tx.Now()), EtcdHealthy: &healthy[i]}
				if err := store.PutClusterNodeHealth(ctx, tx, one); err != nil {
					return err
				}
			}
			return store.PutClusterHealth(ctx, tx, h)
		})
		w.after(t, 30*time.Second)
	}
	for range 3 {
		says(3, true, true, true)
	}
	w.expect(t, "system.k3s_etcd_member_unhealthy")
	w.expect(t, "system.k3s_quorum_at_risk")
	says(3, true, true, false)
	w.expect(t, "system.k3s_etcd_member_unhealthy")
	says(3, true, true, false)
	says(3, true, true, false)
	w.expect(t, "system.k3s_etcd_member_unhealthy", signal.High)
	w.expect(t, "system.k3s_quorum_at_risk", signal.Critical)
	toolstest.Has(t, toolstest.Object{"members": 3.0, "healthy": 2.0, "quorum": 2.0}, w.Signals(t, "system.k3s_quorum_at_risk")[0].Payload)
	w.after(t, 10*time.Minute) // nobody is heard of
	w.expect(t, "system.k3s_quorum_restored")
	says(3, true, true, true)
	w.expect(t, "system.k3s_etcd_member_healthy", signal.Low)
	w.expect(t, "system.k3s_quorum_restored", signal.Low)
	for range 3 {
		says(4, true, true, true)
	}
	w.expect(t, "system.k3s_etcd_member_unhealthy", signal.High, signal.High)
}

func TestFailuresAreAttributed(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	network := w.network(t, "a")
	id, _ := w.member(t, network, "m-1")
	other, _ := w.member(t, network, "m-2")
	ask := toolstest.Object{"instance_id": id}
	w.report(t, id, nil)
	toolstest.Has(t, toolstest.Object{"verdict": "none_found", "causes": []any{}}, w.Call(t, "system_attribute_failure", ask))
	w.report(t, other, func(r *sdwan.Report) { r.Subsystems[0].State = "error" })
	w.report(t, id, func(r *sdwan.Report) { r.Subsystems[1].State = "error" })
	w.Update(t, func(ctx context.Context, tx *store.Tx) error {
		return signal.Emit(ctx, tx, w.Account.ID, signal.Event{Kind: "system.module_version_changed", Subject: signal.Subject{NetworkID: store.NetworkID(network)}})
	})
	got := w.Call(t, "system_attribute_failure", ask)
	causes := objects(t, got["causes"])
	if got["verdict"] != "attributed" || len(causes) != 2 || causes[0]["kind"] != "system.agent_subsystem_failed" || causes[1]["kind"] != "system.module_version_changed" {
		t.Fatalf("attribution %s, want the instance's own failure before the change around it", spelt(got))
	}
	if evidence := objects(t, causes[0]["evidence"]); len(evidence) != 1 || evidence[0]["open"] != true {
		t.Errorf("evidence %s, want its own open signal alone", spelt(causes[0]["evidence"]))
	}
	w.clock.Advance(200 * time.Hour)
	toolstest.Has(t, toolstest.Object{"verdict": "not_measured"}, w.Call(t, "system_attribute_failure", ask))
	w.Refused(t, "system_attribute_failure", toolstest.Object{"instance_id": id, "lookback_hours": 169}, schema.InvalidArguments, "lookback_hours")
}

func TestRetentionKeepsWhatIsOpenAndTellsWatchers(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	id := w.machine(t, "m-1")
	w.report(t, id, nil)
	w.after(t, 200*time.Second)
	place := w.Call(t, "system_watch_signals", nil)["next_after"]
	emit(t, w.Env, "system.k3s_node_joined", 1)
	emit(t, w.Env, "system.task_failed", 2)
	for range 5 {
		w.Call(t, "platform_whoami", nil)
	}
	events := w.Call(t, "recent_events", nil)["count"].(float64)
	prune := func(days int) {
		t.Helper()
		w.clock.Advance(time.Duration(days) * 24 * time.Hour)
		if err := w.Platform.Sensors().Prune(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	prune(89)
	w.expect(t, "system.k3s_node_joined", signal.Low)
	prune(2)
	w.expect(t, "system.k3s_node_joined")
	w.expect(t, "system.task_failed", signal.High)
	w.expect(t, "system.instance_silent", signal.Medium) // it is open
	if now := w.Call(t, "recent_events", nil)["count"].(float64); events < 5 || now >= events {
		t.Errorf("%v of %v execution events are left", now, events)
	}
	refused := w.Refused(t, "system_watch_signals", toolstest.Object{"after": place}, schema.PreconditionFailed, "older than what is kept")
	oldest, _ := refused.Details["oldest"].(string)
	if got := numbers(w.Call(t, "system_watch_signals", toolstest.Object{"after": oldest})); !cmp.Equal([]float64{2}, got) {
		t.Errorf("from details.oldest on there are %v, want what is kept", got)
	}
	prune(280)
	w.expect(t, "system.task_failed")
	from := w.Call(t, "system_watch_signals", nil)["next_after"]
	emit(t, w.Env, "system.k3s_node_joined", 3)
	if got := numbers(w.Call(t, "system_watch_signals", toolstest.Object{"after": from})); !cmp.Equal([]float64{3}, got) {
		t.Errorf("after everything was removed, a watcher sees %v", got)
	}
}

func TestMachinesThatAreNotAsRecordedAreTold(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	machines := newHost()
	w.Platform.Fleet.Providers["local"] = machines
	id := w.machine(t, "m-1")
	w.Update(t, func(ctx context.Context, tx *store.Tx) error {
		i, err := store.InstanceByID(ctx, &tx.View, w.Account.ID, id)
		if err != nil {
			return err
		}
		i.CloudInstanceID = "m"
		_, err = store.UpdateInstance(ctx, tx, i)
		return err
	})
	is := func(status provider.Status) {
		t.Helper()
		machines.machines["m"] = provider.Machine{ID: "m", InstanceID: string(id), Status: status}
		for range 3 {
			w.clock.Advance(time.Second)
			if err := w.Platform.PollProviders(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.after(t, 40*time.Second)
		}
	}
	is(provider.StatusRunning)
	w.expect(t, "system.instance_state_drifted")
	is(provider.StatusStopped)
	w.expect(t, "system.instance_state_drifted", signal.High)
	toolstest.Has(t, toolstest.Object{"recorded": "running", "provider_status": "stopped"}, w.Signals(t, "system.instance_state_drifted")[0].Payload)
	is(provider.StatusUnknown)
	w.after(t, time.Hour) // nobody asks
	w.expect(t, "system.instance_state_converged")
	is(provider.StatusRunning)
	w.expect(t, "system.instance_state_converged", signal.Low)
}
