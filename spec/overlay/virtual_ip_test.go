package overlay

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"powernode/spec/rig"
)

type virtualIP struct{ id, address string }

// virtualIP makes one; there is no verb yet that removes it, so each test has a name of its own.
func (l *lab) virtualIP(t *testing.T, name string, holder *machine, candidates ...*machine) virtualIP {
	t.Helper()
	ids := []string{}
	for _, c := range candidates {
		ids = append(ids, c.Peer)
	}
	out := l.must(t, "system_sdwan_create_virtual_ip", rig.Object{"network_id": holder.Network, "name": name, "cidr": "auto",
		"holder_peer_ids": []string{holder.Peer}, "failover_holder_peer_ids": ids})
	return virtualIP{rig.Text(out, "virtual_ip", "id"), strings.TrimSuffix(rig.Text(out, "virtual_ip", "cidr"), "/128")}
}

// holds says whether an address is on a machine.
func (l *lab) holds(t *testing.T, m *machine, address string) bool {
	t.Helper()
	return strings.Contains(l.exec(t, m.Name, "ip", "-6", "-o", "addr", "show"), " "+address+"/128 ")
}

func TestFailoverMovesTheAddressWithinTwoSeconds(t *testing.T) {
	l := shared
	a1, a2, a3 := l.a.machines[0], l.a.machines[1], l.a.machines[2]
	vip := l.virtualIP(t, "moves", a1, a2)
	l.converged(t, l.a.machines...)
	l.reachable(t, a3.Name, vip.address)
	ping, err := l.StartPing(t.Context(), a3.Name, vip.address, 20*time.Millisecond)
	ok(t, err)
	result := l.parked(t, "system_sdwan_failover_virtual_ip", rig.Object{"virtual_ip_id": vip.id}, func() {
		if !l.holds(t, a1, vip.address) || l.holds(t, a2, vip.address) {
			t.Error("the address moved before a person approved")
		}
	})
	if result["failed_over"] != true || result["previous_holder_peer_id"] != a1.Peer {
		t.Errorf("result %v", result)
	}
	l.converged(t, l.a.machines...)
	ok(t, ping.AwaitMore(t.Context(), 50))
	loss, err := ping.Stop()
	ok(t, err)
	t.Logf("the ping lost %d of %d, at most %s on end", loss.Lost, loss.Sent, loss.Longest)
	if loss.Longest > 2*time.Second || loss.Lost > 100 {
		t.Errorf("the ping lost %d of 20 ms each, %s on end, want at most 2 s", loss.Lost, loss.Longest)
	}
	for _, m := range l.a.machines {
		if got := l.holds(t, m, vip.address); got != (m == a2) {
			t.Errorf("%s holds the address: %v", m.Name, got)
		}
		for _, other := range l.a.machines {
			if other == m {
				continue
			}
			if got := slices.Contains(allowedIPs(t, m, other), vip.address+"/128"); got != (other == a2) {
				t.Errorf("on %s the address belongs to %s: %v", m.Name, other.Name, got)
			}
		}
	}
}

func TestChangesArriveWithinASecond(t *testing.T) {
	l := shared
	out := l.must(t, "system_sdwan_create_network", rig.Object{"name": "changes"})
	m, err := l.machine(t.Context(), "changes-1", rig.Text(out, "network", "id"))
	ok(t, err)
	took, err := m.Changes(t.Context(), 50)
	ok(t, err)
	var spelt []string
	late := 0
	for _, d := range took {
		spelt = append(spelt, fmt.Sprint(d.Round(time.Millisecond)))
		if d >= time.Second {
			late++
		}
		if d < 0 {
			t.Errorf("a change was seen %s before its commit", -d)
		}
	}
	t.Logf("from commit to the address on the machine: %s", strings.Join(spelt, " "))
	if len(took) != 50 || late > 2 {
		t.Errorf("%d of %d changes took a second or more, want at most two of 50", late, len(took))
	}
}
