package config

import "strings"

// Role says which command is configured: the two take different flags.
type Role string

// The commands that read the configuration file.
const (
	RoleServer Role = "server"
	RoleAgent  Role = "agent"
)

type kind int

const (
	kindString kind = iota
	kindBool
	kindInt
	kindDuration
	kindList
)

type scope int

const (
	both scope = iota
	serverOnly
)

// flag describes one of K3s' flags; a key of the configuration file is the same name.
type flag struct {
	name    string
	short   string
	kind    kind
	scope   scope
	env     string
	refused string // set when the stand-in can't act as K3s would, and pretending would mislead
}

const noRuntime = "the stand-in runs no containers"

// flags is K3s' list. Most are accepted without effect, because what they
// tune (containerd, the kubelet, charts, snapshots) isn't in the stand-in; a
// name that K3s doesn't know is an error, so that a typing mistake in a
// generated configuration is seen here and not on a user's machine.
var flags = []flag{
	{name: "config", short: "c", env: "K3S_CONFIG_FILE"},
	{name: "debug", kind: kindBool, env: "K3S_DEBUG"},
	{name: "v", kind: kindInt},
	{name: "vmodule"},
	{name: "log", short: "l"},
	{name: "alsologtostderr", kind: kindBool},

	// Cluster and tokens.
	{name: "token", short: "t", env: "K3S_TOKEN"},
	{name: "token-file", env: "K3S_TOKEN_FILE"},
	{name: "agent-token", scope: serverOnly, env: "K3S_AGENT_TOKEN"},
	{name: "agent-token-file", scope: serverOnly, env: "K3S_AGENT_TOKEN_FILE"},
	{name: "server", short: "s", env: "K3S_URL"},
	{name: "cluster-init", kind: kindBool, scope: serverOnly, env: "K3S_CLUSTER_INIT"},
	{name: "cluster-reset", kind: kindBool, scope: serverOnly, env: "K3S_CLUSTER_RESET", refused: "it has no snapshots to restore"},
	{name: "cluster-reset-restore-path", scope: serverOnly, refused: "it has no snapshots to restore"},

	// Listener.
	{name: "bind-address", scope: serverOnly},
	{name: "https-listen-port", kind: kindInt, scope: serverOnly},
	{name: "supervisor-port", kind: kindInt, scope: serverOnly, refused: "supervisor and API share one port"},
	{name: "apiserver-port", kind: kindInt, scope: serverOnly, refused: "supervisor and API share one port"},
	{name: "apiserver-bind-address", scope: serverOnly, refused: "supervisor and API share one port"},
	{name: "advertise-address", scope: serverOnly},
	{name: "advertise-port", kind: kindInt, scope: serverOnly},
	{name: "tls-san", kind: kindList, scope: serverOnly},
	{name: "tls-san-security", kind: kindBool, scope: serverOnly},

	// Data and client.
	{name: "data-dir", short: "d", env: "K3S_DATA_DIR"},
	{name: "write-kubeconfig", short: "o", scope: serverOnly, env: "K3S_KUBECONFIG_OUTPUT"},
	{name: "write-kubeconfig-mode", scope: serverOnly, env: "K3S_KUBECONFIG_MODE"},
	{name: "write-kubeconfig-group", scope: serverOnly, env: "K3S_KUBECONFIG_GROUP"},

	// Network.
	{name: "cluster-cidr", kind: kindList, scope: serverOnly},
	{name: "service-cidr", kind: kindList, scope: serverOnly},
	{name: "service-node-port-range", scope: serverOnly},
	{name: "cluster-dns", kind: kindList, scope: serverOnly},
	{name: "cluster-domain", scope: serverOnly},
	{name: "flannel-backend", scope: serverOnly},
	{name: "flannel-ipv6-masq", kind: kindBool, scope: serverOnly},
	{name: "flannel-external-ip", kind: kindBool, scope: serverOnly},
	{name: "egress-selector-mode", scope: serverOnly},
	{name: "servicelb-namespace", scope: serverOnly},
	{name: "multi-cluster-cidr", kind: kindBool, scope: serverOnly},
	{name: "node-ip", short: "i", kind: kindList},
	{name: "node-external-ip", kind: kindList},
	{name: "node-internal-dns", kind: kindList},
	{name: "node-external-dns", kind: kindList},
	{name: "resolv-conf", env: "K3S_RESOLV_CONF"},
	{name: "flannel-iface"},
	{name: "flannel-conf"},
	{name: "flannel-cni-conf"},
	{name: "vpn-auth", env: "K3S_VPN_AUTH", refused: "it has no VPN provider"},
	{name: "vpn-auth-file", env: "K3S_VPN_AUTH_FILE", refused: "it has no VPN provider"},

	// Datastore.
	{name: "datastore-endpoint", scope: serverOnly, env: "K3S_DATASTORE_ENDPOINT", refused: "its datastore is embedded etcd"},
	{name: "datastore-cafile", scope: serverOnly, env: "K3S_DATASTORE_CAFILE"},
	{name: "datastore-certfile", scope: serverOnly, env: "K3S_DATASTORE_CERTFILE"},
	{name: "datastore-keyfile", scope: serverOnly, env: "K3S_DATASTORE_KEYFILE"},
	{name: "kine-tls", kind: kindBool, scope: serverOnly},
	{name: "etcd-expose-metrics", kind: kindBool, scope: serverOnly},
	{name: "etcd-disable-snapshots", kind: kindBool, scope: serverOnly},
	{name: "etcd-snapshot-name", scope: serverOnly},
	{name: "etcd-snapshot-schedule-cron", scope: serverOnly},
	{name: "etcd-snapshot-reconcile-interval", kind: kindDuration, scope: serverOnly},
	{name: "etcd-snapshot-retention", kind: kindInt, scope: serverOnly},
	{name: "etcd-snapshot-dir", scope: serverOnly},
	{name: "etcd-snapshot-compress", kind: kindBool, scope: serverOnly},
	{name: "etcd-s3", kind: kindBool, scope: serverOnly},
	{name: "etcd-s3-endpoint", scope: serverOnly},
	{name: "etcd-s3-endpoint-ca", scope: serverOnly},
	{name: "etcd-s3-skip-ssl-verify", kind: kindBool, scope: serverOnly},
	{name: "etcd-s3-access-key", scope: serverOnly, env: "AWS_ACCESS_KEY_ID"},
	{name: "etcd-s3-secret-key", scope: serverOnly, env: "AWS_SECRET_ACCESS_KEY"},
	{name: "etcd-s3-session-token", scope: serverOnly, env: "AWS_SESSION_TOKEN"},
	{name: "etcd-s3-bucket", scope: serverOnly},
	{name: "etcd-s3-bucket-lookup-type", scope: serverOnly},
	{name: "etcd-s3-region", scope: serverOnly},
	{name: "etcd-s3-folder", scope: serverOnly},
	{name: "etcd-s3-proxy", scope: serverOnly},
	{name: "etcd-s3-config-secret", scope: serverOnly},
	{name: "etcd-s3-insecure", kind: kindBool, scope: serverOnly},
	{name: "etcd-s3-timeout", kind: kindDuration, scope: serverOnly},
	{name: "etcd-s3-retention", kind: kindInt, scope: serverOnly},

	// Arguments for components.
	{name: "kube-apiserver-arg", kind: kindList, scope: serverOnly},
	{name: "kube-controller-manager-arg", kind: kindList, scope: serverOnly},
	{name: "kube-scheduler-arg", kind: kindList, scope: serverOnly},
	{name: "kube-cloud-controller-manager-arg", kind: kindList, scope: serverOnly},
	{name: "etcd-arg", kind: kindList, scope: serverOnly},
	{name: "kubelet-arg", kind: kindList},
	{name: "kube-proxy-arg", kind: kindList},

	// Components.
	{name: "disable", kind: kindList, scope: serverOnly},
	{name: "disable-scheduler", kind: kindBool, scope: serverOnly},
	{name: "disable-cloud-controller", kind: kindBool, scope: serverOnly},
	{name: "disable-kube-proxy", kind: kindBool, scope: serverOnly},
	{name: "disable-network-policy", kind: kindBool, scope: serverOnly},
	{name: "disable-helm-controller", kind: kindBool, scope: serverOnly},
	{name: "disable-apiserver", kind: kindBool, scope: serverOnly, refused: "a server runs every component"},
	{name: "disable-controller-manager", kind: kindBool, scope: serverOnly, refused: "a server runs every component"},
	{name: "disable-etcd", kind: kindBool, scope: serverOnly, refused: "a server runs every component"},
	{name: "disable-agent", kind: kindBool, scope: serverOnly},
	{name: "disable-apiserver-lb", kind: kindBool},
	{name: "disable-default-registry-endpoint", kind: kindBool},
	{name: "embedded-registry", kind: kindBool, scope: serverOnly},
	{name: "supervisor-metrics", kind: kindBool, scope: serverOnly},
	{name: "enable-pprof", kind: kindBool},
	{name: "helm-job-image", scope: serverOnly},
	{name: "default-local-storage-path", scope: serverOnly},
	{name: "system-default-registry", scope: serverOnly, env: "K3S_SYSTEM_DEFAULT_REGISTRY"},
	{name: "secrets-encryption", kind: kindBool, scope: serverOnly},
	{name: "secrets-encryption-provider", scope: serverOnly},

	// Node and its runtime.
	{name: "node-name", env: "K3S_NODE_NAME"},
	{name: "with-node-id", kind: kindBool},
	{name: "node-label", kind: kindList},
	{name: "node-taint", kind: kindList},
	{name: "image-credential-provider-bin-dir"},
	{name: "image-credential-provider-config"},
	{name: "image-service-endpoint"},
	{name: "container-runtime-endpoint"},
	{name: "default-runtime"},
	{name: "nonroot-devices", kind: kindBool},
	{name: "pause-image"},
	{name: "snapshotter"},
	{name: "private-registry"},
	{name: "airgap-extra-registry", kind: kindList},
	{name: "docker", kind: kindBool, refused: noRuntime},
	{name: "lb-server-port", kind: kindInt, env: "K3S_LB_SERVER_PORT"},
	{name: "protect-kernel-defaults", kind: kindBool},
	{name: "prefer-bundled-bin", kind: kindBool},
	{name: "selinux", kind: kindBool, env: "K3S_SELINUX"},
	{name: "rootless", kind: kindBool, refused: noRuntime},
}

// Help lists the flags of a command.
func Help(role Role) string {
	var b strings.Builder
	for _, f := range flags {
		if f.scope == serverOnly && role != RoleServer {
			continue
		}
		b.WriteString("   --" + f.name)
		if f.short != "" {
			b.WriteString(", -" + f.short)
		}
		if f.env != "" {
			b.WriteString("  [$" + f.env + "]")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// lookup finds a flag that the command of this role takes, by name or letter.
func lookup(role Role, name string) (flag, bool) {
	for _, f := range flags {
		if f.scope == serverOnly && role != RoleServer {
			continue
		}
		if f.name == name || (f.short != "" && f.short == name) {
			return f, true
		}
	}
	return flag{}, false
}
