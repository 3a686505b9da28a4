// Package boot is the first process of a local machine, `powernode-agent init`: it makes the machine's view of files,
// devices and network, starts the agent and starts it again when it dies, reaps orphans, and ends the machine on SIGTERM.
//
// It is no service manager: it runs one program, the agent, or none (an operator's workstation); what the agent starts
// is the agent's own. It decides nothing: the provider local, which starts it, tells it everything by a pipe.
//
// Invariants: it outlives platform and agent; a machine whose starter dies before the last word of the start ends by
// itself; nothing that it mounts is seen outside of its mount namespace; the enrolment reaches it by the pipe alone.
package boot
