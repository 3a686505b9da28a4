// Package fleet is the rules of nodes, templates, modules, assignments, instances and their provisioning, of the agents'
// identity (enrolment, certificates, reports), and it composes each instance's desired document.
//
// It is not where machines come from (platform/provider) and not the rules of networks and clusters, whose sections it
// asks those packages for.
//
// Invariants: an assignment comes from a person or from an apply, never from a template by itself; a failed provider call
// leaves a row that says so; an agent's report can't set a status that the table of states doesn't allow. Drains and
// replacements go from step to step in rows, never in a stack frame: RunTasks, which runs once a platform, goes on where
// they say.
package fleet
