package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"powernode/spec/rig"
)

// lab is the installation that the tests share: two tenants on one underlay.
type lab struct {
	*rig.Installation
	template string
	a, b     tenant
}

type tenant struct {
	network, cidr string
	machines      []*machine
}

// machine is a member of a tenant's network.
type machine struct {
	*rig.Machine
	address  string // on the overlay
	device   string
	key      string
	underlay []string // IPv6, then IPv4
}

var shared *lab // TestMain makes it

func TestMain(m *testing.M) {
	os.Exit(rig.RunTests(m, func(ctx context.Context, i *rig.Installation) (err error) {
		shared, err = newLab(ctx, i)
		return err
	}))
}

func newLab(ctx context.Context, i *rig.Installation) (*lab, error) {
	l := &lab{Installation: i}
	var err error
	if l.template, err = i.Template(ctx, "plain"); err != nil {
		return nil, err
	}
	if l.a, err = l.tenant(ctx, "a", 3); err != nil {
		return nil, err
	}
	l.b, err = l.tenant(ctx, "b", 2)
	return l, err
}

func (l *lab) tenant(ctx context.Context, name string, members int) (tenant, error) {
	out, err := l.Call(ctx, "system_sdwan_create_network", rig.Object{"name": "tenant-" + name})
	if err != nil {
		return tenant{}, err
	}
	t := tenant{network: rig.Text(out, "network", "id"), cidr: rig.Text(out, "network", "cidr_64")}
	for n := range members {
		m, err := l.machine(ctx, fmt.Sprintf("%s-%d", name, n+1), t.network)
		if err != nil {
			return t, err
		}
		t.machines = append(t.machines, m)
	}
	// Who came first has to learn of who came last.
	for _, m := range t.machines {
		if err := errors.Join(m.read(ctx), m.Converged(ctx)); err != nil {
			return t, err
		}
	}
	return t, nil
}

// machine makes one that is a peer of a network, with our probe in it.
func (l *lab) machine(ctx context.Context, name, network string) (*machine, error) {
	made, err := rig.AddMachine(ctx, l.Installation, l.template, name, network)
	if err != nil {
		return nil, err
	}
	m := &machine{Machine: made}
	return m, errors.Join(m.read(ctx), l.InstallProbe(ctx, name))
}

// read asks what the machine has now.
func (m *machine) read(ctx context.Context) error {
	peer, err := m.Call(ctx, "system_sdwan_get_peer", rig.Object{"peer_id": m.Peer})
	if err != nil {
		return err
	}
	m.address, m.device, m.key = rig.Text(peer, "peer", "assigned_address"), rig.Text(peer, "peer", "device_name"), rig.Text(peer, "peer", "public_key")
	out, err := m.Exec(ctx, m.Name, "ip", "-o", "addr", "show", "dev", "eth0", "scope", "global")
	if err != nil {
		return err
	}
	v4, v6 := "", ""
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		words := strings.Fields(line)
		p, err := netip.ParsePrefix(words[3])
		switch {
		case err != nil:
			return fmt.Errorf("read %q: %w", line, err)
		case p.Addr().Is4():
			v4 = p.Addr().String()
		default:
			v6 = p.Addr().String()
		}
	}
	m.underlay = []string{v6, v4}
	if m.address == "" || m.key == "" || v4 == "" || v6 == "" {
		return fmt.Errorf("%s has address %q, key %q, underlay %q and %q", m.Name, m.address, m.key, v6, v4)
	}
	return nil
}

func (l *lab) all() []*machine { return append(append([]*machine{}, l.a.machines...), l.b.machines...) }

// must call a verb.
func (l *lab) must(t *testing.T, verb string, arguments rig.Object) rig.Object {
	t.Helper()
	out, err := l.Call(t.Context(), verb, arguments)
	if err != nil {
		t.Fatalf("%s: %v", verb, err)
	}
	return out
}

// parked calls a verb that must park, asks before to see that nothing has happened yet, has the person approve, and
// answers the result.
func (l *lab) parked(t *testing.T, verb string, arguments rig.Object, before func()) rig.Object {
	t.Helper()
	out := l.must(t, verb, arguments)
	if out["pending"] != true {
		t.Fatalf("%s did not park: %v", verb, out)
	}
	if before != nil {
		before()
	}
	id, err := l.Decide(t.Context(), verb, arguments, out)
	ok(t, err)
	operation := l.must(t, "platform_get_operation", rig.Object{"deferred_operation_id": id})
	if status := rig.Text(operation, "operation", "status"); status != "completed" {
		t.Fatalf("%s: the operation is %s: %v", verb, status, rig.At(operation, "operation", "error"))
	}
	result, _ := rig.At(operation, "operation", "result").(rig.Object)
	return result
}

func (l *lab) exec(t *testing.T, machine string, argv ...string) string {
	t.Helper()
	out, err := l.Exec(t.Context(), machine, argv...)
	ok(t, err)
	return string(out)
}

func (l *lab) pings(t *testing.T, machine, address string) bool {
	t.Helper()
	return l.says(t, machine, "ping", "-n", "-c", "2", "-i", "0.2", "-W", "1", address)
}

// says whether a program ended well. That it could not be run fails the test.
func (l *lab) says(t *testing.T, machine string, argv ...string) bool {
	t.Helper()
	_, err := l.Exec(t.Context(), machine, argv...)
	if err != nil && !rig.Exited(err) {
		t.Fatal(err)
	}
	return err == nil
}

// reachable waits until a ping is answered: a tunnel's first handshake takes its time.
func (l *lab) reachable(t *testing.T, machine, address string) {
	t.Helper()
	ok(t, rig.Await(t.Context(), machine+" to reach "+address, 20*time.Second, func(context.Context) (string, error) {
		if !l.pings(t, machine, address) {
			return "ping is not answered", nil
		}
		return "", nil
	}))
}

func (l *lab) dial(t *testing.T, machine string, targets ...string) map[string]string {
	t.Helper()
	out, err := l.Dial(t.Context(), machine, targets...)
	ok(t, err)
	return out
}

func (l *lab) converged(t *testing.T, machines ...*machine) {
	t.Helper()
	for _, m := range machines {
		ok(t, m.Converged(t.Context()))
	}
}

// stopAgent stops a machine's agent until the test ends, or until the returned function is called.
func (l *lab) stopAgent(t *testing.T, m *machine) (resume func()) {
	t.Helper()
	ok(t, l.Signal(t.Context(), m.Name, "STOP"))
	stopped := true
	resume = func() {
		if !stopped {
			return
		}
		stopped = false
		if err := l.Signal(context.WithoutCancel(t.Context()), m.Name, "CONT"); err != nil {
			t.Errorf("resume the agent of %s: %v", m.Name, err)
		}
	}
	t.Cleanup(resume)
	return resume
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
