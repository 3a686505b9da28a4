package local

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"

	"powernode/schema"
)

// installation is what the machines of one state directory share: StateDir/local/installation.json. It stays when the
// machines go, so that the platform's address for agents is the same after.
type installation struct {
	ID      string       `json:"id"` // eight hex digits, in every name on the host
	Prefix6 netip.Prefix `json:"prefix6"`
	Prefix4 netip.Prefix `json:"prefix4"`
	Ports   []uint16     `json:"ports"` // of the platform, open to machines
	Next    int          `json:"next"`  // place on the underlay to try first
}

const (
	firstPlace = 2 // 1 is the host
	lastPlace  = 254
)

func (i installation) bridge() string          { return "pn-" + i.ID }
func (i installation) port(place int) string   { return fmt.Sprintf("pn%s-%d", i.ID, place) }
func (i installation) table() string           { return "powernode_local_" + i.ID }
func (i installation) group() string           { return "powernode-" + i.ID }
func (i installation) groupOf(r record) string { return fmt.Sprintf("%s/%d", i.group(), r.Index) }
func (i installation) host6() netip.Addr       { return nth(i.Prefix6, 1) }
func (i installation) host4() netip.Addr       { return nth(i.Prefix4, 1) }

func (i installation) addresses(place int) []netip.Addr {
	return []netip.Addr{nth(i.Prefix6, place), nth(i.Prefix4, place)}
}

func (i installation) prefixes(place int) []netip.Prefix {
	return []netip.Prefix{
		netip.PrefixFrom(nth(i.Prefix6, place), i.Prefix6.Bits()),
		netip.PrefixFrom(nth(i.Prefix4, place), i.Prefix4.Bits()),
	}
}

// hardware is a place's address on the wire: the same for whoever has the place, so that no neighbour's cache is stale.
func (i installation) hardware(place int) []byte {
	id, _ := hex.DecodeString(i.ID)
	return []byte{0x02, id[0], id[1], id[2], id[3], byte(place)}
}

// nth is the address n above a prefix's first, for n below 256.
func nth(p netip.Prefix, n int) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	b[len(b)-1] = byte(n)
	a, _ := netip.AddrFromSlice(b)
	return a
}

func (i installation) place(taken []int) (int, error) {
	for n := range lastPlace - firstPlace + 1 {
		at := firstPlace + (max(i.Next, firstPlace)-firstPlace+n)%(lastPlace-firstPlace+1)
		if _, found := slices.BinarySearch(taken, at); !found {
			return at, nil
		}
	}
	return 0, &schema.Error{Code: schema.PreconditionFailed, Message: fmt.Sprintf("the underlay of local machines is full: %d machines", len(taken))}
}

func (p *Provider) installationPath() string { return filepath.Join(p.dir, "installation.json") }

func (p *Provider) loadInstallation() (installation, error) {
	var inst installation
	if err := readJSON(p.installationPath(), &inst); err != nil {
		return inst, fmt.Errorf("read installation of local machines: %w", err)
	}
	if raw, err := hex.DecodeString(inst.ID); err != nil || len(raw) != 4 || !inst.Prefix6.IsValid() || !inst.Prefix4.IsValid() {
		return inst, fmt.Errorf("read installation of local machines: %s is damaged", p.installationPath())
	}
	return inst, nil
}

func (p *Provider) saveInstallation(inst installation) error {
	if err := writeJSON(p.installationPath(), inst); err != nil {
		return fmt.Errorf("write installation of local machines: %w", err)
	}
	return nil
}

// ensureInstallation makes bridge and rules as they are recorded, and records them first where they are not; ports are
// opened beside those that are open.
func (p *Provider) ensureInstallation(ctx context.Context, ports []uint16) (installation, error) {
	unlock, err := p.lock(ctx)
	if err != nil {
		return installation{}, err
	}
	defer unlock()
	inst, err := p.loadInstallation()
	fresh := errors.Is(err, fs.ErrNotExist)
	if fresh {
		inst, err = chooseInstallation()
	}
	if err != nil {
		return inst, err
	}
	open := append(slices.Clone(inst.Ports), ports...)
	slices.Sort(open)
	open = slices.Compact(open)
	if fresh || !slices.Equal(open, inst.Ports) {
		inst.Ports = open
		if err := p.saveInstallation(inst); err != nil {
			return inst, err
		}
	}
	// Rules first: no machine is ever on a bridge without them.
	if err := inst.applyRules(); err != nil {
		return inst, err
	}
	return inst, inst.ensureBridge()
}

// chooseInstallation draws names and prefixes that nothing on this host has.
func chooseInstallation() (installation, error) {
	for range 64 {
		var b [16]byte
		if _, err := rand.Read(b[:]); err != nil {
			return installation{}, fmt.Errorf("draw an underlay: %w", err)
		}
		inst := installation{
			ID:      hex.EncodeToString(b[:4]),
			Prefix6: netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, b[4], b[5], b[6], b[7], b[8], b[9], b[10]}), 64),
			Prefix4: carrierGrade(binary.BigEndian.Uint16(b[11:])),
			Next:    firstPlace,
		}
		used, err := inst.collides()
		if err != nil {
			return installation{}, err
		}
		if !used {
			return inst, nil
		}
	}
	return installation{}, &schema.Error{Code: schema.PreconditionFailed, Message: "no free prefix for the underlay of local machines in 100.64.0.0/10"}
}

// carrierGrade is one of the 16384 /24s of 100.64.0.0/10.
func carrierGrade(n uint16) netip.Prefix {
	n &= 1<<14 - 1
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64 + byte(n>>8), byte(n), 0}), 24)
}
