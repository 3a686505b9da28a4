// Package layout names the files of K3s' data directory.
package layout

import "path/filepath"

// NodePasswordFile keeps the node's password across a removed data directory.
const NodePasswordFile = "/etc/rancher/node/password"

// Data is a data directory, by default /var/lib/rancher/k3s.
type Data string

func (d Data) join(p ...string) string {
	return filepath.Join(append([]string{string(d)}, p...)...)
}

// Server is a path under server/.
func (d Data) Server(p ...string) string { return d.join(append([]string{"server"}, p...)...) }

// TLS is a path under server/tls/.
func (d Data) TLS(p ...string) string { return d.Server(append([]string{"tls"}, p...)...) }

// EtcdTLS is a path under server/tls/etcd/.
func (d Data) EtcdTLS(p ...string) string { return d.TLS(append([]string{"etcd"}, p...)...) }

// Cred is a path under server/cred/.
func (d Data) Cred(p ...string) string { return d.Server(append([]string{"cred"}, p...)...) }

// Etcd is a path under server/db/etcd/.
func (d Data) Etcd(p ...string) string { return d.Server(append([]string{"db", "etcd"}, p...)...) }

// Agent is a path under agent/.
func (d Data) Agent(p ...string) string { return d.join(append([]string{"agent"}, p...)...) }
