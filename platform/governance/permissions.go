package governance

import "slices"

// AnyPermission is held by every credential of the account.
const AnyPermission = "any"

var (
	everyone  = []string{RoleViewer, RoleOperator, RoleAdmin, RoleAgent}
	operating = []string{RoleOperator, RoleAdmin, RoleAgent}
	people    = []string{RoleOperator, RoleAdmin}
	admins    = []string{RoleAdmin}
)

// Permissions is every permission that a verb may need, with the roles that hold it (contract §16).
var Permissions = map[string][]string{
	AnyPermission:                   everyone,
	"system.nodes.read":             everyone,
	"system.instances.read":         everyone,
	"system.tasks.read":             everyone,
	"system.nodes.create":           operating,
	"system.nodes.update":           operating,
	"system.nodes.delete":           operating,
	"system.instances.create":       operating,
	"system.instances.update":       operating,
	"system.instances.control":      operating,
	"system.templates.read":         everyone,
	"system.modules.read":           everyone,
	"system.platforms.read":         everyone,
	"system.templates.create":       operating,
	"system.templates.update":       operating,
	"system.templates.delete":       operating,
	"system.modules.create":         operating,
	"system.modules.update":         operating,
	"system.modules.delete":         operating,
	"system.modules.release":        operating,
	"system.platforms.manage":       admins,
	"sdwan.networks.read":           everyone,
	"sdwan.peers.read":              everyone,
	"sdwan.firewall.read":           everyone,
	"sdwan.vips.read":               everyone,
	"sdwan.routing.read":            everyone,
	"sdwan.route_policies.read":     everyone,
	"sdwan.port_mappings.read":      everyone,
	"sdwan.networks.manage":         operating,
	"sdwan.peers.manage":            operating,
	"sdwan.firewall.manage":         operating,
	"sdwan.vips.manage":             operating,
	"sdwan.routing.manage":          operating,
	"sdwan.route_policies.manage":   operating,
	"sdwan.port_mappings.manage":    operating,
	"sdwan.user_devices.manage":     operating,
	"sdwan.user_devices.config":     everyone, // a viewer's own, which the verb holds it to
	"sdwan.federation.read":         everyone,
	"sdwan.federation.manage":       admins,
	"devops.kubernetes.read":        everyone,
	"devops.kubernetes.manage":      operating,
	"devops.kubernetes.credentials": operating,
	"system.fleet.read":             everyone,
	"platform.events.read":          everyone,
	"system.fleet.manage":           people,
	"system.pools.read":             everyone,
	"system.pools.manage":           operating,
	"system.providers.read":         everyone,
	"system.providers.manage":       admins,
	"platform.preview":              everyone,
	"platform.operations.read":      everyone,
	"platform.policies.read":        everyone,
	"platform.audit.read":           operating,
	"platform.emergency":            people,
}

// What people may do on their own surface, where no verb is.
const (
	decideOperations = "approve"
	managePolicies   = "policies"
	managePeople     = "users, tokens"
)

var peoplesPermissions = map[string][]string{
	decideOperations: people,
	managePolicies:   admins,
	managePeople:     admins,
}

// Permits says whether the caller's role holds a permission. The platform's own principal holds every one; a name that
// is not in the table is held by nobody.
func Permits(c Caller, permission string) bool {
	if c.Kind == KindPlatform {
		return true
	}
	return slices.Contains(Permissions[permission], c.Role)
}
