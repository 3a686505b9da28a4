// Package tools is the verbs: one file a resource, the registry, and the one call path that every surface ends in,
// Platform.Call: validate, authorise, check, gate, run, act, wake.
//
// It is not the domain: a rule stands in platform/…, so that the agent API and the watchers obey it too; a handler takes
// arguments in, calls the domain and gives a result out. It knows no MCP (tools/mcp) and no HTTP.
//
// Invariants: arguments come from the schema alone, Go types are held against it by a test; check can't write; run
// speaks to nothing outside; every call, refused ones too, leaves one execution event.
package tools
