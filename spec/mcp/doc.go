// Package mcp holds the MCP face against what speaks to it: the official conformance suite, against a fixture on our stack
// and against the production binary; the inspector's command line; the TypeScript SDK in both of its versions, over stdio
// and HTTP, in both eras of the protocol. What they need is installed by install.sh into the folder that CACHE names.
//
// It makes no machines and needs no root. All tests share one control plane, of a state directory of their own; the
// programs are in the folder that BIN names.
//
// Invariants: what the suite finds fails, unless baseline.yml names it as upstream's fault with the reason; so does an
// entry of a baseline that is found no more.
package mcp
