// Package agent is the node agent's runner: it enrols, keeps the last good document on disk, waits for newer ones,
// hands each to the subsystems side by side, and reports what they and the machine say.
//
// It is not what touches a machine (the packages below it: wireguard, firewall, vip, probe, module, k3s) and not the
// protocol (package nodeapi). It knows no subsystem by name: cmd/powernode-agent makes them and passes them in.
//
// Invariants: a failed read never becomes a smaller network, so nothing is torn down on an error or a 404; a stuck
// subsystem blocks no other; a start without the platform applies the last good document; files of the state
// directory are 0600 and replaced atomically.
package agent
