package tools

import (
	"context"

	"powernode/platform/fleet"
	"powernode/store"
)

func platformVerbs() []*Definition {
	return []*Definition{createPlatform(), listArchitectures(), getArchitecture()}
}

type createPlatformArgs struct {
	Name           string               `json:"name"`
	ArchitectureID store.ArchitectureID `json:"architecture_id"`
	OS             string               `json:"os"`
	Description    string               `json:"description"`
	Enabled        bool                 `json:"enabled"`
}

func (a createPlatformArgs) input() fleet.PlatformInput {
	return fleet.PlatformInput{Name: a.Name, ArchitectureID: a.ArchitectureID, OS: a.OS, Description: a.Description, Enabled: a.Enabled}
}

type createPlatformResult struct {
	Platform platformObject `json:"platform"`
	Written
}

func createPlatform() *Definition {
	return define("system_create_platform", handler[createPlatformArgs, createPlatformResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a createPlatformArgs) error {
			return p.Fleet.CheckCreatePlatform(ctx, v, c.AccountID, a.input())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a createPlatformArgs) (r createPlatformResult, err error) {
			made, err := p.Fleet.CreatePlatform(ctx, tx, c.AccountID, a.input())
			r.Platform = platformObject{ID: made.ID, Name: made.Name, ArchitectureID: made.ArchitectureID, OS: made.OS, Enabled: made.Enabled,
				Description: made.Description}
			return r, err
		},
	})
}

type architectureObject struct {
	ID          store.ArchitectureID `json:"id"`
	Name        string               `json:"name"`
	Family      string               `json:"family"`
	AptName     string               `json:"apt_name"`
	RPMName     string               `json:"rpm_name"`
	DisplayName string               `json:"display_name"`
	IsCanonical bool                 `json:"is_canonical"`
	Enabled     bool                 `json:"enabled"`
}

func architectureOf(a store.Architecture) architectureObject { return architectureObject(a) }

type listArchitecturesArgs struct {
	Family      string `json:"family"`
	IsCanonical *bool  `json:"is_canonical"`
	Enabled     *bool  `json:"enabled"`
	Limit       int    `json:"limit"`
	Cursor      string `json:"cursor"`
}

func (a listArchitecturesArgs) takes(x store.Architecture) bool {
	return (a.Family == "" || a.Family == x.Family) && (a.IsCanonical == nil || *a.IsCanonical == x.IsCanonical) &&
		(a.Enabled == nil || *a.Enabled == x.Enabled)
}

type listArchitecturesResult struct {
	Architectures []architectureObject `json:"architectures"`
	Page
}

func listArchitectures() *Definition {
	const verb = "system_list_architectures"
	return define(verb, handler[listArchitecturesArgs, listArchitecturesResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a listArchitecturesArgs) (r listArchitecturesResult, err error) {
			all, err := store.Architectures(ctx, v)
			if err != nil {
				return r, err
			}
			matching := []store.Architecture{}
			for _, x := range all {
				if a.takes(x) {
					matching = append(matching, x)
				}
			}
			filter := []any{a.Family, a.IsCanonical, a.Enabled}
			matching, r.Page, err = page(verb, filter, a.Limit, a.Cursor, matching, func(x store.Architecture) string { return string(x.ID) })
			r.Architectures = mapped(matching, architectureOf)
			return r, err
		},
	})
}

type architectureArgs struct {
	ArchitectureID store.ArchitectureID `json:"architecture_id"`
}

type getArchitectureResult struct {
	Architecture architectureObject `json:"architecture"`
}

func getArchitecture() *Definition {
	return define("system_get_architecture", handler[architectureArgs, getArchitectureResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a architectureArgs) (r getArchitectureResult, err error) {
			found, err := fleet.ArchitectureByID(ctx, v, a.ArchitectureID)
			r.Architecture = architectureOf(found)
			return r, err
		},
	})
}
