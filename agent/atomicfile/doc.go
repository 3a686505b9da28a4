// Package atomicfile replaces files so that a reader, also after a crash, finds the old content or the new one whole.
//
// It is no storage layer: one function, for the small files of the agent's state and of the host's configuration.
//
// Invariants: the mode is the wanted one from the first byte on; the content is on disk before the name points to it;
// a failed write leaves no temporary file.
package atomicfile
