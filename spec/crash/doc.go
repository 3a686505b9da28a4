// Package crash kills: the control plane while it creates rows and while it makes machines, the bridge of a client beside it,
// and agents. SIGKILL comes at random points; SEED repeats a run.
//
// It judges by what a user can see (answers, lists, the local machines, a ping between two of them) and by the store's own
// file. Making machines needs root.
//
// Invariants: what was acknowledged is there once; what was not is whole or absent; the record verifies; traffic between
// machines misses nothing.
package crash
