package sensor

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"powernode/platform/fleet"
	"powernode/platform/signal"
	"powernode/sdwan"
	"powernode/store"
)

const (
	day  = 24 * 60 * 60
	week = 7 * day
	year = 365 * day
)

// Names of sensors that others ask for.
const (
	InstanceLiveness   = "instance_liveness"
	VIPReachability    = "sdwan_vip_reachability"
	TemplateDrift      = "template_drift"
	SilenceThreshold   = "threshold_seconds" // of InstanceLiveness
	kindTemplateDrift  = "system.template_closure_drift"
	kindVIPUnreachable = "system.sdwan_vip_unreachable"
)

func (s *Service) agentSensors() []Sensor {
	return []Sensor{
		{Name: InstanceLiveness, Kinds: []string{"system.instance_silent"}, Every: 2 * time.Second, Look: lookSilent,
			Thresholds: []Threshold{{Name: SilenceThreshold, Default: 180, Minimum: 30, Maximum: day},
				{Name: "critical_seconds", Default: 1800, Minimum: 60, Maximum: week, Above: SilenceThreshold}}},
		{Name: "agent_revision", Kinds: []string{"system.agent_behind"}, Every: 5 * time.Second, Look: lookBehind,
			Thresholds: []Threshold{{Name: "medium_seconds", Default: 60, Minimum: 5, Maximum: day},
				{Name: "high_seconds", Default: 600, Minimum: 5, Maximum: week, Above: "medium_seconds"}}},
		{Name: "module_drift", Kinds: []string{"system.module_drift"}, Every: 10 * time.Second, Look: s.lookModules,
			Thresholds: []Threshold{{Name: "grace_seconds", Default: 120, Minimum: 1, Maximum: day},
				{Name: "high_count", Default: 3, Minimum: 1, Maximum: 1000},
				{Name: "critical_count", Default: 5, Minimum: 1, Maximum: 1000, Above: "high_count"}}},
		{Name: "instance_state", Kinds: []string{kindStateDrifted}, Every: 10 * time.Second, Look: s.lookStates,
			Thresholds: []Threshold{{Name: "grace_seconds", Default: 60, Minimum: 1, Maximum: day}}},
		{Name: "host_findings", Kinds: []string{"system.host_finding"}, Every: 5 * time.Second, Look: lookFindings,
			Owns: func(subject string) bool { return strings.Contains(subject, ":") }}, // a duplicate key's are the network's
		{Name: "k3s_settings", Kinds: []string{"system.k3s_setting_drift"}, Every: 5 * time.Second, Look: lookSettings},
		{Name: "sdwan_apply", Kinds: []string{"system.sdwan_apply_failed"}, Every: 5 * time.Second, Look: lookApplied},
		{Name: "sdwan_apply_seen", Kinds: []string{"system.sdwan_apply_not_measured"}, Every: 10 * time.Second, Look: lookApplySeen,
			Thresholds: []Threshold{{Name: SilenceThreshold, Default: 600, Minimum: 30, Maximum: week}}},
	}
}

func aboutAgent(a store.AgentState) signal.Subject {
	return signal.Subject{NodeID: a.NodeID, InstanceID: a.InstanceID}
}

// heard says whether the agent's word is fresh enough to be a measurement.
func heard(a store.AgentState, now time.Time) bool {
	return a.ReceivedAt != nil && now.Sub(a.ReceivedAt.Time) <= heardFor
}

// lookSilent compares the last heartbeat of instances that should run with the threshold. It deletes nothing.
func lookSilent(ctx context.Context, v *store.View, in Input) ([]Observation, error) {
	agents, err := store.AgentStates(ctx, v, in.Account)
	if err != nil {
		return nil, err
	}
	threshold := in.Values.duration(SilenceThreshold)
	var out []Observation
	for _, a := range agents {
		o := Observation{Kind: "system.instance_silent", Subject: string(a.InstanceID), About: aboutAgent(a),
			Payload: store.Object{"last_heartbeat_at": a.ReceivedAt, "threshold_seconds": in.Values[SilenceThreshold]}}
		switch a.Status {
		case store.InstanceRunning, store.InstanceRebooting: // a reboot begins with a machine that reports
			last := a.CreatedAt
			if a.ReceivedAt != nil {
				last = *a.ReceivedAt
			}
			severity, silent := rising(in.unheard(v.Now(), last.Time), step[time.Duration]{threshold, signal.Medium},
				step[time.Duration]{in.Values.duration("critical_seconds"), signal.Critical})
			o.State, o.Severity = wrongIf(silent), severity
			if !silent && v.Now().Sub(last.Time) >= threshold {
				o.State = NotMeasured // the platform itself was away
			}
		case store.InstanceStopped, store.InstanceStopping:
			o.State = Well // nothing is expected of it
		}
		out = append(out, o)
	}
	return out, nil
}

// lookBehind compares the revision of an instance's document with what its agent has applied. How long it has been behind
// counts from when it was first seen so: a document that changes again and again does not hide it.
func lookBehind(ctx context.Context, v *store.View, in Input) ([]Observation, error) {
	agents, err := store.AgentStates(ctx, v, in.Account)
	if err != nil {
		return nil, err
	}
	var out []Observation
	for _, a := range agents {
		o := Observation{Kind: "system.agent_behind", Subject: string(a.InstanceID), About: aboutAgent(a)}
		states, err := subsystemsOf(a)
		if err != nil {
			return nil, err
		}
		if !heard(a, v.Now()) || a.CompiledAt == nil || len(states) == 0 {
			out = append(out, o)
			continue
		}
		applied := states[0].AppliedRevision
		for _, state := range states {
			applied = min(applied, state.AppliedRevision)
		}
		o.Payload = store.Object{"desired_revision": a.Desired, "applied_revision": applied}
		if applied >= a.Desired {
			o.State = Well
			out = append(out, o)
			continue
		}
		lag := in.lasted(v.Now(), o.Subject, a.CompiledAt.Time)
		severity, behind := rising(lag, step[time.Duration]{in.Values.duration("medium_seconds") + time.Millisecond, signal.Medium},
			step[time.Duration]{in.Values.duration("high_seconds") + time.Millisecond, signal.High})
		if behind {
			o.State, o.Severity = Wrong, severity
		}
		out = append(out, o)
	}
	return out, nil
}

func subsystemsOf(a store.AgentState) ([]store.SubsystemState, error) {
	var states []store.SubsystemState
	if err := json.Unmarshal([]byte(a.Subsystems), &states); err != nil {
		return nil, fmt.Errorf("read the subsystems of instance %s: %w", a.InstanceID, err)
	}
	return states, nil
}

// carried is what a document of a hash carries.
type carried struct {
	hash    string
	modules map[store.ModuleID]string
}

// forgetCarried forgets the documents of an account's instances that have ended.
func (s *Service) forgetCarried(acct store.AccountID, agents []store.AgentState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	live := make(map[store.InstanceID]carried, len(agents))
	for _, a := range agents {
		if known, there := s.carry[acct][a.InstanceID]; there {
			live[a.InstanceID] = known
		}
	}
	s.carry[acct] = live
}

// wantedModules reads the modules of an instance's document, once a document.
func (s *Service) wantedModules(ctx context.Context, v *store.View, acct store.AccountID, a store.AgentState) (map[store.ModuleID]string, error) {
	s.mu.Lock()
	known, there := s.carry[acct][a.InstanceID]
	s.mu.Unlock()
	if there && known.hash == a.Hash {
		return known.modules, nil
	}
	modules, err := fleet.ModuleDigests(ctx, v, store.Instance{ID: a.InstanceID})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.carry[acct][a.InstanceID] = carried{a.Hash, modules}
	s.mu.Unlock()
	return modules, nil
}

// lookModules compares the digests that an agent reports with those of its document.
func (s *Service) lookModules(ctx context.Context, v *store.View, in Input) ([]Observation, error) {
	agents, err := store.AgentStates(ctx, v, in.Account)
	if err != nil {
		return nil, err
	}
	s.forgetCarried(in.Account, agents)
	var out []Observation
	for _, a := range agents {
		if !in.Wants(string(a.InstanceID)) {
			continue
		}
		o := Observation{Kind: "system.module_drift", Subject: string(a.InstanceID), About: aboutAgent(a)}
		if heard(a, v.Now()) && a.CompiledAt != nil {
			if err := s.modules(ctx, v, in, a, &o); err != nil {
				return nil, err
			}
		}
		out = append(out, o)
	}
	return out, nil
}

func (s *Service) modules(ctx context.Context, v *store.View, in Input, a store.AgentState, o *Observation) error {
	states, err := subsystemsOf(a)
	if err != nil {
		return err
	}
	var have map[string]string
	if err := json.Unmarshal([]byte(a.Modules), &have); err != nil {
		return fmt.Errorf("read the modules of instance %s: %w", a.InstanceID, err)
	}
	want, err := s.wantedModules(ctx, v, in.Account, a)
	if err != nil {
		return err
	}
	d := fleet.CompareModules(want, states, have)
	mismatched := slices.Sorted(maps.Keys(d.Mismatched))
	o.Payload = store.Object{"missing": d.Missing, "extra": d.Extra, "mismatched": append([]store.ModuleID{}, mismatched...)}
	count := int64(len(d.Missing) + len(d.Extra) + len(mismatched))
	switch {
	case len(d.NotMeasured) > 0 || have == nil:
	case count == 0:
		o.State = Well
	case in.lasted(v.Now(), o.Subject, a.CompiledAt.Time) >= in.Values.duration("grace_seconds"):
		o.State = Wrong
		o.Severity, _ = rising(count, step[int64]{1, signal.Medium}, step[int64]{in.Values["high_count"], signal.High},
			step[int64]{in.Values["critical_count"], signal.Critical})
	}
	return nil
}

// settingDrift is the finding of a K3s setting that must be equal on all servers; it has a kind of its own.
const settingDrift = "k3s_setting_drift"

// hostFindings are the findings that there are (contract 14.1): a machine makes no conditions of other names.
var hostFindings = []string{"mtu_blackhole", "clock_behind", "foreign_drop", "route_not_carried", "duplicate_identity", "unknown_to_store"}

// settingKey is what K3s' settings are called.
var settingKey = regexp.MustCompile(`^[a-z][a-z0-9-]{0,63}$`)

// maxFindings is how many findings of one machine are listened to.
const maxFindings = 32

// findingsOf are an agent's findings; not measured where it was not heard of, or could not say.
func findingsOf(a store.AgentState, now time.Time) (found []sdwan.Finding, measured bool, err error) {
	if a.Findings == "null" || !heard(a, now) {
		return nil, false, nil
	}
	if err := json.Unmarshal([]byte(a.Findings), &found); err != nil {
		return nil, false, fmt.Errorf("read the findings of instance %s: %w", a.InstanceID, err)
	}
	return found, true, nil
}

// lookFindings takes what agents find wrong on their hosts. Their texts are data: bounded, without control characters.
func lookFindings(ctx context.Context, v *store.View, in Input) ([]Observation, error) {
	return in.findings(ctx, v, "system.host_finding", func(f sdwan.Finding) (string, store.Object, bool) {
		return f.Finding, store.Object{"finding": f.Finding, "evidence": printed(f.Evidence)}, slices.Contains(hostFindings, f.Finding)
	})
}

// lookSettings takes the settings of K3s that agents find different from their cluster's row.
func lookSettings(ctx context.Context, v *store.View, in Input) ([]Observation, error) {
	nodes := map[store.InstanceID]store.ClusterNode{}
	members, err := membersOf(ctx, v, in.Account)
	if err != nil {
		return nil, err
	}
	for _, m := range members {
		nodes[m.InstanceID] = m
	}
	out, err := in.findings(ctx, v, "system.k3s_setting_drift", func(f sdwan.Finding) (string, store.Object, bool) {
		key, rest, _ := strings.Cut(printed(f.Evidence), ": desired ")
		desired, actual, _ := strings.Cut(rest, ", actual ")
		return key, store.Object{"key": key, "desired": desired, "actual": actual}, f.Finding == settingDrift && settingKey.MatchString(key)
	})
	for i := range out {
		n := nodes[out[i].About.InstanceID]
		out[i].About.ClusterID = n.ClusterID
		if out[i].Payload != nil {
			out[i].Payload["node"] = n.Name
		}
	}
	return out, err
}

// findings turns agents' findings into observations: what is found, what is found no more, and what nobody could say.
func (in Input) findings(ctx context.Context, v *store.View, kind string, take func(sdwan.Finding) (string, store.Object, bool)) ([]Observation, error) {
	agents, err := store.AgentStates(ctx, v, in.Account)
	if err != nil {
		return nil, err
	}
	var out []Observation
	unheard := map[string]bool{}
	for _, a := range agents {
		found, measured, err := findingsOf(a, v.Now())
		if err != nil {
			return nil, err
		}
		unheard[string(a.InstanceID)] = !measured
		for _, f := range found[:min(len(found), maxFindings)] {
			name, payload, ours := take(f)
			if ours {
				out = append(out, Observation{Kind: kind, Subject: string(a.InstanceID) + ":" + name, State: Wrong, About: aboutAgent(a), Payload: payload})
			}
		}
	}
	for open := range in.Open {
		if instance, _, _ := strings.Cut(open.Subject, ":"); unheard[instance] {
			out = append(out, Observation{Kind: kind, Subject: open.Subject})
		}
	}
	return out, nil
}

// overlayParts are the subsystems that make an instance's networks.
var overlayParts = []string{"wireguard", "firewall", "vip"}

// lookApplied takes what subsystems say of the document as it is now, for each network of their instance.
func lookApplied(ctx context.Context, v *store.View, in Input) ([]Observation, error) {
	var out []Observation
	err := eachMembership(ctx, v, in, func(a store.AgentState, p store.Peer, states []store.SubsystemState) {
		for _, name := range overlayParts {
			o := Observation{Kind: "system.sdwan_apply_failed", Subject: string(p.ID) + ":" + name, About: aboutPeer(a, p)}
			i := slices.IndexFunc(states, func(st store.SubsystemState) bool { return st.Name == name })
			if i >= 0 && heard(a, v.Now()) && a.CompiledAt != nil && !a.ReceivedAt.Before(a.CompiledAt.Time) {
				o.Payload = store.Object{"network_id": string(p.NetworkID), "subsystem": name, "message": states[i].Message}
				switch states[i].State {
				case "error":
					o.State = Wrong
				case "ok":
					o.State = Well
				}
			}
			out = append(out, o)
		}
	})
	return out, err
}

// lookApplySeen asks whether anybody has said what became of the document as it is now.
func lookApplySeen(ctx context.Context, v *store.View, in Input) ([]Observation, error) {
	var out []Observation
	err := eachMembership(ctx, v, in, func(a store.AgentState, p store.Peer, states []store.SubsystemState) {
		o := Observation{Kind: "system.sdwan_apply_not_measured", Subject: string(p.ID), About: aboutPeer(a, p),
			Payload: store.Object{"network_id": string(p.NetworkID), "last_report_at": a.ReceivedAt}}
		said := a.ReceivedAt != nil && a.CompiledAt != nil && !a.ReceivedAt.Before(a.CompiledAt.Time) &&
			slices.ContainsFunc(states, func(st store.SubsystemState) bool { return st.Name == "wireguard" && st.State != "not_measured" })
		switch {
		case a.Status == store.InstanceStopped || a.Status == store.InstanceStopping, said:
			o.State = Well
		case a.CompiledAt != nil && in.lasted(v.Now(), o.Subject, a.CompiledAt.Time) >= in.Values.duration(SilenceThreshold):
			o.State = Wrong
		}
		out = append(out, o)
	})
	return out, err
}

func aboutPeer(a store.AgentState, p store.Peer) signal.Subject {
	return signal.Subject{NodeID: a.NodeID, InstanceID: a.InstanceID, NetworkID: p.NetworkID}
}

// eachMembership visits every peer of the account with its instance's agent.
func eachMembership(ctx context.Context, v *store.View, in Input, visit func(a store.AgentState, p store.Peer, states []store.SubsystemState)) error {
	agents, err := store.AgentStates(ctx, v, in.Account)
	if err != nil {
		return err
	}
	peers, err := store.PeersByAccount(ctx, v, in.Account)
	if err != nil {
		return err
	}
	for _, a := range agents {
		if len(peers[a.InstanceID]) == 0 {
			continue
		}
		states, err := subsystemsOf(a)
		if err != nil {
			return err
		}
		for _, p := range peers[a.InstanceID] {
			visit(a, p, states)
		}
	}
	return nil
}

// maxPrinted bounds a text that came from a machine.
const maxPrinted = 512

// printed is a text from a machine as signals carry it.
func printed(s string) string {
	runes := []rune(strings.Map(func(r rune) rune {
		if r < 0x20 || (r >= 0x7f && r < 0xa0) {
			return ' '
		}
		return r
	}, s))
	return string(runes[:min(len(runes), maxPrinted)])
}
