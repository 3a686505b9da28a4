package tools_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/fleet"
	"powernode/platform/governance"
	"powernode/platform/provider"
	"powernode/platform/provider/manual"
	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
	"powernode/tools"
	"powernode/tools/toolstest"
)

// asAdmin is a site whose caller is the account's person: providers are an administrator's.
func asAdmin(t testing.TB) *site {
	t.Helper()
	s := newSite(t)
	s.Caller = governance.PersonCaller(s.Person)
	return s
}

func TestProvidersAreAnAdministrators(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	args := toolstest.Object{"name": "lab", "provider_type": "local"}
	s.Refused(t, "system_create_provider", args, schema.PermissionDenied, "permission denied: system.providers.manage required")
	operator := s.AddPerson(t, "op@example.org", governance.RoleOperator)
	s.RefusedAs(t, operator, "system_create_provider", args, schema.PermissionDenied, "permission denied: system.providers.manage required")
	s.Call(t, "system_list_provider_connections", nil)
}

func TestFurtherProviderMakesMachines(t *testing.T) {
	t.Parallel()
	s := asAdmin(t)
	got := s.Call(t, "system_create_provider", toolstest.Object{"name": "lab", "provider_type": "local", "description": "d", "config": toolstest.Object{"project": "x"}})
	toolstest.Has(t, toolstest.Object{"provider": toolstest.Object{"name": "lab", "provider_type": "local", "description": "d", "enabled": true,
		"config": toolstest.Object{"project": "x"}}}, got)
	id := at(t, got, "provider", "id").(string)
	args := s.provisionArgs(s.node(t, "n", s.template(t, "t")))
	args["provider_region_id"] = s.first(t, "system_list_regions", "regions", "name", "local", "provider_id", id)
	args["provider_instance_type_id"] = s.first(t, "system_list_instance_types", "instance_types", "name", "local-small", "provider_id", id)
	instance := at(t, s.Call(t, "system_provision_instance", args), "instance", "id").(string)
	if i := s.instance(t, instance); i.ProviderID != store.ProviderID(id) || s.host.count() != 1 {
		t.Errorf("the instance is of provider %s, want %s; %d machines", i.ProviderID, id, s.host.count())
	}
	refused := s.Refused(t, "system_delete_provider", toolstest.Object{"id": id}, schema.PreconditionFailed, "provider lab has 1 live instances")
	if diff := cmp.Diff(int64(1), refused.Details["live_instances"]); diff != "" {
		t.Errorf("count (-want +got):\n%s", diff)
	}
}

func TestProviderIsRefusedForWhatItsTypeDoesNotHave(t *testing.T) {
	t.Parallel()
	s := asAdmin(t)
	for _, kind := range []string{"hetzner", "aws", "libvirt"} {
		s.Refused(t, "system_create_provider", toolstest.Object{"name": "x", "provider_type": kind}, schema.PreconditionFailed,
			"not available yet: provider type "+kind)
	}
	s.Refused(t, "system_create_provider", toolstest.Object{"name": "x", "provider_type": "gcp"}, schema.InvalidArguments,
		"provider_type must be one of: local, manual, hetzner, aws, libvirt")
	refused := s.Refused(t, "system_create_provider", toolstest.Object{"name": "x", "provider_type": "local", "config": toolstest.Object{"projct": 1}},
		schema.InvalidArguments, "Validation failed: config.projct is no key of providers of type local")
	if refused.Details["pointer"] != "/config/projct" {
		t.Errorf("pointer = %v", refused.Details["pointer"])
	}
	s.Refused(t, "system_create_provider", toolstest.Object{"name": "local", "provider_type": "local"}, schema.Conflict,
		`provider name "local" is already in use`)
}

func TestUpdateProviderMergesItsConfig(t *testing.T) {
	t.Parallel()
	s := asAdmin(t)
	id := at(t, s.Call(t, "system_create_provider", toolstest.Object{"name": "lab", "provider_type": "local",
		"config": toolstest.Object{"project": "x"}}), "provider", "id").(string)
	got := s.Call(t, "system_update_provider", toolstest.Object{"id": id, "name": "lab-2", "config": toolstest.Object{"project": nil}})
	toolstest.Has(t, toolstest.Object{"provider": toolstest.Object{"name": "lab-2", "config": toolstest.Object{}}}, got)
	s.Refused(t, "system_update_provider", toolstest.Object{"id": id}, schema.InvalidArguments,
		"nothing to update — pass at least one of name, description, enabled, config")
	s.Refused(t, "system_update_provider", toolstest.Object{"id": id, "name": "local"}, schema.Conflict, `provider name "local" is already in use`)
	s.Refused(t, "system_update_provider", toolstest.Object{"id": id, "config": toolstest.Object{"zone": 1}}, schema.InvalidArguments, "config.zone")
	s.Call(t, "system_update_provider", toolstest.Object{"id": id, "enabled": false})
	args := s.provisionArgs(s.node(t, "n", s.template(t, "t")))
	args["provider_region_id"] = s.first(t, "system_list_regions", "regions", "name", "local", "provider_id", id)
	args["provider_instance_type_id"] = s.first(t, "system_list_instance_types", "instance_types", "name", "local-small", "provider_id", id)
	s.Refused(t, "system_provision_instance", args, schema.PreconditionFailed, "provider lab-2 is disabled")
}

func TestDeleteProviderTakesWhatBelongsToIt(t *testing.T) {
	t.Parallel()
	s := asAdmin(t)
	id := at(t, s.Call(t, "system_create_provider", toolstest.Object{"name": "lab", "provider_type": "local"}), "provider", "id").(string)
	s.Call(t, "system_create_provider_region", toolstest.Object{"provider_id": id, "name": "north"})
	s.Call(t, "system_create_provider_connection", toolstest.Object{"provider_id": id, "name": "main"})
	args := s.provisionArgs(s.node(t, "n", s.template(t, "t")))
	args["provider_region_id"] = s.first(t, "system_list_regions", "regions", "name", "north", "provider_id", id)
	args["provider_instance_type_id"] = s.first(t, "system_list_instance_types", "instance_types", "name", "local-small", "provider_id", id)
	ended := at(t, s.Call(t, "system_provision_instance", args), "instance", "id").(string)
	s.Approve(t, s.Parked(t, "system_terminate_instance", toolstest.Object{"instance_id": ended}))
	got := s.Approve(t, s.Parked(t, "system_delete_provider", toolstest.Object{"id": id}))
	toolstest.Has(t, toolstest.Object{"deleted": true, "id": id, "removed": toolstest.Object{"regions": 2.0, "instance_types": 3.0, "connections": 1.0}}, got)
	s.Refused(t, "system_get_provider", toolstest.Object{"id": id}, schema.NotFound, "provider not found")
	for verb, rows := range map[string]string{"system_list_regions": "regions", "system_list_instance_types": "instance_types",
		"system_list_provider_connections": "connections"} {
		s.Refused(t, verb, toolstest.Object{"provider_id": id}, schema.NotFound, "provider not found")
		for _, row := range objects(t, s.Call(t, verb, nil)[rows]) {
			if row["provider_id"] == id {
				t.Errorf("%s still lists %v", verb, row)
			}
		}
	}
	toolstest.Has(t, toolstest.Object{"instance": toolstest.Object{"status": "terminated", "provider_id": id}},
		s.Call(t, "system_get_instance", toolstest.Object{"instance_id": ended}))
	s.Call(t, "system_create_provider", toolstest.Object{"name": "lab", "provider_type": "local"}) // the name is free again
}

func TestRegionsAndInstanceTypesHaveNamesOfTheirOwn(t *testing.T) {
	t.Parallel()
	s := asAdmin(t)
	id := s.first(t, "system_list_providers", "providers", "name", "local")
	got := s.Call(t, "system_create_provider_region", toolstest.Object{"provider_id": id, "name": "North", "machine_image": "debian-12"})
	toolstest.Has(t, toolstest.Object{"region": toolstest.Object{"name": "North", "region_code": "North", "enabled": true, "machine_image": "debian-12",
		"endpoint_url": nil}, "warnings": []any{toolstest.Object{"code": "machine_image_not_used", "text": "provider local makes machines without an image"}}}, got)
	for given, text := range map[string]string{
		`{"name": "north"}`:                                     `region name "north" is already in use`,
		`{"name": "south", "region_code": "NORTH"}`:             `region_code "NORTH" is already in use`,
		`{"name": "south", "endpoint_url": "no url"}`:           "Validation failed: endpoint_url must be an absolute URL",
		`{"name": "s", "endpoint_url": "https://a:b@c"}`:        "Validation failed: endpoint_url must hold no credential",
		`{"name": "s", "endpoint_url": "https://t0k3n@c"}`:      "Validation failed: endpoint_url must hold no credential",
		`{"name": "s", "endpoint_url": "qemu+ssh://a:b@c/sys"}`: "Validation failed: endpoint_url must hold no credential",
	} {
		code := schema.Conflict
		if strings.HasPrefix(text, "Validation") {
			code = schema.InvalidArguments
		}
		s.Refused(t, "system_create_provider_region", strings.Replace(given, "{", `{"provider_id": "`+id+`", `, 1), code, text)
	}
	got = s.Call(t, "system_create_provider_instance_type", toolstest.Object{"provider_id": id, "name": "Huge", "vcpus": 64, "hourly_price": 1.5,
		"specs": toolstest.Object{"gpu": "none"}})
	toolstest.Has(t, toolstest.Object{"instance_type": toolstest.Object{"name": "Huge", "instance_type_code": "Huge", "vcpus": 64.0, "memory_mb": nil,
		"storage_gb": nil, "hourly_price": 1.5, "specs": toolstest.Object{"gpu": "none"}}}, got)
	s.Refused(t, "system_create_provider_instance_type", toolstest.Object{"provider_id": id, "name": "x", "instance_type_code": "huge"}, schema.Conflict,
		`instance_type_code "huge" is already in use`)
	s.Refused(t, "system_create_provider_instance_type", toolstest.Object{"provider_id": id, "name": "x", "vcpus": 0}, schema.InvalidArguments, "vcpus")
	s.Refused(t, "system_create_provider_region", toolstest.Object{"provider_id": s.server, "name": "x"}, schema.NotFound, "provider not found")
}

const vendorToken = "t0k3n-of-the-vendor"

func (s *site) connection(t testing.TB, more toolstest.Object) toolstest.Object {
	t.Helper()
	args := toolstest.Object{"provider_id": s.first(t, "system_list_providers", "providers", "name", "local"), "name": "main",
		"endpoint_url": "https://vendor.example", "config": toolstest.Object{"token": vendorToken, "zone": "z1",
			"proxy": toolstest.Object{"url": "https://p.example", "password": vendorToken}}}
	for k, v := range more {
		args[k] = v
	}
	return s.Call(t, "system_create_provider_connection", args)
}

func TestConnectionIsTestedWithSecretsThatNobodySeesAgain(t *testing.T) {
	t.Parallel()
	s := asAdmin(t)
	got := s.connection(t, nil)
	shown := toolstest.Object{"token": "[secret]", "zone": "z1", "proxy": toolstest.Object{"url": "https://p.example", "password": "[secret]"}}
	toolstest.Has(t, toolstest.Object{"connection": toolstest.Object{"name": "main", "status": "connected", "config": shown, "enabled": true}}, got)
	if len(s.host.checked) != 1 || s.host.checked[0].Config["token"] != vendorToken || s.host.checked[0].EndpointURL != "https://vendor.example" {
		t.Errorf("the vendor was asked with %v", s.host.checked)
	}
	id := at(t, got, "connection", "id").(string)
	for _, answer := range []any{got, s.Call(t, "system_get_provider_connection", toolstest.Object{"id": id}), s.Call(t, "system_list_provider_connections", nil),
		s.Call(t, "recent_events", nil)} {
		if strings.Contains(spelt(answer), vendorToken) {
			t.Errorf("the secret shows in %s", spelt(answer))
		}
	}
	s.View(t, func(ctx context.Context, v *store.View) error {
		c, err := store.ConnectionByID(ctx, v, s.Account.ID, store.ConnectionID(id))
		if strings.Contains(string(c.Config), vendorToken) || c.Intent != "" || c.TestedAt == nil {
			t.Errorf("the row holds the secret, or an intent: %+v", c)
		}
		return err
	})
}

func TestConnectionThatFailsItsTestLeavesNothing(t *testing.T) {
	t.Parallel()
	s := asAdmin(t)
	s.host.refuse = &provider.Error{Class: provider.ClassAuthentication, Message: "401 for " + vendorToken}
	err := s.fails(t, "system_create_provider_connection", toolstest.Object{"provider_id": s.first(t, "system_list_providers", "providers", "name", "local"),
		"name": "main", "config": toolstest.Object{"token": vendorToken}})
	if err.Code != schema.Unavailable || err.Retryable || strings.Contains(err.Message, vendorToken) ||
		!strings.Contains(err.Message, "connection main: its credentials were refused: 401 for [secret]") {
		t.Errorf("refusal %+v", err)
	}
	if left := s.Call(t, "system_list_provider_connections", nil)["connections"].([]any); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	toolstest.Has(t, toolstest.Object{"connection": toolstest.Object{"status": "pending", "tested_at": nil}},
		s.connection(t, toolstest.Object{"test_connection": false}))
}

func TestConnectionUpdateThatFailsItsTestKeepsTheOldValues(t *testing.T) {
	t.Parallel()
	s := asAdmin(t)
	id := at(t, s.connection(t, nil), "connection", "id").(string)
	s.host.refuse = errors.New("no route to vendor")
	change := toolstest.Object{"id": id, "name": "other", "config": toolstest.Object{"token": "another-secret", "zone": nil, "proxy": nil}}
	if err := s.fails(t, "system_update_provider_connection", change); err.Code != schema.Unavailable || !strings.Contains(err.Message, "no route to vendor") {
		t.Errorf("refusal %+v", err)
	}
	toolstest.Has(t, toolstest.Object{"connection": toolstest.Object{"name": "main", "status": "connected", "config": toolstest.Object{"token": "[secret]", "zone": "z1"}}},
		s.Call(t, "system_get_provider_connection", toolstest.Object{"id": id}))
	s.host.refuse = nil
	change["config"] = toolstest.Object{"token": "[secret]", "zone": "z2", "proxy": nil}
	got := s.Call(t, "system_update_provider_connection", change)
	toolstest.Has(t, toolstest.Object{"connection": toolstest.Object{"name": "other", "status": "connected", "config": toolstest.Object{"token": "[secret]", "zone": "z2"}}}, got)
	want := provider.Connection{EndpointURL: "https://vendor.example", Config: map[string]any{"token": vendorToken, "zone": "z2"}}
	if diff := cmp.Diff(want, s.host.checked[len(s.host.checked)-1]); diff != "" {
		t.Errorf("asked with (-want +got):\n%s", diff)
	}
	s.Refused(t, "system_update_provider_connection", toolstest.Object{"id": id}, schema.InvalidArguments, "nothing to update")
	s.Refused(t, "system_create_provider_connection", toolstest.Object{"provider_id": at(t, got, "connection", "provider_id"), "name": "other"},
		schema.Conflict, `connection name "other" is already in use`)
}

func TestConnectionsConfigStaysBoundedHoweverOftenItIsAddedTo(t *testing.T) {
	t.Parallel()
	s := asAdmin(t)
	id := at(t, s.connection(t, nil), "connection", "id").(string)
	part := func(key string) toolstest.Object {
		return toolstest.Object{"id": id, "config": toolstest.Object{key: strings.Repeat("x", 40<<10)}}
	}
	s.Call(t, "system_update_provider_connection", part("a"))
	s.Refused(t, "system_update_provider_connection", part("b"), schema.InvalidArguments, "config would have more than 64 KiB")
	s.Call(t, "system_update_provider_connection", part("a"))
}

func TestConnectionTestsThatWereCutOffAreFinished(t *testing.T) {
	t.Parallel()
	s := asAdmin(t)
	id := at(t, s.connection(t, nil), "connection", "id").(string)
	in := fleet.ConnectionInput{ProviderID: store.ProviderID(s.first(t, "system_list_providers", "providers", "name", "local")), Name: "half", Test: true}
	name := "renamed"
	s.Update(t, func(ctx context.Context, tx *store.Tx) error {
		if _, err := s.Platform.Fleet.CreateConnection(ctx, tx, s.Account.ID, in); err != nil {
			return err
		}
		_, err := s.Platform.Fleet.UpdateConnection(ctx, tx, s.Account.ID, store.ConnectionID(id), fleet.ConnectionChange{Name: &name, Test: true})
		return err
	})
	s.Refused(t, "system_update_provider_connection", toolstest.Object{"id": id, "name": "x"}, schema.Conflict, "connection main is being tested")
	if err := s.Platform.Fleet.Recover(t.Context()); err != nil {
		t.Fatalf("recover: %v", err)
	}
	var got []string
	for _, c := range objects(t, s.Call(t, "system_list_provider_connections", nil)["connections"]) {
		got = append(got, c["name"].(string)+" "+c["status"].(string))
	}
	if diff := cmp.Diff([]string{"half connected", "renamed connected"}, got); diff != "" {
		t.Errorf("connections (-want +got):\n%s", diff)
	}
}

// manualSite is a site with the provider manual, and a platform that machines elsewhere reach.
func manualSite(t testing.TB) (s *site, args toolstest.Object) {
	t.Helper()
	s = asAdmin(t)
	f := s.Platform.Fleet
	f.Providers[manual.Type] = manual.New(manual.Options{StateDir: f.StateDir, Reachable: f.CheckReachable})
	f.Elsewhere = &fleet.Elsewhere{URLs: func() []string { return []string{"https://192.0.2.7:7443"} }, CASHA256: func() string { return strings.Repeat("ab", 32) },
		Agent: func() (fleet.AgentProgram, error) {
			return fleet.AgentProgram{SHA256: strings.Repeat("cd", 32), Architecture: "amd64", Path: "/api/v1/system/agent/"}, nil
		}}
	id := at(t, s.Call(t, "system_create_provider", toolstest.Object{"name": "racks", "provider_type": "manual"}), "provider", "id").(string)
	args = s.provisionArgs(s.node(t, "n", s.template(t, "t")))
	args["provider_region_id"] = s.first(t, "system_list_regions", "regions", "name", "default", "provider_id", id)
	args["provider_instance_type_id"] = s.first(t, "system_list_instance_types", "instance_types", "name", "existing", "provider_id", id)
	return s, args
}

// enrol trades the token in an enrolment command for a certificate.
func (s *site) enrol(t testing.TB, command string) {
	t.Helper()
	_, after, _ := strings.Cut(command, "printf %s '")
	token, _, found := strings.Cut(after, "'")
	if !found {
		t.Fatalf("no token in %s", command)
	}
	csr := certificateRequest(t)
	s.Update(t, func(ctx context.Context, tx *store.Tx) error {
		_, err := s.Platform.Fleet.Enroll(ctx, tx, fleet.EnrollInput{Token: store.Secret(token), CSRPEM: csr, Architecture: "amd64"})
		return err
	})
}

func TestManualProvisioningAnswersACommandThatEnrolsOnce(t *testing.T) {
	t.Parallel()
	s, args := manualSite(t)
	args["operation_id"] = "once"
	got := s.Call(t, "system_provision_instance", args)
	toolstest.Has(t, toolstest.Object{"provisioned": true, "instance": toolstest.Object{"variety": "physical", "status": "provisioning"}}, got)
	command, _ := at(t, got, "enrollment", "command").(string)
	if strings.ContainsAny(command, "\n\r") {
		t.Errorf("the command is not one line: %q", command)
	}
	if strings.Contains(command, "| sh ") || strings.Contains(command, "| bash") || !strings.Contains(command, "sha256sum -c") {
		t.Errorf("the command runs what it has not checked: %s", command)
	}
	if out, err := exec.Command("sh", "-nc", command).CombinedOutput(); err != nil {
		t.Errorf("sh does not read the command: %s\n%s", out, command)
	}
	expires, err := time.Parse(time.RFC3339, at(t, got, "enrollment", "expires_at").(string))
	if left := time.Until(expires); err != nil || left > time.Hour || left < 50*time.Minute {
		t.Errorf("it expires in %s, want an hour (%v)", left, err)
	}
	reads := func() (n int) {
		for _, row := range s.Audit(t, "System::NodeInstance") {
			if row.Action == "read" {
				n++
			}
		}
		return n
	}
	if n := reads(); n != 0 {
		t.Errorf("%d readings of the command are recorded after the call that made it", n)
	}
	again := s.Call(t, "system_provision_instance", args)
	if diff := cmp.Diff(got["enrollment"], again["enrollment"]); diff != "" {
		t.Errorf("the same call again (-first +second):\n%s", diff)
	}
	if n := reads(); n != 1 {
		t.Errorf("%d readings of the command are recorded after it was handed out once more", n)
	}
	s.enrol(t, command)
	id := at(t, got, "instance", "id").(string)
	s.report(t, id, converged("boot-1", 0))
	toolstest.Has(t, toolstest.Object{"instance": toolstest.Object{"status": "running"}}, s.Call(t, "system_get_instance", toolstest.Object{"instance_id": id}))
	if used := s.Call(t, "system_provision_instance", args); used["enrollment"] != nil {
		t.Errorf("a used command is answered again: %v", used["enrollment"])
	}
	if s.host.count() != 0 {
		t.Errorf("%d machines were made", s.host.count())
	}
}

func TestManualProvisioningIsRefusedWhereNoMachineReachesThePlatform(t *testing.T) {
	t.Parallel()
	s, args := manualSite(t)
	s.Platform.Fleet.Elsewhere.URLs = func() []string { return nil }
	s.Refused(t, "system_provision_instance", args, schema.PreconditionFailed, "powernode serve --agents ADDRESS")
	s.Platform.Fleet.Elsewhere.URLs = func() []string { return []string{"https://192.0.2.7:7443"} }
	args["options"] = toolstest.Object{"spot": true}
	s.Refused(t, "system_provision_instance", args, schema.PreconditionFailed, "provider racks can't do spot")
}

func TestManualMachineKeepsItsIdentityUntilItIsClean(t *testing.T) {
	t.Parallel()
	s, args := manualSite(t)
	got := s.Call(t, "system_provision_instance", args)
	id := at(t, got, "instance", "id").(string)
	s.enrol(t, at(t, got, "enrollment", "command").(string))
	s.report(t, id, converged("boot-1", 0))
	s.Call(t, "system_sdwan_attach_peer", toolstest.Object{"network_id": s.network(t, "a"), "node_instance_id": id})
	if d := s.document(t, id); len(d.Networks) != 1 || d.Instance.Leave {
		t.Fatalf("document before: %+v", d)
	}
	s.Approve(t, s.Parked(t, "system_terminate_instance", toolstest.Object{"instance_id": id}))
	d := s.document(t, id)
	empty, err := sdwan.HostFirewall(sdwan.Host{})
	if err != nil {
		t.Fatal(err)
	}
	if !d.Instance.Leave || len(d.Networks)+len(d.Modules) > 0 || d.K3s.Server != nil || d.K3s.Agent != nil || cmp.Diff(empty, d.Firewall) != "" {
		t.Errorf("the last document does not ask to leave: %+v", d)
	}
	if left := s.certificateEnds(t, id); left < 23*time.Hour || left > 24*time.Hour {
		t.Errorf("the certificate ends in %s, want a day", left)
	}
	s.report(t, id, converged("boot-1", d.Revision-1))
	if left := s.certificateEnds(t, id); left < 23*time.Hour {
		t.Errorf("the certificate ended before the machine was clean")
	}
	s.report(t, id, converged("boot-1", d.Revision))
	if left := s.certificateEnds(t, id); left > 0 {
		t.Errorf("the certificate of a clean machine holds for %s", left)
	}
}

// certificateEnds is how long an instance's certificate holds still.
func (s *site) certificateEnds(t testing.TB, id string) (left time.Duration) {
	t.Helper()
	s.View(t, func(ctx context.Context, v *store.View) error {
		all, err := store.CertificatesByInstance(ctx, v, store.InstanceID(id))
		if len(all) != 1 {
			t.Fatalf("%d certificates", len(all))
		}
		ends := all[0].NotAfter
		if all[0].EndsAt != nil {
			ends = *all[0].EndsAt
		}
		left = ends.Sub(v.Now())
		return err
	})
	return left
}

// fails calls a verb whose act goes wrong: unlike a refusal it has written its intent, and what came of it.
func (s *site) fails(t testing.TB, verb string, args toolstest.Object) *schema.Error {
	t.Helper()
	raw, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := s.Platform.Call(t.Context(), s.Caller, tools.Request{Verb: verb, Arguments: raw})
	var failed *schema.Error
	if !errors.As(err, &failed) {
		t.Fatalf("%s: %s, %v; want a failure", verb, answer.JSON, err)
	}
	return failed
}

func certificateRequest(t testing.TB) string {
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
