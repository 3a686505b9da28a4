package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"powernode/schema"
	"powernode/store"
)

// secondsPerInstance is what a plan reckons with for one machine that fetches, places and starts a version.
const secondsPerInstance = 60

// RollingPlan is whom it would concern to make a version of a module current.
type RollingPlan struct {
	Module       store.Module
	Target       store.ModuleVersion
	Affected     []store.InstanceID // of the template's nodes
	AlsoAffected []store.InstanceID // other carriers, which follow the same pointer
	Clusters     []PlannedCluster   // members, which keep their cluster's version
	Seconds      int
	Note         string
}

// PlannedCluster is a cluster whose members a plan leaves as they are.
type PlannedCluster struct {
	ClusterID   store.ClusterID
	Name        string
	Version     string
	InstanceIDs []store.InstanceID
}

// PlanRolling says whom a new current version would concern. It changes nothing.
func (s *Service) PlanRolling(ctx context.Context, v *store.View, acct store.AccountID, template store.TemplateID, module store.ModuleID,
	target store.ModuleVersionID) (RollingPlan, error) {
	p := RollingPlan{Affected: []store.InstanceID{}, AlsoAffected: []store.InstanceID{}, Clusters: []PlannedCluster{}}
	if _, err := TemplateByID(ctx, v, acct, template); err != nil {
		return p, err
	}
	var err error
	if p.Module, err = ModuleByID(ctx, v, acct, module); err != nil {
		return p, err
	}
	if p.Target, err = VersionByID(ctx, v, acct, target); err != nil {
		return p, err
	}
	if p.Target.ModuleID != p.Module.ID {
		return p, schema.InvalidArgument("/target_version_id", string(target), "target_version_id names a version of another module than %s", p.Module.Name)
	}
	carriers, err := carriersOf(ctx, v, p.Module)
	if err != nil {
		return p, err
	}
	for _, i := range carriers {
		if err := s.place(ctx, v, &p, i, template); err != nil {
			return p, err
		}
	}
	slices.SortFunc(p.Clusters, func(a, b PlannedCluster) int { return strings.Compare(a.Name, b.Name) })
	p.Seconds = secondsPerInstance * (len(p.Affected) + len(p.AlsoAffected))
	p.Note, err = s.note(ctx, v, p)
	return p, err
}

// place puts a carrier where the plan tells it.
func (s *Service) place(ctx context.Context, v *store.View, p *RollingPlan, i store.Instance, template store.TemplateID) error {
	if IsK3s(p.Module) {
		id, err := s.clusterOf(ctx, v, i, p.Module)
		if err != nil {
			return err
		}
		if id != "" {
			return p.placeMember(ctx, v, i, id)
		}
	}
	n, err := NodeByID(ctx, v, i.AccountID, i.NodeID)
	switch {
	case err != nil:
		return err
	case n.TemplateID == template:
		p.Affected = append(p.Affected, i.ID)
	default:
		p.AlsoAffected = append(p.AlsoAffected, i.ID)
	}
	return nil
}

func (p *RollingPlan) placeMember(ctx context.Context, v *store.View, i store.Instance, id store.ClusterID) error {
	at := slices.IndexFunc(p.Clusters, func(c PlannedCluster) bool { return c.ClusterID == id })
	if at < 0 {
		c, err := store.ClusterByID(ctx, v, i.AccountID, id)
		if err != nil {
			return err
		}
		version, err := store.ModuleVersionByID(ctx, v, i.AccountID, c.VersionID)
		if err != nil {
			return err
		}
		at = len(p.Clusters)
		p.Clusters = append(p.Clusters, PlannedCluster{ClusterID: c.ID, Name: c.Name, Version: version.Version})
	}
	p.Clusters[at].InstanceIDs = append(p.Clusters[at].InstanceIDs, i.ID)
	return nil
}

// note says what the plan can't do, and what stands in its way.
func (s *Service) note(ctx context.Context, v *store.View, p RollingPlan) (string, error) {
	parts := []string{"The current version is one pointer: it moves for all of these instances at once. The time is an estimate for one after the other."}
	if len(p.Clusters) > 0 {
		parts = append(parts, "Clusters keep the version they have; an upgrade of a cluster is an operation of its own.")
	}
	if !p.Target.Servable() {
		parts = append(parts, fmt.Sprintf("Version %s is served to no machine before a person has released it.", p.Target.Version))
	}
	err := s.checkPointer(ctx, v, p.Module, p.Target)
	if schema.CodeOf(err) == schema.PreconditionFailed {
		return strings.Join(append(parts, "As it stands it would be refused: "+err.Error()+"."), " "), nil
	}
	return strings.Join(parts, " "), err
}
