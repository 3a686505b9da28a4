// Package live runs what package docs pins: the tutorial and the runbook, each against an installation of its own, with
// machines of the provider local and K3s on them, by a foreign MCP client and a person at a terminal.
//
// It holds no call of its own: what is called, and what must come of it, is data of package docs. It needs root, built
// binaries in bin/ (or BIN) and K3s as spec/rig chooses it (K3S).
//
// Invariants: calls run one after the other, the first that comes out otherwise ends its document; nothing of an
// installation is left on the host.
package live
