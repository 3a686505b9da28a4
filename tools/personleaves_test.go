package tools_test

import (
	"errors"
	"strings"
	"testing"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/tools/toolstest"
)

// What keeps a person in the account is told with what ends it, and that is so.
func TestWhoHoldsAccessGrantsLeavesOnceTheirNetworksAreDeleted(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	env.AddPerson(t, "bob@example.org", governance.RoleViewer)
	network := env.Call(t, "system_sdwan_create_network", toolstest.Object{"name": "a"})["network"].(map[string]any)["id"]
	env.Call(t, "system_sdwan_create_access_grant", toolstest.Object{"network_id": network, "user_id": "bob@example.org"})
	remove := func() error {
		_, err := env.SetUser(t, "bob@example.org", governance.UserStatement{Deed: governance.RemoveUser})
		return err
	}
	var refused *schema.Error
	err := remove()
	if !errors.As(err, &refused) || refused.Code != schema.PreconditionFailed || !strings.Contains(refused.Message, "system_sdwan_delete_network") {
		t.Fatalf("removed, or refused with %v", err)
	}
	env.Approve(t, env.Parked(t, "system_sdwan_delete_network", toolstest.Object{"network_id": network}))
	if err := remove(); err != nil {
		t.Errorf("after the network's end: %v", err)
	}
}
