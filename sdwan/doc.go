// Package sdwan is the pure logic of the overlay: the address plan, topologies, firewall rule sets and routes,
// compiled into the documents that agents apply. Values go in, values come out; the same intent gives the same
// bytes, whatever order its parts come in.
//
// It is not the store of intent (package store), not its rules of change (platform/network) and not what touches a
// machine (package agent). It has no I/O, no clock, no randomness, no logger and no database.
//
// Invariants, each held by a property test: after longest match an address has at most one owner among the peers of
// an interface; shuffled input gives the same bytes; no path crosses networks without a declared crossing; the
// address plan never overlaps.
package sdwan
