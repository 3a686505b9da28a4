package main

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/rs/zerolog"

	"powernode/nodeapi"
	"powernode/platform/cluster"
	"powernode/platform/fleet"
	"powernode/platform/network"
	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
	"powernode/tools"
)

// retrySeconds is when an agent whose join has to wait asks again.
const retrySeconds = 1

// reportSeconds is how often an agent reports at least.
const reportSeconds = 30

// agentAPI binds the agents' API to the domain: it converts, opens transactions, and holds no rule.
type agentAPI struct {
	p       *tools.Platform
	reports *reports
	program *agentProgram
	log     zerolog.Logger
}

var _ nodeapi.Backend = (*agentAPI)(nil)

func (a *agentAPI) Authenticate(ctx context.Context, cert *x509.Certificate) (nodeapi.Identity, error) {
	var id nodeapi.Identity
	err := a.p.DB.View(ctx, func(v *store.View) error {
		who, err := a.p.Fleet.Authenticate(ctx, v, cert)
		id = nodeapi.Identity{InstanceID: string(who.InstanceID), CertificateID: string(who.CertificateID), Serial: who.Serial,
			Standing: standings[who.Standing]}
		return err
	})
	return id, wireError(err)
}

// standings are those of the domain in the agents' API.
var standings = map[fleet.Standing]nodeapi.Standing{fleet.StandingCurrent: nodeapi.StandingCurrent,
	fleet.StandingReplaced: nodeapi.StandingReplaced, fleet.StandingEnded: nodeapi.StandingEnded}

func (a *agentAPI) Enroll(ctx context.Context, in nodeapi.EnrollRequest) (nodeapi.EnrollAnswer, error) {
	var e fleet.Enrolled
	err := a.p.DB.Update(ctx, func(tx *store.Tx) error {
		var err error
		e, err = a.p.Fleet.Enroll(ctx, tx, fleet.EnrollInput{Token: store.Secret(in.Token), CSRPEM: in.CSRPEM, AgentVersion: in.AgentVersion,
			Hostname: in.Machine.Hostname, Architecture: in.Machine.Architecture, OS: in.Machine.OS, MachineID: in.Machine.MachineID})
		return err
	})
	return nodeapi.EnrollAnswer{InstanceID: string(e.InstanceID), NodeID: string(e.NodeID), CertificateID: string(e.CertificateID),
		CertPEM: e.CertPEM, CAChainPEM: e.CAPEM, NotAfter: e.NotAfter, RenewAfter: e.RenewAfter, PlatformURLs: a.p.Fleet.AgentURLs(e.Variety)}, wireError(err)
}

func (a *agentAPI) Refresh(ctx context.Context, id nodeapi.Identity, in nodeapi.RefreshRequest) (nodeapi.RefreshAnswer, error) {
	var e fleet.Enrolled
	err := a.update(ctx, id, func(tx *store.Tx, instance store.Instance) error {
		var err error
		if id.Standing == nodeapi.StandingReplaced {
			e, err = a.p.Fleet.RefreshAgain(ctx, &tx.View, instance, in.CSRPEM)
		} else {
			e, err = a.p.Fleet.Refresh(ctx, tx, instance, in.CSRPEM)
		}
		return err
	})
	return nodeapi.RefreshAnswer{CertificateID: string(e.CertificateID), CertPEM: e.CertPEM, CAChainPEM: e.CAPEM, NotAfter: e.NotAfter,
		RenewAfter: e.RenewAfter}, err
}

// Desired waits for a document above after. It watches first and reads then, so that nothing is missed in between.
func (a *agentAPI) Desired(ctx context.Context, id nodeapi.Identity, after int64, incarnation string, wait time.Duration) (*sdwan.Document, error) {
	if incarnation != a.p.DB.Incarnation() {
		after = 0
	}
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	for {
		changed := a.p.DB.Watch(store.TopicDocument(store.InstanceID(id.InstanceID)))
		document, err := a.document(ctx, id, after)
		if err != nil || document != nil {
			return document, err
		}
		select {
		case <-changed:
		case <-deadline.C:
			return nil, nil
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// document is the instance's document where it is above after, else nil.
func (a *agentAPI) document(ctx context.Context, id nodeapi.Identity, after int64) (*sdwan.Document, error) {
	if id.Standing == nodeapi.StandingEnded {
		return a.lastDocument(ctx, id, after)
	}
	var out *sdwan.Document
	err := a.view(ctx, id, func(v *store.View, instance store.Instance) error {
		revision, _, err := store.DocumentHead(ctx, v, instance.ID)
		if err != nil || revision == 0 || revision <= after {
			return err
		}
		document, err := a.p.Fleet.Document(ctx, v, instance)
		out = &document
		return err
	})
	return out, err
}

// lastDocument is what the machine of an instance that has ended is told, where it is above after; else nil.
func (a *agentAPI) lastDocument(ctx context.Context, id nodeapi.Identity, after int64) (*sdwan.Document, error) {
	var document sdwan.Document
	err := a.p.DB.View(ctx, func(v *store.View) error {
		var err error
		document, err = a.p.Fleet.LastDocument(ctx, v, store.InstanceID(id.InstanceID))
		return err
	})
	if err != nil || document.Revision <= after {
		return nil, wireError(err)
	}
	return &document, nil
}

func (a *agentAPI) Report(ctx context.Context, id nodeapi.Identity, in sdwan.Report) (nodeapi.ReportAnswer, error) {
	if err := a.reports.ingest(ctx, store.InstanceID(id.InstanceID), in); err != nil {
		return nodeapi.ReportAnswer{}, wireError(err)
	}
	next := reportSeconds
	if len(in.Probes) > 0 {
		next = 1
	}
	return nodeapi.ReportAnswer{Acknowledged: true, ServerTime: time.Now().UTC(), NextReportSeconds: next}, nil
}

func (a *agentAPI) Handshake(ctx context.Context, id nodeapi.Identity, in nodeapi.HandshakeRequest) (nodeapi.HandshakeAnswer, error) {
	role := cluster.RoleServer
	if in.Runtime == nodeapi.RuntimeK3sAgent {
		role = cluster.RoleAgent
	}
	var answer nodeapi.HandshakeAnswer
	var refusal *cluster.Refusal
	err := a.update(ctx, id, func(tx *store.Tx, instance store.Instance) error {
		tx.Act(store.Actor{Kind: "node_agent", ID: string(instance.ID), Verb: "handshake." + in.Phase, CorrelationID: tx.NewID()})
		var err error
		switch in.Phase {
		case nodeapi.PhaseJoinRequest:
			answer, refusal, err = a.join(ctx, tx, instance, role, in)
		case nodeapi.PhaseBootstrap:
			answer, refusal, err = a.bootstrap(ctx, tx, instance, in)
		case nodeapi.PhaseReady:
			answer, refusal, err = a.ready(ctx, tx, instance, role, in)
		case nodeapi.PhaseStopped:
			var member store.ClusterNodeID
			member, err = a.p.Cluster.Stopped(ctx, tx, instance, in.Reason)
			answer.Acknowledged, answer.NodeID = true, string(member)
		}
		return err
	})
	if err == nil && refusal != nil {
		err = refused(*refusal)
	}
	return answer, err
}

func (a *agentAPI) join(ctx context.Context, tx *store.Tx, instance store.Instance, role string, in nodeapi.HandshakeRequest) (nodeapi.HandshakeAnswer, *cluster.Refusal, error) {
	m, refusal, err := a.p.Cluster.JoinRequest(ctx, tx, instance, role, in.TargetClusterID)
	if err != nil || refusal != nil {
		return nodeapi.HandshakeAnswer{}, refusal, err
	}
	answer := nodeapi.HandshakeAnswer{Mode: m.Mode, ClusterID: string(m.Cluster.ID), APIEndpoint: m.Endpoint, ServerToken: m.ServerToken,
		AgentToken: m.AgentToken, TokenGeneration: m.TokenGeneration, Server: m.Server, Agent: m.Agent, Role: role}
	switch {
	case m.Server != nil:
		answer.NodeName, answer.NodeIP = m.Server.NodeName, m.Server.NodeIP.String()
	case m.Agent != nil:
		answer.NodeName, answer.NodeIP = m.Agent.NodeName, m.Agent.NodeIP.String()
	}
	if m.Mode == "join" {
		answer.ServerURL, answer.CAPEM = m.Endpoint, m.Cluster.CAPEM
	}
	return answer, nil, nil
}

func (a *agentAPI) bootstrap(ctx context.Context, tx *store.Tx, instance store.Instance, in nodeapi.HandshakeRequest) (nodeapi.HandshakeAnswer, *cluster.Refusal, error) {
	c, address, refusal, err := a.p.Cluster.Bootstrap(ctx, tx, instance, in.Kubeconfig, in.K8sVersion)
	return nodeapi.HandshakeAnswer{ClusterID: string(c.ID), ClusterStatus: c.Status, APIEndpoint: address}, refusal, err
}

func (a *agentAPI) ready(ctx context.Context, tx *store.Tx, instance store.Instance, role string, in nodeapi.HandshakeRequest) (nodeapi.HandshakeAnswer, *cluster.Refusal, error) {
	if in.Role != "" && in.Role != role {
		return nodeapi.HandshakeAnswer{}, &cluster.Refusal{Class: cluster.ClassField, Reason: "role", Message: "/role: the runtime " + in.Runtime + " has the role " + role}, nil
	}
	n, refusal, err := a.p.Cluster.Ready(ctx, tx, instance, role, store.ClusterID(in.ClusterID), in.K8sVersion)
	return nodeapi.HandshakeAnswer{NodeID: string(n.ID), ClusterID: string(n.ClusterID), NodeStatus: n.Status, Role: n.Role}, refusal, err
}

func (a *agentAPI) RuntimeConfig(ctx context.Context, id nodeapi.Identity, runtime string) (nodeapi.RuntimeConfig, error) {
	var out nodeapi.RuntimeConfig
	err := a.view(ctx, id, func(v *store.View, instance store.Instance) error {
		section, err := a.p.Cluster.Section(ctx, v, instance)
		if runtime == nodeapi.RuntimeK3sServer {
			out.Server = section.Server
		} else {
			out.Agent = section.Agent
		}
		return err
	})
	if err == nil && (out.Server == nil || out.Server.State != "present") && (out.Agent == nil || out.Agent.State != "present") {
		err = &nodeapi.Error{HTTPStatus: http.StatusForbidden, Code: "permission_denied", Class: cluster.ClassNotAssigned,
			Message: "the module that the runtime needs is not assigned and enabled"}
	}
	return out, err
}

func (a *agentAPI) Artifact(ctx context.Context, id nodeapi.Identity, sha256 string) (io.ReadSeekCloser, error) {
	var instance store.Instance
	err := a.view(ctx, id, func(_ *store.View, found store.Instance) error {
		instance = found
		return nil
	})
	if err != nil {
		return nil, err
	}
	file, err := a.p.Fleet.OpenArtifact(ctx, instance, sha256)
	return file, wireError(err)
}

func (a *agentAPI) AgentProgram(_ context.Context, sum string) (io.ReadSeekCloser, error) {
	return a.program.open(sum)
}

func (a *agentAPI) DeviceBootstrap(ctx context.Context, token string, in nodeapi.DeviceBootstrapRequest) (nodeapi.DeviceBootstrapAnswer, error) {
	var out nodeapi.DeviceBootstrapAnswer
	err := a.p.DB.Update(ctx, func(tx *store.Tx) error {
		tx.Act(store.Actor{Kind: "device", Verb: "device_bootstrap", CorrelationID: tx.NewID()})
		var err error
		out.Config, out.Filename, err = a.p.Network.RedeemDevice(ctx, tx, token, in.PublicKey)
		return err
	})
	return out, wireError(err)
}

func (a *agentAPI) DeviceBootstrapInfo(ctx context.Context, token string) (string, error) {
	var text string
	err := a.p.DB.View(ctx, func(v *store.View) error {
		var err error
		text, err = a.p.Network.DeviceInfo(ctx, v, token)
		return err
	})
	return text, wireError(err)
}

// view and update open a transaction with the instance that presented its certificate.
func (a *agentAPI) view(ctx context.Context, id nodeapi.Identity, fn func(*store.View, store.Instance) error) error {
	return wireError(a.p.DB.View(ctx, func(v *store.View) error {
		instance, err := store.InstanceByIDAnyAccount(ctx, v, store.InstanceID(id.InstanceID))
		if err != nil {
			return err
		}
		return fn(v, instance)
	}))
}

func (a *agentAPI) update(ctx context.Context, id nodeapi.Identity, fn func(*store.Tx, store.Instance) error) error {
	return wireError(a.p.DB.Update(ctx, func(tx *store.Tx) error {
		instance, err := store.InstanceByIDAnyAccount(ctx, &tx.View, store.InstanceID(id.InstanceID))
		if err != nil {
			return err
		}
		return fn(tx, instance)
	}))
}

// refused spells a refusal of the handshake in the agents' API (contract 15.1, 15.5).
func refused(r cluster.Refusal) *nodeapi.Error {
	e := &nodeapi.Error{HTTPStatus: http.StatusUnprocessableEntity, Code: string(schema.PreconditionFailed), Class: r.Class, Message: r.Message, Reason: r.Reason}
	switch {
	case r.Wait:
		e.HTTPStatus, e.Code, e.Retryable, e.RetryAfter = http.StatusServiceUnavailable, string(schema.Unavailable), true, retrySeconds
	case r.Class == cluster.ClassAmbiguous:
		e.HTTPStatus, e.Code = http.StatusConflict, string(schema.Conflict)
		for _, c := range r.Candidates {
			e.Candidates = append(e.Candidates, nodeapi.Candidate{ClusterID: string(c.ID), Name: c.Name, Status: c.Status})
		}
	case r.Class == cluster.ClassOtherServer, r.Class == cluster.ClassOtherCluster:
		e.HTTPStatus, e.Code = http.StatusConflict, string(schema.Conflict)
	case r.Class == cluster.ClassNotAssigned:
		e.HTTPStatus, e.Code = http.StatusForbidden, string(schema.PermissionDenied)
	case r.Class == cluster.ClassUnknown:
		e.HTTPStatus, e.Code = http.StatusNotFound, string(schema.NotFound)
	case r.Class == cluster.ClassField:
		e.Code = string(schema.InvalidArguments)
	}
	return e
}

// deviceCodes are the codes of the device bootstrap's refusals; 401 has none.
var deviceCodes = map[int]string{http.StatusNotFound: string(schema.NotFound), http.StatusConflict: string(schema.Conflict),
	http.StatusGone: string(schema.PreconditionFailed), http.StatusUnprocessableEntity: string(schema.InvalidArguments)}

// wireError gives the domain's errors their place in the agents' API; what has none stays, and becomes internal there.
func wireError(err error) error {
	var coded *schema.Error
	var device *network.DeviceError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fleet.ErrUnauthenticated):
		return &nodeapi.Error{HTTPStatus: http.StatusUnauthorized, Message: err.Error()}
	case errors.As(err, &device):
		return &nodeapi.Error{HTTPStatus: device.HTTPStatus, Code: deviceCodes[device.HTTPStatus], Message: device.Error()}
	case errors.Is(err, store.ErrNoRow):
		return &nodeapi.Error{HTTPStatus: http.StatusNotFound, Code: string(schema.NotFound), Message: "not found"}
	case errors.As(err, &coded):
		e := &nodeapi.Error{Code: string(coded.Code), Class: coded.Class, Message: coded.Message, Retryable: coded.Retryable, RetryAfter: retrySeconds}
		if coded.Code == schema.InvalidArguments || coded.Code == schema.PreconditionFailed {
			e.HTTPStatus = http.StatusUnprocessableEntity
		}
		return e
	}
	return err
}

// reports takes agents' reports in by batches: a report never costs a transaction of its own.
type reports struct {
	p     *tools.Platform
	queue chan pendingReport
}

type pendingReport struct {
	instance store.InstanceID
	report   sdwan.Report
	done     chan error
}

const (
	reportQueue = 1024
	reportBatch = 128
)

func newReports(p *tools.Platform) *reports {
	return &reports{p: p, queue: make(chan pendingReport, reportQueue)}
}

// ingest hands a report to the next batch and waits for what came of it.
func (r *reports) ingest(ctx context.Context, id store.InstanceID, report sdwan.Report) error {
	pending := pendingReport{instance: id, report: report, done: make(chan error, 1)}
	select {
	case r.queue <- pending:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-pending.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run writes batches until the context ends.
func (r *reports) run(ctx context.Context) error {
	for {
		select {
		case first := <-r.queue:
			r.write(ctx, r.gather(first))
		case <-ctx.Done():
			return nil
		}
	}
}

// gather takes what waits beside the first: nothing is delayed for the sake of a larger batch.
func (r *reports) gather(first pendingReport) []pendingReport {
	batch := []pendingReport{first}
	for len(batch) < reportBatch {
		select {
		case next := <-r.queue:
			batch = append(batch, next)
		default:
			return batch
		}
	}
	return batch
}

// write takes a batch in with one transaction. If one of it is refused, each gets a transaction of its own.
func (r *reports) write(ctx context.Context, batch []pendingReport) {
	err := r.p.DB.Update(ctx, func(tx *store.Tx) error {
		for _, pending := range batch {
			if err := r.one(ctx, tx, pending); err != nil {
				return err
			}
		}
		return nil
	})
	for _, pending := range batch {
		if err != nil && len(batch) > 1 {
			pending.done <- r.p.DB.Update(ctx, func(tx *store.Tx) error { return r.one(ctx, tx, pending) })
			continue
		}
		pending.done <- err
	}
}

func (r *reports) one(ctx context.Context, tx *store.Tx, pending pendingReport) error {
	instance, err := store.InstanceByIDAnyAccount(ctx, &tx.View, pending.instance)
	if errors.Is(err, store.ErrNoRow) {
		return r.p.Fleet.IngestDeparted(ctx, tx, pending.instance, pending.report) // forgotten, and its machine lives on
	}
	if err != nil {
		return err
	}
	return r.p.Fleet.Ingest(ctx, tx, instance, pending.report)
}
