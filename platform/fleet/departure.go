package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"powernode/platform/signal"
	"powernode/sdwan"
	"powernode/store"
)

// departureTime is how long the certificate of a machine that lives on holds, unless it is clean before. What it is good for is the
// clean-up alone (StandingEnded), and for that it is taken after its end too.
const departureTime = 24 * time.Hour

const cleanupKind = "system.instance_cleanup_pending"

// endIdentity ends an instance's certificates: at once where its machine ends. Where the machine lives on, its agent is told to
// leave, whenever it asks next: a departure stays behind until it has.
func (s *Service) endIdentity(ctx context.Context, tx *store.Tx, i store.Instance, at store.Time) error {
	stays, err := s.livesOn(ctx, &tx.View, i)
	if err != nil {
		return err
	}
	if !stays {
		return store.EndCertificates(ctx, tx, i.ID, "", at)
	}
	if err := store.EndCertificates(ctx, tx, i.ID, "", store.At(at.Add(departureTime))); err != nil {
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
	d := store.Departure{InstanceID: i.ID, AccountID: i.AccountID, NodeID: i.NodeID, Name: i.Name, DocumentRevision: revision, Document: body, Since: at}
	if err := store.InsertDeparture(ctx, tx, d); err != nil {
		return err
	}
	heard, err := lastHeard(ctx, &tx.View, i.ID)
	if err != nil {
		return err
	}
	severity := signal.Low
	if at.Sub(heard) > heardLately {
		severity = signal.Medium // nobody knows when it comes back
	}
	return openCleanup(ctx, tx, d, severity)
}

// openCleanup tells that a machine still has what the platform put on it.
func openCleanup(ctx context.Context, tx *store.Tx, d store.Departure, severity string) error {
	return signal.Open(ctx, tx, d.AccountID, string(d.InstanceID), signal.Event{Kind: cleanupKind, Severity: severity, Subject: departed(d),
		Payload: store.Object{"name": d.Name}})
}

// departed is what signals of a departure speak of.
func departed(d store.Departure) signal.Subject {
	return signal.Subject{NodeID: d.NodeID, InstanceID: d.InstanceID}
}

// livesOn says whether the machine of an ended instance is there still. One that never enrolled has nothing of ours.
func (s *Service) livesOn(ctx context.Context, v *store.View, i store.Instance) (bool, error) {
	p, err := store.ProviderByID(ctx, v, i.AccountID, i.ProviderID)
	if err != nil || !s.byHand(p.ProviderType) {
		return false, err
	}
	certificates, err := store.CertificatesByInstance(ctx, v, i.ID)
	return len(certificates) > 0, err
}

// Cleanup is how far a machine that lives on after its instance is with taking away what the platform put on it; nil where no
// machine lives on.
func Cleanup(ctx context.Context, v *store.View, i store.Instance) (*store.Departure, error) {
	d, err := store.DepartureOf(ctx, v, i.ID)
	if noRow(err) {
		return nil, nil
	}
	return &d, err
}

// Uncleaned warns of an ended instance whose machine still has what the platform put on it, or is nil.
func Uncleaned(ctx context.Context, v *store.View, i store.Instance) ([]Warning, error) {
	d, err := Cleanup(ctx, v, i)
	if err != nil || d == nil || d.CleanedAt != nil {
		return nil, err
	}
	return []Warning{{"machine_not_cleaned", "the machine of instance " + i.Name + " lives on and has not cleaned up yet: its agent does it when " +
		"it reaches the platform, at any time later; the signal system.instance_cleaned tells"}}, nil
}

// forgetInstance removes an ended instance's record. What its machine is told when it comes back stays.
func forgetInstance(ctx context.Context, tx *store.Tx, i store.Instance) error {
	d, err := Cleanup(ctx, &tx.View, i)
	if err != nil {
		return err
	}
	if d != nil && d.CleanedAt == nil {
		if err := openCleanup(ctx, tx, *d, signal.Medium); err != nil {
			return err
		}
	}
	return store.DeleteInstance(ctx, tx, i.AccountID, i.ID)
}

// LastDocument is what the machine of an instance that has ended is told: to leave.
func (s *Service) LastDocument(ctx context.Context, v *store.View, id store.InstanceID) (sdwan.Document, error) {
	var document sdwan.Document
	d, err := store.DepartureOf(ctx, v, id)
	if err != nil {
		return document, err
	}
	if err := json.Unmarshal(d.Document, &document); err != nil {
		return document, fmt.Errorf("read the last document of instance %s: %w", id, err)
	}
	document.Revision, document.Incarnation = d.DocumentRevision, s.DB.Incarnation()
	return document, nil
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

// IngestDeparted hears an agent whose instance has ended, and may be forgotten. Once it is clean, its identity ends.
func (s *Service) IngestDeparted(ctx context.Context, tx *store.Tx, id store.InstanceID, r sdwan.Report) error {
	d, err := store.DepartureOf(ctx, &tx.View, id)
	if noRow(err) || (err == nil && (d.CleanedAt != nil || !isClean(r, d.DocumentRevision))) {
		return nil
	}
	if err != nil {
		return err
	}
	tx.Act(store.Actor{Kind: "node_agent", ID: string(id), Verb: "report", CorrelationID: tx.NewID()})
	at := store.At(tx.Now())
	if err := store.FinishDeparture(ctx, tx, id, at); err != nil {
		return err
	}
	if err := store.EndCertificates(ctx, tx, id, "", at); err != nil {
		return err
	}
	if err := signal.Close(ctx, tx, d.AccountID, string(id), cleanupKind, departed(d), store.Object{"name": d.Name}); err != nil {
		return err
	}
	return audit(ctx, tx, d.AccountID, "updated", resourceInstance, string(id), store.Object{"cleaned_at": nil}, store.Object{"cleaned_at": at})
}

// isClean says whether every subsystem has done what the document asked for.
func isClean(r sdwan.Report, revision int64) bool {
	done := map[string]bool{}
	for _, sub := range r.Subsystems {
		done[sub.Name] = sub.State == "ok" && sub.AppliedRevision >= revision
	}
	return !slices.ContainsFunc(subsystems, func(name string) bool { return !done[name] })
}
