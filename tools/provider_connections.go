package tools

import (
	"context"

	"powernode/platform/fleet"
	"powernode/store"
)

func connectionVerbs() []*Definition {
	return []*Definition{listConnections(), getConnection(), createConnection(), updateConnection()}
}

// connectionObject is a provider connection; secrets in its config are hidden.
type connectionObject struct {
	ID          store.ConnectionID `json:"id"`
	ProviderID  store.ProviderID   `json:"provider_id"`
	Name        string             `json:"name"`
	Description string             `json:"description"`
	EndpointURL *string            `json:"endpoint_url"`
	Enabled     bool               `json:"enabled"`
	Config      store.Object       `json:"config"`
	Status      string             `json:"status"`
	TestedAt    *store.Time        `json:"tested_at"`
	CreatedAt   store.Time         `json:"created_at"`
	UpdatedAt   store.Time         `json:"updated_at"`
}

func connectionOf(c store.Connection) connectionObject {
	return connectionObject{ID: c.ID, ProviderID: c.ProviderID, Name: c.Name, Description: c.Description, EndpointURL: orNull(c.EndpointURL),
		Enabled: c.Enabled, Config: c.Masked.V, Status: c.Status, TestedAt: c.TestedAt, CreatedAt: c.CreatedAt, UpdatedAt: c.UpdatedAt}
}

type listConnectionsResult struct {
	Connections []connectionObject `json:"connections"`
	Page
}

func listConnections() *Definition {
	const verb = "system_list_provider_connections"
	return define(verb, handler[ofProviderArgs, listConnectionsResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a ofProviderArgs) error {
			return found(ctx, v, c, a.ProviderID, fleet.ProviderByID)
		},
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a ofProviderArgs) (r listConnectionsResult, err error) {
			all, err := store.Connections(ctx, v, c.AccountID, a.ProviderID)
			if err != nil {
				return r, err
			}
			all, r.Page, err = page(verb, a.ProviderID, a.Limit, a.Cursor, all, func(x store.Connection) string { return string(x.ID) })
			r.Connections = mapped(all, connectionOf)
			return r, err
		},
	})
}

type connectionArgs struct {
	ID store.ConnectionID `json:"id"`
}

type getConnectionResult struct {
	Connection connectionObject `json:"connection"`
}

func getConnection() *Definition {
	return define("system_get_provider_connection", handler[connectionArgs, getConnectionResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a connectionArgs) (r getConnectionResult, err error) {
			found, err := fleet.ConnectionByID(ctx, v, c.AccountID, a.ID)
			r.Connection = connectionOf(found)
			return r, err
		},
	})
}

// connectionResult is what both writers answer.
type connectionResult struct {
	Connection connectionObject `json:"connection"`
	Written

	intent fleet.ConnectionTest
}

// test is their act: it asks the provider, where that is wanted.
func (r connectionResult) test(ctx context.Context, p *Platform) outcome[connectionResult] {
	outside := p.Fleet.TestConnection(ctx, r.intent)
	return func(ctx context.Context, tx *store.Tx) (connectionResult, error, error) {
		c, refusal, err := p.Fleet.FinishConnection(ctx, tx, r.intent, outside)
		if err != nil || refusal != nil {
			return r, refusal, err
		}
		r.Connection, r.Revision = connectionOf(c), &c.Revision
		return r, nil, nil
	}
}

type createConnectionArgs struct {
	ProviderID     store.ProviderID `json:"provider_id"`
	Name           string           `json:"name"`
	Description    string           `json:"description"`
	EndpointURL    string           `json:"endpoint_url"`
	Enabled        bool             `json:"enabled"`
	Config         store.Object     `json:"config"`
	TestConnection bool             `json:"test_connection"`
}

func (a createConnectionArgs) input() fleet.ConnectionInput {
	return fleet.ConnectionInput{ProviderID: a.ProviderID, Name: a.Name, Description: a.Description, EndpointURL: a.EndpointURL, Enabled: a.Enabled,
		Config: a.Config, Test: a.TestConnection}
}

func createConnection() *Definition {
	return define("system_create_provider_connection", handler[createConnectionArgs, connectionResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a createConnectionArgs) error {
			return p.Fleet.CheckCreateConnection(ctx, v, c.AccountID, a.input())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a createConnectionArgs) (r connectionResult, err error) {
			r.intent, err = p.Fleet.CreateConnection(ctx, tx, c.AccountID, a.input())
			r.Connection = connectionOf(r.intent.Connection)
			return r, err
		},
		act: func(ctx context.Context, p *Platform, _ Caller, _ createConnectionArgs, r connectionResult) outcome[connectionResult] {
			return r.test(ctx, p)
		},
		hide: fleet.HideSecrets,
	})
}

type updateConnectionArgs struct {
	ID             store.ConnectionID `json:"id"`
	Name           *string            `json:"name"`
	Description    *string            `json:"description"`
	EndpointURL    *string            `json:"endpoint_url"`
	Enabled        *bool              `json:"enabled"`
	Config         store.Object       `json:"config"`
	TestConnection bool               `json:"test_connection"`
}

func (a updateConnectionArgs) change() fleet.ConnectionChange {
	return fleet.ConnectionChange{Name: a.Name, Description: a.Description, EndpointURL: a.EndpointURL, Enabled: a.Enabled, Config: a.Config,
		Test: a.TestConnection}
}

func updateConnection() *Definition {
	return define("system_update_provider_connection", handler[updateConnectionArgs, connectionResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a updateConnectionArgs) error {
			if a.Name == nil && a.Description == nil && a.EndpointURL == nil && a.Enabled == nil && a.Config == nil {
				return nothingToUpdate("name", "description", "endpoint_url", "enabled", "config")
			}
			return p.Fleet.CheckUpdateConnection(ctx, v, c.AccountID, a.ID, a.change())
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a updateConnectionArgs) (r connectionResult, err error) {
			r.intent, err = p.Fleet.UpdateConnection(ctx, tx, c.AccountID, a.ID, a.change())
			r.Connection = connectionOf(r.intent.Connection)
			return r, err
		},
		act: func(ctx context.Context, p *Platform, _ Caller, _ updateConnectionArgs, r connectionResult) outcome[connectionResult] {
			return r.test(ctx, p)
		},
		hide: fleet.HideSecrets,
	})
}
