package tools

import (
	"context"
	"testing"

	"powernode/schema"
	"powernode/store"
)

func TestVerbThatWritesWithoutACategoryIsAGap(t *testing.T) {
	t.Parallel()
	run := func(context.Context, *Platform, *store.Tx, Caller, any) (any, error) { return nil, nil }
	p := registered(t)
	if gaps := p.ungated(); len(gaps) > 0 {
		t.Errorf("the platform's own verbs have gaps: %+v", gaps)
	}
	p.order = append(p.order, &Definition{name: "system_loose", run: run, Verb: &schema.Verb{Name: "system_loose"}},
		&Definition{name: "system_strange", run: run, Verb: &schema.Verb{Name: "system_strange", Category: "made.up"}})
	gaps := p.ungated()
	if len(gaps) != 2 || gaps[0].Subject != "system_loose" || gaps[0].Severity != "high" || gaps[1].Severity != "medium" {
		t.Errorf("gaps %+v, want the verb without a category, and the one with an unknown category", gaps)
	}
}
