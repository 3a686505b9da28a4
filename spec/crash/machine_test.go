package crash_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"powernode/spec/rig"
)

// lab is an installation with two machines on one network and a ping between them that goes on all the while.
type lab struct {
	*rig.Installation
	template, region, size string
	machines               []*rig.Machine
	ping                   *rig.Ping
}

func openLab(t *testing.T) (context.Context, *lab) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	t.Cleanup(cancel)
	i, err := rig.Open(ctx, rig.Given("BIN", "../../bin"))
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{Installation: i}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the control plane's log, its end:\n%s", i.Log())
		}
		// A deadline of its own: what the test has made is removed after its end, too.
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := i.Remove(ctx); err != nil {
			t.Error(err)
		}
	})
	l.template, err = l.Template(ctx, "plain")
	must(t, err)
	l.region = rig.Text(l.ask(ctx, t, "system_list_regions", rig.Object{}), "regions", 0, "id")
	l.size = rig.Text(l.ask(ctx, t, "system_list_instance_types", rig.Object{}), "instance_types", 0, "id")
	first, err := rig.NewMachine(ctx, i, l.template, "first")
	must(t, err)
	second, err := rig.AddMachine(ctx, i, l.template, "second", first.Network)
	must(t, err)
	l.machines = []*rig.Machine{first, second}
	peer := l.ask(ctx, t, "system_sdwan_get_peer", rig.Object{"peer_id": second.Peer})
	address := rig.Text(peer, "peer", "assigned_address")
	l.reached(ctx, t, address)
	l.ping, err = l.StartPing(ctx, "first", address, 50*time.Millisecond)
	must(t, err)
	return ctx, l
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (l *lab) ask(ctx context.Context, t *testing.T, verb string, arguments rig.Object) rig.Object {
	t.Helper()
	out, err := l.Call(ctx, verb, arguments)
	must(t, err)
	return out
}

// missedNothing ends the ping.
func (l *lab) missedNothing(ctx context.Context, t *testing.T) {
	t.Helper()
	must(t, l.ping.AwaitMore(ctx, 10))
	loss, err := l.ping.Stop()
	must(t, err)
	t.Logf("the ping lost %d of %d", loss.Lost, loss.Sent)
	if loss.Lost != 0 {
		t.Errorf("the ping missed %d of %d, %s on end", loss.Lost, loss.Sent, loss.Longest)
	}
}

// Twenty kills on the way of calls that make machines, each call under an idempotency key and killed up to five times.
// Not in parallel: a small host carries one lab.
func TestKilledControlPlaneMakesEachMachineOnce(t *testing.T) {
	const kills, killsEach, most = 20, 5, 60
	ctx, l := openLab(t)
	k := &killer{Installation: l.Installation, random: seeded(t)}
	want := map[string]string{} // instance by node, as the repeated call names it
	for n := 0; k.kills.Load() < kills && n < most; n++ {
		node := rig.Text(l.ask(ctx, t, "system_create_node", rig.Object{"name": fmt.Sprintf("made-%d", n), "template_id": l.template}), "node", "id")
		want[node] = l.provision(ctx, t, k, node, min(killsEach, kills-int(k.kills.Load())))
	}
	t.Logf("%d machines, %d kills", len(want), k.kills.Load())
	if k.kills.Load() < kills {
		t.Errorf("%d kills came while a machine was being made, want %d", k.kills.Load(), kills)
	}
	l.settled(ctx, t, want)
	l.missedNothing(ctx, t)
	if _, err := l.Run(ctx, "audit", "verify"); err != nil {
		t.Error(err)
	}
}

// provision makes a machine while control planes are killed, and then calls again as a client would: under the same key.
// It answers the instance that the key stands for.
func (l *lab) provision(ctx context.Context, t *testing.T, k *killer, node string, kills int) string {
	t.Helper()
	arguments := rig.Object{"node_id": node, "provider_region_id": l.region, "provider_instance_type_id": l.size, "operation_id": "make " + node}
	onTheWay, answered := context.WithCancel(ctx)
	defer answered()
	killed := make(chan error, 1)
	go func() {
		var err error
		for n := 0; n < kills && err == nil; n++ {
			// A machine is made in some 50 ms on a host that is idle, and in many times that on one that is busy.
			err = k.next(onTheWay, []time.Duration{5, 15, 40, 100, 250}[k.random.IntN(5)]*time.Millisecond)
		}
		killed <- err
	}()
	first, err := l.Call(ctx, "system_provision_instance", arguments)
	answered()
	if killErr := <-killed; killErr != nil && onTheWay.Err() == nil {
		t.Fatal(killErr)
	}
	var refused *rig.Refusal
	if err != nil && !errors.As(err, &refused) {
		t.Fatal(err)
	}
	again := l.ask(ctx, t, "system_provision_instance", arguments)
	id := rig.Text(again, "instance", "id")
	switch {
	case refused != nil && refused.Code != "unavailable":
		t.Errorf("the call was refused with %v, want its result or unavailable", refused)
	case refused == nil && rig.Text(first, "instance", "id") != id:
		t.Errorf("the key stands for instance %s, its first call was answered with %s", id, rig.Text(first, "instance", "id"))
	}
	return id
}

// settled waits until every instance runs or is in error, and holds rows against machines: of each node one runs, the one
// that its key stands for; each that runs has one machine, and no machine is without a row.
func (l *lab) settled(ctx context.Context, t *testing.T, want map[string]string) {
	t.Helper()
	var instances []rig.Object
	must(t, rig.Await(ctx, "the instances to settle", time.Minute, func(ctx context.Context) (string, error) {
		out, err := l.Call(ctx, "system_list_instances", rig.Object{"limit": 500})
		if err != nil {
			return "", err
		}
		instances = rig.List(out, "instances")
		for _, i := range instances {
			if i["status"] != "running" && i["status"] != "error" {
				return fmt.Sprintf("%v is %v", i["name"], i["status"]), nil
			}
		}
		return "", nil
	}))
	machines := l.onThisHost(ctx, t)
	running := map[string]string{} // instance by node
	for _, i := range instances {
		id, node := rig.Text(i, "id"), rig.Text(i, "node_id")
		has := machines[id]
		delete(machines, id)
		if i["status"] == "error" {
			t.Logf("%v is in error", i["name"])
			if has != 0 {
				t.Errorf("%v is in error and has %d machines", i["name"], has)
			}
			continue
		}
		if before, twice := running[node]; twice {
			t.Errorf("node %s has instances %s and %s", node, before, id)
		}
		running[node] = id
		if has != 1 {
			t.Errorf("%v runs and has %d machines", i["name"], has)
		}
	}
	for node, id := range want {
		if running[node] != id {
			t.Errorf("node %s has instance %q, its key stands for %s", node, running[node], id)
		}
	}
	if len(machines) != 0 {
		t.Errorf("machines without a row: %v", machines)
	}
}

// onThisHost counts the machines of each instance, from powernode local list.
func (l *lab) onThisHost(ctx context.Context, t *testing.T) map[string]int {
	t.Helper()
	out, err := l.Run(ctx, "local", "list")
	must(t, err)
	count := map[string]int{}
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n")[1:] {
		fields := strings.Fields(line)
		count[fields[len(fields)-1]]++
	}
	return count
}

// Agents are killed on both machines at once, again and again: each comes back and takes what is new, and no packet is lost.
// Not in parallel: see above.
func TestKilledAgentsComeBackAndTrafficGoesOn(t *testing.T) {
	const rounds = 5
	ctx, l := openLab(t)
	random := seeded(t)
	for n := range rounds {
		// A change is on its way when the kill comes.
		vip := l.ask(ctx, t, "system_sdwan_create_virtual_ip", rig.Object{"network_id": l.machines[0].Network, "name": fmt.Sprintf("round-%d", n),
			"cidr": "auto", "holder_peer_ids": []string{l.machines[1].Peer}})
		select {
		case <-time.After(time.Duration(random.Int64N(int64(200 * time.Millisecond)))):
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
		var kills errgroup.Group
		for _, m := range l.machines {
			kills.Go(func() error { return l.KillAgent(ctx, m.Name) })
		}
		must(t, kills.Wait())
		l.reached(ctx, t, strings.TrimSuffix(rig.Text(vip, "virtual_ip", "cidr"), "/128"))
	}
	for _, m := range l.machines {
		must(t, m.Converged(ctx))
	}
	l.missedNothing(ctx, t)
}

// reached waits until the first machine reaches an address.
func (l *lab) reached(ctx context.Context, t *testing.T, address string) {
	t.Helper()
	must(t, rig.Await(ctx, "first to reach "+address, 30*time.Second, func(ctx context.Context) (string, error) {
		_, err := l.Exec(ctx, "first", "ping", "-n", "-c", "1", "-W", "1", address)
		if rig.Exited(err) {
			return "it does not answer", nil
		}
		return "", err
	}))
}
