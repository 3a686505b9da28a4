package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"

	"powernode/platform/provider"
	"powernode/schema"
	"powernode/store"
)

// ConnectionByID finds a provider connection, or refuses.
func ConnectionByID(ctx context.Context, v *store.View, acct store.AccountID, id store.ConnectionID) (store.Connection, error) {
	c, err := store.ConnectionByID(ctx, v, acct, id)
	return c, orNotFound(err, "provider connection not found")
}

// connectionValues are what a connection's caller sets, with the secrets in the clear: they are sealed before they are kept.
type connectionValues struct {
	Name        string       `json:"name"`
	Description string       `json:"description"`
	EndpointURL string       `json:"endpoint_url"`
	Enabled     bool         `json:"enabled"`
	Config      store.Object `json:"config"`
}

// shown are the values as audit rows tell them.
func (c connectionValues) shown() store.Object {
	return store.Object{"name": c.Name, "description": c.Description, "endpoint_url": orNull(c.EndpointURL), "enabled": c.Enabled,
		"config": maskSecrets(c.Config)}
}

func checkEndpoint(endpoint string) error {
	if endpoint == "" {
		return nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme == "" || (u.Host == "" && u.Path == "") {
		return schema.InvalidArgument("/endpoint_url", nil, "Validation failed: endpoint_url must be an absolute URL")
	}
	if holdsCredential(u) {
		return schema.InvalidArgument("/endpoint_url", nil, "Validation failed: endpoint_url must hold no credential: config takes it")
	}
	return nil
}

// ConnectionInput makes a provider connection.
type ConnectionInput struct {
	ProviderID  store.ProviderID
	Name        string
	Description string
	EndpointURL string
	Enabled     bool
	Config      store.Object
	Test        bool
}

// CheckCreateConnection refuses what CreateConnection could not do.
func (s *Service) CheckCreateConnection(ctx context.Context, v *store.View, acct store.AccountID, in ConnectionInput) error {
	p, err := ProviderByID(ctx, v, acct, in.ProviderID)
	if err != nil {
		return err
	}
	if _, err := s.adapter(p.ProviderType); err != nil {
		return err
	}
	if err := checkEndpoint(in.EndpointURL); err != nil {
		return err
	}
	return connectionNameFree(ctx, v, store.Connection{AccountID: acct, ProviderID: p.ID}, in.Name)
}

// connectionNameFree refuses a name that another connection of the provider has.
func connectionNameFree(ctx context.Context, v *store.View, c store.Connection, name string) error {
	all, err := store.Connections(ctx, v, c.AccountID, c.ProviderID)
	if err != nil {
		return err
	}
	for _, other := range all {
		if other.Name == name && other.ID != c.ID {
			return schema.Errorf(schema.Conflict, "connection name %q is already in use", schema.Printable(name))
		}
	}
	return nil
}

// ConnectionTest is a connection that was written, and what is left to ask of its provider.
type ConnectionTest struct {
	Connection store.Connection
	asked      bool // by this very call
	by         string
	values     connectionValues
}

// CreateConnection writes a connection: as it is to stay without a test, as an intent with one.
func (s *Service) CreateConnection(ctx context.Context, tx *store.Tx, acct store.AccountID, in ConnectionInput) (ConnectionTest, error) {
	p, err := ProviderByID(ctx, &tx.View, acct, in.ProviderID)
	if err != nil {
		return ConnectionTest{}, err
	}
	t := ConnectionTest{asked: in.Test, by: p.ProviderType, values: connectionValues{Name: in.Name, Description: in.Description,
		EndpointURL: in.EndpointURL, Enabled: in.Enabled, Config: withoutNulls(in.Config)}}
	c := store.Connection{ID: store.ConnectionID(tx.NewID()), AccountID: acct, ProviderID: p.ID, Status: store.ConnectionPending}
	if in.Test {
		c.Intent = store.IntentCreate
	}
	if c, err = s.fill(tx, c, t.values); err != nil {
		return t, err
	}
	if t.Connection, err = store.InsertConnection(ctx, tx, c); err != nil {
		return t, err
	}
	created := t.values.shown()
	created["provider_id"], created["status"] = p.ID, c.Status
	return t, audit(ctx, tx, acct, "created", resourceConnection, string(c.ID), nil, created)
}

// fill puts values into a row, the secrets sealed.
func (s *Service) fill(tx *store.Tx, c store.Connection, values connectionValues) (store.Connection, error) {
	config, err := json.Marshal(values.Config)
	if err != nil {
		return c, fmt.Errorf("encode the config of a connection: %w", err)
	}
	if c.Config, err = s.Sealer.Seal(tx, configPurpose(c.ID), config); err != nil {
		return c, err
	}
	c.Name, c.Description, c.EndpointURL, c.Enabled = values.Name, values.Description, values.EndpointURL, values.Enabled
	c.Masked.V = maskSecrets(values.Config)
	return c, nil
}

func configPurpose(id store.ConnectionID) string {
	return "provider_connections:" + string(id) + ":config"
}
func proposedPurpose(id store.ConnectionID) string {
	return "provider_connections:" + string(id) + ":proposed"
}

// valuesOf opens what a row has.
func (s *Service) valuesOf(c store.Connection) (connectionValues, error) {
	v := connectionValues{Name: c.Name, Description: c.Description, EndpointURL: c.EndpointURL, Enabled: c.Enabled}
	return v, s.unseal(configPurpose(c.ID), c.Config, &v.Config)
}

func (s *Service) unseal(purpose string, sealed []byte, into any) error {
	raw, err := s.Sealer.Open(purpose, sealed)
	if err != nil {
		return fmt.Errorf("open a connection: %w", err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return errors.New("open a connection: what was sealed is no JSON") // its text holds secrets
	}
	return nil
}

// ConnectionChange is what an update of a connection gives; nil is not given.
type ConnectionChange struct {
	Name        *string
	Description *string
	EndpointURL *string
	Enabled     *bool
	Config      store.Object // merged; a null deletes its key, a hidden secret stays
	Test        bool
}

func (c ConnectionChange) apply(v connectionValues) connectionValues {
	set(&v.Name, c.Name)
	set(&v.Description, c.Description)
	set(&v.EndpointURL, c.EndpointURL)
	set(&v.Enabled, c.Enabled)
	if c.Config != nil {
		given := unmask(map[string]any(c.Config), map[string]any(v.Config)).(map[string]any)
		v.Config = merged(v.Config, given)
	}
	return v
}

// CheckUpdateConnection refuses what UpdateConnection could not do.
func (s *Service) CheckUpdateConnection(ctx context.Context, v *store.View, acct store.AccountID, id store.ConnectionID, change ConnectionChange) error {
	c, err := ConnectionByID(ctx, v, acct, id)
	if err != nil {
		return err
	}
	if change.EndpointURL != nil {
		if err := checkEndpoint(*change.EndpointURL); err != nil {
			return err
		}
	}
	if c.Intent != "" {
		return schema.Errorf(schema.Conflict, "connection %s is being tested: another call changes it", c.Name).AsRetryable()
	}
	if change.Config != nil {
		before, err := s.valuesOf(c)
		if err != nil {
			return err
		}
		if err := checkMerged(change.apply(before).Config); err != nil {
			return err
		}
	}
	if change.Name == nil {
		return nil
	}
	return connectionNameFree(ctx, v, c, *change.Name)
}

// UpdateConnection changes a connection: at once without a test, else as an intent, beside which the old values stand.
func (s *Service) UpdateConnection(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.ConnectionID, change ConnectionChange) (ConnectionTest, error) {
	c, err := ConnectionByID(ctx, &tx.View, acct, id)
	if err != nil {
		return ConnectionTest{}, err
	}
	p, err := ProviderByID(ctx, &tx.View, acct, c.ProviderID)
	if err != nil {
		return ConnectionTest{}, err
	}
	before, err := s.valuesOf(c)
	if err != nil {
		return ConnectionTest{}, err
	}
	t := ConnectionTest{Connection: c, asked: change.Test, by: p.ProviderType, values: change.apply(before)}
	if !change.Test && string(mustJSON(before)) == string(mustJSON(t.values)) {
		return t, nil
	}
	if !change.Test {
		c.Status, c.Message, c.TestedAt = store.ConnectionPending, "", nil // what was tested is not this any more
		t.Connection, err = s.replace(ctx, tx, c, before, t.values)
		return t, err
	}
	raw, err := json.Marshal(t.values)
	if err != nil {
		return t, fmt.Errorf("encode a connection: %w", err)
	}
	if c.Proposed, err = s.Sealer.Seal(tx, proposedPurpose(c.ID), raw); err != nil {
		return t, err
	}
	c.Intent = store.IntentUpdate
	if t.Connection, err = store.UpdateConnection(ctx, tx, c); err != nil {
		return t, err
	}
	_, now := changed(before.shown(), t.values.shown())
	return t, audit(ctx, tx, acct, "updated", resourceConnection, string(c.ID), store.Object{"intent": nil},
		store.Object{"intent": c.Intent, "proposed": now})
}

// replace writes other values. A secret that changed shows as the same hidden text; that it changed is said.
func (s *Service) replace(ctx context.Context, tx *store.Tx, c store.Connection, before, after connectionValues) (store.Connection, error) {
	was := store.Object{"status": c.Status}
	c, err := s.fill(tx, c, after)
	if err != nil {
		return c, err
	}
	if c, err = store.UpdateConnection(ctx, tx, c); err != nil {
		return c, err
	}
	old, now := changed(before.shown(), after.shown())
	now["status"], now["config_changed"] = c.Status, !same(before.Config, after.Config)
	old["status"] = was["status"]
	return c, audit(ctx, tx, c.AccountID, "updated", resourceConnection, string(c.ID), old, now)
}

// TestConnection asks the provider. It reaches outside: call it in no transaction.
func (s *Service) TestConnection(ctx context.Context, t ConnectionTest) error {
	if !t.asked {
		return nil
	}
	adapter, err := s.adapter(t.by)
	if err != nil {
		return err
	}
	err = adapter.Check(ctx, provider.Connection{EndpointURL: t.values.EndpointURL, Config: t.values.Config})
	if err == nil {
		return nil
	}
	var coded *schema.Error
	var told *provider.Error
	secrets := secretsIn(map[string]any(t.values.Config))
	switch {
	case errors.As(err, &coded), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &told):
		return &provider.Error{Class: told.Class, Message: provider.Scrub(told.Message, secrets), RetryAt: told.RetryAt}
	}
	return &provider.Error{Class: provider.ClassOther, Message: provider.Scrub(err.Error(), secrets)}
}

// FinishConnection writes what came of a test. A refusal beside a nil error is committed with the rows, and answered.
func (s *Service) FinishConnection(ctx context.Context, tx *store.Tx, t ConnectionTest, outside error) (store.Connection, error, error) {
	c, err := ConnectionByID(ctx, &tx.View, t.Connection.AccountID, t.Connection.ID)
	if err != nil || !t.asked || c.Intent == "" {
		return c, nil, err
	}
	if outside != nil {
		return s.connectionFailed(ctx, tx, c, outside)
	}
	intent, at := c.Intent, store.At(tx.Now())
	before, err := s.valuesOf(c)
	if err != nil {
		return c, nil, err
	}
	c.Intent, c.Proposed = "", nil
	c.Status, c.Message, c.TestedAt = store.ConnectionConnected, "", &at
	if intent == store.IntentUpdate {
		c, err = s.replace(ctx, tx, c, before, t.values)
		return c, nil, err
	}
	if c, err = store.UpdateConnection(ctx, tx, c); err != nil {
		return c, nil, err
	}
	return c, nil, audit(ctx, tx, c.AccountID, "updated", resourceConnection, string(c.ID), store.Object{"status": store.ConnectionPending},
		store.Object{"status": c.Status})
}

// connectionFailed takes a creation back, and an update's values.
func (s *Service) connectionFailed(ctx context.Context, tx *store.Tx, c store.Connection, outside error) (store.Connection, error, error) {
	told := provider.Refusal(outside, "connection "+c.Name)
	refusal := schema.Errorf(schema.Unavailable, "the connection test failed: %s", told.Message).WithDetail("connection", c.Name)
	refusal.Retryable = told.Retryable
	if at, has := told.Details["retry_at"]; has {
		refusal = refusal.WithDetail("retry_at", at)
	}
	s.Log.Warn().Str("connection", string(c.ID)).Str("code", string(told.Code)).Msg("connection test failed")
	if c.Intent == store.IntentCreate {
		return c, refusal, deleteConnection(ctx, tx, c)
	}
	c.Intent, c.Proposed = "", nil
	c, err := store.UpdateConnection(ctx, tx, c)
	if err != nil {
		return c, nil, err
	}
	return c, refusal, audit(ctx, tx, c.AccountID, "updated", resourceConnection, string(c.ID), store.Object{"intent": store.IntentUpdate},
		store.Object{"intent": nil})
}

func deleteConnection(ctx context.Context, tx *store.Tx, c store.Connection) error {
	if err := store.DeleteConnection(ctx, tx, c.AccountID, c.ID); err != nil {
		return err
	}
	return audit(ctx, tx, c.AccountID, "deleted", resourceConnection, string(c.ID), store.Object{"name": c.Name, "provider_id": c.ProviderID,
		"description": c.Description, "endpoint_url": orNull(c.EndpointURL), "enabled": c.Enabled, "config": c.Masked.V, "status": c.Status}, nil)
}

// recoverConnections finishes the tests that a killed platform left without an outcome.
func (s *Service) recoverConnections(ctx context.Context) error {
	var left []store.Connection
	err := s.DB.View(ctx, func(v *store.View) error {
		var err error
		left, err = store.ConnectionsWithIntent(ctx, v)
		return err
	})
	if err != nil {
		return fmt.Errorf("look for connection tests without an outcome: %w", err)
	}
	for _, c := range left {
		if err := s.recoverConnection(ctx, c); err != nil {
			return fmt.Errorf("finish the test of connection %s: %w", c.ID, err)
		}
	}
	return nil
}

func (s *Service) recoverConnection(ctx context.Context, c store.Connection) error {
	ctx, cancel := context.WithTimeout(ctx, recoverDeadline)
	defer cancel()
	t := ConnectionTest{Connection: c, asked: true}
	err := s.DB.View(ctx, func(v *store.View) error {
		p, err := store.ProviderByID(ctx, v, c.AccountID, c.ProviderID)
		t.by = p.ProviderType
		return err
	})
	if err != nil {
		return err
	}
	if c.Intent == store.IntentUpdate {
		err = s.unseal(proposedPurpose(c.ID), c.Proposed, &t.values)
	} else {
		t.values, err = s.valuesOf(c)
	}
	if err != nil {
		return err
	}
	outside := s.TestConnection(ctx, t)
	return s.outcome(ctx, func(tx *store.Tx) error {
		_, _, err := s.FinishConnection(ctx, tx, t, outside)
		return err
	})
}
