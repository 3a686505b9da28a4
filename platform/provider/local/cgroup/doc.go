// Package cgroup knows which control group hierarchies this host has, and makes, fills, kills and removes one group in
// each of them: version 2 alone, version 1 beside it, or both.
//
// It is not an accounting or a limiter: machines of the provider local share the host's memory and processors, and no
// controller is configured here beyond what makes a group usable.
//
// Invariants: every operation may be repeated; removing a group that is gone is success; a hierarchy that is mounted
// read-only has no group and is skipped. Its callers are the provider local and the first process of its machines.
package cgroup
