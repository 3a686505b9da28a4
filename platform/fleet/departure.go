package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"powernode/sdwan"
	"powernode/store"
)

// departureTime is how long a machine that lives on may take to clean up: so long its certificate holds.
const departureTime = 24 * time.Hour

// endIdentity ends an instance's certificates: at once where its machine ends, and where the machine lives on, when its agent
// has cleaned up. That agent is told to leave.
func (s *Service) endIdentity(ctx context.Context, tx *store.Tx, i store.Instance, at store.Time) error {
	stays, err := s.livesOn(ctx, &tx.View, i, at)
	if err != nil {
		return err
	}
	if !stays {
		return store.EndCertificates(ctx, tx, i.ID, "", at)
	}
	until := store.At(at.Add(departureTime))
	if err := store.EndCertificates(ctx, tx, i.ID, "", until); err != nil {
		return err
	}
	document, err := s.leavingDocument(ctx, &tx.View, i)
	if err != nil {
		return err
	}
	body, err := json.Marshal(document)
	if err != nil {
		return fmt.Errorf("encode the last document of instance %s: %w", i.ID, err)
	}
	if err := store.PutDocument(ctx, tx, store.StoredDocument{InstanceID: i.ID, Hash: hashOf(body), Body: body}); err != nil {
		return err
	}
	revision, err := tx.Revision(ctx)
	if err != nil {
		return err
	}
	return store.InsertDeparture(ctx, tx, store.Departure{InstanceID: i.ID, DocumentRevision: revision, EndsAt: until})
}

// livesOn says whether the machine of an ended instance is there still, with an agent that can be spoken to.
func (s *Service) livesOn(ctx context.Context, v *store.View, i store.Instance, at store.Time) (bool, error) {
	p, err := store.ProviderByID(ctx, v, i.AccountID, i.ProviderID)
	if err != nil || !s.byHand(p.ProviderType) {
		return false, err
	}
	certificates, err := store.CertificatesByInstance(ctx, v, i.ID)
	return slices.ContainsFunc(certificates, func(c store.Certificate) bool { return c.Valid(at) }), err
}

// leavingDocument asks an agent to take away all that it has made. K3s goes where the last document had it: what the machine
// had of it before us, and what others run there, is not ours to remove.
func (s *Service) leavingDocument(ctx context.Context, v *store.View, i store.Instance) (sdwan.Document, error) {
	last, err := s.Document(ctx, v, i)
	if err != nil && !noRow(err) {
		return last, err
	}
	d := sdwan.Document{Instance: sdwan.Instance{ID: string(i.ID), NodeID: string(i.NodeID), NodeName: last.Instance.NodeName, Name: i.Name, Leave: true},
		Networks: []sdwan.Network{}, PortMappings: []sdwan.PortMapping{}, Modules: []sdwan.Module{}, Tasks: []sdwan.Task{}, Probes: []sdwan.Probe{}}
	if d.Firewall, err = sdwan.HostFirewall(sdwan.Host{}); err != nil {
		return d, err
	}
	if was := last.K3s.Server; was != nil {
		d.K3s.Server = &sdwan.K3sServer{State: "absent", Runtime: "k3s_server", ClusterID: was.ClusterID,
			Bootstrap: sdwan.BootstrapConfig{TLSSAN: []string{}, NodeLabels: []string{}, NodeTaints: []string{}}}
	}
	if was := last.K3s.Agent; was != nil {
		d.K3s.Agent = &sdwan.K3sAgent{State: "absent", Runtime: "k3s_agent", TargetClusterID: was.TargetClusterID,
			Agent: sdwan.AgentConfig{NodeLabels: []string{}, NodeTaints: []string{}}}
	}
	return d, nil
}

// ingestDeparture hears an agent whose instance has ended. Once it is clean, its identity ends.
func (s *Service) ingestDeparture(ctx context.Context, tx *store.Tx, i store.Instance, r sdwan.Report) error {
	d, err := store.DepartureOf(ctx, &tx.View, i.ID)
	if noRow(err) || (err == nil && (d.CleanedAt != nil || !isClean(r, d.DocumentRevision))) {
		return nil
	}
	if err != nil {
		return err
	}
	tx.Act(store.Actor{Kind: "node_agent", ID: string(i.ID), Verb: "report", CorrelationID: tx.NewID()})
	at := store.At(tx.Now())
	if err := store.FinishDeparture(ctx, tx, i.ID, at); err != nil {
		return err
	}
	if err := store.EndCertificates(ctx, tx, i.ID, "", at); err != nil {
		return err
	}
	return audit(ctx, tx, i.AccountID, "updated", resourceInstance, string(i.ID), store.Object{"cleaned_at": nil}, store.Object{"cleaned_at": at})
}

// isClean says whether every subsystem has done what the document asked for.
func isClean(r sdwan.Report, revision int64) bool {
	done := map[string]bool{}
	for _, sub := range r.Subsystems {
		done[sub.Name] = sub.State == "ok" && sub.AppliedRevision >= revision
	}
	return !slices.ContainsFunc(subsystems, func(name string) bool { return !done[name] })
}
