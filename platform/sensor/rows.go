package sensor

import (
	"context"
	"maps"
	"slices"
	"time"

	"powernode/platform/signal"
	"powernode/store"
)

func (s *Service) rowSensors() []Sensor {
	return []Sensor{
		{Name: TemplateDrift, Kinds: []string{kindTemplateDrift}, Every: 5 * time.Second, ByRows: true, Look: s.lookTemplates},
		{Name: "certificate_expiry", Kinds: []string{"system.certificate_expiring"}, Every: 30 * time.Second, Look: lookCertificates,
			Thresholds: []Threshold{{Name: "high_seconds", Default: day, Minimum: 60, Maximum: year},
				{Name: "medium_seconds", Default: week, Minimum: 60, Maximum: year, Above: "high_seconds"}}},
		{Name: "task_backlog", Kinds: []string{"system.task_backlog_stuck"}, Every: 30 * time.Second, Look: lookTasks,
			Thresholds: []Threshold{{Name: "waiting_seconds", Default: 3 * day, Minimum: 60, Maximum: year},
				{Name: "high_seconds", Default: week, Minimum: 60, Maximum: year, Above: "waiting_seconds"},
				{Name: "critical_seconds", Default: 2 * week, Minimum: 60, Maximum: year, Above: "high_seconds"},
				{Name: "critical_count", Default: 20, Minimum: 1, Maximum: 100_000}}},
	}
}

// lookTemplates asks which nodes are not what their template says.
func (s *Service) lookTemplates(ctx context.Context, v *store.View, in Input) ([]Observation, error) {
	drifts, err := s.Fleet.TemplateDrifts(ctx, v, in.Account, func(id store.NodeID) bool { return in.Wants(string(id)) })
	if err != nil {
		return nil, err
	}
	out := make([]Observation, 0, len(drifts))
	for _, id := range slices.Sorted(maps.Keys(drifts)) {
		d := drifts[id]
		out = append(out, Observation{Kind: kindTemplateDrift, Subject: string(id), State: wrongIf(d.Any()), About: signal.Subject{NodeID: id},
			Payload: store.Object{"template_id": string(d.TemplateID), "missing": d.Missing, "changed": d.Changed}})
	}
	return out, nil
}

// lookCertificates asks how long the certificates in use are valid: the latest of each instance.
func lookCertificates(ctx context.Context, v *store.View, in Input) ([]Observation, error) {
	certificates, err := store.CertificatesInUse(ctx, v, in.Account)
	if err != nil {
		return nil, err
	}
	nodes := map[store.InstanceID]store.NodeID{}
	agents, err := store.AgentStates(ctx, v, in.Account)
	if err != nil {
		return nil, err
	}
	for _, a := range agents {
		nodes[a.InstanceID] = a.NodeID
	}
	var out []Observation
	for i, c := range certificates {
		if i+1 < len(certificates) && certificates[i+1].InstanceID == c.InstanceID {
			continue // a later one is there
		}
		left := c.NotAfter.Sub(v.Now())
		o := Observation{Kind: "system.certificate_expiring", Subject: string(c.InstanceID), State: Well,
			About:   signal.Subject{InstanceID: c.InstanceID, NodeID: nodes[c.InstanceID]},
			Payload: store.Object{"certificate_id": string(c.ID), "not_after": c.NotAfter}}
		switch {
		case left <= in.Values.duration("high_seconds"):
			o.State, o.Severity = Wrong, signal.High
		case left <= in.Values.duration("medium_seconds"):
			o.State, o.Severity = Wrong, signal.Medium
		}
		out = append(out, o)
	}
	return out, nil
}

// lookTasks asks for work that waits too long, over the account.
func lookTasks(ctx context.Context, v *store.View, in Input) ([]Observation, error) {
	o := Observation{Kind: "system.task_backlog_stuck", Subject: string(in.Account), State: Well}
	var oldest store.Task
	count := int64(0)
	for _, status := range []string{store.TaskPending, store.TaskRunning} {
		tasks, err := store.Tasks(ctx, v, in.Account, "", "", status)
		if err != nil {
			return nil, err
		}
		for _, t := range tasks {
			if v.Now().Sub(t.CreatedAt.Time) < in.Values.duration("waiting_seconds") {
				continue
			}
			count++
			if oldest.ID == "" || t.CreatedAt.Before(oldest.CreatedAt.Time) {
				oldest = t
			}
		}
	}
	o.Payload = store.Object{"count": count, "oldest_task_id": nil}
	if count > 0 {
		o.State, o.Severity = Wrong, signal.Medium
		o.Payload["oldest_task_id"] = string(oldest.ID)
		age := v.Now().Sub(oldest.CreatedAt.Time)
		o.Severity, _ = rising(age, step[time.Duration]{0, signal.Medium}, step[time.Duration]{in.Values.duration("high_seconds"), signal.High},
			step[time.Duration]{in.Values.duration("critical_seconds"), signal.Critical})
		if count >= in.Values["critical_count"] {
			o.Severity = signal.Critical
		}
	}
	return []Observation{o}, nil
}
