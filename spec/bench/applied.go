package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"powernode/spec/rig"
)

// applied measures from a call's commit to the address on a machine's interface, as a subscription on the machine that is
// not the agent's sees it.
func applied(ctx context.Context, i *rig.Installation, template string) error {
	if os.Geteuid() != 0 {
		fmt.Println("from commit to the machine: not measured, making machines needs root")
		return nil
	}
	m, err := rig.NewMachine(ctx, i, template, "bench-machine")
	if err != nil {
		return err
	}
	took, err := m.Changes(ctx, changes)
	if err != nil {
		return err
	}
	fmt.Printf("%-44s %14s %14s\n", fmt.Sprintf("from commit to the machine, %d changes", len(took)), "median", "95th")
	fmt.Printf("%-44s %14s %14s\n", "", percentile(took, 50), percentile(took, 95).Round(time.Millisecond))
	return nil
}
