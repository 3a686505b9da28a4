package wireguard

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

const (
	// sessionLife is after how long WireGuard refuses a session's keys: a handshake older than that is no tunnel.
	sessionLife = 180 * time.Second
	// initiationBytes is what one handshake initiation adds to a peer's counter of sent bytes. Without a session
	// nothing else is sent, so the counter counts tries.
	initiationBytes = 148
	triesBeforeNext = 3
	// lookupEvery bounds how often a name is resolved; only a peer without a tunnel has it resolved at all.
	lookupEvery   = 30 * time.Second
	lookupTimeout = time.Second
)

// endpoints remembers, for each peer that has no tunnel, how much had been sent when its current endpoint was set.
type endpoints struct {
	sent  map[peerID]int64
	names map[string]resolved
	// choice: some peer without a tunnel has another endpoint to be tried.
	choice bool
}

type peerID struct {
	device string
	key    wgtypes.Key
}

type resolved struct {
	addresses []netip.Addr
	at        time.Time
}

func newEndpoints() *endpoints {
	return &endpoints{sent: map[peerID]int64{}, names: map[string]resolved{}}
}

// choose fills in which endpoints are to be set now. A peer that is new gets its first candidate; one with a live
// handshake, or that waits for traffic, keeps what it has; one whose handshake was tried in vain gets the next.
func (e *endpoints) choose(now time.Time, have machine, want *wanted) {
	kept := map[peerID]int64{}
	e.choice = false
	for i := range want.Devices {
		d := &want.Devices[i]
		dev := have.Devices[d.Name]
		for j := range d.Peers {
			w := &d.Peers[j]
			id := peerID{d.Name, w.Key}
			at := slices.IndexFunc(dev.Peers, func(p peer) bool { return p.Key == w.Key })
			if !(at >= 0 && live(now, dev.Peers[at])) && (w.Name != "" || len(w.Candidates) > 1) {
				e.choice = true
			}
			if at < 0 {
				w.Endpoint, kept[id] = first(e.candidates(*w)), 0
				continue
			}
			h := dev.Peers[at]
			if live(now, h) {
				continue
			}
			base, tracked := e.sent[id]
			if !tracked || base > h.TX {
				base = h.TX
			}
			w.Endpoint = nextEndpoint(h, e.candidates(*w), (h.TX-base)/initiationBytes)
			if w.Endpoint.IsValid() {
				base = h.TX
			}
			kept[id] = base
		}
	}
	e.sent = kept
}

func live(now time.Time, p peer) bool {
	return !p.Handshake.IsZero() && now.Sub(p.Handshake) < sessionLife
}

// nextEndpoint is pure; invalid leaves the endpoint alone. A peer that never had a handshake has learned nothing, so
// an endpoint that the document no longer names goes at once.
func nextEndpoint(have peer, candidates []netip.AddrPort, tries int64) netip.AddrPort {
	if len(candidates) == 0 {
		return netip.AddrPort{}
	}
	at := slices.Index(candidates, have.Endpoint)
	if at < 0 && (have.Handshake.IsZero() || tries >= triesBeforeNext) {
		return candidates[0]
	}
	if tries < triesBeforeNext {
		return netip.AddrPort{}
	}
	if next := candidates[(at+1)%len(candidates)]; next != have.Endpoint {
		return next
	}
	return netip.AddrPort{}
}

func first(in []netip.AddrPort) netip.AddrPort {
	if len(in) == 0 {
		return netip.AddrPort{}
	}
	return in[0]
}

func (e *endpoints) candidates(w wantedPeer) []netip.AddrPort {
	out := slices.Clone(w.Candidates)
	for _, a := range e.names[w.Name].addresses {
		if c := netip.AddrPortFrom(a, uint16(w.NamePort)); !slices.Contains(out, c) {
			out = append(out, c)
		}
	}
	return out
}

// unresolved lists names of peers without a tunnel that are due to be looked up.
func (e *endpoints) unresolved(now time.Time, have machine, want wanted) []string {
	var out []string
	for _, d := range want.Devices {
		for _, w := range d.Peers {
			if w.Name == "" || slices.Contains(out, w.Name) || now.Sub(e.names[w.Name].at) < lookupEvery {
				continue
			}
			dev := have.Devices[d.Name]
			if slices.ContainsFunc(dev.Peers, func(p peer) bool { return p.Key == w.Key && live(now, p) }) {
				continue
			}
			out = append(out, w.Name)
		}
	}
	return out
}

// lookup is how names are resolved; a failed one keeps what was known.
type lookup func(ctx context.Context, name string) ([]netip.Addr, error)

func systemLookup(ctx context.Context, name string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
}

// resolve looks names up and says whether anything new came out.
func (e *endpoints) resolve(ctx context.Context, now time.Time, names []string, look lookup) bool {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	news := false
	for _, name := range names {
		known := e.names[name].addresses
		found, err := look(ctx, name)
		if err == nil {
			found = sixFirst(found)
			news = news || !slices.Equal(found, known)
			known = found
		}
		e.names[name] = resolved{known, now}
	}
	return news
}

func sixFirst(in []netip.Addr) []netip.Addr {
	out := make([]netip.Addr, 0, len(in))
	for _, a := range in {
		out = append(out, a.Unmap())
	}
	slices.SortFunc(out, func(a, b netip.Addr) int {
		if a.Is4() != b.Is4() {
			if a.Is4() {
				return 1
			}
			return -1
		}
		return a.Compare(b)
	})
	return slices.Compact(out)
}
