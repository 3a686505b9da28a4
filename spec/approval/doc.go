// Package approval attacks the person's approval as an assistant with a shell could: from another process of the very
// user that the control plane runs as, on a terminal of its own, with the product's own code to read, sign and write the
// store with.
//
// It is no test of the verbs that are parked, makes no machines and needs no root; as root it runs everything as a user
// that nothing else on the host belongs to. Against a process that traces or replaces ours only another user helps: that
// is not attacked here.
//
// Invariants: after each attack the parked call has not run, also after a restart of the control plane, and where a row was
// written powernode audit verify names it.
package approval
