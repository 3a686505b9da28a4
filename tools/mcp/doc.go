// Package mcp is the MCP face of the verbs: a session for each client, on mcp-go, in both eras of the protocol. It lists
// tools from the contract and takes every call to the one call path, tools.Platform.Call.
//
// It is not a transport: a Stream brings messages and takes answers, over stdio or a bridge's connection. It knows no verb
// by its meaning and holds no rule; what a verb is, stands in package schema. No other package of the product imports
// mcp-go.
//
// Invariants: arguments reach the call path as the bytes that the client wrote; every message is answered once, also after
// the end of input; calls that write run one by one in the order of arrival, reads beside them; a write that has begun is
// never cancelled; an error carries no structuredContent.
package mcp
