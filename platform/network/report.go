package network

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"powernode/platform/signal"
	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
)

// maxEndpoints bounds what one machine may report about one network.
const maxEndpoints = 32

// Ingest takes what an agent reports about its networks: keys, tunnels, endpoints, pod ranges, and answers to probes.
// Only a key, an endpoint or a pod range that changed touches a network; counters compile nothing.
func (s *Service) Ingest(ctx context.Context, tx *store.Tx, instance store.Instance, r sdwan.Report) error {
	peers, err := store.PeersByInstance(ctx, &tx.View, instance.AccountID, instance.ID)
	if err != nil {
		return err
	}
	in := ingest{s: s, tx: tx, instance: instance, peers: map[store.NetworkID]*store.Peer{}}
	for i := range peers {
		in.peers[peers[i].NetworkID] = &peers[i]
	}
	for _, take := range []func(context.Context, sdwan.Report) error{in.keys, in.endpoints, in.pods, in.tunnels, in.probes} {
		if err := take(ctx, r); err != nil {
			return err
		}
	}
	tx.Wake(store.TopicReports(instance.AccountID))
	return s.settleVIPs(ctx, tx, peers, r)
}

// ingest is one report on its way into the store.
type ingest struct {
	s        *Service
	tx       *store.Tx
	instance store.Instance
	peers    map[store.NetworkID]*store.Peer
	left     *bool
}

// peer is the instance's membership of a network. A network that it is no peer of is refused, but for one that it left
// a short time ago: its agent may not know yet.
func (in *ingest) peer(ctx context.Context, section, network string) (*store.Peer, error) {
	if p, ok := in.peers[store.NetworkID(network)]; ok {
		return p, nil
	}
	if in.left == nil {
		left, err := store.LeftNetworks(ctx, &in.tx.View, in.instance.ID)
		if err != nil {
			return nil, err
		}
		in.left = &left
	}
	if *in.left {
		return nil, nil
	}
	return nil, schema.InvalidArgument("/"+section, network, "the instance is no peer of network %q", network)
}

func (in *ingest) keys(ctx context.Context, r sdwan.Report) error {
	for _, k := range r.Keys {
		p, err := in.peer(ctx, "keys", k.NetworkID)
		if err != nil {
			return err
		}
		if p == nil || k.Stage == "staged" || p.PublicKey == k.PublicKey {
			continue
		}
		if !validKey(k.PublicKey) {
			return schema.InvalidArgument("/keys", k.PublicKey, "public_key must be 44 characters of base64, 32 bytes")
		}
		if err := in.takeKey(ctx, p, k.PublicKey); err != nil {
			return err
		}
	}
	return nil
}

// takeKey records the key that the node made. One that another peer of the network has is not taken: both would be one
// peer to WireGuard, and no document of the network would compile.
func (in *ingest) takeKey(ctx context.Context, p *store.Peer, key string) error {
	owner, err := keyOwner(ctx, &in.tx.View, p.AccountID, p.NetworkID, key, string(p.ID))
	if err != nil {
		return err
	}
	about := signal.Subject{NodeID: in.instance.NodeID, InstanceID: in.instance.ID, NetworkID: p.NetworkID}
	if owner != "" {
		return signal.Open(ctx, in.tx, p.AccountID, string(p.ID), signal.Event{Kind: "system.host_finding", Subject: about,
			Payload: store.Object{"finding": "duplicate_identity", "evidence": "reports the public key of " + owner}})
	}
	err = signal.Close(ctx, in.tx, p.AccountID, string(p.ID), "system.host_finding", about, store.Object{"finding": "duplicate_identity"})
	if err != nil {
		return err
	}
	was := p.PublicKey
	p.PublicKey = key
	return in.change(ctx, p, store.Object{"public_key": was}, store.Object{"public_key": key})
}

// change writes a peer that an agent's report changed, and touches its network.
func (in *ingest) change(ctx context.Context, p *store.Peer, was, now store.Object) error {
	if err := store.UpdatePeer(ctx, in.tx, *p); err != nil {
		return fmt.Errorf("change peer %s: %w", p.ID, err)
	}
	_, err := in.tx.Audit(ctx, store.AuditEntry{AccountID: p.AccountID, Action: "updated", ResourceType: "Sdwan::Peer", ResourceID: string(p.ID), Old: was, New: now})
	if err != nil {
		return err
	}
	in.tx.TouchNetwork(p.NetworkID)
	return in.s.deviceFilesChanged(ctx, in.tx, p.AccountID, p.NetworkID)
}

func (in *ingest) endpoints(ctx context.Context, r sdwan.Report) error {
	if r.Endpoints == nil {
		return nil
	}
	said := map[store.PeerID][]store.PeerEndpoint{}
	for _, e := range r.Endpoints {
		p, err := in.peer(ctx, "endpoints", e.NetworkID)
		if err != nil {
			return err
		}
		if p == nil || !e.Address.IsValid() || e.Port < 1 || e.Port > 65535 || len(said[p.ID]) == maxEndpoints {
			continue
		}
		said[p.ID] = append(said[p.ID], store.PeerEndpoint{PeerID: p.ID, Address: store.Addr{Addr: e.Address.Unmap().WithZone("")}, Port: e.Port, Source: e.Source})
	}
	for _, network := range sortedIDs(in.peers) {
		p := in.peers[network]
		known, err := store.EndpointsByPeer(ctx, &in.tx.View, p.ID)
		if err != nil {
			return err
		}
		if sameEndpoints(known, said[p.ID]) {
			continue
		}
		if err := store.ReplaceEndpoints(ctx, in.tx, p.ID, said[p.ID]); err != nil {
			return err
		}
		in.tx.TouchNetwork(p.NetworkID)
		if err := in.s.deviceFilesChanged(ctx, in.tx, p.AccountID, p.NetworkID); err != nil {
			return err
		}
	}
	return nil
}

func sameEndpoints(a, b []store.PeerEndpoint) bool {
	spelt := func(list []store.PeerEndpoint) []string {
		out := make([]string, len(list))
		for i, e := range list {
			out[i] = fmt.Sprintf("%s %d %s", e.Address, e.Port, e.Source)
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	return slices.Equal(spelt(a), spelt(b))
}

// pods takes the ranges of the machine's Kubernetes node: on the network of its cluster, and only what lies in the
// cluster's own range.
func (in *ingest) pods(ctx context.Context, r sdwan.Report) error {
	if r.K3s == nil {
		return nil
	}
	for _, network := range sortedIDs(in.peers) {
		p := in.peers[network]
		if len(r.K3s.PodCIDRs) == 0 && len(p.PodCIDRs) == 0 {
			continue
		}
		said, err := in.podsOn(ctx, p, *r.K3s)
		if err != nil {
			return err
		}
		if slices.Equal(said, p.PodCIDRs) {
			continue
		}
		was := p.PodCIDRs
		p.PodCIDRs = said
		if err := in.change(ctx, p, store.Object{"pod_cidrs": was}, store.Object{"pod_cidrs": said}); err != nil {
			return err
		}
	}
	return nil
}

func (in *ingest) podsOn(ctx context.Context, p *store.Peer, k sdwan.K3sReport) ([]netip.Prefix, error) {
	out := []netip.Prefix{}
	own, err := in.podRange(ctx, p, k.ClusterID)
	if err != nil || !own.IsValid() {
		return out, err
	}
	for _, pod := range k.PodCIDRs {
		pod = pod.Masked()
		if pod.Bits() < own.Bits() || !own.Contains(pod.Addr()) {
			continue
		}
		free := slices.Contains(p.PodCIDRs, pod) // taken before, when it was free
		if !free {
			if free, err = in.podFree(ctx, p, pod); err != nil {
				return nil, err
			}
		}
		if free {
			out = append(out, pod)
		}
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int { return compareText(a.String(), b.String()) })
	return slices.Compact(out), nil
}

// podRange is the range of the cluster that the instance is a member of, where a peer is on the cluster's network. Who
// is no member has no pods there.
func (in *ingest) podRange(ctx context.Context, p *store.Peer, cluster string) (netip.Prefix, error) {
	n, err := store.ClusterNodeByInstance(ctx, &in.tx.View, p.AccountID, p.InstanceID)
	if none, err := absent(err); err != nil || none || string(n.ClusterID) != cluster {
		return netip.Prefix{}, err
	}
	c, err := store.ClusterByID(ctx, &in.tx.View, p.AccountID, n.ClusterID)
	if err != nil || c.NetworkID != p.NetworkID {
		return netip.Prefix{}, err
	}
	return c.PodCIDR.Prefix, nil
}

// podFree says whether no other peer of the network has the range: two owners of one address don't compile.
func (in *ingest) podFree(ctx context.Context, p *store.Peer, pod netip.Prefix) (bool, error) {
	peers, err := store.PeersByNetwork(ctx, &in.tx.View, p.AccountID, p.NetworkID)
	if err != nil {
		return false, err
	}
	for _, other := range peers {
		if other.ID == p.ID || !slices.ContainsFunc(other.PodCIDRs, func(o netip.Prefix) bool { return sdwan.Overlaps(o, pod) }) {
			continue
		}
		return false, signal.Open(ctx, in.tx, p.AccountID, pod.String(), signal.Event{Kind: "system.sdwan_address_overlap",
			Subject: signal.Subject{NetworkID: p.NetworkID, InstanceID: p.InstanceID},
			Payload: store.Object{"prefix": pod.String(), "reported_by": string(p.ID), "conflicts_with": string(other.ID)}})
	}
	return true, signal.Close(ctx, in.tx, p.AccountID, pod.String(), "system.sdwan_address_overlap",
		signal.Subject{NetworkID: p.NetworkID, InstanceID: p.InstanceID}, store.Object{"prefix": pod.String()})
}

func (in *ingest) tunnels(ctx context.Context, r sdwan.Report) error {
	if r.Tunnels == nil {
		return nil
	}
	tunnels := make([]store.Tunnel, 0, len(r.Tunnels))
	for _, t := range r.Tunnels {
		p, err := in.peer(ctx, "tunnels", t.NetworkID)
		if err != nil {
			return err
		}
		if p == nil {
			continue
		}
		row := store.Tunnel{NetworkID: p.NetworkID, RemotePeerID: t.RemotePeerID, RXBytes: t.RXBytes, TXBytes: t.TXBytes, Endpoint: t.Endpoint}
		if !t.LastHandshakeAt.IsZero() {
			at := store.At(byOurClock(t.LastHandshakeAt, r.SentAt, in.tx.Now()))
			row.LastHandshakeAt = &at
		}
		tunnels = append(tunnels, row)
	}
	return store.ReplaceTunnels(ctx, in.tx, in.instance.ID, tunnels)
}

// clockTolerance is how far a machine's clock may be from ours for its word to be taken as it is.
const clockTolerance = 5 * time.Second

// byOurClock is an instant of a machine's clock by ours, so that a clock that is wrong makes no peer live or dead: sent is
// when the report left, by the machine's clock; zero is not said. Nothing has happened after now.
func byOurClock(at, sent, now time.Time) time.Time {
	if ahead := sent.Sub(now); !sent.IsZero() && ahead.Abs() > clockTolerance {
		at = at.Add(-ahead)
	}
	if at.After(now) {
		return now
	}
	return at
}

// probes takes answers, and wakes who waits for them. What was not asked, or is answered already, is left.
func (in *ingest) probes(ctx context.Context, r sdwan.Report) error {
	for _, a := range r.Probes {
		if a.Result != ProbeReachable && a.Result != ProbeUnreachable && a.Result != ProbeError {
			return schema.InvalidArgument("/probes", a.Result, "result must be one of: reachable, unreachable, error (got %q)", a.Result)
		}
		at := store.At(a.MeasuredAt)
		answer := store.Probe{ID: store.ProbeID(a.ID), Result: a.Result, MeasuredAt: &at}
		if a.Result == ProbeReachable {
			answer.RTTMS = &a.RTTMS
		}
		run, err := store.AnswerProbe(ctx, in.tx, in.instance.ID, answer)
		if err != nil {
			return fmt.Errorf("record a probe: %w", err)
		}
		if run != "" {
			in.tx.Wake(store.TopicProbes(run))
		}
	}
	return nil
}
