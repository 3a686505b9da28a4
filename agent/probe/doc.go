// Package probe carries out the measurements that a document asks for: an ICMPv6 echo or a TCP connection from an
// address of this machine to another.
//
// It is not what decides which paths are to be open (package sdwan's reachability matrix) nor what compares the two
// (platform/network). An answer of whatever kind, a refused connection too, means that packets came through.
//
// Invariants: each id is measured once; an outcome is told as long as the document asks for it; what could not be
// measured is an error and never "unreachable". The agent's runner calls Reconcile and Observe, and is woken by
// Changes.
package probe
