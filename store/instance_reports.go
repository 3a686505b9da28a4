package store

import (
	"context"
	"encoding/json"
	"fmt"
)

// InstanceReport is an agent's last word on its machine: telemetry, overwritten by every report, without a revision.
type InstanceReport struct {
	InstanceID   InstanceID
	BootID       string
	AgentVersion string
	ReceivedAt   Time
	Facts        JSON[ReportedFacts]
	Subsystems   JSON[[]SubsystemState]
	Modules      JSON[map[string]string] // module id → digest
	HostRoutes   JSON[json.RawMessage]   // nil: not measured
	Findings     JSON[json.RawMessage]
}

// SubsystemState is a subsystem's own word on how far it has come.
type SubsystemState struct {
	Name            string `json:"name"`
	AppliedRevision int64  `json:"applied_revision"`
	State           string `json:"state"` // ok, error, not_measured
	Message         string `json:"message"`
	ObservedAt      Time   `json:"observed_at"`
}

// ReportedFacts are what an agent says of the machine itself.
type ReportedFacts struct {
	Architecture  string          `json:"architecture"`
	UptimeSeconds int64           `json:"uptime_seconds"`
	Load          float64         `json:"load"`
	MemoryFreeKB  int64           `json:"memory_free_kb"`
	MemoryTotalKB int64           `json:"memory_total_kb"`
	Capabilities  json.RawMessage `json:"capabilities"` // null: not measured
	MachineID     string          `json:"machine_id,omitempty"`
	KernelBootID  string          `json:"kernel_boot_id,omitempty"`
	HeardBy       string          `json:"heard_by,omitempty"` // kernel boot id of the platform's machine when the report came
}

const reportColumns = `instance_id, boot_id, agent_version, received_at, facts, subsystems, modules, host_routes, findings`

func scanInstanceReport(_ *View, s scanner) (InstanceReport, error) {
	var r InstanceReport
	err := s.Scan(&r.InstanceID, &r.BootID, &r.AgentVersion, &r.ReceivedAt, &r.Facts, &r.Subsystems, &r.Modules, &r.HostRoutes, &r.Findings)
	if err != nil {
		return r, fmt.Errorf("read instance report: %w", err)
	}
	return r, nil
}

// InstanceReportOf finds an instance's last report, or ErrNoRow.
func InstanceReportOf(ctx context.Context, v *View, id InstanceID) (InstanceReport, error) {
	return scanInstanceReport(v, v.queryRow(ctx, `SELECT `+reportColumns+` FROM instance_reports WHERE instance_id = ?`, id))
}

// InstanceReports finds the last reports of an account's instances, by instance.
func InstanceReports(ctx context.Context, v *View, acct AccountID) (map[InstanceID]InstanceReport, error) {
	rows, err := collect(v, ctx, scanInstanceReport, `SELECT `+reportColumns+` FROM instance_reports WHERE instance_id IN
		(SELECT id FROM instances WHERE account_id = ?)`, acct)
	if err != nil {
		return nil, err
	}
	byID := make(map[InstanceID]InstanceReport, len(rows))
	for _, r := range rows {
		byID[r.InstanceID] = r
	}
	return byID, nil
}

// PutInstanceReport overwrites an instance's last report.
func PutInstanceReport(ctx context.Context, tx *Tx, r InstanceReport) error {
	err := tx.exec(ctx, `INSERT INTO instance_reports (`+reportColumns+`) VALUES (?,?,?,?,?,?,?,?,?)
		ON CONFLICT (instance_id) DO UPDATE SET boot_id = excluded.boot_id, agent_version = excluded.agent_version,
		received_at = excluded.received_at, facts = excluded.facts, subsystems = excluded.subsystems, modules = excluded.modules,
		host_routes = excluded.host_routes, findings = excluded.findings`,
		r.InstanceID, r.BootID, r.AgentVersion, r.ReceivedAt, r.Facts, r.Subsystems, r.Modules, r.HostRoutes, r.Findings)
	if err != nil {
		return fmt.Errorf("write instance report: %w", err)
	}
	return nil
}
