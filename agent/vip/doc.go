// Package vip puts the virtual IPs that a node holds on its WireGuard interfaces, and takes those away that it no
// longer holds.
//
// It is not what moves a virtual IP (package platform/network) and not what leads traffic to it: that is the /128 among
// the holder's AllowedIPs in everyone else's document. Nothing is announced, because WireGuard has no neighbours to
// tell.
//
// Invariants: a virtual IP is a /128 in its network's range ::100 to ::fff, without duplicate address detection and
// deprecated, so that it is answered and never chosen as a source; only addresses that the state file records are
// removed; a document with a lower epoch than the one applied changes nothing about its address; desired == actual
// writes nothing. The agent's runner calls Reconcile.
package vip
