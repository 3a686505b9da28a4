// Package stdio holds powernode mcp against what its clients send over stdin: many calls at once, an end of input while
// they are on their way, a last line without a newline, messages that a library would never write. What libraries make of
// it is spec/mcp's to check.
//
// It makes no machines and needs no root. The programs that it speaks to are in the folder that BIN names.
//
// Invariants: every message has one answer; stdout carries JSON-RPC alone; what is refused has changed nothing.
package stdio
