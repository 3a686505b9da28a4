// Package network is the rules of SDWAN intent: networks, peers, virtual IPs, firewall rules, access grants, devices,
// and the isolation of networks; it turns rows into the compiler's input.
//
// It is not the compiler (package sdwan) and not what touches machines (package agent).
//
// Invariants: addresses come from rows, never from hashes alone, and a released one rests; whoever asks for an overlap is
// refused before anything is compiled; every look-up is of one account.
package network
