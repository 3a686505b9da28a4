// Package artifact fetches the bytes that a document names by their SHA-256, from the platform or from where the
// operator said that they are.
//
// It doesn't install: its callers copy what it has checked to where it is used.
//
// Invariants: a file has its final name only after its SHA-256 fits; files are 0600; a fetch that was cut off goes on
// where it stopped; from a URL only https is spoken, and to no address that is loopback, link-local, private or
// multicast.
package artifact
