// Package schema is the contract: one JSON file a verb under verbs/, embedded; compiled, validated against raw
// arguments, and explained in words that a model can act on. It also holds the coded error that every package but
// sdwan uses at its boundary.
//
// It is not the verbs' behaviour (package tools) and knows no database, no transport and no SDK. It imports nothing
// of ours and does no I/O.
//
// Invariants: an undeclared key is a violation at every depth that is not declared free-form; nothing is coerced, only
// 1.0 is the integer 1; every violation of a call is in one error, in the order missing, undeclared, type, value.
package schema
