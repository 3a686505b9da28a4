// Package clusters proves the life of K3s clusters on machines of the provider local: declared or started by their first
// server, joined by whom they name and nobody else, measured, used while the control plane is dead, and removed without
// a trace.
//
// It has no overlay of its own (spec/overlay proves that), no upgrade and no second server (later issues), and no code but
// tests.
//
// Invariants: one installation for the package with two clusters that every test leaves as it found them; tests run one
// after another. Environment: BIN, the folder with the binaries; K3S, the K3s binary.
package clusters
