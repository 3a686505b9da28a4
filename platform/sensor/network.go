package sensor

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"powernode/platform/network"
	"powernode/platform/signal"
	"powernode/sdwan"
	"powernode/store"
)

const (
	kindPeerDrift = "system.sdwan_peer_drift"
	kindHub       = "system.sdwan_hub_unreachable"
)

func (s *Service) networkSensors() []Sensor {
	steps := func(medium, high, critical int64) []Threshold {
		return []Threshold{{Name: "medium_seconds", Default: medium, Minimum: 30, Maximum: week},
			{Name: "high_seconds", Default: high, Minimum: 30, Maximum: week, Above: "medium_seconds"},
			{Name: "critical_seconds", Default: critical, Minimum: 30, Maximum: week, Above: "high_seconds"}}
	}
	return []Sensor{
		{Name: VIPReachability, Kinds: []string{kindVIPUnreachable}, Every: 5 * time.Second, Look: lookVIPs, Thresholds: steps(300, 600, 1800)},
		{Name: "sdwan_peer_handshake", Kinds: []string{kindPeerDrift}, Every: 10 * time.Second, Look: lookPeers, Thresholds: steps(300, 900, 1800)},
		{Name: "sdwan_hub_reachability", Kinds: []string{kindHub}, Every: 10 * time.Second, Look: lookHubs,
			Thresholds: []Threshold{{Name: SilenceThreshold, Default: 600, Minimum: 30, Maximum: week}}},
		{Name: "sdwan_selectors", Kinds: []string{"system.sdwan_selector_empty"}, Every: 10 * time.Second, ByRows: true, Look: s.lookSelectors},
	}
}

// overlay is what the machines of one network say of each other, once it has listened.
type overlay struct {
	network store.Network
	peers   map[store.PeerID]store.Peer
	heard   map[store.PeerID]store.Heard
	now     time.Time
}

// listen reads what the machines say. It reads a row for each tunnel: it is for who needs it.
func (o *overlay) listen(ctx context.Context, v *store.View) (err error) {
	o.heard, err = store.HeardPeers(ctx, v, o.network.ID, o.now.Add(-heardFor))
	return err
}

// quiet says how long ago any machine that was heard of had its last handshake with a peer; not measured where none was.
// One that no machine ever shook hands with counts from when its row last changed, its key being known since.
func (o overlay) quiet(id store.PeerID) (age time.Duration, measured bool) {
	p, there := o.peers[id]
	h, said := o.heard[id]
	if !there || !said {
		return 0, false
	}
	if h.NewestAt == nil {
		return o.now.Sub(p.UpdatedAt.Time), true
	}
	return o.now.Sub(h.NewestAt.Time), true
}

// eachOverlay visits the networks of an account.
func eachOverlay(ctx context.Context, v *store.View, acct store.AccountID, visit func(o overlay) error) error {
	networks, err := store.Networks(ctx, v, acct)
	if err != nil {
		return err
	}
	for _, n := range networks {
		if n.Status == network.StatusArchived {
			continue
		}
		o := overlay{network: n, peers: map[store.PeerID]store.Peer{}, now: v.Now()}
		peers, err := store.PeersByNetwork(ctx, v, acct, n.ID)
		if err != nil {
			return err
		}
		for _, p := range peers {
			o.peers[p.ID] = p
		}
		if err := visit(o); err != nil {
			return err
		}
	}
	return nil
}

func (in Input) rise(age time.Duration) (string, bool) {
	return rising(age, step[time.Duration]{in.Values.duration("medium_seconds"), signal.Medium},
		step[time.Duration]{in.Values.duration("high_seconds"), signal.High},
		step[time.Duration]{in.Values.duration("critical_seconds"), signal.Critical})
}

// lookVIPs asks whether anybody reaches a virtual IP's holder. One that several peers hold is reachable by any of them.
func lookVIPs(ctx context.Context, v *store.View, in Input) ([]Observation, error) {
	var out []Observation
	err := eachOverlay(ctx, v, in.Account, func(o overlay) error {
		vips, err := store.VirtualIPsByNetwork(ctx, v, in.Account, o.network.ID)
		if err != nil {
			return err
		}
		vips = slices.DeleteFunc(vips, func(ip store.VirtualIP) bool { return !in.Wants(string(ip.ID)) })
		if len(vips) == 0 {
			return nil
		}
		if err := o.listen(ctx, v); err != nil {
			return err
		}
		for _, ip := range vips {
			out = append(out, in.vip(o, ip))
		}
		return nil
	})
	return out, err
}

func (in Input) vip(o overlay, ip store.VirtualIP) Observation {
	holder := ip.Holder()
	out := Observation{Kind: kindVIPUnreachable, Subject: string(ip.ID), Payload: store.Object{"virtual_ip_id": string(ip.ID), "holder_peer_id": string(holder)},
		About: signal.Subject{NetworkID: ip.NetworkID, ClusterID: ip.ClusterID, InstanceID: o.peers[holder].InstanceID}}
	holders := ip.HolderPeerIDs
	if !ip.Anycast && len(holders) > 1 {
		holders = holders[:1]
	}
	var nearest time.Duration
	all := len(holders) > 0
	for i, id := range holders {
		age, measured := o.quiet(id)
		if measured && age < in.Values.duration("medium_seconds") {
			out.State = Well
			return out
		}
		all = all && measured
		if i == 0 || age < nearest {
			nearest = age
		}
	}
	if all {
		out.State = Wrong
		out.Severity, _ = in.rise(nearest)
	}
	return out
}

// freshFor is how old the newest handshake of a peer in reach gets: a tunnel in use shakes hands every two minutes, and
// keepalives use it. One that is older is about to be lost: its tunnels pass the threshold one by one before the peer does.
const freshFor = 150 * time.Second

// reach is what the age of a peer's newest handshake says of it, for the conditions of its tunnels.
type reach struct {
	lost   bool // by all others: a condition of its own
	fading bool // not lost yet, and not in reach for certain
	asleep bool // its machine is stopped, or not up yet: nothing is expected of it
}

func (r reach) counts() bool { return !r.lost && !r.fading && !r.asleep }

// lookPeers asks for the age of handshakes. A peer that all others have lost is one condition; a tunnel between two peers
// that others still reach is one of its own, known by both ends. Of a stopped machine nothing is expected.
func lookPeers(ctx context.Context, v *store.View, in Input) ([]Observation, error) {
	agents, err := store.AgentStates(ctx, v, in.Account)
	if err != nil {
		return nil, err
	}
	stopped := map[store.InstanceID]bool{}
	for _, a := range agents {
		switch a.Status {
		case store.InstanceStopped, store.InstanceStopping, store.InstanceStarting:
			stopped[a.InstanceID] = true
		}
	}
	var out []Observation
	err = eachOverlay(ctx, v, in.Account, func(o overlay) error {
		if !in.wantsPeerOf(o) {
			return nil
		}
		if err := o.listen(ctx, v); err != nil {
			return err
		}
		reached := map[store.PeerID]reach{}
		for id, p := range o.peers {
			seen := Observation{Kind: kindPeerDrift, Subject: string(id), About: aboutMember(o, id)}
			if stopped[p.InstanceID] {
				reached[id], seen.State = reach{asleep: true}, Well
			} else if age, measured := o.quiet(id); measured {
				severity, drifted := in.rise(age)
				reached[id] = reach{lost: drifted, fading: age > freshFor}
				seen.State, seen.Severity = wrongIf(drifted), severity
				seen.Payload = store.Object{"peer_id": string(id), "remote_peer_id": nil, "last_handshake_at": o.heard[id].NewestAt}
			}
			out = append(out, seen)
		}
		pairs, err := in.tunnels(ctx, v, o, reached)
		out = append(out, pairs...)
		return err
	})
	return out, err
}

// wantsPeerOf says whether a subject to be looked at is a peer of the network, or a pair with one.
func (in Input) wantsPeerOf(o overlay) bool {
	if in.only == nil {
		return len(o.peers) > 0
	}
	for subject := range in.only {
		id, _, _ := strings.Cut(subject, ":")
		if _, member := o.peers[store.PeerID(id)]; member {
			return true
		}
	}
	return false
}

func aboutMember(o overlay, id store.PeerID) signal.Subject {
	return signal.Subject{NetworkID: o.network.ID, InstanceID: o.peers[id].InstanceID}
}

// tunnels are the drifted tunnels between peers that others reach, and those that were drifted before.
func (in Input) tunnels(ctx context.Context, v *store.View, o overlay, reached map[store.PeerID]reach) ([]Observation, error) {
	byInstance := map[store.InstanceID]store.PeerID{}
	for id, p := range o.peers {
		byInstance[p.InstanceID] = id
	}
	stale, err := store.StaleTunnels(ctx, v, o.network.ID, o.now.Add(-heardFor), o.now.Add(-in.Values.duration("medium_seconds")))
	if err != nil {
		return nil, err
	}
	found := map[string]Observation{}
	for _, t := range stale {
		from, to := byInstance[t.InstanceID], store.PeerID(t.RemotePeerID)
		if _, member := o.peers[to]; !member || from == "" || !reached[from].counts() || !reached[to].counts() {
			continue
		}
		last := latest(o.peers[from].UpdatedAt, o.peers[to].UpdatedAt)
		if t.LastHandshakeAt != nil {
			last = *t.LastHandshakeAt
		}
		severity, drifted := in.rise(o.now.Sub(last.Time))
		if !drifted {
			continue
		}
		found[pairOf(from, to)] = Observation{Kind: kindPeerDrift, Subject: pairOf(from, to), State: Wrong, Severity: severity,
			About:   aboutMember(o, from),
			Payload: store.Object{"peer_id": string(from), "remote_peer_id": string(to), "last_handshake_at": t.LastHandshakeAt}}
	}
	var out []Observation
	for _, seen := range found {
		out = append(out, seen)
	}
	for open := range in.Open {
		a, b, isPair := strings.Cut(open.Subject, ":")
		one, member := o.peers[store.PeerID(a)]
		if _, seen := found[open.Subject]; seen || !isPair || !member {
			continue
		}
		if _, member = o.peers[store.PeerID(b)]; !member {
			continue // gone
		}
		measured, err := measuredBetween(ctx, v, one, store.PeerID(b), o.now)
		if err != nil {
			return nil, err
		}
		seen := Observation{Kind: kindPeerDrift, Subject: open.Subject, About: aboutMember(o, one.ID),
			Payload: store.Object{"peer_id": a, "remote_peer_id": b, "last_handshake_at": nil}}
		here, there := reached[one.ID], reached[store.PeerID(b)]
		if here.asleep || there.asleep || (measured && here.counts() && there.counts()) {
			seen.State = Well
		}
		out = append(out, seen)
	}
	return out, nil
}

// measuredBetween says whether either end of a tunnel has been heard of lately.
func measuredBetween(ctx context.Context, v *store.View, p store.Peer, other store.PeerID, now time.Time) (bool, error) {
	rows, err := store.TunnelsOfPeer(ctx, v, p)
	if err != nil {
		return false, err
	}
	far, err := store.PeerByID(ctx, v, p.AccountID, other)
	if err != nil && !errors.Is(err, store.ErrNoRow) {
		return false, err
	}
	for _, t := range rows {
		ours := t.InstanceID == p.InstanceID && t.RemotePeerID == string(other)
		theirs := t.InstanceID == far.InstanceID && t.RemotePeerID == string(p.ID)
		if (ours || theirs) && now.Sub(t.SampledAt.Time) <= heardFor {
			return true, nil
		}
	}
	return false, nil
}

func pairOf(a, b store.PeerID) string { return string(min(a, b)) + ":" + string(max(a, b)) }

func latest(a, b store.Time) store.Time {
	if a.After(b.Time) {
		return a
	}
	return b
}

// lookHubs asks whether the networks that need a hub have one, and whether anybody reaches it.
func lookHubs(ctx context.Context, v *store.View, in Input) ([]Observation, error) {
	var out []Observation
	err := eachOverlay(ctx, v, in.Account, func(o overlay) error {
		if !in.Wants(string(o.network.ID)) && !in.wantsPeerOf(o) {
			return nil
		}
		seen, err := in.hubs(ctx, v, o)
		out = append(out, seen...)
		return err
	})
	return out, err
}

func (in Input) hubs(ctx context.Context, v *store.View, o overlay) ([]Observation, error) {
	payload := func(peer any) store.Object { return store.Object{"network_id": string(o.network.ID), "peer_id": peer} }
	none := Observation{Kind: kindHub, Subject: string(o.network.ID), State: Well, About: signal.Subject{NetworkID: o.network.ID}, Payload: payload(nil)}
	var ids []store.PeerID
	for id, p := range o.peers {
		if p.PubliclyReachable {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		if len(o.peers) > 1 && o.network.TopologyStrategy == "hub_and_spoke" {
			none.State, none.Severity = Wrong, signal.Critical
		}
		return []Observation{none}, nil
	}
	if err := o.listen(ctx, v); err != nil {
		return nil, err
	}
	out, reached := []Observation{none}, 0
	for _, id := range ids {
		hub := Observation{Kind: kindHub, Subject: string(id), About: aboutMember(o, id), Severity: signal.High, Payload: payload(string(id))}
		if age, measured := o.quiet(id); measured {
			hub.State = wrongIf(age >= in.Values.duration(SilenceThreshold))
		}
		if hub.State != Wrong {
			reached++
		}
		out = append(out, hub)
	}
	for i := range out[1:] {
		if reached == 0 {
			out[1+i].Severity = signal.Critical
		}
	}
	return out, nil
}

// lookSelectors asks whether each side of an enabled rule resolves to something in its network.
func (s *Service) lookSelectors(ctx context.Context, v *store.View, in Input) ([]Observation, error) {
	networks, err := store.Networks(ctx, v, in.Account)
	if err != nil {
		return nil, err
	}
	var out []Observation
	for _, n := range networks {
		rules, err := store.FirewallRulesByNetwork(ctx, v, in.Account, n.ID)
		if err != nil {
			return nil, err
		}
		wanted := func(r store.FirewallRule) bool { return in.Wants(string(r.ID)) }
		if n.Status == network.StatusArchived || !slices.ContainsFunc(rules, wanted) {
			continue
		}
		intent, err := s.Network.Intent(ctx, v, in.Account, n.ID)
		if err != nil {
			return nil, err
		}
		whole := sdwan.ResolveSelector(intent, nil)
		for _, r := range intent.Rules {
			if !r.Enabled {
				continue
			}
			empty := emptySide(intent, whole, r)
			out = append(out, Observation{Kind: "system.sdwan_selector_empty", Subject: r.ID, State: wrongIf(empty != ""),
				About: signal.Subject{NetworkID: n.ID}, Payload: store.Object{"firewall_rule_id": r.ID, "selector": empty}})
		}
	}
	return out, nil
}

// emptySide names the side of a rule that has no address of its network now; empty: both have.
func emptySide(in sdwan.Intent, whole []netip.Prefix, r sdwan.Rule) string {
	for _, side := range []struct {
		name     string
		selector *sdwan.Selector
	}{{"src_selector", r.Source}, {"dst_selector", r.Destination}} {
		if side.selector == nil || side.selector.All {
			continue
		}
		if !overlapping(whole, sdwan.ResolveSelector(in, side.selector)) {
			return side.name
		}
	}
	return ""
}

func overlapping(a, b []netip.Prefix) bool {
	for _, x := range a {
		for _, y := range b {
			if sdwan.Overlaps(x, y) {
				return true
			}
		}
	}
	return false
}
