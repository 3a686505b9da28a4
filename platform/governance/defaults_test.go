package governance_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/governance"
)

// The contract's default of each action category, by verdict.
const (
	approvedByDefault = `
		system.task.reboot system.task.start system.task.stop system.task.sync_modules
		system.runtime_k8s_upgrade_pause
		platform.emergency_stop platform.resume
		system.pool_acquire system.pool_recycle system.pool_replenish system.pool_return`
	notifiedByDefault = `
		system.node_create system.node_update
		system.instance_hold system.instance_hold_release system.instance_provision system.instance_uncordon system.instance_update
		system.task.cancel
		system.module_assign system.module_assign_update
		system.template_apply system.template_create system.template_module_assign system.template_module_update system.template_update
		system.module_create system.module_update system.module_version_create
		system.platform_create
		sdwan.network_create sdwan.network_update sdwan.peer_create sdwan.peer_update
		sdwan.firewall_rule_create sdwan.firewall_rule_update
		sdwan.virtual_ip_create sdwan.virtual_ip_update system.k3s_api_vip_failover
		sdwan.access_grant_create sdwan.user_device_create
		sdwan.account_bgp_update sdwan.route_policy_create sdwan.route_policy_update sdwan.port_mapping_create sdwan.port_mapping_update
		system.runtime_k8s_cluster_bootstrap system.runtime_k8s_cluster_create system.runtime_k8s_cluster_update
		system.runtime_k8s_node_join system.runtime_k8s_node_uncordon
		system.runtime_k8s_kubeconfig_issue system.runtime_k8s_kubeconfig_read system.runtime_k8s_snapshot_create
		system.runtime_k8s_upgrade_abort
		system.sensor_config_update
		system.pool_update
		system.provider_connection_create system.provider_connection_update system.provider_create system.provider_instance_type_create
		system.provider_region_create system.provider_update`
	parkedByDefault = `
		system.node_delete
		system.instance_cordon system.instance_destroy system.instance_drain system.instance_reap system.instance_replace
		system.task.abort system.task.reboot_force system.task.stop_force system.task.terminate
		system.template_apply_drift system.template_apply_purge system.template_delete system.template_module_unassign
		release.promote release.rollback system.module_delete system.module_version_set_current
		sdwan.network_delete sdwan.peer_delete sdwan.peer_key_rotate
		sdwan.firewall_rule_delete sdwan.firewall_rule_update_force
		sdwan.virtual_ip_delete system.sdwan_vip_failover
		sdwan.access_grant_reactivate sdwan.access_grant_revoke system.sdwan_user_device_revoke
		sdwan.route_policy_delete sdwan.route_policy_import sdwan.port_mapping_delete
		sdwan.federation_data_residency sdwan.federation_peer_accept sdwan.federation_peer_propose sdwan.federation_peer_revoke
		system.runtime_k8s_cluster_decommission
		system.runtime_k8s_node_drain system.runtime_k8s_node_move system.runtime_k8s_node_remove system.runtime_k8s_node_remove_force
		system.runtime_k8s_kubeconfig_issue_admin system.runtime_k8s_snapshot_restore system.runtime_k8s_token_rotate
		system.runtime_k8s_runtime_upgrade system.runtime_k8s_upgrade_resume
		system.pool_archive system.pool_ceiling_raise system.pool_create system.pool_delete system.pool_drain
		system.provider_delete`
)

func TestDefaultsAreThoseOfTheContract(t *testing.T) {
	t.Parallel()
	want := map[string]governance.Verdict{}
	for verdict, categories := range map[governance.Verdict]string{governance.AutoApprove: approvedByDefault,
		governance.NotifyAndProceed: notifiedByDefault, governance.RequireApproval: parkedByDefault} {
		for _, category := range strings.Fields(categories) {
			if _, twice := want[category]; twice {
				t.Errorf("%s is promised two verdicts", category)
			}
			want[category] = verdict
		}
	}
	// Ours alone: whether MCP's elicitation may show a parked call, which no verb does.
	got := maps.Clone(governance.Defaults)
	delete(got, "platform.elicitation")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("defaults (-contract +compiled in):\n%s", diff)
	}
	if slices.Contains(slices.Collect(maps.Values(governance.Defaults)), governance.Block) {
		t.Error("a category is blocked by default")
	}
}

// The contract's roles of each permission: letters are viewer, operator, admin and agent.
func TestEveryPermissionIsHeldByTheRolesOfTheContract(t *testing.T) {
	t.Parallel()
	want := map[string]string{}
	for holders, permissions := range map[string]string{
		"viewer operator admin agent": `any system.nodes.read system.instances.read system.tasks.read system.templates.read system.modules.read
			system.platforms.read sdwan.networks.read sdwan.peers.read sdwan.firewall.read sdwan.vips.read sdwan.routing.read
			sdwan.route_policies.read sdwan.port_mappings.read sdwan.user_devices.config sdwan.federation.read devops.kubernetes.read
			system.fleet.read platform.events.read system.pools.read system.providers.read platform.preview platform.operations.read
			platform.policies.read`,
		"operator admin agent": `system.nodes.create system.nodes.update system.nodes.delete system.instances.create system.instances.update
			system.instances.control system.templates.create system.templates.update system.templates.delete system.modules.create
			system.modules.update system.modules.delete system.modules.release sdwan.networks.manage sdwan.peers.manage
			sdwan.firewall.manage sdwan.vips.manage sdwan.routing.manage sdwan.route_policies.manage sdwan.port_mappings.manage
			sdwan.user_devices.manage devops.kubernetes.manage devops.kubernetes.credentials system.pools.manage platform.audit.read`,
		"operator admin": `system.fleet.manage platform.emergency`,
		"admin":          `system.platforms.manage sdwan.federation.manage system.providers.manage`,
	} {
		for _, p := range strings.Fields(permissions) {
			want[p] = holders
		}
	}
	got := map[string]string{}
	for permission, roles := range governance.Permissions {
		got[permission] = strings.Join(roles, " ")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("holders (-contract +compiled in):\n%s", diff)
	}
}
