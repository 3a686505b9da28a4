// Package k3s makes a machine the K3s server or worker that a document says: it fetches the pinned binary, asks the
// platform for join material, owns K3s' configuration file, runs exactly `k3s server` or `k3s agent`, measures its
// health, and cleans the host when the document says absent.
//
// It is not the cluster (platform/cluster decides who joins what, with which ranges) and no Kubernetes client: it
// reads the few answers that health needs over plain HTTPS. What a running cluster can't change is never changed
// here; a difference is a finding.
//
// Invariants: each pass looks at the host and does the first thing that is not so; presence of a file is no evidence,
// contents, cluster id and token generation are; tokens are in 0600 files, never in the state file, a command line or
// a message; nothing is removed but on state absent.
package k3s
