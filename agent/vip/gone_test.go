package vip

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"powernode/agent"
	"powernode/sdwan"
)

// fleeting is a machine whose interface goes after every look at it.
type fleeting struct{}

func (fleeting) Read(context.Context, []string) (map[string][]address, error) {
	return map[string][]address{"wg-sdwan-1": nil}, nil
}

func (fleeting) Put(context.Context, string, netip.Addr) error {
	return fmt.Errorf("add: %w", unix.ENODEV)
}

func (fleeting) Remove(context.Context, string, netip.Addr) error { return nil }

func TestAnInterfaceThatWentInBetweenIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := &Subsystem{log: zerolog.Nop(), host: fleeting{}, state: stateFile{t.TempDir()}}
	doc := &sdwan.Document{Networks: []sdwan.Network{{NetworkID: "n", DeviceName: "wg-sdwan-1", CIDR: cidr,
		VIPs: []sdwan.VIP{{VirtualIPID: "v", Address: virtualIP, Epoch: 1}}}}}
	var pending *agent.Pending
	if err := s.Reconcile(t.Context(), doc); !errors.As(err, &pending) || pending.Reason != "no interface wg-sdwan-1 yet" {
		t.Errorf("got %v, want to wait for the interface", err)
	}
}
