// Package mcp speaks MCP, in both eras of the protocol, over streams and over HTTP. A Server serves a Catalogue of tools,
// resources and prompts; Face is the product's: the contract's verbs as tools, each call and each reading on the one call
// path, tools.Platform.Call. Types and the dispatch are mcp-go's; sessions, the order of calls, the reading of envelopes and
// the HTTP transport are ours, because the SDK's lose answers, order, and what a client really wrote.
//
// It is no place for rules: it knows no verb by its meaning, decides nothing, and asks nobody for an approval; what a verb is,
// stands in package schema. No other package of the product imports mcp-go.
//
// Invariants: arguments reach a tool as the bytes that the client wrote; every message is answered once, also after the end of
// input; on a stream, calls that write run one by one in the order of arrival, reads beside them; a write that has begun is never
// cancelled; an error carries no structuredContent; nothing is sent after an answer that belongs before it; over HTTP no client
// is remembered, and none is served that Authenticate does not know.
package mcp
