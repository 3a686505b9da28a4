// Package e2e tries the built stand-in on machines made of namespaces.
package e2e
