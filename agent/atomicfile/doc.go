// Package atomicfile replaces files so that a reader, also after a crash, finds the old content or the new one whole.
//
// It is no storage layer: it is for the files of the agent's state, of the host's configuration, and for programs.
//
// Invariants: under its name a file has the wanted mode from the first byte on, and until then nobody else reads it; the
// content is on disk before the name points to it; a failed write leaves no temporary file, and what a killed one left
// RemoveLeftovers takes away; a program can be started as soon as it has its name.
package atomicfile
