package main

import (
	"github.com/spf13/cobra"

	"powernode/platform/provider/local/boot"
)

// initCommand is the first process of a local machine. The provider starts it; nobody types it.
func initCommand() *cobra.Command {
	var o boot.Options
	cmd := &cobra.Command{
		Use:    "init",
		Short:  "First process of a local machine",
		Args:   cobra.NoArgs,
		Hidden: true,
		RunE:   func(*cobra.Command, []string) error { return boot.Run(o) },
	}
	cmd.Flags().BoolVar(&o.Idle, "idle", false, "run no agent: an operator's workstation")
	cmd.Flags().BoolVar(&o.Entered, "entered", false, "second stage: control groups are entered")
	return cmd
}
