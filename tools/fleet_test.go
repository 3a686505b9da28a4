package tools_test

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"powernode/platform/fleet"
	"powernode/platform/provider"
	"powernode/sdwan"
	"powernode/store"
	"powernode/tools/toolstest"
)

// host is a provider that keeps its machines in memory. What it is told to fail, it fails.
type host struct {
	mu       sync.Mutex
	machines map[string]provider.Machine
	created  []provider.CreateInput
	fail     error // of the next creations, which leave a machine behind all the same
	deaf     error // of the next terminations, starts, stops and reboots
	acted    []string
	can      []provider.Capability
	checked  []provider.Connection
	refuse   error  // of the next checks
	asked    func() // runs before each creation
}

var _ provider.Provider = (*host)(nil)

func newHost() *host {
	return &host{machines: map[string]provider.Machine{}, can: []provider.Capability{provider.CapabilityPower, provider.CapabilitySync}}
}

func (h *host) Type() string                        { return "local" }
func (h *host) Capabilities() []provider.Capability { return h.can }
func (h *host) Architectures() []string             { return []string{"amd64"} }

func (h *host) ConfigKeys() []string { return []string{"project"} }
func (h *host) Regions(context.Context) ([]provider.Region, error) {
	return []provider.Region{provider.LocalRegion()}, nil
}
func (h *host) InstanceTypes(context.Context) ([]provider.InstanceType, error) {
	return provider.LocalSizes(), nil
}

// Check refuses what it is told to; the connection is kept to be looked at.
func (h *host) Check(_ context.Context, c provider.Connection) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checked = append(h.checked, c)
	return h.refuse
}

func (h *host) Create(_ context.Context, in provider.CreateInput) (provider.Machine, error) {
	if h.asked != nil {
		h.asked()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.created = append(h.created, in)
	id := "local-" + in.InstanceID
	if m, there := h.machines[id]; there && h.fail == nil {
		return m, nil
	}
	m := provider.Machine{ID: id, InstanceID: in.InstanceID, Name: in.Name, Status: provider.StatusRunning,
		PrivateAddress: netip.AddrFrom4([4]byte{10, 127, 0, byte(10 + len(h.machines))})}
	h.machines[id] = m
	if h.fail != nil {
		return provider.Machine{}, h.fail
	}
	return m, nil
}

func (h *host) Get(_ context.Context, id string) (provider.Machine, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m, there := h.machines[id]; there {
		return m, nil
	}
	return provider.Machine{}, provider.ErrNotFound
}

func (h *host) List(context.Context, string) ([]provider.Machine, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []provider.Machine
	for _, m := range h.machines {
		all = append(all, m)
	}
	return all, nil
}

func (h *host) Start(_ context.Context, id string) error {
	return h.act("start", id, provider.Graceful, provider.StatusRunning)
}

func (h *host) Stop(_ context.Context, id string, mode provider.StopMode) error {
	return h.act("stop", id, mode, provider.StatusStopped)
}

func (h *host) Reboot(_ context.Context, id string, mode provider.StopMode) error {
	return h.act("reboot", id, mode, provider.StatusRunning)
}

// act notes what was asked of a machine, and does it unless it is told to be deaf.
func (h *host) act(what, id string, mode provider.StopMode, status provider.Status) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if mode == provider.PowerOff {
		what += " hard"
	}
	h.acted = append(h.acted, what)
	m, there := h.machines[id]
	switch {
	case h.deaf != nil:
		return h.deaf
	case !there:
		return provider.ErrNotFound
	}
	m.Status = status
	h.machines[id] = m
	return nil
}

func (h *host) Terminate(_ context.Context, id string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.deaf != nil {
		return h.deaf
	}
	if _, there := h.machines[id]; !there {
		return provider.ErrNotFound
	}
	delete(h.machines, id)
	return nil
}

func (h *host) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.machines)
}

// site is a platform with a host to make machines on, and the ids of what an account starts with.
type site struct {
	*toolstest.Env
	host                         *host
	platform, region, size       string
	server, agent, serverVersion string
}

func newSite(t testing.TB) *site {
	t.Helper()
	s := &site{Env: toolstest.New(t), host: newHost()}
	f := s.Platform.Fleet
	f.DB, f.StateDir = s.Platform.DB, t.TempDir()
	f.Providers["local"] = s.host
	authority, err := fleet.OpenAuthority(f.StateDir, s.Platform.Sealer, nil, nil)
	if err != nil {
		t.Fatalf("make a CA: %v", err)
	}
	f.Authority, f.PlatformURLs = authority, func() []string { return []string{"https://10.127.0.1:7443"} }
	s.platform = s.first(t, "system_list_platforms", "platforms", "name", "linux-amd64")
	s.region = s.first(t, "system_list_regions", "regions", "name", "local")
	s.size = s.first(t, "system_list_instance_types", "instance_types", "name", "local-small")
	s.server = s.first(t, "system_list_modules", "modules", "name", "k3s-server")
	s.agent = s.first(t, "system_list_modules", "modules", "name", "k3s-agent")
	s.serverVersion = s.first(t, "system_list_module_versions", "versions", "version", "v1.36.5+k3s1", "module_id", s.server)
	return s
}

// first answers the id of a list's row whose key has a value; more are the list's arguments.
func (s *site) first(t testing.TB, verb, rows, key, value string, more ...string) string {
	t.Helper()
	args := toolstest.Object{}
	for i := 0; i+1 < len(more); i += 2 {
		args[more[i]] = more[i+1]
	}
	for _, row := range s.Call(t, verb, args)[rows].([]any) {
		if row := row.(toolstest.Object); row[key] == value {
			return row["id"].(string)
		}
	}
	t.Fatalf("%s lists no %s %s", verb, key, value)
	return ""
}

// at walks into a result: keys of objects.
func at(t testing.TB, o toolstest.Object, path ...string) any {
	t.Helper()
	var v any = o
	for _, key := range path {
		inside, ok := v.(toolstest.Object)
		if !ok {
			t.Fatalf("no object on the way to %v in %v", path, o)
		}
		v = inside[key]
	}
	return v
}

func (s *site) template(t testing.TB, name string) string {
	t.Helper()
	return at(t, s.Call(t, "system_create_template", toolstest.Object{"name": name, "node_platform_id": s.platform}), "template", "id").(string)
}

func (s *site) node(t testing.TB, name, template string) string {
	t.Helper()
	return at(t, s.Call(t, "system_create_node", toolstest.Object{"name": name, "template_id": template}), "node", "id").(string)
}

func (s *site) network(t testing.TB, name string) string {
	t.Helper()
	return at(t, s.Call(t, "system_sdwan_create_network", toolstest.Object{"name": name}), "network", "id").(string)
}

func (s *site) join(t testing.TB, template, module string, config toolstest.Object) toolstest.Object {
	t.Helper()
	args := toolstest.Object{"template_id": template, "module_id": module}
	if config != nil {
		args["config"] = config
	}
	return s.Call(t, "system_assign_module_to_template", args)
}

func (s *site) provisionArgs(node string) toolstest.Object {
	return toolstest.Object{"node_id": node, "provider_region_id": s.region, "provider_instance_type_id": s.size}
}

func (s *site) provision(t testing.TB, node string) string {
	t.Helper()
	return at(t, s.Call(t, "system_provision_instance", s.provisionArgs(node)), "instance", "id").(string)
}

// instance reads an instance's row.
func (s *site) instance(t testing.TB, id string) (i store.Instance) {
	t.Helper()
	s.View(t, func(ctx context.Context, v *store.View) (err error) {
		i, err = store.InstanceByID(ctx, v, s.Account.ID, store.InstanceID(id))
		return err
	})
	return i
}

// document reads what an instance is to be.
func (s *site) document(t testing.TB, id string) (d sdwan.Document) {
	t.Helper()
	i := s.instance(t, id)
	s.View(t, func(ctx context.Context, v *store.View) (err error) {
		d, err = s.Platform.Fleet.Document(ctx, v, i)
		return err
	})
	return d
}

// report lets an instance's agent report.
func (s *site) report(t testing.TB, id string, r sdwan.Report) {
	t.Helper()
	i := s.instance(t, id)
	s.Update(t, func(ctx context.Context, tx *store.Tx) error { return s.Platform.Fleet.Ingest(ctx, tx, i, r) })
}

// converged is a report of an agent whose subsystems have applied a revision.
func converged(boot string, revision int64) sdwan.Report {
	r := sdwan.Report{BootID: boot, AgentVersion: "1", Architecture: "amd64", MemoryTotalKB: 1 << 20}
	for _, name := range []string{"wireguard", "firewall", "vip", "k3s", "modules"} {
		r.Subsystems = append(r.Subsystems, sdwan.SubsystemReport{Name: name, AppliedRevision: revision, State: "ok", ObservedAt: time.Unix(1, 0)})
	}
	return r
}
