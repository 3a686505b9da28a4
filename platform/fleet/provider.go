package fleet

import (
	"context"
	"slices"
	"sort"
	"strings"

	"powernode/platform/provider"
	"powernode/schema"
	"powernode/store"
)

// Resource types of audit rows about providers.
const (
	resourceProvider     = "System::Provider"
	resourceRegion       = "System::ProviderRegion"
	resourceInstanceType = "System::ProviderInstanceType"
	resourceConnection   = "System::ProviderConnection"
)

// ProviderByID finds a provider, or refuses.
func ProviderByID(ctx context.Context, v *store.View, acct store.AccountID, id store.ProviderID) (store.Provider, error) {
	p, err := store.ProviderByID(ctx, v, acct, id)
	return p, orNotFound(err, "provider not found")
}

// adapter finds what speaks to providers of a type, or refuses.
func (s *Service) adapter(providerType string) (provider.Provider, error) {
	if a := s.Providers[providerType]; a != nil {
		return a, nil
	}
	return nil, schema.Errorf(schema.PreconditionFailed, "not available yet: provider type %s", providerType)
}

// ProviderInput makes a provider.
type ProviderInput struct {
	Name        string
	Type        string
	Description string
	Enabled     bool
	Config      store.Object
}

// CheckCreateProvider refuses what CreateProvider could not do.
func (s *Service) CheckCreateProvider(ctx context.Context, v *store.View, acct store.AccountID, in ProviderInput) error {
	adapter, err := s.adapter(in.Type)
	if err != nil {
		return err
	}
	if err := checkConfigKeys(adapter, in.Config); err != nil {
		return err
	}
	other, err := store.ProviderByName(ctx, v, acct, in.Name)
	return free(err, false, holder{"provider_id", string(other.ID)}, "provider name %q is already in use", in.Name)
}

// checkConfigKeys refuses keys that an adapter would not read.
func checkConfigKeys(adapter provider.Provider, config store.Object) error {
	declared := append([]string{}, adapter.ConfigKeys()...)
	var unknown []string
	for key, value := range config {
		if value != nil && !slices.Contains(declared, key) {
			unknown = append(unknown, key)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	sort.Strings(unknown)
	known := "none"
	if len(declared) > 0 {
		known = strings.Join(declared, ", ")
	}
	return schema.InvalidArgument("/config/"+unknown[0], nil, "Validation failed: config.%s is no key of providers of type %s, which have %s",
		schema.Printable(unknown[0]), adapter.Type(), known).WithDetail("declared", declared)
}

// CreateProvider makes a provider, with the regions and instance types that its type starts with.
func (s *Service) CreateProvider(ctx context.Context, tx *store.Tx, acct store.AccountID, in ProviderInput) (store.Provider, error) {
	p := store.Provider{ID: store.ProviderID(tx.NewID()), AccountID: acct, Name: in.Name, ProviderType: in.Type, Description: in.Description,
		Enabled: in.Enabled, CreatedAt: store.At(tx.Now())}
	p.Config.V = withoutNulls(in.Config)
	if err := store.InsertProvider(ctx, tx, p); err != nil {
		return p, err
	}
	if err := audit(ctx, tx, acct, "created", resourceProvider, string(p.ID), nil, providerValues(p)); err != nil {
		return p, err
	}
	adapter, err := s.adapter(in.Type)
	if err != nil {
		return p, err
	}
	return p, furnishProvider(ctx, tx, p, adapter)
}

// furnishProvider gives a new provider what machines need to be asked for at all.
func furnishProvider(ctx context.Context, tx *store.Tx, p store.Provider, adapter provider.Provider) error {
	regions, err := adapter.Regions(ctx)
	if err != nil {
		return err
	}
	for _, r := range regions {
		if _, err := insertRegion(ctx, tx, regionOf(p, r)); err != nil {
			return err
		}
	}
	types, err := adapter.InstanceTypes(ctx)
	if err != nil {
		return err
	}
	for _, t := range types {
		if _, err := insertInstanceType(ctx, tx, instanceTypeOf(p, t)); err != nil {
			return err
		}
	}
	return nil
}

// withoutNulls is a new object's values: a null in it is a key that is not there.
func withoutNulls(o store.Object) store.Object {
	out := store.Object{}
	for k, v := range o {
		if v != nil {
			out[k] = v
		}
	}
	return out
}

// merged sets keys of an object; a null deletes its key.
func merged(into, change store.Object) store.Object {
	out := store.Object{}
	for _, o := range []store.Object{into, change} {
		for k, v := range o {
			out[k] = v
		}
	}
	return withoutNulls(out)
}

// checkMerged bounds what a merge comes to, as each call's part of it is bounded.
func checkMerged(config store.Object) error {
	if len(mustJSON(config)) > schema.MaxFreeForm {
		return schema.InvalidArgument("/config", nil, "Validation failed: with what is there, config would have more than %d KiB", schema.MaxFreeForm>>10)
	}
	return nil
}

func providerValues(p store.Provider) store.Object {
	return store.Object{"name": p.Name, "provider_type": p.ProviderType, "description": p.Description, "enabled": p.Enabled,
		"config": p.Config.V}
}

// ProviderChange is what an update of a provider gives; nil is not given.
type ProviderChange struct {
	Name        *string
	Description *string
	Enabled     *bool
	Config      store.Object // merged; a null deletes its key
}

// CheckUpdateProvider refuses what UpdateProvider could not do.
func (s *Service) CheckUpdateProvider(ctx context.Context, v *store.View, acct store.AccountID, id store.ProviderID, c ProviderChange) error {
	p, err := ProviderByID(ctx, v, acct, id)
	if err != nil {
		return err
	}
	if c.Config != nil {
		adapter, err := s.adapter(p.ProviderType)
		if err != nil {
			return err
		}
		if err := checkConfigKeys(adapter, c.Config); err != nil {
			return err
		}
		if err := checkMerged(merged(p.Config.V, c.Config)); err != nil {
			return err
		}
	}
	if c.Name == nil {
		return nil
	}
	other, err := store.ProviderByName(ctx, v, acct, *c.Name)
	return free(err, other.ID == p.ID, holder{"provider_id", string(other.ID)}, "provider name %q is already in use", *c.Name)
}

// UpdateProvider changes a provider. Machines that it made stay as they are.
func (s *Service) UpdateProvider(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.ProviderID, c ProviderChange) (store.Provider, error) {
	p, err := ProviderByID(ctx, &tx.View, acct, id)
	if err != nil {
		return p, err
	}
	before := p
	set(&p.Name, c.Name)
	set(&p.Description, c.Description)
	set(&p.Enabled, c.Enabled)
	if c.Config != nil {
		p.Config.V = merged(p.Config.V, c.Config)
	}
	old, now := changed(providerValues(before), providerValues(p))
	if len(now) == 0 {
		return p, nil
	}
	if p, err = store.UpdateProvider(ctx, tx, p); err != nil {
		return p, err
	}
	return p, audit(ctx, tx, acct, "updated", resourceProvider, string(p.ID), old, now)
}

// CheckDeleteProvider refuses while a provider has instances.
func (s *Service) CheckDeleteProvider(ctx context.Context, v *store.View, acct store.AccountID, id store.ProviderID) error {
	p, err := ProviderByID(ctx, v, acct, id)
	if err != nil {
		return err
	}
	live, err := store.LiveInstancesOfProvider(ctx, v, acct, id)
	if err != nil || live == 0 {
		return err
	}
	return schema.Errorf(schema.PreconditionFailed, "provider %s has %d live instances", p.Name, live).WithDetail("live_instances", live).
		WithHint("system_terminate_instance", "End its instances first; system_list_instances lists them.")
}

// Removed counts what went with a provider.
type Removed struct {
	Regions       int64 `json:"regions"`
	InstanceTypes int64 `json:"instance_types"`
	Connections   int64 `json:"connections"`
}

// DeleteProvider removes a provider with its regions, instance types and connections.
func (s *Service) DeleteProvider(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.ProviderID) (Removed, error) {
	p, err := ProviderByID(ctx, &tx.View, acct, id)
	if err != nil {
		return Removed{}, err
	}
	r, err := deleteParts(ctx, tx, p)
	if err != nil {
		return r, err
	}
	if err := store.DeleteProvider(ctx, tx, acct, id); err != nil {
		return r, err
	}
	return r, audit(ctx, tx, acct, "deleted", resourceProvider, string(id), providerValues(p), nil)
}

func deleteParts(ctx context.Context, tx *store.Tx, p store.Provider) (r Removed, err error) {
	regions, err := store.Regions(ctx, &tx.View, p.AccountID, p.ID)
	if err != nil {
		return r, err
	}
	for _, region := range regions {
		if err := store.DeleteRegion(ctx, tx, p.AccountID, region.ID); err != nil {
			return r, err
		}
		if err := audit(ctx, tx, p.AccountID, "deleted", resourceRegion, string(region.ID), regionValues(region), nil); err != nil {
			return r, err
		}
		r.Regions++
	}
	types, err := store.InstanceTypes(ctx, &tx.View, p.AccountID, p.ID)
	if err != nil {
		return r, err
	}
	for _, t := range types {
		if err := store.DeleteInstanceType(ctx, tx, p.AccountID, t.ID); err != nil {
			return r, err
		}
		if err := audit(ctx, tx, p.AccountID, "deleted", resourceInstanceType, string(t.ID), instanceTypeValues(t), nil); err != nil {
			return r, err
		}
		r.InstanceTypes++
	}
	connections, err := store.Connections(ctx, &tx.View, p.AccountID, p.ID)
	if err != nil {
		return r, err
	}
	for _, c := range connections {
		if err := deleteConnection(ctx, tx, c); err != nil {
			return r, err
		}
		r.Connections++
	}
	return r, nil
}

// RegionInput makes a region; an empty code is the name.
type RegionInput struct {
	ProviderID   store.ProviderID
	Name         string
	Code         string
	Description  string
	EndpointURL  string
	Enabled      bool
	MachineImage string
}

// CheckCreateRegion refuses what CreateRegion could not do.
func (s *Service) CheckCreateRegion(ctx context.Context, v *store.View, acct store.AccountID, in RegionInput) error {
	if _, err := ProviderByID(ctx, v, acct, in.ProviderID); err != nil {
		return err
	}
	if err := checkEndpoint(in.EndpointURL); err != nil {
		return err
	}
	all, err := store.Regions(ctx, v, acct, in.ProviderID)
	if err != nil {
		return err
	}
	for _, r := range all {
		if err := named("region", "region_code", in.Name, in.code(), r.Name, r.RegionCode); err != nil {
			return err
		}
	}
	return nil
}

// named refuses a name or code that another row of the provider has, in any case.
func named(what, codeKey, name, code, otherName, otherCode string) error {
	switch {
	case strings.EqualFold(name, otherName):
		return schema.Errorf(schema.Conflict, "%s name %q is already in use", what, schema.Printable(name))
	case strings.EqualFold(code, otherCode):
		return schema.Errorf(schema.Conflict, "%s %q is already in use", codeKey, schema.Printable(code))
	}
	return nil
}

func (in RegionInput) code() string {
	if in.Code == "" {
		return in.Name
	}
	return in.Code
}

// CreateRegion makes a region. What its provider does not read is kept all the same, and told.
func (s *Service) CreateRegion(ctx context.Context, tx *store.Tx, acct store.AccountID, in RegionInput) (store.Region, []Warning, error) {
	p, err := ProviderByID(ctx, &tx.View, acct, in.ProviderID)
	if err != nil {
		return store.Region{}, nil, err
	}
	var warnings []Warning
	if a := s.Providers[p.ProviderType]; in.MachineImage != "" && (a == nil || !provider.Can(a, provider.CapabilityImages)) {
		warnings = append(warnings, Warning{"machine_image_not_used", "provider " + p.Name + " makes machines without an image"})
	}
	r, err := insertRegion(ctx, tx, store.Region{AccountID: acct, ProviderID: p.ID, Name: in.Name, RegionCode: in.code(), Description: in.Description,
		EndpointURL: in.EndpointURL, Enabled: in.Enabled, MachineImage: in.MachineImage})
	return r, warnings, err
}

func regionOf(p store.Provider, r provider.Region) store.Region {
	return store.Region{AccountID: p.AccountID, ProviderID: p.ID, Name: r.Name, RegionCode: r.Code, Description: r.Description, Enabled: true}
}

func insertRegion(ctx context.Context, tx *store.Tx, r store.Region) (store.Region, error) {
	r.ID, r.CreatedAt = store.RegionID(tx.NewID()), store.At(tx.Now())
	if err := store.InsertRegion(ctx, tx, r); err != nil {
		return r, err
	}
	return r, audit(ctx, tx, r.AccountID, "created", resourceRegion, string(r.ID), nil, regionValues(r))
}

func regionValues(r store.Region) store.Object {
	return store.Object{"provider_id": r.ProviderID, "name": r.Name, "region_code": r.RegionCode, "description": r.Description,
		"endpoint_url": orNull(r.EndpointURL), "enabled": r.Enabled, "machine_image": orNull(r.MachineImage)}
}

// InstanceTypeInput makes an instance type; an empty code is the name, zero is not known.
type InstanceTypeInput struct {
	ProviderID                 store.ProviderID
	Name                       string
	Code                       string
	Description                string
	VCPUs, MemoryMB, StorageGB int64
	HourlyPrice                *float64
	Enabled                    bool
	Specs                      store.Object
}

// CheckCreateInstanceType refuses what CreateInstanceType could not do.
func (s *Service) CheckCreateInstanceType(ctx context.Context, v *store.View, acct store.AccountID, in InstanceTypeInput) error {
	if _, err := ProviderByID(ctx, v, acct, in.ProviderID); err != nil {
		return err
	}
	all, err := store.InstanceTypes(ctx, v, acct, in.ProviderID)
	if err != nil {
		return err
	}
	for _, t := range all {
		if err := named("instance type", "instance_type_code", in.Name, in.code(), t.Name, t.InstanceTypeCode); err != nil {
			return err
		}
	}
	return nil
}

func (in InstanceTypeInput) code() string {
	if in.Code == "" {
		return in.Name
	}
	return in.Code
}

// CreateInstanceType makes an instance type.
func (s *Service) CreateInstanceType(ctx context.Context, tx *store.Tx, acct store.AccountID, in InstanceTypeInput) (store.InstanceType, error) {
	t := store.InstanceType{AccountID: acct, ProviderID: in.ProviderID, Name: in.Name, InstanceTypeCode: in.code(), Description: in.Description,
		VCPUs: in.VCPUs, MemoryMB: in.MemoryMB, StorageGB: in.StorageGB, HourlyPrice: in.HourlyPrice, Enabled: in.Enabled}
	t.Specs.V = object(in.Specs)
	return insertInstanceType(ctx, tx, t)
}

func instanceTypeOf(p store.Provider, t provider.InstanceType) store.InstanceType {
	out := store.InstanceType{AccountID: p.AccountID, ProviderID: p.ID, Name: t.Name, InstanceTypeCode: t.Code, Description: t.Description,
		VCPUs: t.VCPUs, MemoryMB: t.MemoryMB, StorageGB: t.StorageGB, Enabled: true}
	out.Specs.V = store.Object{}
	return out
}

func insertInstanceType(ctx context.Context, tx *store.Tx, t store.InstanceType) (store.InstanceType, error) {
	t.ID, t.CreatedAt = store.InstanceTypeID(tx.NewID()), store.At(tx.Now())
	if err := store.InsertInstanceType(ctx, tx, t); err != nil {
		return t, err
	}
	return t, audit(ctx, tx, t.AccountID, "created", resourceInstanceType, string(t.ID), nil, instanceTypeValues(t))
}

func instanceTypeValues(t store.InstanceType) store.Object {
	return store.Object{"provider_id": t.ProviderID, "name": t.Name, "instance_type_code": t.InstanceTypeCode, "description": t.Description,
		"vcpus": t.VCPUs, "memory_mb": t.MemoryMB, "storage_gb": t.StorageGB, "hourly_price": t.HourlyPrice, "enabled": t.Enabled, "specs": t.Specs.V}
}
