// Package docs pins the two documents that Powernode was described by, the tutorial and the runbook: every call that
// they show, in their order, with what it does here and a read that shows the effect.
//
// It is neither the documents nor a client: the texts are not repeated, and package live runs the calls against real
// installations. Here stand the data, its reader, and the checks that need no machine: the number of calls, and every
// call held against the contract's schemas.
//
// Invariants: what a document shows is pinned with the keys that stand there (what an example leaves open with `...` is
// marked added, what has to come in between is marked ours); a call that a document withdraws says in a note what it
// does here; a reference is saved before it is used.
package docs
