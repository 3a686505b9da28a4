// Package signal emits fleet events: single kinds, and pairs that open and close a condition.
//
// It is not the reader's side (tools) and not what decides that something is wrong (the domain packages and their
// watchers). It has no clock of its own and writes nothing outside the caller's transaction.
//
// Invariants: no kind outside the catalogue is emitted; an open condition is told again only when its severity rises;
// payloads hold no secret.
package signal
