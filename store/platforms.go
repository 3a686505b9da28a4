package store

import "context"

// PlatformByName finds a platform by its name.
func PlatformByName(ctx context.Context, v *View, acct AccountID, name string) (Platform, error) {
	return scanPlatform(v, v.queryRow(ctx, `SELECT `+platformColumns+` FROM platforms WHERE account_id = ? AND name = ?`, acct, name))
}
