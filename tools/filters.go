package tools

import (
	"context"

	"powernode/store"
)

// found refuses to filter by what the account doesn't have, as every verb that is given its id does: an empty list would
// say that there is none of it. Without an id nothing is filtered.
func found[I ~string, R any](ctx context.Context, v *store.View, c Caller, id I,
	find func(context.Context, *store.View, store.AccountID, I) (R, error)) error {
	if id == "" {
		return nil
	}
	_, err := find(ctx, v, c.AccountID, id)
	return err
}
