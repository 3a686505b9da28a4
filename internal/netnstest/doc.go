// Package netnstest gives tests machines: sets of network, mount, PID, UTS and IPC namespaces with a /proc and /run of
// their own, joined by a switch that is a namespace too. Commands and named functions of the test binary run in them
// as processes.
//
// It is no provider and no container engine: files other than /run and /proc are the host's, limits there are none,
// and nothing outlives the test. Only tests import it, and they need root.
//
// Invariants: nothing is made on the host itself, so names can't collide; the first process of a machine dies with
// the test binary and takes every other along, detached ones too; cleanup is t.Cleanup's and waits until all is gone.
package netnstest
