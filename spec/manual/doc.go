// Package manual proves that a machine which somebody else runs becomes an instance by the one-line command that
// provisioning answers, on a throw-away machine whose first process is the host's own systemd: it enrols, joins a network,
// comes back by itself after a reboot without the platform, and is clean after its termination.
//
// It has no clusters (spec/clusters has), and no code but tests.
//
// Invariants: what the machine is made of (namespaces, an overlay of / in memory, control groups, two links) goes with it,
// also when a test fails. Environment: BIN, the folder with the binaries. It needs root, and systemd and curl installed.
package manual
