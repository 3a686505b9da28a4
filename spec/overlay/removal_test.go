package overlay

import (
	"context"
	"strings"
	"testing"
	"time"

	"powernode/spec/rig"
)

func TestDetachAndDeleteParkAndThenTakeTheInterfaceAway(t *testing.T) {
	l := shared
	ctx := t.Context()
	out := l.must(t, "system_sdwan_create_network", rig.Object{"name": "leaves"})
	network := rig.Text(out, "network", "id")
	first, err := l.machine(ctx, "leaves-1", network)
	ok(t, err)
	second, err := l.machine(ctx, "leaves-2", network)
	ok(t, err)
	l.converged(t, first, second)
	l.reachable(t, first.Name, second.address)
	vip := l.virtualIP(t, "leaves", first)

	stands := func(m *machine) func() {
		return func() {
			if !l.hasDevice(t, m) {
				t.Errorf("%s lost its interface before a person approved", m.Name)
			}
		}
	}
	detached := l.parked(t, "system_sdwan_detach_peer", rig.Object{"peer_id": first.Peer}, stands(first))
	if detached["detached"] != true || rig.At(detached, "released_virtual_ip_ids", 0) != vip.id {
		t.Errorf("result %v, want the released %s", detached, vip.id)
	}
	l.deviceGoes(t, first)
	stands(second)()
	ok(t, second.Converged(ctx))
	if got := l.exec(t, second.Name, "wg", "show", second.device, "peers"); strings.Contains(got, first.key) {
		t.Errorf("%s still knows the peer that left: %s", second.Name, got)
	}

	deleted := l.parked(t, "system_sdwan_delete_network", rig.Object{"network_id": network}, stands(second))
	if deleted["deleted"] != true || rig.At(deleted, "removed", "peers") != 1.0 {
		t.Errorf("result %v, want one removed peer", deleted)
	}
	l.deviceGoes(t, second)
	if _, err := l.Call(ctx, "system_sdwan_get_network", rig.Object{"network_id": network}); err == nil {
		t.Error("the network is still there")
	}
}

func (l *lab) hasDevice(t *testing.T, m *machine) bool {
	t.Helper()
	return l.says(t, m.Name, "ip", "link", "show", m.device)
}

func (l *lab) deviceGoes(t *testing.T, m *machine) {
	t.Helper()
	ok(t, rig.Await(t.Context(), "the interface of "+m.Name+" to go", 20*time.Second, func(context.Context) (string, error) {
		if l.hasDevice(t, m) {
			return m.device + " is there", nil
		}
		return "", nil
	}))
}
