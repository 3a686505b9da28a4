package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"powernode/agent/atomicfile"
)

// agentsOff is the address that takes the named ones back.
const agentsOff = "off"

// agentAddresses reads what --agents says: addresses that machines elsewhere reach this platform at. A port of 0 is the one
// that is recorded, or the system's choice.
func agentAddresses(given []string) ([]netip.AddrPort, error) {
	var out []netip.AddrPort
	for _, text := range given {
		if text == agentsOff {
			if len(given) > 1 {
				return nil, usagef("--agents %s stands alone", agentsOff)
			}
			return nil, nil
		}
		address, err := netip.ParseAddrPort(text)
		if err != nil {
			var bare netip.Addr
			if bare, err = netip.ParseAddr(text); err != nil {
				return nil, usagef("--agents takes ADDRESS or ADDRESS:PORT, as 192.0.2.7:7443 or [2001:db8::7]:7443, or %s", agentsOff)
			}
			address = netip.AddrPortFrom(bare, 0)
		}
		address = netip.AddrPortFrom(address.Addr().Unmap(), address.Port())
		if a := address.Addr(); a.IsUnspecified() || a.IsMulticast() || a.Zone() != "" {
			return nil, usagef("--agents %s is no address that a machine could reach: name one", text)
		}
		out = append(out, address)
	}
	return out, nil
}

// openNamed opens the addresses that the operator names for machines elsewhere, or else the recorded ones. The operator's own
// must open; a recorded one that can't be opened is told, and the control plane goes on without it.
func (l *listeners) openNamed(ctx context.Context, given []string) error {
	recorded, err := l.recordedNames()
	if err != nil {
		return err
	}
	if given == nil {
		for _, address := range recorded {
			if err := l.openName(ctx, address, bindEarly); err != nil {
				l.log.Error().Err(err).Stringer("address", address).Msg("machines elsewhere can't reach the platform there")
			}
		}
		return nil
	}
	wanted, err := agentAddresses(given)
	if err != nil {
		return err
	}
	for _, address := range wanted {
		if address.Port() == 0 {
			address = samePlace(recorded, address)
		}
		if err := l.openName(ctx, address, nil); err != nil {
			return err
		}
	}
	return l.recordNames(ctx, recorded)
}

// samePlace is an address with the port that it had before.
func samePlace(recorded []netip.AddrPort, address netip.AddrPort) netip.AddrPort {
	for _, before := range recorded {
		if before.Addr() == address.Addr() {
			return before
		}
	}
	return address
}

// bindEarly lets a listener stand before its interface has the address: at a boot, say.
func bindEarly(_, _ string, c syscall.RawConn) error {
	var set error
	err := c.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) })
	return errors.Join(err, set)
}

func (l *listeners) openName(ctx context.Context, address netip.AddrPort, control func(string, string, syscall.RawConn) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	bound, err := l.listen(ctx, address, control)
	if err == nil {
		l.named = append(l.named, bound)
	}
	return err
}

func (l *listeners) recordedNames() ([]netip.AddrPort, error) {
	raw, err := os.ReadFile(l.namedFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the addresses for machines elsewhere: %w", err)
	}
	var recorded []netip.AddrPort
	if err := json.Unmarshal(raw, &recorded); err != nil {
		return nil, fmt.Errorf("read the addresses for machines elsewhere from %s: %w", l.namedFile, err)
	}
	return recorded, nil
}

// recordNames keeps the named addresses for later starts. Others than before are let through by every machine's firewall.
func (l *listeners) recordNames(ctx context.Context, before []netip.AddrPort) error {
	l.mu.Lock()
	now := slices.Clone(l.named)
	l.mu.Unlock()
	if slices.Equal(before, now) {
		return nil
	}
	raw, err := json.Marshal(append([]netip.AddrPort{}, now...))
	if err != nil {
		return err
	}
	if err := atomicfile.Write(l.namedFile, raw, 0o600); err != nil {
		return fmt.Errorf("record the addresses for machines elsewhere: %w", err)
	}
	return l.opened(ctx)
}

// elsewhere are the named addresses as URLs. It opens nothing.
func (l *listeners) elsewhere() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	urls := make([]string, len(l.named))
	for i, address := range l.named {
		urls[i] = "https://" + address.String()
	}
	return urls
}
