package vip

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"powernode/sdwan"
)

// wanted is a document in the words of this package.
type wanted struct {
	Incarnation string
	Networks    map[string]bool
	VIPs        map[string]record // by virtual IP id, all of them held
	// Partial: an entry was not understood, so nothing may be concluded from what is missing.
	Partial bool
}

func fromDocument(doc *sdwan.Document) (wanted, error) {
	w := wanted{Incarnation: doc.Incarnation, Networks: map[string]bool{}, VIPs: map[string]record{}}
	var errs []error
	for _, n := range doc.Networks {
		w.Networks[n.NetworkID] = true
		for _, v := range n.VIPs {
			a := v.Address.Addr()
			if !v.Address.IsValid() || v.Address.Bits() != 128 || !inRange(n.CIDR, a) {
				w.Partial = true
				errs = append(errs, fmt.Errorf("virtual IP %s is no /128 from ::100 to ::fff of %s", v.Address, n.CIDR))
				continue
			}
			w.VIPs[v.VirtualIPID] = record{Network: n.NetworkID, Device: n.DeviceName, Address: a, Epoch: v.Epoch, Held: true}
		}
	}
	return w, errors.Join(errs...)
}

// inRange says whether an address lies in a network's range for virtual IPs.
func inRange(cidr netip.Prefix, a netip.Addr) bool {
	return cidr.IsValid() && cidr.Bits() == 64 && sdwan.VIPRange(cidr).Contains(a)
}

// change is one write.
type change struct {
	device string
	addr   netip.Addr
	remove bool
}

type plan struct {
	changes []change // what is held comes before what is released
	missing []string // interfaces that are to hold something and are not there
}

// diff is pure: what is there and what is recorded, held or released, to what is to be done.
func diff(have map[string][]address, ours state) plan {
	var p plan
	held := map[change]bool{}
	var release []change
	for _, id := range ours.ids() {
		r := ours.VIPs[id]
		addresses, exists := have[r.Device]
		at := slices.IndexFunc(addresses, func(a address) bool { return a.Addr == r.Address })
		c := change{device: r.Device, addr: r.Address}
		switch {
		case !r.Held:
			if at >= 0 {
				release = append(release, c)
			}
			continue
		case !exists:
			if !slices.Contains(p.missing, r.Device) {
				p.missing = append(p.missing, r.Device)
			}
		case at < 0 || !addresses[at].Deprecated:
			p.changes = append(p.changes, c)
		}
		held[c] = true
	}
	for _, old := range ours.Moved {
		if slices.ContainsFunc(have[old.Device], func(a address) bool { return a.Addr == old.Address }) {
			release = append(release, change{device: old.Device, addr: old.Address})
		}
	}
	slices.SortFunc(release, func(a, b change) int { return cmp.Or(cmp.Compare(a.device, b.device), a.addr.Compare(b.addr)) })
	for _, c := range slices.Compact(release) {
		if !held[c] {
			c.remove = true
			p.changes = append(p.changes, c)
		}
	}
	return p
}
