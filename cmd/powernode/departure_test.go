package main

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/provider/manual"
	"powernode/sdwan"
	"powernode/store"
	"powernode/store/storetest"
	"powernode/tools/toolstest"
)

// departing are agents of machines that nobody but their owners makes or ends, on a platform whose time the test moves.
type departing struct {
	*agents
	clock *storetest.Clock
}

func newDeparting(t *testing.T) *departing {
	t.Helper()
	d := &departing{clock: storetest.NewClock()}
	d.agents = agentsOf(t, toolstest.NewAt(t, d.clock), d.clock.Now)
	f := d.Platform.Fleet
	f.Providers[manual.Type] = manual.New(manual.Options{StateDir: f.StateDir, Reachable: func() error { return nil }})
	d.Update(t, func(ctx context.Context, tx *store.Tx) error {
		d.provider = store.ProviderID(tx.NewID())
		return store.InsertProvider(ctx, tx, store.Provider{ID: d.provider, AccountID: d.Account.ID, Name: "racks", ProviderType: manual.Type, Enabled: true})
	})
	return d
}

// enrol makes a machine of somebody else whose agent has its certificate, and has reported.
func (d *departing) enrol(t *testing.T, name string) *agent {
	t.Helper()
	g := d.agents.enrol(t, name)
	g.attach(t, d.network(t, "net-"+name))
	g.clean(t, 1)
	return g
}

// clean reports that every subsystem has done what the document of a revision asks for.
func (g *agent) clean(t *testing.T, revision int64) {
	t.Helper()
	r := g.report(t, func(r *sdwan.Report) {
		for _, name := range []string{"wireguard", "firewall", "vip", "modules", "k3s"} {
			r.Subsystems = append(r.Subsystems, sdwan.SubsystemReport{Name: name, AppliedRevision: revision, State: "ok"})
		}
	})
	if r.status != http.StatusOK {
		t.Errorf("report at %d: HTTP %d %v", revision, r.status, r.body)
	}
}

// told is the document that an agent gets, of which it says whether it asks to leave.
func (g *agent) told(t *testing.T) (leave bool, revision int64) {
	t.Helper()
	r := g.get(t, "/node/desired?after=0&wait=0")
	if r.status != http.StatusOK {
		t.Fatalf("the document: HTTP %d %v", r.status, r.body)
	}
	who := r.data()["instance"].(toolstest.Object)
	if who["id"] != string(g.instance.ID) {
		t.Errorf("the document names %v, the machine is %s", who["id"], g.instance.ID)
	}
	leave, _ = who["leave"].(bool)
	return leave, int64(r.data()["revision"].(float64))
}

func (d *departing) terminate(t *testing.T, g *agent) toolstest.Object {
	t.Helper()
	return d.Approve(t, d.Parked(t, "system_terminate_instance", toolstest.Object{"instance_id": g.instance.ID}))
}

// How long a machine was away, and what has become of the record of it meanwhile.
func TestMachineThatComesBackAfterItsInstanceEndedIsToldToLeave(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]func(t *testing.T, d *departing, g *agent){
		"at once":            func(t *testing.T, d *departing, g *agent) { d.terminate(t, g) },
		"after three days":   func(t *testing.T, d *departing, g *agent) { d.terminate(t, g); d.clock.Advance(72 * time.Hour) },
		"after half a year":  func(t *testing.T, d *departing, g *agent) { d.terminate(t, g); d.clock.Advance(180 * 24 * time.Hour) },
		"expired beforehand": func(t *testing.T, d *departing, g *agent) { d.clock.Advance(100 * 24 * time.Hour); d.terminate(t, g) },
		"its node deleted": func(t *testing.T, d *departing, g *agent) {
			d.terminate(t, g)
			got := d.Approve(t, d.Parked(t, "system_delete_node", toolstest.Object{"node_id": g.instance.NodeID}))
			warned(t, got, "machine_not_cleaned")
		},
		"its record destroyed": func(t *testing.T, d *departing, g *agent) {
			d.clock.Advance(time.Hour)
			got := d.Approve(t, d.Parked(t, "system_destroy_instance", toolstest.Object{"instance_id": g.instance.ID}))
			warned(t, got, "machine_not_cleaned")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDeparting(t)
			g := d.enrol(t, "m-1")
			if leave, _ := g.told(t); leave {
				t.Fatal("a machine of a living instance is told to leave")
			}
			tt(t, d, g)
			leave, revision := g.told(t)
			if !leave {
				t.Fatal("the machine is not told to leave")
			}
			if r := g.get(t, "/node/desired?after=0&wait=0&incarnation=another"); r.status != http.StatusOK {
				t.Errorf("with another incarnation: HTTP %d", r.status)
			}
			g.clean(t, revision-1)
			if n := len(d.Signals(t, "system.instance_cleaned")); n != 0 {
				t.Error("a machine is taken for clean before it is")
			}
			g.clean(t, revision)
			closed := d.Signals(t, "system.instance_cleaned")
			if len(closed) != 1 || closed[0].NodeInstanceID != g.instance.ID || closed[0].Payload["name"] != "m-1" {
				t.Errorf("signals of the clean-up: %+v", closed)
			}
			g.clean(t, revision) // its first answer was lost
			if n := len(d.Signals(t, "system.instance_cleaned")); n != 1 {
				t.Errorf("%d signals of one clean-up", n)
			}
		})
	}
}

func warned(t *testing.T, answer toolstest.Object, code string) {
	t.Helper()
	text := ""
	result, _ := answer["result"].(toolstest.Object)
	for _, from := range []toolstest.Object{answer, result} {
		list, _ := from["warnings"].([]any)
		for _, w := range list {
			text += w.(toolstest.Object)["code"].(string) + " "
		}
	}
	if !strings.Contains(text, code) {
		t.Errorf("warnings %q, want %s in %v", text, code, answer)
	}
}

func TestCertificateOfAnEndedInstanceIsGoodForLeavingAlone(t *testing.T) {
	t.Parallel()
	d := newDeparting(t)
	g := d.enrol(t, "m-1")
	d.terminate(t, g)
	_, csr := signingRequest(t)
	for _, later := range []time.Duration{0, 72 * time.Hour} {
		d.clock.Advance(later)
		for path, body := range map[string]any{"/enroll/refresh": toolstest.Object{"csr_pem": csr, "agent_version": "1"},
			"/runtime/handshake": toolstest.Object{"runtime": "k3s_agent", "phase": "join_request"}} {
			g.post(t, path, body).wants(t, path, http.StatusUnauthorized, toolstest.Object{"code": ""})
		}
		for _, path := range []string{"/runtime/k3s_server/config", "/artifacts/" + strings.Repeat("0", 64)} {
			g.get(t, path).wants(t, path, http.StatusUnauthorized, toolstest.Object{"code": ""})
		}
		if r := g.handshake(t, "k3s_agent", "stopped", toolstest.Object{"reason": "uninstalled"}); r.status != http.StatusOK {
			t.Errorf("K3s has stopped: HTTP %d %v", r.status, r.body)
		}
	}
}

// A machine is told to leave by its own instance's end alone.
func TestMachineIsNotToldToLeaveWhileItsInstanceLives(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]func(t *testing.T, d *departing, g *agent){
		"another certificate of its instance replaced its own": func(t *testing.T, d *departing, g *agent) {
			d.enrolAgain(t, g)
		},
		"its certificate was revoked": func(t *testing.T, d *departing, g *agent) {
			d.Update(t, func(ctx context.Context, tx *store.Tx) error {
				return store.EndCertificates(ctx, tx, g.instance.ID, "", store.At(tx.Now()))
			})
		},
		"its certificate has expired": func(t *testing.T, d *departing, g *agent) { d.clock.Advance(100 * 24 * time.Hour) },
		"the platform does not know it": func(t *testing.T, d *departing, g *agent) { // an old backup, say
			d.Update(t, func(ctx context.Context, tx *store.Tx) error {
				_, _, err := d.Platform.Network.DetachInstance(ctx, tx, d.Account.ID, g.instance.ID)
				if err != nil {
					return err
				}
				return store.DeleteInstance(ctx, tx, d.Account.ID, g.instance.ID)
			})
		},
		"another instance has ended": func(t *testing.T, d *departing, g *agent) {
			other := d.enrol(t, "m-2")
			d.terminate(t, other)
			d.Update(t, func(ctx context.Context, tx *store.Tx) error {
				return store.EndCertificates(ctx, tx, g.instance.ID, "", store.At(tx.Now()))
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDeparting(t)
			g := d.enrol(t, "m-1")
			tt(t, d, g)
			g.get(t, "/node/desired?after=0&wait=0").wants(t, "the document", http.StatusUnauthorized, toolstest.Object{"code": ""})
			g.report(t, nil).wants(t, "a report", http.StatusUnauthorized, toolstest.Object{"code": ""})
		})
	}
}

// enrolAgain has another machine enrol as an agent's instance.
func (d *departing) enrolAgain(t *testing.T, g *agent) {
	t.Helper()
	var token store.Secret
	d.Update(t, func(ctx context.Context, tx *store.Tx) (err error) {
		token, err = d.Platform.Fleet.IssueEnrollmentToken(ctx, tx, g.instance)
		return err
	})
	_, csr := signingRequest(t)
	other := &agent{a: d.agents, client: d.client(t)}
	if r := other.post(t, "/enroll", enrolment(token, csr)); r.status != http.StatusOK {
		t.Fatalf("enrol again: HTTP %d %v", r.status, r.body)
	}
}

func TestOperatorSeesWhetherAMachineHasCleanedUp(t *testing.T) {
	t.Parallel()
	d := newDeparting(t)
	g := d.enrol(t, "m-1")
	seen := func() any {
		t.Helper()
		of := d.Call(t, "system_get_instance", toolstest.Object{"instance_id": g.instance.ID})["instance"].(toolstest.Object)
		for _, state := range of["subsystems"].([]any) {
			if state := state.(toolstest.Object); state["name"] == "cleanup" {
				return toolstest.Object{"state": state["state"], "observed_at": state["observed_at"]}
			}
		}
		return nil
	}
	if got := seen(); got != nil {
		t.Errorf("a living instance has a clean-up: %v", got)
	}
	d.clock.Advance(time.Hour)
	warned(t, d.terminate(t, g), "machine_not_cleaned")
	since := store.At(d.clock.Now()).String()
	if diff := cmp.Diff(toolstest.Object{"state": "not_measured", "observed_at": since}, seen()); diff != "" {
		t.Errorf("before (-want +got):\n%s", diff)
	}
	if open := d.Signals(t, "system.instance_cleanup_pending"); len(open) != 1 || open[0].Severity != "medium" {
		t.Errorf("signals of a machine that was silent: %+v", open)
	}
	_, revision := g.told(t)
	g.clean(t, revision)
	if diff := cmp.Diff(toolstest.Object{"state": "ok", "observed_at": since}, seen()); diff != "" {
		t.Errorf("after (-want +got):\n%s", diff)
	}
	again := d.Call(t, "system_terminate_instance", toolstest.Object{"instance_id": g.instance.ID})
	if w, _ := again["warnings"].([]any); again["pending"] != true && len(w) > 0 {
		t.Errorf("of a clean machine it is warned: %v", w)
	}
}

// An agent that died between the request for a renewal and its answer has the old certificate alone.
func TestRenewalIsAnsweredAgainAlsoLongAfterItEndedTheOldCertificate(t *testing.T) {
	t.Parallel()
	d := newDeparting(t)
	g := d.enrol(t, "m-1")
	_, csr := signingRequest(t)
	renew := func(csr string) answer {
		return g.post(t, "/enroll/refresh", toolstest.Object{"csr_pem": csr, "agent_version": "1"})
	}
	first := renew(csr)
	again := renew(csr)
	d.clock.Advance(20 * 24 * time.Hour)
	late := renew(csr)
	for name, r := range map[string]answer{"again": again, "late": late} {
		if r.status != http.StatusOK || r.data()["cert_pem"] != first.data()["cert_pem"] {
			t.Errorf("%s: HTTP %d, want the same certificate", name, r.status)
		}
	}
	_, other := signingRequest(t)
	renew(other).wants(t, "another key for a replaced certificate", http.StatusUnauthorized, toolstest.Object{"code": ""})
	g.get(t, "/node/desired?after=0&wait=0").wants(t, "the document for a replaced certificate", http.StatusUnauthorized, toolstest.Object{"code": ""})
	d.terminate(t, g)
	renew(csr).wants(t, "of an instance that has ended", http.StatusUnauthorized, toolstest.Object{"code": ""})
	if leave, _ := g.told(t); !leave {
		t.Error("a machine that has the replaced certificate alone is not told that its instance has ended")
	}
}

// Machines that got hold of the same token ask at once.
func TestOneOfManyMachinesEnrolsWithAToken(t *testing.T) {
	t.Parallel()
	d := newDeparting(t)
	_, token := d.machine(t, "m-1")
	const machines = 8
	statuses := make(chan int, machines)
	for range machines {
		g := &agent{a: d.agents, client: d.client(t)}
		_, csr := signingRequest(t)
		go func() { statuses <- g.post(t, "/enroll", enrolment(token, csr)).status }()
	}
	got := map[int]int{}
	for range machines {
		got[<-statuses]++
	}
	if diff := cmp.Diff(map[int]int{http.StatusOK: 1, http.StatusConflict: machines - 1}, got); diff != "" {
		t.Errorf("answers by status (-want +got):\n%s", diff)
	}
}
