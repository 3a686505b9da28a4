package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
)

// keyParameter makes a call repeatable, in every verb that declares it (contract §1.7).
const keyParameter = "operation_id"

// keysItself is the verb whose domain keeps its keys: its intent outlives the answer, and what it began is found again.
const keysItself = "system_provision_instance"

// repeatable says whether the call path keeps a verb's first results under their keys.
func repeatable(v *schema.Verb) bool {
	return v.Name != keysItself && slices.Contains(v.Parameters(), keyParameter)
}

// firstResult lets a key through one call at a time, and answers what the first call under it answered, if one did. What
// was refused or parked has used no key.
func (c *call) firstResult(ctx context.Context) (release func(), first *Result, err error) {
	release = func() {}
	var given struct {
		Key string `json:"operation_id"`
	}
	if err := json.Unmarshal(c.raw, &given); err != nil {
		return release, nil, fmt.Errorf("read the key of %s: %w", c.d.name, err)
	}
	if given.Key == "" {
		return release, nil, nil
	}
	c.key = store.IdempotencyKey{AccountID: c.caller.AccountID, Verb: c.d.name, Key: given.Key, ArgumentsHash: governance.ArgumentsHash(c.raw)}
	if release, err = c.p.alone(ctx, "key/"+string(c.key.AccountID)+"/"+c.key.Verb+"/"+c.key.Key); err != nil {
		return func() {}, nil, err
	}
	first, err = c.underKey(ctx)
	if err != nil {
		release()
		return func() {}, nil, err
	}
	return release, first, nil
}

func (c *call) underKey(ctx context.Context) (*Result, error) {
	var before store.IdempotencyKey
	err := c.p.DB.View(ctx, func(v *store.View) (err error) {
		before, err = store.IdempotencyKeyOf(ctx, v, c.key.AccountID, c.key.Verb, c.key.Key)
		return err
	})
	switch {
	case errors.Is(err, store.ErrNoRow):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look for the key's first call: %w", err)
	case before.ArgumentsHash != c.key.ArgumentsHash:
		return nil, schema.Errorf(schema.Conflict, "%s was used with other arguments", keyParameter)
	case before.Result == nil: // it was cut off; by its correlation the domain finds what it began
		c.correlation = before.SubjectID
		return nil, nil
	case c.operation != nil: // the same call ran meanwhile without the approval
		return nil, errStale
	}
	answer, err := c.p.Sealer.Open(keyPurpose(before), before.Result)
	if err != nil {
		return nil, err
	}
	c.request.CallID = "" // sent again it is answered by its key again
	c.p.recordRead(c)
	return &Result{JSON: answer}, nil
}

func keyPurpose(k store.IdempotencyKey) string {
	return "idempotency_keys:" + string(k.AccountID) + ":" + k.Verb + ":" + k.Key
}

// claimKey binds the call's key to its intent.
func (c *call) claimKey(ctx context.Context, tx *store.Tx) error {
	if c.key.Key == "" {
		return nil
	}
	c.key.SubjectID = c.correlation
	return store.PutIdempotencyKey(ctx, tx, c.key)
}

// keepResult keeps the call's answer under its key.
func (c *call) keepResult(ctx context.Context, tx *store.Tx, answer json.RawMessage) error {
	if c.key.Key == "" {
		return nil
	}
	var err error
	if c.key.Result, err = c.p.Sealer.Seal(tx, keyPurpose(c.key), answer); err != nil {
		return err
	}
	return c.claimKey(ctx, tx)
}

// freeKey lets a call whose act came to nothing be made again under its key.
func (c *call) freeKey(ctx context.Context, tx *store.Tx) error {
	if c.key.Key == "" {
		return nil
	}
	return store.DeleteIdempotencyKey(ctx, tx, c.key.AccountID, c.key.Verb, c.key.Key)
}
