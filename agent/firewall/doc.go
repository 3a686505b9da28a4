// Package firewall makes the one nftables table of ours on a machine, `inet powernode`, what a document says: named
// sets and the base chains input, forward and output, replaced in one batch.
//
// It is not the compiler of rules (package sdwan) and judges none: order and verdicts are the document's. It reads
// and writes no table of others, not even to look for a conflict.
//
// Invariants: desired == actual writes nothing; table, chains and sets stay and are refilled in one transaction, so
// that no packet meets a half-written rule set; a transaction that fails leaves the old rules whole; every rule carries
// the digest of what it was made from, so that rules that were added, removed or replaced by hand are seen. The
// agent's runner calls Reconcile and Observe.
package firewall
