// Package nodeapitest is a platform in memory for tests: a real nodeapi server over TLS 1.3 with a CA of its own, in
// front of a backend that a test steers and looks into.
//
// It is not the platform's rules: it hands out the documents, answers and errors that it is given.
//
// Invariants: one Platform a test; everything ends with the test; safe for several goroutines.
package nodeapitest
