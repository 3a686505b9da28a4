// Command leftovers proves that the tests leave nothing on the host: `leftovers snapshot FILE` notes what is there
// before they run, `leftovers check FILE` names what of ours is there afterwards and was not before.
//
// It removes nothing, and it is no monitor: it looks twice. What was there before is nobody's concern, and of processes,
// control groups and temporary files, which come and go on every host, only those count that carry a name of ours.
//
// Invariants: what can't be read is an error and never counts as empty (nftables, which need root, are left out in both
// runs by a word of their own); a check waits a bounded while for processes that are on their way out.
package main
