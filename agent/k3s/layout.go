package k3s

import "path/filepath"

// Places of K3s on a host.
const (
	binaryPath      = "/usr/local/bin/k3s"
	configPath      = "/etc/rancher/k3s/config.yaml"
	kubeconfigPath  = "/etc/rancher/k3s/k3s.yaml"
	serverTokenPath = "/etc/rancher/k3s/server-token"
	agentTokenPath  = "/etc/rancher/k3s/agent-token"
	dataDir         = "/var/lib/rancher/k3s"
	logPath         = "/var/log/k3s.log"

	etcdMemberPath    = dataDir + "/server/db/etcd/member"
	etcdNamePath      = dataDir + "/server/db/etcd/name"
	etcdTLSDir        = dataDir + "/server/tls/etcd"
	kubeletConfigPath = dataDir + "/agent/kubelet.kubeconfig"
)

// Roles, and the units that run them.
const (
	roleServer = "server"
	roleAgent  = "agent"

	serverUnit = "k3s"
	agentUnit  = "k3s-agent"
)

func unitOf(role string) string {
	if role == roleAgent {
		return agentUnit
	}
	return serverUnit
}

// root is the host's file system; a test's is a folder.
type root string

func (r root) path(p string) string { return filepath.Join(string(r)+"/", p) }
