package tools

import (
	"context"
	"errors"

	"powernode/platform/fleet"
	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
)

type setCurrentArgs struct {
	ModuleID        store.ModuleID        `json:"module_id"`
	ModuleVersionID store.ModuleVersionID `json:"module_version_id"`
}

type setCurrentResult struct {
	Module                moduleRow              `json:"module"`
	Version               versionObject          `json:"version"`
	PreviousVersionID     *store.ModuleVersionID `json:"previous_version_id"`
	AffectedInstanceCount int                    `json:"affected_instance_count"`
	Written
}

func setCurrentModuleVersion() *Definition {
	const category = "system.module_version_set_current"
	return define("system_set_current_module_version", handler[setCurrentArgs, setCurrentResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a setCurrentArgs) error {
			if err := p.Fleet.CheckSetCurrent(ctx, v, c.AccountID, a.ModuleID, a.ModuleVersionID); err != nil {
				return err
			}
			return unreleased(ctx, p, v, c, category, a.ModuleVersionID)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a setCurrentArgs) (r setCurrentResult, err error) {
			moved, err := p.Fleet.SetCurrent(ctx, tx, c.AccountID, a.ModuleID, a.ModuleVersionID, releaser(tx, c))
			if err != nil {
				return r, err
			}
			r.Version, r.PreviousVersionID, r.AffectedInstanceCount = versionOf(moved.Module, moved.Version), orNull(moved.Previous), moved.Affected
			r.Module, err = moduleRowOf(ctx, &tx.View, moved.Module)
			return r, err
		},
	})
}

// unreleased is refuseUnreleased for a version of the account.
func unreleased(ctx context.Context, p *Platform, v *store.View, c Caller, category string, id store.ModuleVersionID) error {
	version, err := fleet.VersionByID(ctx, v, c.AccountID, id)
	if err != nil {
		return err
	}
	m, err := fleet.ModuleByID(ctx, v, c.AccountID, version.ModuleID)
	if err != nil {
		return err
	}
	return refuseUnreleased(ctx, p, v, c, category, m, version)
}

type promoteArgs struct {
	ModuleVersionID store.ModuleVersionID `json:"module_version_id"`
	TargetState     string                `json:"target_state"`
}

type promoteResult struct {
	Promoted bool          `json:"promoted"`
	Version  versionObject `json:"version"`
	Written
}

func promoteModuleVersion() *Definition {
	return define("system_promote_module_version", handler[promoteArgs, promoteResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a promoteArgs) error {
			if err := p.Fleet.CheckPromote(ctx, v, c.AccountID, a.ModuleVersionID, a.TargetState); err != nil || a.TargetState != "live" {
				return err
			}
			return unreleased(ctx, p, v, c, "release.promote", a.ModuleVersionID)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a promoteArgs) (r promoteResult, err error) {
			version, m, err := p.Fleet.Promote(ctx, tx, c.AccountID, a.ModuleVersionID, a.TargetState, releaser(tx, c))
			if err != nil {
				return r, err
			}
			r.Promoted, r.Version = true, versionOf(m, version)
			switch {
			case a.TargetState == "live" && m.CurrentVersionID != version.ID:
				r.Hint = &schema.Hint{Verb: "system_set_current_module_version", Text: "It may be served; the module's pointer still names another version."}
			case a.TargetState != "retired" && !version.Released():
				r.Warn("not_released", "the version is served to no machine before it is live")
			}
			return r, nil
		},
	})
}

type rollbackArgs struct {
	ModuleID  store.ModuleID        `json:"module_id"`
	VersionID store.ModuleVersionID `json:"version_id"`
	Reason    string                `json:"reason"`
}

type rollbackResult struct {
	Module            moduleRow              `json:"module"`
	Version           versionObject          `json:"version"`
	PreviousVersionID *store.ModuleVersionID `json:"previous_version_id"`
	Written
}

func rollbackModuleVersion() *Definition {
	return define("system_rollback_module_version", handler[rollbackArgs, rollbackResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a rollbackArgs) error {
			if err := p.Fleet.CheckRollback(ctx, v, c.AccountID, a.ModuleID, a.VersionID); err != nil {
				return err
			}
			_, version, err := p.Fleet.RollbackTarget(ctx, v, c.AccountID, a.ModuleID, a.VersionID)
			if err != nil {
				return err
			}
			return unreleased(ctx, p, v, c, "release.rollback", version.ID)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a rollbackArgs) (r rollbackResult, err error) {
			moved, err := p.Fleet.Rollback(ctx, tx, c.AccountID, a.ModuleID, a.VersionID, a.Reason, releaser(tx, c))
			if err != nil {
				return r, err
			}
			r.Version, r.PreviousVersionID = versionOf(moved.Module, moved.Version), orNull(moved.Previous)
			r.Module, err = moduleRowOf(ctx, &tx.View, moved.Module)
			return r, err
		},
	})
}

type moduleDiffArgs struct {
	VersionAID store.ModuleVersionID `json:"version_a_id"`
	VersionBID store.ModuleVersionID `json:"version_b_id"`
}

type artifactChange struct {
	OS     string           `json:"os"`
	Arch   string           `json:"arch"`
	Change string           `json:"change"`
	From   *versionArtifact `json:"from"`
	To     *versionArtifact `json:"to"`
}

type manifestChange struct {
	Pointer string  `json:"pointer"`
	Change  string  `json:"change"`
	From    *string `json:"from"` // JSON text
	To      *string `json:"to"`
}

type moduleDiffResult struct {
	Unchanged       bool             `json:"unchanged"`
	ArtifactChanges []artifactChange `json:"artifact_changes"`
	ManifestChanges []manifestChange `json:"manifest_changes"`
}

func moduleDiff() *Definition {
	return define("system_module_diff", handler[moduleDiffArgs, moduleDiffResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a moduleDiffArgs) (moduleDiffResult, error) {
			artifacts, manifest, err := p.Fleet.VersionDiff(ctx, v, c.AccountID, a.VersionAID, a.VersionBID)
			return moduleDiffResult{Unchanged: len(artifacts)+len(manifest) == 0, ArtifactChanges: mapped(artifacts, artifactChangeOf),
				ManifestChanges: mapped(manifest, func(m fleet.ManifestChange) manifestChange {
					return manifestChange{Pointer: m.Pointer, Change: m.Change, From: orNull(m.From), To: orNull(m.To)}
				})}, err
		},
	})
}

func artifactChangeOf(c fleet.ArtifactChange) artifactChange {
	tell := func(a *store.VersionArtifact) *versionArtifact {
		if a == nil {
			return nil
		}
		out := versionArtifactOf(*a)
		return &out
	}
	return artifactChange{OS: c.OS, Arch: c.Arch, Change: c.Change, From: tell(c.From), To: tell(c.To)}
}

type validateManifestArgs struct {
	ModuleID     store.ModuleID `json:"module_id"`
	ManifestYAML string         `json:"manifest_yaml"`
}

type manifestFault struct {
	Pointer string `json:"pointer"`
	Text    string `json:"text"`
}

type validateManifestResult struct {
	Valid            bool            `json:"valid"`
	ValidationErrors []manifestFault `json:"validation_errors"`
}

func validateModuleManifest() *Definition {
	return define("system_validate_module_manifest", handler[validateManifestArgs, validateManifestResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a validateManifestArgs) (r validateManifestResult, err error) {
			m, err := fleet.ModuleByID(ctx, v, c.AccountID, a.ModuleID)
			if err != nil {
				return r, err
			}
			faults, err := manifestFaults(ctx, v, m, a.ManifestYAML)
			r.Valid = len(faults) == 0
			r.ValidationErrors = faults
			return r, err
		},
	})
}

// manifestFaults are the faults of a manifest's text: that it can't be read, or the rules that it breaks.
func manifestFaults(ctx context.Context, v *store.View, m store.Module, text string) ([]manifestFault, error) {
	manifest, err := fleet.ManifestFromYAML(text)
	var refusal *schema.Error
	if errors.As(err, &refusal) {
		return []manifestFault{{"", refusal.Message}}, nil
	}
	if err != nil {
		return nil, err
	}
	faults, err := fleet.ManifestFaults(m, manifest)
	if err == nil && len(faults) == 0 {
		var fault *sdwan.ManifestFault
		if fault, err = fleet.DeclarationFault(ctx, v, m, manifest); fault != nil {
			faults = append(faults, *fault)
		}
	}
	return mapped(faults, func(f sdwan.ManifestFault) manifestFault { return manifestFault{f.Pointer, f.Text} }), err
}

type planRollingArgs struct {
	TemplateID             store.TemplateID      `json:"template_id"`
	ModuleID               store.ModuleID        `json:"module_id"`
	TargetVersionID        store.ModuleVersionID `json:"target_version_id"`
	MaxConsecutiveFailures int                   `json:"max_consecutive_failures"`
}

type plannedCluster struct {
	ClusterID   store.ClusterID    `json:"cluster_id"`
	Name        string             `json:"name"`
	Version     string             `json:"version"`
	InstanceIDs []store.InstanceID `json:"instance_ids"`
}

type planRollingResult struct {
	TotalInstances          int                `json:"total_instances"`
	AffectedInstanceIDs     []store.InstanceID `json:"affected_instance_ids"`
	AlsoAffectedInstanceIDs []store.InstanceID `json:"also_affected_instance_ids"`
	Clusters                []plannedCluster   `json:"clusters"`
	TargetVersion           versionObject      `json:"target_version"`
	EstimatedTotalSeconds   int                `json:"estimated_total_seconds"`
	MaxConsecutiveFailures  int                `json:"max_consecutive_failures"`
	Executed                bool               `json:"executed"`
	Note                    string             `json:"note"`
	Hint                    *schema.Hint       `json:"hint"`
}

func planRollingModuleUpgrade() *Definition {
	return define("system_plan_rolling_module_upgrade", handler[planRollingArgs, planRollingResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a planRollingArgs) (r planRollingResult, err error) {
			plan, err := p.Fleet.PlanRolling(ctx, v, c.AccountID, a.TemplateID, a.ModuleID, a.TargetVersionID)
			if err != nil {
				return r, err
			}
			r = planRollingResult{TotalInstances: len(plan.Affected) + len(plan.AlsoAffected), AffectedInstanceIDs: plan.Affected,
				AlsoAffectedInstanceIDs: plan.AlsoAffected, TargetVersion: versionOf(plan.Module, plan.Target), EstimatedTotalSeconds: plan.Seconds,
				MaxConsecutiveFailures: a.MaxConsecutiveFailures, Note: plan.Note, Hint: p.upgradeHint(plan.Module)}
			r.Clusters = mapped(plan.Clusters, func(c fleet.PlannedCluster) plannedCluster { return plannedCluster(c) })
			return r, nil
		},
	})
}

// upgradeHint names the verb that carries a plan out: a cluster's upgrade for K3s where there is one, else the pointer.
func (p *Platform) upgradeHint(m store.Module) *schema.Hint {
	const upgrade = "kubernetes_start_upgrade"
	if _, there := p.Lookup(upgrade); there && fleet.IsK3s(m) {
		return &schema.Hint{Verb: upgrade, Text: "Upgrades a cluster, node by node (batch_size)."}
	}
	return &schema.Hint{Verb: "system_set_current_module_version", Text: "Moves the module's pointer, for all instances at once."}
}
