package providertest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"powernode/platform/provider"
	"powernode/schema"
)

// patience is how long a vendor may take for one change.
const patience = 2 * time.Minute

// Run runs the suite. New answers a provider for one test and takes it away at the test's end.
func Run(t *testing.T, newProvider func(*testing.T) provider.Provider) {
	for _, tt := range []struct {
		name string
		run  func(*testing.T, rig)
	}{
		{"a machine is what was asked for", testCreate},
		{"a name has up to 63 characters", testLongName},
		{"a create that lost its answer is found again", testLostAnswer},
		{"an unknown machine is not found", testUnknown},
		{"an account's list has its machines alone", testForeign},
		{"terminate of a machine that is gone is success", testTerminateTwice},
		{"a machine stops, starts and reboots", testLifecycle},
		{"what is not declared is refused", testUndeclared},
		{"a new provider has somewhere to make machines", testCatalogue},
		{"a change under an ended context changes nothing", testEndedContext},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			t.Cleanup(cancel)
			tt.run(t, rig{Provider: p, ctx: ctx})
		})
	}
}

// rig is a provider and the test's time.
type rig struct {
	provider.Provider
	ctx context.Context
}

func input(account, name string) provider.CreateInput {
	return provider.CreateInput{AccountID: account, NodeID: uuid.NewString(), InstanceID: uuid.NewString(), Name: name}
}

func (r rig) make(t *testing.T, in provider.CreateInput) provider.Machine {
	t.Helper()
	m, err := r.Create(r.ctx, in)
	if err != nil {
		t.Fatalf("create %s: %v", in.Name, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), patience)
		defer cancel()
		if err := r.Terminate(ctx, m.ID); err != nil {
			t.Errorf("terminate %s: %v", m.ID, err)
		}
	})
	return m
}

// runs waits until the machine runs, as far as the provider can tell: one that declares no sync knows no status.
func (r rig) runs(t *testing.T, id string) provider.Machine {
	t.Helper()
	if provider.Can(r.Provider, provider.CapabilitySync) {
		return r.reaches(t, id, provider.StatusRunning)
	}
	m, err := r.Get(r.ctx, id)
	if err != nil {
		t.Fatalf("get %s: %v", id, err)
	}
	if m.Status != provider.StatusUnknown {
		t.Errorf("a provider without %s says that machine %s is %s", provider.CapabilitySync, id, m.Status)
	}
	return m
}

// reaches waits until the machine has the status.
func (r rig) reaches(t *testing.T, id string, want provider.Status) provider.Machine {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		m, err := r.Get(r.ctx, id)
		if err != nil {
			t.Fatalf("get %s: %v", id, err)
		}
		if m.Status == want {
			return m
		}
		select {
		case <-r.ctx.Done():
			t.Fatalf("machine %s is %s, want %s", id, m.Status, want)
		case <-tick.C:
		}
	}
}

func (r rig) ids(t *testing.T, account string) []string {
	t.Helper()
	machines, err := r.List(r.ctx, account)
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	ids := []string{}
	for _, m := range machines {
		ids = append(ids, m.ID)
	}
	return ids
}

func testCreate(t *testing.T, r rig) {
	in := input(uuid.NewString(), "node-1")
	began := time.Now()
	m := r.make(t, in)
	if m.ID == "" {
		t.Fatal("a machine without an id is a failure")
	}
	m = r.runs(t, m.ID)
	if m.InstanceID != in.InstanceID || m.Name != in.Name {
		t.Errorf("got instance %s, name %s; want %s, %s", m.InstanceID, m.Name, in.InstanceID, in.Name)
	}
	if m.SyncedAt.Before(began.Add(-time.Second)) {
		t.Errorf("synced at %v, before the test began", m.SyncedAt)
	}
	if diff := cmp.Diff([]string{m.ID}, r.ids(t, in.AccountID)); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
}

func testLongName(t *testing.T, r rig) {
	in := input(uuid.NewString(), "a"+strings.Repeat("b", 61)+"c")
	m := r.make(t, in)
	if got := r.runs(t, m.ID).Name; got != in.Name {
		t.Errorf("got name %q, want %q", got, in.Name)
	}
	in = input(in.AccountID, in.Name+"d")
	if m, err := r.Create(r.ctx, in); err == nil {
		t.Errorf("a name of 64 characters made %s", m.ID)
	}
}

func testLostAnswer(t *testing.T, r rig) {
	in := input(uuid.NewString(), "node-1")
	first := r.make(t, in)
	second, err := r.Create(r.ctx, in)
	if err != nil {
		t.Fatalf("create again: %v", err)
	}
	if first.ID != second.ID {
		t.Errorf("one instance, two machines: %s and %s", first.ID, second.ID)
	}
	if diff := cmp.Diff([]string{first.ID}, r.ids(t, in.AccountID)); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
}

func testUnknown(t *testing.T, r rig) {
	for _, id := range []string{uuid.NewString(), "", "../../etc", "no such machine"} {
		if _, err := r.Get(r.ctx, id); !errors.Is(err, provider.ErrNotFound) {
			t.Errorf("get %q: %v, want ErrNotFound", id, err)
		}
		if err := r.Start(r.ctx, id); !errors.Is(err, provider.ErrNotFound) {
			t.Errorf("start %q: %v, want ErrNotFound", id, err)
		}
		if err := r.Stop(r.ctx, id, provider.Graceful); !errors.Is(err, provider.ErrNotFound) {
			t.Errorf("stop %q: %v, want ErrNotFound", id, err)
		}
		if err := r.Reboot(r.ctx, id, provider.PowerOff); !errors.Is(err, provider.ErrNotFound) {
			t.Errorf("reboot %q: %v, want ErrNotFound", id, err)
		}
		if err := r.Terminate(r.ctx, id); err != nil {
			t.Errorf("terminate %q: %v, want success", id, err)
		}
	}
}

func testForeign(t *testing.T, r rig) {
	ours, foreign := uuid.NewString(), uuid.NewString()
	a := r.make(t, input(ours, "node-1"))
	b := r.make(t, input(foreign, "node-1"))
	for account, want := range map[string][]string{ours: {a.ID}, foreign: {b.ID}, uuid.NewString(): {}} {
		if diff := cmp.Diff(want, r.ids(t, account)); diff != "" {
			t.Errorf("list of %s (-want +got):\n%s", account, diff)
		}
	}
}

func testTerminateTwice(t *testing.T, r rig) {
	in := input(uuid.NewString(), "node-1")
	m := r.make(t, in)
	for range 3 {
		if err := r.Terminate(r.ctx, m.ID); err != nil {
			t.Fatalf("terminate: %v", err)
		}
	}
	if got, err := r.Get(r.ctx, m.ID); !errors.Is(err, provider.ErrNotFound) && got.Status != provider.StatusTerminated {
		t.Errorf("after terminate: %v, %v; want ErrNotFound or terminated", got.Status, err)
	}
	if diff := cmp.Diff([]string{}, r.ids(t, in.AccountID)); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
}

func testLifecycle(t *testing.T, r rig) {
	if !provider.Can(r.Provider, provider.CapabilityPower) {
		return // testUndeclared holds it to that
	}
	m := r.make(t, input(uuid.NewString(), "node-1"))
	for _, step := range []struct {
		name string
		do   func() error
		want provider.Status
	}{
		{"start of a running machine", func() error { return r.Start(r.ctx, m.ID) }, provider.StatusRunning},
		{"stop", func() error { return r.Stop(r.ctx, m.ID, provider.Graceful) }, provider.StatusStopped},
		{"stop of a stopped machine", func() error { return r.Stop(r.ctx, m.ID, provider.Graceful) }, provider.StatusStopped},
		{"start", func() error { return r.Start(r.ctx, m.ID) }, provider.StatusRunning},
		{"reboot", func() error { return r.Reboot(r.ctx, m.ID, provider.Graceful) }, provider.StatusRunning},
		{"reboot the hard way", func() error { return r.Reboot(r.ctx, m.ID, provider.PowerOff) }, provider.StatusRunning},
		{"power off", func() error { return r.Stop(r.ctx, m.ID, provider.PowerOff) }, provider.StatusStopped},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		got := r.reaches(t, m.ID, step.want)
		if got.InstanceID != m.InstanceID || got.PrivateAddress != m.PrivateAddress {
			t.Errorf("after %s: instance %s at %s, want %s at %s", step.name, got.InstanceID, got.PrivateAddress, m.InstanceID, m.PrivateAddress)
		}
	}
}

func testUndeclared(t *testing.T, r rig) {
	m := r.make(t, input(uuid.NewString(), "node-1"))
	var refused []error
	if !provider.Can(r.Provider, provider.CapabilityPower) {
		refused = append(refused, r.Start(r.ctx, m.ID), r.Stop(r.ctx, m.ID, provider.PowerOff), r.Reboot(r.ctx, m.ID, provider.Graceful))
	}
	for need, ask := range map[provider.Capability]func(*provider.CreateInput){
		provider.CapabilityPublicIP: func(in *provider.CreateInput) { in.AllocatePublicIP = true },
		provider.CapabilitySpot:     func(in *provider.CreateInput) { in.Spot = true },
		provider.CapabilitySSHKeys:  func(in *provider.CreateInput) { in.SSHKeyIDs = []string{"key"} },
	} {
		if provider.Can(r.Provider, need) {
			continue
		}
		in := input(uuid.NewString(), "node-2")
		ask(&in)
		made, err := r.Create(r.ctx, in)
		if err == nil {
			t.Errorf("without %s it made %s", need, made.ID)
		}
		refused = append(refused, err)
	}
	for _, err := range refused {
		if got := provider.Refusal(err, "provider").Code; got != schema.PreconditionFailed {
			t.Errorf("%v is %s, want %s", err, got, schema.PreconditionFailed)
		}
	}
}

func testCatalogue(t *testing.T, r rig) {
	regions, err := r.Regions(r.ctx)
	if err != nil {
		t.Fatalf("regions: %v", err)
	}
	types, err := r.InstanceTypes(r.ctx)
	if err != nil {
		t.Fatalf("instance types: %v", err)
	}
	seen := map[string]bool{}
	for _, region := range regions {
		if region.Name == "" || region.Code == "" || seen["region "+region.Name] {
			t.Errorf("region %+v has no name and code of its own", region)
		}
		seen["region "+region.Name] = true
	}
	for _, size := range types {
		if size.Name == "" || size.Code == "" || seen["type "+size.Name] || min(size.VCPUs, size.MemoryMB, size.StorageGB) < 0 {
			t.Errorf("instance type %+v", size)
		}
		seen["type "+size.Name] = true
	}
	if len(regions) == 0 || len(types) == 0 {
		t.Errorf("%d regions and %d instance types", len(regions), len(types))
	}
}

func testEndedContext(t *testing.T, r rig) {
	ended, cancel := context.WithCancel(r.ctx)
	cancel()
	in := input(uuid.NewString(), "node-1")
	if m, err := r.Create(ended, in); err == nil {
		t.Errorf("create under an ended context made %s", m.ID)
	}
	if diff := cmp.Diff([]string{}, r.ids(t, in.AccountID)); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
}
