package network

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
)

// Kinds of ranges and of single addresses.
const (
	rangeNetwork = "network"
	rangePods    = "pod_cidr"
	rangeService = "service_cidr"

	addressPeer   = "peer"
	addressDevice = "device"
	addressVIP    = "virtual_ip"
)

// ranges are what an account has taken, and what rests.
type ranges struct {
	account netip.Prefix
	rows    []store.AddressRange
	exact   map[netip.Prefix]bool
}

func readRanges(ctx context.Context, v *store.View, acct store.AccountID) (ranges, error) {
	account, err := store.AccountByID(ctx, v, acct)
	if err != nil {
		return ranges{}, fmt.Errorf("find the account's prefix: %w", err)
	}
	rows, err := store.AddressRanges(ctx, v, acct)
	if err != nil {
		return ranges{}, fmt.Errorf("read the account's ranges: %w", err)
	}
	r := ranges{account: account.Prefix.Prefix, rows: rows, exact: make(map[netip.Prefix]bool, len(rows))}
	for _, row := range rows {
		r.exact[row.Prefix.Masked()] = true
	}
	return r, nil
}

// overlapping is the first range that a prefix meets.
func (r ranges) overlapping(p netip.Prefix) (store.AddressRange, bool) {
	for _, row := range r.rows {
		if sdwan.Overlaps(row.Prefix.Prefix, p) {
			return row, true
		}
	}
	return store.AddressRange{}, false
}

// free says whether a prefix of the address plan is nobody's. Two /64 of networks overlap only if they are the same
// one, so a network's row is asked by key.
func (r ranges) free(p netip.Prefix) bool {
	if r.exact[p] {
		return false
	}
	for _, row := range r.rows {
		if row.Kind == rangeNetwork && p.Bits() == row.Prefix.Bits() {
			continue
		}
		if sdwan.Overlaps(row.Prefix.Prefix, p) {
			return false
		}
	}
	return true
}

// refusal names the other party of an overlap.
func refusal(p netip.Prefix, other store.AddressRange) error {
	what := map[string]string{rangeNetwork: "cidr_64 of network", rangePods: "pod_cidr of cluster", rangeService: "service_cidr of cluster",
		"pod_subnet_prefix": "pod_subnet_prefix of network", "lan_subnet": "lan_subnets of peer"}[other.Kind]
	if what == "" {
		what = other.Kind + " of"
	}
	e := schema.Errorf(schema.Conflict, "%s overlaps %s %s", p, what, other.OwnerName).
		WithDetail("prefix", p.String()).WithDetail("other_prefix", other.Prefix.String()).WithDetail("other_id", other.OwnerID)
	if other.ReleasedAt != nil {
		e.Message += " (released, rests until " + store.At(other.ReleasedAt.Add(store.AddressRest)).String() + ")"
	}
	return e
}

// TakeRange gives a cluster its range of pods (/56) or services (/112): the wanted one, or where that is invalid the
// next free one of the account.
func (s *Service) TakeRange(ctx context.Context, tx *store.Tx, acct store.AccountID, kind string, want netip.Prefix, ownerID, ownerName string) (netip.Prefix, error) {
	taken, err := readRanges(ctx, &tx.View, acct)
	if err != nil {
		return netip.Prefix{}, err
	}
	got := want.Masked()
	if want.IsValid() {
		if other, found := taken.overlapping(got); found {
			return netip.Prefix{}, refusal(got, other)
		}
		if err := s.refuseHostRoute(ctx, &tx.View, acct, got); err != nil {
			return netip.Prefix{}, err
		}
	} else if got, err = taken.next(kind); err != nil {
		return netip.Prefix{}, err
	}
	err = store.TakeAddressRange(ctx, tx, store.AddressRange{AccountID: acct, Prefix: store.Prefix{Prefix: got}, Kind: kind,
		OwnerID: ownerID, OwnerName: ownerName})
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("take %s as %s: %w", got, kind, err)
	}
	return got, nil
}

// next is the next free prefix of a kind.
func (r ranges) next(kind string) (netip.Prefix, error) {
	var p netip.Prefix
	var ok bool
	switch kind {
	case rangeNetwork:
		p, ok = sdwan.NextPrefix(sdwan.MaxNetworks+1, func(n int) (netip.Prefix, bool) { return sdwan.NetworkPrefix(r.account, n) }, r.free)
	case rangePods:
		p, ok = sdwan.NextPrefix(sdwan.MaxPods, func(n int) (netip.Prefix, bool) { return sdwan.PodPrefix(r.account, n) }, r.free)
	case rangeService:
		p, ok = sdwan.NextPrefix(sdwan.MaxServices, func(n int) (netip.Prefix, bool) { return sdwan.ServicePrefix(r.account, n) }, r.free)
	default:
		return p, fmt.Errorf("choose a range: unknown kind %q", kind)
	}
	if !ok {
		return p, exhausted("no %s is left in %s", kind, r.account)
	}
	return p, nil
}

func exhausted(format string, args ...any) error {
	e := schema.Errorf(schema.Unavailable, "address space exhausted: "+format, args...)
	e.Retryable = false
	return e
}

// ReleaseRanges lets all ranges of an owner rest.
func (s *Service) ReleaseRanges(ctx context.Context, tx *store.Tx, acct store.AccountID, ownerID string) error {
	if err := store.ReleaseAddressRanges(ctx, tx, acct, ownerID); err != nil {
		return fmt.Errorf("release ranges: %w", err)
	}
	return nil
}

// takeAddress gives an owner the next free address of a range of the network, or the wanted one.
func takeAddress(ctx context.Context, tx *store.Tx, n store.Network, kind, ownerID string, want netip.Addr) (netip.Addr, error) {
	rows, err := store.NetworkAddresses(ctx, &tx.View, n.AccountID, n.ID, kind)
	if err != nil {
		return netip.Addr{}, err
	}
	taken := make(map[netip.Addr]store.NetworkAddress, len(rows))
	for _, row := range rows {
		taken[row.Address.Addr] = row
	}
	got := want
	if want.IsValid() {
		if other, there := taken[want]; there {
			return netip.Addr{}, addressTaken(other)
		}
	} else {
		r := map[string]func(netip.Prefix) sdwan.Range{addressPeer: sdwan.PeerRange, addressDevice: sdwan.DeviceRange, addressVIP: sdwan.VIPRange}[kind](n.CIDR.Prefix)
		var ok bool
		if got, ok = r.Next(func(a netip.Addr) bool { _, there := taken[a]; return there }); !ok {
			return netip.Addr{}, exhausted("no %s address is left in network %s", kind, n.Name)
		}
	}
	err = store.TakeAddress(ctx, tx, store.NetworkAddress{AccountID: n.AccountID, NetworkID: n.ID, Address: store.Addr{Addr: got}, Kind: kind, OwnerID: ownerID})
	if err != nil {
		return netip.Addr{}, fmt.Errorf("take an address of network %s: %w", n.Name, err)
	}
	return got, nil
}

func addressTaken(other store.NetworkAddress) error {
	if other.ReleasedAt != nil {
		until := store.At(other.ReleasedAt.Add(store.AddressRest))
		return schema.Errorf(schema.Conflict, "%s was released and rests until %s", other.Address, until).
			WithDetail("rests_until", until.Format(time.RFC3339))
	}
	return schema.Errorf(schema.Conflict, "%s is already in use", other.Address).WithDetail("owner_id", other.OwnerID)
}

// refuseHostRoute refuses a prefix that an agent reports as a route of its machine.
func (s *Service) refuseHostRoute(ctx context.Context, v *store.View, acct store.AccountID, p netip.Prefix) error {
	reports, err := store.InstanceReports(ctx, v, acct)
	if err != nil {
		return fmt.Errorf("read the routes that agents report: %w", err)
	}
	for _, id := range sortedIDs(reports) {
		routes, _, err := hostRoutes(reports[id])
		if err != nil {
			return err
		}
		for _, r := range routes {
			if sdwan.Overlaps(r.Prefix, p) {
				return schema.Errorf(schema.Conflict, "%s overlaps the route %s of instance %s", p, r.Prefix, id).
					WithDetail("prefix", p.String()).WithDetail("other_prefix", r.Prefix.String()).WithDetail("other_id", string(id))
			}
		}
	}
	return nil
}
