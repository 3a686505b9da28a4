// Package device makes a machine a person's device: it redeems bootstrap URLs, writes the WireGuard configuration with
// this machine's key filled in, and brings such a file up and down.
//
// It is not the node agent: a device has no identity, no document and no reports, and the platform learns its public
// key alone.
//
// Invariants: the key is made once a machine and never leaves it; nothing is sent before the platform's CA has been
// checked against the URL's fragment; files with the key are 0600 and replaced atomically; a command in a
// configuration (PostUp and its like) is refused, not run.
package device
