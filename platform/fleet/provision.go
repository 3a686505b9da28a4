package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"powernode/platform/network"
	"powernode/platform/provider"
	"powernode/platform/signal"
	"powernode/schema"
	"powernode/store"
)

// ProvisionInput asks for a machine of a node; nil options are the node's or template's values.
type ProvisionInput struct {
	NodeID           store.NodeID
	RegionID         store.RegionID
	TypeID           store.InstanceTypeID
	OperationID      string // "" is none
	ArgumentsHash    string // of everything but the operation id
	SSHKeyIDs        []string
	AdminUser        *string
	AllocatePublicIP *bool
	Spot             bool
	Name             string // of the machine; "": the node's, or the next free one after it
}

// Provisioned is an instance that is on its way, or is there already.
type Provisioned struct {
	Instance store.Instance
	Warnings []Warning
	// machine is what the provider is asked for; nil where nothing is left to do outside.
	machine *provider.CreateInput
	token   store.Secret // what it enrols with
	by      string       // type of the provider
	region  string
}

const verbProvision = "system_provision_instance"

// verbProvisionSent is under which calls without an operation id are found again: when they are sent anew after the
// platform was killed under them, or when their approved operation is resumed.
const verbProvisionSent = verbProvision + ":sent"

// sentKey names a call in flight.
func sentKey(a store.Actor) string {
	switch {
	case a.OperationID != "":
		return "operation:" + a.OperationID
	case a.CorrelationID != "":
		return "call:" + a.CorrelationID
	}
	return "" // no call: the platform's own doing
}

// CheckProvision refuses what Provision could not do, in the contract's order.
func (s *Service) CheckProvision(ctx context.Context, v *store.View, acct store.AccountID, in ProvisionInput) error {
	if repeated, err := s.repeated(ctx, v, acct, in); err != nil || repeated != nil {
		return err
	}
	n, err := NodeByID(ctx, v, acct, in.NodeID)
	if err != nil {
		return err
	}
	if !n.Enabled {
		return schema.Errorf(schema.PreconditionFailed, "Node is disabled")
	}
	region, err := store.RegionByID(ctx, v, acct, in.RegionID)
	if err != nil {
		return orNotFound(err, "Provider region not found")
	}
	size, err := store.InstanceTypeByID(ctx, v, acct, in.TypeID)
	if err != nil {
		return orNotFound(err, "Instance type not found")
	}
	if size.ProviderID != region.ProviderID {
		return schema.InvalidCombination("/provider_instance_type_id", "provider_instance_type_id and provider_region_id are of two providers")
	}
	if err := s.checkProvider(ctx, v, acct, n, in, region); err != nil {
		return err
	}
	switch {
	case !region.Enabled:
		return schema.Errorf(schema.PreconditionFailed, "region %s is disabled", region.Name)
	case !size.Enabled:
		return schema.Errorf(schema.PreconditionFailed, "instance type %s is disabled", size.Name)
	}
	_, err = s.PlanApply(ctx, v, acct, n.ID, false)
	return err
}

// checkProvider refuses a provider that is off, not there, or can't do what an option asks for or the node's template is for.
func (s *Service) checkProvider(ctx context.Context, v *store.View, acct store.AccountID, n store.Node, in ProvisionInput, region store.Region) error {
	p, err := store.ProviderByID(ctx, v, acct, region.ProviderID)
	if err != nil {
		return err
	}
	if !p.Enabled {
		return schema.Errorf(schema.PreconditionFailed, "provider %s is disabled", p.Name)
	}
	adapter, err := s.adapter(p.ProviderType)
	if err != nil {
		return err
	}
	if s.byHand(p.ProviderType) {
		if err := s.CheckReachable(); err != nil {
			return err
		}
	}
	public := n.AllocatePublicIP
	set(&public, in.AllocatePublicIP)
	for _, asked := range []struct {
		wanted bool
		need   provider.Capability
		option string
	}{{public, provider.CapabilityPublicIP, "allocate_public_ip"}, {in.Spot, provider.CapabilitySpot, "spot"},
		{len(in.SSHKeyIDs) > 0, provider.CapabilitySSHKeys, "ssh_key_ids"}} {
		if asked.wanted && !provider.Can(adapter, asked.need) {
			return schema.Errorf(schema.PreconditionFailed, "provider %s can't do %s", p.Name, asked.option).
				WithDetail("capability", asked.need)
		}
	}
	return checkMade(ctx, v, n, p, adapter)
}

// repeated finds the live instance that an operation id has made, refusing other arguments under it.
func (s *Service) repeated(ctx context.Context, v *store.View, acct store.AccountID, in ProvisionInput) (*store.Instance, error) {
	return s.made(ctx, v, acct, verbProvision, in.OperationID, in)
}

// made finds what a key's call has made, if that still counts. An empty key has made nothing.
func (s *Service) made(ctx context.Context, v *store.View, acct store.AccountID, verb, name string, in ProvisionInput) (*store.Instance, error) {
	if name == "" {
		return nil, nil
	}
	key, err := store.IdempotencyKeyOf(ctx, v, acct, verb, name)
	if errors.Is(err, store.ErrNoRow) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if key.ArgumentsHash != in.ArgumentsHash {
		return nil, schema.Errorf(schema.Conflict, "operation_id was used with other arguments").WithDetail("instance_id", key.SubjectID)
	}
	i, err := store.InstanceByID(ctx, v, acct, store.InstanceID(key.SubjectID))
	if errors.Is(err, store.ErrNoRow) || (err == nil && (!i.Live() || i.Status == store.InstanceError)) {
		return nil, nil
	}
	return &i, err
}

// Provision writes the intent: the instance's row, the template applied, the enrolment token, the peer. What is asked of
// the provider is in the answer; Create asks it.
func (s *Service) Provision(ctx context.Context, tx *store.Tx, acct store.AccountID, in ProvisionInput) (Provisioned, error) {
	verb, name := verbProvision, in.OperationID
	if name == "" {
		verb, name = verbProvisionSent, sentKey(tx.Actor())
	}
	before, err := s.made(ctx, &tx.View, acct, verb, name, in)
	if err != nil {
		return Provisioned{}, err
	}
	if before != nil {
		return s.resume(ctx, &tx.View, *before)
	}
	i, err := s.newInstance(ctx, &tx.View, acct, in)
	if err != nil {
		return Provisioned{}, err
	}
	i.ID = store.InstanceID(tx.NewID())
	if i, err = store.InsertInstance(ctx, tx, i); err != nil {
		return Provisioned{}, err
	}
	err = audit(ctx, tx, acct, "created", resourceInstance, string(i.ID), nil, store.Object{"name": i.Name, "node_id": i.NodeID, "status": i.Status,
		"provider_id": i.ProviderID, "provider_region_id": i.RegionID, "provider_instance_type_id": i.InstanceTypeID})
	if err != nil {
		return Provisioned{}, err
	}
	tx.TouchInstance(i.ID)
	if name != "" {
		err := store.PutIdempotencyKey(ctx, tx, store.IdempotencyKey{AccountID: acct, Verb: verb, Key: name, ArgumentsHash: in.ArgumentsHash,
			SubjectID: string(i.ID)})
		if err != nil {
			return Provisioned{}, err
		}
	}
	warnings, err := s.furnish(ctx, tx, &i)
	if err != nil {
		return Provisioned{}, err
	}
	out, err := s.resume(ctx, &tx.View, i)
	out.Warnings = append(out.Warnings, warnings...)
	return out, err
}

// newInstance is the row of a machine that is asked for.
func (s *Service) newInstance(ctx context.Context, v *store.View, acct store.AccountID, in ProvisionInput) (store.Instance, error) {
	n, err := NodeByID(ctx, v, acct, in.NodeID)
	if err != nil {
		return store.Instance{}, err
	}
	t, err := TemplateByID(ctx, v, acct, n.TemplateID)
	if err != nil {
		return store.Instance{}, err
	}
	region, err := store.RegionByID(ctx, v, acct, in.RegionID)
	if err != nil {
		return store.Instance{}, orNotFound(err, "Provider region not found")
	}
	p, err := store.ProviderByID(ctx, v, acct, region.ProviderID)
	if err != nil {
		return store.Instance{}, err
	}
	arch, err := architectureFor(ctx, v, t)
	if err != nil {
		return store.Instance{}, err
	}
	name := in.Name
	if name == "" {
		if name, err = freeInstanceName(ctx, v, acct, n.Name); err != nil {
			return store.Instance{}, err
		}
	}
	i := store.Instance{AccountID: acct, NodeID: n.ID, Name: name, Variety: varietyOf(p.ProviderType), Status: store.InstancePending,
		Architecture: arch, NetworkProfileSource: "measured", ProviderID: p.ID, RegionID: region.ID, InstanceTypeID: in.TypeID,
		Intent: store.IntentCreate}
	i.Config.V = store.Object{}
	if i.Variety == "local" {
		i.NetworkProfile = "lightweight" // whatever this host has: several machines share it
	}
	i.Provisioning.V = store.Provisioning{AdminUser: t.AdminUser, SSHKeyIDs: in.SSHKeyIDs, AllocatePublicIP: n.AllocatePublicIP, Spot: in.Spot}
	set(&i.Provisioning.V.AdminUser, in.AdminUser)
	set(&i.Provisioning.V.AllocatePublicIP, in.AllocatePublicIP)
	i.Provisioning.V.InitScript, _ = t.Config.V[initScriptKey].(string)
	return i, nil
}

// varietyPhysical is the variety of machines that are there already.
const varietyPhysical = "physical"

func varietyOf(providerType string) string {
	switch providerType {
	case "local":
		return "local"
	case "manual":
		return varietyPhysical
	}
	return "cloud"
}

// maxLabel is how long a DNS label may be.
const maxLabel = 63

// freeInstanceName is the node's name, or the first of NAME-2, NAME-3 … that no live instance has.
func freeInstanceName(ctx context.Context, v *store.View, acct store.AccountID, node string) (string, error) {
	name := node
	for n := 2; ; n++ {
		_, err := store.InstanceByName(ctx, v, acct, name)
		if errors.Is(err, store.ErrNoRow) {
			return name, nil
		}
		if err != nil {
			return "", err
		}
		suffix := fmt.Sprintf("-%d", n)
		name = node[:min(len(node), maxLabel-len(suffix))] + suffix
	}
}

// furnish gives a new instance what it comes with: its node's assignments, a peer, and a token to enrol with.
func (s *Service) furnish(ctx context.Context, tx *store.Tx, i *store.Instance) ([]Warning, error) {
	n, err := NodeByID(ctx, &tx.View, i.AccountID, i.NodeID)
	if err != nil {
		return nil, err
	}
	peer, warnings, err := s.autoAttach(ctx, tx, *i, n)
	if err != nil {
		return nil, err
	}
	applied, _, err := s.apply(ctx, tx, i.AccountID, n.ID, false)
	if err != nil {
		return nil, err
	}
	if len(applied.Created)+len(applied.Updated) == 0 {
		// The assignments were there before this instance: the clusters' rules have not seen it yet.
		if _, err := s.assignmentsWritten(ctx, tx, i.AccountID, n.ID, true); err != nil {
			return nil, err
		}
	}
	p := &i.Provisioning.V
	p.Created, p.Updated, p.Skipped, p.PeerID = int64(len(applied.Created)), int64(len(applied.Updated)), int64(len(applied.Skipped)), peer
	token, err := s.IssueEnrollmentToken(ctx, tx, *i)
	if err != nil {
		return nil, err
	}
	if i.EnrollmentToken, err = s.Sealer.Seal(tx, tokenPurpose(i.ID), []byte(token.Reveal())); err != nil {
		return nil, err
	}
	*i, err = store.UpdateInstance(ctx, tx, *i)
	return append(warnings, applied.Warnings...), err
}

func tokenPurpose(id store.InstanceID) string { return "instances:" + string(id) + ":enrollment_token" }

// autoAttach puts a new instance on the network that its template names. A refusal is told, and the machine is made all
// the same.
func (s *Service) autoAttach(ctx context.Context, tx *store.Tx, i store.Instance, n store.Node) (store.PeerID, []Warning, error) {
	t, err := TemplateByID(ctx, &tx.View, i.AccountID, n.TemplateID)
	if err != nil {
		return "", nil, err
	}
	id, _ := t.Config.V[networkKey].(string)
	if id == "" {
		return "", nil, nil
	}
	in := network.AttachInput{NetworkID: store.NetworkID(id), InstanceID: i.ID}
	var refusal *schema.Error
	if err := s.Network.CheckAttach(ctx, &tx.View, i.AccountID, in); errors.As(err, &refusal) {
		err := signal.Emit(ctx, tx, i.AccountID, signal.Event{Kind: "system.sdwan_auto_attach_failed",
			Subject: signal.Subject{NodeID: n.ID, InstanceID: i.ID, NetworkID: store.NetworkID(id)},
			Payload: store.Object{"network_id": id, "error": refusal.Message}})
		return "", []Warning{{"sdwan_auto_attach_failed", "the instance was not attached to network " + id + ": " + refusal.Message}}, err
	} else if err != nil {
		return "", nil, err
	}
	peer, attached, err := s.Network.Attach(ctx, tx, i.AccountID, in)
	var warnings []Warning
	for _, w := range attached {
		warnings = append(warnings, Warning(w))
	}
	return peer.ID, warnings, err
}

// enrollment is what a machine is handed to enrol with; the keys are the agent API's.
type enrollment struct {
	InstanceID   store.InstanceID `json:"instance_id"`
	Token        string           `json:"token"`
	PlatformURLs []string         `json:"platform_urls"`
	CAPEM        string           `json:"ca_pem"`
}

// resume answers an instance with what is left to ask of its provider.
func (s *Service) resume(ctx context.Context, v *store.View, i store.Instance) (Provisioned, error) {
	out := Provisioned{Instance: i}
	p, err := store.ProviderByID(ctx, v, i.AccountID, i.ProviderID)
	if err != nil {
		return out, err
	}
	out.by = p.ProviderType
	if i.Intent != store.IntentCreate {
		return out, nil
	}
	region, err := store.RegionByID(ctx, v, i.AccountID, i.RegionID)
	if err != nil {
		return out, err
	}
	size, err := store.InstanceTypeByID(ctx, v, i.AccountID, i.InstanceTypeID)
	if err != nil {
		return out, err
	}
	token, err := s.Sealer.Open(tokenPurpose(i.ID), i.EnrollmentToken)
	if err != nil {
		return out, fmt.Errorf("open the enrolment token of instance %s: %w", i.ID, err)
	}
	asked := i.Provisioning.V
	out.region, out.token = region.RegionCode, store.Secret(token)
	out.machine = &provider.CreateInput{AccountID: string(i.AccountID), NodeID: string(i.NodeID), InstanceID: string(i.ID), Name: i.Name,
		RegionCode: region.RegionCode, InstanceTypeCode: size.InstanceTypeCode, MachineImage: region.MachineImage, MemoryMB: int(size.MemoryMB),
		VCPUs: int(size.VCPUs), AdminUser: asked.AdminUser, SSHKeyIDs: asked.SSHKeyIDs, AllocatePublicIP: asked.AllocatePublicIP,
		Spot: asked.Spot}
	if adapter := s.Providers[p.ProviderType]; adapter != nil && provider.Can(adapter, provider.CapabilityImages) {
		out.machine.InitScript = asked.InitScript // others have no first boot of their own
	} else if asked.InitScript != "" {
		out.Warnings = append(out.Warnings, Warning{"init_script_not_run", "provider " + p.Name + " runs no init_script"})
	}
	return out, nil
}

// Made is what came of asking a provider for a machine.
type Made struct {
	asked   bool
	machine provider.Machine
	err     error
	orphan  string // a machine of a failed creation that could not be removed
}

// Create asks the provider for the machine of an intent. It reaches outside: call it in no transaction.
func (s *Service) Create(ctx context.Context, p Provisioned) Made {
	if p.machine == nil {
		return Made{}
	}
	if left, err := s.leftToAsk(ctx, p.Instance); err != nil || !left {
		return Made{}
	}
	adapter, err := s.adapter(p.by)
	if err != nil {
		return Made{asked: true, err: err}
	}
	asked := *p.machine
	var m provider.Machine
	if !s.byHand(p.by) {
		asked.Enrollment, err = s.handed(p)
	}
	if err == nil {
		m, err = adapter.Create(ctx, asked)
	}
	if err == nil && m.ID == "" {
		err = errors.New("the provider answered without an id")
	}
	if err == nil {
		return Made{asked: true, machine: m}
	}
	s.Log.Warn().Err(err).Str("instance", string(p.Instance.ID)).Str("provider", p.by).Msg("machine not made")
	return Made{asked: true, err: err, orphan: s.removeOrphan(ctx, adapter, p.machine.AccountID, p.Instance.ID)}
}

// leftToAsk waits for another call of the same intent, and says whether its outcome is still to come.
func (s *Service) leftToAsk(ctx context.Context, i store.Instance) (bool, error) {
	if err := s.acts.enter(ctx, i.ID); err != nil {
		return false, err
	}
	err := s.DB.View(ctx, func(v *store.View) (err error) {
		i, err = store.InstanceByID(ctx, v, i.AccountID, i.ID)
		return err
	})
	return i.Intent == store.IntentCreate, err
}

// handed is the enrolment that a machine is given. The platform's addresses are asked for here and not when the intent is
// written: the first answer may open a listener.
func (s *Service) handed(p Provisioned) ([]byte, error) {
	e := enrollment{InstanceID: p.Instance.ID, Token: p.token.Reveal(), PlatformURLs: s.urls()}
	if s.Authority != nil {
		e.CAPEM = s.Authority.CAPEM()
	}
	if len(e.PlatformURLs) == 0 {
		return nil, errors.New("the platform has no address that machines reach")
	}
	raw, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode an enrolment: %w", err)
	}
	return raw, nil
}

// orphanDeadline bounds the search for what a failed creation left, also where its own deadline has passed.
const orphanDeadline = 20 * time.Second

// removeOrphan ends what a failed creation left behind, and names what it could not end.
func (s *Service) removeOrphan(ctx context.Context, adapter provider.Provider, account string, id store.InstanceID) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), orphanDeadline)
	defer cancel()
	machines, err := adapter.List(ctx, account)
	if err != nil {
		s.Log.Warn().Err(err).Str("instance", string(id)).Msg("orphan not looked for")
		return ""
	}
	for _, m := range machines {
		if m.InstanceID != string(id) {
			continue
		}
		if err := adapter.Terminate(ctx, m.ID); err != nil && !errors.Is(err, provider.ErrNotFound) {
			s.Log.Error().Err(err).Str("instance", string(id)).Str("machine", m.ID).Msg("orphan not removed")
			return m.ID
		}
	}
	return ""
}

// FinishCreate writes what came of an intent. A refusal beside a nil error is committed with the rows, and answered.
func (s *Service) FinishCreate(ctx context.Context, tx *store.Tx, p Provisioned, made Made) (store.Instance, error, error) {
	i, err := InstanceByID(ctx, &tx.View, p.Instance.AccountID, p.Instance.ID)
	switch {
	case err != nil:
		return i, nil, err
	case !made.asked && p.machine != nil && (i.Status == store.InstanceError || i.Intent == store.IntentCreate):
		return i, notMade(i, p, i.ErrorMessage), nil // another call of this intent has failed, or is not over
	case !made.asked || i.Intent != store.IntentCreate:
		return i, nil, nil // nothing was asked, or another has written the outcome
	}
	i.Intent = ""
	if made.err != nil || !s.byHand(p.by) {
		i.EnrollmentToken = nil // a machine that enrols by hand has not been handed it yet
	}
	if made.err != nil {
		return s.createFailed(ctx, tx, i, p, made)
	}
	was := i.Status
	i.CloudInstanceID = made.machine.ID
	i.PrivateIP.Addr, i.PublicIP.Addr = made.machine.PrivateAddress, made.machine.PublicAddress
	i.Status, _ = after(eventAccepted, i.Status) // an agent that has reported already made it running
	if i, err = store.UpdateInstance(ctx, tx, i); err != nil {
		return i, nil, err
	}
	err = audit(ctx, tx, i.AccountID, "updated", resourceInstance, string(i.ID), store.Object{"status": was, "cloud_instance_id": nil},
		store.Object{"status": i.Status, "cloud_instance_id": i.CloudInstanceID, "private_ip": addressValue(i.PrivateIP), "public_ip": addressValue(i.PublicIP)})
	if err != nil {
		return i, nil, err
	}
	if err := touchPeers(ctx, tx, i); err != nil {
		return i, nil, err
	}
	return i, nil, signal.Emit(ctx, tx, i.AccountID, signal.Event{Kind: "system.instance_provisioned", Subject: about(i),
		Payload: store.Object{"provider_type": p.by, "region": p.region, "cloud_instance_id": i.CloudInstanceID}})
}

func (s *Service) createFailed(ctx context.Context, tx *store.Tx, i store.Instance, p Provisioned, made Made) (store.Instance, error, error) {
	was, text := i.Status, failureText(made.err)
	if made.orphan != "" {
		text += "; its machine " + made.orphan + " is left"
	}
	if next, ok := after(eventFailed, i.Status); ok {
		i.Status = next
	}
	i.ErrorMessage, i.CloudInstanceID = text, made.orphan
	if err := store.DeleteEnrollmentTokens(ctx, tx, i.ID); err != nil {
		return i, nil, err
	}
	i, err := store.UpdateInstance(ctx, tx, i)
	if err != nil {
		return i, nil, err
	}
	err = audit(ctx, tx, i.AccountID, "updated", resourceInstance, string(i.ID), store.Object{"status": was},
		store.Object{"status": i.Status, "error_message": text})
	if err != nil {
		return i, nil, err
	}
	err = signal.Emit(ctx, tx, i.AccountID, signal.Event{Kind: "system.instance_provision_failed", Subject: about(i),
		Payload: store.Object{"provider_type": p.by, "error": text}})
	return i, notMade(i, p, text), err
}

// notMade refuses a call whose machine is not there.
func notMade(i store.Instance, p Provisioned, text string) *schema.Error {
	if i.Status != store.InstanceError {
		return schema.Errorf(schema.Unavailable, "provider %s: it did not answer in time", p.by).WithDetail("instance_id", i.ID)
	}
	return schema.Errorf(schema.Unavailable, "provider %s: %s", p.by, text).WithDetail("instance_id", i.ID).
		WithHint("system_get_instance", "The instance is in error; system_terminate_instance ends it.")
}

// failureText is a provider's error as rows and callers are told it: ours word for word, others bounded and printable.
func failureText(err error) string {
	var coded *schema.Error
	switch {
	case errors.As(err, &coded):
		return printed(coded.Message)
	case errors.Is(err, context.DeadlineExceeded):
		return "it did not answer in time"
	}
	return printed(err.Error())
}
