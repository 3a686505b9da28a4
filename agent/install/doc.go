// Package install makes the agent a service of a machine that somebody else runs, and takes it away again: what the command
// of the provider manual does on the machine, and what is left to do when the machine leaves.
//
// It is not the agent (package agent), which runs the same however it was started, and it needs systemd: where there is
// none, whoever runs the machine enrols it and starts the agent by his own means.
//
// Invariants: the platform's CA is checked by its fingerprint before the token is sent; the token comes by a file or a pipe;
// a machine that is an instance already does not become another one unless that is said, and leaves first as the former one where
// that has ended. Callers: cmd/powernode-agent.
package install
