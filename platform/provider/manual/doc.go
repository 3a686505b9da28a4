// Package manual is the provider of machines that exist: somebody runs them, and enrols each with the command that
// provisioning answers.
//
// It makes, starts and ends no machine, and measures none: what it keeps is which instance stands for a machine, so that
// instances of an account are found by their tags as with every provider. The command and the machine's leaving are
// platform/fleet's; what the command does on the machine is agent/install's.
//
// Invariants: it reaches nothing outside the state directory; a record is written atomically, is 0600 and holds no secret;
// a machine's status is unknown here, its agent's reports alone tell it.
package manual
