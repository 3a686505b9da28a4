package cluster

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"powernode/platform/network"
	"powernode/platform/signal"
	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
)

// CreateInput declares a cluster before it has a server.
type CreateInput struct {
	Name        string
	NetworkID   store.NetworkID
	CNIPlugin   string // "": flannel
	PodCIDR     netip.Prefix
	ServiceCIDR netip.Prefix
	Version     string // of module k3s-server; "": its current one
}

// CheckCreate refuses what Create could not do.
func (s *Service) CheckCreate(ctx context.Context, v *store.View, acct store.AccountID, in CreateInput) error {
	if in.CNIPlugin == "ovn_kubernetes" {
		return schema.Errorf(schema.PreconditionFailed, "not available yet: cni_plugin ovn_kubernetes")
	}
	if err := checkRange("/pod_cidr", in.PodCIDR, 48, 63); err != nil {
		return err
	}
	if err := checkRange("/service_cidr", in.ServiceCIDR, 108, 124); err != nil {
		return err
	}
	n, err := store.NetworkByID(ctx, v, acct, in.NetworkID)
	if errors.Is(err, store.ErrNoRow) {
		return schema.Errorf(schema.NotFound, "network not found")
	}
	if err != nil {
		return err
	}
	if n.Status != "active" && n.Status != "registered" {
		return schema.Errorf(schema.PreconditionFailed, "network %s is %s", n.Name, n.Status).WithDetail("allowed", []string{"active", "registered"})
	}
	if err := checkMTU(n); err != nil {
		return err
	}
	if taken, err := nameTaken(ctx, v, acct, in.Name); err != nil || taken {
		return orConflict(err, "cluster name %q is already in use", in.Name)
	}
	_, err = serverVersion(ctx, v, acct, in.Version)
	return err
}

// checkRange refuses a range that K3s could not start with: pods get a /64 a node, of at most 2^16, and an API server
// takes no larger range of services than a /108. IPv4 needs node addresses of that family, which the overlay lacks.
func checkRange(pointer string, p netip.Prefix, low, high int) error {
	name := strings.TrimPrefix(pointer, "/")
	switch {
	case !p.IsValid():
		return nil
	case p.Addr().Is4():
		return schema.Errorf(schema.PreconditionFailed, "not available yet: an IPv4 %s", name).WithDetail("pointer", pointer)
	case p.Bits() < low || p.Bits() > high:
		return schema.InvalidArgument(pointer, p.String(), "%s must have a length of %d to %d (got /%d)", name, low, high, p.Bits())
	}
	return nil
}

// checkMTU refuses a network whose packets are too small for the pods' vxlan: IPv6 needs 1280 inside it.
func checkMTU(n store.Network) error {
	var small *sdwan.MTUError
	if err := sdwan.CheckMTU(n.MTU, true); errors.As(err, &small) {
		return schema.Errorf(schema.PreconditionFailed, "network %s: %s", n.Name, small.Error()).WithDetail("needed", small.Needed).
			WithHint("system_sdwan_update_network", "Raise options.settings.mtu first.")
	}
	return nil
}

// Create declares a cluster: row, API address, ranges and tokens, no server.
func (s *Service) Create(ctx context.Context, tx *store.Tx, acct store.AccountID, in CreateInput) (store.Cluster, error) {
	return s.declare(ctx, tx, acct, in, nil, "verb")
}

// declare writes the row of a cluster with all that its K3s must know before it is installed.
func (s *Service) declare(ctx context.Context, tx *store.Tx, acct store.AccountID, in CreateInput, first *store.Instance, by string) (store.Cluster, error) {
	version, err := serverVersion(ctx, &tx.View, acct, in.Version)
	if err != nil {
		return store.Cluster{}, err
	}
	n, err := store.NetworkByID(ctx, &tx.View, acct, in.NetworkID)
	if err != nil {
		return store.Cluster{}, fmt.Errorf("find the network of cluster %s: %w", in.Name, err)
	}
	if err := checkMTU(n); err != nil {
		return store.Cluster{}, err
	}
	slug, err := freeSlug(ctx, &tx.View, in.Name)
	if err != nil {
		return store.Cluster{}, err
	}
	c := store.Cluster{ID: store.ClusterID(tx.NewID()), AccountID: acct, Name: in.Name, Slug: slug, NetworkID: in.NetworkID, Flavor: "k3s",
		Environment: "custom", Status: StatusPending, K8sVersion: version.Version, VersionID: version.ID, CNIPlugin: "flannel",
		FlannelBackend: "vxlan", Datastore: "etcd", ServerTokenGeneration: 1, AgentTokenGeneration: 1}
	if err := s.takeAddresses(ctx, tx, &c, in, first); err != nil {
		return store.Cluster{}, err
	}
	if err := s.makeTokens(tx, &c); err != nil {
		return store.Cluster{}, err
	}
	if err := store.InsertCluster(ctx, tx, c); err != nil {
		return store.Cluster{}, fmt.Errorf("declare cluster %s: %w", c.Name, err)
	}
	_, err = tx.Audit(ctx, store.AuditEntry{AccountID: acct, Action: "created", ResourceType: "Devops::KubernetesCluster", ResourceID: string(c.ID),
		New: store.Object{"name": c.Name, "network_id": c.NetworkID, "status": c.Status, "pod_cidr": c.PodCIDR.String(),
			"service_cidr": c.ServiceCIDR.String(), "k8s_version": c.K8sVersion}})
	if err != nil {
		return store.Cluster{}, err
	}
	err = signal.Emit(ctx, tx, acct, signal.Event{Kind: "system.k3s_cluster_declared", Subject: signal.Subject{ClusterID: c.ID, NetworkID: c.NetworkID},
		Payload: store.Object{"name": c.Name, "network_id": c.NetworkID, "by": by}})
	if err != nil {
		return store.Cluster{}, err
	}
	tx.TouchNetwork(c.NetworkID)
	if err := touchJoiners(ctx, tx, acct); err != nil {
		return store.Cluster{}, err
	}
	return store.ClusterByID(ctx, &tx.View, acct, c.ID)
}

// takeAddresses gives the cluster its ranges and its API address, held by its first server where that is known.
func (s *Service) takeAddresses(ctx context.Context, tx *store.Tx, c *store.Cluster, in CreateInput, first *store.Instance) error {
	pods, err := s.Network.TakeRange(ctx, tx, c.AccountID, "pod_cidr", in.PodCIDR, string(c.ID), c.Name)
	if err != nil {
		return err
	}
	services, err := s.Network.TakeRange(ctx, tx, c.AccountID, "service_cidr", in.ServiceCIDR, string(c.ID), c.Name)
	if err != nil {
		return err
	}
	c.PodCIDR, c.ServiceCIDR = store.Prefix{Prefix: pods}, store.Prefix{Prefix: services}
	holder := []store.PeerID{}
	if first != nil {
		peer, err := store.PeerOf(ctx, &tx.View, c.AccountID, c.NetworkID, first.ID)
		if err != nil {
			return fmt.Errorf("find the first server's peer: %w", err)
		}
		holder, c.BootstrapInstanceID = append(holder, peer.ID), first.ID
	}
	vip, err := s.Network.CreateVIP(ctx, tx, c.AccountID, network.VIPInput{NetworkID: c.NetworkID, Name: apiName(c.Name), Holder: holder, ClusterID: c.ID})
	if err != nil {
		return err
	}
	c.APIVIPID = vip.ID
	return nil
}

// apiName is the name of a cluster's virtual IP.
func apiName(cluster string) string { return cluster + "-api" }

func (s *Service) makeTokens(tx *store.Tx, c *store.Cluster) error {
	for _, t := range []struct {
		kind   string
		sealed *[]byte
	}{{RoleServer, &c.ServerToken}, {RoleAgent, &c.AgentToken}} {
		random := make([]byte, 24)
		if err := tx.Random(random); err != nil {
			return fmt.Errorf("make the %s token: %w", t.kind, err)
		}
		sealed, err := s.Sealer.Seal(tx, tokenPurpose(c.ID, t.kind), []byte(hex.EncodeToString(random)))
		if err != nil {
			return err
		}
		*t.sealed = sealed
	}
	return nil
}

func tokenPurpose(id store.ClusterID, kind string) string {
	return "clusters:" + string(id) + ":" + kind + "_token"
}

func (s *Service) token(c store.Cluster, kind string) (string, error) {
	sealed := c.AgentToken
	if kind == RoleServer {
		sealed = c.ServerToken
	}
	token, err := s.Sealer.Open(tokenPurpose(c.ID, kind), sealed)
	return string(token), err
}

// serverVersion is the k3s-server version of a name, or the current one; it must be one that may be served.
func serverVersion(ctx context.Context, v *store.View, acct store.AccountID, name string) (store.ModuleVersion, error) {
	m, err := moduleOf(ctx, v, acct, RoleServer)
	if err != nil {
		return store.ModuleVersion{}, err
	}
	var version store.ModuleVersion
	switch {
	case name != "":
		version, err = store.ModuleVersionByName(ctx, v, acct, m.ID, name)
	case m.CurrentVersionID == "":
		return version, schema.Errorf(schema.PreconditionFailed, "module %s has no current version", m.Name)
	default:
		version, err = store.CurrentVersion(ctx, v, m)
	}
	if errors.Is(err, store.ErrNoRow) {
		return version, schema.Errorf(schema.NotFound, "module %s has no version %s", m.Name, schema.Printable(name))
	}
	if err == nil && !version.Servable() {
		err = schema.Errorf(schema.PreconditionFailed, "version %s of module %s is not released", version.Version, m.Name)
	}
	return version, err
}

// agentVersion is the k3s-agent version that has the name of a cluster's version.
func agentVersion(ctx context.Context, v *store.View, c store.Cluster) (store.ModuleVersion, error) {
	server, err := store.ModuleVersionByID(ctx, v, c.AccountID, c.VersionID)
	if err != nil {
		return store.ModuleVersion{}, err
	}
	m, err := moduleOf(ctx, v, c.AccountID, RoleAgent)
	if err != nil {
		return store.ModuleVersion{}, err
	}
	version, err := store.ModuleVersionByName(ctx, v, c.AccountID, m.ID, server.Version)
	switch {
	case err == nil && version.Released(): // also one retired since: the cluster has it
		return version, nil
	case err != nil && !errors.Is(err, store.ErrNoRow):
		return version, err
	}
	return store.ModuleVersion{}, schema.Errorf(schema.PreconditionFailed, "module %s has no version %s that may be served, which cluster %s needs",
		m.Name, server.Version, c.Name).WithHint("system_create_module_version", "Makes a version of module "+m.Name+".")
}

func nameTaken(ctx context.Context, v *store.View, acct store.AccountID, name string) (bool, error) {
	all, err := store.Clusters(ctx, v, acct)
	for _, c := range all {
		if c.Name == name {
			return true, nil
		}
	}
	return false, err
}

// freeName is the wanted name, or the wanted name with the first free number. A cluster's name names its virtual IP too.
func freeName(ctx context.Context, v *store.View, acct store.AccountID, network store.NetworkID, wanted string) (string, error) {
	for n := 1; ; n++ {
		name := numbered(wanted, n)
		taken, err := nameTaken(ctx, v, acct, name)
		if err != nil {
			return name, err
		}
		_, err = store.VirtualIPByName(ctx, v, acct, network, apiName(name))
		if err != nil && !errors.Is(err, store.ErrNoRow) {
			return name, err
		}
		if !taken && err != nil {
			return name, nil
		}
	}
}

// numbered appends a number to a DNS label and keeps it one.
func numbered(name string, n int) string {
	if n == 1 {
		return name
	}
	suffix := fmt.Sprintf("-%d", n)
	if len(name)+len(suffix) > 63 {
		name = strings.TrimRight(name[:63-len(suffix)], "-")
	}
	return name + suffix
}

func freeSlug(ctx context.Context, v *store.View, name string) (string, error) {
	for n := 0; ; n++ {
		slug := name // a cluster's name is a DNS label: its own slug
		if n > 0 {
			slug = fmt.Sprintf("%s-%d", name, n)
		}
		taken, err := store.ClusterSlugTaken(ctx, v, slug)
		if err != nil || !taken {
			return slug, err
		}
	}
}

func orConflict(err error, format string, args ...any) error {
	if err != nil {
		return err
	}
	return schema.Errorf(schema.Conflict, format, args...)
}
