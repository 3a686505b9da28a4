package cluster_test

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"powernode/sdwan"
	"powernode/store"
)

// claim lets an instance's agent report pod ranges, and answers what its peer on the network has then.
func (w *world) claim(i store.Instance, c store.Cluster, pods ...netip.Prefix) (has []netip.Prefix) {
	w.t.Helper()
	w.update(func(ctx context.Context, tx *store.Tx) error {
		err := w.networks.Ingest(ctx, tx, i, sdwan.Report{K3s: &sdwan.K3sReport{ClusterID: string(c.ID), PodCIDRs: pods}})
		if err != nil {
			return err
		}
		p, err := store.PeerOf(ctx, &tx.View, w.acct, c.NetworkID, i.ID)
		has = p.PodCIDRs
		return err
	})
	return has
}

func TestPodRangesAreMembersAndDisjoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server, worker, c := w.pair()
	stranger := w.instance("x-1")
	w.attach(stranger, store.Network{ID: c.NetworkID})
	sub := func(n byte) netip.Prefix {
		raw := c.PodCIDR.Addr().As16()
		raw[7] += n
		return netip.PrefixFrom(netip.AddrFrom16(raw), 64)
	}
	if got := w.claim(server, c, sub(1)); !slices.Equal(got, []netip.Prefix{sub(1)}) {
		t.Errorf("the server's range: %v", got)
	}
	if got := w.claim(worker, c, sub(1)); len(got) != 0 {
		t.Errorf("the worker took the server's range: %v", got)
	}
	if len(w.signals("system.sdwan_address_overlap")) != 1 {
		t.Error("the overlap was not told of, once")
	}
	if got := w.claim(worker, c, sub(2), netip.MustParsePrefix("fd00:1::/64")); !slices.Equal(got, []netip.Prefix{sub(2)}) {
		t.Errorf("the worker's range, beside one outside the cluster's: %v", got)
	}
	if got := w.claim(stranger, c, sub(3)); len(got) != 0 {
		t.Errorf("who is no member has pods: %v", got)
	}
	before := w.revision()
	w.claim(worker, c, sub(2))
	if w.revision() != before {
		t.Error("the same range again is a change")
	}
	w.decommission("a-1")
	if got := w.claim(server, c, sub(1)); len(got) != 0 {
		t.Errorf("a range outlives its cluster: %v", got)
	}
	if len(w.signals("system.sdwan_address_overlap_resolved")) != 0 {
		t.Error("the overlap is told to be resolved while nobody took the range")
	}
}
