package store

import (
	"context"
	"fmt"
)

// Statuses of an instance.
const (
	InstancePending      = "pending"
	InstanceProvisioning = "provisioning"
	InstanceStarting     = "starting"
	InstanceRunning      = "running"
	InstanceStopping     = "stopping"
	InstanceStopped      = "stopped"
	InstanceRebooting    = "rebooting"
	InstanceError        = "error"
	InstanceTerminated   = "terminated"
)

// Intents of an instance: an act on its machine that has no outcome yet.
const (
	IntentCreate      = "create"
	IntentTerminate   = "terminate"
	IntentDestroy     = "destroy"
	IntentStart       = "start"
	IntentStop        = "stop"
	IntentStopForce   = "stop_force"
	IntentReboot      = "reboot"
	IntentRebootForce = "reboot_force"
)

// What becomes of the machine of an instance that ends.
const (
	MachineNone      = "none"      // its provider has made none
	MachineStays     = "stays"     // somebody else runs it
	MachineDestroyed = "destroyed" // its provider destroys it
)

// Hold says that operations on an instance are held.
type Hold struct {
	Reason    string `json:"reason"`
	By        string `json:"by"`
	Since     Time   `json:"since"`
	ExpiresAt Time   `json:"expires_at"`
}

// Provisioning is what a provider is asked for, and what the call's first answer said, so that a repetition says the same.
type Provisioning struct {
	AdminUser        string   `json:"admin_user"`
	SSHKeyIDs        []string `json:"ssh_key_ids"`
	AllocatePublicIP bool     `json:"allocate_public_ip"`
	Spot             bool     `json:"spot"`
	InitScript       string   `json:"init_script"`
	Created          int64    `json:"created"` // assignments, of the apply
	Updated          int64    `json:"updated"`
	Skipped          int64    `json:"skipped"`
	PeerID           PeerID   `json:"peer_id"`
	HostsPlatform    bool     `json:"hosts_platform,omitempty"` // what releases before MachineID knew of it
	MachineID        string   `json:"machine_id,omitempty"`     // the operating system's, as it was enrolled
	// Leaving is what a termination found, told again when it is repeated.
	Leaving *Leaving `json:"leaving,omitempty"`
}

// Leaving is what ended with an instance.
type Leaving struct {
	DetachedPeers int64  `json:"detached_peers"`
	RemovedMember Object `json:"removed_member,omitempty"`
}

// Instance is a machine that realises a node.
type Instance struct {
	ID                   InstanceID
	AccountID            AccountID
	NodeID               NodeID
	Name                 string
	Description          string
	Variety              string // cloud, physical, local
	Status               string
	Architecture         string
	Config               JSON[Object]
	PrivateIP            Addr
	PublicIP             Addr
	VPNAddress           Addr   // informative; never an SDWAN address
	NetworkProfile       string // lightweight, heavyweight; "" is not measured
	NetworkProfileSource string // measured, operator
	ProviderID           ProviderID
	RegionID             RegionID
	InstanceTypeID       InstanceTypeID
	CloudInstanceID      string // the provider's id; "" until it made one
	Intent               string // "" is none
	Provisioning         JSON[Provisioning]
	EnrollmentToken      []byte // sealed; nil but between intent and outcome
	ErrorMessage         string
	PoolState            string // "" is none
	Cordon               JSON[*Cordon]
	Hold                 JSON[*Hold]
	DrainedAt            *Time // when a drain ended what its modules run; nil: they run
	CreatedAt            Time
	UpdatedAt            Time
	TerminatedAt         *Time
	Revision             int64
}

// Live says that the instance has not ended.
func (i Instance) Live() bool { return i.Status != InstanceTerminated }

// Leaving says that the instance's memberships have ended, because its machine is to end.
func (i Instance) Leaving() bool { return i.Provisioning.V.Leaving != nil }

const instanceColumns = `id, account_id, node_id, name, description, variety, status, architecture, config, private_ip, public_ip,
	vpn_ip_address, network_profile, network_profile_source, provider_id, region_id, instance_type_id, coalesce(cloud_instance_id, ''),
	coalesce(intent, ''), provisioning, enrollment_token, error_message, coalesce(pool_state, ''), cordon, hold, drained_at, created_at,
	updated_at, terminated_at, revision`

func scanInstance(v *View, s scanner) (Instance, error) {
	var i Instance
	err := s.Scan(&i.ID, &i.AccountID, &i.NodeID, &i.Name, &i.Description, &i.Variety, &i.Status, &i.Architecture, &i.Config,
		&i.PrivateIP, &i.PublicIP, &i.VPNAddress, &i.NetworkProfile, &i.NetworkProfileSource, &i.ProviderID, &i.RegionID,
		&i.InstanceTypeID, &i.CloudInstanceID, &i.Intent, &i.Provisioning, &i.EnrollmentToken, &i.ErrorMessage, &i.PoolState,
		&i.Cordon, &i.Hold, &i.DrainedAt, &i.CreatedAt, &i.UpdatedAt, &i.TerminatedAt, &i.Revision)
	if err != nil {
		return i, fmt.Errorf("read instance: %w", err)
	}
	v.noteRow("instances", string(i.ID), i.Revision)
	return i, nil
}

// InstanceByID finds an instance.
func InstanceByID(ctx context.Context, v *View, acct AccountID, id InstanceID) (Instance, error) {
	return scanInstance(v, v.queryRow(ctx, `SELECT `+instanceColumns+` FROM instances WHERE account_id = ? AND id = ?`, acct, id))
}

// InstanceByIDAnyAccount finds an instance for the agent API and for the compiler, whose caller has proven who it is.
func InstanceByIDAnyAccount(ctx context.Context, v *View, id InstanceID) (Instance, error) {
	return scanInstance(v, v.queryRow(ctx, `SELECT `+instanceColumns+` FROM instances WHERE id = ?`, id))
}

// InstanceByName finds the live instance of a name.
func InstanceByName(ctx context.Context, v *View, acct AccountID, name string) (Instance, error) {
	return scanInstance(v, v.queryRow(ctx, `SELECT `+instanceColumns+` FROM instances WHERE account_id = ? AND name = ?
		AND status <> 'terminated'`, acct, name))
}

// InstancesByNode lists a node's instances, terminated ones too, oldest first.
func InstancesByNode(ctx context.Context, v *View, acct AccountID, node NodeID) ([]Instance, error) {
	return collect(v, ctx, scanInstance, `SELECT `+instanceColumns+` FROM instances WHERE account_id = ? AND node_id = ?
		ORDER BY created_at, id`, acct, node)
}

// Instances lists an account's instances by name, of one name the latest first; node, template and status narrow where not empty.
func Instances(ctx context.Context, v *View, acct AccountID, node NodeID, template TemplateID, status string) ([]Instance, error) {
	return collect(v, ctx, scanInstance, `SELECT `+instanceColumns+` FROM instances WHERE account_id = ?1 AND (?2 = '' OR node_id = ?2)
		AND (?3 = '' OR node_id IN (SELECT n.id FROM nodes n WHERE n.template_id = ?3)) AND (?4 = '' OR status = ?4)
		ORDER BY name, created_at DESC, id DESC`, acct, node, template, status)
}

// InstancesOfModule lists the live instances whose nodes have an enabled assignment of a module, oldest first.
func InstancesOfModule(ctx context.Context, v *View, acct AccountID, module ModuleID) ([]Instance, error) {
	return collect(v, ctx, scanInstance, `SELECT `+instanceColumns+` FROM instances WHERE account_id = ?1 AND status <> 'terminated'
		AND node_id IN (SELECT a.node_id FROM assignments a WHERE a.account_id = ?1 AND a.module_id = ?2 AND a.enabled)
		ORDER BY created_at, id`, acct, module)
}

// InstancesWithIntent lists the instances of all accounts whose machine was acted on without an outcome.
func InstancesWithIntent(ctx context.Context, v *View) ([]Instance, error) {
	return collect(v, ctx, scanInstance, `SELECT `+instanceColumns+` FROM instances WHERE intent IS NOT NULL ORDER BY created_at, id`)
}

// InsertInstance makes an instance.
func InsertInstance(ctx context.Context, tx *Tx, i Instance) (Instance, error) {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return i, err
	}
	i.CreatedAt, i.UpdatedAt, i.Revision = At(tx.now), At(tx.now), revision
	err = tx.exec(ctx, `INSERT INTO instances (id, account_id, node_id, name, description, variety, status, architecture, config,
		private_ip, public_ip, vpn_ip_address, network_profile, network_profile_source, provider_id, region_id, instance_type_id,
		cloud_instance_id, intent, provisioning, enrollment_token, error_message, pool_state, cordon, hold, created_at, updated_at,
		terminated_at, revision) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`,
		i.ID, i.AccountID, i.NodeID, i.Name, i.Description, i.Variety, i.Status, i.Architecture, i.Config, i.PrivateIP, i.PublicIP,
		i.VPNAddress, i.NetworkProfile, i.NetworkProfileSource, i.ProviderID, i.RegionID, i.InstanceTypeID, nullable(i.CloudInstanceID),
		nullable(i.Intent), i.Provisioning, i.EnrollmentToken, i.ErrorMessage, nullable(i.PoolState), i.Cordon, i.Hold, i.CreatedAt,
		i.UpdatedAt, i.TerminatedAt, i.Revision)
	if err != nil {
		return i, fmt.Errorf("write instance: %w", err)
	}
	return i, nil
}

// UpdateInstance writes an instance's row.
func UpdateInstance(ctx context.Context, tx *Tx, i Instance) (Instance, error) {
	revision, err := tx.Revision(ctx)
	if err != nil {
		return i, err
	}
	i.UpdatedAt, i.Revision = At(tx.now), revision
	err = tx.exec(ctx, `UPDATE instances SET name = ?, description = ?, status = ?, architecture = ?, config = ?, private_ip = ?,
		public_ip = ?, vpn_ip_address = ?, network_profile = ?, network_profile_source = ?, cloud_instance_id = ?, intent = ?,
		provisioning = ?, enrollment_token = ?, error_message = ?, pool_state = ?, cordon = ?, hold = ?, drained_at = ?, updated_at = ?,
		terminated_at = ?, revision = ? WHERE account_id = ? AND id = ?`,
		i.Name, i.Description, i.Status, i.Architecture, i.Config, i.PrivateIP, i.PublicIP, i.VPNAddress, i.NetworkProfile,
		i.NetworkProfileSource, nullable(i.CloudInstanceID), nullable(i.Intent), i.Provisioning, i.EnrollmentToken, i.ErrorMessage,
		nullable(i.PoolState), i.Cordon, i.Hold, i.DrainedAt,
		i.UpdatedAt, i.TerminatedAt, i.Revision, i.AccountID, i.ID)
	if err != nil {
		return i, fmt.Errorf("write instance: %w", err)
	}
	return i, nil
}

// HeldInstances lists the instances of all accounts on which operations are held, or were until the hold's time was over.
func HeldInstances(ctx context.Context, v *View) ([]Instance, error) {
	return collect(v, ctx, scanInstance, `SELECT `+instanceColumns+` FROM instances WHERE hold IS NOT NULL AND hold <> 'null' ORDER BY id`)
}

// instanceTables are the tables whose rows only tell of an instance.
var instanceTables = []string{"certificates", "documents", "enrollment_tokens", "instance_reports"}

// RowsOfInstance counts what only tells of an instance, by table; tables without such a row are left out.
func RowsOfInstance(ctx context.Context, v *View, id InstanceID) (map[string]int64, error) {
	counts := map[string]int64{}
	for _, table := range instanceTables {
		var n int64
		if err := v.queryRow(ctx, `SELECT count(*) FROM `+table+` WHERE instance_id = ?`, id).Scan(&n); err != nil {
			return nil, fmt.Errorf("count %s of an instance: %w", table, err)
		}
		if n > 0 {
			counts[table] = n
		}
	}
	return counts, nil
}

// DeleteInstance removes a terminated instance with what only told of it. The departure of a machine that has not cleaned up
// stays: by it the machine is told to leave.
func DeleteInstance(ctx context.Context, tx *Tx, acct AccountID, id InstanceID) error {
	for _, table := range instanceTables {
		if err := tx.exec(ctx, `DELETE FROM `+table+` WHERE instance_id = ?`, id); err != nil {
			return fmt.Errorf("remove %s of an instance: %w", table, err)
		}
	}
	if err := tx.exec(ctx, `DELETE FROM departures WHERE instance_id = ? AND cleaned_at IS NOT NULL`, id); err != nil {
		return fmt.Errorf("remove departure: %w", err)
	}
	if err := tx.exec(ctx, `DELETE FROM instances WHERE account_id = ? AND id = ?`, acct, id); err != nil {
		return fmt.Errorf("remove instance: %w", err)
	}
	return nil
}
