// Package sensor compares what is desired with what agents report, and opens and closes conditions in pairs: machines that
// fell silent or lag behind, drift of modules and templates, certificates near their end, stuck tasks, findings of hosts,
// tunnels and virtual IPs that nobody reaches. It holds each account's thresholds, tells what may have caused a failure, and
// removes signals and events that are past their time.
//
// It is not what acts on a condition: remedies go through the one call path, in package tools. It measures nothing itself,
// and opens no transaction but those of Tick and Prune.
//
// Invariants: what is not measured opens nothing but the conditions that say so, and closes nothing; a condition whose
// subject is gone closes; sensors look side by side, each under its own deadline and in a view of its own; a round in which
// nothing changed writes nothing; what is written was looked at again in the transaction that writes it. The instant is the
// store's, so that no test waits.
package sensor
