// Package overlay proves what the overlay promises, on machines of the provider local: networks reach inside and not
// across, also against an attacker on the shared underlay; virtual IPs move; rules take effect; changes arrive within a
// second; and the data plane outlives agents and control plane.
//
// It has no Kubernetes (spec/clusters has), no scale (spec/bench) and no code but tests.
//
// Invariants: one installation for the package, whose machines of tenants A and B every test leaves as it found them;
// tests run one after another, because some kill what the others need. Environment: BIN, the folder with the binaries.
package overlay
