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
	IntentCreate    = "create"
	IntentTerminate = "terminate"
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
	coalesce(intent, ''), provisioning, enrollment_token, error_message, coalesce(pool_state, ''), cordon, hold, created_at, updated_at,
	terminated_at, revision`

func scanInstance(v *View, s scanner) (Instance, error) {
	var i Instance
	err := s.Scan(&i.ID, &i.AccountID, &i.NodeID, &i.Name, &i.Description, &i.Variety, &i.Status, &i.Architecture, &i.Config,
		&i.PrivateIP, &i.PublicIP, &i.VPNAddress, &i.NetworkProfile, &i.NetworkProfileSource, &i.ProviderID, &i.RegionID,
		&i.InstanceTypeID, &i.CloudInstanceID, &i.Intent, &i.Provisioning, &i.EnrollmentToken, &i.ErrorMessage, &i.PoolState,
		&i.Cordon, &i.Hold, &i.CreatedAt, &i.UpdatedAt, &i.TerminatedAt, &i.Revision)
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
		provisioning = ?, enrollment_token = ?, error_message = ?, pool_state = ?, cordon = ?, hold = ?, updated_at = ?,
		terminated_at = ?, revision = ? WHERE account_id = ? AND id = ?`,
		i.Name, i.Description, i.Status, i.Architecture, i.Config, i.PrivateIP, i.PublicIP, i.VPNAddress, i.NetworkProfile,
		i.NetworkProfileSource, nullable(i.CloudInstanceID), nullable(i.Intent), i.Provisioning, i.EnrollmentToken, i.ErrorMessage,
		nullable(i.PoolState), i.Cordon, i.Hold, i.UpdatedAt, i.TerminatedAt, i.Revision, i.AccountID, i.ID)
	if err != nil {
		return i, fmt.Errorf("write instance: %w", err)
	}
	return i, nil
}

// DeleteInstance removes a terminated instance with what only told of it.
func DeleteInstance(ctx context.Context, tx *Tx, acct AccountID, id InstanceID) error {
	for _, table := range []string{"enrollment_tokens", "certificates", "instance_reports", "documents"} {
		if err := tx.exec(ctx, `DELETE FROM `+table+` WHERE instance_id = ?`, id); err != nil {
			return fmt.Errorf("remove %s of an instance: %w", table, err)
		}
	}
	if err := tx.exec(ctx, `DELETE FROM instances WHERE account_id = ? AND id = ?`, acct, id); err != nil {
		return fmt.Errorf("remove instance: %w", err)
	}
	return nil
}
