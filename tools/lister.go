package tools

import (
	"strings"

	"powernode/schema"
)

// listers are the verbs that give the ids of a kind of object, by the kind as refusals and parameters call it.
var listers = map[string]string{
	"architecture":           "system_list_architectures",
	"assignment":             "system_list_node_module_assignments",
	"cluster":                "kubernetes_list_clusters",
	"deferred_operation":     "platform_list_operations",
	"firewall_rule":          "system_sdwan_list_firewall_rules",
	"instance":               "system_list_instances",
	"kubernetes_cluster":     "kubernetes_list_clusters",
	"module":                 "system_list_modules",
	"module_version":         "system_list_module_versions",
	"network":                "system_sdwan_list_networks",
	"node":                   "system_list_nodes",
	"node_instance":          "system_list_instances",
	"node_platform":          "system_list_platforms",
	"node_template":          "system_list_templates",
	"operation":              "platform_list_operations",
	"peer":                   "system_sdwan_list_peers",
	"platform":               "system_list_platforms",
	"provider":               "system_list_providers",
	"provider_connection":    "system_list_provider_connections",
	"provider_instance_type": "system_list_instance_types",
	"provider_region":        "system_list_regions",
	"instance_type":          "system_list_instance_types",
	"region":                 "system_list_regions",
	"version":                "system_list_module_versions",
	"target_version":         "system_list_module_versions",
	"task":                   "system_list_tasks",
	"template":               "system_list_templates",
	"user":                   "platform_whoami",
	"version_a":              "system_list_module_versions",
	"version_b":              "system_list_module_versions",
}

// lister is the hint of a refusal that has none of its own and is about an id: the verb that gives the right one. It is nil
// where the refusal is about something else, or no verb lists what the id is of.
func (c *call) lister(refused *schema.Error) *schema.Hint {
	var kind string
	switch refused.Code {
	case schema.NotFound:
		kind, _, _ = strings.Cut(refused.Message, " not found")
	case schema.InvalidArguments:
		if found, _ := refused.Details["violations"].([]schema.Violation); len(found) > 0 && found[0].Problem == "value" {
			at := found[0].Pointer
			kind = c.d.Verb.Subject(at[strings.LastIndex(at, "/")+1:])
		}
	}
	verb, known := listers[strings.ReplaceAll(strings.ToLower(kind), " ", "_")]
	if !known || verb == c.d.name {
		return nil
	}
	return &schema.Hint{Verb: verb, Text: "Gives the ids."}
}
