package tools

import (
	"context"

	"powernode/platform/fleet"
	"powernode/schema"
	"powernode/store"
)

func providerVerbs() []*Definition {
	return []*Definition{listPlatforms(), listProviders(), getProvider(), createProvider(), updateProvider(), deleteProvider(),
		listRegions(), createRegion(), listInstanceTypes(), createInstanceType()}
}

type pageArgs struct {
	Limit  int    `json:"limit"`
	Cursor string `json:"cursor"`
}

type platformObject struct {
	ID             store.PlatformID     `json:"id"`
	Name           string               `json:"name"`
	ArchitectureID store.ArchitectureID `json:"architecture_id"`
	OS             string               `json:"os"`
	Enabled        bool                 `json:"enabled"`
	Description    string               `json:"description"`
}

type listPlatformsResult struct {
	Platforms []platformObject `json:"platforms"`
	Page
}

func listPlatforms() *Definition {
	return define("system_list_platforms", handler[pageArgs, listPlatformsResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a pageArgs) (r listPlatformsResult, err error) {
			all, err := store.Platforms(ctx, v, c.AccountID)
			if err != nil {
				return r, err
			}
			all, r.Page, err = page("system_list_platforms", nil, a.Limit, a.Cursor, all, func(p store.Platform) string { return string(p.ID) })
			r.Platforms = mapped(all, func(p store.Platform) platformObject {
				return platformObject{ID: p.ID, Name: p.Name, ArchitectureID: p.ArchitectureID, OS: p.OS, Enabled: p.Enabled, Description: p.Description}
			})
			return r, err
		},
	})
}

type providerObject struct {
	ID           store.ProviderID `json:"id"`
	Name         string           `json:"name"`
	ProviderType string           `json:"provider_type"`
	Description  string           `json:"description"`
	Enabled      bool             `json:"enabled"`
	Config       store.Object     `json:"config"`
	CreatedAt    store.Time       `json:"created_at"`
}

func providerOf(p store.Provider) providerObject {
	return providerObject{ID: p.ID, Name: p.Name, ProviderType: p.ProviderType, Description: p.Description, Enabled: p.Enabled,
		Config: p.Config.V, CreatedAt: p.CreatedAt}
}

type listProvidersResult struct {
	Providers []providerObject `json:"providers"`
	Page
}

func listProviders() *Definition {
	return define("system_list_providers", handler[pageArgs, listProvidersResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a pageArgs) (r listProvidersResult, err error) {
			all, err := store.Providers(ctx, v, c.AccountID)
			if err != nil {
				return r, err
			}
			all, r.Page, err = page("system_list_providers", nil, a.Limit, a.Cursor, all, func(p store.Provider) string { return string(p.ID) })
			r.Providers = mapped(all, providerOf)
			return r, err
		},
	})
}

type providerArgs struct {
	ID store.ProviderID `json:"id"`
}

type getProviderResult struct {
	Provider     providerObject `json:"provider"`
	Capabilities []string       `json:"capabilities"`
}

func getProvider() *Definition {
	return define("system_get_provider", handler[providerArgs, getProviderResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a providerArgs) (r getProviderResult, err error) {
			found, err := fleet.ProviderByID(ctx, v, c.AccountID, a.ID)
			if err != nil {
				return r, err
			}
			r.Provider, r.Capabilities = providerOf(found), []string{}
			if adapter := p.Fleet.Providers[found.ProviderType]; adapter != nil {
				for _, capability := range adapter.Capabilities() {
					r.Capabilities = append(r.Capabilities, string(capability))
				}
			}
			return r, nil
		},
	})
}

type createProviderArgs struct {
	Name         string       `json:"name"`
	ProviderType string       `json:"provider_type"`
	Description  string       `json:"description"`
	Enabled      bool         `json:"enabled"`
	Config       store.Object `json:"config"`
}

func (a createProviderArgs) input() fleet.ProviderInput {
	return fleet.ProviderInput{Name: a.Name, Type: a.ProviderType, Description: a.Description, Enabled: a.Enabled, Config: a.Config}
}

type providerResult struct {
	Provider providerObject `json:"provider"`
	Written
}

func createProvider() *Definition {
	return define("system_create_provider", handler[createProviderArgs, providerResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a createProviderArgs) error {
			return p.Fleet.CheckCreateProvider(ctx, v, c.AccountID, a.input())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a createProviderArgs) (r providerResult, err error) {
			created, err := p.Fleet.CreateProvider(ctx, tx, c.AccountID, a.input())
			r.Provider = providerOf(created)
			r.Hint = &schema.Hint{Verb: "system_list_regions", Text: "It has the regions and instance types that its type starts with; they and system_create_provider_region add to them."}
			return r, err
		},
	})
}

type updateProviderArgs struct {
	ID          store.ProviderID `json:"id"`
	Name        *string          `json:"name"`
	Description *string          `json:"description"`
	Enabled     *bool            `json:"enabled"`
	Config      store.Object     `json:"config"`
}

func (a updateProviderArgs) change() fleet.ProviderChange {
	return fleet.ProviderChange{Name: a.Name, Description: a.Description, Enabled: a.Enabled, Config: a.Config}
}

func updateProvider() *Definition {
	return define("system_update_provider", handler[updateProviderArgs, providerResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a updateProviderArgs) error {
			if a.Name == nil && a.Description == nil && a.Enabled == nil && a.Config == nil {
				return nothingToUpdate("name", "description", "enabled", "config")
			}
			return p.Fleet.CheckUpdateProvider(ctx, v, c.AccountID, a.ID, a.change())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a updateProviderArgs) (providerResult, error) {
			updated, err := p.Fleet.UpdateProvider(ctx, tx, c.AccountID, a.ID, a.change())
			return providerResult{Provider: providerOf(updated)}, err
		},
	})
}

type deleteProviderResult struct {
	Deleted bool             `json:"deleted"`
	ID      store.ProviderID `json:"id"`
	Removed fleet.Removed    `json:"removed"`
	Written
}

func deleteProvider() *Definition {
	return define("system_delete_provider", handler[providerArgs, deleteProviderResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a providerArgs) error {
			return p.Fleet.CheckDeleteProvider(ctx, v, c.AccountID, a.ID)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a providerArgs) (deleteProviderResult, error) {
			removed, err := p.Fleet.DeleteProvider(ctx, tx, c.AccountID, a.ID)
			return deleteProviderResult{Deleted: true, ID: a.ID, Removed: removed}, err
		},
	})
}

type ofProviderArgs struct {
	ProviderID store.ProviderID `json:"provider_id"`
	Limit      int              `json:"limit"`
	Cursor     string           `json:"cursor"`
}

type regionObject struct {
	ID           store.RegionID   `json:"id"`
	ProviderID   store.ProviderID `json:"provider_id"`
	Name         string           `json:"name"`
	RegionCode   string           `json:"region_code"`
	Enabled      bool             `json:"enabled"`
	MachineImage *string          `json:"machine_image"`
}

func regionOf(x store.Region) regionObject {
	return regionObject{ID: x.ID, ProviderID: x.ProviderID, Name: x.Name, RegionCode: x.RegionCode, Enabled: x.Enabled,
		MachineImage: orNull(x.MachineImage)}
}

// createdRegion is a region whole.
type createdRegion struct {
	regionObject
	Description string     `json:"description"`
	EndpointURL *string    `json:"endpoint_url"`
	CreatedAt   store.Time `json:"created_at"`
}

type createRegionArgs struct {
	ProviderID   store.ProviderID `json:"provider_id"`
	Name         string           `json:"name"`
	RegionCode   string           `json:"region_code"`
	Description  string           `json:"description"`
	EndpointURL  string           `json:"endpoint_url"`
	Enabled      bool             `json:"enabled"`
	MachineImage string           `json:"machine_image"`
}

func (a createRegionArgs) input() fleet.RegionInput {
	return fleet.RegionInput{ProviderID: a.ProviderID, Name: a.Name, Code: a.RegionCode, Description: a.Description, EndpointURL: a.EndpointURL,
		Enabled: a.Enabled, MachineImage: a.MachineImage}
}

type createRegionResult struct {
	Region createdRegion `json:"region"`
	Written
}

func createRegion() *Definition {
	return define("system_create_provider_region", handler[createRegionArgs, createRegionResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a createRegionArgs) error {
			return p.Fleet.CheckCreateRegion(ctx, v, c.AccountID, a.input())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a createRegionArgs) (r createRegionResult, err error) {
			region, warnings, err := p.Fleet.CreateRegion(ctx, tx, c.AccountID, a.input())
			r.Region = createdRegion{regionObject: regionOf(region), Description: region.Description, EndpointURL: orNull(region.EndpointURL),
				CreatedAt: region.CreatedAt}
			r.warned(warnings)
			return r, err
		},
	})
}

type listRegionsResult struct {
	Regions []regionObject `json:"regions"`
	Page
}

func listRegions() *Definition {
	return define("system_list_regions", handler[ofProviderArgs, listRegionsResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a ofProviderArgs) error {
			return found(ctx, v, c, a.ProviderID, fleet.ProviderByID)
		},
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a ofProviderArgs) (r listRegionsResult, err error) {
			all, err := store.Regions(ctx, v, c.AccountID, a.ProviderID)
			if err != nil {
				return r, err
			}
			all, r.Page, err = page("system_list_regions", a.ProviderID, a.Limit, a.Cursor, all, func(x store.Region) string { return string(x.ID) })
			r.Regions = mapped(all, regionOf)
			return r, err
		},
	})
}

type instanceTypeObject struct {
	ID               store.InstanceTypeID `json:"id"`
	ProviderID       store.ProviderID     `json:"provider_id"`
	Name             string               `json:"name"`
	InstanceTypeCode string               `json:"instance_type_code"`
	VCPUs            *int64               `json:"vcpus"`
	MemoryMB         *int64               `json:"memory_mb"`
	StorageGB        *int64               `json:"storage_gb"`
	HourlyPrice      *float64             `json:"hourly_price"`
	Enabled          bool                 `json:"enabled"`
}

func instanceTypeOf(t store.InstanceType) instanceTypeObject {
	return instanceTypeObject{ID: t.ID, ProviderID: t.ProviderID, Name: t.Name, InstanceTypeCode: t.InstanceTypeCode, VCPUs: known(t.VCPUs),
		MemoryMB: known(t.MemoryMB), StorageGB: known(t.StorageGB), HourlyPrice: t.HourlyPrice, Enabled: t.Enabled}
}

// known is a size, or null where it is not known.
func known(n int64) *int64 {
	if n == 0 {
		return nil
	}
	return &n
}

// createdInstanceType is an instance type whole.
type createdInstanceType struct {
	instanceTypeObject
	Description string       `json:"description"`
	Specs       store.Object `json:"specs"`
	CreatedAt   store.Time   `json:"created_at"`
}

type createInstanceTypeArgs struct {
	ProviderID       store.ProviderID `json:"provider_id"`
	Name             string           `json:"name"`
	InstanceTypeCode string           `json:"instance_type_code"`
	Description      string           `json:"description"`
	VCPUs            int64            `json:"vcpus"`
	MemoryMB         int64            `json:"memory_mb"`
	StorageGB        int64            `json:"storage_gb"`
	HourlyPrice      *float64         `json:"hourly_price"`
	Enabled          bool             `json:"enabled"`
	Specs            store.Object     `json:"specs"`
}

func (a createInstanceTypeArgs) input() fleet.InstanceTypeInput {
	return fleet.InstanceTypeInput{ProviderID: a.ProviderID, Name: a.Name, Code: a.InstanceTypeCode, Description: a.Description, VCPUs: a.VCPUs,
		MemoryMB: a.MemoryMB, StorageGB: a.StorageGB, HourlyPrice: a.HourlyPrice, Enabled: a.Enabled, Specs: a.Specs}
}

type createInstanceTypeResult struct {
	InstanceType createdInstanceType `json:"instance_type"`
	Written
}

func createInstanceType() *Definition {
	return define("system_create_provider_instance_type", handler[createInstanceTypeArgs, createInstanceTypeResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a createInstanceTypeArgs) error {
			return p.Fleet.CheckCreateInstanceType(ctx, v, c.AccountID, a.input())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a createInstanceTypeArgs) (r createInstanceTypeResult, err error) {
			t, err := p.Fleet.CreateInstanceType(ctx, tx, c.AccountID, a.input())
			r.InstanceType = createdInstanceType{instanceTypeObject: instanceTypeOf(t), Description: t.Description, Specs: t.Specs.V, CreatedAt: t.CreatedAt}
			return r, err
		},
	})
}

type listInstanceTypesResult struct {
	InstanceTypes []instanceTypeObject `json:"instance_types"`
	Page
}

func listInstanceTypes() *Definition {
	const verb = "system_list_instance_types"
	return define(verb, handler[ofProviderArgs, listInstanceTypesResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a ofProviderArgs) error {
			return found(ctx, v, c, a.ProviderID, fleet.ProviderByID)
		},
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a ofProviderArgs) (r listInstanceTypesResult, err error) {
			all, err := store.InstanceTypes(ctx, v, c.AccountID, a.ProviderID)
			if err != nil {
				return r, err
			}
			all, r.Page, err = page(verb, a.ProviderID, a.Limit, a.Cursor, all, func(t store.InstanceType) string { return string(t.ID) })
			r.InstanceTypes = mapped(all, instanceTypeOf)
			return r, err
		},
	})
}
