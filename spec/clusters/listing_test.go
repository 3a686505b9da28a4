package clusters

import (
	"encoding/json"
	"strings"
	"testing"

	"powernode/spec/rig"
)

// host is what a machine has, by kind.
type host map[string][]string

// listings are the commands that tell what a machine has. What changes by itself (numbers of links, lifetimes, counters)
// is left out; the listing's own processes are, too.
func listings() map[string]string {
	return map[string]string{
		"links":     `ip -o link show | awk -F': ' '{print $2}' | sort`,
		"addresses": `ip -o addr show | awk '{print $2, $3, $4}' | sort`,
		"routes":    `{ ip -4 route show table all; ip -6 route show table all; } | sed 's/ expires [0-9]*sec//; s/ $//' | sort`,
		"rules":     `{ ip -4 rule show; ip -6 rule show; } | sort`,
		"mounts":    `awk '{print $5, $4}' /proc/self/mountinfo | sort`,
		"processes": `ps -eo args= | grep -vE '^(ps|sh|grep|sort|setpriv)( |$)' | sort`,
		"cgroups":   `find /sys/fs/cgroup -type d 2>/dev/null | sort`,
		"tables":    `nft list tables | sort`,
		"paths":     `ls -d /etc/rancher /var/lib/rancher /etc/rancher/node /usr/local/bin/k3s 2>/dev/null; true`,
		"files":     `find /etc /usr/local /opt /root /home /srv /run /var -xdev \( -path '/var/lib/powernode-agent/*' -o -path '/run/powernode-agent/*' -o -path /var/log/powernode-agent.log \) -prune -o -print 2>/dev/null | sort`,
	}
}

func (l *lab) listing(t *testing.T, m *rig.Machine) host {
	t.Helper()
	out := host{}
	for kind, command := range listings() {
		out[kind] = strings.Split(strings.TrimSpace(l.exec(t, m.Name, "sh", "-c", command)), "\n")
	}
	return out
}

func spelt(v any) string {
	b, _ := json.Marshal(v) // what came as JSON goes as JSON
	return string(b)
}
