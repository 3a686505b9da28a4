package tools_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/cluster"
	"powernode/platform/fleet"
	"powernode/platform/governance"
	"powernode/platform/provider"
	"powernode/schema"
	"powernode/store"
	"powernode/tools/toolstest"
)

// place is a site whose clusters the test plays, as a lab does: machines are rows, or the host's.
type place struct {
	*site
	lab *lab
}

func newPlace(t *testing.T) place {
	t.Helper()
	s := newSite(t)
	l := labIn(t, s.Env)
	return place{site: s, lab: l}
}

// up makes a network with an active cluster on it; the cluster has its server's name.
func (p place) up(t *testing.T, network, name string) (networkID, clusterID string) {
	t.Helper()
	networkID = p.lab.network(t, network)
	p.lab.activate(t, p.lab.server(t, networkID, name), name)
	return networkID, p.lab.cluster(t, name)["id"].(string)
}

// templateOn makes a template whose machines are peers of a network, with one module.
func (p place) templateOn(t *testing.T, name, network, module string, config toolstest.Object) string {
	t.Helper()
	id := at(t, p.Call(t, "system_create_template", toolstest.Object{"name": name, "node_platform_id": p.platform,
		"config": toolstest.Object{"sdwan_network_id": network}}), "template", "id").(string)
	p.site.join(t, id, module, config)
	return id
}

// members are a cluster's members, and waiters who waits for it, as "name role reason".
func (p place) members(t *testing.T, ref string) (members, waiters []string) {
	t.Helper()
	answer := p.Call(t, "kubernetes_list_nodes", toolstest.Object{"cluster_id": ref})
	for _, n := range objects(t, answer["nodes"]) {
		members = append(members, n["name"].(string))
	}
	for _, w := range objects(t, answer["waiting"]) {
		waiters = append(waiters, strings.Join([]string{w["name"].(string), w["role"].(string), w["reason"].(string)}, " "))
	}
	return members, waiters
}

// hints fails unless a refusal names the verb to call next.
func hints(t *testing.T, refusal *schema.Error, verb string) {
	t.Helper()
	if refusal.Hint == nil || refusal.Hint.Verb != verb {
		t.Errorf("%s: hint %+v, want %s", refusal.Message, refusal.Hint, verb)
	}
}

// Scenario 1.
func TestNodeOfAnOlderPagesKeysIsRefusedAndRecorded(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	template := s.template(t, "plain")
	s.Refused(t, "system_create_node", toolstest.Object{"hostname": "k3s-server-b-1", "node_template_id": template, "metadata": toolstest.Object{"tenant": "b"}},
		schema.InvalidArguments, "Missing required parameters: name, template_id; Undeclared parameters: hostname (did you mean name?), "+
			"metadata (did you mean config?), node_template_id (did you mean template_id?)")
	toolstest.Has(t, toolstest.Object{"count": 0.0}, s.Call(t, "system_list_nodes", nil))
	refused := objects(t, s.Call(t, "recent_events", toolstest.Object{"status": "refused"})["events"])
	if len(refused) != 1 {
		t.Fatalf("%d refused calls are recorded, want 1", len(refused))
	}
	toolstest.Has(t, toolstest.Object{"event_type": "system_create_node", "source_type": "verb_call", "error_class": "invalid_arguments"}, refused[0])
}

// Scenario 2.
func TestInstanceHasNoTemplateOfItsOwn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	template := s.template(t, "plain")
	id := s.provision(t, s.node(t, "a", template))
	read := func() toolstest.Object { return s.Call(t, "system_get_instance", toolstest.Object{"instance_id": id}) }
	before := read()
	for _, key := range []string{"node_template_id", "template_id"} {
		refusal := s.Refused(t, "system_update_instance", toolstest.Object{"instance_id": id, key: template}, schema.InvalidArguments, "Undeclared parameters: "+key)
		hints(t, refusal, "system_update_node")
		if text := refusal.Hint.Text; !strings.Contains(text, "system_apply_template") {
			t.Errorf("the hint says %q, want system_apply_template after it", text)
		}
	}
	if diff := cmp.Diff(before, read()); diff != "" {
		t.Errorf("the refusals changed the instance:\n%s", diff)
	}
}

// Scenario 3.
func TestMovedPointerReachesTheMachineByAnApplyAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	plain, carrying := s.template(t, "plain"), s.template(t, "carrying")
	s.join(t, plain, s.module(t, "web", nil), nil)
	s.join(t, carrying, s.server, nil)
	node := s.node(t, "a", plain)
	id := s.provision(t, node)
	assigned, served := s.assignment(t, node), s.document(t, id).Modules
	stale := toolstest.Object{"assignments_stale": true, "hint": toolstest.Object{"verb": "system_apply_template"}}
	moved := s.Call(t, "system_update_node", toolstest.Object{"node_id": node, "node_template_id": carrying})
	toolstest.Has(t, toolstest.Object{"node": toolstest.Object{"template_id": carrying, "template_name": "carrying", "applied_template_id": plain}}, moved)
	toolstest.Has(t, stale, moved)
	toolstest.Has(t, stale, s.Call(t, "system_refresh_instance_modules", toolstest.Object{"instance_id": id}))
	if diff := cmp.Diff(assigned, s.assignment(t, node)); diff != "" {
		t.Errorf("the assignment changed:\n%s", diff)
	}
	if diff := cmp.Diff(served, s.document(t, id).Modules); diff != "" {
		t.Errorf("the served modules changed:\n%s", diff)
	}
}

// Scenario 6.
func TestPurgeTakesWhatTheTemplateBroughtAndKeepsWhatAHandMade(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	brought, made := s.module(t, "brought", nil), s.module(t, "made", nil)
	old, plain := s.template(t, "old"), s.template(t, "plain")
	s.join(t, old, brought, nil)
	node := s.node(t, "a", old)
	id := s.provision(t, node)
	s.Call(t, "system_assign_module_to_node", toolstest.Object{"node_id": node, "module_id": made})
	s.Call(t, "system_update_node", toolstest.Object{"node_id": node, "node_template_id": plain})
	parked := s.Call(t, "system_apply_template", toolstest.Object{"node_id": node, "purge_stale": true})
	toolstest.Has(t, toolstest.Object{"pending": true, "action_category": "system.template_apply_purge"}, parked)
	names := func() (out []string) {
		for _, a := range objects(t, s.Call(t, "system_list_node_module_assignments", toolstest.Object{"node_id": node})["assignments"]) {
			out = append(out, a["module_name"].(string))
		}
		return out
	}
	if diff := cmp.Diff([]string{"brought", "made"}, names()); diff != "" {
		t.Errorf("a parked purge did something (-want +got):\n%s", diff)
	}
	got := s.Approve(t, store.OperationID(parked["deferred_operation_id"].(string)))
	toolstest.Has(t, toolstest.Object{"woken_instance_ids": []any{id}}, got)
	if purged := objects(t, got["purged"]); len(purged) != 1 || purged[0]["module_name"] != "brought" {
		t.Errorf("purged %s, want what the old template brought", spelt(purged))
	}
	if diff := cmp.Diff([]string{"made"}, names()); diff != "" {
		t.Errorf("assignments after the purge (-want +got):\n%s", diff)
	}
}

// Scenario 8: of two clusters, a worker that is provisioned with its assignment joins the one that its template names.
func TestProvisionedWorkerJoinsTheClusterOfItsTemplate(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	_, a := p.up(t, "tenant-a", "a-1")
	network, b := p.up(t, "tenant-b", "b-1")
	node := p.node(t, "w-1", p.templateOn(t, "workers", network, p.agent, toolstest.Object{"target_cluster_id": b}))
	got := p.Call(t, "system_provision_instance", p.provisionArgs(node))
	toolstest.Has(t, toolstest.Object{"applied": toolstest.Object{"created": 1.0}, "warnings": []any{}}, got)
	toolstest.Has(t, toolstest.Object{"config": toolstest.Object{"target_cluster_id": b}, "target": toolstest.Object{"cluster_id": b, "usable": true}}, p.assignment(t, node))
	toolstest.Has(t, toolstest.Object{"count": 0.0}, p.Call(t, "system_list_tasks", nil))
	id := at(t, got, "instance", "id").(string)
	if agent := p.site.document(t, id).K3s.Agent; agent == nil || agent.TargetClusterID != b || agent.Reason != "" || agent.Agent.NodeName != "w-1" {
		t.Errorf("the runtime configuration serves %+v, want %s", agent, b)
	}
	p.site.report(t, id, converged("boot", 1))
	if refusal := p.lab.join(t, store.InstanceID(id), cluster.RoleAgent); refusal != nil {
		t.Fatalf("the join: %+v", refusal)
	}
	for ref, want := range map[string][]string{a: {"a-1"}, b: {"b-1", "w-1"}} {
		if members, _ := p.members(t, ref); !cmp.Equal(members, want) {
			t.Errorf("members of %s: %v, want %v", ref, members, want)
		}
	}
}

// Scenario 13.
func TestTargetIsAcceptedOrRefusedByItsState(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	network := p.lab.network(t, "tenant")
	made := map[string]string{}
	for _, name := range []string{"pending", "broken", "ended"} {
		made[name] = at(t, p.Call(t, "kubernetes_create_cluster", toolstest.Object{"name": name, "network_id": network}), "cluster", "id").(string)
	}
	p.lab.setClusterStatus(t, made["broken"], cluster.StatusError)
	p.Approve(t, p.Parked(t, "kubernetes_decommission_cluster", toolstest.Object{"cluster_id": "ended"}))
	stranger := governance.AgentCaller(p.AddAccount(t, "other", "fd00:1:2::/48").ID)
	theirs := p.CallAs(t, stranger, "system_sdwan_create_network", toolstest.Object{"name": "theirs"})
	foreign := at(t, p.CallAs(t, stranger, "kubernetes_create_cluster", toolstest.Object{"name": "foreign", "network_id": at(t, theirs, "network", "id")}), "cluster", "id").(string)
	template := p.template(t, "workers")
	for _, tt := range []struct {
		name, target string
		code         schema.Code
		text         string
	}{
		{"unknown", "0198c0de-0000-7000-8000-000000000000", schema.NotFound, "target_cluster_id names no cluster of this account"},
		{"another account's", foreign, schema.NotFound, "target_cluster_id names no cluster of this account"},
		{"another account's by name", "foreign", schema.NotFound, "target_cluster_id names no cluster of this account"},
		{"in error", made["broken"], schema.PreconditionFailed, "cluster broken is in error"},
		{"decommissioned", made["ended"], schema.NotFound, "cluster ended was decommissioned"},
		{"decommissioned, by name", "ended", schema.NotFound, "cluster ended was decommissioned"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p.Refused(t, "system_assign_module_to_template", toolstest.Object{"template_id": template, "module_id": p.agent,
				"config": toolstest.Object{"target_cluster_id": tt.target}}, tt.code, tt.text)
		})
	}
	near := p.Refused(t, "system_assign_module_to_template", toolstest.Object{"template_id": template, "module_id": p.agent,
		"config": toolstest.Object{"target_cluster_id": "pendin"}}, schema.NotFound, "target_cluster_id names no cluster of this account")
	if diff := cmp.Diff([]string{"pending"}, near.Details["candidates"]); diff != "" {
		t.Errorf("candidates (-want +got):\n%s", diff)
	}
	got := p.site.join(t, template, p.agent, toolstest.Object{"target_cluster_id": "pending"})
	toolstest.Has(t, toolstest.Object{"template_module": toolstest.Object{"config": toolstest.Object{"target_cluster_id": made["pending"]}}}, got)
}

// setClusterStatus puts a cluster into a status that its agents would have brought about.
func (l *lab) setClusterStatus(t *testing.T, ref, status string) {
	t.Helper()
	l.Update(t, func(ctx context.Context, tx *store.Tx) error {
		c, err := store.ClusterByRef(ctx, &tx.View, l.Account.ID, ref)
		if err != nil {
			return err
		}
		c.Status = status
		return store.UpdateCluster(ctx, tx, c)
	})
}

// Scenario 14: a target that breaks after it was written is served as none, and never becomes another cluster.
func TestTargetThatBreaksAfterItsAssignmentLeadsNowhere(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	network, a := p.up(t, "tenant-a", "a-1")
	p.up(t, "tenant-b", "b-1")
	_, c := p.up(t, "tenant-c", "c-1")
	id := p.provision(t, p.node(t, "w-1", p.templateOn(t, "workers", network, p.agent, toolstest.Object{"target_cluster_id": a})))
	p.site.report(t, id, converged("boot", 1))
	p.lab.setClusterStatus(t, a, cluster.StatusError)
	p.Call(t, "system_refresh_instance_modules", toolstest.Object{"instance_id": id})
	if agent := p.site.document(t, id).K3s.Agent; agent.TargetClusterID != "" || agent.Reason != "error" {
		t.Errorf("served target %q, reason %q; want none, error", agent.TargetClusterID, agent.Reason)
	}
	refusedAs := func(class string, signals int) {
		t.Helper()
		for range 2 {
			if refusal := p.lab.join(t, store.InstanceID(id), cluster.RoleAgent); refusal == nil || refusal.Class != class || refusal.Reason != "error" {
				t.Errorf("refusal %+v, want %s for the error", refusal, class)
			}
		}
		if n := len(p.Signals(t, "system.k3s_ambiguous_cluster_join_refused")); n != signals {
			t.Errorf("%d signals of ambiguity, want %d", n, signals)
		}
		if members, waiters := p.members(t, a); !cmp.Equal(members, []string{"a-1"}) || !cmp.Equal(waiters, []string{"w-1 agent error"}) {
			t.Errorf("members %v, waiting %v", members, waiters)
		}
	}
	refusedAs(cluster.ClassAmbiguous, 1)
	p.Approve(t, p.Parked(t, "kubernetes_decommission_cluster", toolstest.Object{"cluster_id": c}))
	refusedAs(cluster.ClassNoCluster, 1)
	if members, _ := p.members(t, "b-1"); !cmp.Equal(members, []string{"b-1"}) {
		t.Errorf("the only other cluster has members %v", members)
	}
}

// Scenarios 15 and 59.
func TestWorkerWithoutATargetIsRefusedOnceUntilItHasOne(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	network, b := p.up(t, "tenant-b", "b-1")
	p.Call(t, "kubernetes_create_cluster", toolstest.Object{"name": "a-pending", "network_id": p.lab.network(t, "tenant-a")}) // it counts
	template := p.template(t, "workers")
	p.Call(t, "system_update_template", toolstest.Object{"template_id": template, "config": toolstest.Object{"sdwan_network_id": network}})
	joined := p.site.join(t, template, p.agent, nil)
	warnings := objects(t, joined["warnings"])
	if len(warnings) != 1 || warnings[0]["code"] != "target_ambiguous" {
		t.Fatalf("warnings %v, want target_ambiguous", warnings)
	}
	for _, name := range []string{"a-pending", "b-1"} {
		if !strings.Contains(warnings[0]["text"].(string), name) {
			t.Errorf("the warning %q names no %s", warnings[0]["text"], name)
		}
	}
	node := p.node(t, "w-1", template)
	id := store.InstanceID(p.provision(t, node))
	p.site.report(t, string(id), converged("boot", 1))
	for range 3 { // the agent asks again and again
		refusal := p.lab.join(t, id, cluster.RoleAgent)
		if refusal == nil || refusal.Class != cluster.ClassAmbiguous || len(refusal.Candidates) != 2 || !strings.HasPrefix(refusal.Message, "several clusters could be meant: ") {
			t.Fatalf("refusal %+v, want both candidates", refusal)
		}
	}
	told := p.Signals(t, "system.k3s_ambiguous_cluster_join_refused")
	if len(told) != 1 || told[0].Severity != "high" || told[0].Payload["candidate_count"] != 2.0 {
		t.Errorf("signals %s, want one of severity high", spelt(told))
	}
	for ref, want := range map[string][]string{"a-pending": nil, b: {"b-1"}} {
		if members, waiters := p.members(t, ref); !cmp.Equal(members, want) || !cmp.Equal(waiters, []string{"w-1 agent ambiguous"}) {
			t.Errorf("%s has members %v, waiting %v", ref, members, waiters)
		}
	}
	p.Call(t, "system_update_module_assignment", toolstest.Object{"assignment_id": p.assignment(t, node)["id"], "config": toolstest.Object{"target_cluster_id": b}})
	if refusal := p.lab.join(t, id, cluster.RoleAgent); refusal != nil {
		t.Fatalf("with a target: %+v", refusal)
	}
	if members, waiters := p.members(t, b); !cmp.Equal(members, []string{"b-1", "w-1"}) || len(waiters) != 0 {
		t.Errorf("members %v, waiting %v", members, waiters)
	}
	closed := p.Signals(t, "system.k3s_ambiguous_cluster_join_resolved")
	if len(closed) != 1 || closed[0].Fingerprint != told[0].Fingerprint {
		t.Errorf("closing signals %s, want the pair's", spelt(closed))
	}
}

// Scenarios 17 and 58: a member stays where it is, whatever its assignment names later, also when its machine lost its state.
func TestMemberStaysWhenItsAssignmentNamesAnotherCluster(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	network, a := p.up(t, "tenant-a", "a-1")
	second := at(t, p.Call(t, "kubernetes_create_cluster", toolstest.Object{"name": "b-1", "network_id": network}), "cluster", "id").(string)
	node := p.node(t, "w-1", p.templateOn(t, "workers", network, p.agent, toolstest.Object{"target_cluster_id": a}))
	id := store.InstanceID(p.provision(t, node))
	p.site.report(t, string(id), converged("boot", 1))
	if refusal := p.lab.join(t, id, cluster.RoleAgent); refusal != nil {
		t.Fatal(refusal.Message)
	}
	before := spelt(p.Call(t, "kubernetes_list_nodes", toolstest.Object{"cluster_id": a})["nodes"])
	got := p.Call(t, "system_update_module_assignment", toolstest.Object{"assignment_id": p.assignment(t, node)["id"], "config": toolstest.Object{"target_cluster_id": second}})
	if diff := cmp.Diff([]any{"target_not_consulted"}, codes(got)); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	if refusal := p.lab.join(t, id, cluster.RoleAgent); refusal != nil { // as after it lost its state
		t.Errorf("asked again: %+v", refusal)
	}
	if after := spelt(p.Call(t, "kubernetes_list_nodes", toolstest.Object{"cluster_id": a})["nodes"]); after != before {
		t.Errorf("members before and after:\n%s\n%s", before, after)
	}
	if members, waiters := p.members(t, second); len(members)+len(waiters) != 0 {
		t.Errorf("the other cluster has members %v, waiting %v", members, waiters)
	}
}

// Scenario 18.
func TestSecondServerWithoutATargetIsAClusterOfItsOwn(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	network, a := p.up(t, "tenant", "a-1")
	id := p.provision(t, p.node(t, "a-2", p.templateOn(t, "servers", network, p.server, nil)))
	p.site.report(t, id, converged("boot", 1))
	p.lab.activate(t, store.InstanceID(id), "a-2")
	toolstest.Has(t, toolstest.Object{"count": 2.0}, p.Call(t, "kubernetes_list_clusters", nil))
	addresses := map[any]bool{}
	for ref, server := range map[string]string{a: "a-1", "a-2": "a-2"} {
		c := p.lab.cluster(t, ref)
		toolstest.Has(t, toolstest.Object{"name": server, "node_count": 1.0, "server_count": 1.0, "network_id": network}, c)
		vip := at(t, p.Call(t, "system_sdwan_get_virtual_ip", toolstest.Object{"virtual_ip_id": c["api_vip_id"]}), "virtual_ip").(toolstest.Object)
		toolstest.Has(t, toolstest.Object{"name": server + "-api", "failover_holder_peer_ids": []any{}}, vip)
		addresses[vip["cidr"]] = true
		p.Refused(t, "system_sdwan_failover_virtual_ip", toolstest.Object{"virtual_ip_id": c["api_vip_id"]}, schema.PreconditionFailed, "no failover candidates configured")
	}
	if len(addresses) != 2 {
		t.Errorf("API addresses %v, want two", addresses)
	}
}

// Scenario 25: after a decommission nothing bootstraps again, not after an apply either.
func TestDecommissionedClustersServerIsNotBroughtBackByAnApply(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	network := p.lab.network(t, "tenant-b")
	node := p.node(t, "b-1", p.templateOn(t, "servers", network, p.server, nil))
	id := p.provision(t, node)
	p.site.report(t, id, converged("boot", 1))
	p.lab.activate(t, store.InstanceID(id), "b-1")
	p.Approve(t, p.Parked(t, "kubernetes_decommission_cluster", toolstest.Object{"cluster_id": "b-1"}))
	toolstest.Has(t, toolstest.Object{"count": 0.0}, p.Call(t, "kubernetes_list_clusters", nil))
	toolstest.Has(t, toolstest.Object{"enabled": false, "disabled_by": "decommission"}, p.assignment(t, node))
	got := p.apply(t, node, nil)
	if diff := cmp.Diff([]any{"disabled"}, reasons(t, got, "skipped")); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
	if warnings := objects(t, got["warnings"]); len(warnings) != 1 || warnings[0]["code"] != "assignment_disabled" || !strings.Contains(warnings[0]["text"].(string), "decommission") {
		t.Errorf("warnings %v, want who disabled it", warnings)
	}
	if server := p.site.document(t, id).K3s.Server; server == nil || server.State != "absent" {
		t.Errorf("the document's server is %+v, want it absent", server)
	}
	toolstest.Has(t, toolstest.Object{"count": 0.0}, p.Call(t, "kubernetes_list_clusters", nil))
	toolstest.Has(t, toolstest.Object{"instance": toolstest.Object{"status": "running"}}, p.Call(t, "system_get_instance", toolstest.Object{"instance_id": id}))
}

// A person's own machine may carry the platform: nothing that the platform does ends it.
func TestMachineThatHostsThePlatformIsNotEnded(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Platform.Fleet.MachineID = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"
	template := s.template(t, "plain")
	enrol := func(name, machine string) string {
		t.Helper()
		id := s.provision(t, s.node(t, name, template))
		var handed struct {
			Token store.Secret `json:"token"`
		}
		if err := json.Unmarshal(s.host.created[len(s.host.created)-1].Enrollment, &handed); err != nil {
			t.Fatal(err)
		}
		s.Update(t, func(ctx context.Context, tx *store.Tx) error {
			_, err := s.Platform.Fleet.Enroll(ctx, tx, fleet.EnrollInput{Token: handed.Token, CSRPEM: signingRequest(t), AgentVersion: "1", Hostname: name,
				Architecture: "x86_64", OS: "linux", MachineID: machine})
			return err
		})
		s.report(t, id, converged("boot", 1))
		return id
	}
	own, other := enrol("own", s.Platform.Fleet.MachineID), enrol("other", "")
	s.Refused(t, "system_terminate_instance", toolstest.Object{"instance_id": own}, schema.PreconditionFailed, "self_management_violation: instance own hosts the platform itself")
	s.Parked(t, "system_terminate_instance", toolstest.Object{"instance_id": other})
}

// signingRequest is what an agent enrols with.
func signingRequest(t *testing.T) string {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// What an operator says of a node's and an instance's public address is where their peers are reached.
func TestPublicAddressesAreEndpointsOfPeers(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	network := l.network(t, "tenant-a")
	here, p := l.member(t, network, "m-1")
	near, _ := l.member(t, network, "m-2")
	far := l.machineIn(t, "m-3", l.otherRegion(t))
	l.attach(t, network, far)
	l.report(t, far, nil)
	endpoints := func(of store.InstanceID) string {
		for _, peer := range l.section(t, of, network).Peers {
			if peer.PeerID == p["id"] {
				return spelt(peer.Endpoints) + peer.EndpointHost
			}
		}
		return "none"
	}
	effective := func() any {
		return at(t, l.Call(t, "system_sdwan_get_peer", toolstest.Object{"peer_id": p["id"]}), "peer", "effective_endpoint")
	}
	if got := endpoints(far); got != "none" {
		t.Fatalf("another region reaches it by %s before anybody named an endpoint", got)
	}
	l.Call(t, "system_update_instance", toolstest.Object{"instance_id": here, "public_ip_address": "2001:db8::7"})
	if got := endpoints(near); !strings.Contains(got, "[2001:db8::7]:51820") {
		t.Errorf("the same region reaches it by %s, want the public IP address among them", got)
	}
	if got := effective(); got != "[2001:db8::7]:51820" {
		t.Errorf("effective endpoint %v", got)
	}
	node := l.nodeOf(t, here)
	l.Call(t, "system_update_node", toolstest.Object{"node_id": node, "public_address": "203.0.113.7"})
	if got := endpoints(far); !strings.Contains(got, "203.0.113.7:51820") {
		t.Errorf("another region reaches it by %s, want the node's public address", got)
	}
	if got := effective(); got != "203.0.113.7:51820" {
		t.Errorf("effective endpoint %v", got)
	}
	l.Call(t, "system_update_node", toolstest.Object{"node_id": node, "public_address": nil})
	if got := endpoints(far); got != "none" {
		t.Errorf("after it was cleared, another region reaches it by %s", got)
	}
}

// What a template and a call say of the machine is handed to its provider.
func TestProviderIsGivenWhatTemplateAndCallAskFor(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	plain := s.host.can
	s.host.can = append(slices.Clone(plain), provider.CapabilityPublicIP, provider.CapabilitySpot, provider.CapabilitySSHKeys, provider.CapabilityImages)
	template := at(t, s.Call(t, "system_create_template", toolstest.Object{"name": "t", "node_platform_id": s.platform, "admin_user": "ada",
		"config": toolstest.Object{"init_script": "#!/bin/sh\ntrue\n"}}), "template", "id").(string)
	node := at(t, s.Call(t, "system_create_node", toolstest.Object{"name": "n", "template_id": template, "allocate_public_ip": true}), "node", "id").(string)
	s.provision(t, node)
	asked := s.host.created[0]
	if asked.AdminUser != "ada" || asked.InitScript != "#!/bin/sh\ntrue\n" || !asked.AllocatePublicIP || asked.Spot || len(asked.SSHKeyIDs) != 0 {
		t.Errorf("asked for %+v, want what template and node say", asked)
	}
	args := s.provisionArgs(node)
	args["options"] = toolstest.Object{"ssh_key_ids": []any{"key-1"}, "admin_user": "bob", "allocate_public_ip": false, "spot": true}
	s.Call(t, "system_provision_instance", args)
	asked = s.host.created[1]
	if asked.AdminUser != "bob" || asked.AllocatePublicIP || !asked.Spot || !cmp.Equal(asked.SSHKeyIDs, []string{"key-1"}) {
		t.Errorf("asked for %+v, want what the call says", asked)
	}

	s.host.can = plain // it starts no image of its own
	s.Call(t, "system_update_node", toolstest.Object{"node_id": node, "allocate_public_ip": false})
	got := s.Call(t, "system_provision_instance", s.provisionArgs(node))
	if asked := s.host.created[2]; asked.InitScript != "" || !cmp.Equal(codes(got), []any{"init_script_not_run"}) {
		t.Errorf("asked for the script %q, warnings %v", asked.InitScript, codes(got))
	}
}

// Keys that few calls give have an effect all the same.
func TestSmallKeysHaveTheirEffect(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	template := s.template(t, "plain")
	t.Run("a disabled module is assigned to nothing", func(t *testing.T) {
		off := s.module(t, "off", toolstest.Object{"enabled": false})
		s.Refused(t, "system_assign_module_to_template", toolstest.Object{"template_id": template, "module_id": off}, schema.PreconditionFailed, "module 'off' is disabled")
		s.Call(t, "system_update_module", toolstest.Object{"module_id": off, "enabled": true, "public": true})
		s.join(t, template, off, nil)
		rows := objects(t, s.Call(t, "system_list_modules", toolstest.Object{"options": toolstest.Object{"name": "off"}})["modules"])
		toolstest.Has(t, toolstest.Object{"enabled": true, "public": true}, rows[0])
	})
	first, second := s.running(t, "first"), s.running(t, "second")
	t.Run("a hold ends after its hours", func(t *testing.T) {
		hold := at(t, s.Call(t, "system_instance_hold", toolstest.Object{"instance_id": first, "reason": "work", "ttl_hours": 7}), "hold").(toolstest.Object)
		since, err := time.Parse(time.RFC3339, hold["since"].(string))
		if err != nil {
			t.Fatal(err)
		}
		if until, err := time.Parse(time.RFC3339, hold["expires_at"].(string)); err != nil || until.Sub(since) != 7*time.Hour {
			t.Errorf("held from %s to %s (%v), want 7 hours", since, hold["expires_at"], err)
		}
	})
	t.Run("tasks are listed by node", func(t *testing.T) {
		task := s.Call(t, "system_refresh_instance_modules", toolstest.Object{"instance_id": second})["task_id"]
		for id, want := range map[string]float64{first: 0, second: 1} {
			got := s.Call(t, "system_list_tasks", toolstest.Object{"node_id": s.instance(t, id).NodeID})
			if got["count"] != want {
				t.Errorf("%v tasks of the node of %s, want %v", got["count"], id, want)
			}
		}
		if rows := objects(t, s.Call(t, "system_list_tasks", nil)["tasks"]); len(rows) != 1 || rows[0]["id"] != task {
			t.Errorf("tasks %s", spelt(rows))
		}
	})
	t.Run("a VPN address is kept", func(t *testing.T) {
		toolstest.Has(t, toolstest.Object{"instance": toolstest.Object{"vpn_ip_address": "10.8.0.2"}},
			s.Call(t, "system_update_instance", toolstest.Object{"instance_id": second, "vpn_ip_address": "10.8.0.2"}))
	})
}

// A worker that is to be reaped is not asked for its pods, though it runs.
func TestReapedWorkerIsReplacedWithoutADrain(t *testing.T) {
	t.Parallel()
	for reap, step := range map[bool]string{false: "drain", true: "end_machine"} {
		l := newLab(t)
		h := l.withHost(t)
		_, worker := l.joined(t)
		l.machineAt(t, h, worker)
		l.report(t, worker, nil)
		got := l.Approve(t, l.Parked(t, "system_replace_instance", on(string(worker), "operation_id", "swap", "accept_running", true, "reap", reap)))
		toolstest.Has(t, toolstest.Object{"task": toolstest.Object{"step": step}}, got)
	}
}
