package vip

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"powernode/agent"
	"powernode/sdwan"
)

var errCutOff = errors.New("cut off")

// fakeHost is a machine in memory that prints itself, counts writes and can fail after some.
type fakeHost struct {
	devices map[string][]address
	writes  int
	cutOff  int // writes until they fail; negative: never
}

func (h *fakeHost) Read(_ context.Context, devices []string) (map[string][]address, error) {
	out := map[string][]address{}
	for name, a := range h.devices {
		if slices.Contains(devices, name) {
			out[name] = slices.Clone(a)
		}
	}
	return out, nil
}

func (h *fakeHost) write(device string, do func()) error {
	if h.cutOff == 0 {
		return errCutOff
	}
	if _, exists := h.devices[device]; !exists {
		return fmt.Errorf("no link %s", device)
	}
	h.cutOff--
	h.writes++
	do()
	return nil
}

func (h *fakeHost) Put(_ context.Context, device string, a netip.Addr) error {
	return h.write(device, func() {
		h.devices[device] = append(h.without(device, a), address{a, true})
	})
}

func (h *fakeHost) Remove(_ context.Context, device string, a netip.Addr) error {
	return h.write(device, func() { h.devices[device] = h.without(device, a) })
}

func (h *fakeHost) without(device string, a netip.Addr) []address {
	return slices.DeleteFunc(h.devices[device], func(o address) bool { return o.Addr == a })
}

func (h *fakeHost) String() string {
	var lines []string
	for _, device := range slices.Sorted(maps.Keys(h.devices)) {
		for _, a := range h.devices[device] {
			line := device + " " + a.Addr.String()
			if a.Deprecated {
				line += " deprecated"
			}
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

const node1, hand = "wg-sdwan-1 fd5e:8a21:c0de:1::1:1", "wg-sdwan-1 fd5e:8a21:c0de:1::777"

// newFakeHost has the node's own addresses and one in the range of virtual IPs that somebody set by hand.
func newFakeHost() *fakeHost {
	return &fakeHost{cutOff: -1, devices: map[string][]address{
		"wg-sdwan-1": {{Addr: netip.MustParseAddr("fd5e:8a21:c0de:1::1:1")}, {Addr: netip.MustParseAddr("fd5e:8a21:c0de:1::777")}},
		"wg-sdwan-2": {},
	}}
}

// doc is a document with two networks; each vip is "id network address epoch".
func doc(vips ...string) *sdwan.Document {
	d := &sdwan.Document{Incarnation: "i", Networks: []sdwan.Network{
		{NetworkID: "1", DeviceName: "wg-sdwan-1", CIDR: netip.MustParsePrefix("fd5e:8a21:c0de:1::/64")},
		{NetworkID: "2", DeviceName: "wg-sdwan-2", CIDR: netip.MustParsePrefix("fd5e:8a21:c0de:2::/64")},
	}}
	for _, v := range vips {
		var id, address string
		var network int
		var epoch int64
		if _, err := fmt.Sscan(v, &id, &network, &address, &epoch); err != nil {
			panic(err)
		}
		n := &d.Networks[network-1]
		n.VIPs = append(n.VIPs, sdwan.VIP{VirtualIPID: id, Address: netip.MustParsePrefix(address + "/128"), Epoch: epoch})
	}
	return d
}

func newSubsystem(dir string, h host) *Subsystem {
	return &Subsystem{log: zerolog.Nop(), host: h, state: stateFile{dir}}
}

type situation struct {
	doc  *sdwan.Document
	want string
}

func situations() []situation {
	own := node1 + "\n" + hand
	return []situation{
		{doc(), own},
		{doc("a 1 fd5e:8a21:c0de:1::100 1"), "wg-sdwan-1 fd5e:8a21:c0de:1::100 deprecated\n" + own},
		{doc("a 1 fd5e:8a21:c0de:1::100 1", "b 2 fd5e:8a21:c0de:2::fff 1"),
			"wg-sdwan-1 fd5e:8a21:c0de:1::100 deprecated\n" + own + "\nwg-sdwan-2 fd5e:8a21:c0de:2::fff deprecated"},
		{doc("a 1 fd5e:8a21:c0de:1::200 1"), "wg-sdwan-1 fd5e:8a21:c0de:1::1:1\nwg-sdwan-1 fd5e:8a21:c0de:1::200 deprecated\n" + hand},
		{doc("b 1 fd5e:8a21:c0de:1::100 1"), "wg-sdwan-1 fd5e:8a21:c0de:1::100 deprecated\n" + own},
		{doc("a 2 fd5e:8a21:c0de:2::100 1"), own + "\nwg-sdwan-2 fd5e:8a21:c0de:2::100 deprecated"},
	}
}

func sorted(s string) string {
	lines := strings.Split(s, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestEveryOrderOfDocumentsEndsAsTheLastOne(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	dir, h, all := t.TempDir(), newFakeHost(), situations()
	for range 200 {
		i := rng.IntN(len(all))
		s := newSubsystem(dir, h) // each time as after a restart
		if err := s.Reconcile(t.Context(), all[i].doc); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(sorted(all[i].want), h.String()); d != "" {
			t.Fatalf("situation %d (-want +got)\n%s", i, d)
		}
		before := h.writes
		if err := s.Reconcile(t.Context(), all[i].doc); err != nil || h.writes != before {
			t.Fatalf("situation %d again: %d writes, %v; want none", i, h.writes-before, err)
		}
	}
}

func TestAnAgentCutOffAfterAnyWriteIsContinued(t *testing.T) {
	t.Parallel()
	all := situations()
	for i := range all {
		for j := range all {
			for cut := range 3 {
				dir, h := t.TempDir(), newFakeHost()
				if err := newSubsystem(dir, h).Reconcile(t.Context(), all[i].doc); err != nil {
					t.Fatal(err)
				}
				h.cutOff = cut
				if err := newSubsystem(dir, h).Reconcile(t.Context(), all[j].doc); err != nil && !errors.Is(err, errCutOff) {
					t.Fatal(err)
				}
				h.cutOff = -1
				if err := newSubsystem(dir, h).Reconcile(t.Context(), all[j].doc); err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(sorted(all[j].want), h.String()); d != "" {
					t.Fatalf("%d → %d cut off after %d (-want +got)\n%s", i, j, cut, d)
				}
			}
		}
	}
}

func TestALowerEpochChangesNothing(t *testing.T) {
	t.Parallel()
	const held = "wg-sdwan-1 fd5e:8a21:c0de:1::100 deprecated"
	restored := doc("a 1 fd5e:8a21:c0de:1::100 1")
	restored.Incarnation = "another"
	steps := []struct {
		name string
		doc  *sdwan.Document
		held bool
	}{
		{"it gets the virtual IP", doc("a 1 fd5e:8a21:c0de:1::100 5"), true},
		{"an old document gives it with a lower epoch", doc("a 1 fd5e:8a21:c0de:1::100 4"), true},
		{"it loses it", doc(), false},
		{"an old document brings it back", doc("a 1 fd5e:8a21:c0de:1::100 4"), false},
		{"it gets it again", doc("a 1 fd5e:8a21:c0de:1::100 6"), true},
		{"it loses it again", doc(), false},
		{"another store, whose epochs begin anew", restored, true},
	}
	dir, h := t.TempDir(), newFakeHost()
	for _, step := range steps {
		if err := newSubsystem(dir, h).Reconcile(t.Context(), step.doc); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := strings.Contains(h.String(), held); got != step.held {
			t.Errorf("%s: held %v, want %v", step.name, got, step.held)
		}
	}
}

func TestAnInterfaceThatIsNotThereIsWaitedFor(t *testing.T) {
	t.Parallel()
	h := newFakeHost()
	delete(h.devices, "wg-sdwan-1")
	dir := t.TempDir()
	err := newSubsystem(dir, h).Reconcile(t.Context(), doc("a 1 fd5e:8a21:c0de:1::100 1", "b 2 fd5e:8a21:c0de:2::100 1"))
	var pending *agent.Pending
	if !errors.As(err, &pending) || !strings.Contains(pending.Reason, "wg-sdwan-1") {
		t.Errorf("got %v, want to wait for wg-sdwan-1", err)
	}
	if d := cmp.Diff("wg-sdwan-2 fd5e:8a21:c0de:2::100 deprecated", h.String()); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestAnAddressOutsideTheRangeIsRefusedAndNothingElseReleased(t *testing.T) {
	t.Parallel()
	dir, h := t.TempDir(), newFakeHost()
	if err := newSubsystem(dir, h).Reconcile(t.Context(), doc("a 1 fd5e:8a21:c0de:1::100 1")); err != nil {
		t.Fatal(err)
	}
	before := h.String()
	for _, bad := range []string{"fd5e:8a21:c0de:1::1:1", "fd5e:8a21:c0de:1::ff", "fd5e:8a21:c0de:1::1000", "fd5e:8a21:c0de:2::100"} {
		if err := newSubsystem(dir, h).Reconcile(t.Context(), doc("b 1 "+bad+" 1")); err == nil {
			t.Errorf("%s: no error", bad)
		}
		if d := cmp.Diff(before, h.String()); d != "" {
			t.Errorf("%s: (-want +got)\n%s", bad, d)
		}
	}
}
