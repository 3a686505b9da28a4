// Package rig runs an installation as its users do: powernode as a child process that a foreign MCP client speaks to over
// stdio, its command line, a person at a pseudo-terminal, and machines of the provider local.
//
// It is for spec/ and the demo only and imports nothing of the product: what it knows is what a user can see.
//
// Invariants: every wait has a deadline and says what it waited for; Close leaves nothing of the installation on the host.
package rig
