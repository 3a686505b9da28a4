// Package module is the agent's modules subsystem: it puts on the machine what the document's modules declare (packages,
// the artefact, files, services), takes away what no module declares any more, and reports the digest of each module that
// is in place.
//
// It doesn't run K3s: the artefact and the configuration of the K3s modules are package k3s' work. It knows no module by
// what it does, follows no link, and writes nowhere but where package sdwan's rules let a module write, whoever asks.
//
// Invariants: a pass over what is as wanted writes nothing; what is about to be changed is in the journal before it is
// changed, so that a kill at any point leaves nothing that nobody takes away; only what the journal names is taken away;
// one module's trouble holds up no other; what was changed by hand is reported before it is put right.
package module
