// Package cluster is the rules of Kubernetes clusters: declaration, membership and targets, the agents' handshake and
// runtime configuration, measured health, kubeconfig, decommission.
//
// It speaks to no API server and no agent: it writes intent, and reads what agents report.
//
// Invariants: assigning, serving and joining ask one function which cluster a join means; the row, its VIP, ranges and
// tokens exist before K3s is installed; a member stays a member until it is removed; a target that can't be used is
// never replaced by the account's only cluster.
package cluster
