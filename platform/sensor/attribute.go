package sensor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"powernode/platform/fleet"
	"powernode/platform/signal"
	"powernode/store"
)

// Verdicts of an attribution.
const (
	Attributed   = "attributed"
	NoneFound    = "none_found"
	NobodySaidSo = "not_measured"
)

const (
	maxCauses   = 10
	maxEvidence = 5
	// readSignals bounds how many signals of a severity are looked through.
	readSignals = 2000
)

// Cause is something that may have brought an instance's failure about.
type Cause struct {
	Kind          string
	Score         float64 // 0..1
	Evidence      []Evidence
	CorrelationID string // of the latest of its signals
}

// Evidence is a signal that speaks for a cause; open: what it tells of has not ended.
type Evidence struct {
	Signal store.Signal
	Open   bool
}

// Attribution is what the signals around an instance say.
type Attribution struct {
	Causes  []Cause // the likeliest first
	Verdict string
}

// weights are how much a severity counts. What is low is no cause, but for changes that people made.
var weights = map[string]float64{signal.Critical: 1, signal.High: 0.8, signal.Medium: 0.5, signal.Low: 0.2}

// deliberate are the kinds of severity low that may be a cause: something was changed on purpose.
var deliberate = []string{"system.template_applied", "system.node_template_changed", "system.sdwan_peer_detached", "system.instance.cordoned",
	"system.instance.held", "system.k3s_node_removed", "system.k3s_node_moved", "system.k3s_node_drained"}

// Attribute ranks what may have made an instance fail: the signals about it, its node, its cluster, its networks and its
// modules in the time looked back on. Near and recent, severe and open count more. It says what goes together, not more.
func (s *Service) Attribute(ctx context.Context, v *store.View, acct store.AccountID, id store.InstanceID, back time.Duration) (Attribution, error) {
	i, err := fleet.InstanceByID(ctx, v, acct, id)
	if err != nil {
		return Attribution{}, err
	}
	around, err := surroundings(ctx, v, i)
	if err != nil {
		return Attribution{}, err
	}
	open := map[string]store.Condition{}
	conditions, err := store.Conditions(ctx, v, acct)
	if err != nil {
		return Attribution{}, fmt.Errorf("read open conditions: %w", err)
	}
	for _, c := range conditions {
		open[c.Fingerprint] = c
	}
	byKind := map[string]*Cause{}
	for _, severity := range []string{signal.Critical, signal.High, signal.Medium, signal.Low} {
		signals, err := store.SignalsSince(ctx, v, acct, severity, v.Now().Add(-back), readSignals)
		if err != nil {
			return Attribution{}, fmt.Errorf("read signals: %w", err)
		}
		for _, e := range signals {
			near := around.nearness(e)
			if near == 0 || !mayCause(e) {
				continue
			}
			c, isOpen := open[e.Fingerprint]
			isOpen = isOpen && c.Kind == e.Kind
			add(byKind, e, score(e, near, isOpen, v.Now(), back), isOpen)
		}
	}
	out := Attribution{Causes: ranked(byKind), Verdict: Attributed}
	if len(out.Causes) > 0 {
		return out, nil
	}
	out.Verdict = NoneFound
	report, err := store.InstanceReportOf(ctx, v, id)
	if err != nil && !errors.Is(err, store.ErrNoRow) {
		return out, err
	}
	if err != nil || v.Now().Sub(report.ReceivedAt.Time) > back {
		out.Verdict = NobodySaidSo // nobody was there who would have said
	}
	return out, nil
}

// mayCause leaves out what closes something, and what only tells of a call.
func mayCause(e store.Signal) bool {
	k := signal.Catalogue[e.Kind]
	switch {
	case strings.HasPrefix(e.Kind, "system.operation_"):
		return false
	case e.Severity == signal.Low:
		return slices.Contains(deliberate, e.Kind)
	}
	return k.Family == "" || k.Closes != ""
}

// around is what an instance stands in.
type around struct {
	instance store.Instance
	cluster  store.ClusterID
	networks map[store.NetworkID]bool
	modules  map[store.ModuleID]bool
}

func surroundings(ctx context.Context, v *store.View, i store.Instance) (around, error) {
	a := around{instance: i, networks: map[store.NetworkID]bool{}, modules: map[store.ModuleID]bool{}}
	member, err := store.ClusterNodeByInstance(ctx, v, i.AccountID, i.ID)
	if err != nil && !errors.Is(err, store.ErrNoRow) {
		return a, err
	}
	a.cluster = member.ClusterID
	peers, err := store.PeersByInstance(ctx, v, i.AccountID, i.ID)
	if err != nil {
		return a, err
	}
	for _, p := range peers {
		a.networks[p.NetworkID] = true
	}
	assigned, err := store.AssignmentsByNode(ctx, v, i.AccountID, i.NodeID)
	if err != nil {
		return a, err
	}
	for _, m := range assigned {
		a.modules[m.ModuleID] = true
	}
	return a, nil
}

// nearness is how close a signal's subject is to the instance; 0: it has nothing to do with it.
func (a around) nearness(e store.Signal) float64 {
	switch {
	case e.NodeInstanceID != "":
		if e.NodeInstanceID == a.instance.ID {
			return 1
		}
		if e.ClusterID != "" && e.ClusterID == a.cluster {
			return 0.5 // another member of its cluster
		}
		return 0
	case e.NodeID != "" && e.NodeID == a.instance.NodeID:
		return 0.9
	case e.ClusterID != "" && e.ClusterID == a.cluster:
		return 0.7
	case e.ModuleID != "" && a.modules[e.ModuleID]:
		return 0.7
	case e.NetworkID != "" && a.networks[e.NetworkID]:
		return 0.6
	}
	return 0
}

// score puts nearness, severity and age together; an open condition does not age.
func score(e store.Signal, near float64, open bool, now time.Time, back time.Duration) float64 {
	fresh := 1.0
	if !open {
		fresh = 1 - 0.5*float64(now.Sub(e.EmittedAt.Time))/float64(back)
	}
	return math.Round(near*weights[e.Severity]*fresh*1000) / 1000
}

// add counts a signal in. Signals come latest first of each severity.
func add(byKind map[string]*Cause, e store.Signal, value float64, open bool) {
	c := byKind[e.Kind]
	if c == nil {
		c = &Cause{Kind: e.Kind, CorrelationID: e.CorrelationID}
		byKind[e.Kind] = c
	}
	if len(c.Evidence) < maxEvidence {
		c.Evidence = append(c.Evidence, Evidence{e, open})
	}
	c.Score = max(c.Score, value)
}

func ranked(byKind map[string]*Cause) []Cause {
	out := []Cause{}
	for _, c := range byKind {
		out = append(out, *c)
	}
	slices.SortFunc(out, func(a, b Cause) int {
		if a.Score != b.Score {
			if a.Score > b.Score {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Kind, b.Kind)
	})
	return out[:min(len(out), maxCauses)]
}
