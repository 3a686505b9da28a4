package tools

import (
	"context"
	"errors"

	"powernode/schema"
	"powernode/store"
)

func providerVerbs() []*Definition {
	return []*Definition{listPlatforms(), listProviders(), getProvider(), listRegions(), listInstanceTypes()}
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

type getProviderArgs struct {
	ID store.ProviderID `json:"id"`
}

type getProviderResult struct {
	Provider     providerObject `json:"provider"`
	Capabilities []string       `json:"capabilities"`
}

func getProvider() *Definition {
	return define("system_get_provider", handler[getProviderArgs, getProviderResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a getProviderArgs) (r getProviderResult, err error) {
			found, err := store.ProviderByID(ctx, v, c.AccountID, a.ID)
			if errors.Is(err, store.ErrNoRow) {
				return r, schema.Errorf(schema.NotFound, "provider not found")
			}
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

type listRegionsResult struct {
	Regions []regionObject `json:"regions"`
	Page
}

func listRegions() *Definition {
	return define("system_list_regions", handler[ofProviderArgs, listRegionsResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a ofProviderArgs) (r listRegionsResult, err error) {
			all, err := store.Regions(ctx, v, c.AccountID, a.ProviderID)
			if err != nil {
				return r, err
			}
			all, r.Page, err = page("system_list_regions", a.ProviderID, a.Limit, a.Cursor, all, func(x store.Region) string { return string(x.ID) })
			r.Regions = mapped(all, func(x store.Region) regionObject {
				return regionObject{ID: x.ID, ProviderID: x.ProviderID, Name: x.Name, RegionCode: x.RegionCode, Enabled: x.Enabled,
					MachineImage: orNull(x.MachineImage)}
			})
			return r, err
		},
	})
}

type instanceTypeObject struct {
	ID               store.InstanceTypeID `json:"id"`
	ProviderID       store.ProviderID     `json:"provider_id"`
	Name             string               `json:"name"`
	InstanceTypeCode string               `json:"instance_type_code"`
	VCPUs            int64                `json:"vcpus"`
	MemoryMB         int64                `json:"memory_mb"`
	StorageGB        int64                `json:"storage_gb"`
	HourlyPrice      *float64             `json:"hourly_price"`
	Enabled          bool                 `json:"enabled"`
}

type listInstanceTypesResult struct {
	InstanceTypes []instanceTypeObject `json:"instance_types"`
	Page
}

func listInstanceTypes() *Definition {
	const verb = "system_list_instance_types"
	return define(verb, handler[ofProviderArgs, listInstanceTypesResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a ofProviderArgs) (r listInstanceTypesResult, err error) {
			all, err := store.InstanceTypes(ctx, v, c.AccountID, a.ProviderID)
			if err != nil {
				return r, err
			}
			all, r.Page, err = page(verb, a.ProviderID, a.Limit, a.Cursor, all, func(t store.InstanceType) string { return string(t.ID) })
			r.InstanceTypes = mapped(all, func(t store.InstanceType) instanceTypeObject {
				return instanceTypeObject{ID: t.ID, ProviderID: t.ProviderID, Name: t.Name, InstanceTypeCode: t.InstanceTypeCode, VCPUs: t.VCPUs,
					MemoryMB: t.MemoryMB, StorageGB: t.StorageGB, HourlyPrice: t.HourlyPrice, Enabled: t.Enabled}
			})
			return r, err
		},
	})
}
