package network

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"powernode/platform/signal"
	"powernode/sdwan"
	"powernode/store"
)

// Results of a probe; one that was not answered is not measured.
const (
	ProbeReachable   = "reachable"
	ProbeUnreachable = "unreachable"
	ProbeError       = "error"
	NotMeasured      = "not_measured"
)

// Verdicts on the isolation of networks.
const (
	VerdictIsolated    = "isolated"
	VerdictLeak        = "leak"
	VerdictNotMeasured = NotMeasured
)

const (
	probeDeadline = 2 * time.Second
	// probesLeft is the age from which a run counts as given up: its caller was killed.
	probesLeft = 2 * time.Minute
	// fullProbes is how many negative probes are asked for at most as everybody to everything; above it one machine of
	// a network speaks for it, so that the work grows with pairs of networks and not of machines.
	fullProbes  = 2000
	apiPort     = 6443
	leakKind    = "system.sdwan_isolation_leak"
	protocolTCP = "tcp"
	protocolICM = "icmp6"
)

// Isolation is what one run measures, as it was asked for.
type Isolation struct {
	RunID    string
	Networks []store.Network
	// Asked is the revision of each machine's document before it was asked: what it must have applied.
	Asked map[store.InstanceID]int64
}

// scene is the rows that a verification rests on.
type scene struct {
	networks []store.Network // by id
	peers    map[store.NetworkID][]store.Peer
	vips     map[store.NetworkID][]store.VirtualIP
	of       map[store.InstanceID]map[store.NetworkID]bool // memberships
	sections map[store.PeerID]sdwan.Network
}

// CheckIsolation refuses networks that are not there.
func (s *Service) CheckIsolation(ctx context.Context, v *store.View, acct store.AccountID, ids []store.NetworkID) error {
	for _, id := range ids {
		if _, err := s.Find(ctx, v, acct, id); err != nil {
			return err
		}
	}
	return nil
}

// networksFor are the networks to verify: the named ones, or all of the account that are on machines.
func (s *Service) networksFor(ctx context.Context, v *store.View, acct store.AccountID, ids []store.NetworkID) ([]store.Network, error) {
	all, err := store.Networks(ctx, v, acct)
	if err != nil {
		return nil, err
	}
	chosen := slices.DeleteFunc(all, func(n store.Network) bool {
		return n.Status == StatusArchived || len(ids) > 0 && !slices.Contains(ids, n.ID)
	})
	slices.SortFunc(chosen, func(a, b store.Network) int { return cmp.Compare(a.ID, b.ID) })
	return chosen, nil
}

func (s *Service) scene(ctx context.Context, v *store.View, acct store.AccountID, ids []store.NetworkID) (scene, error) {
	networks, err := s.networksFor(ctx, v, acct, ids)
	sc := scene{networks: networks, peers: map[store.NetworkID][]store.Peer{}, vips: map[store.NetworkID][]store.VirtualIP{},
		of: map[store.InstanceID]map[store.NetworkID]bool{}, sections: map[store.PeerID]sdwan.Network{}}
	if err != nil {
		return sc, err
	}
	for _, n := range networks {
		peers, err := store.PeersByNetwork(ctx, v, acct, n.ID)
		if err != nil {
			return sc, err
		}
		slices.SortFunc(peers, func(a, b store.Peer) int { return cmp.Compare(a.ID, b.ID) })
		sc.peers[n.ID] = peers
		if sc.vips[n.ID], err = store.VirtualIPsByNetwork(ctx, v, acct, n.ID); err != nil {
			return sc, err
		}
		for _, p := range peers {
			if sc.of[p.InstanceID] == nil {
				sc.of[p.InstanceID] = map[store.NetworkID]bool{}
			}
			sc.of[p.InstanceID][n.ID] = true
		}
	}
	return sc, nil
}

// AskIsolation asks agents for the probes of one run: positive inside every network, negative from each to the others.
func (s *Service) AskIsolation(ctx context.Context, tx *store.Tx, acct store.AccountID, ids []store.NetworkID) (Isolation, error) {
	run := Isolation{RunID: tx.NewID(), Asked: map[store.InstanceID]int64{}}
	if err := store.EndProbes(ctx, tx, acct, "", tx.Now().Add(-probesLeft)); err != nil {
		return run, fmt.Errorf("end probes that were left: %w", err)
	}
	sc, err := s.scene(ctx, &tx.View, acct, ids)
	if err != nil {
		return run, err
	}
	run.Networks = sc.networks
	for _, id := range sortedIDs(sc.of) {
		if run.Asked[id], _, err = store.DocumentHead(ctx, &tx.View, id); err != nil {
			return run, err
		}
	}
	if err := s.readSections(ctx, &tx.View, acct, &sc); err != nil {
		return run, err
	}
	probes := append(sc.positive(), sc.negative()...)
	for _, p := range probes {
		p.ID, p.AccountID, p.RunID, p.DeadlineMS = store.ProbeID(tx.NewID()), acct, run.RunID, int(probeDeadline.Milliseconds())
		if err := store.InsertProbe(ctx, tx, p); err != nil {
			return run, fmt.Errorf("ask for a probe: %w", err)
		}
		tx.TouchInstance(p.InstanceID)
	}
	return run, nil
}

// readSections compiles the networks, to know whom a peer reaches inside.
func (s *Service) readSections(ctx context.Context, v *store.View, acct store.AccountID, sc *scene) error {
	for _, n := range sc.networks {
		in, err := s.Intent(ctx, v, acct, n.ID)
		if err != nil {
			return err
		}
		sections, err := sdwan.Compile(in)
		if err != nil {
			return fmt.Errorf("compile network %s: %w", n.Name, err)
		}
		for _, section := range sections {
			sc.sections[store.PeerID(section.PeerID)] = section
		}
	}
	return nil
}

// positive has each peer speak to the next one that its document reaches. ICMPv6 passes every rule, so silence means
// that nothing was proven.
func (sc scene) positive() []store.Probe {
	var out []store.Probe
	for _, n := range sc.networks {
		peers := sc.peers[n.ID]
		for i, p := range peers {
			for step := 1; step < len(peers); step++ {
				other := peers[(i+step)%len(peers)]
				if !sc.reaches(p, other) {
					continue
				}
				out = append(out, probe(p, other.Address.Addr, protocolICM, 0))
				break
			}
		}
	}
	return out
}

func (sc scene) reaches(p, other store.Peer) bool {
	for _, peer := range sc.sections[p.ID].Peers {
		if slices.ContainsFunc(peer.AllowedIPs, func(a netip.Prefix) bool { return a.Contains(other.Address.Addr) }) {
			return true
		}
	}
	return false
}

// negative has the peers of each network speak to the addresses of every other one that their machine is not in.
func (sc scene) negative() []store.Probe {
	var out []store.Probe
	each := func(everybody bool) {
		out = out[:0]
		for _, from := range sc.networks {
			for _, to := range sc.networks {
				if from.ID != to.ID {
					out = append(out, sc.across(from, to, everybody)...)
				}
			}
		}
	}
	if each(true); len(out) > fullProbes {
		each(false)
	}
	return out
}

func (sc scene) across(from, to store.Network, everybody bool) []store.Probe {
	var out []store.Probe
	for _, p := range sc.peers[from.ID] {
		if sc.of[p.InstanceID][to.ID] {
			continue
		}
		peers, vips := sc.peers[to.ID], sc.vips[to.ID]
		if !everybody {
			peers, vips = peers[:min(1, len(peers))], vips[:min(1, len(vips))]
		}
		for _, other := range peers {
			out = append(out, probe(p, other.Address.Addr, protocolICM, 0))
		}
		for _, ip := range vips {
			if ip.Holder() != "" {
				out = append(out, probe(p, ip.Address.Addr, protocolICM, 0), probe(p, ip.Address.Addr, protocolTCP, apiPort))
			}
		}
		if !everybody && len(out) > 0 {
			return out
		}
	}
	return out
}

func probe(p store.Peer, target netip.Addr, protocol string, port int) store.Probe {
	return store.Probe{InstanceID: p.InstanceID, FromPeerID: p.ID, Source: p.Address, Target: store.Addr{Addr: target}, Protocol: protocol, Port: port}
}

// AwaitIsolation waits until every probe of a run is answered and every machine has applied what it was to be when the
// run began, or the context ends. What is not said by then is not measured.
func (s *Service) AwaitIsolation(ctx context.Context, db *store.DB, acct store.AccountID, run Isolation) error {
	for ctx.Err() == nil {
		answered, reported := db.Watch(store.TopicProbes(run.RunID)), db.Watch(store.TopicReports(acct))
		var done bool
		err := db.View(context.WithoutCancel(ctx), func(v *store.View) (err error) {
			done, err = said(ctx, v, acct, run)
			return err
		})
		if err != nil || done {
			return err
		}
		select {
		case <-answered:
		case <-reported:
		case <-ctx.Done():
		}
	}
	return nil
}

// said reports whether all agents have said what a run needs.
func said(ctx context.Context, v *store.View, acct store.AccountID, run Isolation) (bool, error) {
	probes, err := store.ProbesByRun(ctx, v, acct, run.RunID)
	if err != nil {
		return false, err
	}
	if slices.ContainsFunc(probes, func(p store.Probe) bool { return p.Result == "" }) {
		return false, nil
	}
	for id, asked := range run.Asked {
		report, err := store.InstanceReportOf(ctx, v, id)
		if none, err := absent(err); err != nil || none {
			return false, err
		}
		if _, behind := behindOf(report, asked); behind {
			return false, nil
		}
	}
	return true, nil
}

// behindOf is what of a machine's network has not applied a revision yet, or does not say; and whether there is such.
func behindOf(r store.InstanceReport, asked int64) (why string, behind bool) {
	for _, name := range []string{"wireguard", "firewall"} {
		i := slices.IndexFunc(r.Subsystems.V, func(p store.SubsystemState) bool { return p.Name == name })
		if i < 0 {
			return "did not report its " + name, true
		}
		if applied := r.Subsystems.V[i].AppliedRevision; applied < asked {
			return fmt.Sprintf("%s has applied revision %d of %d", name, applied, asked), true
		}
	}
	return "", false
}

// Pair is one direction between two networks, or of a network to itself.
type Pair struct {
	From, To                   store.NetworkID
	Expected, Computed, Probed string // reachable, unreachable, not_measured
}

// Leak is a way that nothing declares.
type Leak struct {
	From, To   store.NetworkID
	FromPeerID store.PeerID
	ToAddress  string
	Why        string
}

// Allowed is a declared way between two networks.
type Allowed struct {
	From, To store.NetworkID
	By       string // access_grant
	ID       string
}

// StaleAgent is an agent that did not say what was needed.
type StaleAgent struct {
	InstanceID store.InstanceID
	Why        string
}

// Judgement is what came of a run.
type Judgement struct {
	Verdict     string
	Networks    []store.Network
	Matrix      []Pair
	Leaks       []Leak
	Allowed     []Allowed
	Probes      []store.Probe
	StaleAgents []StaleAgent
}

// JudgeIsolation judges a run by the documents that agents applied, by what they probed and by the routes that their
// machines have. It ends the run, and tells of leaks that opened or closed.
func (s *Service) JudgeIsolation(ctx context.Context, tx *store.Tx, acct store.AccountID, run Isolation) (Judgement, error) {
	ids := make([]store.NetworkID, len(run.Networks))
	for i, n := range run.Networks {
		ids[i] = n.ID
	}
	j := judge{Judgement: Judgement{Leaks: []Leak{}, Allowed: []Allowed{}, StaleAgents: []StaleAgent{}}}
	var err error
	if len(ids) > 0 {
		if j.scene, err = s.scene(ctx, &tx.View, acct, ids); err != nil {
			return Judgement{}, err
		}
	}
	j.Networks = j.scene.networks
	if j.Probes, err = store.ProbesByRun(ctx, &tx.View, acct, run.RunID); err != nil {
		return Judgement{}, err
	}
	if err := j.readAgents(ctx, &tx.View, run); err != nil {
		return Judgement{}, err
	}
	if err := j.readGrants(ctx, &tx.View, acct); err != nil {
		return Judgement{}, err
	}
	j.judge()
	if err := j.tell(ctx, tx, acct); err != nil {
		return Judgement{}, err
	}
	return j.Judgement, store.EndProbes(ctx, tx, acct, run.RunID, tx.Now().Add(-probesLeft))
}

// judge collects a judgement.
type judge struct {
	Judgement
	scene  scene
	docs   []sdwan.Document
	routes map[store.InstanceID][]sdwan.HostRoute
	stale  map[store.InstanceID]string
}

// readAgents reads, of every machine in the networks, the document and the last report.
func (j *judge) readAgents(ctx context.Context, v *store.View, run Isolation) error {
	j.routes, j.stale = map[store.InstanceID][]sdwan.HostRoute{}, map[store.InstanceID]string{}
	silent := map[store.InstanceID]bool{}
	for _, p := range j.Probes {
		silent[p.InstanceID] = silent[p.InstanceID] || p.Result == ""
	}
	for _, id := range sortedIDs(j.scene.of) {
		stored, err := store.DocumentOf(ctx, v, id)
		none, err := absent(err)
		if err != nil {
			return err
		}
		if none {
			j.stale[id] = "has no document yet"
			continue
		}
		var d sdwan.Document
		if err := json.Unmarshal(stored.Body, &d); err != nil {
			return fmt.Errorf("read the document of instance %s: %w", id, err)
		}
		d.Instance.ID = string(id)
		j.docs = append(j.docs, d)
		if err := j.readReport(ctx, v, id, silent[id], run.Asked[id]); err != nil {
			return err
		}
	}
	return nil
}

func (j *judge) readReport(ctx context.Context, v *store.View, id store.InstanceID, silent bool, asked int64) error {
	report, err := store.InstanceReportOf(ctx, v, id)
	none, err := absent(err)
	if err != nil {
		return err
	}
	routes, measured, err := hostRoutes(report)
	if err != nil {
		return err
	}
	j.routes[id] = routes
	switch {
	case none:
		j.stale[id] = "has never reported"
	case silent:
		j.stale[id] = "did not answer its probes"
	case v.Now().Sub(report.ReceivedAt.Time) > heardOf:
		j.stale[id] = "is silent since " + report.ReceivedAt.String()
	case !measured:
		j.stale[id] = "did not read the machine's routes"
	default:
		for _, part := range report.Subsystems.V {
			if (part.Name == "wireguard" || part.Name == "firewall") && part.State != "ok" {
				j.stale[id] = part.Name + " is " + part.State
			}
		}
		if why, behind := behindOf(report, asked); behind {
			j.stale[id] = why
		}
	}
	return nil
}

// readGrants lists the people who hold grants in two of the networks: their own devices are in both.
func (j *judge) readGrants(ctx context.Context, v *store.View, acct store.AccountID) error {
	grants, err := store.ActiveAccessGrants(ctx, v, acct)
	if err != nil {
		return err
	}
	for _, a := range grants {
		for _, b := range grants {
			if a.UserID == b.UserID && a.NetworkID != b.NetworkID && j.has(a.NetworkID) && j.has(b.NetworkID) {
				j.Allowed = append(j.Allowed, Allowed{From: a.NetworkID, To: b.NetworkID, By: "access_grant", ID: string(a.ID)})
			}
		}
	}
	slices.SortFunc(j.Allowed, func(a, b Allowed) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.ID, b.ID))
	})
	return nil
}

func (j *judge) has(id store.NetworkID) bool {
	return slices.ContainsFunc(j.Networks, func(n store.Network) bool { return n.ID == id })
}

// judge fills matrix and leaks, and gives the verdict: one leak is a leak, anything that was not measured is not_measured.
func (j *judge) judge() {
	computed := map[[2]string]sdwan.Reach{}
	for _, r := range sdwan.Reachability(j.docs) {
		computed[[2]string{r.FromNetworkID, r.ToNetworkID}] = r
	}
	for _, from := range j.Networks {
		for _, to := range j.Networks {
			pair := Pair{From: from.ID, To: to.ID, Expected: ProbeUnreachable, Computed: ProbeUnreachable, Probed: j.probed(from, to)}
			if from.ID == to.ID && from.Status != StatusSuspended {
				pair.Expected = ProbeReachable
			}
			r, known := computed[[2]string{string(from.ID), string(to.ID)}]
			switch {
			case !known, j.anyStale(from.ID):
				pair.Computed = NotMeasured
			case r.Reachable:
				pair.Computed = ProbeReachable
			}
			if from.ID != to.ID {
				j.leaksByDocument(from, to, r)
				j.leaksByProbe(from, to)
				j.leaksByRoute(from, to)
			}
			j.Matrix = append(j.Matrix, pair)
		}
	}
	for _, id := range sortedIDs(j.stale) {
		j.StaleAgents = append(j.StaleAgents, StaleAgent{InstanceID: id, Why: j.stale[id]})
	}
	j.Verdict = j.verdict()
}

func (j *judge) verdict() string {
	if len(j.Leaks) > 0 {
		return VerdictLeak
	}
	if len(j.StaleAgents) > 0 {
		return VerdictNotMeasured
	}
	for _, p := range j.Probes {
		inside := j.networkOf(p.Target.Addr) == j.networkOf(p.Source.Addr)
		if p.Result == "" || p.Result == ProbeError || inside && p.Result != ProbeReachable {
			return VerdictNotMeasured
		}
	}
	return VerdictIsolated
}

func (j *judge) networkOf(a netip.Addr) store.NetworkID {
	for _, n := range j.Networks {
		if n.CIDR.Contains(a) {
			return n.ID
		}
	}
	return ""
}

func (j *judge) anyStale(id store.NetworkID) bool {
	return slices.ContainsFunc(j.scene.peers[id], func(p store.Peer) bool { return j.stale[p.InstanceID] != "" })
}

// between are the probes from one network's addresses to another's.
func (j *judge) between(from, to store.Network) []store.Probe {
	var out []store.Probe
	for _, p := range j.Probes {
		if from.CIDR.Contains(p.Source.Addr) && to.CIDR.Contains(p.Target.Addr) {
			out = append(out, p)
		}
	}
	return out
}

func (j *judge) probed(from, to store.Network) string {
	probes := j.between(from, to)
	said := map[string]bool{}
	for _, p := range probes {
		said[cmp.Or(p.Result, NotMeasured)] = true
	}
	switch {
	case from.ID != to.ID && said[ProbeReachable]:
		return ProbeReachable
	case len(probes) == 0, said[NotMeasured], said[ProbeError]:
		return NotMeasured
	case said[ProbeUnreachable]:
		return ProbeUnreachable
	}
	return ProbeReachable
}

func (j *judge) leaksByDocument(from, to store.Network, r sdwan.Reach) {
	for _, p := range r.Passages {
		j.Leaks = append(j.Leaks, Leak{From: from.ID, To: to.ID, FromPeerID: store.PeerID(p.PeerID), ToAddress: p.Prefix.String(), Why: "document: " + p.Why})
	}
}

func (j *judge) leaksByProbe(from, to store.Network) {
	for _, p := range j.between(from, to) {
		if p.Result != ProbeReachable {
			continue
		}
		how := p.Protocol
		if p.Port != 0 {
			how = fmt.Sprintf("%s %d", p.Protocol, p.Port)
		}
		j.Leaks = append(j.Leaks, Leak{From: from.ID, To: to.ID, FromPeerID: p.FromPeerID, ToAddress: p.Target.String(), Why: "probe: " + how + " was answered"})
	}
}

// leaksByRoute takes a machine's own route to the other network's prefix, also where a probe gets nothing through it.
func (j *judge) leaksByRoute(from, to store.Network) {
	for _, p := range j.scene.peers[from.ID] {
		if j.scene.of[p.InstanceID][to.ID] {
			continue
		}
		for _, r := range j.routes[p.InstanceID] {
			if sdwan.Overlaps(r.Prefix, to.CIDR.Prefix) {
				j.Leaks = append(j.Leaks, Leak{From: from.ID, To: to.ID, FromPeerID: p.ID, ToAddress: r.Prefix.String(),
					Why: fmt.Sprintf("host route: %s by %s (%s)", r.Prefix, r.Device, r.Source)})
			}
		}
	}
}

// tell opens the condition of every pair that leaks, and closes that of pairs that were measured without a leak.
func (j *judge) tell(ctx context.Context, tx *store.Tx, acct store.AccountID) error {
	for _, p := range j.Matrix {
		if p.From == p.To {
			continue
		}
		evidence := []string{}
		for _, l := range j.Leaks {
			if l.From == p.From && l.To == p.To {
				evidence = append(evidence, l.Why)
			}
		}
		subject := string(p.From) + ":" + string(p.To)
		about := signal.Subject{NetworkID: p.From}
		payload := store.Object{"from_network_id": string(p.From), "to_network_id": string(p.To), "evidence": evidence}
		var err error
		switch {
		case len(evidence) > 0:
			err = signal.Open(ctx, tx, acct, subject, signal.Event{Kind: leakKind, Subject: about, Payload: payload})
		case p.Computed != NotMeasured && p.Probed != NotMeasured:
			err = signal.Close(ctx, tx, acct, subject, leakKind, about, payload)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
