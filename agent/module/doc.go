// Package module is the agent's modules subsystem: it fetches the artefacts of the modules that a document names,
// checks them, and reports the digest of each module that is in place.
//
// It doesn't run modules: K3s is package k3s' work, and the platform serves no manifest with packages, files or
// services yet.
//
// Invariants: a digest is reported only for what was found on this machine by its SHA-256; an artefact that no module
// names goes.
package module
