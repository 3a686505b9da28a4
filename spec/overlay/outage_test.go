package overlay

import (
	"testing"
	"time"
)

func TestDataPlaneOutlivesAgentsAndControlPlane(t *testing.T) {
	l := shared
	a1, a2 := l.a.machines[0], l.a.machines[1]
	l.reachable(t, a1.Name, a2.address)
	ping, err := l.StartPing(t.Context(), a1.Name, a2.address, 50*time.Millisecond)
	ok(t, err)
	ok(t, l.KillServe(t.Context()))
	for _, m := range []*machine{a1, a2} {
		ok(t, l.KillAgent(t.Context(), m.Name))
	}
	ok(t, ping.AwaitMore(t.Context(), 10))
	// The next call starts serve again, and the machines are its own: a change arrives.
	vip := l.virtualIP(t, "after-the-crash", a2)
	l.converged(t, a1, a2)
	if !l.holds(t, a2, vip.address) {
		t.Errorf("%s does not have %s, which was given to it after the crash", a2.Name, vip.address)
	}
	l.reachable(t, a1.Name, vip.address)
	ok(t, ping.AwaitMore(t.Context(), 10))
	loss, err := ping.Stop()
	ok(t, err)
	t.Logf("the ping lost %d of %d", loss.Lost, loss.Sent)
	if loss.Lost != 0 {
		t.Errorf("the ping missed %d of %d, %s on end", loss.Lost, loss.Sent, loss.Longest)
	}
}
