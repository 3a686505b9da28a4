// Package service runs a machine's long-lived programs so that they outlive the agent: as units of systemd where it
// is the first process, otherwise each under a small supervisor process of its own.
//
// It is not a general process manager: it knows the services that the agent's subsystems name, an argument vector
// each, no shell, no dependency between them but on an address of the machine.
//
// Invariants: Ensure is idempotent and restarts nothing that is as wanted; what a unit file can't carry is refused,
// never escaped away; Stop ends everything that a service has started and leaves no file, cgroup or process behind.
package service
