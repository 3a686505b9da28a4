// Package provider is where machines come from: the one interface that adapters satisfy, one package an adapter
// below it, and the contract suite that each passes (providertest).
//
// It is not the life of an instance (platform/fleet, its only caller besides the commands of cmd/powernode): an
// adapter makes, finds and ends machines, and knows no database.
//
// Invariants: capabilities are declared, never stubbed; "gone" is success for Terminate; a create that lost its answer
// is found again by its tag, not repeated.
package provider
