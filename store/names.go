package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// names are the queries for what people call a row, by the type that its audit rows have. Rows that have no name of their
// own are called by those that they join.
var names = map[string]string{
	"Devops::KubernetesCluster":    `SELECT name FROM clusters WHERE id = ?`,
	"Devops::KubernetesNode":       `SELECT name FROM cluster_nodes WHERE id = ?`,
	"Governance::User":             `SELECT email FROM users WHERE id = ?`,
	"Governance::Token":            `SELECT name FROM tokens WHERE id = ?`,
	"Sdwan::AccessGrant":           `SELECT u.email || ' in ' || n.name FROM access_grants g JOIN users u ON u.id = g.user_id JOIN networks n ON n.id = g.network_id WHERE g.id = ?`,
	"Sdwan::FirewallRule":          `SELECT name FROM firewall_rules WHERE id = ?`,
	"Sdwan::Network":               `SELECT name FROM networks WHERE id = ?`,
	"Sdwan::Peer":                  `SELECT i.name || ' in ' || n.name FROM peers p JOIN instances i ON i.id = p.instance_id JOIN networks n ON n.id = p.network_id WHERE p.id = ?`,
	"Sdwan::UserDevice":            `SELECT d.label || ' in ' || n.name FROM user_devices d JOIN networks n ON n.id = d.network_id WHERE d.id = ?`,
	"Sdwan::VirtualIp":             `SELECT name FROM virtual_ips WHERE id = ?`,
	"System::Node":                 `SELECT name FROM nodes WHERE id = ?`,
	"System::NodeInstance":         `SELECT name FROM instances WHERE id = ?`,
	"System::NodeModule":           `SELECT name FROM modules WHERE id = ?`,
	"System::NodeModuleAssignment": `SELECT m.name || ' on ' || n.name FROM assignments a JOIN modules m ON m.id = a.module_id JOIN nodes n ON n.id = a.node_id WHERE a.id = ?`,
	"System::NodeModuleVersion":    `SELECT m.name || ' ' || v.version FROM module_versions v JOIN modules m ON m.id = v.module_id WHERE v.id = ?`,
	"System::NodePlatform":         `SELECT name FROM platforms WHERE id = ?`,
	"System::NodeTemplate":         `SELECT name FROM templates WHERE id = ?`,
	"System::Provider":             `SELECT name FROM providers WHERE id = ?`,
	"System::ProviderConnection":   `SELECT name FROM provider_connections WHERE id = ?`,
	"System::ProviderInstanceType": `SELECT name FROM instance_types WHERE id = ?`,
	"System::ProviderRegion":       `SELECT name FROM regions WHERE id = ?`,
	"System::Task":                 `SELECT t.command || ' of ' || i.name FROM tasks t JOIN instances i ON i.id = t.operable_id WHERE t.id = ?`,
	"System::TemplateModule":       `SELECT m.name || ' in ' || t.name FROM template_modules j JOIN modules m ON m.id = j.module_id JOIN templates t ON t.id = j.template_id WHERE j.id = ?`,
}

// namesOf are the names of the rows that audit rows are about, by id; those that are not there have none.
func namesOf(ctx context.Context, v *View, rows []AuditEntry) (map[string]string, error) {
	found := make(map[string]string, len(rows))
	for _, e := range rows {
		query, known := names[e.ResourceType]
		if _, asked := found[e.ResourceID]; !known || asked {
			continue
		}
		var name string
		err := v.queryRow(ctx, query, e.ResourceID).Scan(&name)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the name of %s %s: %w", e.ResourceType, e.ResourceID, err)
		}
		found[e.ResourceID] = name
	}
	return found, nil
}
