package tools

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"

	"powernode/platform/fleet"
	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
)

func instanceVerbs() []*Definition {
	return []*Definition{provisionInstance(), getInstance(), updateInstance(), terminateInstance(), refreshInstanceModules(), listInstances()}
}

type instanceSummary struct {
	ID              store.InstanceID `json:"id"`
	Name            string           `json:"name"`
	NodeID          store.NodeID     `json:"node_id"`
	Variety         string           `json:"variety"`
	Status          string           `json:"status"`
	Architecture    string           `json:"architecture"`
	PrivateIP       *string          `json:"private_ip"`
	PublicIP        *string          `json:"public_ip"`
	LastHeartbeatAt *store.Time      `json:"last_heartbeat_at"`
	AgentVersion    *string          `json:"agent_version"`
	PoolState       *string          `json:"pool_state"`
	Cordoned        bool             `json:"cordoned"`
}

// instanceSummaryOf tells an instance; report is its agent's last one, or nil.
func instanceSummaryOf(i store.Instance, report *store.InstanceReport) instanceSummary {
	s := instanceSummary{ID: i.ID, Name: i.Name, NodeID: i.NodeID, Variety: i.Variety, Status: i.Status, Architecture: i.Architecture,
		PrivateIP: addressOf(i.PrivateIP), PublicIP: addressOf(i.PublicIP), PoolState: orNull(i.PoolState), Cordoned: i.Cordon.V != nil}
	if report != nil {
		s.LastHeartbeatAt, s.AgentVersion = &report.ReceivedAt, orNull(report.AgentVersion)
	}
	return s
}

func addressOf(a store.Addr) *string {
	if !a.IsValid() {
		return nil
	}
	spelt := a.String()
	return &spelt
}

// lastReport is an instance's last report, or nil.
func lastReport(ctx context.Context, v *store.View, id store.InstanceID) (*store.InstanceReport, error) {
	r, err := store.InstanceReportOf(ctx, v, id)
	if errors.Is(err, store.ErrNoRow) {
		return nil, nil
	}
	return &r, err
}

func summariseInstance(ctx context.Context, v *store.View, i store.Instance) (instanceSummary, error) {
	report, err := lastReport(ctx, v, i.ID)
	return instanceSummaryOf(i, report), err
}

type instanceCertificate struct {
	ID       store.CertificateID `json:"id"`
	Subject  string              `json:"subject"`
	NotAfter store.Time          `json:"not_after"`
}

type instanceHold struct {
	InstanceID store.InstanceID `json:"instance_id"`
	Reason     string           `json:"reason"`
	By         string           `json:"by"`
	Since      store.Time       `json:"since"`
	ExpiresAt  store.Time       `json:"expires_at"`
}

// cleanupState tells how far a machine that lives on after its instance is with taking away what the platform put on it.
func cleanupState(d store.Departure) store.SubsystemState {
	if d.CleanedAt == nil {
		return store.SubsystemState{Name: "cleanup", State: "not_measured", ObservedAt: d.Since,
			Message: "the machine has not cleaned up yet: its agent does so when it reaches the platform"}
	}
	return store.SubsystemState{Name: "cleanup", AppliedRevision: d.DocumentRevision, State: "ok", ObservedAt: *d.CleanedAt}
}

type instancePeer struct {
	PeerID          store.PeerID    `json:"peer_id"`
	NetworkID       store.NetworkID `json:"network_id"`
	AssignedAddress string          `json:"assigned_address"`
}

type instanceFull struct {
	instanceSummary
	Description            string                 `json:"description"`
	Config                 store.Object           `json:"config"`
	VPNIPAddress           *string                `json:"vpn_ip_address"`
	NetworkProfile         *string                `json:"network_profile"`
	NetworkProfileSource   string                 `json:"network_profile_source"`
	ProviderID             store.ProviderID       `json:"provider_id"`
	ProviderRegionID       store.RegionID         `json:"provider_region_id"`
	ProviderInstanceTypeID store.InstanceTypeID   `json:"provider_instance_type_id"`
	CloudInstanceID        *string                `json:"cloud_instance_id"`
	BootID                 *string                `json:"boot_id"`
	RunningModuleDigests   map[string]string      `json:"running_module_digests"`
	Certificate            *instanceCertificate   `json:"certificate"`
	Cordon                 *store.Cordon          `json:"cordon"`
	Hold                   *instanceHold          `json:"hold"`
	DesiredRevision        int64                  `json:"desired_revision"`
	AppliedRevision        *int64                 `json:"applied_revision"`
	Converged              bool                   `json:"converged"`
	Subsystems             []store.SubsystemState `json:"subsystems"`
	SDWANPeers             []instancePeer         `json:"sdwan_peers"`
	ClusterNodeID          *store.ClusterNodeID   `json:"cluster_node_id"`
	CreatedAt              store.Time             `json:"created_at"`
}

func instanceFullOf(ctx context.Context, v *store.View, i store.Instance) (instanceFull, error) {
	report, err := lastReport(ctx, v, i.ID)
	if err != nil {
		return instanceFull{}, err
	}
	f := instanceFull{instanceSummary: instanceSummaryOf(i, report), Description: i.Description, Config: i.Config.V,
		VPNIPAddress: addressOf(i.VPNAddress), NetworkProfile: orNull(i.NetworkProfile), NetworkProfileSource: i.NetworkProfileSource,
		ProviderID: i.ProviderID, ProviderRegionID: i.RegionID, ProviderInstanceTypeID: i.InstanceTypeID, CloudInstanceID: orNull(i.CloudInstanceID),
		RunningModuleDigests: map[string]string{}, Cordon: i.Cordon.V, SDWANPeers: []instancePeer{}, CreatedAt: i.CreatedAt}
	if report != nil {
		f.BootID, f.RunningModuleDigests = orNull(report.BootID), report.Modules.V
	}
	if h := fleet.HoldInForce(v, i); h != nil {
		told := holdOf(i.ID, *h)
		f.Hold = &told
	}
	measured, err := fleet.ConvergenceOf(ctx, v, i, report)
	if err != nil {
		return f, err
	}
	f.DesiredRevision, f.AppliedRevision, f.Converged = measured.DesiredRevision, measured.AppliedRevision, measured.Converged
	f.Subsystems = measured.Subsystems
	left, err := fleet.Cleanup(ctx, v, i)
	if err != nil {
		return f, err
	}
	if left != nil {
		f.Subsystems = append(slices.Clip(f.Subsystems), cleanupState(*left))
	}
	return f, f.memberships(ctx, v, i)
}

// memberships fills in what the instance is a member of, and by what it proves who it is.
func (f *instanceFull) memberships(ctx context.Context, v *store.View, i store.Instance) error {
	certificates, err := store.CertificatesByInstance(ctx, v, i.ID)
	if err != nil {
		return err
	}
	if len(certificates) > 0 {
		latest := certificates[0]
		f.Certificate = &instanceCertificate{ID: latest.ID, Subject: latest.Subject, NotAfter: latest.NotAfter}
	}
	peers, err := store.PeersByInstance(ctx, v, i.AccountID, i.ID)
	if err != nil {
		return err
	}
	for _, p := range peers {
		f.SDWANPeers = append(f.SDWANPeers, instancePeer{PeerID: p.ID, NetworkID: p.NetworkID, AssignedAddress: p.Address.String()})
	}
	member, err := store.ClusterNodeByInstance(ctx, v, i.AccountID, i.ID)
	if errors.Is(err, store.ErrNoRow) {
		return nil
	}
	f.ClusterNodeID = &member.ID
	return err
}

type provisionOptions struct {
	SSHKeyIDs        []string `json:"ssh_key_ids"`
	AdminUser        *string  `json:"admin_user"`
	AllocatePublicIP *bool    `json:"allocate_public_ip"`
	Spot             bool     `json:"spot"`
}

type provisionArgs struct {
	NodeID                 store.NodeID         `json:"node_id"`
	ProviderRegionID       store.RegionID       `json:"provider_region_id"`
	ProviderInstanceTypeID store.InstanceTypeID `json:"provider_instance_type_id"`
	OperationID            string               `json:"operation_id"`
	Options                provisionOptions     `json:"options"`
}

func (a provisionArgs) input() (fleet.ProvisionInput, error) {
	in := fleet.ProvisionInput{NodeID: a.NodeID, RegionID: a.ProviderRegionID, TypeID: a.ProviderInstanceTypeID, OperationID: a.OperationID,
		SSHKeyIDs: a.Options.SSHKeyIDs, AdminUser: a.Options.AdminUser, AllocatePublicIP: a.Options.AllocatePublicIP, Spot: a.Options.Spot}
	a.OperationID = ""
	spelt, err := json.Marshal(a)
	sum := sha256.Sum256(spelt)
	in.ArgumentsHash = hex.EncodeToString(sum[:])
	return in, err
}

type applyCounts struct {
	Created int64 `json:"created"`
	Updated int64 `json:"updated"`
	Skipped int64 `json:"skipped"`
}

// manualEnrollment is how a machine that nobody makes is brought in; only the provider manual has one.
type manualEnrollment struct {
	Command   string     `json:"command"`
	ExpiresAt store.Time `json:"expires_at"`
}

type provisionResult struct {
	Provisioned     bool              `json:"provisioned"`
	Instance        instanceSummary   `json:"instance"`
	CloudInstanceID *string           `json:"cloud_instance_id"`
	Applied         applyCounts       `json:"applied"`
	SDWANPeer       *peerSummary      `json:"sdwan_peer"`
	Enrollment      *manualEnrollment `json:"enrollment"`
	Written

	intent fleet.Provisioned
}

func provisionInstance() *Definition {
	return define("system_provision_instance", handler[provisionArgs, provisionResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a provisionArgs) error {
			in, err := a.input()
			if err != nil {
				return err
			}
			return p.Fleet.CheckProvision(ctx, v, c.AccountID, in)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a provisionArgs) (r provisionResult, err error) {
			in, err := a.input()
			if err != nil {
				return r, err
			}
			r.intent, err = p.Fleet.Provision(ctx, tx, c.AccountID, in)
			return r, err
		},
		act: func(ctx context.Context, p *Platform, c Caller, a provisionArgs, r provisionResult) outcome[provisionResult] {
			made := p.Fleet.Create(ctx, r.intent)
			return func(ctx context.Context, tx *store.Tx) (provisionResult, error, error) {
				i, refusal, err := p.Fleet.FinishCreate(ctx, tx, r.intent, made)
				if err != nil || refusal != nil {
					return r, refusal, err
				}
				if err := r.tell(ctx, p, tx, i); err != nil {
					return r, nil, err
				}
				row, holds := r.credential()
				if !holds || r.intent.Instance.Intent == store.IntentCreate { // this call asked for the machine
					return r, nil, nil
				}
				row.AccountID = i.AccountID
				_, err = tx.Audit(ctx, row)
				return r, nil, err
			}
		},
		credential: provisionResult.credential,
	})
}

// credential is the row of handing out the command that a machine enrols with once more.
func (r provisionResult) credential() (store.AuditEntry, bool) {
	return store.AuditEntry{Action: "read", ResourceType: "System::NodeInstance", ResourceID: string(r.Instance.ID),
		New: store.Object{"enrollment": "command"}}, r.Enrollment != nil
}

func (r *provisionResult) tell(ctx context.Context, p *Platform, tx *store.Tx, i store.Instance) (err error) {
	r.Provisioned, r.CloudInstanceID = true, orNull(i.CloudInstanceID)
	asked := i.Provisioning.V
	r.Applied = applyCounts{Created: asked.Created, Updated: asked.Updated, Skipped: asked.Skipped}
	r.warned(r.intent.Warnings)
	r.Hint = &schema.Hint{Verb: "system_get_instance", Text: "The machine is booting: poll this, or wait for the signal system.instance_running."}
	r.Revision = &i.Revision // of a repetition, the revision at which the first call wrote
	if err := r.tellEnrollment(ctx, p, tx, i); err != nil {
		return err
	}
	if r.Instance, err = summariseInstance(ctx, &tx.View, i); err != nil || asked.PeerID == "" {
		return err
	}
	peer, err := store.PeerByID(ctx, &tx.View, i.AccountID, asked.PeerID)
	if errors.Is(err, store.ErrNoRow) {
		return nil // detached since
	}
	if err != nil {
		return err
	}
	told, err := viewPeer(ctx, p, &tx.View, peer)
	r.SDWANPeer = &told.peerSummary
	return err
}

type instanceArgs struct {
	InstanceID store.InstanceID `json:"instance_id"`
}

type getInstanceResult struct {
	Instance instanceFull `json:"instance"`
}

func getInstance() *Definition {
	return define("system_get_instance", handler[instanceArgs, getInstanceResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a instanceArgs) (r getInstanceResult, err error) {
			i, err := fleet.InstanceByID(ctx, v, c.AccountID, a.InstanceID)
			if err != nil {
				return r, err
			}
			r.Instance, err = instanceFullOf(ctx, v, i)
			return r, err
		},
	})
}

type updateInstanceArgs struct {
	InstanceID       store.InstanceID `json:"instance_id"`
	Name             *string          `json:"name"`
	Description      *string          `json:"description"`
	Config           store.Object     `json:"config"`
	PrivateIPAddress *netip.Addr      `json:"private_ip_address"`
	PublicIPAddress  *netip.Addr      `json:"public_ip_address"`
	VPNIPAddress     *netip.Addr      `json:"vpn_ip_address"`
	NetworkProfile   *string          `json:"network_profile"`
}

func (a updateInstanceArgs) change() fleet.InstanceChange {
	return fleet.InstanceChange{Name: a.Name, Description: a.Description, Config: a.Config, PrivateIP: a.PrivateIPAddress,
		PublicIP: a.PublicIPAddress, VPNAddress: a.VPNIPAddress, NetworkProfile: a.NetworkProfile}
}

func (a updateInstanceArgs) empty() bool {
	return a.Name == nil && a.Description == nil && a.Config == nil && a.PrivateIPAddress == nil && a.PublicIPAddress == nil &&
		a.VPNIPAddress == nil && a.NetworkProfile == nil
}

type updateInstanceResult struct {
	Instance instanceFull `json:"instance"`
	Written
}

func updateInstance() *Definition {
	return define("system_update_instance", handler[updateInstanceArgs, updateInstanceResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a updateInstanceArgs) error {
			if a.empty() {
				return nothingToUpdate("name", "description", "config", "private_ip_address", "public_ip_address", "vpn_ip_address", "network_profile")
			}
			return p.Fleet.CheckUpdateInstance(ctx, v, c.AccountID, a.InstanceID, a.change())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a updateInstanceArgs) (r updateInstanceResult, err error) {
			i, err := p.Fleet.UpdateInstance(ctx, tx, c.AccountID, a.InstanceID, a.change())
			if err != nil {
				return r, err
			}
			r.Instance, err = instanceFullOf(ctx, &tx.View, i)
			return r, err
		},
	})
}

type terminateResult struct {
	Terminated        bool            `json:"terminated"`
	Instance          instanceSummary `json:"instance"`
	DetachedPeerCount int64           `json:"detached_peer_count"`
	RemovedMember     store.Object    `json:"removed_member"` // nil: it was no member
	Written

	intent fleet.Ending
}

func terminateInstance() *Definition {
	return define("system_terminate_instance", handler[instanceArgs, terminateResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a instanceArgs) error {
			return p.Fleet.CheckTerminate(ctx, v, c.AccountID, a.InstanceID)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a instanceArgs) (r terminateResult, err error) {
			r.intent, err = p.Fleet.Terminate(ctx, tx, c.AccountID, a.InstanceID)
			return r, err
		},
		act: func(ctx context.Context, p *Platform, c Caller, a instanceArgs, r terminateResult) outcome[terminateResult] {
			outside := p.Fleet.EndMachine(ctx, r.intent)
			return func(ctx context.Context, tx *store.Tx) (terminateResult, error, error) {
				i, refusal, err := p.Fleet.FinishTerminate(ctx, tx, r.intent, outside)
				if err != nil || refusal != nil {
					return r, refusal, err
				}
				r.Terminated, r.Revision = true, &i.Revision
				if left := i.Provisioning.V.Leaving; left != nil {
					r.DetachedPeerCount, r.RemovedMember = left.DetachedPeers, left.RemovedMember
				}
				warnings, err := fleet.Uncleaned(ctx, &tx.View, i)
				if err != nil {
					return r, nil, err
				}
				r.warned(warnings)
				r.Instance, err = summariseInstance(ctx, &tx.View, i)
				return r, nil, err
			}
		},
	})
}

type refreshArgs struct {
	InstanceID  store.InstanceID `json:"instance_id"`
	ForceResync bool             `json:"force_resync"`
	ModuleID    store.ModuleID   `json:"module_id"`
}

type refreshResult struct {
	Refreshed        bool             `json:"refreshed"`
	InstanceID       store.InstanceID `json:"instance_id"`
	ModuleID         *store.ModuleID  `json:"module_id"`
	Resync           bool             `json:"resync"`
	TaskID           store.TaskID     `json:"task_id"`
	TaskStatus       string           `json:"task_status"`
	AssignmentsStale bool             `json:"assignments_stale"`
	Written
}

func refreshInstanceModules() *Definition {
	return define("system_refresh_instance_modules", handler[refreshArgs, refreshResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a refreshArgs) error {
			return p.Fleet.CheckRefresh(ctx, v, c.AccountID, a.InstanceID, a.ModuleID)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a refreshArgs) (r refreshResult, err error) {
			asked := sdwan.SyncModules{ModuleID: orNull(string(a.ModuleID)), ForceResync: a.ForceResync}
			t, err := p.Fleet.RefreshModules(ctx, tx, c.AccountID, a.InstanceID, asked)
			if err != nil {
				return r, err
			}
			r = refreshResult{Refreshed: true, InstanceID: a.InstanceID, ModuleID: orNull(a.ModuleID), Resync: a.ForceResync, TaskID: t.ID, TaskStatus: t.Status}
			i, err := fleet.InstanceByID(ctx, &tx.View, c.AccountID, a.InstanceID)
			if err != nil {
				return r, err
			}
			n, err := fleet.NodeByID(ctx, &tx.View, c.AccountID, i.NodeID)
			if err != nil {
				return r, err
			}
			if r.AssignmentsStale, err = p.Fleet.AssignmentsStale(ctx, &tx.View, n); r.AssignmentsStale {
				r.Hint = applyHint()
			}
			return r, err
		},
	})
}

type listInstancesArgs struct {
	NodeID     store.NodeID     `json:"node_id"`
	TemplateID store.TemplateID `json:"template_id"`
	Status     string           `json:"status"`
	Limit      int              `json:"limit"`
	Cursor     string           `json:"cursor"`
}

type listInstancesResult struct {
	Instances []instanceSummary `json:"instances"`
	Page
}

func listInstances() *Definition {
	return define("system_list_instances", handler[listInstancesArgs, listInstancesResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a listInstancesArgs) error {
			if err := found(ctx, v, c, a.NodeID, fleet.NodeByID); err != nil {
				return err
			}
			return found(ctx, v, c, a.TemplateID, fleet.TemplateByID)
		},
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a listInstancesArgs) (r listInstancesResult, err error) {
			all, err := store.Instances(ctx, v, c.AccountID, a.NodeID, a.TemplateID, a.Status)
			if err != nil {
				return r, err
			}
			filter := []string{string(a.NodeID), string(a.TemplateID), a.Status}
			all, r.Page, err = page("system_list_instances", filter, a.Limit, a.Cursor, all, func(i store.Instance) string { return string(i.ID) })
			if err != nil {
				return r, err
			}
			r.Instances = []instanceSummary{}
			for _, i := range all {
				s, err := summariseInstance(ctx, v, i)
				if err != nil {
					return r, err
				}
				r.Instances = append(r.Instances, s)
			}
			return r, nil
		},
	})
}
