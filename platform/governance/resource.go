package governance

import (
	"maps"
	"slices"
	"strings"

	"powernode/schema"
)

// resourceTypes are the types of audit rows, by module (contract §7).
var resourceTypes = map[string][]string{
	"System": {"Node", "NodeInstance", "NodeTemplate", "TemplateModule", "NodeModule", "NodeModuleVersion", "NodeModuleAssignment",
		"NodePlatform", "Task", "InstancePool", "Provider", "ProviderConnection", "ProviderRegion", "ProviderInstanceType", "SensorConfig"},
	"Sdwan": {"Network", "Peer", "VirtualIp", "FirewallRule", "RoutePolicy", "PortMapping", "AccessGrant", "UserDevice", "FederationPeer",
		"AccountBgp"},
	"Devops":     {"KubernetesCluster", "KubernetesNode", "KubernetesSnapshot", "KubernetesUpgrade", "KubernetesCredential"},
	"Governance": {"Operation", "Policy", "EmergencyStop", "Account", "User", "Token"},
}

// ResourceTypes are the types of audit rows with their module's prefix, sorted.
func ResourceTypes() []string {
	var out []string
	for module, names := range resourceTypes {
		for _, name := range names {
			out = append(out, module+"::"+name)
		}
	}
	slices.Sort(out)
	return out
}

// NearResourceTypes are types that somebody may have meant with a name that is none.
func NearResourceTypes(given string) []string {
	_, bare, prefixed := strings.Cut(given, "::")
	if !prefixed {
		bare = given
	}
	names := map[string]string{}
	var within []string
	for _, full := range ResourceTypes() {
		_, name, _ := strings.Cut(full, "::")
		names[strings.ToLower(name)] = full
		if plain(bare) != "" && strings.HasSuffix(strings.ToLower(name), plain(bare)) {
			within = append(within, full)
		}
	}
	if len(within) > 0 { // instance is NodeInstance
		return within
	}
	if near := schema.Nearest(plain(bare), slices.Sorted(maps.Keys(names))); near != "" {
		return []string{names[near]}
	}
	return ResourceTypes()
}

// plain spells access_grants as types are compared: accessgrant.
func plain(given string) string {
	return strings.TrimSuffix(strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(given)), "s")
}

// NearCategories are action categories that somebody may have meant with a name that is none.
func NearCategories(given string) []string {
	if near := schema.Nearest(given, slices.Sorted(maps.Keys(Defaults))); near != "" {
		return []string{near}
	}
	return []string{}
}
