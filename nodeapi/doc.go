// Package nodeapi is what agents and the platform say to each other: wire types, strict codecs in both directions,
// the agent's client, and a server that takes a Backend, so that the agent links no database. The document and the
// report are sdwan's types; enrolment, handshake, runtime configuration and device bootstrap are here.
//
// It is not the rules behind the calls (platform/fleet, platform/cluster, platform/network); cmd/powernode binds
// them. Callers: agent, cmd/powernode, cmd/powernode-agent.
//
// Invariants: an undeclared or doubled key is refused in both directions; only enrolment and device bootstrap work
// without a client certificate; the platform checks the presented certificate, never a header.
package nodeapi
