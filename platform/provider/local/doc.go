// Package local makes machines on this host: each with network, mount, PID, IPC, UTS and cgroup namespaces, files and a
// first process (package boot) of its own, on a private underlay that all machines of one installation share.
//
// It is not a container engine: there are no images, a machine runs the host's programs below /usr (read-only) with its
// own /etc, /var, /usr/local and the rest, and shares the host's kernel, memory and processors: an instance type limits
// nothing here. It is not a border against a machine's root, who has the host's kernel: a lab, as design.md §10 says. It
// knows no database: what it must remember stands in files below StateDir/local.
//
// Invariants: a record is on disk before anything is made and goes after everything is gone, so that whoever is killed
// in between leaves nothing that the next call does not finish or remove; a start whose starter dies before the last
// word ends by itself; machines reach the agents' port on the bridge and each other, nothing else; no mount is made in
// the host's namespace. Only making machines needs root.
package local
