// Package governance decides what a call may do: permissions of roles, policies of action categories, parked
// operations and their approval by a person's key, plans and their digests, and the proof of the audit chain.
//
// It is not the call path (package tools), which asks it; it knows no verb's behaviour and no transport.
//
// Invariants: no verb approves; an approval or a policy row that loosens is a signature by a human key, verified when it
// is used, so that writing the database is none; categories that end in _force are never lowered.
package governance
