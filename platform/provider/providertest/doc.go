// Package providertest is the contract suite of provider.Provider: every adapter passes it.
//
// It is not a test of what one adapter alone promises; that stands beside the adapter.
//
// Invariants: it asserts only what provider.Provider says, ends every machine that it made, and waits on conditions
// with deadlines, never for a fixed time. Its callers are the adapters' tests.
package providertest
