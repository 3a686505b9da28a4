// Package modules proves what modules put on machines: a version's artefact, files and services, made and assigned by
// verbs, reach a machine of the provider local, stay through the agent's death, are put right where a hand changed them,
// and go without a trace.
//
// It has no packages but their refusal: a machine of that provider borrows its programs and has no package manager. On a
// machine with apt (spec/manual) a package that is there already and one that nobody has are tried; what apt downloads and
// what dpkg removes is tested in agent/module alone, against stand-ins of their programs.
//
// Invariants: one installation and one machine for the package; every test takes its modules off again. Environment: BIN,
// the folder with the binaries.
package modules
