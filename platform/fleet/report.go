package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"powernode/platform/signal"
	"powernode/sdwan"
	"powernode/store"
)

// heavyweightKB is the memory from which an x86 machine counts as heavyweight.
const heavyweightKB = 4 << 20

// maxReported bounds texts that come from machines.
const maxReported = 512

// Ingest takes an agent's report in. Facts and subsystems are telemetry and raise no revision; a document changes only by
// a key, an endpoint, a pod CIDR or a finished task.
func (s *Service) Ingest(ctx context.Context, tx *store.Tx, instance store.Instance, r sdwan.Report) error {
	if !instance.Live() {
		return s.IngestDeparted(ctx, tx, instance.ID, r)
	}
	tx.Act(store.Actor{Kind: "node_agent", ID: string(instance.ID), Verb: "report", CorrelationID: tx.NewID()})
	// First what refuses a report as a whole: nothing of it is written then.
	if err := s.Network.Ingest(ctx, tx, instance, r); err != nil {
		return fmt.Errorf("ingest networks: %w", err)
	}
	before, err := store.InstanceReportOf(ctx, &tx.View, instance.ID)
	first := errors.Is(err, store.ErrNoRow)
	if err != nil && !first {
		return err
	}
	if err := store.PutInstanceReport(ctx, tx, s.telemetry(tx, instance.ID, before, r)); err != nil {
		return err
	}
	if instance, err = s.ingestStatus(ctx, tx, instance, first, before.BootID, r); err != nil {
		return err
	}
	if err := ingestSubsystems(ctx, tx, instance, before.Subsystems.V, r.Subsystems); err != nil {
		return err
	}
	for _, t := range r.Tasks {
		if err := ingestTask(ctx, tx, instance, t); err != nil {
			return err
		}
	}
	if err := s.Cluster.Ingest(ctx, tx, instance, r); err != nil {
		return fmt.Errorf("ingest k3s: %w", err)
	}
	return nil
}

// telemetry is a report's row. A section that is missing was not measured: its last measurement stays, with its time.
func (s *Service) telemetry(tx *store.Tx, id store.InstanceID, before store.InstanceReport, r sdwan.Report) store.InstanceReport {
	out := store.InstanceReport{InstanceID: id, BootID: printed(r.BootID), AgentVersion: printed(r.AgentVersion), ReceivedAt: store.At(tx.Now())}
	out.Facts.V = store.ReportedFacts{Architecture: printed(r.Architecture), UptimeSeconds: r.UptimeSeconds, Load: r.Load,
		MemoryFreeKB: r.MemoryFreeKB, MemoryTotalKB: r.MemoryTotalKB, Capabilities: mustJSON(r.Capabilities),
		MachineID: printed(r.MachineID), KernelBootID: printed(r.KernelBootID), HeardBy: s.KernelBootID}
	out.Subsystems.V, out.Modules.V = before.Subsystems.V, before.Modules.V
	if r.Subsystems != nil || out.Subsystems.V == nil {
		out.Subsystems.V = []store.SubsystemState{}
	}
	for _, sub := range r.Subsystems {
		observed := store.At(sub.ObservedAt)
		if sub.ObservedAt.IsZero() {
			observed = out.ReceivedAt
		}
		out.Subsystems.V = append(out.Subsystems.V, store.SubsystemState{Name: printed(sub.Name), AppliedRevision: sub.AppliedRevision,
			State: printed(sub.State), Message: printed(sub.Message), ObservedAt: observed})
	}
	if r.Modules != nil || out.Modules.V == nil {
		out.Modules.V = map[string]string{}
	}
	for id, digest := range r.Modules {
		out.Modules.V[printed(id)] = printed(digest)
	}
	out.HostRoutes.V = json.RawMessage("null")
	if r.HostRoutesRead {
		out.HostRoutes.V = mustJSON(append([]sdwan.HostRoute{}, r.HostRoutes...)) // none is measured too
	}
	out.Findings.V = mustJSON(r.Findings)
	return out
}

// ingestStatus lets a report set what the table of states allows, and what a machine alone can know.
func (s *Service) ingestStatus(ctx context.Context, tx *store.Tx, instance store.Instance, first bool, bootID string, r sdwan.Report) (store.Instance, error) {
	was := instance
	event := eventReported
	if !first && bootID != printed(r.BootID) {
		if _, ok := after(eventRebooted, instance.Status); ok {
			event = eventRebooted
		}
	}
	if next, ok := after(event, instance.Status); ok {
		instance.Status, instance.ErrorMessage = next, ""
	}
	if arch := architectureOf(r.Architecture); arch != "" && arch != instance.Architecture {
		instance.Architecture = arch
		tx.TouchInstance(instance.ID)
	}
	if instance.NetworkProfile == "" && r.MemoryTotalKB > 0 {
		instance.NetworkProfile = "lightweight"
		if instance.Architecture == "amd64" && r.MemoryTotalKB >= heavyweightKB {
			instance.NetworkProfile = "heavyweight"
		}
	}
	if instance.Status == was.Status && instance.Architecture == was.Architecture && instance.NetworkProfile == was.NetworkProfile {
		return instance, nil
	}
	instance, err := store.UpdateInstance(ctx, tx, instance)
	if err != nil || instance.Status == was.Status {
		return instance, err
	}
	seconds := math.Round(tx.Now().Sub(instance.CreatedAt.Time).Seconds()*1000) / 1000
	return instance, signal.Emit(ctx, tx, instance.AccountID, signal.Event{Kind: "system.instance_running", Subject: about(instance),
		Payload: store.Object{"boot_seconds": seconds}})
}

// ingestSubsystems tells when a subsystem began to fail, and when it was well again.
func ingestSubsystems(ctx context.Context, tx *store.Tx, instance store.Instance, before []store.SubsystemState, now []sdwan.SubsystemReport) error {
	was := map[string]string{}
	for _, sub := range before {
		was[sub.Name] = sub.State
	}
	for _, sub := range now {
		name := printed(sub.Name)
		if sub.State == was[name] {
			continue
		}
		subject := string(instance.ID) + ":" + name
		var err error
		switch sub.State {
		case "error":
			desired, _, headErr := store.DocumentHead(ctx, &tx.View, instance.ID)
			if headErr != nil {
				return headErr
			}
			err = signal.Open(ctx, tx, instance.AccountID, subject, signal.Event{Kind: "system.agent_subsystem_failed", Subject: about(instance),
				Payload: store.Object{"subsystem": name, "message": printed(sub.Message), "desired_revision": desired,
					"applied_revision": sub.AppliedRevision}})
		case "ok":
			err = signal.Close(ctx, tx, instance.AccountID, subject, "system.agent_subsystem_failed", about(instance),
				store.Object{"subsystem": name})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ingestTask takes a task's progress in. A task that is over, or another instance's, is not moved.
func ingestTask(ctx context.Context, tx *store.Tx, instance store.Instance, r sdwan.TaskReport) error {
	t, err := store.TaskByID(ctx, &tx.View, instance.AccountID, store.TaskID(r.ID))
	if errors.Is(err, store.ErrNoRow) || (err == nil && (t.OperableID != string(instance.ID) || !t.Open() || t.ByController())) {
		return nil
	}
	if err != nil {
		return err
	}
	next := map[string]string{"running": store.TaskRunning, "complete": store.TaskComplete, "failed": store.TaskFailed}[r.State]
	progress := int64(min(max(r.Progress, 0), 100))
	if next == "" || (next == t.Status && printed(r.Step) == t.Step && progress == t.Progress) {
		return nil
	}
	t.Status, t.Step, t.Progress = next, printed(r.Step), progress
	t.Events.V = append(t.Events.V, store.TaskEvent{At: store.At(tx.Now()), Type: next, Message: printed(r.Message), Data: resultOf(r.Result)})
	if !t.Open() {
		at := store.At(tx.Now())
		t.CompletedAt = &at
		tx.TouchInstance(instance.ID)
	}
	if next == store.TaskComplete {
		t.Progress = 100
	}
	if next == store.TaskFailed {
		t.ErrorMessage = printed(r.Message)
	}
	if t, err = store.UpdateTask(ctx, tx, t); err != nil || next != store.TaskFailed {
		return err
	}
	return signal.Emit(ctx, tx, instance.AccountID, signal.Event{Kind: "system.task_failed", Subject: about(instance),
		Payload: store.Object{"task_id": t.ID, "command": t.Command, "step": t.Step, "error": t.ErrorMessage}})
}

// resultOf is a task's result as an agent sent it: an object of bounded size, or nothing.
func resultOf(raw json.RawMessage) json.RawMessage {
	var object store.Object
	if len(raw) > 16<<10 || json.Unmarshal(raw, &object) != nil || object == nil {
		return json.RawMessage("null")
	}
	return raw
}

// printed is a text from a machine as the store keeps it: without control characters, and not long.
func printed(s string) string {
	out := make([]rune, 0, min(len(s), maxReported))
	for _, r := range s {
		if len(out) == maxReported {
			break
		}
		if r < 0x20 || (r >= 0x7f && r < 0xa0) {
			r = ' '
		}
		out = append(out, r)
	}
	return string(out)
}
